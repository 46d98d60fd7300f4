"""Requests that a worker says it has: those of an earlier life of the broker, and how they go on."""

from __future__ import annotations

import pytest

from polybus.core import actions as act
from polybus.core import events, requests
from polybus.core.bus import Bus
from polybus.core.dispatching import note_starts
from polybus.core.ledger import Started
from polybus.core.lifecycle import RequestState
from polybus.core.model import JobOptions, Limits
from support.stage import NEVER_DEAD, LedgerStage, Stage, client, worker

GUARANTEED = JobOptions(guarantee=True)


def orphaned(options: JobOptions = GUARANTEED) -> tuple[LedgerStage, bytes]:
    """A job that a worker had when the broker died, and its token."""
    stage = LedgerStage(Limits(timeout_grace_s=1.0))
    stage.worker("w", credit=2)
    stage.submit("c", "1", options=options)
    stage.write()
    token = stage.token("c", "1")
    stage.restart()
    assert stage.bus.patient[token].state is RequestState.ORPHANED
    return stage, token


@pytest.mark.parametrize(("grants_slots", "free"), [(False, 2), (True, 1)])
def test_an_answer_to_a_request_of_an_earlier_life_counts(grants_slots: bool, free: int) -> None:
    stage, token = orphaned()
    held = stage.worker("v", credit=2, grants_slots=grants_slots)
    if grants_slots:
        # It was never given this one by us, so it has as many slots as it says, before and after.
        stage.do(events.Slot(worker("v"), "v"))
    assert held.free == free
    stage.result("v", token, [b"done"])
    stage.write()
    assert stage.one(act.Answer).body == [b"done"]
    assert held.free == free
    assert not held.inflight
    assert stage.bus.services[b"echo"].running == 0


def test_a_claimed_request_is_told_and_has_its_time_limit_again() -> None:
    stage, token = orphaned(JobOptions(guarantee=True, timeout_s=5.0, retries=1, backoff_s=0.1))
    stage.do(events.WorkerUp(worker("w"), "w", ((b"echo", 0),), NEVER_DEAD, 1, holding=(token,)))
    (claimed,) = stage.told("claimed")
    assert (claimed.token, claimed.worker, claimed.dispatched_at) == (token, worker("w"), stage.now)
    assert stage.bus.services[b"echo"].running == 1
    assert stage.bus.workers[worker("w")].free == 0
    stage.wait(5.9)
    assert stage.bus.counters.timeouts == 0
    stage.wait(0.3)
    assert stage.bus.counters.timeouts == 1
    assert stage.one(act.Stop).token == token


def test_a_worker_whose_slots_are_taken_by_what_it_claims_is_given_nothing_more() -> None:
    stage, token = orphaned()
    stage.worker("v")
    stage.do(events.WorkerUp(worker("w"), "w", ((b"echo", 0),), NEVER_DEAD, 1, holding=(token,)))
    stage.submit("c", "2")
    stage.submit("c", "3")
    assert stage.delivered() == [("v", "2")]
    stage.result("w", token)
    assert stage.delivered() == [("w", "3")]


def test_requests_that_ask_for_something_are_counted_like_others() -> None:
    stage = Stage()
    stage.submit("c", "1")
    stage.submit("c", "2", options=JobOptions(retries=1))
    assert stage.bus.counters.accepted == 2
    assert stage.bus.services[b"echo"].accepted == 2


def test_a_bus_that_was_told_no_time_of_day_takes_its_own_clock_for_it() -> None:
    assert Bus(b"n-").wall_at(5.0) == 5.0


def test_that_a_worker_has_a_job_again_is_written_down() -> None:
    stage, token = orphaned()
    stage.write()
    del stage.pen.written[:]
    # It does not wait until the job has lasted a while, as it would with one that was just handed out.
    stage.pen.starts_linger = True
    stage.do(events.WorkerUp(worker("v"), "v", ((b"echo", 0),), NEVER_DEAD, 1, holding=(token,)))
    stage.write()
    assert stage.pen.written == [Started(token, 1, "v")]
    stage.restart()
    assert stage.bus.patient[token].state is RequestState.ORPHANED


def test_who_may_speak_of_a_request() -> None:
    stage, token = orphaned()
    stage.worker("v")
    stage.worker("other", "other")
    stage.submit("c", "2", "other")
    given = stage.token("c", "2")
    expected = {
        ("v", token): True,
        ("other", token): False,
        ("v", given): False,
        ("other", given): True,
        ("nobody", token): False,
        ("v", b"unknown"): False,
    }
    assert {
        (name, one): requests.has_request(stage.bus, worker(name), one) for name, one in expected
    } == expected
    stage.result("v", token)
    assert not requests.has_request(stage.bus, worker("v"), token)
    # A request that has ended may still be spoken of by the worker that has it.
    stage.do(events.Cancel(client("c"), b"2"))
    assert requests.has_request(stage.bus, worker("other"), given)


def test_that_a_worker_got_a_job_is_not_written_down_after_it_was_taken_back() -> None:
    stage = LedgerStage(Limits(timeout_grace_s=0.0), starts_linger=True)
    held = stage.worker("w")
    options = JobOptions(guarantee=True, timeout_s=0.3, retries=1, backoff_s=60.0)
    stage.submit("c", "1", options=options)
    stage.write()
    request = stage.request("c", "1")
    note_starts(stage.bus, stage.now - 1.0)
    assert not stage.bus.lines, "it was handed out later than that"
    stage.wait(0.5)
    assert request.state is RequestState.WAITING
    assert request.token in held.inflight, "it may still answer"
    stage.write()
    request.is_start_noted = False
    note_starts(stage.bus)
    assert not stage.bus.lines
