"""What happened: routes over the pipeline's tables and the journal.

Files are read in a few threads of their own, off the event loop.  Whoever asks while all of them are at work
waits; beyond that it is told to come back.  What reads them takes seconds to import, so that is done by the
first who asks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from polybus.errors import JournalMissing, PolybusError
from polybus.web.answers import Refused, answer, raw
from polybus.web.reading import Reader, number, read_query, seconds

if TYPE_CHECKING:
    from polybus.web.state import State
    from polybus.web.tables import Tables

T = TypeVar("T")
# Reading is mostly waiting for the disk and computing in C; more threads would only take turns.
THREADS: Final = 2
# Questions that wait for a thread.
MAX_WAITING: Final = 16
# After this nobody waits any longer for an answer.
TIMEOUT_S: Final = 30.0
DEFAULT_ROWS: Final = 100
# Who calls whom is looked at as a whole.
DEFAULT_CALLS: Final = 1000
DEFAULT_MINUTES: Final = 60.0
MAX_MINUTES: Final = 60.0 * 24 * 31
# Requests that are named if several are called so.
NAMED: Final = 20


class History:
    """The tables and journals, and the threads that read them."""

    def __init__(self, tables: str, journals: Sequence[Path]) -> None:
        self.place: Final = tables
        self._tables: Tables | None = None
        self._opening = threading.Lock()
        self.journals: Final = tuple(journals)
        self._threads = ThreadPoolExecutor(THREADS, "polybus-history")
        self._waiting = 0

    def tables(self) -> Tables:
        """To be called in one of the threads."""
        with self._opening:
            if self._tables is None:
                from polybus.web.tables import Tables

                self._tables = Tables(self.place)
            return self._tables

    async def read(self, call: Callable[[], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise Refused(
                503, f"{MAX_WAITING} questions about history are being read", "ask again in a moment"
            )
        self._waiting += 1
        reading = asyncio.get_running_loop().run_in_executor(self._threads, call)
        reading.add_done_callback(self._read)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.shield(reading)
        except TimeoutError:
            raise Refused(
                503, f"reading took longer than {TIMEOUT_S:g} s", "ask for less, or again in a moment"
            ) from None

    def _read(self, reading: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not reading.cancelled():
            # Whoever asked may be gone.
            reading.exception()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


# -- routes ---------------------------------------------------------------------------------------


async def service(request: Request) -> Response:
    asked = _query(request, {"name": str, "minutes": seconds})
    minutes = asked.get("minutes", DEFAULT_MINUTES)
    if not 0 < minutes <= MAX_MINUTES:
        raise Refused(400, f"minutes is {minutes:g}", f"it takes more than 0 and at most {MAX_MINUTES:g}")
    history = _history(request)
    name, now = asked.get("name", ""), time.time()
    return raw(await history.read(lambda: history.tables().service(name, minutes, now)))


async def table(request: Request) -> Response:
    name = request.path_params["table"]
    limit = _query(request, {"limit": number}).get(
        "limit", DEFAULT_CALLS if name == "calls" else DEFAULT_ROWS
    )
    history = _history(request)
    return raw(await history.read(lambda: history.tables().newest(name, limit)))


async def pipeline(request: Request) -> Response:
    _query(request, {})
    history = _history(request)
    return raw(await history.read(lambda: _pipeline(history)))


def _pipeline(history: History) -> bytes:
    from polybus.web.pipeline import describe

    journal = history.journals[0] if history.journals else None
    return msgspec.json.encode(describe(history.tables(), journal, time.time()))


async def trace(request: Request) -> Response:
    _query(request, {})
    history = _history(request)
    name = request.path_params["name"]
    return await history.read(lambda: _trace(history.journals, name))


def _trace(journals: Sequence[Path], name: str) -> Response:
    from polybus.journal.reader import find_journal
    from polybus.journal.telling import as_json
    from polybus.journal.trace import Ambiguous
    from polybus.journal.trace import trace as search

    try:
        return answer(as_json(search([find_journal(journal) for journal in journals], name), False))
    except Ambiguous as error:
        names = ("token", "request_id", "at", "service", "client")
        rows = [{name: row[name] for name in names} for row in error.found[:NAMED]]
        value = {"error": str(error), "next": "name one of them by its token", "candidates": rows}
        return raw(msgspec.json.encode(value), 409)
    except JournalMissing as error:
        next_ = "check the id; 'polybus web --journal DIR' reads another journal"
        raise Refused(404, str(error), next_) from None
    except PolybusError as error:
        raise Refused(503, str(error), "'polybus journal verify' tells more") from None


ROUTES: Final[list[BaseRoute]] = [
    Route("/api/history/service", service),
    Route("/api/history/{table}", table),
    Route("/api/pipeline", pipeline),
    Route("/api/trace/{name:path}", trace),
]


def _history(request: Request) -> History:
    state: State = request.app.state.polybus
    return state.history


def _query(request: Request, known: dict[str, Reader]) -> dict[str, Any]:
    return read_query(request.query_params.multi_items(), known)
