"""Publications and last values between brokers."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core.passage import ORIGINS, WINDOW, Seen
from polybus.core.topics import receive
from polybus.wire import bridge as wire
from polybus.wire import bridge_messages as say
from support.bridges import ROUTER, Island, World


def ring(size: int = 3, **settings: Any) -> tuple[World, list[Island]]:
    world = World()
    names = [f"b{number}" for number in range(size)]
    settings = {"topics": ["weather"], **settings}
    islands = [
        world.broker(name, peers=[names[(at + 1) % size]], **settings) for at, name in enumerate(names)
    ]
    world.wait(2.0)
    assert all(len(island.neighbours) == 2 for island in islands)
    return world, islands


def pair(**settings: Any) -> tuple[World, Island, Island]:
    world = World()
    settings = {"topics": ["weather"], **settings}
    b = world.broker("B", **settings)
    a = world.broker("A", peers=["B"], **settings)
    world.wait(1.0)
    return world, a, b


@pytest.mark.conforms("DBP-34")
def test_a_publication_reaches_everybody_in_a_ring_once() -> None:
    world, islands = ring(5)
    for number, island in enumerate(islands):
        island.publish(f"weather.{number}", b"sunny")
    world.run()
    wanted = [(f"weather.{number}".encode(), b"sunny") for number in range(5)]
    for island in islands:
        assert sorted(island.publications) == wanted
        assert len(island.bus.last) == 5


def test_only_configured_topics_cross_and_never_the_brokers_own() -> None:
    world, a, b = pair(topics=["weather", "polybus/"])
    a.publish("weather.rome", b"1")
    a.publish("secret", b"2")
    a.publish("polybus/x", b"3")
    world.run()
    assert b.publications == [(b"weather.rome", b"1")]


def test_both_sides_must_let_a_topic_cross() -> None:
    world = World()
    b = world.broker("B", topics=["weather.rome"])
    a = world.broker("A", peers=["B"], topics=["weather"])
    world.wait(1)
    a.publish("weather.rome", b"1")
    a.publish("weather.oslo", b"2")
    world.run()
    assert b.publications == [(b"weather.rome", b"1")]
    assert b.bus.publications_refused == 1


def test_a_topic_that_only_the_other_side_lets_cross_stays() -> None:
    world = World()
    b = world.broker("B", topics=["weather", "secret"])
    a = world.broker("A", peers=["B"], topics=["weather"])
    world.wait(1)
    a.publish("secret", b"1")
    a.publish("weather.rome", b"2")
    world.run()
    assert b.publications == [(b"weather.rome", b"2")]
    assert b.bus.publications_refused == 0
    assert b.bus.counters.invalid == 0


def test_what_was_here_before_or_came_too_far_is_not_taken_again() -> None:
    world, _, b = pair()
    (identity,) = world.wires
    for hops in (("A", "B"), tuple(f"b{number}" for number in range(20))):
        message = say.Publish(b"weather", "A", 1, world.now, hops, [b"1"])
        b.hear(ROUTER, [identity, *wire.write_publish(message)])
    assert b.bridges.passage.duplicates == 2
    assert b.publications == []


def test_last_values_cross_when_a_link_comes_up() -> None:
    world = World()
    b = world.broker("B", topics=[""])
    for number in range(1200):
        b.publish(f"weather.{number}", b"%d" % number)
    a = world.broker("A", peers=["B"], topics=[""])
    world.now += 1
    a.publish("weather.7", b"newer here")
    world.wait(1)
    assert len(a.bus.last) == 1200
    value = a.bus.last.get(b"weather.7")
    assert value is not None
    # It was published later than the one that came.
    assert value.body == [b"newer here"]
    assert (b"weather.7", b"7") not in a.publications
    assert dict(b.publications)[b"weather.7"] == b"newer here"


def test_what_was_missed_while_the_link_was_down_is_there_as_last_value_once() -> None:
    world, a, b = pair()
    a.publish("weather", b"1")
    world.run()
    world.cut(a, b)
    a.publish("weather", b"2")
    a.publish("weather", b"3")
    world.wait(10)
    world.heal(a, b)
    world.wait(15)
    assert b.publications == [(b"weather", b"1"), (b"weather", b"3")]
    # And once more, with nothing new.
    world.cut(a, b)
    world.wait(10)
    world.heal(a, b)
    world.wait(15)
    assert b.publications == [(b"weather", b"1"), (b"weather", b"3")]
    assert a.publications == [(b"weather", body) for body in (b"1", b"2", b"3")]


def test_publications_of_the_same_moment_keep_their_order() -> None:
    world, a, b = pair()
    world.cut(a, b)
    a.publish("weather", b"1")
    a.publish("weather", b"2")
    world.wait(10)
    world.heal(a, b)
    world.wait(15)
    assert b.publications == [(b"weather", b"2")]


def test_an_older_publication_is_told_but_does_not_take_the_place_of_a_newer_one() -> None:
    world, a, b = pair()
    a.publish("weather", b"older")
    world.now += 0.001
    b.publish("weather", b"newer")
    world.run()
    for island in (a, b):
        value = island.bus.last.get(b"weather")
        assert value is not None
        assert value.body == [b"newer"]
    assert b.publications == [(b"weather", b"newer"), (b"weather", b"older")]


def test_without_last_values_nothing_is_told_twice_either() -> None:
    world, a, b = pair()
    b.bus.last.change(0, 1, False)
    a.publish("weather", b"1")
    world.run()
    world.cut(a, b)
    world.wait(10)
    world.heal(a, b)
    world.wait(15)
    assert b.publications == [(b"weather", b"1")]


def test_what_a_full_pipe_did_not_take_follows_as_last_value() -> None:
    world, a, b = pair()
    a.full = {2}
    a.publish("weather", b"1")
    assert a.bridges.facts()["bridge_publications_dropped"] == 1
    a.full = set()
    world.wait(3)
    assert b.publications == [(b"weather", b"1")]


def test_a_restarted_broker_gets_the_values_again() -> None:
    world, a, b = pair()
    a.publish("weather", b"1")
    world.run()
    world.kill(b)
    b = world.broker("B", topics=["weather"])
    world.wait(15)
    assert b.publications == [(b"weather", b"1")]
    assert a.publications == [(b"weather", b"1")]


def test_a_value_that_is_just_being_published_is_told_once() -> None:
    world = World()
    a = world.broker("A", peers=["B"], topics=["weather"])
    a.publish("weather", b"1")
    b = world.broker("B", topics=["weather"])
    while not a.neighbours:
        world.now += 0.05
        for island in (a, b):
            island.tick()
        world.run()
    # In the same turn of the loop, before the values for the new neighbour are sent.
    world.now += 0.01
    receive(a.bus, b"weather", [b"2"], world.now)
    a.bridges.tick(world.now)
    world.wait(1)
    assert b.publications in ([(b"weather", b"1"), (b"weather", b"2")], [(b"weather", b"2")])


def test_hops_are_limited() -> None:
    world = World()
    islands = [world.broker(f"b{n}", peers=[f"b{n + 1}"], topics=["weather"], max_hops=2) for n in range(5)]
    world.wait(3)
    islands[0].publish("weather", b"1")
    world.run()
    assert [len(island.publications) for island in islands] == [1, 1, 1, 0, 0]


# -- memory of what was here ----------------------------------------------------------------------------

# docs/bridge.md promises as much. The number stands here again, so that no test follows a change of the code.
PROMISED = 16_384


def test_a_publication_may_be_late_by_as_many_as_are_promised() -> None:
    """And it is told once: what comes again is dropped, however long ago it was first heard."""
    seen = Seen()
    assert seen.is_new("a", PROMISED)
    late = range(1, PROMISED)
    assert all(seen.is_new("a", number) for number in late)
    assert not any(seen.is_new("a", number) for number in (*late, PROMISED))
    # One more, and the first of them would be too old to be told, had it not been told already.
    assert seen.is_new("a", PROMISED + 1)
    assert not any(seen.is_new("a", number) for number in late)


def test_a_ring_tells_late_publications_once_each() -> None:
    """One way is too full for the first publication, the other so slow that all others overtake it."""
    world, (a, b, c) = ring(3)
    direct = next(wire for wire in world.wires.values() if {wire.dialler, wire.listener} == {a, c})
    to_b = next(link for link, wire in a.dialled.items() if wire.listener is b)
    world.cut(a, c)
    a.full = {to_b}
    a.publish("weather.first", b"0")
    a.full = set()
    others = [(b"weather.%d" % number, b"%d" % number) for number in range(1, PROMISED)]
    for topic, body in others:
        a.publish(topic.decode(), body)
    world.run()
    assert c.publications == others
    # Nobody has noticed yet that the link was cut: everything is still under way.
    assert len(direct.there) + len(direct.back) == PROMISED
    world.heal(a, c)
    world.run()
    assert c.publications == [*others, (b"weather.first", b"0")]
    passage = c.bridges.dialect.passage
    assert passage.duplicates == len(others)


def test_seen_in_any_order() -> None:
    seen = Seen()
    numbers = [5, 3, 9, 4, 3, 5, 9, 1]
    assert [seen.is_new("a", number) for number in numbers] == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert seen.is_new("b", 5)


def test_what_is_older_than_the_window_counts_as_seen() -> None:
    seen = Seen()
    assert seen.is_new("a", WINDOW + 10)
    assert not seen.is_new("a", 10)
    assert seen.is_new("a", 11)
    # Values may be as old as they are.
    assert seen.is_new("a", 1, snapshot=True)


def test_memory_has_an_end() -> None:
    seen = Seen()
    for number in range(5 * WINDOW):
        assert seen.is_new("a", number)
    assert not seen.is_new("a", 4 * WINDOW + 5)
    (window,) = seen._origins.values()
    assert len(window.recent) <= 2 * WINDOW + 1
    for number in range(2 * ORIGINS):
        seen.is_new(f"origin {number}", 1)
    assert len(seen._origins) == ORIGINS
