"""Schedules on the bus: set and removed by clients, run when they are due.

A due run is a job that the bus sends to itself.  The job, the note that it ran and the schedule's next time
are lines of one turn and therefore one transaction: a broker that dies has either done all of it or nothing,
and then it does it after the restart.  So wherever there is a store, runs are guaranteed.

What cannot be run now (no room, or the disk takes nothing) stays due and is looked at again; it is late then,
or skipped if it has become too late for that.
"""

from __future__ import annotations

from hashlib import sha1
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from polybus.core import events, ledger, written
from polybus.core.actions import Accept, Refuse, Reschedule
from polybus.core.cron import BadSchedule
from polybus.core.durable import after_written
from polybus.core.envelope import Name, Retries, Seconds, is_name
from polybus.core.intake import BUILT_IN, accept, admit, governed
from polybus.core.lifecycle import BusState
from polybus.core.model import JobOptions, Reason
from polybus.core.schedules import POSTPONED, SKIPPED, Run, Schedules, TooManySchedules
from polybus.core.tables import NO_STORE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from polybus.core.bus import Bus
    from polybus.core.tables import Tables

# A run for which there was no room is tried again after this.
TRY_AGAIN_S: Final = 1.0


class Book:
    """What the bus knows of schedules: its own, and how those are read that leave something open."""

    def __init__(self) -> None:
        self.schedules = Schedules()
        self.timezone = "UTC"
        self.missed = "late"
        # When something is due, by the bus's own clock: asked for in every turn, so it is kept ready.
        self.due_at = inf
        # Jobs of runs that are not on disk yet, by token: the batch they are in, and the run.
        self.unwritten: dict[bytes, tuple[int, Run]] = {}


class ScheduleRefused(Exception):
    """The caller is told this."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _book(bus: Tables) -> Book:
    return cast("Bus", bus).book


def _note(bus: Tables, line: ledger.Line) -> None:
    # Without a store schedules live as long as the broker.
    if bus.store_trouble != NO_STORE:
        bus.lines.append(line)


# -- set and removed --------------------------------------------------------------------------


def on_schedule(bus: Bus, event: events.Schedule, now: float) -> None:
    """A new schedule goes to one of the schedulers that are connected, or is kept here if none is. A removal
    goes to all of them and holds here, too; only they know whether they had it."""
    try:
        if event.remove:
            told = list(bus.schedulers)
            if not remove(bus, event.key, now) and not _remove_job(bus, event.jobs, now) and not told:
                raise ScheduleRefused(Reason.UNKNOWN_SCHEDULE, "no schedule runs this message")
        elif bus.schedulers:
            _check_serving(bus)
            # It is known by what it runs: whoever has it now, it is not us any more.
            entry = _entry_of(bus, event)
            for key in (entry.key, *bus.book.schedules.replaced_by(entry)):
                remove(bus, key, now)
            told = [bus.schedulers[0]]
            bus.schedulers.rotate(-1)
        else:
            entry = add(bus, _entry_of(bus, event), not event.nohaste, now)
            for key in bus.book.schedules.replaced_by(entry):
                remove(bus, key, now)
            told = []
    except ScheduleRefused as error:
        bus.counters.rejected += 1
        refusal = Refuse(
            event.client, event.voice, event.queue, event.request_id, error.reason, str(error), []
        )
        bus.actions.append(refusal)
        return
    for scheduler in told:
        scheduler.spoken_at = now
        bus.actions.append(Reschedule(scheduler, event.message))
    if event.receipt:
        after_written(bus, Accept(event.client, event.voice, b"", event.request_id))


def _remove_job(bus: Bus, jobs: tuple[str, ...], now: float) -> bool:
    """Remove the schedules of the first of these jobs that has any. False if none has."""
    for job in jobs:
        keys = bus.book.schedules.of_job(job)
        for key in keys:
            remove(bus, key, now)
        if keys:
            return True
    return False


def _entry_of(bus: Bus, event: events.Schedule) -> ledger.ScheduleEntry:
    return ledger.ScheduleEntry(
        event.key,
        event.queue,
        event.body,
        replace(event.options, reply_requested=False),
        event.interval_s,
        event.cron,
        timezone=bus.book.timezone,
        runs_left=event.run_count,
        missed=bus.book.missed,
    )


def _check_serving(bus: Tables) -> None:
    if bus.state is not BusState.SERVING:
        raise ScheduleRefused(Reason.DRAINING, "the broker is shutting down; send it again to its successor")


def add(bus: Tables, entry: ledger.ScheduleEntry, haste: bool, now: float) -> ledger.ScheduleEntry:
    """Keep a schedule from now on. Raises `ScheduleRefused`."""
    _check_serving(bus)
    trouble = bus.store_trouble
    if trouble and (trouble != NO_STORE or entry.options.guarantee):
        raise ScheduleRefused(Reason.STORE_UNAVAILABLE, f"the schedule cannot be guaranteed: {trouble}")
    if entry.queue.startswith(BUILT_IN):
        name = entry.queue.decode(errors="replace")
        raise ScheduleRefused(Reason.BAD_SCHEDULE, f"{name} is a service of the broker itself")
    schedules = _book(bus).schedules
    schedules.most = bus.limits.schedules
    try:
        entry = schedules.add(entry, bus.wall_at(now), haste)
    except TooManySchedules as error:
        raise ScheduleRefused(Reason.TOO_MANY_SCHEDULES, str(error)) from None
    except BadSchedule as error:
        raise ScheduleRefused(Reason.BAD_SCHEDULE, str(error)) from None
    _note(bus, ledger.Scheduled(entry))
    _reckon(bus)
    bus.observe("scheduled", now, request_id=entry.key.encode(), service=entry.queue)
    return entry


def remove(bus: Tables, key: str, now: float) -> bool:
    """Keep a schedule no longer. Runs that have begun go on. False if there was none."""
    entry = _book(bus).schedules.get(key)
    if entry is None:
        return False
    _book(bus).schedules.remove(key)
    _note(bus, ledger.Unscheduled(key))
    bus.observe("unscheduled", now, request_id=key.encode(), service=entry.queue)
    return True


def restore(bus: Tables, entries: Iterable[ledger.ScheduleEntry], now: float) -> None:
    """Take up what was kept. What is due by now is run with the first tick."""
    for entry, why in _book(bus).schedules.load(entries):
        key = entry.key.encode()
        bus.observe("schedule_odd", now, request_id=key, service=entry.queue, detail=f"never run: {why}")


# -- due --------------------------------------------------------------------------------------


def _may_run(bus: Tables) -> bool:
    return bus.state is BusState.SERVING and bus.store_trouble in ("", NO_STORE)


def next_at(bus: Bus) -> float:
    """When `run_due` is to be called, by the bus's own clock; it is called every second in any case."""
    return bus.book.due_at


def _reckon(bus: Tables) -> None:
    book = _book(bus)
    book.due_at = book.schedules.next_at() - bus.wall_offset if _may_run(bus) else inf


def run_due(bus: Tables, now: float) -> None:
    """Run what is due. While nothing can be written down nothing is run: it is late afterwards."""
    if _may_run(bus):
        _run(bus, now)
    # The time of day may have been set, or the disk may have become full.
    _reckon(bus)


def _run(bus: Tables, now: float) -> None:
    book = _book(bus)
    while book.unwritten:
        token, (number, _) = next(iter(book.unwritten.items()))
        if number > bus.written:
            break
        del book.unwritten[token]
    wall = bus.wall_at(now)
    for run in book.schedules.due(wall):
        if run.starts_job and not _submit(bus, run, now):
            book.schedules.postpone(run, wall + TRY_AGAIN_S)
            continue
        _note(bus, ledger.Ran(run.record(wall)))
        _note(bus, ledger.Unscheduled(run.entry.key) if run.next is None else ledger.Scheduled(run.next))
        _tell(bus, run, now)


def _submit(bus: Tables, run: Run, now: float) -> bool:
    """Send the job of a run into the bus. False if there is no room for it."""
    entry, job_id = run.entry, run.job_id
    if job_id in bus.desk.known:
        bus.counters.duplicates += 1
        return True
    service, (reason, detail) = admit(bus, bus.desk, entry.queue, b"", len(entry.message))
    if service is None:
        bus.counters.rejected += 1
        facts = {"request_id": job_id, "service": entry.queue, "reason": str(reason), "detail": detail}
        bus.observe("rejected", now, **facts)
        return False
    options = replace(governed(entry.options, service.policy), guarantee=not bus.store_trouble)
    request = accept(bus, bus.desk, None, job_id, service, [entry.message], options, now, inf)
    if options.guarantee:
        _book(bus).unwritten[request.token] = (bus.batch, run)
    return True


def on_unwritten(bus: Bus, event: events.Unwritten, now: float) -> None:
    """A run whose job could not be written down has not been run."""
    written.on_unwritten(bus, event, now)
    book = bus.book
    # The last one first: each takes its schedule back to where it was before it.
    for token in reversed(event.tokens):
        unwritten = book.unwritten.pop(token, None)
        if unwritten is None:
            continue
        _, run = unwritten
        wall = bus.wall_at(now)
        postponed = book.schedules.postpone(run, wall)
        # The note that it ran is on its way to the disk, and has to be followed by the truth.
        what = POSTPONED if postponed else SKIPPED
        _note(bus, ledger.Ran(replace(run.record(wall), what=what, token=b"")))
        if postponed:
            _note(bus, ledger.Scheduled(run.entry))


def _tell(bus: Tables, run: Run, now: float) -> None:
    bus.observe(
        f"schedule_{run.what}",
        now,
        request_id=run.job_id if run.starts_job else run.entry.key.encode(),
        service=run.entry.queue,
        detail=f"{run.missed} missed before" if run.missed else "",
    )


# -- the service polybus.schedule -------------------------------------------------------------


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """What clients of every dialect may ask: `polybus.schedule`."""

    do: Literal["add", "remove", "list"]
    queue: Name | None = None
    message: str = ""
    every_s: float | None = None
    cron: str | None = None
    timezone: str | None = None
    runs: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    haste: bool = False
    missed: Literal["late", "skip"] | None = None
    key: str | None = None
    guarantee: bool = True
    retries: Retries = 0
    timeout_s: Seconds = 0.0
    backoff_s: Seconds | None = None


_QUESTION: Final = msgspec.json.Decoder(Question)


def answer(bus: Tables, body: bytes, now: float) -> bytes:
    """Set, remove or list schedules; for the answer to be true it has to wait for what was noted to be
    written. Raises `ScheduleRefused`."""
    try:
        question = _QUESTION.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = f"the body is no question about schedules: {error}"
        raise ScheduleRefused(Reason.BAD_SCHEDULE, detail) from None
    return msgspec.json.encode(ANSWERS[question.do](bus, question, now))


def _add(bus: Tables, question: Question, now: float) -> Any:
    if question.queue is None:
        raise ScheduleRefused(Reason.BAD_SCHEDULE, "name the queue that gets the job")
    if not is_name(question.queue):
        detail = f"{question.queue[:40]!r} is no name of a queue: 1 to 255 bytes of printable text"
        raise ScheduleRefused(Reason.BAD_SCHEDULE, detail)
    queue, message = question.queue.encode(), question.message.encode()
    book = _book(bus)
    entry = ledger.ScheduleEntry(
        # The same job is the same schedule, as in eMQP: set again it is replaced.
        question.key or sha1(queue + b"\0" + message, usedforsecurity=False).hexdigest(),
        queue,
        message,
        JobOptions(
            reply_requested=False,
            guarantee=question.guarantee,
            retries=question.retries,
            timeout_s=question.timeout_s,
            backoff_s=question.backoff_s,
        ),
        question.every_s,
        question.cron or "",
        question.timezone or book.timezone,
        question.runs,
        missed=question.missed or book.missed,
    )
    entry = add(bus, entry, question.haste, now)
    return {"key": entry.key, "next_at": entry.next_at}


def _remove(bus: Tables, question: Question, now: float) -> Any:
    if not question.key:
        raise ScheduleRefused(Reason.BAD_SCHEDULE, "name the key of the schedule; 'list' tells them")
    return {"removed": remove(bus, question.key, now)}


def _list(bus: Tables, question: Question, now: float) -> Any:
    return rows(bus)


def rows(bus: Tables) -> list[dict[str, Any]]:
    """All schedules, for people and programs; the next one to run comes first."""
    entries = sorted(_book(bus).schedules, key=lambda entry: (entry.next_at, entry.key))
    return [
        {
            "key": entry.key,
            "queue": entry.queue.decode(errors="replace"),
            "message": entry.message.decode(errors="replace"),
            "every_s": entry.interval_s,
            "cron": entry.cron,
            "timezone": entry.timezone,
            "next_at": entry.next_at,
            "runs_left": entry.runs_left,
            "missed": entry.missed,
            "guarantee": entry.options.guarantee,
            "retries": entry.options.retries,
            "timeout_s": entry.options.timeout_s,
            "set_at": entry.created_at,
        }
        for entry in entries
    ]


ANSWERS: Final = {"add": _add, "remove": _remove, "list": _list}
