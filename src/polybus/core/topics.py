"""Publish and subscribe: topics matched by the beginning of their name.

The server hands each subscriber what it wants; the bus knows which prefixes are wanted on which link and by
how many, so that it can tell who listens, keeps the last value of every topic, and passes every publication
to every dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polybus.core.actions import Fanout
from polybus.core.model import Body

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.bus import Bus

# Topics beyond the limit are counted under this name.
OTHER_TOPICS: Final = b"(other)"
# How the topics of the broker itself begin: what it says there nobody else may say.
OWN_TOPICS: Final = b"polybus/"


def on_publish(bus: Bus, event: events.Publish, now: float) -> None:
    receive(bus, event.topic, event.body, now)


def receive(bus: Bus, topic: bytes, body: Body, now: float) -> None:
    """The event `Publish` as a call: an event for each of them would cost as much as all that follows."""
    if topic.startswith(OWN_TOPICS):
        bus.publications_refused += 1
        detail = "only the broker itself publishes here"
        bus.observe("refused", now, service=topic, reason="own_topic", detail=detail)
    else:
        publish(bus, topic, body, now)


def publish(bus: Bus, topic: bytes, body: Body, now: float) -> None:
    """Tell everyone who wants this topic; also what the broker itself has to say."""
    bus.counters.published += 1
    counts = bus.topic_counts
    name = topic if topic in counts or len(counts) < bus.limits.topics_counted else OTHER_TOPICS
    counts[name] = counts.get(name, 0) + 1
    action = Fanout(topic, body, now + bus.wall_offset)
    last = bus.last
    last.put(action)
    bus.actions.append(action)
    if bus.watched:
        bus.observe("published", now, service=topic, size=sum(map(len, body)), body=body)


def on_subscribe(bus: Bus, event: events.Subscribe, now: float) -> None:
    prefixes = bus.subscriptions.setdefault(event.link, {})
    count = prefixes.get(event.prefix, 0) + (1 if event.wanted else -1)
    if count > 0:
        prefixes[event.prefix] = count
    else:
        prefixes.pop(event.prefix, None)
    bus.observe("subscribed" if event.wanted else "unsubscribed", now, service=event.prefix)


def wanted(bus: Bus, topic: bytes) -> bool:
    """Whether anybody subscribed to a beginning of this topic."""
    return any(topic.startswith(prefix) for prefixes in bus.subscriptions.values() for prefix in prefixes)
