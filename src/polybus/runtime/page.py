"""The page of memory that a child and its supervisor share: what is run, since when, and what is not to be.

Jobs of one child have numbers that go up by one.  The rules that make it work without a lock, each field
being written by one side only and 8 bytes wide:

- The child writes `running` before it begins a job and clears it after the job's answer was written to the
  pipe.  So after its death the job named there has no answer in the pipe only if it was cut short.
- The supervisor takes jobs back by raising `dropped` to the highest number it has handed out.  The child
  looks at it before it sets `running`, and again afterwards; if the job was taken back in between, it says so
  (`SKIPPED`) instead of running it.  The supervisor waits a moment (`SETTLE_S`) before it looks at `running`:
  whatever is not named there then has not begun and never will.
- The supervisor names the job that is to be interrupted in `unwanted` before it sends the signal.  A signal
  that comes after that job has ended finds another number and does nothing.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final

# How long a write of one process may take to be seen by another. It is nanoseconds; this is for bad days.
SETTLE_S: Final = 0.005

_RUNNING, _SINCE, _DROPPED, _UNWANTED = range(4)
_BYTES: Final = mmap.PAGESIZE


class Page:
    """Both sides' view of it; `fd` is handed from one to the other."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _BYTES)
        view = memoryview(self._map)
        self._numbers = view.cast("q")
        self._times = view.cast("d")

    @property
    def running(self) -> int:
        """The number of the job that runs; 0 if none does."""
        return self._numbers[_RUNNING]

    @property
    def since(self) -> float:
        """When it began, on the monotonic clock that all processes share."""
        return self._times[_SINCE]

    @property
    def dropped(self) -> int:
        """Jobs up to this number are not to be begun any more."""
        return self._numbers[_DROPPED]

    @dropped.setter
    def dropped(self, number: int) -> None:
        self._numbers[_DROPPED] = number

    @property
    def unwanted(self) -> int:
        """The job that is to be interrupted."""
        return self._numbers[_UNWANTED]

    @unwanted.setter
    def unwanted(self, number: int) -> None:
        self._numbers[_UNWANTED] = number

    def begin(self, number: int, now: float) -> None:
        # In this order: whoever sees the number sees when it began.
        self._times[_SINCE] = now
        self._numbers[_RUNNING] = number

    def end(self) -> None:
        self._numbers[_RUNNING] = 0

    def close(self) -> None:
        self._numbers.release()
        self._times.release()
        self._map.close()


def new_page() -> int:
    """The descriptor of an empty page."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("polybus-page")
    else:
        fd, path = tempfile.mkstemp(prefix="polybus-page-")
        os.unlink(path)
    os.ftruncate(fd, _BYTES)
    return fd
