"""Times of requests, counted in classes."""

from __future__ import annotations

import random

from polybus.core.latency import ALL_OF, LAST, ONE_IN, Times, percentile, place_of, seconds_at
from support.stage import Stage


def test_a_class_is_close_to_what_is_in_it() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        seconds = 10 ** rng.uniform(-5.9, 4)
        assert abs(seconds_at(place_of(seconds)) / seconds - 1) < 0.1
    assert place_of(0.0) == place_of(-1.0) == 0
    assert place_of(1e30) == LAST
    # Classes begin at a microsecond, and their middle is told in whole nanoseconds.
    assert place_of(1e-7) == place_of(0.9e-6) == place_of(1e-6) == 0
    assert [seconds_at(0), seconds_at(1)] == [1.091e-06, 1.297e-06]


def test_percentiles() -> None:
    times = Times()
    for number in range(1, 101):
        times.note(b"s", number / 1000)
    counts = times.counts[b"s"]
    half, most, all_ = (percentile(counts, part) for part in (0.5, 0.95, 1.0))
    assert half is not None
    assert most is not None
    assert all_ is not None
    assert 0.045 < half < 0.056
    assert 0.085 < most < 0.105
    assert 0.09 < all_ < 0.11
    assert percentile({}, 0.5) is None
    assert percentile({10: 0}, 0.5) is None, "none since the last look"
    # Of two requests the quicker one is half of all, and no more than that.
    assert [percentile({10: 1, 90: 1}, part) for part in (0.5, 0.51)] == [seconds_at(10), seconds_at(90)]
    times.clear()
    assert times.counts == {}


class Answers:
    """What becomes of each answer, as `requests.end` does it."""

    def __init__(self) -> None:
        self.times = Times()
        self.untimed = 0
        self.calls = 0

    def end(self, seconds: float = 0.001) -> None:
        if self.untimed:
            self.untimed -= 1
        else:
            self.calls += 1
            self.untimed = self.times.note(b"s", seconds)

    @property
    def counted(self) -> int:
        return sum(self.times.counts[b"s"].values())


def test_of_very_many_a_part_stands_for_all() -> None:
    answers, rng = Answers(), random.Random(2)
    for _ in range(50_000):
        answers.end(rng.uniform(0.0, 0.1))
    assert abs(answers.counted - 50_000) < ONE_IN
    assert answers.calls < ALL_OF + 50_000 / ONE_IN
    half = percentile(answers.times.counts[b"s"], 0.5)
    assert half is not None
    assert 0.04 < half < 0.06


def test_after_a_look_all_are_taken_again() -> None:
    answers = Answers()
    for _ in range(ALL_OF + 5):
        answers.end()
    assert answers.counted == ALL_OF
    answers.times.looked_at()
    answers.untimed = 0
    for _ in range(10):
        answers.end()
    assert answers.counted == ALL_OF + 10
    for _ in range(ALL_OF):
        answers.end()
    assert (answers.counted, answers.calls) == (2 * ALL_OF, 2 * ALL_OF), "a thousand, as before the look"


def test_the_bus_passes_over_as_many_as_it_is_told() -> None:
    stage = Stage()
    noted: list[bytes] = []

    def note(service: bytes, seconds: float) -> int:
        noted.append(service)
        return 2

    stage.bus.note_time = note
    stage.bus.timed = True
    stage.worker("w", "echo", credit=9)
    for number in range(7):
        stage.submit("c", str(number), "echo")
        stage.result("w")
    assert len(noted) == 3


def test_counted_only_while_somebody_looks() -> None:
    stage, times = Stage(), Times()
    stage.bus.note_time = times.note
    stage.worker("w", "echo", credit=9)
    for timed in (False, True):
        stage.bus.timed = timed
        stage.submit("c", str(timed), "echo")
        stage.now += 0.5
        stage.result("w")
        # What came to nothing took no time.
        stage.submit("c", f"{timed} failed", "echo")
        stage.fail("w")
    (counts,) = times.counts.values()
    assert counts == {place_of(0.5): 1}


def test_nothing_is_counted_before_somebody_looks() -> None:
    stage, times = Stage(), Times()
    stage.bus.note_time = times.note
    stage.worker("w", "echo")
    stage.submit("c", "1", "echo")
    stage.result("w")
    assert not times.counts
