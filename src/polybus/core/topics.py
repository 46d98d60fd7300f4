"""Publish and subscribe: topics matched by the beginning of their name.

The sockets filter for each subscriber; the bus knows which prefixes are wanted on which link, so
that it can tell who listens, and passes every publication to every dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybus.core.actions import Fanout

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.bus import Bus

# Topics beyond the limit are counted under this name.
OTHER_TOPICS = b"(other)"


def on_publish(bus: Bus, event: events.Publish, now: float) -> None:
    bus.counters.published += 1
    counts = bus.topic_counts
    topic = event.topic if event.topic in counts or len(counts) < bus.limits.topics_counted else OTHER_TOPICS
    counts[topic] = counts.get(topic, 0) + 1
    bus.actions.append(Fanout(event.topic, event.body))
    if bus.watched:
        bus.observe("published", now, service=event.topic, size=sum(map(len, event.body)), body=event.body)


def on_subscribe(bus: Bus, event: events.Subscribe, now: float) -> None:
    prefixes = bus.subscriptions.setdefault(event.link, {})
    if event.wanted:
        if event.prefix in prefixes or len(prefixes) < bus.limits.subscriptions:
            prefixes[event.prefix] = prefixes.get(event.prefix, 0) + 1
    else:
        # Said once, when the last subscriber has let go: one who asked twice is not counted twice.
        prefixes.pop(event.prefix, None)
    bus.observe("subscribed" if event.wanted else "unsubscribed", now, service=event.prefix)


def wanted(bus: Bus, topic: bytes) -> bool:
    """Whether anybody subscribed to a beginning of this topic."""
    return any(topic.startswith(prefix) for prefixes in bus.subscriptions.values() for prefix in prefixes)
