"""Peers whose conversation has ended: they are sent nothing more until they begin a new one."""

from __future__ import annotations

from typing import Final

from polybus.core.model import Address

# Peers are forgotten after so many others: whoever is forgotten is told once more that it has ended.
MAX_ENDED: Final = 10_000


class Ended:
    """The last peers that sent DISCONNECT or were sent it."""

    def __init__(self, most: int = MAX_ENDED) -> None:
        self._peers: dict[Address, None] = {}
        self._most = most

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    def add(self, peer: Address) -> None:
        self._peers[peer] = None
        if len(self._peers) > self._most:
            del self._peers[next(iter(self._peers))]

    def discard(self, peer: Address) -> None:
        self._peers.pop(peer, None)
