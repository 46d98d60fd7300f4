"""A clock that moves when it is told to, and an event loop that goes by it."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

# Where the clock of a test begins. Any number would do; 0 is what the core takes for "never".
BEGIN_S = 1000.0


class Clock:
    """Virtual time. `advance` is for tests, `sleep` for jobs (which may as well call `time.sleep`)."""

    def __init__(self, start: datetime | None) -> None:
        self._now = BEGIN_S
        self.wall_offset = (start or datetime.now(UTC)).timestamp() - BEGIN_S
        # Set by the memory bus: how time passes for a test, and for a job that sleeps.
        self.pass_until: Callable[[float], None] = self.set
        self.sleep_until: Callable[[float], None] = self.set

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        """Seconds since 1970, as `time.time()` says them."""
        return self._now + self.wall_offset

    def now(self) -> datetime:
        """The time of day, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def advance(self, seconds: float) -> None:
        """Let time pass, and all jobs run that are due in it."""
        self.pass_until(self._now + seconds)

    def advance_to(self, moment: datetime) -> None:
        """Let time pass until a time of day."""
        self.pass_until(moment.timestamp() - self.wall_offset)

    def sleep(self, seconds: float) -> None:
        """What `time.sleep` is while a job runs."""
        self.sleep_until(self._now + seconds)

    def set(self, now: float) -> None:
        self._now = max(self._now, now)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a clock's: instead of waiting, it lets the clock move."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._clock.monotonic()

    @property
    def is_alone(self) -> bool:
        """Whether nothing but time can change anything: no sockets (but its own), no threads."""
        executor: Any = getattr(self, "_default_executor", None)
        return executor is None

    def wait(self, seconds: float) -> None:
        self._clock.pass_until(self._clock.monotonic() + seconds)


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        # The loop itself has one descriptor here, to be woken by.
        if timeout is not None and len(self.get_map()) <= 1 and self._loop.is_alone:
            self._loop.wait(timeout)
            return []
        began = time.monotonic()
        ready = super().select(timeout)
        self._loop.wait(time.monotonic() - began)
        return ready
