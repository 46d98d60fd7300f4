"""Heartbeats in datagrams: the one UDP socket of a broker.

It belongs to the loop like any other: the pump says when it can be read, then everything that is there is
read, within a bound, and nothing ever waits.  What a datagram means is the core's business
(`core/leases.py`), and so is where ours go.  Nothing is sent in answer to a datagram.

The heartbeats for everybody go where the beacon goes.  They leave from this socket: a node knows its broker
by the address and the port that they come from, because several brokers may broadcast on one network.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from ipaddress import ip_address
from math import inf
from typing import Any, Final

from polybus.config import Settings, endpoint
from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.errors import ConfigError, RemoteProtocolError
from polybus.server.effects import Message
from polybus.server.interfaces import interfaces
from polybus.wire.dbp_udp import MAX_BEAT_BYTES, read_beat_name, write_beat_packet, write_end_packet

SETTING: Final = "dbp.udp"
# Datagrams read in one turn: what comes faster than this waits in the kernel, and what does not fit there is
# lost, which costs nobody the lease.
AT_ONCE: Final = 2000
# Room in the kernel for the beats of a few thousand nodes that come at once; it may give us less.
BUFFER_BYTES: Final = 8 * 1024 * 1024
# A network gets no more than one heartbeat in this time, whatever nodes agree to: everybody there gets it.
# Nodes that want them faster get their own (`core.leases`).
NETWORK_EVERY_S: Final = 1.0


class Datagrams:
    """`close` ends it. Without the setting it is deaf and mute."""

    def __init__(self, bus: Bus, settings: Settings, wall: Callable[[], float]) -> None:
        self._bus = bus
        self._wall = wall
        self._name = settings.broker.name.encode()
        # Where heartbeats for everybody go now.
        self.addresses: Callable[[], list[str]] = list
        self._broadcast_port = settings.dbp.broadcast_port if settings.beacon.enabled else 0
        self._network_at = -inf
        # Datagrams that were no heartbeats, ours that the system did not take, and those to everybody.
        self.invalid = 0
        self.unsent = 0
        self.broadcast = 0
        self._socket: socket.socket | None = None
        self.endpoint = ""
        place = endpoint(settings, SETTING) or ""
        # Without the port for registrations there is nobody to beat, and through a file no datagrams go.
        if place.startswith(("udp://", "tcp://")) and endpoint(settings, "dbp.port") is not None:
            self._socket = _bound(place)
            self.endpoint = _endpoint_of(self._socket)
            self._recvfrom = self._socket.recvfrom
            self._sendto = self._socket.sendto

    @property
    def fds(self) -> list[int]:
        return [] if self._socket is None else [self._socket.fileno()]

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2]) if self.endpoint else 0

    @property
    def broadcast_port(self) -> int:
        """Where nodes listen for heartbeats; 0 if none are broadcast."""
        if self._socket is None or self._socket.family != socket.AF_INET:
            return 0
        return self._broadcast_port

    @property
    def handlers(self) -> dict[type, Callable[[Any], None]]:
        return {act.Beckon: self._beckon, act.BroadcastBeat: self._broadcast}

    def facts(self) -> dict[str, Any]:
        return {
            "datagrams_invalid": self.invalid,
            "datagrams_unsent": self.unsent,
            "datagrams_broadcast": self.broadcast,
        }

    def receive(self, link: int, frames: Message, now: float) -> None:
        """The socket can be read."""
        handle, recvfrom, pulse = self._bus.handle, self._recvfrom, events.Pulse
        try:
            for _ in range(AT_ONCE):
                packet, source = recvfrom(MAX_BEAT_BYTES + 1)
                try:
                    name = read_beat_name(packet)
                except RemoteProtocolError:
                    self.invalid += 1
                else:
                    handle(pulse(name, source), now)
        except BlockingIOError:
            return
        except OSError:
            # Somebody closed a port that we sent to; the next turn reads on.
            return

    def _beckon(self, action: act.Beckon) -> None:
        now_s = self._wall()
        packet = write_end_packet(now_s) if action.ended else write_beat_packet(self._name, now_s)
        try:
            self._sendto(packet, action.to)
        except OSError:
            # Full, or there is no way: the next one is due soon.
            self.unsent += 1

    def _broadcast(self, action: act.BroadcastBeat) -> None:
        now_s = self._wall()
        # The time of day may be set back; then it is the next moment that counts.
        is_network_due = not 0 <= now_s - self._network_at < NETWORK_EVERY_S
        packet = write_beat_packet(self._name, now_s)
        for address in self.addresses():
            if not _is_loopback(address):
                if not is_network_due:
                    continue
                self._network_at = now_s
            try:
                self._sendto(packet, (address, self._broadcast_port))
                self.broadcast += 1
            except OSError:
                self.unsent += 1

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        # A host name.
        return False


def _bound(place: str) -> socket.socket:
    host, _, port = place.partition("://")[2].rpartition(":")
    host = host.strip("[]")
    # libzmq takes names of interfaces, the system does not.
    host = next((one.address for one in interfaces() if one.name == host), host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_DGRAM)
    try:
        found.setblocking(False)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        found.bind(("" if host == "*" else host, 0 if port == "*" else int(port)))
    except (OSError, ValueError) as error:
        found.close()
        raise ConfigError(
            f"cannot take datagrams on {place}: {error}. Set {SETTING} to another port, or to -1 for none; "
            "then heartbeats go over TCP only."
        ) from None
    return found


def _endpoint_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"udp://[{host}]:{port}" if ":" in host else f"udp://{host}:{port}"
