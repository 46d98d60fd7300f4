"""Which services can be reached through which neighbour: a path vector, as between routers.

Every broker tells its neighbours what it can reach, each service with the list of brokers on the way (the
speaker first).  A path that has the listener in it is not told to it (split horizon) and not taken by it, so
nothing goes in circles; of several paths the shortest is used, of equal ones the first by name, and only
what is used is told.

Neighbours that offer a service themselves share its requests.  Further away there is one path: were two
used, one of them could lead back over the broker that a request came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

Path = tuple[str, ...]
# Services that one neighbour may name: beyond it they are ignored and counted.
SERVICES: Final = 10_000


class Neighbour:
    """What is known from one neighbour, and what it was told."""

    __slots__ = ("dirty", "heard", "ignored", "told")

    def __init__(self) -> None:
        self.heard: dict[bytes, Path] = {}
        self.told: dict[bytes, Path] = {}
        # Services about which it may have to be told something.
        self.dirty: dict[bytes, None] = {}
        # How many of its services there was no room for.
        self.ignored = 0


class Routes:
    """The table of one broker."""

    def __init__(
        self,
        name: str,
        max_hops: int = 8,
        may_leave: Callable[[bytes], bool] = lambda service: True,
        may_enter: Callable[[bytes], bool] = lambda service: True,
    ) -> None:
        self.name = name
        self.max_hops = max_hops
        self._may_leave = may_leave
        self._may_enter = may_enter
        # Services that workers of our own offer.
        self.local: set[bytes] = set()
        self.neighbours: dict[str, Neighbour] = {}
        # A broker that stops offers nothing.
        self.closed = False

    # -- neighbours -------------------------------------------------------------------------------

    def up(self, name: str) -> Neighbour:
        """A new neighbour, which knows nothing yet."""
        neighbour = self.neighbours[name] = Neighbour()
        neighbour.dirty = dict.fromkeys(self.known())
        return neighbour

    def down(self, name: str) -> list[bytes]:
        """A neighbour is gone. The services that were reached over it."""
        lost = self.neighbours.pop(name, None)
        if lost is None:
            return []
        for service in lost.heard:
            self.touch(service)
        return list(lost.heard)

    def known(self) -> list[bytes]:
        """All services of which anything is known."""
        names = dict.fromkeys(sorted(self.local))
        for neighbour in self.neighbours.values():
            names.update(dict.fromkeys(neighbour.heard))
        return list(names)

    # -- what changes -----------------------------------------------------------------------------

    def offer(self, service: bytes, offered: bool) -> None:
        """Workers of our own offer a service, or no longer do."""
        if offered != (service in self.local):
            (self.local.add if offered else self.local.discard)(service)
            self.touch(service)

    def hear(
        self, name: str, offers: Mapping[bytes, Path], withdrawn: Iterable[bytes] = (), full: bool = False
    ) -> list[bytes]:
        """What a neighbour says. The services for which that changes something."""
        neighbour = self.neighbours[name]
        heard = neighbour.heard
        gone = [*withdrawn, *(service for service in heard if service not in offers)] if full else withdrawn
        changed: dict[bytes, None] = {}
        for service in gone:
            if heard.pop(service, None) is not None:
                changed[service] = None
        for service, path in offers.items():
            if self._is_usable(name, service, path):
                if service not in heard and len(heard) >= SERVICES:
                    neighbour.ignored += 1
                elif heard.get(service) != path:
                    heard[service] = path
                    changed[service] = None
            elif heard.pop(service, None) is not None:
                # What it says now takes the place of what it said before.
                changed[service] = None
        for service in changed:
            self.touch(service)
        return list(changed)

    def _is_usable(self, name: str, service: bytes, path: Path) -> bool:
        return (
            bool(path)
            and path[0] == name
            and len(path) <= self.max_hops
            and self.name not in path
            and len(set(path)) == len(path)
            and self._may_enter(service)
        )

    def close(self) -> None:
        """Offer nothing any more."""
        self.closed = True
        for neighbour in self.neighbours.values():
            neighbour.dirty.update(dict.fromkeys(neighbour.told))

    def touch(self, service: bytes) -> None:
        for neighbour in self.neighbours.values():
            neighbour.dirty[service] = None

    def retell(self, name: str, service: bytes) -> None:
        """A neighbour has struck a service from its list without being told to: if it is still true, it is
        told again."""
        neighbour = self.neighbours.get(name)
        if neighbour is not None:
            neighbour.told.pop(service, None)
            neighbour.dirty[service] = None

    # -- what follows -----------------------------------------------------------------------------

    def best(self, service: bytes) -> Path | None:
        """The path that is used; empty if the service is our own, None if it cannot be reached."""
        if service in self.local:
            return ()
        paths = [n.heard[service] for n in self.neighbours.values() if service in n.heard]
        return min(paths, key=lambda path: (len(path), path), default=None)

    def through(self, service: bytes) -> list[str]:
        """The neighbours that get requests for a service."""
        path = self.best(service)
        if not path:
            return []
        if len(path) > 1:
            return [path[0]]
        return sorted(name for name, n in self.neighbours.items() if len(n.heard.get(service, ())) == 1)

    def updates(self, name: str) -> tuple[dict[bytes, Path], list[bytes]]:
        """What a neighbour has to be told: offers, and what is withdrawn. It counts as told."""
        neighbour = self.neighbours[name]
        offers: dict[bytes, Path] = {}
        withdrawn: list[bytes] = []
        for service in neighbour.dirty:
            path = self._told_to(name, service)
            before = neighbour.told.get(service)
            if path == before:
                continue
            if path is None:
                withdrawn.append(service)
                del neighbour.told[service]
            else:
                offers[service] = neighbour.told[service] = path
        neighbour.dirty = {}
        return offers, withdrawn

    def _told_to(self, name: str, service: bytes) -> Path | None:
        if self.closed or not self._may_leave(service):
            return None
        path = self.best(service)
        if path is None or name in path or len(path) >= self.max_hops:
            return None
        return (self.name, *path)
