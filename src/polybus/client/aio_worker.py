"""The worker for asyncio: handlers are coroutines, up to `credit` of them at the same time.

async def hello(request: Request) -> bytes:
    return b"hello " + request.body

await AsyncWorker({"hello": hello}).run()
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import zmq

from polybus.client.handlers import AsyncHandler, Request, answer_frames, failure_text
from polybus.client.hub import Hub
from polybus.client.patience import PAUSE_S, say_who_is_missing, say_who_was_found, teller
from polybus.client.sessions.port import NEVER
from polybus.client.watch import Watch
from polybus.client.worker import DEFAULT_CREDIT
from polybus.errors import ConfigError, ConnectionLost, WorkerRejected
from polybus.telemetry import tracing


class AsyncWorker:
    """Serves `services`, a mapping from name to handler, up to `credit` requests at the same time.

    Handlers take a `Request` and are coroutine functions, async generators (which stream: the last thing they
    yield is the end of the answer), or plain functions that do not block.
    """

    def __init__(
        self,
        services: Mapping[str, AsyncHandler],
        address: str | None = None,
        dialect: str = "mdr",
        *,
        credit: int = DEFAULT_CREDIT,
        weights: Mapping[str, int] | None = None,
        context: zmq.Context[Any] | None = None,
        tag: str | None = None,
    ) -> None:
        self._handlers: Final = {name.encode(): handler for name, handler in services.items()}
        self._tracing: Final = tracing()
        takes_context = self._tracing is not None
        self._hub: Final = Hub(
            list(services),
            address,
            dialect,
            credit,
            weights,
            (),
            context,
            takes_context=takes_context,
            tag=tag,
        )
        self._hub.reopening = self._reopening
        self._watch: Watch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.handled = 0

    @property
    def endpoint(self) -> str:
        return self._hub.endpoint

    @property
    def restarts(self) -> int:
        """How many conversations with the broker ended and were begun again."""
        return self._hub.restarts

    def stop(self) -> None:
        """Finish what is being handled and let `run` return. Any thread may call this."""
        self._stopping = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._finish, None)

    async def run(self) -> None:
        """Serve until `stop`, or until the broker asks this worker to leave (eMQP).

        A broker that is not there yet is waited for.
        """
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._watch = watch = Watch(lambda: self._hub.lines.fds, self._take_step)
        try:
            await self._wait_for_bus(self._over)
            if self._stopping:
                return
            self._hub.unanswered = teller(self._hub)
            self._hub.open(time.monotonic())
            watch.ask()
            await self._over
            if self._tasks:
                await asyncio.gather(*self._tasks)
        finally:
            watch.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with contextlib.suppress(ConnectionLost):
                self._hub.close()

    async def _wait_for_bus(self, over: asyncio.Future[None]) -> None:
        hub = self._hub
        if not hub.missing:
            return
        say_who_is_missing(hub)
        while hub.missing and not self._stopping:
            await asyncio.wait([over], timeout=PAUSE_S)
            if not self._stopping:
                # Searching blocks; a thread may as well.
                await asyncio.to_thread(hub.search)
        if not hub.missing:
            say_who_was_found(hub)

    def _finish(self, error: BaseException | None) -> None:
        if self._over is not None and not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)

    def _reopening(self) -> None:
        if self._watch is not None:
            self._watch.unwatch()

    def _take_step(self) -> float:
        hub = self._hub
        try:
            while hub.step(0.0):
                while hub.inbox:
                    request = hub.inbox.popleft()
                    task = asyncio.ensure_future(self._handle(request))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except Exception as error:
            self._finish(error)
            return NEVER
        if hub.denied is not None:
            self._finish(ConfigError(f"the broker does not take this worker: {'; '.join(hub.denied)}"))
        if hub.leaving and not self._tasks:
            self._finish(None)
        return hub.deadline

    async def _handle(self, request: Request) -> None:
        self.handled += 1
        if self._tracing is None:
            await self._answer(request)
        else:
            with self._tracing.processing(request.work, self._hub.dialect):
                await self._answer(request)

    async def _answer(self, request: Request) -> None:
        hub = self._hub
        try:
            handler = self._handlers.get(request.work.service) or self._handlers.get(b"default")
            if handler is None:
                raise WorkerRejected(f"this worker does not serve {request.service}")
            if request.cancelled:
                raise WorkerRejected("it was cancelled before it began")
            answer = handler(request)
            if inspect.isasyncgen(answer):
                answer = await self._stream(request, answer)
            elif inspect.isawaitable(answer):
                answer = await answer
            hub.reply(request, answer_frames(answer))
        except WorkerRejected as error:
            self._fail(request, error.reason, True)
        except Exception as error:
            # Whatever a handler raises is an answer, too; the worker goes on.
            self._fail(request, failure_text(error), False)
        if self._watch is not None:
            self._watch.ask()

    def _fail(self, request: Request, reason: str, rejected: bool) -> None:
        if self._tracing is not None:
            self._tracing.fail_current("rejected" if rejected else "failed", reason)
        self._hub.fail(request, reason, rejected)

    async def _stream(self, request: Request, pieces: AsyncIterator[Any]) -> Any:
        """Send what an async generator yields; it cannot return anything, so its last piece is the end."""
        last: Any = None
        begun = False
        async for piece in pieces:
            if request.cancelled:
                break
            if begun:
                self._hub.part(request, answer_frames(last))
                if self._watch is not None:
                    self._watch.ask()
            last, begun = piece, True
        return last
