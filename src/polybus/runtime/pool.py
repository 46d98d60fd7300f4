"""The pool: requests that wait, children that run them, and what is due when.

It knows no broker.  Requests come in with `submit`, everything that becomes of them goes out through a
`Listener`.  `now` is an argument; `turn` does what is due by then and `deadline` says when the next is.  Who
gets what is in `handing`, how children come and go in `staffing`.
"""

from __future__ import annotations

import signal
import socket
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

import msgspec

from polybus.runtime import handing, staffing
from polybus.runtime.pipe import Facts, Kind, Report
from polybus.runtime.seat import Seat, SeatState, Task

# The broker is asked for about this much work a child, so that the next is there when one is done.
HORIZON_S: Final = 0.1
# What has waited here for this long without being begun is better off elsewhere.
STALE_S: Final = 1.0


class Listener(Protocol):
    """Who is told what becomes of requests and of children."""

    def finished(self, task: Task, kind: int, body: bytes) -> None:
        """It ran to its end; the body is the answer, or the error object of a job that raised."""

    def failed(self, task: Task, code: str, detail: str) -> None:
        """It was cut short, or not begun at all."""

    def part(self, task: Task, body: bytes) -> None: ...

    def came_up(self, facts: Facts) -> None: ...

    def loaded(self, files: list[str]) -> None: ...

    def could_not_start(self, why: str, retry_s: float) -> None: ...

    def note(self, text: str) -> None:
        """Something that people want to read."""


class Nest(Protocol):
    """What makes and ends children (`nursery.Nursery`)."""

    def fork(self, key: int, fds: list[int]) -> None: ...

    def kill(self, pid: int, number: int) -> None: ...


class Rules(msgspec.Struct, frozen=True):
    processes: int = 1
    # The most that is asked for at once, a process; reached by jobs of a millisecond and less.
    prefetch: int = 100
    # For jobs that bring no limit of their own; 0 means none.
    time_limit_s: float = 0.0
    cancel_grace_s: float = 2.0
    # After how many jobs a child is replaced.
    max_jobs: int | None = None


class Pool:
    """All children of one worker, and the requests that are not answered yet."""

    def __init__(
        self,
        rules: Rules,
        nest: Nest,
        listener: Listener,
        watch: Callable[[socket.socket, Seat | None], None],
        output: Callable[[int], list[int]],
    ) -> None:
        self.rules: Final = rules
        self.nest = nest
        self.listener: Final = listener
        # Called with a child's pipe: look at it from now on, for room too if something is unsent; or no more.
        self.watch: Final = watch
        # The descriptors of a new child's output; none if it shares ours.
        self.output: Final = output
        self.seats: dict[int, Seat] = {}
        self.queue: OrderedDict[Task, None] = OrderedDict()
        self.last_key = 0
        # How long a job takes, the newest ones counting most.
        self.mean_s: float | None = None
        # Children that died before they were up, since one was; when the next may be started.
        self.failed_starts = 0
        self.start_at = 0.0
        # Those that are replaced one after the other, and the one that comes in for the first of them.
        self.old: list[Seat] = []
        self.fresh: Seat | None = None
        # Nothing more is handed out; no child is started any more.
        self.paused = False
        self.ending = False

    # -- requests -------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        if not task.limit_s:
            task.limit_s = self.rules.time_limit_s
        self.queue[task] = None

    def cancel(self, task: Task, now: float) -> None:
        """Nobody wants it any more: dropped if it has not begun, else interrupted, then killed."""
        if not task.cancelled:
            task.cancelled = True
            handing.cancel(self, task, now)

    def take_waiting(self, since: float = inf) -> list[Task]:
        """What waits here and came before that time; it is no longer ours."""
        taken = [task for task in self.queue if task.arrived_at <= since]
        for task in taken:
            del self.queue[task]
        return taken

    def pause(self, now: float) -> None:
        """Hand out nothing more, and take back what has not begun."""
        self.paused = True
        for seat in self.seats.values():
            handing.recall(seat, now)

    @property
    def load(self) -> int:
        """Requests that are not answered yet."""
        return len(self.queue) + sum(len(seat.handed) for seat in self.seats.values())

    @property
    def slots(self) -> int:
        """How many requests we should hold: one for each child, more if they are quick."""
        serving = sum(seat.state is SeatState.SERVING for seat in self.seats.values())
        return serving * self.fill(HORIZON_S)

    def fill(self, span_s: float) -> int:
        """How many jobs fill a span of time: at least one, at most what is allowed."""
        mean_s, most = self.mean_s, self.rules.prefetch
        if mean_s is None:
            return 1
        return most if mean_s * most <= span_s else max(1, int(span_s / mean_s))

    # -- time -----------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When `turn` is due."""
        due = min((seat.due for seat in self.seats.values()), default=inf)
        if not self.ending and staffing.missing(self):
            due = min(due, self.start_at)
        if self.queue:
            due = min(due, next(iter(self.queue)).arrived_at + STALE_S)
        return due

    def turn(self, now: float) -> None:
        """Everything that is due, then hand out what waits."""
        for seat in list(self.seats.values()):
            if now >= seat.due:
                handing.look(self, seat, now)
        if not self.ending and now >= self.start_at:
            staffing.fill_up(self, now)
        if self.queue and not self.paused:
            handing.hand_out(self, now)

    # -- children -------------------------------------------------------------------------------

    def readable(self, seat: Seat, now: float) -> None:
        """There is something in a child's pipe."""
        if seat.state is SeatState.GONE:
            # Buried by what came in together with this.
            return
        reports = seat.read()
        if reports is None:
            self.watch(seat.pipe, None)
            staffing.hung_up(seat, now)
        elif reports:
            self.hear(seat, reports, now)

    def writable(self, seat: Seat) -> None:
        """There is room in a child's pipe."""
        if seat.state is SeatState.GONE:
            return
        seat.flush()
        if not seat.unsent:
            self.watch(seat.pipe, seat)

    def hear(self, seat: Seat, reports: list[Report], now: float) -> None:
        for number, kind, took_s, body in reports:
            if kind <= Kind.FAILED:
                mean_s = self.mean_s
                self.mean_s = took_s if mean_s is None else mean_s + (took_s - mean_s) * handing.WEIGHT
                handing.finish(self, seat, number, kind, body)
            elif kind == Kind.BELL:
                continue
            elif kind == Kind.PART:
                task = seat.handed.get(number)
                if task is not None:
                    self.listener.part(task, body)
            elif kind == Kind.SKIPPED:
                handing.wait_again(self, seat, number)
            else:
                staffing.of_itself(self, seat, kind, body, now)
        if not seat.handed:
            staffing.idle(seat, now)
        else:
            seat.due = min(seat.due, now + handing.SLOW_S)

    def born(self, key: int, pid: int, now: float) -> None:
        """A child has been forked; 0 if it could not be."""
        seat = self.seats.get(key)
        if seat is None:
            return
        seat.pid = pid
        if not pid:
            seat.fault = "the system allows no more processes; see 'ulimit -u' and the memory that is left"
            staffing.bury(self, seat, 0, now)
        elif seat.state is SeatState.DYING:
            self.nest.kill(pid, signal.SIGKILL)

    def buried(self, pid: int, status: int, now: float) -> None:
        for seat in list(self.seats.values()):
            if seat.pid == pid:
                staffing.bury(self, seat, status, now)

    def retire_all(self, now: float) -> None:
        """Let every child finish what it has, and go."""
        self.ending = True
        for seat in list(self.seats.values()):
            staffing.retire(self, seat, now)

    def replace_all(self, now: float) -> None:
        """One after the other: a new child comes up, an old one goes."""
        staffing.replace_all(self, now)

    def kill_all(self) -> None:
        self.ending = True
        for seat in self.seats.values():
            staffing.kill(self, seat, signal.SIGKILL)
