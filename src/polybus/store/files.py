"""The files of a store: making them, opening them, and what their errors mean.

store.db       the database, always in WAL mode; it appears under this name when it is complete
store.db-wal   the write-ahead log, while a broker runs or after it was killed
store.mark     the number of the last commit (see mark.py)
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

from polybus.errors import StoreDamaged, StoreError, StoreFailed, StoreFull
from polybus.store import sql

DATABASE: Final = "store.db"
LOG: Final = "store.db-wal"
MARK: Final = "store.mark"
_UNFINISHED: Final = "store.new"
_ASIDE: Final = "store.aside"

# Measured: with 100 jobs a commit 910 bytes are written for each, with pages twice as large 1,390, for the
# same CPU time.
PAGE_BYTES: Final = 4096
# The log is copied into the database when it has this many pages, 16 MiB. Four times as many save one byte
# in fifteen; but then the one commit that copies, and a start after a crash, take longer.
CHECKPOINT_PAGES: Final = 4096
# After an unusually large transaction the log gives the room back.
LOG_BYTES: Final = 64 * 1024 * 1024
CACHE_KIB: Final = 65_536
# A database that is mostly empty, and not small, is made smaller when it is opened.
EMPTY_BYTES: Final = 64 * 1024 * 1024

META_TAG: Final = 0
META_ROW: Final = 1

_HEADER: Final = b"SQLite format 3\0" + PAGE_BYTES.to_bytes(2, "big") + b"\x02\x02\x00\x40\x20\x20"

_PRAGMAS: Final = (
    # One broker, one connection. Without sharing there is no -shm file, and nobody else's long read keeps
    # the log from being copied back.
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA synchronous = FULL",
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
    f"PRAGMA journal_size_limit = {LOG_BYTES}",
    f"PRAGMA cache_size = -{CACHE_KIB}",
    "PRAGMA temp_store = MEMORY",
    # Overwriting what is deleted would cost more than deleting it.
    "PRAGMA secure_delete = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA trusted_schema = OFF",
)

# SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, which the sqlite3 module has from Python 3.12 on.
_NO_COPY_ON_CLOSE: Final = 1006

_DISK_TROUBLE: Final = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM,
}
_TAKEN: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


# -- errors -----------------------------------------------------------------------------------


def translated(error: sqlite3.Error | OSError, folder: Path) -> StoreError:
    """What an error of SQLite or of the system means for the store."""
    if isinstance(error, OSError):
        code, text = sqlite3.SQLITE_IOERR, error.strerror or str(error)
        if error.errno in _NO_ROOM:
            code = sqlite3.SQLITE_FULL
    else:
        # The lower byte is the kind, the rest says more of it.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        text = f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"no room in {folder}: {text}. Make room on the disk; the broker tries again by itself."
        )
    if code in _TAKEN:
        return StoreFailed(f"another process has {folder / DATABASE} open: {text}. Close it there.")
    if code in _DISK_TROUBLE:
        return StoreFailed(f"cannot read or write {folder}: {text}. Look at the disk and at its permissions.")
    return StoreDamaged(str(folder / DATABASE), text)


# -- making and opening -----------------------------------------------------------------------


def create(folder: Path, meta: tuple[int, bytes, int]) -> None:
    """Make an empty store. The database gets its name when it is complete and on disk."""
    unfinished = _unfinished(folder)
    db = sqlite3.connect(unfinished, isolation_level=None)
    try:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        for migration in sql.migrations():
            migrate(db, migration)
        db.execute(sql.query("put", "meta", 1), meta)
        db.execute("COMMIT")
    finally:
        db.close()
    _finish(folder)


def copy(db: sqlite3.Connection, folder: Path) -> None:
    """Copy a database, as it is, into a folder that has none."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(errno.EEXIST, f"{folder} is not empty")
    other = sqlite3.connect(_unfinished(folder), isolation_level=None)
    try:
        db.backup(other)
    finally:
        other.close()
    _finish(folder)


def _unfinished(folder: Path) -> Path:
    """Where a database is made; what an interrupted attempt left there is removed."""
    for left in ("", "-wal", "-shm", "-journal"):
        (folder / (_UNFINISHED + left)).unlink(missing_ok=True)
    return folder / _UNFINISHED


def _finish(folder: Path) -> None:
    unfinished = folder / _UNFINISHED
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    unfinished.rename(folder / DATABASE)
    sync_folder(folder)


def migrate(db: sqlite3.Connection, script: str) -> None:
    """Run a script within the transaction that is open; `executescript` would commit it."""
    part = ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            db.execute(part)
            part = ""


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_header(path: Path) -> None:
    """The first bytes, which never change. SQLite takes some damage there for a file that is read-only."""
    with open(path, "rb") as file:
        if file.read(len(_HEADER)) != _HEADER:
            raise StoreDamaged(str(path), "it does not begin like a database of this store")


def restore_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(_HEADER)


def connect(folder: Path) -> sqlite3.Connection:
    # Made in one thread and used in another later, by one at a time (see port.py).
    db = sqlite3.connect(folder / DATABASE, isolation_level=None, check_same_thread=False, timeout=1.0)
    try:
        for pragma in _PRAGMAS:
            db.execute(pragma).fetchall()
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            raise StoreDamaged(str(folder / DATABASE), f"its journal mode is {mode!r}, not 'wal'")
    except BaseException:
        db.close()
        raise
    return db


def tidy(db: sqlite3.Connection, folder: Path) -> None:
    """What is done once, after a store was opened and found whole."""
    try:
        (empty,) = db.execute("PRAGMA freelist_count").fetchone()
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        if empty * PAGE_BYTES > EMPTY_BYTES and empty > pages / 2:
            db.execute("VACUUM")
        # What a killed broker had written but not synced is visible now, and must not be lost later.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.OperationalError as error:
        # A broker must be able to start with a full disk: then the log stays where it is.
        if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
            raise
        with open(folder / LOG, "rb") as log:
            os.fsync(log.fileno())


def close_untouched(db: sqlite3.Connection, folder: Path) -> None:
    """Close without copying the log into the database, which is what SQLite does with the last connection.

    A log that is damaged would be gone afterwards; one that was only misread, by a cable or a memory that
    fails now and then, would be gone too.  SQLite lets the log be if the database is not where it was."""
    setconfig = getattr(db, "setconfig", None)
    if setconfig is not None:
        setconfig(_NO_COPY_ON_CLOSE, True)
        db.close()
        return
    with contextlib.suppress(OSError):
        (folder / DATABASE).rename(folder / _ASIDE)
    try:
        db.close()
    finally:
        put_back(folder)


def put_back(folder: Path) -> None:
    """Undo what `close_untouched` did, also if the process died in the middle of it."""
    if (folder / _ASIDE).exists() and not (folder / DATABASE).exists():
        (folder / _ASIDE).rename(folder / DATABASE)


def expected_objects(version: int) -> list[tuple[str, str, str, str]]:
    """The tables as the migrations make them, to compare with those on disk."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for migration in sql.migrations()[:version]:
            migrate(db, migration)
        return db.execute(sql.query("objects")).fetchall()
    finally:
        db.close()
