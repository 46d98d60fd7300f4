"""The newest rows first, then what comes: nothing twice, nothing left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from polybus.errors import JournalMoved
from polybus.journal.archiver import SEGMENTS
from polybus.journal.following import Follower
from polybus.journal.log import FINISHED, OPEN
from polybus.journal.reader import segment_files
from polybus.journal.record import Row
from support.journals import NOON_US, Logs


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
