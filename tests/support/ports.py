"""Ports for servers that are stopped and started again while others connect and reconnect."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

LOWEST = 15_000
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES = 1000
# Test processes that run side by side choose from different parts: a port that is free when it is chosen is
# still free when its server begins. Runs of somebody else on this machine begin at another part, most likely.
PARTS = 64


def steady_ports(names: Iterable[str]) -> dict[str, int]:
    """A free port for each name that the system does not give to somebody else in between.

    The system's own free ports will not do: it hands them to outgoing connections too, so one may be
    gone when its server comes back.
    """
    highest = int(RANGE_FILE.read_text().split()[0]) if RANGE_FILE.exists() else 32_768
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    process = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    size = (highest - LOWEST) // PARTS
    lowest = LOWEST + size * ((crc32(run.encode()) + int(process)) % PARTS)
    highest = lowest + size
    found: dict[str, int] = {}
    for name in names:
        for _ in range(TRIES):
            port = random.SystemRandom().randrange(lowest, highest)
            if port not in found.values() and _is_free(port):
                found[name] = port
                break
        else:
            raise RuntimeError(f"no free port from {lowest} to {highest} after {TRIES} tries")
    return found


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
