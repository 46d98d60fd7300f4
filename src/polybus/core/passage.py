"""Publications between brokers: which may cross, and which have been here before.

A publication is named by the life of the broker where it was made and its number there.  Of every such
origin a window of numbers is remembered: what is in it has been here; what is older than the window is taken
for old, because told twice is worse than told never.

Last values cross when a link comes up, marked as a snapshot.  They are told only if they are newer than what
is here, by the clock of the broker where they were published; so those clocks should agree to what matters.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final

from polybus.core.actions import Fanout
from polybus.core.model import Body
from polybus.core.topics import OWN_TOPICS, receive

if TYPE_CHECKING:
    from polybus.core.bus import Bus

# Numbers remembered of one origin, and origins: paths of different length differ by far less.
WINDOW: Final = 16_384
ORIGINS: Final = 256
# Topics of which it is remembered which publication is the newest; as many as there are last values.
NEWEST: Final = 100_000
# What is published in the same turn of the loop differs by this, so that times tell which is newer.
STEP_S: Final = 1e-6


class _Window:
    __slots__ = ("highest", "recent")

    def __init__(self) -> None:
        self.highest = -1
        self.recent: set[int] = set()


class Seen:
    """Names of publications that have been here."""

    def __init__(self) -> None:
        self._origins: OrderedDict[str, _Window] = OrderedDict()

    def is_new(self, origin: str, number: int, snapshot: bool = False) -> bool:
        """Whether it was never here; it counts as seen from now on."""
        window = self._origins.get(origin)
        if window is None:
            window = self._origins[origin] = _Window()
            if len(self._origins) > ORIGINS:
                self._origins.popitem(last=False)
        else:
            self._origins.move_to_end(origin)
        recent = window.recent
        if number in recent:
            return False
        if number <= window.highest - WINDOW:
            # Values may be as old as they are; what is live is not.
            return snapshot
        window.highest = max(window.highest, number)
        recent.add(number)
        if len(recent) > 2 * WINDOW:
            oldest = window.highest - WINDOW
            window.recent = {one for one in recent if one > oldest}
        return True


class Passage:
    """The publications that cross, at one broker."""

    def __init__(self, bus: Bus, name: str, instance: str, prefixes: tuple[bytes, ...]) -> None:
        self._bus = bus
        self.origin = f"{name}#{instance}"
        self.prefixes = prefixes
        self._number = 0
        self._seen = Seen()
        # The newest publication of a topic that crossed: its origin, its number there, and its time.
        self._newest: OrderedDict[bytes, tuple[str, int, float]] = OrderedDict()
        # Publications that came over a bridge and are on their way to subscribers here.
        self._foreign: dict[int, Fanout] = {}
        self._last_at = -inf
        self.duplicates = 0

    def admits(self, topic: bytes) -> bool:
        """Whether a topic may cross. What the broker says about itself never does."""
        return topic.startswith(self.prefixes) and not topic.startswith(OWN_TOPICS)

    def leave(self, value: Fanout) -> int | None:
        """A publication of our own goes out: its number. None if it does not cross, or came from outside."""
        if not self.prefixes or self._foreign.pop(id(value), None) is not None:
            return None
        if not self.admits(value.topic):
            return None
        if value.at <= self._last_at:
            value.at = self._last_at + STEP_S
        self._last_at = value.at
        self._number += 1
        self._seen.is_new(self.origin, self._number)
        self._note(value.topic, self.origin, self._number, value.at)
        return self._number

    def arrive(
        self, topic: bytes, body: Body, origin: str, number: int, at: float, snapshot: bool, now: float
    ) -> bool:
        """A publication comes in. Whether it is news here: then it is told to the subscribers."""
        bus = self._bus
        if not self.admits(topic):
            bus.publications_refused += 1
            return False
        old = bus.last.get(topic)
        if snapshot and (
            (old is not None and old.at >= at) or self._newest.get(topic, ())[:2] == (origin, number)
        ):
            # Seen all the same: it may yet come another way.
            self._seen.is_new(origin, number, snapshot)
            return False
        if not self._seen.is_new(origin, number, snapshot):
            self.duplicates += 1
            return False
        before = len(bus.actions)
        receive(bus, topic, body, now)
        for action in bus.actions[before:]:
            if type(action) is Fanout:
                action.at = at
                self._foreign[id(action)] = action
        if old is not None and old.at > at:
            # It is told, but what is here is newer.
            bus.last.put(old)
        else:
            self._note(topic, origin, number, at)
        return True

    def _note(self, topic: bytes, origin: str, number: int, at: float) -> None:
        self._newest[topic] = (origin, number, at)
        self._newest.move_to_end(topic)
        if len(self._newest) > NEWEST:
            self._newest.popitem(last=False)

    # -- values for a new neighbour -----------------------------------------------------------------

    def topics(self) -> list[bytes]:
        """All topics with a value that may cross."""
        found = {topic: None for prefix in self.prefixes for topic in self._bus.last.topics(prefix)}
        return [topic for topic in found if self.admits(topic)]

    def value(self, topic: bytes) -> tuple[Fanout, str, int] | None:
        """The current value and its name. One that was on disk gets a new name: its time tells its age."""
        value = self._bus.last.get(topic)
        if value is None:
            return None
        if topic not in self._newest:
            self._number += 1
            self._seen.is_new(self.origin, self._number)
            self._note(topic, self.origin, self._number, value.at)
        origin, number, at = self._newest[topic]
        # One of another time was published a moment ago and has no name yet: it goes out by itself.
        return (value, origin, number) if at == value.at else None
