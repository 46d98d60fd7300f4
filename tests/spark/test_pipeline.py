"""The pipeline on a small journal: what it makes of it, in one go and in steps, and after being interrupted.

What the tables must hold is computed by a plain reading (tests/pipeline); the long version is
`make pipeline-check`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from pipeline.compare import compare_all, journal_rows
from pipeline.day import Day, Life, write_logs
from pipeline.expected import all_tables
from polybus.errors import ConfigError
from polybus.journal.archiver import Archiver
from polybus.journal.compaction import Compaction, Compactor
from polybus.spark.batches import Batch, Processor
from polybus.spark.pipeline import Pipeline, PipelineBusy, PipelineFailed, Reader
from polybus.spark.schema import CALLS, TABLES, Table
from polybus.spark.tables import Lake, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = 600


class Journal:
    """The journal of a day, which comes in portions."""

    def __init__(self, folder: Path, portions: int) -> None:
        self.folder = folder
        self._lives = Day(EVENTS, seed=7).lives()
        self._portions = portions
        self._taken = 0
        self._number = 1

    def more(self) -> None:
        """The next portion, as segments."""
        for life in self._lives:
            first, until = (
                1 + len(life.rows) * part // self._portions for part in (self._taken, self._taken + 1)
            )
            self._number = write_logs(self.folder / "open", life, first, until, self._number)
        self._taken += 1
        archiver = Archiver(self.folder)
        while archiver.turn().logs:
            pass

    @property
    def lives(self) -> list[Life]:
        return self._lives

    def mismatches(self, tables: Path) -> list[str]:
        rows = journal_rows(sorted(self.folder.glob("segments/**/[!.]*.parquet")))
        want = all_tables(rows)
        assert all(want.values()), "a table that has no rows shows nothing"
        return [line for found in compare_all(want, read_table, tables) for line in found.lines]


def pipeline(spark: SparkSession, journal: Journal, tables: Path, seen: list[Batch]) -> Pipeline:
    return Pipeline(spark, str(journal.folder), str(tables), watch=seen.append)


def test_what_comes_in_steps_adds_up(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", portions=2)
    tables = tmp_path / "tables"
    seen: list[Batch] = []
    journal.more()
    pipeline(spark, journal, tables, seen).build()
    journal.more()
    pipeline(spark, journal, tables, seen).build()
    assert [batch.number for batch in seen] == [1, 2]
    assert journal.mismatches(tables) == []
    versions = {name: Lake(str(tables), "x").open(table).version() for name, table in TABLES.items()}
    pipeline(spark, journal, tables, seen).build()
    assert len(seen) == 2, "nothing was new"
    after = {name: Lake(str(tables), "x").open(table).version() for name, table in TABLES.items()}
    assert after == versions


class Interrupted(Exception):
    pass


@pytest.mark.long
def test_a_batch_that_is_interrupted_is_finished_by_the_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal", portions=1)
    tables = tmp_path / "tables"
    seen: list[Batch] = []
    journal.more()

    def merge(self: Lake, table: Table, batch: int, rows: object) -> None:
        whole(self, table, batch, rows)
        if table is CALLS:
            raise Interrupted("after this table, before the others")

    whole = Lake.merge
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "merge", merge)
        with pytest.raises(PipelineFailed, match="before the others"):
            pipeline(spark, journal, tables, seen).build()
    assert read_table(str(tables), "calls").num_rows > 0
    pipeline(spark, journal, tables, seen).build()
    assert journal.mismatches(tables) == []


@pytest.mark.long
def test_what_was_compacted_before_comes_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal", portions=2)
    tables = tmp_path / "tables"
    seen: list[Batch] = []
    journal.more()
    # As the compaction would: from one folder to the other.
    (journal.folder / "segments").rename(journal.folder / "compacted")
    journal.more()

    def process(self: Processor, events: DataFrame, number: int) -> Batch | None:
        batch = whole(self, events, number)
        if number == 0:
            raise Interrupted
        return batch

    whole = Processor.process
    with monkeypatch.context() as patch:
        patch.setattr(Processor, "process", process)
        with pytest.raises(Interrupted):
            pipeline(spark, journal, tables, seen).build()
    assert list((journal.folder / "readers").glob("*.pin")), "the compaction has to wait"
    pipeline(spark, journal, tables, seen).build()
    assert not list((journal.folder / "readers").glob("*.pin"))
    (journal.folder / "compacted").rename(journal.folder / "segments" / "compacted")
    assert journal.mismatches(tables) == []
    pipeline(spark, journal, tmp_path / "other", seen).forget()
    pipeline(spark, journal, tmp_path / "other", seen).build()
    assert journal.mismatches(tmp_path / "other") == []


def test_what_was_compacted_and_waits_for_another_reader_is_not_read_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal", portions=4)
    seen: list[Batch] = []
    for _ in range(2):
        journal.more()
    # Somebody else has not read anything, so what is compacted stays in the landing as well.
    (journal.folder / "readers").mkdir()
    note = Reader("another", 0, time.time())
    (journal.folder / "readers" / "another.json").write_bytes(msgspec.json.encode(note))
    compactor = Compactor(journal.folder, 0.0)
    made = [report.path for report in iter(compactor.turn, Compaction(held="another has read up to 0 only"))]
    assert made
    for _ in range(2):
        journal.more()
    pipeline(spark, journal, tmp_path / "tables", seen).build()
    assert [batch.number for batch in seen] == [0, 1]
    assert journal.mismatches(tmp_path / "tables") == []


def test_no_journal(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no journal in"):
        Pipeline(spark, str(tmp_path), str(tmp_path / "tables")).build()


def test_only_one_writes(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal" / "segments").mkdir(parents=True)
    one = Pipeline(spark, str(tmp_path / "journal"), str(tmp_path / "tables"))
    with one._alone(), pytest.raises(PipelineBusy, match="another pipeline"):
        Pipeline(spark, str(tmp_path / "journal"), str(tmp_path / "tables")).build()
