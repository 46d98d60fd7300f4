"""Whether the application of `polybus up` can be loaded, before anything is started for it.

A process of its own looks: what an application does when it is imported must not happen in ours.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from polybus.cli.giving_up import ended_by_sigterm
from polybus.errors import ConfigError

# One that takes longer may be fine: the workers will tell.
PATIENCE_S: Final = 10.0
# What an exit status means that no program has by chance.
REFUSED: Final = 79
_LOOK: Final = f"""
import sys
from polybus.errors import ConfigError
from polybus.runtime.loading import load
try:
    load(sys.argv[1])
except ConfigError as error:
    print(error, file=sys.stderr, flush=True)
    sys.exit({REFUSED})
"""


def check_app(name: str) -> None:
    """Raise what is wrong with an application, and what to do."""
    try:
        # Whatever ends us ends it, too.
        with ended_by_sigterm():
            done = subprocess.run(
                [sys.executable, "-c", _LOOK, name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=PATIENCE_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return
    if done.returncode == REFUSED:
        # The application may have said something before.
        raise ConfigError(f"nothing was started: {done.stderr.decode(errors='replace').splitlines()[-1]}")
