"""The part of BSON that EBUS bodies use, byte by byte (bsonspec.org), and what is refused."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import bson
from polybus.wire.ebus_bodies import pack_bson, unpack_bson
from support.wire_frames import refused

# Values, and the bytes of {"l": value} as bson 4.2.2 for Node writes them.
KNOWN: list[tuple[Any, str]] = [
    (["echo", "sum"], "24000000046c001c000000023000050000006563686f000231000400000073756d000000"),
    ([], "0d000000046c00050000000000"),
    (None, "080000000a6c0000"),
    (True, "09000000086c000100"),
    (False, "09000000086c000000"),
    (1, "0c000000106c000100000000"),
    (-1, "0c000000106c00ffffffff00"),
    (2**31 - 1, "0c000000106c00ffffff7f00"),
    (0.5, "10000000016c00000000000000e03f00"),
    ("ž", "0f000000026c0003000000c5be0000"),
    ({}, "0d000000036c00050000000000"),
]


@pytest.mark.parametrize(("value", "expected"), KNOWN, ids=lambda one: repr(one)[:20])
def test_values_as_node_writes_them(value: Any, expected: str) -> None:
    assert bson.encode({"l": value}).hex() == expected
    decoded = bson.decode(bytes.fromhex(expected))
    assert decoded == {"l": value}
    assert type(decoded["l"]) is type(value)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63)])
def test_large_integers_have_64_bits(number: int) -> None:
    data = bson.encode({"l": number})
    assert data[4] == 0x12
    assert bson.decode(data) == {"l": number}


@pytest.mark.parametrize("number", [2**31 - 1, 2, 0, -2, -(2**31)])
def test_other_integers_have_32_bits(number: int) -> None:
    data = bson.encode({"l": number})
    assert data[4] == 0x10
    assert bson.decode(data) == {"l": number}


def test_a_document_with_a_field_of_every_kind_keeps_their_order() -> None:
    document = {
        "yes": True,
        "no": False,
        "nothing": None,
        "small": 7,
        "large": 2**40,
        "part": 0.25,
        "text": "x",
        "list": [True, None, "y"],
        "inner": {"yes": True, "after": 1},
        "": "no name",
        "last": False,
    }
    decoded = bson.decode(bson.encode(document))
    assert decoded == document
    assert list(decoded) == list(document)


def test_workers_as_a_list_of_documents() -> None:
    entries = [{"id": "w1", "service": "echo", "load": 2}, {"id": "w2", "service": "sum", "load": 0}]
    assert bson.decode(bson.encode({"l": entries})) == {"l": entries}
    assert unpack_bson(pack_bson(entries)) == entries


def test_a_text_may_be_empty() -> None:
    data = bytes.fromhex("0d000000026c00010000000000")
    assert bson.encode({"l": ""}) == data
    assert bson.decode(data) == {"l": ""}


def test_undefined_is_none() -> None:
    assert bson.decode(bytes.fromhex("08000000066c0000")) == {"l": None}


@pytest.mark.parametrize(
    "data",
    [
        "",
        "0500",
        "0400000000",
        "0600000000",
        "05000000" + "01",
        "0500000000" + "00",
        "ffffffff00",
        # names that do not end
        "080000000a6c6c00",
        "09000000016c6c6c00",
        # a value that is cut off: int32, double, text, boolean, document
        "0a000000106c00010000",
        "0a000000016c00010000",
        "0a000000026c00010000",
        "08000000086c0000",
        "0a000000036c00050000",
        # a text without its zero byte, one of no bytes at all, one that is longer than its document
        "0d000000026c00010000006100",
        "0c000000026c000000000000",
        "0e000000026c00" + "ff000000" + "610000",
        "0e000000026c00" + "ffffffff" + "610000",
        # a text that is no UTF-8, a boolean of 2, a date
        "0e000000026c0002000000ff0000",
        "09000000086c000200",
        "10000000096c00000000000000000000",
        # an inner document that is longer than the outer one
        "0d000000036c00" + "06000000" + "0000",
    ],
)
def test_what_is_no_document(data: str) -> None:
    assert refused(lambda: bson.decode(bytes.fromhex(data))) == "bad_bson"


def test_depth_is_limited() -> None:
    value: Any = None
    for _ in range(bson.MAX_DEPTH):
        value = [value]
    data = bson.encode({"l": value})
    assert bson.decode(data) == {"l": value}
    with pytest.raises(LocalProtocolError, match="nested"):
        bson.encode({"l": [value]})
    field = b"\x04l\0" + data
    deeper = (len(field) + 5).to_bytes(4, "little") + field + b"\0"
    assert refused(lambda: bson.decode(deeper)) == "bad_bson"


def test_depth_of_documents_is_limited_as_that_of_lists() -> None:
    value: Any = None
    for _ in range(bson.MAX_DEPTH):
        value = {"l": value}
    data = bson.encode({"l": value})
    assert bson.decode(data) == {"l": value}
    with pytest.raises(LocalProtocolError, match="nested"):
        bson.encode({"l": {"l": value}})
    field = b"\x03l\0" + data
    deeper = (len(field) + 5).to_bytes(4, "little") + field + b"\0"
    assert refused(lambda: bson.decode(deeper)) == "bad_bson"


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bson, "MAX_BYTES", 100)
    exact = bson.encode({"l": "x" * 87})
    assert len(exact) == 100
    assert unpack_bson(zlib.compress(exact)) == "x" * 87
    with pytest.raises(LocalProtocolError, match="allowed are 100"):
        bson.encode({"l": "x" * 88})
    assert refused(lambda: bson.decode(b"\x65" + bytes(100))) == "too_long"
    # What inflates to a thousand times its size is not inflated.
    assert refused(lambda: unpack_bson(zlib.compress(bytes(1_000_000)))) == "too_long"


@pytest.mark.parametrize(
    "value", [b"bytes", {1: "a"}, {"a\0b": 1}, 2**63, -(2**63) - 1, "\ud800", {"\ud800": 1}, {"a": {1, 2}}]
)
def test_what_cannot_be_written(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        pack_bson(value)


@pytest.mark.parametrize("body", [b"", b"null"])
def test_no_value(body: bytes) -> None:
    assert unpack_bson(body) is None


def test_a_field_that_node_left_out_is_none() -> None:
    assert unpack_bson(zlib.compress(bson.encode({}))) is None


@pytest.mark.parametrize(
    "body", [b"[1]", b"\x78\x9c", pack_bson(["echo"])[:-1], pack_bson(["echo"]) + b"x", zlib.compress(b"{}")]
)
def test_what_is_no_body_of_node(body: bytes) -> None:
    assert refused(lambda: unpack_bson(body)) in ("bad_body", "bad_bson")
