"""Numbers as people read them: units, rounded values, and the ticks of axes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

NOTHING: Final = "–"
# Widths of the columns of a plot, in seconds; windows of `service_metrics` are the least.
WIDTHS_S: Final = (10, 30, 60, 120, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800)
# More columns than this cannot be told apart on a small screen.
MOST_COLUMNS: Final = 120
MOST_TICKS: Final = 7
# More than that, and what people look at is pressed into a corner.
MOST_DECADES: Final = 5


def count(value: float) -> str:
    """1,234 · 12.3 k · 4.5 M"""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = {"k": 1e3}.get(letter, size)
            return f"{value / unit:.3g} {letter}" if value / unit < 1000 else f"{value / unit:,.0f} {letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def micros(value: float | None) -> str:
    """A time given in microseconds, in the unit that fits."""
    if value is None:
        return NOTHING
    for size, unit in ((3.6e9, "h"), (6e7, "min"), (1e6, "s"), (1e3, "ms")):
        if value >= size * (2 if unit in ("h", "min") else 1):
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} µs"


def size(value: float) -> str:
    for unit, letter in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.0f} B"


def share(value: float | None) -> str:
    """0.0123 as 1.2 %; what is there is never shown as nothing."""
    if value is None:
        return NOTHING
    percent = value * 100
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %" if percent < 99.95 and percent % 1 else f"{percent:.0f} %"


def moment(at: datetime | None, with_date: bool = True) -> str:
    if at is None:
        return NOTHING
    at = at.astimezone(UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")


def column_width_s(length_s: float) -> int:
    return next((width for width in WIDTHS_S if length_s / width <= MOST_COLUMNS), WIDTHS_S[-1])


def ticks(most: float) -> list[float]:
    """Values from zero for an axis that ends at or above `most`: steps of 1, 2 or 5."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most / 3))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if most / (step * factor) <= 4.001)
    return [step * n for n in range(math.ceil(most / step - 1e-9) + 1)]


def decades(least: float, most: float) -> list[float]:
    """Powers of ten around some values; what is much smaller than the largest lies at the bottom."""
    low = math.floor(math.log10(max(least, 1.0)))
    high = max(math.ceil(math.log10(max(most, 1.0)) - 1e-9), low + 1)
    low = max(low, high - MOST_DECADES)
    return [10.0**power for power in range(low, high + 1)]


def time_ticks(begin: datetime, end: datetime) -> list[tuple[datetime, str]]:
    """Round times between two others, and how they are written."""
    length_s = max((end - begin).total_seconds(), 1.0)
    steps = (1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
    step = next((width for width in steps if length_s / width <= MOST_TICKS), 0)
    if not step:
        step = 86_400 * math.ceil(length_s / 86_400 / MOST_TICKS)
    first = math.ceil(begin.timestamp() / step) * step
    found = []
    for second in range(first, int(end.timestamp()) + 1, step):
        at = datetime.fromtimestamp(second, UTC)
        if step >= 86_400 or (at.hour, at.minute, at.second) == (0, 0, 0):
            text = f"{at:%b} {at.day}"
        else:
            text = at.strftime("%H:%M:%S" if step < 60 else "%H:%M")
        found.append((at, text))
    return found


class Clock:
    """The columns of all plots over time: how wide they are, and which of them a moment belongs to."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        length_s = max((end - begin).total_seconds(), float(WIDTHS_S[0]))
        self.width_s: Final = column_width_s(length_s)
        first = begin.timestamp() // self.width_s * self.width_s
        self.begin: Final = datetime.fromtimestamp(first, UTC)
        self.columns: Final = max(1, math.ceil((begin.timestamp() + length_s - first) / self.width_s))
        self.end: Final = self.begin + timedelta(seconds=self.width_s * self.columns)

    def start_of(self, column: int) -> datetime:
        return self.begin + timedelta(seconds=self.width_s * column)

    def share_of(self, at: datetime) -> float:
        """Where a moment is, between 0 and 1."""
        return (at - self.begin) / (self.end - self.begin)

    def span_of(self, column: int) -> str:
        begin = self.start_of(column)
        end = begin + timedelta(seconds=self.width_s)
        if self.width_s >= 86_400:
            return f"{begin:%Y-%m-%d}" + ("" if self.width_s == 86_400 else f" to {end:%Y-%m-%d}")
        day = "" if (self.end - self.begin).total_seconds() <= 86_400 else f"{begin:%b} {begin.day}, "
        exact = "%H:%M:%S" if self.width_s % 60 else "%H:%M"
        return f"{day}{begin.strftime(exact)}–{end.strftime(exact)}"
