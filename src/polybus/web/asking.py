"""Questions to the broker's admin socket, many at a time, over one connection of the event loop.

Answers carry the number of their question, so that a slow one holds nobody up.  They are handed on as the
bytes that came: what the broker says is what the browser gets.

A question is only sent over a connection that stands (`zmq.IMMEDIATE`).  Otherwise an order that was given up
after its time, and told to have failed, would be carried out when the broker comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from polybus.client.admin import TAG, QuestionRefused
from polybus.errors import ConnectionLost, PolybusError
from polybus.wire.frames import EMPTY

# The broker answers within a turn of its loop, unless it waits for its disk.
TIMEOUT_S: Final = 5.0
# A connection on this machine stands within milliseconds.
CONNECT_S: Final = 1.0
# Unanswered questions at one time. The pages ask for a handful; more are a program that does not wait.
MAX_OPEN: Final = 64


class TooBusy(PolybusError):
    """More was asked at one time than is let through to the broker."""


class Answer(msgspec.Struct):
    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None


class Desk:
    """One connection to the admin socket. Belongs to one event loop.

    `find` says where the broker is, and is asked again when nobody answers: it may have moved."""

    def __init__(self, find: Callable[[], str]) -> None:
        self.find: Final = find
        self.endpoint = ""
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._listeners: list[asyncio.Task[None]] = []
        self._number = 0
        self._open: dict[bytes, asyncio.Future[bytes]] = {}
        # The open questions that were sent: the others wait for a connection.
        self._sent: set[asyncio.Future[bytes]] = set()
        self._decoder: Final = msgspec.json.Decoder(Answer)

    async def ask(self, do: str, timeout_s: float = TIMEOUT_S, **question: Any) -> bytes:
        """The answer as JSON. Raises `QuestionRefused` if the broker says no, `ConnectionLost` if nothing."""
        if len(self._open) >= MAX_OPEN:
            raise TooBusy(f"{MAX_OPEN} questions to the broker are unanswered")
        self._number += 1
        number = b"%d" % self._number
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = answered
        try:
            await self._send(number, {"do": do, **question})
            self._sent.add(answered)
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            raise ConnectionLost(
                f"the broker at {self.endpoint} did not answer within {timeout_s:g} s"
            ) from None
        finally:
            del self._open[number]
            self._sent.discard(answered)

    async def _send(self, number: bytes, question: dict[str, Any]) -> None:
        socket = self._connected()
        frames = [EMPTY, TAG, number, msgspec.json.encode(question)]
        try:
            async with asyncio.timeout(CONNECT_S):
                await socket.send_multipart(frames)
        except TimeoutError:
            # The next one looks where the broker is now.
            self._disconnect_if_moved()
            raise ConnectionLost(f"no broker answers at {self.endpoint}") from None
        except zmq.ZMQError as error:
            raise ConnectionLost(f"no broker answers at {self.endpoint}: {error}") from None

    def _connected(self) -> zmq.asyncio.Socket:
        if self._socket is not None:
            return self._socket
        endpoint = self.find()
        socket = open_socket(self.context(), endpoint)
        self.endpoint, self._socket = endpoint, socket
        loop = asyncio.get_running_loop()
        self._listeners = [loop.create_task(self._listen(socket)), loop.create_task(self._watch(socket))]
        return socket

    def context(self) -> zmq.asyncio.Context:
        if self._context is None:
            self._context = zmq.asyncio.Context()
        return self._context

    def _disconnect_if_moved(self) -> None:
        with contextlib.suppress(PolybusError):
            if self.find() != self.endpoint:
                self._disconnect()

    def _disconnect(self) -> None:
        for listener in self._listeners:
            listener.cancel()
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(0)
        self._listeners, self._socket = [], None

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 4 or frames[1] != TAG:
                continue
            waiting = self._open.get(frames[2])
            if waiting is not None and not waiting.done():
                self._settle(waiting, frames[3])

    async def _watch(self, socket: zmq.asyncio.Socket) -> None:
        """Nobody waits for an answer that cannot come any more: its connection is gone.

        A question that was not sent yet goes over the next connection: it must not be told to have failed and
        be carried out then."""
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            while True:
                await monitor.recv_multipart()
                for waiting in self._sent:
                    if not waiting.done():
                        waiting.set_exception(
                            ConnectionLost(f"the connection to the broker at {self.endpoint} broke")
                        )
        finally:
            monitor.close(0)

    def _settle(self, waiting: asyncio.Future[bytes], text: bytes) -> None:
        try:
            answer = self._decoder.decode(text)
        except msgspec.DecodeError as error:
            waiting.set_exception(ConnectionLost(f"what answers at {self.endpoint} is no broker: {error}"))
            return
        if answer.error is not None:
            waiting.set_exception(QuestionRefused(answer.error))
        else:
            waiting.set_result(bytes(answer.ok))

    async def close(self) -> None:
        listeners = self._listeners
        self._disconnect()
        await asyncio.gather(*listeners, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(0)
            self._context = None


def open_socket(context: zmq.asyncio.Context, endpoint: str, **options: int) -> zmq.asyncio.Socket:
    """A socket towards the admin port that sends nothing before it is connected."""
    socket = context.socket(zmq.DEALER)
    for option, value in {"LINGER": 0, "IPV6": 1, "IMMEDIATE": 1, **options}.items():
        socket.setsockopt(getattr(zmq, option), value)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConnectionLost(f"cannot connect to {endpoint}: {error}") from None
    return socket
