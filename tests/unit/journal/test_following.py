"""The newest rows first, then what comes: nothing twice, nothing left out."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from polybus.errors import JournalMoved
from polybus.journal.archiver import SEGMENTS
from polybus.journal.following import Follower
from polybus.journal.log import FINISHED, OPEN, LogHead, write_batch, write_head
from polybus.journal.reader import segment_files
from polybus.journal.record import Row, write_row
from support.journals import HOUR_US, NOON_US, SECOND_US, Logs, damage_page


def beats(first: int, count: int) -> list[Row]:
    return [Row("beat", NOON_US + n, token=b"t%d" % n) for n in range(first, first + count)]


def seen(rows: list[dict[str, object]]) -> list[object]:
    return [row["seq"] for row in rows]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_the_end_of_a_long_journal_is_read_from_its_end(logs: Logs) -> None:
    for number in range(4):
        logs.write(beats(number * 10, 10))
        logs.archive()
    logs.write(beats(40, 3))
    segment_files(logs.journal)[0].write_bytes(b"nobody reads this")
    assert seen(Follower(logs.journal).newest(5)) == [39, 40, 41, 42, 43]
    assert seen(Follower(logs.journal, pc.field("token") == "t41").newest(1)) == [42]
    assert Follower(logs.journal).newest(0) == []


def test_what_comes_whatever_the_archiver_does(logs: Logs) -> None:
    logs.write(beats(0, 3))
    follower = Follower(logs.journal)
    assert seen(follower.newest(10)) == [1, 2, 3]
    assert follower.more() == []
    logs.write(beats(3, 2))
    assert seen(follower.more()) == [4, 5]
    logs.archive()
    assert follower.more() == []
    logs.write(beats(5, 2))
    logs.archive()
    path = logs.write(beats(7, 1), suffix=OPEN)
    assert seen(follower.more()) == [6, 7, 8]
    path.rename(path.with_suffix(FINISHED))
    assert follower.more() == []
    logs.skip(2)
    logs.write(beats(9, 1))
    hole, beat = follower.more()
    assert [(row["what"], row["seq"]) for row in (hole, beat)] == [("hole", 10), ("beat", 11)]
    assert hole["size"] == 2
    logs.write([Row("started", NOON_US + 99)], life="next")
    logs.archive()
    assert [(row["life"], row["seq"]) for row in follower.more()] == [("next", 1)]


def test_files_that_move_while_they_are_read(logs: Logs, tmp_path: Path) -> None:
    logs.write(beats(0, 3))
    follower = Follower(logs.journal)
    follower.newest(1)
    logs.write(beats(3, 2))
    logs.archive()
    logs.write(beats(5, 2))
    logs.archive()
    segments = segment_files(logs.journal)
    kept = tmp_path / "kept"
    shutil.copytree(logs.journal / SEGMENTS, kept)
    segments[1].unlink()
    segments[1].symlink_to(tmp_path / "nowhere")
    with pytest.raises(JournalMoved):
        follower.more()
    shutil.rmtree(logs.journal / SEGMENTS)
    kept.rename(logs.journal / SEGMENTS)
    assert seen(follower.more()) == [4, 5, 6, 7]


def test_what_comes_after_everything_was_archived_begins_where_that_ended(logs: Logs) -> None:
    logs.write(beats(0, 3))
    logs.archive()
    follower = Follower(logs.journal)
    assert follower.newest(0) == []
    logs.write(beats(3, 2))
    assert [(row["what"], row["seq"]) for row in follower.more()] == [("beat", 4), ("beat", 5)]


def test_only_what_is_wanted_is_given_before_and_after(logs: Logs) -> None:
    logs.write(beats(0, 4))
    follower = Follower(logs.journal, pc.field("token").isin(["t1", "t5"]))
    assert seen(follower.newest(9)) == [2]
    logs.write(beats(4, 4))
    logs.archive()
    assert seen(follower.more()) == [6]
    logs.write(beats(8, 4))
    assert follower.more() == []


def test_the_time_is_a_limit_for_what_was_and_what_comes(logs: Logs) -> None:
    for hour in range(4):
        logs.write([Row("beat", NOON_US + hour * HOUR_US + minute * 60 * SECOND_US) for minute in (0, 30)])
        logs.archive()
    noon = datetime.fromtimestamp(NOON_US / SECOND_US, UTC)
    since, until = noon + timedelta(hours=1, minutes=30), noon + timedelta(hours=3)
    # Hours that do not count are not even opened.
    segment_files(logs.journal)[0].write_bytes(b"nobody reads this")
    segment_files(logs.journal)[3].write_bytes(b"nobody reads this")
    told: list[str] = []
    follower = Follower(logs.journal, since=since, until=until, damage=told.append)
    assert seen(follower.newest(100)) == [4, 5, 6]
    assert told == []
    logs.write([Row("beat", NOON_US + 2 * HOUR_US), Row("beat", NOON_US + 3 * HOUR_US)])
    assert seen(follower.more()) == [9]


def test_damage_is_told_even_if_nothing_wanted_is_among_the_rows(logs: Logs) -> None:
    """They are not looked through twice, as those for a rare row are."""
    logs.write(beats(0, 9))
    logs.archive()
    (path,) = segment_files(logs.journal)
    damage_page(path, 0, "seq")
    told: list[str] = []
    follower = Follower(logs.journal, pc.field("token") == "t4-", damage=told.append)
    assert follower.newest(9) == []
    assert len(told) == 1
    assert told[0].startswith(f"{path}: 9 of the segment's 9 rows cannot be read: ")


def test_rows_of_several_lives_are_in_the_order_of_their_times(logs: Logs) -> None:
    logs.write([Row("beat", NOON_US + 5), Row("beat", NOON_US + 7)], life="b")
    logs.write([Row("beat", NOON_US + 6), Row("beat", NOON_US + 7)], life="a")
    follower = Follower(logs.journal)
    assert names(follower.newest(9)) == ["b1", "a1", "a2", "b2"]
    assert names(follower.newest(3)) == ["a1", "a2", "b2"]
    logs.write([Row("beat", NOON_US + 9), Row("beat", NOON_US + 9)], life="b")
    logs.write([Row("beat", NOON_US + 8), Row("beat", NOON_US + 9)], life="a")
    assert names(follower.more()) == ["a3", "a4", "b3", "b4"]
    logs.write([Row("beat", NOON_US + 10)], life="b")
    logs.archive()
    assert names(follower.more()) == ["b5"]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['life']}{row['seq']}" for row in rows]


def test_a_log_that_is_being_begun_has_nothing_to_say_yet(logs: Logs) -> None:
    path = logs.write(beats(0, 2), suffix=OPEN)
    whole = path.read_bytes()
    told: list[str] = []
    follower = Follower(logs.journal, damage=told.append)
    path.write_bytes(whole[:6])
    assert follower.newest(5) == []
    path.write_bytes(whole[:7])
    assert follower.more() == []
    path.write_bytes(whole[:-3])
    assert follower.more() == []
    path.write_bytes(whole)
    assert seen(follower.more()) == [1, 2]
    assert told == []


def test_nothing_is_read_while_no_file_has_changed(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write(beats(0, 2))
    follower = Follower(logs.journal)
    follower.newest(5)

    def unexpected(journal: Path) -> None:
        raise AssertionError(f"{journal} was read")

    with monkeypatch.context() as patched:
        patched.setattr("polybus.journal.following.Snapshot", unexpected)
        assert follower.more() == []
    logs.write(beats(2, 1))
    assert seen(follower.more()) == [3]
    assert follower.more() == []


@pytest.mark.parametrize(("count", "opened"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_no_more_of_a_journal_is_read_than_is_wanted(logs: Logs, count: int, opened: int) -> None:
    for number in range(3):
        logs.write(beats(number * 2, 2))
        logs.archive()
    logs.write(beats(6, 2))
    told: list[str] = []
    for path in segment_files(logs.journal)[: 3 - opened]:
        path.write_bytes(b"nobody reads this")
    found = Follower(logs.journal, damage=told.append).newest(count)
    assert seen(found) == list(range(9 - count, 9))
    assert told == []


def test_damage_of_a_segment_that_comes_is_told_once(logs: Logs) -> None:
    told: list[str] = []
    follower = Follower(logs.journal, damage=told.append)
    follower.newest(1)
    for number in range(3):
        logs.write(beats(number, 1))
        logs.archive()
        if not number:
            segment_files(logs.journal)[0].write_bytes(b"PAR1 no")
        assert seen(follower.more()) == ([number + 1] if number else [])
    assert len(told) == 1


def test_what_follows_damage_in_a_log_comes_as_well(logs: Logs) -> None:
    logs.write(beats(0, 1))
    follower = Follower(logs.journal)
    assert seen(follower.newest(5)) == [1]
    path = logs.write(beats(1, 2))
    head = write_head(LogHead("tested", "life", 2, 0.0))
    damaged = write_batch(2, 1, write_row(beats(1, 1)[0]))[:-1] + b"?"
    path.write_bytes(head + damaged + write_batch(3, 1, write_row(beats(2, 1)[0])))
    assert [(row["what"], row["seq"], row["size"]) for row in follower.more()] == [
        ("hole", 2, 1),
        ("beat", 3, 0),
    ]
