"""The publishing sockets."""

from __future__ import annotations

import pytest

from polybus.core.model import Limits
from polybus.core.topics import wanted
from polybus.dialects.pubsub import PublishEar, SubscribeEar, ebus_publication, emqp_publication
from support.exchange import Exchange
from support.wire_frames import Opaque

IN, OUT = 1, 2


@pytest.fixture
def ex() -> Exchange:
    ex = Exchange()
    ex.listen(IN, PublishEar(ex.bus, "ebus"))
    ex.listen(OUT, SubscribeEar(ex.bus, "ebus"))
    return ex


@pytest.mark.conforms("EBUS-19")
def test_a_publication_names_a_channel(ex: Exchange) -> None:
    ex.publish(IN, b"db/users", b"data")
    ex.publish(IN, b"db/users")
    ex.publish(IN, b"db/users", b"a", Opaque(b"b"))
    assert [topic for topic, _ in ex.publications] == [b"db/users"] * 3
    assert [len(body) for _, body in ex.publications] == [1, 0, 2]
    assert ex.bus.counters.published == 3
    for bad in ((), (b"", b"data"), (b"\x01", b"data"), (b"x" * 256, b"data"), (Opaque(b"db"), b"data")):
        ex.publish(IN, *bad)
    assert ex.bus.counters.invalid == 5
    assert ex.bus.counters.published == 3


@pytest.mark.conforms("EBUS-17")
def test_a_subscription_matches_the_beginning_of_a_channel(ex: Exchange) -> None:
    # Asked for twice, perhaps by the same subscriber: only the last end is told.
    ex.publish(OUT, b"\x01A")
    ex.publish(OUT, b"\x01A")
    assert all(wanted(ex.bus, topic) for topic in (b"A", b"AB", b"ABCD"))
    assert not wanted(ex.bus, b"BA")
    ex.publish(OUT, b"\x00A")
    assert not wanted(ex.bus, b"A")
    ex.publish(OUT, b"\x01")
    assert wanted(ex.bus, b"anything")


@pytest.mark.parametrize(
    "frames", [(), (b"",), (b"\x02A",), (b"A",), (b"\x01A", b"B"), (b"\x01" + b"x" * 256,)]
)
def test_anything_else_from_a_subscriber_is_invalid(ex: Exchange, frames: tuple[bytes, ...]) -> None:
    ex.publish(OUT, *frames)
    assert ex.bus.counters.invalid == 1
    assert not ex.bus.subscriptions.get(OUT)


def test_the_longest_prefix_is_that_of_the_longest_topic(ex: Exchange) -> None:
    ex.publish(OUT, b"\x01" + b"x" * 255)
    assert wanted(ex.bus, b"x" * 255)


def test_how_publications_are_written() -> None:
    assert ebus_publication(b"t", [b"a", b"b"]) == [b"t", b"a", b"b"]
    assert ebus_publication(b"t", []) == [b"t"]
    assert emqp_publication(b"t", [b"a"]) == [b"t", b"a"]
    assert emqp_publication(b"t", [b"a", b"b"]) == [b"t", b"a", b"b"]
    assert emqp_publication(b"t", []) == [b"t", b""]


@pytest.mark.parametrize(("frames", "is_taken"), [(1024, True), (1025, False)])
def test_a_publication_has_at_most_1024_frames_of_data(ex: Exchange, frames: int, is_taken: bool) -> None:
    ex.publish(IN, b"topic", *[b"x"] * frames)
    assert [len(body) for _, body in ex.publications] == [frames] * is_taken
    assert (ex.bus.counters.published, ex.bus.counters.invalid) == (is_taken, not is_taken)


def test_as_many_prefixes_are_known_as_are_allowed() -> None:
    ex = Exchange(Limits(subscriptions=2))
    ear = SubscribeEar(ex.bus, "ebus")
    ex.listen(OUT, ear)
    for prefix in (b"A", b"B", b"C"):
        ex.publish(OUT, b"\x01" + prefix)
    assert [wanted(ex.bus, topic) for topic in (b"A", b"B", b"C")] == [True, True, False]
    assert len(ear._wanted) == 2
    # One that goes makes room for another.
    ex.publish(OUT, b"\x00A")
    ex.publish(OUT, b"\x01C")
    assert [wanted(ex.bus, topic) for topic in (b"A", b"B", b"C")] == [False, True, True]


def test_what_is_wanted_again_is_wanted(ex: Exchange) -> None:
    for first in (b"\x01", b"\x00", b"\x01"):
        ex.publish(OUT, first + b"A")
        assert wanted(ex.bus, b"A") == (first == b"\x01")
