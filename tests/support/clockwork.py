"""A bus with a store, on clocks that only move when told, that can die and come back.

clockwork = Clockwork(MemoryStore(), wall=1_790_000_000.0)
clockwork.pass_time(60.0)       # both clocks move, with a tick whenever the bus wants one
clockwork.set_clock(-3600.0)    # the time of day is set back by an hour
clockwork.crash()               # what is not on disk is gone; a new bus begins from the store

`started` are the jobs that were placed in a queue, by their id: what a worker would get to run.
"""

from __future__ import annotations

from typing import Any

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.ledger import Accepted, Line, Ran, ScheduleRun
from polybus.core.model import Heartbeat
from polybus.core.restoring import restore
from polybus.core.tables import DESK
from polybus.dialects.port import Voice
from polybus.store.memory import MemoryStore

WORKER = (2, b"worker")
NEVER_DEAD = Heartbeat(dead_after_s=0.0)


class Clockwork:
    def __init__(self, store: MemoryStore, wall: float, keep_runs: bool = True) -> None:
        self.store = store
        # The store's own notes of runs are for people; `runs` has them all.
        self._keep_runs = keep_runs
        self.now = 1000.0
        self.offset = wall - self.now
        self.lives = 0
        self.started: list[bytes] = []
        self.accepted: list[bytes] = []
        self.runs: list[ScheduleRun] = []
        self.taken: list[Any] = []
        # Why the disk takes nothing; empty if it does.
        self.broken = ""
        self._kept: list[Line] = []
        self._open()

    def _open(self, watched: bool = False) -> None:
        self.lives += 1
        self.bus = Bus(b"%x-" % self.lives, watched=watched)
        self.bus.link_names = {DESK[0]: "jobs"}
        self.bus.store_trouble = ""
        self.bus.wall_offset = self.offset
        restore(self.bus, self.store.load(), Voice(), self.now)

    @property
    def wall(self) -> float:
        return self.now + self.offset

    def crash(self, watched: bool = False) -> None:
        """The process ends; a new one begins with what is on disk."""
        self._kept = []
        self._open(watched)
        if watched:
            self.settle(write=False)

    def set_clock(self, seconds: float) -> None:
        self.offset += seconds

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a tick whenever the bus asks for one that is worth it."""
        end = self.now + seconds
        while True:
            self.tick()
            # Idle ticks every second would be the whole work of a month.
            at = self.bus.book.schedules.next_at() - self.offset
            if not self.now < at <= end:
                break
            self.now = at
        self.now = end
        self.tick()

    def tick(self) -> None:
        self.bus.wall_offset = self.offset
        self.do(events.Tick())

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        self.settle()

    def settle(self, write: bool = True) -> None:
        while self.bus.actions or (write and self.bus.lines):
            for action in self.bus.take():
                if isinstance(action, act.Deliver):
                    self.started.append(action.request.request_id)
                    self.bus.handle(events.Result(WORKER, action.request.token, [b"done"]), self.now)
                else:
                    self.taken.append(action)
            if write and self.bus.lines:
                self._write(*self.bus.take_lines())

    def _write(self, number: int, lines: list[Line]) -> None:
        """As the scribe does it: jobs that cannot be written are refused, other lines are tried again."""
        if self.broken:
            refused = tuple(line.job.token for line in lines if isinstance(line, Accepted))
            self._kept += [line for line in lines if not isinstance(line, Accepted)]
            self.bus.handle(events.Unwritten(refused, self.broken), self.now)
            self.bus.handle(events.StoreHealth(self.broken), self.now)
            return
        self.write([*self._kept, *lines])
        self._kept = []
        self.bus.handle(events.Written(number), self.now)

    def write(self, lines: list[Line]) -> None:
        """Put lines on disk, of which the bus is not told here."""
        self.store.write([line for line in lines if self._keep_runs or not isinstance(line, Ran)])
        for line in lines:
            if isinstance(line, Accepted):
                self.accepted.append(line.job.request_id)
            elif isinstance(line, Ran):
                self.runs.append(line.run)

    def repair(self) -> None:
        self.broken = ""
        self.do(events.StoreHealth(""))
        self._write(*self.bus.take_lines())

    def worker(self, *services: str) -> None:
        offers = tuple((service.encode(), 0) for service in services)
        self.do(events.WorkerUp(WORKER, None, offers, NEVER_DEAD, 1000))

    def actions(self, kind: type) -> list[Any]:
        """The actions of one kind since the last look, which are no longer there then."""
        found = [action for action in self.taken if isinstance(action, kind)]
        self.taken = [action for action in self.taken if not isinstance(action, kind)]
        return found
