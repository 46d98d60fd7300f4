"""What a job may know of itself while it runs: its id, its attempt, how long it still has.

    job = polybus.current_job()
    for done, row in enumerate(rows):
        job.progress(done / len(rows))

Outside of a worker there is a blank one, so that a job's function can be called in tests as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class JobInterrupted(BaseException):
    """Raised inside a job that is to end: it was cancelled, or has used up its time.

    Like KeyboardInterrupt it is no `Exception`, so that `except Exception` does not swallow it.  Clean up and
    let it pass; the process is killed if the job does not end soon.  `reason` is "cancelled" or "timeout".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CurrentJob:
    """The job that runs in this process."""

    __slots__ = ("_ends_at", "_tell", "attempt", "id", "queue")

    def __init__(
        self,
        id: str = "",
        queue: str = "",
        attempt: int = 0,
        ends_at: float | None = None,
        tell: Callable[[Any], None] | None = None,
    ) -> None:
        #: What the broker and its operators call it; empty outside of a worker.
        self.id = id
        self.queue = queue
        #: 1 for the first attempt; 0 if the broker does not say.
        self.attempt = attempt
        self._ends_at = ends_at
        self._tell = tell

    @property
    def remaining_s(self) -> float | None:
        """How long it may still run; None if there is no limit."""
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    @property
    def deadline(self) -> float | None:
        """When it is killed, as `time.time()` counts; None if there is no limit."""
        return None if self._ends_at is None else time.time() + self._ends_at - time.monotonic()

    def progress(self, value: Any) -> None:
        """Tell whoever waits for the result how far it is: anything that JSON can hold."""
        # A thread that has outlived its job must not speak for the next one.
        if self._tell is not None and _current is self:
            self._tell(value)

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id or 'none'}>"


_NONE = CurrentJob()
_current = _NONE


def current_job() -> CurrentJob:
    """The job that runs in this process, in whatever thread or task of it this is asked."""
    return _current


def set_current(job: CurrentJob | None) -> None:
    # A process runs one job at a time, so this is no thread's or task's own: helpers of the job see it, too.
    global _current
    _current = _NONE if job is None else job
