"""Power cuts: what is left of a store when the current goes at any moment of its life.

A store lives in a process whose writes, truncations, renames and syncs are recorded (recorder.c).  The record
is then replayed up to every boundary.  A file keeps what was synced by then; of what was not, one of several
variants is kept, from nothing to everything, with the last write torn in half, or any of the writes and not
the others.  The same holds for names in the folder until the folder is synced.  What is left is opened with
the real code: it must not be damaged, and must hold every transaction that was promised, and of the one
that was under way all or nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polybus.store.memory import MemoryStore
from polybus.store.sqlite import SqliteStore
from support.ledgers import everything, some_life

HERE = Path(__file__).resolve().parent
RECORDER = HERE / "recorder.c"
VARIANTS = ("nothing", "everything", "torn", "names only", "contents only", "some", "others")

Change = tuple[int, bytes] | int


# -- recording --------------------------------------------------------------------------------


def has_compiler() -> bool:
    return sys.platform == "linux" and shutil.which("cc") is not None


def record(workshop: Path, seed: int, steps: int, pragma: str) -> Path:
    """Let a store live three times: until it is killed, until it is closed, and once more."""
    library, trace, folder = workshop / "recorder.so", workshop / "trace", workshop / "store"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, RECORDER, "-ldl", "-lpthread"], check=True
    )
    folder.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "RECORDER_FOLDER": str(folder),
        "RECORDER_TRACE": str(trace),
        "PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent}",
    }
    ends = ((0, steps // 2, "die"), (steps // 2, steps * 3 // 4, "close"), (steps * 3 // 4, steps, "close"))
    for first, last, end in ends:
        command = [sys.executable, HERE / "life.py", folder, str(seed), str(first), str(last), end, pragma]
        subprocess.run(command, env=environment, check=True, timeout=60)
    return trace


@dataclass
class Record:
    op: str
    name: str
    offset: int
    data: bytes


def records(trace: Path) -> Iterator[Record]:
    content, at = trace.read_bytes(), 0
    head = struct.Struct("<cHQI")
    while at < len(content):
        op, name_length, offset, length = head.unpack_from(content, at)
        at += head.size
        name = content[at : at + name_length].decode()
        at += name_length
        yield Record(op.decode(), name, offset, content[at : at + length])
        at += length


# -- replaying --------------------------------------------------------------------------------


@dataclass
class File:
    """What is on the disk for sure, and what was done since."""

    synced: bytes = b""
    since: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        self.synced, self.since = applied(self.synced, self.since), []


def applied(content: bytes, changes: list[Change]) -> bytes:
    if not changes:
        return content
    result = bytearray(content)
    for change in changes:
        length = change if isinstance(change, int) else change[0]
        if len(result) < length:
            result += bytes(length - len(result))
        if isinstance(change, int):
            del result[length:]
        else:
            result[change[0] : change[0] + len(change[1])] = change[1]
    return bytes(result)


class Disk:
    def __init__(self) -> None:
        self.names: dict[str, File] = {}
        self.synced_names: dict[str, File] = {}
        # Changes of names since the folder was synced; a new name comes with its file.
        self.since: list[tuple[Record, File]] = []
        self.promised = 0

    def do(self, one: Record) -> None:
        if one.name == "promised":
            if one.op == "w":
                self.promised = int.from_bytes(one.data, "little")
            return
        match one.op:
            case "w":
                self.names[one.name].since.append((one.offset, one.data))
            case "t":
                self.names[one.name].since.append(one.offset)
            case "s" if one.name == "":
                self.synced_names = dict(self.names)
                self.since.clear()
            case "s":
                self.names[one.name].sync()
            case _:
                self.since.append((one, File()))
                rename(self.names, *self.since[-1])

    def after_a_cut(self, variant: str, chance: random.Random) -> dict[str, bytes]:
        """What is found when the current is back."""
        steps = {"nothing": 0, "contents only": 0}.get(variant, len(self.since))
        if variant in ("some", "others"):
            steps = chance.randint(0, steps)
        names = dict(self.synced_names)
        for one, new in self.since[:steps]:
            rename(names, one, new)
        return {name: self._left(file, variant, chance) for name, file in sorted(names.items())}

    def _left(self, file: File, variant: str, chance: random.Random) -> bytes:
        match variant:
            case "nothing" | "names only":
                return file.synced
            case "everything" | "contents only":
                return applied(file.synced, file.since)
            case "torn":
                return applied(file.synced, torn(file.since))
            case _:
                return applied(file.synced, [change for change in file.since if chance.random() < 0.5])


def torn(changes: list[Change]) -> list[Change]:
    """The last write is cut in the middle."""
    if not changes or isinstance(changes[-1], int):
        return changes
    offset, data = changes[-1]
    return [*changes[:-1], (offset, data[: len(data) // 2])]


def rename(names: dict[str, File], one: Record, new: File) -> None:
    match one.op:
        case "o":
            names[one.name] = new
        case "u":
            names.pop(one.name, None)
        case "r":
            names[one.data.decode()] = names.pop(one.name)


# -- judging ----------------------------------------------------------------------------------


@dataclass
class Count:
    boundaries: int = 0
    opened: int = 0
    alike: int = 0
    # Cuts after which the transaction that was under way was there.
    ahead: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.boundaries:,} boundaries, {self.opened:,} remains opened ({self.alike:,} others alike), "
            f"{self.ahead:,} with the transaction that was under way, {len(self.faults)} faults"
        )


def states(seed: int, steps: int) -> list[Any]:
    """What a store must hold after each transaction."""
    twin = MemoryStore()
    found = [everything(twin)]
    for lines in some_life(random.Random(seed), steps):
        twin.write(lines)
        found.append(everything(twin))
    return found


def cut_everywhere(
    workshop: Path, seed: int, steps: int, every: int = 1, pragma: str = "synchronous = FULL"
) -> Count:
    """Cut a life at every boundary (or at each `every`-th) and look at what is left."""
    count, disk, chance = Count(), Disk(), random.Random(seed)
    expected = states(seed, steps)
    seen: set[int] = set()
    for number, one in enumerate(records(record(workshop, seed, steps, pragma))):
        disk.do(one)
        if number % every:
            continue
        count.boundaries += 1
        for variant in VARIANTS:
            left = disk.after_a_cut(variant, chance)
            mark = hash((disk.promised, *left.items()))
            if mark in seen:
                count.alike += 1
                continue
            seen.add(mark)
            count.opened += 1
            fault = judge(workshop / "left", left, disk.promised, expected, count)
            if fault:
                count.faults.append(f"after record {number} ({one.op} {one.name}), {variant} kept: {fault}")
    return count


def judge(folder: Path, left: dict[str, bytes], promised: int, expected: list[Any], count: Count) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in left.items():
        (folder / name).write_bytes(content)
    store = SqliteStore(folder)
    try:
        found = everything(store)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        store.close()
    if found == expected[promised]:
        return ""
    if promised + 1 < len(expected) and found == expected[promised + 1]:
        count.ahead += 1
        return ""
    return f"it holds neither {promised} transactions nor one more"
