"""The port of the store: what the scribe asks of it, whatever it is made of.

A store keeps what the lines of `core.ledger` say.  Their meaning, which every implementation shares:

- `Accepted` puts a job there; a job of the same token is replaced, a dead letter or an outcome of it is gone.
- `Started` and `Waiting` change a job that is there; for any other token they mean nothing.
- `Ended` removes the job and keeps its outcome and its dead letter, if it has them.
- `Ran` keeps one run for each due time of a schedule, also when the schedule is gone, but not for ever
  (`RUNS_PER_SCHEDULE`, `RUNS`).
- Lines of one token, key or schedule keep their order; others have nothing to do with each other.

A store belongs to one thread at a time.  What is opened in one thread may be handed to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from polybus.core.ledger import Contents, DeadLetter, JobEntry, Line, Outcome, ScheduleRun, Started, Waiting

# A run is a note for people. Two hundred of one schedule answer "did it run last week" for a daily one; the
# bound on all of them keeps schedules that were made and removed by the thousand from filling the disk.
RUNS_PER_SCHEDULE: Final = 200
RUNS: Final = 100_000


class Store(Protocol):
    def load(self) -> Contents:
        """Everything that the core goes on from. Raises `StoreDamaged` if it is not what was written."""

    def write(self, lines: Sequence[Line]) -> None:
        """All of it or nothing, on disk when this returns. Raises `StoreFull` or `StoreFailed`.

        No lines are a transaction too: a way to ask whether the disk takes anything."""

    def dead(self, limit: int, service: str = "", after: bytes = b"") -> list[DeadLetter]:
        """The oldest dead letters first, at most `limit`; `after` is the token of the last one seen."""

    def dead_letter(self, token: bytes) -> DeadLetter | None: ...

    def dead_beyond(self, kept: int, limit: int) -> list[bytes]:
        """Tokens of the oldest dead letters, as many as there are more than `kept`, and at most `limit`."""

    def outcome(self, token: bytes) -> Outcome | None: ...

    def runs(self, key: str, limit: int) -> list[ScheduleRun]:
        """The newest runs of a schedule, the newest first."""

    def close(self) -> None: ...


def started(job: JobEntry, line: Started) -> JobEntry:
    """The job with a worker: it is not put off any longer."""
    return replace(job, attempt=line.attempt, due_at=0.0, worker=line.worker)


def waiting(job: JobEntry, line: Waiting) -> JobEntry:
    """The job without a worker."""
    return replace(job, attempt=line.attempt, due_at=line.due_at, worker="", history=line.history)
