"""The demo's chapter about topics: who comes late gets the last value, in another dialect."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import zmq

from polybus.cli.demo_stage import NAMES, Outcome, Stage, wait_until
from polybus.cli.find import PORT_OF
from polybus.client.pubsub import Publisher, Subscription, write_publication
from polybus.errors import PolybusError

TOPICS: Final = (("ebus", "emqp"), ("emqp", "ebus"))
WAIT_S: Final = 5.0
OLD: Final = b"cloudy"
NEW: Final = b"sunny"


def topic_of(dialect: str) -> str:
    return f"weather.{dialect}"


def late_subscriber(stage: Stage) -> None:
    with zmq.Context() as context:
        for pair in TOPICS:
            stage.topics[pair] = cross(stage, *pair, context)
    for (publishing, subscribed), outcome in stage.topics.items():
        stage.check(
            f"published in {NAMES[publishing]}, a late {NAMES[subscribed]} subscriber has the last value; "
            f"the next came after {outcome.ms:.1f} ms",
            outcome.error,
        )


def cross(stage: Stage, publishing: str, subscribed: str, context: zmq.Context[Any]) -> Outcome:
    """Publish while nobody listens, subscribe, publish again: both must arrive, in this order."""
    topic = topic_of(publishing)
    publisher = Publisher(publishing, stage.endpoints[PORT_OF[publishing, "publish"]], context)
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(publisher.close, 0)
            publisher.join(WAIT_S)
            publisher.send(write_publication(publishing, b"demo-1", topic.encode(), [OLD]), WAIT_S)
            wait_until(lambda: is_kept(stage, topic), WAIT_S, f"the broker did not keep {topic}")
            place = stage.endpoints[PORT_OF[subscribed, "subscribe"]]
            late = stack.enter_context(Subscription(subscribed, (topic,), place, context))
            last = late.get(WAIT_S)
            if last != (topic, OLD):
                return Outcome(error=f"the late subscriber got {last!r}, not the last value")
            began = time.perf_counter()
            publisher.send(write_publication(publishing, b"demo-2", topic.encode(), [NEW]), WAIT_S)
            live = late.get(WAIT_S)
            took_ms = (time.perf_counter() - began) * 1000
    except PolybusError as error:
        return Outcome(error=str(error))
    if live != (topic, NEW):
        return Outcome(error=f"after the last value the subscriber got {live!r}")
    return Outcome(round(took_ms, 3))


def is_kept(stage: Stage, topic: str) -> bool:
    return any(row["topic"] == topic for row in stage.admin.ask("last", topic=topic, prefix=True))
