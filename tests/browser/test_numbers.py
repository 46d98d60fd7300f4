"""The page computes what the command line computes: the same counts give the same rates and times."""

from __future__ import annotations

import random

import pytest

from polybus.core.latency import LAST, percentile
from support.browsing import Sight

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
FRACTIONS = [0.5, 0.95, 0.99]


def test_percentiles_are_those_of_the_broker(sight: Sight) -> None:
    chance = random.Random(7)
    histograms: list[dict[int, int]] = [{}, {0: 1}, {LAST: 3}, {10: 1, 20: 99}]
    for _ in range(200):
        places = chance.sample(range(LAST + 1), chance.randrange(1, 20))
        histograms.append({place: chance.randrange(1, 2000) for place in places})
    seen = sight.page.evaluate(
        """async ([histograms, fractions]) => {
          const { percentiles } = await import("/js/latency.js");
          return histograms.map((pairs) => percentiles(new Map(pairs), fractions));
        }""",
        [[list(counts.items()) for counts in histograms], FRACTIONS],
    )
    for counts, found in zip(histograms, seen, strict=True):
        told = [percentile(counts, fraction) for fraction in FRACTIONS]
        if told[0] is None:
            assert found == [None, None, None]
        else:
            # Python rounds to a nanosecond.
            assert found == pytest.approx(told, abs=1e-9)


def test_what_lies_between_two_looks_is_the_difference(sight: Sight) -> None:
    looks = [
        ({"5": 3, "9": 1}, {"5": 1}, {5: 2, 9: 1}),
        ({"5": 3}, {"5": 3}, {}),
        # Nobody looked for a while, and it was counted anew.
        ({"5": 1, "9": 2}, {"5": 30}, {5: 1, 9: 2}),
    ]
    for now, before, wanted in looks:
        found = sight.page.evaluate(
            """async ([now, before]) => {
              const { difference } = await import("/js/latency.js");
              return [...difference(now, before)];
            }""",
            [now, before],
        )
        assert dict(map(tuple, found)) == wanted


def test_times_and_numbers_are_written_for_people(sight: Sight) -> None:
    cases = {
        "took": [(0.0000425, "43 µs"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (None, "–")],
        "span": [(0.25, "250 ms"), (5.04, "5.0 s"), (600, "10 min"), (90_000, "25 h"), (864_000, "10 d")],
        "number": [
            (0, "0"),
            (999, "999"),
            (1234, "1,234"),
            (12_345, "12.3 k"),
            (4.5e6, "4.5 M"),
            (2.25, "2.25"),
        ],
        "share": [(0, "0 %"), (0.0001, "< 0.1 %"), (0.025, "2.5 %"), (1, "100 %")],
        "size": [(512, "512 B"), (2048, "2 KiB"), (5 << 20, "5 MiB")],
        "epoch": [("2026-01-02T03:04:05.123456+00:00", 1767323045.123456), (12.5, 12.5), (None, None)],
    }
    for name, pairs in cases.items():
        found = sight.page.evaluate(
            """async ([name, values]) => {
              const format = await import("/js/format.js");
              return values.map((value) => format[name](value));
            }""",
            [name, [value for value, _ in pairs]],
        )
        assert found == [wanted for _, wanted in pairs], name
