"""Finished logs → Parquet segments, off the hot path.

Segments lie in `segments/date=YYYY-MM-DD/hour=HH/`, by the time at which things happened.  They are written
under a name that readers ignore, synced, and then renamed: a segment that can be seen is whole.  Names are
never used twice.

Exactly once: what is about to be done is written down first (`Plan`), and again when the segments are there.
If the archiver dies at any point, the next one finds the plan: it does the same again under the same names,
or removes the logs that are left.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from polybus.errors import JournalDamaged
from polybus.journal import log
from polybus.journal.batches import hole_before, tables_in
from polybus.journal.log import (
    DAMAGED,
    Damage,
    log_files,
    make_folder,
    read_batches,
    read_head,
    sync_folder,
)
from polybus.journal.segment import SegmentWriter

SEGMENTS: Final = "segments"
OPEN_LOGS: Final = "open"
PLAN: Final = log.PLAN
STATE: Final = log.STATE
# Enough that Spark reads them quickly, few enough that a segment is there soon.
SEGMENT_ROWS: Final = 100_000
SEGMENT_BYTES: Final = 256 * 1024 * 1024
HOUR_US: Final = 3_600_000_000
# Lives of brokers whose next number is remembered.
LIVES: Final = 100


class Plan(Struct, frozen=True):
    """These logs become segments with this name."""

    logs: list[str]
    name: str
    # The number that the next record of each life should have: a plan that is carried out again finds the
    # same holes.
    next: dict[str, int]
    # Its segments are there: what is left to do is to remove the logs, of which some may be gone already.
    is_written: bool = False
    damaged: list[str] = []


class State(Struct):
    """What the archiver remembers: the number that the next record of each life should have."""

    next: dict[str, int] = {}
    segments: int = 0
    # The highest number of a log that was archived: none after it may have it again.
    log: int = 0


class Report(Struct, frozen=True):
    """What one turn did."""

    logs: int = 0
    rows: int = 0
    lost: int = 0
    damage: tuple[str, ...] = ()
    segments: tuple[Path, ...] = ()


class Archiver:
    """Archives the journal in a folder; only one at a time may."""

    def __init__(self, journal: Path, rows: int = SEGMENT_ROWS) -> None:
        self._open = journal / OPEN_LOGS
        self._segments = journal / SEGMENTS
        self._plan = journal / PLAN
        self._state_file = journal / STATE
        self._rows = rows
        make_folder(self._segments)
        self._state = read_note(self._state_file, State) or State()

    @property
    def last_log(self) -> int:
        """The highest number of a log that was archived."""
        return self._state.log

    def waiting_bytes(self) -> int:
        """How much there is to be archived."""
        return sum(path.stat().st_size for path in log_files(self._open))

    def turn(self) -> Report:
        """Archive what is there, at most a segment's worth of rows. Nothing to do: an empty report."""
        plan = read_note(self._plan, Plan)
        if plan is None:
            logs = self._choose()
            if not logs:
                return Report()
            # The writer does not sync the names of logs that it has finished. After a power cut a log could
            # have its former name again, which no plan mentions, and would be archived a second time.
            sync_folder(self._open)
            self._state.segments += 1
            name = f"{self._state.segments:012d}-{os.urandom(4).hex()}"
            plan = Plan([path.name for path in logs], name, self._state.next)
            write_note(self._state_file, self._state)
            write_note(self._plan, plan)
        report = Report(len(plan.logs))
        if not plan.is_written:
            plan, report = self._carry_out(plan)
        self._clean_up(plan)
        return report

    def _choose(self) -> list[Path]:
        chosen: list[Path] = []
        size = 0
        for path in log_files(self._open):
            size += path.stat().st_size
            if chosen and size > SEGMENT_BYTES:
                break
            chosen.append(path)
            # A record has about a hundred bytes with everything.
            if size > self._rows * 100:
                break
        return chosen

    def _carry_out(self, plan: Plan) -> tuple[Plan, Report]:
        tables: list[pa.Table] = []
        damage: list[str] = []
        damaged: list[str] = []
        expected = dict(plan.next)
        lost = 0
        for name in plan.logs:
            path = self._open / name
            try:
                head, begin = read_head(path)
            except JournalDamaged as error:
                damage.append(str(error))
                damaged.append(name)
                continue
            for found in tables_in(head, read_batches(path, begin)):
                if isinstance(found, Damage):
                    damage.append(f"{path}: {found.what} at byte {found.offset}: {found.length} bytes")
                    damaged.append(name)
                    continue
                batch, table = found
                missing = batch.first - expected.get(head.life, 1)
                if missing > 0:
                    lost += missing
                    tables.append(hole_before(head, batch, missing))
                    expected[head.life] = batch.first
                if isinstance(table, JournalDamaged):
                    # Its checksum is right, so it was written wrong: the next batch has a hole before it.
                    damage.append(f"{path}: at byte {batch.offset}: {table}")
                    damaged.append(name)
                    continue
                tables.append(table)
                expected[head.life] = batch.first + batch.count
        paths = self._write_segments(plan.name, pa.concat_tables(tables)) if tables else ()
        # Lives follow one another; of each but the last few nothing more will come.
        following = dict(list(expected.items())[-LIVES:])
        done = msgspec.structs.replace(plan, next=following, is_written=True, damaged=damaged)
        write_note(self._plan, done)
        rows = sum(table.num_rows for table in tables)
        return done, Report(len(plan.logs), rows, lost, tuple(damage), paths)

    def _clean_up(self, plan: Plan) -> None:
        self._state.next = plan.next
        self._state.log = max(self._state.log, *(int(name.partition(".")[0]) for name in plan.logs))
        write_note(self._state_file, self._state)
        for name in plan.logs:
            path = self._open / name
            if name in plan.damaged:
                with contextlib.suppress(FileNotFoundError):
                    path.rename(path.with_suffix(DAMAGED))
            else:
                path.unlink(missing_ok=True)
        sync_folder(self._open)
        self._plan.unlink()

    def _write_segments(self, name: str, table: pa.Table) -> tuple[Path, ...]:
        # By the hour; nearly always it is one.
        hours = pc.divide(table["at"].cast(pa.int64()), HOUR_US)
        paths = []
        found = sorted(pc.unique(hours).to_pylist())
        for hour in found:
            begin = datetime.fromtimestamp(hour * 3600, UTC)
            folder = self._segments / f"date={begin:%Y-%m-%d}" / f"hour={begin:%H}"
            make_folder(folder)
            part = table if len(found) == 1 else table.filter(pc.equal(hours, hour))
            path = folder / f"{name}.parquet"
            hidden = folder / f".{name}.parquet"
            with hidden.open("wb") as file:
                with SegmentWriter(file) as writer:
                    writer.write(part)
                file.flush()
                os.fsync(file.fileno())
            hidden.rename(path)
            sync_folder(folder)
            paths.append(path)
        return tuple(paths)


T = TypeVar("T")


def read_note(path: Path, kind: type[T]) -> T | None:
    """What was written down there; None if nothing was."""
    try:
        return parse_note(path, path.read_bytes(), kind)
    except FileNotFoundError:
        return None


def parse_note(path: Path, content: bytes, kind: type[T]) -> T:
    """The same of what was read already."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalDamaged(
            f"{path} cannot be read: {error}. Nothing is archived without it, because rows might be there "
            "twice then; put back a backup, or move the whole folder away and let the broker begin anew"
        ) from None


def write_note(path: Path, value: Struct) -> None:
    """Write something down, whole or not at all."""
    hidden = path.with_name("." + path.name)
    with hidden.open("wb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)
    sync_folder(path.parent)
