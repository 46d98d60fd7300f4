"""The IPv4 addresses of this machine and where a broadcast from each of them goes.

Asked of the kernel by ioctl, because the standard library does not know.  An interface may have several
addresses: the kernel tells them apart by the address that stands in the question.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from msgspec import Struct

# <linux/sockios.h>, <linux/if.h>
SIOCGIFCONF: Final = 0x8912
SIOCGIFFLAGS: Final = 0x8913
SIOCGIFBRDADDR: Final = 0x8919
SIOCGIFNETMASK: Final = 0x891B
IFF_UP: Final = 0x1
IFF_BROADCAST: Final = 0x2
# struct ifreq: a name, then a socket address (family, port, address) in a union of 24 bytes.
NAME_BYTES: Final = 16
REQUEST_BYTES: Final = 40
ADDRESS_AT: Final = NAME_BYTES + 4
# More addresses than this are not looked at; each would cost a datagram a second.
MOST: Final = 256


class Interface(Struct, frozen=True):
    name: str
    address: str
    # Empty if nothing can be broadcast from there: loopback, point to point, down.
    broadcast: str


def interfaces() -> list[Interface]:
    """All addresses, as they are now; empty where the system is not asked in this way."""
    if not sys.platform.startswith("linux"):
        return []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        fd = asker.fileno()
        room = array.array("B", bytes(MOST * REQUEST_BYTES))
        place, size = room.buffer_info()
        answer = fcntl.ioctl(fd, SIOCGIFCONF, struct.pack("iP", size, place))
        filled = struct.unpack("iP", answer)[0]
        requests = [bytes(room[at : at + REQUEST_BYTES]) for at in range(0, filled, REQUEST_BYTES)]
        return [_interface(fd, request) for request in requests]


def _interface(fd: int, request: bytes) -> Interface:
    name = request[:NAME_BYTES].rstrip(b"\0").decode(errors="replace")
    address = _address(request)
    return Interface(name, address, _broadcast(fd, request, address))


def _broadcast(fd: int, request: bytes, address: str) -> str:
    try:
        (flags,) = struct.unpack_from("H", fcntl.ioctl(fd, SIOCGIFFLAGS, request), NAME_BYTES)
        if not flags & IFF_UP or not flags & IFF_BROADCAST:
            return ""
        told = _address(fcntl.ioctl(fd, SIOCGIFBRDADDR, request))
        mask = _address(fcntl.ioctl(fd, SIOCGIFNETMASK, request))
    except OSError:
        # It went away meanwhile.
        return ""
    if told not in ("0.0.0.0", address):
        return told
    # Nobody set one. The kernel takes the last address of the network for it all the same.
    network = IPv4Network(f"{address}/{mask}", strict=False)
    return str(network.broadcast_address) if network.prefixlen < 31 else ""


def _address(request: bytes) -> str:
    return str(IPv4Address(request[ADDRESS_AT : ADDRESS_AT + 4]))
