"""How a request comes in: known already, refused with a reason, or accepted."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events, intake
from polybus.core.lifecycle import RequestState
from polybus.core.model import JobOptions, Limits, QueuePolicy, Reason
from support.stage import LedgerStage, Stage, client

SILENT = JobOptions(reply_requested=False)


def test_accepted_and_handed_out_at_once() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1", body=[b"ab", b"cde"])
    request = stage.one(act.Deliver).request
    assert request.body == [b"ab", b"cde"]
    assert request.size == 5
    assert request.state is RequestState.DISPATCHED
    assert stage.nothing()


def test_accepted_and_queued_without_a_free_worker() -> None:
    stage = Stage()
    stage.submit("c", "1")
    assert stage.request("c", "1").state is RequestState.QUEUED
    assert stage.nothing()
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]


def test_no_overtaking_while_others_wait() -> None:
    stage = Stage()
    stage.worker("w", credit=1)
    for number in "123":
        stage.submit("c", number)
    stage.worker("late", "echo", credit=2)
    assert stage.delivered() == [("w", "1"), ("late", "2"), ("late", "3")]


def test_no_overtaking_when_a_queue_has_no_limit_any_more() -> None:
    """What waited because of the limit is handed out with the next tick, and is first."""
    stage = Stage()
    stage.bus.change_policies([("echo", QueuePolicy(concurrency=1))])
    stage.worker("w", credit=5)
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.bus.change_policies([])
    stage.submit("c", "3")
    assert stage.delivered() == [("w", "1")]
    stage.wait(0.1)
    assert stage.delivered() == [("w", "2"), ("w", "3")]


def test_tokens_are_unique_and_carry_the_life_of_the_broker() -> None:
    stage = Stage()
    for name in "ab":
        stage.submit(name, "same")
    tokens = [stage.token(name, "same") for name in "ab"]
    assert len(set(tokens)) == 2
    assert all(token.startswith(b"n-") for token in tokens)


def test_tokens_of_many_requests_differ() -> None:
    bus = Stage().bus
    assert len({bus.next_token() for _ in range(1000)}) == 1000


def test_a_busy_service_keeps_its_requests_while_its_fallback_is_free() -> None:
    stage = Stage()
    stage.worker("w", "mail")
    stage.worker("v", "default")
    for number in "12":
        stage.submit("c", number, "mail", fallback=b"default")
    assert stage.delivered() == [("w", "1")]
    assert stage.request("c", "2").service.name == b"mail"


def test_a_fallback_that_nobody_offers_any_more_takes_nothing() -> None:
    stage = Stage()
    stage.worker("v", "default")
    stage.gone("v")
    stage.submit("c", "1", "mail", fallback=b"default")
    assert stage.request("c", "1").service.name == b"mail"


def test_a_receipt_comes_only_when_asked_for() -> None:
    stage = Stage()
    stage.submit("c", "1", receipt=True)
    receipt = stage.one(act.Accept)
    assert (receipt.client, receipt.service, receipt.request_id) == (client("c"), b"echo", b"1")
    stage.submit("c", "2")
    assert stage.nothing()


# -- asked again ------------------------------------------------------------------------------------


def test_a_pending_request_is_not_run_again() -> None:
    stage = Stage()
    stage.worker("w", credit=5)
    stage.submit("c", "1", receipt=True)
    stage.submit("c", "1", receipt=True)
    assert len(stage.actions(act.Accept)) == 2
    assert stage.delivered() == [("w", "1")]
    assert stage.bus.counters.duplicates == 1
    stage.result("w", stage.token("c", "1"))
    assert stage.one(act.Answer).body == [b"done"]


def test_the_newest_way_to_answer_counts() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.do(events.Submit(client("c"), "another voice", b"1", b"echo", [b""]))
    stage.result("w")
    assert stage.one(act.Answer).voice == "another voice"


def test_asking_again_can_ask_for_the_answer() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1", options=SILENT)
    stage.submit("c", "1")
    stage.result("w")
    assert stage.one(act.Answer).request_id == b"1"


def test_nobody_who_did_not_ask_gets_an_answer() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1", options=SILENT)
    stage.result("w")
    assert stage.actions(act.Answer) == []
    stage.submit("c", "1", options=SILENT, receipt=True)
    assert len(stage.actions(act.Accept)) == 1
    assert stage.actions(act.Answer) == []
    stage.submit("c", "1")
    assert stage.one(act.Answer).body == [b"done"]


def test_a_finished_request_is_answered_from_the_cache() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.result("w", body=[b"a", b"b"])
    first = stage.one(act.Answer)
    stage.nothing()
    stage.do(events.Submit(client("c"), "back", b"1", b"echo", [b""], receipt=True))
    assert stage.one(act.Accept).service == b"echo"
    again = stage.one(act.Answer)
    assert again.voice == "back"
    assert (again.service, again.request_id, again.body) == (first.service, first.request_id, first.body)
    assert stage.nothing(), "it is not run again"
    assert stage.bus.counters.replayed == 1


def test_a_refusal_is_replayed_as_the_same_refusal() -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.fail("w")
    first = stage.one(act.Refuse)
    stage.submit("c", "1")
    again = stage.one(act.Refuse)
    assert (again.reason, again.detail, again.body) == (first.reason, first.detail, first.body)


def test_ids_belong_to_their_client() -> None:
    stage = Stage()
    stage.worker("w", credit=5)
    stage.submit("a", "1")
    stage.submit("b", "1")
    assert len(stage.delivered()) == 2


def test_without_ids_every_request_is_a_new_one() -> None:
    stage = Stage()
    stage.worker("w", credit=5)
    stage.submit("c", "")
    stage.submit("c", "")
    assert len(stage.delivered()) == 2
    stage.result("w")
    stage.result("w")
    assert len(stage.actions(act.Answer)) == 2
    assert not stage.bus.replies, "nobody could ask for it again"
    assert not stage.bus.clients


# -- refused ----------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[Limits, dict[str, Any], Reason, str]] = {
    "queue": (Limits(queue_length=2), {}, Reason.QUEUE_FULL, "2 requests wait"),
    "client": (
        Limits(outstanding_per_client=2),
        {},
        Reason.TOO_MANY_OUTSTANDING,
        "2 requests of this",
    ),
    "body": (Limits(body_bytes=10), {"body": [b"x" * 6, b"y" * 5]}, Reason.TOO_LARGE, "11 bytes"),
    "frame": (Limits(body_bytes=10), {"body": [b"x" * 11]}, Reason.TOO_LARGE, "11 bytes"),
    "memory": (Limits(held_bytes=10), {"body": [b"x" * 7]}, Reason.OUT_OF_MEMORY, "6 of 10 bytes"),
    "services": (Limits(services=1), {"service": "other"}, Reason.TOO_MANY_SERVICES, "1 services"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("serving", [False, True])
def test_every_limit_refuses_with_its_reason(case: str, serving: bool) -> None:
    limits, facts, reason, words = REFUSALS[case]
    stage = Stage(limits)
    if serving:
        # Busy all the time, so that requests queue.
        stage.worker("w", credit=1)
        stage.submit("busy", "0", body=[])
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.nothing()
    held = stage.bus.held_bytes
    stage.submit("c", "3", **facts)
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.request_id, refusal.reason) == (client("c"), b"3", reason)
    assert words in refusal.detail
    assert stage.nothing()
    assert stage.bus.counters.rejected == 1
    assert stage.bus.held_bytes == held
    assert b"3" not in stage.bus.clients[client("c")].outstanding
    record = stage.told("rejected")[0]
    assert (record.reason, record.client, record.request_id) == (reason, client("c"), b"3")


# What does not depend on how many wait is looked at where a worker is free, too.
WITH_A_FREE_WORKER = ("body", "frame", "memory", "client", "services")


@pytest.mark.parametrize("case", WITH_A_FREE_WORKER)
def test_a_free_worker_is_no_way_around_a_limit(case: str) -> None:
    limits, facts, reason, words = REFUSALS[case]
    stage = Stage(limits)
    stage.worker("w", credit=5)
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1"), ("w", "2")]
    held = stage.bus.held_bytes
    stage.submit("c", "3", **facts)
    refusal = stage.one(act.Refuse)
    assert (refusal.request_id, refusal.reason) == (b"3", reason)
    assert words in refusal.detail
    assert stage.delivered() == []
    assert stage.bus.held_bytes == held
    assert stage.bus.counters.accepted == 2


def test_exactly_at_the_limit_is_allowed() -> None:
    stage = Stage(Limits(body_bytes=5, held_bytes=10, outstanding_per_client=2, queue_length=2, services=1))
    stage.submit("c", "1", body=[b"x" * 5])
    stage.submit("c", "2", body=[b"x" * 5])
    assert stage.nothing()
    assert stage.bus.counters.accepted == 2


def test_a_refused_request_may_be_sent_again() -> None:
    stage = Stage(Limits(outstanding_per_client=1))
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.one(act.Refuse).request_id == b"2"
    stage.result("w")
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1"), ("w", "2")]


def test_refusing_leaves_nothing_of_an_unknown_client() -> None:
    stage = Stage(Limits(body_bytes=1))
    stage.submit("c", "1", body=[b"xx"])
    assert not stage.bus.clients
    assert not stage.bus.requests
    assert not stage.bus.services


def test_one_clients_flood_does_not_refuse_others() -> None:
    stage = Stage(Limits(outstanding_per_client=3))
    for number in range(10):
        stage.submit("flood", str(number))
    assert len(stage.actions(act.Refuse)) == 7
    stage.submit("other", "1")
    assert stage.actions(act.Refuse) == []


def test_nothing_new_while_draining_but_what_is_known() -> None:
    stage = Stage()
    stage.worker("w", credit=5)
    stage.submit("c", "done")
    stage.result("w")
    stage.submit("c", "pending")
    stage.do(events.Drain())
    stage.nothing()
    stage.submit("c", "new")
    assert stage.one(act.Refuse).reason is Reason.DRAINING
    stage.submit("c", "done")
    assert stage.one(act.Answer).request_id == b"done"
    stage.submit("c", "pending")
    assert stage.nothing()


# -- another queue takes it ---------------------------------------------------------------------------


def full_of_jobs_that_pause(queue_length: int) -> Stage:
    """As many jobs as allowed wait for their next attempt, and the worker is free."""
    stage = Stage(Limits(queue_length=queue_length, held_bytes=5 * queue_length + 5))
    stage.worker("w")
    for number in range(queue_length):
        stage.submit("c", f"job{number}", body=[b"12345"], options=JobOptions(retries=1, backoff_s=60.0))
        stage.fail("w", stage.token("c", f"job{number}"))
    stage.delivered()
    assert stage.bus.services[b"echo"].waiting == queue_length
    return stage


@pytest.mark.parametrize("body", [b"1234", b"12345"])
@pytest.mark.parametrize("service", ["echo", "unknown"])
def test_a_call_that_a_free_worker_takes_is_not_held_up_by_jobs_that_pause(service: str, body: bytes) -> None:
    """The same for a call that just fits into memory and one that comes to the service as its fallback."""
    stage = full_of_jobs_that_pause(2)
    stage.submit("c", "call", service, body=[body], fallback=b"echo")
    assert stage.delivered() == [("w", "call")]
    # The next one would have to wait.
    stage.submit("c", "another", service, body=[b""], fallback=b"echo")
    assert stage.one(act.Refuse).reason is Reason.QUEUE_FULL


def test_what_may_wait_again_is_refused_while_as_many_wait_as_allowed() -> None:
    stage = full_of_jobs_that_pause(2)
    stage.submit("c", "job", body=[b"12345"], options=JobOptions(retries=1))
    assert stage.one(act.Refuse).reason is Reason.QUEUE_FULL
    stage.bus.change_policies([("echo", QueuePolicy(retries=1))])
    stage.submit("c", "call", body=[b"12345"])
    assert stage.one(act.Refuse).reason is Reason.QUEUE_FULL
    assert stage.nothing()


def test_the_fallback_takes_what_nobody_offers() -> None:
    stage = Stage()
    stage.worker("w", "default")
    stage.submit("c", "1", "unknown", fallback=b"default", receipt=True)
    assert stage.one(act.Deliver).request.service.name == b"default"
    assert stage.one(act.Accept).service == b"default"
    assert b"unknown" not in stage.bus.services


def test_the_fallback_takes_what_nobody_offers_any_more() -> None:
    stage = Stage()
    stage.worker("gone", "mail")
    stage.gone("gone")
    stage.worker("w", "default")
    stage.submit("c", "1", "mail", fallback=b"default")
    assert stage.one(act.Deliver).request.service.name == b"default"


@pytest.mark.parametrize("offered", ["mail", "nothing"])
def test_no_fallback_if_the_service_is_offered_or_the_fallback_is_not(offered: str) -> None:
    stage = Stage()
    stage.worker("w", offered)
    stage.worker("busy", "default") if offered == "mail" else None
    stage.submit("c", "1", "mail", fallback=b"default")
    assert stage.request("c", "1").service.name == b"mail"


# -- how long it is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize(("ttl_s", "lives_s"), [(None, 300.0), (2.0, 2.0), (0.0, 0.0)])
def test_a_request_has_its_own_time_or_the_default(ttl_s: float | None, lives_s: float) -> None:
    stage = Stage()
    stage.submit("c", "1", ttl_s=ttl_s)
    if lives_s:
        stage.wait(lives_s - 0.1, step=1.0)
        assert stage.nothing()
    stage.wait(0.2)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED


def test_a_request_may_live_for_ever() -> None:
    stage = Stage()
    stage.submit("c", "1", ttl_s=inf)
    stage.wait(100_000.0, step=1000.0)
    assert stage.nothing()


def test_what_is_to_be_tried_again_has_the_default_time_as_well() -> None:
    stage = Stage(Limits(request_ttl_s=2.0))
    stage.submit("c", "1", options=JobOptions(retries=3))
    stage.wait(1.9)
    assert stage.nothing()
    stage.wait(0.2)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED


@pytest.mark.parametrize("guarantee", [False, True])
def test_a_job_does_not_grow_stale(guarantee: bool) -> None:
    stage = LedgerStage(Limits(request_ttl_s=2.0))
    stage.job("j", guarantee=guarantee)
    stage.write()
    stage.wait(1000.0, step=10.0)
    stage.worker("w")
    assert stage.delivered() == [("w", "j")]


def test_changed_limits_hold_for_what_comes_later() -> None:
    stage = Stage(Limits(request_ttl_s=5.0))
    stage.submit("c", "old")
    stage.bus.change_limits(Limits(request_ttl_s=1.0, body_bytes=3))
    stage.submit("c", "new", body=[b"x"])
    stage.submit("c", "large", body=[b"xxxx"])
    assert stage.one(act.Refuse).reason is Reason.TOO_LARGE
    stage.wait(1.1)
    assert stage.one(act.Refuse).request_id == b"new"
    stage.wait(3.8)
    assert stage.nothing()
    stage.wait(0.3)
    assert stage.one(act.Refuse).request_id == b"old"


@pytest.mark.parametrize(
    ("asked", "rule", "governed"),
    [
        (JobOptions(), QueuePolicy(), JobOptions()),
        (JobOptions(), QueuePolicy(retries=0, timeout_s=0.0), JobOptions()),
        (JobOptions(), QueuePolicy(retries=3), JobOptions(retries=3)),
        (JobOptions(), QueuePolicy(timeout_s=9.0), JobOptions(timeout_s=9.0)),
        (JobOptions(), QueuePolicy(guarantee=True), JobOptions(guarantee=True)),
        (JobOptions(retries=1), QueuePolicy(retries=3), JobOptions(retries=1)),
        (JobOptions(timeout_s=2.0), QueuePolicy(timeout_s=9.0), JobOptions(timeout_s=2.0)),
        (JobOptions(guarantee=True), QueuePolicy(), JobOptions(guarantee=True)),
        (SILENT, QueuePolicy(retries=3), JobOptions(reply_requested=False, retries=3)),
        (JobOptions(retries=1), None, JobOptions(retries=1)),
    ],
)
def test_the_rules_of_a_queue_hold_where_a_client_names_nothing_of_its_own(
    asked: JobOptions, rule: QueuePolicy | None, governed: JobOptions
) -> None:
    assert intake.governed(asked, rule) == governed


@pytest.mark.parametrize(
    ("first", "second", "is_answered"),
    [(SILENT, SILENT, False), (SILENT, JobOptions(), True), (JobOptions(), SILENT, True)],
)
def test_a_repeated_request_is_answered_if_an_answer_was_wanted_either_time(
    first: JobOptions, second: JobOptions, is_answered: bool
) -> None:
    stage = Stage()
    stage.worker("w")
    stage.submit("c", "1", options=first)
    stage.submit("c", "1", options=second)
    stage.result("w", stage.token("c", "1"))
    assert bool(stage.actions(act.Answer)) is is_answered
    assert stage.bus.counters.duplicates == 1


@pytest.mark.parametrize(
    ("limits", "before", "reason", "detail"),
    [
        (
            Limits(outstanding_per_client=1),
            [b"x"],
            Reason.TOO_MANY_OUTSTANDING,
            "1 requests of this client are unanswered; wait for answers",
        ),
        (Limits(body_bytes=4), [], Reason.TOO_LARGE, "the body has 5 bytes; allowed are 4"),
        (
            Limits(held_bytes=5),
            [b"x"],
            Reason.OUT_OF_MEMORY,
            "unanswered requests hold 1 of 5 bytes; try again later",
        ),
        (
            Limits(queue_length=1),
            [b"x"],
            Reason.QUEUE_FULL,
            "1 requests wait for this service; add workers or try again later",
        ),
        (
            Limits(services=0),
            [],
            Reason.TOO_MANY_SERVICES,
            "0 services are known; allowed are no more",
        ),
    ],
)
def test_whoever_is_refused_is_told_the_limit_and_what_to_do(
    limits: Limits, before: list[bytes], reason: Reason, detail: str
) -> None:
    stage = Stage(limits)
    for number, body in enumerate(before):
        stage.submit("c", str(number), body=[body])
    assert not stage.actions(act.Refuse)
    stage.submit("c", "last", body=[b"hello"])
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (reason, detail)
    assert [(one.reason, one.detail) for one in stage.told("rejected")] == [(str(reason), detail)]
    assert (stage.bus.counters.rejected, stage.bus.refusals) == (1, {str(reason): 1})


def test_a_broker_that_stops_sends_requests_to_its_successor() -> None:
    stage = Stage()
    stage.submit("c", "1")
    stage.do(events.Drain())
    stage.submit("c", "2")
    refusal = stage.one(act.Refuse)
    assert (refusal.reason, refusal.detail) == (
        Reason.DRAINING,
        "the broker is shutting down; send it again to its successor",
    )
