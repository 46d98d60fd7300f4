"""Schedules on the bus: who keeps them, when clients are told, what is written down together."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from polybus.core import actions as act
from polybus.core import events, ledger, scheduling
from polybus.core.job_views import jobs
from polybus.core.model import Heartbeat, JobOptions, Limits, QueuePolicy, Reason
from polybus.core.scheduling import ScheduleRefused
from polybus.core.tables import NO_STORE
from polybus.store.memory import MemoryStore
from support.clockwork import Clockwork

CLIENT = (1, b"client")
SCHEDULER = (1, b"scheduler")
WALL = 1_790_000_000.0
GUARANTEED = JobOptions(reply_requested=False, guarantee=True)
MINUTE = events.Schedule(
    CLIENT, "voice", b"m-1", "message", False, "key", b"mail", b"job", GUARANTEED, 60.0, nohaste=True
)


@pytest.fixture
def clock() -> Clockwork:
    made = Clockwork(MemoryStore(), WALL)
    made.worker("mail", "other")
    made.taken.clear()
    return made


def ask(clock: Clockwork, **question: Any) -> Any:
    return msgspec.json.decode(scheduling.answer(clock.bus, msgspec.json.encode(question), clock.now))


def ran(clock: Clockwork) -> list[tuple[str, float, int]]:
    """What was written down about runs."""
    return [(run.what, run.due_at - WALL, run.missed) for run in clock.runs]


def observed(clock: Clockwork) -> list[tuple[str, bytes, bytes, str, str]]:
    """What was told about schedules since the last look, to somebody who listens."""
    return [
        (told.what, told.request_id, told.service, told.reason, told.detail)
        for told in clock.actions(act.Observed)
        if "schedule" in told.what or told.what == "rejected"
    ]


# -- kept here --------------------------------------------------------------------------------


def test_the_client_is_told_when_it_is_on_disk(clock: Clockwork) -> None:
    clock.bus.handle(MINUTE, clock.now)
    clock.settle(write=False)
    assert clock.actions(act.Accept) == []
    clock.settle()
    assert clock.actions(act.Accept) == [act.Accept(CLIENT, "voice", b"", b"m-1")]
    assert [entry.key for entry in clock.store.load().schedules] == ["key"]


def test_a_client_that_wants_no_receipt_gets_none(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, receipt=False))
    assert clock.actions(act.Accept) == []
    assert [entry.key for entry in clock.store.load().schedules] == ["key"]


def test_listeners_are_told(clock: Clockwork) -> None:
    clock.bus.listen(True, None)
    clock.do(MINUTE)
    assert observed(clock) == [("scheduled", b"key", b"mail", "", "")]
    clock.pass_time(60)
    first, second = (b"key@%d.%d" % ((WALL + after) * 1000, WALL * 1000) for after in (60, 180))
    assert observed(clock) == [("schedule_ran", first, b"mail", "", "")]
    clock.now += 130
    clock.tick()
    assert observed(clock) == [("schedule_late", second, b"mail", "", "1 missed before")]
    clock.set_clock(-3600)
    clock.tick()
    # It runs nothing now: there is no job to be named.
    assert observed(clock) == [("schedule_moved", b"key", b"mail", "", "")]
    clock.do(events.Schedule(CLIENT, "voice", b"m-2", "message", True, "key"))
    assert observed(clock) == [("unscheduled", b"key", b"mail", "", "")]


def test_a_run_is_a_job_and_its_note_and_the_next_time_in_one_turn(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.now += 60
    clock.bus.handle(events.Tick(), clock.now)
    accepted, note, then = clock.bus.lines
    assert isinstance(accepted, ledger.Accepted)
    assert (accepted.job.service, accepted.job.body) == (b"mail", [b"job"])
    assert isinstance(note, ledger.Ran)
    assert note.run.token == accepted.job.request_id
    assert isinstance(then, ledger.Scheduled)
    assert then.entry.next_at == WALL + 120
    # Nobody gets the job before all that is written.
    clock.settle(write=False)
    assert clock.started == []
    clock.settle()
    assert clock.started == [note.run.token]
    assert ran(clock) == [("ran", 60, 0)]


def test_haste_is_the_default_of_the_protocol(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, nohaste=False))
    assert scheduling.next_at(clock.bus) <= clock.now
    clock.tick()
    assert ran(clock) == [("ran", 0, 0)]
    clock.pass_time(60)
    assert ran(clock) == [("ran", 0, 0), ("ran", 60, 0)]


def test_the_last_run_ends_it(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, run_count=2))
    clock.pass_time(1000)
    assert len(clock.started) == 2
    assert clock.store.load().schedules == []


def test_removed_it_runs_no_more(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.pass_time(60)
    clock.do(events.Schedule(CLIENT, "voice", b"m-2", "message", True, "key"))
    assert [told.request_id for told in clock.actions(act.Accept)] == [b"m-1", b"m-2"]
    clock.pass_time(600)
    assert len(clock.started) == 1
    assert clock.store.load().schedules == []
    # What is not there cannot be removed.
    clock.do(events.Schedule(CLIENT, "voice", b"m-3", "message", True, "key"))
    assert clock.actions(act.Accept) == []
    (refusal,) = clock.actions(act.Refuse)
    assert (refusal.request_id, refusal.reason) == (b"m-3", "unknown_schedule")
    assert refusal.detail == "no schedule runs this message"


def test_removed_by_the_job_that_it_runs(clock: Clockwork) -> None:
    """The first of the jobs that any schedule runs, in all queues."""
    clock.bus.book.schedules.identify_by(lambda entry: (entry.message.decode(), entry.queue))
    for key, queue, job in (("a", b"mail", b"x"), ("b", b"other", b"x"), ("c", b"mail", b"y")):
        clock.do(replace(MINUTE, key=key, queue=queue, body=job))
    clock.actions(act.Accept)
    clock.do(events.Schedule(CLIENT, "voice", b"m-2", "message", True, "no key", jobs=("?", "x", "y")))
    assert [told.request_id for told in clock.actions(act.Accept)] == [b"m-2"]
    assert [entry.key for entry in clock.store.load().schedules] == ["c"]
    clock.do(events.Schedule(CLIENT, "voice", b"m-3", "message", True, "no key", jobs=("?",)))
    assert [refusal.request_id for refusal in clock.actions(act.Refuse)] == [b"m-3"]
    assert [entry.key for entry in clock.store.load().schedules] == ["c"]


def test_the_same_job_in_the_same_queue_is_the_same_schedule(clock: Clockwork) -> None:
    clock.bus.book.schedules.identify_by(lambda entry: (entry.message.decode(), entry.queue))
    clock.do(MINUTE)
    clock.do(replace(MINUTE, key="other queue", queue=b"other"))
    clock.do(replace(MINUTE, key="new"))
    assert {entry.key for entry in clock.store.load().schedules} == {"other queue", "new"}
    # And if somebody else keeps it from now on.
    clock.do(events.SchedulerUp(SCHEDULER, "scheduler", Heartbeat(0.0)))
    clock.do(replace(MINUTE, key="newer"))
    assert {entry.key for entry in clock.store.load().schedules} == {"other queue"}


def test_a_job_of_the_same_id_is_not_run_once_more(clock: Clockwork) -> None:
    clock.do(MINUTE)
    job_id = b"key@%d.%d" % ((WALL + 60) * 1000, WALL * 1000)
    body = msgspec.json.encode({"service": "mail", "id": job_id.decode()})
    clock.do(events.Submit(CLIENT, "voice", b"1", b"polybus.submit", [body]))
    assert clock.started == [job_id]
    clock.pass_time(60)
    assert clock.started == [job_id]
    assert clock.bus.counters.duplicates == 1
    # It counts as run.
    assert ran(clock) == [("ran", 60, 0)]


def test_its_jobs_do_not_grow_stale(clock: Clockwork) -> None:
    clock.bus.change_limits(Limits(request_ttl_s=1.0))
    clock.do(replace(MINUTE, queue=b"slow", run_count=1))
    clock.pass_time(1000)
    clock.worker("slow")
    assert len(clock.started) == 1


def test_the_options_of_the_schedule_are_those_of_its_jobs(clock: Clockwork) -> None:
    clock.bus.change_policies([("mail", QueuePolicy(retries=7, timeout_s=9.0))])
    clock.do(replace(MINUTE, options=replace(GUARANTEED, timeout_s=5.0, other=("x",))))
    clock.now += 60
    clock.bus.handle(events.Tick(), clock.now)
    (line,) = [line for line in clock.bus.lines if isinstance(line, ledger.Accepted)]
    options = line.job.options
    assert (options.timeout_s, options.retries, options.other, options.guarantee) == (5.0, 7, ("x",), True)


def test_cron_is_read_in_the_broker_s_zone(clock: Clockwork) -> None:
    clock.bus.book.timezone = "Europe/Berlin"
    clock.bus.book.missed = "skip"
    clock.do(replace(MINUTE, interval_s=None, cron="0 12 * * *"))
    (entry,) = clock.bus.book.schedules
    assert (entry.timezone, entry.missed) == ("Europe/Berlin", "skip")


@pytest.mark.parametrize(
    ("change", "reason", "word"),
    [
        ({"interval_s": None}, Reason.BAD_SCHEDULE, "either"),
        ({"interval_s": None, "cron": "61 * * * *"}, Reason.BAD_SCHEDULE, "minute"),
        ({"run_count": 0}, Reason.BAD_SCHEDULE, "1 or more"),
        ({"queue": b"polybus.submit"}, Reason.BAD_SCHEDULE, "polybus.submit is a service of the broker"),
        ({"queue": b"polybus.\xff"}, Reason.BAD_SCHEDULE, "polybus.\ufffd is a service of the broker"),
    ],
)
def test_what_is_refused_is_told(clock: Clockwork, change: dict[str, Any], reason: Reason, word: str) -> None:
    clock.do(replace(MINUTE, **change))
    (refusal,) = clock.actions(act.Refuse)
    queue = change.get("queue", b"mail")
    assert refusal == act.Refuse(CLIENT, "voice", queue, b"m-1", reason, refusal.detail, [])
    assert word in refusal.detail
    assert clock.bus.counters.rejected == 1
    assert clock.actions(act.Accept) == []
    assert clock.store.load().schedules == []


def test_there_is_room_for_so_many(clock: Clockwork) -> None:
    clock.bus.change_limits(Limits(schedules=1))
    clock.do(MINUTE)
    clock.do(replace(MINUTE, key="other"))
    (refusal,) = clock.actions(act.Refuse)
    assert refusal.reason is Reason.TOO_MANY_SCHEDULES


def test_a_broker_that_leaves_takes_none_and_runs_none(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.do(events.Drain())
    clock.do(replace(MINUTE, key="other"))
    (refusal,) = clock.actions(act.Refuse)
    assert refusal.reason is Reason.DRAINING
    clock.pass_time(120)
    assert ran(clock) == []
    clock.crash()
    clock.worker("mail")
    clock.tick()
    assert ran(clock) == [("late", 120, 1)]


# -- no store, or one that fails --------------------------------------------------------------


def test_without_a_store_nothing_is_guaranteed(clock: Clockwork) -> None:
    clock.bus.store_trouble = NO_STORE
    clock.do(MINUTE)
    (refusal,) = clock.actions(act.Refuse)
    assert refusal.reason is Reason.STORE_UNAVAILABLE
    clock.do(replace(MINUTE, options=JobOptions(reply_requested=False)))
    assert len(clock.actions(act.Accept)) == 1
    # It is a job all the same, though it asks for nothing special.
    clock.do(replace(MINUTE, key="asleep", queue=b"nobody", options=JobOptions(), nohaste=False))
    ask(clock, do="add", queue="nobody", every_s=60, haste=True, guarantee=False)
    clock.tick()
    listed = jobs(clock.bus, clock.now, str, "", "", 10)
    assert [(job["service"], job["guarantee"]) for job in listed] == [("nobody", False)] * 2
    # A rule of its queue does not make it more than the broker can promise.
    clock.bus.change_policies([("mail", QueuePolicy(guarantee=True))])
    clock.pass_time(60)
    assert len(clock.started) == 1
    assert clock.bus.lines == []
    assert clock.runs == []
    # Nothing waits for a disk that is not there.
    assert clock.bus.book.unwritten == {}


def test_while_nothing_can_be_written_nothing_is_run(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.do(events.StoreHealth("the disk is full"))
    clock.do(replace(MINUTE, key="other"))
    (refusal,) = clock.actions(act.Refuse)
    assert (refusal.reason, "full" in refusal.detail) == (Reason.STORE_UNAVAILABLE, True)
    # And nobody looks at the clock in vain.
    clock.now += 600
    clock.tick()
    assert scheduling.next_at(clock.bus) > clock.now
    assert clock.started == []
    clock.do(events.StoreHealth(""))
    clock.tick()
    assert ran(clock) == [("late", 600, 9)]


def test_a_run_that_could_not_be_written_is_run_later(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, options=replace(GUARANTEED, retries=3)))
    clock.broken = "the disk is full"
    clock.pass_time(60)
    assert clock.started == []
    assert clock.bus.counters.dead == 0
    clock.pass_time(30)
    clock.repair()
    assert [run.what for run in clock.store.runs("key", 10)] == ["postponed"]
    clock.tick()
    # All three notes are of the same due time, so the last one stays.
    assert ran(clock) == [("ran", 60, 0), ("postponed", 60, 0), ("late", 60, 0)]
    assert clock.started == [clock.runs[-1].token]
    assert [run.what for run in clock.store.runs("key", 10)] == ["late"]
    clock.pass_time(30)
    assert ran(clock)[-1] == ("ran", 120, 0)
    assert len(clock.started) == len(set(clock.started)) == 2


def test_what_is_not_guaranteed_is_not_taken_by_a_broken_disk_either(clock: Clockwork) -> None:
    clock.do(events.StoreHealth("the disk is full"))
    clock.do(replace(MINUTE, options=JobOptions(reply_requested=False)))
    (refusal,) = clock.actions(act.Refuse)
    assert refusal.reason is Reason.STORE_UNAVAILABLE


def test_a_run_that_waits_for_the_disk_while_time_passes_is_run_later(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.do(replace(MINUTE, key="other", interval_s=59.0))
    clock.now += 59
    clock.bus.handle(events.Tick(), clock.now)
    other = clock.bus.take_lines()
    clock.now += 1
    clock.bus.handle(events.Tick(), clock.now)
    waiting = clock.bus.take_lines()
    # The first is on disk, and no longer remembered for that; the second still waits.
    clock._write(*other)
    clock.bus.handle(events.Tick(), clock.now)
    assert [run.entry.key for _, run in clock.bus.book.unwritten.values()] == ["key"]
    clock.broken = "the disk is full"
    clock._write(*waiting)
    clock.now += 10
    clock.repair()
    clock.tick()
    assert [(run.key, run.what) for run in clock.runs] == [
        ("other", "ran"),
        ("key", "ran"),
        ("key", "postponed"),
        ("key", "late"),
    ]
    assert clock.started == [clock.runs[0].token, clock.runs[-1].token]
    clock.tick()
    assert clock.bus.book.unwritten == {}


def test_a_run_that_could_not_be_written_with_others_is_run_later(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.now += 60
    clock.bus.handle(events.Tick(), clock.now)
    clock.bus.handle(
        events.Submit(CLIENT, "voice", b"1", b"mail", [b"x"], JobOptions(guarantee=True)), clock.now
    )
    clock.broken = "the disk is full"
    clock.settle()
    clock.repair()
    assert [(run.what, run.token) for run in clock.store.runs("key", 10)] == [("postponed", b"")]
    clock.tick()
    assert clock.started == [clock.runs[-1].token]


def test_runs_that_could_not_be_written_are_taken_back_to_before_the_first(clock: Clockwork) -> None:
    clock.do(MINUTE)
    for _ in range(3):
        clock.now += 60
        clock.bus.handle(events.Tick(), clock.now)
    clock.broken = "the disk is full"
    clock.settle()
    # A broker that dies now, and another that goes on, both know that nothing was run.
    clock.broken = ""
    clock._write(*clock.bus.take_lines())
    assert [entry.next_at for entry in clock.store.load().schedules] == [WALL + 60]
    clock.repair()
    clock.tick()
    assert ran(clock)[-1] == ("late", 180, 2)
    assert len(clock.started) == 1


def test_a_run_that_could_not_be_written_and_was_removed_is_skipped(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.now += 60
    clock.bus.handle(events.Tick(), clock.now)
    clock.broken = "the disk is full"
    scheduling.remove(clock.bus, "key", clock.now)
    clock.settle()
    clock.repair()
    clock.pass_time(600)
    assert clock.started == []
    assert [run.what for run in clock.store.runs("key", 10)] == ["skipped"]
    assert clock.store.load().schedules == []


def test_dying_with_a_broken_disk_loses_no_run(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, run_count=1))
    clock.broken = "the disk is full"
    clock.pass_time(80)
    clock.broken = ""
    clock.crash()
    clock.worker("mail")
    clock.pass_time(10)
    assert ran(clock) == [("late", 60, 0)]
    assert len(clock.started) == 1
    assert clock.store.load().schedules == []


def test_a_queue_without_room_holds_no_other_schedule_back(clock: Clockwork) -> None:
    clock.bus.limits = replace(clock.bus.limits, queue_length=1)
    clock.do(replace(MINUTE, queue=b"full"))
    clock.do(replace(MINUTE, key="other"))
    clock.do(events.Submit(CLIENT, "voice", b"1", b"full", [b"x"]))
    clock.now += 60
    clock.tick()
    assert [run.key for run in clock.runs] == ["other"]


def test_where_there_is_no_room_it_is_tried_again(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, queue=b"full", run_count=1))
    clock.bus.change_limits(Limits(queue_length=1))
    clock.do(events.Submit(CLIENT, "voice", b"1", b"full", [b"x"]))
    clock.bus.listen(True, None)
    clock.now += 60
    clock.tick()
    clock.tick()
    # It is tried again every second.
    assert scheduling.next_at(clock.bus) == clock.now + 1
    job_id = b"key@%d.%d" % ((WALL + 60) * 1000, WALL * 1000)
    detail = "1 requests wait for this service; add workers or try again later"
    assert observed(clock) == [("rejected", job_id, b"full", "queue_full", detail)]
    assert clock.bus.counters.rejected == 1
    for tries in range(1, 31):
        clock.now += 0.5
        clock.tick()
        assert clock.bus.counters.rejected == tries
        clock.now += 0.5
        clock.tick()
    assert clock.runs == []
    assert clock.bus.counters.rejected == 31
    assert [entry.next_at for entry in clock.store.load().schedules] == [WALL + 60]
    clock.worker("full")
    clock.pass_time(1)
    assert ran(clock) == [("late", 60, 0)]
    assert clock.store.load().schedules == []


# -- restarts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False])
def test_dying_around_a_run_neither_loses_nor_doubles_it(clock: Clockwork, written: bool) -> None:
    clock.do(MINUTE)
    clock.now += 60
    clock.bus.handle(events.Tick(), clock.now)
    if written:
        clock._write(*clock.bus.take_lines())
    clock.crash()
    clock.worker("mail")
    clock.pass_time(30)
    assert clock.accepted == clock.started
    assert len(clock.started) == 1
    assert ran(clock) == [("ran", 60, 0)]


def test_what_was_missed_is_one_late_run_or_none(clock: Clockwork) -> None:
    clock.do(MINUTE)
    ask(clock, do="add", queue="mail", message="m", every_s=60, key="skips", missed="skip")
    clock.settle()
    clock.now += 3630
    clock.crash()
    clock.worker("mail")
    clock.tick()
    assert sorted(ran(clock)) == [("late", 3600, 59), ("skipped", 3600, 59)]
    assert len(clock.started) == 1


def test_a_clock_set_back_moves_an_interval_and_says_so(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.set_clock(-3600)
    clock.pass_time(60)
    assert ran(clock) == [("moved", 60, 0), ("ran", -3540, 0)]


def test_a_zone_that_is_gone_stops_nobody(clock: Clockwork) -> None:
    clock.do(MINUTE)
    odd = ledger.ScheduleEntry("odd", b"mail", b"", cron="* * * * *", timezone="Europe/Atlantis")
    clock.store.write([ledger.Scheduled(odd)])
    clock.crash(watched=True)
    ((what, key, queue, _, detail),) = observed(clock)
    assert (what, key, queue) == ("schedule_odd", b"odd", b"mail")
    assert detail.startswith("never run: there is no time zone 'Europe/Atlantis'")
    clock.worker("mail")
    clock.pass_time(60)
    assert [run.key for run in clock.runs] == ["key"]
    assert {row["key"] for row in scheduling.rows(clock.bus)} == {"key", "odd"}


# -- schedulers of others ---------------------------------------------------------------------


def test_a_connected_scheduler_goes_first(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.do(events.SchedulerUp(SCHEDULER, "scheduler", Heartbeat(0.0)))
    clock.actions(act.Accept)
    # It is the same job: from now on the other one runs it.
    clock.do(replace(MINUTE, request_id=b"m-2"))
    (handed,) = clock.actions(act.Reschedule)
    assert handed.message == "message"
    assert [told.request_id for told in clock.actions(act.Accept)] == [b"m-2"]
    clock.pass_time(120)
    assert clock.started == []
    assert clock.store.load().schedules == []


def test_schedulers_take_turns(clock: Clockwork) -> None:
    names = [b"one", b"two", b"three"]
    for name in names:
        clock.do(events.SchedulerUp((1, name), "scheduler", Heartbeat(0.0)))
    for _ in range(6):
        clock.do(MINUTE)
    handed = [told.worker.address[1] for told in clock.actions(act.Reschedule)]
    assert handed == names * 2


def test_a_scheduler_that_was_just_spoken_to_needs_no_sign_of_life(clock: Clockwork) -> None:
    clock.do(events.SchedulerUp(SCHEDULER, "scheduler", Heartbeat(100.0, beat_every_s=10.0)))
    clock.now += 8
    clock.do(MINUTE)
    clock.now += 8
    clock.tick()
    assert clock.actions(act.Beat) == []
    clock.now += 10
    clock.tick()
    assert len(clock.actions(act.Beat)) == 1


def test_a_broker_that_leaves_hands_nothing_to_a_scheduler(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.do(events.SchedulerUp(SCHEDULER, "scheduler", Heartbeat(0.0)))
    clock.do(events.Drain())
    clock.actions(act.Reschedule)
    clock.do(MINUTE)
    (refusal,) = clock.actions(act.Refuse)
    assert refusal.reason is Reason.DRAINING
    assert clock.actions(act.Reschedule) == []
    # What it kept itself it still keeps, for its successor.
    assert [entry.key for entry in clock.store.load().schedules] == ["key"]


def test_a_removal_holds_everywhere(clock: Clockwork) -> None:
    clock.do(MINUTE)
    clock.do(events.SchedulerUp(SCHEDULER, "scheduler", Heartbeat(0.0)))
    clock.do(events.Schedule(CLIENT, "voice", b"m-2", "gone", True, "key"))
    assert [handed.message for handed in clock.actions(act.Reschedule)] == ["gone"]
    assert [told.request_id for told in clock.actions(act.Accept)] == [b"m-1", b"m-2"]
    clock.pass_time(120)
    assert clock.started == []


# -- polybus.schedule -------------------------------------------------------------------------


def test_every_dialect_can_schedule(clock: Clockwork) -> None:
    told = ask(
        clock,
        do="add",
        queue="mail",
        message="hello",
        cron="*/5 * * * *",
        timezone="Europe/Berlin",
        runs=2,
        haste=True,
        missed="skip",
        key="mine",
        retries=3,
        timeout_s=4,
    )
    assert told == {"key": "mine", "next_at": WALL}
    clock.settle()
    clock.tick()
    (row,) = ask(clock, do="list")
    assert row == {
        "key": "mine",
        "queue": "mail",
        "message": "hello",
        "every_s": None,
        "cron": "*/5 * * * *",
        "timezone": "Europe/Berlin",
        "next_at": row["next_at"],
        "runs_left": 1,
        "missed": "skip",
        "guarantee": True,
        "retries": 3,
        "timeout_s": 4.0,
        "set_at": WALL,
    }
    assert row["next_at"] % 300 == 0
    assert ask(clock, do="remove", key="mine") == {"removed": True}
    assert ask(clock, do="remove", key="mine") == {"removed": False}
    assert ask(clock, do="list") == []


def test_what_is_not_said_is_as_the_broker_has_it(clock: Clockwork) -> None:
    clock.bus.book.timezone = "Europe/Berlin"
    clock.bus.book.missed = "skip"
    key = ask(clock, do="add", queue="mail", every_s=60)["key"]
    assert ask(clock, do="list") == [
        {
            "key": key,
            "queue": "mail",
            "message": "",
            "every_s": 60.0,
            "cron": "",
            "timezone": "Europe/Berlin",
            "next_at": WALL + 60,
            "runs_left": None,
            "missed": "skip",
            "guarantee": True,
            "retries": 0,
            "timeout_s": 0.0,
            "set_at": WALL,
        }
    ]


def test_names_and_messages_that_are_no_text_are_listed_all_the_same(clock: Clockwork) -> None:
    clock.do(replace(MINUTE, queue=b"q\xff", body=b"m\xff"))
    assert [(row["queue"], row["message"]) for row in scheduling.rows(clock.bus)] == [("q\ufffd", "m\ufffd")]


def test_without_a_key_the_same_job_is_the_same_schedule(clock: Clockwork) -> None:
    first = ask(clock, do="add", queue="mail", message="hello", every_s=60)
    # Also for another release of the broker, which finds it in its store.
    assert first["key"] == sha1(b"mail\0hello").hexdigest()
    assert ask(clock, do="add", queue="mail", message="hello", every_s=30)["key"] == first["key"]
    assert ask(clock, do="add", queue="mail", message="bye", every_s=30)["key"] != first["key"]
    assert [row["every_s"] for row in ask(clock, do="list")] == [30, 30]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "no question"),
        (b"\xff", "no question"),
        (b"[]", "no question"),
        (b'{"do": "dance"}', "dance"),
        (b'{"do": "add", "queue": "q", "evry_s": 1}', "evry_s"),
        (b'{"do": "add", "every_s": 1}', "queue"),
        (b'{"do": "add", "queue": "a\\nb", "every_s": 1}', "no name of a queue"),
        (b'{"do": "add", "queue": "q"}', "either"),
        (b'{"do": "add", "queue": "q", "every_s": 0}', "interval"),
        (b'{"do": "add", "queue": "q", "every_s": 1, "runs": 0}', "runs"),
        (b'{"do": "add", "queue": "q", "cron": "nonsense"}', "fields"),
        (b'{"do": "add", "queue": "q", "cron": "* * * * *", "timezone": "Nowhere"}', "time zone"),
        (b'{"do": "remove"}', "key"),
    ],
)
def test_a_question_that_makes_no_sense(clock: Clockwork, body: bytes, word: str) -> None:
    with pytest.raises(ScheduleRefused, match=word) as error:
        scheduling.answer(clock.bus, body, clock.now)
    assert error.value.reason is Reason.BAD_SCHEDULE
    assert clock.bus.lines == []


def test_the_service_answers_when_it_is_on_disk(clock: Clockwork) -> None:
    body = b'{"do": "add", "queue": "mail", "every_s": 60, "key": "mine"}'
    clock.bus.handle(events.Submit(CLIENT, "voice", b"1", b"polybus.schedule", [body]), clock.now)
    clock.settle(write=False)
    assert clock.actions(act.Answer) == []
    clock.settle()
    (told,) = clock.actions(act.Answer)
    assert msgspec.json.decode(told.body[0]) == {"key": "mine", "next_at": WALL + 60}
    clock.do(events.Submit(CLIENT, "voice", b"2", b"polybus.schedule", [b"?"]))
    (refusal,) = clock.actions(act.Refuse)
    assert refusal.reason is Reason.BAD_SCHEDULE
