"""Answers as JSON: what the broker said, as it is, or what went wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polybus.client.admin import QuestionRefused
from polybus.errors import PolybusError
from polybus.web.asking import TooBusy
from polybus.web.live import NEXT

JSON: Final = "application/json"
# Everything here is of this moment.
FRESH: Final = {"cache-control": "no-store"}
HELP: Final = "docs/dashboard.md lists the addresses"


class Refused(PolybusError):
    """A request that is not carried out: the status, why, and what to do instead."""

    def __init__(self, status: int, error: str, next_: str) -> None:
        super().__init__(error)
        self.status = status
        self.next = next_


def raw(value: bytes, status: int = 200) -> Response:
    return Response(value, status, FRESH, JSON)


def answer(value: Any) -> Response:
    return raw(msgspec.json.encode(value))


def problem(status: int, error: str, next_: str, headers: Mapping[str, str] | None = None) -> Response:
    value = msgspec.json.encode({"error": error, "next": next_})
    return Response(value, status, {**FRESH, **(headers or {})}, JSON)


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return problem(error.status, str(error), error.next)


async def on_question_refused(request: Request, error: Exception) -> Response:
    """The broker said no; what it says has the next step in it."""
    return problem(400, str(error), "change the question as it says")


async def on_busy(request: Request, error: Exception) -> Response:
    return problem(503, str(error), "ask again in a moment", {"retry-after": "1"})


async def on_polybus(request: Request, error: Exception) -> Response:
    return problem(503, str(error), NEXT, {"retry-after": "1"})


async def on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {
        404: (f"there is nothing at {request.url.path}", HELP),
        405: (f"{request.method} is not for {request.url.path}", HELP),
    }
    text, next_ = words.get(error.status_code, (error.detail, HELP))
    return problem(error.status_code, text, next_, error.headers)


ON_ERRORS: Final[Mapping[Any, Any]] = {
    Refused: on_refused,
    QuestionRefused: on_question_refused,
    TooBusy: on_busy,
    PolybusError: on_polybus,
    HTTPException: on_http,
}
