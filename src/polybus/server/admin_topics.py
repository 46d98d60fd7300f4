"""The admin socket's questions about topics: last values, and who subscribed.

last {"topic": "…"}                       the value of one topic
last {"topic": "…", "prefix": true}       all topics that begin so
last_drop {"topic": "…"}                  forget a value; answered when that is on disk
subscribers                               who listens, what it wants, and what it missed
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from polybus.core.actions import Fanout
from polybus.core.bus import Bus
from polybus.core.durable import after_written
from polybus.server.admin import MAX_LISTED, BadQuestion, Later
from polybus.server.admin_jobs import Command, Ready


class Question(Struct):
    topic: str
    prefix: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 100


class TopicDesk:
    """Answers for `AdminEar`."""

    def __init__(self, bus: Bus, subscribers: Callable[[], list[dict[str, Any]]]) -> None:
        self._bus = bus
        self.commands: dict[str, Command] = {
            "last": self._last,
            "last_drop": self._drop,
            "subscribers": lambda question, now: subscribers()[:MAX_LISTED],
        }

    def _last(self, question: dict[str, Any], now: float) -> Any:
        asked = _read(question)
        last = self._bus.last
        if asked.prefix:
            topics = last.topics(asked.topic.encode())[: asked.limit]
            return [self._row(last.values[topic], now) for topic in topics]
        value = last.get(asked.topic.encode())
        if value is None:
            raise BadQuestion(_nothing(asked.topic))
        body = [base64.b64encode(bytes(frame)).decode() for frame in value.body]
        return {**self._row(value, now), "body_base64": body, "on_disk": self._is_on_disk(value)}

    def _row(self, value: Fanout, now: float) -> dict[str, Any]:
        return {
            "topic": value.topic.decode(errors="replace"),
            "at": value.at,
            "age_s": round(max(0.0, self._bus.wall_at(now) - value.at), 3),
            "bytes": sum(len(frame) for frame in value.body),
        }

    def _is_on_disk(self, value: Fanout) -> bool:
        bus = self._bus
        is_noted = bus.last.durable and value.topic not in bus.last.changed
        return is_noted and not bus.lines and bus.written >= bus.batch - 1

    def _drop(self, question: dict[str, Any], now: float) -> Any:
        name = _read(question).topic
        bus, topic = self._bus, name.encode()
        if not bus.last.remove(topic):
            raise BadQuestion(_nothing(name))
        bus.observe("dropped", now, service=topic, detail="an operator dropped its last value")
        answer = {"dropped": name}
        if not bus.last.durable or bus.store_trouble:
            # It is removed on disk as soon as that can be written.
            return answer
        bus.last.note_one(bus, topic)
        later = Later()
        after_written(bus, Ready(lambda: later.give(answer)))
        return later


def _nothing(topic: str) -> str:
    return f"there is no last value of {topic!r}; 'polybus last --prefix PREFIX' lists topics"


def _read(question: dict[str, Any]) -> Question:
    try:
        return msgspec.convert(question, Question)
    except msgspec.ValidationError as error:
        raise BadQuestion(f"the question is wrong: {error}") from None
