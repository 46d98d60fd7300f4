"""Saving what is whole of a damaged store into a new one, and saying what was lost.

Works on a copy; the damaged files are not touched.  A row is saved if its checksum is right.  Where a page of
a table cannot be read, the rows before and after it still can, by their numbers.  What the log lost, that is
everything after its first bad frame, is not looked for: half a transaction is worse than none.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import MsgspecError, Struct

from polybus.core import ledger
from polybus.core.ledger import Line
from polybus.errors import ConfigError, StoreDamaged
from polybus.store import files, sql, verify
from polybus.store.codec import CODECS, checksum
from polybus.store.mark import whole_number
from polybus.store.sqlite import SqliteStore
from polybus.store.verify import Meta

_T = TypeVar("_T")
_Row = tuple[int, bytes, int]
_WORKSHOP: Final = ".salvage"
# The first rows that cannot be saved are named; of the others the number is told.
_NAMED: Final = 5
# Row numbers are given out one by one: a gap larger than this is damage, not a gap.
_FURTHEST: Final = 1 << 40
_CHUNK_ROWS: Final = 500


class TableReport(Struct):
    table: str
    saved: int = 0
    # How many there were, if the meta row could be read.
    expected: int | None = None
    # Rows that are there but not as they were written, by number.
    broken: list[int] = []

    @property
    def lost(self) -> int | None:
        return None if self.expected is None else max(0, self.expected - self.saved)


class Report(Struct):
    """What was saved and what was lost."""

    source: str
    target: str
    tables: list[TableReport] = []
    # What was wrong with the store as a whole, in words.
    notes: list[str] = []

    @property
    def is_whole(self) -> bool:
        return not self.notes and all(not table.broken and table.lost == 0 for table in self.tables)

    def lines(self) -> list[str]:
        """The report for people."""
        told = [f"saved from {self.source} into {self.target}:"]
        for table in self.tables:
            lost = "an unknown number" if table.lost is None else str(table.lost)
            line = f"  {table.table}: {table.saved} saved, {lost} lost"
            if table.broken:
                named = ", ".join(str(number) for number in table.broken[:_NAMED])
                more = f" and {len(table.broken) - _NAMED} more" if len(table.broken) > _NAMED else ""
                line += f" (broken: row {named}{more})"
            told.append(line)
        return told + [f"  {note}" for note in self.notes]


def salvage(source: Path, target: Path) -> Report:
    """Copy every row whose checksum is right from the store in `source` into a new one in `target`.

    No broker may use the source meanwhile."""
    if not (source / files.DATABASE).exists():
        raise ConfigError(f"there is no {files.DATABASE} in {source}. Name the folder that has the store.")
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"{target} is not empty. Name a folder that is not there yet.")
    report = Report(str(source), str(target))
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _copy(source, target, report) as db:
            meta = _meta(db, report)
            _compare_mark(source, meta, report)
            entries = {name: _saved(db, name, meta, report) for name in CODECS}
    except (sqlite3.Error, OSError) as error:
        raise files.translated(error, target) from error
    store = SqliteStore(target)
    store.write(_as_lines(entries))
    store.close()
    # Read again from the disk, verified.
    store.load()
    store.close()
    return report


# -- reading what can be read -----------------------------------------------------------------


@contextmanager
def _copy(source: Path, target: Path, report: Report) -> Iterator[sqlite3.Connection]:
    """A copy of the files, opened as far as it can be."""
    workshop = target / _WORKSHOP
    workshop.mkdir()
    path = workshop / files.DATABASE
    for name in (files.DATABASE, files.LOG):
        if (source / name).exists():
            shutil.copyfile(source / name, workshop / name)
    try:
        files.check_header(path)
    except StoreDamaged as error:
        report.notes.append(f"{error.what}: its beginning was restored in a copy")
        files.restore_header(path)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        # Lets a table be read although the definition of another one cannot be.
        db.execute("PRAGMA writable_schema = ON")
        _note(report, "", lambda: verify.check_pages(db, path))
        yield db
    finally:
        db.close()
        shutil.rmtree(workshop)


def _note(report: Report, consequence: str, call: Callable[[], _T]) -> _T | None:
    """The result of a call, or a note of what is wrong."""
    try:
        return call()
    except StoreDamaged as error:
        report.notes.append(error.what + consequence)
    except sqlite3.Error as error:
        report.notes.append(str(error) + consequence)
    return None


def _meta(db: sqlite3.Connection, report: Report) -> Meta | None:
    unknown = ": how many rows and commits there were is not known"
    return _note(report, unknown, lambda: verify.read_meta(db, Path(report.source) / files.DATABASE))


def _compare_mark(source: Path, meta: Meta | None, report: Report) -> None:
    path = source / files.MARK
    number = whole_number(path.read_bytes()) if path.exists() else None
    if number is None:
        report.notes.append(f"{path.name} is missing or not whole: the last commits may be lost")
    elif meta is not None and meta.commit < number:
        report.notes.append(
            f"the last {number - meta.commit} commits are lost: jobs accepted in them are gone, "
            "and jobs that ended in them will run again"
        )


def _saved(db: sqlite3.Connection, table: str, meta: Meta | None, report: Report) -> list[Any]:
    """The entries of a table that are whole, in order."""
    told = TableReport(table, expected=meta.sums.get(table, (0, 0))[0] if meta else None)
    report.tables.append(told)
    codec = CODECS[table]
    saved: dict[int, Any] = {}
    for number, payload, crc in _readable(db, table):
        try:
            if checksum(codec.tag, number, payload) != crc:
                raise ValueError
            saved[number] = codec.unpack(payload)
        except (ValueError, TypeError, MsgspecError):
            told.broken.append(number)
    told.saved = len(saved)
    return [saved[number] for number in sorted(saved)]


def _readable(db: sqlite3.Connection, table: str) -> Iterator[_Row]:
    """Every row that can be reached by its number.

    Upwards until a page cannot be read; then over it with growing steps until something can be read again,
    back down from there as far as possible, and on upwards.
    """
    low = -1
    while True:
        for row in _walk(db, table, "above", low):
            yield row
            low = row[0]
        beyond, step = _rows(db, table, "above", low, 1), 1
        if beyond == []:
            return
        while beyond is None and step < _FURTHEST:
            beyond = _rows(db, table, "above", low + step, 1)
            step *= 2
        if beyond is None:
            return
        yield from beyond
        # A step may lead beyond the last row: then everything behind the page is below that place.
        reached = beyond[0][0] if beyond else low + step
        for row in _walk(db, table, "below", reached):
            if row[0] <= low:
                break
            yield row
        low = reached


def _walk(db: sqlite3.Connection, table: str, way: str, number: int) -> Iterator[_Row]:
    """Rows above or below a number, one after the other, until there are no more or one cannot be read."""
    while rows := _rows(db, table, way, number, _CHUNK_ROWS) or _rows(db, table, way, number, 1):
        yield from rows
        number = rows[-1][0]


def _rows(db: sqlite3.Connection, table: str, way: str, number: int, limit: int) -> list[_Row] | None:
    """Rows, or None where they cannot be read."""
    try:
        rows = db.execute(sql.query(way, table), (number, limit)).fetchall()
    except (sqlite3.Error, OverflowError, MemoryError):
        return None
    # A damaged tree may lead in circles: what is not further on is no way out.
    ids = [row[0] for row in rows]
    onwards = all(
        isinstance(found, int) and found != number and (found > number) == (way == "above") for found in ids
    )
    return rows if onwards and ids == sorted(ids, reverse=way == "below") else None


# -- writing ----------------------------------------------------------------------------------


def _as_lines(entries: dict[str, list[Any]]) -> list[Line]:
    """Lines that make a store with these entries. What happened to a job that is lost means nothing in it."""
    return [
        *(ledger.Ended(outcome.token, outcome) for outcome in entries["outcome"]),
        *(ledger.Ended(letter.job.token, None, letter) for letter in entries["dead"]),
        *(ledger.Accepted(job) for job in entries["job"]),
        *(ledger.Waiting(one.token, one.attempt, one.due_at, one.history) for one in entries["delay"]),
        *entries["started"],
        *(ledger.Scheduled(entry) for entry in entries["schedule"]),
        *(ledger.Ran(run) for run in entries["run"]),
        *(ledger.Grouped(group.key, group.state) for group in entries["grouping"]),
        *entries["last_value"],
        *(ledger.Registered(entry) for entry in entries["node"]),
    ]
