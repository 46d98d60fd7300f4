"""Free ports that stay free while a server is started again.

Those that the system offers will not do: it lends them to outgoing connections too, also to those of the very
peers that look for the server while it is away.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterable
from typing import Final

from polybus.cli.port_range import RANGE, SYSCTL
from polybus.errors import ConfigError

LOWEST: Final = 15_000
# What Linux begins with unless told otherwise.
LENT_FROM: Final = 32_768
TRIES: Final = 1000


def steady_ports(names: Iterable[str], host: str = "127.0.0.1") -> dict[str, int]:
    """A free port for each name, below those that the system lends."""
    highest = LENT_FROM
    with contextlib.suppress(OSError, ValueError):
        highest = max(int((SYSCTL / RANGE).read_text().split()[0]), LOWEST + TRIES)
    chance = random.SystemRandom()
    found: dict[str, int] = {}
    for name in names:
        for _ in range(TRIES):
            port = chance.randrange(LOWEST, highest)
            if port not in found.values() and _is_free(host, port):
                found[name] = port
                break
        else:
            raise ConfigError(f"no free port from {LOWEST} to {highest} on {host} after {TRIES} tries")
    return found


def _is_free(host: str, port: int) -> bool:
    """Whether nobody listens there, nor receives datagrams."""
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as probe:
                probe.bind((host, port))
    except OSError:
        return False
    return True
