"""The tables, read for pages: the newest rows, the history of a service, how far the pipeline is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from polybus.spark.schema import CALLS, DEAD_LETTERS, LAST_VALUES, SERVICE_METRICS, TRACES, Table
from polybus.web import tables as module
from polybus.web.answers import Refused
from polybus.web.pipeline import describe, number_of
from polybus.web.tables import MAX_POINTS, Tables, merged, plain

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WRITER = "polybus-0123456789ab"


def row(table: Table, **values: Any) -> dict[str, Any]:
    """A row with something in every column."""

    def some(kind: pa.DataType) -> Any:
        if pa.types.is_string(kind):
            return "x"
        if pa.types.is_timestamp(kind):
            return NOON
        return [] if pa.types.is_list(kind) else 0

    return {field.name: some(field.type) for field in table.schema} | {"date": "2026-05-01"} | values


def write(place: Path, table: Table, rows: list[dict[str, Any]], batch: int = 1) -> None:
    known = [{name: each[name] for name in table.schema.names} for each in rows]
    write_deltalake(
        str(place / table.name),
        pa.Table.from_pylist(known, table.schema),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(WRITER, batch)]),
    )


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_newest_rows_come_first(tmp_path: Path) -> None:
    for batch in range(3):
        moments = [NOON + timedelta(seconds=10 * batch + step) for step in range(10)]
        rows = [row(TRACES, seq=at.second, finished_at=at, service=f"s{at.second}") for at in moments]
        write(tmp_path, TRACES, rows, batch)
    found = json.loads(Tables(str(tmp_path)).newest("traces", 12))
    assert [each["seq"] for each in found] == list(range(29, 17, -1))
    assert found[0]["finished_at"] == "2026-05-01T12:00:29+00:00"


def test_of_many_rows_the_newest_are_found_by_their_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 10)
    # In no order, and several of the same moment.
    rows = [row(CALLS, client=str(n), last_at=NOON + timedelta(seconds=(n * 7) % 50)) for n in range(100)]
    write(tmp_path, CALLS, rows)
    found = json.loads(Tables(str(tmp_path)).newest("calls", 5))
    assert [each["last_at"][17:19] for each in found] == ["49", "49", "48", "48", "47"]


def test_a_result_is_kept_until_the_table_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    tables = Tables(str(tmp_path), clock)
    assert tables.newest("calls", 5) == b"[]"
    write(tmp_path, CALLS, [row(CALLS, client="one")])
    assert len(json.loads(tables.newest("calls", 5))) == 1
    made = []
    real = module._newest
    monkeypatch.setattr(module, "_newest", lambda *given: made.append(1) or real(*given))
    tables.newest("calls", 5)
    assert not made
    write(tmp_path, CALLS, [row(CALLS, client="two")], 2)
    # Looked at a moment ago: it is taken for unchanged.
    assert len(json.loads(tables.newest("calls", 5))) == 1
    clock.now += module.LOOK_S
    assert len(json.loads(tables.newest("calls", 5))) == 2
    assert made == [1]
    for limit in range(1, module.MAX_KEPT + 20):
        tables.newest("calls", limit)
    assert len(tables._kept) == module.MAX_KEPT


def test_bodies_are_text_and_cut(tmp_path: Path) -> None:
    write(tmp_path, LAST_VALUES, [row(LAST_VALUES, topic="t", body=[b"\xff<b>", b"y" * 5000])])
    found = json.loads(Tables(str(tmp_path)).newest("last_values", 1))[0]["body"]
    assert found == ["\\xff<b>", "y" * module.BODY_BYTES]
    assert len(plain([b""] * 1000)) == module.BODY_FRAMES


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    for name, limit, status in (
        ("nope", 1, 404),
        ("../etc", 1, 404),
        ("calls", 0, 400),
        ("calls", 10**6, 400),
    ):
        with pytest.raises(Refused) as caught:
            tables.newest(name, limit)
        assert caught.value.status == status
        assert caught.value.next


def test_a_damaged_table_is_said_to_be_one(tmp_path: Path) -> None:
    write(tmp_path, CALLS, [row(CALLS)])
    for file in (tmp_path / "calls").glob("*.parquet"):
        file.unlink()
    with pytest.raises(Refused) as caught:
        Tables(str(tmp_path)).newest("calls", 5)
    assert caught.value.status == 503
    assert "calls" in str(caught.value)


# -- the history of a service ---------------------------------------------------------------------


def window(
    at: datetime, requests: int = 0, failed: int = 0, us: dict[int, int] | None = None
) -> dict[str, Any]:
    buckets = [{"us": micros, "count": count} for micros, count in (us or {}).items()]
    return row(
        SERVICE_METRICS,
        service="mail",
        window_start=at,
        requests=requests,
        failed=failed,
        service_buckets=buckets,
        wait_buckets=[],
    )


def test_the_history_of_one_service(tmp_path: Path) -> None:
    ten = timedelta(seconds=10)
    rows = [window(NOON + 2 * ten, 20, 5, {100: 19, 9000: 1}), window(NOON, 10, 0, {100: 10})]
    old = window(NOON - timedelta(hours=2), 99)
    other = {**window(NOON, 50), "service": "other"}
    write(tmp_path, SERVICE_METRICS, [*rows, old, other])
    now = (NOON + timedelta(minutes=1)).timestamp()
    found = json.loads(Tables(str(tmp_path)).service("mail", 60, now))
    assert [point["at"] for point in found] == [NOON.timestamp(), (NOON + 2 * ten).timestamp()]
    last = found[1]
    assert (last["rate"], last["error_rate"], last["requests"]) == (2.0, 0.25, 20)
    assert (last["service_p50_us"], last["service_p95_us"], last["service_p99_us"]) == (100, 100, 9000)
    assert last["wait_p50_us"] is None


def test_many_windows_are_added_up_exactly() -> None:
    """Percentiles of percentiles would be wrong; those of added histograms are not."""
    count = MAX_POINTS * 3
    rows = [window(NOON + timedelta(seconds=10 * n), 1, 0, {n + 1: 1}) for n in range(count)]
    points = merged(rows)
    assert len(points) <= MAX_POINTS
    assert sum(point["requests"] for point in points) == count
    assert points[0]["seconds"] == 30
    assert [points[0][f"service_p{q}_us"] for q in (50, 99)] == [2, 3]
    assert points[0]["rate"] == pytest.approx(0.1)


# -- how far the pipeline is ----------------------------------------------------------------------


def segment(journal: Path, number: int) -> None:
    folder = journal / "segments" / "date=2026-05-01" / "hour=12"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:012d}-abcdef01.parquet").write_bytes(b"")


def test_without_tables_it_says_what_to_do(tmp_path: Path) -> None:
    told = describe(Tables(str(tmp_path / "tables")), tmp_path, NOON.timestamp())
    assert told["tables"] == []
    assert told["next"] == "polybus pipeline run"
    assert "no journal" in told["journal_error"]


def test_how_far_the_tables_are_behind_the_journal(tmp_path: Path) -> None:
    place, journal = tmp_path / "tables", tmp_path / "journal"
    write(place, DEAD_LETTERS, [row(DEAD_LETTERS, seq=n) for n in range(7)], batch=4)
    (place / "_pipeline.json").write_text(json.dumps({"writer": WRITER, "has_begun": True}))
    for number in range(1, 6):
        segment(journal, number)
    (journal / "readers").mkdir()
    (journal / "readers" / f"{WRITER}.json").write_text(json.dumps({"name": WRITER, "upto": 2, "at": 0}))
    newest = max(path.stat().st_mtime for path in journal.rglob("*.parquet"))
    tables = Tables(str(place))
    told = describe(tables, tmp_path, newest + 100)
    assert [(each["table"], each["rows"], each["batch"]) for each in told["tables"]] == [
        ("dead_letters", 7, 4)
    ]
    assert told["batch"] == 4
    assert told["lag_segments"] == 3
    assert told["lag_s"] >= 100
    # A batch that is over is known from the checkpoint before the pipeline says so itself.
    checkpoint = place / "_checkpoint"
    for folder in ("commits", "sources/0"):
        (checkpoint / folder).mkdir(parents=True)
    (checkpoint / "commits" / "3").write_text("v1\n{}")
    lines = [json.dumps({"path": f"file:///j/{n:012d}-abcdef01.parquet", "batchId": 3}) for n in (4, 5)]
    (checkpoint / "sources" / "0" / "3").write_text("\n".join(["v1", *lines]))
    # One that has only begun is not.
    (checkpoint / "sources" / "0" / "4").write_text(
        "v1\n" + json.dumps({"path": "x/000000000009-ab.parquet"})
    )
    told = describe(tables, tmp_path, newest + 100)
    assert (told["lag_segments"], told["lag_s"], told["taken_upto"]) == (0, 0.0, 5)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("000000000012-7f1003e4.parquet", 12),
        ("000000000001-000000000002-26640d87.parquet", 2),
        ("x.parquet", 0),
    ],
)
def test_numbers_of_segments(name: str, number: int) -> None:
    assert number_of(name) == number
