"""DBP's datagrams: the heartbeat that does not need a connection, and the beacon.

A beat is the frames of HEARTBEAT joined by spaces, the time as text: `<3 1700000000.5 name`.
A beacon is what the original implementation broadcasts so that nodes find the broker: `SHALOM 5246`.
Anyone can send a datagram, so anything that is not exactly one of these is refused.
"""

from __future__ import annotations

from typing import Final

from polybus.errors import LocalProtocolError
from polybus.wire.dbp import HEARTBEAT, Heartbeat
from polybus.wire.dbp_time import MAX_TIME_TEXT, TimeForm, read_time_form, write_time
from polybus.wire.frames import MAX_NAME_BYTES, check_name, read_name, refuse

BEACON: Final = b"SHALOM"
MAX_BEAT_BYTES: Final = len(HEARTBEAT) + 1 + MAX_TIME_TEXT + 1 + MAX_NAME_BYTES
MAX_BEACON_BYTES: Final = len(BEACON) + 1 + 5


def read_beat_packet(packet: bytes) -> Heartbeat:
    if len(packet) > MAX_BEAT_BYTES:
        raise refuse("too_long", f"beat is {len(packet)} bytes; allowed are {MAX_BEAT_BYTES}")
    # A name may have spaces, so only the first two separate anything.
    command, _, rest = packet.partition(b" ")
    time, _, name = rest.partition(b" ")
    if command != HEARTBEAT:
        raise refuse("unknown_command", f"datagram {packet[:16]!r} is no heartbeat")
    if read_time_form(time) is not TimeForm.TEXT:
        raise refuse("bad_time", "time in a datagram must be decimal text")
    return Heartbeat(read_name(name, "service name"), TimeForm.TEXT)


def write_beat_packet(name: bytes, now_s: float) -> bytes:
    return b" ".join((HEARTBEAT, write_time(now_s, TimeForm.TEXT), check_name(name, "service name")))


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
