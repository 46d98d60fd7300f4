"""EBUS clients and workers, frame by frame, on a clock of our own."""

from __future__ import annotations

import msgspec
import pytest

from polybus.client.sessions.ebus import EbusClient, EbusWorker
from polybus.client.sessions.port import Cancelled, Done, Failed, Options, Restart, Work
from polybus.errors import LocalProtocolError
from polybus.wire.ebus_bodies import pack_bson

BEAT_S = 0.5
# Public brokers want an empty frame before what a client says.
CLIENT_PING = [b"", b"EBC01", b"PING"]
WORKER_PING = [b"EBW01", b"PING"]


def client() -> EbusClient:
    session = EbusClient()
    session.request(b"r1", b"echo", [b"a"])
    session.tick(0.0)
    return session


def worker(credit: int = 1) -> EbusWorker:
    session = EbusWorker(b"echo", credit)
    session.hello(0.0)
    return session


# -- clients ----------------------------------------------------------------------------------


@pytest.mark.conforms("EBUS-2", "EBUS-18")
def test_request() -> None:
    session = EbusClient()
    assert session.request(b"r1", b"echo", [b"a"]) == [[b"", b"EBC01", b"REQ", b"echo", b"r1", b"a"]]
    assert session.request(b"r2", b"echo", [b"a"], ttl_s=1.5) == [
        [b"", b"EBC01", b"REQ", b"echo", b"r2", b"a", b"1500"]
    ]
    # Rounded up: the broker is not to give up before its client does.
    assert session.request(b"r3", b"echo", [b"a"], ttl_s=0.0012)[0][-1] == b"2"


def test_requests_that_cannot_be_said() -> None:
    session = EbusClient()
    with pytest.raises(LocalProtocolError, match="one body frame"):
        session.request(b"r1", b"echo", [b"a", b"b"])
    with pytest.raises(LocalProtocolError, match="eMQP"):
        session.request(b"r1", b"echo", [b"a"], options=Options(retries=1))
    assert session.resend() == []


@pytest.mark.conforms("EBUS-12", "EBUS-18", "EBUS-24", "EBUS-32")
@pytest.mark.parametrize("lead", [[], [b""]])
def test_reply(lead: list[bytes]) -> None:
    session = client()
    assert session.receive([*lead, b"EBW01", b"REPLY", b"r1", b"out"], 1.0) == [Done(b"r1", [b"out"])]
    assert session.receive([*lead, b"EBW01", b"REPLY", b"r1", b"out"], 1.0) == []
    assert session.resend() == []


@pytest.mark.conforms("EBUS-27")
@pytest.mark.parametrize("query", [b"SERVICES", b"WORKERS"])
def test_queries_are_put_to_the_broker_itself(query: bytes) -> None:
    session = EbusClient()
    assert session.request(b"r1", query, [b"ignored"]) == [[b"", b"EBC01", query, b"", b"r1"]]
    assert session.receive([b"", b"EBW01", query, b"r2", b"[]"], 1.0) == []
    assert session.receive([b"", b"EBW01", query, b"r1", b"[]"], 1.0) == [Done(b"r1", [b"[]"])]


@pytest.mark.conforms("EBUS-27", "EBUS-34")
@pytest.mark.parametrize("query", [b"SERVICES", b"WORKERS"])
def test_lists_are_read_in_both_forms(query: bytes) -> None:
    entries = [{"id": "w", "service": "žito", "load": 1}] if query == b"WORKERS" else ["echo", "žito"]
    for body in (msgspec.json.encode(entries), pack_bson(entries)):
        session = EbusClient()
        session.request(b"r1", query, [])
        (event,) = session.receive([b"", b"EBW01", query, b"r1", body], 1.0)
        assert event == Done(b"r1", [msgspec.json.encode(entries)])


@pytest.mark.parametrize("body", [b"neither", pack_bson(["echo"])[:-2]])
def test_a_list_that_cannot_be_read_is_a_failure(body: bytes) -> None:
    session = EbusClient()
    session.request(b"r1", b"SERVICES", [])
    (event,) = session.receive([b"", b"EBW01", b"SERVICES", b"r1", body], 1.0)
    assert isinstance(event, Failed)
    assert event.code == "bad_body"


@pytest.mark.conforms("EBUS-23")
def test_the_documents_reject_has_no_id() -> None:
    session = client()
    (event,) = session.receive([b"", b"EBW01", b"REJECT"], 1.0)
    assert event == Failed(b"r1", "rejected", "the broker gave no reason", [])
    assert session.resend() == []
    # With two requests, or none, nobody knows which is meant: it is discarded.
    assert session.receive([b"", b"EBW01", b"REJECT"], 1.0) == []
    session.request(b"r2", b"echo", [b"a"])
    session.request(b"r3", b"echo", [b"a"])
    assert session.receive([b"", b"EBW01", b"REJECT"], 1.0) == []
    assert session.invalid == 2
    assert len(session.resend()) == 2


@pytest.mark.conforms("EBUS-11", "EBUS-15", "EBUS-31")
def test_a_rejected_request_is_dropped_and_not_sent_again() -> None:
    session = client()
    (event,) = session.receive([b"EBW01", b"REJECT", b"r1", b"queue_full: no room"], 1.0)
    assert event == Failed(b"r1", "queue_full", "no room", [b"queue_full: no room"])
    assert session.resend() == []


@pytest.mark.parametrize(
    ("data", "code", "detail"),
    [
        ([b'{"error":"failed","detail":"boom"}'], "failed", "boom"),
        ([b'{"error":"boom at noon"}'], "failed", "boom at noon"),
        ([b"anything"], "anything", ""),
        ([b"No such thing"], "rejected", "No such thing"),
    ],
)
def test_what_a_reject_says(data: list[bytes], code: str, detail: str) -> None:
    (event,) = client().receive([b"EBW01", b"REJECT", b"r1", *data], 1.0)
    assert isinstance(event, Failed)
    assert (event.code, event.detail) == (code, detail)


@pytest.mark.conforms("EBUS-14")
def test_a_reject_without_data_is_an_expiry() -> None:
    (event,) = client().receive([b"EBW01", b"REJECT", b"r1"], 1.0)
    assert isinstance(event, Failed)
    assert event.code == "expired"


@pytest.mark.conforms("EBUS-16")
def test_a_reply_to_somebody_else_is_discarded() -> None:
    session = client()
    assert session.receive([b"EBW01", b"REPLY", b"other", b"out"], 1.0) == []
    assert session.invalid == 1
    assert len(session.resend()) == 1


@pytest.mark.conforms("EBUS-4")
def test_a_client_discards_the_wrong_sender_type() -> None:
    session = client()
    assert session.receive([b"EBC01", b"REPLY", b"r1", b"out"], 1.0) == []
    assert session.invalid == 1


@pytest.mark.conforms("EBUS-8", "EBUS-13")
def test_a_resend_keeps_the_id() -> None:
    session = EbusClient()
    sent = session.request(b"r1", b"echo", [b"a"]) + session.request(b"r2", b"echo", [b"b"])
    assert session.resend() == sent


def test_cancel_tells_the_broker() -> None:
    session = client()
    assert session.cancel(b"r1") == [[b"", b"EBC01", b"CANCEL", b"echo", b"r1"]]
    assert session.cancel(b"r1") == []


@pytest.mark.conforms("EBUS-3", "EBUS-6")
def test_a_client_that_waits_pings_when_it_hears_nothing() -> None:
    session = client()
    assert session.tick(0.4) == []
    assert session.deadline == BEAT_S
    assert session.tick(BEAT_S) == [CLIENT_PING]
    assert session.tick(BEAT_S) == []
    assert session.tick(2 * BEAT_S) == [CLIENT_PING]


def test_a_client_that_waits_for_nothing_is_quiet() -> None:
    session = client()
    session.receive([b"EBW01", b"REPLY", b"r1", b"out"], 1.0)
    assert session.deadline == float("inf")
    assert session.tick(100.0) == []
    # Silence counts from the next request on.
    session.request(b"r2", b"echo", [b"a"])
    assert not session.is_lost(200.0)
    assert session.tick(200.0) == []
    assert not session.is_lost(200.0)


@pytest.mark.conforms("EBUS-5")
def test_any_valid_message_is_a_heartbeat_for_a_client() -> None:
    session = client()
    for i in range(1, 30):
        session.receive([b"EBW01", b"HEARTBEAT"], i * 0.4)
        assert session.tick(i * 0.4) == []
        assert not session.is_lost(i * 0.4)


@pytest.mark.conforms("EBUS-7", "EBUS-21")
def test_a_client_answers_ping_with_heartbeat() -> None:
    session = client()
    assert session.receive([b"", b"EBW01", b"PING"], 1.0) == []
    assert session.release() == [[b"", b"EBC01", b"HEARTBEAT"]]
    assert session.release() == []


@pytest.mark.conforms("EBUS-10")
def test_five_silent_intervals_lose_the_broker() -> None:
    session = client()
    now = 0.0
    while not session.is_lost(now):
        session.tick(now)
        now += 0.1
    assert now == pytest.approx(5 * BEAT_S, abs=0.15)
    session.restarted(now)
    assert not session.is_lost(now)
    assert len(session.resend()) == 1


def test_a_client_that_did_not_look_concludes_nothing() -> None:
    session = client()
    assert not session.is_lost(100.0)
    assert session.tick(100.0) == [CLIENT_PING]
    assert not session.is_lost(100.4)


@pytest.mark.conforms("EBUS-9", "EBUS-22")
def test_disconnect_restarts_a_client() -> None:
    session = client()
    (event,) = session.receive([b"", b"EBW01", b"DISCONNECT"], 1.0)
    assert isinstance(event, Restart)
    assert len(session.resend()) == 1


# -- workers ------------------------------------------------------------------------------------


@pytest.mark.conforms("EBUS-1")
def test_ready_as_public_brokers_know_it() -> None:
    assert EbusWorker(b"echo").hello(0.0) == [[b"EBW01", b"READY", b"", b"echo", b"1"]]
    assert EbusWorker(b"echo", 5).hello(0.0) == [[b"EBW01", b"READY", b"", b"echo", b"5"]]


@pytest.mark.parametrize(
    ("frames", "ttl_s"),
    [
        pytest.param([b"EBC01", b"REQ", b"r1", b"in", b"1500"], 1.5, marks=pytest.mark.conforms("EBUS-33")),
        pytest.param(
            [b"", b"EBC01", b"REQUEST", b"echo", b"r1", b"in"], None, marks=pytest.mark.conforms("EBUS-25")
        ),
        ([b"", b"EBC01", b"REQUEST", b"echo", b"r1", b"in", b"1500"], 1.5),
    ],
    ids=["public", "document", "ours"],
)
def test_work_and_reply(frames: list[bytes], ttl_s: float | None) -> None:
    session = worker()
    (work,) = session.receive(frames, 0.0)
    assert work == Work(b"r1", b"echo", b"r1", [b"in"], ttl_s)
    assert session.reply(b"r1", [b"out"]) == [[b"EBW01", b"REPLY", b"r1", b"out"]]
    assert session.reply(b"r1", [b"out"]) == []


@pytest.mark.conforms("EBUS-31")
def test_failures_are_rejects() -> None:
    session = worker()
    session.receive([b"EBC01", b"REQUEST", b"echo", b"r1", b"in"], 0.0)
    assert session.fail(b"r1", "boom") == [
        [b"EBW01", b"REJECT", b"r1", b'{"error":"failed","detail":"boom"}']
    ]


def test_a_body_of_two_frames_changes_nothing() -> None:
    session = worker()
    session.receive([b"EBC01", b"REQUEST", b"echo", b"r1", b"in"], 0.0)
    with pytest.raises(LocalProtocolError, match="one body frame"):
        session.reply(b"r1", [b"a", b"b"])
    assert session.fail(b"r1", "boom")


@pytest.mark.conforms("EBUS-4")
def test_a_worker_discards_the_wrong_sender_type() -> None:
    session = worker()
    assert session.receive([b"EBW01", b"REQUEST", b"echo", b"r1", b"in"], 0.0) == []
    assert session.receive([b"EBX01", b"PING"], 0.0) == []
    assert session.invalid == 2


def test_cancel_of_what_it_has() -> None:
    session = worker()
    session.receive([b"EBC01", b"REQUEST", b"echo", b"r1", b"in"], 0.0)
    assert session.receive([b"EBC01", b"CANCEL", b"r1"], 0.0) == [Cancelled(b"r1")]
    assert session.receive([b"EBC01", b"CANCEL", b"r2"], 0.0) == []


@pytest.mark.conforms("EBUS-6", "EBUS-20")
def test_a_worker_pings_when_it_hears_nothing() -> None:
    session = worker()
    assert session.tick(0.4) == []
    assert session.tick(0.5) == [WORKER_PING]
    session.receive([b"", b"EBW01", b"HEARTBEAT"], 0.9)
    assert session.tick(1.3) == []
    assert session.tick(1.4) == [WORKER_PING]


@pytest.mark.conforms("EBUS-5", "EBUS-10")
def test_a_silent_broker_is_lost_after_five_intervals() -> None:
    session = worker()
    now = 0.0
    while not session.is_lost(now):
        session.tick(now)
        now += 0.1
    assert now == pytest.approx(5 * BEAT_S, abs=0.15)
    session.receive([b"EBC01", b"REQUEST", b"echo", b"r1", b"in"], now)
    assert not session.is_lost(now)


@pytest.mark.conforms("EBUS-7", "EBUS-21")
@pytest.mark.parametrize("head", [[b"EBC01"], [b"", b"EBW01"]], ids=["public broker", "document"])
def test_a_worker_answers_ping_with_heartbeat(head: list[bytes]) -> None:
    session = worker()
    assert session.receive([*head, b"PING"], 0.0) == []
    assert session.pending() == [[b"EBW01", b"HEARTBEAT"]]


@pytest.mark.conforms("EBUS-9", "EBUS-22")
@pytest.mark.parametrize("head", [[b"EBC01"], [b"", b"EBW01"]], ids=["public broker", "document"])
def test_disconnect_restarts_a_worker(head: list[bytes]) -> None:
    session = worker()
    session.receive([b"EBC01", b"REQUEST", b"echo", b"r1", b"in"], 0.0)
    (event,) = session.receive([*head, b"DISCONNECT"], 1.0)
    assert isinstance(event, Restart)
    session.hello(1.0)
    assert session.reply(b"r1", [b"late"]) == []
    assert session.goodbye() == [[b"EBW01", b"DISCONNECT"]]


@pytest.mark.conforms("EBUS-8", "EBUS-16", "EBUS-26")
def test_a_worker_may_ask_for_services_itself() -> None:
    session = worker()
    asked = session.ask(b"q1", b"other", [b"in"])
    assert asked == [[b"EBC01", b"REQ", b"other", b"q1", b"in"]]
    session.receive([b"EBW01", b"REPLY", b"q2", b"not mine"], 0.0)
    assert session.answers() == []
    # Unanswered, it is asked again in the next conversation, with the same id.
    assert session.hello(1.0)[1:] == asked
    session.receive([b"EBW01", b"REPLY", b"q1", b"out"], 0.0)
    assert session.answers() == [Done(b"q1", [b"out"])]
