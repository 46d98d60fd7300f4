"""How a job runs in a test: by the worker's own runner, in this process and in virtual time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
from msgspec import Struct

from polybus.client.current import CurrentJob, JobInterrupted, current_job, set_current
from polybus.errors import WorkerRejected
from polybus.runtime.gate import Call, read_call
from polybus.runtime.pipe import Kind, Order
from polybus.runtime.running import Outcome, Runner
from polybus.testing.clock import Clock, VirtualLoop

if TYPE_CHECKING:
    from polybus.client.app import Bus

NO_LIMIT = float("inf")


class Run(Struct, eq=False):
    """One attempt at a job. `outcome` is done, or the short word for why it is not: failed, timeout, …"""

    job: str
    name: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    attempt: int
    outcome: str = "running"
    #: What it returned, as its sender will see it.
    result: Any = None
    #: What it raised.
    error: BaseException | None = None
    #: What it said of its progress.
    progress: list[Any] = msgspec.field(default_factory=list)


class Attempt:
    """A job that is being run: when its time is up, and whether somebody wants it to stop."""

    def __init__(self, run: Run, token: bytes, limit_s: float, now: float) -> None:
        self.run = run
        self.token = token
        self.until = now + limit_s if limit_s else NO_LIMIT
        self.stopped = False
        # The thread that it runs in.
        self.thread = threading.get_ident()

    def check(self, now: float) -> None:
        """End the job if it is to end. Called when it lets time pass, which is when a real one notices."""
        if self.stopped:
            raise JobInterrupted("cancelled")
        if now >= self.until:
            raise JobInterrupted("timeout")


class VirtualRunner(Runner):
    """The worker's runner, for one attempt."""

    def __init__(self, bus: Bus, attempt: Attempt, clock: Clock, tell: Callable[[bytes], None]) -> None:
        super().__init__(bus, tell)
        self._attempt = attempt
        self._clock = clock
        self._after.append(self._note)

    def _note(self, _job: CurrentJob, error: BaseException | None) -> None:
        self._attempt.run.error = error

    def _job(self, order: Order) -> Outcome:
        set_current(VirtualJob(current_job(), self._attempt.until, self._clock, self._progress))
        outcome = super()._job(order)
        # A job that took too long without letting go is found out when it is over.
        self._attempt.check(self._clock.monotonic())
        return outcome

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._complete(coroutine)
        # A test that is itself a coroutine: its loop is busy with us, and a thread can have only one.
        return _in_thread(lambda: self._complete(coroutine))

    def _complete(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        attempt, before = self._attempt, self._attempt.thread
        attempt.thread = threading.get_ident()
        try:
            return self._run_loop(coroutine)
        finally:
            attempt.thread = before

    def _run_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self._clock)) as runner:
            return runner.run(self._limited(coroutine))

    async def _limited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        until = self._attempt.until
        limit = asyncio.timeout_at(None if until == NO_LIMIT else until)
        try:
            async with limit:
                return await coroutine
        except TimeoutError:
            if limit.expired():
                raise JobInterrupted("timeout") from None
            raise


class VirtualJob(CurrentJob):
    """What `current_job()` is in a test: its time passes with the test's clock."""

    __slots__ = ("_clock",)

    def __init__(self, job: CurrentJob, until: float, clock: Clock, tell: Callable[[Any], None]) -> None:
        super().__init__(job.id, job.queue, job.attempt, None if until == NO_LIMIT else until, tell)
        self._clock = clock

    @property
    def remaining_s(self) -> float | None:
        return None if self._ends_at is None else max(0.0, self._ends_at - self._clock.monotonic())

    @property
    def deadline(self) -> float | None:
        return None if self._ends_at is None else self._ends_at + self._clock.wall_offset


def call_of(body: bytes) -> Call:
    """What a message asks for, for the record; the runner itself refuses what is none."""
    try:
        return read_call(body)
    except WorkerRejected:
        return Call("", "")


def is_for_the_test(error: BaseException | None) -> TypeGuard[BaseException]:
    """Ctrl-C, or a word of the test's own tool (`pytest.skip`), that a job happened to be in the way of."""
    ordinary = (Exception, JobInterrupted, SystemExit, GeneratorExit, asyncio.CancelledError)
    return error is not None and not isinstance(error, ordinary)


def settle(run: Run, outcome: Outcome) -> None:
    """Note what came of a run."""
    kind, body = outcome
    if kind is Kind.FAILED:
        run.outcome = msgspec.json.decode(body, type=dict[str, str])["error"]
    else:
        run.outcome = "done"
        run.result = msgspec.json.decode(body) if body else None


def _in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    wrong: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            found.append(context.run(function))
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    return found[0]
