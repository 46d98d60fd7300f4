"""The memory that a child and its supervisor share: what is run, since when, what is not to be, and answers.

Jobs of one child have numbers that go up by one.  The rules that make it work without a lock, each field
being written by one side only and 8 bytes wide:

- The child writes `running` before it begins a job and clears it after the job's answer is in the ring or in
  the pipe.  So after its death the job named there has no answer only if it was cut short.
- The supervisor takes jobs back by raising `dropped` to the highest number it has handed out.  The child
  looks at it before it sets `running`, and again afterwards; if the job was taken back in between, it says so
  (`SKIPPED`) instead of running it.  The supervisor waits a moment (`SETTLE_S`) before it looks at `running`:
  whatever is not named there then, and has no answer another moment later, has not begun and never will.
- The supervisor names the job that is to be interrupted in `unwanted` before it sends the signal.  A signal
  that comes after that job has ended finds another number and does nothing.
- Answers go into a ring: they survive the child there, and cost no system call each.  The child rings the
  bell through the pipe when it has nothing more to do or some time has passed; the supervisor also looks by
  itself now and then, and takes what was there a moment before.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final

# How long a write of one process may take to be seen by another. It is nanoseconds; this is for bad days.
SETTLE_S: Final = 0.005
# Some hundred answers of quick jobs. What does not fit goes through the pipe.
RING_BYTES: Final = 256 * 1024

_RUNNING, _SINCE, _DROPPED, _UNWANTED, _WRITTEN, _TAKEN = range(6)
_HEAD_BYTES: Final = mmap.PAGESIZE
_BYTES: Final = _HEAD_BYTES + RING_BYTES


class Page:
    """Both sides' view of it; `fd` is handed from one to the other."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _BYTES)
        self._view = memoryview(self._map)
        self._numbers = self._view[:_HEAD_BYTES].cast("q")
        self._times = self._view[:_HEAD_BYTES].cast("d")
        self._ring = self._view[_HEAD_BYTES:]

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

    # -- the ring -------------------------------------------------------------------------------

    @property
    def written(self) -> int:
        """How many bytes have ever been put into the ring."""
        return self._numbers[_WRITTEN]

    @property
    def is_empty(self) -> bool:
        return self._numbers[_WRITTEN] == self._numbers[_TAKEN]

    def put(self, data: bytes) -> bool:
        """Add something; False if there is no room."""
        numbers, size = self._numbers, len(data)
        written = numbers[_WRITTEN]
        if written + size - numbers[_TAKEN] > RING_BYTES:
            return False
        at = written % RING_BYTES
        if at + size <= RING_BYTES:
            self._ring[at : at + size] = data
        else:
            head = RING_BYTES - at
            self._ring[at:] = data[:head]
            self._ring[: size - head] = data[head:]
        # Last: whoever sees the count sees the bytes.
        numbers[_WRITTEN] = written + size
        return True

    def take(self, upto: int) -> bytes:
        """What was added since the last time, up to this count."""
        taken = self._numbers[_TAKEN]
        if upto <= taken:
            return b""
        at, size = taken % RING_BYTES, upto - taken
        if at + size <= RING_BYTES:
            data = bytes(self._ring[at : at + size])
        else:
            data = bytes(self._ring[at:]) + bytes(self._ring[: at + size - RING_BYTES])
        self._numbers[_TAKEN] = upto
        return data

    def close(self) -> None:
        for view in (self._numbers, self._times, self._ring, self._view):
            view.release()
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
