"""Batches that hold next to nothing: what a table needs may be the only thing in a batch.

What the tables must hold is computed by the plain reading (tests/pipeline), for the whole journal at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compare import compare_all, journal_rows
from pipeline.expected import Row as TableRow
from pipeline.expected import all_tables
from polybus.journal.record import Row
from polybus.spark.batches import Batch
from polybus.spark.pipeline import Pipeline
from polybus.spark.tables import read_table
from support.journals import NOON_US, Logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_US = 60_000_000
ENDS = ("replied", "failed", "expired", "cancelled")


def came(worker: bytes, at: int, service: bytes = b"echo") -> Row:
    return Row("worker_up", at, worker=worker, worker_dialect="mdr", worker_link=1, service=service)


def went(worker: bytes, at: int, since: int, reason: str, service: bytes = b"echo") -> Row:
    facts: dict[str, Any] = {"worker": worker, "worker_dialect": "mdr", "worker_link": 1, "service": service}
    return Row("worker_down", at, accepted_at=since, reason=reason, **facts)


def missed(worker: bytes, at: int) -> Row:
    return Row("heartbeat_missed", at, worker=worker, worker_dialect="mdr", worker_link=1)


def ended(what: str, worker: bytes, at: int, took: int = 700) -> Row:
    """The end of a request that this worker had for so many microseconds."""
    begin = at - took
    about: dict[str, Any] = {"client": b"ada", "client_dialect": "emqp", "service": b"echo", "size": 3}
    reason = "" if what == "replied" else what
    times = {"accepted_at": begin - 90, "dispatched_at": begin}
    return Row(what, at, worker=worker, worker_dialect="mdr", worker_link=1, reason=reason, **times, **about)


def published(at: int, body: bytes) -> Row:
    return Row("published", at, service=b"price/tea", body_size=len(body), body=(body,))


def said(at: int, text: str) -> Row:
    return Row("log", at, service=b"log/error/till", reason="error", detail=text)


def died(at: int) -> Row:
    return Row("dead", at, service=b"echo", client=b"ada", reason="failed", body=(b"letter",), attempt=3)


def build(
    spark: SparkSession, folder: Path, batches: Iterable[list[Row]]
) -> tuple[dict[str, list[TableRow]], list[str]]:
    """Make the tables, batch by batch; returns what they should hold and where they differ from it."""
    journal, tables = folder / "journal", folder / "tables"
    logs = Logs(journal)
    count = 0
    for rows in batches:
        logs.write(rows)
        logs.archive()
        count += 1
    seen: list[Batch] = []
    # A file a batch.
    Pipeline(spark, str(journal), str(tables), watch=seen.append, batch_bytes=1).build()
    assert len(seen) == count
    want = all_tables(journal_rows(sorted((journal / "segments").glob("**/[!.]*.parquet"))))
    return want, [line for found in compare_all(want, read_table, tables) for line in found.lines]


def test_what_is_alone_in_a_batch_reaches_its_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Each kind of row comes twice: to a table that knows nothing of it, and to one that does."""
    workers = (b"ann", b"ben", b"cat")
    # One of which nothing else is known when it goes.
    late = b"dan"
    batches = []
    for time in range(2):
        at = NOON_US + time * MINUTE_US
        leaving = (*workers, *([late] if time else []))
        # So many that go within a minute are an alert, so nothing else need be in a batch for one.
        batches += [
            [went(worker, at + 500, at - 2500, f"gone {time}") for worker in leaving],
            [came(worker, at + 1000) for worker in workers],
            [missed(workers[0], at + 1500)],
            *([ended(what, workers[1], at + 2000)] for what in ENDS[2 * time :]),
            [published(at + 3000, b"%d" % time)],
            [said(at + 3500, "no tea")],
            [died(at + 4000)],
        ]
        if not time:
            batches.append([came(late, at + 4500)])
    # What comes later counts if the clock stands still.
    batches.append([went(workers[0], NOON_US + MINUTE_US + 500, NOON_US, "gone for good")])
    want, differences = build(spark, tmp_path, batches)
    assert differences == []
    assert all(want.values()), "a table that has no rows shows nothing"
    assert {(row["rule"], row["value"]) for row in want["alerts"]} == {
        ("flapping", 3.0),
        ("flapping", 5.0),
        ("silent", 1.0),
    }
    assert {row["worker"]: (row["sessions"], row["ended"]) for row in want["workers"]} == {
        "ann": (2, 3),
        "ben": (2, 2),
        "cat": (2, 2),
        "dan": (1, 1),
    }


def test_workers_in_batches_of_any_size_add_up(spark: SparkSession, tmp_path: Path) -> None:
    """Sessions of some workers whose rows are cut anywhere; some have no end, or no beginning."""
    chance = random.Random(2)
    rows: list[Row] = []
    at = NOON_US
    since: dict[bytes, int] = {}
    for number in range(90):
        # Some things happen in the same microsecond.
        at += chance.choice((0, 1, 400, 90_000))
        worker = chance.choice((b"ann", b"ben", b"cat", b"dan"))
        match chance.randrange(5):
            case 0:
                since[worker] = at
                rows.append(came(worker, at, chance.choice((b"echo", b"mail"))))
            case 1:
                rows.append(went(worker, at, since.pop(worker, 0), f"reason {number}"))
            case 2:
                rows.append(missed(worker, at))
            case _:
                rows.append(ended(chance.choice(ENDS), worker, at, chance.randrange(900)))
    cuts = sorted(chance.sample(range(1, len(rows)), 7))
    batches = [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    want, differences = build(spark, tmp_path, batches)
    assert differences == []
    # What must be among them for this to show anything.
    found = {(row["sessions"] > row["ended"], row["ended"] > 1) for row in want["workers"]}
    assert found == {(True, True), (False, True)}
