"""What a failure looks like in a dialect that has no word for it, and how many frames a body may have.

Dialects without a rejection of their own answer with a body that is a JSON object:
`{"error": "expired", "detail": "no answer within 300 s"}`.  A worker of such a dialect says that it failed in
the same way.  `error` is a word of `Reason`, or the worker's own text.
"""

from __future__ import annotations

from typing import Final

import msgspec

from polybus.core.actions import Refuse
from polybus.core.model import Body, Reason
from polybus.errors import LocalProtocolError
from polybus.wire.frames import EMPTY, Frame

# An error object is short; a longer body is an answer that happens to begin like one.
MAX_ERROR_BYTES: Final = 64 * 1024
# What a worker may say besides that it failed.
_WORDS: Final = {str(reason): reason for reason in (Reason.TIMEOUT, Reason.REJECTED)}
_BRACE: Final = b"{"[0]
_OPENINGS: Final = (b'{"error"', b'{ "error"', b"{'error'")


def error_body(action: Refuse, key: str = "error") -> Frame:
    """A failure as a body: the worker's own error object as it came, or one made from the reason."""
    own = _own_words(action)
    if own is not None and read_error([own]) is not None and key == "error":
        return own
    error: dict[str, str] = {key: str(action.reason)}
    if own is not None:
        error[key] = _text_of(own)
    if action.detail and action.detail not in error[key]:
        error["detail"] = action.detail
    return msgspec.json.encode(error)


def error_text(action: Refuse) -> bytes:
    """A failure as one short text: the worker's own word, or the reason."""
    own = _own_words(action)
    if own is not None:
        return bytes(own)
    return f"{action.reason}: {action.detail}".encode() if action.detail else str(action.reason).encode()


def read_error(body: Body) -> str | None:
    """The text of the error if a worker's body is an error object, else None."""
    # Every answer of most dialects is looked at: the first byte decides nearly all of them.
    if len(body) != 1:
        return None
    frame = body[0]
    if type(frame) is not bytes or not frame or frame[0] != _BRACE:
        return None
    if not frame.startswith(_OPENINGS) or len(frame) > MAX_ERROR_BYTES:
        return None
    try:
        value = msgspec.json.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict) or not value.get("error"):
        return None
    error, detail = str(value["error"]), str(value.get("detail") or "")
    if not detail:
        return error
    # That it failed is known; whoever reads the history of a job wants to know why.
    return detail if error == "failed" else f"{error}: {detail}"


def reason_of(error: str) -> Reason:
    """The word that a worker's error begins with, if it is one that histories and clients know."""
    return _WORDS.get(error.partition(":")[0], Reason.FAILED)


def single_frame(body: Body, dialect: str) -> Frame:
    """The only frame of a body, for dialects that carry one."""
    if len(body) > 1:
        raise LocalProtocolError(
            f"the body has {len(body)} frames and {dialect} carries one; join them before sending"
        )
    frame: Frame = body[0] if body else EMPTY
    return frame


def _own_words(action: Refuse) -> Frame | None:
    frame: Frame | None = action.body[0] if len(action.body) == 1 and len(action.body[0]) else None
    return frame


def _text_of(frame: Frame) -> str:
    """An error object in one text, `failed: no tea`, or whatever else the worker said."""
    if read_error([frame]) is None:
        return bytes(frame)[:MAX_ERROR_BYTES].decode(errors="replace")
    value = msgspec.json.decode(bytes(frame))
    return f"{value['error']}: {value['detail']}" if value.get("detail") else str(value["error"])
