"""How long requests took, counted in classes of four to an octave: an answer is at most a tenth off.

Counted only while somebody looks (`Tables.timed`); what is counted only grows, so that each who looks takes
the difference between two looks and disturbs nobody.  After the first thousand since the last look only one
in sixteen is taken, and stands for all of them: otherwise looking would cost a busy broker a quarter of its
speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Final

# Classes begin at a microsecond; the last one is for everything beyond two days.
PER_OCTAVE: Final = 4
LAST: Final = 150
MICROSECONDS: Final = 1_000_000
ALL_OF: Final = 1000
ONE_IN: Final = 16


class Times:
    """Counts by service and class."""

    def __init__(self) -> None:
        self.counts: dict[bytes, dict[int, int]] = {}
        self._seen = 0

    def note(self, service: bytes, seconds: float) -> int:
        """Count an answer; how many of the next ones are to be passed over."""
        seen = self._seen = self._seen + 1
        # After the first thousand each stands for those, too, that went by before it.
        weight = 1 if seen <= ALL_OF else ONE_IN
        counts = self.counts.get(service)
        if counts is None:
            counts = self.counts[service] = {}
        place = place_of(seconds)
        counts[place] = counts.get(place, 0) + weight
        return 0 if seen < ALL_OF else ONE_IN - 1

    def looked_at(self) -> None:
        """From here on all are taken again, for a while."""
        self._seen = 0

    def clear(self) -> None:
        self.counts.clear()


def place_of(seconds: float) -> int:
    scaled = seconds * MICROSECONDS
    return min(LAST, int(log2(scaled) * PER_OCTAVE)) if scaled > 1 else 0


def seconds_at(place: int) -> float:
    """The middle of a class."""
    return round(2 ** ((place + 0.5) / PER_OCTAVE) / MICROSECONDS, 9)


def percentile(counts: Mapping[int, int], fraction: float) -> float | None:
    """How long the given part of all requests took at most; None if there were none."""
    wanted = sum(counts.values()) * fraction
    if not wanted:
        return None
    seen = 0
    for place in sorted(counts):
        seen += counts[place]
        if seen >= wanted:
            return seconds_at(place)
    return None
