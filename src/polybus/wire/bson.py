"""The part of BSON that EBUS peers on Node use: documents, arrays, texts, numbers, booleans and null.

A document is its size (int32), its fields, and a zero byte; a field is a type byte, a name that ends with a
zero byte, and a value.  An array is a document whose names are the positions.  Everything is little-endian.
Dates, binaries and ids of MongoDB are not here: a peer that needs them takes pymongo's `bson`.

`decode` returns a dict or raises `RemoteProtocolError`; `encode` raises `LocalProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

from polybus.errors import LocalProtocolError
from polybus.wire.frames import refuse

# A list of every worker of a large bus has a few megabytes; more than this is a mistake or an attack.
MAX_BYTES: Final = 64 * 1024 * 1024
# Deeper data is not sent on purpose, and each level is a call of the reader.
MAX_DEPTH: Final = 100

_DOUBLE, _STRING, _DOCUMENT, _ARRAY, _UNDEFINED, _BOOL, _NULL, _INT32, _INT64 = (
    *(0x01, 0x02, 0x03, 0x04, 0x06, 0x08, 0x0A, 0x10, 0x12),
)
_int32: Final = struct.Struct("<i")
_NUMBERS: Final = {_DOUBLE: struct.Struct("<d"), _INT32: _int32, _INT64: struct.Struct("<q")}
# The size before the fields and the zero byte after them.
_EMPTY_BYTES: Final = 5


# -- writing ----------------------------------------------------------------------------------


def encode(document: dict[str, Any]) -> bytes:
    data = _encode_document(document.items(), 0)
    if len(data) > MAX_BYTES:
        raise LocalProtocolError(f"the document has {len(data)} bytes; allowed are {MAX_BYTES}")
    return data


def _encode_document(fields: Iterable[tuple[object, object]], depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise LocalProtocolError(f"the data is nested more than {MAX_DEPTH} levels deep")
    parts = [_encode_field(name, value, depth) for name, value in fields]
    content = b"".join(parts)
    return b"%b%b\0" % (_int32.pack(len(content) + _EMPTY_BYTES), content)


def _encode_field(name: object, value: object, depth: int) -> bytes:
    if not isinstance(name, str) or "\0" in name:
        raise LocalProtocolError(f"a field is named by a text without zero bytes, not by {name!r:.40}")
    kind, data = _encode_value(value, depth)
    return b"%c%b\0%b" % (kind, _encode_text(name), data)


def _encode_value(value: object, depth: int) -> tuple[int, bytes]:
    match value:
        case None:
            return _NULL, b""
        case bool():
            return _BOOL, b"\1" if value else b"\0"
        case int():
            if not -(2**63) <= value < 2**63:
                raise LocalProtocolError("an integer does not fit into the 64 bits that BSON has for it")
            kind = _INT32 if -(2**31) <= value < 2**31 else _INT64
            return kind, _NUMBERS[kind].pack(value)
        case float():
            return _DOUBLE, _NUMBERS[_DOUBLE].pack(value)
        case str():
            text = _encode_text(value)
            return _STRING, b"%b%b\0" % (_int32.pack(len(text) + 1), text)
        case dict():
            return _DOCUMENT, _encode_document(value.items(), depth + 1)
        case list() | tuple():
            positions = ((str(position), item) for position, item in enumerate(value))
            return _ARRAY, _encode_document(positions, depth + 1)
    raise LocalProtocolError(
        f"{type(value).__name__} is not written as BSON here; take None, bool, int, float, str, list or dict"
    )


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a text is not valid Unicode: {error}") from None


# -- reading ----------------------------------------------------------------------------------


def decode(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise refuse("too_long", f"the BSON document has {len(data)} bytes; allowed are {MAX_BYTES}")
    fields, end = _decode_document(data, 0, len(data), 0)
    if end != len(data):
        raise refuse("bad_bson", f"{len(data) - end} bytes follow the BSON document")
    return dict(fields)


def _decode_document(data: bytes, at: int, limit: int, depth: int) -> tuple[list[tuple[str, Any]], int]:
    """The fields of the document at `at`, and where it ends; nothing behind `limit` is read."""
    if depth > MAX_DEPTH:
        raise refuse("bad_bson", f"the BSON document is nested more than {MAX_DEPTH} levels deep")
    size = _decode_size(data, at, limit)
    end = at + size - 1
    if size < _EMPTY_BYTES or end >= limit or data[end] != 0:
        raise refuse("bad_bson", f"a BSON document at byte {at} does not end where its size says")
    at += _int32.size
    fields = []
    while at < end:
        kind = data[at]
        zero = data.find(b"\0", at + 1, end)
        if zero < 0:
            raise refuse("bad_bson", f"the name of a field at byte {at} does not end")
        value, after = _decode_value(kind, data, zero + 1, end, depth)
        fields.append((_decode_text(data[at + 1 : zero]), value))
        at = after
    return fields, end + 1


def _decode_value(kind: int, data: bytes, at: int, limit: int, depth: int) -> tuple[Any, int]:
    if kind in (_DOCUMENT, _ARRAY):
        fields, end = _decode_document(data, at, limit, depth + 1)
        return (dict(fields) if kind == _DOCUMENT else [value for _, value in fields]), end
    if kind in (_NULL, _UNDEFINED):
        return None, at
    if kind == _STRING:
        size = _decode_size(data, at, limit)
        at += _int32.size
        end = at + size
        if size < 1 or end > limit or data[end - 1] != 0:
            raise refuse("bad_bson", f"a text at byte {at} does not end where its size says")
        return _decode_text(data[at : end - 1]), end
    if kind == _BOOL:
        if at >= limit or data[at] > 1:
            raise refuse("bad_bson", f"a boolean at byte {at} is neither 0 nor 1")
        return data[at] == 1, at + 1
    number = _NUMBERS.get(kind)
    if number is None:
        raise refuse("bad_bson", f"type {kind:#04x} is not read here; it takes pymongo's bson")
    if at + number.size > limit:
        raise refuse("bad_bson", f"a number at byte {at} is cut off")
    return number.unpack_from(data, at)[0], at + number.size


def _decode_size(data: bytes, at: int, limit: int) -> int:
    if at + _int32.size > limit:
        raise refuse("bad_bson", f"a size at byte {at} is cut off")
    size: int = _int32.unpack_from(data, at)[0]
    return size


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise refuse("bad_bson", "a text of the BSON document is not UTF-8") from None
