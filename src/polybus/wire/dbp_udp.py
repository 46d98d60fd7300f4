"""DBP's datagrams: the heartbeat that does not need a connection, and the beacon.

A beat is the frames of HEARTBEAT joined by spaces, the time as text: `<3 1700000000.5 name`.  The broker ends
a conversation that it has lost the same way, with DISCONNECT: `</3 1700000000.5`; the node registers anew.
A beacon is what the original implementation broadcasts so that nodes find the broker: `SHALOM 5246`.
Anyone can send a datagram, so anything that is not exactly one of these is refused.
"""

from __future__ import annotations

import re
from typing import Final

from polybus.errors import LocalProtocolError
from polybus.wire.dbp import DISCONNECT, HEARTBEAT, Disconnect, Heartbeat
from polybus.wire.dbp_time import MAX_TIME_TEXT, TimeForm, write_time
from polybus.wire.frames import EMPTY, MAX_NAME_BYTES, check_name, read_name, refuse

BEACON: Final = b"SHALOM"
_TIME: Final = re.compile(rb"[0-9]+(\.[0-9]+)?").fullmatch
MAX_BEAT_BYTES: Final = len(HEARTBEAT) + 1 + MAX_TIME_TEXT + 1 + MAX_NAME_BYTES
MAX_BEACON_BYTES: Final = len(BEACON) + 1 + 5


def read_beat_name(packet: bytes) -> bytes:
    """The name in a beat, not looked at any further: thousands come every second, and a name that is not in
    the catalog means nothing anyway."""
    if len(packet) > MAX_BEAT_BYTES:
        raise refuse("too_long", f"beat is {len(packet)} bytes; allowed are {MAX_BEAT_BYTES}")
    # A name may have spaces, so only the first two separate anything.
    parts = packet.split(b" ", 2)
    if parts[0] != HEARTBEAT:
        raise refuse("unknown_command", f"datagram {packet[:16]!r} is no heartbeat")
    if len(parts) < 2 or len(parts[1]) > MAX_TIME_TEXT or not _TIME(parts[1]):
        raise refuse("bad_time", "time in a datagram must be decimal text")
    return parts[2] if len(parts) == 3 else EMPTY


def read_beat_packet(packet: bytes) -> Heartbeat:
    return Heartbeat(read_name(read_beat_name(packet), "service name"), TimeForm.TEXT)


def read_packet_as_node(packet: bytes) -> Heartbeat | Disconnect:
    """What the broker sends to a node."""
    command, _, time = packet[:MAX_BEAT_BYTES].partition(b" ")
    if command == DISCONNECT and len(time) <= MAX_TIME_TEXT and _TIME(time):
        return Disconnect(form=TimeForm.TEXT)
    return read_beat_packet(packet)


def write_beat_packet(name: bytes, now_s: float) -> bytes:
    return b" ".join((HEARTBEAT, write_time(now_s, TimeForm.TEXT), check_name(name, "service name")))


def write_end_packet(now_s: float) -> bytes:
    return b" ".join((DISCONNECT, write_time(now_s, TimeForm.TEXT)))


def read_beacon(packet: bytes) -> int:
    """The port on which the sender's broker listens."""
    word, _, port = packet[: MAX_BEACON_BYTES + 1].partition(b" ")
    if word == BEACON and len(packet) <= MAX_BEACON_BYTES and port.isdigit() and 1 <= int(port) <= 65535:
        return int(port)
    raise refuse("bad_beacon", f"datagram {packet[:16]!r} is no beacon")


def write_beacon(port: int) -> bytes:
    if 1 <= port <= 65535:
        return b"%s %d" % (BEACON, port)
    raise LocalProtocolError(f"port is {port}; allowed are 1 to 65535")
