"""Ports for servers that are stopped and started again while others connect and reconnect."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from zlib import crc32

# Below the ports that the system lends (Linux: from 32768 on), and below those of `polybus up`, which knows
# nothing of the parts.
LOWEST, HIGHEST = 10_000, 15_000
TRIES = 1000
# Test processes that run side by side choose from different parts: a port that is free when it is chosen is
# still free when its server begins. Where a run begins is chance: another one on this machine has
# other parts, mostly.
PARTS = 20


def steady_ports(names: Iterable[str]) -> dict[str, int]:
    """A free port for each name that the system does not give to somebody else in between.

    The system's own free ports will not do: it hands them to outgoing connections too, so one may be
    gone when its server comes back.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    process = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    size = (HIGHEST - LOWEST) // PARTS
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
