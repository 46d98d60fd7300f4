"""One place in the pool, as the supervisor sees it: a child, its pipe, its page and what was handed to it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from math import inf
from typing import Any, Final

from polybus.runtime.page import Page, new_page
from polybus.runtime.pipe import OrderValues, Report, ReportReader, read_reports, write_orders
from polybus.wire.context import NO_CONTEXT, Context

READ_BYTES: Final = 1024 * 1024


class SeatState(IntEnum):
    STARTING = 1  # the application is being imported
    SERVING = 2
    RETIRING = 3  # gets nothing more and finishes what it has
    ENDING = 4  # was asked to end
    DYING = 5  # was sent a signal that ends it
    GONE = 6


_S = SeatState
# What may follow on what; a missing pair is a bug.
Moves = Mapping[SeatState, SeatState]
UP: Final[Moves] = {_S.STARTING: _S.SERVING, _S.DYING: _S.DYING}
RETIRE: Final[Moves] = {
    _S.SERVING: _S.RETIRING,
    _S.RETIRING: _S.RETIRING,
    _S.ENDING: _S.ENDING,
    _S.DYING: _S.DYING,
}
END: Final[Moves] = {_S.RETIRING: _S.ENDING}
KILL: Final[Moves] = {state: _S.DYING for state in _S if state is not _S.GONE}
BURY: Final[Moves] = {state: _S.GONE for state in _S if state is not _S.GONE}


class Task:
    """One request on its way through the pool. `owner` is whatever the supervisor knows it by."""

    # fmt: off
    __slots__ = (
        "arrived_at", "attempt", "body", "cancelled", "context", "id", "limit_s", "number", "owner", "queue",
        "seat", "ttl_s",
    )
    # fmt: on

    def __init__(
        self,
        owner: Any,
        id: bytes,
        queue: bytes,
        body: list[bytes],
        now: float,
        attempt: int = 0,
        limit_s: float = 0.0,
        ttl_s: float | None = None,
        context: Context = NO_CONTEXT,
    ) -> None:
        self.owner = owner
        self.id = id
        self.queue = queue
        self.body = body
        self.arrived_at = now
        self.attempt = attempt
        self.limit_s = limit_s
        self.ttl_s = ttl_s
        self.context = context
        self.cancelled = False
        # Where it is, and its number there; None and 0 while it waits.
        self.seat: Seat | None = None
        self.number = 0

    @property
    def is_running(self) -> bool:
        return self.seat is not None and self.seat.page.running == self.number


class Seat:
    """A child and what it has. It changes nothing on its own: `pool` decides."""

    def __init__(
        self,
        key: int,
        fork: Callable[[int, list[int]], None],
        now: float,
        jobs_left: int | None,
        output: Sequence[int] = (),
    ) -> None:
        self.key: Final = key
        self.pid = 0
        self.state = SeatState.STARTING
        self.started_at: Final = now
        # How many more jobs it may be given; None means any number.
        self.jobs_left = jobs_left
        self.handed: dict[int, Task] = {}
        self.last = 0
        self.due = inf
        # When it is killed for not having ended; why, if that is not its own fault: number, word, sentence.
        self.kill_at = inf
        self.verdict: tuple[int, str, str] | None = None
        # When the jobs that it has not begun were taken back, and what it ran a moment later.
        self.recalled_at: float | None = None
        self.kept: int | None = None
        # It takes its time: nothing is put behind what it runs.
        self.slow = False
        self.was_up = False
        self.fault = ""
        self._reader: Final = ReportReader()
        self._glanced = 0
        # What a full pipe did not take yet.
        self.unsent: Final = bytearray()
        page_fd = new_page()
        self.pipe, theirs = socket.socketpair()
        self.pipe.setblocking(False)
        try:
            self.page: Final = Page(page_fd)
            fork(key, [theirs.fileno(), page_fd, *output])
        finally:
            theirs.close()
            for fd in (page_fd, *output):
                os.close(fd)

    def hand(self, tasks: list[Task]) -> None:
        """Give it these, in one write."""
        orders: list[OrderValues] = []
        number = self.last
        for task in tasks:
            number += 1
            task.seat, task.number = self, number
            self.handed[number] = task
            limit_s, ttl_s, context = task.limit_s, task.ttl_s, task.context
            orders.append((number, task.id, task.queue, task.body, task.attempt, limit_s, ttl_s, context))
        self.last = number
        if self.jobs_left is not None:
            self.jobs_left -= len(tasks)
        self._write(write_orders(orders))

    def ask_to_end(self) -> None:
        self._write(write_orders([]))

    def _write(self, data: bytes) -> None:
        self.unsent.extend(data)
        self.flush()

    def flush(self) -> None:
        """Send as much as the pipe takes."""
        try:
            while self.unsent:
                # From the front of a bytearray bytes are taken at no cost.
                del self.unsent[: self.pipe.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # It is gone, or has closed its end; its burial tells.
            self.unsent.clear()

    def read(self) -> list[Report] | None:
        """The reports that are there; None if the child has closed its end."""
        try:
            data = self.pipe.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        # Whatever came through the pipe was written after what is in the ring.
        return self.read_ring() + self._reader.feed(data)

    def read_ring(self) -> list[Report]:
        return read_reports(self.page.take(self.page.written))

    def glance(self) -> list[Report]:
        """What was in the ring a moment ago, when we last looked: the child may not have rung its bell."""
        before, self._glanced = self._glanced, self.page.written
        return read_reports(self.page.take(before))

    def read_last(self) -> list[Report]:
        """All that a child has said before its end."""
        reports = self.read_ring()
        while True:
            try:
                data = self.pipe.recv(READ_BYTES)
            except OSError:
                return reports
            if not data:
                return reports
            reports += self._reader.feed(data)

    def take(self, number: int) -> Task | None:
        """It has this one no more."""
        task = self.handed.pop(number, None)
        if task is not None:
            task.seat, task.number = None, 0
        return task

    def close(self) -> None:
        self.pipe.close()
        self.page.close()


def how_it_ended(status: int) -> str:
    """A wait status in words, to follow "the process"."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    memory = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}){memory}"
