"""A command as a child of another one, which ends when that one does: `python -m polybus.cli.part serve`.

The parent holds the other end of standard input.  However the parent dies, that pipe is closed, and this
process asks itself to stop; so nothing is ever left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

# How long a process whose parent is gone may take to end properly.
GRACE_S: Final = 5.0


def watch_parent() -> None:
    """Have this process ended when its parent is gone."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Timer(GRACE_S, os._exit, (1,)).start()

    # The parent alone decides what Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait, name="parent", daemon=True).start()


def main(arguments: list[str]) -> int:
    watch_parent()
    from polybus.cli.main import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
