"""A month of schedules with hundreds of restarts and clocks that are set: nothing twice, nothing unrecorded.

The broker's core and the store's twin run in virtual time.  The process dies at any moment, also between
noting a run and writing it down, stays away for seconds or days, and comes back from what is on disk; the
clock is set ahead and back.  What was recorded is then compared with due times that were found the slow way
(`support.due_times`), in the months in which clocks change.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise

import pytest
from msgspec.structs import replace

from polybus.core import events, scheduling
from polybus.core.ledger import ScheduleEntry, ScheduleRun
from polybus.core.model import JobOptions
from polybus.core.schedules import LATE, MOVED, POSTPONED, PUNCTUAL_S, RAN, SKIPPED
from polybus.store.memory import MemoryStore
from support.clockwork import Clockwork
from support.due_times import Span

DAYS = 30
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")
# Within each, the clocks of all three zones change: 8 and 29 March, 5 April; 4 and 25 October, 1 November.
MONTHS = (datetime(2026, 3, 7, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC))
CRONS = (
    "30 2 * * *",
    "15 1,2,3 * * *",
    "0 * * * *",
    "*/40 */2 * * *",
    "*/20 1-3 * * *",
    "45 2 * * sun",
    "0 9 * * mon-fri",
    "0 0 1,15 * *",
    "5 2 * * * 10,50",
)
INTERVALS = (900.5, 2000.1, 3600.0, 7777.0, 86_400.0, 200_000.0)
RUN_COUNTS = (1, 5, 50)
EVERY_S = 3600.0
RESTARTS = 300
JUMPS = 60
FULL_DISKS = 30
OPTIONS = JobOptions(reply_requested=False, guarantee=True)


# Clocks that are set ahead now and then end up some days later.
FURTHEST_DAYS = DAYS + 10


@cache
def span(zone: str, start: datetime) -> Span:
    return Span(zone, start.replace(tzinfo=None), start.replace(tzinfo=None) + timedelta(FURTHEST_DAYS))


@cache
def slow_due(text: str, zone: str, start: datetime) -> list[int]:
    return span(zone, start).due(text)


def entries(seed: random.Random) -> list[ScheduleEntry]:
    made = [
        ScheduleEntry(f"{zone} {text}", b"jobs", b"", OPTIONS, cron=text, timezone=zone)
        for zone in ZONES
        for text in CRONS
    ]
    made += [ScheduleEntry(f"every {s}", b"jobs", b"", OPTIONS, interval_s=s) for s in INTERVALS]
    made += [
        ScheduleEntry(f"{count} times", b"jobs", b"", OPTIONS, interval_s=EVERY_S, runs_left=count)
        for count in RUN_COUNTS
    ]
    return [replace(entry, missed=seed.choice(("late", "skip"))) for entry in made]


class Month:
    """A broker's life, and what its clock showed when what it did came to stay."""

    def __init__(self, seed: int, start: datetime) -> None:
        self.seed = random.Random(seed)
        self.first_day = start
        self.start = start.timestamp() + self.seed.random() * 1000
        self.clock = Clockwork(MemoryStore(), self.start, keep_runs=False)
        self.entries = {entry.key: entry for entry in entries(self.seed)}
        # The latest time of day at which runs were written down.
        self.high = 0.0
        self.restarts = self.jumps = self.full_disks = 0

    def live(self) -> None:
        clock, seed = self.clock, self.seed
        for entry in self.entries.values():
            scheduling.add(clock.bus, entry, False, clock.now)
        clock.settle()
        clock.worker("jobs")
        end = clock.now + DAYS * 86_400
        pause_s = DAYS * 86_400 / (RESTARTS + JUMPS + FULL_DISKS)
        while clock.now < end:
            self.pass_time(seed.expovariate(1 / pause_s))
            happens = seed.choices((self.die, self.fill_disk, None), (RESTARTS, FULL_DISKS, JUMPS))[0]
            if happens is not None:
                happens()
            else:
                self.jumps += 1
                # Minutes mostly, sometimes a day; a little more ahead than back.
                clock.set_clock(seed.choice((1, 1, -1)) * seed.choice((3, 70, 4000, 90_000)) * seed.random())
                self.tick()
        self.pass_time(0)

    def pass_time(self, seconds: float) -> None:
        before = self.clock.wall
        self.clock.pass_time(seconds)
        self.high = max(self.high, before, self.clock.wall)

    def tick(self) -> None:
        self.clock.tick()
        self.high = max(self.high, self.clock.wall)

    def fill_disk(self) -> None:
        """For a while nothing can be written, and perhaps the process dies before there is room again."""
        self.full_disks += 1
        clock, seed = self.clock, self.seed
        clock.broken = "the disk is full"
        clock.pass_time(seed.choice((10, 1000, 10_000)) * seed.random())
        if seed.random() < 0.3:
            clock.crash()
            clock.worker("jobs")
        clock.broken = ""
        clock.repair()
        self.tick()

    def die(self) -> None:
        clock, seed = self.clock, self.seed
        self.restarts += 1
        moment = seed.choice(("idle", "noted", "written"))
        if moment != "idle":
            # The next due time: what is done then is on disk or not, but the core is never told.
            clock.now = max(clock.now, clock.bus.book.schedules.next_at() - clock.offset)
            clock.bus.wall_offset = clock.offset
            clock.bus.handle(events.Tick(), clock.now)
            if moment == "written" and clock.bus.lines:
                clock.write(clock.bus.take_lines()[1])
                self.high = max(self.high, clock.wall)
        # Away for moments mostly, sometimes for days.
        longest = 200_000 if seed.random() < 0.02 else seed.choice((0.1, 3, 30, 300, 3000))
        clock.now += longest * seed.random()
        if seed.random() < 0.1:
            clock.set_clock(seed.uniform(-5000, 5000))
        clock.crash()
        clock.worker("jobs")
        self.tick()


SEEDS = (1, 2, 3)


@pytest.mark.long
@pytest.mark.parametrize("start", MONTHS, ids=lambda month: f"{month:%B}")
def test_a_month(start: datetime) -> None:
    # One after the other: they share the due times that took so long to find.
    for seed in SEEDS:
        month = Month(seed, start)
        month.live()
        assert month.restarts > 150, seed
        assert month.jumps > 20, seed
        assert month.full_disks > 10, seed
        try:
            check(month)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check(month: Month) -> None:
    clock = month.clock
    # As in the store, the last note about a due time holds; what was postponed is in a later one.
    notes = {(run.key, run.due_at, run.what == MOVED): run for run in clock.runs}
    kept = [run for run in clock.runs if notes[run.key, run.due_at, run.what == MOVED] is run]
    kept = [run for run in kept if run.what != POSTPONED]
    by_key: dict[str, list[ScheduleRun]] = defaultdict(list)
    for run in kept:
        by_key[run.key].append(run)
    # Every run that was recorded is one job, and every job was started once.
    tokens = [run.token for run in kept if run.what in (RAN, LATE)]
    assert Counter(tokens) == Counter(clock.accepted) == Counter(clock.started)
    assert set(Counter(tokens).values()) == {1}
    for key, entry in month.entries.items():
        runs = by_key[key]
        if entry.cron:
            check_cron(month, entry, runs)
        else:
            check_interval(month, entry, runs)
        for run in runs:
            check_word(entry, run)
    seen = Counter(run.what for run in clock.runs)
    assert all(seen[what] > 10 for what in (RAN, LATE, SKIPPED, MOVED)), seen


def check_word(entry: ScheduleEntry, run: ScheduleRun) -> None:
    punctual = run.at - run.due_at <= PUNCTUAL_S
    match run.what:
        case "ran":
            assert punctual
            assert run.missed == 0
        case "late":
            assert entry.missed == "late"
            assert run.missed or not punctual
        case "skipped":
            assert entry.missed == "skip"
        case _:
            assert run.what == MOVED


def check_cron(month: Month, entry: ScheduleEntry, runs: list[ScheduleRun]) -> None:
    """Every due time up to the latest time that the clock has shown is in exactly one record."""
    assert month.high < (month.first_day + timedelta(FURTHEST_DAYS)).timestamp()
    slow = slow_due(entry.cron, entry.timezone, month.first_day)
    expected = [due for due in slow if month.start < due <= month.high]
    told: list[int] = []
    for run in runs:
        at = bisect_right(expected, run.due_at)
        assert expected[at - 1] == run.due_at, (entry.key, run)
        told += expected[at - 1 - run.missed : at]
    assert told == expected, entry.key
    assert expected


def check_interval(month: Month, entry: ScheduleEntry, runs: list[ScheduleRun]) -> None:
    """From one change of the clock to the next due times are an interval apart, each in one record."""
    every_s = entry.interval_s
    assert every_s is not None
    anchor = month.start
    number = 0
    for run in runs:
        if run.what == MOVED:
            # What was announced is given up, and counting begins with the new time.
            assert run.due_at == pytest.approx(anchor + (number + 1) * every_s, abs=1e-5)
            anchor, number = run.at, 0
            continue
        number += 1 + run.missed
        assert run.due_at == pytest.approx(anchor + number * every_s, abs=1e-5), (entry.key, run)
        assert run.due_at <= run.at
    done = [run for run in runs if run.what in (RAN, LATE)]
    if entry.runs_left is not None:
        assert len(done) == entry.runs_left or month.clock.bus.book.schedules.get(entry.key) is not None
        assert len(done) <= entry.runs_left
        return
    kept = month.clock.bus.book.schedules.get(entry.key)
    assert kept is not None
    assert kept.next_at == pytest.approx(anchor + (number + 1) * every_s, abs=1e-5)
    # Never silent for much longer than an interval of what the clock has shown.
    assert 0 < kept.next_at - month.clock.wall <= every_s + 2 * PUNCTUAL_S
    assert all(early.at <= late.at or late.what == MOVED for early, late in pairwise(runs))
