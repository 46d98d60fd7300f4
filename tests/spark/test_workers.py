"""The table of workers: a worker is up from `worker_up` to `worker_down`, and not a moment longer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from polybus.journal.record import Row
from polybus.spark.pipeline import Pipeline
from polybus.spark.tables import read_table
from support.journals import NOON_US, Logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def up(worker: str, at: int) -> Row:
    return _row("worker_up", worker, at, service=b"echo")


def down(worker: str, at: int, since: int) -> Row:
    return _row("worker_down", worker, at, accepted_at=NOON_US + since, reason="it left")


def replied(worker: str, at: int, took: int) -> Row:
    """The end of a request that took the worker so many microseconds."""
    begin = NOON_US + at - took
    return _row("replied", worker, at, accepted_at=begin, dispatched_at=begin, token=b"%d" % at)


def _row(what: str, worker: str, at: int, **facts: Any) -> Row:
    return Row(what, NOON_US + at, worker=worker.encode(), worker_dialect="mdr", worker_link=1, **facts)


def test_a_worker_that_has_ended_is_not_up_any_more(spark: SparkSession, tmp_path: Path) -> None:
    journal, tables = tmp_path / "journal", tmp_path / "tables"
    logs = Logs(journal)
    batches = [
        [
            up("stays", 0),
            # Within one batch, and the last that is heard of it is a reply that comes later.
            *(up("left", 0), replied("left", 50, 20), down("left", 100, since=0), replied("left", 170, 80)),
            up("leaves", 0),
            # Here it ends, and something that it did is found in the next batch.
            *(up("late", 0), down("late", 100, since=0)),
            *(up("returns", 0), down("returns", 100, since=0)),
        ],
        [
            replied("stays", 400, 100),
            down("leaves", 300, since=0),
            replied("leaves", 350, 60),
            replied("late", 390, 50),
            *(up("returns", 200), replied("returns", 260, 40)),
        ],
    ]
    for rows in batches:
        logs.write(rows)
        logs.archive()
        Pipeline(spark, str(journal), str(tables)).build()
    found = {row["worker"]: row for row in read_table(str(tables), "workers").to_pylist()}
    facts = {
        name: (row["sessions"], row["ended"], row["up_us"], row["busy"])
        for name, row in sorted(found.items())
    }
    assert facts == {
        "stays": (1, 0, 400, 100 / 400),
        "left": (1, 1, 100, 100 / 100),
        "leaves": (1, 1, 300, 60 / 300),
        "late": (1, 1, 100, 50 / 100),
        "returns": (2, 1, 100 + 60, 40 / 160),
    }
    assert {name: row["last_down_reason"] for name, row in found.items()} == {
        "stays": None,
        **dict.fromkeys(("left", "leaves", "late", "returns"), "it left"),
    }
