"""A tap for a browser: each record of the broker's as one event.

Every tap has a connection of its own, with small buffers: a browser that reads slowly, or traffic that no
browser could show, fills them, and then the broker leaves records out and says how many (`missed_before`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from polybus.client.admin import PING, RENEW_S, SILENT_S, TAG, TAP
from polybus.errors import ConnectionLost
from polybus.web.asking import TIMEOUT_S, Answer, Desk, open_socket
from polybus.web.live import COMMENT, COMMENT_S, NEXT, event
from polybus.wire.frames import EMPTY

# More than anybody reads; a browser shows so many without pain.
RECORDS_PER_S: Final = 500
# Events go out in bunches, so often a second.
BUNCHES_PER_S: Final = 10
BUNCH: Final = RECORDS_PER_S // BUNCHES_PER_S
# What waits in our socket is old when it is shown.
WAITING_RECORDS: Final = 100
WAITING_BYTES: Final = 64 * 1024

OPENED: Final = event("open", b"{}")


async def tap_events(desk: Desk, wants: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Events `open`, then `tap` for each record; `down` is the last one, when the broker has gone."""
    try:
        socket = open_socket(desk.context(), desk.find(), RCVHWM=WAITING_RECORDS, RCVBUF=WAITING_BYTES)
    except ConnectionLost as error:
        yield down(str(error))
        return
    try:
        async for chunk in Tapped(socket, wants).events():
            yield chunk
    except ConnectionLost as error:
        yield down(str(error))
    finally:
        # The broker would find out by itself, a little later.
        await _send(socket, TAP, {"do": "tap", "stop": True})
        socket.close(100)


class Tapped:
    def __init__(self, socket: zmq.asyncio.Socket, wants: dict[str, Any]) -> None:
        self._socket = socket
        self._wants = {"do": "tap", **wants}
        self._is_open = False
        self._decoder = msgspec.json.Decoder(Answer)

    async def events(self) -> AsyncGenerator[bytes, None]:
        # As long as an answer may take: a busy broker is as slow to greet a new connection.
        if not await _is_ready(self._socket, TIMEOUT_S, zmq.POLLOUT):
            raise ConnectionLost("no broker answers")
        now = time.monotonic()
        renew_at, heard_at, said_at = now, now, now
        while True:
            now = time.monotonic()
            if now >= renew_at:
                renew_at = now + RENEW_S
                await _send(self._socket, TAP, self._wants)
                # Answered after the tap was taken: the sign that it is open, and that the broker lives.
                await _send(self._socket, PING, {"do": "ping"})
            if now - heard_at > SILENT_S:
                raise ConnectionLost(f"the broker has not answered for {SILENT_S:g} s")
            if now - said_at > COMMENT_S:
                said_at = now
                yield COMMENT
            if not await _is_ready(self._socket, renew_at - now, zmq.POLLIN):
                continue
            heard_at = time.monotonic()
            chunk = b"".join(await self._bunch())
            if chunk:
                said_at = heard_at
                yield chunk
            await asyncio.sleep(1 / BUNCHES_PER_S)

    async def _bunch(self) -> list[bytes]:
        """What has come, as far as it is shown at one time."""
        found: list[bytes] = []
        for _ in range(BUNCH):
            try:
                frames = await self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) == 4 and frames[1] == TAG:
                found += self._read(frames[2], frames[3])
        return found

    def _read(self, number: bytes, text: bytes) -> list[bytes]:
        answer = self._decoder.decode(text)
        if answer.error is not None:
            raise ConnectionLost(answer.error)
        if number == TAP:
            return [event("tap", bytes(answer.ok))]
        if number == PING and not self._is_open:
            self._is_open = True
            return [OPENED]
        return []


def down(error: str) -> bytes:
    return event("down", msgspec.json.encode({"error": error, "next": NEXT}))


async def _is_ready(socket: zmq.asyncio.Socket, within_s: float, events: int) -> bool:
    # pyzmq's own annotations leave out the arguments of an asynchronous poll.
    poll: Any = socket.poll
    return bool(await poll(int(max(0.0, within_s) * 1000) + 1, events))


async def _send(socket: zmq.asyncio.Socket, number: bytes, question: dict[str, Any]) -> None:
    try:
        await socket.send_multipart([EMPTY, TAG, number, msgspec.json.encode(question)], zmq.NOBLOCK)
    except zmq.ZMQError:
        # Nobody is there; the silence is noticed.
        return
