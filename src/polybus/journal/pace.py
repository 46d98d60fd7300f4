"""When archiving is done, and how much of the machine it may take: little, unless there is a reason.

The bus comes first.  While the machine is busy, finished logs wait: that is what they are for.  What is done
then is done by a thread that runs in the gaps which everybody else leaves.  Not everything is left to that:

    little waits           at once: it costs nothing, and its readers wait for it
    the machine has gaps   in them
    the machine is busy    later, in its gaps, at most PATIENCE_S later
    much waits             at once: the disk would fill

(A thread may only ever become more modest, so `at once` and `in the gaps` are two threads.)
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

# The traffic of a second, if it is some thousand requests.
LITTLE_BYTES: Final = 2 * 1024 * 1024
# Some ten seconds of all that a broker can do.
MUCH_BYTES: Final = 512 * 1024 * 1024
PATIENCE_S: Final = 10.0
# How often a busy machine is looked at again, and how much of a processor is idle if it is not busy.
LOOK_S: Final = 0.5
IDLE: Final = 0.8
# Of fewer ticks of the system's clock one cannot tell.
LEAST_TICKS: Final = 40
# Where there are no threads that run in gaps only.
NICENESS: Final = 19
TIMES: Final = Path("/proc/stat")

T = TypeVar("T")


class Pace:
    """Has work done at the pace that fits."""

    def __init__(
        self, idle: Callable[[], float] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._gaps = ThreadPoolExecutor(1, "gaps", _be_modest)
        self._idle = idle or Idleness().processors
        self._clock = clock
        self._patient_since = 0.0
        self._looked_at = 0.0

    def may_wait(self, waiting_bytes: int) -> bool:
        """Whether what waits had better wait some more, now that the machine is busy."""
        now = self._clock()
        # What it did long ago tells nothing about now.
        is_stale, self._looked_at = now - self._looked_at > 2 * LOOK_S, now
        is_busy = self._idle() < IDLE or is_stale
        if not is_busy or not LITTLE_BYTES < waiting_bytes < MUCH_BYTES:
            return False
        self._patient_since = self._patient_since or now
        return now - self._patient_since < PATIENCE_S

    def work(self, do: Callable[[], T], waiting_bytes: int) -> T:
        self._patient_since = 0.0
        if LITTLE_BYTES < waiting_bytes < MUCH_BYTES:
            return self.in_gaps(do)
        return do()

    def in_gaps(self, do: Callable[[], T]) -> T:
        return self._gaps.submit(do).result()


class Idleness:
    """How many processors nobody has used since the last look."""

    def __init__(self, times: Path = TIMES) -> None:
        self._times = times
        self._idle, self._all = self._read()
        self._processors = float(os.cpu_count() or 1)
        self._found = self._processors

    def processors(self) -> float:
        """All of them, if nobody can tell."""
        idle, all_ = self._read()
        if all_ - self._all >= LEAST_TICKS:
            self._found = self._processors * (idle - self._idle) / (all_ - self._all)
            self._idle, self._all = idle, all_
        return self._found

    def _read(self) -> tuple[int, int]:
        try:
            # cpu user nice system idle iowait …
            ticks = [int(word) for word in self._times.read_text().split("\n", 1)[0].split()[1:9]]
            return sum(ticks[3:5]), sum(ticks)
        except (OSError, ValueError):
            return 0, 0


def _be_modest() -> None:
    # Not every system has priorities of threads.
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        # A processor that is busy with such a thread counts as free for whoever wakes up.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
