"""How long tests wait for what must happen: one factor for all of them.

Machines that run the tests are shared and differ in speed.  Waiting long costs nothing while things go well,
so every limit is generous, and `POLYBUS_TEST_PATIENCE` makes all of them longer, or shorter for somebody who
looks for a failure.  A limit on how long something takes is stretched as well; a silence that is part of what
a test checks ("nothing arrives") is not.
"""

from __future__ import annotations

import os
from typing import Final

# The limits in the tests are many times what a machine needs that has nothing else to do. Machines that many
# share have taken longer all the same, so they are three times that unless somebody says otherwise.
FACTOR: Final = float(os.environ.get("POLYBUS_TEST_PATIENCE", "3"))


def patient(seconds: float) -> float:
    """So many seconds, for a machine that does nothing else, as a limit on this one."""
    return seconds * FACTOR
