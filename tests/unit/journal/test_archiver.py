"""The archiver: every record of every log in the segments, exactly once, wherever it is killed."""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from polybus.errors import JournalDamaged
from polybus.journal import archiver as archiver_module
from polybus.journal.archiver import (
    OPEN_LOGS,
    PLAN,
    SEGMENTS,
    STATE,
    Archiver,
    Plan,
    Report,
    State,
    read_note,
    write_note,
)
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


def test_a_log_without_a_head_costs_no_other(tmp_path: Path) -> None:
    for number in range(3):
        write_log(tmp_path, number + 1, number * 10 + 1, 10)
    path = log_path(tmp_path / OPEN_LOGS, 1, FINISHED)
    path.write_bytes(b"no log at all")
    report = archive(tmp_path)
    assert (report.logs, report.rows, report.lost) == (3, 21, 10)
    assert [str(path) in text for text in report.damage] == [True]
    assert [found.name for found in (tmp_path / OPEN_LOGS).iterdir()] == [path.with_suffix(".damaged").name]


def test_a_batch_that_was_written_wrong_leaves_a_hole(tmp_path: Path) -> None:
    """Its checksum is right, so nothing but its content tells."""
    folder = tmp_path / OPEN_LOGS
    folder.mkdir(parents=True)
    head = write_head(LogHead("tested", "life", 1, 0.0, {}))
    rows = [write_row(Row("beat", NOON_US + n)) for n in range(3)]
    wrong = write_batch(2, 5, rows[1])
    path = log_path(folder, 1, FINISHED)
    path.write_bytes(head + write_batch(1, 1, rows[0]) + wrong + write_batch(7, 1, rows[2]))
    report = archive(tmp_path)
    (damage,) = report.damage
    assert damage.startswith(f"{path}: at byte {len(head) + len(write_batch(1, 1, rows[0]))}: ")
    assert report.lost == 5
    found = [(row["what"], row["seq"], row["size"]) for row in stored(tmp_path).to_pylist()]
    assert sorted(found, key=lambda one: one[1]) == [("beat", 1, 0), ("hole", 6, 5), ("beat", 7, 0)]
    (hole,) = [row for row in stored(tmp_path).to_pylist() if row["what"] == "hole"]
    assert hole["at"] == datetime.fromtimestamp((NOON_US + 2) / 1e6, UTC)
    assert hole["detail"] == "5 records are missing: they could not be written, or were damaged"
    assert path.with_suffix(".damaged").exists()


def test_what_the_archiver_remembers(tmp_path: Path) -> None:
    write_log(tmp_path, 3, 1, 5)
    write_log(tmp_path, 7, 1, 2, life="next")
    archiver = Archiver(tmp_path)
    sizes = [path.stat().st_size for path in log_files(tmp_path / OPEN_LOGS)]
    assert (archiver.waiting_bytes(), archiver.last_log) == (sum(sizes), 0)
    assert archiver.turn().logs == 2
    assert (archiver.waiting_bytes(), archiver.last_log) == (0, 7)
    assert read_note(tmp_path / STATE, State) == State({"life": 6, "next": 3}, 1, 7)
    assert not (tmp_path / PLAN).exists()
    # A lower number that comes later changes nothing.
    write_log(tmp_path, 5, 3, 1, life="next")
    assert archiver.turn().logs == 1
    assert read_note(tmp_path / STATE, State) == State({"life": 6, "next": 4}, 2, 7)


def test_only_the_last_lives_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver_module, "LIVES", 2)
    for number in range(4):
        write_log(tmp_path, number + 1, 1, 1, life=f"life-{number}")
    archive(tmp_path)
    state = read_note(tmp_path / STATE, State)
    assert state is not None
    assert state.next == {"life-2": 2, "life-3": 2}


def test_a_plan_whose_segments_are_there_is_only_cleaned_up(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 1, 5)
    write_log(tmp_path, 2, 6, 5)
    first, second = log_files(tmp_path / OPEN_LOGS)
    first.unlink()
    # The second is damaged and the first is gone already: the archiver died in the middle of it.
    write_note(tmp_path / PLAN, Plan([first.name, second.name], "name", {"life": 11}, True, [second.name]))
    assert Archiver(tmp_path).turn() == Report(2)
    assert [path.name for path in (tmp_path / OPEN_LOGS).iterdir()] == ["000000000002.damaged"]
    assert read_note(tmp_path / STATE, State) == State({"life": 11}, 0, 2)
    assert not (tmp_path / PLAN).exists()


def test_a_segment_takes_no_more_logs_than_make_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of one size: rows have numbers of two digits.
    for number in range(6):
        write_log(tmp_path, number + 1, number * 10 + 11, 10)
    (size,) = {path.stat().st_size for path in log_files(tmp_path / OPEN_LOGS)}
    monkeypatch.setattr(archiver_module, "SEGMENT_BYTES", 2 * size + size // 2)
    assert Archiver(tmp_path).turn().logs == 2
    monkeypatch.setattr(archiver_module, "SEGMENT_BYTES", 2 * size)
    assert Archiver(tmp_path).turn().logs == 2
    monkeypatch.setattr(archiver_module, "SEGMENT_BYTES", 2 * size - 1)
    assert [Archiver(tmp_path).turn().logs for _ in range(3)] == [1, 1, 0]
    # One that is larger than that goes alone.
    monkeypatch.setattr(archiver_module, "SEGMENT_BYTES", size // 2)
    for number in range(2):
        write_log(tmp_path, number + 11, number * 10 + 71, 10)
    assert [Archiver(tmp_path).turn().logs for _ in range(3)] == [1, 1, 0]


def test_a_note_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert read_note(tmp_path / STATE, State) is None
    for content in (b"{", b"\xff", b'{"next": 5}'):
        (tmp_path / STATE).write_bytes(content)
        with pytest.raises(JournalDamaged, match="Nothing is archived without it"):
            read_note(tmp_path / STATE, State)


def test_logs_of_which_nothing_is_left_make_no_segment(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 1, 5)
    log_path(tmp_path / OPEN_LOGS, 1, FINISHED).write_bytes(b"no log at all")
    report = Archiver(tmp_path).turn()
    assert (report.logs, report.rows, report.segments, len(report.damage)) == (1, 0, (), 1)
    assert not list((tmp_path / SEGMENTS).iterdir())


def test_a_hole_of_one_record_is_a_hole(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 1, 2)
    write_log(tmp_path, 2, 4, 1)
    assert archive(tmp_path).lost == 1
    holes = [(row["seq"], row["size"]) for row in stored(tmp_path).to_pylist() if row["what"] == "hole"]
    assert holes == [(3, 1)]


def batches(journal: Path, *parts: bytes) -> Path:
    """A log with these batches."""
    folder = journal / OPEN_LOGS
    folder.mkdir(parents=True)
    path = log_path(folder, 1, FINISHED)
    path.write_bytes(write_head(LogHead("tested", "life", 1, 0.0)) + b"".join(parts))
    return path


def beat(first: int) -> bytes:
    row = Row("beat", NOON_US + first, accepted_at=NOON_US + 255, dispatched_at=NOON_US + 255)
    return write_batch(first, 1, write_row(row))


def test_the_batches_behind_a_damaged_one_are_archived(tmp_path: Path) -> None:
    damaged = beat(2)[:-1] + b"?"
    batches(tmp_path, beat(1), damaged, beat(3), beat(4))
    report = archive(tmp_path)
    assert (report.rows, report.lost, len(report.damage)) == (4, 1, 1)
    found = [(row["seq"], row["what"]) for row in stored(tmp_path).to_pylist()]
    assert found == [(1, "beat"), (2, "hole"), (3, "beat"), (4, "beat")]


def test_a_hole_has_the_time_of_the_record_behind_it(tmp_path: Path) -> None:
    batches(tmp_path, beat(1), beat(7))
    archive(tmp_path)
    (hole,) = [row for row in stored(tmp_path).to_pylist() if row["what"] == "hole"]
    assert hole["at"] == datetime.fromtimestamp((NOON_US + 7) / 1e6, UTC)


def test_holes_before_and_in_place_of_a_batch_that_makes_no_sense_do_not_overlap(tmp_path: Path) -> None:
    batches(tmp_path, beat(1), write_batch(4, 2, b"no records"), beat(6))
    report = archive(tmp_path)
    assert report.lost == 4
    found = [(row["seq"], row["what"], row["size"]) for row in stored(tmp_path).to_pylist()]
    assert found == [(1, "beat", 0), (3, "hole", 2), (5, "hole", 2), (6, "beat", 0)]


def test_a_hole_before_nonsense_that_tells_an_impossible_time_is_archived(tmp_path: Path) -> None:
    """The archiver's process would end of it, and again after every start."""
    batches(tmp_path, beat(1), write_batch(4, 2, b"\xff" * 15 + b"\x7f"))
    assert archive(tmp_path).lost == 2
    found = [(row["seq"], row["what"], row["size"]) for row in stored(tmp_path).to_pylist()]
    assert sorted(found) == [(1, "beat", 0), (3, "hole", 2)]


@pytest.mark.parametrize(("logs", "turns"), [(0.5, 1), (1.5, 2), (2.5, 3)])
def test_a_turn_takes_about_as_many_rows_as_a_segment_has(tmp_path: Path, logs: float, turns: int) -> None:
    """A row is taken for a hundred bytes. A segment must be there soon, however many logs are waiting."""
    for number in range(6):
        write_log(tmp_path, number + 1, number * 10 + 1, 10)
    size = log_files(tmp_path / OPEN_LOGS)[0].stat().st_size
    assert Archiver(tmp_path, int(logs * size / 100)).turn().logs == turns


def test_numbers_of_segments_only_grow_even_if_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    write_log(tmp_path, 1, 1, 5)
    with monkeypatch.context() as patch:
        patch.setattr(Archiver, "_carry_out", die)
        with pytest.raises(Killed):
            archive(tmp_path)
    archive(tmp_path)
    write_log(tmp_path, 2, 6, 5)
    archive(tmp_path)
    names = sorted(path.name.split("-")[0] for path in (tmp_path / SEGMENTS).rglob("*.parquet"))
    assert names == ["000000000001", "000000000002"]


@pytest.mark.parametrize("written", range(5))
def test_no_two_segments_have_a_number_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """It dies when it has written so many of its notes."""
    notes = iter(range(written))

    def note(path: Path, value: Any) -> None:
        if next(notes, None) is None:
            raise Killed
        write_note(path, value)

    write_log(tmp_path, 1, 1, 5)
    with monkeypatch.context() as patch:
        patch.setattr(archiver_module, "write_note", note)
        # It needs four for a turn.
        with pytest.raises(Killed) if written < 4 else nullcontext():
            archive(tmp_path)
    write_log(tmp_path, 2, 6, 5)
    archive(tmp_path)
    write_log(tmp_path, 3, 11, 5)
    archive(tmp_path)
    assert numbers(tmp_path) == [("life", n) for n in range(1, 16)]
    names = [path.name.split("-")[0] for path in (tmp_path / SEGMENTS).rglob("*.parquet")]
    assert len(set(names)) == len(names) > 1


def test_whatever_is_not_finished_has_a_name_that_begins_with_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[str] = []
    rename = Path.rename

    def noting(path: Path, target: Path) -> Path:
        renamed.append(path.name)
        assert target.name == path.name.removeprefix(".")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noting)
    write_log(tmp_path, 1, 1, 5)
    archive(tmp_path)
    # A segment, the state twice, and the plan twice.
    assert len(renamed) == 5
    assert all(name.startswith(".") for name in renamed)
