"""The append log: what was written is read, damage costs only what it hits, and the writer never waits."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.errors import JournalDamaged
from polybus.journal import lock
from polybus.journal import log as log_module
from polybus.journal import writer as writer_module
from polybus.journal.log import (
    BATCH_MAGIC,
    DAMAGED,
    FINISHED,
    OPEN,
    PLAN,
    STATE,
    Batch,
    Damage,
    LogHead,
    finish_leftovers,
    last_number,
    log_files,
    log_path,
    read_batches,
    read_head,
    split_batches,
    sync_folder,
    write_batch,
    write_head,
)
from polybus.journal.writer import JournalWriter
from support.patience import patient
from support.waiting import until

HEAD = LogHead("tested", "life", 1, 5.0, {"1": "ebus.frontend"})


def log_of(path: Path, *batches: bytes) -> int:
    head = write_head(HEAD)
    path.write_bytes(head + b"".join(batches))
    return len(head)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    begin = log_of(path, write_batch(1, 2, b"ab"), write_batch(3, 1, b""), write_batch(9, 1, b"c"))
    assert read_head(path) == (HEAD, begin)
    found = [batch for batch in read_batches(path, begin) if isinstance(batch, Batch)]
    assert [(batch.first, batch.count, batch.payload) for batch in found] == [
        (1, 2, b"ab"),
        (3, 1, b""),
        (9, 1, b"c"),
    ]


def test_a_batch_that_was_cut_off_ends_its_file(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    whole, cut = write_batch(1, 1, b"whole"), write_batch(2, 1, b"cut off")
    for length in range(1, len(cut)):
        begin = log_of(path, whole, cut[:length])
        first, rest = read_batches(path, begin)
        assert isinstance(first, Batch)
        assert rest == Damage(begin + len(whole), length, rest.what)  # type: ignore[union-attr]


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_costs_the_batch_that_it_hits_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log") / "1.log"
    batches = [write_batch(n * 10 + 1, 10, bytes([n]) * data.draw(st.integers(0, 50))) for n in range(5)]
    begin = log_of(path, *batches)
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(begin * 8, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    found = list(read_batches(path, begin))
    whole = [batch.first for batch in found if isinstance(batch, Batch)]
    damage = [one for one in found if isinstance(one, Damage)]
    hit = next(number for number in range(5) if bit // 8 < begin + sum(map(len, batches[: number + 1])))
    assert whole == [n * 10 + 1 for n in range(5) if n != hit]
    assert [one.length for one in damage] == [len(batches[hit])]


def test_the_mark_of_a_batch_alone_proves_nothing(tmp_path: Path) -> None:
    """A body may have it as well: what follows damage must hold together."""
    path = tmp_path / "1.log"
    damaged = write_batch(1, 1, BATCH_MAGIC * 3 + b"body")[:-1] + b"Y"
    begin = log_of(path, damaged, write_batch(2, 1, b"whole"))
    first, second = read_batches(path, begin)
    assert first == Damage(begin, len(damaged), first.what)  # type: ignore[union-attr]
    assert isinstance(second, Batch)
    assert (second.first, second.payload) == (2, b"whole")


def test_a_large_batch_is_read() -> None:
    payload = bytes(2 * 1024 * 1024)
    assert list(split_batches(write_batch(1, 1, payload), 0)) == [Batch(1, 1, payload)]


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_a_head_may_have_so_many_bytes_and_no_more(tmp_path: Path, more: int, is_read: bool) -> None:
    path = tmp_path / "1.log"
    empty = len(write_head(LogHead("", "life", 1, 5.0))) - len(log_module.MAGIC) - 8
    head = LogHead("x" * (log_module.MAX_HEAD_BYTES - empty + more), "life", 1, 5.0)
    path.write_bytes(write_head(head) + write_batch(1, 1, b""))
    if is_read:
        assert read_head(path)[0] == head
    else:
        with pytest.raises(JournalDamaged):
            read_head(path)


def test_what_does_not_begin_like_a_log_is_none_however_whole_it_is(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    head = write_head(HEAD)
    for content in (head[:15], b"PBJRNL2\n" + head[8:]):
        path.write_bytes(content)
        with pytest.raises(JournalDamaged, match="does not begin like a log"):
            read_head(path)


def test_damage_says_what_is_wrong() -> None:
    batch = write_batch(1, 1, b"records")
    other = b"XXXX" + batch[4:]
    flipped = batch[:-1] + b"?"
    told = [next(split_batches(data, 0)) for data in (batch[:23], other, batch[:-1], flipped)]
    assert [one.what for one in told if isinstance(one, Damage)] == [
        "a batch is cut off in its head",
        "there is no batch where one should begin",
        "a batch is cut off",
        "the checksum of a batch is wrong",
    ]


def test_damage_at_the_very_beginning_costs_no_batch_behind_it() -> None:
    whole = write_batch(2, 1, b"whole")
    for damaged in (
        b"?",
        b"no batch at all, and longer than the head of one",
        write_batch(1, 1, b"x")[:-1] + b"y",
    ):
        first, second = split_batches(damaged + whole, 0)
        assert first == Damage(0, len(damaged), first.what)  # type: ignore[union-attr]
        assert second == Batch(2, 1, b"whole", len(damaged))


def test_a_folder_that_somebody_else_makes_at_the_same_time_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "journal" / "open"
    is_dir = Path.is_dir

    def made_meanwhile(path: Path) -> bool:
        found = is_dir(path)
        if not found:
            path.mkdir(parents=True)
        return found

    monkeypatch.setattr(Path, "is_dir", made_meanwhile)
    log_module.make_folder(folder)
    assert is_dir(folder)


def test_a_head_that_is_damaged_is_told(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    head = write_head(HEAD)
    for content in (b"", b"PBJ", head[:-1], head[:10] + b"\xff" + head[11:], b"something else entirely"):
        path.write_bytes(content)
        with pytest.raises(JournalDamaged):
            read_head(path)


def test_logs_of_an_earlier_life_are_finished(tmp_path: Path) -> None:
    for number, suffix in ((3, FINISHED), (7, OPEN), (12, OPEN)):
        log_path(tmp_path, number, suffix).write_bytes(b"")
    (tmp_path / "notes.log").write_bytes(b"")
    assert [path.name for path in finish_leftovers(tmp_path)] == ["000000000007.log", "000000000012.log"]
    assert [path.stem for path in log_files(tmp_path)] == ["000000000003", "000000000007", "000000000012"]


# -- the writer -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "open"


def open_writer(folder: Path, **settings: Any) -> JournalWriter:
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, sync_s=0.001, **settings)
    writer.start()
    return writer


def records_in(folder: Path) -> Iterator[tuple[int, int, bytes]]:
    for path in log_files(folder):
        head, begin = read_head(path)
        assert head.links == {"1": "ebus.frontend"}
        for batch in read_batches(path, begin):
            assert isinstance(batch, Batch)
            yield batch.first, batch.count, batch.payload


def test_everything_is_on_disk_when_it_ends(folder: Path) -> None:
    writer = open_writer(folder)
    for number in range(100):
        writer.append(2, b"%04d" % number)
    assert writer.stop() == 0
    assert writer.state().written == 200
    found = list(records_in(folder))
    assert b"".join(payload for _, _, payload in found) == b"".join(b"%04d" % n for n in range(100))
    assert found[0][0] == 1
    assert not log_files(folder, OPEN)


def test_it_does_not_wait_for_more_when_it_is_to_end(folder: Path) -> None:
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, sync_s=60.0)
    writer.append(1, b"last words")
    # The thread finds that it is to end when it starts, so that it cannot be in its pause already.
    writer._stopping = True
    writer.start()
    assert writer.stop(timeout_s=patient(30.0)) == 0
    assert not writer._thread.is_alive()
    assert [payload for _, _, payload in records_in(folder)] == [b"last words"]


def test_large_logs_are_finished_and_numbers_go_on_after_a_restart(folder: Path) -> None:
    for _ in range(2):
        writer = open_writer(folder, roll_bytes=500)
        for _ in range(10):
            writer.append(1, bytes(300))
            until(lambda writer=writer: not writer.state().waiting_bytes)
        assert writer.stop() == 0
    stems = [int(path.stem) for path in log_files(folder)]
    assert stems == list(range(1, len(stems) + 1))
    assert len(stems) >= 8


def test_what_does_not_fit_is_counted_and_leaves_a_hole_in_the_numbers(folder: Path) -> None:
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, waiting_bytes=10)
    writer.append(1, b"12345")
    writer.append(3, b"678901")
    writer.append(1, b"23456")
    assert writer.state().lost == 3
    writer.start()
    assert writer.stop() == 3
    assert [(first, count) for first, count, _ in records_in(folder)] == [(1, 1), (5, 1)]


def test_what_tells_of_a_loss_goes_in_above_the_limit(folder: Path) -> None:
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, waiting_bytes=10)
    writer.append(1, b"1234567890")
    writer.append(2, b"lost")
    writer.append(1, b"the loss", force=True)
    assert (writer.lost, writer.state().overflowed, writer.waiting_bytes) == (2, 2, 18)
    writer.start()
    assert writer.stop() == 2
    assert writer.waiting_bytes == 0
    assert list(records_in(folder)) == [(1, 1, b"1234567890"), (4, 1, b"the loss")]


def test_what_a_writer_has_not_written_when_it_must_end_counts_as_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(writer_module.os, "fdatasync", lambda file: hangs.wait(patient(30.0)))
    writer = open_writer(folder)
    writer.append(3, b"on a disk that hangs")
    until(lambda: writer._file >= 0)
    assert writer.stop(timeout_s=0.01) == 3
    hangs.set()
    assert writer.stop() == 0


def test_a_writer_that_is_behind_does_not_pause(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(writer_module, "time", clock)
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, sync_s=0.5, roll_bytes=100)
    for _ in range(10):
        writer.append(1, bytes(50))
    writer.start()
    until(lambda: writer.state().written == 10)
    assert pauses == []
    writer.append(1, b"little")
    until(lambda: writer.state().written == 11)
    assert pauses == [0.5]
    assert writer.stop() == 0


def test_batches_with_a_hole_between_them_are_not_joined(folder: Path) -> None:
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, waiting_bytes=15)
    for count, payload in ((1, b"1"), (1, b"2"), (1, b"too much for it"), (3, b"456")):
        writer.append(count, payload)
    writer.start()
    assert writer.stop() == 1
    assert list(records_in(folder)) == [(1, 2, b"12"), (4, 3, b"456")]


def test_a_large_record_is_written(folder: Path) -> None:
    writer = open_writer(folder)
    writer.append(1, bytes(2 * 1024 * 1024))
    assert writer.stop() == 0
    assert [len(payload) for _, _, payload in records_in(folder)] == [2 * 1024 * 1024]


@pytest.mark.parametrize(
    ("sizes", "batches"), [((60, 41), 2), ((60, 40), 1), ((100, 1), 2), ((1, 100), 2), ((50, 50, 50), 2)]
)
def test_neighbours_are_joined_only_as_long_as_readers_take_the_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], batches: int
) -> None:
    """A buffer may be larger than the largest batch; what a reader takes for damage must not be written."""
    monkeypatch.setattr(writer_module, "MAX_BATCH_BYTES", 100)
    monkeypatch.setattr(log_module, "MAX_BATCH_BYTES", 100)
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, sync_s=0.001)
    for size in sizes:
        writer.append(1, b"x" * size)
    writer.start()
    assert writer.stop() == 0
    written = list(records_in(folder))
    assert len(written) == batches
    assert [first for first, _, _ in written] == [1, len(sizes)][:batches]
    assert sum(len(payload) for _, _, payload in written) == sum(sizes)
    assert sum(count for _, count, _ in written) == len(sizes)


def test_a_full_disk_stops_nothing_and_the_journal_recovers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    write = os.write

    def refuse(file: int, data: Any) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(writer_module.os, "write", refuse)
    monkeypatch.setattr(writer_module.os, "writev", lambda file, pieces: refuse(file, b"".join(pieces)))
    monkeypatch.setattr(writer_module, "RETRY_S", 0.001)
    writer = open_writer(folder)
    writer.append(4, b"lost")
    until(lambda: writer.state().lost == 4)
    assert "No space left" in writer.state().trouble
    full = False
    writer.append(1, b"kept")
    until(lambda: writer.state().written == 1)
    until(lambda: not writer.state().trouble)
    assert writer.stop() == 4
    assert list(records_in(folder)) == [(5, 1, b"kept")]


def test_half_a_batch_is_taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk becomes full in the middle of a write: readers must not find the half."""
    write, room = os.write, [10_000]

    def some(file: int, data: Any) -> int:
        part = bytes(data)[: room[0]]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= len(part)
        return write(file, part)

    monkeypatch.setattr(writer_module.os, "write", some)
    monkeypatch.setattr(writer_module.os, "writev", lambda file, pieces: some(file, b"".join(pieces)))
    monkeypatch.setattr(writer_module, "RETRY_S", 0.001)
    writer = open_writer(folder)
    writer.append(1, bytes(1000))
    until(lambda: writer.state().written == 1)
    writer.append(1, bytes(20_000))
    until(lambda: writer.state().lost == 1)
    room[0] = 1 << 30
    writer.append(1, b"after")
    assert writer.stop() == 1
    assert [(first, len(payload)) for first, _, payload in records_in(folder)] == [(1, 1000), (3, 5)]
    # The disk refused that log once, so what follows stands in another one.
    assert len(list(log_files(folder))) == 2


def test_names_are_not_used_again_when_the_logs_are_gone(folder: Path) -> None:
    """The archiver removed them, and perhaps it died before it could say so everywhere."""
    folder.mkdir(parents=True)
    assert last_number(folder) == 0
    (folder.parent / STATE).write_text('{"next": {}, "segments": 3, "log": 7}')
    assert last_number(folder) == 7
    (folder.parent / PLAN).write_text('{"logs": ["000000000008.log", "000000000009.log"], "name": "x"}')
    assert last_number(folder) == 9
    log_path(folder, 10, DAMAGED).touch()
    writer = open_writer(folder)
    writer.append(1, b"new")
    writer.stop()
    assert [path.name for path in log_files(folder)] == ["000000000011.log"]
    assert writer.state().finished == 11


def test_a_folder_that_cannot_be_made_stops_nothing_and_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.001)
    in_the_way = folder.parent
    in_the_way.write_text("a file")
    writer = open_writer(folder)
    until(lambda: "cannot be begun" in writer.state().trouble)
    writer.append(2, b"lost")
    until(lambda: writer.state().lost == 2)
    assert writer.state().trouble
    in_the_way.unlink()
    writer.append(1, b"kept")
    until(lambda: writer.state().written == 1)
    until(lambda: not writer.state().trouble)
    assert writer.stop() == 2
    assert list(records_in(folder)) == [(3, 1, b"kept")]


def test_without_an_archiver_the_oldest_logs_go(folder: Path) -> None:
    writer = open_writer(folder, roll_bytes=500, keep_bytes=2000)
    for number in range(20):
        writer.append(1, bytes([number]) * 600)
        until(lambda number=number: writer.state().written == number + 1)
    writer.stop()
    assert sum(path.stat().st_size for path in log_files(folder)) <= 2000
    kept = [first for first, _, _ in records_in(folder)]
    assert kept == list(range(21 - len(kept), 21))
    assert writer.state().removed == 20 - len(kept)


def test_logs_that_somebody_archives_are_not_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    held = lock.take(folder.parent)
    assert held is not None
    assert lock.take(folder.parent) is None
    assert lock.holder(folder.parent) == str(os.getpid())
    writer = open_writer(folder, roll_bytes=100, keep_bytes=100)
    for number in range(5):
        writer.append(1, bytes(200))
        until(lambda number=number: writer.state().written == number + 1)
    writer.stop()
    assert len(log_files(folder)) == 5
    os.close(held)


def test_a_log_is_finished_when_it_is_old_and_somebody_is_told(folder: Path) -> None:
    told: list[int] = []
    writer = open_writer(folder, roll_s=0.01, on_finished=lambda: told.append(1))
    writer.append(1, b"a")
    until(lambda: writer.state().finished == 1)
    # Once when it began, once for the log; and none is begun while there is nothing to write.
    until(lambda: told == [1, 1])
    assert not log_files(folder, OPEN)
    writer.stop()
    assert len(log_files(folder)) == 1


def test_a_log_that_cannot_be_begun_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty log without a head would be damage to every reader."""
    refused = True
    sync = sync_folder

    def refuse(path: Path) -> None:
        if refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    monkeypatch.setattr(writer_module, "sync_folder", refuse)
    monkeypatch.setattr(writer_module, "RETRY_S", 0.001)
    writer = open_writer(folder)
    writer.append(2, b"lost")
    until(lambda: writer.state().lost == 2)
    assert "Input/output error" in writer.state().trouble
    assert str(folder) in writer.state().trouble
    assert list(folder.iterdir()) == []
    refused = False
    writer.append(3, b"kept")
    until(lambda: writer.state().written == 3)
    until(lambda: not writer.state().trouble)
    assert writer.stop() == 2
    assert list(records_in(folder)) == [(3, 3, b"kept")]
    state = writer.state()
    assert (state.written, state.lost, state.waiting_bytes, state.trouble) == (3, 2, 0, "")
    assert state.finished == last_number(folder)
    assert state.removed == 0


@pytest.mark.parametrize(("waiting_bytes", "lost"), [(10, 0), (9, 3)])
def test_what_waits_may_have_exactly_as_many_bytes_as_are_allowed(
    folder: Path, waiting_bytes: int, lost: int
) -> None:
    writer = JournalWriter(folder, "tested", "life", {1: "ebus.frontend"}, waiting_bytes=waiting_bytes)
    writer.append(2, bytes(5))
    writer.append(3, bytes(5))
    assert (writer.state().lost, writer.state().waiting_bytes) == (lost, 10 if not lost else 5)
    writer.start()
    assert writer.stop() == lost
    assert writer.state().waiting_bytes == 0
    assert sum(count for _, count, _ in records_in(folder)) == 5 - lost


def test_the_journal_says_when_its_thread_is_gone(folder: Path) -> None:
    writer = JournalWriter(folder, "tested", "life", {})
    assert "thread has ended" in writer.state().trouble
    writer.start()
    assert writer.state().trouble == ""
    writer.stop()
    assert writer.state().trouble == ""


@pytest.mark.parametrize(("keep_bytes", "left"), [(0, 4), (1, 1), (10_000_000, 4)])
def test_the_oldest_logs_go_until_the_rest_is_small_enough(folder: Path, keep_bytes: int, left: int) -> None:
    for _ in range(4):
        writer = open_writer(folder, keep_bytes=keep_bytes)
        writer.append(1, bytes(100))
        writer.stop()
    assert [path.name for path in log_files(folder)] == [
        log_path(folder, number, FINISHED).name for number in range(5 - left, 5)
    ]


def test_room_for_exactly_two_logs_keeps_two(folder: Path) -> None:
    sizes: list[int] = []
    for number in range(4):
        writer = open_writer(folder, keep_bytes=2 * sizes[0] if sizes else 1_000_000, wall=lambda: 5.0)
        writer.append(1, bytes(100))
        writer.stop()
        sizes.append(log_path(folder, number + 1, FINISHED).stat().st_size)
        assert writer.state().removed == max(0, number - 1) - max(0, number - 2)
    assert len(set(sizes)) == 1
    assert len(list(log_files(folder))) == 2


def test_records_that_come_one_after_the_other_go_into_one_log(folder: Path) -> None:
    writer = open_writer(folder, roll_s=3600.0)
    for number in range(1, 4):
        writer.append(1, b"%d" % number)
        until(lambda number=number: writer.state().written == number)  # type: ignore[misc]
    assert writer.state().finished == 0
    writer.stop()
    assert [batch[0] for batch in records_in(folder)] == [1, 2, 3]
    assert len(list(log_files(folder))) == 1
    assert writer.state().finished == 1


def test_a_log_that_cannot_be_begun_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that tries again every second must not run out of files."""

    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(writer_module, "sync_folder", refuse)
    monkeypatch.setattr(writer_module, "RETRY_S", 0.001)
    writer = open_writer(folder)
    for number in range(1, 4):
        writer.append(1, b"lost")
        until(lambda number=number: writer.state().lost == number)  # type: ignore[misc]
    assert writer.stop() == 3
    assert held_in(folder) == []


def held_in(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    paths: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        # Other threads close files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in paths if path.startswith(str(folder))]


def test_a_finished_log_is_closed(folder: Path) -> None:
    writer = open_writer(folder)
    writer.append(1, b"one")
    until(lambda: writer.state().written == 1)
    writer.stop()
    assert held_in(folder) == []


def test_what_the_journal_says_of_itself(folder: Path) -> None:
    writer = open_writer(folder, waiting_bytes=10)
    writer.append(1, b"kept")
    until(lambda: writer.state().written == 1)
    until(lambda: writer.state().waiting_bytes == 0)
    writer.append(2, bytes(11))
    state = writer.state()
    assert (state.written, state.lost, state.overflowed, state.refusal) == (1, 2, 2, "")
    assert writer.waiting_bytes == 0
    assert writer.stop() == 2


def test_the_journal_remembers_why_the_disk_refused_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.001)
    writer = open_writer(folder)
    with monkeypatch.context() as patched:
        patched.setattr(writer_module.os, "fdatasync", no_disk)
        writer.append(2, b"lost")
        until(lambda: writer.state().lost == 2)
    writer.append(1, b"kept")
    until(lambda: writer.state().written == 1)
    until(lambda: not writer.state().trouble)
    state = writer.state()
    assert "Input/output error" in state.refusal
    assert (state.overflowed, state.lost) == (0, 2)
    writer.stop()
    assert list(records_in(folder)) == [(3, 1, b"kept")]


def no_disk(file: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_many_pieces_and_a_system_that_takes_a_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PIECES", 3)
    writev, write = os.writev, os.write
    monkeypatch.setattr(writer_module.os, "writev", lambda file, some: writev(file, [b"".join(some)[:4]]))
    monkeypatch.setattr(writer_module.os, "write", lambda file, rest: write(file, rest[:2]))
    pieces = [b"%d--" % number for number in range(10)]
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    writer_module._write_all(file, pieces)
    os.close(file)
    assert (tmp_path / "log").read_bytes() == b"".join(pieces)


def test_what_an_earlier_life_left_is_made_smaller_at_once(folder: Path) -> None:
    for _ in range(3):
        writer = open_writer(folder)
        writer.append(1, bytes(100))
        writer.stop()
    writer = open_writer(folder, keep_bytes=1)
    assert writer.stop() == 0
    assert [path.stem for path in log_files(folder)] == ["000000000003"]
    assert (writer.state().removed, writer.state().finished) == (2, 3)


def test_who_has_the_lock_is_told_as_far_as_it_is_known(tmp_path: Path) -> None:
    assert lock.holder(tmp_path) == "unknown"
    (tmp_path / lock.LOCK).write_text("\n")
    assert lock.holder(tmp_path) == "unknown"
    # What somebody before had written there, which was longer, is gone.
    (tmp_path / lock.LOCK).write_text("123456789012\n")
    held = lock.take(tmp_path)
    assert held is not None
    assert (tmp_path / lock.LOCK).read_text() == f"{os.getpid()}\n"
    assert lock.take(tmp_path) is None
    os.close(held)
    assert lock.holder(tmp_path) == str(os.getpid())


def test_a_lock_that_somebody_has_costs_no_file(tmp_path: Path) -> None:
    held = lock.take(tmp_path)
    assert held is not None
    assert [lock.take(tmp_path) for _ in range(3)] == [None] * 3
    assert len(held_in(tmp_path)) == 1
    # A process that is started meanwhile does not get it.
    assert not os.get_inheritable(held)
    os.close(held)
