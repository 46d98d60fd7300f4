"""How much of the machine archiving may take: little, unless there is a reason.

On a busy machine the bus comes first, so most of the work is done by a thread that runs in the gaps which
everybody else leaves.  Two things are not left to the gaps: what is little, because it costs nothing and its
readers wait for it, and what has become so much that the disk would fill.  (A thread may only ever become
more modest, so these are two threads.)
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

# The traffic of a second, if it is some thousand requests.
LITTLE_BYTES: Final = 2 * 1024 * 1024
# Some ten seconds of all that a broker can do.
MUCH_BYTES: Final = 512 * 1024 * 1024
# As modest as one can be.
NICENESS: Final = 19

T = TypeVar("T")


class Pace:
    """Has work done, now or in the gaps."""

    def __init__(self) -> None:
        self._gaps = ThreadPoolExecutor(1, "gaps", _be_modest)

    def work(self, do: Callable[[], T], waiting_bytes: int) -> T:
        """Do it, at the pace that fits what waits to be archived."""
        if waiting_bytes <= LITTLE_BYTES or waiting_bytes >= MUCH_BYTES:
            return do()
        return self.in_gaps(do)

    def in_gaps(self, do: Callable[[], T]) -> T:
        return self._gaps.submit(do).result()


def _be_modest() -> None:
    # Not every system has priorities of threads.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
