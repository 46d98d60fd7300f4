"""Guaranteed requests: nothing leaves before it is on disk; what cannot be put there was never accepted."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from polybus.core import actions as act
from polybus.core import durable, events, ledger
from polybus.core.durable import entry_of, note_accepted, note_attempt, peer_text
from polybus.core.lifecycle import RequestState
from polybus.core.model import JobOptions, Limits, QueuePolicy, Reason
from polybus.core.replies import KEPT_OVERHEAD_BYTES
from polybus.core.revival import revive
from support.stage import LedgerStage, client, worker

GUARANTEED = JobOptions(guarantee=True)
NO_REPLY = JobOptions(guarantee=True, reply_requested=False)


@pytest.fixture
def stage() -> LedgerStage:
    stage = LedgerStage()
    stage.worker("w", credit=2)
    return stage


def left(stage: LedgerStage) -> dict[str, object]:
    """Everything that a request leaves behind."""
    bus = stage.bus
    return {
        "requests": dict(bus.requests),
        "clients": dict(bus.clients),
        "known": dict(bus.desk.known),
        "unanswered": bus.desk.unanswered,
        "held": list(bus.held),
        "held_bytes": bus.held_bytes,
        "outcomes": list(bus.outcomes),
        "replies": list(bus.replies),
        "groups": dict(bus.groups),
        "waiters": len(bus.waiters),
        "alarms": dict(bus.alarms._slots),
        "expiries": dict(bus.expiries._slots),
    }


NOTHING = {
    "requests": {},
    "clients": {},
    "known": {},
    "unanswered": 0,
    "held": [],
    "held_bytes": 0,
    "outcomes": [],
    "replies": [],
    "groups": {},
    "waiters": 0,
    "alarms": {},
    "expiries": {},
}


# -- nothing leaves before it is written ----------------------------------------------------------


def test_receipt_and_dispatch_wait_for_the_disk(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    assert stage.nothing()
    stage.wait(1.0)
    assert stage.nothing()
    stage.write()
    assert stage.one(act.Accept).request_id == b"1"
    assert stage.delivered() == [("w", "1")]


def test_the_answer_waits_for_the_disk(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    token = stage.token("c", "1")
    stage.result("w", token)
    assert not stage.actions(act.Answer)
    assert [job.token for job in stage.store.load().jobs] == [token]
    stage.write()
    assert stage.one(act.Answer).body == [b"done"]
    contents = stage.store.load()
    assert not contents.jobs
    assert [outcome.body for outcome in contents.outcomes] == [[b"done"]]


def test_a_refusal_waits_for_the_disk(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.fail("w", stage.token("c", "1"))
    assert not stage.actions(act.Refuse)
    stage.write()
    assert stage.one(act.Refuse).reason is Reason.FAILED


def test_batches_are_released_in_their_order(stage: LedgerStage) -> None:
    for number in "123":
        stage.submit("c", number, options=GUARANTEED, receipt=True)
        stage.pen.take(stage.bus)
    stage.do(events.Written(2))
    assert [accept.request_id for accept in stage.actions(act.Accept)] == [b"1", b"2"]
    assert [name for _, name in stage.delivered()] == ["1", "2"]
    stage.do(events.Written(3))
    assert stage.one(act.Accept).request_id == b"3"


def test_what_is_not_guaranteed_does_not_wait(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.submit("c", "2", receipt=True)
    stage.submit("c", "3", options=JobOptions(retries=2), receipt=True)
    assert stage.delivered() == [("w", "2"), ("w", "3")]
    assert [accept.request_id for accept in stage.actions(act.Accept)] == [b"2", b"3"]
    stage.result("w", stage.token("c", "3"))
    assert stage.one(act.Answer).request_id == b"3"


def test_a_job_without_wish_for_a_reply_gets_none(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=NO_REPLY, receipt=True)
    stage.write()
    stage.one(act.Accept)
    stage.result("w", stage.token("c", "1"))
    stage.write()
    assert not stage.actions(act.Answer)


# -- duplicates -----------------------------------------------------------------------------------


def test_a_duplicate_of_an_unwritten_request_waits_with_it(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.pen.take(stage.bus)
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    assert stage.nothing()
    stage.write()
    assert len(stage.actions(act.Accept)) == 2
    assert stage.delivered() == [("w", "1")]
    assert len(stage.pen.written) == 2, "it is written down once, and that it was started"


def test_a_duplicate_of_an_answer_that_is_not_written_waits_with_it(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.result("w", stage.token("c", "1"))
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    assert not stage.actions(act.Answer)
    assert not stage.actions(act.Accept)
    stage.write()
    assert [answer.body for answer in stage.actions(act.Answer)] == [[b"done"], [b"done"]]


def test_a_duplicate_of_a_written_one_gets_its_answer_again(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.result("w", stage.token("c", "1"))
    stage.write()
    stage.taken.clear()
    stage.wait(3600)
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    assert stage.one(act.Answer).body == [b"done"]
    stage.one(act.Accept)
    assert not stage.bus.lines


# -- refused writes -------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", [True, False])
@pytest.mark.parametrize("options", [GUARANTEED, NO_REPLY, JobOptions(guarantee=True, retries=3)])
def test_a_refused_write_tells_the_client_once_and_leaves_no_trace(
    stage: LedgerStage, options: JobOptions, receipt: bool
) -> None:
    stage.submit("c", "1", options=options, receipt=receipt)
    stage.refuse_writes("the disk is full")
    assert not stage.actions(act.Accept)
    if options.reply_requested or receipt:
        refusal = stage.one(act.Refuse)
        assert refusal.client == client("c")
        assert refusal.request_id == b"1"
        assert refusal.reason is Reason.STORE_UNAVAILABLE
        assert "the disk is full" in refusal.detail
    assert stage.nothing()
    assert left(stage) == NOTHING
    stage.recover()
    assert stage.nothing()
    assert not stage.store.load().jobs
    assert not stage.store.load().outcomes
    assert not stage.dead()


def test_what_was_refused_may_be_sent_again_with_the_same_id(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.refuse_writes()
    stage.recover()
    stage.taken.clear()
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.write()
    stage.one(act.Accept)
    assert stage.delivered() == [("w", "1")]


def test_a_duplicate_of_a_refused_request_gets_no_receipt(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.refuse_writes()
    assert not stage.actions(act.Accept)
    assert stage.actions(act.Refuse)
    stage.recover()
    assert not stage.actions(act.Accept)
    assert not stage.actions(act.Refuse)
    assert left(stage) == NOTHING


def test_only_what_was_refused_is_refused(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.write()
    stage.submit("c", "2", options=GUARANTEED, receipt=True)
    stage.result("w", stage.token("c", "1"))
    stage.refuse_writes()
    assert stage.one(act.Refuse).request_id == b"2"
    assert not stage.actions(act.Answer), "that it ended is not on disk"
    stage.recover()
    assert stage.one(act.Answer).request_id == b"1"
    assert not stage.actions(act.Refuse)


def test_cancelled_before_it_was_written(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.pen.take(stage.bus)
    stage.do(events.Cancel(client("c"), b"1"))
    assert stage.nothing()
    stage.write()
    assert stage.one(act.Accept).request_id == b"1"
    assert stage.one(act.Refuse).reason is Reason.CANCELLED
    assert not stage.actions(act.Deliver)
    assert not stage.store.load().jobs
    assert not stage.dead()


def test_cancelled_before_it_was_refused(stage: LedgerStage) -> None:
    """It has one end; which word reaches its client does not matter, but there is one."""
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    stage.pen.take(stage.bus)
    stage.do(events.Cancel(client("c"), b"1"))
    stage.refuse_writes()
    stage.recover()
    assert not stage.actions(act.Accept)
    assert stage.one(act.Refuse).reason in (Reason.CANCELLED, Reason.STORE_UNAVAILABLE)
    assert not stage.bus.requests
    assert not stage.store.load().jobs


def test_expired_before_it_was_written(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED, ttl_s=1.0, receipt=True)
    stage.pen.take(stage.bus)
    stage.wait(2.0)
    assert stage.nothing()
    stage.write()
    stage.one(act.Accept)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED
    assert not stage.actions(act.Deliver)
    assert stage.dead()[0].reason == "expired"
    assert stage.bus.alarms._slots == stage.bus.expiries._slots == {}


def test_a_client_that_left_before_its_request_was_refused(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.do(events.ClientGone(client("c"), withdraw=False))
    stage.refuse_writes()
    assert not stage.actions(act.Answer)
    assert left(stage) == NOTHING


@pytest.mark.parametrize("reply", ["receipt", "result"])
def test_a_job_that_was_cancelled_before_it_was_refused_has_one_word_for_its_sender(
    stage: LedgerStage, reply: str
) -> None:
    head = b'{"service":"echo","id":"j","reply":"%b"}\nwork' % reply.encode()
    stage.call("c", "1", "submit", head, receipt=reply == "result")
    stage.pen.take(stage.bus)
    stage.call("x", "2", "cancel", b"j")
    stage.refuse_writes()
    stage.recover()
    assert not stage.actions(act.Accept)
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.request_id) == (client("c"), b"1")
    assert refusal.reason is (Reason.STORE_UNAVAILABLE if reply == "receipt" else Reason.CANCELLED)
    assert stage.one(act.Answer).client == client("x")
    assert not stage.bus.requests


def test_everybody_who_waits_for_a_refused_job_without_an_id_of_its_own_is_told(stage: LedgerStage) -> None:
    stage.job("j")
    for _ in range(2):
        stage.call("c", "", "result", b"j")
    stage.refuse_writes()
    told = [(refusal.client, refusal.request_id, refusal.reason) for refusal in stage.actions(act.Refuse)]
    waiter = (client("c"), b"", Reason.STORE_UNAVAILABLE)
    assert told == [(client("c"), b"submit j", Reason.STORE_UNAVAILABLE), waiter, waiter]
    assert left(stage) == NOTHING


# -- health ---------------------------------------------------------------------------------------


def test_while_the_store_is_sick_guarantees_are_refused_and_everything_else_goes_on(
    stage: LedgerStage,
) -> None:
    stage.submit("c", "old", options=GUARANTEED)
    stage.write()
    stage.delivered()
    stage.do(events.StoreHealth("the disk is on fire"))
    stage.submit("c", "1", options=GUARANTEED, receipt=True)
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.STORE_UNAVAILABLE
    assert "the disk is on fire" in refusal.detail
    assert not stage.actions(act.Accept)
    stage.submit("c", "2", receipt=True)
    stage.one(act.Accept)
    stage.result("w", stage.token("c", "2"))
    assert stage.one(act.Answer).request_id == b"2"
    stage.submit("c", "3", options=JobOptions(retries=1))
    stage.fail("w", stage.token("c", "3"))
    stage.wait(2.0)
    stage.result("w", stage.token("c", "3"))
    assert stage.one(act.Answer).request_id == b"3"
    stage.result("w", stage.token("c", "old"))
    stage.do(events.StoreHealth(""))
    stage.write()
    assert stage.one(act.Answer).request_id == b"old"


def test_while_nothing_can_be_written_plain_answers_are_given_again(stage: LedgerStage) -> None:
    stage.submit("c", "old", options=GUARANTEED)
    stage.write()
    stage.submit("c", "plain")
    stage.result("w", stage.token("c", "plain"))
    stage.result("w", stage.token("c", "old"))
    stage.refuse_writes()
    stage.taken.clear()
    stage.submit("c", "plain", receipt=True)
    assert stage.one(act.Answer).request_id == b"plain"
    stage.submit("c", "pending")
    stage.submit("c", "pending", receipt=True)
    assert {accept.request_id for accept in stage.actions(act.Accept)} == {b"plain", b"pending"}
    stage.submit("c", "old")
    assert not stage.actions(act.Answer), "nobody knows that one yet"


def test_a_queue_that_guarantees_refuses_all_while_the_store_is_sick(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(guarantee=True))
    stage.do(events.StoreHealth("the disk is full"))
    stage.submit("c", "1")
    assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE
    assert left(stage) == NOTHING


def test_without_a_store_nothing_waits_for_one() -> None:
    """Lines that nobody writes must not hold up what nobody guarantees."""
    stage = LedgerStage(Limits(outcomes_count=1))
    stage.bus = type(stage.bus)(b"n-", stage.limits, watched=True)
    stage.worker("w", credit=5)
    stage.job("1", guarantee=True)
    assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE
    for name in ("1", "2", "3"):
        stage.job(name, guarantee=False, reply="result")
        stage.result("w", stage.job_request(name).token)
        assert stage.one(act.Answer).body == [b"done"]
    stage.job("4", guarantee=False, retries=1, backoff_s=0)
    stage.one(act.Answer)
    for _ in range(2):
        stage.fail("w", stage.job_request("4").token)
        stage.wait(0.2)
    stage.wait(stage.bus.outcomes_age_s + 2.0, step=3600.0)
    assert stage.bus.lines == []
    assert not stage.bus.held


# -- outcomes -------------------------------------------------------------------------------------


def test_outcomes_are_forgotten_after_their_age_here_and_on_disk(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    token = stage.token("c", "1")
    stage.result("w", token)
    stage.write()
    stage.wait(stage.bus.outcomes_age_s - 10.0, step=600.0)
    stage.write()
    assert len(stage.store.load().outcomes) == 1
    stage.wait(20.0, step=1.0)
    stage.write()
    assert ledger.Forgotten((token,)) in stage.pen.written
    assert not stage.store.load().outcomes
    stage.taken.clear()
    assert left(stage) == NOTHING
    assert stage.bus.outcomes_bytes == 0


def test_outcomes_are_bounded_by_number_and_by_bytes() -> None:
    stage = LedgerStage(Limits(outcomes_count=5, outcomes_bytes=20_000))
    stage.worker("w", credit=5)
    for number in range(40):
        stage.submit("c", str(number), options=GUARANTEED)
        stage.write()
        stage.result("w", stage.token("c", str(number)), [b"x" * 1000])
        stage.write()
    assert stage.bus.outcomes_bytes <= 20_000
    stage.wait(2.0)
    stage.write()
    assert len(stage.bus.outcomes) == 5
    assert len(stage.store.load().outcomes) == 5
    assert len(stage.bus.clients[client("c")].known) == 5


def test_an_outcome_that_is_large_does_not_push_out_itself_for_ever() -> None:
    stage = LedgerStage(Limits(outcomes_bytes=1000))
    stage.worker("w", credit=5)
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.result("w", stage.token("c", "1"), [b"x" * 5000])
    stage.write()
    assert stage.one(act.Answer).body == [b"x" * 5000]
    assert stage.bus.outcomes_bytes == 0
    assert left(stage) == NOTHING


# -- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("withdraw", [True, False])
def test_a_guaranteed_request_survives_its_client(stage: LedgerStage, withdraw: bool) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.do(events.ClientGone(client("c"), withdraw))
    assert stage.request("c", "1").state is RequestState.DISPATCHED
    stage.result("w", stage.token("c", "1"))
    stage.write()
    assert not stage.actions(act.Answer), "it does not want to hear more"
    stage.submit("c", "1", options=GUARANTEED)
    assert stage.one(act.Answer).body == [b"done"], "until it asks again"


def test_worker_and_client_records_of_ended_jobs_are_let_go(stage: LedgerStage) -> None:
    for number in range(20):
        stage.submit(f"c{number}", "", options=GUARANTEED)
        stage.write()
        stage.result("w")
        stage.write()
    assert left(stage) == NOTHING
    assert stage.bus.workers[worker("w")].free == 2


# -- dead letters that are put back ---------------------------------------------------------------


@pytest.mark.parametrize("doubtful", [True, False])
def test_a_dead_letter_that_could_not_be_put_back_is_dead_again(stage: LedgerStage, doubtful: bool) -> None:
    stage.job("j")
    stage.write()
    stage.fail("w", stage.job_request("j").token)
    stage.write()
    stage.taken.clear()
    (letter,) = stage.dead()
    request, why = revive(stage.bus, letter, stage.now)
    assert request is not None, why
    stage.call("c", "1", "result", b"j")
    stage.refuse_writes("the disk is full", doubtful)
    assert not stage.actions(act.Deliver)
    stage.recover()
    assert stage.one(act.Refuse).request_id == b"1"
    (again,) = stage.dead()
    assert again.job.token == letter.job.token
    assert [attempt.reason for attempt in again.job.history] == ["failed", "revived"]
    assert again.job.body == letter.job.body
    assert not stage.store.load().jobs
    assert stage.facts("j")["state"] == "failed"
    request, why = revive(stage.bus, again, stage.now)
    stage.write()
    assert stage.delivered() == [("w", "j")], why


def test_a_revived_job_has_its_retries_again(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=JobOptions(guarantee=True, retries=1, backoff_s=0.0))
    stage.write()
    for _ in range(2):
        stage.fail("w", stage.token("c", "1"))
        stage.wait(0.2)
        stage.write()
    (letter,) = stage.dead()
    token = letter.job.token
    revive(stage.bus, letter, stage.now)
    stage.write()
    stage.fail("w", token)
    stage.wait(0.2)
    stage.write()
    stage.restart()
    stage.wait(20.0)
    stage.worker("w")
    stage.fail("w", token)
    stage.write()
    (again,) = stage.dead()
    reasons = [attempt.reason for attempt in again.job.history]
    assert reasons == ["failed", "failed", "revived", "failed", "failed"]


def test_an_entry_has_every_fact_of_its_request(stage: LedgerStage) -> None:
    """Also one that was written without the detour over an entry."""
    asked = JobOptions(guarantee=True, retries=3)
    stage.submit("c", "1", body=[b"a", b"b"], options=asked, ttl_s=inf)
    stage.write()
    (request,) = stage.bus.requests.values()
    (job,) = stage.store.load().jobs
    accepted_at = request.accepted_at + LedgerStage.WALL_OFFSET
    expected = ledger.JobEntry(
        token=request.token,
        link="clients",
        identity=b"c",
        request_id=b"1",
        voice="",
        service=b"echo",
        body=[b"a", b"b"],
        options=asked,
        accepted_at=accepted_at,
        expires_at=None,
        due_at=0.0,
        attempt=1,
        worker="w",
        history=(),
    )
    assert entry_of(stage.bus, request) == expected
    # What became of it later is written beside it.
    assert replace(job, attempt=1, worker="w") == expected
    voice, request.voice = request.voice, None
    assert entry_of(stage.bus, request).voice == ""
    stage.bus.voices["known"] = request.voice = voice or object()
    assert entry_of(stage.bus, request, 7.0) == replace(expected, voice="known", due_at=7.0)
    request.expires_at = request.accepted_at + 5
    assert entry_of(stage.bus, request).expires_at == accepted_at + 5


@pytest.mark.parametrize(
    ("identity", "text"),
    [(b"worker 1", "worker 1"), (b"\0\1", "0001"), (b"a\nb", "610a62"), ("é".encode(), "c3a9"), (b"", "")],
)
def test_a_worker_is_named_as_text_or_in_hexadecimal_digits(identity: bytes, text: str) -> None:
    assert peer_text((7, identity)) == text


@pytest.mark.parametrize("length", [4095, 4096, 4097])
def test_what_a_worker_says_of_a_failure_is_cut(stage: LedgerStage, length: int) -> None:
    stage.submit("c", "1", options=JobOptions(guarantee=True, retries=1))
    stage.write()
    (request,) = stage.bus.requests.values()
    note_attempt(stage.bus, request, Reason.FAILED, "x" * length, stage.now)
    (attempt,) = request.history
    said = "x" * length if length <= 4096 else "x" * 4095 + "…"
    at = stage.now + LedgerStage.WALL_OFFSET
    assert attempt == ledger.Attempt(1, at, "w", "failed", said)
    # A call that nobody tries again and that is not written down has no history.
    request.options, request.durable = JobOptions(), False
    note_attempt(stage.bus, request, Reason.FAILED, "again", stage.now)
    assert len(request.history) == 1


@pytest.mark.parametrize(
    "body", [[], [b"a"], [memoryview(b"a")], [b"a", memoryview(b"b")], [bytearray(b"a")]]
)
def test_a_body_is_written_down_without_buffers_of_others(body: list[Any]) -> None:
    frames = durable.plain_frames(body)
    assert frames == [bytes(frame) for frame in body]
    assert all(type(frame) is bytes for frame in frames)


FAILED_ONCE = (ledger.Attempt(1, 5.0, "w", "failed", "it broke"),)


@pytest.mark.parametrize(
    ("attempt", "has_worker", "history"),
    [(0, False, ()), (1, False, ()), (0, True, ()), (0, False, FAILED_ONCE), (2, True, FAILED_ONCE)],
)
def test_what_happened_to_a_request_before_is_written_down_with_it(
    stage: LedgerStage, attempt: int, has_worker: bool, history: tuple[ledger.Attempt, ...]
) -> None:
    """What was tried before is known under its token already."""
    stage.submit("c", "1", options=GUARANTEED, ttl_s=inf)
    stage.write()
    request = stage.request("c", "1")
    request.attempt, request.history = attempt, history
    if not has_worker:
        request.worker = None
    note_accepted(stage.bus, request, receipt=False)
    (line,) = stage.bus.lines
    assert isinstance(line, ledger.Accepted)
    assert line.job == entry_of(stage.bus, request)
    assert (line.job.attempt, line.job.worker, line.job.history) == (attempt, "w" * has_worker, history)
    assert line.is_new == (attempt == 0 and history == ())
    assert not line.promised


def test_the_voice_of_a_request_is_written_down_by_its_own_name(stage: LedgerStage) -> None:
    stage.bus.voices = {"another": "d", "its own": "c", "a third": "e"}
    stage.submit("c", "1", options=GUARANTEED, ttl_s=inf)
    assert entry_of(stage.bus, stage.request("c", "1")).voice == "its own"
    stage.write()
    assert [job.voice for job in stage.store.load().jobs] == ["its own"]


def test_of_a_link_without_a_name_no_name_is_written_down(stage: LedgerStage) -> None:
    stage.bus.link_names = {}
    for name in "12":
        stage.submit("c", name, options=GUARANTEED, ttl_s=inf)
    stage.write()
    assert [job.link for job in stage.store.load().jobs] == ["", ""]
    assert entry_of(stage.bus, stage.request("c", "1")).link == ""
    stage.result("w", stage.token("c", "1"))
    stage.fail("w", stage.token("c", "2"))
    stage.write()
    assert [(outcome.link, outcome.identity) for outcome in stage.store.load().outcomes] == [("", b"c")] * 2
    assert [letter.job.link for letter in stage.dead()] == [""]


def test_an_attempt_that_no_worker_has_names_none(stage: LedgerStage) -> None:
    stage.submit("c", "1", "unserved", options=GUARANTEED)
    request = stage.request("c", "1")
    note_attempt(stage.bus, request, Reason.FAILED, "it broke", stage.now)
    at = stage.now + LedgerStage.WALL_OFFSET
    assert request.history == (ledger.Attempt(0, at, "", "failed", "it broke"),)


def test_an_outcome_is_kept_as_long_as_is_said_and_no_longer(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=GUARANTEED)
    stage.write()
    stage.result("w", stage.token("c", "1"))
    stage.write()
    durable.forget_outcomes(stage.bus, stage.now + stage.bus.outcomes_age_s)
    assert len(stage.bus.outcomes) == 1
    durable.forget_outcomes(stage.bus, stage.now + stage.bus.outcomes_age_s + 0.001)
    assert not stage.bus.outcomes


def test_outcomes_may_take_all_the_bytes_that_are_allowed() -> None:
    size = len(b"done") + KEPT_OVERHEAD_BYTES
    stage = LedgerStage(Limits(outcomes_bytes=2 * size))
    stage.worker("w")
    for name, kept in (("1", [b"1"]), ("2", [b"1", b"2"]), ("3", [b"2", b"3"])):
        stage.submit("c", name, options=GUARANTEED)
        stage.write()
        stage.result("w", stage.token("c", name))
        stage.write()
        durable.forget_outcomes(stage.bus, stage.now)
        assert [outcome.word.request_id for outcome in stage.bus.outcomes] == kept
    assert stage.bus.outcomes_bytes == 2 * size
