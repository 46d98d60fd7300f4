"""Deadlines in coarse buckets.

Nearly every request is answered long before its deadline, so a deadline must be cheap to set and
cheap to withdraw: a heap would keep millions of dead entries.  A bucket is one slot of 1/20 s
and a dict used as an ordered set; only the slot numbers are in a heap.  Items are compared by
identity and remember the slot they are in (`slot`), 0 meaning none.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import Final, Generic, Protocol, TypeVar

SLOTS_PER_S: Final = 20
# Numbers of empty slots that the heap may hold before it is made anew: deadlines a day ahead that are
# withdrawn after a millisecond must not pile up.
NUMBERS_KEPT: Final = 1024


class Timed(Protocol):
    slot: int

    def __hash__(self) -> int: ...


T = TypeVar("T", bound=Timed)


class Timers(Generic[T]):
    def __init__(self) -> None:
        self._slots: dict[int, dict[T, None]] = {}
        self._order: list[int] = []
        # No item is due before this; infinity if there is none.
        self.soonest = inf

    def set(self, item: T, at: float) -> None:
        """Make `item` due at `at`, never earlier and at most one slot later. It must have no deadline yet."""
        # A deadline that was over before the clock began has a slot like others: 0 means none.
        slot = int(at * SLOTS_PER_S) + 1 or 1
        item.slot = slot
        bucket = self._slots.get(slot)
        if bucket is None:
            self._slots[slot] = {item: None}
            heapq.heappush(self._order, slot)
            self.soonest = self._order[0] / SLOTS_PER_S
        else:
            bucket[item] = None

    def clear(self, item: T) -> None:
        """Withdraw the deadline of `item`, if it has one."""
        bucket = self._slots.get(item.slot)
        if bucket is not None:
            bucket.pop(item, None)
            if not bucket:
                self._forget(item.slot)
        item.slot = 0

    def due(self, now: float) -> list[T]:
        """The items whose deadline has passed, which no longer have one."""
        reached = int(now * SLOTS_PER_S)
        items: list[T] = []
        while self._order and self._order[0] <= reached:
            for item in self._slots.pop(heapq.heappop(self._order), ()):
                item.slot = 0
                items.append(item)
        self.soonest = self._order[0] / SLOTS_PER_S if self._order else inf
        return items

    def next_at(self) -> float | None:
        """When to look again: the start of the earliest slot that holds anything."""
        while self._order and self._order[0] not in self._slots:
            heapq.heappop(self._order)
        return self._order[0] / SLOTS_PER_S if self._order else None

    def _forget(self, slot: int) -> None:
        """Let an empty slot go. Its number stays in the heap, until too many of them do."""
        del self._slots[slot]
        if len(self._order) > 2 * len(self._slots) + NUMBERS_KEPT:
            self._order = list(self._slots)
            heapq.heapify(self._order)
