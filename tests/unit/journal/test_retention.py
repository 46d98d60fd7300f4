"""Who holds the landing of a journal, and which segments are where."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path, PurePath

import pytest
from msgspec import Struct

from polybus.journal import retention as retention_module
from polybus.journal.retention import (
    DAY_S,
    Reader,
    Readers,
    Retention,
    first_number,
    hour_folders,
    is_within,
    ranges_of,
    rows_of,
)

NOW = 1_800_000_000.0
WEEK_S = 7 * 24 * 3600.0


def note(journal: Path, name: str, text: str = "", touched_at: float = NOW) -> None:
    folder = journal / "readers"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    os.utime(path, (touched_at, touched_at))


def reader(upto: int, at: float, name: str = "spark") -> str:
    return f'{{"name": "{name}", "upto": {upto}, "at": {at}}}'


def test_nobody_reads_a_journal_without_readers(tmp_path: Path) -> None:
    readers = Readers(tmp_path, NOW)
    assert (readers.active, readers.pins, readers.stale, readers.holding(1)) == ([], [], [], "")


@pytest.mark.parametrize(("age_s", "counts"), [(0.0, True), (WEEK_S - 1, True), (WEEK_S, False)])
def test_readers_and_pins_count_for_a_week(tmp_path: Path, age_s: float, counts: bool) -> None:
    # The reader says when it was there; a pin only has the time of its file.
    note(tmp_path, "spark.json", reader(5, NOW - age_s), NOW - 2 * WEEK_S)
    note(tmp_path, "whole.pin", touched_at=NOW - age_s)
    readers = Readers(tmp_path, NOW)
    assert readers.active == ([Reader("spark", 5, NOW - age_s)] if counts else [])
    assert readers.pins == (["whole.pin"] if counts else [])
    assert readers.stale == ([] if counts else ["spark.json", "whole.pin"])


def test_a_reader_holds_what_it_has_not_read(tmp_path: Path) -> None:
    note(tmp_path, "a.json", reader(5, NOW, "a"))
    note(tmp_path, "b.json", reader(7, NOW, "b"))
    readers = Readers(tmp_path, NOW)
    assert readers.holding(5) == ""
    assert readers.holding(6) == "a has read up to 5 only"
    assert readers.holding(8) == "a has read up to 5 only"
    note(tmp_path, "c.pin")
    assert Readers(tmp_path, NOW).holding(1) == "c.pin is there"


def test_a_note_that_cannot_be_read_is_of_somebody_who_has_read_nothing(tmp_path: Path) -> None:
    note(tmp_path, "odd.json", "{", NOW - 10)
    assert Readers(tmp_path, NOW).active == [Reader("odd", 0, NOW - 10)]
    note(tmp_path, "odd.json", "{", NOW - WEEK_S)
    assert Readers(tmp_path, NOW).stale == ["odd.json"]


def test_other_files_are_no_readers(tmp_path: Path) -> None:
    for name in (".spark.json", ".whole.pin", "spark.json.new", "notes.txt"):
        note(tmp_path, name, reader(0, NOW))
    readers = Readers(tmp_path, NOW)
    assert (readers.active, readers.pins, readers.stale) == ([], [], [])


def test_the_folders_of_hours(tmp_path: Path) -> None:
    for name in (
        "date=2026-11-16/hour=07",
        "date=2026-11-16/hour=7",
        "date=x/hour=07",
        "date=2026-11-17/hour=23",
    ):
        (tmp_path / name).mkdir(parents=True)
    assert sorted(begin for begin, _ in hour_folders(tmp_path)) == [
        datetime(2026, 11, 16, 7, tzinfo=UTC),
        datetime(2026, 11, 17, 23, tzinfo=UTC),
    ]


def test_numbers_in_the_names_of_files() -> None:
    assert first_number(PurePath("x/12-ab.parquet")) == 12
    assert first_number(PurePath("12-34-ab.parquet")) == 12
    assert first_number(PurePath(".12-ab.parquet")) == first_number(PurePath("notes")) == 0
    names = ("12-34-ab.parquet", "12-ab.parquet", "5-5-0f.parquet", ".7-8-ab.parquet", "7-8-ab.parquet.new")
    ranges = ranges_of(map(PurePath, names))
    assert ranges == [(12, 34), (5, 5)]
    assert [number for number in range(40) if is_within(number, ranges)] == [5, *range(12, 35)]
    assert not is_within(5, [])


def test_rows_of_what_cannot_be_read_are_none(tmp_path: Path) -> None:
    path = tmp_path / "1-ab.parquet"
    assert rows_of(path) == 0
    path.write_bytes(b"no parquet")
    assert rows_of(path) == 0


def hour(journal: Path, name: str, size: int = 100) -> Path:
    """An hour with one landed file, which is no Parquet."""
    folder = journal / "segments" / name
    folder.mkdir(parents=True)
    path = folder / "1-ab.parquet"
    path.write_bytes(bytes(size))
    return path


@pytest.mark.parametrize(("now_hour", "goes"), [(8, False), (9, True)])
def test_an_hour_goes_when_its_end_is_too_old(tmp_path: Path, now_hour: int, goes: bool) -> None:
    path = hour(tmp_path, "date=2026-11-16/hour=08")
    now = datetime(2026, 11, 17, now_hour, tzinfo=UTC).timestamp()
    retention = Retention(tmp_path, 1.0, 1_000_000, lambda: now)
    removal = retention.turn()
    assert path.exists() != goes
    assert removal.hours == (("2026-11-16T08",) if goes else ())
    assert (removal.files, removal.bytes, removal.rows, removal.held) == ((1, 100) if goes else (0, 0)) + (
        0,
        "",
    )
    kept = retention.retained
    assert (kept.since, kept.hours, kept.files, kept.bytes) == (
        ("2026-11-16T09", 1, 1, 100) if goes else ("", 0, 0, 0)
    )
    # It is written down for those who come later, and empty folders are gone.
    assert Retention(tmp_path, 1.0, 1_000_000).retained == kept
    assert (tmp_path / "segments" / "date=2026-11-16").exists() != goes


@pytest.mark.parametrize(("keep_bytes", "left"), [(300, 3), (299, 2), (200, 2), (199, 1), (0, 0)])
def test_the_oldest_hours_go_until_the_rest_fits(tmp_path: Path, keep_bytes: int, left: int) -> None:
    paths = [hour(tmp_path, f"date=2026-11-16/hour={number:02}") for number in (1, 2, 3)]
    now = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()
    retention = Retention(tmp_path, 7.0, keep_bytes, lambda: now)
    retention.turn()
    assert [path.exists() for path in paths] == [number >= 3 - left for number in range(3)]
    assert retention.retained.hours == 3 - left


@pytest.mark.parametrize(("second", "goes"), [(-1, False), (0, True)])
def test_an_hour_that_has_not_ended_stays_however_large_it_is(
    tmp_path: Path, second: int, goes: bool
) -> None:
    path = hour(tmp_path, "date=2026-11-16/hour=12")
    now = datetime(2026, 11, 16, 13, tzinfo=UTC).timestamp() + second
    Retention(tmp_path, 7.0, 0, lambda: now).turn()
    assert path.exists() != goes


def test_an_hour_without_files_is_not_counted_as_removed(tmp_path: Path) -> None:
    (tmp_path / "segments" / "date=2026-11-16" / "hour=01").mkdir(parents=True)
    now = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()
    retention = Retention(tmp_path, 0.1, 1000, lambda: now)
    assert retention.turn().hours == ()
    assert retention.retained.hours == 0


def test_logs_count_and_damaged_ones_go_when_they_are_too_old(tmp_path: Path) -> None:
    logs = tmp_path / "open"
    logs.mkdir()
    for name, age_s in (("1.log", 9 * DAY_S), ("2.damaged", DAY_S), ("3.damaged", DAY_S + 1)):
        (logs / name).write_bytes(bytes(50))
        os.utime(logs / name, (NOW - age_s, NOW - age_s))
    retention = Retention(tmp_path, 1.0, 0, lambda: NOW)
    assert retention._log_bytes(NOW) == 100
    assert sorted(path.name for path in logs.iterdir()) == ["1.log", "2.damaged"]


def test_no_hour_goes_before_an_older_one_that_somebody_reads(tmp_path: Path) -> None:
    older = hour(tmp_path, "date=2026-11-16/hour=01")
    younger = tmp_path / "compacted" / "date=2026-11-16" / "hour=02" / "2-3-ab.parquet"
    younger.parent.mkdir(parents=True)
    younger.write_bytes(bytes(100))
    note(tmp_path, "spark.json", reader(0, NOW))
    removal = Retention(tmp_path, 1.0, 0, lambda: NOW).turn()
    assert (removal.hours, removal.held) == ((), "spark has read up to 0 only")
    assert older.exists()
    assert younger.exists()


def test_a_full_disk_does_not_keep_what_would_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hour(tmp_path, "date=2026-11-16/hour=01")
    write = retention_module.write_note

    def on_full_disk(file: Path, value: Struct) -> None:
        if path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, value)

    monkeypatch.setattr(retention_module, "write_note", on_full_disk)
    retention = Retention(tmp_path, 1.0, 0, lambda: NOW)
    # It had better be written down before the files go; where that is not possible they go all the same.
    with pytest.raises(OSError, match="No space left"):
        retention.turn()
    assert path.exists()
    assert retention.turn().hours == ("2026-11-16T01",)
    assert not path.exists()
    assert Retention(tmp_path, 1.0, 0).retained.since == "2026-11-16T02"


def test_a_file_that_is_gone_already_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hour(tmp_path, "date=2026-11-16/hour=01")

    def removed_by_hand(found: Path) -> int:
        found.unlink()
        return 0

    monkeypatch.setattr(retention_module, "rows_of", removed_by_hand)
    assert Retention(tmp_path, 1.0, 1000, lambda: NOW).turn().hours == ("2026-11-16T01",)
    assert not path.parent.exists()
