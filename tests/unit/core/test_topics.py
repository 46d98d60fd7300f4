"""Publications: when they were made, and who is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import events
from polybus.core.actions import Fanout
from polybus.core.journal import Journal
from polybus.core.topics import OBSERVED_CHARS
from support.stage import LedgerStage, Stage


class Noted(Journal):
    """A journal that only says what it was told."""

    def __init__(self) -> None:
        self.published: list[tuple[Any, ...]] = []
        self.others: list[tuple[Any, ...]] = []

    def note_published(self, topic: bytes, body: list[Any], now: float, offset: float) -> None:
        self.published.append((topic, body, now, offset))

    def note(self, observed: Any, offset: float) -> None:
        self.others.append((observed.what, observed.service, observed.size, observed.body, offset))


def publish(stage: Stage, topic: bytes, *body: bytes) -> None:
    stage.do(events.Publish(topic, list(body)))


def test_a_publication_has_the_time_of_day_at_which_it_was_made() -> None:
    stage = LedgerStage()
    publish(stage, b"weather", b"sunny")
    made = stage.one(Fanout)
    assert (made.topic, made.body, made.at) == (b"weather", [b"sunny"], stage.WALL_OFFSET + stage.now)


def test_a_journal_alone_gets_publications_the_short_way() -> None:
    stage, journal = LedgerStage(), Noted()
    stage.bus.listen(False, journal)
    publish(stage, b"weather", b"sunny", b"warm")
    assert journal.published == [(b"weather", [b"sunny", b"warm"], stage.now, stage.WALL_OFFSET)]
    assert (journal.others, stage.observed) == ([], [])
    assert len(stage.actions(Fanout)) == 1


def test_a_journal_and_listeners_get_the_same_observation() -> None:
    stage, journal = LedgerStage(), Noted()
    stage.bus.listen(True, journal)
    publish(stage, b"weather", b"sunny", b"warm")
    (seen,) = stage.observed
    assert (seen.what, seen.service, seen.size, seen.body) == (
        "published",
        b"weather",
        9,
        [b"sunny", b"warm"],
    )
    assert journal.others == [("published", b"weather", 9, [b"sunny", b"warm"], stage.WALL_OFFSET)]
    assert journal.published == []


def test_listeners_without_a_journal_are_told() -> None:
    stage = Stage()
    stage.bus.listen(True, None)
    publish(stage, b"weather", b"sunny")
    (seen,) = stage.observed
    assert (seen.what, seen.service, seen.size, seen.at) == ("published", b"weather", 5, stage.now)


def test_nobody_is_told_if_nobody_listens() -> None:
    stage = Stage()
    stage.bus.listen(False, None)
    publish(stage, b"weather", b"sunny")
    publish(stage, b"log/info/n", b"hello")
    assert stage.observed == []
    assert len(stage.actions(Fanout)) == 2


@pytest.mark.parametrize("tapped", [False, True])
def test_a_log_record_is_a_log_record_for_the_journal_too(tapped: bool) -> None:
    stage, journal = LedgerStage(), Noted()
    stage.bus.listen(tapped, journal)
    publish(stage, b"log/error/n", b"broken")
    assert journal.others == [("log", b"log/error/n", 6, [b"broken"], stage.WALL_OFFSET)]
    assert journal.published == []


def test_a_topic_that_only_looks_like_that_of_a_log_record_is_none() -> None:
    stage = Stage()
    publish(stage, b"weather/info/rome", b"sunny")
    assert len(stage.bus.logs) == 0
    assert [seen.what for seen in stage.observed] == ["published"]


def test_who_follows_the_topics_of_the_broker_is_not_told_of_publications() -> None:
    """That is listening in, which needs permission."""
    stage = Stage(watched=False)
    stage.do(events.Subscribe(1, b"polybus/", True))
    assert stage.bus.monitored
    stage.observed.clear()
    publish(stage, b"weather", b"sunny")
    assert stage.observed == []


def test_of_a_long_log_record_the_beginning_is_observed() -> None:
    stage = Stage()
    publish(stage, b"log/error/n", b"x" * (OBSERVED_CHARS + 1))
    (seen,) = stage.observed
    assert seen.detail == "x" * OBSERVED_CHARS


def test_nobody_publishes_what_only_the_broker_says() -> None:
    stage = Stage()
    publish(stage, b"polybus/events", b"forged")
    assert stage.bus.publications_refused == 1
    assert stage.nothing()
    (seen,) = stage.observed
    assert (seen.what, seen.service, seen.reason) == ("refused", b"polybus/events", "own_topic")
    assert seen.detail == "only the broker itself publishes here"
