"""The life of a request after it was accepted: dispatched, answered, given back, withdrawn, ended."""

from __future__ import annotations

import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.lifecycle import RequestState
from polybus.core.model import Heartbeat, Limits, QueuePolicy, Reason
from support.stage import Stage, client, worker

# -- answered -----------------------------------------------------------------------------------------


def test_an_answer_goes_to_who_asked_and_frees_the_slot() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.result("w", stage.token("c", "1"), [b"one", b"two"])
    answer = stage.one(act.Answer)
    assert (answer.client, answer.voice, answer.service) == (client("c"), "c", b"echo")
    assert (answer.request_id, answer.body) == (b"1", [b"one", b"two"])
    assert stage.delivered() == [("w", "1"), ("w", "2")]
    assert stage.bus.services[b"echo"].answered == 1


def test_an_empty_token_is_the_oldest_one() -> None:
    stage = Stage()
    stage.worker("w", credit=3)
    for number in "123":
        stage.submit("c", number)
    stage.result("w")
    stage.part("w")
    stage.fail("w")
    stage.result("w")
    told = [a.request_id for a in stage.taken if isinstance(a, act.Answer | act.Refuse | act.Stream)]
    assert told == [b"1", b"2", b"2", b"3"]
    stage.result("w")
    assert stage.bus.counters.late == 1


def test_an_empty_token_passes_over_no_withdrawn_request() -> None:
    """Who answers in order answers the withdrawn one, too: the next answer is not taken for it."""
    stage = Stage()
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.do(events.Cancel(client("c"), b"1"))
    stage.nothing()
    stage.result("w", body=[b"for 1"])
    assert stage.nothing()
    stage.result("w", body=[b"for 2"])
    assert stage.one(act.Answer).body == [b"for 2"]


def test_a_failure_is_refused_with_the_workers_words() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.do(events.Failure(worker("w"), b"", "no tea", [b"own words"], Reason.REJECTED))
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail, refusal.body) == (Reason.REJECTED, "no tea", [b"own words"])
    assert stage.bus.services[b"echo"].failed == 1
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1"), ("w", "2")], "the slot is free again"


@pytest.mark.parametrize("speak", [Stage.result, Stage.part, Stage.fail])
def test_nothing_comes_of_a_word_about_somebody_elses_request(speak: object) -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.worker("thief")
    stage.nothing()
    token = stage.token("c", "1")
    for name, about in (("thief", token), ("thief", b""), ("nobody", token), ("w", b"nonsense")):
        speak(stage, name, about)  # type: ignore[operator]
    assert stage.nothing()
    assert stage.bus.counters.late == 4
    assert len(stage.told("late")) == 4
    assert stage.request("c", "1").state is RequestState.DISPATCHED
    assert stage.bus.workers[worker("thief")].free == 1


def test_a_second_answer_is_late() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.result("w", token)
    stage.nothing()
    stage.result("w", token)
    assert stage.nothing()
    assert stage.bus.counters.late == 1
    assert held.free == 1


# -- streamed -----------------------------------------------------------------------------------------


def test_parts_and_then_the_end() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    for number in (b"1", b"2"):
        stage.part("w", token, [number])
    assert stage.request("c", "1").state is RequestState.STREAMING
    assert [part.body for part in stage.actions(act.Stream)] == [[b"1"], [b"2"]]
    stage.result("w", token)
    assert stage.one(act.Answer).request_id == b"1"
    stage.part("w", token)
    assert stage.actions(act.Stream) == []


def test_a_broken_stream_begins_anew_with_somebody_else() -> None:
    stage = Stage()
    stage.worker("w")
    stage.worker("other")
    stage.submit("c", "1")
    stage.part("w")
    stage.gone("w")
    assert stage.delivered() == [("w", "1"), ("other", "1")]
    assert stage.request("c", "1").attempt == 2
    stage.result("other")
    assert stage.one(act.Answer).request_id == b"1"


# -- given back ---------------------------------------------------------------------------------------


def test_what_a_lost_worker_held_comes_first_in_its_old_order() -> None:
    stage = Stage()
    stage.worker("w", credit=3)
    for number in "12345":
        stage.submit("c", number)
    stage.submit("other", "6")
    stage.nothing()
    stage.gone("w")
    assert stage.nothing()
    stage.worker("next", credit=10)
    assert [number for _, number in stage.delivered()] == ["1", "2", "3", "4", "6", "5"]
    attempts = [stage.request("c", number).attempt for number in "12345"]
    assert attempts == [2, 2, 2, 1, 1]
    assert stage.bus.counters.requeued == 3


def test_what_a_lost_worker_held_goes_to_others_at_once() -> None:
    stage = Stage()
    stage.worker("w", "a", "b", credit=2)
    stage.submit("c", "1", "a")
    stage.submit("c", "2", "b")
    stage.worker("x", "a")
    stage.worker("y", "b")
    stage.nothing()
    stage.gone("w")
    assert sorted(stage.delivered()) == [("x", "1"), ("y", "2")]


def test_a_worker_that_comes_back_is_a_new_one() -> None:
    stage = Stage()
    old = stage.worker("w")
    stage.submit("c", "1")
    stage.nothing()
    new = stage.worker("w")
    assert new is not old
    assert stage.delivered() == [("w", "1")]
    assert stage.request("c", "1").worker is new
    assert [record.what for record in stage.observed].count("worker_down") == 1


def test_too_many_lost_workers_end_it() -> None:
    stage = Stage(Limits(attempts=3))
    stage.submit("c", "1")
    for number in range(3):
        stage.worker(f"w{number}")
        stage.gone(f"w{number}", "it crashed")
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.WORKER_LOST
    assert "3 workers" in refusal.detail
    assert "it crashed" in refusal.detail
    assert not stage.bus.requests
    assert stage.bus.counters.failed == 1


def test_an_answer_of_a_lost_worker_is_late() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.gone("w")
    stage.nothing()
    stage.result("w", token)
    assert stage.nothing()
    assert stage.request("c", "1").state is RequestState.QUEUED


def test_a_full_pipe_costs_no_attempt() -> None:
    stage = Stage(Limits(attempts=2))
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    token = stage.token("c", "1")
    for _ in range(5):
        stage.do(events.WorkerFull(worker("w"), token))
        stage.heard("w")
    assert stage.request("c", "1").attempt == 1
    assert stage.actions(act.Refuse) == []


# -- withdrawn ----------------------------------------------------------------------------------------


def test_a_queued_request_is_withdrawn_without_a_word_to_anybody_else() -> None:
    stage = Stage()
    stage.submit("c", "1")
    stage.do(events.Cancel(client("c"), b"1"))
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    assert stage.nothing()
    assert stage.bus.services[b"echo"].queue.length == 0
    stage.worker("w")
    assert stage.nothing()


def test_a_worker_is_told_and_its_slot_stays_taken_until_it_answers() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1")
    stage.submit("c", "2")
    token = stage.token("c", "1")
    stage.nothing()
    stage.do(events.Cancel(client("c"), b"1"))
    stop = stage.one(act.Stop)
    assert (stop.worker, stop.token) == (held, token)
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    assert held.free == 0
    stage.result("w", token)
    assert stage.delivered() == [("w", "2")]
    assert stage.actions(act.Answer) == []
    assert stage.bus.counters.late == 1


def test_a_worker_that_is_told_to_stop_is_looked_at_no_more_often_than_before() -> None:
    """What it has missed is counted once in each interval."""
    stage = Stage()
    held = stage.worker("w", heartbeat=Heartbeat(dead_after_s=10.0, beat_every_s=1.0))
    stage.submit("c", "1")
    stage.wait(1.6)
    stage.do(events.Cancel(client("c"), b"1"))
    assert stage.one(act.Stop).worker is held
    stage.wait(0.4)
    assert held.missed == 0
    stage.wait(0.2)
    assert held.missed == 1


def test_a_dialled_worker_that_is_watched_is_looked_after_when_it_is_its_turn() -> None:
    stage = Stage()
    heartbeat = Heartbeat(dead_after_s=10.0, beat_every_s=1.0)
    stage.do(events.WorkerUp((9, b"d"), "d", ((b"echo", 0),), heartbeat, endpoint="tcp://10.0.0.1:1"))
    stage.submit("c", "1")
    stage.do(events.Cancel(client("c"), b"1"))
    stage.wait(0.9)
    assert not stage.actions(act.HangUp), "it may answer until then"
    stage.wait(0.2)
    assert stage.one(act.HangUp).endpoint == "tcp://10.0.0.1:1"


def test_a_worker_that_forgets_what_it_is_told_to_stop_is_free_at_once() -> None:
    stage = Stage()
    stage.worker("w", forgets_stopped=True)
    stage.submit("c", "1")
    stage.submit("c", "2")
    token = stage.token("c", "1")
    stage.nothing()
    stage.do(events.Cancel(client("c"), b"1"))
    assert stage.one(act.Stop).token == token
    assert stage.delivered() == [("w", "2")]
    stage.result("w", token)
    assert stage.bus.counters.late == 1


def test_withdrawing_what_is_not_there_does_nothing() -> None:
    stage = Stage()
    stage.submit("c", "1")
    for event in (
        events.Cancel(client("c"), b"2"),
        events.Cancel(client("other"), b"1"),
        events.CancelToken(b"nonsense"),
        events.ClientGone(client("other"), True),
    ):
        stage.do(event)
    assert stage.nothing()
    assert stage.bus.counters.cancelled == 0


def test_an_operator_withdraws_by_token() -> None:
    stage = Stage()
    stage.submit("c", "1")
    stage.do(events.CancelToken(stage.token("c", "1")))
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.CANCELLED
    assert "operator" in refusal.detail


def test_what_nobody_will_answer_is_refused_when_the_bus_ends() -> None:
    stage = Stage()
    stage.worker("w", forgets_stopped=True)
    for number in ("1", "2", "3"):
        stage.submit("c", number)
    tokens = [stage.token("c", number) for number in ("1", "2")]
    stage.nothing()
    # The worker has the first; its slot becomes free when nothing that ends as well can take it.
    stage.do(events.EndUnanswered((tokens[0], b"nonsense", tokens[1])))
    assert stage.delivered() == [("w", "3")]
    refusals = stage.actions(act.Refuse)
    assert {refusal.request_id for refusal in refusals} == {b"1", b"2"}
    for refusal in refusals:
        assert refusal.reason is Reason.DRAINING
        assert refusal.detail == "the broker stopped before it was answered"


@pytest.mark.parametrize("withdraw", [True, False])
def test_a_client_that_left_is_told_nothing(withdraw: bool) -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.nothing()
    stage.do(events.ClientGone(client("c"), withdraw))
    assert len(stage.actions(act.Stop)) == withdraw
    assert stage.nothing()
    if withdraw:
        assert not stage.bus.requests
        return
    stage.result("w")
    assert stage.actions(act.Answer) == []
    stage.submit("c", "2")
    stage.result("w")
    assert stage.one(act.Answer).request_id == b"2", "it came back and asked again"
    stage.submit("c", "1")
    assert stage.one(act.Answer).request_id == b"1"


# -- expired ------------------------------------------------------------------------------------------


def test_of_a_client_that_left_nothing_is_handed_out_while_it_is_withdrawn() -> None:
    stage = Stage()
    stage.worker("w", forgets_stopped=True)
    for number in range(4):
        stage.submit("c", str(number))
    stage.submit("d", "other")
    assert stage.delivered() == [("w", "0")]
    stage.do(events.ClientGone(client("c"), withdraw=True))
    assert stage.one(act.Stop)
    assert stage.delivered() == [("w", "other")]
    assert stage.bus.counters.cancelled == 4


def test_a_queued_request_expires() -> None:
    stage = Stage()
    stage.submit("c", "1", ttl_s=1.0)
    stage.wait(0.95)
    assert stage.nothing()
    stage.wait(0.15)
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.EXPIRED
    assert "no worker was free" in refusal.detail
    assert stage.bus.counters.expired == 1


@pytest.mark.parametrize(("after_s", "is_over"), [(1.9375, False), (2.0, True)])
def test_the_usual_time_is_over_to_the_moment(after_s: float, is_over: bool) -> None:
    stage = Stage(Limits(request_ttl_s=2.0))
    stage.submit("c", "1")
    stage.now += after_s
    stage.do(events.Tick())
    assert bool(stage.actions(act.Refuse)) == is_over


def test_a_dispatched_request_expires_and_its_worker_is_told() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1", ttl_s=1.0)
    token = stage.token("c", "1")
    stage.wait(1.1)
    assert "a worker has it" in stage.one(act.Refuse).detail
    assert stage.one(act.Stop).token == token
    assert held.free == 0
    stage.result("w", token)
    assert held.free == 1
    assert stage.bus.counters.late == 1


def test_an_answered_request_does_not_expire() -> None:
    stage = Stage()
    stage.worker("w", credit=2)
    stage.submit("c", "1", ttl_s=1.0)
    stage.submit("c", "2")
    stage.result("w")
    stage.result("w")
    stage.nothing()
    stage.wait(400.0, step=1.0)
    assert stage.nothing()


def test_expired_requests_in_a_queue_are_never_handed_out() -> None:
    stage = Stage()
    for number, ttl_s in (("1", 1.0), ("2", None), ("3", 1.0), ("4", None)):
        stage.submit("c", number, ttl_s=ttl_s)
    stage.wait(1.1)
    assert len(stage.actions(act.Refuse)) == 2
    stage.worker("w", credit=4)
    assert stage.delivered() == [("w", "2"), ("w", "4")]


def test_what_expires_together_is_not_handed_out_in_between() -> None:
    stage = Stage()
    held = stage.worker("w", forgets_stopped=True)
    for number in range(4):
        stage.submit("c", str(number), ttl_s=1.0)
    stage.submit("c", "patient", ttl_s=9.0)
    assert stage.delivered() == [("w", "0")]
    stage.wait(1.1)
    assert len(stage.actions(act.Stop)) == 1
    assert len(stage.actions(act.Refuse)) == 4
    assert stage.delivered() == [("w", "patient")]
    assert held.free == 0


def test_what_expires_together_is_not_handed_out_because_its_queue_may_start_another() -> None:
    stage = Stage()
    stage.bus.change_policies([("echo", QueuePolicy(concurrency=1))])
    stage.worker("w", credit=9)
    for number in range(4):
        stage.submit("c", str(number), ttl_s=1.0)
    stage.submit("c", "patient", ttl_s=9.0)
    assert stage.delivered() == [("w", "0")]
    stage.wait(1.1)
    assert len(stage.actions(act.Refuse)) == 4
    assert stage.delivered() == [("w", "patient")]


# -- cannot be delivered ------------------------------------------------------------------------------


def test_what_a_dialect_cannot_carry_is_refused_and_the_next_one_tried() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.do(events.Undeliverable(worker("w"), stage.token("c", "1"), "two frames"))
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (Reason.UNDELIVERABLE, "two frames")
    assert stage.delivered() == [("w", "1"), ("w", "2")]
    assert held.free == 0
    stage.do(events.Undeliverable(worker("w"), b"nonsense", ""))
    stage.do(events.Undeliverable(worker("nobody"), b"", ""))
    assert stage.nothing()


def test_what_could_not_be_delivered_is_no_sign_of_life() -> None:
    stage = Stage()
    stage.worker("w", credit=100, heartbeat=Heartbeat(2.0))
    for number in range(30):
        stage.wait(0.1)
        stage.submit("c", str(number))
        if worker("w") in stage.bus.workers:
            stage.do(events.Undeliverable(worker("w"), stage.token("c", str(number)), "two frames"))
    assert worker("w") not in stage.bus.workers


def test_a_lost_answer_is_counted_and_stays_in_the_cache() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.result("w")
    stage.nothing()
    stage.do(events.AnswerLost(client("c"), b"1", "its pipe is full"))
    assert stage.bus.counters.answers_lost == 1
    assert stage.told("answer_lost")[0].reason == "its pipe is full"
    stage.submit("c", "1")
    assert stage.one(act.Answer).request_id == b"1"


def test_an_answer_that_is_too_large_is_a_failure() -> None:
    stage = Stage(Limits(body_bytes=10))
    stage.worker("w", "echo", credit=2)
    for number in ("1", "2"):
        stage.submit("c", number, "echo")
    whole, streamed = stage.actions(act.Deliver)
    stage.do(events.Result(worker("w"), whole.request.token, [b"x" * 11]))
    stage.do(events.Part(worker("w"), streamed.request.token, [b"x" * 6, b"y" * 6]))
    refused = stage.actions(act.Refuse)
    assert [action.reason for action in refused] == [Reason.TOO_LARGE, Reason.TOO_LARGE]
    assert "10 bytes" in refused[0].detail
    assert not stage.actions(act.Answer)
    assert stage.bus.held_bytes == 0


def test_what_ends_in_the_turn_in_which_it_was_handed_over_is_sent_with_its_body() -> None:
    stage = Stage()
    stage.worker("w", "echo")
    stage.bus.handle(events.Submit(client("c"), "c", b"1", b"echo", [b"body"]), stage.now)
    stage.do(events.Cancel(client("c"), b"1"))
    # The worker gets what it is then told to stop.
    assert stage.one(act.Deliver).request.body == [b"body"]
    assert stage.one(act.Stop).worker.address == worker("w")


def test_the_body_of_what_ended_is_let_go_though_a_worker_keeps_its_slot() -> None:
    stage = Stage()
    stage.worker("w", "echo")
    stage.submit("c", "1", "echo", ttl_s=1.0)
    request = stage.one(act.Deliver).request
    stage.wait(2.0)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    assert stage.bus.workers[worker("w")].inflight
    assert request.body == []


def test_a_part_may_be_as_large_as_a_body() -> None:
    stage = Stage(Limits(body_bytes=1000))
    stage.worker("w")
    stage.submit("c", "1")
    stage.part("w", body=[b"x" * 600, b"y" * 400])
    assert stage.one(act.Stream).body == [b"x" * 600, b"y" * 400]
    stage.part("w", body=[b"x" * 600, b"y" * 401])
    assert stage.one(act.Refuse).reason is Reason.TOO_LARGE
