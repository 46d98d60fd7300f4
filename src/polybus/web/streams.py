"""Server-sent events: an open answer for each viewer, ended by whoever leaves first.

GET /api/stream         the live state of the broker, about every second
GET /api/logs/stream    log records as they come
GET /api/tap            what happens on the bus, one event each
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from polybus.client.admin import QuestionRefused
from polybus.errors import PolybusError
from polybus.web.answers import FRESH
from polybus.web.asking import TIMEOUT_S
from polybus.web.live import COMMENT, COMMENT_S, Live, event
from polybus.web.reading import Reader, number, read_query, seconds
from polybus.web.state import Seat, state_of
from polybus.web.taps import down, tap_events

# Viewers at one time. A browser tab is one; they cost this process, not the broker.
MAX_STREAMS: Final = 100
# Each holds a question open at the broker, which lets 64 wait.
MAX_LOGS: Final = 24
# Each costs the broker an encoding of everything that happens.
MAX_TAPS: Final = 8
# How long the broker lets us wait for a log record before it says that there is none.
LOGS_WAIT_S: Final = 10.0
LOGS_AT_ONCE: Final = 1000
EMPTY_LIST: Final = b"[]"
# A pause before a broker that is away is asked again.
AWAY_S: Final = 1.0
# After a lost connection, browsers try again after so long.
RETRY: Final = b"retry: 2000\n\n"
# Proxies are told not to hold events back.
STREAM_HEADERS: Final = {**FRESH, "x-accel-buffering": "no"}


class EventStream(Response):
    """What an iterator yields, until it ends, the viewer leaves, or the process is to end."""

    media_type = "text/event-stream"

    def __init__(self, seat: Seat, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(None, 200, STREAM_HEADERS)
        del self.headers["content-length"]
        self._seat = seat
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            self._seat.leave()
            await Response(None, 200, STREAM_HEADERS, self.media_type)(scope, receive, send)
            return
        pouring = asyncio.ensure_future(self._pour(send))
        leaving = asyncio.ensure_future(_left(receive))
        closing = asyncio.ensure_future(self._seat.closing.wait())
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            await asyncio.wait({pouring, leaving, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._seat.leave()
            has_left = leaving.done()
            for task in (pouring, leaving, closing):
                task.cancel()
            poured, *_ = await asyncio.gather(pouring, leaving, closing, return_exceptions=True)
        if not has_left:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if isinstance(poured, Exception):
                raise poured

    async def _pour(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": RETRY, "more_body": True})
        async with aclosing(self._events) as events:
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- routes ---------------------------------------------------------------------------------------


async def stream(request: Request) -> Response:
    state = state_of(request)
    read_query(request.query_params.multi_items(), {})
    return EventStream(state.stream("streams", MAX_STREAMS), state.live.follow())


async def logs(request: Request) -> Response:
    state = state_of(request)
    wanted: dict[str, Reader] = {"level": str, "node": str, "since": seconds, "limit": number}
    question = read_query(request.query_params.multi_items(), wanted)
    return EventStream(state.stream("logs", MAX_LOGS), log_events(state.live, question))


async def tap(request: Request) -> Response:
    state = state_of(request)
    wants = read_query(request.query_params.multi_items(), {"service": str, "what": str})
    return EventStream(state.stream("taps", MAX_TAPS), tap_events(state.live.desk, wants))


ROUTES: Final[list[BaseRoute]] = [
    Route("/api/stream", stream),
    Route("/api/logs/stream", logs),
    Route("/api/tap", tap),
]


async def log_events(live: Live, question: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """Events `logs`, each an answer of the broker's: what there is, then what comes."""
    more: dict[str, Any] = {}
    said_at = time.monotonic()
    while True:
        try:
            found = await live.desk.ask("logs", LOGS_WAIT_S + TIMEOUT_S, **question, **more)
        except PolybusError as error:
            yield down(str(error))
            if isinstance(error, QuestionRefused):
                return
            # When it is back, it says so at once.
            more.pop("wait_s", None)
            await asyncio.sleep(AWAY_S)
            continue
        place = msgspec.json.decode(found, type=Place)
        if place.records != EMPTY_LIST or place.missed or "wait_s" not in more:
            said_at = time.monotonic()
            yield event("logs", found)
        elif time.monotonic() - said_at > COMMENT_S:
            said_at = time.monotonic()
            yield COMMENT
        question = {**question, "limit": LOGS_AT_ONCE}
        question.pop("since", None)
        more = {"after": place.cursor, "life": place.life, "wait_s": LOGS_WAIT_S}


class Place(Struct):
    """How far an answer about logs goes."""

    records: msgspec.Raw
    cursor: int
    life: str
    missed: int = 0
