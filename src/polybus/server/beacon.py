"""The beacon: a datagram a second by which nodes find the broker (`SHALOM 5246`, see `wire.dbp_udp`).

It says the port that DBP is really bound to, and goes only where that port can be reached:

- to loopback while the broker listens there.  Twice, because of two datagrams to one machine the first,
  to 127.0.0.1, reaches one listener, and the second, to loopback's broadcast address, all of them: nodes of
  one machine are often started together;
- to the broadcast address of every interface beyond it that the broker was bound to by its settings.

Each place gets its datagram from the address that the broker listens on, because a node takes the sender's
address for the broker's.  A place gets no more than one a second.  A datagram that cannot be sent is counted
and told once, and never stops anything.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, ip_address
from math import inf
from typing import Any, Final

from msgspec import Struct

from polybus.config import BeaconSettings
from polybus.server.interfaces import Interface, interfaces
from polybus.telemetry.logs import log
from polybus.wire.dbp_udp import write_beacon

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_NAME: Final = "lo"
# Reaches every listener of this machine and never leaves it.
LOOPBACK_ALL: Final = "127.255.255.255"
EVERYWHERE: Final = ("0.0.0.0", "::", "*")
# Interfaces come and go; a broker that is bound to all of them looks again after this time.
LOOK_AGAIN_S: Final = 30.0

TCP: Final = "tcp://"
OFF: Final = "off"


class Place(Struct, frozen=True):
    """Where datagrams go, and from which address; empty: whichever the system takes."""

    address: str
    source: str = ""


class Beacon:
    """Call `shine` when `next_at` has come."""

    def __init__(
        self,
        settings: BeaconSettings,
        endpoint: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[], list[Interface]] = interfaces,
        tell: Callable[[str], None] = lambda text: log(text, "warning"),
    ) -> None:
        """`endpoint` is where DBP is bound; empty if it is not."""
        self._settings = settings
        self._clock = clock
        self._look = look
        self._tell = tell
        self._host, self._port = _tcp_place(endpoint)
        self._sockets: dict[Place, socket.socket] = {}
        self._look_at = -inf
        # What has been told already.
        self._told: set[str] = set()
        self.sent = 0
        self.failed = 0
        self.why_not = self._why_not()
        self.next_at = inf if self.why_not else 0.0

    def shine(self) -> None:
        """Tell everybody, once."""
        now = self._clock()
        if now < self.next_at:
            return
        if now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_S
            self._open()
        message = write_beacon(self._port)
        for place, sender in self._sockets.items():
            try:
                sender.sendto(message, (place.address, self._settings.port))
                self.sent += 1
            except OSError as error:
                self._trouble(place, error)
        # Counted from after the last datagram: two are never closer to each other than this.
        self.next_at = self._clock() + self._settings.every_s

    def end(self) -> None:
        """Announce nothing any more: whoever came now would only be sent away."""
        self.next_at = inf
        self.why_not = self.why_not or "the broker is stopping"
        for sender in self._sockets.values():
            sender.close()
        self._sockets.clear()

    def addresses(self) -> list[str]:
        """Where datagrams for everybody go, each machine once."""
        found = [place.address for place in self._sockets]
        return [address for address in found if address != LOOPBACK] if LOOPBACK_ALL in found else found

    def facts(self) -> dict[str, Any]:
        """For `polybus status`."""
        return {
            "beacon": f"{OFF}: {self.why_not}" if self.why_not else self._where(),
            "beacons_sent": self.sent,
            "beacons_failed": self.failed,
        }

    def _where(self) -> str:
        places = ", ".join(sorted({place.address for place in self._sockets})) or "nowhere"
        return f"{places} port {self._settings.port}"

    def _why_not(self) -> str:
        if not self._settings.enabled:
            return "beacon.enabled is false"
        if not self._host:
            return "DBP does not listen on TCP"
        if self._host not in EVERYWHERE and not _is_v4(self._host):
            return f"DBP listens on {self._host}, and nodes look for IPv4 addresses"
        return ""

    def _open(self) -> None:
        """Sockets for the places as they are now; those that stay are kept."""
        try:
            found = self._look()
        except OSError as error:
            self._tell_once("list", f"interfaces cannot be listed, so the beacon stays on loopback: {error}")
            found = []
        wanted = places(self._host, self._settings.addresses, self._settings.interfaces, found)
        for place in self._sockets.keys() - wanted:
            self._sockets.pop(place).close()
        for place in wanted:
            if place not in self._sockets:
                try:
                    self._sockets[place] = _sender(place)
                except OSError as error:
                    self._trouble(place, error)
        if not wanted:
            self._tell_once(
                "nowhere",
                f"the beacon goes nowhere: no interface with the address {self._host} can broadcast; "
                "say where with beacon.addresses, or turn it off with beacon.enabled = false",
            )

    def _trouble(self, place: Place, error: OSError) -> None:
        self.failed += 1
        what = os.strerror(error.errno).lower() if error.errno else str(error)
        self._tell_once(
            place.address,
            f"the beacon to {place.address} port {self._settings.port} was not sent: {what}. It is tried "
            "again and counted in 'polybus status'; beacon.addresses says where else to send it",
        )

    def _tell_once(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._tell(text)


def places(
    host: str, addresses: Sequence[str], names: Sequence[str], found: Sequence[Interface]
) -> dict[Place, None]:
    """Where to announce a broker that listens on `host`, in order and without repetition."""
    everywhere = host in EVERYWHERE
    if addresses:
        source = "" if everywhere else host
        return dict.fromkeys(Place(address, source) for address in addresses)
    return dict.fromkeys(_places(host, everywhere, names, found))


def _places(host: str, everywhere: bool, names: Sequence[str], found: Sequence[Interface]) -> Iterator[Place]:
    loopback = not names or LOOPBACK_NAME in names if everywhere else ip_address(host).is_loopback
    if loopback:
        source = LOOPBACK if everywhere else host
        yield Place(LOOPBACK, source)
        if sys.platform.startswith("linux"):
            yield Place(LOOPBACK_ALL, source)
    for interface in found:
        bound = everywhere or interface.address == host
        # An address may be labelled `eth0:1`; it is still on eth0.
        named = not names or interface.name in names or interface.name.partition(":")[0] in names
        if bound and named and interface.broadcast:
            yield Place(interface.broadcast, interface.address)


def _sender(place: Place) -> socket.socket:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sender.setblocking(False)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.bind((place.source, 0))
    except OSError:
        sender.close()
        raise
    return sender


def _tcp_place(endpoint: str) -> tuple[str, int]:
    if not endpoint.startswith(TCP):
        return "", 0
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    return host.strip("[]"), int(port)


def _is_v4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
