"""Between the loop and the journal: what is handed over when, and an archiver that is looked after."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from polybus.config import JournalSettings
from polybus.core import events
from polybus.core.bus import Bus
from polybus.journal import writer as writer_module
from polybus.journal.log import FINISHED, Batch, log_files, log_path, read_batches, read_head
from polybus.journal.progress import Progress, write_progress
from polybus.journal.record import Row, read_rows
from polybus.journal.verify import verify
from polybus.journal.writer import ROLL_S, SLOW_ROLL_S
from polybus.server import archiving
from polybus.server.archiving import Archiving
from polybus.server.journaling import BEAT_S, TELL_S, Journaling
from support.patience import patient
from support.waiting import until

ALONE = JournalSettings(archive=False)


def rows_in(folder: Path) -> list[Row]:
    found: list[Row] = []
    for path in log_files(folder / "journal" / "open"):
        head, begin = read_head(path)
        assert head.broker == "tested"
        for batch in read_batches(path, begin):
            assert isinstance(batch, Batch)
            found += read_rows(batch.payload)
    return found


def test_an_idle_bus_says_so_now_and_then(tmp_path: Path) -> None:
    bus = Bus(b"life-")
    journaling = Journaling(bus, ALONE, "tested", tmp_path)
    journaling.begin({}, 0.0)
    for now in range(100):
        journaling.flush(float(now))
    bus.handle(events.Publish(b"t", [b"x"]), 100.0)
    for now in range(100, 100 + int(BEAT_S)):
        journaling.flush(float(now))
    assert journaling.close(131.0) == 0
    whats = [row.what for row in rows_in(tmp_path)]
    assert whats == ["started", "beat", "beat", "beat", "published", "stopped"]


def test_without_a_journal_there_is_nothing(tmp_path: Path) -> None:
    bus = Bus(b"life-")
    journaling = Journaling(bus, JournalSettings(enabled=False), "tested", tmp_path)
    journaling.begin({}, 0.0)
    journaling.flush(1.0)
    assert journaling.facts() == {"journal": "off"}
    assert journaling.close(2.0) == 0
    assert not bus.watched
    assert not list(tmp_path.iterdir())


def test_bodies_that_are_not_to_be_kept_are_not_kept_while_somebody_listens_in_either(tmp_path: Path) -> None:
    bus = Bus(b"life-")
    settings = JournalSettings(archive=False, no_bodies=("secret.*",))
    journaling = Journaling(bus, settings, "tested", tmp_path)
    journaling.begin({}, 0.0)
    for tapped in (False, True):
        bus.listen(tapped, bus.journal)
        bus.handle(events.Publish(b"secret.key", [b"x"]), 1.0)
        bus.handle(events.Publish(b"open", [b"x"]), 1.0)
    journaling.close(2.0)
    bodies = [(row.service, row.body) for row in rows_in(tmp_path) if row.what == "published"]
    assert bodies == [(b"secret.key", None), (b"open", (b"x",))] * 2


# -- a disk that is slower than the traffic ----------------------------------------------------------

SMALL = JournalSettings(archive=False, buffer_bytes=1 << 20)
KIB = 1024


class Slow:
    """A disk that takes nothing until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        sync = os.fdatasync

        def wait(file: int) -> None:
            assert self.go.wait(patient(30.0))
            sync(file)

        monkeypatch.setattr(writer_module.os, "fdatasync", wait)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def publish(bus: Bus, journaling: Journaling, count: int, size: int, now: float) -> None:
    """So many publications, each in a turn of its own."""
    for _ in range(count):
        bus.handle(events.Publish(b"t", [bytes(size)]), now)
        journaling.flush(now)


def test_bodies_are_left_out_before_records_are_lost(
    tmp_path: Path, slow: Slow, capfd: pytest.CaptureFixture[str]
) -> None:
    bus = Bus(b"life-")
    journaling = Journaling(bus, SMALL, "tested", tmp_path)
    journaling.begin({}, 0.0)
    # More than would fit with its bodies.
    publish(bus, journaling, 1000, 4 * KIB, 1.0)
    facts = journaling.facts()
    assert facts["journal_lost"] == 0
    assert facts["journal_bodies_dropped"] > 800
    assert facts["journal_waiting_bytes"] < 1 << 20
    slow.go.set()
    until(lambda: not journaling.facts()["journal_waiting_bytes"])
    publish(bus, journaling, 1, 10, 2.0)
    publish(bus, journaling, 1, 4 * KIB, 3.0)
    dropped = journaling.facts()["journal_bodies_dropped"]
    assert dropped <= facts["journal_bodies_dropped"] + 1
    assert journaling.close(4.0) == 0
    rows = rows_in(tmp_path)
    published = [row for row in rows if row.what == "published"]
    assert [row.body_size for row in published] == [4 * KIB] * 1000 + [10, 4 * KIB]
    assert sum(row.body is None for row in published) == dropped
    # The first and the last of them are whole, and the journal says how many are not, and why.
    assert published[0].body == published[-1].body == (bytes(4 * KIB),)
    told = [row for row in rows if row.what == "bodies_dropped"]
    assert sum(row.size for row in told) == dropped
    assert {row.reason for row in told} == {"journal.buffer_bytes"}
    lines = capfd.readouterr().err.splitlines()
    # At once, and the rest in the end: there is no line for every turn.
    assert len(lines) == len(told) == 2
    assert "records are in the journal without their bodies" in lines[0]
    assert "journal.buffer_bytes = 1048576" in lines[0]


def test_records_that_find_no_room_are_told_with_the_reason(
    tmp_path: Path, slow: Slow, capfd: pytest.CaptureFixture[str]
) -> None:
    bus = Bus(b"life-")
    journaling = Journaling(bus, SMALL, "tested", tmp_path)
    journaling.begin({}, 0.0)
    publish(bus, journaling, 20_000, 0, 1.0)
    lost = journaling.facts()["journal_lost"]
    assert 0 < lost < 20_000
    (first,) = capfd.readouterr().err.splitlines()
    assert "1 records are missing in the journal" in first
    assert "the buffer is full (journal.buffer_bytes = 1048576)" in first
    assert "faster disk, raise journal.buffer_bytes, or keep fewer bodies" in first
    # The next line tells of everything since then.
    journaling.flush(1.0 + TELL_S)
    (second,) = capfd.readouterr().err.splitlines()
    assert f"{lost - 1} records are missing in the journal" in second
    journaling.flush(1.0 + 2 * TELL_S)
    assert not capfd.readouterr().err
    slow.go.set()
    assert journaling.close(60.0) == lost
    rows = rows_in(tmp_path)
    told = [(row.size, row.reason) for row in rows if row.what == "records_lost"]
    assert told == [(1, "journal.buffer_bytes"), (lost - 1, "journal.buffer_bytes")]
    assert rows[-1].what == "stopped"
    verdict = verify(tmp_path / "journal")
    assert verdict.is_well
    assert sum(hole.records for hole in verdict.holes) == lost
    assert all("journal.buffer_bytes = 1048576" in hole.why for hole in verdict.holes)


def test_records_that_the_disk_refuses_are_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer_module.os, "fdatasync", refuse)
    bus = Bus(b"life-")
    journaling = Journaling(bus, SMALL, "tested", tmp_path)
    journaling.begin({}, 0.0)
    publish(bus, journaling, 1, 10, 1.0)
    until(lambda: journaling.facts()["journal_lost"])
    journaling.flush(2.0)
    said = capfd.readouterr().err
    assert (
        "records are missing in the journal: the journal cannot be written: No space left on device" in said
    )
    assert "Make room on the disk" in said
    journaling.close(3.0)


# -- the archiver ---------------------------------------------------------------------------------


class Child:
    """Stands in for a process."""

    started: ClassVar[list[Child]] = []

    def __init__(self, command: list[str], stdin: int, **_: Any) -> None:
        self.command = command
        self.stdin = os.dup(stdin)
        os.set_blocking(self.stdin, False)
        self.status: int | None = None
        self.pid = 1000 + len(self.started)
        self.waited = False
        self.started.append(self)

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        # It ends when nobody is at the other end of its pipe.
        assert os.read(self.stdin, 100) == b""
        os.close(self.stdin)
        self.waited = True
        return 0


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    monkeypatch.setattr(Child, "started", [])
    monkeypatch.setattr(archiving.subprocess, "Popen", Child)
    return Child.started


def test_it_is_told_of_news_and_of_the_end(tmp_path: Path, children: list[Child]) -> None:
    side = Archiving(tmp_path, JournalSettings(keep_days=3.0, keep_bytes=5000, compact_after_s=7.0))
    side.wake()
    side.tend(0.0)
    side.tend(1.0)
    (child,) = children
    assert child.command[1:] == [
        *("-m", "polybus.journal.archive", str(tmp_path)),
        *("--keep-days", "3.0", "--keep-bytes", "5000", "--compact-after", "7.0"),
    ]
    side.wake()
    assert os.read(child.stdin, 10) == b"."
    side.stop()
    assert child.waited
    side.wake()
    side.tend(100.0)
    assert len(children) == 1


def test_one_that_dies_is_started_again_later_and_later(
    tmp_path: Path, children: list[Child], capfd: pytest.CaptureFixture[str]
) -> None:
    side = Archiving(tmp_path, JournalSettings())
    starts, now = [], 0.0
    while len(starts) < 6:
        side.tend(now)
        if len(children) > len(starts):
            starts.append(now)
            children[-1].status = 9
        now = round(now + 0.25, 2)
    pauses = [round(b - a, 2) for a, b in pairwise(starts)]
    assert pauses == [0.5, 0.75, 1.25, 2.25, 4.25]
    assert "status 9" in capfd.readouterr().err
    assert side.facts(0, 0.0)["archiver_restarts"] == 5
    # One that did well for a while is started soon when it dies.
    children[-1].status = None
    side.tend(now + 100.0)
    children[-1].status = 9
    side.tend(now + 101.0)
    side.tend(now + 101.5)
    assert len(children) == 7
    side.stop()
    for child in children[:-1]:
        os.close(child.stdin)


def test_a_wake_that_nobody_takes_does_no_harm(tmp_path: Path, children: list[Child]) -> None:
    side = Archiving(tmp_path, JournalSettings())
    side.tend(0.0)
    for _ in range(100_000):
        side.wake()
    assert os.read(children[0].stdin, 1 << 20)
    side.stop()


def test_how_far_it_is_behind(tmp_path: Path, children: list[Child]) -> None:
    side = Archiving(tmp_path, JournalSettings())
    side.tend(0.0)
    write_progress(tmp_path, Progress(segments=4, log=7, held="somebody reads"))
    facts = side.facts(7, 1000.0)
    assert (facts["archiver"], facts["archiver_behind_s"], facts["archiver_segments"]) == (
        f"process {children[0].pid}",
        0.0,
        4,
    )
    assert facts["archiver_held_back"] == "somebody reads"
    (tmp_path / "open").mkdir()
    path = log_path(tmp_path / "open", 8, FINISHED)
    path.touch()
    os.utime(path, (900.0, 900.0))
    assert side.facts(9, 1000.0)["archiver_behind_s"] == 100.0
    write_progress(tmp_path, Progress(trouble="No space left"))
    assert side.facts(0, 1000.0)["archiver"] == "No space left"
    side.stop()


def test_without_columns_it_is_not_started_and_logs_are_few(
    tmp_path: Path, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving.importlib.util, "find_spec", lambda _name: None)
    journaling = Journaling(Bus(b"life-"), JournalSettings(), "tested", tmp_path)
    journaling.begin({}, 0.0)
    journaling.flush(1.0)
    writer = journaling._writer
    assert writer is not None
    assert writer.roll_s == SLOW_ROLL_S
    assert "pyarrow" in journaling.facts()["archiver"]
    journaling.close(2.0)
    assert not children


def test_logs_are_finished_soon_while_somebody_archives(tmp_path: Path, children: list[Child]) -> None:
    journaling = Journaling(Bus(b"life-"), JournalSettings(), "tested", tmp_path)
    journaling.begin({}, 0.0)
    journaling.flush(1.0)
    writer = journaling._writer
    assert writer is not None
    assert writer.roll_s == ROLL_S
    children[0].status = 1
    journaling.flush(2.0)
    assert writer.roll_s == SLOW_ROLL_S
    until(lambda: writer.state().written == 1)
    journaling.close(3.0)
    os.close(children[0].stdin)


def test_the_process_ends_with_its_input(tmp_path: Path) -> None:
    """The real one, with nothing to do."""
    command = [sys.executable, "-m", "polybus.journal.archive", str(tmp_path / "journal")]
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patient(50), check=False
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert (tmp_path / "journal" / "segments").is_dir()
