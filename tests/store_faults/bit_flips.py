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

DAMAGED, IDENTICAL = "damaged", "identical"


@dataclass
class Original:
    contents: dict[str, bytes]
    expected: Any
    expected_later: Any
    later: list[list[Line]]


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
    what: str = "flips"
    damaged: int = 0
    identical: int = 0
    # Of each kind: how many were found damaged, and how many there were.
    kinds: dict[str, list[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str, verdict: str) -> None:
        of_kind = self.kinds.setdefault(kind, [0, 0])
        of_kind[1] += 1
        if verdict == DAMAGED:
            self.damaged += 1
            of_kind[0] += 1
        elif verdict == IDENTICAL:
            self.identical += 1
        else:
            self.faults.append(f"{where}: {verdict}")

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{kind} {damaged} of {total}" for kind, (damaged, total) in sorted(self.kinds.items())
        )
        return (
            f"{self.damaged + self.identical + len(self.faults):,} {self.what}: "
            f"{self.damaged:,} found damaged ({kinds}), {self.identical:,} without effect, "
            f"{len(self.faults)} faults"
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
        spoiled = bytearray(source.contents[name])
        spoiled[bit // 8] ^= 1 << bit % 8
        changed = {**source.contents, name: bytes(spoiled)}
        count.add(name, f"bit {bit} of {name}", judge_files(workshop / "flipped", source, changed))
    return count


def judge_files(folder: Path, source: Original, contents: dict[str, bytes]) -> str:
    """What the store says to these files: damaged, identical, or something that it must never say."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    store = SqliteStore(folder)
    try:
        if everything(store) != source.expected:
            return "other contents, and no word of it"
        for lines in source.later:
            store.write(lines)
        if everything(store) != source.expected_later:
            return "other contents after more transactions, and no word of it"
        return IDENTICAL
    except StoreDamaged:
        return DAMAGED
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        store.close()
