"""Numbers of records: which are there, which are missing, and what is wrong about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from polybus.journal.numbering import Life, Missing, Numbering, Wrong

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def rows(
    *seqs: int,
    life: str = "l",
    at: datetime = NOON,
    what: str = "late",
    size: int = 0,
    reason: str | None = "",
    detail: str | None = "",
) -> pa.Table:
    return pa.table(
        {
            "broker": ["b"] * len(seqs),
            "life": [life] * len(seqs),
            "seq": pa.array(seqs, pa.int64()),
            "at": [at + timedelta(seconds=seq) for seq in seqs],
            "what": [what] * len(seqs),
            "size": pa.array([size] * len(seqs), pa.int64()),
            "reason": pa.array([reason] * len(seqs), pa.string()),
            "detail": pa.array([detail] * len(seqs), pa.string()),
        }
    )


def wrong(*tables: pa.Table, begin: datetime | None = None) -> list[tuple[str, int, int]]:
    numbering = Numbering()
    for table in tables:
        numbering.add(table)
    return [(one.kind, one.first, one.last) for one in numbering.check(begin)]


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([(1, 2, 3)], []),
        ([(1, 2), (3, 4)], []),
        ([(3, 4), (1, 2)], []),
        ([(2, 1, 3)], []),
        ([(2,)], [("missing", 1, 1)]),
        ([(1, 3)], [("missing", 2, 2)]),
        ([(1, 5), (6, 9)], [("missing", 2, 4), ("missing", 7, 8)]),
        ([(1, 1)], [("twice", 1, 1)]),
        ([(1, 2, 3), (2, 3, 4)], [("twice", 2, 3)]),
        ([(1, 2, 3, 4), (2, 3)], [("twice", 2, 3)]),
    ],
)
def test_what_is_missing_or_there_twice(
    parts: list[tuple[int, ...]], found: list[tuple[str, int, int]]
) -> None:
    assert wrong(*(rows(*part) for part in parts)) == found


def test_a_hole_says_which_numbers_are_missing() -> None:
    assert wrong(rows(1, 2), rows(5, what="hole", size=3), rows(6)) == []
    assert wrong(rows(1), rows(5, what="hole", size=3), rows(6)) == [("missing", 2, 2)]
    assert wrong(rows(1, 2, 3), rows(5, what="hole", size=3), rows(6)) == [("twice", 3, 3)]
    numbering = Numbering()
    numbering.add(rows(5, what="hole", size=3))
    life = numbering.lives["l"]
    assert (life.holes, life.runs, life.rows) == ([(3, 5)], [], 1)
    assert [life.missing_after(seq) is not None for seq in (2, 5, 6)] == [True, True, False]


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0)])
def test_what_is_missing_behind_a_number(order: tuple[int, ...]) -> None:
    """Whatever is read first."""
    tables = [
        rows(1, 2),
        rows(5, what="hole", size=3),
        rows(6, what="records_lost", detail="the buffer was full"),
        rows(9, what="hole", size=2),
        rows(10),
    ]
    numbering = Numbering()
    for place in order:
        numbering.add(tables[place])
    life = numbering.lives["l"]
    before = NOON + timedelta(seconds=9)
    assert life.missing_after(2) == Missing(5, before, "the buffer was full")
    assert life.missing_after(6) == Missing(2, before, "")
    assert life.missing_after(10) is None


@pytest.mark.parametrize(
    ("begin", "is_trimmed"),
    [
        (None, False),
        (NOON, True),
        (NOON + timedelta(minutes=59), True),
        (NOON + timedelta(hours=1), True),
        (NOON - timedelta(hours=1), False),
    ],
)
def test_what_was_removed_when_it_was_old_enough_is_not_missing(
    begin: datetime | None, is_trimmed: bool
) -> None:
    numbering = Numbering()
    numbering.add(rows(7, 8))
    found = [(one.kind, one.first, one.last) for one in numbering.check(begin)]
    assert found == ([] if is_trimmed else [("missing", 1, 6)])
    assert numbering.lives["l"].is_trimmed == is_trimmed


def test_every_life_has_its_own_numbers_and_times() -> None:
    numbering = Numbering()
    later = NOON + timedelta(hours=1)
    numbering.add(pa.concat_tables([rows(2, 1, life="b", at=later), rows(1, life="a"), rows(3, life="b")]))
    numbering.add(rows(2, life="a", what="stopped"))
    a, b = numbering.lives["a"], numbering.lives["b"]
    assert list(numbering.check(None)) == []
    assert (a.rows, a.is_stopped, a.first_at, a.last_at) == (
        2,
        True,
        NOON + timedelta(seconds=1),
        NOON + timedelta(seconds=2),
    )
    assert (b.rows, b.is_stopped, b.first_at, b.last_at) == (
        3,
        False,
        NOON + timedelta(seconds=3),
        later + timedelta(seconds=2),
    )
    assert (b.lowest, b.lowest_at) == (1, later + timedelta(seconds=1))
    assert numbering.in_order() == {"b": [a, b]}


def test_what_is_wrong_in_words() -> None:
    life = Life("b", "l", NOON, NOON)
    where = "broker b, life l: "
    assert str(Wrong("twice", life, 3, 3)) == f"{where}1 records are there twice: 3"
    assert str(Wrong("missing", life, 3, 5)) == (f"{where}3 records are missing and nothing says why: 3 to 5")


@pytest.mark.parametrize(
    ("parts", "runs"),
    [
        ([(7,)], [(7, 7)]),
        ([(2, 1, 3)], [(1, 3)]),
        ([(1, 2, 5, 6, 9)], [(1, 2), (5, 6), (9, 9)]),
        ([(1, 2), (3, 4, 5)], [(1, 5)]),
        ([(1, 2), (8, 9), (10, 11)], [(1, 2), (8, 11)]),
        ([(1, 1, 2)], [(1, 1), (1, 2)]),
    ],
)
def test_neighbours_are_kept_as_one_run_however_many_they_are(
    parts: list[tuple[int, ...]], runs: list[tuple[int, int]]
) -> None:
    numbering = Numbering()
    for part in parts:
        numbering.add(rows(*part))
    assert numbering.lives["l"].runs == runs


def test_a_life_begins_and_ends_with_its_rows_in_whatever_order_they_are_read() -> None:
    for order in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
        numbering = Numbering()
        for seq in order:
            numbering.add(rows(seq))
        life = numbering.lives["l"]
        first = NOON + timedelta(seconds=1)
        assert (life.first_at, life.last_at, life.rows) == (first, NOON + timedelta(seconds=3), 3)
        assert (life.lowest, life.lowest_at) == (1, first)


def test_a_hole_among_other_rows() -> None:
    numbering = Numbering()
    numbering.add(pa.concat_tables([rows(1), rows(4, what="hole", size=3), rows(5)]))
    life = numbering.lives["l"]
    assert (life.holes, life.runs, life.rows) == ([(2, 4)], [(1, 1), (5, 5)], 3)
    assert list(numbering.check(None)) == []


@pytest.mark.parametrize(
    ("reason", "detail", "why"),
    [("full", "the buffer was full", "the buffer was full"), ("full", None, "full"), (None, None, "")],
)
def test_why_records_were_lost(reason: str | None, detail: str | None, why: str) -> None:
    numbering = Numbering()
    numbering.add(rows(5, what="records_lost", reason=reason, detail=detail))
    assert numbering.lives["l"].why_missing(2) == why


@pytest.mark.parametrize(("first", "is_trimmed"), [(1, False), (2, True)])
def test_a_life_is_trimmed_if_its_first_record_is_not_there(first: int, is_trimmed: bool) -> None:
    numbering = Numbering()
    numbering.add(rows(first, first + 1))
    assert list(numbering.check(NOON)) == []
    assert numbering.lives["l"].is_trimmed == is_trimmed
