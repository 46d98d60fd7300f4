"""Who waits for the outcome of which job.

A job may run for days, and those who wait for it come and go: who says goodbye or withdraws its question is
forgotten, and if there are too many, the one who has waited longest gives way: it is most likely gone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from polybus.core.model import Address


class Waiter(Struct, frozen=True):
    """Somebody who wants to know how a job ends."""

    client: Address
    voice: Any
    service: bytes
    request_id: bytes


# The job, the client, its own id for the question, and a number for those who have no ids.
_Key = tuple[bytes, "Address", bytes, int]


class Waiters:
    def __init__(self) -> None:
        # In the order in which they came. By job for everybody to look: nearly always nobody waits.
        self._all: OrderedDict[_Key, Waiter] = OrderedDict()
        self.by_job: dict[bytes, dict[_Key, None]] = {}
        self._by_client: dict[Address, dict[bytes, dict[_Key, None]]] = {}
        self._counts: dict[Address, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, job_id: bytes, waiter: Waiter) -> None:
        """Somebody waits. The same question again is the same waiter; the newest way to answer it counts."""
        client, request_id = waiter.client, waiter.request_id
        if not request_id:
            self._number += 1
        key = (job_id, client, request_id, 0 if request_id else self._number)
        if key not in self._all:
            self.by_job.setdefault(job_id, {})[key] = None
            self._by_client.setdefault(client, {}).setdefault(request_id, {})[key] = None
            self._counts[client] = self._counts.get(client, 0) + 1
        self._all[key] = waiter

    def of(self, job_id: bytes) -> list[Waiter]:
        return [self._all[key] for key in self.by_job.get(job_id, ())]

    def count_of(self, client: Address) -> int:
        return self._counts.get(client, 0)

    def take(self, job_id: bytes) -> list[Waiter]:
        """All who wait for a job, which they do no longer."""
        return [self._drop(key) for key in list(self.by_job.get(job_id, ()))]

    def take_oldest(self) -> Waiter:
        return self._drop(next(iter(self._all)))

    def forget(self, client: Address, request_id: bytes) -> None:
        """A client waits no longer for what it asked with this id."""
        for key in list(self._by_client.get(client, {}).get(request_id, ())):
            self._drop(key)

    def forget_all(self, client: Address) -> None:
        """A client waits for nothing any more."""
        for request_id in list(self._by_client.get(client, ())):
            self.forget(client, request_id)

    def _drop(self, key: _Key) -> Waiter:
        job_id, client, request_id, _ = key
        _discard(self.by_job, job_id, key)
        _discard(self._by_client[client], request_id, key)
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client], self._by_client[client]
        return self._all.pop(key)


def _discard(table: dict[bytes, dict[_Key, None]], name: bytes, key: _Key) -> None:
    keys = table[name]
    del keys[key]
    if not keys:
        del table[name]
