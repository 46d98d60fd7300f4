"""What is checked before a store is believed, and what errors mean: check by check."""

from __future__ import annotations

import errno
import gc
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from polybus.core.ledger import Accepted, Ran, ScheduleRun
from polybus.errors import StoreDamaged, StoreError, StoreFailed, StoreFull, StoreTooNew
from polybus.store import files, sql, verify
from polybus.store.codec import CODECS, checksum
from polybus.store.mark import Mark
from polybus.store.sqlite import SqliteStore
from polybus.store.verify import Meta, pack_meta
from support.ledgers import job, token

HERE = Path("/somewhere/store.db")
VERSION = sql.version()


def database(*meta: tuple[Any, ...], version: int = VERSION) -> sqlite3.Connection:
    """The tables of a version in memory, with these meta rows."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    for migration in sql.migrations()[:version]:
        files.migrate(db, migration)
    for row in meta:
        db.execute(sql.query("put", "meta", 1), row)
    return db


# -- the meta row -----------------------------------------------------------------------------


def test_a_meta_row_is_read_as_it_was_written() -> None:
    meta = Meta(VERSION, 7, {"job": (3, 12345)})
    assert verify.read_meta(database(pack_meta(meta)), HERE) == meta


def rows_that_are_wrong() -> list[list[tuple[Any, ...]]]:
    number, payload, crc = pack_meta(Meta(VERSION, 7, {}))
    other = checksum(files.META_TAG, 2, payload)
    noise = b"\xc1noise"
    return [
        [],
        [(number, payload, crc + 1)],
        # In another place, with the checksum of the first and with its own.
        [(2, payload, crc)],
        [(2, payload, other)],
        [(number, payload, crc), (2, payload, other)],
        [(number, noise, checksum(files.META_TAG, number, noise))],
    ]


@pytest.mark.parametrize("rows", rows_that_are_wrong())
def test_any_other_meta_row_is_damage(rows: list[tuple[Any, ...]]) -> None:
    with pytest.raises(StoreDamaged, match="its meta row is not as it was written"):
        verify.read_meta(database(*rows), HERE)


def test_the_version_of_this_polybus_is_the_last_that_it_reads() -> None:
    with pytest.raises(StoreTooNew, match=f"has version {VERSION + 1}, and this polybus knows {VERSION}"):
        verify.read_meta(database(pack_meta(Meta(VERSION + 1, 7, {}))), HERE)


@pytest.mark.parametrize(("commit", "marked", "is_behind"), [(7, 7, False), (8, 7, False), (6, 7, True)])
def test_a_store_may_not_end_before_its_mark(commit: int, marked: int, is_behind: bool) -> None:
    meta = Meta(VERSION, commit, {})
    if is_behind:
        with pytest.raises(StoreDamaged, match="it ends with commit 6, but 7 was on disk"):
            verify.check_commit(meta, marked, HERE)
    else:
        verify.check_commit(meta, marked, HERE)


# -- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_the_tables_are_those_of_the_version_that_made_them(version: int) -> None:
    db = database(version=version)
    verify.check_tables(db, Meta(version, 1, {"job": (0, 0)}), HERE)
    db.execute("CREATE TABLE another (x)")
    with pytest.raises(StoreDamaged, match=f"not those of version {version}"):
        verify.check_tables(db, Meta(version, 1, {"job": (0, 0)}), HERE)


def test_sums_of_a_table_that_nobody_knows_are_damage() -> None:
    verify.check_tables(database(), Meta(VERSION, 1, dict.fromkeys(CODECS, (0, 0))), HERE)
    with pytest.raises(StoreDamaged, match="tables that nobody knows"):
        verify.check_tables(database(), Meta(VERSION, 1, {"job": (0, 0), "notes": (0, 0)}), HERE)


@pytest.mark.parametrize("payload", [None, "text", b"changed"])
def test_a_row_that_is_asked_for_later_is_checked(payload: Any) -> None:
    codec = CODECS["job"]
    right = codec.pack(job(1))
    assert verify.verified("job", (5, right, checksum(codec.tag, 5, right)), HERE) == job(1)
    with pytest.raises(StoreDamaged, match="job 5: its checksum is wrong"):
        verify.verified("job", (5, payload, checksum(codec.tag, 5, right)), HERE)
    with pytest.raises(StoreDamaged, match="job 6"):
        verify.verified("job", (6, right, checksum(codec.tag, 5, right)), HERE)


# -- what errors mean -------------------------------------------------------------------------


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "NAME"
    return error


FULL, FAILED, DAMAGED = StoreFull, StoreFailed, StoreDamaged


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "No space"), FULL, "no room in /data: No space"),
        (OSError(errno.EDQUOT, "Quota"), FULL, "no room in /data: Quota"),
        (OSError(errno.EIO, "Broken"), FAILED, "cannot read or write /data: Broken"),
        (OSError("only words"), FAILED, "cannot read or write /data: only words"),
        (sqlite_error(sqlite3.SQLITE_FULL), FULL, "no room in /data: no (NAME)"),
        (sqlite_error(sqlite3.SQLITE_BUSY), FAILED, "another process has /data/store.db open: no (NAME)"),
        (sqlite_error(sqlite3.SQLITE_LOCKED), FAILED, "another process"),
        (sqlite_error(sqlite3.SQLITE_IOERR), FAILED, "cannot read or write"),
        # What the system says more in the upper bytes does not matter.
        (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), FAILED, "cannot read or write"),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), FAILED, "another process"),
        (sqlite_error(sqlite3.SQLITE_READONLY), FAILED, "cannot read or write"),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), FAILED, "cannot read or write"),
        (sqlite_error(sqlite3.SQLITE_PERM), FAILED, "cannot read or write"),
        (sqlite_error(sqlite3.SQLITE_PROTOCOL), FAILED, "cannot read or write"),
        (sqlite_error(sqlite3.SQLITE_NOMEM), FAILED, "cannot read or write"),
        (sqlite_error(sqlite3.SQLITE_CORRUPT), DAMAGED, "no (NAME)"),
        (sqlite_error(sqlite3.SQLITE_NOTADB), DAMAGED, "no (NAME)"),
        (sqlite3.DatabaseError("strange"), DAMAGED, "strange (DatabaseError)"),
    ],
)
def test_what_an_error_means_for_the_store(error: Any, kind: type[StoreError], text: str) -> None:
    found = files.translated(error, Path("/data"))
    assert type(found) is kind
    assert text in str(found)


# -- files ------------------------------------------------------------------------------------


def test_what_an_interrupted_attempt_left_is_removed(tmp_path: Path) -> None:
    for left in ("", "-wal", "-shm", "-journal"):
        (tmp_path / f"store.new{left}").write_bytes(b"half")
    (tmp_path / "other").touch()
    files.create(tmp_path, pack_meta(Meta(VERSION, 0, {})))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store.db"]


def test_a_copy_goes_into_a_folder_that_is_empty_or_not_there(tmp_path: Path) -> None:
    db = database(pack_meta(Meta(VERSION, 0, {})))
    files.copy(db, tmp_path / "some" / "where")
    (tmp_path / "empty").mkdir()
    files.copy(db, tmp_path / "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["store.db"]
    with pytest.raises(FileExistsError, match="is not empty"):
        files.copy(db, tmp_path / "empty")


def test_a_database_in_another_journal_mode_is_damage(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / files.DATABASE).execute("CREATE TABLE x (y)").close()
    with pytest.raises(StoreDamaged, match="its journal mode is 'delete', not 'wal'"):
        files.connect(tmp_path)


def test_how_a_store_is_used(tmp_path: Path) -> None:
    files.create(tmp_path, pack_meta(Meta(VERSION, 0, {})))
    db = files.connect(tmp_path)
    found = {
        name: db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in (
            "locking_mode",
            "synchronous",
            "temp_store",
            "secure_delete",
            "trusted_schema",
            "page_size",
        )
    }
    db.close()
    assert found == {
        "locking_mode": "exclusive",
        "synchronous": 2,
        "temp_store": 2,
        "secure_delete": 0,
        "trusted_schema": 0,
        "page_size": 4096,
    }


@pytest.mark.parametrize(
    ("aside", "there", "expected"), [(1, 0, b"aside"), (1, 1, b"there"), (0, 1, b"there")]
)
def test_a_database_that_was_put_aside_is_put_back(
    tmp_path: Path, aside: int, there: int, expected: bytes
) -> None:
    if aside:
        (tmp_path / "store.aside").write_bytes(b"aside")
    if there:
        (tmp_path / files.DATABASE).write_bytes(b"there")
    files.put_back(tmp_path)
    assert (tmp_path / files.DATABASE).read_bytes() == expected


# -- the store --------------------------------------------------------------------------------


def test_after_two_failures_of_the_disk_the_files_are_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path)
    store.load()
    loaded: list[int] = []
    load = store.load

    def counted() -> Any:
        loaded.append(1)
        return load()

    monkeypatch.setattr(store, "load", counted)

    def fails() -> None:
        raise OSError(errno.EIO, "Broken")

    def works(number: int) -> None:
        store.write([Accepted(job(number))])

    def breaks() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(store, "_check_place", fails)
            with pytest.raises(StoreFailed):
                store.write([Accepted(job(99))])

    breaks()
    works(1)
    breaks()
    works(2)
    assert loaded == []
    breaks()
    breaks()
    works(3)
    assert loaded == [1]
    assert [one.token for one in store.load().jobs] == [token(n) for n in (1, 2, 3)]
    store.close()


def test_a_full_disk_is_no_reason_to_open_the_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path)
    store.load()
    db = store._db

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space")

    monkeypatch.setattr(store, "_check_place", full)
    for _ in range(5):
        with pytest.raises(StoreFull):
            store.write([])
    assert store._db is db
    store.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_reading_a_store_leaves_the_collector_as_it_was(tmp_path: Path, enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        store = SqliteStore(tmp_path)
        store.load()
        store.close()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_mark_without_its_database_tells_how_much_is_missing(tmp_path: Path) -> None:
    Mark.create(tmp_path / files.MARK, 4)
    with pytest.raises(StoreDamaged, match="it is missing, but had 4 commits"):
        SqliteStore(tmp_path).load()


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 16, 17, 64, 65, 256, 257, 600])
def test_any_number_of_rows_is_written_and_deleted(tmp_path: Path, count: int) -> None:
    store = SqliteStore(tmp_path)
    store.load()
    store.write([Accepted(job(n)) for n in range(count)])
    assert [one.token for one in store.load().jobs] == [token(n) for n in range(count)]
    assert store.commit == 1
    store.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Broken"), sqlite_error(sqlite3.SQLITE_IOERR)])
def test_a_store_that_cannot_be_opened_holds_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = SqliteStore(tmp_path)

    def fails(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(files, "tidy", fails)
        with pytest.raises(StoreFailed):
            store.load()
    assert (store._db, store._mark) == (None, None)
    # Nothing keeps another one, or the same, from opening it.
    other = SqliteStore(tmp_path)
    assert other.load().jobs == []
    other.close()


def test_a_closed_store_holds_no_files(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.load()
    store.write([Accepted(job(1))])
    mark = store._mark
    assert mark is not None
    store.close()
    assert (store._db, store._mark) == (None, None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(mark._file)
    # It opens them again when it is asked.
    assert [one.token for one in store.load().jobs] == [token(1)]
    store.close()


def test_a_transaction_that_failed_leaves_no_run_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path)
    store.load()
    store.write([Ran(ScheduleRun("a", 1.0, 1.5, ""))])

    def full(db: object) -> None:
        raise OSError(errno.ENOSPC, "No space")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_transact", full)
        with pytest.raises(StoreFull):
            store.write([Ran(ScheduleRun("a", 2.0, 2.5, ""))])
    assert [one.due_at for one in store.runs("a", 9)] == [1.0]
    store.write([Ran(ScheduleRun("a", 3.0, 3.5, ""))])
    assert [one.due_at for one in store.runs("a", 9)] == [3.0, 1.0]
    store.close()
