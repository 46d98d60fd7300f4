"""The shared rules of the wire hold for any bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import frames
from support.wire_frames import ids, names


@given(names)
def test_printable_names_are_names(name: bytes) -> None:
    assert frames.read_name(name, "name") is name


@given(ids)
def test_any_short_bytes_are_an_id(value: bytes) -> None:
    assert frames.read_id(value) is value


@given(st.binary(max_size=300))
def test_what_we_may_send_is_what_others_may_send(value: bytes) -> None:
    for read, check in ((frames.read_name, frames.check_name), (frames.read_id, frames.check_id)):
        try:
            read(value, "frame")
        except RemoteProtocolError:
            readable = False
        else:
            readable = True
        try:
            check(value, "frame")
        except LocalProtocolError:
            sendable = False
        else:
            sendable = True
        assert readable == sendable


@given(st.binary(min_size=1, max_size=255))
def test_a_name_is_safe_in_a_log_line(value: bytes) -> None:
    try:
        name = frames.read_name(value, "name")
    except RemoteProtocolError:
        return
    assert name.decode().isprintable()
