"""The files of a store: making them, opening them, and looking at them from outside before SQLite does.

store.db       the database, always in WAL mode; it appears under this name when it is complete
store.db-wal   the write-ahead log, while a broker runs or after it was killed
store.mark     the number of the last commit (see mark.py)
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from msgspec import msgpack

from polybus.errors import StoreDamaged, StoreError, StoreFailed, StoreFull
from polybus.store import sql
from polybus.store.codec import CODECS, checksum

DATABASE: Final = "store.db"
MARK: Final = "store.mark"
_UNFINISHED: Final = "store.new"

PAGE_BYTES: Final = 4096
# The log is copied into the database when it has this many pages. Longer, and pages that change often are
# copied less often; but then a start after a crash, and the one commit that copies, take longer.
CHECKPOINT_PAGES: Final = 4096
# After an unusually large transaction the log gives the room back.
LOG_BYTES: Final = 64 * 1024 * 1024
CACHE_KIB: Final = 65_536

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
    # Overwriting what is deleted would double the writes.
    "PRAGMA secure_delete = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA trusted_schema = OFF",
)


# -- errors -----------------------------------------------------------------------------------

_FULL: Final = {sqlite3.SQLITE_FULL}
_DISK: Final = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
}


def translated(error: sqlite3.Error, folder: Path) -> StoreError:
    """What an error of SQLite means for the store."""
    # The lower byte is the kind, the rest says more of it.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in _FULL:
        return StoreFull(
            f"no room for {folder}: {error}. Make room on the disk; the broker tries again by itself."
        )
    if code in _DISK:
        return StoreFailed(
            f"{folder} cannot be read or written: {error} ({name}). Look at the disk and its rights."
        )
    return StoreDamaged(str(folder / DATABASE), f"{error} ({name})")


def os_failure(error: OSError, folder: Path) -> StoreError:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no room for {folder}: {error.strerror}. Make room on the disk.")
    return StoreFailed(
        f"{folder} cannot be read or written: {error.strerror}. Look at the disk and its rights."
    )


# -- making and opening -----------------------------------------------------------------------


def pack_meta(commit: int, sums: dict[str, tuple[int, int]], version: int) -> tuple[bytes, int]:
    payload = msgpack.encode((version, commit, sums))
    return payload, checksum(META_TAG, META_ROW, payload)


def create(folder: Path) -> None:
    """Make an empty store. The database gets its name when it is complete and on disk."""
    unfinished = folder / _UNFINISHED
    for left in (
        unfinished,
        unfinished.with_name(_UNFINISHED + "-wal"),
        unfinished.with_name(_UNFINISHED + "-journal"),
    ):
        left.unlink(missing_ok=True)
    db = sqlite3.connect(unfinished, isolation_level=None)
    try:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        for migration in sql.migrations():
            for statement in statements(migration):
                db.execute(statement)
        empty = dict.fromkeys(CODECS, (0, 0))
        db.execute(sql.query("put", "meta", 1), (META_ROW, *pack_meta(0, empty, sql.version())))
        db.execute("COMMIT")
    finally:
        db.close()
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    unfinished.rename(folder / DATABASE)
    sync_folder(folder)


def statements(text: str) -> list[str]:
    """The statements of a script one by one, because `executescript` commits what is open."""
    found, part = [], ""
    for line in text.splitlines(keepends=True):
        if line.startswith("--"):
            continue
        part += line
        if sqlite3.complete_statement(part):
            found.append(part.strip().rstrip(";"))
            part = ""
    return found


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


def expected_objects() -> list[tuple[str, str, str, str]]:
    """The schema as the migrations make it, to compare with the one on disk."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for migration in sql.migrations():
            for statement in statements(migration):
                db.execute(statement)
        return db.execute(sql.query("objects")).fetchall()
    finally:
        db.close()
