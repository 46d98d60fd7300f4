"""What is on disk and in the documents: names of files, the format, limits, defaults."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest

from polybus.store import codec, files, mark, port, salvage, shelf
from support.defaults import check_defaults

MIB = 1024 * 1024

FIGURES: dict[ModuleType, dict[str, object]] = {
    files: {
        "DATABASE": "store.db",
        "LOG": "store.db-wal",
        "MARK": "store.mark",
        "PAGE_BYTES": 4096,
        "META_TAG": 0,
        "META_ROW": 1,
        # The log is copied into the database when it has 16 MiB.
        "CHECKPOINT_PAGES": 16 * MIB // 4096,
    },
    # "The last 200 runs of a schedule are kept", and of all of them 100,000.
    port: {"RUNS_PER_SCHEDULE": 200, "RUNS": 100_000},
    shelf: {"CHECKSUM_BITS": 32},
}
MAGNITUDES: dict[ModuleType, dict[str, float]] = {files: {"LOG_BYTES": 64 * MIB, "EMPTY_BYTES": 64 * MIB}}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, figures in FIGURES.items() for name in figures]
)
def test_names_and_figures_are_what_the_documents_say(module: ModuleType, name: str) -> None:
    assert getattr(module, name) == FIGURES[module][name]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, sizes in MAGNITUDES.items() for name in sizes]
)
def test_what_no_document_names_has_its_order_of_magnitude(module: ModuleType, name: str) -> None:
    about = MAGNITUDES[module][name]
    assert about / 2 <= getattr(module, name) <= about * 2


def test_a_field_that_is_left_out_says_nothing() -> None:
    check_defaults((codec, files, mark, port, salvage, shelf), {})


def test_the_mark_is_two_slots_of_a_number_and_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "store.mark"
    mark.Mark.create(path, 7)
    seven = bytes.fromhex("0000000000000007" + f"{crc32(bytes(7) + bytes([7])):016x}")
    eight = bytes.fromhex("0000000000000008" + f"{crc32(bytes(7) + bytes([8])):016x}")
    assert path.read_bytes() == seven * 2
    assert path.stat().st_mode & 0o777 == 0o644 & ~umask()
    assert list(tmp_path.iterdir()) == [path]
    open_mark = mark.Mark(path)
    open_mark.move(8)
    assert (open_mark.read(), path.read_bytes()) == (8, eight + seven)
    open_mark.move(9)
    assert open_mark.read() == 9
    assert path.read_bytes()[:16] == eight
    open_mark.start(7)
    assert (open_mark.read(), path.read_bytes()) == (7, seven * 2)
    open_mark.close()


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        (lambda eight, nine: eight + nine, 9),
        (lambda eight, nine: eight + nine[:-1], 8),
        (lambda eight, nine: eight[:15] + b"x" + nine, 9),
        (lambda eight, nine: eight + nine[:7] + b"x" + nine[8:], 8),
        (lambda eight, nine: eight[:15] + b"x" + nine[:15] + b"x", None),
        (lambda eight, nine: eight[:15], None),
        (lambda eight, nine: b"", None),
    ],
)
def test_a_slot_that_is_not_whole_does_not_count(
    tmp_path: Path, damage: Callable[[bytes, bytes], bytes], number: int | None
) -> None:
    slots = []
    for one in (8, 9):
        mark.Mark.create(tmp_path / "one", one)
        slots.append((tmp_path / "one").read_bytes()[:16])
    assert mark.whole_number(damage(*slots)) == number


def umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now
