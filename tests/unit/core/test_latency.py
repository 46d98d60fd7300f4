"""Times of requests, counted in classes."""

from __future__ import annotations

import random

from polybus.core.latency import LAST, Times, percentile, place_of, seconds_at
from support.stage import Stage


def test_a_class_is_close_to_what_is_in_it() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        seconds = 10 ** rng.uniform(-5.9, 4)
        assert abs(seconds_at(place_of(seconds)) / seconds - 1) < 0.1
    assert place_of(0.0) == place_of(-1.0) == 0
    assert place_of(1e30) == LAST


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
    times.clear()
    assert times.counts == {}


def test_of_very_many_a_part_stands_for_all() -> None:
    times, rng = Times(), random.Random(2)
    for _ in range(50_000):
        times.note(b"s", rng.uniform(0.0, 0.1))
    counts = times.counts[b"s"]
    assert abs(sum(counts.values()) - 50_000) < 20
    half = percentile(counts, 0.5)
    assert half is not None
    assert 0.04 < half < 0.06
    times.looked_at()
    times.note(b"t", 1.0)
    assert sum(times.counts[b"t"].values()) == 1


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
