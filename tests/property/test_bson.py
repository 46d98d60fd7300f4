"""BSON: what is written is read back, and no bytes whatever break the reader."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError
from polybus.wire import bson
from polybus.wire.ebus_bodies import pack_bson, unpack_bson

texts = st.text(st.characters(codec="utf-8"), max_size=20)
keys = texts.filter(lambda text: "\0" not in text)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_round_trip(value: Any) -> None:
    assert unpack_bson(pack_bson(value)) == value


@given(values, st.integers(0, 200), st.binary(max_size=6))
def test_damaged_documents_are_read_or_refused(value: Any, at: int, junk: bytes) -> None:
    data = bson.encode({"l": value})
    damaged = data[:at] + junk + data[at + len(junk) :]
    for body in (damaged, data[:at], data[:at] + junk + data[at:]):
        with contextlib.suppress(RemoteProtocolError):
            bson.decode(body)


@given(st.binary(max_size=200))
def test_anything_is_read_or_refused(data: bytes) -> None:
    for read in (
        lambda: bson.decode(data),
        lambda: unpack_bson(data),
        lambda: unpack_bson(zlib.compress(data)),
    ):
        with contextlib.suppress(RemoteProtocolError):
            read()
