"""Bit flips: a disk or a cable that changes one bit, anywhere in any file of a store.

Whatever the bit was, opening and reading the store either says that it is damaged or gives back exactly
what was written.  Where the bit did not matter, the store is also written to and opened again: damage must
not lie in wait for the next transaction either.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polybus.core.ledger import Accepted, Ended, Line
from polybus.errors import StoreDamaged
from polybus.store import files
from polybus.store.memory import MemoryStore
from polybus.store.sqlite import SqliteStore
from support.ledgers import everything, job, letter, outcome, some_life, token

STEPS = 40
# Transactions after this one are in the log alone.
CLOSED_AFTER = 36
# Entries of each kind that nothing happens to any more, so that most of the database is not in the log too.
OLD = 250
# Afterwards, where the bit did not matter.
MORE = 4


@dataclass
class Original:
    contents: dict[str, bytes]
    expected: Any
    expected_later: Any
    later: list[Any]


def original(workshop: Path, seed: int, old: int) -> Original:
    """The files of a store with some hundred jobs, outcomes, dead letters and schedules, as a killed broker
    leaves them: a part in the database, a part in the log."""
    folder = workshop / "original"
    folder.mkdir()
    life = [old_entries(old), *some_life(random.Random(seed), STEPS + MORE - 1)]
    store, twin = SqliteStore(folder), MemoryStore()
    for number, lines in enumerate(life[:STEPS]):
        if number == CLOSED_AFTER:
            store.close()
        store.write(lines)
        twin.write(lines)
    expected = everything(twin)
    contents = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(contents) == {files.DATABASE, files.LOG, files.MARK}
    store.close()
    for lines in life[STEPS:]:
        twin.write(lines)
    return Original(contents, expected, everything(twin), life[STEPS:])


def old_entries(count: int) -> list[Line]:
    """Jobs, outcomes and dead letters with numbers that the life does not use."""
    first = 1_000_000
    lines: list[Line] = [Accepted(job(number, body=b"x" * 300)) for number in range(first, first + count)]
    lines += [Ended(token(number), outcome(number)) for number in range(first + count, first + 2 * count)]
    lines += [Ended(token(number), dead=letter(number)) for number in range(first, first + count)]
    return [*lines[count:], *lines[:count]]


@dataclass
class Count:
    damaged: int = 0
    identical: int = 0
    by_file: dict[str, list[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        files_ = ", ".join(
            f"{name} {damaged} of {total}" for name, (damaged, total) in sorted(self.by_file.items())
        )
        total = self.damaged + self.identical + len(self.faults)
        return (
            f"{total:,} flips: {self.damaged:,} found damaged, {self.identical:,} without effect, "
            f"{len(self.faults)} faults (damaged by file: {files_})"
        )


def flip_many(workshop: Path, seed: int, flips: int, old: int = OLD) -> Count:
    chance, count = random.Random(seed), Count()
    source = original(workshop, seed, old)
    names = sorted(source.contents)
    sizes = [len(source.contents[name]) for name in names]
    for _ in range(flips):
        # Most are spread over all bytes; some over the files, so that the small ones have their share.
        name = chance.choice(names) if chance.random() < 0.1 else chance.choices(names, sizes)[0]
        bit = chance.randrange(len(source.contents[name]) * 8)
        told = judge(workshop / "flipped", source, name, bit)
        per_file = count.by_file.setdefault(name, [0, 0])
        per_file[1] += 1
        if told == "damaged":
            count.damaged += 1
            per_file[0] += 1
        elif told == "identical":
            count.identical += 1
        else:
            count.faults.append(f"bit {bit} of {name}: {told}")
    return count


def judge(folder: Path, source: Original, name: str, bit: int) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, content in source.contents.items():
        if file == name:
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            content = bytes(changed)
        (folder / file).write_bytes(content)
    store = SqliteStore(folder)
    try:
        if everything(store) != source.expected:
            return "other contents, and no word of it"
        for lines in source.later:
            store.write(lines)
        if everything(store) != source.expected_later:
            return "other contents after more transactions, and no word of it"
        return "identical"
    except StoreDamaged:
        return "damaged"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        store.close()
