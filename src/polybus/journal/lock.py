"""One archiver for a journal: the kernel's lock, which ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

LOCK: Final = "archiver.lock"


def take(journal: Path) -> int | None:
    """The lock as an open file, to be closed by whoever has it; None if somebody else does."""
    file = os.open(journal / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    os.ftruncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
    return file


def holder(journal: Path) -> str:
    """Who has the lock, or had it last."""
    try:
        return (journal / LOCK).read_text().strip() or "unknown"
    except OSError:
        return "unknown"
