"""DBP's datagrams: beats and beacons."""

from __future__ import annotations

import struct

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import dbp_udp
from polybus.wire.dbp import Disconnect, Heartbeat
from polybus.wire.dbp_time import TimeForm
from support.wire_frames import refused


@pytest.mark.conforms("DBP-15")
def test_a_beat_is_the_frames_of_heartbeat_in_one_packet() -> None:
    assert dbp_udp.write_beat_packet(b"Gondor", 1.5) == b"<3 1.500000 Gondor"
    assert dbp_udp.read_beat_packet(b"<3 1700000000.5 Gondor") == Heartbeat(b"Gondor", TimeForm.TEXT)
    assert dbp_udp.read_beat_packet(b"<3 1 Minas Tirith").name == b"Minas Tirith"
    longest = b"<3 " + b"1" * 32 + b" " + b"x" * 255
    assert len(longest) == dbp_udp.MAX_BEAT_BYTES
    assert dbp_udp.read_beat_packet(longest).name == b"x" * 255


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "unknown_command"),
        (b"</3 1 Gondor", "unknown_command"),
        (b"<31 Gondor", "unknown_command"),
        (b"SHALOM 5246", "unknown_command"),
        (b"<3", "bad_time"),
        (b"<3 now Gondor", "bad_time"),
        (b"<3 " + struct.pack("<f", 1.7e9) + b" Gondor", "bad_time"),
        (b"<3 1", "bad_name"),
        (b"<3 1 ", "bad_name"),
        (b"<3 1 \x00", "bad_name"),
        (b"<3 1 " + b"x" * 256, "bad_name"),
        (b"<3 1 " + b"x" * 300, "too_long"),
    ],
)
def test_anything_else_is_no_beat(packet: bytes, reason: str) -> None:
    assert refused(lambda: dbp_udp.read_beat_packet(packet)) == reason


@pytest.mark.conforms("DBP-32")
def test_a_beacon_tells_the_port() -> None:
    assert dbp_udp.write_beacon(5246) == b"SHALOM 5246"
    assert dbp_udp.read_beacon(b"SHALOM 5246") == 5246
    assert dbp_udp.read_beacon(b"SHALOM 65535") == 65535


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"SHALOM",
        b"SHALOM ",
        b"shalom 5246",
        b"SHALOM 0",
        b"SHALOM 65536",
        b"SHALOM -1",
        b"SHALOM 5246 ",
        b"SHALOM 5246\n",
        b"SHALOM  5246",
        b"SHALOM 005246",
        b"SHALOM " + b"9" * 10_000,
    ],
)
def test_anything_else_is_no_beacon(packet: bytes) -> None:
    assert refused(lambda: dbp_udp.read_beacon(packet)) == "bad_beacon"


def test_what_would_be_refused_is_not_written() -> None:
    for port in (0, -1, 65536):
        with pytest.raises(LocalProtocolError):
            dbp_udp.write_beacon(port)
    with pytest.raises(LocalProtocolError):
        dbp_udp.write_beat_packet(b"", 1.0)


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (b"</3 1700000000.5", Disconnect(form=TimeForm.TEXT)),
        (b"</3 " + b"1" * 32, Disconnect(form=TimeForm.TEXT)),
        (b"<3 1 Gondor", Heartbeat(b"Gondor", TimeForm.TEXT)),
    ],
)
def test_what_a_node_hears(packet: bytes, message: Heartbeat | Disconnect) -> None:
    assert dbp_udp.read_packet_as_node(packet) == message


@pytest.mark.parametrize(
    "packet", [b"</3", b"</3 ", b"</3 now", b"</3 " + b"1" * 33, b"</3 1 ", b"</3 1\n", b"<\\3 1", b"<3 1"]
)
def test_what_is_no_word_of_the_broker(packet: bytes) -> None:
    assert refused(lambda: dbp_udp.read_packet_as_node(packet)) in ("unknown_command", "bad_name")


def test_the_end_of_a_conversation_has_a_time_and_nothing_else() -> None:
    assert dbp_udp.write_end_packet(1.5) == b"</3 1.500000"
    assert dbp_udp.read_packet_as_node(dbp_udp.write_end_packet(1.7e9)) == Disconnect(form=TimeForm.TEXT)


def test_the_name_in_a_beat_is_not_looked_at() -> None:
    assert dbp_udp.read_beat_name(b"<3 1 \x00") == b"\x00"
    assert dbp_udp.read_beat_name(b"<3 1") == b""
    assert dbp_udp.read_beat_name(b"<3 " + b"1" * 32 + b" a b") == b"a b"
    assert refused(lambda: dbp_udp.read_beat_name(b"<3 " + b"1" * 33 + b" a")) == "bad_time"
    longest = b"<3 1 " + b"x" * (dbp_udp.MAX_BEAT_BYTES - 5)
    assert len(dbp_udp.read_beat_name(longest)) == dbp_udp.MAX_BEAT_BYTES - 5
    assert refused(lambda: dbp_udp.read_beat_name(longest + b"x")) == "too_long"


@pytest.mark.parametrize("port", [1, 65_535])
def test_the_first_and_the_last_port(port: int) -> None:
    assert dbp_udp.read_beacon(dbp_udp.write_beacon(port)) == port
