"""The pipeline as people run it, and the archiver before it; what the checks of this folder share."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from pipeline.compare import compare_all, journal_rows, report
from pipeline.expected import KEYS, Row, Rows, all_tables
from polybus.journal.archiver import OPEN_LOGS
from polybus.journal.log import log_files
from polybus.journal.reader import segment_files
from polybus.spark.pipeline import Pipeline
from polybus.spark.session import open_session
from polybus.spark.tables import read_table
from support.commands import environment
from support.live import POLYBUS
from support.waiting import until

BUILD_S: Final = 900.0


def archive_all(data_dir: Path) -> None:
    """Until no log is left; the archiver of a broker that has just ended may still be at work."""

    def is_done() -> bool:
        done = subprocess.run(
            [str(POLYBUS), "archive", "--data-dir", str(data_dir), "--once"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=BUILD_S,
        )
        assert not done.returncode or "archived already" in done.stderr, done.stderr
        return not done.returncode

    until(is_done, "the archiver's work", 120)
    assert not log_files(data_dir / "journal" / OPEN_LOGS), "the archiver left logs behind"


def command(do: str, journal: Path, tables: Path, *more: str) -> list[str]:
    return [str(POLYBUS), "pipeline", do, "--journal", str(journal), "--tables", str(tables), *more]


def pipeline(do: str, journal: Path, tables: Path, *more: str) -> float:
    """Run `polybus pipeline …` to its end; the seconds it took."""
    began = time.monotonic()
    done = subprocess.run(
        command(do, journal, tables, *more),
        env=environment(),
        cwd=journal.parent,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert done.returncode == 0, f"polybus pipeline {do} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return time.monotonic() - began


class Here:
    """The same in this process, with one Java for all builds: for checks that are to be quick."""

    def __init__(self) -> None:
        self._spark: Any = None

    def build(self, journal: Path, tables: Path) -> float:
        began = time.monotonic()
        if self._spark is None:
            self._spark = open_session()
        Pipeline(self._spark, str(journal), str(tables)).build()
        return time.monotonic() - began

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def versions(tables: Path) -> dict[str, int]:
    """How often each table was changed."""
    return {name: DeltaTable(str(tables / name)).version() for name in KEYS}


def rows_of(journal: Path) -> Rows:
    rows = journal_rows(segment_files(journal))
    twice = [key for key, count in Counter(map(place_of, rows)).items() if count > 1]
    assert not twice, f"rows that are in the journal twice: {twice[:3]}"
    return rows


def place_of(row: Row) -> tuple[Any, ...]:
    return row["broker"], row["life"], row["seq"]


def check(rows: Rows, tables: Path, title: str) -> tuple[int, int]:
    """The tables against a plain reading of these rows: how many rows, and how many of them are wrong."""
    return report(compare_all(all_tables(rows), read_table, tables), title)
