"""The mark: two slots in turn, so that a write that was cut off leaves a whole number."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polybus.store import files
from polybus.store.mark import Mark, whole_number
from polybus.store.sqlite import SqliteStore

SLOT = 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.mark"


def test_a_new_mark_has_its_number_in_both_slots(path: Path) -> None:
    Mark.create(path, 7)
    content = path.read_bytes()
    assert len(content) == 2 * SLOT
    assert content[:SLOT] == content[SLOT:]
    assert whole_number(content) == 7
    assert [file.name for file in path.parent.iterdir()] == ["store.mark"]
    Mark.create(path)
    assert whole_number(path.read_bytes()) == 0


@pytest.mark.parametrize("number", [8, 9])
def test_a_move_leaves_the_number_before_it_in_the_other_slot(path: Path, number: int) -> None:
    Mark.create(path, number - 1)
    mark = Mark(path)
    mark.move(number)
    assert mark.read() == number
    content = bytearray(path.read_bytes())
    # The slot that was written last may be torn: the one before is whole.
    torn = number % 2 * SLOT
    content[torn + 3] ^= 1
    assert whole_number(bytes(content)) == number - 1
    mark.move(number + 1)
    assert mark.read() == number + 1
    mark.close()


def test_starting_writes_both_slots_and_waits_for_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Mark.create(path, 1)
    mark = Mark(path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(whole_number(path.read_bytes()) or 0))
    mark.move(2)
    assert synced == []
    mark.start(9)
    assert synced == [9]
    content = path.read_bytes()
    assert content[:SLOT] == content[SLOT:]
    mark.close()
    assert synced == [9, 9]


@pytest.mark.parametrize("damage", [b"", b"\0" * 31, b"\1" * 32])
def test_what_is_not_whole_is_no_number(damage: bytes) -> None:
    assert whole_number(damage) is None


def test_one_whole_slot_is_enough(path: Path) -> None:
    Mark.create(path, 5)
    whole = path.read_bytes()[:SLOT]
    assert whole_number(whole + b"\1" * SLOT) == 5
    assert whole_number(b"\1" * SLOT + whole) == 5
    assert whole_number(whole) == 5


def test_the_mark_of_a_new_store_has_its_name_on_disk_before_there_is_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a database without its mark would count as damaged."""
    synced: list[set[str]] = []
    sync = files.sync_folder

    def note(folder: Path) -> None:
        synced.append({path.name for path in folder.iterdir()})
        sync(folder)

    monkeypatch.setattr(files, "sync_folder", note)
    store = SqliteStore(tmp_path)
    store.load()
    store.close()
    assert files.MARK in synced[0]
    assert files.DATABASE not in synced[0]
