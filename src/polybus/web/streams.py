"""Server-sent events: an open answer for each viewer, ended by whoever leaves first.

GET /api/stream         the live state of the broker, about every second
GET /api/logs/stream    log records as they come
GET /api/tap            what happens on the bus, one event each
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polybus.web.answers import FRESH, Refused
from polybus.web.state import State, state_of

# Open streams of all kinds. A browser tab has one or two.
MAX_STREAMS: Final = 128
# After a lost connection, browsers try again after so long.
RETRY: Final = b"retry: 2000\n\n"
# Proxies are told not to hold events back.
STREAM_HEADERS: Final = {**FRESH, "x-accel-buffering": "no"}


class EventStream(Response):
    """What an iterator yields, until it ends, the viewer leaves, or the process is to end."""

    media_type = "text/event-stream"

    def __init__(self, state: State, events: AsyncIterator[bytes]) -> None:
        super().__init__(None, 200, STREAM_HEADERS)
        del self.headers["content-length"]
        self._state = state
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._state.streams += 1
        ends: list[asyncio.Task[Any]] = [
            asyncio.ensure_future(self._pour(send)),
            asyncio.ensure_future(_left(receive)),
            asyncio.ensure_future(self._state.closing.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._state.streams -= 1
            for task in ends:
                task.cancel()
            found = await asyncio.gather(*ends, return_exceptions=True)
        if not ends[1].cancelled() and found[1] is None:
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if isinstance(found[0], Exception):
            raise found[0]

    async def _pour(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": RETRY, "more_body": True})
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def room_for_one(state: State) -> None:
    if state.streams >= MAX_STREAMS:
        raise Refused(429, f"{MAX_STREAMS} streams are open", "close a page of the dashboard, then reload")


async def stream(request: Request) -> Response:
    state = state_of(request)
    room_for_one(state)
    return EventStream(state, state.live.follow())
