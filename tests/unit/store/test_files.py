"""What is left open, made and synced when the files of a store are made and read."""

from __future__ import annotations

import errno
import gc
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polybus.errors import StoreDamaged, StoreFailed
from polybus.store import files, sql, verify
from polybus.store.mark import Mark, whole_number
from polybus.store.salvage import salvage
from polybus.store.sqlite import SqliteStore
from polybus.store.verify import Meta, pack_meta

VERSION = sql.version()
META = pack_meta(Meta(VERSION, 0, {}))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that is made."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def note(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", note)
    return made


def is_closed(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def copied(folder: Path) -> None:
    files.create(folder, META)
    db = files.connect(folder)
    files.copy(db, folder / "copy")
    db.close()


def of_another_mode(folder: Path) -> None:
    db = sqlite3.connect(folder / files.DATABASE)
    db.execute("CREATE TABLE x (y)")
    db.close()
    with pytest.raises(StoreDamaged):
        files.connect(folder)


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: files.create(folder, META),
        copied,
        of_another_mode,
        lambda folder: files.expected_objects(VERSION),
    ],
    ids=["create", "copy", "another mode", "objects"],
)
def test_no_database_is_left_open(
    tmp_path: Path, opened: list[sqlite3.Connection], use: Callable[[Path], None]
) -> None:
    use(tmp_path)
    assert opened
    assert all(is_closed(db) for db in opened)


def test_a_new_database_is_shared_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sharing there is no -shm file, which not every file system can have."""
    seen: set[str] = set()
    migrate = files.migrate

    def note(db: sqlite3.Connection, script: str) -> None:
        migrate(db, script)
        seen.update(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(files, "migrate", note)
    files.create(tmp_path, META)
    assert "store.new" in seen
    assert "store.new-shm" not in seen
    assert [path.name for path in tmp_path.iterdir()] == [files.DATABASE]


def test_a_mark_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / files.MARK
    synced: list[tuple[int | None, bool]] = []

    def note(handle: int) -> None:
        (there,) = tmp_path.iterdir()
        synced.append((whole_number(there.read_bytes()), path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    Mark.create(path, 7)
    assert synced == [(7, False)]
    assert path.exists()


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (["Tree 2 page 3:\n  it is   torn"], "Tree 2 page 3: it is torn"),
        (["one", "two"], "one; two"),
        (["ok", "two"], "ok; two"),
        ([], ""),
    ],
)
def test_whatever_sqlite_finds_wrong_with_the_pages_is_damage(told: list[str], text: str) -> None:
    class Checked:
        def execute(self, question: str) -> list[tuple[str]]:
            assert question.startswith("PRAGMA quick_check")
            return [(line,) for line in told]

    db: Any = Checked()
    with pytest.raises(StoreDamaged) as caught:
        verify.check_pages(db, Path("store.db"))
    assert caught.value.what == text
    told[:] = ["ok"]
    verify.check_pages(db, Path("store.db"))


def test_a_salvaged_store_is_left_closed(tmp_path: Path, opened: list[sqlite3.Connection]) -> None:
    (tmp_path / "store").mkdir()
    store = SqliteStore(tmp_path / "store")
    store.load()
    store.close()
    salvage(tmp_path / "store", tmp_path / "new")
    assert all(is_closed(db) for db in opened)


def test_a_page_has_4096_bytes_whatever_sqlite_was_built_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def other(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*arguments, **options)
        db.execute("PRAGMA page_size = 8192")
        return db

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", other)
        files.create(tmp_path, META)
    files.check_header(tmp_path / files.DATABASE)


@pytest.mark.parametrize("make", [lambda folder: files.create(folder, META), copied])
def test_a_database_is_on_disk_before_it_gets_its_name_and_the_name_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    synced: list[tuple[bool, bool]] = []

    def note(handle: int) -> None:
        copy = tmp_path / "copy"
        folder = copy if copy.exists() else tmp_path
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), (folder / files.DATABASE).exists()))

    monkeypatch.setattr(os, "fsync", note)
    make(tmp_path)
    # The file without its name, and then the folder with it.
    once = [(False, False), (True, True)]
    assert synced == (once * 2 if make is copied else once)


def test_where_sqlite_can_be_told_to_leave_the_log_the_database_stays_in_its_place(tmp_path: Path) -> None:
    """SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE is 1006."""
    (tmp_path / files.DATABASE).touch()
    done: list[Any] = []

    class Connection:
        def setconfig(self, option: int, value: bool) -> None:
            done.append((option, value))

        def close(self) -> None:
            done.append(("closed", (tmp_path / files.DATABASE).exists()))

    db: Any = Connection()
    files.close_untouched(db, tmp_path)
    assert done == [(1006, True), ("closed", True)]


# -- opening a store ----------------------------------------------------------------------------


def test_a_store_that_was_not_opened_has_no_commit(tmp_path: Path) -> None:
    assert SqliteStore(tmp_path).commit == 0


def test_pages_are_checked_when_a_store_is_opened_and_nobody_looks_for_garbage_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collects: list[bool] = []

    def torn(db: sqlite3.Connection, path: Path) -> None:
        collects.append(gc.isenabled())
        raise StoreDamaged(str(path), "page 7 is torn")

    monkeypatch.setattr(verify, "check_pages", torn)
    assert gc.isenabled()
    with pytest.raises(StoreDamaged, match="page 7 is torn"):
        SqliteStore(tmp_path).load()
    assert collects == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("content", [None, b"neither"])
def test_a_mark_that_is_refused_is_not_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """With a number but without a database, or with no number at all."""
    Mark.create(tmp_path / files.MARK, 4)
    if content is not None:
        (tmp_path / files.MARK).write_bytes(content)
    closed: list[Path] = []
    close = Mark.close

    def note(mark: Mark) -> None:
        closed.append(mark.path)
        close(mark)

    monkeypatch.setattr(Mark, "close", note)
    with pytest.raises(StoreDamaged):
        SqliteStore(tmp_path).load()
    assert closed == [tmp_path / files.MARK]


def test_failures_before_the_files_were_opened_again_count_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path)
    store.load()

    def fails() -> None:
        raise OSError(errno.EIO, "Broken")

    monkeypatch.setattr(store, "_check_place", fails)
    for is_open in (True, False, True, False):
        with pytest.raises(StoreFailed):
            store.write([])
        assert (store._db is not None) == is_open
    store.close()


def test_nothing_of_an_interrupted_attempt_is_there_when_a_database_is_made(tmp_path: Path) -> None:
    for left in ("", "-wal", "-shm", "-journal"):
        (tmp_path / f"store.new{left}").write_bytes(b"half")
    assert files._unfinished(tmp_path) == tmp_path / "store.new"
    assert list(tmp_path.iterdir()) == []


def test_a_mark_has_nothing_of_what_an_interrupted_attempt_left(tmp_path: Path) -> None:
    (tmp_path / "store.mark.new").write_bytes(b"x" * 100)
    Mark.create(tmp_path / files.MARK, 7)
    assert len((tmp_path / files.MARK).read_bytes()) == 32


def test_only_a_folder_is_synced_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.sync_folder(tmp_path / "file")


def test_a_statement_of_a_script_may_have_several_lines() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    files.migrate(db, "CREATE TABLE x (\n  y\n);\nINSERT INTO x\nVALUES (7);\n")
    assert db.execute("SELECT y FROM x").fetchall() == [(7,)]
    db.close()


def test_the_mark_of_a_backup_has_its_name_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path)
    store.load()
    synced: list[set[str]] = []
    monkeypatch.setattr(
        files, "sync_folder", lambda folder: synced.append({path.name for path in folder.iterdir()})
    )
    store.backup(tmp_path / "copy")
    store.close()
    assert synced[-1] == {files.DATABASE, files.MARK}
