"""Neighbouring batches become one table, and one that makes no sense costs only itself."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.errors import JournalDamaged
from polybus.journal import batches
from polybus.journal.batches import tables_in
from polybus.journal.log import Batch, Damage, LogHead
from polybus.journal.record import Row, write_row

HEAD = LogHead("tested", "life", 1, 0.0)
GONE = Damage(0, 1, "gone")


def batch(first: int, count: int = 2) -> Batch:
    rows = [Row("beat", 1_000_000 + number) for number in range(first, first + count)]
    return Batch(first, count, b"".join(map(write_row, rows)), first * 100)


def seen(found: list[Batch | Damage]) -> list[Any]:
    said: list[Any] = []
    for each in tables_in(HEAD, found):
        if isinstance(each, Damage):
            said.append(each.what)
        elif isinstance(each[1], JournalDamaged):
            said.append(("senseless", each[0].first, each[0].offset))
        else:
            said.append(each[1]["seq"].to_pylist())
    return said


def test_neighbours_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen([]) == []
    assert seen([batch(1), batch(3), batch(5)]) == [[1, 2, 3, 4, 5, 6]]
    assert seen([batch(1), batch(4), batch(6)]) == [[1, 2], [4, 5, 6, 7]]
    assert seen([batch(1), GONE, batch(3)]) == [[1, 2], "gone", [3, 4]]
    monkeypatch.setattr(batches, "JOINED_BYTES", 0)
    assert seen([batch(1), batch(3)]) == [[1, 2], [3, 4]]


def test_one_that_makes_no_sense() -> None:
    odd = Batch(3, 2, batch(3).payload[:-4], 300)
    assert seen([batch(1), odd, batch(5)]) == [[1, 2], ("senseless", 3, 300), [5, 6]]
    assert seen([odd]) == [("senseless", 3, 300)]


def test_neighbours_of_different_sizes_are_joined() -> None:
    assert seen([batch(1, 1), batch(2, 3), batch(5, 1), batch(6, 2)]) == [[1, 2, 3, 4, 5, 6, 7]]
    assert seen([batch(1, 1), batch(2, 3), batch(3, 1)]) == [[1, 2, 3, 4], [3]]
