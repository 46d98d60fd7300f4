"""What is left open, made and synced when the files of a store are made and read."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polybus.errors import StoreDamaged
from polybus.store import files, sql, verify
from polybus.store.mark import Mark, whole_number
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
