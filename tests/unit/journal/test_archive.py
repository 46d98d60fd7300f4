"""The archiver's process: what it does when, what it says, and how it goes on after an error."""

from __future__ import annotations

import errno
import importlib.util
import os
import select
import signal
import subprocess
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
    LOCK_S,
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
    say,
)
from polybus.journal.archiver import SEGMENTS, Archiver
from polybus.journal.log import STATE, LogHead, log_files, write_batch, write_head
from polybus.journal.pace import Pace
from polybus.journal.progress import read_progress
from polybus.journal.reader import segment_files
from polybus.journal.record import Row
from polybus.journal.retention import COMPACTED, READERS
from support.journals import HOUR_US, NOON_US, Logs, everything
from support.patience import patient

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


def test_the_process_at_the_brokers_side_is_modest() -> None:
    lines = (
        "import runpy, sys",
        "sys.argv = ['archive', '--help']",
        "try: runpy.run_module('polybus.journal.archive', run_name='__main__')",
        "except SystemExit: pass",
        "import pyarrow as pa",
        "print(pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name)",
    )
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=patient(30)
    )
    assert ran.stdout.splitlines()[-1:] == ["1 1 system"], ran.stderr


def test_it_says_that_it_is_there_before_it_has_done_anything(tmp_path: Path) -> None:
    told = Told(tmp_path)
    progress = read_progress(tmp_path)
    assert (progress.pid, progress.at, progress.held, progress.trouble) == (os.getpid(), told.now, "", "")
    assert (tmp_path / "open").is_dir()
    assert (tmp_path / SEGMENTS).is_dir()


def test_a_journal_in_order_is_no_news(logs: Logs, tmp_path: Path) -> None:
    logs.write(rows(0, 5))
    told = Told(tmp_path)
    assert told.work()
    assert told.work()
    assert told.lines == []


def test_the_last_of_several_damaged_places_is_remembered_after_a_restart(logs: Logs, tmp_path: Path) -> None:
    paths = [logs.write(rows(number, 1)) for number in range(4)]
    for path in paths[1:]:
        path.write_bytes(path.read_bytes()[:-3])
    told = Told(tmp_path)
    assert told.work()
    progress = read_progress(tmp_path)
    assert (progress.damage, progress.last_damage.startswith(str(paths[-1]))) == (3, True)
    assert [str(path) in line for path, line in zip(paths[1:], told.lines, strict=True)] == [True] * 3
    again = Told(tmp_path).archive.progress
    assert (again.damage, again.last_damage) == (3, progress.last_damage)


def test_an_error_without_a_file_has_none_in_its_words(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    logs.write(rows(0, 5))
    told = Told(tmp_path)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", refuse)
    assert not told.work()
    assert read_progress(tmp_path).trouble == "No space left on device"
    assert told.lines == ["cannot archive: No space left on device; it is tried again"]


def test_a_full_disk_gets_room_by_what_is_too_old(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    logs.write(rows(0, 5))
    logs.archive()
    logs.write(rows(5, 5))
    told = Told(tmp_path, Keep(days=1.0))
    told.now += 86_400.0
    monkeypatch.setattr(pq.ParquetWriter, "write_table", refuse)
    assert not told.work()
    assert not segment_files(tmp_path)
    assert told.archive.progress.removed_hours == 1


def test_what_was_let_go_is_counted_over_restarts(logs: Logs, tmp_path: Path) -> None:
    logs.write(rows(0, 5))
    logs.archive()
    told = Told(tmp_path, Keep(days=1.0))
    told.now += 86_400.0
    assert told.work()
    (size,) = [line.split()[-2] for line in told.lines]
    assert int(size) > 0
    (line,) = told.lines
    hour = "2023-11-14T22"
    assert line == f"let go of 1 hours, from {hour} to {hour}: 5 rows, {size} bytes"
    for progress in (read_progress(tmp_path), Told(tmp_path).archive.progress):
        assert (progress.removed_hours, progress.removed_rows) == (1, 5)


def test_what_was_compacted_is_told(logs: Logs, tmp_path: Path) -> None:
    for number in range(3):
        logs.write(rows(number, 2))
        logs.archive()
    told = Told(tmp_path, Keep(days=1000.0, compact_after_s=0.0))
    assert told.work()
    (path,) = (tmp_path / COMPACTED).rglob("*.parquet")
    assert told.lines == [f"compacted 3 segments with 6 rows into {path.name}"]


def test_it_is_tidy_until_the_next_look_is_due(tmp_path: Path) -> None:
    told = Told(tmp_path)
    assert not told.archive.is_tidy
    assert told.work()
    assert told.archive.is_tidy
    told.now += TIDY_S - 1
    assert told.archive.is_tidy
    told.now += 1
    assert not told.archive.is_tidy


def read_upto(journal: Path, name: str, upto: int, at: float) -> None:
    (journal / READERS).mkdir(exist_ok=True)
    (journal / READERS / f"{name}.json").write_text(f'{{"name": "{name}", "upto": {upto}, "at": {at}}}')


def test_who_holds_what_was_compacted_is_told_until_it_has_read_it(logs: Logs, tmp_path: Path) -> None:
    for number in range(3):
        logs.write(rows(number, 1))
        logs.archive()
    told = Told(tmp_path, Keep(days=1000.0, compact_after_s=0.0))
    read_upto(tmp_path, "tables", 1, told.now)
    assert told.work()
    # What was compacted is removed in the next turn, which finds who needs it.
    assert told.work()
    why = "tables has read up to 1 only"
    assert (read_progress(tmp_path).held, told.lines[1:]) == (why, [f"old segments stay: {why}"])
    read_upto(tmp_path, "tables", 3, told.now)
    told.now += TIDY_S
    assert told.work()
    assert (read_progress(tmp_path).held, len(told.lines)) == ("", 2)
    assert not list((tmp_path / SEGMENTS).rglob("*.parquet"))


def test_readers_for_whom_nobody_waits_any_more_are_told_once(tmp_path: Path) -> None:
    told = Told(tmp_path)
    for name in ("tables", "charts"):
        read_upto(tmp_path, name, 1, told.now - 8 * 86_400.0)
    for _ in range(3):
        assert told.work()
        assert read_progress(tmp_path).stale == "charts.json, tables.json"
        told.now += TIDY_S
    assert told.lines == ["nobody waits for charts.json, tables.json any more: not a word for a week"]
    # They are back.
    for name in ("tables", "charts"):
        read_upto(tmp_path, name, 1, told.now)
    assert told.work()
    assert (read_progress(tmp_path).stale, len(told.lines)) == ("", 1)


def test_a_journal_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    assert run(tmp_path / "data" / "journal", Keep(), alone=True, once=True) == 0
    assert (tmp_path / "data" / "journal" / SEGMENTS).is_dir()


def test_what_once_cannot_do_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Archive, "work", lambda _: False)
    assert run(tmp_path, Keep(), alone=True, once=True) == 1


def test_the_one_before_is_waited_for(logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write(rows(0, 2))
    held = lock.take(tmp_path)
    assert held is not None

    class Ends(Patient):
        """The one before ends while it is waited for."""

        def wait(self, seconds: float) -> None:
            if len(self.waits) == 1:
                os.close(held)
            super().wait(seconds)

    patient = Ends(False, 3)
    assert run_patiently(tmp_path, patient) == 0
    assert patient.waits == [LOCK_S, LOCK_S, LOOK_S]
    assert not log_files(tmp_path / "open")


def test_the_words_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(archive_module, "run", lambda *words: bool(given.append(words)) or 7)
    place = str(tmp_path)
    assert main([place]) == 7
    words = ["--keep-days", "1.5", "--keep-bytes", "99", "--compact-after", "2.5", "--alone"]
    assert main([place, *words]) == 7
    assert given == [(tmp_path, Keep(), False), (tmp_path, Keep(1.5, 99, 2.5), True)]


def test_lines_for_people_say_who_speaks(capfd: pytest.CaptureFixture[str]) -> None:
    say("a word")
    assert "polybus archiver: a word" in capfd.readouterr().err


def test_a_signal_handler_never_waits() -> None:
    """However many signals came that nobody has looked at."""
    assert not os.get_blocking(Attention(alone=True)._write)
