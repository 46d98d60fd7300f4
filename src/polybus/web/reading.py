"""Reading what was asked: parameters and bodies, checked before anything is done with them.

Unknown parameters are refused and not ignored: a misspelt filter never shows everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request

from polybus.web.answers import Refused
from polybus.wire.frames import MAX_TEXT_BYTES

# The broker reads no longer question; it is asked nothing that it would not answer.
MAX_BODY: Final = MAX_TEXT_BYTES - 1024
# May be in every address that is read, for those who cannot set headers; see `guard`.
TOKEN: Final = "token"

Reader = Callable[[str], Any]


def number(text: str) -> int:
    return int(text)


def seconds(text: str) -> float:
    return float(text)


WORDS: Final[dict[Any, str]] = {str: "a text", number: "a whole number", seconds: "a number"}


def read_query(given: Iterable[tuple[str, str]], known: Mapping[str, Reader]) -> dict[str, Any]:
    """The parameters of a query; raises `Refused` with what there is."""
    found: dict[str, Any] = {}
    for name, text in given:
        if name == TOKEN:
            continue
        if name not in known:
            names = ", ".join(known) or "none"
            raise Refused(400, f"there is no parameter {name!r} here", f"parameters are: {names}")
        if text == "":
            continue
        try:
            found[name] = known[name](text)
        except ValueError:
            raise Refused(
                400, f"{name} is {text!r}, which is not {WORDS[known[name]]}", f"change {name} and ask again"
            ) from None
    return found


async def read_body(request: Request, most: int = MAX_BODY) -> dict[str, Any]:
    """The JSON object of a body; nothing at all is an empty one."""
    text = b""
    async for chunk in request.stream():
        text += chunk
        if len(text) > most:
            raise Refused(413, f"the body is longer than {most} bytes", "send it in several parts")
    try:
        return msgspec.json.decode(text or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(
            400, f"the body is no JSON object: {error}", 'send an object such as {"jobs": []}'
        ) from None
