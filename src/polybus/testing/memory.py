"""A bus in memory: the core of the broker, the twin of its store, a worker and a client, in one thread.

Every question of the client is an event for the core, every action of the core is carried out at once, and
what would be written to disk is written to memory and reported as written.  The worker asks for a job only
when somebody waits or lets time pass, so what was sent stays in its queue until then.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import msgspec

from polybus.client.current import current_job, set_current
from polybus.client.failures import read_failure
from polybus.client.questions import Question
from polybus.core import actions as act
from polybus.core import events, scheduling
from polybus.core.bus import Bus as Core
from polybus.core.model import Heartbeat, QueuePolicy, Request
from polybus.dialects.crossing import error_body, read_error
from polybus.errors import RequestFailed, RequestTimeout
from polybus.runtime.pipe import Order
from polybus.store.memory import MemoryStore
from polybus.testing import running
from polybus.testing.clock import Clock
from polybus.testing.desks import MemoryAsyncDesk, MemoryDesk
from polybus.testing.running import Attempt, Run, VirtualRunner

if TYPE_CHECKING:
    from polybus.client.app import Bus
    from polybus.core.ledger import DeadLetter

CLIENT: Final = (1, b"test")
WORKER: Final = (2, b"worker")
BUILT_IN: Final = b"polybus."
# Whoever waits without a limit waits for so much virtual time: a job that is not done then never will be.
PATIENCE_S: Final = 86_400.0
# The core's timers are coarse; the clock goes at least so far at a time, or it might stand still before one.
STEP_S: Final = 0.001

# Whether this code runs inside a job, whose bus is locked already, by the thread that runs it.
_inside: Final[ContextVar[bool]] = ContextVar("polybus_testing_inside", default=False)


class MemoryBus:
    """Runs the jobs of a `polybus.Bus` in this process while the block lasts.

    `start` is the time of day at which the clock begins (now, if none is given); `queues` are rules as in
    the broker's configuration: `{"email": {"concurrency": 1}}`.
    """

    def __init__(
        self,
        app: Bus,
        *,
        start: datetime | None = None,
        queues: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.app: Final = app
        self.clock: Final = Clock(start)
        #: Every attempt at a job, in the order in which they began.
        self.runs: Final[list[Run]] = []
        self._core = Core(b"t")
        self._core.wall_offset = self.clock.wall_offset
        self._core.change_policies(
            [(name, msgspec.convert(dict(rule), QueuePolicy)) for name, rule in (queues or {}).items()]
        )
        self._store = MemoryStore()
        self._inbox: deque[Request] = deque()
        self._running: list[Attempt] = []
        self._answers: dict[bytes, bytes | RequestFailed] = {}
        self._parts: dict[bytes, list[bytes]] = {}
        self._number = 0
        self._offered: set[bytes] = set()
        self._lock = threading.RLock()
        self._desks: Any = None
        self._patch: Any = None
        self.clock.pass_until = self._pass_until
        self.clock.sleep_until = self._sleep_until
        self._happen(events.StoreHealth(""))
        self._happen(
            events.WorkerUp(WORKER, None, (), Heartbeat(0.0), credit=0, grants_slots=True, obeys_stop=True)
        )

    def __enter__(self) -> MemoryBus:
        self._desks = self.app.use(MemoryDesk(self), MemoryAsyncDesk(self))
        real = time.sleep

        def sleep(seconds: float) -> None:
            # Other threads of the program are in no job, also those that a job starts: their time is real.
            is_in_job = any(job.thread == threading.get_ident() for job in self._running[-1:])
            (self.clock.sleep if is_in_job else real)(seconds)

        self._patch = mock.patch("time.sleep", sleep)
        self._patch.start()
        for hook in self.app.hooks["start"]:
            hook()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for hook in self.app.hooks["stop"]:
                hook()
        finally:
            self._patch.stop()
            self.app.use(*self._desks)

    # -- for tests ------------------------------------------------------------------------------

    def run(self) -> int:
        """Run everything that is due now, and what it leads to; how many attempts that was."""
        with self._alone():
            before = len(self.runs)
            while self._run_one():
                continue
            return len(self.runs) - before

    @property
    def dead(self) -> list[DeadLetter]:
        """The jobs that were given up, the oldest first."""
        return self._store.dead(1_000_000)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time; a job that asks something is inside already."""
        if _inside.get():
            yield
        else:
            with self._lock:
                yield

    # -- questions ------------------------------------------------------------------------------

    def ask(self, question: Question, parts: list[bytes] | None = None) -> bytes:
        """The answer to a question; jobs run and time passes for as long as it takes. Pieces of the answer
        are added to `parts`."""
        with self._alone():
            self._number += 1
            number = b"%d" % self._number
            if parts is not None:
                self._parts[number] = parts
            until = self.clock.monotonic() + min(question.timeout_s, PATIENCE_S)
            self._happen(
                events.Submit(CLIENT, None, number, question.service, [question.body], ttl_s=math.inf)
            )
            while number not in self._answers:
                if self._run_one():
                    continue
                if self.clock.monotonic() >= until or not self._step(until):
                    raise RequestTimeout("nothing is left to happen that would answer this question")
                if self._running:
                    self._running[-1].check(self.clock.monotonic())
            answer = self._answers.pop(number)
            self._parts.pop(number, None)
        if isinstance(answer, RequestFailed):
            raise answer
        return answer

    # -- time -----------------------------------------------------------------------------------

    def _soonest(self) -> float:
        """When the core has something to do by itself."""
        core = self._core
        timers = (core.expiries, core.alarms, core.gates)
        return min(scheduling.next_at(core), *(timer.soonest for timer in timers))

    def _step(self, until: float) -> bool:
        """Let the clock go to the next time at which something happens; False if nothing ever will."""
        now, soonest = self.clock.monotonic(), self._soonest()
        self.clock.set(min(max(soonest, now + STEP_S), until))
        self._happen(events.Tick())
        return soonest != math.inf

    def _pass_until(self, target: float) -> None:
        with self._alone():
            if not self._running:
                self.run()
            while self.clock.monotonic() < target:
                self._step(target)
                if not self._running:
                    self.run()

    def _sleep_until(self, target: float) -> None:
        if not self._running:
            self._pass_until(target)
            return
        attempt = self._running[-1]
        self._pass_until(min(target, attempt.until))
        attempt.check(self.clock.monotonic())

    # -- the core -------------------------------------------------------------------------------

    def _happen(self, event: Any) -> None:
        """Let one event happen, and everything that follows from it."""
        core = self._core
        core.handle(event, self.clock.monotonic())
        while core.lines or core.actions:
            if core.lines:
                number, lines = core.take_lines()
                self._store.write(lines)
                core.handle(events.Written(number), self.clock.monotonic())
            for action in core.take():
                self._carry_out(action)

    def _carry_out(self, action: Any) -> None:
        match action:
            case act.Answer(_, _, _, request_id, body):
                self._answers[request_id] = b"".join(bytes(frame) for frame in body)
            case act.Stream(_, _, _, request_id, body):
                if request_id in self._parts:
                    self._parts[request_id].append(b"".join(bytes(frame) for frame in body))
            case act.Refuse():
                # As a client of any dialect reads it.
                error = bytes(error_body(action))
                code, detail = read_failure([error]) or (str(action.reason), action.detail)
                self._answers[action.request_id] = RequestFailed(code, detail, error)
            case act.Deliver(_, request):
                self._inbox.append(request)
            case act.Stop(_, token):
                self._stop(token)

    def _stop(self, token: bytes) -> None:
        for attempt in self._running:
            if attempt.token == token:
                attempt.stopped = True
        for request in [request for request in self._inbox if request.token == token]:
            # Not begun: it is answered all the same, which is what a worker does.
            self._inbox.remove(request)
            self._core.handle(events.Failure(WORKER, token, "it was cancelled", []), self.clock.monotonic())

    # -- the worker -----------------------------------------------------------------------------

    def _run_one(self) -> bool:
        """Run one job that is due; False if none is."""
        core = self._core
        for name in [name for name in core.services if name not in self._offered]:
            if not name.startswith(BUILT_IN):
                self._offered.add(name)
                self._happen(events.Offer(WORKER, None, name))
        waiting = any(service.queue.length for service in core.services.values())
        if waiting and not self._inbox and core.workers[WORKER].free <= 0:
            self._happen(events.Slot(WORKER, None))
        if not self._inbox:
            return False
        self._execute(self._inbox.popleft())
        return True

    def _execute(self, request: Request) -> None:
        token, queue, limit_s = request.token, request.service.name, request.options.timeout_s
        body = b"".join(bytes(frame) for frame in request.body)
        call = running.call_of(body)
        run = Run(
            request.request_id.decode(),
            f"{call.path}.{call.callable}",
            queue.decode(),
            call.args or [],
            call.kwargs or {},
            request.attempt,
        )
        now = self.clock.monotonic()
        attempt = Attempt(run, token, limit_s, now)

        def tell(piece: bytes) -> None:
            run.progress.append(msgspec.json.decode(piece))
            self._happen(events.Part(WORKER, token, [piece]))

        order = Order(len(self.runs), token, queue, [body], request.attempt, limit_s)
        self.runs.append(run)
        self._running.append(attempt)
        inside = _inside.set(True)
        before = current_job()
        try:
            outcome = VirtualRunner(self.app, attempt, self.clock, tell).run(order, now)
        finally:
            # A job may wait for another one, and is itself again after that.
            set_current(before)
            _inside.reset(inside)
            self._running.pop()
        if running.is_for_the_test(run.error):
            raise run.error
        running.settle(run, outcome)
        # What the dialect of a polybus worker makes of a report.
        report = [outcome[1]]
        error = read_error(report)
        if error is None:
            self._happen(events.Result(WORKER, token, report))
        else:
            self._happen(events.Failure(WORKER, token, error, report))
