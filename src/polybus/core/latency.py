"""How long requests took, counted in classes of four to an octave: an answer is at most a tenth off.

Counted only while somebody looks (`Tables.timed`); what is counted only grows, so that each who looks takes
the difference between two looks and disturbs nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Final

# Classes begin at a microsecond; the last one is for everything beyond two days.
PER_OCTAVE: Final = 4
LAST: Final = 150
MICROSECONDS: Final = 1_000_000


class Times:
    """Counts by service and class."""

    def __init__(self) -> None:
        self.counts: dict[bytes, dict[int, int]] = {}

    def note(self, service: bytes, seconds: float) -> None:
        counts = self.counts.get(service)
        if counts is None:
            counts = self.counts[service] = {}
        place = place_of(seconds)
        counts[place] = counts.get(place, 0) + 1

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
