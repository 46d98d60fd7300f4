"""What becomes of attempts that come to nothing: retries, time limits, lost workers, claims."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events, ledger
from polybus.core.attempts import alarms_due
from polybus.core.dispatching import LINGER_S, note_starts
from polybus.core.lifecycle import RequestState
from polybus.core.model import Heartbeat, JobOptions, Limits, QueuePolicy, Reason, Retrying
from support.invariants import check as check_tables
from support.stage import LedgerStage, client, worker

RETRIES = JobOptions(retries=3, backoff_s=1.0)
DURABLE = JobOptions(retries=3, backoff_s=1.0, guarantee=True)
LIMITED = JobOptions(timeout_s=10.0, retries=3, backoff_s=1.0)
GRACE_S = Limits().timeout_grace_s


@pytest.fixture
def stage() -> LedgerStage:
    stage = LedgerStage()
    stage.bus.retrying = Retrying(backoff_s=1.0, backoff_max_s=300.0, jitter=0.0)
    return stage


def check(stage: LedgerStage) -> None:
    """What must hold whatever happened."""
    bus = stage.bus
    check_tables(bus, stage.now)
    for known in bus.workers.values():
        if not known.grants_slots:
            assert known.free + len(known.inflight) == known.credit
    for service in bus.services.values():
        having = (RequestState.DISPATCHED, RequestState.STREAMING, RequestState.ORPHANED)
        mine = [request for request in bus.requests.values() if request.service is service]
        assert service.running == sum(request.state in having for request in mine)
        assert service.waiting == sum(request.state is RequestState.WAITING for request in mine)
        assert service.queue.length == sum(request.state is RequestState.QUEUED for request in mine)
    alarms = {alarm.request.token for slot in bus.alarms._slots.values() for alarm in slot}
    assert alarms <= set(bus.requests)


# -- retries --------------------------------------------------------------------------------------


def test_a_failed_attempt_is_tried_again_after_a_pause_that_doubles(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=4, backoff_s=2.0))
    for pause in (2.0, 4.0, 8.0, 16.0):
        assert stage.delivered() == [("w", "1")]
        stage.fail("w", stage.token("c", "1"))
        check(stage)
        assert stage.request("c", "1").state is RequestState.WAITING
        stage.wait(pause - 0.1)
        assert stage.nothing()
        stage.wait(0.25)
    assert stage.delivered() == [("w", "1")]
    stage.fail("w", stage.token("c", "1"))
    assert stage.one(act.Refuse).reason is Reason.FAILED
    check(stage)


def test_pauses_have_a_longest(stage: LedgerStage) -> None:
    stage.bus.retrying = Retrying(backoff_s=1.0, backoff_max_s=5.0, jitter=0.0)
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=2000), ttl_s=inf)
    pauses = []
    for _ in range(100):
        stage.fail("w", stage.token("c", "1"))
        alarm = stage.request("c", "1").alarm
        assert alarm is not None
        pauses.append(alarm.slot / 20 - stage.now)
        stage.wait(6.0, step=1.0)
    assert max(pauses) <= 5.1
    assert pauses[0] < pauses[1] < pauses[2] < pauses[3]


def test_a_job_says_itself_how_long_its_first_pause_is(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1, backoff_s=0.0))
    stage.fail("w", stage.token("c", "1"))
    stage.delivered()
    stage.wait(0.1)
    assert stage.delivered() == [("w", "1")]


def test_pauses_are_scattered_within_their_bounds(stage: LedgerStage) -> None:
    stage.bus.retrying = Retrying(backoff_s=10.0, backoff_max_s=300.0, jitter=0.2)
    stage.worker("w", credit=200)
    for number in range(200):
        stage.submit("c", str(number), options=JobOptions(retries=1))
        stage.fail("w", stage.token("c", str(number)))
    pauses = [stage.request("c", str(n)).alarm.slot / 20 - stage.now for n in range(200)]  # type: ignore[union-attr]
    assert 8.0 <= min(pauses) < 8.5
    assert 11.5 < max(pauses) <= 12.05
    assert len(set(pauses)) > 40


def test_listeners_are_told_of_an_attempt_that_is_followed_by_another(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1, backoff_s=4.0))
    stage.fail("w", stage.token("c", "1"))
    (told,) = stage.told("retried")
    assert (told.at, told.request_id, told.worker, told.attempt) == (stage.now, b"1", worker("w"), 1)
    assert (told.reason, told.detail) == ("failed", "it broke; again in 4 s")
    assert stage.bus.counters.retried == 1


def test_the_last_reason_reaches_the_client_and_the_dead_letter_has_all(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=2, backoff_s=1.0, timeout_s=3.0, guarantee=True))
    stage.write()
    token = stage.token("c", "1")
    stage.do(events.Failure(worker("w"), token, "no tea", []))
    stage.wait(2.0)
    stage.write()
    stage.do(events.Failure(worker("w"), token, "not my table", [], Reason.REJECTED))
    stage.wait(3.0)
    stage.write()
    stage.do(events.Failure(worker("w"), token, "no milk", [b'{"error": "no milk"}']))
    stage.write()
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (Reason.FAILED, "no milk")
    assert refusal.body == [b'{"error": "no milk"}']
    (letter,) = stage.dead()
    assert (letter.reason, letter.detail) == ("failed", "no milk")
    assert stage.bus.counters.dead == 1
    assert letter.job.body == [b"c/1"]
    history = [
        (attempt.number, attempt.worker, attempt.reason, attempt.detail) for attempt in letter.job.history
    ]
    assert history == [
        (1, "w", "failed", "no tea"),
        (2, "w", "rejected", "not my table"),
        (3, "w", "failed", "no milk"),
    ]
    assert [attempt.at for attempt in letter.job.history] == sorted(a.at for a in letter.job.history)


def test_retries_without_a_guarantee_leave_a_dead_letter_and_nothing_else(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1, backoff_s=0.0))
    stage.fail("w", stage.token("c", "1"))
    stage.wait(0.2)
    assert not stage.bus.lines
    stage.fail("w", stage.token("c", "1"))
    assert stage.one(act.Refuse).reason is Reason.FAILED
    stage.write()
    (letter,) = stage.dead()
    assert len(letter.job.history) == 2
    contents = stage.store.load()
    assert not contents.jobs
    assert not contents.outcomes


@pytest.mark.parametrize("fails", [False, True])
def test_the_outcome_of_what_was_not_guaranteed_is_kept_as_long_as_an_answer(
    stage: LedgerStage, fails: bool
) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1, backoff_s=0.0))
    if fails:
        stage.fail("w")
        stage.wait(0.2)
        stage.fail("w")
    else:
        stage.result("w")
    stage.write()
    stage.taken.clear()
    stage.submit("c", "1", options=JobOptions(retries=1))
    stage.one(act.Refuse if fails else act.Answer)
    assert stage.delivered() == []
    stage.wait(Limits().replies_age_s + 2.0, 1.0)
    stage.submit("c", "1", options=JobOptions(retries=1))
    assert stage.delivered() == [("w", "1")]
    assert not any(isinstance(line, ledger.Forgotten) for line in stage.bus.lines)


def test_a_call_with_a_time_limit_alone_leaves_no_dead_letter(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(timeout_s=5.0))
    stage.fail("w")
    stage.write()
    assert stage.one(act.Refuse).reason is Reason.FAILED
    assert stage.dead() == []
    assert stage.bus.counters.dead == 0


def test_a_plain_call_is_not_tried_again_and_leaves_no_dead_letter(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1")
    stage.fail("w", stage.token("c", "1"))
    assert stage.one(act.Refuse).reason is Reason.FAILED
    assert not stage.bus.lines


def test_a_job_that_waits_may_be_cancelled_and_may_expire(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    stage.submit("c", "1", options=RETRIES, ttl_s=0.5)
    stage.submit("c", "2", options=RETRIES)
    for name in "12":
        stage.fail("w", stage.token("c", name))
    stage.do(events.Cancel(client("c"), b"2"))
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    check(stage)
    stage.wait(0.7)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    check(stage)
    stage.wait(5.0)
    assert len(stage.delivered()) == 2
    assert not stage.bus.alarms._slots


def test_what_is_undeliverable_or_too_large_is_in_the_history(stage: LedgerStage) -> None:
    stage = LedgerStage(Limits(body_bytes=100))
    stage.worker("w")
    for name in "12":
        stage.submit("c", name, options=DURABLE)
        stage.write()
        if name == "1":
            stage.do(events.Undeliverable(worker("w"), stage.token("c", name), "two frames"))
        else:
            stage.result("w", stage.token("c", name), [b"x" * 200])
        stage.write()
        check(stage)
    reasons = [[attempt.reason for attempt in letter.job.history] for letter in stage.dead()]
    assert reasons == [["undeliverable"], ["too_large"]]


def test_the_history_of_a_job_that_fails_for_ever_is_bounded(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1000, backoff_s=0.0, guarantee=True))
    stage.write()
    for _ in range(400):
        stage.fail("w", stage.token("c", "1"))
        stage.wait(0.1)
        stage.write()
    request = stage.request("c", "1")
    assert request.failures == 400
    assert len(request.history) <= 110
    assert request.history[-1].number == 400
    assert request.history[0].number <= 1, "how it began is often the reason"
    stage.restart()
    again = stage.request("c", "1")
    assert again.failures == 400
    assert again.history == request.history


def test_what_a_worker_says_about_a_failure_is_bounded_in_the_history(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    stage.do(events.Failure(worker("w"), stage.token("c", "1"), "x" * 60_000, []))
    (attempt,) = stage.request("c", "1").history
    assert len(attempt.detail) == 4096


# -- lost workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [JobOptions(), RETRIES, DURABLE, JobOptions(guarantee=True)])
def test_a_lost_worker_costs_no_retry_but_not_for_ever(stage: LedgerStage, options: JobOptions) -> None:
    stage.submit("c", "1", options=options)
    stage.write()
    for number in range(Limits().attempts):
        name = f"w{number}"
        stage.worker(name)
        stage.write()
        assert stage.delivered() == [(name, "1")]
        stage.gone(name, "it crashed")
        check(stage)
    stage.write()
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.WORKER_LOST
    assert "5 workers were lost" in refusal.detail
    if options.retries or options.guarantee:
        (letter,) = stage.dead()
        assert [attempt.reason for attempt in letter.job.history] == ["worker_lost"] * 5
    assert stage.bus.counters.retried == 0


def test_failures_and_lost_workers_are_counted_apart(stage: LedgerStage) -> None:
    """A job that failed often may still lose as many workers as any other, and the other way round."""
    stage.submit("c", "1", options=JobOptions(retries=10, backoff_s=0.0, guarantee=True))
    stage.write()
    stage.worker("w")
    for _ in range(7):
        stage.fail("w", stage.token("c", "1"))
        stage.wait(0.2)
        stage.write()
    for number in range(4):
        stage.gone("w")
        stage.worker("w")
        stage.write()
        assert stage.request("c", "1").attempt == 7 + number + 2
    for _ in range(3):
        stage.fail("w", stage.token("c", "1"))
        stage.wait(0.2)
        stage.write()
    assert stage.request("c", "1").failures == 10
    stage.gone("w")
    stage.write()
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.WORKER_LOST
    assert "5 workers were lost" in refusal.detail


def test_lost_work_goes_to_the_front_of_its_queue(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    for name in "12345":
        stage.submit("c", name, options=DURABLE)
    stage.write()
    assert stage.delivered() == [("w", "1"), ("w", "2")]
    stage.gone("w")
    stage.worker("v", credit=3)
    assert stage.delivered() == [("v", "1"), ("v", "2"), ("v", "3")]


# -- time limits ----------------------------------------------------------------------------------


def test_the_broker_counts_an_attempt_that_takes_too_long(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.worker("v")
    stage.submit("c", "1", options=LIMITED)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S - 0.1)
    assert stage.delivered() == [("w", "1")]
    stage.wait(0.3)
    stop = stage.one(act.Stop)
    assert (stop.worker.address, stop.token) == (worker("w"), token)
    check(stage)
    stage.wait(1.1)
    assert stage.delivered() == [("v", "1")]
    check(stage)
    assert stage.bus.workers[worker("w")].free == 0, "it has not answered"
    # The first correct answer ends it, whoever has it now; nothing more reaches the client.
    stage.result("w", token, [b"after its time"])
    assert stage.one(act.Answer).body == [b"after its time"]
    assert stage.bus.workers[worker("w")].free == 1
    assert stage.one(act.Stop).worker.address == worker("v")
    check(stage)
    stage.result("v", token, [b"too late"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 1
    assert stage.bus.workers[worker("v")].free == 1
    check(stage)


@pytest.mark.parametrize("late", ["fail", "part", "gone", "returned"])
def test_a_late_word_changes_nothing(stage: LedgerStage, late: str) -> None:
    stage.worker("w", grants_slots=late == "returned", obeys_stop=True)
    if late == "returned":
        stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "1", options=LIMITED)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.1)
    stage.taken.clear()
    request = stage.request("c", "1")
    before = (request.state, request.history, request.failures, request.attempt)
    assert request.state is RequestState.WAITING
    if late == "gone":
        stage.gone("w")
    elif late == "returned":
        stage.do(events.Returned(worker("w"), token))
    else:
        getattr(stage, late)("w", token)
    assert (request.state, request.history, request.failures, request.attempt) == before
    assert stage.nothing()
    check(stage)


def test_the_failure_of_what_has_ended_is_late_and_the_slot_is_free_again(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", ttl_s=5.0)
    token = stage.token("c", "1")
    stage.wait(6.0)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    stage.fail("w", token)
    assert not stage.actions(act.Refuse)
    assert stage.bus.counters.late == 1
    assert [record.what for record in stage.told("late")] == ["late"]
    check(stage)


def test_a_worker_has_done_what_it_failed(stage: LedgerStage) -> None:
    known = stage.worker("w")
    for number in ("1", "2"):
        stage.submit("c", number)
        stage.fail("w", stage.token("c", number))
    assert known.done == 2


def test_a_worker_that_gives_back_what_somebody_else_has_by_now(stage: LedgerStage) -> None:
    stage.worker("w", grants_slots=True)
    stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "1", options=LIMITED)
    token = stage.token("c", "1")
    stage.worker("v")
    stage.wait(10.0 + GRACE_S + 1.5)
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    stage.do(events.Returned(worker("w"), token))
    assert not stage.delivered()
    assert stage.request("c", "1").worker is stage.bus.workers[worker("v")]
    check(stage)


def test_the_same_worker_gets_it_again_in_the_slot_that_it_has_not_given_back(stage: LedgerStage) -> None:
    """The two runs have the same name, so the first answer is taken; the second is late and costs nothing.
    It was told to stop, so it is not busy with the first one."""
    stage.worker("w", credit=2, obeys_stop=True)
    stage.submit("c", "1", options=LIMITED)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 1.5)
    assert stage.delivered() == [("w", "1"), ("w", "1")]
    check(stage)
    assert stage.bus.workers[worker("w")].free == 1
    stage.result("w", token, [b"either"])
    assert stage.one(act.Answer).body == [b"either"]
    assert stage.bus.workers[worker("w")].free == 2
    stage.result("w", token, [b"or"])
    assert not stage.actions(act.Answer)
    assert stage.bus.workers[worker("w")].free == 2
    check(stage)


def test_a_late_answer_between_two_runs_at_the_same_worker(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    stage.submit("c", "1", options=LIMITED)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.5)
    stage.result("w", token, [b"after its time"])
    assert stage.one(act.Answer).body == [b"after its time"]
    assert stage.bus.workers[worker("w")].free == 2
    check(stage)
    stage.wait(1.0)
    assert stage.delivered() == [("w", "1")], "it is done, so it is not run again"


def test_an_answer_whose_first_part_came_too_late_does_not_count(stage: LedgerStage) -> None:
    """The client lacks that part: the final answer alone would be another answer."""
    stage.worker("w", credit=2, obeys_stop=True)
    stage.submit("c", "1", options=LIMITED)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.5)
    stage.part("w", token)
    assert not stage.actions(act.Stream)
    stage.result("w", token, [b"the rest"])
    assert not stage.actions(act.Answer)
    assert stage.bus.workers[worker("w")].free == 2
    check(stage)
    stage.wait(1.0)
    stage.result("w", token, [b"whole"])
    assert stage.one(act.Answer).body == [b"whole"]
    check(stage)


def test_a_worker_that_forgets_what_it_is_told_to_stop(stage: LedgerStage) -> None:
    stage.worker("w", forgets_stopped=True)
    stage.submit("c", "1", options=LIMITED)
    stage.submit("c", "2")
    stage.wait(10.0 + GRACE_S + 0.1)
    assert stage.delivered() == [("w", "1"), ("w", "2")], "its slot is free at once"
    check(stage)


# -- workers that cannot be told to stop ------------------------------------------------------------

STUCK = JobOptions(retries=2, timeout_s=10.0, backoff_s=1.0)
# The first attempt is over, and its retry is due.
RETRIED_S = 10.0 + GRACE_S + 1.5


def stuck(stage: LedgerStage, **more: Any) -> bytes:
    """A worker that cannot be told to stop has a job that ran into its limit; the retry is due. Its token."""
    stage.worker("w", credit=5, **more)
    stage.submit("c", "1", options=STUCK, ttl_s=100.0)
    token = stage.token("c", "1")
    stage.wait(RETRIED_S)
    assert stage.delivered() == [("w", "1")], "it is busy with it"
    check(stage)
    return token


def test_a_worker_that_cannot_be_told_to_stop_is_not_given_it_again(stage: LedgerStage) -> None:
    """Its time limit goes on to count, so that the job ends even if nobody ever answers."""
    token = stuck(stage)
    assert stage.request("c", "1").worker is stage.bus.workers[worker("w")]
    stage.wait(2 * RETRIED_S + 2.0)
    assert stage.delivered() == []
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.TIMEOUT
    check(stage)
    assert stage.bus.workers[worker("w")].free == 4, "it has not answered"
    stage.result("w", token)
    assert not stage.actions(act.Answer)
    assert stage.bus.workers[worker("w")].free == 5
    check(stage)


@pytest.mark.parametrize("wait_s", [0.0, RETRIED_S - 1.3, RETRIED_S])
def test_its_answer_ends_the_job_whichever_attempt_it_is_by_now(stage: LedgerStage, wait_s: float) -> None:
    token = stuck(stage)
    stage.wait(wait_s)
    stage.result("w", token, [b"at last"])
    assert stage.one(act.Answer).body == [b"at last"]
    assert stage.bus.workers[worker("w")].free == 5
    check(stage)
    stage.wait(2 * RETRIED_S)
    assert stage.delivered() == []
    assert stage.bus.counters.late == 0


def test_its_failure_makes_room_for_the_next_attempt(stage: LedgerStage) -> None:
    token = stuck(stage)
    stage.fail("w", token)
    stage.wait(3.0)
    assert stage.delivered() == [("w", "1")], "it is not busy with it any more"
    assert stage.request("c", "1").failures == 2
    check(stage)


def test_a_late_failure_before_the_retry_costs_nothing(stage: LedgerStage) -> None:
    stage.worker("w", credit=5)
    stage.submit("c", "1", options=STUCK)
    stage.wait(10.0 + GRACE_S + 0.3)
    stage.fail("w", stage.token("c", "1"))
    assert stage.request("c", "1").failures == 1, "that it took too long was counted"
    stage.wait(1.2)
    assert stage.delivered() == [("w", "1"), ("w", "1")]
    check(stage)


def test_when_it_is_gone_another_worker_gets_the_job(stage: LedgerStage) -> None:
    stuck(stage)
    stage.gone("w")
    assert stage.request("c", "1").state is RequestState.QUEUED
    stage.worker("v")
    assert stage.delivered() == [("v", "1")]
    check(stage)


def test_the_job_expires_while_it_is_busy(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=STUCK, ttl_s=40.0)
    stage.wait(RETRIED_S)
    # It has one slot, and that is taken: the retry waits in the queue.
    assert stage.request("c", "1").state is RequestState.QUEUED
    stage.wait(40.0 - RETRIED_S + 0.2)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    assert stage.delivered() == [("w", "1")]
    check(stage)


def test_the_retry_goes_to_another_worker_that_is_free(stage: LedgerStage) -> None:
    """Also if the stuck one would be the next."""
    stage.worker("w", credit=5, weight=10)
    stage.worker("v", credit=5)
    stage.worker("u", credit=5)
    stage.submit("c", "1", options=STUCK)
    assert stage.delivered() == [("w", "1")]
    stage.wait(RETRIED_S)
    assert stage.delivered() == [("v", "1")]
    assert not stage.bus.workers[worker("u")].inflight
    check(stage)
    stage.wait(RETRIED_S + 1.0)
    assert stage.delivered() == [("u", "1")]
    check(stage)


def test_worker_lost_is_no_verdict_while_one_that_took_too_long_is_at_it() -> None:
    stage = LedgerStage(Limits(attempts=1))
    stage.worker("w")
    stage.submit("c", "1", options=STUCK)
    token = stage.token("c", "1")
    stage.worker("v")
    stage.wait(RETRIED_S)
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    stage.gone("v")
    assert not stage.actions(act.Refuse)
    assert stage.request("c", "1").worker is stage.bus.workers[worker("w")]
    check(stage)
    stage.result("w", token, [b"at last"])
    assert stage.one(act.Answer).body == [b"at last"]
    check(stage)


def test_parts_of_a_worker_that_took_too_long_count_if_nobody_else_answers(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=STUCK)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.3)
    stage.part("w", token, [b"a"])
    assert stage.one(act.Stream).body == [b"a"]
    check(stage)
    stage.result("w", token, [b"b"])
    assert stage.one(act.Answer).body == [b"b"]
    check(stage)


# -- workers that forget what they are told to stop ---------------------------------------------------


@pytest.mark.parametrize("retry_at", ["nobody", "another", "itself"])
def test_an_answer_that_crosses_the_word_to_stop_counts(stage: LedgerStage, retry_at: str) -> None:
    stage.worker("w", forgets_stopped=True, obeys_stop=True, credit=2)
    stage.submit("c", "1", options=STUCK)
    token = stage.token("c", "1")
    if retry_at == "another":
        stage.worker("v")
    stage.wait(10.0 + GRACE_S + (0.2 if retry_at == "nobody" else 1.5))
    assert len(stage.delivered()) == (1 if retry_at == "nobody" else 2)
    assert stage.one(act.Stop).worker.address == worker("w")
    check(stage)
    stage.result("w", token, [b"crossing"])
    assert stage.one(act.Answer).body == [b"crossing"]
    assert stage.bus.workers[worker("w")].free == 2
    assert not stage.bus.holders
    check(stage)
    stage.result("w", token, [b"crossing"])
    assert not stage.actions(act.Answer)
    assert stage.bus.workers[worker("w")].free == 2
    check(stage)


def test_a_rejection_that_crosses_the_word_to_stop_is_late(stage: LedgerStage) -> None:
    stage.worker("w", forgets_stopped=True, obeys_stop=True)
    stage.submit("c", "1", options=STUCK)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.2)
    stage.fail("w", token)
    assert stage.bus.counters.late == 1
    assert stage.request("c", "1").failures == 1
    assert stage.bus.workers[worker("w")].free == 1
    check(stage)


def test_after_a_rejection_that_crosses_the_word_to_stop_an_answer_is_late_as_well(
    stage: LedgerStage,
) -> None:
    """It has said its last word about it."""
    stage.worker("w", forgets_stopped=True, obeys_stop=True)
    stage.submit("c", "1", options=STUCK)
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.2)
    stage.fail("w", token)
    stage.result("w", token)
    assert stage.bus.counters.late == 2
    assert not stage.actions(act.Answer)
    assert stage.request("c", "1").state is RequestState.WAITING
    check(stage)


@pytest.mark.parametrize("silent", [False, True])
def test_nothing_is_expected_of_such_a_worker_when_it_is_lost(stage: LedgerStage, silent: bool) -> None:
    stage.worker("w", forgets_stopped=True, obeys_stop=True, heartbeat=Heartbeat(12.0 + GRACE_S))
    stage.submit("c", "1", options=STUCK)
    stage.wait(10.0 + GRACE_S + 0.2)
    assert stage.bus.holders
    if silent:
        stage.wait(2.0)
    else:
        stage.gone("w")
    check(stage)
    stage.result("w", b"n-001", [b"late"])
    assert silent == bool(stage.actions(act.Answer)), "the retry was its own when it went silent"


def test_a_dialled_worker_that_never_answers_is_dialled_anew(stage: LedgerStage) -> None:
    stage.do(
        events.WorkerUp(worker("node"), "node", ((b"echo", 0),), Heartbeat(0.0), endpoint="tcp://127.0.0.1:9")
    )
    stage.submit("c", "1", options=LIMITED)
    assert len(stage.actions(act.Deliver)) == 1
    stage.wait(10.0 + GRACE_S + 2.5)
    assert stage.one(act.HangUp)
    assert len(stage.actions(act.Deliver)) == 1, "it is called again, on a new connection"
    check(stage)


def test_the_last_attempt_that_takes_too_long_ends_the_job(stage: LedgerStage) -> None:
    stage.worker("w", credit=5)
    stage.submit("c", "1", options=JobOptions(timeout_s=10.0, guarantee=True))
    stage.write()
    token = stage.token("c", "1")
    stage.wait(10.0 + GRACE_S + 0.1)
    stage.write()
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.TIMEOUT
    assert "10 s" in refusal.detail
    (letter,) = stage.dead()
    assert [attempt.reason for attempt in letter.job.history] == ["timeout"]
    stage.result("w", token)
    stage.write()
    assert not stage.actions(act.Answer)
    check(stage)
    assert stage.bus.workers[worker("w")].free == 5


def test_a_worker_that_says_itself_that_the_time_was_up_costs_one_attempt(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=LIMITED)
    stage.wait(10.5)
    stage.do(events.Failure(worker("w"), stage.token("c", "1"), "killed after 10 s", [], Reason.TIMEOUT))
    stage.wait(0.9)
    request = stage.request("c", "1")
    assert (request.failures, len(request.history)) == (1, 1)
    stage.wait(0.3)
    assert stage.delivered() == [("w", "1"), ("w", "1")]
    stage.wait(9.0)
    assert not stage.actions(act.Stop)
    check(stage)


def test_the_limit_is_for_one_attempt_not_for_the_queue(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=LIMITED)
    stage.wait(100.0, step=1.0)
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]
    stage.wait(9.0)
    stage.result("w", stage.token("c", "1"))
    stage.one(act.Answer)


def test_a_requeued_attempt_has_the_whole_time_again(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=LIMITED)
    stage.wait(9.0)
    stage.gone("w")
    stage.wait(30.0)
    stage.worker("v")
    stage.wait(14.0)
    assert not stage.actions(act.Stop)
    stage.wait(1.5)
    assert stage.one(act.Stop).worker.address == worker("v")


# -- claims ---------------------------------------------------------------------------------------


def test_a_worker_that_comes_back_with_its_work_keeps_it(stage: LedgerStage) -> None:
    stage.worker("w", grants_slots=True)
    stage.worker("other", credit=5)
    stage.gone("other")
    stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    token = stage.token("c", "1")
    stage.worker("other", credit=5)
    stage.delivered()
    stage.worker("w", grants_slots=True, holding=(token,))
    stage.write()
    request = stage.request("c", "1")
    assert request.worker is stage.bus.workers[worker("w")]
    assert (request.attempt, request.history) == (1, ())
    assert not stage.delivered()
    assert not stage.actions(act.Stop)
    check(stage)
    stage.result("w", token)
    stage.write()
    stage.one(act.Answer)
    check(stage)


def test_what_it_does_not_hold_any_more_goes_to_others(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    for name in "12":
        stage.submit("c", name, options=DURABLE)
    stage.write()
    tokens = [stage.token("c", name) for name in "12"]
    stage.delivered()
    stage.worker("w", credit=2, holding=(tokens[1],))
    assert stage.delivered() == [("w", "1")]
    assert stage.request("c", "1").attempt == 2
    assert [attempt.reason for attempt in stage.request("c", "1").history] == ["worker_lost"]
    assert stage.request("c", "2").attempt == 1
    check(stage)


def test_unknown_and_ended_work_is_stopped(stage: LedgerStage) -> None:
    stage.worker("v")
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    token = stage.token("c", "1")
    stage.result("v", token)
    stage.submit("c", "2", options=DURABLE)
    stage.write()
    running = stage.token("c", "2")
    stage.worker("w", holding=(token, b"never heard of", running))
    assert [stop.token for stop in stage.actions(act.Stop)] == [token, b"never heard of", running]
    assert stage.request("c", "2").worker is stage.bus.workers[worker("v")]
    check(stage)


def test_the_same_token_twice_is_one_claim(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    token = stage.token("c", "1")
    stage.worker("w", credit=2, holding=(token, token))
    assert not stage.actions(act.Stop)
    assert stage.request("c", "1").worker is stage.bus.workers[worker("w")]
    check(stage)


def test_a_claim_for_a_service_that_it_does_not_offer_is_stopped(stage: LedgerStage) -> None:
    stage.worker("w", "echo")
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    token = stage.token("c", "1")
    stage.worker("w", "other", holding=(token,))
    assert stage.one(act.Stop).token == token
    assert stage.request("c", "1").state is RequestState.QUEUED
    check(stage)


def test_a_claimed_attempt_has_its_time_limit(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=LIMITED)
    stage.wait(5.0)
    stage.worker("w", holding=(stage.token("c", "1"),))
    stage.wait(14.0)
    assert not stage.actions(act.Stop)
    stage.wait(1.5)
    assert stage.one(act.Stop)


def test_a_worker_may_hold_more_than_its_credit(stage: LedgerStage) -> None:
    stage.worker("w", credit=3)
    for name in "123":
        stage.submit("c", name, options=DURABLE)
    stage.write()
    tokens = tuple(stage.token("c", name) for name in "123")
    stage.worker("w", credit=1, holding=tokens)
    check(stage)
    stage.submit("c", "4")
    stage.delivered()
    for token in tokens[:2]:
        stage.result("w", token)
    assert not stage.delivered()
    stage.result("w", tokens[2])
    assert stage.delivered() == [("w", "4")]
    check(stage)


# -- reserved names -------------------------------------------------------------------------------


def test_a_worker_cannot_offer_the_brokers_own_services(stage: LedgerStage) -> None:
    offers = ((b"echo", 0), (b"polybus.submit", 0))
    stage.do(events.WorkerUp(worker("w"), "w", offers, Heartbeat(0.0)))
    assert stage.one(act.Dismiss).peer == worker("w")
    assert worker("w") not in stage.bus.workers
    stage.worker("v")
    stage.do(events.Offer(worker("v"), "v", b"polybus.job"))
    assert stage.one(act.Dismiss).peer == worker("v")
    assert worker("v") not in stage.bus.workers
    assert not [name for name in stage.bus.services if name.startswith(b"polybus.")]


def test_a_node_cannot_register_as_one_of_the_brokers_own_services(stage: LedgerStage) -> None:
    address = (4, b"node")
    serves = events.WorkerUp(address, "node", ((b"polybus.submit", 0),), Heartbeat(0.0))
    stage.do(events.Register(address, "node", b"polybus.submit", {}, 0.0, serves=serves))
    denial = stage.one(act.Deny)
    assert "broker itself" in denial.reasons[0]
    assert not stage.bus.workers
    assert not stage.bus.nodes


def test_queue_weight_of_the_policy_wins(stage: LedgerStage) -> None:
    stage.queue_rules(light=QueuePolicy(weight=50))
    for name in ("a1", "a2"):
        stage.submit("c", name, "heavy")
    for name in ("b1", "b2"):
        stage.submit("c", name, "light")
    offers = ((b"heavy", 10), (b"light", 1))
    stage.do(events.WorkerUp(worker("w"), "w", offers, Heartbeat(0.0), 1))
    for _ in range(4):
        stage.result("w")
    assert [name for _, name in stage.delivered()] == ["b1", "b2", "a1", "a2"]


def test_lines_of_a_retried_job(stage: LedgerStage) -> None:
    """What the disk knows follows what happens: waiting with its history, started, ended."""
    stage.worker("w")
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    token = stage.token("c", "1")
    stage.fail("w", token)
    stage.write()
    (entry,) = stage.store.load().jobs
    assert (entry.worker, entry.attempt, len(entry.history)) == ("", 1, 1)
    assert entry.due_at == pytest.approx(stage.bus.wall_at(stage.now) + 1.0)
    stage.wait(1.2)
    stage.write()
    (entry,) = stage.store.load().jobs
    assert (entry.worker, entry.attempt, entry.due_at) == ("w", 2, 0.0)
    stage.result("w", token)
    stage.write()
    assert not stage.store.load().jobs
    kinds = [type(line) for line in stage.pen.written]
    assert kinds == [ledger.Accepted, ledger.Started, ledger.Waiting, ledger.Started, ledger.Ended]


# -- starts -------------------------------------------------------------------------------------------


def starts(stage: LedgerStage) -> list[tuple[bytes, int, str]]:
    lines = [line for line in stage.pen.written if isinstance(line, ledger.Started)]
    return [(line.token, line.attempt, line.worker) for line in lines]


@pytest.fixture
def patient() -> LedgerStage:
    """As in a broker: a start is noted when the job has lasted a while."""
    stage = LedgerStage(starts_linger=True)
    stage.worker("w", credit=5)
    stage.submit("c", "1", options=DURABLE)
    stage.write()
    return stage


def test_a_job_that_ends_soon_is_never_written_as_started(patient: LedgerStage) -> None:
    patient.wait(LINGER_S / 2)
    patient.result("w", patient.token("c", "1"))
    patient.wait(5 * LINGER_S)
    patient.write()
    assert not starts(patient)
    assert patient.bus.starts_at == inf, "nothing more to look for"


def test_a_job_that_lasts_is_written_as_started_once(patient: LedgerStage) -> None:
    token = patient.token("c", "1")
    assert patient.bus.next_at(patient.now) <= patient.now + LINGER_S
    patient.wait(2 * LINGER_S)
    patient.write()
    (entry,) = patient.store.load().jobs
    assert (entry.worker, entry.attempt) == ("w", 1)
    patient.wait(1.0)
    patient.part("w", token)
    patient.wait(1.0)
    patient.write()
    assert starts(patient) == [(token, 1, "w")]
    assert patient.bus.starts_at == inf, "nothing more to look for"


def test_those_that_came_later_are_looked_at_later(patient: LedgerStage) -> None:
    first = patient.token("c", "1")
    patient.wait(0.9 * LINGER_S, step=0.3 * LINGER_S)
    patient.submit("c", "2", options=DURABLE)
    patient.write()
    second = patient.token("c", "2")
    patient.wait(0.2 * LINGER_S)
    patient.write()
    assert starts(patient) == [(first, 1, "w")]
    patient.wait(2 * LINGER_S)
    patient.write()
    assert starts(patient) == [(first, 1, "w"), (second, 1, "w")]


def test_a_job_that_was_begun_again_does_not_hide_those_behind_it(patient: LedgerStage) -> None:
    """The worker could not be told to stop, so it has the retry in the place of the first attempt."""
    options = JobOptions(guarantee=True, retries=2, timeout_s=10.0, backoff_s=1.0)
    patient.worker("x", "slow", credit=3)
    patient.submit("c", "stuck", "slow", options=options)
    patient.write()
    patient.wait(10.0 + GRACE_S + 0.5)
    patient.submit("c", "short", "slow", options=DURABLE)
    patient.write()
    stuck, short = patient.request("c", "stuck"), patient.request("c", "short")
    given_at = short.dispatched_at
    patient.pen.written.clear()
    patient.bus.starts_at = inf
    patient.wait(1.5, step=1.5)
    assert list(patient.bus.workers[worker("x")].inflight) == [stuck.token, short.token]
    assert stuck.dispatched_at > given_at
    note_starts(patient.bus, given_at)
    patient.write()
    assert starts(patient) == [(short.token, 1, "x")]


def test_every_attempt_is_written_as_started(patient: LedgerStage) -> None:
    token = patient.token("c", "1")
    patient.wait(2 * LINGER_S)
    patient.worker("v", credit=5)
    patient.gone("w")
    patient.wait(2 * LINGER_S)
    patient.write()
    assert starts(patient) == [(token, 1, "w"), (token, 2, "v")]
    (entry,) = patient.store.load().jobs
    assert (entry.worker, entry.attempt) == ("v", 2)


def test_only_the_newest_attempt_is_written_as_started(patient: LedgerStage) -> None:
    token = patient.token("c", "1")
    patient.worker("v", credit=5)
    patient.gone("w")
    patient.wait(3 * LINGER_S)
    patient.write()
    assert starts(patient) == [(token, 2, "v")]


def test_at_the_end_of_a_broker_all_starts_are_written(patient: LedgerStage) -> None:
    note_starts(patient.bus)
    patient.write()
    assert starts(patient) == [(patient.token("c", "1"), 1, "w")]
    patient.restart()
    assert patient.request("c", "1").state is RequestState.ORPHANED


def test_a_job_that_is_due_before_it_is_on_disk_waits_for_the_disk(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.job("j", delay_s=0.1)
    stage.wait(1.0)
    assert stage.nothing()
    assert stage.job_request("j").state is RequestState.ACCEPTED
    stage.write()
    stage.wait(0.1)
    assert len(stage.actions(act.Deliver)) == 1
    check(stage)


# -- undeliverable --------------------------------------------------------------------------------


def test_what_cannot_be_delivered_has_failed_and_its_worker_is_free_again(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.worker("v")
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1"), ("v", "2")]
    stage.do(events.Undeliverable(worker("w"), stage.token("c", "1"), "two frames"))
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (Reason.UNDELIVERABLE, "two frames")
    assert (stage.bus.counters.failed, stage.bus.services[b"echo"].failed) == (1, 1)
    stage.submit("c", "3")
    assert stage.delivered() == [("w", "3")]
    check(stage)


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_cannot_be_delivered_to_one_that_has_it_no_more_changes_nothing(
    stage: LedgerStage, has_ended: bool
) -> None:
    stage.worker("w", obeys_stop=True)
    stage.worker("v")
    stage.submit("c", "1", options=JobOptions() if has_ended else LIMITED, ttl_s=5.0 if has_ended else 100.0)
    token = stage.token("c", "1")
    stage.wait(5.2 if has_ended else 10.0 + GRACE_S + 1.5)
    assert stage.delivered() == ([("w", "1")] if has_ended else [("w", "1"), ("v", "1")])
    stage.taken.clear()
    failed = stage.bus.counters.failed
    stage.do(events.Undeliverable(worker("w"), token, "two frames"))
    assert stage.nothing()
    assert stage.bus.counters.failed == failed
    assert stage.bus.workers[worker("w")].free == 1
    check(stage)
    if not has_ended:
        stage.result("v", token)
        stage.one(act.Answer)


# -- several at once ------------------------------------------------------------------------------


def test_of_a_lost_worker_all_is_taken_back_that_nobody_else_has(stage: LedgerStage) -> None:
    stage.worker("w", credit=2, obeys_stop=True)
    stage.submit("c", "1", ttl_s=100.0)
    stage.submit("c", "2", options=LIMITED, ttl_s=100.0)
    stage.worker("v")
    stage.wait(10.0 + GRACE_S + 1.5)
    assert stage.delivered() == [("w", "1"), ("w", "2"), ("v", "2")]
    stage.gone("w")
    assert stage.request("c", "1").state is RequestState.QUEUED
    assert stage.request("c", "2").worker is stage.bus.workers[worker("v")]
    check(stage)


def test_what_has_ended_does_not_hide_what_else_a_lost_worker_had(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.do(events.Cancel(client("c"), b"2"))
    stage.gone("w")
    assert stage.request("c", "1").state is RequestState.QUEUED
    check(stage)


def test_a_claim_that_is_made_twice_does_not_hide_those_after_it(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    for name in "12":
        stage.submit("c", name, options=DURABLE)
    stage.write()
    first, second = (stage.token("c", name) for name in "12")
    stage.delivered()
    stage.worker("w", credit=2, holding=(first, first, b"never heard of", second))
    assert stage.one(act.Stop).token == b"never heard of"
    known = stage.bus.workers[worker("w")]
    assert [stage.request("c", name).worker for name in "12"] == [known, known]
    assert stage.delivered() == []
    check(stage)


# -- workers that failed what they had ------------------------------------------------------------


def test_who_has_failed_it_is_not_taken_for_one_that_works_on_it(stage: LedgerStage) -> None:
    """Neither when somebody else, who had it after that, is lost."""
    token = stuck(stage)
    stage.fail("w", token)
    stage.worker("v", weight=10)
    stage.wait(3.0)
    assert stage.delivered() == [("v", "1")]
    stage.gone("v")
    assert stage.delivered() == [("w", "1")], "it is sent it anew"
    check(stage)


def test_that_a_worker_took_too_long_is_counted_once_also_if_it_was_silent_before(stage: LedgerStage) -> None:
    stage.worker("w", heartbeat=Heartbeat(5.0))
    stage.submit("c", "1", options=JobOptions(retries=2, timeout_s=10.0, backoff_s=60.0), ttl_s=1000.0)
    stage.wait(6.0)
    assert worker("w") in stage.bus.silent
    request = stage.request("c", "1")
    while request.state is not RequestState.WAITING:
        stage.heard("w")
        stage.wait(1.0)
    assert (stage.bus.counters.timeouts, request.failures) == (1, 1)
    stage.fail("w", request.token)
    assert (request.state, request.failures, stage.bus.counters.late) == (RequestState.WAITING, 1, 1)
    check(stage)


@pytest.mark.parametrize("word", ["failure", "answer"])
def test_that_a_worker_took_too_long_is_counted_once_also_if_it_is_silent_after_that(
    stage: LedgerStage, word: str
) -> None:
    stage.worker("w", heartbeat=Heartbeat(20.0))
    stage.submit("c", "1", options=JobOptions(retries=2, timeout_s=10.0, backoff_s=60.0), ttl_s=1000.0)
    request = stage.request("c", "1")
    stage.wait(21.0)
    assert (request.state, request.failures) == (RequestState.WAITING, 1)
    assert worker("w") in stage.bus.silent
    if word == "failure":
        stage.fail("w", request.token)
        assert (request.state, request.failures, stage.bus.counters.late) == (RequestState.WAITING, 1, 1)
        check(stage)
        assert stage.delivered() == [("w", "1")]
        while request.state is RequestState.WAITING:
            stage.heard("w")
            stage.wait(1.0)
        assert stage.delivered() == [("w", "1")], "the retry comes when it is due"
    else:
        stage.result("w", request.token, [b"after its time"])
        assert stage.one(act.Answer).body == [b"after its time"]
    check(stage)


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:9"])
def test_a_worker_that_is_watched_is_not_watched_twice(stage: LedgerStage, endpoint: str) -> None:
    heartbeat = Heartbeat(dead_after_s=1000.0)
    stage.do(events.WorkerUp(worker("w"), "w", ((b"echo", 0),), heartbeat, 1, endpoint=endpoint))
    (known,) = stage.bus.workers.values()
    stage.submit("c", "1", options=LIMITED, ttl_s=1000.0)
    stage.wait(10.0 + GRACE_S)
    stage.now += 0.1
    alarms_due(stage.bus, stage.now)
    assert stage.bus.counters.timeouts == 1
    assert [known in slot for slot in stage.bus.watches._slots.values()] == [True]
