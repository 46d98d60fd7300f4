"""The store's twin in memory: the meaning of every line, in one line of Python each.

It forgets everything when the process ends, so a broker with `store = false` does not use it for guarantees:
it is what the other stores are compared with, and what tests of the core and the scribe use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polybus.core import ledger
from polybus.core.ledger import Contents, DeadLetter, JobEntry, Line, Outcome, ScheduleEntry, ScheduleRun
from polybus.store.port import RUNS, RUNS_PER_SCHEDULE, started, waiting


class MemoryStore:
    def __init__(self) -> None:
        self._jobs: dict[bytes, JobEntry] = {}
        self._outcomes: dict[bytes, Outcome] = {}
        self._dead: dict[bytes, DeadLetter] = {}
        self._schedules: dict[str, ScheduleEntry] = {}
        self._groups: dict[bytes, bytes] = {}
        self._runs: dict[tuple[str, float], ScheduleRun] = {}
        self._values: dict[bytes, ledger.Valued] = {}
        self._nodes: dict[bytes, ledger.NodeEntry] = {}

    def load(self) -> Contents:
        return Contents(
            jobs=list(self._jobs.values()),
            outcomes=list(self._outcomes.values()),
            schedules=list(self._schedules.values()),
            groups=dict(self._groups),
            dead=len(self._dead),
            values=list(self._values.values()),
            nodes=list(self._nodes.values()),
        )

    def write(self, lines: Sequence[Line]) -> None:
        for line in lines:
            _APPLY[type(line)](self, line)

    def dead(self, limit: int, service: str = "", after: bytes = b"") -> list[DeadLetter]:
        tokens = list(self._dead)
        if after:
            tokens = tokens[tokens.index(after) + 1 :] if after in self._dead else []
        wanted = service.encode()
        found = [self._dead[token] for token in tokens]
        return [letter for letter in found if not wanted or letter.job.service == wanted][:limit]

    def dead_letter(self, token: bytes) -> DeadLetter | None:
        return self._dead.get(token)

    def dead_beyond(self, kept: int, limit: int) -> list[bytes]:
        return list(self._dead)[: max(0, min(limit, len(self._dead) - kept))]

    def outcome(self, token: bytes) -> Outcome | None:
        return self._outcomes.get(token)

    def runs(self, key: str, limit: int) -> list[ScheduleRun]:
        return [run for run in reversed(self._runs.values()) if run.key == key][:limit]

    def close(self) -> None:
        pass

    # -- lines --------------------------------------------------------------------------------

    def _accepted(self, line: ledger.Accepted) -> None:
        token = line.token
        self._jobs[token] = line.job
        self._dead.pop(token, None)
        self._outcomes.pop(token, None)

    def _started(self, line: ledger.Started) -> None:
        if job := self._jobs.get(line.token):
            self._jobs[line.token] = started(job, line)

    def _waiting(self, line: ledger.Waiting) -> None:
        if job := self._jobs.get(line.token):
            self._jobs[line.token] = waiting(job, line)

    def _ended(self, line: ledger.Ended) -> None:
        self._jobs.pop(line.token, None)
        if line.outcome is not None:
            self._outcomes[line.token] = line.outcome
        if line.dead is not None:
            self._dead[line.token] = line.dead

    def _forgotten(self, line: ledger.Forgotten) -> None:
        for token in line.tokens:
            self._outcomes.pop(token, None)

    def _buried(self, line: ledger.Buried) -> None:
        for token in line.tokens:
            self._dead.pop(token, None)

    def _scheduled(self, line: ledger.Scheduled) -> None:
        self._schedules[line.entry.key] = line.entry

    def _unscheduled(self, line: ledger.Unscheduled) -> None:
        self._schedules.pop(line.key, None)

    def _ran(self, line: ledger.Ran) -> None:
        run = line.run
        self._runs[run.key, run.due_at] = run
        same = [kept for kept in self._runs if kept[0] == run.key]
        if len(same) > RUNS_PER_SCHEDULE:
            del self._runs[same[0]]
        if len(self._runs) > RUNS:
            del self._runs[next(iter(self._runs))]

    def _grouped(self, line: ledger.Grouped) -> None:
        self._groups[line.key] = line.state

    def _ungrouped(self, line: ledger.Ungrouped) -> None:
        self._groups.pop(line.key, None)

    def _valued(self, line: ledger.Valued) -> None:
        self._values[line.topic] = line

    def _unvalued(self, line: ledger.Unvalued) -> None:
        self._values.pop(line.topic, None)

    def _registered(self, line: ledger.Registered) -> None:
        self._nodes[line.entry.name] = line.entry

    def _deregistered(self, line: ledger.Deregistered) -> None:
        self._nodes.pop(line.name, None)


_APPLY: dict[type[Any], Callable[[MemoryStore, Any], None]] = {
    ledger.Accepted: MemoryStore._accepted,
    ledger.Started: MemoryStore._started,
    ledger.Waiting: MemoryStore._waiting,
    ledger.Ended: MemoryStore._ended,
    ledger.Forgotten: MemoryStore._forgotten,
    ledger.Buried: MemoryStore._buried,
    ledger.Scheduled: MemoryStore._scheduled,
    ledger.Unscheduled: MemoryStore._unscheduled,
    ledger.Ran: MemoryStore._ran,
    ledger.Grouped: MemoryStore._grouped,
    ledger.Ungrouped: MemoryStore._ungrouped,
    ledger.Valued: MemoryStore._valued,
    ledger.Unvalued: MemoryStore._unvalued,
    ledger.Registered: MemoryStore._registered,
    ledger.Deregistered: MemoryStore._deregistered,
}
