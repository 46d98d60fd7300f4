"""The error object: how a failure travels in a dialect that has no word for it.

`{"error": "expired", "detail": "no answer within 300 s"}`; DBP says `{"Error": "expired: no answer …"}`.
`error` is a short machine word where the bus made it, or a worker's own text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from polybus.wire.frames import Frame

# An error object is short; a longer body is an answer that happens to begin like one.
MAX_ERROR_BYTES: Final = 64 * 1024
FAILED: Final = "failed"
REJECTED: Final = "rejected"

_OPENINGS: Final = (b'{"error"', b'{ "error"')
_CODE: Final = re.compile(r"[a-z][a-z_]{1,39}")


def write_failure(reason: str, rejected: bool) -> bytes:
    """A worker's failure as a body."""
    return msgspec.json.encode({"error": REJECTED if rejected else FAILED, "detail": reason})


def read_failure(body: Sequence[Frame]) -> tuple[str, str] | None:
    """Code and detail if a body is an error object, else None."""
    if len(body) != 1:
        return None
    frame = body[0]
    # Looked at for every answer: almost all are told apart by their first byte.
    if type(frame) is not bytes or frame[:1] != b"{" or not frame.startswith(_OPENINGS):
        return None
    if len(frame) > MAX_ERROR_BYTES:
        return None
    try:
        value = msgspec.json.decode(frame)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not value.get("error"):
        return None
    error, detail = str(value["error"]), str(value.get("detail") or "")
    return (error, detail) if _CODE.fullmatch(error) else (FAILED, detail or error)


def split_failure(text: str, default: str = FAILED) -> tuple[str, str]:
    """Code and detail of a failure in one text: `expired: no answer within 3 s`."""
    code, _, detail = text.partition(": ")
    return (code, detail) if _CODE.fullmatch(code) else (default, text)
