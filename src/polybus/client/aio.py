"""The client for asyncio: the same brain as the synchronous one, another way to wait (see `watch`).

    async with AsyncClient() as client:
        print(await client.call("hello", b"world"))

Cancelling a task that waits for an answer gives the request up.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, overload

from polybus.client.aio_worker import AsyncWorker as AsyncWorker
from polybus.client.base import LINGER_S, BaseClient
from polybus.client.brain import Body, Ticket, one_of
from polybus.client.sessions.port import NEVER, Options
from polybus.client.watch import Watch, joined, publications, sent
from polybus.errors import RequestFailed


class AsyncPending:
    """A request on its way; awaiting it gives the answer."""

    __slots__ = ("_client", "_ticket")

    def __init__(self, client: AsyncClient, ticket: Ticket) -> None:
        self._client = client
        self._ticket = ticket

    @property
    def request_id(self) -> bytes:
        return self._ticket.request_id

    @property
    def is_done(self) -> bool:
        return self._ticket.done

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has said that it has the request; only eMQP says so before it is done."""
        return self._ticket.accepted or self._ticket.done

    async def result(self, timeout_s: float | None = None) -> bytes:
        """The answer. `RequestTimeout` leaves the request open: ask again, or cancel it."""
        await self._client._wait(self._ticket, timeout_s)
        return self._ticket.single()

    async def result_multipart(self, timeout_s: float | None = None) -> list[bytes]:
        """The answer with all its frames."""
        await self._client._wait(self._ticket, timeout_s)
        return self._ticket.frames()

    def cancel(self) -> None:
        """Give the request up: `result` raises `RequestFailed` with the code `cancelled`."""
        self._client._forget(self._ticket)


class AsyncClient(BaseClient):
    """The client for asyncio; takes what `Client` takes and has the same verbs, to be awaited.

    It belongs to the event loop that first awaits it, and any number of tasks may use it at once.
    """

    def __init__(self, address: str | None = None, dialect: str = "mdr", **settings: Any) -> None:
        super().__init__(address, dialect, **settings)
        self._watch: Watch | None = None
        self._rooms: deque[asyncio.Future[None]] = deque()

    async def call(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> bytes:
        """Ask a service and wait for its answer; see `Client.call`."""
        return one_of(await self.call_multipart(service, body, timeout_s, options=options))

    async def call_multipart(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> list[bytes]:
        """The same, for bodies and answers of several frames."""
        ticket = await self._start(service, body, timeout_s, options)
        try:
            await self._wait(ticket, timeout_s)
        except BaseException:
            self._forget(ticket)
            raise
        return ticket.frames()

    async def submit(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
        wants_reply: bool = True,
    ) -> AsyncPending:
        """Ask a service and go on; waits only if the window is full.

        Without `wants_reply` an eMQP request is done with its receipt: the broker has it.
        """
        return AsyncPending(self, await self._start(service, body, timeout_s, options, wants_reply))

    async def send(self, service: str | bytes, body: Body = b"", *, options: Options | None = None) -> bytes:
        """Have something run and do not wait for what comes of it; returns the request's id."""
        ticket = await self._start(service, body, NEVER, options, wants_reply=False)
        return ticket.request_id

    @overload
    def call_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body] | AsyncIterable[Body],
        window: int | None = ...,
        timeout_s: float | None = ...,
        *,
        return_errors: Literal[False] = ...,
    ) -> AsyncIterator[bytes]: ...

    @overload
    def call_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body] | AsyncIterable[Body],
        window: int | None = ...,
        timeout_s: float | None = ...,
        *,
        return_errors: bool,
    ) -> AsyncIterator[bytes | RequestFailed]: ...

    async def call_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body] | AsyncIterable[Body],
        window: int | None = None,
        timeout_s: float | None = None,
        *,
        return_errors: bool = False,
    ) -> AsyncIterator[bytes | RequestFailed]:
        """Ask the same service many things, up to `window` at a time; the answers come in order.

        A failure is raised in its place and ends the iteration, or is returned in its place with
        `return_errors`.
        """
        most = min(window or self._brain.window, self._brain.window)
        ahead: deque[Ticket] = deque()

        async def first() -> bytes | RequestFailed:
            await self._wait(ahead[0], None)
            ticket = ahead.popleft()
            return ticket.error if return_errors and ticket.error is not None else ticket.single()

        try:
            async for body in _each(bodies):
                while len(ahead) >= most or (ahead and ahead[0].done):
                    yield await first()
                ahead.append(await self._start(service, body, timeout_s, None))
            while ahead:
                yield await first()
        finally:
            for ticket in ahead:
                self._forget(ticket)

    async def stream(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> AsyncIterator[bytes]:
        """The pieces of an answer as they come, the final one last; `timeout_s` is for each piece."""
        async with aclosing(self.pieces(service, body, timeout_s, options=options)) as pieces:
            async for piece, _ in pieces:
                yield piece

    async def pieces(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> AsyncGenerator[tuple[bytes, bool], None]:
        """The same with, for every piece, whether it is the final one."""
        ticket = await self._start(service, body, timeout_s, options, streams=True)
        parts = ticket.parts or deque()
        ticket.parts = parts
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            while True:
                if not parts:
                    await self._wait(ticket, limit_s)
                while parts:
                    yield one_of([bytes(frame) for frame in parts.popleft()]), False
                if ticket.done:
                    yield ticket.single(), True
                    return
        finally:
            self._forget(ticket)

    async def publish(self, topic: str, body: Body = b"", timeout_s: float = 5.0) -> None:
        """Tell everybody who subscribed to a beginning of `topic` (EBUS, eMQP)."""
        publisher, message = self._publication(topic, body)
        with self._publishing(topic):
            if publisher is None:
                self._lines.send([(0, message)])
                self._watcher().ask()
            else:
                # Another task may find meanwhile that the broker is lost.
                with publisher.using():
                    await joined(publisher, timeout_s)
                    await sent(publisher, message, timeout_s)

    async def subscribe(self, *prefixes: str) -> AsyncIterator[tuple[str, bytes]]:
        """What is published from now on under these prefixes (all, if there are none)."""
        subscription = self._subscribe(prefixes)
        try:
            async for publication in publications(subscription):
                yield publication
        finally:
            subscription.close()

    def cancel(self, request_id: bytes) -> bool:
        """Give up an open request; False if there is none with this id."""
        ticket = self._brain.find(request_id)
        if ticket is None:
            return False
        self._forget(ticket)
        return True

    async def close(self) -> None:
        """Let go of the connection; what was sent already still goes out."""
        if self._closed:
            return
        if self._watch is not None:
            self._take_step()
            self._watch.close()
        self._close(LINGER_S)

    def abandon(self) -> None:
        """Close it after its event loop has ended, when nothing can be awaited any more."""
        self._close(0.0)

    async def __aenter__(self) -> AsyncClient:
        self._watcher()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- waiting --------------------------------------------------------------------------------

    def _watcher(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(lambda: self._lines.fds, self._take_step)
            self._watch.ask()
        return self._watch

    def _take_step(self) -> float:
        if self._closed:
            return NEVER
        while self._step(0.0):
            continue
        while self._rooms and self._brain.room > 0:
            room = self._rooms.popleft()
            if not room.done():
                room.set_result(None)
                break
        return self._brain.deadline

    def _reopening(self) -> None:
        if self._watch is not None:
            self._watch.unwatch()
            self._watch.ask()

    async def _start(
        self,
        service: str | bytes,
        body: Body,
        timeout_s: float | None,
        options: Options | None,
        wants_reply: bool = True,
        streams: bool = False,
    ) -> Ticket:
        watch = self._watcher()
        while self._brain.room <= 0:
            room = asyncio.get_running_loop().create_future()
            self._rooms.append(room)
            watch.ask()
            await room
        ticket = self._submit(service, body, timeout_s, options, wants_reply)
        if streams:
            ticket.parts = deque()
        watch.ask()
        return ticket

    async def _wait(self, ticket: Ticket, timeout_s: float | None) -> None:
        """Until the ticket is done, or, if it streams, has a part."""
        now = time.monotonic()
        deadline = ticket.deadline if timeout_s is None else now + timeout_s
        if not (ticket.done or ticket.parts):
            await self._change(ticket, deadline - now)
        if not ticket.parts and ticket.is_overdue(deadline):
            raise self._no_answer()

    async def _change(self, ticket: Ticket, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[bool] = loop.create_future()
        ticket.notify = partial(_settle, changed, True)
        timer = None
        if limit_s != NEVER:
            timer = loop.call_later(max(0.0, limit_s), _settle, changed, False)
        try:
            if not await changed:
                raise self._no_answer()
        finally:
            ticket.notify = None
            if timer is not None:
                timer.cancel()

    def _forget(self, ticket: Ticket) -> None:
        if not ticket.done:
            self._brain.forget(ticket, "cancelled", "its client gave it up")
            if not self._closed:
                self._watcher().ask()


def _settle(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


async def _each(bodies: Iterable[Body] | AsyncIterable[Body]) -> AsyncIterator[Body]:
    if isinstance(bodies, AsyncIterable):
        async for body in bodies:
            yield body
    else:
        for body in bodies:
            yield body
