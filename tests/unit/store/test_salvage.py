"""Salvage: every row that is whole is in the new store, and the report says what is not."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from polybus.core.ledger import Accepted
from polybus.errors import ConfigError, StoreDamaged
from polybus.store import files, sql, verify
from polybus.store import salvage as salvage_module
from polybus.store.mark import Mark
from polybus.store.memory import MemoryStore
from polybus.store.salvage import Report, TableReport, salvage
from polybus.store.sqlite import SqliteStore
from polybus.store.verify import Meta
from support.ledgers import everything, job, some_life, token


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    store = SqliteStore(folder)
    for lines in some_life(random.Random(1), 30):
        store.write(lines)
    store.close()
    return folder


@pytest.fixture
def source(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "store")


def contents(folder: Path) -> tuple[object, ...]:
    store = SqliteStore(folder)
    try:
        return everything(store)
    finally:
        store.close()


def change(folder: Path, *statements: str) -> None:
    db = sqlite3.connect(folder / files.DATABASE, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def lost(report: Report, table: str) -> int | None:
    return next(told.lost for told in report.tables if told.table == table)


def test_a_whole_store_is_saved_whole(source: Path, tmp_path: Path) -> None:
    report = salvage(source, tmp_path / "new")
    assert report.is_whole
    assert contents(tmp_path / "new") == contents(source)
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["store.db", "store.mark"]


def test_rows_that_are_not_whole_are_lost_and_named(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    jobs = before[0]
    assert isinstance(jobs, list)
    change(source, "UPDATE job SET crc = crc + 1 WHERE id IN (SELECT id FROM job ORDER BY id LIMIT 2)")
    change(source, "UPDATE outcome SET payload = 'x' WHERE id = (SELECT max(id) FROM outcome)")
    report = salvage(source, tmp_path / "new")
    assert not report.is_whole
    assert lost(report, "job") == 2
    assert lost(report, "outcome") == 1
    assert lost(report, "dead") == 0
    text = "\n".join(report.lines())
    assert "job: " in text
    assert "2 lost (broken: row " in text
    after = contents(tmp_path / "new")
    assert isinstance(after[0], list)
    assert after[0] == jobs[2:]
    assert after[2:] == before[2:]


def test_a_vanished_row_is_counted(source: Path, tmp_path: Path) -> None:
    change(source, "DELETE FROM schedule WHERE id = 1")
    assert lost(salvage(source, tmp_path / "new"), "schedule") == 1


def test_a_row_whose_number_became_zero_is_named(source: Path, tmp_path: Path) -> None:
    change(source, "UPDATE schedule SET id = 0 WHERE id = 1")
    report = salvage(source, tmp_path / "new")
    (told,) = [told for told in report.tables if told.table == "schedule"]
    assert (told.broken, told.lost) == ([0], 1)


def test_the_source_is_not_touched(source: Path, tmp_path: Path) -> None:
    change(source, "UPDATE meta SET crc = 1")
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    report = salvage(source, tmp_path / "new")
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before
    assert lost(report, "job") is None
    assert "an unknown number lost" in "\n".join(report.lines())
    assert "its meta row is not as it was written: how many rows" in "\n".join(report.lines())


def test_what_the_log_had_is_saved_and_what_it_lost_is_told(tmp_path: Path) -> None:
    folder, copy = tmp_path / "store", tmp_path / "copy"
    folder.mkdir()
    store, twin = SqliteStore(folder), MemoryStore()
    life = some_life(random.Random(2), 12)
    for lines in life:
        store.write(lines)
    shutil.copytree(folder, copy)
    store.close()
    log = bytearray((copy / files.LOG).read_bytes())
    log[-1] ^= 1
    (copy / files.LOG).write_bytes(log)
    with pytest.raises(StoreDamaged):
        SqliteStore(copy).load()
    report = salvage(copy, tmp_path / "new")
    assert "the last 1 commits are lost" in "\n".join(report.lines())
    for lines in life[:-1]:
        twin.write(lines)
    assert contents(tmp_path / "new") == everything(twin)


@pytest.mark.parametrize("seed", range(40))
def test_a_page_that_cannot_be_read_costs_no_other(source: Path, tmp_path: Path, seed: int) -> None:
    """One page of noise anywhere but in the schema: what is saved is true, and only that page is lost."""
    before = contents(source)
    content = bytearray((source / files.DATABASE).read_bytes())
    page = random.Random(seed).randrange(1, len(content) // files.PAGE_BYTES) * files.PAGE_BYTES
    content[page : page + files.PAGE_BYTES] = random.Random(seed).randbytes(files.PAGE_BYTES)
    (source / files.DATABASE).write_bytes(content)
    report = salvage(source, tmp_path / "new")
    after = contents(tmp_path / "new")
    for old, new in zip(before, after, strict=True):
        if isinstance(old, list) and isinstance(new, list):
            known = {repr(entry) for entry in old}
            changed = [entry for entry in new if repr(entry) not in known]
            # A job may lose what became of it, and be as it was accepted.
            assert all(getattr(entry, "attempt", 1) == 0 for entry in changed)
    gone = sum(told.lost or 0 for told in report.tables)
    # Interior pages of these tables have few children; a leaf has at most some hundred small rows.
    assert gone <= 300
    if after != before:
        assert not report.is_whole


def test_a_broken_beginning_is_restored(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    content = bytearray((source / files.DATABASE).read_bytes())
    content[:18] = b"\0" * 18
    (source / files.DATABASE).write_bytes(content)
    report = salvage(source, tmp_path / "new")
    assert contents(tmp_path / "new") == before
    assert "does not begin like" in "\n".join(report.lines())


def test_a_table_whose_definition_is_broken_costs_no_other(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    change(
        source,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE schedule (' WHERE name = 'schedule'",
    )
    report = salvage(source, tmp_path / "new")
    assert not report.is_whole
    saved = {told.table: told.saved for told in report.tables}
    assert (saved["schedule"], lost(report, "job"), lost(report, "outcome")) == (0, 0, 0)
    assert contents(tmp_path / "new")[0] == before[0]


def test_nothing_that_can_be_read_is_an_empty_store_and_a_long_report(source: Path, tmp_path: Path) -> None:
    (source / files.DATABASE).write_bytes(random.Random(3).randbytes(100_000))
    (source / files.MARK).unlink()
    report = salvage(source, tmp_path / "new")
    assert not report.is_whole
    assert all(told.saved == 0 and told.lost is None for told in report.tables)
    assert "store.mark is missing or not whole" in "\n".join(report.lines())
    store = SqliteStore(tmp_path / "new")
    store.write([Accepted(job(1))])
    assert [entry.token for entry in store.load().jobs] == [token(1)]
    store.close()


def test_the_folders_must_make_sense(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no store\.db"):
        salvage(tmp_path, tmp_path / "new")
    with pytest.raises(ConfigError, match="not empty"):
        salvage(source, source)


def test_the_report_for_people_names_the_first_broken_rows_and_counts_the_others() -> None:
    report = Report(
        "old",
        "new",
        [
            TableReport("job", 5, 5),
            TableReport("dead", 2, 9, [1, 2, 3, 4, 5, 6, 7]),
            TableReport("run", 1, None, [8]),
            # More than were expected are no loss.
            TableReport("node", 3, 2),
        ],
        ["a note"],
    )
    assert report.lines() == [
        "saved from old into new:",
        "  job: 5 saved, 0 lost",
        "  dead: 2 saved, 7 lost (broken: row 1, 2, 3, 4, 5 and 2 more)",
        "  run: 1 saved, an unknown number lost (broken: row 8)",
        "  node: 3 saved, 0 lost",
        "  a note",
    ]
    assert [table.lost for table in report.tables] == [0, 7, None, 0]


@pytest.mark.parametrize(
    ("tables", "notes", "is_whole"),
    [
        ([TableReport("job", 5, 5)], [], True),
        ([TableReport("job", 5, 5)], ["a note"], False),
        ([TableReport("job", 5, 5, [9])], [], False),
        ([TableReport("job", 5, 6)], [], False),
        ([TableReport("job", 5, None)], [], False),
    ],
)
def test_what_is_whole(tables: list[TableReport], notes: list[str], is_whole: bool) -> None:
    assert Report("old", "new", tables, notes).is_whole == is_whole


class Circle:
    """A damaged tree of a table: it answers every question with the same rows."""

    def __init__(self, *numbers: object) -> None:
        self._rows = [(number, b"", 0) for number in numbers]

    def execute(self, _text: str, _values: tuple[int, int]) -> Circle:
        return self

    def fetchall(self) -> list[tuple[object, bytes, int]]:
        return self._rows


@pytest.mark.parametrize(
    ("way", "numbers", "is_taken"),
    [
        ("above", (6, 7, 9), True),
        ("above", (), True),
        ("above", (5, 6), False),
        ("above", (4,), False),
        ("above", (7, 6), False),
        ("above", ("6",), False),
        ("below", (4, 3, 1), True),
        ("below", (5, 4), False),
        ("below", (6,), False),
        ("below", (3, 4), False),
    ],
)
def test_rows_of_a_damaged_tree_that_lead_back_are_no_way_out(
    way: str, numbers: tuple[object, ...], is_taken: bool
) -> None:
    db: Any = Circle(*numbers)
    found = salvage_module._rows(db, "job", way, 5, 500)
    assert found == (db.fetchall() if is_taken else None)


class Torn:
    """A table of which some rows cannot be read: whoever comes across one of them gets an error."""

    def __init__(self, rows: range, torn: set[int]) -> None:
        self._rows, self._torn = rows, torn
        self.reads = 0

    def execute(self, text: str, values: tuple[int, int]) -> Torn:
        number, limit = values
        self.reads += 1
        if text == sql.query("above", "job"):
            found = [row for row in self._rows if row > number][:limit]
        else:
            found = [row for row in reversed(self._rows) if row < number][:limit]
        if self._torn.intersection(found):
            raise sqlite3.DatabaseError("database disk image is malformed")
        self._found = found
        return self

    def fetchall(self) -> list[tuple[int, bytes, int]]:
        return [(row, b"", 0) for row in self._found]


@pytest.mark.parametrize(
    ("rows", "torn"),
    [
        (range(1, 30), set()),
        (range(1, 30), {1}),
        (range(1, 30), {29}),
        (range(1, 30), {5, 6, 7}),
        (range(1, 30), {5, 20}),
        (range(1, 30), set(range(3, 28))),
        (range(1, 30), set(range(1, 30))),
        (range(1, 2000), {700, 701, 1500}),
        (range(1, 100_000, 1000), {1001, 50_001, 51_001}),
        (range(0), set()),
    ],
)
def test_every_row_that_can_be_reached_by_its_number_is_read_once(rows: range, torn: set[int]) -> None:
    db: Any = Torn(rows, torn)
    found = [row[0] for row in salvage_module._readable(db, "job")]
    # Over a torn row it is only known by steps where the next one is: what is between is found from behind.
    assert sorted(found) == [row for row in rows if row not in torn]
    assert db.reads < 5000


@pytest.mark.parametrize(
    ("mark", "commit", "notes"),
    [
        (7, 7, []),
        (7, 9, []),
        (9, 7, ["the last 2 commits are lost: jobs accepted in them are gone"]),
        (9, None, []),
        (None, 7, ["store.mark is missing or not whole: the last commits may be lost"]),
    ],
)
def test_the_mark_tells_how_many_commits_are_lost(
    tmp_path: Path, mark: int | None, commit: int | None, notes: list[str]
) -> None:
    if mark is not None:
        Mark.create(tmp_path / files.MARK, mark)
    report = Report("", "")
    meta = None if commit is None else Meta(sql.version(), commit, {})
    salvage_module._compare_mark(tmp_path, meta, report)
    assert [note[: len(notes[0])] for note in report.notes] == notes


@pytest.mark.parametrize(
    ("error", "note"),
    [(StoreDamaged("store.db", "it is torn"), "it is torn; so"), (sqlite3.DatabaseError("no"), "no; so")],
)
def test_what_is_wrong_is_noted_with_its_consequence(error: Exception, note: str) -> None:
    def fails() -> None:
        raise error

    report = Report("", "")
    assert salvage_module._note(report, "; so", fails) is None
    assert report.notes == [note]
    assert salvage_module._note(report, "; so", lambda: 5) == 5
    assert report.notes == [note]


def test_the_copy_that_salvage_works_on_is_gone_afterwards(source: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    salvage(source, tmp_path / "new")
    assert not (tmp_path / "new" / ".salvage").exists()
    with pytest.raises(ConfigError, match="is not empty"):
        salvage(source, tmp_path / "new")
    with pytest.raises(ConfigError, match=r"there is no store\.db"):
        salvage(tmp_path / "nowhere", tmp_path / "another")


def test_the_new_folder_may_be_anywhere(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "some" / "where" / "else"
    assert salvage(source, target).is_whole
    assert contents(target) == contents(source)


def test_what_is_wrong_with_the_pages_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(db: sqlite3.Connection, path: Path) -> None:
        raise StoreDamaged(str(path), "page 7 is torn")

    monkeypatch.setattr(verify, "check_pages", torn)
    with monkeypatch.context() as patch:
        # The new store is whole.
        patch.setattr(SqliteStore, "load", lambda self: None)
        patch.setattr(SqliteStore, "write", lambda self, lines: None)
        report = salvage(source, tmp_path / "new")
    assert report.notes == ["page 7 is torn"]
    assert not report.is_whole


class TornUpwards(Torn):
    """The same, but on the way down every row can be read."""

    def execute(self, text: str, values: tuple[int, int]) -> Torn:
        torn = self._torn
        if text != sql.query("above", "job"):
            self._torn = set()
        try:
            return super().execute(text, values)
        finally:
            self._torn = torn


def test_rows_that_can_be_read_on_the_way_down_are_read_once() -> None:
    db: Any = TornUpwards(range(1, 30), {5, 6, 20})
    found = [row[0] for row in salvage_module._readable(db, "job")]
    assert sorted(found) == list(range(1, 30))


@pytest.mark.parametrize("torn", [{5, 7}, {5, 6, 8}])
def test_a_single_row_between_two_that_are_torn_is_found(torn: set[int]) -> None:
    db: Any = Torn(range(1, 30), torn)
    found = [row[0] for row in salvage_module._readable(db, "job")]
    assert sorted(found) == [row for row in range(1, 30) if row not in torn]


def test_what_was_saved_is_read_again_from_the_disk(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = SqliteStore.load
    jobs: list[int] = []

    def counted(self: SqliteStore) -> Any:
        found = load(self)
        jobs.append(len(found.jobs))
        return found

    saved = contents(source)[0]
    assert isinstance(saved, list)
    assert saved
    monkeypatch.setattr(SqliteStore, "load", counted)
    salvage(source, tmp_path / "new")
    # Once to make it, and once to verify what it has.
    assert jobs == [0, len(saved)]


def test_of_a_table_that_the_meta_row_does_not_know_nothing_is_lost() -> None:
    """An older version had fewer tables."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    for migration in sql.migrations():
        files.migrate(db, migration)
    report = Report("", "")
    assert salvage_module._saved(db, "node", Meta(1, 0, {}), report) == []
    assert [(told.expected, told.lost) for told in report.tables] == [(0, 0)]
    db.close()


def test_as_many_broken_rows_as_are_named_are_all() -> None:
    report = Report("a", "b", [TableReport("job", 1, 6, [1, 2, 3, 4, 5])])
    assert report.lines()[1] == "  job: 1 saved, 5 lost (broken: row 1, 2, 3, 4, 5)"
