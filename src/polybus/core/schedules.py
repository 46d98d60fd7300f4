"""Schedules: what is due when, and what becomes of due times that nobody was there for.

A pure engine: it is told the time of day (`wall`) and gives back what is to be run, with the entry that has
to be written down in its place.  Who uses it writes both in one transaction; then a due time is neither run
twice nor forgotten, whenever the process dies.

- An interval counts from the time it was set (`created_at`): the n-th run is due n intervals later, however
  late the one before it was.  A cron text names its times itself (`cron`).
- Several due times that have passed are one run (`missed` says how many more it stands for), or none if the
  schedule says "skip".  Downtime and a clock that leaps ahead look the same from here.
- A schedule is known by its key, and by the job that it runs if `identify` finds one: the same job in the
  same queue is the same schedule, whatever its key was made from.
- A clock that is set back runs nothing again: what was due is not due any more.  An interval that would
  have to wait for longer than an interval is laid anew from the new time, and that is recorded ("moved").
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from math import floor, inf, nextafter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from polybus.core.cron import BadSchedule, Cron
from polybus.core.ledger import ScheduleEntry, ScheduleRun

# A run within this long of its due time is on time: a busy second must not make it "late" or skip it.
PUNCTUAL_S: Final = 5.0
# The broker looks a few times a second; and 68 years, as on the wire.
MIN_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = float(2**31 - 1)
# Part of the ids of its runs, which have at most 255 bytes.
MAX_KEY: Final = 200
# It is stored and copied with every run: a larger message belongs somewhere else.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
# Set by anybody who can send, and each makes jobs for ever.
MAX_SCHEDULES: Final = 10_000
# Handed out at once; the others follow a moment later. A thousand jobs in one turn delay nobody for long.
MAX_RUNS_AT_ONCE: Final = 1000
# Times of schedules that were replaced or removed: so many are kept before they are thrown away.
STALE_TIMES: Final = 1000

RAN: Final = "ran"
LATE: Final = "late"
SKIPPED: Final = "skipped"
MOVED: Final = "moved"
POSTPONED: Final = "postponed"


# The job that a schedule runs, and the queue if the job is another one in another queue; None for a schedule
# that is known by its key alone.
Identify = Callable[[ScheduleEntry], tuple[str, bytes] | None]


class TooManySchedules(BadSchedule):
    """There is no room for another one."""


class Run(Struct, frozen=True):
    """One due time, what is to be done about it, and the schedule after it (None: that was the last run)."""

    entry: ScheduleEntry
    due_at: float
    what: str
    missed: int
    next: ScheduleEntry | None

    @property
    def starts_job(self) -> bool:
        return self.what in (RAN, LATE)

    @property
    def job_id(self) -> bytes:
        """The same for the same due time, so that not even a replay runs it twice.

        With the time that it was set, because after that the clock may show the same times once more.
        """
        due_ms, set_ms = floor(self.due_at * 1000), floor(self.entry.created_at * 1000)
        return f"{self.entry.key}@{due_ms}.{set_ms}".encode()

    def record(self, wall: float) -> ScheduleRun:
        token = self.job_id if self.starts_job else b""
        return ScheduleRun(self.entry.key, self.due_at, wall, self.what, self.missed, token)


class Schedules:
    """All schedules of a broker or of a scheduler."""

    def __init__(self, most: int = MAX_SCHEDULES, identify: Identify = lambda entry: None) -> None:
        self.most = most
        self._identify = identify
        # What `identify` found, by key; and the keys of the schedules of each job.
        self._identities: dict[str, tuple[str, bytes]] = {}
        self._keys: dict[str, list[str]] = {}
        self._entries: dict[str, ScheduleEntry] = {}
        # None for an interval; what cannot be understood any more has no place here.
        self._crons: dict[str, Cron | None] = {}
        # (next time, key); what no longer fits its entry is thrown away when its turn comes.
        self._order: list[tuple[float, str]] = []
        # Runs that nobody could take: when they are to be tried again.
        self._postponed: dict[str, float] = {}
        # The latest time of day that was seen since the clock was last set back; the first look at what a
        # store has kept is always a close one.
        self._high = inf

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ScheduleEntry]:
        return iter(self._entries.values())

    def get(self, key: str) -> ScheduleEntry | None:
        return self._entries.get(key)

    def identify_by(self, identify: Identify) -> None:
        """Find out from now on, also for the schedules that are there, which job each of them runs."""
        self._identify = identify
        for entry in self._entries.values():
            self._index(entry)

    def of_job(self, job: str) -> list[str]:
        """The keys of all schedules that run this job, in any queue."""
        return list(self._keys.get(job, ()))

    def replaced_by(self, entry: ScheduleEntry) -> list[str]:
        """The keys of other schedules that are the same one as this: the same job, in the same queue."""
        identity = self._identify(entry)
        if identity is None:
            return []
        keys = self._keys.get(identity[0], ())
        return [key for key in keys if key != entry.key and self._identities[key] == identity]

    def add(self, entry: ScheduleEntry, wall: float, haste: bool = False) -> ScheduleEntry:
        """Set a schedule, or set it anew, from now on; with `haste` it is due at once for the first time.

        Raises `BadSchedule` and changes nothing if it makes no sense.
        """
        _check(entry)
        if entry.key not in self._entries and len(self._entries) >= self.most:
            raise TooManySchedules(f"there are {len(self._entries)} schedules; remove some")
        cron = Cron(entry.cron, entry.timezone) if entry.cron else None
        entry = replace(entry, created_at=wall)
        entry = replace(entry, next_at=wall if haste else _after(entry, cron, wall))
        self._put(entry, cron)
        return entry

    def remove(self, key: str) -> bool:
        self._unindex(key)
        self._crons.pop(key, None)
        self._postponed.pop(key, None)
        return self._entries.pop(key, None) is not None

    def load(self, entries: Iterable[ScheduleEntry]) -> list[tuple[ScheduleEntry, str]]:
        """Take up what a store has kept. What cannot be understood any more (a time zone that is gone) is
        kept, but not run: it is given back with the reason."""
        odd = []
        for entry in entries:
            try:
                cron = Cron(entry.cron, entry.timezone) if entry.cron else None
            except BadSchedule as error:
                odd.append((entry, str(error)))
                self._entries[entry.key] = entry
                self._index(entry)
            else:
                self._put(entry, cron)
        return odd

    def next_at(self) -> float:
        """The time of day when something is due; infinity if nothing ever is. Possibly too early."""
        return self._order[0][0] if self._order else inf

    def due(self, wall: float, most: int = MAX_RUNS_AT_ONCE) -> list[Run]:
        """What is due, in the order of the due times; from now on it counts as done."""
        runs = self._laid_anew(wall)
        while self._order and self._order[0][0] <= wall and len(runs) < most:
            at, key = heapq.heappop(self._order)
            entry = self._entries.get(key)
            if entry is not None and at == self._postponed.get(key, entry.next_at):
                passed = self._pass(entry, wall)
                self._follow(passed[-1])
                runs += passed
        return runs

    def postpone(self, run: Run, until: float) -> bool:
        """Take a run back that could not be begun: the same due time is looked at again at `until`.

        False if there is nothing to be taken back: the schedule has run again since, was set anew or
        removed; or it was moved, and what it was moved from was not due.
        """
        entry = run.entry
        if self._entries.get(entry.key) != run.next or run.what == MOVED:
            return False
        cron = self._crons.get(entry.key)
        if cron is None and entry.cron:
            cron = Cron(entry.cron, entry.timezone)
        self._put(entry, cron)
        self._postponed[entry.key] = until
        heapq.heappush(self._order, (until, entry.key))
        return True

    # -- one schedule ---------------------------------------------------------------------------

    def _pass(self, entry: ScheduleEntry, wall: float) -> list[Run]:
        """What becomes of the due times of one schedule that have passed; at least one has."""
        cron = self._crons.get(entry.key)
        count, last = _passed(entry, cron, wall)
        then = replace(entry, next_at=_after(entry, cron, last))
        punctual = wall - last <= PUNCTUAL_S
        if punctual and count == 1:
            return [Run(entry, last, RAN, 0, _spent(then))]
        if entry.missed != "skip":
            return [Run(entry, last, LATE, count - 1, _spent(then))]
        if not punctual:
            return [Run(entry, last, SKIPPED, count - 1, then)]
        # All but the last are too late; the last is not.
        before, earlier = _passed(entry, cron, nextafter(last, -inf))
        kept = replace(entry, next_at=last)
        return [Run(entry, earlier, SKIPPED, before - 1, kept), Run(kept, last, RAN, 0, _spent(then))]

    def _laid_anew(self, wall: float) -> list[Run]:
        if wall >= self._high - PUNCTUAL_S:
            self._high = max(self._high, wall)
            return []
        self._high = wall
        runs = []
        for entry in list(self._entries.values()):
            every_s = entry.interval_s
            if every_s is not None and entry.next_at - wall > every_s + min(every_s, PUNCTUAL_S):
                moved = replace(entry, created_at=wall, next_at=wall + every_s)
                runs.append(Run(entry, entry.next_at, MOVED, 0, moved))
                self._follow(runs[-1])
        return runs

    def _follow(self, run: Run) -> None:
        if run.next is None:
            self.remove(run.entry.key)
        else:
            self._put(run.next, self._crons.get(run.entry.key))

    def _index(self, entry: ScheduleEntry) -> None:
        self._unindex(entry.key)
        identity = self._identify(entry)
        if identity is not None:
            self._identities[entry.key] = identity
            self._keys.setdefault(identity[0], []).append(entry.key)

    def _unindex(self, key: str) -> None:
        identity = self._identities.pop(key, None)
        if identity is not None:
            keys = self._keys[identity[0]]
            keys.remove(key)
            if not keys:
                del self._keys[identity[0]]

    def _put(self, entry: ScheduleEntry, cron: Cron | None) -> None:
        before = self._entries.get(entry.key)
        self._entries[entry.key] = entry
        # A run leaves the message as it is: it is not read again for each of them.
        if before is None or before.message is not entry.message or _times(before) != _times(entry):
            self._index(entry)
        self._postponed.pop(entry.key, None)
        self._crons[entry.key] = cron
        heapq.heappush(self._order, (entry.next_at, entry.key))
        if len(self._order) > len(self._entries) + STALE_TIMES:
            self._order = [
                (self._postponed.get(kept.key, kept.next_at), kept.key)
                for kept in self._entries.values()
                if kept.key in self._crons
            ]
            heapq.heapify(self._order)


# -- arithmetic -------------------------------------------------------------------------------


def _times(entry: ScheduleEntry) -> tuple[bytes, float | None, str]:
    return (entry.queue, entry.interval_s, entry.cron)


def _after(entry: ScheduleEntry, cron: Cron | None, at: float) -> float:
    """The first due time later than `at`, which is one itself or the time when the schedule was set."""
    if cron is not None:
        return cron.after(at)
    every_s = entry.interval_s
    assert every_s is not None
    # Counted from the beginning, so that rounding does not add up.
    number = round((at - entry.created_at) / every_s)
    return max(entry.created_at + (number + 1) * every_s, nextafter(at, inf))


def _passed(entry: ScheduleEntry, cron: Cron | None, until: float) -> tuple[int, float]:
    """How many due times have passed, and the last of them."""
    if cron is not None:
        return cron.passed(entry.next_at, until)
    every_s = entry.interval_s
    assert every_s is not None
    more = floor((until - entry.next_at) / every_s)
    number = round((entry.next_at - entry.created_at) / every_s)
    last = entry.next_at if more <= 0 else entry.created_at + (number + more) * every_s
    if last > until:
        # Rounded up at the very edge.
        more -= 1
        last = entry.next_at if more <= 0 else entry.created_at + (number + more) * every_s
    return max(more, 0) + 1, last


def _spent(entry: ScheduleEntry) -> ScheduleEntry | None:
    """The schedule after one more run."""
    left = entry.runs_left
    if left is not None:
        entry = replace(entry, runs_left=left - 1)
    return None if left == 1 or entry.next_at == inf else entry


def _check(entry: ScheduleEntry) -> None:
    if not entry.key or len(entry.key.encode()) > MAX_KEY or not entry.key.isprintable():
        raise BadSchedule(f"the key of a schedule has 1 to {MAX_KEY} printable characters")
    if not entry.queue:
        raise BadSchedule("a schedule needs a queue")
    if (entry.interval_s is None) == (not entry.cron):
        raise BadSchedule("a schedule has either an interval or a cron text")
    if entry.interval_s is not None and not MIN_INTERVAL_S <= entry.interval_s <= MAX_INTERVAL_S:
        raise BadSchedule(
            f"the interval is {entry.interval_s:g} s; it takes {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:.0f}"
        )
    if entry.runs_left is not None and entry.runs_left < 1:
        raise BadSchedule(
            f"{entry.runs_left} runs: nothing would ever run; it takes 1 or more, or none to go on"
        )
    if entry.missed not in ("late", "skip"):
        raise BadSchedule(f"missed is {entry.missed!r}; it takes late or skip")
    if len(entry.message) > MAX_MESSAGE_BYTES:
        raise BadSchedule(f"the message has {len(entry.message)} bytes; allowed are {MAX_MESSAGE_BYTES}")
