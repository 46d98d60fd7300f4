"""Plots as inline SVG.

A drawing is stretched to the width that there is, and its lines keep their strength; what is written stands
beside it as HTML, so that it is as large on a phone as on a desk.  Colours come from the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from polybus.spark.report.marks import Html, tag, text, told
from polybus.spark.report.numbers import Clock, decades, ticks, time_ticks

# The drawing's own units.
WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
# Labels at the end of lines are at least so far apart, of 100.
APART: Final = 11.0

Series = Sequence[float | None]
Write = Callable[[float], str]


def drawing(content: Html, title: str) -> Html:
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(title)}">{content}</svg>'
    )


def _frame(
    clock: Clock, title: str, inside: Html, marks: list[tuple[float, str]], ends: list[tuple[float, str, str]]
) -> Html:
    """A drawing with its axes; `marks` are (height, text), `ends` (height, text, class), of 100."""
    lines = "".join(
        f'<line class="{"base" if not height else "grid"}" x1="0" x2="{WIDTH:g}" y1="{HEIGHT - height:.2f}" '
        f'y2="{HEIGHT - height:.2f}"/>'
        for height, _ in marks
    )
    left = "".join(f'<span style="bottom:{height:.2f}%">{text(word)}</span>' for height, word in marks)
    right = "".join(
        f'<span class="{kind}" style="bottom:{height:.2f}%">{text(word)}</span>'
        for height, word, kind in _spread(ends)
    )
    return (
        f'<div class="plot{"" if ends else " plain"}"><div class="left" aria-hidden="true">{left}</div>'
        f'<div class="area">{drawing(lines + inside, title)}</div>'
        f'<div class="right" aria-hidden="true">{right}</div>{_times(clock)}</div>'
    )


def _times(clock: Clock) -> Html:
    words = []
    for number, (at, word) in enumerate(time_ticks(clock.begin, clock.end)):
        place = clock.share_of(at)
        # Half of a word at the edge would be cut off.
        if 0.02 < place < 0.98:
            kind = ' class="minor"' if number % 2 else ""
            words.append(f'<span{kind} style="left:{place * 100:.2f}%">{text(word)}</span>')
    return f'<div class="below" aria-hidden="true">{"".join(words)}</div>'


def _spread(ends: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """The same labels, moved so far that none covers another."""
    placed: list[tuple[float, str, str]] = []
    for height, word, kind in sorted(ends):
        least = placed[-1][0] + APART if placed else 0.0
        placed.append((max(height, least), word, kind))
    over = placed[-1][0] - HEIGHT if placed else 0.0
    return [(height - over, word, kind) for height, word, kind in placed] if over > 0 else placed


def _hits(clock: Clock, words: Callable[[int], str]) -> Html:
    """What is told of a column while it is pointed at."""
    step = WIDTH / clock.columns
    return "".join(
        f'<rect class="hit" x="{column * step:.2f}" width="{step:.2f}" y="0" height="{HEIGHT:g}" '
        f'data-t="{told(clock.span_of(column))}&#10;{told(words(column))}"/>'
        for column in range(clock.columns)
    )


def stacked(
    clock: Clock, title: str, layers: Sequence[tuple[str, str, Sequence[float]]], write: Write, unit: str
) -> Html:
    """Columns over time, of several layers: (name, class, values); the first lies at the bottom."""
    totals = [sum(values[column] for _, _, values in layers) for column in range(clock.columns)]
    marks = ticks(max(totals, default=0.0))
    top = marks[-1]
    step = WIDTH / clock.columns
    gap = min(step * 0.15, 2.0)
    floors = [0.0] * clock.columns
    inside = ""
    for _, kind, values in layers:
        path = ""
        for column, value in enumerate(values):
            if value > 0:
                low, high = floors[column] / top * HEIGHT, (floors[column] + value) / top * HEIGHT
                # What is there is seen, however little it is.
                high = max(high, low + 0.6)
                path += (
                    f"M{column * step + gap / 2:.2f} {HEIGHT - low:.2f}V{HEIGHT - high:.2f}"
                    f"h{step - gap:.2f}V{HEIGHT - low:.2f}z"
                )
                floors[column] += value
        inside += f'<path class="fill {kind}" d="{path}"/>' if path else ""

    def words(column: int) -> str:
        parts = [
            f"{name}: {write(values[column])} {unit}".rstrip() for name, _, values in layers if values[column]
        ]
        return "\n".join(reversed(parts)) or "nothing"

    return _frame(
        clock, title, inside + _hits(clock, words), [(mark / top * 100, write(mark)) for mark in marks], []
    )


def lines(clock: Clock, title: str, series: Sequence[tuple[str, str, Series]], write: Write) -> Html:
    """Lines over time on a logarithmic scale: (name, class, values)."""
    known = [value for _, _, values in series for value in values if value is not None]
    marks = decades(min(known, default=1000.0), max(known, default=1000.0))
    low, high = math.log10(marks[0]), math.log10(marks[-1])

    def height(value: float) -> float:
        return (math.log10(max(value, marks[0])) - low) / (high - low) * 100

    inside, ends = "", []
    for name, kind, values in series:
        inside += f'<path class="line {kind}" d="{_path(values, height, clock.columns)}"/>'
        last = next((value for value in reversed(values) if value is not None), None)
        if last is not None:
            ends.append((height(last), name, kind))

    def words(column: int) -> str:
        parts = [
            f"{name}: {write(value)}" for name, _, values in series if (value := values[column]) is not None
        ]
        return "\n".join(reversed(parts)) or "nothing"

    scale = [(height(mark), write(mark)) for mark in marks]
    if min(known, default=marks[0]) < marks[0]:
        scale[0] = (0.0, f"≤ {scale[0][1]}")
    return _frame(clock, title, inside + _hits(clock, words), scale, ends)


def _path(values: Series, height: Callable[[float], float], columns: int) -> str:
    """A line through the middles of the columns, which breaks where nothing is."""
    step = WIDTH / columns
    path = ""
    for column, value in enumerate(values):
        if value is None:
            continue
        x, y = (column + 0.5) * step, HEIGHT - height(value)
        goes_on = column > 0 and values[column - 1] is not None
        continues = column + 1 < columns and values[column + 1] is not None
        if goes_on:
            path += f"L{x:.1f} {y:.2f}"
        elif continues:
            path += f"M{x:.1f} {y:.2f}"
        else:
            # All alone: a stroke as wide as its column.
            path += f"M{x - step * 0.4:.1f} {y:.2f}h{step * 0.8:.1f}"
    return path


def spark(values: Series, title: str, kind: str = "s-main") -> Html:
    """A small line in a row of a table, from zero to its own peak."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    path = _path(values, lambda value: 4 + value / top * 92, len(values))
    return tag("div", drawing(f'<path class="line {kind}" d="{path}"/>', title), class_="spark")


def bar(value: float, top: float, kind: str = "s-main") -> Html:
    """A bar in a row of a table."""
    width = max(value / top * 100, 0.5) if value and top else 0.0
    return f'<div class="bar"><i class="{kind}" style="width:{width:.2f}%"></i></div>'


def range_(values: dict[int, int | None], low: float, high: float) -> Html:
    """From the median to the slowest hundredth, on the same logarithmic scale in all rows."""
    places = {
        q: max(0.0, min((math.log10(max(value, 1)) - low) / (high - low), 1.0)) * 100
        for q, value in values.items()
        if value is not None
    }
    if not places:
        return ""
    left, right = min(places.values()), max(places.values())
    dots = "".join(f'<b class="q{q}" style="left:{place:.2f}%"></b>' for q, place in places.items())
    return f'<div class="range"><i style="left:{left:.2f}%;width:{right - left:.2f}%"></i>{dots}</div>'


def strip(
    clock: Clock, moments: Sequence[tuple[datetime, float, str]], title: str, kind: str = "s-bad"
) -> Html:
    """Marks at some moments: when, how long in seconds, and what is told of it."""
    length_s = (clock.end - clock.begin).total_seconds()
    marks = ""
    for at, width_s, words in moments:
        x = clock.share_of(at) * WIDTH
        width = max(width_s / length_s * WIDTH, 3.0)
        place = f'x="{x:.2f}" width="{width:.2f}" y="12" height="76"'
        marks += f'<rect class="fill {kind}" {place} data-t="{told(words)}"/>'
    base = f'<line class="grid" x1="0" x2="{WIDTH:g}" y1="50" y2="50"/>'
    return tag("div", drawing(base + marks, title), class_="strip")
