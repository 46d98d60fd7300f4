"""The archiver's process: what it does when, what it says, and how it goes on after an error."""

from __future__ import annotations

import errno
import importlib.util
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polybus.errors import ConfigError
from polybus.journal import archive as archive_module
from polybus.journal import lock
from polybus.journal.archive import (
    LOOK_ALONE_S,
    LOOK_BUSY_S,
    LOOK_S,
    RETRY_S,
    TIDY_S,
    Archive,
    Attention,
    Keep,
    be_modest,
    main,
    run,
)
from polybus.journal.archiver import SEGMENTS, Archiver
from polybus.journal.log import STATE, LogHead, log_files, write_batch, write_head
from polybus.journal.pace import Pace
from polybus.journal.progress import read_progress
from polybus.journal.reader import segment_files
from polybus.journal.record import Row
from polybus.journal.retention import COMPACTED, READERS
from support.journals import HOUR_US, NOON_US, Logs, everything

NOON_S = NOON_US / 1e6


class Told:
    """An archive of which everything that it says is kept."""

    def __init__(self, journal: Path, keep: Keep | None = None) -> None:
        self.lines: list[str] = []
        self.now = NOON_S + 7200.0
        self.archive = Archive(journal, keep or Keep(1000.0), self.lines.append, lambda: self.now)

    def work(self) -> bool:
        return self.archive.work()


def rows(first: int, count: int) -> list[Row]:
    return [Row("accepted", NOON_US + n * 1000, token=b"t%d" % n) for n in range(first, first + count)]


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_what_it_did_can_be_read(logs: Logs, tmp_path: Path) -> None:
    logs.write(rows(0, 5))
    logs.skip(3)
    logs.write(rows(8, 2))
    told = Told(tmp_path)
    assert told.work()
    progress = read_progress(tmp_path)
    # With the row that stands for those that are missing.
    assert (progress.pid, progress.rows, progress.lost, progress.log) == (os.getpid(), 8, 3, 2)
    assert progress.segments == len(segment_files(tmp_path)) == 1
    assert progress.at == told.now
    assert "3 records are missing" in told.lines[0]
    # What was lost stays lost after a restart; the rest is counted anew.
    again = Told(tmp_path).archive.progress
    assert (again.rows, again.lost, again.log) == (0, 3, 2)


def test_damage_is_told(logs: Logs, tmp_path: Path) -> None:
    path = logs.write(rows(0, 5))
    path.write_bytes(path.read_bytes()[:-3])
    logs.write(rows(5, 5))
    told = Told(tmp_path)
    assert told.work()
    progress = read_progress(tmp_path)
    assert (progress.damage, progress.lost) == (1, 5)
    assert str(path) in progress.last_damage
    assert "cut off" in told.lines[0]


def test_records_that_make_no_sense_are_damage_and_no_end(logs: Logs, tmp_path: Path) -> None:
    """Their checksum is right: whoever wrote them was wrong."""
    logs.write(rows(0, 2))
    bad = logs.write(rows(2, 2))
    bad.write_bytes(write_head(LogHead("tested", "life", 2, 0.0)) + write_batch(3, 2, b"no records"))
    logs.write(rows(4, 2))
    told = Told(tmp_path)
    assert told.work()
    assert read_progress(tmp_path).damage == 1
    found = everything(tmp_path)
    assert [(row["seq"], row["what"]) for row in found] == [
        (1, "accepted"),
        (2, "accepted"),
        (4, "hole"),
        (5, "accepted"),
        (6, "accepted"),
    ]
    assert bad.with_suffix(".damaged").exists()


def test_a_full_disk_is_told_once_and_tried_again(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.write(rows(0, 5))
    told = Told(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", refuse)
        assert not told.work()
        assert not told.work()
        assert "No space left" in read_progress(tmp_path).trouble
        assert len(told.lines) == 1
    assert told.work()
    assert told.lines[1:] == ["archives again"]
    assert not read_progress(tmp_path).trouble
    assert len(everything(tmp_path)) == 5


def test_the_file_that_cannot_be_written_is_named(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.write(rows(0, 5))
    told = Told(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), "/where/it/is")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", refuse)
    assert not told.work()
    assert read_progress(tmp_path).trouble == "Permission denied (/where/it/is)"


def test_what_is_too_old_goes_and_is_told(logs: Logs, tmp_path: Path) -> None:
    logs.write(rows(0, 5))
    told = Told(tmp_path, Keep(days=1.0))
    told.work()
    told.now += 86_400.0
    told.work()
    assert told.lines[-1].startswith("let go of 1 hours")
    assert read_progress(tmp_path).removed_hours == 1
    assert not everything(tmp_path)


def test_hours_are_looked_at_now_and_then(logs: Logs, tmp_path: Path) -> None:
    told = Told(tmp_path, Keep(days=1000.0, compact_after_s=0.0))
    told.work()
    for number in range(3):
        logs.write(rows(number, 1))
        told.work()
    assert not list((tmp_path / COMPACTED).rglob("*.parquet"))
    told.now += TIDY_S
    told.work()
    assert len(list((tmp_path / COMPACTED).rglob("*.parquet"))) == 1
    # Then once more, at once: there may be more, and what was compacted is removed.
    told.work()
    assert not list((tmp_path / SEGMENTS).rglob("*.parquet"))
    assert read_progress(tmp_path).compacted == 3
    assert len(everything(tmp_path)) == 3


def test_who_holds_things_up_is_told_once(logs: Logs, tmp_path: Path) -> None:
    logs.write(rows(0, 5))
    told = Told(tmp_path, Keep(days=1.0))
    (tmp_path / READERS).mkdir()
    (tmp_path / READERS / "tables.json").write_text(
        f'{{"name": "tables", "upto": 0, "at": {NOON_S + 86_400}}}'
    )
    for _ in range(3):
        told.now += 86_400.0
        told.work()
    assert [line for line in told.lines if "stay" in line] == [
        "old segments stay: tables has read up to 0 only"
    ]
    told.now += 7 * 86_400.0
    told.work()
    assert any("tables.json" in line for line in told.lines)
    assert not everything(tmp_path)


def test_only_one_at_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    held = lock.take(tmp_path)
    assert held is not None
    with pytest.raises(ConfigError, match=str(os.getpid())):
        run(tmp_path, Keep(), alone=True, once=True)
    assert main([str(tmp_path), "--alone"]) == 1
    assert "is being archived already" in capfd.readouterr().err
    os.close(held)
    assert run(tmp_path, Keep(), alone=True, once=True) == 0


def test_at_the_side_of_a_broker_it_waits_for_the_one_before(tmp_path: Path) -> None:
    """And ends with its broker, which closes the pipe between them."""
    held = lock.take(tmp_path)
    assert held is not None
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(writing)
    try:
        assert run(tmp_path, Keep(), alone=False) == 0
    finally:
        os.dup2(before, 0)
        for file in (before, reading, held):
            os.close(file)


def test_once_does_all_there_is(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for hour in range(3):
        for number in range(2):
            logs.write([Row("accepted", NOON_US + hour * HOUR_US + number)])
            logs.archive()
    assert run(tmp_path, Keep(days=36_500.0), alone=True, once=True) == 0
    assert len(list((tmp_path / COMPACTED).rglob("*.parquet"))) == 3
    assert not list((tmp_path / SEGMENTS).rglob("*.parquet"))
    assert len(everything(tmp_path)) == 6


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    in_the_way = tmp_path / "journal"
    in_the_way.touch()
    assert run(in_the_way, Keep(), alone=True, once=True) == 1
    assert "cannot begin" in capfd.readouterr().err


def test_notes_that_cannot_be_read_stop_it_with_a_word(
    logs: Logs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.write(rows(0, 1))
    logs.archive()
    (tmp_path / STATE).write_text("{")
    assert main([str(tmp_path), "--alone"]) == 1
    assert "archived.json cannot be read" in capfd.readouterr().err


def test_the_number_of_the_last_log_outlives_it(logs: Logs, tmp_path: Path) -> None:
    logs.write(rows(0, 1))
    logs.write(rows(1, 1))
    archiver = Archiver(tmp_path)
    while archiver.turn().logs:
        pass
    assert archiver.last_log == Archiver(tmp_path).last_log == 2
    assert (tmp_path / STATE).exists()
    assert not log_files(tmp_path / "open")


def test_hours_of_different_days(logs: Logs, tmp_path: Path) -> None:
    logs.write([Row("accepted", NOON_US + n * 30 * HOUR_US) for n in range(3)])
    told = Told(tmp_path)
    told.work()
    assert len({path.parent.parent for path in (tmp_path / SEGMENTS).rglob("*.parquet")}) == 3


def test_a_segment_that_cannot_be_compacted_is_told_and_counted(logs: Logs, tmp_path: Path) -> None:
    for number in range(3):
        logs.write(rows(number, 1))
        logs.archive()
    broken = segment_files(tmp_path)[1]
    broken.write_bytes(b"PAR1 no")
    told = Told(tmp_path, Keep(days=1000.0, compact_after_s=0.0))
    assert told.work()
    (line,) = told.lines
    assert line.startswith(f"damage: {broken}: the segment cannot be read: ")
    assert line.endswith("; it stays as it is")
    assert read_progress(tmp_path).damage == 1
    # There may be other segments to join: it is tidied up again at once, and says nothing twice.
    assert not told.archive.is_tidy
    assert told.work()
    assert told.archive.is_tidy
    assert (len(told.lines), read_progress(tmp_path).damage) == (1, 1)


# -- the process ----------------------------------------------------------------------------------


class Patient:
    """Somebody who waits without waiting, and hears of the end after so many times."""

    def __init__(self, alone: bool, times: int) -> None:
        self.alone = alone
        self.ended = False
        self.waits: list[float] = []
        self._times = times

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.ended = len(self.waits) == self._times


def run_patiently(journal: Path, patient: Patient) -> int:
    return archive_module._run(journal, Keep(36_500.0), patient, False)  # type: ignore[arg-type]


@pytest.mark.parametrize(("alone", "pause"), [(True, LOOK_ALONE_S), (False, LOOK_S)])
def test_it_looks_again_after_a_pause_until_it_is_to_end(
    logs: Logs, tmp_path: Path, alone: bool, pause: float
) -> None:
    logs.write(rows(0, 2))
    patient = Patient(alone, 3)
    assert run_patiently(tmp_path, patient) == 0
    assert patient.waits == [pause] * 3
    assert len(everything(tmp_path)) == 2
    assert not log_files(tmp_path / "open")
    # Somebody else may archive now.
    held = lock.take(tmp_path)
    assert held is not None
    os.close(held)


def test_what_cannot_be_done_is_tried_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Archive, "work", lambda _: False)
    patient = Patient(True, 2)
    assert run_patiently(tmp_path, patient) == 1
    assert patient.waits == [RETRY_S] * 2


def test_a_busy_machine_is_looked_at_again_until_the_end_is_near(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Archive, "may_wait", lambda _: True)
    logs.write(rows(0, 2))
    patient = Patient(False, 3)
    # The last turn does not wait for a better time.
    assert run_patiently(tmp_path, patient) == 0
    assert patient.waits == [LOOK_BUSY_S] * 3
    assert not log_files(tmp_path / "open")


def test_whether_it_may_wait_depends_on_how_much_there_is(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Pace, "may_wait", lambda _, waiting_bytes: bool(asked.append(waiting_bytes)) or True)
    path = logs.write(rows(0, 2))
    assert Told(tmp_path).archive.may_wait() is True
    assert asked == [path.stat().st_size]


def test_a_folder_that_cannot_be_used_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "journal"
    in_the_way.touch()
    patient = Patient(True, 2)
    monkeypatch.setattr(archive_module, "Attention", lambda alone: patient)
    assert run(in_the_way, Keep(), alone=True) == 1
    assert patient.waits == [RETRY_S] * 2
    assert capfd.readouterr().err.count("cannot begin") == 3


@pytest.fixture
def selects(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], float, list[int]]]:
    """What was waited for, how long at most, and what was there; a signal comes while it begins to wait."""
    found: list[tuple[list[int], float, list[int]]] = []
    signals = [signal.SIGTERM]

    def selecting(files: list[int], _: Any, __: Any, seconds: float) -> Any:
        if signals:
            signal.raise_signal(signals.pop())
        ready = select.select(files, [], [], 0)
        found.append((files, seconds, ready[0]))
        return ready

    monkeypatch.setattr(archive_module, "select", SimpleNamespace(select=selecting))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_alone_it_ends_at_a_signal(number: signal.Signals) -> None:
    attention = Attention(alone=True)
    assert not attention.ended
    signal.raise_signal(number)
    assert attention.ended


def test_a_signal_wakes_whoever_is_waiting(selects: list[tuple[list[int], float, list[int]]]) -> None:
    attention = Attention(alone=True)
    attention.wait(60.0)
    attention.wait(60.0)
    (files, first, ready), (_, second, _) = selects
    assert (first, ready) == (60.0, files)
    # It is known by now that the end is near.
    assert (attention.ended, second) == (True, 0)


def test_at_the_side_of_a_broker_signals_do_not_end_it(
    selects: list[tuple[list[int], float, list[int]]],
) -> None:
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        attention = Attention(alone=False)
        attention.wait(60.0)
        assert not attention.ended
        # A word of the broker is news, and not the end.
        os.write(writing, b"..")
        attention.wait(60.0)
        assert not attention.ended
        os.close(writing)
        attention.wait(60.0)
        assert attention.ended
    finally:
        os.dup2(before, 0)
        for file in (before, reading):
            os.close(file)
    assert [ready for _, _, ready in selects] == [[], [0], [0]]
    assert [seconds for _, seconds, _ in selects] == [60.0] * 3


@pytest.fixture
def _arrow_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool()
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    pa.set_cpu_count(before[0])
    pa.set_io_thread_count(before[1])
    pa.set_memory_pool(before[2])


@pytest.mark.usefixtures("_arrow_as_it_was")
def test_a_process_that_does_nothing_else_takes_one_processor_and_does_without_pandas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pa.set_cpu_count(3)
    pa.set_io_thread_count(3)
    be_modest()
    assert (pa.cpu_count(), pa.io_thread_count()) == (1, 1)
    assert pa.default_memory_pool().backend_name == "system"
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with pytest.raises(ModuleNotFoundError, match="pandas"):
        importlib.import_module("pandas")
    # Whatever else is imported is found.
    monkeypatch.delitem(sys.modules, "this", raising=False)
    assert importlib.util.find_spec("this") is not None
