"""Entries and lines of the ledger for tests: made by number, or by hypothesis; and whole stores compared."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from polybus.core import ledger
from polybus.core.ledger import (
    Accepted,
    Attempt,
    Buried,
    Contents,
    DeadLetter,
    Deregistered,
    Ended,
    Forgotten,
    Grouped,
    JobEntry,
    Line,
    NodeEntry,
    Outcome,
    Ran,
    Registered,
    Scheduled,
    ScheduleEntry,
    ScheduleRun,
    Started,
    Ungrouped,
    Unscheduled,
    Unvalued,
    Valued,
    Waiting,
)
from polybus.core.model import JobOptions
from polybus.store.port import Store

OPTIONS = JobOptions(guarantee=True, retries=3)


def token(number: int) -> bytes:
    return b"0123abcd-%x" % number


def job(number: int, service: bytes = b"email", body: bytes = b"body", **changes: Any) -> JobEntry:
    entry = JobEntry(
        token=token(number),
        link="emqp",
        identity=b"\0\1client",
        request_id=b"request-%d" % number,
        voice="emqp",
        service=service,
        body=[body, b"%d" % number],
        options=OPTIONS,
        accepted_at=1.7e9 + number,
        expires_at=1.7e9 + number + 300,
    )
    return ledger.JobEntry(**{**{name: getattr(entry, name) for name in entry.__struct_fields__}, **changes})


def outcome(number: int, body: bytes = b"true") -> Outcome:
    who = job(number)
    return Outcome(who.token, who.link, who.identity, who.request_id, who.service, at=1.8e9, body=[body])


def history(attempts: int) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(n + 1, 1.7e9 + n, f"worker-{n}", "failed", "ValueError: no") for n in range(attempts)
    )


def letter(number: int, service: bytes = b"email") -> DeadLetter:
    return DeadLetter(job(number, service, history=history(3), attempt=3), 1.8e9 + number, "failed", "no")


def schedule(key: str, next_at: float = 0.0) -> ScheduleEntry:
    return ScheduleEntry(key, b"email", b'["run", {}]', cron="*/5 * * * *", next_at=next_at, created_at=1.7e9)


def run(key: str, due_at: float) -> ScheduleRun:
    return ScheduleRun(key, due_at, due_at + 0.5, "ran", token=token(int(due_at)))


def node(name: bytes, heartbeat_s: float = 1.0) -> NodeEntry:
    return NodeEntry(name, b'{"ip": "127.0.0.1", "port": 1}', heartbeat_s, "document.none.text", 1.7e9)


def some_life(chance: random.Random, steps: int) -> list[list[Line]]:
    """Transactions of a broker's life: jobs come, start, wait, end and die; schedules run."""
    transactions: list[list[Line]] = []
    alive: list[int] = []
    number = 0
    for step in range(steps):
        lines: list[Line] = []
        for _ in range(chance.randint(1, 12)):
            number += 1
            body = chance.randbytes(chance.choice((0, 20, 200, 3000) if chance.random() < 0.9 else (20_000,)))
            lines.append(Accepted(job(number, chance.choice((b"email", b"image")), body)))
            alive.append(number)
        for _ in range(min(len(alive), chance.randint(0, 8))):
            known = chance.choice(alive)
            lines.append(Started(token(known), 1, f"worker-{chance.randint(1, 4)}"))
            if chance.random() < 0.2:
                lines.append(Waiting(token(known), 1, 1.9e9, history(1)))
        for _ in range(min(len(alive), chance.randint(0, 12))):
            known = alive.pop(chance.randrange(len(alive)))
            dead = letter(known) if chance.random() < 0.2 else None
            lines.append(Ended(token(known), None if dead else outcome(known, chance.randbytes(30)), dead))
        if chance.random() < 0.3:
            lines.append(Forgotten(tuple(token(chance.randint(1, number)) for _ in range(3))))
            lines.append(Buried((token(chance.randint(1, number)),)))
        key = f"schedule-{chance.randint(1, 5)}"
        lines += [Ran(run(key, float(step))), Scheduled(schedule(key, float(step)))]
        if chance.random() < 0.2:
            lines.append(Grouped(b"group-%d" % chance.randint(1, 5), chance.randbytes(50)))
            lines.append(Ungrouped(b"group-%d" % chance.randint(1, 5)))
        lines.append(Valued(b"topic/%d" % (step % 20), [b"value %d" % step * (step % 3)], float(step)))
        if step % 7 == 6:
            lines.append(Unvalued(b"topic/%d" % (step * 3 % 20)))
            lines.append(Deregistered(b"node-%d" % (step * 3 % 20)))
        lines.append(Registered(node(b"node-%d" % (step % 20), step + 1.0)))
        transactions.append(lines)
    return transactions


# -- everything that a store says ---------------------------------------------------------------


def everything(store: Store, contents: Contents | None = None) -> tuple[Any, ...]:
    """What can be got out of a store, to compare it with another."""
    contents = store.load() if contents is None else contents
    dead = store.dead(1_000_000)
    assert len(dead) == contents.dead
    runs = {entry.key: store.runs(entry.key, 1_000) for entry in contents.schedules}
    return (
        contents.jobs,
        contents.outcomes,
        contents.schedules,
        contents.groups,
        dead,
        runs,
        contents.values,
        contents.nodes,
    )


# -- by hypothesis ----------------------------------------------------------------------------

NUMBERS = st.integers(1, 8)
TOKENS = NUMBERS.map(token)
KEYS = st.sampled_from(["a", "b", "ü"])
DUE = st.integers(0, 9).map(float)
JOBS = st.builds(
    job,
    NUMBERS,
    st.sampled_from([b"email", b"image"]),
    st.binary(max_size=40),
    due_at=DUE,
    attempt=st.integers(0, 3),
    options=st.builds(
        JobOptions,
        guarantee=st.booleans(),
        backoff_s=st.none() | st.floats(0, 10),
        then=st.lists(st.binary(max_size=5), max_size=2).map(tuple),
        group=st.binary(max_size=3),
    ),
)
HISTORIES = st.integers(0, 3).map(history)
LINES: st.SearchStrategy[Line] = st.one_of(
    st.builds(Accepted, JOBS),
    st.builds(Started, TOKENS, st.integers(1, 3), st.sampled_from(["worker-1", "worker-2"])),
    st.builds(Waiting, TOKENS, st.integers(1, 3), DUE, HISTORIES),
    NUMBERS.flatmap(
        lambda n: st.builds(
            Ended, st.just(token(n)), st.none() | st.just(outcome(n)), st.none() | st.just(letter(n))
        )
    ),
    st.builds(Forgotten, st.lists(TOKENS, max_size=3).map(tuple)),
    st.builds(Buried, st.lists(TOKENS, max_size=3).map(tuple)),
    st.builds(Scheduled, st.builds(schedule, KEYS, DUE)),
    st.builds(Unscheduled, KEYS),
    st.builds(Ran, st.builds(run, KEYS, DUE)),
    st.builds(Grouped, st.sampled_from([b"g", b"h"]), st.binary(max_size=10)),
    st.builds(Ungrouped, st.sampled_from([b"g", b"h"])),
    st.builds(
        Valued, st.sampled_from([b"t", b"t/1", b"u"]), st.lists(st.binary(max_size=9), max_size=2), DUE
    ),
    st.builds(Unvalued, st.sampled_from([b"t", b"t/1", b"u"])),
    st.builds(Registered, st.builds(node, st.sampled_from([b"n", b"m"]), DUE)),
    st.builds(Deregistered, st.sampled_from([b"n", b"m"])),
)
