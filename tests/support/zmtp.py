"""The first bytes of a ZeroMQ connection (ZMTP 3, NULL mechanism), by hand.

Each side sends a greeting of 64 bytes and a READY command, which names the type of its socket.  That is the
only place where it can be seen from outside.
"""

from __future__ import annotations

import socket
import struct

from support.patience import patient

WAIT_S = patient(10.0)
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(socket_type: bytes) -> bytes:
    body = b"\x05READY" + _property(b"Socket-Type", socket_type) + _property(b"Identity", b"")
    return b"\x04" + bytes([len(body)]) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


def dial(endpoint: str) -> socket.socket:
    """A plain TCP connection to a `tcp://` endpoint."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), WAIT_S)


def type_at(endpoint: str, own_type: bytes = b"DEALER") -> bytes:
    """The type of the socket that is bound there."""
    with dial(endpoint) as line:
        line.sendall(GREETING)
        return _type_of(line, own_type)


def type_on(line: socket.socket, own_type: bytes = b"ROUTER") -> bytes:
    """The type of the socket that connected to us here."""
    line.settimeout(WAIT_S)
    line.sendall(GREETING)
    return _type_of(line, own_type)


def _type_of(line: socket.socket, own_type: bytes) -> bytes:
    greeting = _exactly(line, 64)
    assert greeting[0] == 0xFF, greeting
    assert greeting[12:32].rstrip(b"\0") == b"NULL", greeting
    line.sendall(ready(own_type))
    flags, size = _exactly(line, 2)
    assert flags == 0x04, f"no short command but {flags:#x}"
    command = _exactly(line, size)
    assert command.startswith(b"\x05READY"), command
    return _properties(command[6:])[b"Socket-Type"]


def _properties(data: bytes) -> dict[bytes, bytes]:
    found = {}
    while data:
        name_end = 1 + data[0]
        (length,) = struct.unpack(">I", data[name_end : name_end + 4])
        value_end = name_end + 4 + length
        found[data[1:name_end]] = data[name_end + 4 : value_end]
        data = data[value_end:]
    return found


def _exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = line.recv(count - len(data))
        assert more, f"the connection was closed after {data!r}"
        data += more
    return data
