"""The archiver: every record of every log in the segments, exactly once, wherever it is killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from polybus.journal.archiver import OPEN_LOGS, SEGMENTS, Archiver, Report
from polybus.journal.log import FINISHED, OPEN, LogHead, log_files, log_path, write_batch, write_head
from polybus.journal.record import Row, write_row

HOUR_US = 3_600_000_000
NOON_US = 1_700_000_000_000_000 // HOUR_US * HOUR_US


def write_log(
    journal: Path, number: int, first: int, count: int, life: str = "life", step_us: int = 1
) -> None:
    folder = journal / OPEN_LOGS
    folder.mkdir(parents=True, exist_ok=True)
    rows = [Row("accepted", NOON_US + n * step_us, token=b"t%d" % n) for n in range(first, first + count)]
    batch = write_batch(first, count, b"".join(map(write_row, rows)))
    head = write_head(LogHead("tested", life, number, 0.0))
    log_path(folder, number, FINISHED).write_bytes(head + batch)


def archive(journal: Path, rows: int = 100_000) -> Report:
    """Until nothing is left to do."""
    total = Report()
    archiver = Archiver(journal, rows)
    while (report := archiver.turn()).logs:
        total = Report(
            total.logs + report.logs,
            total.rows + report.rows,
            total.lost + report.lost,
            total.damage + report.damage,
            total.segments + report.segments,
        )
    return total


def stored(journal: Path) -> pa.Table:
    # As Spark does: files that begin with a dot are not there.
    data = ds.dataset(journal / SEGMENTS, format="parquet", partitioning="hive", exclude_invalid_files=False)
    return data.to_table().sort_by([("life", "ascending"), ("seq", "ascending")])


def numbers(journal: Path) -> list[tuple[str, int]]:
    table = stored(journal)
    return list(zip(table["life"].to_pylist(), table["seq"].to_pylist(), strict=True))


def test_logs_become_segments_and_are_gone(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 1, 50)
    write_log(tmp_path, 2, 51, 50)
    report = archive(tmp_path)
    assert (report.logs, report.rows, report.lost, report.damage) == (2, 100, 0, ())
    assert numbers(tmp_path) == [("life", n) for n in range(1, 101)]
    assert not log_files(tmp_path / OPEN_LOGS)
    assert archive(tmp_path) == Report()


def test_a_log_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 1, 5)
    path = log_path(tmp_path / OPEN_LOGS, 1, FINISHED)
    path.rename(path.with_suffix(OPEN))
    assert archive(tmp_path) == Report()


def test_segments_lie_by_the_hour(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 0, 4, step_us=HOUR_US)
    report = archive(tmp_path)
    assert len(report.segments) == 4
    assert len({path.parent for path in report.segments}) == 4
    for path in report.segments:
        table = pa.parquet.read_table(path, partitioning=None)
        (at,) = table["at"].to_pylist()
        assert path.parent.name == f"hour={at.hour:02d}"
        assert path.parent.parent.name == f"date={at.date().isoformat()}"


def test_many_small_logs_become_few_segments(tmp_path: Path) -> None:
    for number in range(30):
        write_log(tmp_path, number + 1, number * 10 + 1, 10)
    assert len(archive(tmp_path, rows=100).segments) <= 6
    assert numbers(tmp_path) == [("life", n) for n in range(1, 301)]


def test_what_is_missing_has_a_row(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 1, 5)
    archive(tmp_path)
    write_log(tmp_path, 2, 9, 2)
    write_log(tmp_path, 3, 1, 2, life="next")
    write_log(tmp_path, 4, 6, 1, life="next")
    report = archive(tmp_path)
    assert report.lost == 3 + 3
    holes = [row for row in stored(tmp_path).to_pylist() if row["what"] == "hole"]
    assert [(row["life"], row["size"]) for row in holes] == [("life", 3), ("next", 3)]


def test_damage_is_told_the_rest_is_kept_and_the_file_stays(tmp_path: Path) -> None:
    for number in range(3):
        write_log(tmp_path, number + 1, number * 10 + 1, 10)
    path = log_path(tmp_path / OPEN_LOGS, 2, FINISHED)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    report = archive(tmp_path)
    assert len(report.damage) == 1
    assert str(path) in report.damage[0]
    assert report.lost == 10
    whole = [n for n in numbers(tmp_path) if n[1] <= 10 or n[1] > 20]
    assert whole == [("life", n) for n in (*range(1, 11), 20 + 1, *range(22, 31))]
    assert path.with_suffix(".damaged").exists()


class Killed(BaseException):
    """The process is gone at this point."""


def test_it_may_be_killed_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every single step that changes something on disk, and again in the run after that."""
    steps = 0
    while True:
        journal = tmp_path / str(steps)
        for number in range(3):
            write_log(journal, number + 1, number * 10 + 1, 10, step_us=HOUR_US // 10)
        survived = _archive_with_a_kill(journal, steps, monkeypatch)
        archive(journal)
        assert numbers(journal) == [("life", n) for n in range(1, 31)]
        assert not log_files(journal / OPEN_LOGS)
        if survived:
            break
        steps += 1
    # Every one of them was a place to die at.
    assert steps > 15


def _archive_with_a_kill(journal: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether it came through because there were fewer steps than that."""
    left = [after]

    def dying(function: Any) -> Any:
        def step(*args: Any, **more: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*args, **more)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "unlink", dying(Path.unlink))
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(pq.ParquetWriter, "write_table", dying(pq.ParquetWriter.write_table))
        try:
            archive(journal)
        except Killed:
            return False
    return True
