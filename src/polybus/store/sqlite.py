"""The store on disk: SQLite in WAL mode, synced with every commit.

One transaction is: the folded lines (shelves.py) as a few statements of many rows each, the meta row with the
number of the commit and the sums of every table, COMMIT, and then the mark.  Few statements, because each one
gives up and takes back the interpreter's lock, for which the broker's loop competes.

What is in memory (where each entry is) changes only after the commit, so a failed transaction leaves
everything as it was and the next one may be tried on the same connection.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from polybus.core.ledger import Contents, DeadLetter, Line, Outcome, ScheduleRun
from polybus.errors import StoreDamaged, StoreFailed
from polybus.store import files, sql, verify
from polybus.store.codec import CODECS
from polybus.store.mark import Mark
from polybus.store.shelf import CHECKSUM_BITS
from polybus.store.shelves import Shelves
from polybus.store.verify import Meta, pack_meta

# Rows of one statement: few sizes, because each is prepared once for every table and then kept.
_AT_ONCE: Final = (1, 4, 16, 64, 256)
_COLUMNS: Final = 3
# Rows looked at in one query while searching dead letters.
_PAGE_ROWS: Final = 256
# A disk that failed this often in a row may be another one now: the files are opened and verified again.
_FAILURES: Final = 2


class SqliteStore:
    """The store in a folder, which must exist. Made if it is not there; verified by `load`."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._path: Final = folder / files.DATABASE
        self._db: sqlite3.Connection | None = None
        self._mark: Mark | None = None
        self._shelves = Shelves()
        self._inode = 0
        self._failures = 0
        # The number of the last commit.
        self.commit = 0

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> Contents:
        self.close()
        try:
            with _without_collector():
                return self._open()
        except (sqlite3.Error, OSError) as error:
            self._leave()
            raise files.translated(error, self.folder) from error
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """Everything committed is on disk already; this copies the log into the database and removes it."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
        self._close_mark()

    def _leave(self) -> None:
        """Close files that cannot be trusted, as they are."""
        if self._db is not None:
            files.close_untouched(self._db, self.folder)
            self._db = None
        self._close_mark()

    def _close_mark(self) -> None:
        if self._mark is not None:
            with contextlib.suppress(OSError):
                self._mark.close()
            self._mark = None

    def _open(self) -> Contents:
        files.put_back(self.folder)
        is_new = not self._path.exists()
        self._mark, marked = _open_mark(self.folder, is_new)
        if is_new:
            empty = Meta(sql.version(), 0, dict.fromkeys(CODECS, (0, 0)))
            files.create(self.folder, pack_meta(empty))
        files.check_header(self._path)
        db = self._db = files.connect(self.folder)
        self._inode = os.stat(self._path).st_ino
        verify.check_pages(db, self._path)
        meta = verify.read_meta(db, self._path)
        verify.check_commit(meta, marked, self._path)
        verify.check_tables(db, meta, self._path)
        contents = self._read(db, meta)
        self.commit = meta.commit
        if meta.version < sql.version():
            self._migrate(db, meta.version)
        files.tidy(db, self.folder)
        # One that lags is allowed (see mark.py).
        with contextlib.suppress(OSError):
            self._mark.start(self.commit)
        self._failures = 0
        return contents

    def _read(self, db: sqlite3.Connection, meta: Meta) -> Contents:
        shelves = Shelves()
        entries: dict[str, list[Any]] = {name: [] for name in CODECS}
        for name, sums in meta.sums.items():
            entries[name] = verify.read_table(db, shelves.by_name[name], sums, self._path)
        try:
            contents = shelves.contents(entries)
        except KeyError as error:
            raise StoreDamaged(str(self._path), f"it knows what became of {error}, but not the job") from None
        self._shelves = shelves
        return contents

    def _migrate(self, db: sqlite3.Connection, version: int) -> None:
        db.execute("BEGIN IMMEDIATE")
        for migration in sql.migrations()[version:]:
            files.migrate(db, migration)
        self._put_meta(db)
        db.execute("COMMIT")
        self.commit += 1

    # -- writing ------------------------------------------------------------------------------

    def write(self, lines: Sequence[Line]) -> None:
        db = self._ready()
        try:
            self._check_place()
            self._shelves.note(lines)
            self._transact(db)
        except (sqlite3.Error, OSError) as error:
            self._undo(db)
            trouble = files.translated(error, self.folder)
            self._after_failure(isinstance(trouble, StoreFailed))
            raise trouble from error
        except BaseException:
            self._undo(db)
            raise
        self._shelves.settle()
        self.commit += 1
        self._failures = 0
        # The commit is on disk whatever becomes of the mark; one that lags is allowed.
        with contextlib.suppress(OSError):
            assert self._mark is not None
            self._mark.move(self.commit)

    def _ready(self) -> sqlite3.Connection:
        if self._db is None:
            self.load()
        assert self._db is not None
        return self._db

    def _check_place(self) -> None:
        """A file that was removed can still be written to; what is written goes nowhere."""
        if os.stat(self._path).st_ino != self._inode:
            raise StoreFailed(f"{self._path} was replaced while the broker used it. Put it back, or restart.")

    def _transact(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        for shelf in self._shelves.changed():
            deleted, rows = shelf.changes()
            _in_batches(db, "delete", shelf.name, deleted, 1)
            _in_batches(db, "put", shelf.name, rows, _COLUMNS)
        self._put_meta(db)
        db.execute("COMMIT")

    def _put_meta(self, db: sqlite3.Connection) -> None:
        meta = Meta(sql.version(), self.commit + 1, self._shelves.sums())
        db.execute(sql.query("put", "meta", 1), pack_meta(meta))

    def _undo(self, db: sqlite3.Connection) -> None:
        self._shelves.forget()
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def _after_failure(self, is_disk: bool) -> None:
        self._failures += is_disk
        if self._failures >= _FAILURES:
            self.close()

    def backup(self, target: Path) -> None:
        """Copy the store, as it is after the last commit, into a folder that is empty or not there yet.

        The store takes no lines meanwhile; a copy takes about as long as reading and writing its files."""
        db = self._ready()
        try:
            files.copy(db, target)
            Mark.create(target / files.MARK, self.commit)
            files.sync_folder(target)
        except (sqlite3.Error, OSError) as error:
            raise files.translated(error, target) from error

    # -- questions ----------------------------------------------------------------------------

    def dead(self, limit: int, service: str = "", after: bytes = b"") -> list[DeadLetter]:
        self._ready()
        places = self._shelves.dead.places
        if after and after not in places:
            return []
        above = places[after] >> CHECKSUM_BITS if after else 0
        wanted = service.encode()
        found: list[DeadLetter] = []
        while len(found) < limit:
            rows = self._ask(sql.query("above", "dead"), above, _PAGE_ROWS if service else limit)
            letters = [verify.verified("dead", row, self._path) for row in rows]
            found += [letter for letter in letters if not wanted or letter.job.service == wanted]
            if not rows:
                break
            above = rows[-1][0]
        return found[:limit]

    def dead_letter(self, token: bytes) -> DeadLetter | None:
        letter: DeadLetter | None = self._one("dead", token)
        return letter

    def dead_beyond(self, kept: int, limit: int) -> list[bytes]:
        self._ready()
        places = self._shelves.dead.places
        return list(islice(places, max(0, min(limit, len(places) - kept))))

    def outcome(self, token: bytes) -> Outcome | None:
        outcome: Outcome | None = self._one("outcome", token)
        return outcome

    def runs(self, key: str, limit: int) -> list[ScheduleRun]:
        self._ready()
        return [self._one("run", place) for place in self._shelves.newest_runs(key, limit)]

    def _one(self, table: str, key: Any) -> Any:
        self._ready()
        place = self._shelves.by_name[table].places.get(key)
        if place is None:
            return None
        number = place >> CHECKSUM_BITS
        rows = self._ask(sql.query("one", table), number)
        if len(rows) != 1:
            raise StoreDamaged(str(self._path), f"{table} {number} has vanished")
        return verify.verified(table, rows[0], self._path)

    def _ask(self, text: str, *values: int) -> list[Any]:
        try:
            return self._ready().execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise files.translated(error, self.folder) from error


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """What is read stays: looking for garbage in it again and again would take longer than reading it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _open_mark(folder: Path, is_new: bool) -> tuple[Mark, int]:
    """The mark, and the number in it. The mark is made before the database and outlives it."""
    path = folder / files.MARK
    if not path.exists():
        if not is_new:
            raise StoreDamaged(
                str(path), "it is missing, so nobody can tell whether the last commits are there"
            )
        Mark.create(path)
        files.sync_folder(folder)
    mark = Mark(path)
    number = mark.read()
    if number is None:
        mark.close()
        raise StoreDamaged(str(path), "neither of its two numbers is whole")
    if is_new and number:
        mark.close()
        raise StoreDamaged(str(folder / files.DATABASE), f"it is missing, but had {number} commits")
    return mark, number


def _in_batches(db: sqlite3.Connection, name: str, table: str, values: list[Any], width: int) -> None:
    """As few statements as possible: places that are left over in the last one are 0, which is no row."""
    at = 0
    while at < len(values):
        left = (len(values) - at) // width
        size = next((size for size in _AT_ONCE if size >= left), _AT_ONCE[-1])
        part = values[at : at + size * width]
        at += len(part)
        part += [0] * (size * width - len(part))
        db.execute(sql.query(name, table, size), part)
