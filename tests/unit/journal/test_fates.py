"""What becomes of requests, judged on rows made by hand: every kind of end, and every kind of doubt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from polybus.core.ledger import GUARANTEED, REVIVED
from polybus.journal.fates import COLUMNS, REMEMBERED, STEPS, UNWRITTEN, Fate, Fates, World, judge, unbegun
from polybus.journal.numbering import Life

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
KINDS = {"seq": pa.int64(), "at": pa.timestamp("us", "UTC"), "dispatched_at": pa.timestamp("us", "UTC")}
SCHEMA = pa.schema([(name, KINDS.get(name, pa.string())) for name in COLUMNS])


def row(seq: int, what: str, token: str | None = "old-1", life: str = "old", **facts: Any) -> dict[str, Any]:
    """A step at noon, with a reason or a worker where there should be one."""
    usual = {
        "life": life,
        "seq": seq,
        "at": NOON + seq * SECOND,
        "what": what,
        "token": token,
        "request_id": "id",
        "service": "echo",
        "reason": "why" if what in ("failed", "expired", "cancelled") else None,
        "dispatched_at": NOON if what == "replied" else None,
    }
    return {**usual, **facts}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def world(**facts: Any) -> World:
    """A broker in its second life; the first was killed at 13:00."""
    old = Life(
        "b", "old", NOON, facts.pop("killed_at", NOON + HOUR), is_stopped=facts.pop("is_stopped", False)
    )
    old.holes = facts.pop("holes", [])
    old.is_trimmed = facts.pop("is_trimmed", False)
    new = Life("b", "new", NOON + HOUR, NOON + 2 * HOUR)
    known = {"lives": {"old": old, "new": new}, "order": {"b": [old, new]}, "running": frozenset({"new"})}
    return World(**{**known, "now": NOON + 2 * HOUR, **facts})


def judged(rows: list[dict[str, Any]], **facts: Any) -> list[tuple[str, str]]:
    return [(fate.kind, fate.promise) for fate in judge(table(*rows), world(**facts))]


# -- rows are gathered ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [row(1, "accepted")],
        [row(1, "accepted"), row(2, "replied", dispatched_at=None)],
        [row(1, "accepted"), row(2, "failed", reason=None)],
        [row(1, "accepted"), row(2, "replied"), row(3, "dispatched")],
        [row(1, "accepted"), row(2, "replied"), row(3, "cancelled")],
        [row(1, "accepted"), row(2, "accepted"), row(3, "replied")],
        [row(2, "accepted"), row(1, "dispatched"), row(3, "replied")],
        [row(1, "replied")],
        [row(1, "accepted"), row(2, "replied", life="new")],
    ],
)
def test_a_request_that_is_not_plainly_whole_is_kept(rows: list[dict[str, Any]]) -> None:
    fates = Fates()
    fates.add(table(row(11, "accepted", "old-2"), row(12, "cancelled", "old-2"), *rows))
    left = fates.left()
    assert left is not None
    assert set(left["token"].to_pylist()) == {"old-1"}
    assert left.num_rows == len(rows)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("end", ["replied", "failed", "expired", "cancelled"])
def test_a_whole_request_is_counted_and_let_go(step: str, end: str) -> None:
    fates = Fates()
    fates.add(table(row(1, "accepted"), row(2, step), row(3, end), row(4, "beat"), row(5, "accepted", None)))
    assert fates.left() is None
    assert (fates.accepted, dict(fates.ends)) == (1, {end: 1})


def test_the_steps_of_a_request() -> None:
    assert STEPS == ("dispatched", "partial", "retried", "requeued", "claimed")


def test_what_is_no_step_of_a_request_is_not_gathered() -> None:
    fates = Fates()
    assert fates.left() is None
    fates.add(table(row(1, "beat"), row(2, "rejected"), row(3, "replied", None)))
    assert (fates.left(), fates.accepted, fates.ends.total()) == (None, 0, 0)


@pytest.mark.parametrize("gathered", [1, 2, 3, 1000])
def test_how_much_is_gathered_changes_nothing(gathered: int) -> None:
    fates = Fates(gathered)
    for number in range(10):
        fates.add(table(row(2 * number + 1, "accepted", f"old-{number}")))
    for number in range(9):
        fates.add(table(row(30 + number, "cancelled", f"old-{number}")))
    left = fates.left()
    assert left is not None
    assert left["token"].to_pylist() == ["old-9"]
    assert (fates.accepted, fates.ends["cancelled"]) == (10, 9)


def test_what_is_kept_in_memory_are_requests_that_have_not_ended() -> None:
    fates = Fates(10)
    for number in range(5):
        whole = [(row(n, "accepted", f"old-{n}"), row(n + 50, "cancelled", f"old-{n}")) for n in range(1, 7)]
        fates.add(table(row(99, "accepted", f"open-{number}"), *(one for each in whole for one in each)))
        assert sum(part.num_rows for part in fates._parts) == number + 1


def test_what_is_kept_is_not_looked_at_again_with_everything_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a journal with many requests that have not ended would take for ever."""
    looks: list[int] = []
    settle = Fates.settle

    def counted(fates: Fates) -> None:
        settle(fates)
        looks.append(sum(part.num_rows for part in fates._parts))

    monkeypatch.setattr(Fates, "settle", counted)
    fates = Fates(10)
    for number in range(100):
        fates.add(table(row(number, "accepted", f"open-{number}")))
    assert len(looks) < 6


def test_requests_without_their_beginning() -> None:
    rows = table(row(1, "accepted"), row(2, "replied"), row(3, "replied", "old-2"), row(4, "failed", "old-2"))
    assert unbegun(rows) == ["old-2"]


# -- one by one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(1, "accepted"), row(2, "replied")], []),
        # In which order rows are read does not matter.
        ([row(2, "replied"), row(1, "accepted")], []),
        ([row(1, "accepted"), row(2, "accepted"), row(3, "replied")], [("wrong", "P2")]),
        ([row(1, "accepted"), row(2, "failed"), row(3, "accepted"), row(4, "replied")], []),
        ([row(1, "accepted"), row(2, "failed", reason=None)], [("wrong", "P2")]),
        ([row(1, "accepted"), row(2, "replied", dispatched_at=None)], [("wrong", "P3")]),
        ([row(1, "accepted"), row(9, "replied", life="new", dispatched_at=None)], []),
        ([row(1, "accepted"), row(2, "replied"), row(3, "dispatched")], [("wrong", "P3")]),
        ([row(1, "accepted"), row(2, "replied"), row(3, "dispatched", life="new")], [("wrong", "P3")]),
        # Two ends: in one life, in two, and in two of which the first had no time to write the first down.
        ([row(1, "accepted"), row(2, "replied"), row(3, "failed")], [("wrong", "P3")]),
        ([row(1, "accepted"), row(2, "replied"), row(3, "failed", life="new")], [("wrong", "P3")]),
    ],
)
def test_what_may_follow_what(rows: list[dict[str, Any]], expected: list[tuple[str, str]]) -> None:
    assert judged(rows) == expected


@pytest.mark.parametrize("what", ["replied", "dispatched"])
def test_what_was_not_on_disk_when_the_broker_was_killed_may_happen_again(what: str) -> None:
    rows = [row(1, "accepted"), row(2, "replied"), row(1, what, life="new")]
    end = NOON + 2 * SECOND
    in_time = [("again", "")] if what == "replied" else []
    assert judged(rows, killed_at=end + UNWRITTEN) == in_time
    assert judged(rows, killed_at=end + UNWRITTEN + SECOND) == [("wrong", "P3")]
    # A broker that stopped has written everything, and one that runs will.
    assert judged(rows, killed_at=end, is_stopped=True) == [("wrong", "P3")]
    assert judged(rows, killed_at=end, running=frozenset({"old"})) == [("wrong", "P3")]


def test_what_is_told_of_two_ends() -> None:
    rows = [row(1, "accepted"), row(2, "replied"), row(3, "failed", service=None)]
    (fate,) = judge(table(*rows), world())
    assert fate == Fate(
        "wrong",
        "old-1",
        "",
        NOON + 3 * SECOND,
        "old",
        "it ended twice: replied at 2026-03-01 12:00:02, failed again at 2026-03-01 12:00:03",
        "P3",
    )


@pytest.mark.parametrize(
    ("token", "life", "facts", "is_wrong"),
    [
        ("old-1", "old", {}, True),
        # Its beginning is missing where records are.
        ("old-1", "old", {"is_trimmed": True}, False),
        ("old-1", "old", {"holes": [(1, 2)]}, False),
        # It began in a life of which nothing is left.
        ("older-1", "old", {}, False),
        # Or in one that was killed and took the record along; not in one that stopped.
        ("old-1", "new", {}, False),
        ("old-1", "new", {"is_stopped": True}, True),
        ("old-1", "new", {"running": frozenset({"old"})}, True),
    ],
)
def test_an_end_without_a_beginning(token: str, life: str, facts: dict[str, Any], is_wrong: bool) -> None:
    assert judged([row(5, "cancelled", token, life)], **facts) == ([("wrong", "P2")] if is_wrong else [])


GUARANTEE = {"reason": GUARANTEED}


@pytest.mark.parametrize(
    ("rows", "facts", "expected"),
    [
        # Plain requests live and die with their broker.
        ([row(1, "accepted", life="new")], {}, ("open", "")),
        ([row(1, "accepted")], {}, ("lost", "")),
        # One whose acceptance is missing is not taken for guaranteed.
        ([row(2, "dispatched")], {}, ("lost", "")),
        ([row(1, "accepted")], {"kept": {"old-1": "open"}.get}, ("lost", "")),
        ([row(1, "accepted")], {"holes": [(2, 3)]}, ("unsure", "")),
        ([row(5, "accepted")], {"holes": [(2, 3)]}, ("lost", "")),
        # For what is guaranteed the store is asked.
        ([row(1, "accepted", **GUARANTEE)], {}, ("open", "")),
        ([row(1, "accepted", reason=REVIVED)], {}, ("open", "")),
        ([row(1, "accepted", reason=REVIVED)], {"kept": {}.get}, ("wrong", "P1")),
        ([row(1, "accepted", **GUARANTEE)], {"kept": {"old-1": "open"}.get}, ("open", "")),
        ([row(1, "accepted", **GUARANTEE)], {"kept": {"old-1": "ended"}.get}, ("unsure", "")),
        ([row(1, "accepted", **GUARANTEE)], {"kept": {}.get, "holes": [(2, 3)]}, ("unsure", "")),
        ([row(1, "accepted", **GUARANTEE)], {"kept": {}.get}, ("wrong", "P1")),
        # Accepted just before the end, and not on disk: its client was told nothing.
        (
            [row(1, "accepted", **GUARANTEE)],
            {"kept": {}.get, "killed_at": NOON + SECOND + UNWRITTEN},
            ("lost", ""),
        ),
        (
            [row(1, "accepted", **GUARANTEE)],
            {"kept": {}.get, "killed_at": NOON + 2 * SECOND + UNWRITTEN},
            ("wrong", "P1"),
        ),
        (
            [row(1, "accepted", **GUARANTEE), row(2, "dispatched")],
            {"kept": {}.get, "killed_at": NOON + 2 * SECOND},
            ("wrong", "P1"),
        ),
        # The store forgets the end of what has no id, and of everything after a while.
        (
            [row(1, "accepted", **GUARANTEE), row(2, "dispatched", request_id=None)],
            {"kept": {}.get},
            ("unsure", ""),
        ),
        (
            [row(1, "accepted", **GUARANTEE)],
            {"kept": {}.get, "now": NOON + SECOND + REMEMBERED},
            ("wrong", "P1"),
        ),
        (
            [row(1, "accepted", **GUARANTEE)],
            {"kept": {}.get, "now": NOON + 2 * SECOND + REMEMBERED},
            ("unsure", ""),
        ),
        (
            [row(1, "accepted", **GUARANTEE)],
            {"kept": {}.get, "now": NOON + 2 * SECOND + REMEMBERED, "is_stopped": True},
            ("wrong", "P1"),
        ),
    ],
)
def test_a_request_without_an_end(
    rows: list[dict[str, Any]], facts: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert judged(rows, **facts) == [expected]


@pytest.mark.parametrize(("is_stopped", "word"), [(True, "stopped"), (False, "was killed")])
def test_how_a_request_was_lost(is_stopped: bool, word: str) -> None:
    (fate,) = judge(table(row(1, "accepted")), world(is_stopped=is_stopped))
    assert fate.text == f"accepted at 2026-03-01 12:00:01; the broker {word} at 2026-03-01 13:00:00"


def test_how_long_is_forgiven() -> None:
    assert timedelta(seconds=5) == UNWRITTEN
    assert timedelta(hours=20) == REMEMBERED
