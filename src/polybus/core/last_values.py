"""The newest message of every topic.

Who comes late gets them at once, and the live stream after them (`server.subscribers`); who only wants to
know asks the service `lvc`.  There are limits to their number and their bytes; those that were updated the
longest time ago leave first, and are counted.

They survive a restart, but nobody waits for that: which topics changed is noted, and now and then the newest
value of each goes to the ledger (`note`), however often it changed in between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from polybus.core.actions import Fanout
from polybus.core.ledger import Unvalued, Valued

if TYPE_CHECKING:
    from polybus.core.bus import Bus

COUNT: Final = 100_000
BYTES: Final = 256 * 1024 * 1024
# What a value costs beside its bytes, and how often its bytes are there: as they came, and as subscribers
# get them.
OVERHEAD_BYTES: Final = 500
COPIES: Final = 2
# How often what changed is noted, and how many topics at most: more would keep the disk and its thread busy
# with values that the next second replaces.
NOTE_EVERY_S: Final = 1.0
NOTED_AT_ONCE: Final = 5_000
# So many new topics are put in their places one by one; for more it is cheaper to sort all of them.
FEW: Final = 64


class LastValues:
    """Values by topic, the one that was updated the longest time ago first."""

    def __init__(self, count: int = COUNT, bytes_: int = BYTES, durable: bool = True) -> None:
        # 0 values: nothing is kept.
        self.count = count
        self.max_bytes = bytes_
        self.durable = durable
        self.values: OrderedDict[bytes, Fanout] = OrderedDict()
        self.held_bytes = 0
        # How many were given up because of the limits.
        self.evicted = 0
        # Topics that are not on disk as they are here, in the order in which they changed.
        self.changed: dict[bytes, None] = {}
        self.noted_at = 0.0
        # All topics in order, but for those that are new, and with some that are gone.
        self._sorted: list[bytes] = []
        self._new: list[bytes] = []
        self._gone: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.values)

    def get(self, topic: bytes) -> Fanout | None:
        return self.values.get(topic)

    def put(self, value: Fanout) -> None:
        """This is the newest value of its topic now."""
        topic = value.topic
        values = self.values
        old = values.get(topic)
        size = value.size = cost(value)
        if size > self.max_bytes or not self.count:
            # An older value would be a wrong one.
            if old is not None:
                self.remove(topic)
                self.evicted += 1
            return
        if old is None:
            if topic in self._gone:
                self._gone.discard(topic)
            else:
                self._new.append(topic)
            values[topic] = value
            self.held_bytes += size
        else:
            self.held_bytes += size - old.size
            values[topic] = value
            values.move_to_end(topic)
        if self.durable:
            self.changed[topic] = None
        if self.held_bytes > self.max_bytes or len(values) > self.count:
            self._make_room()

    def _make_room(self) -> None:
        while self.held_bytes > self.max_bytes or len(self.values) > self.count:
            self.remove(next(iter(self.values)))
            self.evicted += 1

    def remove(self, topic: bytes) -> bool:
        """Forget a topic, here and on disk. False if there is no such topic."""
        old = self.values.pop(topic, None)
        if old is None:
            return False
        self.held_bytes -= old.size
        self._gone.add(topic)
        # With a disk that is away for long, names that came and went would fill the memory: then some that
        # left are found again after a restart, as old as they are, and leave again.
        if self.durable:
            if len(self.changed) <= 2 * self.count:
                self.changed[topic] = None
            else:
                self.changed.pop(topic, None)
        return True

    def change(self, count: int, bytes_: int, durable: bool) -> None:
        """Let other limits hold from now on."""
        if durable != self.durable or not count:
            # What was on disk under the old rule is written anew, or is to be removed there.
            self.changed.update(dict.fromkeys(self.values))
        self.count, self.max_bytes, self.durable = count, bytes_, durable
        self._make_room()

    # -- looking up -------------------------------------------------------------------------------

    def topics(self, prefix: bytes) -> list[bytes]:
        """All topics that begin so, in order."""
        self._put_in_order()
        found, gone = self._sorted, self._gone
        topics = islice(found, bisect_left(found, prefix), _end(found, prefix))
        return [topic for topic in topics if topic not in gone] if gone else list(topics)

    def matching(self, prefix: bytes, but: Sequence[bytes] = ()) -> list[Fanout]:
        """The values of all topics that begin so, but not those that begin like one of `but`, in order."""
        values = self.values
        topics = self.topics(prefix)
        if but:
            known = {topic for other in but for topic in self.topics(other)}
            topics = [topic for topic in topics if topic not in known]
        return [values[topic] for topic in topics]

    def _put_in_order(self) -> None:
        if len(self._gone) > FEW + len(self.values) // 2:
            self._gone.clear()
            self._new.clear()
            self._sorted = sorted(self.values)
        elif len(self._new) > FEW:
            self._sorted += self._new
            self._sorted.sort()
            self._new.clear()
        elif self._new:
            for topic in self._new:
                insort(self._sorted, topic)
            self._new.clear()

    # -- what survives ----------------------------------------------------------------------------

    def note(self, bus: Bus, most: int) -> None:
        """Have so many of the changes written down, those that have waited longest first."""
        for topic in list(islice(self.changed, most)):
            self.note_one(bus, topic)

    def note_one(self, bus: Bus, topic: bytes) -> None:
        self.changed.pop(topic, None)
        value = self.values.get(topic) if self.durable else None
        if value is None:
            bus.lines.append(Unvalued(topic))
        else:
            bus.lines.append(Valued(topic, [bytes(frame) for frame in value.body], value.at))

    def restore(self, entries: list[Valued]) -> None:
        """Take over what was on disk; what has no room here any more is removed there."""
        for entry in sorted(entries, key=lambda entry: entry.at):
            self.put(Fanout(entry.topic, list(entry.body), entry.at))
        kept = self.values if self.durable else {}
        self.changed = dict.fromkeys(entry.topic for entry in entries if entry.topic not in kept)
        self.evicted = 0


def note_due(bus: Bus, now: float) -> None:
    """Called with every tick: what changed goes to the ledger, but not too often and not too much at once."""
    last = bus.last
    # Without a disk they wait here, where the next value of a topic takes the place of the last.
    if last.changed and now - last.noted_at >= NOTE_EVERY_S and not bus.store_trouble:
        last.noted_at = now
        last.note(bus, NOTED_AT_ONCE)


def note_all(bus: Bus) -> None:
    """The broker stops: nothing is to be lost that could be written."""
    if not bus.store_trouble:
        bus.last.note(bus, len(bus.last.changed))


def cost(value: Fanout) -> int:
    size = len(value.topic)
    for frame in value.body:
        size += len(frame)
    return COPIES * size + OVERHEAD_BYTES


def _end(topics: list[bytes], prefix: bytes) -> int:
    """Where the topics end that begin with `prefix`."""
    stem = prefix.rstrip(b"\xff")
    return bisect_left(topics, stem[:-1] + bytes((stem[-1] + 1,))) if stem else len(topics)
