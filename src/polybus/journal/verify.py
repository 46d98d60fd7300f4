"""Whether a journal is whole, and whether the bus kept its promises: checked on what really happened.

Everything is read once, with every checksum: the segments, then the logs.  What is kept in memory are runs of
numbers (`numbering`) and the rows of requests that have not ended yet (`fates`), not the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from polybus.errors import JournalMoved
from polybus.journal import archiver
from polybus.journal.fates import COLUMNS as FATE_COLUMNS
from polybus.journal.fates import P1, Fate, Fates, Kept, World, judge, steps_of, unbegun
from polybus.journal.log import DAMAGED
from polybus.journal.numbering import Numbering
from polybus.journal.reader import Snapshot, hour_of, read_logs, read_rows, read_segment
from polybus.journal.record import TERMINAL
from polybus.journal.retention import RETAINED, Retained

# How often it is begun again because files were compacted meanwhile.
TRIES: Final = 5
# Requests of each kind that a report names; the others are counted.
NAMED: Final = 1000
Progress = Callable[[int, int], None]


class Problem(Struct, frozen=True):
    """Something that is wrong, and where."""

    # damage, numbers, or the promise that was broken.
    kind: str
    text: str
    token: str = ""


class Hole(Struct, frozen=True):
    """Records that are missing, as the journal itself says."""

    broker: str
    life: str
    first: int
    last: int
    # When the first record behind it was made, and why the broker lost it, if it said so.
    before: datetime | None = None
    why: str = ""

    @property
    def records(self) -> int:
        return self.last - self.first + 1


class Verdict(Struct):
    """What was found."""

    segments: int = 0
    logs: int = 0
    rows: int = 0
    requests: int = 0
    brokers: int = 0
    lives: int = 0
    # Lives that ended without a word.
    killed: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    ends: dict[str, int] = {}
    problems: list[Problem] = []
    holes: list[Hole] = []
    # Requests that did not simply end, by kind: how many, and the first of them.
    counts: dict[str, int] = {}
    fates: dict[str, list[Fate]] = {}
    # Whether the store was there to ask for what is guaranteed.
    has_store: bool = False

    @property
    def is_well(self) -> bool:
        return not self.problems


def verify(
    journal: Path,
    *,
    is_running: bool = False,
    kept: Kept | None = None,
    progress: Progress | None = None,
    now: datetime | None = None,
) -> Verdict:
    """Check a journal.

    `is_running`: its broker is, so what has not ended in its newest life is still open.  `kept` asks the
    broker's store; without it nobody can tell whether guaranteed requests got lost."""
    for left in range(TRIES, 0, -1):
        try:
            return _Check(journal, is_running, kept, progress, now or datetime.now(UTC)).run()
        except JournalMoved:
            if left == 1:
                raise
    raise AssertionError


class _Check:
    def __init__(
        self,
        journal: Path,
        is_running: bool,
        kept: Kept | None,
        progress: Progress | None,
        now: datetime,
    ) -> None:
        self._journal = journal
        self._is_running = is_running
        self._kept = kept
        self._progress = progress
        self._now = now
        self._verdict = Verdict(has_store=kept is not None)
        self._numbering = Numbering()
        self._fates = Fates()

    def run(self) -> Verdict:
        verdict = self._verdict
        begin = self._read_all()
        for wrong in self._numbering.check(begin):
            verdict.problems.append(Problem("numbers", str(wrong)))
        lives = self._numbering.lives
        verdict.requests = self._fates.accepted
        verdict.ends = dict(sorted(self._fates.ends.items()))
        for life in lives.values():
            verdict.holes += [
                Hole(life.broker, life.name, *hole, life.hole_ends.get(hole[1]), life.why_missing(hole[0]))
                for hole in life.holes
            ]
        order = self._numbering.in_order()
        running = frozenset(each[-1].name for each in order.values() if self._is_running)
        world = World(lives, order, running, self._kept, self._now)
        verdict.brokers, verdict.lives = len(order), len(lives)
        verdict.killed = sum(map(world.was_killed, lives))
        verdict.first_at = min((life.first_at for life in lives.values()), default=None)
        verdict.last_at = max((life.last_at for life in lives.values()), default=None)
        self._judge(world)
        return verdict

    # -- reading ----------------------------------------------------------------------------------

    def _read_all(self) -> datetime | None:
        """Feed everything; the first hour that is kept, if some were removed on purpose."""
        verdict = self._verdict
        for path in sorted((self._journal / archiver.OPEN_LOGS).glob(f"*{DAMAGED}")):
            text = f"{path}: it was damaged when it was archived; what was whole in it is in the segments"
            self._damaged(f"{text}. Remove it when you have seen it.")
        with Snapshot(self._journal) as snapshot:
            verdict.segments, verdict.logs = len(snapshot.segments), len(snapshot.logs)
            sizes = [_size(path) for path in snapshot.segments]
            total = sum(sizes) + sum(_size(log.path) for log in snapshot.logs)
            done = 0
            for path, size in zip(snapshot.segments, sizes, strict=True):
                for table in read_segment(path, None, None, self._damaged):
                    self._feed(table)
                done += size
                self._tell(done, total)
            seen: set[Path] = set()
            for log, table in read_logs(snapshot, self._damaged, self._is_running):
                self._feed(table)
                if log.path not in seen:
                    seen.add(log.path)
                    done += _size(log.path)
                    self._tell(done, total)
            self._tell(total, total)
            retained = archiver.read_note(self._journal / RETAINED, Retained)
            if retained is None or not retained.since or not snapshot.segments:
                return None
            return hour_of(snapshot.segments[0])

    def _feed(self, table: pa.Table) -> None:
        self._verdict.rows += table.num_rows
        self._numbering.add(table)
        self._fates.add(table)

    def _damaged(self, text: str) -> None:
        self._verdict.problems.append(Problem("damage", text))

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    # -- requests ---------------------------------------------------------------------------------

    def _judge(self, world: World) -> None:
        rows = self._fates.left()
        if rows is None:
            return
        rows = self._with_beginnings(rows)
        for fate in judge(rows, world):
            verdict = self._verdict
            if fate.kind == "wrong":
                text = f"request {fate.token} ({fate.service}): {fate.text}"
                verdict.problems.append(Problem(fate.promise, text, fate.token))
                continue
            verdict.counts[fate.kind] = verdict.counts.get(fate.kind, 0) + 1
            named = verdict.fates.setdefault(fate.kind, [])
            if len(named) < NAMED:
                named.append(fate)
        self._look_again()

    def _look_again(self) -> None:
        """A job may have ended after the journal was read and before the store was asked for it."""
        verdict = self._verdict
        missing = [problem.token for problem in verdict.problems if problem.kind == P1]
        if missing and self._is_running:
            wanted = pc.field("token").isin(missing) & pc.field("what").isin(list(TERMINAL))
            found = read_rows(self._journal, where=wanted, columns=["token"], damage=_known)
            ended = {token for table in found for token in table["token"].to_pylist()}
            verdict.problems = [each for each in verdict.problems if each.token not in ended]

    def _with_beginnings(self, rows: pa.Table) -> pa.Table:
        """With all rows of those requests of which some were let go before because they seemed to be over."""
        tokens = unbegun(rows)
        if not tokens:
            return rows
        names = pa.array(tokens, pa.string())
        others = rows.filter(pc.invert(pc.is_in(rows["token"], names)))
        # What has happened since then is not looked at.
        wanted = pc.field("token").isin(names) & pc.field("life").isin(list(self._numbering.lives))
        found = read_rows(self._journal, where=wanted, columns=FATE_COLUMNS, damage=_known)
        return pa.concat_tables([others, *map(steps_of, found)])


def _known(text: str) -> None:
    """It was told when it was read for the first time."""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
