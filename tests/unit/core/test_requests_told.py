"""How requests end that a worker did not answer well: who is told what, once, and what is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polybus.core import actions as act
from polybus.core import events, requests
from polybus.core.holders import TOLD_FOR_S
from polybus.core.model import PLAIN_CALL, Heartbeat, JobOptions, Limits, Reason
from support.stage import LedgerStage, Stage, client, worker

GUARANTEED = JobOptions(guarantee=True)


@pytest.mark.parametrize("kind", ["result", "part"])
def test_an_answer_that_is_too_large_is_a_failure_and_counted_as_one(kind: str) -> None:
    stage = Stage(Limits(body_bytes=5))
    stage.worker("w")
    stage.submit("c", "1", body=[b"x"])
    getattr(stage, kind)("w", stage.token("c", "1"), [b"123456"])
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (
        Reason.TOO_LARGE,
        "the worker's answer is larger than the 5 bytes that are allowed",
    )
    assert (stage.bus.counters.failed, stage.bus.counters.replied) == (1, 0)
    assert (stage.bus.services[b"echo"].failed, stage.bus.services[b"echo"].running) == (1, 0)
    stage.submit("c", "2", body=[b"x"])
    if kind == "part":
        assert not stage.actions(act.Stream)
    else:
        stage.result("w", stage.token("c", "2"), [b"12345"])
        assert stage.one(act.Answer).body == [b"12345"]


def test_a_client_that_withdraws_is_told_so() -> None:
    stage = Stage()
    stage.submit("c", "1")
    stage.do(events.Cancel(client("c"), b"1"))
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (Reason.CANCELLED, "its client withdrew it")
    stage.submit("c", "2")
    stage.do(events.ClientGone(client("c"), withdraw=True))
    assert [one.detail for one in stage.told("cancelled")] == ["its client withdrew it", "its client left"]
    assert stage.bus.counters.cancelled == 2


def refused(stage: LedgerStage) -> list[act.Refuse]:
    stage.refuse_writes("the disk is full")
    return stage.actions(act.Refuse)


def test_what_cannot_be_written_is_a_failure_and_the_trouble_is_announced() -> None:
    stage = LedgerStage()
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    (refusal,) = refused(stage)
    assert (refusal.reason, refusal.detail) == (
        Reason.STORE_UNAVAILABLE,
        "it could not be written down: the disk is full",
    )
    assert stage.bus.counters.failed == 1
    assert [one.reason for one in stage.told("store_sick")] == ["the disk is full"]
    stage.recover()
    assert [one.reason for one in stage.told("store_well")] == [""]


@pytest.mark.parametrize("options", [PLAIN_CALL, JobOptions(timeout_s=60.0), JobOptions(other=("x",))])
@pytest.mark.parametrize("request_id", ["1", ""])
def test_who_asked_is_told_that_another_broker_cannot_write(options: JobOptions, request_id: str) -> None:
    """A neighbour has the request, and refuses it because of its own store."""
    stage = Stage()
    stage.worker("neighbour")
    stage.submit("c", request_id, options=options)
    stage.fail("neighbour", reason=Reason.STORE_UNAVAILABLE)
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.request_id, refusal.reason) == (
        client("c"),
        request_id.encode(),
        Reason.STORE_UNAVAILABLE,
    )
    if request_id:
        stage.submit("c", request_id, options=options)
        assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE, "it is kept like any other"
    assert (stage.bus.counters.failed, stage.bus.request_count) == (1, 0)


@pytest.mark.parametrize("receipt", [False, True])
def test_requests_without_ids_that_cannot_be_written_are_refused_one_by_one(receipt: bool) -> None:
    stage = LedgerStage()
    for _ in range(2):
        stage.submit("c", "", options=GUARANTEED, receipt=receipt)
    assert len(refused(stage)) == 2, "each once, be it for the receipt, the answer or both"


def test_jobs_of_calls_without_ids_that_cannot_be_written_are_refused_one_by_one() -> None:
    stage = LedgerStage()
    for job_id in ("a", "b"):
        head: dict[str, Any] = {"service": "echo", "id": job_id, "guarantee": True}
        stage.call("c", "", "submit", msgspec.json.encode(head) + b"\nwork")
    told = refused(stage)
    assert len(told) == 2
    assert {(refusal.client, refusal.request_id) for refusal in told} == {(client("c"), b"")}
    assert not stage.bus.desk.known


def let_go(stage: Stage) -> bytes:
    """A worker goes silent with a request that is answered by another."""
    stage.worker("w", heartbeat=Heartbeat(dead_after_s=1.0))
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.wait(1.2)
    stage.worker("v")
    stage.result("v", token)
    assert stage.bus.let_go == {worker("w"): 0.0}
    stage.nothing()
    return token


def test_a_worker_that_was_let_go_is_told_once_and_again_after_a_minute() -> None:
    stage = Stage()
    let_go(stage)
    stage.wait(TOLD_FOR_S + 5.0, step=1.0)
    assert worker("w") in stage.bus.let_go, "it was not told yet"
    stage.heard("w")
    assert stage.one(act.Dismiss).reason == act.UNKNOWN_WORKER
    for _ in range(3):
        stage.wait(10.0, step=1.0)
        stage.heard("w")
    assert not stage.actions(act.Dismiss)
    stage.wait(TOLD_FOR_S - 32.0, step=1.0)
    assert worker("w") in stage.bus.let_go
    stage.wait(4.0)
    assert not stage.bus.let_go
    stage.heard("w")
    assert stage.one(act.Dismiss).reason == act.UNKNOWN_WORKER


@pytest.mark.parametrize("kind", ["worker", "scheduler"])
def test_a_silent_worker_that_begins_anew_fails_what_only_it_could_answer(kind: str) -> None:
    stage = Stage(Limits(attempts=1))
    stage.worker("w", heartbeat=Heartbeat(dead_after_s=1.0))
    stage.submit("c", "1")
    stage.wait(1.2)
    assert not stage.actions(act.Refuse)
    if kind == "worker":
        stage.worker("w", "other")
    else:
        stage.do(events.SchedulerUp(worker("w"), "w", Heartbeat(0.0)))
    assert stage.one(act.Refuse).request_id == b"1"
    assert not stage.bus.silent
    assert not stage.bus.holders


def test_it_is_known_whether_the_sender_of_an_answer_had_the_request() -> None:
    stage = Stage()
    stage.worker("w", credit=3)
    stage.worker("v", "other")
    for request_id in ("1", "2"):
        stage.submit("c", request_id)
    first, second = (stage.token("c", request_id) for request_id in ("1", "2"))
    stage.do(events.Cancel(client("c"), b"2"))

    def finish(name: str, token: bytes) -> bool:
        return requests.finish(stage.bus, worker(name), token, [], stage.now)

    assert not finish("nobody", first)
    assert not finish("v", first)
    assert finish("w", first)
    assert not finish("w", first)
    assert finish("w", second), "it had it, although the answer is late"
    assert not finish("w", b"unknown")
    assert stage.bus.counters.late == 5
    assert stage.bus.counters.replied == 1


@pytest.mark.parametrize("ttl_s", [None, 2.5])
def test_a_request_that_expires_says_how_long_it_waited_and_for_what(ttl_s: float | None) -> None:
    stage = Stage(Limits(request_ttl_s=2.0))
    stage.worker("w")
    for request_id in ("1", "2"):
        stage.submit("c", request_id, ttl_s=ttl_s)
    waited = f"no answer within {2 if ttl_s is None else 2.5} s"
    stage.wait((ttl_s or 2.0) - 0.1)
    assert not stage.actions(act.Refuse)
    stage.wait(0.3)
    assert {(one.request_id, one.reason, one.detail) for one in stage.actions(act.Refuse)} == {
        (b"1", Reason.EXPIRED, f"{waited}, a worker has it"),
        (b"2", Reason.EXPIRED, f"{waited}, no worker was free"),
    }
    assert len(stage.actions(act.Stop)) == 1
    assert stage.bus.counters.expired == 2
    assert (stage.bus.services[b"echo"].queue.length, stage.bus.services[b"echo"].running) == (0, 0)
    assert stage.bus.request_count == 0


def test_parts_go_to_the_client_as_they_come_and_late_ones_nowhere() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.now += 1.0
    stage.part("w", token, [b"one"])
    stage.part("w", b"", [b"two"])
    assert held.seen_at == stage.now
    assert [(part.client, part.request_id, part.body, part.token) for part in stage.actions(act.Stream)] == [
        (client("c"), b"1", [b"one"], token),
        (client("c"), b"1", [b"two"], token),
    ]
    assert len(stage.told("partial")) == 2
    stage.part("stranger", token)
    stage.part("w", b"unknown")
    assert stage.bus.counters.late == 2
    stage.result("w", token)
    stage.part("w", token)
    stage.part("w", b"")
    assert stage.bus.counters.late == 4
    assert [(one.token, one.worker) for one in stage.told("late")] == [
        (token, worker("stranger")),
        (b"unknown", worker("w")),
        (token, worker("w")),
        (b"", worker("w")),
    ]
    assert not stage.actions(act.Stream)


def test_an_answer_that_could_not_be_sent_is_counted_told_and_kept() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.result("w", token)
    stage.nothing()
    lost = events.AnswerLost(client("c"), b"1", "it cannot be reached", token, b"echo", "c")
    stage.do(lost)
    assert stage.bus.counters.answers_lost == 1
    (told,) = stage.told("answer_lost")
    assert (told.token, told.request_id, told.service, told.client, told.client_voice, told.reason) == (
        token,
        b"1",
        b"echo",
        client("c"),
        "c",
        "it cannot be reached",
    )
    stage.submit("c", "1")
    assert stage.one(act.Answer).request_id == b"1"


def test_a_job_that_is_cancelled_by_its_id_says_so() -> None:
    stage = LedgerStage()
    stage.job("j")
    stage.call("c", "1", "cancel", b"j")
    assert [(one.request_id, one.detail) for one in stage.told("cancelled")] == [
        (b"j", "it was cancelled by its id")
    ]


def test_who_waits_without_an_id_cannot_withdraw_the_question() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.job("j")
    stage.write()
    stage.nothing()
    stage.call("c", "", "result", b"j")
    stage.do(events.Cancel(client("c"), b""))
    stage.result("w", stage.job_request("j").token, [b"outcome"])
    stage.write()
    answer = stage.one(act.Answer)
    assert (answer.client, answer.request_id, answer.body) == (client("c"), b"", [b"outcome"])
