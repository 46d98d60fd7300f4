"""What SQLite adds to a store: a disk, which may be full, read-only, damaged, or another one tomorrow."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from polybus.core.ledger import Accepted, Contents, Ended, Line, Scheduled
from polybus.errors import StoreDamaged, StoreFailed, StoreFull, StoreTooNew
from polybus.store import files, sql
from polybus.store.codec import CODECS
from polybus.store.mark import Mark
from polybus.store.sqlite import SqliteStore, _in_batches
from polybus.store.verify import Meta, pack_meta
from support.ledgers import job, letter, outcome, schedule, token

EMPTY = Contents(jobs=[], outcomes=[], schedules=[], groups={})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path)
    made.load()
    yield made
    made.close()


def filled(folder: Path) -> None:
    store = SqliteStore(folder)
    store.write([Accepted(job(n)) for n in range(50)])
    store.write([Ended(token(n), outcome(n), letter(n)) for n in range(20)])
    store.write([Scheduled(schedule("a"))])
    store.close()


def change(folder: Path, *statements: str) -> None:
    """What a broken disk or a careless person does behind the store's back."""
    db = sqlite3.connect(folder / files.DATABASE, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def contents(folder: Path) -> Contents:
    store = SqliteStore(folder)
    try:
        return store.load()
    finally:
        store.close()


def damage(folder: Path) -> str:
    """What the store says of its damage; it must leave the files as they are."""
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    store = SqliteStore(folder)
    with pytest.raises(StoreDamaged) as caught:
        store.load()
    after = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert {files.LOG: b"", **before} == {files.LOG: b"", **after}
    text = str(caught.value)
    assert caught.value.file in text
    assert "backup" in text
    assert "--data-dir" in text
    assert "doctor --salvage" in text
    with pytest.raises(StoreDamaged):  # not by asking twice either
        store.dead(1)
    with pytest.raises(StoreDamaged):
        store.write([])
    return text


# -- files ------------------------------------------------------------------------------------


def test_the_files_of_a_store(store: SqliteStore) -> None:
    store.write([Accepted(job(1))])
    assert {file.name for file in store.folder.iterdir()} == {"store.db", "store.db-wal", "store.mark"}
    store.close()
    assert {file.name for file in store.folder.iterdir()} == {"store.db", "store.mark"}


def test_every_commit_is_synced(store: SqliteStore) -> None:
    assert store._db is not None
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_was_left_of_an_interrupted_beginning_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "store.new").write_bytes(b"half a database")
    (tmp_path / "store.mark.new").write_bytes(b"half")
    store = SqliteStore(tmp_path)
    assert store.load() == EMPTY
    store.close()
    assert {file.name for file in tmp_path.iterdir()} == {"store.db", "store.mark"}


def test_nobody_else_may_open_it(store: SqliteStore) -> None:
    store.write([Accepted(job(1))])
    other = SqliteStore(store.folder)
    with pytest.raises(StoreFailed, match="another process has"):
        other.load()


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "missing")
    with pytest.raises(StoreFailed, match="No such file"):
        store.load()


def test_a_mark_that_cannot_be_written_costs_nothing(store: SqliteStore) -> None:
    assert store._mark is not None
    os.close(store._mark._file)
    store.write([Accepted(job(1))])
    store._mark = None
    store.close()
    assert contents(store.folder).jobs == [job(1)]


# -- damage -----------------------------------------------------------------------------------


def test_a_changed_row_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "UPDATE job SET payload = zeroblob(10) WHERE id = 30")
    assert "job 30: its checksum is wrong" in damage(tmp_path)


def test_a_row_with_the_wrong_kind_of_content_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "UPDATE dead SET payload = 'text' WHERE id = 3")
    assert "dead 3: " in damage(tmp_path)


def test_a_row_in_anothers_place_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "UPDATE job SET id = 1000 WHERE id = 30")
    assert "job 1000: its checksum is wrong" in damage(tmp_path)


def test_a_vanished_row_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "DELETE FROM outcome WHERE id = 3")
    assert "the table outcome should have 20 rows and has 19" in damage(tmp_path)


def test_a_row_that_came_back_for_another_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    db = sqlite3.connect(tmp_path / files.DATABASE)
    (row,) = db.execute("SELECT id, payload, crc FROM job WHERE id = 30").fetchall()
    db.close()
    store = SqliteStore(tmp_path)
    store.write([Ended(token(29)), Accepted(job(99))])
    store.close()
    db = sqlite3.connect(tmp_path / files.DATABASE)
    db.execute("INSERT INTO job VALUES (?, ?, ?)", row)
    db.execute("DELETE FROM job WHERE id = 40")
    db.commit()
    db.close()
    assert "the table job should have 30 rows and has others than were written" in damage(tmp_path)


def test_a_changed_meta_row_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "UPDATE meta SET payload = zeroblob(10)")
    assert "its meta row is not as it was written" in damage(tmp_path)


def test_a_missing_meta_row_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "DELETE FROM meta")
    assert "its meta row" in damage(tmp_path)


def test_other_tables_are_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "CREATE INDEX by_crc ON job (crc)")
    assert "its tables are not those of version" in damage(tmp_path)


def test_a_missing_table_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    change(tmp_path, "DROP TABLE delay")
    assert "its tables" in damage(tmp_path)


def test_a_file_of_something_else_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / files.DATABASE).write_bytes(b"no database at all" * 1000)
    assert "does not begin like" in damage(tmp_path)


def test_a_cut_off_file_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    os.truncate(tmp_path / files.DATABASE, 4 * files.PAGE_BYTES)
    damage(tmp_path)


def test_a_lost_log_is_found(tmp_path: Path, store: SqliteStore) -> None:
    """SQLite itself would go on from the last copy as if nothing had been."""
    store.write([Accepted(job(1))])
    store.write([Accepted(job(2))])
    lost = tmp_path / "lost"
    lost.mkdir()
    for name in (files.DATABASE, files.MARK):
        shutil.copy(tmp_path / name, lost)
    assert "ends with commit 0, but 2 was on disk" in damage(lost)


def test_a_log_with_a_bad_frame_is_found(tmp_path: Path, store: SqliteStore) -> None:
    for number in range(5):
        store.write([Accepted(job(number))])
    bad = tmp_path / "bad"
    bad.mkdir()
    for file in (files.DATABASE, files.LOG, files.MARK):
        shutil.copy(tmp_path / file, bad)
    with open(bad / files.LOG, "r+b") as log:
        log.seek(-100, os.SEEK_END)
        log.write(b"\xff" * 10)
    assert "ends with commit 4, but 5 was on disk" in damage(bad)


def test_a_missing_mark_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / files.MARK).unlink()
    assert "store.mark: it is missing" in damage(tmp_path)


def test_a_missing_database_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / files.DATABASE).unlink()
    assert "store.db: it is missing, but had 3 commits" in damage(tmp_path)


def test_a_mark_that_is_not_whole_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / files.MARK).write_bytes(b"")
    assert "neither of its two numbers is whole" in damage(tmp_path)


def test_half_a_mark_is_enough(tmp_path: Path) -> None:
    filled(tmp_path)
    for broken in (0, 16):
        content = bytearray((tmp_path / files.MARK).read_bytes())
        content[broken] ^= 1
        (tmp_path / files.MARK).write_bytes(content)
        store = SqliteStore(tmp_path)
        assert len(store.load().jobs) == 30
        store.close()


def test_a_row_that_is_damaged_while_the_broker_runs_is_not_served(store: SqliteStore) -> None:
    store.write([Ended(token(1), outcome(1), letter(1))])
    assert store._db is not None
    store._db.execute("UPDATE outcome SET payload = zeroblob(5)")
    with pytest.raises(StoreDamaged, match="outcome 1: its checksum is wrong"):
        store.outcome(token(1))
    store._db.execute("DELETE FROM dead")
    with pytest.raises(StoreDamaged, match="dead 1 has vanished"):
        store.dead_letter(token(1))


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    _, payload, crc = pack_meta(Meta(sql.version() + 1, 7, dict.fromkeys(CODECS, (0, 0))))
    db = sqlite3.connect(tmp_path / files.DATABASE)
    db.execute("UPDATE meta SET payload = ?, crc = ?", (payload, crc))
    db.commit()
    db.close()
    with pytest.raises(StoreTooNew, match="a newer one wrote it"):
        SqliteStore(tmp_path).load()


# -- versions ---------------------------------------------------------------------------------


def test_an_older_store_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    before = SqliteStore(tmp_path)
    contents = before.load()
    before.close()
    now = (
        *sql.migrations(),
        "-- one more\nCREATE TABLE more (id INTEGER PRIMARY KEY);\nCREATE TABLE yet (x);",
    )
    monkeypatch.setattr(sql, "migrations", lambda: now)
    for _ in range(2):
        store = SqliteStore(tmp_path)
        assert store.load() == contents
        assert store.commit == 4
        store.close()
    store = SqliteStore(tmp_path)
    store.write([Accepted(job(99))])
    assert store.load().jobs[-1] == job(99)
    store.close()
    monkeypatch.undo()
    with pytest.raises(StoreTooNew):
        SqliteStore(tmp_path).load()


# -- a disk that does not take it -------------------------------------------------------------


def limit_pages(store: SqliteStore, pages: int) -> None:
    assert store._db is not None
    store._db.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_a_full_disk_leaves_everything_as_it_was(store: SqliteStore) -> None:
    store.write([Accepted(job(1)), Scheduled(schedule("a"))])
    limit_pages(store, 20)
    before = store.commit
    large: list[Line] = [Ended(token(1)), Accepted(job(2, body=b"x" * 1_000_000)), Scheduled(schedule("b"))]
    for _ in range(3):
        with pytest.raises(StoreFull, match="Make room"):
            store.write(large)
    assert store.commit == before
    store.write([Accepted(job(3))])
    limit_pages(store, 1_000_000)
    store.write(large)
    assert store.load().jobs == [job(3), job(2, body=b"x" * 1_000_000)]
    assert store.load().schedules == [schedule("a"), schedule("b")]


def test_a_read_only_store_says_so(tmp_path: Path) -> None:
    filled(tmp_path)
    store = SqliteStore(tmp_path)
    store.load()
    assert store._db is not None
    store._db.execute("PRAGMA query_only = ON")
    for _ in range(2):
        with pytest.raises(StoreFailed, match="Look at the disk"):
            store.write([Accepted(job(100))])
    # After it failed twice the files were opened anew, and all is well.
    store.write([Accepted(job(101))])
    assert [entry.token for entry in store.load().jobs][-1] == token(101)
    store.close()


def test_a_replaced_file_is_not_written_to(store: SqliteStore, tmp_path: Path) -> None:
    store.write([Accepted(job(1))])
    shutil.copy(tmp_path / files.DATABASE, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / files.DATABASE)
    with pytest.raises(StoreFailed, match="was replaced"):
        store.write([Accepted(job(2))])


def test_a_removed_file_is_not_written_to(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / files.DATABASE).unlink()
    with pytest.raises(StoreFailed, match="No such file"):
        store.write([Accepted(job(2))])


def test_a_bug_in_a_line_costs_nothing(store: SqliteStore) -> None:
    store.write([Accepted(job(1))])
    with pytest.raises(TypeError):
        store.write([Ended(token(1)), Accepted(job(2, accepted_at=object()))])
    store.write([Accepted(job(3))])
    assert store.load().jobs == [job(1), job(3)]


def test_half_a_transaction_is_undone(store: SqliteStore) -> None:
    store.write([Accepted(job(1))])
    with pytest.raises(TypeError):
        # The second table cannot be written when the rows of the first are in the database.
        store.write([Accepted(job(2)), Scheduled(replace(schedule("a"), next_at=object()))])
    store.write([Accepted(job(3))])
    store.close()
    found = contents(store.folder)
    assert (found.jobs, found.schedules) == ([job(1), job(3)], [])


def test_the_mark_never_leads(store: SqliteStore) -> None:
    for number in range(5):
        store.write([Accepted(job(number))])
        mark = Mark(store.folder / files.MARK)
        assert mark.read() == store.commit == number + 1
        mark.close()


# -- opening, again and elsewhere -------------------------------------------------------------


def test_a_death_while_damaged_files_are_closed_is_undone(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / files.DATABASE).rename(tmp_path / "store.aside")
    assert len(contents(tmp_path).jobs) == 30


def test_a_database_that_is_mostly_empty_is_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "EMPTY_BYTES", 1_000_000)
    store = SqliteStore(tmp_path)
    store.write([Accepted(job(n, body=b"x" * 10_000)) for n in range(400)])
    store.write([Ended(token(n)) for n in range(1, 400)])
    store.close()
    assert (tmp_path / files.DATABASE).stat().st_size > 3_000_000
    assert contents(tmp_path).jobs == [job(0, body=b"x" * 10_000)]
    assert (tmp_path / files.DATABASE).stat().st_size < 200_000
    assert contents(tmp_path).jobs == [job(0, body=b"x" * 10_000)]


@pytest.mark.parametrize(("empty_bytes", "left"), [(10_000_000, 1), (1_000_000, 210)])
def test_a_database_that_is_small_or_half_full_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_bytes: int, left: int
) -> None:
    """Making it smaller means to write it anew, at every start."""
    monkeypatch.setattr(files, "EMPTY_BYTES", empty_bytes)
    store = SqliteStore(tmp_path)
    store.write([Accepted(job(n, body=b"x" * 10_000)) for n in range(400)])
    store.write([Ended(token(n)) for n in range(left, 400)])
    store.close()
    size = (tmp_path / files.DATABASE).stat().st_size
    assert len(contents(tmp_path).jobs) == left
    assert (tmp_path / files.DATABASE).stat().st_size == size


class Refusing:
    """A connection whose disk takes nothing any more."""

    def __init__(self, code: int) -> None:
        self._error = sqlite3.OperationalError("no")
        self._error.sqlite_errorcode = code

    def execute(self, statement: str) -> SimpleNamespace:
        if statement.startswith("PRAGMA wal_checkpoint"):
            raise self._error
        return SimpleNamespace(fetchone=lambda: (0,))


def test_without_room_to_copy_the_log_it_is_synced_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed broker may have written to it without a sync; what is visible now must not be lost later."""
    (tmp_path / files.LOG).write_bytes(b"a log")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    files.tidy(Refusing(sqlite3.SQLITE_FULL), tmp_path)  # type: ignore[arg-type]
    assert synced == [(tmp_path / files.LOG).stat().st_ino]
    # Any other trouble is told.
    with pytest.raises(sqlite3.OperationalError, match="no"):
        files.tidy(Refusing(sqlite3.SQLITE_IOERR), tmp_path)  # type: ignore[arg-type]
    assert len(synced) == 1


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(0, []), (1, [1]), (2, [4]), (4, [4]), (5, [16]), (65, [256]), (256, [256]), (260, [256, 4])],
)
def test_few_statements_take_all_rows_and_one_row_has_no_large_statement(rows: int, sizes: list[int]) -> None:
    """Most commits have a row or two, and hundreds of places for them would cost more than the rows."""
    taken: list[tuple[str, list[int]]] = []
    db = SimpleNamespace(execute=lambda statement, values: taken.append((statement, values)))
    values = list(range(1, 3 * rows + 1))
    _in_batches(db, "put", "job", values, 3)  # type: ignore[arg-type]
    assert [len(part) for _, part in taken] == [3 * size for size in sizes]
    assert [statement for statement, _ in taken] == [sql.query("put", "job", size) for size in sizes]
    together = [value for _, part in taken for value in part]
    assert together == values + [0] * (len(together) - len(values))


def test_a_backup_is_a_store(store: SqliteStore, tmp_path: Path) -> None:
    for number in range(5):
        store.write([Accepted(job(number)), Ended(token(number - 1), outcome(number - 1))])
    store.backup(tmp_path / "backups" / "one")
    store.write([Accepted(job(9))])
    assert contents(tmp_path / "backups" / "one").jobs == [job(4)]
    assert {file.name for file in (tmp_path / "backups" / "one").iterdir()} == {"store.db", "store.mark"}
    assert store.load().jobs == [job(4), job(9)]
    with pytest.raises(StoreFailed, match="not empty"):
        store.backup(tmp_path / "backups" / "one")


def test_a_store_on_a_full_disk_can_be_read(small_disk: Path) -> None:
    store = SqliteStore(small_disk)
    store.write([Accepted(job(n, body=b"x" * 5_000)) for n in range(150)])
    store.write([Ended(token(1), outcome(1))])
    kept = {file.name: file.read_bytes() for file in small_disk.iterdir()}
    store.close()
    for name, content in kept.items():  # as a broker that was killed leaves it
        (small_disk / name).write_bytes(content)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(4_096)):
            pass
    store = SqliteStore(small_disk)
    assert len(store.load().jobs) == 149
    with pytest.raises(StoreFull):
        store.write([Accepted(job(1000, body=b"x" * 2_000_000))])
    store.close()
    ballast.unlink()
    store = SqliteStore(small_disk)
    assert len(store.load().jobs) == 149
    store.write([Accepted(job(1000))])
    store.close()


def test_a_store_on_a_read_only_disk_says_so(small_disk: Path) -> None:
    filled(small_disk)
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    if subprocess.run(remount, capture_output=True, check=False).returncode:
        pytest.skip("this system does not let a disk be made read-only")
    with pytest.raises(StoreFailed, match="Read-only file system"):
        SqliteStore(small_disk).load()


def test_a_database_that_cannot_be_asked_is_told_as_the_stores_trouble(store: SqliteStore) -> None:
    store.write([Ended(token(1), outcome(1), letter(1))])
    assert store._db is not None
    store._db.execute("DROP TABLE dead")
    store._db.execute("DROP TABLE outcome")
    for ask in (
        lambda: store.dead(5),
        lambda: store.dead(5, "email"),
        lambda: store.dead_letter(token(1)),
        lambda: store.outcome(token(1)),
    ):
        with pytest.raises(StoreDamaged, match="no such table"):
            ask()


def test_dead_letters_of_one_service_are_found_among_many(store: SqliteStore) -> None:
    rare = {3, 300, 599}
    dead = [letter(number) for number in range(600)]
    for number in rare:
        dead[number] = replace(dead[number], job=replace(dead[number].job, service=b"rare"))
    store.write([Ended(one.job.token, None, one) for one in dead])
    found = [one for one in dead if one.job.service == b"rare"]
    assert store.dead(9, "rare") == found
    assert store.dead(2, "rare") == found[:2]
    assert store.dead(9, "rare", found[0].job.token) == found[1:]
    assert store.dead(9, "rare", found[2].job.token) == []
    assert store.dead(9, "nobody") == []
    assert store.dead(0) == []
    assert store.dead(2) == dead[:2]
    assert store.dead(900, after=dead[597].job.token) == dead[598:]
    # One that is not there any more has nothing after it.
    assert store.dead(9, after=b"unknown") == []
    assert store.dead_beyond(598, 9) == [dead[0].job.token, dead[1].job.token]
    assert store.dead_beyond(598, 1) == [dead[0].job.token]
    assert store.dead_beyond(600, 9) == store.dead_beyond(900, 9) == []


def test_damage_behind_the_dead_letters_that_were_asked_for_is_nobodys_trouble(store: SqliteStore) -> None:
    store.write([Ended(token(number), None, letter(number)) for number in range(4)])
    assert store._db is not None
    store._db.execute("UPDATE dead SET crc = crc + 1 WHERE id = 3")
    assert store.dead(2) == [letter(0), letter(1)]
    with pytest.raises(StoreDamaged, match="dead 3: its checksum is wrong"):
        store.dead(3)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (1, [1]),
        (2, [4]),
        (4, [4]),
        (5, [16]),
        (16, [16]),
        (17, [64]),
        (64, [64]),
        (65, [256]),
        (256, [256]),
        (257, [256, 1]),
        (300, [256, 64]),
        (600, [256, 256, 256]),
    ],
)
def test_up_to_256_rows_are_one_statement(store: SqliteStore, rows: int, sizes: list[int]) -> None:
    """In few sizes, each of which is prepared once; places that are left over are 0, which is no row."""
    assert store._db is not None
    statements: list[str] = []
    store._db.set_trace_callback(statements.append)
    store.write([Accepted(job(n)) for n in range(rows)])
    store._db.set_trace_callback(None)
    puts = [one.partition("VALUES")[2] for one in statements if "INTO job" in one]
    assert [len(re.findall(r"\(\d+,", one)) for one in puts] == sizes
    assert len(store.load().jobs) == rows
