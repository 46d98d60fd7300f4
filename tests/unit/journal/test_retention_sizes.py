"""What counts against the bytes that a journal may have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from polybus.journal.archiver import OPEN_LOGS, SEGMENTS
from polybus.journal.retention import RETAINED, Removal, Retention
from support.journals import HOUR_US, NOON_US, SECOND_US, Logs, life_of

NOON_S = NOON_US / SECOND_US
DAY_S = 86_400.0
THREE_HOURS_LATER = NOON_S + 3 * 3600.0


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    logs = Logs(tmp_path / "a")
    for hour in range(2):
        logs.write(life_of(f"life-{hour}", NOON_US + hour * HOUR_US, "dispatched", "replied"))
    logs.archive()
    return logs.journal


def segment_bytes(journal: Path) -> int:
    return sum(path.stat().st_size for path in (journal / SEGMENTS).rglob("*.parquet"))


def let_go(journal: Path, keep_bytes: int, wall: float = THREE_HOURS_LATER, days: float = 30.0) -> Removal:
    return Retention(journal, days, keep_bytes, lambda: wall).turn()


@pytest.mark.parametrize(("more", "hours"), [(0, 0), (1, 1)])
def test_logs_that_wait_count_like_segments(journal: Path, more: int, hours: int) -> None:
    log = journal / OPEN_LOGS / "000000000009.log"
    log.write_bytes(b"x" * (100 + more))
    assert len(let_go(journal, segment_bytes(journal) + 100).hours) == hours
    assert log.exists()


@pytest.mark.parametrize(("age_s", "is_kept"), [(DAY_S - 1, True), (DAY_S, True), (DAY_S + 1, False)])
@pytest.mark.parametrize("suffix", ["damaged", "log"])
def test_only_damaged_logs_are_removed_by_their_age(
    journal: Path, suffix: str, age_s: float, is_kept: bool
) -> None:
    log = journal / OPEN_LOGS / f"000000000009.{suffix}"
    log.write_bytes(b"x" * 100)
    os.utime(log, (THREE_HOURS_LATER - age_s, THREE_HOURS_LATER - age_s))
    # A damaged log that is removed no longer counts; one that stays does.
    removal = let_go(journal, segment_bytes(journal) + 99, days=1.0)
    assert log.exists() == (is_kept or suffix == "log")
    assert len(removal.hours) == int(log.exists())


def test_a_journal_without_logs_or_segments_has_nothing_to_lose(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert let_go(tmp_path / "empty", 1) == Removal()


def test_the_note_counts_on_over_turns_and_restarts(journal: Path) -> None:
    whole = segment_bytes(journal)
    first = let_go(journal, whole - 1)
    second = let_go(journal, 1)
    assert (len(first.hours), len(second.hours)) == (1, 1)
    noted = json.loads((journal / RETAINED).read_text())
    assert (noted["hours"], noted["files"], noted["rows"], noted["bytes"]) == (2, 2, 6, whole)
    # The first hour that is still kept, as it is written in the names of folders.
    assert noted["since"] > max(first.hours[0], second.hours[0])
    assert not list((journal / SEGMENTS).iterdir())
