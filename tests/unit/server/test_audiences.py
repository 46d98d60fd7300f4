"""Audiences: who gets the same, and that nobody is forgotten or found twice."""

from __future__ import annotations

import random

import pytest

from polybus.server.audiences import REMEMBERED, SHARED_PREFIXES, Hall
from polybus.server.subscriber import Subscriber


def join(hall: Hall, *prefixes: bytes) -> Subscriber:
    subscriber = Subscriber(1, b"id", hall, 0.0)
    for prefix in prefixes:
        hall.seat(subscriber, hall.with_more(subscriber, prefix))
    return subscriber


def found(hall: Hall, topic: bytes) -> list[Subscriber]:
    return [member for audience in hall.find(topic) for member in audience.members]


def test_those_who_want_the_same_are_one_audience() -> None:
    hall = Hall()
    first, second, third = join(hall, b"a", b"b"), join(hall, b"b", b"a"), join(hall, b"a")
    assert first.audience is second.audience is not third.audience
    assert len(hall.find(b"axx")) == 2
    assert hall.find(b"bxx") == (first.audience,)
    assert hall.find(b"c") == ()


def test_a_topic_is_found_once_by_however_many_prefixes() -> None:
    hall = Hall()
    greedy = join(hall, b"", b"a", b"ab", b"abc")
    assert found(hall, b"abcd") == [greedy]
    assert found(hall, b"") == [greedy]


def test_one_with_many_subscriptions_is_an_audience_of_its_own() -> None:
    hall = Hall()
    prefixes = [b"%d" % number for number in range(SHARED_PREFIXES + 3)]
    first, second = join(hall, *prefixes), join(hall, *prefixes)
    assert first.audience is not second.audience
    assert set(found(hall, b"9")) == {first, second}
    hall.seat(first, hall.with_less(first, b"9"))
    assert found(hall, b"9") == [second]
    for prefix in prefixes:
        hall.seat(second, hall.with_less(second, prefix))
    assert second.audience is None
    assert found(hall, b"9") == []


@pytest.mark.parametrize("seed", range(10))
def test_whoever_comes_and_goes(seed: int) -> None:
    rng = random.Random(seed)
    hall = Hall()
    wanted: dict[Subscriber, set[bytes]] = {}
    prefixes = [bytes(rng.choices(b"ab", k=rng.randrange(5))) for _ in range(15)]
    for _ in range(400):
        if len(wanted) < 3 or rng.random() < 0.1:
            wanted[join(hall)] = set()
        subscriber = rng.choice(list(wanted))
        prefix = rng.choice(prefixes)
        if rng.random() < 0.05:
            hall.seat(subscriber, None)
            wanted[subscriber] = set()
        elif prefix in wanted[subscriber]:
            hall.seat(subscriber, hall.with_less(subscriber, prefix))
            wanted[subscriber].discard(prefix)
        else:
            hall.seat(subscriber, hall.with_more(subscriber, prefix))
            wanted[subscriber].add(prefix)
        topic = bytes(rng.choices(b"ab", k=rng.randrange(6)))
        listeners = found(hall, topic)
        assert len(listeners) == len(set(listeners))
        assert set(listeners) == {who for who, some in wanted.items() if topic.startswith(tuple(some))}
    for subscriber in wanted:
        hall.seat(subscriber, None)
    assert not any(found(hall, topic) for topic in prefixes)


def test_topics_that_are_remembered_are_limited() -> None:
    hall = Hall()
    everything = join(hall, b"")
    for number in range(REMEMBERED + 10):
        assert hall.find(b"%d" % number) == (everything.audience,)
