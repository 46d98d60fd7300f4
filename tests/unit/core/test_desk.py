"""The broker's own services: called from every dialect, with good and with hostile envelopes."""

from __future__ import annotations

import json
from hashlib import sha1
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.client.sessions import client_session
from polybus.client.sessions.port import Accepted, Done, Failed
from polybus.core import actions as act
from polybus.core import desk, events
from polybus.core.bus import Bus
from polybus.core.envelope import Submission
from polybus.core.lifecycle import RequestState
from polybus.core.model import JobOptions, Limits, QueuePolicy, Reason
from polybus.core.tables import DESK
from polybus.dialects.dbp import Dbp
from polybus.dialects.ebus import Ebus
from polybus.dialects.emqp import Emqp
from polybus.dialects.mdp1 import Mdp1
from polybus.dialects.mdp2 import Mdp2
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from support.exchange import Exchange
from support.stage import NEVER_DEAD, LedgerStage, client, worker

LINKS = {"ebus": 1, "emqp": 2, "mdp1": 3, "mdp2": 3, "mdr": 3, "dbp": 4}
WORKERS = 9


@pytest.fixture
def stage() -> LedgerStage:
    stage = LedgerStage()
    stage.worker("w", credit=10)
    return stage


def ears(bus: Bus) -> dict[int, RouterEar]:
    family = {**Mdp1(bus).tags, **Mdp2(bus).tags, **Mdr(bus).tags}
    return {
        1: RouterEar(bus, "ebus", Ebus(bus).tags),
        2: RouterEar(bus, "emqp", Emqp(bus, wall=lambda: 0.0).tags),
        3: RouterEar(bus, "majordomo", family),
        4: RouterEar(bus, "dbp", Dbp(bus, lambda: 0.0).tags),
    }


class Caller:
    """A client of some dialect at an exchange, with the library's own session."""

    def __init__(self, exchange: Exchange, dialect: str, name: bytes = b"caller") -> None:
        self.exchange, self.link, self.name = exchange, LINKS[dialect], name
        self.session = client_session(dialect)
        self.number = 0

    def send(self, service: str, body: bytes) -> bytes:
        self.number += 1
        request_id = b"%b-%d" % (self.name, self.number)
        for frames in self.session.request(request_id, b"polybus." + service.encode(), [body]):
            self.exchange.send(self.link, self.name, *frames)
        return request_id

    def heard(self) -> list[Any]:
        events = []
        for frames in self.exchange.got(self.link, self.name):
            events += self.session.receive(frames, self.exchange.now)
            for more in self.session.release():
                self.exchange.send(self.link, self.name, *more)
        return [event for event in events if not isinstance(event, Accepted)]

    def call(self, service: str, body: bytes) -> Any:
        self.send(service, body)
        (event,) = self.heard()
        return event


@pytest.fixture
def exchange() -> Exchange:
    exchange = Exchange()
    exchange.bus.link_names = {1: "ebus", 2: "emqp", 3: "majordomo", 4: "dbp", DESK[0]: "jobs"}
    for link, ear in ears(exchange.bus).items():
        exchange.listen(link, ear)
    # A worker that says READY for one service and credit enough.
    exchange.listen(WORKERS, RouterEar(exchange.bus, "mdr", Mdr(exchange.bus).tags))
    exchange.send(WORKERS, b"w", *_mdr_worker().hello(exchange.now)[0])
    return exchange


def _mdr_worker() -> Any:
    from polybus.client.sessions.mdr import MdrWorker

    return MdrWorker(b"echo", 100)


def work(exchange: Exchange, *answers: bytes) -> None:
    """Let the worker answer what it has, in order."""
    session = _mdr_worker()
    session.hello(exchange.now)
    jobs = [
        event
        for frames in exchange.got(WORKERS, b"w")
        for event in session.receive(frames, exchange.now)
        if hasattr(event, "token")
    ]
    for job, answer in zip(jobs, answers, strict=True):
        for frames in session.reply(job.token, [answer]):
            exchange.send(WORKERS, b"w", *frames)


def envelope(body: bytes = b"work", **head: Any) -> bytes:
    return json.dumps({"service": "echo", **head}).encode() + b"\n" + body


# -- from every dialect ---------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", LINKS)
def test_every_service_can_be_called_from_every_dialect(exchange: Exchange, dialect: str) -> None:
    caller = Caller(exchange, dialect)
    done = caller.call("submit", envelope(id="j"))
    assert isinstance(done, Done), done
    assert msgspec.json.decode(bytes(done.body[0])) == {"job": "j"}
    facts = msgspec.json.decode(bytes(caller.call("job", b"j").body[0]))
    assert (facts["job"], facts["state"], facts["service"], facts["attempt"]) == ("j", "running", "echo", 1)
    work(exchange, b'{"x": 1}')
    result = caller.call("result", b"j")
    assert isinstance(result, Done)
    assert bytes(result.body[0]) == b'{"x": 1}'
    cancelled = caller.call("cancel", b"j")
    assert bytes(cancelled.body[0]) == b'{"cancelled":false}'
    unknown = caller.call("result", b"nobody")
    assert isinstance(unknown, Failed)
    assert "unknown_job" in (unknown.code + unknown.detail)
    question = json.dumps({"do": "add", "queue": "echo", "message": "hi", "every_s": 3600, "key": "k"})
    added = msgspec.json.decode(bytes(caller.call("schedule", question.encode()).body[0]))
    assert added["key"] == "k"
    (row,) = msgspec.json.decode(bytes(caller.call("schedule", b'{"do": "list"}').body[0]))
    assert row["queue"] == "echo"
    removed = caller.call("schedule", b'{"do": "remove", "key": "k"}')
    assert bytes(removed.body[0]) == b'{"removed":true}'


@pytest.mark.parametrize("dialect", LINKS)
def test_a_result_is_waited_for_from_every_dialect(exchange: Exchange, dialect: str) -> None:
    caller = Caller(exchange, dialect)
    caller.send("submit", envelope(id="j", reply="result"))
    assert not caller.heard()
    work(exchange, b"7")
    (done,) = caller.heard()
    assert isinstance(done, Done)
    assert bytes(done.body[0]) == b"7"


@pytest.mark.parametrize("dialect", LINKS)
def test_a_failure_reaches_every_dialect_with_its_reason(exchange: Exchange, dialect: str) -> None:
    caller = Caller(exchange, dialect)
    caller.send("submit", envelope(id="j", reply="result"))
    work(exchange, b'{"error": "failed", "detail": "no tea"}')
    (failed,) = caller.heard()
    assert isinstance(failed, Failed)
    assert "no tea" in failed.code + failed.detail + str(failed.body)


@pytest.mark.parametrize("dialect", LINKS)
def test_one_dialect_sends_and_another_asks(exchange: Exchange, dialect: str) -> None:
    sender = Caller(exchange, "emqp", b"sender")
    sender.call("submit", envelope(id="j"))
    asker = Caller(exchange, dialect, b"asker")
    asker.send("result", b"j")
    assert not asker.heard()
    work(exchange, b"done")
    (done,) = asker.heard()
    assert bytes(done.body[0]) == b"done"
    assert not sender.heard(), "it asked for a receipt"


@pytest.mark.parametrize("dialect", LINKS)
def test_a_bad_envelope_is_refused_in_every_dialect(exchange: Exchange, dialect: str) -> None:
    caller = Caller(exchange, dialect)
    failed = caller.call("submit", b"\xff\xfe")
    assert isinstance(failed, Failed)
    assert "bad_job" in failed.code + failed.detail + str(failed.body)
    failed = caller.call("nonsense", b"")
    assert isinstance(failed, Failed)


def test_a_service_that_is_none_and_no_text(stage: LedgerStage) -> None:
    stage.do(events.Submit(client("c"), "c", b"1", b"polybus.\xff\xfe", [b""]))
    assert stage.one(act.Refuse).reason is Reason.REJECTED
    assert not stage.bus.clients


# -- hostile --------------------------------------------------------------------------------------


HOSTILE = [
    b"",
    b"\n",
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b'{"service": "echo"',
    b'{"service": ""}',
    b'{"service": 5}',
    b'{"service": "echo", "group": [{"service": "echo"}]}',
    b'{"service": "echo", "retries": -1}',
    b'{"service": "echo", "retries": 1e30}',
    b'{"service": "echo", "retries": 1.5}',
    b'{"service": "echo", "timeout_s": -1}',
    b'{"service": "echo", "timeout_s": 1e400}',
    b'{"service": "echo", "ttl_s": NaN}',
    b'{"service": "echo", "delay_s": 1e18}',
    b'{"service": "echo", "id": ""}',
    b'{"service": "echo", "id": "' + b"x" * 201 + b'"}',
    b'{"service": "' + b"x" * 256 + b'"}',
    b'{"service": "echo", "retires": 3}',
    b'{"service": "echo", "reply": "maybe"}',
    b'{"service": "echo", "then": [{"service": "echo", "body": 5}]}',
    b'{"service": "echo", "then": [{"body": "x"}]}',
    b'{"service": "echo", "then": {}}',
    b'{"service": "polybus.submit"}',
    b'{"service": "echo", "then": [{"service": "polybus.result"}]}',
    b'{"group": []}',
    b'{"group": [{"service": "polybus.job"}]}',
    b'{"group": [{"service": "echo"}]}\nbody',
    b'{"service": "\\ud800"}',
    b'{"service": "a\\nb"}',
    b'{"service": "echo", "then": [{"service": "a\\u0000b"}]}',
    b'{"group": [{"service": "a\\u200bb"}]}',
    b'{"service": "%b"}' % ("é" * 128).encode(),
    b'{"service": "echo", "id": "\\udfff"}',
    b'{"service": "echo", "guarantee": 1}',
    b'{"service": "echo", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"[" * 100_000,
    b"\xff\xfe\x00",
    b"\x00" * 100,
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_envelopes_are_refused_with_a_reason(stage: LedgerStage, body: bytes) -> None:
    stage.call("c", "1", "submit", body, receipt=True)
    refusal = stage.one(act.Refuse)
    assert refusal.reason is Reason.BAD_JOB
    assert refusal.detail
    assert stage.nothing()
    assert not stage.bus.patient
    assert not stage.bus.desk.known
    assert not stage.bus.clients
    assert not stage.bus.lines
    assert not stage.bus.groups


@pytest.mark.parametrize(
    "asked", [{}, {"backoff_s": 7.0}, {"retries": 9}, {"timeout_s": 4.0}, {"guarantee": False}]
)
def test_a_job_has_the_options_that_it_asks_for(stage: LedgerStage, asked: dict[str, Any]) -> None:
    usual = Submission()
    for name in ("first", "again"):
        stage.job(name, **asked)
        stage.write()
        options = stage.job_request(name).options
        for field in ("guarantee", "retries", "timeout_s", "backoff_s"):
            assert getattr(options, field) == asked.get(field, getattr(usual, field)), field


def test_a_receipt_comes_before_the_answer_if_it_was_asked_for(stage: LedgerStage) -> None:
    stage.job("job")
    stage.write()
    for service, body in (
        ("job", b"job"),
        ("cancel", b"job"),
        ("submit", b'{"service": "echo", "id": "other"}'),
    ):
        for receipt in (True, False):
            stage.taken.clear()
            stage.call("c", service, service, body, receipt=receipt)
            stage.write()
            words = [
                action for action in stage.taken if getattr(action, "request_id", b"") == service.encode()
            ]
            expected = [act.Accept, act.Answer] if receipt else [act.Answer]
            assert [type(word) for word in words] == expected, service


@pytest.mark.parametrize("opening", [b'{"service": "echo"', b'[{"service": "echo"'])
def test_the_json_of_a_submission_has_a_limit(stage: LedgerStage, opening: bytes) -> None:
    """White space makes it too long, so that nothing else is wrong with it."""
    closing = b"}]" if opening.startswith(b"[") else b"}"
    most = 16 * 1024 * 1024
    for size, is_allowed in ((most + 1, False), (most, True)):
        stage.taken.clear()
        body = opening + b" " * (size - len(opening) - len(closing)) + closing
        stage.call("c", "1", "submit", body, receipt=True)
        stage.write()
        if is_allowed:
            assert not stage.actions(act.Refuse)
            assert stage.one(act.Accept).request_id == b"1"
        else:
            assert stage.one(act.Refuse).reason is Reason.BAD_JOB
            assert not stage.bus.requests


@pytest.mark.parametrize("service", ["submit", "result", "cancel", "job", "schedule", "", "x"])
@given(body=st.lists(st.binary(max_size=60), max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_answered_once_and_never_raise(service: str, body: list[bytes]) -> None:
    stage = LedgerStage()
    stage.submit("c", "1", f"polybus.{service}", body)
    assert len(stage.actions(act.Refuse)) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.dictionaries(
    st.sampled_from([*Submission.__struct_fields__, "body", "other"]),
    json_values | st.just("echo") | st.just([{"service": "echo"}]) | st.floats(0, 10) | st.integers(0, 9),
    max_size=6,
)


@given(head=fields, body=st.binary(max_size=20), twice=st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_json_is_answered_once_and_never_raises(head: dict[str, Any], body: bytes, twice: bool) -> None:
    stage = LedgerStage()
    stage.worker("w", credit=10)
    data = json.dumps(head).encode() + b"\n" + body
    for number in range(1 + twice):
        stage.call("c", str(number), "submit", data)
    stage.write()
    for delivery in stage.actions(act.Deliver):
        stage.result("w", delivery.request.token, [body])
        stage.write()
    stage.wait(100.0, step=10.0)
    words = [*stage.actions(act.Answer), *stage.actions(act.Refuse)]
    waiting = len(stage.bus.waiters)
    assert len({word.request_id for word in words}) == len(words) == 1 + twice - waiting


# -- ids ------------------------------------------------------------------------------------------


def answers(stage: LedgerStage) -> list[tuple[bytes, bytes]]:
    return [(answer.request_id, bytes(answer.body[0])) for answer in stage.actions(act.Answer)]


def test_the_same_id_is_the_same_job_while_it_is_unwritten_pending_done_and_failed(
    stage: LedgerStage,
) -> None:
    stage.job("j")
    stage.job("j", by="d")
    assert stage.nothing()
    stage.write()
    assert len(answers(stage)) == 2
    stage.job("j", by="e")
    assert len(answers(stage)) == 1
    assert len(stage.delivered()) == 1
    stage.result("w", stage.job_request("j").token)
    stage.write()
    stage.job("j", reply="result")
    assert answers(stage) == [(b"submit j", b"done")]
    assert not stage.delivered()
    stage.job("k")
    stage.write()
    stage.fail("w", stage.job_request("k").token)
    stage.write()
    stage.taken.clear()
    stage.job("k", reply="result")
    assert stage.one(act.Refuse).reason is Reason.FAILED
    stage.job("k")
    assert answers(stage) == [(b"submit k", b'{"job":"k"}')]
    assert stage.bus.counters.duplicates == 5


def test_a_job_without_an_id_gets_one(stage: LedgerStage) -> None:
    stage.job(None)
    stage.write()
    ((_, body),) = answers(stage)
    job_id = msgspec.json.decode(body)["job"]
    assert stage.facts(job_id)["state"] == "running"


def test_a_call_without_an_id_that_is_sent_again_is_the_same_job(stage: LedgerStage) -> None:
    """Clients send again what nobody answered; the name of the call is all that tells them apart."""
    for _ in range(2):
        stage.job(None)
    stage.write()
    assert len({body for _, body in answers(stage)}) == 1
    stage.job(None, by="somebody else")
    stage.call("c", "another id", "submit", envelope())
    stage.write()
    assert len({body for _, body in answers(stage)}) == 2
    assert len(stage.delivered()) == 3
    for _ in range(2):
        stage.call("c", "", "submit", envelope())
    stage.write()
    assert len({body for _, body in answers(stage)}) == 2, "without a name they are two"


def test_clients_on_two_ports_may_have_the_same_identity(stage: LedgerStage) -> None:
    for link in (1, 7):
        call = (b"call", b"polybus.submit", [envelope()])
        stage.do(events.Submit((link, b"c"), "voice", *call, JobOptions(reply_requested=True)))
    stage.write()
    assert len({body for _, body in answers(stage)}) == 2
    assert len(stage.delivered()) == 2


def test_a_result_may_be_asked_for_before_and_after_the_end(stage: LedgerStage) -> None:
    stage.job("j")
    stage.write()
    stage.taken.clear()
    for name in ("1", "1", "2"):
        stage.call("c", name, "result", b"j")
    stage.call("d", "1", "result", b"j")
    token = stage.job_request("j").token
    stage.result("w", token, [b"7"])
    assert not stage.actions(act.Answer)
    stage.write()
    assert sorted(answers(stage)) == [(b"1", b"7"), (b"1", b"7"), (b"2", b"7")]
    stage.call("c", "3", "result", b"j")
    assert answers(stage) == [(b"3", b"7")]
    stage.restart()
    stage.call("c", "4", "result", b"j")
    assert answers(stage) == [(b"4", b"7")]


def test_progress_reaches_those_who_wait(stage: LedgerStage) -> None:
    stage.job("j", reply="result")
    stage.call("d", "1", "result", b"j")
    stage.write()
    stage.part("w", stage.job_request("j").token, [b"50%"])
    parts = {(part.client, part.request_id): part.body for part in stage.actions(act.Stream)}
    assert parts == {(client("c"), b"submit j"): [b"50%"], (client("d"), b"1"): [b"50%"]}


def test_a_job_whose_client_waits_survives_it(stage: LedgerStage) -> None:
    stage.job("j", reply="result")
    stage.write()
    stage.do(events.ClientGone(client("c"), withdraw=True))
    assert len(stage.bus.waiters) == 0
    stage.result("w", stage.job_request("j").token)
    stage.write()
    assert not stage.actions(act.Answer)
    assert stage.facts("j")["state"] == "done"


def test_a_client_may_withdraw_its_question_and_not_the_job(stage: LedgerStage) -> None:
    stage.job("j")
    stage.write()
    stage.taken.clear()
    stage.call("c", "1", "result", b"j")
    stage.call("c", "2", "result", b"j")
    stage.do(events.Cancel(client("c"), b"1"))
    stage.result("w", stage.job_request("j").token)
    stage.write()
    assert [name for name, _ in answers(stage)] == [b"2"]


def test_those_who_wait_are_bounded_and_the_oldest_gives_way() -> None:
    stage = LedgerStage(Limits(waiters=3, outstanding_per_client=2))
    stage.job("j", by="x")
    stage.write()
    stage.taken.clear()
    for name in ("a", "b", "c"):
        stage.call(name, "1", "result", b"j")
    assert stage.nothing()
    stage.call("d", "1", "result", b"j")
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.reason) == (client("a"), Reason.TOO_MANY_OUTSTANDING)
    assert len(stage.bus.waiters) == 3
    stage.call("d", "2", "result", b"j")
    stage.taken.clear()
    stage.call("d", "3", "result", b"j")
    refusal = stage.one(act.Refuse)
    assert (refusal.client, refusal.request_id) == (client("d"), b"3"), (
        "one client cannot push out all others"
    )
    stage.job("k", by="d", reply="result")
    assert stage.one(act.Refuse).reason is Reason.TOO_MANY_OUTSTANDING
    assert b"k" not in stage.bus.desk.known, "what cannot be answered is not accepted"
    # A job that nobody waits for is.
    stage.job("l", by="d")
    stage.write()
    assert stage.one(act.Answer).body == [b'{"job":"l"}']


def test_results_are_forgotten_after_their_age(stage: LedgerStage) -> None:
    stage.job("j")
    stage.write()
    stage.result("w", stage.job_request("j").token)
    stage.write()
    stage.taken.clear()
    stage.wait(stage.bus.outcomes_age_s - 60.0, step=600.0)
    assert stage.facts("j")["state"] == "done"
    stage.wait(120.0, step=1.0)
    stage.write()
    stage.call("c", "1", "result", b"j")
    assert stage.one(act.Refuse).reason is Reason.UNKNOWN_JOB
    assert not stage.store.load().outcomes
    stage.job("j")
    stage.write()
    assert len(stage.delivered()) == 1, "the same id is a new job then"


def test_a_revived_job_is_kept_for_its_own_age(stage: LedgerStage) -> None:
    from polybus.core.revival import revive

    stage.job("j")
    stage.write()
    stage.fail("w", stage.job_request("j").token)
    stage.write()
    stage.wait(stage.bus.outcomes_age_s * 0.9, step=600.0)
    revive(stage.bus, stage.dead()[0], stage.now)
    stage.write()
    stage.result("w", stage.job_request("j").token)
    stage.write()
    stage.taken.clear()
    stage.wait(stage.bus.outcomes_age_s * 0.5, step=600.0)
    stage.write()
    assert stage.facts("j")["state"] == "done"
    assert len(stage.store.load().outcomes) == 1
    stage.wait(stage.bus.outcomes_age_s * 0.6, step=600.0)
    stage.write()
    assert not stage.bus.desk.known
    assert not stage.store.load().outcomes


def test_a_job_says_how_it_is(stage: LedgerStage) -> None:
    stage.job("j", retries=2, backoff_s=5, delay_s=10)
    stage.call("c", "x", "job", b"j")
    assert stage.nothing(), "it is not accepted yet"
    stage.write()
    stage.taken.clear()
    assert stage.facts("j")["state"] == "waiting"
    stage.wait(11.0)
    assert stage.facts("j")["state"] == "running"
    stage.fail("w", stage.job_request("j").token)
    facts = stage.facts("j")
    assert (facts["state"], facts["attempt"], facts["retries"]) == ("waiting", 1, 2)
    assert facts["history"][0]["detail"] == "it broke"
    stage.call("c", "y", "cancel", b"j")
    stage.write()
    stage.taken.clear()
    facts = stage.facts("j")
    assert (facts["state"], facts["reason"]) == ("cancelled", "cancelled")
    stage.job("k", service="nobody", ttl_s=1)
    stage.write()
    stage.taken.clear()
    assert stage.facts("k")["state"] == "queued"
    stage.wait(2.0)
    stage.write()
    stage.taken.clear()
    assert stage.facts("k")["state"] == "expired"


def test_a_job_that_failed_says_what_was_tried_when_that_is_on_disk(stage: LedgerStage) -> None:
    stage.job("j", retries=1, backoff_s=1)
    stage.write()
    for _ in range(2):
        stage.fail("w", stage.job_request("j").token)
        stage.wait(2.0)
    stage.taken.clear()
    stage.call("c", "facts", "job", b"j")
    stage.call("c", "result", "result", b"j")
    assert stage.nothing()
    stage.write()
    facts = msgspec.json.decode(stage.one(act.Answer).body[0])
    assert (facts["state"], facts["reason"], facts["detail"]) == ("failed", "failed", "it broke")
    tried = [(attempt["number"], attempt["worker"], attempt["reason"]) for attempt in facts["history"]]
    assert tried == [(1, "w", "failed"), (2, "w", "failed")]
    assert stage.one(act.Refuse).request_id == b"result"


def test_what_became_of_a_job_that_was_not_guaranteed_waits_for_no_disk(stage: LedgerStage) -> None:
    stage.job("done", guarantee=False)
    stage.result("w", stage.job_request("done").token)
    stage.job("failed", guarantee=False)
    stage.fail("w", stage.job_request("failed").token)
    # Something of another job is on its way to the disk.
    stage.job("other")
    stage.taken.clear()
    for name in ("done", "failed"):
        assert stage.facts(name)["state"] == name
        stage.call("c", name, "result", name.encode())
    assert stage.one(act.Answer).body == [b"done"]
    assert stage.one(act.Refuse).reason is Reason.FAILED


@pytest.mark.parametrize("state", ["unwritten", "queued", "running", "waiting", "orphaned"])
def test_a_job_can_be_cancelled_wherever_it_is(stage: LedgerStage, state: str) -> None:
    stage.job("j", service="nobody" if state == "queued" else "echo", retries=1, backoff_s=100)
    if state != "unwritten":
        stage.write()
    if state == "waiting":
        stage.fail("w", stage.job_request("j").token)
    if state == "orphaned":
        stage.restart()
    stage.taken.clear()
    stage.call("c", "1", "cancel", b"j")
    assert not stage.actions(act.Answer), "that it is cancelled is not on disk"
    stage.write()
    assert (b"1", b'{"cancelled":true}') in answers(stage)
    assert stage.facts("j")["state"] == "cancelled"
    assert bool(stage.actions(act.Stop)) == (state == "running")
    assert not stage.store.load().jobs
    assert not stage.dead()
    stage.restart()
    assert stage.facts("j")["state"] == "cancelled"


def test_queue_rules_hold_for_jobs(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(guarantee=True, retries=4, timeout_s=9.0))
    stage.job("j", guarantee=False)
    assert stage.nothing()
    stage.write()
    options = stage.job_request("j").options
    assert (options.guarantee, options.retries, options.timeout_s) == (True, 4, 9.0)
    stage.job("k", retries=1, timeout_s=2)
    stage.write()
    options = stage.job_request("k").options
    assert (options.retries, options.timeout_s) == (1, 2.0)
    stage.do(events.StoreHealth("no disk"))
    stage.taken.clear()
    stage.job("l", guarantee=False)
    assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE


def test_while_the_disk_is_sick_what_needs_none_goes_on(stage: LedgerStage) -> None:
    stage.job("old")
    stage.write()
    stage.result("w", stage.job_request("old").token)
    stage.refuse_writes()
    stage.taken.clear()
    stage.job("j", guarantee=False, reply="result")
    stage.job("k", guarantee=False)
    assert answers(stage) == [(b"submit k", b'{"job":"k"}')]
    stage.result("w", stage.job_request("j").token, [b"7"])
    assert answers(stage) == [(b"submit j", b"7")]
    stage.call("c", "1", "result", b"j")
    assert answers(stage) == [(b"1", b"7")]
    assert stage.facts("j")["state"] == "done"
    stage.call("c", "2", "cancel", b"k")
    assert answers(stage) == [(b"2", b'{"cancelled":true}')]
    stage.call("c", "3", "schedule", b'{"do": "list"}')
    assert answers(stage) == [(b"3", b"[]")]
    stage.call("c", "4", "result", b"old")
    assert not stage.actions(act.Answer), "that it ended is not on disk"


def test_what_could_not_be_written_is_told_to_all_who_wait(stage: LedgerStage) -> None:
    stage.job("j")
    stage.job("j", by="d", reply="result")
    stage.call("e", "1", "result", b"j")
    stage.call("f", "1", "job", b"j")
    stage.refuse_writes()
    refusals = stage.actions(act.Refuse)
    assert {refusal.client for refusal in refusals} == {client(name) for name in "cdef"}
    assert {refusal.reason for refusal in refusals} == {Reason.STORE_UNAVAILABLE}
    assert not stage.bus.desk.known
    assert not len(stage.bus.waiters)
    stage.recover()
    assert stage.nothing()
    stage.job("j")
    stage.write()
    assert answers(stage) == [(b"submit j", b'{"job":"j"}')]


def test_options_of_jobs_reach_the_worker(stage: LedgerStage) -> None:
    stage.job("j", timeout_s=12, retries=2)
    stage.write()
    request = stage.one(act.Deliver).request
    assert request.body == [b"work"]
    assert (request.options.timeout_s, request.options.retries) == (12.0, 2)
    assert request.state is RequestState.DISPATCHED


@pytest.mark.parametrize("is_served", [False, True])
def test_waiting_jobs_count_for_the_length_of_their_queue(is_served: bool) -> None:
    """Also while a worker is free: a delayed job waits all the same."""
    stage = LedgerStage(Limits(queue_length=3))
    if is_served:
        stage.worker("w")
    for number in range(5):
        stage.job(f"j{number}", delay_s=1e6, guarantee=False, body=b"")
    assert len(stage.actions(act.Answer)) == 3
    assert {refusal.reason for refusal in stage.actions(act.Refuse)} == {Reason.QUEUE_FULL}


def test_a_draining_broker_takes_no_jobs_and_still_answers_questions(stage: LedgerStage) -> None:
    stage.job("j", service="nobody")
    stage.submit("c", "running", options=JobOptions())
    stage.write()
    stage.taken.clear()
    stage.do(events.Drain())
    stage.job("k")
    assert stage.one(act.Refuse).reason is Reason.DRAINING
    assert stage.facts("j")["state"] == "waiting"
    assert worker("w") in stage.bus.workers


# -- when something is said, and to whom ----------------------------------------------------------


def test_who_wants_no_reply_gets_its_receipt_alone(stage: LedgerStage) -> None:
    stage.job("j")
    stage.write()
    silent = JobOptions(reply_requested=False)
    calls = [
        ("submit", envelope(id="k")),
        ("submit", envelope(id="k", reply="result")),
        ("submit", b'[{"service": "echo", "id": "l"}]'),
        ("result", b"j"),
        ("job", b"j"),
        ("schedule", b'{"do": "list"}'),
        ("cancel", b"j"),
    ]
    for number, (service, body) in enumerate(calls):
        for receipt in (False, True):
            stage.taken.clear()
            stage.call("c", str(number), service, body, options=silent, receipt=receipt)
            stage.write()
            words = [word for word in stage.taken if isinstance(word, act.Accept | act.Answer | act.Refuse)]
            accept = act.Accept(client("c"), "c", b"polybus." + service.encode(), str(number).encode())
            assert words == [accept][:receipt], (service, receipt)
    assert len(stage.bus.waiters) == 0


def test_who_asks_for_a_result_gets_its_receipt_at_once(stage: LedgerStage) -> None:
    stage.job("j")
    stage.write()
    stage.taken.clear()
    stage.call("c", "1", "result", b"j", receipt=True)
    assert stage.one(act.Accept).request_id == b"1"
    assert stage.nothing()
    stage.result("w", stage.job_request("j").token, [b"7"])
    stage.write()
    assert answers(stage) == [(b"1", b"7")]


def test_an_id_may_come_in_several_frames(stage: LedgerStage) -> None:
    stage.job("some job")
    stage.write()
    stage.taken.clear()
    stage.submit("c", "1", "polybus.cancel", [b"some", b" ", b"job"])
    stage.write()
    assert answers(stage) == [(b"1", b'{"cancelled":true}')]


def test_nothing_is_said_of_a_group_before_it_is_on_disk() -> None:
    stage = LedgerStage()
    stage.call("c", "1", "submit", b'{"group": [{"service": "a"}], "id": "g"}', receipt=True)
    stage.call("d", "2", "job", b"g")
    stage.call("e", "3", "submit", b'{"group": [{"service": "a"}], "id": "g"}')
    assert stage.nothing()
    stage.write()
    assert stage.one(act.Accept).request_id == b"1"
    facts = b'{"job":"g","state":"running","group":1,"missing":1}'
    assert answers(stage) == [(b"1", b'{"job":"g"}'), (b"2", facts), (b"3", b'{"job":"g"}')]
    assert stage.bus.counters.duplicates == 1
    # It is on disk, whatever else is not.
    stage.job("other", service="a")
    stage.call("d", "4", "job", b"g")
    assert answers(stage) == [(b"4", facts)]


def test_if_a_group_cannot_be_written_all_who_asked_are_told() -> None:
    stage = LedgerStage()
    stage.call("c", "1", "submit", b'{"group": [{"service": "a"}], "id": "g"}', receipt=True)
    stage.call("d", "2", "job", b"g")
    stage.refuse_writes("the disk is full")
    assert {(word.client, word.request_id, word.reason) for word in stage.actions(act.Refuse)} == {
        (client("c"), b"1", Reason.STORE_UNAVAILABLE),
        (client("d"), b"2", Reason.STORE_UNAVAILABLE),
    }
    assert stage.nothing()
    # It would not be accepted now; one without a guarantee is.
    stage.group("g", {"service": "a"})
    assert stage.one(act.Refuse).reason is Reason.STORE_UNAVAILABLE
    assert (stage.bus.groups, stage.bus.desk.known) == ({}, {})
    stage.group("g", {"service": "a", "guarantee": False})
    assert answers(stage) == [(b"submit g", b'{"job":"g"}')]


def test_a_group_without_a_guarantee_waits_for_nothing_on_disk() -> None:
    stage = LedgerStage()
    stage.job("other")
    stage.group("g", {"service": "a", "guarantee": False})
    assert answers(stage) == [(b"submit g", b'{"job":"g"}')]


def test_a_group_may_have_as_many_members_as_the_limit_says() -> None:
    stage = LedgerStage(Limits(group_size=2))
    stage.group("g", {"service": "a"}, {"service": "b"})
    stage.write()
    assert answers(stage) == [(b"submit g", b'{"job":"g"}')]


def test_how_old_a_job_is_in_milliseconds(stage: LedgerStage) -> None:
    stage.job("j")
    stage.write()
    stage.taken.clear()
    stage.now += 1.23456
    assert stage.facts("j")["age_s"] == 1.235


def test_a_job_of_a_service_whose_name_is_no_text_is_told_all_the_same() -> None:
    stage = LedgerStage()
    stage.do(events.WorkerUp(worker("w"), "w", ((b"s\xff", 0),), NEVER_DEAD))
    schedule = (None, False, "k", b"s\xff", b"work", JobOptions(reply_requested=False, guarantee=True))
    stage.do(events.Schedule(client("c"), "c", b"1", *schedule, interval_s=60.0))
    stage.write()
    stage.wait(1.0)
    stage.write()
    (job_id,) = stage.bus.desk.known
    assert stage.facts(job_id.decode())["service"] == "s\ufffd"
    stage.result("w", stage.job_request(job_id.decode()).token)
    stage.write()
    assert stage.facts(job_id.decode()) == {"job": job_id.decode(), "service": "s\ufffd", "state": "done"}


def test_a_job_gets_an_id_where_sha1_is_forbidden_for_security(
    stage: LedgerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_in_fips_mode(data: bytes, *, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return sha1(data, usedforsecurity=False)

    monkeypatch.setattr(desk, "sha1", as_in_fips_mode)
    stage.job(None)
    stage.write()
    assert len(stage.delivered()) == 1
