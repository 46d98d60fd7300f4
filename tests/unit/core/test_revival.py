"""Dead letters that are put back: always dead or alive, never both and never neither."""

from __future__ import annotations

import pytest
from msgspec import structs

from polybus.core import actions as act
from polybus.core import events
from polybus.core.ledger import REVIVED, Attempt, DeadLetter
from polybus.core.lifecycle import RequestState
from polybus.core.model import JobOptions, Limits, Request
from polybus.core.revival import revive
from support import invariants
from support.stage import LedgerStage


@pytest.fixture
def stage() -> LedgerStage:
    return LedgerStage()


def dead(stage: LedgerStage, job_id: str | None = "j", **spec: object) -> DeadLetter:
    """A job that one worker failed at."""
    stage.worker("bad")
    stage.job(job_id, **spec)  # type: ignore[arg-type]
    stage.write()
    stage.fail("bad")
    stage.write()
    stage.gone("bad")
    stage.taken.clear()
    (letter,) = stage.dead()
    return letter


def back(stage: LedgerStage, letter: DeadLetter) -> Request:
    request, reason = revive(stage.bus, letter, stage.now)
    assert request is not None, reason
    assert reason == ""
    invariants.check(stage.bus, stage.now)
    return request


def forget(stage: LedgerStage) -> None:
    """Time passes until nobody knows the outcomes of jobs any more; their dead letters stay."""
    stage.wait(86_500.0, 50_000.0)
    stage.write()
    stage.taken.clear()


def test_it_is_queued_when_its_new_life_is_on_disk(stage: LedgerStage) -> None:
    letter = dead(stage)
    request = back(stage, letter)
    stage.worker("good")
    assert stage.delivered() == []
    stage.write()
    assert stage.delivered() == [("good", "j")]
    assert stage.dead() == []
    assert request.token == letter.job.token
    assert [attempt.reason for attempt in request.history] == ["failed", REVIVED]


def test_it_counts_as_accepted_once_more(stage: LedgerStage) -> None:
    letter = dead(stage)
    accepted = stage.bus.counters.accepted
    stage.observed.clear()
    back(stage, letter)
    assert stage.bus.counters.accepted == accepted + 1
    assert stage.bus.services[b"echo"].accepted == 2
    stage.write()
    (told,) = stage.told("accepted")
    assert (told.token, told.reason) == (letter.job.token, REVIVED)
    # Nobody waits for a receipt.
    assert stage.nothing()


def test_whoever_knows_its_id_gets_the_new_outcome(stage: LedgerStage) -> None:
    letter = dead(stage)
    back(stage, letter)
    stage.call("c", "ask", "result", b"j")
    stage.worker("good")
    stage.write()
    stage.result("good")
    stage.write()
    answer = stage.one(act.Answer)
    assert (answer.request_id, answer.body) == (b"ask", [b"done"])


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_crash_leaves_it_dead_or_alive(stage: LedgerStage, on_disk: bool) -> None:
    letter = dead(stage)
    back(stage, letter)
    stage.restart(last_batch_on_disk=on_disk)
    alive = letter.job.token in stage.bus.patient
    assert alive is on_disk
    assert [found.job.token for found in stage.dead()] == ([] if alive else [letter.job.token])


@pytest.mark.parametrize("doubtful", [False, True])
def test_a_disk_that_refuses_leaves_it_dead(stage: LedgerStage, doubtful: bool) -> None:
    letter = dead(stage)
    request = back(stage, letter)
    stage.refuse_writes(doubtful=doubtful)
    assert request.state is RequestState.FAILED
    stage.recover()
    assert [found.job.token for found in stage.dead()] == [letter.job.token]
    stage.worker("good")
    assert stage.delivered() == []
    # And it can be tried again.
    back(stage, stage.dead()[0])
    stage.write()
    assert stage.delivered() == [("good", "j")]


def test_retries_count_anew_also_after_a_restart(stage: LedgerStage) -> None:
    letter = dead(stage)
    with_retry = structs.replace(letter.job, options=JobOptions(guarantee=True, retries=1))
    back(stage, structs.replace(letter, job=with_retry))
    stage.worker("good")
    stage.write()
    stage.fail("good")
    stage.write()
    stage.restart()
    stage.worker("good")
    stage.wait(3.0)
    stage.write()
    assert stage.delivered() == [("good", "j")]
    stage.fail("good")
    stage.write()
    (again,) = stage.dead()
    assert [attempt.reason for attempt in again.job.history] == ["failed", REVIVED, "failed", "failed"]


def test_a_job_that_was_sent_again_in_the_meantime_is_not_sent_twice(stage: LedgerStage) -> None:
    letter = dead(stage)
    back(stage, letter)
    assert revive(stage.bus, letter, stage.now) == (None, "it was sent again and has not ended yet")


def test_another_job_of_its_name_that_has_not_ended_keeps_it_dead(stage: LedgerStage) -> None:
    letter = dead(stage)
    forget(stage)
    stage.job("j")
    stage.write()
    assert stage.job_request("j").token != letter.job.token
    assert revive(stage.bus, letter, stage.now) == (None, "it was sent again and has not ended yet")
    assert [found.job.token for found in stage.dead()] == [letter.job.token]


def test_a_group_of_its_name_keeps_it_dead(stage: LedgerStage) -> None:
    letter = dead(stage)
    forget(stage)
    stage.group("j", {"service": "other"})
    stage.write()
    assert revive(stage.bus, letter, stage.now) == (None, "it was sent again and has not ended yet")


def test_a_name_that_its_client_gave_it_is_not_the_name_of_a_job(stage: LedgerStage) -> None:
    # Names of clients are their own: another job may have the same id.
    stage.worker("bad")
    stage.submit("c", "j", options=JobOptions(guarantee=True))
    stage.write()
    stage.fail("bad")
    stage.write()
    stage.gone("bad")
    (letter,) = stage.dead()
    stage.job("j", body=b"another")
    stage.write()
    back(stage, letter)
    stage.taken.clear()
    token = letter.job.token.decode()
    stage.call("c", "ask", "result", letter.job.token)
    stage.worker("good", credit=2)
    stage.write()
    assert stage.delivered() == [("good", "j"), ("good", token)]
    stage.result("good", letter.job.token)
    stage.write()
    answer = stage.one(act.Answer)
    assert (answer.request_id, answer.body) == (b"ask", [b"done"])
    invariants.check(stage.bus, stage.now)


def test_its_history_says_when_an_operator_queued_it_again(stage: LedgerStage) -> None:
    letter = dead(stage)
    stage.now += 5.0
    back(stage, letter)
    stage.write()
    detail = "an operator queued it again"
    mark = Attempt(0, stage.WALL_OFFSET + stage.now, "", REVIVED, detail)
    assert stage.job_request("j").history == (*letter.job.history, mark)


def test_what_was_not_guaranteed_is_guaranteed_from_now_on(stage: LedgerStage) -> None:
    stage.worker("bad")
    stage.job("j", guarantee=False, retries=1, backoff_s=0.1)
    stage.fail("bad")
    stage.wait(1.0)
    stage.fail("bad")
    stage.write()
    (letter,) = stage.dead()
    assert not letter.job.options.guarantee
    stage.gone("bad")
    back(stage, letter)
    stage.write()
    stage.restart()
    stage.worker("bad")
    assert stage.delivered() == [("bad", "j")]
    stage.fail("bad")
    stage.wait(1.0)
    stage.fail("bad")
    stage.write()
    (again,) = stage.dead()
    assert again.job.options.guarantee


def test_a_worker_that_grants_slots_and_has_not_given_up_the_old_run_needs_another_slot(
    stage: LedgerStage,
) -> None:
    worker = stage.worker("w", grants_slots=True)
    for _ in range(2):
        stage.do(events.Slot(worker.address, "w"))
    stage.job("j", timeout_s=2.0)
    stage.write()
    stage.wait(10.0)
    stage.write()
    (letter,) = stage.dead()
    assert worker.free == 1, "it has not answered"
    back(stage, letter)
    stage.write()
    stage.job("k")
    stage.write()
    assert stage.delivered() == [("w", "j"), ("w", "j")]
    assert (worker.free, stage.job_request("k").state) == (0, RequestState.QUEUED)
    # Both runs end, and each gives its slot back.
    for _ in range(2):
        stage.result("w", letter.job.token)
        stage.do(events.Slot(worker.address, "w"))
    stage.write()
    assert stage.delivered() == [("w", "k")]
    assert worker.free == 1
    invariants.check(stage.bus, stage.now)


def test_a_worker_with_credit_that_has_not_given_up_the_old_run_keeps_its_slots(stage: LedgerStage) -> None:
    worker = stage.worker("w", credit=2)
    stage.job("j", timeout_s=2.0)
    stage.write()
    stage.wait(10.0)
    stage.write()
    (letter,) = stage.dead()
    assert worker.free == 1, "it has not answered"
    back(stage, letter)
    stage.write()
    assert stage.delivered() == [("w", "j"), ("w", "j")]
    assert worker.free == 1, "one of its requests has not ended"
    for _ in range(2):
        stage.result("w", letter.job.token)
    assert worker.free == 2
    invariants.check(stage.bus, stage.now)


def test_a_worker_that_has_not_given_up_the_old_run_gets_it_again_only_if_nobody_else_is_free(
    stage: LedgerStage,
) -> None:
    stage.worker("slow", credit=3)
    stage.job("j", timeout_s=2.0)
    stage.write()
    stage.wait(10.0)
    stage.write()
    (letter,) = stage.dead()
    # The slow one would be the next: the other one has as much to do, and was given something since.
    stage.worker("other", credit=3)
    stage.job("k")
    stage.write()
    assert stage.delivered() == [("slow", "j"), ("other", "k")]
    back(stage, letter)
    stage.write()
    assert stage.delivered() == [("other", "j")]


def test_while_nothing_can_be_written_it_stays_dead(stage: LedgerStage) -> None:
    letter = dead(stage)
    stage.do(events.StoreHealth("the disk is full"))
    assert revive(stage.bus, letter, stage.now) == (None, "store_unavailable: the disk is full")
    assert [found.job.token for found in stage.dead()] == [letter.job.token]


def test_its_group_waits_for_it_once_more(stage: LedgerStage) -> None:
    stage.worker("w", "good", "bad", credit=2)
    stage.group("g", {"service": "bad"}, {"service": "good"}, by="c")
    stage.write()
    stage.fail("w", stage.job_request("g/0").token)
    stage.write()
    (letter,) = stage.dead()
    back(stage, letter)
    stage.write()
    assert stage.facts("g")["missing"] == 2
    stage.result("w", stage.job_request("g/1").token)
    stage.write()
    assert stage.facts("g")["missing"] == 1
    stage.result("w", letter.job.token)
    stage.write()
    stage.taken.clear()
    stage.call("c", "ask", "result", b"g")
    assert stage.one(act.Answer).body == [b'["done","done"]']


def test_limits_hold_for_the_dead_as_for_the_living() -> None:
    stage = LedgerStage(Limits(queue_length=1))
    letter = dead(stage)
    stage.job("other")
    stage.write()
    request, reason = revive(stage.bus, letter, stage.now)
    assert request is None
    assert reason.startswith("queue_full: ")


def test_lost_workers_are_counted_and_not_what_failed() -> None:
    stage = LedgerStage(Limits(attempts=3))
    stage.job("j", retries=10, backoff_s=0.1)
    stage.write()
    for number in range(4):
        stage.worker(f"w{number}")
        stage.fail(f"w{number}")
        stage.write()
        stage.gone(f"w{number}")
        stage.wait(2.0)
    for number in range(3):
        assert stage.dead() == []
        stage.worker(f"lost{number}")
        stage.gone(f"lost{number}", "it crashed")
        stage.write()
    (letter,) = stage.dead()
    assert letter.detail == "3 workers were lost while they had it, the last one: it crashed"
