"""The writer of the log, one turn at a time and without its thread: when a log ends, and what is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polybus.journal import lock
from polybus.journal import writer as writer_module
from polybus.journal.log import (
    FINISHED,
    OPEN,
    LogHead,
    log_files,
    log_path,
    read_batches,
    read_head,
    write_head,
)
from polybus.journal.writer import RETRY_S, JournalState, JournalWriter


class Turns:
    """A writer whose turns, clock and pauses are those of the test."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now = 100.0
        self.told = 0
        self.folder = folder
        self.writer = JournalWriter(
            folder,
            "tested",
            "life",
            {1: "front"},
            on_finished=self._on_finished,
            clock=lambda: self.now,
            wall=lambda: 5.0,
            **settings,
        )
        # Nothing starts the thread: its absence is no trouble here.
        self.writer._thread.is_alive = lambda: True  # type: ignore[method-assign]

    def _on_finished(self) -> None:
        self.told += 1

    def write(self, *payloads: bytes) -> JournalState:
        """One turn with these records."""
        for payload in payloads:
            self.writer.append(1, payload)
        self.writer._turn()
        return self.writer.state()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "open"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(writer_module, "time", SimpleNamespace(sleep=made.append))
    return made


HEAD_BYTES = len(write_head(LogHead("tested", "life", 1, 5.0, {"1": "front"})))
BATCH_BYTES = 24


def refusing(*_: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_writer_that_has_not_begun_has_done_nothing(folder: Path) -> None:
    turns = Turns(folder)
    assert turns.writer.state() == JournalState(0, 0, 0, "", 0, 0, 0, "")
    assert not turns.writer._news.is_set()
    assert turns.writer._thread.daemon, "nobody waits for the journal of a process that ends"


@pytest.mark.parametrize(("age_s", "is_finished"), [(0.0, False), (1.999, False), (2.0, True), (9.0, True)])
def test_a_log_is_finished_when_it_is_exactly_so_old(folder: Path, age_s: float, is_finished: bool) -> None:
    turns = Turns(folder, roll_s=2.0)
    turns.write(b"one")
    assert turns.names() == ["000000000001.open"]
    turns.now += age_s
    state = turns.write()
    assert turns.names() == [f"000000000001.{'log' if is_finished else 'open'}"]
    assert (state.finished, turns.told) == ((1, 2) if is_finished else (0, 1))


@pytest.mark.parametrize(("more", "suffix"), [(0, FINISHED), (1, OPEN)])
def test_a_log_is_finished_when_it_is_exactly_so_large(folder: Path, more: int, suffix: str) -> None:
    size = HEAD_BYTES + 2 * (BATCH_BYTES + 50)
    turns = Turns(folder, roll_bytes=size + more)
    turns.write(bytes(50))
    assert log_files(folder, FINISHED) == []
    turns.write(bytes(50))
    (path,) = log_files(folder, suffix)
    assert path.stat().st_size == size


def test_a_turn_takes_a_log_s_worth_of_records_and_leaves_the_rest_for_the_next(folder: Path) -> None:
    turns = Turns(folder, roll_bytes=1000)
    for _ in range(3):
        turns.writer.append(2, bytes(500))
    assert turns.write().written == 4
    assert (turns.writer.waiting_bytes, turns.writer._news.is_set()) == (500, True)
    turns.writer._news.clear()
    assert turns.write().written == 6
    assert (turns.writer.waiting_bytes, turns.writer._news.is_set()) == (0, False)
    # What comes sets it again.
    turns.writer.append(1, b"")
    assert turns.writer._news.is_set()


def test_a_turn_without_records_begins_no_log(folder: Path) -> None:
    turns = Turns(folder)
    turns.writer._try_to_begin()
    assert turns.write().written == 0
    assert turns.names() == []


def test_what_is_larger_than_a_batch_may_be_is_lost_whatever_it_tells(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH_BYTES", 100)
    turns = Turns(folder)
    turns.writer.append(1, bytes(100))
    turns.writer.append(3, bytes(101), force=True)
    assert (turns.writer.lost, turns.writer.waiting_bytes) == (3, 100)
    assert turns.write().written == 1


def test_a_log_tells_who_wrote_it_and_others_may_read_it(folder: Path) -> None:
    before = os.umask(0o022)
    try:
        Turns(folder).write(b"one")
    finally:
        os.umask(before)
    (path,) = log_files(folder, OPEN)
    head, begin = read_head(path)
    assert head == LogHead("tested", "life", 1, 5.0, {"1": "front"})
    assert [batch.payload for batch in read_batches(path, begin)] == [b"one"]  # type: ignore[union-attr]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_disk_that_refuses_records_is_tried_again_after_a_pause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    turns = Turns(folder)
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "fdatasync", refusing)
        state = turns.write(b"a", b"b")
        why = f"the journal cannot be written: Input/output error ({folder})"
        assert state == JournalState(0, 2, 0, why, 1, 0, 0, why)
        assert pauses == [RETRY_S]
        # A broker that stops does not wait for it.
        turns.writer._stopping = True
        turns.write(b"c")
        assert pauses == [RETRY_S, 0]
    # An empty turn proves nothing.
    assert turns.write().trouble == why
    assert turns.write(b"d") == JournalState(1, 3, 0, "", 2, 0, 0, why)


def test_a_folder_that_cannot_be_made_is_told_until_something_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.write_text("a file")
    turns = Turns(folder)
    turns.writer._try_to_begin()
    turns.write()
    assert turns.writer.state().trouble.startswith("the journal cannot be begun: ")
    folder.parent.unlink()
    turns.write()
    assert turns.writer.state().trouble.startswith("the journal cannot be begun: ")
    assert turns.write(b"one").trouble == ""


@pytest.mark.parametrize("records", [(), (b"two",)])
def test_a_log_that_cannot_be_finished_is_told_and_the_next_one_is_begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch, records: tuple[bytes, ...]
) -> None:
    turns = Turns(folder, roll_s=2.0)
    turns.write(b"one")
    turns.now += 2.0
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refusing)
        state = turns.write(*records)
    path = log_path(folder, 1, OPEN)
    assert state.trouble == f"the journal's log {path} cannot be finished: [Errno 5] Input/output error"
    # Nothing is lost by that.
    assert (state.finished, state.lost, state.refusal) == (0, 0, "")
    assert turns.write(b"three").trouble == ""
    assert turns.names() == ["000000000001.open", "000000000002.open"]


def test_why_a_log_could_not_be_begun_is_told_even_if_its_file_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(folder)
    turns.writer._try_to_begin()

    def gone(place: Path) -> None:
        for path in place.iterdir():
            path.unlink()
        refusing()

    monkeypatch.setattr(writer_module, "sync_folder", gone)
    assert "Input/output error" in turns.write(b"one").trouble


# -- nobody archives ------------------------------------------------------------------------------


def finished(folder: Path, count: int) -> int:
    """So many finished logs of the same size; how large they are together."""
    folder.mkdir(parents=True)
    for number in range(1, count + 1):
        log_path(folder, number, FINISHED).write_bytes(bytes(100))
    return 100 * count


@pytest.fixture
def _nobody_archives(folder: Path) -> Iterator[None]:
    yield
    held = lock.take(folder.parent)
    assert held is not None, "the writer keeps nobody from archiving"
    os.close(held)


@pytest.mark.usefixtures("_nobody_archives")
@pytest.mark.parametrize(("more", "removed"), [(-101, 2), (-100, 1), (-1, 1), (0, 0), (1, 0)])
def test_no_more_logs_go_than_must(folder: Path, more: int, removed: int) -> None:
    total = finished(folder, 4)
    turns = Turns(folder, keep_bytes=total + more)
    turns.writer._try_to_begin()
    assert turns.names() == [f"{number:012d}.log" for number in range(1 + removed, 5)]
    assert turns.writer.state().removed == removed
    # Who has room enough does not ask whether somebody archives.
    assert (folder.parent / lock.LOCK).exists() == bool(removed)


@pytest.mark.usefixtures("_nobody_archives")
def test_a_log_that_is_gone_already_makes_room_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = finished(folder, 4)
    take = lock.take

    def removed_by_hand(journal: Path) -> int | None:
        log_path(folder, 1, FINISHED).unlink()
        return take(journal)

    monkeypatch.setattr(lock, "take", removed_by_hand)
    turns = Turns(folder, keep_bytes=total - 150)
    turns.writer._try_to_begin()
    assert turns.writer.state().trouble == ""
    assert turns.names() == ["000000000003.log", "000000000004.log"]
    monkeypatch.undo()


def test_every_turn_is_synced_after_it_was_written_however_long_the_log_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fdatasync(file: int) -> None:
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    turns = Turns(folder)
    sizes = []
    for _ in range(12):
        turns.write(b"x" * (1 << 20))
        (log,) = log_files(folder, OPEN)
        sizes.append(log.stat().st_size)
    assert synced == sizes
    assert sizes[-1] > 12 << 20
