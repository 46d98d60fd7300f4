"""DBP's datagrams: beats and beacons."""

from __future__ import annotations

import struct

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import dbp_udp
from polybus.wire.dbp import Heartbeat
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
