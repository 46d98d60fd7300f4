"""The store on disk: SQLite in WAL mode, synced with every commit.

One transaction is: the folded lines (shelf.py) as a few statements of many rows each, the meta row with the
number of the commit and the sums of every table, COMMIT, and then the mark.  Few statements, because each one
gives up and takes back the interpreter's lock, for which the broker's loop competes.

What is in memory (where each entry is) changes only after the commit, so a failed transaction leaves
everything as it was and the next one may be tried on the same connection.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, msgpack

from polybus.core import ledger
from polybus.core.ledger import Contents, DeadLetter, JobEntry, Line, Outcome, ScheduleRun
from polybus.errors import StoreDamaged, StoreTooNew
from polybus.store import files, sql
from polybus.store.codec import CODECS, Delay, Group, checksum
from polybus.store.mark import Mark
from polybus.store.port import RUNS, RUNS_PER_SCHEDULE, started, waiting
from polybus.store.shelf import CHECKSUM_BITS, Shelf

# Rows of one statement: large ones for throughput, small ones for what is left over.
_AT_ONCE: Final = (256, 32, 4, 1)
_COLUMNS: Final = 3
# Rows looked at in one query while searching dead letters.
_PAGE_ROWS: Final = 256


class SqliteStore:
    """The store in a folder, which must exist. Made if it is not there; verified by `load`."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._database: Final = folder / files.DATABASE
        self._db: sqlite3.Connection | None = None
        self._mark: Mark | None = None
        self._shelves: dict[str, Shelf] = {}
        self.commit = 0

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> Contents:
        self.close()
        try:
            self._open()
            assert self._db is not None
            self._check_structure(self._db)
            contents = self._read(self._db)
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            assert self._mark is not None
            self._mark.start(self.commit)
        except sqlite3.Error as error:
            self._abandon()
            raise files.translated(error, self.folder) from error
        except OSError as error:
            self._abandon()
            raise files.os_failure(error, self.folder) from error
        except BaseException:
            self._abandon()
            raise
        return contents

    def close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        if self._mark is not None:
            with contextlib.suppress(OSError):
                self._mark.close()
            self._mark = None

    _abandon = close

    def _open(self) -> None:
        is_new = not self._database.exists()
        marked = self._look_at_mark(is_new)
        if is_new:
            files.create(self.folder)
        files.check_header(self._database)
        self._db = files.connect(self.folder)
        self._marked = marked

    def _look_at_mark(self, is_new: bool) -> int:
        path = self.folder / files.MARK
        known = path.exists()
        if not known and not is_new:
            raise StoreDamaged(
                str(path), "it is missing, so nobody can tell whether the last commits are there"
            )
        self._mark = Mark(path)
        if not known:
            self._mark.start(0)
            files.sync_folder(self.folder)
        number = self._mark.read()
        if number is None:
            raise StoreDamaged(str(path), "neither of its two numbers is whole")
        if is_new and number:
            raise StoreDamaged(str(self._database), f"it is missing, but {number} commits were written to it")
        return number

    # -- verifying ----------------------------------------------------------------------------

    def _check_structure(self, db: sqlite3.Connection) -> None:
        wrong = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
        if wrong != ["ok"]:
            raise StoreDamaged(str(self._database), "; ".join(str(row).replace("\n", " ") for row in wrong))

    def _read_meta(self, db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
        rows = db.execute(sql.query("all", "meta")).fetchall()
        damaged = StoreDamaged(str(self._database), "its meta row is not as it was written")
        if len(rows) != 1 or rows[0][0] != files.META_ROW or not isinstance(rows[0][1], bytes):
            raise damaged
        _, payload, crc = rows[0]
        if checksum(files.META_TAG, files.META_ROW, payload) != crc:
            raise damaged
        version, commit, sums = msgpack.decode(payload)
        if version > sql.version():
            raise StoreTooNew(
                f"{self._database} has version {version}, and this polybus knows {sql.version()}: "
                "a newer one wrote it. Use that, or start with another --data-dir."
            )
        if commit < self._marked:
            raise StoreDamaged(
                str(self._database),
                f"it ends with commit {commit}, but {self._marked} was on disk: the last commits are lost",
            )
        self.commit = commit
        return {table: (count, total) for table, (count, total) in sums.items()}

    def _read(self, db: sqlite3.Connection) -> Contents:
        sums = self._read_meta(db)
        if db.execute(sql.query("objects")).fetchall() != files.expected_objects():
            raise StoreDamaged(str(self._database), "its tables are not those of this version")
        self._shelves = {name: Shelf(name) for name in CODECS}
        entries = {name: self._read_table(db, shelf, sums[name]) for name, shelf in self._shelves.items()}
        jobs: dict[bytes, JobEntry] = {job.token: job for job in entries["job"]}
        for delay in entries["delay"]:
            line = ledger.Waiting(delay.token, delay.attempt, delay.due_at, delay.history)
            jobs[delay.token] = waiting(jobs[delay.token], line)
        for start in entries["started"]:
            jobs[start.token] = started(jobs[start.token], start)
        self._due: dict[str, dict[float, None]] = {}
        for run in entries["run"]:
            self._due.setdefault(run.key, {})[run.due_at] = None
        return Contents(
            jobs=list(jobs.values()),
            outcomes=entries["outcome"],
            schedules=entries["schedule"],
            groups={group.key: group.state for group in entries["grouping"]},
            dead=len(entries["dead"]),
        )

    def _read_table(self, db: sqlite3.Connection, shelf: Shelf, sums: tuple[int, int]) -> list[Any]:
        entries = []
        for number, payload, crc in db.execute(sql.query("all", shelf.name)):
            try:
                entries.append(shelf.found(number, payload, crc))
            except (ValueError, TypeError, DecodeError) as error:
                raise StoreDamaged(str(self._database), f"{shelf.name} {number}: {error}") from error
        if (shelf.count, shelf.total) != sums:
            raise StoreDamaged(
                str(self._database),
                f"the table {shelf.name} should have {sums[0]} rows and has {shelf.count}, "
                "or has others than were written",
            )
        return entries

    # -- writing ------------------------------------------------------------------------------

    def write(self, lines: Sequence[Line]) -> None:
        if self._db is None:
            self.load()
        assert self._db is not None
        self._recent: dict[str, dict[float, None]] = {}
        try:
            for line in lines:
                _FOLD[type(line)](self, line)
            self._transact(self._db)
        except sqlite3.Error as error:
            self._undo()
            raise files.translated(error, self.folder) from error
        except BaseException:
            self._undo()
            raise
        for shelf in self._shelves.values():
            if shelf.is_changed:
                shelf.settle()
        self._due.update(self._recent)
        self.commit += 1
        # The commit is on disk whatever becomes of the mark; one that lags is allowed.
        with contextlib.suppress(OSError):
            assert self._mark is not None
            self._mark.move(self.commit)

    def _transact(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        sums = {}
        for name, shelf in self._shelves.items():
            if shelf.is_changed:
                deleted, rows = shelf.changes()
                _in_batches(db, "delete", name, deleted, 1)
                _in_batches(db, "replace", name, rows, _COLUMNS)
                sums[name] = shelf.sums()
            else:
                sums[name] = shelf.count, shelf.total
        meta = files.pack_meta(self.commit + 1, sums, sql.version())
        db.execute(sql.query("replace", "meta", 1), (files.META_ROW, *meta))
        db.execute("COMMIT")

    def _undo(self) -> None:
        for shelf in self._shelves.values():
            shelf.forget()
        assert self._db is not None
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            # It cannot even go back: the next write opens the files again and verifies them.
            self._abandon()

    # -- lines --------------------------------------------------------------------------------

    def _accepted(self, line: ledger.Accepted) -> None:
        token = line.job.token
        self._shelves["job"].put(token, line.job)
        self._shelves["started"].remove(token)
        self._shelves["delay"].remove(token)
        self._shelves["dead"].remove(token)
        self._shelves["outcome"].remove(token)

    def _started(self, line: ledger.Started) -> None:
        if self._shelves["job"].holds(line.token):
            self._shelves["started"].put(line.token, line)

    def _waiting(self, line: ledger.Waiting) -> None:
        if self._shelves["job"].holds(line.token):
            self._shelves["started"].remove(line.token)
            self._shelves["delay"].put(line.token, Delay(line.token, line.attempt, line.due_at, line.history))

    def _ended(self, line: ledger.Ended) -> None:
        token = line.token
        shelves = self._shelves
        shelves["job"].remove(token)
        shelves["started"].remove(token)
        shelves["delay"].remove(token)
        if line.outcome is not None:
            shelves["outcome"].put(token, line.outcome)
        if line.dead is not None:
            shelves["dead"].put(token, line.dead)

    def _forgotten(self, line: ledger.Forgotten) -> None:
        for token in line.tokens:
            self._shelves["outcome"].remove(token)

    def _buried(self, line: ledger.Buried) -> None:
        for token in line.tokens:
            self._shelves["dead"].remove(token)

    def _scheduled(self, line: ledger.Scheduled) -> None:
        self._shelves["schedule"].put(line.entry.key, line.entry)

    def _unscheduled(self, line: ledger.Unscheduled) -> None:
        self._shelves["schedule"].remove(line.key)

    def _ran(self, line: ledger.Ran) -> None:
        run, shelf = line.run, self._shelves["run"]
        shelf.put((run.key, run.due_at), run)
        due = self._recent.get(run.key)
        if due is None:
            due = self._recent[run.key] = dict(self._due.get(run.key, {}))
        due[run.due_at] = None
        if len(due) > RUNS_PER_SCHEDULE:
            oldest = next(iter(due))
            del due[oldest]
            shelf.remove((run.key, oldest))
        if shelf.size > RUNS:
            key, oldest = shelf.oldest()
            due = self._recent.setdefault(key, dict(self._due.get(key, {})))
            del due[oldest]
            shelf.remove((key, oldest))

    def _grouped(self, line: ledger.Grouped) -> None:
        self._shelves["grouping"].put(line.key, Group(line.key, line.state))

    def _ungrouped(self, line: ledger.Ungrouped) -> None:
        self._shelves["grouping"].remove(line.key)

    # -- questions ----------------------------------------------------------------------------

    def dead(self, limit: int, service: str = "", after: bytes = b"") -> list[DeadLetter]:
        if after and after not in self._places("dead"):
            return []
        above = self._places("dead")[after] >> CHECKSUM_BITS if after else 0
        wanted = service.encode()
        found: list[DeadLetter] = []
        while len(found) < limit:
            rows = self._ask(
                sql.query("above", "dead"), (above, min(_PAGE_ROWS, limit) if not service else _PAGE_ROWS)
            )
            for row in rows:
                letter: DeadLetter = self._verified("dead", row)
                if not wanted or letter.job.service == wanted:
                    found.append(letter)
            if not rows:
                break
            above = rows[-1][0]
        return found[:limit]

    def dead_letter(self, token: bytes) -> DeadLetter | None:
        letter: DeadLetter | None = self._one("dead", token)
        return letter

    def outcome(self, token: bytes) -> Outcome | None:
        outcome: Outcome | None = self._one("outcome", token)
        return outcome

    def runs(self, key: str, limit: int) -> list[ScheduleRun]:
        self._places("run")
        newest = list(reversed(self._due.get(key, {})))[:limit]
        return [self._one("run", (key, due_at)) for due_at in newest]

    def _places(self, table: str) -> dict[Any, int]:
        if self._db is None:
            self.load()
        return self._shelves[table].places

    def _one(self, table: str, key: Any) -> Any:
        place = self._places(table).get(key)
        if place is None:
            return None
        rows = self._ask(sql.query("one", table), (place >> CHECKSUM_BITS,))
        if len(rows) != 1:
            raise StoreDamaged(str(self._database), f"{table} {place >> CHECKSUM_BITS} has vanished")
        return self._verified(table, rows[0])

    def _ask(self, text: str, values: tuple[Any, ...]) -> list[Any]:
        assert self._db is not None
        try:
            return self._db.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise files.translated(error, self.folder) from error

    def _verified(self, table: str, row: tuple[int, bytes, int]) -> Any:
        number, payload, crc = row
        if checksum(CODECS[table].tag, number, payload) != crc:
            raise StoreDamaged(str(self._database), f"{table} {number}: its checksum is wrong")
        return CODECS[table].unpack(payload)


def _in_batches(db: sqlite3.Connection, name: str, table: str, values: list[Any], width: int) -> None:
    at, left = 0, len(values) // width
    for size in _AT_ONCE:
        while left >= size:
            step = size * width
            db.execute(sql.query(name, table, size), values[at : at + step])
            at, left = at + step, left - size


_FOLD: dict[type[Any], Callable[[SqliteStore, Any], None]] = {
    ledger.Accepted: SqliteStore._accepted,
    ledger.Started: SqliteStore._started,
    ledger.Waiting: SqliteStore._waiting,
    ledger.Ended: SqliteStore._ended,
    ledger.Forgotten: SqliteStore._forgotten,
    ledger.Buried: SqliteStore._buried,
    ledger.Scheduled: SqliteStore._scheduled,
    ledger.Unscheduled: SqliteStore._unscheduled,
    ledger.Ran: SqliteStore._ran,
    ledger.Grouped: SqliteStore._grouped,
    ledger.Ungrouped: SqliteStore._ungrouped,
}
