"""Reading the journal: every row exactly once, whatever the archiver is doing."""

from __future__ import annotations

import contextlib
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from polybus.errors import JournalDamaged, JournalMissing, JournalMoved
from polybus.journal import reader
from polybus.journal.archiver import PLAN, SEGMENTS, STATE
from polybus.journal.log import OPEN, LogHead, write_batch, write_head
from polybus.journal.reader import COMPACTED, find_journal, read_rows, segment_files
from polybus.journal.record import Row, write_row
from support.journals import HOUR_US, NOON_US, Logs, archive, damage_page, everything

OF_LOG = datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)


def rows(first: int, count: int, step_us: int = 1000) -> list[Row]:
    return [Row("accepted", NOON_US + n * step_us, token=b"t%d" % n) for n in range(first, first + count)]


def numbers(journal: Path, **wanted: Any) -> list[int]:
    return [row["seq"] for row in everything(journal, **wanted)]


def at(us: int) -> datetime:
    return datetime.fromtimestamp(us / 1e6, UTC)


def test_segments_and_logs_are_one_journal(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 10))
    logs.archive()
    logs.write(rows(10, 10))
    logs.write(rows(20, 5), suffix=OPEN)
    assert numbers(tmp_path) == list(range(1, 26))
    logs.archive()
    assert numbers(tmp_path) == list(range(1, 26))


@pytest.mark.parametrize("name", [PLAN, STATE])
def test_a_damaged_note_of_the_archiver_is_told_by_its_name(tmp_path: Path, name: str) -> None:
    Logs(tmp_path).write(rows(0, 10))
    (tmp_path / name).write_bytes(b'{"logs": [')
    with pytest.raises(JournalDamaged, match=name):
        list(read_rows(tmp_path))


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 6, HOUR_US // 2))
    logs.archive()
    logs.write(rows(6, 2, HOUR_US // 2))
    hour = at(NOON_US + HOUR_US)
    assert numbers(tmp_path, since=hour, until=at(NOON_US + 3 * HOUR_US)) == [3, 4, 5, 6]
    assert numbers(tmp_path, since=at(NOON_US + 3 * HOUR_US)) == [7, 8]
    assert numbers(tmp_path, where=pc.field("token") == "t6") == [7]
    found = everything(tmp_path, where=pc.field("token") == "t1", columns=["token"])
    assert found == [{"token": "t1"}]


@pytest.mark.parametrize("is_rare", [False, True])
def test_nobody_gets_tables_without_rows(tmp_path: Path, is_rare: bool) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 6))
    logs.archive()
    logs.write(rows(6, 6))
    for wanted in ("t3", "t9"):
        where = pc.field("token") == wanted
        (table,) = read_rows(tmp_path, where=where, columns=["token"], is_rare=is_rare)
        assert table.to_pylist() == [{"token": wanted}]
    assert list(read_rows(tmp_path, where=pc.field("token") == "nobody", is_rare=is_rare)) == []


def test_files_of_other_hours_are_not_opened(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 2, HOUR_US))
    logs.archive()
    first, _ = segment_files(tmp_path)
    first.write_bytes(b"not read")
    assert numbers(tmp_path, since=at(NOON_US + HOUR_US)) == [2]


def test_a_hole_has_a_row_before_the_archiver_makes_one(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 3))
    logs.skip(4)
    logs.write(rows(7, 1))
    before = everything(tmp_path)
    logs.archive()
    assert everything(tmp_path) == before
    assert [(row["what"], row["seq"], row["size"]) for row in before[3:]] == [
        ("hole", 7, 4),
        ("accepted", 8, 0),
    ]


class Killed(BaseException):
    """The archiver is gone at this point."""


def test_once_at_every_step_of_the_archiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archiver dies before each step; it is read then, and again after the next one."""
    steps = 0
    while True:
        journal = tmp_path / str(steps)
        logs = Logs(journal)
        for number in range(3):
            logs.write(rows(number * 4, 4, HOUR_US // 5))
        logs.write(rows(12, 2, HOUR_US // 5), suffix=OPEN)
        left = [steps]

        def dying(function: Any, left: list[int] = left) -> Any:
            def step(*args: Any, **more: Any) -> Any:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return function(*args, **more)

            return step

        with monkeypatch.context() as patch:
            for owner, name in (
                (Path, "rename"),
                (Path, "unlink"),
                (os, "fsync"),
                (pq.ParquetWriter, "write_table"),
            ):
                patch.setattr(owner, name, dying(getattr(owner, name)))
            try:
                archive(journal)
                survived = True
            except Killed:
                survived = False
        assert numbers(journal) == list(range(1, 15)), steps
        archive(journal)
        assert numbers(journal) == list(range(1, 15)), steps
        if survived:
            break
        steps += 1
    assert steps > 15


def test_what_is_archived_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 3))
    listed = reader.segment_files

    def archived_meanwhile(journal: Path) -> list[Path]:
        found = listed(journal)
        archive(journal)
        return found

    monkeypatch.setattr(reader, "segment_files", archived_meanwhile)
    assert numbers(tmp_path) == [1, 2, 3]
    monkeypatch.undo()
    # Listed as logs, read when they are gone.
    logs.write(rows(3, 3))
    read = read_rows(tmp_path)
    first = next(read)
    archive(tmp_path)
    rest = list(read)
    assert first.num_rows + sum(table.num_rows for table in rest) == 6


def merge(journal: Path, paths: list[Path]) -> Path:
    """As compaction does."""
    first, last = (path.name.split("-")[0] for path in (paths[0], paths[-1]))
    folder = journal / COMPACTED / paths[0].parent.relative_to(journal / SEGMENTS)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first}-{last}-00c0ffee.parquet"
    pq.write_table(pq.read_table([str(path) for path in paths], partitioning=None), path)
    return path


def test_compacted_segments_count_once(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for number in range(4):
        logs.write(rows(number * 5, 5))
        logs.archive()
    landed = segment_files(tmp_path)
    assert len(landed) == 4
    merged = merge(tmp_path, landed[:3])
    assert segment_files(tmp_path) == [merged, landed[3]]
    landed[1].unlink()
    hidden = merged.with_name(".half.parquet")
    hidden.write_bytes(b"being written")
    assert segment_files(tmp_path) == [merged, landed[3]]
    assert numbers(tmp_path) == list(range(1, 21))


def test_damage_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for number in range(2):
        logs.write(rows(number * 5, 5))
        logs.archive()
    segment_files(tmp_path)[0].write_bytes(b"PAR1 no")
    broken = logs.write(rows(10, 5))
    content = bytearray(broken.read_bytes())
    content[-3] ^= 1
    broken.write_bytes(content)
    logs.write(rows(15, 5))
    headless = logs.write(rows(20, 1))
    headless.write_bytes(b"nothing")
    told: list[str] = []
    assert numbers(tmp_path, damage=told.append) == [*range(6, 11), 15, *range(16, 21)]
    assert [str(broken) in text or str(headless) in text or SEGMENTS in text for text in told] == [True] * 3


def test_damage_of_a_column_that_nobody_wants_is_not_found(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(Row("accepted", NOON_US + n, token=b"t%d" % n, body=(b"x" * 100,)) for n in range(5))
    logs.archive()
    (path,) = segment_files(tmp_path)
    damage_page(path, 0, "body.list.element")
    told: list[str] = []
    found = everything(tmp_path, columns=["token"], damage=told.append)
    assert [row["token"] for row in found] == [f"t{n}" for n in range(5)]
    assert told == []
    assert everything(tmp_path, damage=told.append) == []
    assert len(told) == 1


def test_a_segment_that_disappears_is_no_damage(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for number in range(2):
        logs.write(rows(number * 5, 5))
        logs.archive()
    read = read_rows(tmp_path)
    next(read)
    shutil.rmtree(tmp_path / SEGMENTS)
    with pytest.raises(JournalMoved, match="again"):
        list(read)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_segment_that_fails_while_it_is_read_is_damaged_unless_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """Network folders say many things about a file that somebody removed."""
    logs = Logs(tmp_path)
    logs.write(rows(0, 3))
    logs.archive()
    (path,) = segment_files(tmp_path)

    def fails(*_: object, **__: object) -> None:
        if is_removed:
            path.unlink()
        raise OSError("stale file handle")

    monkeypatch.setattr(reader.ds, "dataset", fails)
    told: list[str] = []
    if is_removed:
        with pytest.raises(JournalMoved):
            list(read_rows(tmp_path, damage=told.append))
        assert told == []
    else:
        assert list(read_rows(tmp_path, damage=told.append)) == []
        assert told == [f"{path}: the segment cannot be read: stale file handle"]


def test_a_log_that_was_just_begun(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 5))
    path = logs.write(rows(5, 5), suffix=OPEN)
    whole = path.read_bytes()
    for size in (0, 5, len(whole) - 3):
        path.write_bytes(whole[:size])
        assert numbers(tmp_path) == [1, 2, 3, 4, 5]


def test_where_the_journal_is(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    Logs(journal).write(rows(0, 1))
    assert find_journal(tmp_path) == find_journal(journal) == journal
    with pytest.raises(JournalMissing, match=r"journal\.enabled"):
        find_journal(tmp_path / "elsewhere")


def test_logs_beyond_those_that_are_held_open_are_read_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have so many open files only. With more logs than that nobody archives."""
    monkeypatch.setattr(reader, "HELD", 1)
    logs = Logs(tmp_path)
    paths = [logs.write(rows(number, 1)) for number in range(3)]
    assert numbers(tmp_path) == [1, 2, 3]
    with reader.Snapshot(tmp_path) as snapshot:
        for path in paths:
            path.unlink()
        held, *others = snapshot.logs
        assert held.read()
        for log in others:
            with pytest.raises(JournalMoved):
                log.read()


def test_a_log_may_be_read_several_times(tmp_path: Path) -> None:
    path = Logs(tmp_path).write(rows(0, 3))
    with reader.Snapshot(tmp_path) as snapshot:
        (log,) = snapshot.logs
        assert log.read() == log.read() == path.read_bytes()


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    paths: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        # Other threads close files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in paths if str(folder) in path]


def test_no_log_stays_open(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for number in range(3):
        logs.write(rows(number, 1))
    with reader.Snapshot(tmp_path):
        assert len(open_files(tmp_path)) == 3
    assert open_files(tmp_path) == []
    # One that is archived already, and waits for its removal, is not even held.
    (tmp_path / PLAN).write_text(
        '{"logs": ["000000000001.log"], "name": "x", "next": {"life": 2}, "is_written": true}'
    )
    with reader.Snapshot(tmp_path) as snapshot:
        assert [Path(path).name for path in sorted(open_files(tmp_path))] == [
            "000000000002.log",
            "000000000003.log",
        ]
        assert (len(snapshot.logs), snapshot.next) == (2, {"life": 2})
    assert open_files(tmp_path) == []


@pytest.mark.parametrize(("moves", "is_given_up"), [(1, False), (4, False), (5, True)])
def test_files_are_listed_anew_while_the_archiver_is_at_work_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, is_given_up: bool
) -> None:
    Logs(tmp_path).write(rows(0, 3))
    listed = reader.segment_files
    tries: list[int] = []

    def noted_meanwhile(journal: Path) -> list[Path]:
        tries.append(1)
        if len(tries) <= moves:
            (journal / STATE).write_text(f'{{"segments": {len(tries)}}}')
        return listed(journal)

    monkeypatch.setattr(reader, "TRIES", 5)
    monkeypatch.setattr(reader, "segment_files", noted_meanwhile)
    if is_given_up:
        with pytest.raises(JournalMoved):
            reader.Snapshot(tmp_path)
    else:
        with reader.Snapshot(tmp_path) as snapshot:
            assert len(snapshot.logs) == 1
    assert len(tries) == min(moves + 1, 5)
    assert open_files(tmp_path) == []


def test_a_log_that_goes_while_they_are_opened_is_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 2))
    gone = logs.write(rows(2, 1))
    listed = reader.log_files
    opened: list[list[str]] = []

    def finished_meanwhile(folder: Path, suffix: str) -> list[Path]:
        """The second log gets another name after it was listed."""
        found = listed(folder, suffix)
        opened.append(open_files(tmp_path))
        if gone in found:
            gone.rename(gone.with_name("000000000009.log"))
        return found

    monkeypatch.setattr(reader, "log_files", finished_meanwhile)
    with reader.Snapshot(tmp_path) as snapshot:
        assert [log.path.name for log in snapshot.logs] == ["000000000001.log", "000000000009.log"]
    # What was opened in vain is closed before it is tried again.
    assert opened == [[]] * 4


def test_records_that_make_no_sense_are_told_and_what_follows_them_is_read(tmp_path: Path) -> None:
    """Their checksum is right: whoever wrote them was wrong."""
    logs = Logs(tmp_path)
    logs.write(rows(0, 2))
    bad = logs.write(rows(2, 2))
    head = write_head(LogHead("tested", "life", 2, 0.0))
    good = b"".join(map(write_row, rows(4, 1)))
    bad.write_bytes(head + write_batch(3, 2, b"no records") + write_batch(5, 1, good))
    logs.skip(1)
    logs.write(rows(5, 2))
    told: list[str] = []
    found = [(row["seq"], row["what"]) for row in everything(tmp_path, damage=told.append)]
    beats = [(number, "accepted") for number in (1, 2, 5, 6, 7)]
    assert found == [*beats[:2], (4, "hole"), *beats[2:]]
    (text,) = told
    assert text.startswith(f"{bad}: at byte {len(head)}: ")


@pytest.mark.parametrize(
    ("at", "told_at"),
    [
        (-1, OF_LOG),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (253_402_300_799_999_999, datetime.max.replace(tzinfo=UTC)),
        (253_402_300_800_000_000, OF_LOG),
        (2**63 - 1, OF_LOG),
    ],
)
def test_a_hole_before_records_that_make_no_sense_has_a_row_whatever_time_they_tell(
    tmp_path: Path, at: int, told_at: datetime
) -> None:
    logs = Logs(tmp_path)
    logs.write(rows(0, 2))
    bad = logs.write(rows(2, 1))
    head = write_head(LogHead("tested", "life", 2, OF_LOG.timestamp()))
    bad.write_bytes(head + write_batch(5, 1, b"\xff" * 8 + at.to_bytes(8, "little", signed=True)))
    told: list[str] = []
    (*_, hole) = everything(tmp_path, damage=told.append)
    assert (hole["seq"], hole["what"], hole["size"]) == (4, "hole", 2)
    assert hole["at"] == told_at
    (text,) = told
    assert text.startswith(f"{bad}: at byte {len(head)}: ")


def test_batches_that_are_archived_already_are_passed_over(tmp_path: Path) -> None:
    """A log that the archiver has read to its end may still be there after a power cut."""
    logs = Logs(tmp_path)
    logs.write(rows(0, 3))
    logs.write(rows(3, 3))
    (tmp_path / STATE).write_text('{"next": {"life": 4}, "segments": 1}')
    assert numbers(tmp_path) == [4, 5, 6]
    (tmp_path / STATE).write_text('{"next": {"life": 7}, "segments": 1}')
    assert numbers(tmp_path) == []
