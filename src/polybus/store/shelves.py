"""All tables together: what the lines mean for them, and what a store's rows mean as contents.

No database is touched here.  `note` gathers a transaction, `settle` or `forget` ends it.  The twin in
`memory.py` says the same of whole entries; here an entry is never read again to be changed, so what happens
to a job after it was accepted is kept beside it (`started`, `delay`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polybus.core import ledger
from polybus.core.ledger import Contents, JobEntry, Line
from polybus.core.rows import Accepted, Ended
from polybus.store.codec import CODECS, Delay, Group
from polybus.store.port import RUNS, RUNS_PER_SCHEDULE, started, waiting
from polybus.store.shelf import Shelf


class Shelves:
    def __init__(self) -> None:
        self.job = Shelf("job")
        self.started = Shelf("started")
        self.delay = Shelf("delay")
        self.outcome = Shelf("outcome")
        self.dead = Shelf("dead")
        self.schedule = Shelf("schedule")
        self.run = Shelf("run")
        self.grouping = Shelf("grouping")
        self.last_value = Shelf("last_value")
        self.node = Shelf("node")
        self.by_name: dict[str, Shelf] = {name: getattr(self, name) for name in CODECS}
        # Due times of the runs that are kept, by schedule, in order; and as the transaction leaves them.
        self._due: dict[str, dict[float, None]] = {}
        self._due_next: dict[str, dict[float, None]] = {}

    # -- a transaction ------------------------------------------------------------------------

    def note(self, lines: Sequence[Line]) -> None:
        for line in lines:
            # The two that every job costs are not looked up.
            if type(line) is Accepted:
                self._accepted(line)
            elif type(line) is Ended:
                self._ended(line)
            else:
                _NOTE[type(line)](self, line)

    def changed(self) -> Iterator[Shelf]:
        return (shelf for shelf in self.by_name.values() if shelf.is_changed)

    def sums(self) -> dict[str, tuple[int, int]]:
        return {name: shelf.sums for name, shelf in self.by_name.items()}

    def settle(self) -> None:
        for shelf in self.changed():
            shelf.settle()
        self._due.update(self._due_next)
        self._due_next.clear()

    def forget(self) -> None:
        for shelf in self.changed():
            shelf.forget()
        self._due_next.clear()

    # -- lines --------------------------------------------------------------------------------

    def _accepted(self, line: Accepted) -> None:
        token = line.token
        self.job.put(token, line.packed())
        if line.is_new:
            return
        self.started.remove(token)
        self.delay.remove(token)
        # A dead letter that is tried again is not dead any more, and its outcome is not the last word.
        self.dead.remove(token)
        self.outcome.remove(token)

    def _started(self, line: ledger.Started) -> None:
        if self.job.holds(line.token):
            self.started.put(line.token, line)

    def _waiting(self, line: ledger.Waiting) -> None:
        token = line.token
        if self.job.holds(token):
            self.started.remove(token)
            self.delay.put(token, Delay(token, line.attempt, line.due_at, line.history))

    def _ended(self, line: Ended) -> None:
        token = line.token
        self.job.remove(token)
        self.started.remove(token)
        self.delay.remove(token)
        outcome = line.packed()
        if outcome is not None:
            self.outcome.put(token, outcome)
        if line.dead is not None:
            self.dead.put(token, line.dead)

    def _forgotten(self, line: ledger.Forgotten) -> None:
        outcome = self.outcome
        for token in line.tokens:
            outcome.remove(token)

    def _buried(self, line: ledger.Buried) -> None:
        for token in line.tokens:
            self.dead.remove(token)

    def _scheduled(self, line: ledger.Scheduled) -> None:
        self.schedule.put(line.entry.key, line.entry)

    def _unscheduled(self, line: ledger.Unscheduled) -> None:
        self.schedule.remove(line.key)

    def _ran(self, line: ledger.Ran) -> None:
        run = line.run
        self.run.put((run.key, run.due_at), run)
        due = self._due_of(run.key)
        due[run.due_at] = None
        if len(due) > RUNS_PER_SCHEDULE:
            self._drop_run(run.key, next(iter(due)))
        if self.run.size > RUNS:
            self._drop_run(*self.run.oldest())

    def _drop_run(self, key: str, due_at: float) -> None:
        del self._due_of(key)[due_at]
        self.run.remove((key, due_at))

    def _due_of(self, key: str) -> dict[float, None]:
        """The due times of a schedule, as a copy that this transaction may change."""
        due = self._due_next.get(key)
        if due is None:
            due = self._due_next[key] = dict(self._due.get(key, {}))
        return due

    def _grouped(self, line: ledger.Grouped) -> None:
        self.grouping.put(line.key, Group(line.key, line.state))

    def _ungrouped(self, line: ledger.Ungrouped) -> None:
        self.grouping.remove(line.key)

    def _valued(self, line: ledger.Valued) -> None:
        self.last_value.put(line.topic, line)

    def _unvalued(self, line: ledger.Unvalued) -> None:
        self.last_value.remove(line.topic)

    def _registered(self, line: ledger.Registered) -> None:
        self.node.put(line.entry.name, line.entry)

    def _deregistered(self, line: ledger.Deregistered) -> None:
        self.node.remove(line.name)

    # -- opening and asking -------------------------------------------------------------------

    def contents(self, entries: dict[str, list[Any]]) -> Contents:
        """What the entries of all tables say together. Raises KeyError if they do not fit together."""
        jobs: dict[bytes, JobEntry] = {job.token: job for job in entries["job"]}
        for delay in entries["delay"]:
            line = ledger.Waiting(delay.token, delay.attempt, delay.due_at, delay.history)
            jobs[delay.token] = waiting(jobs[delay.token], line)
        for start in entries["started"]:
            jobs[start.token] = started(jobs[start.token], start)
        for run in entries["run"]:
            self._due.setdefault(run.key, {})[run.due_at] = None
        return Contents(
            jobs=list(jobs.values()),
            outcomes=entries["outcome"],
            schedules=entries["schedule"],
            groups={group.key: group.state for group in entries["grouping"]},
            dead=len(entries["dead"]),
            values=entries["last_value"],
            nodes=entries["node"],
        )

    def newest_runs(self, key: str, limit: int) -> list[tuple[str, float]]:
        newest = reversed(self._due.get(key, {}))
        return [(key, due_at) for _, due_at in zip(range(limit), newest, strict=False)]


_NOTE: dict[type[Any], Callable[[Shelves, Any], None]] = {
    ledger.Started: Shelves._started,
    ledger.Waiting: Shelves._waiting,
    ledger.Forgotten: Shelves._forgotten,
    ledger.Buried: Shelves._buried,
    ledger.Scheduled: Shelves._scheduled,
    ledger.Unscheduled: Shelves._unscheduled,
    ledger.Ran: Shelves._ran,
    ledger.Grouped: Shelves._grouped,
    ledger.Ungrouped: Shelves._ungrouped,
    ledger.Valued: Shelves._valued,
    ledger.Unvalued: Shelves._unvalued,
    ledger.Registered: Shelves._registered,
    ledger.Deregistered: Shelves._deregistered,
}
