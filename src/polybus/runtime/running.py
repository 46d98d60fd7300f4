"""Running one job or one call of a service, and turning whatever comes of it into a report.

The job's function gets its arguments from a job message (`gate`); a service's handler gets a `Request`, as in
any other worker.  Coroutines run in one event loop that lives as long as the child.  Hooks: `before(job)` and
`after(job, error)`, where `job` is what `current_job()` gives and `error` is None if all went well; they may
take fewer arguments.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from polybus.client.app import Bus
from polybus.client.current import CurrentJob, JobInterrupted, current_job, set_current
from polybus.client.failures import FAILED, REJECTED
from polybus.client.handlers import Handler, Request, answer_frames, failure_text
from polybus.client.questions import loses_a_number
from polybus.client.sessions.port import Work
from polybus.errors import WorkerRejected
from polybus.runtime.gate import Gate, read_call
from polybus.runtime.pipe import Kind, Order, write_frames
from polybus.telemetry import logs, tracing

# A larger error object is none any more (`client.failures`); this leaves room for escapes.
MAX_DETAIL: Final = 8000
# Where an eMQP broker takes what nobody serves, unless its settings name another queue.
DEFAULT_QUEUE: Final = b"default"
MAY_BE_ANOTHERS: Final = (
    "It came by the queue 'default', where eMQP also takes what nobody serves: check that somebody serves "
    "the queue that was asked for"
)

Outcome = tuple[Kind, bytes]
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_ENCODER: Final = msgspec.json.Encoder()


def write_error(code: str, detail: str) -> bytes:
    """The error object; text that cannot be encoded is made so that it can."""
    if len(detail) > MAX_DETAIL:
        detail = detail[:MAX_DETAIL] + " …"
    detail = detail.encode("utf-8", "replace").decode()
    return _ENCODER.encode({"error": code, "detail": detail})


class Runner:
    """Runs what one application offers. `tell` sends a piece of an answer while a job runs."""

    def __init__(self, bus: Bus, tell: Callable[[bytes], None]) -> None:
        self._services: Final = {name.encode(): handler for name, handler in bus.services.items()}
        self._gate: Final = Gate(bus.jobs, bus.allowed)
        self._before: Final = [_fitting(hook, 1) for hook in bus.hooks.get("before", ())]
        self._after: Final = [_fitting(hook, 2) for hook in bus.hooks.get("after", ())]
        self._tell: Final = tell
        # The application has been imported: if it wants spans, it has said so.
        self._tracing: Final = tracing()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._task_ends = ""

    def run(self, order: Order, now: float) -> Outcome:
        """What came of an order. Only `JobInterrupted` leaves here, and only before the job or after it."""
        if self._tracing is None:
            return self._run(order, now)
        work = Work(order.id, order.queue, order.id, [], attempt=order.attempt, context=order.context)
        with self._tracing.processing(work, ""):
            kind, body = self._run(order, now)
            if kind is Kind.FAILED:
                error = msgspec.json.decode(body)
                self._tracing.fail_current(error["error"], error["detail"])
            return kind, body

    def _run(self, order: Order, now: float) -> Outcome:
        limit_s = order.limit_s
        job = CurrentJob(
            order.id.decode("utf-8", "replace"),
            order.queue.decode("utf-8", "replace"),
            order.attempt,
            now + limit_s if limit_s else None,
            self._progress,
        )
        set_current(job)
        error: BaseException | None = None
        try:
            for hook in self._before:
                hook(job)
            handler = self._services.get(order.queue)
            return self._job(order) if handler is None else self._serve(handler, order, now)
        except WorkerRejected as refusal:
            error = refusal
            return Kind.FAILED, write_error(REJECTED, refusal.reason)
        except JobInterrupted as interrupted:
            error = interrupted
            return Kind.FAILED, write_error(
                interrupted.reason, f"the job was interrupted: {interrupted.reason}"
            )
        except BaseException as failure:
            # SystemExit and the like, too: the job ends, the process has others to run.
            error = failure
            _print_error(failure)
            return Kind.FAILED, write_error(FAILED, failure_text(failure))
        finally:
            for hook in self._after:
                _say_if_it_fails(hook, job, error)
            set_current(None)

    def _job(self, order: Order) -> Outcome:
        if len(order.body) != 1:
            raise WorkerRejected(f"a job message is one frame, not {len(order.body)}")
        try:
            call = read_call(order.body[0])
        except WorkerRejected as refusal:
            if order.queue != DEFAULT_QUEUE:
                raise
            raise WorkerRejected(f"{refusal.reason}. {MAY_BE_ANOTHERS}") from None
        target = self._gate.find(call)
        result = target.call(call)
        if target.is_async or inspect.iscoroutine(result):
            result = self._await(result)
        try:
            encoded = _ENCODER.encode(result)
            if loses_a_number(encoded, result):
                raise ValueError("it has a number that is infinite or not a number")
            return Kind.DONE, encoded
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            return Kind.FAILED, write_error(
                "bad_result",
                f"{target.name} returned a {type(result).__name__} that JSON cannot hold ({error}); "
                "return text, numbers, lists, dicts or dataclasses",
            )

    # -- services -------------------------------------------------------------------------------

    def _serve(self, handler: Handler, order: Order, now: float) -> Outcome:
        body: list[Any] = list(order.body)
        request = Request(Work(order.id, order.queue, order.id, body, order.ttl_s), 0, now)
        answer: Any = handler(request)
        if inspect.isgenerator(answer):
            answer = self._stream(answer)
        elif inspect.isasyncgen(answer):
            answer = self._await(self._astream(answer))
        elif inspect.iscoroutine(answer):
            answer = self._await(answer)
        frames = answer_frames(answer)
        if len(frames) == 1:
            return Kind.DONE, bytes(frames[0])
        return Kind.FRAMES, write_frames(frames)

    def _stream(self, pieces: Any) -> Any:
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                return end.value
            for frame in answer_frames(piece):
                self._tell(bytes(frame))

    async def _astream(self, pieces: Any) -> None:
        async for piece in pieces:
            for frame in answer_frames(piece):
                self._tell(bytes(frame))

    # -- while it runs --------------------------------------------------------------------------

    def _progress(self, value: Any) -> None:
        self._tell(_ENCODER.encode(value))

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(coroutine)
        self._task_ends = ""
        try:
            return self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            if self._task_ends:
                raise JobInterrupted(self._task_ends) from None
            raise
        finally:
            self._task = None

    def interrupt_task(self, reason: str) -> bool:
        """Cancel the coroutine that runs, if one does: an exception out of nowhere would break its loop."""
        task, loop = self._task, self._loop
        if task is None or loop is None:
            return False
        self._task_ends = reason
        loop.call_soon_threadsafe(task.cancel)
        return True

    def close(self) -> None:
        if self._tracing is not None:
            # Nobody may be left to do it when this process ends.
            self._tracing.flush()
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


def _print_error(error: BaseException) -> None:
    """The traceback from where the application's own code begins."""
    own = error.__traceback__
    while own is not None and own.tb_next is not None and own.tb_frame.f_code.co_filename.startswith(_OURS):
        own = own.tb_next
    if logs.is_json():
        job = current_job()
        logs.log(
            failure_text(error),
            "error",
            "polybus.job",
            error.with_traceback(own),
            job=job.id,
            queue=job.queue,
            attempt=job.attempt,
        )
    else:
        traceback.print_exception(type(error), error, own)


def _fitting(hook: Callable[..., Any], most: int) -> Callable[..., Any]:
    """A hook that may be called with all arguments, however few it takes."""
    try:
        parameters = inspect.signature(hook).parameters.values()
    except (TypeError, ValueError):
        return hook
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return hook
    takes = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return hook if takes >= most else lambda *arguments: hook(*arguments[:takes])


def _say_if_it_fails(hook: Callable[..., Any], *arguments: Any) -> None:
    """A hook after the job changes nothing about what came of it."""
    try:
        hook(*arguments)
    except Exception as error:
        logs.log("a hook failed after the job", "error", "polybus.job", error)
