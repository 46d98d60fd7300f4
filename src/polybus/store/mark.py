"""The mark: the number of the last commit, in a small file beside the database.

SQLite ends its write-ahead log at the first frame whose checksum is wrong: what was committed after that is
gone without a word.  So the number of each commit is also written here, after the commit is on disk, and a
database that is behind the mark has lost something.  The mark is not synced with every commit: after a power
cut it may lag, but it never leads.

Two slots are written in turn, so that a write that was cut off leaves the other one whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from zlib import crc32

_SLOT: Final = 16
_NUMBER: Final = 8


class Mark:
    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    @staticmethod
    def create(path: Path, number: int = 0) -> None:
        """Whole, and on disk, before it gets its name; the folder must be synced by the caller."""
        hidden = path.with_name(path.name + ".new")
        handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, _slot(number) * 2)
            os.fsync(handle)
        finally:
            os.close(handle)
        hidden.replace(path)

    def read(self) -> int | None:
        return whole_number(os.pread(self._file, 2 * _SLOT, 0))

    def start(self, number: int) -> None:
        """Write both slots, and wait until they are on disk."""
        os.pwrite(self._file, _slot(number) * 2, 0)
        os.fsync(self._file)

    def move(self, number: int) -> None:
        os.pwrite(self._file, _slot(number), number % 2 * _SLOT)

    def close(self) -> None:
        os.fsync(self._file)
        os.close(self._file)


def whole_number(content: bytes) -> int | None:
    """The highest number that is whole; None if neither is."""
    slots = [content[at : at + _SLOT] for at in (0, _SLOT)]
    return max((_number(slot) for slot in slots if _is_whole(slot)), default=None)


def _slot(number: int) -> bytes:
    content = number.to_bytes(_NUMBER, "big")
    return content + crc32(content).to_bytes(_SLOT - _NUMBER, "big")


def _is_whole(slot: bytes) -> bool:
    return len(slot) == _SLOT and slot == _slot(_number(slot))


def _number(slot: bytes) -> int:
    return int.from_bytes(slot[:_NUMBER], "big")
