"""Workers that say nothing while they work: their answers count, and nobody runs their requests in vain."""

from __future__ import annotations

import pytest

from polybus.core import actions as act
from polybus.core import events, holders, requests
from polybus.core.ledger import Started, Waiting
from polybus.core.lifecycle import RequestState, WorkerState
from polybus.core.model import Heartbeat, JobOptions, Limits, QueuePolicy, Reason
from support.invariants import check as check_tables
from support.stage import LedgerStage, Stage, client, worker

DEAD_S = 5.0
BEATS = Heartbeat(dead_after_s=DEAD_S, beat_every_s=1.0)
LISTENS = Heartbeat(dead_after_s=DEAD_S)
RETRIED = JobOptions(retries=3, backoff_s=1.0)


@pytest.fixture
def stage() -> Stage:
    return Stage(Limits(attempts=2))


def check(stage: Stage) -> None:
    check_tables(stage.bus, stage.now)


def busy(stage: Stage, *names: str, credit: int = 1) -> bytes:
    """These workers get one request, each when the one before it is lost by silence. Its token."""
    stage.worker(names[0], heartbeat=BEATS, credit=credit)
    stage.submit("c", "1")
    token = stage.token("c", "1")
    for name in names[1:]:
        stage.wait(DEAD_S - 0.5)
        stage.worker(name, heartbeat=BEATS, credit=credit)
        stage.wait(0.7)
        check(stage)
    assert stage.delivered() == [(name, "1") for name in names]
    return token


def silence(stage: Stage) -> None:
    stage.wait(DEAD_S + 0.2)
    check(stage)


# -- the first answer ends it ---------------------------------------------------------------------


def test_the_answer_of_a_silent_worker_counts_while_nobody_has_the_request(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    assert stage.request("c", "1").state is RequestState.QUEUED
    assert worker("w") not in stage.bus.workers, "silence means disconnected"
    stage.result("w", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    assert stage.bus.counters.late == 0
    check(stage)
    # It is at work again, on the connection that it has.
    assert stage.bus.workers[worker("w")].free == 1
    assert not stage.actions(act.Dismiss)
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "2")]
    check(stage)


def test_the_answer_of_a_silent_worker_counts_while_another_one_works(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.result("w", token, [b"first"])
    assert stage.one(act.Answer).body == [b"first"]
    assert stage.one(act.Stop).worker.address == worker("v")
    check(stage)
    stage.result("v", token, [b"second"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 1
    assert {w.free for w in stage.bus.workers.values()} == {1}
    check(stage)


def test_the_answer_of_the_second_worker_counts_if_it_is_first(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.result("v", token, [b"first"])
    assert stage.one(act.Answer).body == [b"first"]
    check(stage)
    assert not stage.bus.silent, "nothing is expected of it any more"
    stage.result("w", token, [b"second"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 1
    check(stage)


def test_a_part_of_one_worker_is_late_while_the_client_gets_parts_of_another(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.part("v", token, [b"of v"])
    stage.part("w", token, [b"of w"])
    assert [part.body for part in stage.actions(act.Stream)] == [[b"of v"]]
    assert stage.bus.counters.late == 1
    assert [(one.token, one.worker) for one in stage.told("late")] == [(token, worker("w"))]
    check(stage)


def test_who_answers_what_another_one_streams_had_the_request(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.part("v", token)
    assert requests.finish(stage.bus, worker("w"), token, [b"of w"], stage.now)
    assert stage.bus.counters.late == 1
    assert not any(isinstance(action, act.Answer) for action in stage.bus.take())
    check(stage)


def test_three_silent_workers_and_one_answer() -> None:
    stage = Stage(Limits(attempts=5))
    token = busy(stage, "u", "v", "w")
    silence(stage)
    assert len(stage.bus.silent) == 3
    stage.result("v", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    for name in ("u", "w"):
        stage.result(name, token, [b"late"])
    assert not stage.actions(act.Answer)
    assert not stage.delivered()
    assert not stage.bus.silent
    assert not stage.bus.holders
    check(stage)


def test_an_answer_for_a_request_that_waits_for_its_next_attempt(stage: Stage) -> None:
    stage.worker("w", heartbeat=BEATS)
    stage.submit("c", "1", options=RETRIED)
    token = stage.token("c", "1")
    silence(stage)
    stage.worker("v")
    stage.fail("v", token)
    assert stage.request("c", "1").state is RequestState.WAITING
    stage.result("w", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    stage.wait(5.0)
    assert stage.delivered() == [("w", "1"), ("v", "1")], "it is not tried again"
    check(stage)


def test_a_failure_of_a_silent_worker_counts_if_nobody_else_tries(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    stage.fail("w", token)
    assert stage.one(act.Refuse).reason is Reason.FAILED
    check(stage)


def test_a_failure_of_a_silent_worker_is_late_while_another_one_tries(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.fail("w", token)
    assert not stage.actions(act.Refuse)
    assert stage.bus.counters.late == 1
    check(stage)
    stage.result("v", token, [b"yes"])
    assert stage.one(act.Answer).body == [b"yes"]
    check(stage)


def test_somebody_who_was_never_given_it_cannot_answer(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    stage.result("stranger", token, [b"forged"])
    assert not stage.actions(act.Answer)
    stage.worker("v", "other")
    stage.result("v", token, [b"forged"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 2
    check(stage)


def test_how_long_it_took_is_told_from_when_that_worker_got_it(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    began = stage.now - (DEAD_S + 0.2)
    stage.result("w", token)
    (replied,) = stage.told("replied")
    assert replied.worker == worker("w")
    assert replied.dispatched_at == pytest.approx(began, abs=0.3)


def test_how_long_it_took_is_told_after_a_return(stage: Stage) -> None:
    token = busy(stage, "w")
    began = stage.now
    silence(stage)
    stage.result("w", token)
    assert stage.told("replied")[0].dispatched_at == began


# -- parts ----------------------------------------------------------------------------------------


def test_a_part_brings_a_silent_worker_back(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    stage.part("w", token, [b"a"])
    assert stage.one(act.Stream).body == [b"a"]
    check(stage)
    stage.result("w", token, [b"b"])
    assert stage.one(act.Answer).body == [b"b"]
    check(stage)


def test_a_part_of_a_silent_worker_stops_the_other_one(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.part("w", token, [b"a"])
    assert stage.one(act.Stream).body == [b"a"]
    assert stage.one(act.Stop).worker.address == worker("v")
    stage.result("v", token, [b"another answer"])
    assert not stage.actions(act.Answer), "the client has a part of the first one's"
    stage.result("w", token, [b"b"])
    assert stage.one(act.Answer).body == [b"b"]
    check(stage)


def test_parts_of_two_workers_are_not_mixed(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.part("v", token, [b"1"])
    stage.part("w", token, [b"a"])
    assert [part.body for part in stage.actions(act.Stream)] == [[b"1"]]
    stage.result("w", token, [b"b"])
    assert not stage.actions(act.Answer)
    stage.result("v", token, [b"2"])
    assert stage.one(act.Answer).body == [b"2"]
    check(stage)


# -- the verdict ----------------------------------------------------------------------------------


def test_worker_lost_is_not_the_verdict_while_one_can_be_reached(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    silence(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    assert not stage.actions(act.Refuse)
    stage.actions(act.Beat)
    stage.wait(DEAD_S + 0.2)
    assert {beat.worker.address for beat in stage.actions(act.Beat)} == {worker("w"), worker("v")}
    # Another one does not get it: it has cost too many.
    stage.worker("u")
    assert not stage.delivered()
    check(stage)
    stage.gone("w", "it cannot be reached")
    assert not stage.actions(act.Refuse)
    check(stage)
    stage.result("v", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    check(stage)


def test_worker_lost_is_the_verdict_when_the_last_one_is_gone(stage: Stage) -> None:
    busy(stage, "w", "v")
    silence(stage)
    stage.gone("v", "it cannot be reached")
    stage.gone("w", "it cannot be reached")
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.WORKER_LOST
    assert "2 workers were lost" in refusal.detail
    assert not stage.bus.silent
    check(stage)


def test_the_same_worker_that_goes_silent_again_is_not_lost_twice(stage: Stage) -> None:
    """With a limit of two lost workers one slow worker is not a verdict, however often it is silent."""
    stage.worker("w", heartbeat=BEATS, credit=2)
    stage.submit("c", "1", options=RETRIED)
    for _ in range(4):
        silence(stage)
        stage.heard("w")
        check(stage)
    assert stage.delivered() == [("w", "1")]
    stage.gone("w")
    assert stage.request("c", "1").state is RequestState.QUEUED
    check(stage)


def test_expiry_ends_a_suspended_request() -> None:
    stage = Stage(Limits(attempts=1, request_ttl_s=20.0))
    token = busy(stage, "w")
    silence(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    stage.wait(20.0)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    check(stage)
    assert not stage.bus.silent
    stage.result("w", token)
    assert not stage.actions(act.Answer)


def test_a_client_withdraws_a_suspended_request() -> None:
    stage = Stage(Limits(attempts=1))
    busy(stage, "w")
    silence(stage)
    stage.do(events.Cancel(client("c"), b"1"))
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    check(stage)


def test_nothing_is_sent_to_a_silent_worker_unless_the_verdict_depends_on_it(stage: Stage) -> None:
    busy(stage, "w")
    silence(stage)
    stage.taken.clear()
    stage.wait(5 * DEAD_S)
    assert stage.nothing()


def test_no_question_is_sent_to_a_silent_worker_whose_request_another_one_has_again(stage: Stage) -> None:
    busy(stage, "u", "v")
    while stage.request("c", "1").state is not RequestState.SUSPENDED:
        stage.wait(0.05)
    # The next look at both of them would be at once; v is heard before that.
    stage.heard("v")
    stage.taken.clear()
    stage.wait(0.5)
    assert not [beat for beat in stage.actions(act.Beat) if beat.worker.address == worker("u")]
    check(stage)


def test_a_silent_worker_that_came_by_itself_is_not_hung_up_on_when_it_is_gone(stage: Stage) -> None:
    busy(stage, "w")
    silence(stage)
    stage.gone("w")
    assert not stage.bus.silent
    assert not stage.actions(act.HangUp)


# -- coming back ----------------------------------------------------------------------------------


def test_a_sign_of_life_brings_it_back_with_what_it_works_on(stage: Stage) -> None:
    busy(stage, "w")
    silence(stage)
    stage.heard("w")
    request = stage.request("c", "1")
    assert request.worker is stage.bus.workers[worker("w")]
    assert not stage.delivered(), "it has it already"
    # Nobody else gets what it works on.
    stage.worker("v")
    assert not stage.delivered()
    check(stage)


def test_it_is_not_given_again_what_it_is_busy_with(stage: Stage) -> None:
    """The other one is lost while the first is back: the request is the first one's again."""
    busy(stage, "w", "v", credit=3)
    stage.heard("w")
    stage.gone("v")
    assert not stage.delivered()
    assert stage.request("c", "1").worker is stage.bus.workers[worker("w")]
    check(stage)


def test_it_is_not_given_a_retry_of_what_it_is_busy_with(stage: Stage) -> None:
    stage.worker("w", heartbeat=BEATS, credit=2)
    stage.submit("c", "1", options=RETRIED)
    token = stage.token("c", "1")
    silence(stage)
    stage.worker("v")
    stage.heard("w")
    stage.fail("v", token)
    stage.gone("v")
    stage.wait(1.5)
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    assert stage.request("c", "1").worker is stage.bus.workers[worker("w")]
    check(stage)
    stage.result("w", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    assert stage.bus.workers[worker("w")].free == 2
    check(stage)


def test_slots_are_neither_lost_nor_made_by_a_return(stage: Stage) -> None:
    stage.worker("w", heartbeat=BEATS, credit=3)
    for number in "12":
        stage.submit("c", number)
    tokens = {number: stage.token("c", number) for number in "12"}
    silence(stage)
    stage.worker("v")
    assert stage.delivered()[-1] == ("v", "1")
    stage.result("v", tokens["1"])
    check(stage)
    # The silent one still has both; the answer to the first, which has ended, gives its slot back.
    stage.result("w", tokens["1"])
    assert stage.bus.workers[worker("w")].free == 2
    stage.result("w", tokens["2"])
    assert stage.bus.workers[worker("w")].free == 3
    check(stage)


def test_a_new_conversation_ends_the_old_one(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    stage.worker("w", heartbeat=BEATS)
    assert stage.delivered() == [("w", "1")], "it begins anew, so it does not have it"
    assert not stage.bus.holders
    stage.result("w", token)
    assert stage.one(act.Answer)
    check(stage)


def test_a_worker_that_left_is_not_remembered(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    stage.gone("w", "it disconnected")
    assert not stage.bus.silent
    stage.result("w", token)
    assert not stage.actions(act.Answer)
    check(stage)


def test_a_worker_whose_pipe_was_full_in_the_turn_of_its_loss_never_got_it() -> None:
    stage = Stage(Limits(attempts=1))
    token = busy(stage, "w")
    silence(stage)
    stage.do(events.WorkerFull(worker("w"), token))
    assert stage.one(act.Refuse).reason is Reason.WORKER_LOST


def test_other_brokers_learn_that_it_is_back(stage: Stage) -> None:
    """Its service is offered again, also where the broker forgot it meanwhile."""
    stage.worker("w", "echo", "rare", heartbeat=BEATS)
    stage.submit("c", "1")
    silence(stage)
    stage.bus.services.pop(b"rare")
    stage.heard("w")
    assert stage.bus.services[b"rare"].roster.members
    assert stage.told("worker_up")[-1].reason == "it is heard again"
    check(stage)


# -- let go ---------------------------------------------------------------------------------------


def let_go(stage: Stage, *names: str) -> None:
    """Another worker answers the request of these, which are silent."""
    token = busy(stage, *names, "quick")
    stage.result("quick", token)
    assert not stage.bus.silent
    stage.actions(act.Dismiss)


def test_a_worker_that_was_let_go_is_told_once(stage: Stage) -> None:
    let_go(stage, "w")
    for _ in range(3):
        stage.heard("w")
    assert stage.one(act.Dismiss).peer == worker("w")
    stage.do(events.Slot(worker("w"), "w"))
    stage.do(events.Offer(worker("w"), "w", b"more"))
    assert not stage.actions(act.Dismiss)
    # With the next conversation all is as it was.
    stage.worker("w", heartbeat=BEATS)
    stage.gone("w")
    stage.heard("w")
    stage.heard("w")
    assert len(stage.actions(act.Dismiss)) == 2, "it left, and the bus knows nothing of it"
    check(stage)


@pytest.mark.parametrize("how", ["leaves", "schedules"])
def test_a_worker_that_was_let_go_is_a_stranger_after_its_next_conversation(stage: Stage, how: str) -> None:
    let_go(stage, "w")
    stage.heard("w")
    assert stage.one(act.Dismiss).peer == worker("w")
    if how == "schedules":
        stage.do(events.SchedulerUp(worker("w"), "w", LISTENS))
    stage.gone("w")
    stage.heard("w")
    stage.heard("w")
    assert [told.peer for told in stage.actions(act.Dismiss)] == [worker("w")] * 2


def test_a_worker_that_was_let_go_is_told_again_if_it_does_not_stop(stage: Stage) -> None:
    let_go(stage, "w")
    stage.heard("w")
    assert stage.one(act.Dismiss).peer == worker("w")
    stage.wait(holders.TOLD_FOR_S + 2.0, step=1.0)
    assert not stage.bus.let_go
    stage.actions(act.Dismiss)
    stage.heard("w")
    assert stage.one(act.Dismiss).peer == worker("w")


def test_a_worker_that_works_for_nothing_and_goes_silent_is_told_at_once_and_only_then(stage: Stage) -> None:
    token = busy(stage, "w", "v")
    stage.heard("w")
    stage.result("v", token)
    stage.actions(act.Dismiss)
    stage.wait(DEAD_S + 0.2)
    assert worker("w") not in stage.bus.workers
    assert [told.peer for told in stage.actions(act.Dismiss)].count(worker("w")) == 1
    stage.heard("w")
    stage.heard("w")
    assert stage.actions(act.Dismiss) == []
    check(stage)


def test_so_many_workers_that_were_let_go_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "MAX_LET_GO", 2)
    stage = Stage(Limits(attempts=9))
    let_go(stage, "u", "v", "w")
    assert len(stage.bus.let_go) == 2


# -- jobs -----------------------------------------------------------------------------------------


def test_a_guaranteed_job_ends_with_the_answer_of_a_silent_worker() -> None:
    stage = LedgerStage(Limits(attempts=2))
    stage.worker("w", heartbeat=BEATS)
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.write()
    token = stage.token("c", "1")
    assert stage.delivered() == [("w", "1")]
    stage.wait(DEAD_S + 0.2)
    stage.write()
    stage.result("w", token, [b"slow"])
    stage.write()
    assert stage.one(act.Answer).body == [b"slow"]
    check(stage)
    stage.restart()
    assert not stage.bus.requests


# -- patience as a setting ------------------------------------------------------------------------


def patient(stage: Stage, seconds: float) -> None:
    stage.bus.change_policies([("slow", QueuePolicy(silence_s=seconds))])


@pytest.mark.parametrize("heartbeat", [BEATS, LISTENS])
def test_a_queue_gives_its_workers_more_time(stage: Stage, heartbeat: Heartbeat) -> None:
    patient(stage, 20.0)
    stage.worker("w", "slow", heartbeat=heartbeat)
    stage.submit("c", "1", "slow")
    stage.actions(act.Beat)
    stage.wait(19.5)
    assert worker("w") in stage.bus.workers
    assert stage.actions(act.Beat), "a connection that is gone is found out all the same"
    stage.wait(1.0)
    assert stage.bus.silent[worker("w")].state is WorkerState.SILENT
    check(stage)


def test_the_time_is_for_workers_at_work(stage: Stage) -> None:
    patient(stage, 20.0)
    stage.worker("idle", "slow", heartbeat=BEATS)
    stage.worker("elsewhere", "slow", "echo", heartbeat=BEATS)
    stage.submit("c", "1", "echo")
    stage.wait(DEAD_S + 0.2)
    assert not stage.bus.workers
    assert not stage.bus.silent.keys() - {worker("elsewhere")}


def test_a_shorter_time_than_the_dialect_has_is_ignored(stage: Stage) -> None:
    patient(stage, 1.0)
    stage.worker("w", "slow", heartbeat=BEATS)
    stage.submit("c", "1", "slow")
    stage.wait(DEAD_S - 0.2)
    assert worker("w") in stage.bus.workers


@pytest.mark.parametrize("offers", ["echo", "polybus.jobs"])
def test_a_request_that_waits_for_silent_workers_fails_when_the_last_of_them_begins_anew(
    stage: Stage, offers: str
) -> None:
    """Also if the broker sends that worker away again, because it offers what it must not."""
    busy(stage, "a", "b")
    silence(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    stage.worker("a", "other", heartbeat=BEATS)
    check(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    assert not stage.actions(act.Refuse)
    stage.do(events.WorkerUp(worker("b"), "b", ((offers.encode(), 0),), BEATS, 1))
    check(stage)
    refusal = stage.one(act.Refuse)
    assert (refusal.request_id, refusal.reason) == (b"1", Reason.WORKER_LOST)
    assert "it began a new conversation" in refusal.detail
    assert stage.bus.request_count == 0


def test_a_request_that_waits_for_a_silent_worker_goes_on_when_that_still_has_it(stage: Stage) -> None:
    token = busy(stage, "a", "b")
    silence(stage)
    stage.worker("a", "other", heartbeat=BEATS)
    stage.worker("b", heartbeat=BEATS, holding=(token,))
    check(stage)
    assert not stage.actions(act.Refuse)
    assert stage.request("c", "1").state is RequestState.DISPATCHED
    stage.result("b", token, [b"done"])
    assert stage.one(act.Answer).body == [b"done"]


def test_a_second_suspended_request_puts_off_the_next_look_at_a_silent_worker() -> None:
    stage = Stage(Limits(attempts=2))
    stage.worker("u", heartbeat=LISTENS, credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    silence(stage)
    # Two others get one of them each, and go silent 2 seconds apart: each time the request is suspended, and
    # it is looked whether u is still connected.
    stage.worker("v", heartbeat=LISTENS)
    stage.wait(2.0)
    stage.worker("w", heartbeat=LISTENS)
    stage.wait(DEAD_S - 2.0 + 0.2)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    assert [beat.worker.address for beat in stage.actions(act.Beat)].count(worker("u")) == 1
    stage.wait(2.0)
    assert stage.request("c", "2").state is RequestState.SUSPENDED
    assert [beat.worker.address for beat in stage.actions(act.Beat)].count(worker("u")) == 1
    stage.wait(DEAD_S - 0.3)
    assert worker("u") not in [beat.worker.address for beat in stage.actions(act.Beat)]
    stage.wait(0.5)
    assert [beat.worker.address for beat in stage.actions(act.Beat)].count(worker("u")) == 1
    check(stage)


def test_a_request_that_is_suspended_is_counted_told_and_written_down() -> None:
    stage = LedgerStage(Limits(attempts=1))
    stage.worker("w", heartbeat=LISTENS)
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.write()
    token = stage.token("c", "1")
    silence(stage)
    request = stage.request("c", "1")
    assert request.state is RequestState.SUSPENDED
    assert stage.bus.counters.requeued == 1
    (told,) = stage.told("requeued")
    assert told.reason.startswith("nothing was heard from it for 5.")
    del stage.pen.written[:]
    stage.write()
    assert [line for line in stage.pen.written if isinstance(line, Waiting)] == [
        Waiting(token, 1, 0.0, request.history)
    ]
    assert len(request.history) == 1


def test_of_the_silent_workers_of_a_request_only_those_with_nothing_else_are_let_go() -> None:
    stage = Stage(Limits(attempts=5))
    stage.worker("u", heartbeat=LISTENS, credit=2)
    for request_id in ("1", "2"):
        stage.submit("c", request_id)
    token = stage.token("c", "1")
    silence(stage)
    stage.worker("v", heartbeat=LISTENS)
    silence(stage)
    assert set(stage.bus.silent) == {worker("u"), worker("v")}
    assert {holder.address for holder in stage.bus.holders[token]} == {worker("u"), worker("v")}
    stage.worker("x", heartbeat=LISTENS)
    stage.result("x", token)
    assert set(stage.bus.silent) == {worker("u")}, "it may still answer the other one"
    assert set(stage.bus.let_go) == {worker("v")}
    check(stage)


def test_a_suspended_request_waits_for_those_that_got_it_and_not_for_one_that_did_not() -> None:
    stage = Stage(Limits(attempts=2))
    token = busy(stage, "u", "v")
    silence(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    stage.do(events.WorkerFull(worker("v"), token))
    assert stage.request("c", "1").state is RequestState.SUSPENDED, "u has it"
    assert not stage.actions(act.Refuse)
    stage.do(events.WorkerFull(worker("u"), token))
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.WORKER_LOST
    assert refusal.detail.endswith("the last one: its pipe was full")
    assert not stage.bus.holders


# -- a connection that breaks -----------------------------------------------------------------------


def unplug(stage: Stage, name: str) -> None:
    """A message to a worker was refused: its connection is gone."""
    stage.do(events.WorkerGone(worker(name), "it cannot be reached", is_unreachable=True))
    check(stage)


@pytest.mark.parametrize("where", ["queued", "another", "waiting"])
def test_a_worker_that_makes_a_new_connection_may_answer(stage: Stage, where: str) -> None:
    """Its identity is its own, so the bus knows that it was given the request."""
    stage.worker("w", heartbeat=BEATS)
    stage.submit("c", "1", options=RETRIED)
    token = stage.token("c", "1")
    unplug(stage, "w")
    if where != "queued":
        stage.worker("v")
        if where == "waiting":
            stage.fail("v", token)
    assert stage.bus.departed
    stage.result("w", token, [b"carried over"])
    assert stage.one(act.Answer).body == [b"carried over"]
    assert stage.bus.counters.late == 0
    check(stage)
    assert not stage.bus.departed
    assert not stage.bus.holders
    # What was on the way to it may be lost: it has to register, and is told so once.
    stage.submit("c", "2")
    assert ("w", "2") not in stage.delivered()
    stage.heard("w")
    stage.heard("w")
    assert stage.one(act.Dismiss).peer == worker("w")
    check(stage)


def test_the_second_answer_after_a_new_connection_is_late(stage: Stage) -> None:
    token = busy(stage, "w")
    unplug(stage, "w")
    stage.worker("v")
    stage.result("v", token, [b"first"])
    assert stage.one(act.Answer).body == [b"first"]
    assert not stage.bus.departed
    stage.result("w", token, [b"second"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 1
    check(stage)


def test_only_its_answer_counts_after_a_new_connection(stage: Stage) -> None:
    """Not a sign of life, because it may not have got the request; not a part, nor what follows that."""
    token = busy(stage, "w")
    unplug(stage, "w")
    stage.heard("w")
    assert stage.request("c", "1").state is RequestState.QUEUED
    stage.fail("w", token)
    assert stage.request("c", "1").state is RequestState.QUEUED
    stage.part("w", token)
    assert not stage.actions(act.Stream)
    stage.result("w", token, [b"the rest"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 3
    assert not stage.bus.departed
    check(stage)
    stage.worker("v")
    stage.result("v", token, [b"whole"])
    assert stage.one(act.Answer).body == [b"whole"]
    check(stage)


def test_no_verdict_waits_for_a_worker_without_a_connection() -> None:
    stage = Stage(Limits(attempts=1))
    busy(stage, "w")
    unplug(stage, "w")
    assert stage.one(act.Refuse).reason is Reason.WORKER_LOST
    assert not stage.bus.departed
    check(stage)


def test_a_silent_worker_whose_connection_breaks_may_answer_what_is_not_decided() -> None:
    stage = Stage(Limits(attempts=2))
    stage.worker("u", heartbeat=BEATS, credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    tokens = {number: stage.token("c", number) for number in "12"}
    silence(stage)
    stage.worker("v", heartbeat=BEATS)
    silence(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    unplug(stage, "u")
    assert not stage.actions(act.Refuse), "v may answer it"
    unplug(stage, "v")
    assert stage.one(act.Refuse).request_id == b"1"
    assert set(stage.bus.departed) == {worker("u")}
    check(stage)
    stage.result("u", tokens["2"], [b"carried over"])
    assert stage.one(act.Answer).body == [b"carried over"]
    check(stage)


@pytest.mark.parametrize("how", ["register", "goodbye"])
def test_a_worker_that_begins_anew_or_leaves_is_not_remembered(stage: Stage, how: str) -> None:
    token = busy(stage, "w")
    unplug(stage, "w")
    if how == "register":
        stage.worker("w", "other")
    else:
        stage.gone("w", "it disconnected")
    assert not stage.bus.departed
    assert not stage.bus.holders
    stage.result("w", token)
    assert not stage.actions(act.Answer)
    check(stage)


def test_an_identity_that_libzmq_made_up_does_not_return(stage: Stage) -> None:
    address = (2, b"\0abcd")
    stage.do(events.WorkerUp(address, "w", ((b"echo", 0),), BEATS, 1))
    stage.submit("c", "1")
    stage.do(events.WorkerGone(address, "it cannot be reached", is_unreachable=True))
    assert not stage.bus.departed
    check(stage)


# -- dialects without a word for it -------------------------------------------------------------------


def granting(stage: Stage, name: str) -> None:
    """A worker that hands out its slots itself, and that cannot be told to register again."""
    stage.worker(name, heartbeat=BEATS, grants_slots=True, resumes=True)
    stage.do(events.Slot(worker(name), name))


@pytest.mark.parametrize("end", ["another", "expired"])
@pytest.mark.parametrize("first", ["answer", "heartbeat", "slot"])
def test_a_worker_that_nothing_can_be_told_works_again_when_it_is_heard(end: str, first: str) -> None:
    stage = Stage(Limits(request_ttl_s=2 * DEAD_S if end == "another" else DEAD_S - 2.0))
    granting(stage, "w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    silence(stage)
    if end == "another":
        granting(stage, "v")
        stage.result("v", token)
        stage.gone("v")
    assert stage.bus.request_count == 0
    assert not stage.bus.silent
    assert set(stage.bus.resting) == {worker("w")}
    check(stage)
    stage.delivered()
    stage.actions(act.Answer)
    if first == "answer":
        stage.result("w", token, [b"too late"])
        assert not stage.actions(act.Answer)
        assert stage.bus.counters.late == 1
    elif first == "heartbeat":
        stage.heard("w")
    stage.do(events.Slot(worker("w"), "w"))
    check(stage)
    assert not stage.bus.resting
    assert not stage.actions(act.Dismiss)
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "2")]
    check(stage)


@pytest.mark.parametrize("end", ["another", "expired", "while it was there"])
def test_an_answer_without_a_token_of_a_worker_that_rested_is_not_taken_for_that_of_its_next_request(
    end: str,
) -> None:
    stage = Stage(Limits(request_ttl_s=2 * DEAD_S if end == "another" else DEAD_S - 2.0))
    granting(stage, "w")
    stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "1")
    if end == "another":
        silence(stage)
        granting(stage, "v")
        stage.result("v", stage.token("c", "1"))
        stage.gone("v")
    elif end == "while it was there":
        stage.wait(DEAD_S - 1.0)
        assert stage.bus.request_count == 0
        stage.wait(1.2)
    else:
        silence(stage)
    assert set(stage.bus.resting) == {worker("w")}
    stage.heard("w")
    stage.submit("c", "2")
    assert stage.delivered()[-1] == ("w", "2")
    stage.actions(act.Answer)
    stage.result("w", b"", [b"of the first"])
    assert not stage.actions(act.Answer)
    assert stage.bus.counters.late == 1
    stage.result("w", b"", [b"of the second"])
    answer = stage.one(act.Answer)
    assert (answer.request_id, answer.body) == (b"2", [b"of the second"])
    check(stage)


@pytest.mark.parametrize("beats_before", [False, True])
@pytest.mark.parametrize("grants_many", [False, True])
def test_a_worker_that_rested_and_grants_a_slot_without_an_answer_owes_nothing(
    stage: Stage, grants_many: bool, beats_before: bool
) -> None:
    """What it had came to nothing: an answer would have come before."""
    granting(stage, "w")
    stage.submit("c", "1", ttl_s=DEAD_S - 2.0)
    silence(stage)
    assert set(stage.bus.resting) == {worker("w")}
    assert stage.bus.resting[worker("w")].owed == 1
    if beats_before:
        stage.heard("w")
    if grants_many:
        requests.give_slots(stage.bus, worker("w"), 1, stage.now)
    else:
        stage.do(events.Slot(worker("w"), "w"))
    stage.actions(act.Refuse)
    for number in "23":
        stage.submit("c", number)
        stage.result("w", b"", [number.encode()])
        answer = stage.one(act.Answer)
        assert (answer.request_id, answer.body) == (number.encode(), [number.encode()])
        stage.do(events.Slot(worker("w"), "w"))
    assert stage.bus.counters.late == 0


def test_what_a_worker_owes_ends_with_its_answers_and_slots(stage: Stage) -> None:
    granting(stage, "w")
    stage.do(events.Slot(worker("w"), "w"))
    for number in "12":
        stage.submit("c", number, ttl_s=DEAD_S - 2.0)
    silence(stage)
    # One is answered and one came to nothing; the slots of both come back.
    for answers in (True, False):
        if answers:
            stage.result("w", b"", [b"late"])
        stage.do(events.Slot(worker("w"), "w"))
    assert stage.bus.counters.late == 1
    stage.submit("c", "3")
    stage.result("w", b"", [b"of the third"])
    assert stage.one(act.Answer).body == [b"of the third"]


@pytest.mark.parametrize("is_silent_first", [False, True])
def test_a_worker_whose_connection_broke_may_answer_what_has_ended_without_naming_it(
    stage: Stage, is_silent_first: bool
) -> None:
    granting(stage, "w")
    stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "1", ttl_s=3.0)
    if is_silent_first:
        silence(stage)
        stage.heard("w")
    stage.submit("c", "2", ttl_s=1000.0)
    stage.wait(3.5 if not is_silent_first else 0.0)
    assert stage.delivered()[-1] == ("w", "2")
    unplug(stage, "w")
    check(stage)
    stage.result("w", b"", [b"of the first"])
    assert not stage.actions(act.Answer)
    stage.result("w", b"", [b"of the second"])
    answer = stage.one(act.Answer)
    assert (answer.request_id, answer.body) == (b"2", [b"of the second"])
    assert not stage.bus.departed
    check(stage)


def test_what_a_worker_that_rests_owes_is_counted_down_and_holds_no_bodies(stage: Stage) -> None:
    granting(stage, "w")
    stage.do(events.Slot(worker("w"), "w"))
    for number in "12":
        stage.submit("c", number, ttl_s=DEAD_S - 2.0)
    tokens = [stage.token("c", number) for number in "12"]
    silence(stage)
    resting = stage.bus.resting[worker("w")]
    assert (resting.owed, resting.inflight) == (2, {})
    # Whether an answer names its request or not; and one that is nobody's costs nothing below zero.
    stage.result("w", tokens[1], [b"late"])
    assert resting.owed == 1
    stage.result("w", b"", [b"late"])
    assert resting.owed == 0
    stage.result("w", b"nobody's", [b"late"])
    assert resting.owed == 0
    assert stage.bus.counters.late == 3


@pytest.mark.parametrize("how", ["register", "goodbye", "unreachable"])
def test_a_worker_that_rests_is_forgotten_when_it_begins_anew_or_leaves(stage: Stage, how: str) -> None:
    granting(stage, "w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    silence(stage)
    stage.worker("v")
    stage.result("v", token)
    assert stage.bus.resting
    if how == "register":
        granting(stage, "w")
    elif how == "goodbye":
        stage.gone("w")
    else:
        unplug(stage, "w")
    assert not stage.bus.resting
    check(stage)


def test_so_many_workers_that_rest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "MAX_LET_GO", 2)
    stage = Stage(Limits(attempts=9))
    for name in "uvw":
        granting(stage, name)
        stage.submit("c", name)
    silence(stage)
    stage.worker("quick", credit=3)
    for name in "uvw":
        stage.result("quick", stage.token("c", name))
    assert set(stage.bus.resting) == {worker("v"), worker("w")}


def test_a_silent_worker_that_is_back_has_the_whole_time_to_its_next_beat(stage: Stage) -> None:
    """Also if what it said is of no use any more."""
    stage.worker("w", heartbeat=Heartbeat(7.5, 2.5), credit=2)
    for number in "12":
        stage.submit("c", number)
    token = stage.token("c", "1")
    stage.wait(8.0)
    assert worker("w") in stage.bus.silent
    stage.do(events.Cancel(client("c"), b"1"))
    stage.wait(1.0)
    stage.part("w", token)
    assert stage.bus.counters.late == 1
    stage.wait(7.0)
    assert worker("w") in stage.bus.workers
    stage.wait(1.0)
    assert worker("w") not in stage.bus.workers
    check(stage)


# -- what a return brings -----------------------------------------------------------------------------


def test_a_worker_that_is_back_has_what_it_had_and_gets_what_waits() -> None:
    stage = LedgerStage(Limits(attempts=9, timeout_grace_s=1.0))
    beats = Heartbeat(dead_after_s=0.5)
    stage.worker("w", "echo", "rare", heartbeat=beats, credit=2)
    stage.submit("c", "1", ttl_s=100.0)
    stage.wait(0.7)
    stage.submit("c", "2", ttl_s=100.0)
    assert set(stage.bus.silent) == {worker("w")}
    stage.delivered()
    stage.heard("w")
    assert stage.delivered() == [("w", "2")]
    assert stage.told("worker_up")[-1].service == b"echo,rare"
    assert stage.bus.lines == [], "nothing of this is guaranteed"
    for _ in range(10):
        stage.wait(0.3)
        stage.heard("w")
    assert (stage.bus.counters.timeouts, stage.bus.counters.workers_lost) == (0, 1)
    # It is watched again.
    stage.wait(0.7)
    assert stage.bus.counters.workers_lost == 2
    check(stage)


def test_a_worker_that_is_back_offers_what_there_is_room_for() -> None:
    stage = Stage(Limits(attempts=9, services=2))
    held = stage.worker("w", "echo", "rare", heartbeat=LISTENS)
    stage.submit("c", "1", ttl_s=100.0)
    silence(stage)
    stage.bus.services.pop(b"rare")
    stage.submit("c", "2", "new")
    stage.heard("w")
    assert [service.name for service in held.offers] == [b"echo"]
    check(stage)


def test_the_time_limit_of_what_a_worker_says_it_has_begins_with_that() -> None:
    stage = LedgerStage(Limits(timeout_grace_s=1.0))
    stage.submit("c", "1", options=JobOptions(timeout_s=2.0, guarantee=True), ttl_s=100.0)
    stage.write()
    token = stage.token("c", "1")
    stage.worker("w", holding=(token,))
    assert stage.request("c", "1").worker is stage.bus.workers[worker("w")]
    stage.write()
    stage.wait(2.9)
    stage.write()
    assert [line.token for line in stage.pen.written if isinstance(line, Started)] == [token], "once"
    assert stage.bus.counters.timeouts == 0
    stage.wait(0.2)
    assert stage.bus.counters.timeouts == 1


def test_a_silent_worker_that_was_dialled_is_not_asked_about_a_suspended_request() -> None:
    """Its connection exists whether somebody listens there or not."""
    stage = LedgerStage(Limits(attempts=2))
    stage.worker("u", heartbeat=LISTENS)
    stage.submit("c", "1", ttl_s=1000.0)
    silence(stage)
    stage.do(events.WorkerUp((9, b"d"), "d", ((b"echo", 0),), LISTENS, endpoint="tcp://10.0.0.1:1"))
    silence(stage)
    assert stage.request("c", "1").state is RequestState.SUSPENDED
    assert stage.bus.lines == [], "it is not guaranteed"
    stage.wait(3 * DEAD_S)
    assert {beat.worker.address for beat in stage.actions(act.Beat)} == {worker("u")}
    check(stage)


def test_a_request_that_only_a_worker_that_was_dialled_has_is_given_up_as_lost() -> None:
    stage = Stage(Limits(attempts=1))
    stage.do(events.WorkerUp((9, b"d"), "d", ((b"echo", 0),), BEATS, endpoint="tcp://10.0.0.1:1"))
    stage.submit("c", "1", ttl_s=1000.0)
    silence(stage)
    assert stage.one(act.Refuse).reason is Reason.WORKER_LOST


def test_a_failure_of_a_silent_worker_whose_lease_ended_counts_if_nobody_else_tries(stage: Stage) -> None:
    token = busy(stage, "w")
    silence(stage)
    # Its lease ended meanwhile: it may answer, but does not come back by that.
    stage.bus.silent[worker("w")].offers = {}
    stage.fail("w", token)
    assert stage.one(act.Refuse).reason is Reason.FAILED


def test_a_worker_that_forgets_what_it_is_told_to_stop_is_free_when_another_one_answers(stage: Stage) -> None:
    stage.worker("u", heartbeat=LISTENS)
    stage.submit("c", "1", ttl_s=100.0)
    token = stage.token("c", "1")
    silence(stage)
    stage.worker("v", forgets_stopped=True)
    stage.submit("c", "2", ttl_s=100.0)
    stage.bus.silent[worker("u")].offers = {}
    stage.delivered()
    stage.result("u", token)
    assert stage.one(act.Stop).worker.address == worker("v")
    assert stage.delivered() == [("v", "2")]


def test_what_a_worker_was_told_is_forgotten_after_exactly_so_long(stage: Stage) -> None:
    let_go(stage, "w")
    stage.heard("w")
    told_at = stage.bus.let_go[worker("w")]
    holders.forget_told(stage.bus, told_at + holders.TOLD_FOR_S)
    assert not stage.bus.let_go


@pytest.mark.parametrize("how", ["returned", "full"])
@pytest.mark.parametrize("others", [[], ["d"]], ids=["alone", "beside another one"])
def test_what_was_claimed_and_given_back_is_not_given_again_to_who_works_on_it(
    stage: Stage, how: str, others: list[str]
) -> None:
    """It has no attempt then: another worker said that it had it, which is not counted, and gave it back."""
    token = busy(stage, "w", credit=2)
    silence(stage)
    stage.worker("v", heartbeat=BEATS, credit=0, grants_slots=True, holding=(token,))
    stage.heard("w")
    for name in others:
        # The busy one would be the better choice if it did not work on it.
        stage.worker(name, heartbeat=BEATS, credit=1, weight=-1)
    stage.nothing()
    event = events.Returned if how == "returned" else events.WorkerFull
    stage.do(event(worker("v"), token))
    assert stage.delivered() == [(name, "1") for name in others]
    check(stage)
    stage.result("w", token, [b"done"])
    assert stage.one(act.Answer).body == [b"done"]
    assert stage.bus.workers[worker("w")].free == 2
    check(stage)


def test_a_worker_that_took_too_long_does_not_fail_its_request_a_second_time() -> None:
    stage = Stage(Limits(attempts=9, timeout_grace_s=0.0))
    stage.worker("w", heartbeat=Heartbeat(dead_after_s=3.0))
    stage.submit("c", "1", options=JobOptions(retries=9, backoff_s=0.2, timeout_s=2.0))
    token = stage.token("c", "1")
    stage.wait(2.1)
    assert stage.bus.counters.timeouts == 1
    stage.worker("v")
    stage.wait(0.5)
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    # While another one has it, the first one goes silent and is heard again.
    stage.wait(0.6)
    assert worker("w") in stage.bus.silent
    stage.heard("w")
    stage.fail("v", token)
    request = stage.request("c", "1")
    assert (request.state, request.failures) == (RequestState.WAITING, 2)
    stage.fail("w", token)
    assert (request.state, request.failures) == (RequestState.WAITING, 2)
    assert stage.bus.counters.late == 1
    check(stage)


def test_a_part_that_is_dropped_spoils_the_answer_of_its_own_worker_alone() -> None:
    stage = Stage(Limits(attempts=9))
    token = busy(stage, "u", "v")
    unplug(stage, "v")
    stage.worker("x")
    assert stage.delivered() == [("x", "1")]
    stage.part("v", token)
    assert not stage.actions(act.Stream)
    stage.result("u", token, [b"whole"])
    assert stage.one(act.Answer).body == [b"whole"]
    check(stage)


def test_a_silent_worker_leaves_while_one_of_its_requests_has_ended_and_another_has_not() -> None:
    stage = Stage(Limits(attempts=1))
    stage.worker("w", heartbeat=LISTENS, credit=2)
    for number in "12":
        stage.submit("c", number)
    silence(stage)
    stage.do(events.Cancel(client("c"), b"1"))
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    assert worker("w") in stage.bus.silent
    stage.gone("w")
    refusal = stage.one(act.Refuse)
    assert (refusal.request_id, refusal.reason) == (b"2", Reason.WORKER_LOST)
    assert not stage.bus.silent
    check(stage)


def test_of_several_silent_workers_each_is_let_go_in_its_own_way() -> None:
    stage = Stage(Limits(attempts=9))
    granting(stage, "w")
    stage.submit("c", "1")
    silence(stage)
    for name in "uv":
        stage.worker(name, heartbeat=LISTENS)
        silence(stage)
    assert set(stage.bus.silent) == {worker("w"), worker("u"), worker("v")}
    stage.worker("quick")
    stage.result("quick", stage.token("c", "1"))
    assert not stage.bus.silent
    assert set(stage.bus.resting) == {worker("w")}
    assert set(stage.bus.let_go) == {worker("u"), worker("v")}
    check(stage)


def test_an_answer_that_crossed_the_order_to_stop_takes_no_slot_of_who_grants_them_itself() -> None:
    stage = Stage(Limits(timeout_grace_s=0.0))
    stage.worker("w", grants_slots=True, forgets_stopped=True)
    stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "1", options=JobOptions(retries=3, backoff_s=0.2, timeout_s=1.0))
    token = stage.token("c", "1")
    stage.wait(1.1)
    assert stage.one(act.Stop).worker.address == worker("w")
    stage.worker("v")
    stage.wait(0.5)
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    stage.result("w", token, [b"crossed"])
    assert stage.one(act.Answer).body == [b"crossed"]
    stage.gone("v")
    stage.do(events.Slot(worker("w"), "w"))
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "2")]
    check(stage)


@pytest.mark.parametrize("other", [False, True], ids=["nobody else has it", "another one has it"])
def test_who_is_told_to_stop_and_answers_all_the_same_ends_the_request(other: bool) -> None:
    stage = Stage(Limits(timeout_grace_s=0.0))
    stage.worker("w", obeys_stop=True)
    stage.submit("c", "1", options=JobOptions(retries=3, backoff_s=0.2, timeout_s=1.0))
    token = stage.token("c", "1")
    stage.wait(1.1)
    assert stage.one(act.Stop).worker.address == worker("w")
    if other:
        stage.worker("v")
        stage.wait(0.5)
    stage.result("w", token, [b"crossed"])
    assert stage.one(act.Answer).body == [b"crossed"]
    assert [told.worker for told in stage.told("replied")] == [worker("w")]
    assert stage.bus.workers[worker("w")].free == 1
    check(stage)


def test_about_a_thousand_workers_are_remembered_for_about_a_minute() -> None:
    assert 500 <= holders.MAX_LET_GO <= 2_000
    assert 30.0 <= holders.TOLD_FOR_S <= 120.0


def test_what_is_known_of_a_worker_that_was_given_a_request() -> None:
    """Nothing but when, until it is silent, late, told to stop, or a part of its answer is lost."""
    holding = holders.Holding(5.0)
    assert (holding.given_at, holding.is_silent, holding.is_overdue) == (5.0, False, False)
    assert (holding.is_whole, holding.has_slot) == (True, True)


def test_a_worker_that_is_silent_twice_got_its_request_when_it_got_it() -> None:
    stage = Stage(Limits(attempts=9))
    stage.worker("w", heartbeat=LISTENS)
    began = stage.now
    stage.submit("c", "1", ttl_s=1000.0)
    token = stage.token("c", "1")
    silence(stage)
    stage.worker("v")
    stage.heard("w")
    silence(stage)
    assert worker("w") in stage.bus.silent
    stage.result("w", token)
    (replied,) = stage.told("replied")
    assert (replied.worker, replied.dispatched_at) == (worker("w"), began)
    check(stage)


def test_a_worker_that_forgets_what_it_is_told_to_stop_is_not_lost_twice_either(stage: Stage) -> None:
    stage.worker("w", heartbeat=BEATS, forgets_stopped=True)
    stage.submit("c", "1", options=RETRIED)
    for _ in range(3):
        silence(stage)
        assert stage.request("c", "1").state is RequestState.QUEUED
        stage.heard("w")
        check(stage)
    assert stage.delivered() == [("w", "1")]
    assert stage.request("c", "1").state is RequestState.DISPATCHED


def test_who_never_got_a_request_is_not_taken_for_one_that_works_on_it() -> None:
    stage = Stage()
    token = busy(stage, "w", "v")
    # In the turn in which it was given away, the silent one sends a part; the other's message cannot be made.
    stage.part("w", token)
    stage.do(events.Undeliverable(worker("v"), token, "two frames"))
    check(stage)
    stage.gone("w")
    assert stage.delivered() == [("v", "1")]
    check(stage)
