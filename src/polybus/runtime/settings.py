"""What a worker can be told, and where its broker is if nobody says."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

from polybus.runtime.pool import Rules


class Settings(Struct, frozen=True):
    """All that `polybus worker` can be told."""

    app: str
    # Empty: all queues of the application.
    queues: Mapping[str, int | None] = {}
    broker: str | None = None
    dialect: str = "emqp"
    # Frame 0 of what an MDR worker sends; None: what the application says, else the environment.
    tag: str | None = None
    rules: Rules = Rules()
    grace_s: float = 30.0
    max_memory: int = 0
    watch: bool = False
    prefix: bool = False


def address_beside(address: str | None, dialect: str) -> str | None:
    """The broker of the application's clients, with the port of its workers; None leaves the choice open."""
    if address is None or os.environ.get(f"POLYBUS_{dialect.upper()}_WORKER"):
        return None
    place = address.removeprefix("tcp://")
    if "://" in place or place.isdigit():
        return None
    host, colon, port = place.rpartition(":")
    return host if colon and port.isdigit() and host else place
