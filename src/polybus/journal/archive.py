"""The archiver's process: logs become segments as they are finished; in between the rest is tidied up.

    python -m polybus.journal.archive JOURNAL --keep-days 7 --keep-bytes 10737418240 --compact-after 300

The broker starts it and speaks to it through its standard input: a byte there says that a log was finished,
its end that the broker is gone, however that happened.  Then it archives what is there, and ends.  With
`--alone` nobody is at the other end: it looks by itself, until a signal.

What it did is in `archiver.json`, for the broker, which tells those who ask.  An error (a full disk) is told
there, and tried again; nothing is lost by that, nor if it is killed at any point.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from msgspec import Struct

from polybus.errors import ConfigError, PolybusError
from polybus.journal import lock
from polybus.journal.archiver import OPEN_LOGS, Archiver, Report
from polybus.journal.compaction import Compactor
from polybus.journal.log import make_folder
from polybus.journal.pace import LOOK_S as LOOK_BUSY_S
from polybus.journal.pace import Pace
from polybus.journal.progress import Progress, read_progress, write_progress
from polybus.journal.retention import Readers, Retention
from polybus.telemetry.logs import log

# How often it looks by itself: the broker's word may get lost, and alone there is none.
LOOK_S: Final = 5.0
LOOK_ALONE_S: Final = 0.5
# How often the hours are looked at.
TIDY_S: Final = 30.0
# After an error.
RETRY_S: Final = 2.0
LOCK_S: Final = 0.1


class Keep(Struct, frozen=True):
    """How long things are kept (settings `journal.keep_days` and so on)."""

    days: float = 7.0
    bytes: int = 10 * 1024 * 1024 * 1024
    compact_after_s: float = 300.0


class Archive:
    """All that is done with one journal behind the broker. Only one process at a time may."""

    def __init__(
        self,
        journal: Path,
        keep: Keep | None = None,
        say: Callable[[str], None] = lambda _text: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        keep = keep or Keep()
        self._journal = journal
        self._say = say
        self._wall = wall
        make_folder(journal / OPEN_LOGS)
        self._pace = Pace()
        self._archiver = Archiver(journal)
        self._compactor = Compactor(journal, keep.compact_after_s, wall=wall)
        self._retention = Retention(journal, keep.days, keep.bytes, wall)
        self._tidy_at = 0.0
        self._held = ""
        before = read_progress(journal)
        self.progress = Progress(
            os.getpid(),
            lost=before.lost,
            damage=before.damage,
            last_damage=before.last_damage,
            log=self._archiver.last_log,
            removed_hours=self._retention.retained.hours,
            removed_rows=self._retention.retained.rows,
        )
        self._tell()

    def work(self) -> bool:
        """Do what is to be done now. False if that was not possible: it should be tried again soon."""
        try:
            while (report := self._pace.work(self._archiver.turn, self._archiver.waiting_bytes())).logs:
                self._note(report)
            if self._wall() >= self._tidy_at:
                self._pace.in_gaps(self._tidy)
        except OSError as error:
            trouble = f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
            if trouble != self.progress.trouble:
                self._say(f"cannot archive: {trouble}; it is tried again")
                self.progress.trouble = trouble
                self._tell()
            with contextlib.suppress(OSError):
                # Perhaps that makes room.
                self._let_go()
            return False
        if self.progress.trouble:
            self._say("archives again")
            self.progress.trouble = ""
            self._tell()
        return True

    def may_wait(self) -> bool:
        """Whether it had better be done later, because the machine is busy."""
        return self._pace.may_wait(self._archiver.waiting_bytes())

    @property
    def is_tidy(self) -> bool:
        """Whether there is nothing left to tidy up for a while."""
        return self._wall() < self._tidy_at

    def _note(self, report: Report) -> None:
        progress = self.progress
        progress.segments += len(report.segments)
        progress.rows += report.rows
        progress.lost += report.lost
        progress.log = self._archiver.last_log
        if report.damage:
            progress.damage += len(report.damage)
            progress.last_damage = report.damage[-1]
            for text in report.damage:
                self._say(f"damage: {text}; the rest was read, the file stays with the ending .damaged")
        if report.lost:
            self._say(f"{report.lost} records are missing; rows of the kind 'hole' tell where")
        self._tell()

    # -- tidying up -------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """One step of it: new logs must not wait."""
        report = self._compactor.turn()
        for text in report.damage:
            self._say(f"damage: {text}; it stays as it is")
        self.progress.damage += len(report.damage)
        if report.path is not None:
            self.progress.compacted += report.segments
            self._say(f"compacted {report.segments} segments with {report.rows} rows into {report.path.name}")
        held = self._let_go()
        self._hold(held or report.held)
        stale = ", ".join(Readers(self._journal, self._wall()).stale)
        if stale != self.progress.stale:
            self.progress.stale = stale
            if stale:
                self._say(f"nobody waits for {stale} any more: not a word for a week")
        if report.path is None and not report.damage:
            self._tidy_at = self._wall() + TIDY_S
        self._tell()

    def _let_go(self) -> str:
        removal = self._retention.turn()
        if removal.hours:
            hours = f"{len(removal.hours)} hours, from {removal.hours[0]} to {removal.hours[-1]}"
            self._say(f"let go of {hours}: {removal.rows} rows, {removal.bytes} bytes")
        self.progress.removed_hours = self._retention.retained.hours
        self.progress.removed_rows = self._retention.retained.rows
        return removal.held

    def _hold(self, why: str) -> None:
        if why != self._held:
            self._held = why
            if why:
                self._say(f"old segments stay: {why}")
        self.progress.held = why

    def _tell(self) -> None:
        """Let the broker know. That it does not is no reason to stop."""
        self.progress.at = self._wall()
        with contextlib.suppress(OSError):
            write_progress(self._journal, self.progress)


# -- the process ----------------------------------------------------------------------------------


def say(text: str) -> None:
    """One line for people."""
    log(text, logger="polybus.archiver")


class Attention:
    """Waits for words of the broker, or for a signal."""

    def __init__(self, alone: bool) -> None:
        self.ended = False
        self.alone = alone
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # At the side of a broker it has one last turn when that has ended, whatever else is told to end.
            signal.signal(number, self._on_signal if alone else signal.SIG_IGN)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.ended = True
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")

    def wait(self, seconds: float) -> None:
        """Until there is news, at most so long."""
        files = [self._read] if self.alone else [self._read, 0]
        ready = select.select(files, [], [], 0 if self.ended else seconds)[0]
        if 0 in ready and not os.read(0, 4096):
            self.ended = True


def be_modest() -> None:
    """Take little from the broker. For processes that do nothing else."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    # Arrow's own gives memory back at once, and a third of all time went into getting it again.
    pa.set_memory_pool(pa.system_memory_pool())
    # Arrow looks for pandas when it makes its first column, which takes longer than all that follows.
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """Nobody here needs it, even if it is installed."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def run(journal: Path, keep: Keep, alone: bool, once: bool = False) -> int:
    """Until the end is asked for; or `once`, until nothing is left to do."""
    attention = Attention(alone)
    while True:
        try:
            return _run(journal, keep, attention, once)
        except OSError as error:
            say(f"cannot begin: {error}")
            if once or attention.ended:
                return 1
            attention.wait(RETRY_S)


def _run(journal: Path, keep: Keep, attention: Attention, once: bool) -> int:
    make_folder(journal)
    while (held := lock.take(journal)) is None:
        if attention.alone:
            raise ConfigError(
                f"the journal {journal} is being archived already, by process {lock.holder(journal)}: "
                "a broker does that itself unless journal.archive is false"
            )
        # One that belonged to a broker before this one is about to end.
        attention.wait(LOCK_S)
        if attention.ended:
            return 0
    try:
        archive = Archive(journal, keep, say)
        while True:
            # What was finished before the end came is archived; hence this order.
            is_last = once or attention.ended
            if not is_last and archive.may_wait():
                attention.wait(LOOK_BUSY_S)
                continue
            worked = archive.work()
            while once and worked and not archive.is_tidy:
                worked = archive.work()
            if is_last:
                return 0 if worked else 1
            attention.wait((LOOK_ALONE_S if attention.alone else LOOK_S) if worked else RETRY_S)
    finally:
        os.close(held)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("polybus.journal.archive", description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--keep-days", type=float, default=Keep().days)
    parser.add_argument("--keep-bytes", type=int, default=Keep().bytes)
    parser.add_argument("--compact-after", type=float, default=Keep().compact_after_s)
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args(arguments)
    try:
        return run(given.journal, Keep(given.keep_days, given.keep_bytes, given.compact_after), given.alone)
    except PolybusError as error:
        say(str(error))
        return 1


if __name__ == "__main__":
    be_modest()
    sys.exit(main())
