"""Publications that have been here, and those that may cross."""

from __future__ import annotations

import pytest

from polybus.core import passage
from polybus.core.actions import Fanout, Observed
from polybus.core.passage import WINDOW, Passage, Seen
from support.stage import Stage


def test_a_publication_is_new_once() -> None:
    seen = Seen()
    for origin in ("A#1", "A#2"):
        for number in (1, 2, 0, 5):
            assert seen.is_new(origin, number)
            assert not seen.is_new(origin, number)


def test_what_is_older_than_the_window_is_old_unless_it_is_a_value() -> None:
    seen = Seen()
    assert seen.is_new("A", WINDOW + 10)
    assert seen.is_new("A", 11)
    assert not seen.is_new("A", 10)
    assert seen.is_new("A", 10, snapshot=True)
    assert not seen.is_new("A", 11, snapshot=True)
    # An old one does not move the window.
    assert seen.is_new("A", 12)


def test_numbers_that_left_the_window_are_forgotten_and_those_in_it_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passage, "WINDOW", 4)
    seen = Seen()
    for number in range(100):
        assert seen.is_new("A", number)
    assert len(seen._origins["A"].recent) <= 8
    assert [seen.is_new("A", number) for number in range(95, 100)] == [False] * 5
    assert not seen.is_new("A", 50)
    assert seen.is_new("A", 100)


def test_what_is_in_the_window_is_remembered_after_the_older_ones_were_forgotten() -> None:
    seen = Seen()
    last = 2 * WINDOW
    for number in range(last + 1):
        assert seen.is_new("A", number)
    assert len(seen._origins["A"].recent) == WINDOW
    assert not any(seen.is_new("A", number) for number in range(last - WINDOW + 1, last + 1))


def test_the_origin_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "ORIGINS", 2)
    seen = Seen()
    assert seen.is_new("A", 1)
    assert seen.is_new("B", 1)
    assert not seen.is_new("A", 1)
    assert seen.is_new("C", 1)
    assert not seen.is_new("A", 1)
    assert not seen.is_new("C", 1)
    assert seen.is_new("B", 1)


def opened(*prefixes: bytes) -> tuple[Stage, Passage]:
    stage = Stage(watched=False)
    return stage, Passage(stage.bus, "A", "life", prefixes)


@pytest.mark.parametrize(
    ("prefixes", "topic", "crosses"),
    [
        ((b"",), b"weather", True),
        ((b"weather/", b"news"), b"news/x", True),
        ((b"weather/", b"news"), b"weather", False),
        ((b"",), b"polybus/monitor/summary", False),
        ((b"polybus/",), b"polybus/monitor/summary", False),
        ((), b"weather", False),
    ],
)
def test_which_topics_cross(prefixes: tuple[bytes, ...], topic: bytes, crosses: bool) -> None:
    stage, gate = opened(*prefixes)
    assert gate.admits(topic) == crosses
    assert gate.leave(Fanout(topic, [b"x"], 1.0)) == (1 if crosses else None)
    assert gate.arrive(topic, [b"x"], "B#1", 1, 5.0, False, stage.now) == crosses
    assert stage.bus.publications_refused == (0 if crosses else 1)


def test_publications_are_numbered_and_each_is_later_than_the_one_before() -> None:
    _, gate = opened(b"")
    assert gate.origin == "A#life"
    values = [Fanout(b"t", [b"x"], at) for at in (5.0, 5.0, 4.0, 6.0)]
    assert [gate.leave(value) for value in values] == [1, 2, 3, 4]
    assert [value.at for value in values] == [
        5.0,
        pytest.approx(5.000001, abs=1e-9),
        pytest.approx(5.000002, abs=1e-9),
        6.0,
    ]
    # Our own publication that comes back over another bridge has been here.
    assert not gate.arrive(b"t", [b"x"], "A#life", 2, 5.0, False, 1.0)
    assert gate.duplicates == 1


def test_what_came_in_is_told_with_its_own_time_and_does_not_go_out_as_ours() -> None:
    stage, gate = opened(b"")
    assert gate.arrive(b"t", [b"x"], "B#1", 7, 5.0, False, stage.now)
    (told,) = [action for action in stage.bus.actions if isinstance(action, Fanout)]
    assert (told.topic, told.body, told.at) == (b"t", [b"x"], 5.0)
    assert gate.leave(told) is None
    assert not gate.arrive(b"t", [b"x"], "B#1", 7, 5.0, False, stage.now)
    assert gate.duplicates == 1
    # The next one of ours is number one.
    assert gate.leave(Fanout(b"t", [b"y"], 6.0)) == 1


def test_a_value_that_is_older_than_ours_is_not_told_when_it_comes_another_way() -> None:
    stage, gate = opened(b"")
    assert gate.arrive(b"t", [b"new"], "B#1", 7, 5.0, False, stage.now)
    stage.bus.actions.clear()
    assert not gate.arrive(b"t", [b"old"], "C#1", 3, 4.0, True, stage.now)
    assert gate.duplicates == 0
    assert not gate.arrive(b"t", [b"old"], "C#1", 3, 4.0, False, stage.now)
    assert gate.duplicates == 1
    assert stage.bus.actions == []


def test_there_is_an_end_to_the_topics_whose_newest_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "NEWEST", 2)
    _, gate = opened(b"")
    for number, topic in enumerate((b"a", b"b", b"a", b"c"), 1):
        assert gate.leave(Fanout(topic, [b"x"], float(number))) == number
    assert gate._newest == {b"a": ("A#life", 3, 3.0), b"c": ("A#life", 4, 4.0)}


def test_a_value_is_told_only_if_it_is_newer_than_ours() -> None:
    stage, gate = opened(b"")
    assert gate.arrive(b"t", [b"ours"], "B#1", 7, 5.0, False, stage.now)
    stage.bus.actions.clear()
    assert not gate.arrive(b"t", [b"as old"], "C#1", 3, 5.0, True, stage.now)
    assert stage.bus.actions == []
    assert gate.arrive(b"t", [b"newer"], "C#1", 4, 5.1, True, stage.now)
    assert [action.body for action in stage.bus.actions if isinstance(action, Fanout)] == [[b"newer"]]


@pytest.mark.parametrize(("at", "last"), [(4.9, b"ours"), (5.0, b"other"), (5.1, b"other")])
def test_a_publication_is_the_last_value_unless_ours_is_newer(at: float, last: bytes) -> None:
    stage, gate = opened(b"")
    assert gate.arrive(b"t", [b"ours"], "B#1", 7, 5.0, False, stage.now)
    assert gate.arrive(b"t", [b"other"], "C#1", 3, at, False, stage.now)
    found = gate.value(b"t")
    assert found is not None
    value, *name = found
    assert value.body == [last]
    assert name == (["B#1", 7] if last == b"ours" else ["C#1", 3])


def test_the_newest_publication_is_not_told_twice_when_its_value_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its number may have left the window meanwhile."""
    monkeypatch.setattr(passage, "WINDOW", 4)
    stage, gate = opened(b"")
    assert gate.arrive(b"t", [b"x"], "B#1", 1, 5.0, False, stage.now)
    for number in range(2, 20):
        assert gate.arrive(b"others", [b"y"], "B#1", number, 5.0 + number, False, stage.now)
    stage.bus.last.remove(b"t")
    stage.bus.actions.clear()
    assert not gate.arrive(b"t", [b"x"], "B#1", 1, 5.0, True, stage.now)
    assert stage.bus.actions == []


def test_values_for_a_new_neighbour() -> None:
    stage, gate = opened(b"", b"a")
    stage.bus.last.put(Fanout(b"polybus/monitor/summary", [b"own"], 1.0))
    stage.bus.last.put(Fanout(b"a/on disk", [b"x"], 2.0))
    assert gate.arrive(b"a/came", [b"y"], "B#1", 7, 3.0, False, stage.now)
    assert sorted(gate.topics()) == [b"a/came", b"a/on disk"]
    came = gate.value(b"a/came")
    assert came is not None
    assert (came[0].body, came[1:]) == ([b"y"], ("B#1", 7))
    for _ in range(2):
        on_disk = gate.value(b"a/on disk")
        assert on_disk is not None
        assert (on_disk[0].body, on_disk[1:]) == ([b"x"], ("A#life", 1))
    # Should it come back, it was here.
    assert not gate.arrive(b"a/on disk", [b"x"], "A#life", 1, 2.0, False, stage.now)
    assert gate.duplicates == 1


def test_a_topic_without_a_value_has_none_for_a_neighbour() -> None:
    stage, gate = opened(b"")
    assert gate.value(b"t") is None
    assert gate.arrive(b"t", [b"x"], "B#1", 7, 3.0, False, stage.now)
    stage.bus.last.remove(b"t")
    assert gate.value(b"t") is None


def test_what_comes_in_is_observed_like_all_that_is_published() -> None:
    stage = Stage(watched=True)
    gate = Passage(stage.bus, "A", "life", (b"",))
    assert gate.arrive(b"t", [b"x"], "B#1", 7, 5.0, False, stage.now)
    told, observed = stage.bus.take()
    assert isinstance(told, Fanout)
    assert (told.topic, told.at) == (b"t", 5.0)
    assert isinstance(observed, Observed)
    assert (observed.what, observed.service, observed.at) == ("published", b"t", stage.now)
