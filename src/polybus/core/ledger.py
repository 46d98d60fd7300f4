"""What must survive a crash: the entries of the ledger, and the lines that change it.

The core notes lines while it handles events (`Tables.lines`); the server writes all lines of a turn in one
transaction and tells the core when they are on disk (`events.Written`).  Whatever a line promises (a
receipt, a dispatch, an answer) waits for that.  On a start the store gives back what was written, as
`Contents`, and the core goes on from there (`restore`).

Times here are wall-clock seconds, because a monotonic clock means nothing after a restart.

Nothing here refers back to what refers to it, so the collector of garbage need not look at any of it (`gc`).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from polybus.core.model import JobOptions, Reason

# In a history: not an attempt, but the place where an operator queued a dead letter again; and a place where
# failed attempts are left out, as many as its number says.
REVIVED: Final = "revived"
LEFT_OUT: Final = "left_out"
# In the journal: a request that was accepted must not get lost.
GUARANTEED: Final = "guaranteed"
# Every step of a job writes its whole history down, and a job may be tried a million times.
HISTORY: Final = 100

# -- entries ----------------------------------------------------------------------------------


class Attempt(Struct, frozen=True, gc=False):
    """One try that did not succeed."""

    number: int
    at: float
    worker: str
    reason: str
    detail: str = ""


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


class JobEntry(Struct, frozen=True, gc=False):
    """A request that was accepted with a guarantee and has not ended."""

    token: bytes
    # Its client: the name of the link, the identity there, its own id for the request, how to answer it.
    link: str
    identity: bytes
    request_id: bytes
    voice: str
    service: bytes
    body: list[bytes]
    options: JobOptions
    accepted_at: float
    # When it is stale; None means never.
    expires_at: float | None = None
    # Not before this time: a retry that waits, or a delayed job. 0 means at once.
    due_at: float = 0.0
    attempt: int = 0
    # Who has it; empty if nobody.
    worker: str = ""
    history: tuple[Attempt, ...] = ()


class Outcome(Struct, frozen=True, gc=False):
    """How a guaranteed request ended, kept for clients that ask again. `reason` is empty for an answer."""

    token: bytes
    link: str
    identity: bytes
    request_id: bytes
    service: bytes
    at: float
    reason: str = ""
    detail: str = ""
    body: list[bytes] = []


class DeadLetter(Struct, frozen=True, gc=False):
    """A job that was given up, whole, with the reason of every attempt in its history."""

    job: JobEntry
    at: float
    reason: str
    detail: str = ""


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


class Accepted(Struct, frozen=True, gc=False):
    """A job is there. If it was a dead letter or had an outcome before, it has neither any more."""

    job: JobEntry
    # It follows from what was accepted before (the next step of a chain), so nobody can be told that it was
    # not accepted after all: if it cannot be written now, it is written later, like all that has happened.
    promised: bool = False


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


class Ended(Struct, frozen=True, gc=False):
    """It reached its end. `outcome` is kept if somebody may ask for it; `dead` if it was given up."""

    token: bytes
    outcome: Outcome | None = None
    dead: DeadLetter | None = None


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
