"""The UDP sockets of a DBP worker: its heartbeats to the broker, and the broker's own.

One socket is connected to the broker's port for datagrams, so that only what comes from there is read.
Another one hears the broker's broadcasts, if its port can be shared.  Both are read without waiting.  Nothing
here can fail: what cannot be opened or sent is a missed heartbeat, after which heartbeats go over TCP.
"""

from __future__ import annotations

import contextlib
import socket
from ipaddress import IPv4Address
from typing import Final

from polybus.wire.dbp_udp import MAX_BEAT_BYTES

# A broker sends a few in an interval; what is more waits for the next look.
AT_ONCE: Final = 64
LOCALHOST: Final = "localhost"
LOOPBACK: Final = "127.0.0.1"
# Any port will do to find out from which address this machine would send.
SOME_PORT: Final = 9


class Packets:
    """The sockets of one session; `host` is where its broker is."""

    def __init__(self, host: str) -> None:
        self._host = LOOPBACK if host == LOCALHOST else host
        # The address that datagrams to the broker leave from; empty if there can be none.
        self.ip = _own_ip(self._host)
        self._ports = (0, 0)
        self._sockets: list[socket.socket] = []

    def agree(self, port: int, broadcast_port: int) -> None:
        """Use these ports of the broker from now on; 0 means none."""
        if (port, broadcast_port) == self._ports:
            return
        self.close()
        self._ports = (port, broadcast_port)
        if port and self.ip:
            with contextlib.suppress(OSError):
                self._sockets.append(_connected(self._host, port))
            if broadcast_port:
                with contextlib.suppress(OSError):
                    self._sockets.append(_shared(broadcast_port))

    def send(self, packets: list[bytes]) -> None:
        for packet in packets:
            # Somebody may have closed the port; that is found out by silence.
            with contextlib.suppress(OSError, IndexError):
                self._sockets[0].send(packet)

    def receive(self) -> list[bytes]:
        """What the broker has sent."""
        return [packet for one in self._sockets for packet in self._read(one)]

    def _read(self, one: socket.socket) -> list[bytes]:
        packets = []
        with contextlib.suppress(OSError):
            for _ in range(AT_ONCE):
                packet, source = one.recvfrom(MAX_BEAT_BYTES + 1)
                # Several brokers may broadcast; and anybody else may, too.
                if source == (self._host, self._ports[0]):
                    packets.append(packet)
        return packets

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()
        self._ports = (0, 0)


def _own_ip(host: str) -> str:
    try:
        IPv4Address(host)
        with _connected(host, SOME_PORT) as asker:
            return str(asker.getsockname()[0])
    except (OSError, ValueError):
        # A host name is not looked up, which would hold everything up; and IPv6 is not broadcast.
        return ""


def _connected(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.connect((host, port))
    except OSError:
        made.close()
        raise
    return made


def _shared(port: int) -> socket.socket:
    """A socket that hears what is broadcast to a port, as others on this machine do."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("", port))
    except OSError:
        made.close()
        raise
    return made
