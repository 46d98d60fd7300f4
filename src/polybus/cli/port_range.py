"""Ports that the system may give to somebody else while the broker restarts.

An outgoing connection gets a port from a range of the system.  If a port that the broker listens on lies in
it, any program may have it at the moment in which the broker comes back.  Reserved ports are not given away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

SYSCTL: Final = Path("/proc/sys/net/ipv4")
RANGE: Final = "ip_local_port_range"
RESERVED: Final = "ip_local_reserved_ports"
# Ports of one dialect lie close together; one range is easier to read and to type.
JOINED: Final = 8


def given_away(ports: Iterable[int], folder: Path = SYSCTL) -> list[int]:
    """Those of the ports that the system gives to outgoing connections, in order."""
    try:
        low, high = map(int, (folder / RANGE).read_text().split())
        reserved = _read_ranges((folder / RESERVED).read_text())
    except (OSError, ValueError):
        # Not Linux, or a container that hides it: nothing is known.
        return []
    return sorted({port for port in ports if low <= port <= high and port not in reserved})


def reserving(ports: Collection[int], folder: Path = SYSCTL) -> str:
    """The command that reserves the ports and keeps those that are reserved already."""
    try:
        before = (folder / RESERVED).read_text().strip()
    except OSError:
        before = ""
    wanted = ",".join(filter(None, (before, write_ranges(ports, JOINED))))
    return f"sysctl -w net.ipv4.{RESERVED}={wanted}"


def write_ranges(ports: Collection[int], gap: int = 1) -> str:
    """`1-3,7`, as the kernel writes them; ports that are no more than `gap` apart become one range."""
    pieces: list[list[int]] = []
    for port in sorted(set(ports)):
        if pieces and port - pieces[-1][1] <= gap:
            pieces[-1][1] = port
        else:
            pieces.append([port, port])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in pieces)


def _read_ranges(text: str) -> set[int]:
    found: set[int] = set()
    for piece in filter(None, text.strip().split(",")):
        low, _, high = piece.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found
