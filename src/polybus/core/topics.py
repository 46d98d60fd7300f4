"""Publish and subscribe: topics matched by the beginning of their name.

The server hands each subscriber what it wants; the bus knows which prefixes are wanted on which link and by
how many, so that it can tell who listens, keeps the last value of every topic, and passes every publication
to every dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polybus.core.actions import Fanout
from polybus.core.logs import LOG_TOPICS, LogRecord, message_of, read
from polybus.core.model import Body

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.bus import Bus

# Topics beyond the limit are counted under this name.
OTHER_TOPICS: Final = b"(other)"
# How the topics of the broker itself begin: what it says there nobody else may say.
OWN_TOPICS: Final = b"polybus/"
# What a log record says is observed up to here.
OBSERVED_CHARS: Final = 1000


def on_publish(bus: Bus, event: events.Publish, now: float) -> None:
    receive(bus, event.topic, event.body, now)


def receive(bus: Bus, topic: bytes, body: Body, now: float) -> None:
    """The event `Publish` as a call: an event for each of them would cost as much as all that follows."""
    if topic.startswith(OWN_TOPICS):
        bus.publications_refused += 1
        detail = "only the broker itself publishes here"
        bus.observe("refused", now, service=topic, reason="own_topic", detail=detail)
    elif topic.startswith(LOG_TOPICS):
        record = read(topic, body, now)
        if record is not None:
            bus.logs.put(record)
        publish(bus, topic, body, now, record)
    else:
        publish(bus, topic, body, now)


def publish(bus: Bus, topic: bytes, body: Body, now: float, record: LogRecord | None = None) -> None:
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
        what, reason, detail = "published", "", ""
        if record is not None:
            what, reason, detail = "log", record.level, message_of(record)[:OBSERVED_CHARS]
        elif bus.journal is not None and not bus.tapped:
            bus.journal.note_published(topic, body, now, bus.wall_offset)
            return
        size = sum(map(len, body))
        bus.observe(what, now, service=topic, reason=reason, detail=detail, size=size, body=body)


def on_subscribe(bus: Bus, event: events.Subscribe, now: float) -> None:
    prefixes = bus.subscriptions.setdefault(event.link, {})
    before = prefixes.get(event.prefix, 0)
    count = before + (1 if event.wanted else -1)
    if event.prefix.startswith(OWN_TOPICS):
        bus.monitored += max(0, count) - before
    if count > 0:
        prefixes[event.prefix] = count
    else:
        prefixes.pop(event.prefix, None)
    bus.observe("subscribed" if event.wanted else "unsubscribed", now, service=event.prefix)


def wanted(bus: Bus, topic: bytes) -> bool:
    """Whether anybody subscribed to a beginning of this topic."""
    return any(topic.startswith(prefix) for prefixes in bus.subscriptions.values() for prefix in prefixes)
