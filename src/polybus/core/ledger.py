"""What must survive a crash: the entries of the ledger, and the lines that change it.

The core notes lines while it handles events (`Tables.lines`); the server writes all lines of a turn in one
transaction and tells the core when they are on disk (`events.Written`).  Whatever a line promises (a
receipt, a dispatch, an answer) waits for that.  On a start the store gives back what was written, as
`Contents`, and the core goes on from there (`restore`).

Times here are wall-clock seconds, because a monotonic clock means nothing after a restart.

Nothing here refers back to what refers to it, so the collector of garbage need not look at any of it (`gc`).
What every job costs is apart: its entries in `entries`, and its two lines, which are packed where they are
made, in `rows`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from polybus.core.entries import Attempt as Attempt
from polybus.core.entries import DeadLetter as DeadLetter
from polybus.core.entries import JobEntry as JobEntry
from polybus.core.entries import Outcome as Outcome
from polybus.core.model import JobOptions, Reason
from polybus.core.rows import Accepted as Accepted
from polybus.core.rows import Ended as Ended

# In a history: not an attempt, but the place where an operator queued a dead letter again; and a place where
# failed attempts are left out, as many as its number says.
REVIVED: Final = "revived"
LEFT_OUT: Final = "left_out"
# In the journal: a request that was accepted must not get lost.
GUARANTEED: Final = "guaranteed"
# Every step of a job writes its whole history down, and a job may be tried a million times.
HISTORY: Final = 100

# -- entries ----------------------------------------------------------------------------------


def failures_in(history: tuple[Attempt, ...]) -> int:
    """How many attempts failed since the job was last revived. A lost worker is no failure of the job."""
    count = 0
    for attempt in history:
        if attempt.reason == REVIVED:
            count = 0
        elif attempt.reason == LEFT_OUT:
            count += attempt.number
        elif attempt.reason != Reason.WORKER_LOST:
            count += 1
    return count


def losses_in(history: tuple[Attempt, ...]) -> int:
    """How many workers were lost with the job since it was last revived."""
    count = 0
    for attempt in history:
        if attempt.reason == REVIVED:
            count = 0
        elif attempt.reason == Reason.WORKER_LOST:
            count += 1
    return count


def shortened(history: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """A history of bounded length: how it began, how it went lately, and how many failures are left out."""
    kept = list(history)
    while len(kept) > HISTORY:
        for at in range(1, len(kept)):
            if kept[at].reason not in (REVIVED, LEFT_OUT, Reason.WORKER_LOST):
                break
        else:
            break
        gone, before = kept[at], kept[at - 1]
        if before.reason == LEFT_OUT:
            kept[at - 1 : at + 1] = [replace(before, number=before.number + 1)]
        else:
            kept[at] = Attempt(1, gone.at, "", LEFT_OUT, "so many failed attempts are left out here")
    return tuple(kept)


class ScheduleEntry(Struct, frozen=True, gc=False):
    """Something to be run again and again, by interval or by cron."""

    key: str
    queue: bytes
    message: bytes
    options: JobOptions = JobOptions(reply_requested=False)
    interval_s: float | None = None
    cron: str = ""
    # An IANA name; cron fields are read in this zone.
    timezone: str = "UTC"
    # None means for ever.
    runs_left: int | None = None
    next_at: float = 0.0
    # What becomes of runs that were missed: "late" runs one of them late, "skip" none.
    missed: str = "late"
    created_at: float = 0.0


class ScheduleRun(Struct, frozen=True, gc=False):
    """What became of one due time. `what` is "ran", "late", "skipped", "moved" (the clock was set back, the
    interval was laid anew) or "postponed" (it could not be begun; a later one stands for it); `missed` counts
    the due times before this one that it stands for as well."""

    key: str
    due_at: float
    at: float
    what: str
    missed: int = 0
    token: bytes = b""


class NodeEntry(Struct, frozen=True, gc=False):
    """A registration in the catalog."""

    name: bytes
    # What it said about itself, as JSON.
    info: bytes
    heartbeat_s: float
    # How it is called and spoken to: a word of the dialect it registered in.
    how: str
    registered_at: float


# -- lines ------------------------------------------------------------------------------------


class Started(Struct, frozen=True, gc=False):
    """A worker got it. Nobody waits for this line: if it is lost, the job is merely queued again."""

    token: bytes
    attempt: int
    worker: str


class Waiting(Struct, frozen=True, gc=False):
    """It is with nobody: an attempt ended without success, or its worker was lost."""

    token: bytes
    attempt: int
    due_at: float
    history: tuple[Attempt, ...]


class Forgotten(Struct, frozen=True, gc=False):
    """These outcomes are too old to be asked for."""

    tokens: tuple[bytes, ...]


class Buried(Struct, frozen=True, gc=False):
    """These dead letters were retried or thrown away."""

    tokens: tuple[bytes, ...]


class Scheduled(Struct, frozen=True, gc=False):
    """A schedule was set or replaced, or its next time moved."""

    entry: ScheduleEntry


class Unscheduled(Struct, frozen=True, gc=False):
    key: str


class Ran(Struct, frozen=True, gc=False):
    """A due time has passed; the schedule's next time is in a `Scheduled` or `Unscheduled` beside it."""

    run: ScheduleRun


class Grouped(Struct, frozen=True, gc=False):
    """The state of a group of jobs: who is still missing and what the others returned. Replaces the last."""

    key: bytes
    state: bytes


class Ungrouped(Struct, frozen=True, gc=False):
    key: bytes


class Valued(Struct, frozen=True, gc=False):
    """The last value of a topic; an entry as well. Nobody waits for this line."""

    topic: bytes
    body: list[bytes]
    at: float


class Unvalued(Struct, frozen=True, gc=False):
    """The topic has no last value any more."""

    topic: bytes


class Registered(Struct, frozen=True, gc=False):
    """A node is in the catalog, or its entry changed."""

    entry: NodeEntry


class Deregistered(Struct, frozen=True, gc=False):
    """A node left the catalog."""

    name: bytes


Line = (
    Accepted
    | Started
    | Waiting
    | Ended
    | Forgotten
    | Buried
    | Scheduled
    | Unscheduled
    | Ran
    | Grouped
    | Ungrouped
    | Valued
    | Unvalued
    | Registered
    | Deregistered
)


class Contents(Struct):
    """What a store holds when it is opened. Dead letters and runs stay there: only their number is told."""

    jobs: list[JobEntry]
    outcomes: list[Outcome]
    schedules: list[ScheduleEntry]
    groups: dict[bytes, bytes]
    dead: int = 0
    values: list[Valued] = []
    nodes: list[NodeEntry] = []
