"""Who wants what: the subscribers of one link, grouped by what they subscribed to.

Subscribers with the same subscriptions are one audience, and get the very same bytes: a publication costs
one look-up for its topic and one append for each audience, however many are in it.  A subscriber with many
subscriptions is an audience of its own, so that one more of them costs no more than the first.

Whoever moves a subscriber from one audience to another has both of them served first: what waits in the old
one is still for it, what waits in the new one is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polybus.server.subscriber import Subscriber

# With more subscriptions than this, others hardly have the same.
SHARED_PREFIXES: Final = 8
# Topics whose audiences are remembered; names come from the wire.
REMEMBERED: Final = 10_000


class Audience:
    """Subscribers that want the same."""

    __slots__ = ("is_shared", "members", "pending", "prefixes")

    def __init__(self, prefixes: set[bytes], is_shared: bool) -> None:
        self.prefixes = prefixes
        self.is_shared = is_shared
        self.members: dict[Subscriber, None] = {}
        # Publications that they get at the end of this turn.
        self.pending: list[bytes] = []


class Hall:
    """The audiences of one link."""

    __slots__ = ("_audiences", "_by_prefix", "_found", "_lengths")

    def __init__(self) -> None:
        self._audiences: dict[frozenset[bytes], Audience] = {}
        self._by_prefix: dict[bytes, dict[Audience, None]] = {}
        # How many prefixes there are of each length.
        self._lengths: dict[int, int] = {}
        self._found: dict[bytes, tuple[Audience, ...]] = {}

    def find(self, topic: bytes) -> tuple[Audience, ...]:
        """All that want a topic, each once."""
        found = self._found.get(topic)
        if found is None:
            matched: dict[Audience, None] = {}
            for length in self._lengths:
                if length <= len(topic):
                    matched.update(self._by_prefix.get(topic[:length], {}))
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            found = self._found[topic] = tuple(matched)
        return found

    def with_more(self, subscriber: Subscriber, prefix: bytes) -> Audience:
        """Where a subscriber belongs that wants this as well."""
        old = subscriber.audience
        if old is not None and not old.is_shared:
            old.prefixes.add(prefix)
            self._register(prefix, old)
            return old
        return self._audience({prefix} if old is None else {*old.prefixes, prefix})

    def with_less(self, subscriber: Subscriber, prefix: bytes) -> Audience | None:
        """Where it belongs without this; None if it wants nothing any more."""
        old = subscriber.audience
        if old is None or old.prefixes == {prefix}:
            return None
        if not old.is_shared:
            old.prefixes.discard(prefix)
            self._unregister(prefix, old)
            return old
        return self._audience(old.prefixes - {prefix})

    def seat(self, subscriber: Subscriber, audience: Audience | None) -> None:
        """Put it there, and nowhere else."""
        old = subscriber.audience
        if old is audience:
            return
        subscriber.audience = audience
        if audience is not None:
            audience.members[subscriber] = None
        if old is not None:
            del old.members[subscriber]
            if not old.members:
                self._dissolve(old)

    def _audience(self, prefixes: set[bytes]) -> Audience:
        is_shared = len(prefixes) <= SHARED_PREFIXES
        key = frozenset(prefixes) if is_shared else frozenset()
        audience = self._audiences.get(key) if is_shared else None
        if audience is None:
            audience = Audience(prefixes, is_shared)
            if is_shared:
                self._audiences[key] = audience
            for prefix in prefixes:
                self._register(prefix, audience)
        return audience

    def _dissolve(self, audience: Audience) -> None:
        if audience.is_shared:
            del self._audiences[frozenset(audience.prefixes)]
        for prefix in audience.prefixes:
            self._unregister(prefix, audience)

    def _register(self, prefix: bytes, audience: Audience) -> None:
        self._found.clear()
        audiences = self._by_prefix.get(prefix)
        if audiences is None:
            audiences = self._by_prefix[prefix] = {}
            self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
        audiences[audience] = None

    def _unregister(self, prefix: bytes, audience: Audience) -> None:
        self._found.clear()
        audiences = self._by_prefix[prefix]
        del audiences[audience]
        if not audiences:
            del self._by_prefix[prefix]
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]
