"""Questions about jobs for asyncio: one connection for every event loop.

The plans are those of `questions`; here is only the waiting.  A connection is made when a loop first asks
something and is closed with `bus.aclose()`, or when another loop asks and its own has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from polybus.client.aio import AsyncClient
from polybus.client.desk import LAST_S, log_unconfirmed, raise_first
from polybus.client.questions import Plan, Question, T, unconfirmed
from polybus.errors import LocalProtocolError, PolybusError, RequestFailed

_log: Final = logging.getLogger("polybus")


class AsyncDesk(Protocol):
    """What a bus needs to ask questions and await the answers."""

    def clock(self) -> float: ...

    async def ask(self, question: Question) -> bytes: ...

    def ask_many(
        self, service: bytes, bodies: Iterable[bytes], timeout_s: float, window: int | None = None
    ) -> AsyncIterator[bytes | RequestFailed]: ...

    def pieces(self, question: Question) -> AsyncGenerator[tuple[bytes, bool], None]: ...

    def post(self, plan: Plan[None], job: str) -> TaskPosted: ...

    async def flush(self, timeout_s: float) -> None: ...

    async def close(self) -> None: ...


async def arun(plan: Plan[T], desk: AsyncDesk) -> T:
    """Carry out a plan, with everything that it asks."""
    try:
        question = next(plan)
        while True:
            try:
                answer = await desk.ask(question)
            except PolybusError as error:
                question = plan.throw(error)
            else:
                question = plan.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


class TaskPosted:
    """A submission on its way, as a task."""

    __slots__ = ("_job", "_seen", "_task")

    def __init__(self, submission: Coroutine[Any, Any, None], job: str) -> None:
        self._job = job
        self._seen = False
        self._task = asyncio.create_task(submission)
        # An error that nobody looks at is ours to report, not asyncio's.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def report(self) -> None:
        """It is done and nobody asked how it went: a refusal must not be lost without a word."""
        wrong = None if self._seen or self._task.cancelled() else self._task.exception()
        if wrong is not None:
            _log.warning("job %s, sent without waiting, was refused: %s", self._job, wrong)

    def confirm(self, timeout_s: float) -> None:
        if not self._task.done():
            raise LocalProtocolError(f"job {self._job} was sent by asend: await handle.aconfirm() first")
        self._task.result()

    async def aconfirm(self, timeout_s: float) -> None:
        self._seen = True
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._task)
        except TimeoutError:
            raise unconfirmed(self._job, timeout_s) from None


class Posts:
    """Submissions on their way that nobody has waited for yet, oldest first."""

    def __init__(self) -> None:
        self._open: deque[TaskPosted] = deque()

    def add(self, submission: Coroutine[Any, Any, None], job: str) -> TaskPosted:
        while self._open and self._open[0].is_done:
            self._open.popleft().report()
        posted = TaskPosted(submission, job)
        self._open.append(posted)
        return posted

    async def flush(self, timeout_s: float) -> None:
        """Wait for all receipts, then raise the first error; the others are logged."""
        waiting, self._open = self._open, deque()
        found = await asyncio.gather(*(each.aconfirm(timeout_s) for each in waiting), return_exceptions=True)
        raise_first([error for error in found if error is not None])

    async def end(self) -> None:
        """The connection is about to be closed."""
        try:
            await self.flush(LAST_S)
        except PolybusError as error:
            log_unconfirmed(error)


class Clients:
    """The clients of this process, by event loop."""

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        self.by_loop: Final[dict[asyncio.AbstractEventLoop, tuple[AsyncClient, Posts]]] = {}

    def close_ended(self) -> None:
        """Close those whose loops have ended. (A fork leaves its parent's sockets alone.)"""
        if self.pid == os.getpid():
            # Loops of other threads come and go meanwhile.
            for loop in list(self.by_loop):
                if loop.is_closed() and (found := self.by_loop.pop(loop, None)) is not None:
                    found[0].abandon()


class LoopDesk:
    """Asks through an `AsyncClient` of the running event loop."""

    clock = staticmethod(time.monotonic)

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._clients = self._none()

    def _none(self) -> Clients:
        clients = Clients()
        # When this desk is forgotten, or the program ends.
        weakref.finalize(self, clients.close_ended)
        return clients

    def _own(self) -> tuple[AsyncClient, Posts]:
        if self._clients.pid != os.getpid():
            self._clients = self._none()
        loop = asyncio.get_running_loop()
        by_loop = self._clients.by_loop
        found = by_loop.get(loop)
        if found is None or found[0].is_closed:
            self._clients.close_ended()
            found = by_loop[loop] = (self._make(), Posts())
        return found

    async def ask(self, question: Question) -> bytes:
        client, _ = self._own()
        return await client.call(question.service, question.body, question.timeout_s)

    def ask_many(
        self, service: bytes, bodies: Iterable[bytes], timeout_s: float, window: int | None = None
    ) -> AsyncIterator[bytes | RequestFailed]:
        client, _ = self._own()
        return client.call_many(service, bodies, window, timeout_s, return_errors=True)

    async def pieces(self, question: Question) -> AsyncGenerator[tuple[bytes, bool], None]:
        # A connection of its own, as in `desk`.
        async with self._make() as client:
            async for piece in client.pieces(question.service, question.body, question.timeout_s):
                yield piece

    def post(self, plan: Plan[None], job: str) -> TaskPosted:
        return self._own()[1].add(arun(plan, self), job)

    async def flush(self, timeout_s: float) -> None:
        await self._own()[1].flush(timeout_s)

    async def close(self) -> None:
        """Close the connection of the running loop; the next question makes a new one."""
        if self._clients.pid == os.getpid():
            found = self._clients.by_loop.pop(asyncio.get_running_loop(), None)
            if found is not None:
                await found[1].end()
                await found[0].close()
            self._clients.close_ended()
