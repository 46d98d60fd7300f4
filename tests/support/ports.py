"""Ports for servers that are stopped and started again while others connect and reconnect."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

# Below the ports that the system lends (Linux: from 32768 on), and below those of `polybus up`, which knows
# nothing of the parts.
LOWEST, HIGHEST = 10_000, 15_000
TRIES = 1000
# Each process that runs tests holds a part for as long as it lives: a port that is free when it is chosen is
# still free when its server begins, and when that server comes back.
PARTS = 20
SIZE = (HIGHEST - LOWEST) // PARTS


def steady_ports(names: Iterable[str]) -> dict[str, int]:
    """A free port for each name that the system does not give to somebody else in between.

    The system's own free ports will not do: it hands them to outgoing connections too, so one may be
    gone when its server comes back.
    """
    lowest = LOWEST + SIZE * held_part()
    found: dict[str, int] = {}
    for name in names:
        for _ in range(TRIES):
            port = random.SystemRandom().randrange(lowest, lowest + SIZE)
            if port not in found.values() and is_free(port):
                found[name] = port
                break
        else:
            raise RuntimeError(f"no free port from {lowest} to {lowest + SIZE} after {TRIES} tries")
    return found


@cache
def held_part() -> int:
    """The part of this process: the lock is the system's, so it ends with the process however that ends."""
    folder = Path(tempfile.gettempdir()) / f"polybus-test-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for part in range(PARTS):
        # Open for as long as the process lives.
        lock = os.open(folder / str(part), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return part
    raise RuntimeError(f"{PARTS} processes that run tests hold all ports from {LOWEST} to {HIGHEST}: end one")


def is_free(port: int) -> bool:
    """For connections and for datagrams: a broker takes both under one number."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
