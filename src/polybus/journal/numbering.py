"""The numbers of records: in each life of a broker from 1 on, none missing, none twice.

What is read comes in any order and a part at a time.  Of each life only runs of neighbouring numbers are
kept, which are few: so it does not matter how many rows there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from itertools import accumulate
from operator import itemgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

COLUMNS: Final = ("broker", "life", "seq", "at", "what", "size", "reason", "detail")
# Rows that tell of the life itself.
_SPECIAL: Final = pa.array(["hole", "records_lost", "stopped"])


class Missing(Struct, frozen=True):
    """Records that are not in a journal: how many, before which time, and why, if the broker said so."""

    records: int
    before: datetime | None
    why: str


class Life(Struct):
    """What is known of one life of a broker."""

    broker: str
    name: str
    first_at: datetime
    last_at: datetime
    rows: int = 0
    # Whether it said that it ends.
    is_stopped: bool = False
    # When the record with the lowest number was made.
    lowest: int = 0
    lowest_at: datetime | None = None
    # Numbers that are there, and numbers of which a row says that they are missing: from, to.
    runs: list[tuple[int, int]] = []
    holes: list[tuple[int, int]] = []
    # When the first record behind each hole was made, by the hole's last number.
    hole_ends: dict[int, datetime] = {}
    # What the broker said about records that it lost: behind which number, and why.
    losses: list[tuple[int, str]] = []
    # Its first records were removed when they were old enough.
    is_trimmed: bool = False
    # How many records are missing from each hole on.
    _behind: list[int] = []

    def missing_after(self, seq: int) -> Missing | None:
        """The records that are missing behind a number; None if all are there. For when all rows are read."""
        if len(self._behind) != len(self.holes):
            # Summed once: there may be thousands of holes, and as many requests that are asked for.
            self.holes.sort()
            counts = [last - first + 1 for first, last in self.holes]
            self._behind = list(accumulate(reversed(counts)))[::-1]
        at = bisect_left(self.holes, seq, key=itemgetter(1))
        if at == len(self.holes):
            return None
        before = self.hole_ends.get(self.holes[-1][1])
        return Missing(self._behind[at], before, self.why_missing(self.holes[at][0]))

    def why_missing(self, seq: int) -> str:
        """What the broker said about the loss of a record; empty if it said nothing."""
        return next((why for at, why in sorted(self.losses) if at >= seq), "")


class Wrong(Struct, frozen=True):
    """Numbers that are there twice, or missing without a word."""

    kind: str
    life: Life
    first: int
    last: int

    def __str__(self) -> str:
        count = self.last - self.first + 1
        which = f"{self.first}" if count == 1 else f"{self.first} to {self.last}"
        where = f"broker {self.life.broker}, life {self.life.name}"
        if self.kind == "twice":
            return f"{where}: {count} records are there twice: {which}"
        return f"{where}: {count} records are missing and nothing says why: {which}"


class Numbering:
    """Fed with rows; afterwards it knows the lives, their holes, and what is wrong."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}

    def add(self, table: pa.Table) -> None:
        names = pc.unique(table["life"]).to_pylist()
        for name in names:
            part = table if len(names) == 1 else table.filter(pc.equal(table["life"], name))
            self._add(name, part)

    def _add(self, name: str, part: pa.Table) -> None:
        span = pc.min_max(part["at"]).as_py()
        life = self.lives.get(name)
        if life is None:
            life = self.lives[name] = Life(part["broker"][0].as_py(), name, span["min"], span["max"])
        life.first_at = min(life.first_at, span["min"])
        life.last_at = max(life.last_at, span["max"])
        special = part.filter(pc.is_in(part["what"], _SPECIAL)).select(list(COLUMNS)).to_pylist()
        for row in special:
            if row["what"] == "stopped":
                life.is_stopped = True
            elif row["what"] == "records_lost":
                life.losses.append((row["seq"], row["detail"] or row["reason"] or ""))
            else:
                life.hole_ends[row["seq"]] = row["at"]
                life.holes.append((row["seq"] - row["size"] + 1, row["seq"]))
        life.rows += part.num_rows
        if any(row["what"] == "hole" for row in special):
            part = part.filter(pc.not_equal(part["what"], "hole"))
            if not part.num_rows:
                return
        lowest = pc.min(part["seq"]).as_py()
        if not life.lowest or lowest < life.lowest:
            life.lowest = lowest
            life.lowest_at = part["at"][pc.index(part["seq"], lowest).as_py()].as_py()
        for run in _runs(part["seq"]):
            if life.runs and life.runs[-1][1] + 1 == run[0]:
                life.runs[-1] = (life.runs[-1][0], run[1])
            else:
                life.runs.append(run)

    def check(self, begin: datetime | None) -> Iterator[Wrong]:
        """What is wrong. `begin` is the first hour that is kept: what is missing before that was removed."""
        for life in self.lives.values():
            due = 1
            spans = sorted([*life.runs, *life.holes])
            # A life is known by a row of it, so there is a span.
            first = spans[0][0]
            at = life.lowest_at
            if first > 1 and begin is not None and at is not None and _hour(at) <= _hour(begin):
                life.is_trimmed = True
                due = first
            for start, end in spans:
                if start < due:
                    yield Wrong("twice", life, start, min(end, due - 1))
                elif start > due:
                    yield Wrong("missing", life, due, start - 1)
                due = max(due, end + 1)

    def in_order(self) -> dict[str, list[Life]]:
        """The lives of each broker, one after the other."""
        brokers: dict[str, list[Life]] = {}
        for life in sorted(self.lives.values(), key=lambda life: (life.first_at, life.name)):
            brokers.setdefault(life.broker, []).append(life)
        return brokers


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _runs(numbers: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Neighbouring numbers as runs; a number that is there twice begins a run of its own."""
    ordered = numbers.combine_chunks()
    if isinstance(ordered, pa.ChunkedArray):
        ordered = pa.concat_arrays(ordered.chunks)
    steps = pc.pairwise_diff(ordered, 1)[1:]
    if pc.any(pc.less(steps, 1), min_count=0).as_py():
        ordered = ordered.take(pc.array_sort_indices(ordered))
        steps = pc.pairwise_diff(ordered, 1)[1:]
    breaks = pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()
    starts = [0, *(place + 1 for place in breaks)]
    ends = [*breaks, len(ordered) - 1]
    return [(ordered[a].as_py(), ordered[b].as_py()) for a, b in zip(starts, ends, strict=True)]
