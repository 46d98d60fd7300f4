"""A pool with real processes and no broker: what a test submits comes back as what became of it."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from polybus.runtime.nursery import Nursery
from polybus.runtime.pipe import Facts, Kind
from polybus.runtime.pool import Pool, Rules
from polybus.runtime.seat import Seat, SeatState, Task
from support.patience import patient

TESTS = Path(__file__).resolve().parents[1]
APP = "support.pool_app:bus"
PATIENCE_S = patient(30.0)


class Bench:
    """Drives a pool; leaving the block ends all of its processes."""

    def __init__(self, processes: int = 1, app: str = APP, max_memory: int = 0, **rules: Any) -> None:
        self.nursery = Nursery(app, max_memory)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.nursery, selectors.EVENT_READ, None)
        self.pool = Pool(Rules(processes, **rules), self.nursery, self, self._watch, lambda key: [])
        self.results: dict[int, Any] = {}
        self.failures: dict[int, tuple[str, str]] = {}
        self.parts: dict[int, list[Any]] = {}
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.ups = 0
        self._tasks: list[Task] = []

    def _watch(self, pipe: socket.socket, seat: Seat | None) -> None:
        known = pipe in self._selector.get_map()
        if seat is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if seat.unsent else 0)
            (self._selector.modify if known else self._selector.register)(pipe, events, seat)
        elif known:
            self._selector.unregister(pipe)

    # -- what the test does ---------------------------------------------------------------------

    def submit(self, name: str, *args: Any, limit_s: float = 0.0) -> int:
        """Have a job of the application run; returns its index."""
        message = json.dumps(["run", {"path": "support.pool_app", "callable": name, "args": args}]).encode()
        return self.submit_raw(b"default", message, limit_s)

    def submit_raw(self, queue: bytes, body: bytes, limit_s: float = 0.0) -> int:
        index = len(self._tasks)
        task = Task(index, b"t%d" % index, queue, [body], time.monotonic(), 1, limit_s)
        self._tasks.append(task)
        self.pool.submit(task)
        return index

    def cancel(self, index: int) -> None:
        self.pool.cancel(self._tasks[index], time.monotonic())

    def is_running(self, index: int) -> bool:
        return self._tasks[index].is_running

    def turn(self) -> None:
        now = time.monotonic()
        self.pool.turn(now)
        wait_s = max(0.0, min(self.pool.deadline - time.monotonic(), 0.05))
        for key, ready in self._selector.select(wait_s):
            now = time.monotonic()
            if key.data is None:
                born, ended, alive = self.nursery.reports()
                assert alive
                for seat_key, pid in born:
                    self.pool.born(seat_key, pid, now)
                for pid, status in ended:
                    self.pool.buried(pid, status, now)
                continue
            if ready & selectors.EVENT_WRITE:
                self.pool.writable(key.data)
            if ready & selectors.EVENT_READ:
                self.pool.readable(key.data, now)

    def until(self, condition: Callable[[], object], what: str = "it") -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (what, self.results, self.failures, self.faults, self.notes)
            self.turn()

    def until_up(self, count: int = 1) -> Self:
        self.until(lambda: self.ups >= count, "children")
        return self

    def outcome(self, index: int) -> Any:
        """The result of a job, or the word and the sentence of its failure."""
        self.until(lambda: index in self.results or index in self.failures, f"the end of {index}")
        return self.results[index] if index in self.results else self.failures[index]

    @property
    def pids(self) -> set[int]:
        return {seat.pid for seat in self.pool.seats.values() if seat.state is SeatState.SERVING}

    # -- what the pool tells --------------------------------------------------------------------

    def finished(self, task: Task, kind: int, body: bytes) -> None:
        assert task.owner not in self.results
        assert task.owner not in self.failures
        if kind == Kind.FAILED:
            error = json.loads(body)
            self.failures[task.owner] = error["error"], error["detail"]
        else:
            self.results[task.owner] = body if task.queue != b"default" else json.loads(body)

    def failed(self, task: Task, code: str, detail: str) -> None:
        assert task.owner not in self.results
        assert task.owner not in self.failures
        self.failures[task.owner] = code, detail

    def part(self, task: Task, body: bytes) -> None:
        self.parts.setdefault(task.owner, []).append(json.loads(body))

    def came_up(self, facts: Facts) -> None:
        self.ups += 1
        self.facts = facts

    def loaded(self, files: list[str]) -> None: ...

    def could_not_start(self, why: str, retry_s: float) -> None:
        self.faults.append(why)
        self.retry_s = retry_s

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        self.nursery.close()
        for seat in self.pool.seats.values():
            seat.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
