"""The header field of eMQP: 0 to many comma-separated values, an empty string if there are none.

A value is a flag (`guarantee`) or a name with a number (`retry-count:3`).  The document once calls the
field a dictionary, so `{}` and a JSON object are read as well; what we write is always the list.  Headers
that we do not know are kept in order and passed on, because a worker may know them.

Almost all requests carry one of a few header texts, so short ones are read and written once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.frames import Frame, read_text, refuse

# There are seven headers in all; ten times as many leaves room for a site's own.
MAX_HEADERS: Final = 64
# A job that failed this often will not succeed by being tried again.
MAX_RETRIES: Final = 1_000_000
# 68 years of seconds, or as many runs of a schedule: what a signed 32-bit number holds.
MAX_NUMBER: Final = 2**31 - 1

_CACHED_BYTES: Final = 256


class Headers(Struct, frozen=True):
    """What a client asks for besides the job itself; `run_count` None means forever.

    `attempt` is the broker's word to a polybus worker: how often the job was handed out, this time included.
    `receipt_requested` is a polybus client's word to the broker: say when you have the job, also if you
    are strict and say so to nobody else.
    """

    reply_requested: bool = False
    retry_count: int = 0
    timeout_s: int = 0
    guarantee: bool = False
    nohaste: bool = False
    run_count: int | None = None
    attempt: int = 0
    other: tuple[str, ...] = ()
    receipt_requested: bool = False


NO_HEADERS: Final = Headers()

# Header name → field of Headers.
_FLAGS: Final = {
    "reply-requested": "reply_requested",
    "guarantee": "guarantee",
    "nohaste": "nohaste",
    "receipt-requested": "receipt_requested",
}
# Header name → field of Headers, largest value.
_NUMBERS: Final = {
    "retry-count": ("retry_count", MAX_RETRIES),
    "timeout": ("timeout_s", MAX_NUMBER),
    "run_count": ("run_count", MAX_NUMBER),
    "attempt": ("attempt", MAX_NUMBER),
}
_SWITCH: Final = {"": True, "true": True, "1": True, "false": False, "0": False}
_OBJECT: Final = msgspec.json.Decoder(dict[str, bool | int | str | None])


def read_headers(frame: Frame) -> Headers:
    if not len(frame):
        return NO_HEADERS
    text = read_text(frame, "headers")
    return _read_cached(text) if len(text) <= _CACHED_BYTES else _read(text)


def write_headers(headers: Headers) -> bytes:
    # Only headers of our own making are kept: unknown ones may be long.
    if headers is NO_HEADERS:
        return b""
    return _write(headers) if headers.other else _write_cached(headers)


def _read(text: bytes) -> Headers:
    try:
        line = text.decode().strip()
    except UnicodeDecodeError:
        raise refuse("bad_header", "headers are not UTF-8 text") from None
    items = _from_object(line) if line.startswith("{") else line.split(",", MAX_HEADERS)
    if len(items) > MAX_HEADERS:
        raise refuse("bad_header", f"more than {MAX_HEADERS} headers")
    fields: dict[str, int | bool | None] = {}
    other: list[str] = []
    for item in map(str.strip, items):
        name, _, value = item.partition(":")
        if name in _FLAGS:
            fields[_FLAGS[name]] = _read_switch(name, value)
        elif name in _NUMBERS:
            field, most = _NUMBERS[name]
            fields[field] = _read_number(name, value, most)
        elif item:
            other.append(_check_other(item))
    return msgspec.structs.replace(NO_HEADERS, **fields, other=tuple(other))


def _from_object(line: str) -> list[str]:
    try:
        entries = _OBJECT.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise refuse("bad_header", "headers are neither a list of values nor a flat JSON object") from None
    items: list[str] = []
    for name, value in entries.items():
        if value is True:
            items.append(name)
        elif value is not None and value is not False:
            items.append(f"{name}:{value}")
    if any("," in item for item in items):
        raise refuse("bad_header", "a header must not contain a comma")
    return items


def _read_switch(name: str, value: str) -> bool:
    on = _SWITCH.get(value.strip().lower())
    if on is None:
        raise refuse("bad_header", f"{name} is a flag; {value[:40]!r} is not true or false")
    return on


def _read_number(name: str, value: str, most: int) -> int | None:
    digits = value.strip()
    if name == "run_count" and digits == "-1":
        return None  # the public scheduler's way to say "forever"
    if digits.isascii() and digits.isdigit() and len(digits) <= 10 and int(digits) <= most:
        return int(digits)
    raise refuse("bad_header", f"{name} takes a number from 0 to {most}, not {value[:40]!r}")


def _check_other(item: str) -> str:
    # A brace would make what we pass on look like an object.
    if item.isprintable() and not item.startswith("{"):
        return item
    raise refuse("bad_header", f"not a header: {item[:40]!r}")


def _write(headers: Headers) -> bytes:
    items = [name for name, field in _FLAGS.items() if getattr(headers, field)]
    for name, (field, most) in _NUMBERS.items():
        value = getattr(headers, field)
        if value is not None and not 0 <= value <= most:
            raise LocalProtocolError(f"{field} is {value}; allowed are 0 to {most}")
        # Zero retries and no timeout are the defaults; zero runs is not.
        if value or (field == "run_count" and value == 0):
            items.append(f"{name}:{value}")
    if len(items) + len(headers.other) > MAX_HEADERS:
        raise LocalProtocolError(f"more than {MAX_HEADERS} headers")
    for item in headers.other:
        _check_own(item)
    return ",".join([*items, *headers.other]).encode()


def _check_own(item: str) -> None:
    name = item.partition(":")[0]
    if not item or item != item.strip() or "," in item or name in _FLAGS or name in _NUMBERS:
        raise LocalProtocolError(f"{item[:40]!r} cannot be one of the other headers")
    try:
        _check_other(item)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None


_read_cached = lru_cache(maxsize=1024)(_read)
_write_cached = lru_cache(maxsize=1024)(_write)
