"""Power cuts: what is left of a journal when the power goes at any moment of its life.

A broker's writer, an archiver and a compactor work on one journal while every change of the disk is recorded
(`journal_disk`).  The record is then replayed up to every operation, and what the disk may hold after a power
cut there is read and repaired with the real code.  The journal promises:

- A record that the writer counts as written is there, exactly once for every reader, whether it is in a log,
  in a segment or in a compacted file.
- No record is there twice or changed.
- A log that ends in the middle of a batch is reported, and no other one is.
- All of that still holds after the next archiver and the next broker have tidied up, whichever begins first.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from polybus.journal.archiver import OPEN_LOGS, Archiver
from polybus.journal.compaction import Compactor
from polybus.journal.log import finish_leftovers
from polybus.journal.reader import read_rows
from polybus.journal.record import Row, write_row
from polybus.journal.verify import verify
from polybus.journal.writer import JournalWriter
from store_faults.journal_disk import IGNORED, VARIANTS, Disk, Operation, Recorder
from support.journals import HOUR_US, NOON_US
from support.waiting import until

# A log has room for a few batches only, so that a short life has many logs.
ROLL_BYTES = 1500
# Rows fall into so many hours, and compaction finds all of them ended.
HOURS = 2
LATER_S = NOON_US / 1e6 + 100 * 3600.0


# -- living ---------------------------------------------------------------------------------------


def live(recorder: Recorder, journal: Path, seed: int, steps: int) -> None:
    """Let three brokers, one after the other, write a journal that is archived and compacted meanwhile.

    The first two are killed.  Notes say how many records of each were begun and how many were promised."""
    chance = random.Random(seed)
    with recorder.active():
        for number in range(3):
            _one_life(recorder, journal, f"life-{number}", chance, steps // 3, is_killed=number < 2)
        _tidy_up(journal)


def _one_life(
    recorder: Recorder, journal: Path, life: str, chance: random.Random, steps: int, is_killed: bool
) -> None:
    writer = JournalWriter(
        journal / OPEN_LOGS,
        "tested",
        life,
        {},
        sync_s=0.0,
        roll_bytes=ROLL_BYTES,
        roll_s=1e6,
        wall=lambda: NOON_US / 1e6,
    )
    writer.start()
    begun = 0
    for _ in range(steps):
        # Sometimes several turns of the broker's loop wait for the thread.
        for _ in range(chance.choice((1, 1, 2))):
            count = chance.randint(1, 4)
            rows = [_row(life, begun + n + 1, chance) for n in range(count)]
            begun += count
            recorder.note(f"begun {life}", begun)
            writer.append(count, b"".join(map(write_row, rows)))
        until(lambda: writer.state().written == begun, "the records are written")  # noqa: B023
        recorder.note(f"promised {life}", begun)
        # A log that is finished meanwhile is archived in the same turn or in the next.
        until(lambda: not writer.state().waiting_bytes, "the thread has nothing to do")
        if chance.random() < 0.4:
            Archiver(journal, rows=20).turn()
        if chance.random() < 0.2:
            _compactor(journal).turn()
    if is_killed:
        # Its thread ends, but the log keeps the name that it has while it is written.
        writer._finish = lambda: None  # type: ignore[method-assign]
    assert writer.stop() == 0
    if writer._file >= 0:
        os.close(writer._file)


def _row(life: str, number: int, chance: random.Random) -> Row:
    at = NOON_US + (number % HOURS) * HOUR_US + number
    return Row("accepted", at, token=_token(life, number).encode(), body=(bytes(chance.randint(0, 200)),))


def _token(life: str, number: int) -> str:
    return f"{life}/{number}"


def _compactor(journal: Path) -> Compactor:
    return Compactor(journal, 300.0, wall=lambda: LATER_S)


def _tidy_up(journal: Path) -> list[str]:
    """Do all that an archiver has to do; the damage that it reports."""
    damage: list[str] = []
    archiver = Archiver(journal, rows=20)
    while (report := archiver.turn()).logs:
        damage += report.damage
    compactor = _compactor(journal)
    while (compaction := compactor.turn()).path is not None or compaction.removed or compaction.damage:
        damage += compaction.damage
    return damage


# -- judging --------------------------------------------------------------------------------------

# A row: the life of the broker that wrote it, its number, and its token.
Found = tuple[str, int, str]


@dataclass
class Count:
    boundaries: int = 0
    opened: int = 0
    alike: int = 0
    # Cuts after which records were there that had not been promised yet, and those that left a torn log.
    ahead: int = 0
    torn: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.boundaries:,} boundaries, {self.opened:,} remains opened ({self.alike:,} others alike), "
            f"{self.ahead:,} with records that were under way, {self.torn:,} with a torn log, "
            f"{len(self.faults)} faults"
        )


def cut_journal_everywhere(
    workshop: Path,
    seed: int,
    steps: int,
    every: int = 1,
    ignored: str = "",
    variants: Sequence[str] = tuple(VARIANTS),
    most_faults: int = 0,
) -> Count:
    """Cut a journal's life at every operation (or at each `every`-th) and look at what is left.

    Syncs of paths that match the pattern `ignored` are left out, and nothing is cut before the first of them.
    With `most_faults` it ends after so many."""
    workshop.mkdir(exist_ok=True)
    journal = workshop / "journal"
    recorder = Recorder(workshop, ignored)
    live(recorder, journal, seed, steps)
    count, disk, chance = Count(), Disk(), random.Random(seed)
    logs = _Logs()
    seen: set[int] = set()
    for number, operation in enumerate(recorder.operations):
        disk.do(operation)
        logs.do(operation, disk)
        if number % every or (ignored and IGNORED not in disk.notes):
            continue
        count.boundaries += 1
        for variant in variants:
            left = disk.after_a_cut(variant, chance)
            mark = hash((*disk.notes.items(), *left.items()))
            if mark in seen:
                count.alike += 1
                continue
            seen.add(mark)
            count.opened += 1
            # Which of them begins first is not certain either.
            orders = (True, False) if variant == "nothing" else (count.opened % 2 == 0,)
            for is_archiver_first in orders:
                remains = _Remains(workshop / "left", left, disk.notes, logs)
                fault = remains.judge(is_archiver_first, count)
                if fault:
                    count.faults.append(f"after operation {number} ({operation}), {variant} kept: {fault}")
                    if len(count.faults) == most_faults:
                        return count
    return count


class _Logs:
    """What each log held after each write, by its number: a log that holds something else is torn."""

    def __init__(self) -> None:
        self._wholes: dict[str, set[bytes]] = {}

    def do(self, operation: Operation, disk: Disk) -> None:
        if operation.kind == "write" and is_log(operation.path):
            wholes = self._wholes.setdefault(PurePosixPath(operation.path).stem, set())
            wholes.add(disk.now(operation.path))

    def is_torn(self, path: str, content: bytes) -> bool:
        return content not in self._wholes.get(PurePosixPath(path).stem, ())


def is_log(path: str) -> bool:
    return path.startswith(f"journal/{OPEN_LOGS}/")


class _Remains:
    """What one power cut left."""

    def __init__(
        self, folder: Path, left: dict[str, bytes | None], notes: dict[str, int], logs: _Logs
    ) -> None:
        self._notes = notes
        self._journal = folder / "journal"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path, content in left.items():
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)
        torn = [
            content
            for path, content in left.items()
            if content is not None and is_log(path) and logs.is_torn(path, content)
        ]
        self._is_torn = bool(torn)
        # A log without a byte was begun a moment ago: only the archiver, which removes logs, reports it.
        self._is_torn_for_readers = any(torn)

    def judge(self, is_archiver_first: bool, count: Count) -> str:
        """What is wrong with it; empty if nothing is."""
        try:
            return self._judge(is_archiver_first, count)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _judge(self, is_archiver_first: bool, count: Count) -> str:
        count.torn += self._is_torn
        before = self._rows()
        fault = self._compare(before)
        if fault:
            return fault
        count.ahead += len(before) > sum(map(self._promised, self._lives()))
        if self._journal.is_dir():
            wrong = verify(self._journal).problems
            told = [problem.text for problem in wrong if problem.kind == "damage"]
            is_torn = self._is_torn_for_readers
            if bool(told) != is_torn:
                return f"a reader reports {told or 'no damage'}, but a log is torn: {is_torn}"
        told = self._repair(is_archiver_first)
        if bool(told) != self._is_torn:
            return f"the archiver reports {told or 'no damage'}, but a log is torn: {self._is_torn}"
        after = self._rows()
        if after != before:
            return f"the repair changed what is there: {sorted((before - after) + (after - before))[:5]}"
        return ""

    def _repair(self, is_archiver_first: bool) -> list[str]:
        damage: list[str] = []
        if is_archiver_first:
            # It may miss a log whose last name was lost. It tries again when the broker has begun.
            with contextlib.suppress(OSError):
                damage += _tidy_up(self._journal)
        if (self._journal / OPEN_LOGS).is_dir():
            finish_leftovers(self._journal / OPEN_LOGS)
        return damage + _tidy_up(self._journal)

    def _rows(self) -> Counter[Found]:
        """Every row that a reader finds, except those that stand for missing ones."""
        rows: Counter[Found] = Counter()
        if not self._journal.is_dir():
            return rows
        columns = ["life", "seq", "token", "what"]
        for table in read_rows(self._journal, columns=columns, damage=lambda _text: None):
            for row in table.to_pylist():
                if row["what"] != "hole":
                    rows[row["life"], row["seq"], row["token"]] += 1
        return rows

    def _lives(self) -> list[str]:
        return [name.removeprefix("begun ") for name in self._notes if name.startswith("begun ")]

    def _promised(self, life: str) -> int:
        return self._notes.get(f"promised {life}", 0)

    def _compare(self, rows: Counter[Found]) -> str:
        possible = {
            (life, number, _token(life, number)): number <= self._promised(life)
            for life in self._lives()
            for number in range(1, self._notes[f"begun {life}"] + 1)
        }
        missing = [row for row, is_promised in possible.items() if is_promised and not rows[row]]
        twice = [row for row, times in rows.items() if times > 1]
        strange = [row for row in rows if row not in possible]
        for name, wrong in (("missing", missing), ("twice", twice), ("never written", strange)):
            if wrong:
                return f"{len(wrong)} records are {name}: {wrong[:3]}"
        return ""
