"""EBUS on the real core: frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polybus.core import events
from polybus.core.actions import Refuse
from polybus.core.model import JobOptions, Limits, Reason
from polybus.dialects.ebus import ClientVoice, Ebus
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from polybus.wire.ebus_bodies import pack_bson, unpack_bson
from support.exchange import Exchange

FRONT, BACK = 1, 2
C, W = b"EBC01", b"EBW01"


def broker(limits: Limits | None = None, **settings: Any) -> Exchange:
    ex = Exchange(limits)
    ebus = Ebus(ex.bus, **settings)
    for link in (FRONT, BACK):
        ex.listen(link, RouterEar(ex.bus, "ebus", ebus.tags))
    return ex


def ready(ex: Exchange, name: bytes = b"w", service: bytes = b"echo", link: int = BACK) -> None:
    ex.send(link, name, W, b"READY", b"null", service)


def ask(ex: Exchange, request_id: bytes = b"id-1", body: bytes = b"data", client: bytes = b"c") -> None:
    ex.send(FRONT, client, b"", C, b"REQ", b"echo", request_id, body)


def order(ex: Exchange, worker: bytes = b"w") -> tuple[bytes, list[Any]]:
    """The token and the frames of the one order that a public worker got."""
    frames = ex.one(BACK, worker)
    return frames[2], frames


def own(ex: Exchange, name: bytes = b"w", credit: bytes = b"5") -> None:
    """A worker of this project, which names its credit."""
    ex.send(BACK, name, W, b"READY", b"", b"echo", credit)


# -- a request and its answer -------------------------------------------------------------------


@pytest.mark.conforms("EBUS-1")
@pytest.mark.conforms("EBUS-2")
@pytest.mark.conforms("EBUS-12")
@pytest.mark.conforms("EBUS-18")
@pytest.mark.conforms("EBUS-32", "EBUS-33")
def test_a_request_goes_to_a_worker_of_its_service_and_the_reply_comes_back() -> None:
    ex = broker()
    ready(ex)
    ready(ex, b"other", b"other")
    ask(ex)
    token, frames = order(ex)
    assert frames == [C, b"REQ", token, b"data", b"300000"]
    assert ex.got(BACK, b"other") == []
    ex.send(BACK, b"w", W, b"REPLY", token, b"answer")
    # The client put an empty frame first, the worker did not: each gets what it sent.
    assert ex.one(FRONT, b"c") == [b"", W, b"REPLY", b"id-1", b"answer"]


@pytest.mark.parametrize(("client_link", "worker_link"), [(FRONT, FRONT), (BACK, FRONT), (BACK, BACK)])
def test_either_socket_takes_either_role(client_link: int, worker_link: int) -> None:
    ex = broker()
    ex.send(worker_link, b"w", b"", W, b"READY", b"", b"echo")
    ex.send(client_link, b"c", C, b"REQUEST", b"echo", b"id-1", b"x")
    token = ex.one(worker_link, b"w")[3]
    ex.send(worker_link, b"w", b"", W, b"REPLY", token)
    assert ex.one(client_link, b"c") == [W, b"REPLY", b"id-1"]


@pytest.mark.conforms("EBUS-8")
def test_two_clients_may_use_the_same_id() -> None:
    ex = broker()
    ready(ex)
    ask(ex, client=b"c1", body=b"1")
    ask(ex, client=b"c2", body=b"2")
    first, second = (frames[2] for frames in ex.got(BACK, b"w"))
    assert first != second
    ex.send(BACK, b"w", W, b"REPLY", second, b"two")
    assert ex.one(FRONT, b"c2")[-2:] == [b"id-1", b"two"]
    assert ex.got(FRONT, b"c1") == []


@pytest.mark.conforms("EBUS-11")
@pytest.mark.conforms("EBUS-15")
@pytest.mark.conforms("EBUS-31")
def test_a_rejection_reaches_the_client_once_and_is_not_tried_again() -> None:
    ex = broker()
    ready(ex)
    ready(ex, b"w2")
    ask(ex)
    token, _ = order(ex)
    ex.send(BACK, b"w", W, b"REJECT", token, b"no")
    assert ex.one(FRONT, b"c") == [b"", W, b"REJECT", b"id-1", b"no"]
    ex.wait(1)
    assert [frames for frames in ex.got(BACK, b"w2") if frames[1] == b"REQ"] == []
    # Asked again, the cached rejection is a rejection still.
    ask(ex)
    assert ex.one(FRONT, b"c") == [b"", W, b"REJECT", b"id-1", b"no"]


def test_a_rejection_without_data_is_not_taken_for_an_expiry() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    token, _ = order(ex)
    ex.send(BACK, b"w", W, b"REJECT", token)
    assert ex.one(FRONT, b"c") == [b"", W, b"REJECT", b"id-1", b"rejected"]


def test_the_documents_bare_reject_means_the_oldest_request() -> None:
    ex = broker()
    ready(ex)
    ask(ex, b"id-1")
    ask(ex, b"id-2")
    ex.send(BACK, b"w", W, b"REJECT")
    assert ex.one(FRONT, b"c")[2:4] == [b"REJECT", b"id-1"]


def test_an_error_object_in_a_reply_is_an_answer() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    token, _ = order(ex)
    ex.send(BACK, b"w", W, b"REPLY", token, b'{"error": "none"}')
    assert ex.one(FRONT, b"c") == [b"", W, b"REPLY", b"id-1", b'{"error": "none"}']


@pytest.mark.conforms("EBUS-13")
def test_a_resent_request_runs_once_and_is_answered_from_the_cache() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    ask(ex)
    token, _ = order(ex)
    ex.send(BACK, b"w", W, b"REPLY", token, b"answer")
    assert ex.one(FRONT, b"c")[-1] == b"answer"
    ask(ex)
    assert ex.one(FRONT, b"c") == [b"", W, b"REPLY", b"id-1", b"answer"]
    assert ex.got(BACK, b"w") == []


@pytest.mark.conforms("EBUS-14")
def test_expiry_is_a_reject_without_data_and_the_worker_is_told() -> None:
    ex = broker(expiry_s=2)
    ready(ex)
    ask(ex)
    token, frames = order(ex)
    assert frames[-1] == b"2000"
    for _ in range(5):
        ex.wait(0.45)
        ex.send(BACK, b"w", W, b"HEARTBEAT")
    assert ex.one(FRONT, b"c") == [b"", W, b"REJECT", b"id-1"]
    assert [C, b"CANCEL", token] in ex.got(BACK, b"w")


@pytest.mark.conforms("EBUS-14")
def test_a_client_says_when_its_request_is_stale() -> None:
    ex = broker()
    ex.send(FRONT, b"c", C, b"REQ", b"echo", b"id-1", b"x", b"1500")
    ex.wait(1)
    ready(ex)
    # What is left when the worker gets it.
    assert int(ex.one(BACK, b"w")[-1]) == pytest.approx(500, abs=2)
    ex.wait(0.6)
    assert ex.one(FRONT, b"c") == [W, b"REJECT", b"id-1"]


def test_a_stale_time_of_zero_is_no_limit_of_the_clients_own() -> None:
    ex = broker()
    ready(ex)
    ex.send(FRONT, b"c", C, b"REQ", b"echo", b"id-1", b"x", b"0")
    assert ex.one(BACK, b"w")[-1] == b"300000"


def test_a_job_that_never_expires_has_no_stale_time_and_one_with_a_timeout_has_it() -> None:
    ex = broker()
    own(ex)
    job = events.Submit((9, b"x"), ClientVoice([]), b"1", b"echo", [b"a"], ttl_s=float("inf"))
    ex.handle(job)
    assert len(ex.one(BACK, b"w")) == 5
    options = JobOptions(timeout_s=7)
    ex.handle(msgspec.structs.replace(job, request_id=b"2", options=options))
    assert ex.one(BACK, b"w")[-1] == b"7000"


def test_a_public_worker_is_always_told_when_nobody_waits_any_more() -> None:
    ex = broker()
    ready(ex)
    # Without a number it would refuse to answer after three seconds, with a time limit after that.
    job = events.Submit((9, b"x"), ClientVoice([]), b"1", b"echo", [b"a"], ttl_s=float("inf"))
    ex.handle(msgspec.structs.replace(job, options=JobOptions(timeout_s=7)))
    assert ex.one(BACK, b"w")[-1] == b"2147483648"


@pytest.mark.conforms("EBUS-16")
def test_a_reply_for_a_request_of_another_peer_is_dropped() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    token, _ = order(ex)
    ready(ex, b"w2")
    ex.send(BACK, b"w2", W, b"REPLY", token, b"stolen")
    ex.send(BACK, b"nobody", W, b"REPLY", token, b"stolen")
    ex.send(BACK, b"w", W, b"REPLY", b"unknown", b"?")
    assert ex.got(FRONT, b"c") == []
    assert ex.bus.counters.late == 3
    ex.send(BACK, b"w", W, b"REPLY", token, b"mine")
    assert ex.one(FRONT, b"c")[-1] == b"mine"


def test_a_client_cancels() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    token, _ = order(ex)
    ex.send(FRONT, b"stranger", b"", C, b"CANCEL", b"echo", b"id-1")
    assert ex.got(BACK, b"w") == []
    ex.send(FRONT, b"c", b"", C, b"CANCEL", b"echo", b"id-1")
    assert ex.one(BACK, b"w") == [C, b"CANCEL", token]
    assert ex.one(FRONT, b"c")[2:4] == [b"REJECT", b"id-1"]


def test_a_client_that_rejects_withdraws_what_it_asked() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    token, _ = order(ex)
    ex.send(FRONT, b"c", b"", C, b"REJECT", b"other", b"no request with other")
    ex.send(FRONT, b"c", b"", C, b"REJECT")
    assert ex.got(BACK, b"w") == []
    ex.send(FRONT, b"c", b"", C, b"REJECT", b"id-1", b"no request with id-1")
    assert ex.one(BACK, b"w") == [C, b"CANCEL", token]
    assert ex.bus.counters.invalid == 0


@pytest.mark.parametrize("lead", [[], [b""]], ids=["upstream", "empty frame first"])
def test_a_cancel_has_the_framing_of_its_worker(lead: list[bytes]) -> None:
    ex = broker()
    ex.send(BACK, b"w", *lead, W, b"READY", b"null", b"echo")
    ask(ex)
    token = ex.one(BACK, b"w")[len(lead) + 2]
    ex.send(FRONT, b"c", b"", C, b"CANCEL", b"echo", b"id-1")
    assert ex.one(BACK, b"w") == [*lead, C, b"CANCEL", token]


def test_a_public_worker_forgets_what_is_cancelled_so_its_slot_is_free_at_once() -> None:
    ex = broker(worker_credit=1)
    ready(ex)
    ask(ex, b"id-1")
    ask(ex, b"id-2")
    first, _ = order(ex)
    ex.send(FRONT, b"c", b"", C, b"CANCEL", b"echo", b"id-1")
    cancel, second = ex.got(BACK, b"w")
    assert cancel == [C, b"CANCEL", first]
    # Should it answer all the same, that is late and frees nothing.
    ask(ex, b"id-3")
    ex.send(BACK, b"w", W, b"REPLY", first, b"late")
    assert ex.got(BACK, b"w") == []
    assert ex.bus.counters.late == 1
    ex.send(BACK, b"w", W, b"REPLY", second[2], b"answer")
    assert ex.one(BACK, b"w")[1] == b"REQ"


def test_a_public_worker_forgets_what_is_stale() -> None:
    ex = broker(worker_credit=1)
    ready(ex)
    for n in range(3):
        ex.send(FRONT, b"c", C, b"REQ", b"echo", b"id-%d" % n, b"x", b"300")
        assert ex.got(BACK, b"w")[0][1] == b"REQ"
        ex.wait(0.4)
        ex.send(BACK, b"w", W, b"HEARTBEAT")
        assert ex.one(BACK, b"w")[1] == b"CANCEL"
        assert ex.one(FRONT, b"c") == [W, b"REJECT", b"id-%d" % n]


def test_other_workers_keep_the_slot_until_they_answer() -> None:
    ex = broker()
    own(ex, credit=b"1")
    ask(ex, b"id-1")
    ask(ex, b"id-2")
    token = ex.one(BACK, b"w")[3]
    ex.send(FRONT, b"c", b"", C, b"CANCEL", b"echo", b"id-1")
    assert ex.one(BACK, b"w") == [C, b"CANCEL", token]
    ex.send(BACK, b"w", W, b"REJECT", token, b"stopped")
    assert ex.one(BACK, b"w")[1] == b"REQUEST"


LIMITED = b'{"service": "echo", "id": "j", "timeout_s": 1, "retries": 2, "backoff_s": 0.1}\nwork'


@pytest.mark.parametrize("kind", ["public", "own", "strict"])
def test_who_gets_the_retry_of_a_job_that_it_may_still_be_busy_with(kind: str) -> None:
    """Those that were told to stop do; a strict broker has no word for that, so its worker does not."""
    ex = broker(Limits(timeout_grace_s=0.1), strict=kind == "strict")
    if kind == "own":
        own(ex)
    else:
        ready(ex)
    ex.send(FRONT, b"c", C, b"REQ", b"polybus.submit", b"id-1", LIMITED)

    def words() -> list[bytes]:
        return [frames[frames.index(W if W in frames else C) + 1] for frames in ex.got(BACK, b"w")]

    assert words() in ([b"REQ"], [b"REQUEST"])
    for _ in range(6):
        ex.wait(0.25)
        ex.send(BACK, b"w", W, b"HEARTBEAT")
    heard = [word for word in words() if word != b"PING"]
    if kind == "strict":
        assert heard == []
    else:
        assert heard == [b"CANCEL", b"REQ" if kind == "public" else b"REQUEST"]


def test_an_answer_of_a_public_worker_that_crosses_the_cancel_counts() -> None:
    ex = broker(Limits(timeout_grace_s=0.1))
    ready(ex)
    job = LIMITED.replace(b'"backoff_s": 0.1', b'"backoff_s": 5, "reply": "result"')
    ex.send(FRONT, b"c", C, b"REQ", b"polybus.submit", b"id-1", job)
    token, _ = order(ex)
    for _ in range(6):
        ex.wait(0.25)
        ex.send(BACK, b"w", W, b"HEARTBEAT")
    assert [frames[1] for frames in ex.got(BACK, b"w") if frames[1] != b"PING"] == [b"CANCEL"]
    ex.send(BACK, b"w", W, b"REPLY", token, b"crossing")
    assert ex.one(FRONT, b"c") == [W, b"REPLY", b"id-1", b"crossing"]
    assert ex.bus.counters.late == 0


def test_a_client_that_disconnects_gets_nothing_more_and_its_requests_are_withdrawn() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    token, _ = order(ex)
    ex.send(FRONT, b"c", b"", C, b"DISCONNECT")
    assert ex.one(BACK, b"w") == [C, b"CANCEL", token]
    ex.send(BACK, b"w", W, b"REPLY", token, b"late")
    assert ex.got(FRONT, b"c") == []
    assert ex.bus.counters.late == 1
    ex.send(FRONT, b"nobody", b"", C, b"DISCONNECT")


# -- who is there -------------------------------------------------------------------------------


@pytest.mark.conforms("EBUS-7")
@pytest.mark.conforms("EBUS-28")
def test_ping_is_answered_with_heartbeat() -> None:
    ex = broker()
    ready(ex)
    ex.send(BACK, b"w", W, b"PING")
    assert ex.one(BACK, b"w") == [W, b"HEARTBEAT"]
    ex.send(FRONT, b"c", b"", C, b"PING")
    assert ex.one(FRONT, b"c") == [b"", W, b"HEARTBEAT"]


@pytest.mark.conforms("EBUS-6")
@pytest.mark.conforms("EBUS-29")
def test_a_silent_worker_is_pinged_and_a_talking_one_is_not() -> None:
    ex = broker()
    ready(ex)
    for _ in range(10):
        ex.wait(0.4)
        ex.send(BACK, b"w", W, b"HEARTBEAT")
    assert ex.got(BACK, b"w") == []
    ex.wait(1.2)
    pings = ex.got(BACK, b"w")
    assert pings
    assert all(frames == [W, b"PING"] for frames in pings)


@pytest.mark.conforms("EBUS-10")
def test_silence_ends_the_conversation_and_the_work_goes_to_another() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    order(ex)
    ex.wait(1)
    ready(ex, b"w2")
    ex.got(BACK, b"w2")
    ex.wait(1.7)
    # It may only be busy, and is not told to leave.
    assert not [frames for frames in ex.got(BACK, b"w") if b"DISCONNECT" in frames]
    request = next(frames for frames in ex.got(BACK, b"w2") if frames[1] == b"REQ")
    ex.send(BACK, b"w2", W, b"REPLY", request[2], b"by the second")
    assert ex.one(FRONT, b"c")[-1] == b"by the second"


@pytest.mark.conforms("EBUS-5")
@pytest.mark.parametrize(
    "message",
    [
        (W, b"HEARTBEAT"),
        (W, b"PING"),
        (W, b"REPLY", b"unknown"),
        (W, b"REJECT", b"unknown"),
        (W, b"READY", b"", b"another"),
        (C, b"HEARTBEAT"),
        (C, b"REQ", b"nobody", b"id-1"),
        (C, b"SERVICES"),
    ],
)
def test_any_valid_message_is_a_heartbeat(message: tuple[bytes, ...]) -> None:
    ex = broker()
    ready(ex)
    for _ in range(4):
        ex.wait(2)
        ex.send(BACK, b"w", *message)
    assert (BACK, b"w") in ex.bus.workers


@pytest.mark.conforms("EBUS-9", "EBUS-30")
@pytest.mark.parametrize("lead", [[], [b""]], ids=["upstream", "empty frame first"])
@pytest.mark.parametrize("word", [b"HEARTBEAT", b"PING"])
def test_an_unknown_worker_is_told_to_begin_anew(word: bytes, lead: list[bytes]) -> None:
    ex = broker()
    ex.send(BACK, b"w", *lead, W, word)
    assert ex.one(BACK, b"w") == [*lead, W, b"DISCONNECT"]
    # It may come back at once.
    ready(ex)
    ask(ex)
    assert ex.one(BACK, b"w")[1] == b"REQ"


@pytest.mark.conforms("EBUS-9")
def test_a_worker_that_disconnects_gives_its_work_back() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    order(ex)
    ready(ex, b"w2")
    ex.send(BACK, b"w", W, b"DISCONNECT", b"echo", b"why")
    assert ex.got(BACK, b"w") == []
    assert ex.one(BACK, b"w2")[1] == b"REQ"


# -- workers ------------------------------------------------------------------------------------


def test_a_worker_offers_several_services_one_by_one() -> None:
    ex = broker()
    ready(ex, service=b"echo")
    ask(ex)
    token, _ = order(ex)
    ex.send(FRONT, b"c", C, b"REQ", b"sum", b"id-2", b"1 2")
    ready(ex, service=b"sum")
    # What it held is still its own, what waited for the new service comes, and now it is told which is meant.
    assert ex.one(BACK, b"w")[1:3] == [b"REQUEST", b"sum"]
    ex.send(BACK, b"w", W, b"REPLY", token, b"answer")
    assert ex.one(FRONT, b"c")[-1] == b"answer"


def test_the_same_service_again_is_a_new_conversation() -> None:
    ex = broker()
    ready(ex)
    ask(ex)
    first, _ = order(ex)
    ready(ex)
    again, _ = order(ex)
    assert again == first
    assert len(ex.bus.workers) == 1


def test_one_service_too_many_ends_the_conversation() -> None:
    ex = broker(Limits(services=1))
    ready(ex)
    ready(ex, service=b"sum")
    assert ex.one(BACK, b"w") == [W, b"DISCONNECT"]
    assert not ex.bus.workers


def test_credit_is_what_the_worker_names_or_the_setting() -> None:
    ex = broker(worker_credit=3)
    ready(ex)
    for n in range(5):
        ask(ex, b"%d" % n)
    assert len(ex.got(BACK, b"w")) == 3
    ex.send(BACK, b"w2", W, b"READY", b"", b"echo", b"1")
    assert len(ex.got(BACK, b"w2")) == 1


@pytest.mark.conforms("EBUS-26")
def test_a_worker_is_a_client_on_the_same_socket() -> None:
    ex = broker()
    ready(ex)
    ready(ex, b"w2", b"sum")
    ex.send(BACK, b"w", C, b"REQ", b"sum", b"id-1", b"1 2")
    ex.send(BACK, b"w2", W, b"REPLY", order(ex, b"w2")[0], b"3")
    assert ex.one(BACK, b"w") == [W, b"REPLY", b"id-1", b"3"]


def test_a_worker_of_the_documents_form_gets_its_word() -> None:
    ex = broker()
    ex.send(BACK, b"w", b"", W, b"READY", b"echo")
    ask(ex)
    assert ex.one(BACK, b"w")[:4] == [b"", C, b"REQUEST", b"echo"]


def test_a_worker_that_names_its_credit_hears_the_service() -> None:
    ex = broker()
    own(ex, credit=b"1")
    ask(ex)
    ask(ex, b"id-2")
    frames = ex.one(BACK, b"w")
    assert frames == [C, b"REQUEST", b"echo", frames[3], b"data", b"300000"]


@pytest.mark.conforms("EBUS-20", "EBUS-21", "EBUS-22", "EBUS-23", "EBUS-24", "EBUS-25")
def test_strict_sends_the_documents_tables_and_nothing_else() -> None:
    ex = broker(strict=True, worker_credit=1)
    ready(ex)
    ex.send(BACK, b"w", W, b"PING")
    assert ex.one(BACK, b"w") == [b"", W, b"HEARTBEAT"]
    ex.send(FRONT, b"c", C, b"REQ", b"echo", b"id-1", b"data", b"5000")
    *head, token, body = ex.one(BACK, b"w")
    assert (head, body) == ([b"", C, b"REQUEST", b"echo"], b"data")
    ex.send(FRONT, b"c", C, b"CANCEL", b"echo", b"id-1")
    assert ex.one(FRONT, b"c") == [b"", W, b"REJECT"]
    # The worker is not told, so its slot stays taken until it answers.
    ex.send(FRONT, b"c", C, b"REQ", b"echo", b"id-2")
    assert ex.got(BACK, b"w") == []
    ex.send(BACK, b"w", W, b"REPLY", token, b"in vain")
    *head, token = ex.one(BACK, b"w")
    assert head == [b"", C, b"REQUEST", b"echo"]
    ex.send(BACK, b"w", W, b"REPLY", token, b"answer")
    assert ex.one(FRONT, b"c") == [b"", W, b"REPLY", b"id-2", b"answer"]
    ex.wait(0.6)
    assert ex.got(BACK, b"w")[0] == [b"", W, b"PING"]
    ex.send(BACK, b"x", W, b"HEARTBEAT")
    assert ex.one(BACK, b"x") == [b"", W, b"DISCONNECT"]


# -- questions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strict", "read"),
    [
        pytest.param(False, unpack_bson, marks=pytest.mark.conforms("EBUS-34")),
        pytest.param(True, msgspec.json.decode, marks=pytest.mark.conforms("EBUS-27")),
    ],
)
@pytest.mark.parametrize("query", [b"SERVICES", b"WORKERS"])
def test_services_and_workers(query: bytes, strict: bool, read: Callable[[bytes], Any]) -> None:
    ex = broker(strict=strict)
    ready(ex, b"w1")
    ready(ex, b"w2")
    ready(ex, b"w2", b"sum")
    ask(ex)
    expected = {
        b"SERVICES": ["echo", "sum"],
        b"WORKERS": [
            {"id": "w1", "service": "echo", "load": 1},
            {"id": "w2", "service": "echo", "load": 0},
            {"id": "w2", "service": "sum", "load": 0},
        ],
    }[query]
    for asked, request_id in (
        ((query,), b""),
        ((query, b"q-1"), b"q-1"),
        ((query, b"", b"q-1"), b"q-1"),
        ((b"REQ", query, b"q-2"), b"q-2"),
        ((b"REQUEST", query, b"q-3", b""), b"q-3"),
    ):
        ex.send(FRONT, b"c", b"", C, *asked)
        frames = ex.one(FRONT, b"c")
        assert frames[:4] == [b"", W, query, request_id]
        assert read(frames[4]) == expected


@pytest.mark.conforms("EBUS-34")
def test_services_and_workers_of_every_dialect_and_none() -> None:
    ex = broker()
    ex.send(FRONT, b"c", C, b"SERVICES")
    assert ex.one(FRONT, b"c") == [W, b"SERVICES", b"", pack_bson([])]
    mdr = Mdr(ex.bus, 2.5, 3)
    ex.listen(3, RouterEar(ex.bus, "majordomo", mdr.tags))
    ex.send(3, b"m", b"MDRW01", b"\x01", b"sum")
    ex.send(FRONT, b"c", C, b"SERVICES")
    assert ex.one(FRONT, b"c")[3] == pack_bson(["sum"])
    ex.send(FRONT, b"c", C, b"WORKERS")
    assert ex.one(FRONT, b"c")[3] == pack_bson([{"id": "m", "service": "sum", "load": 0}])


# -- what cannot be read ------------------------------------------------------------------------


@pytest.mark.conforms("EBUS-4")
@pytest.mark.parametrize(
    "frames",
    [
        (W, b"REQ", b"echo", b"id-1"),
        (C, b"READY", b"", b"echo"),
        (C, b"REPLY", b"id-1", b"x"),
        (b"EBX01", b"PING"),
        (W,),
        (),
        (W, b"READY", b"", b""),
        (C, b"REQ", b"echo", b""),
        (C, b"CANCEL", b"echo"),
    ],
)
def test_bad_messages_are_counted_and_dropped(frames: tuple[bytes, ...]) -> None:
    ex = broker()
    ex.send(BACK, b"p", *frames)
    assert ex.bus.counters.invalid == 1
    assert ex.got(BACK, b"p") == []
    assert not ex.bus.workers
    assert not ex.bus.requests


@pytest.mark.parametrize(
    "frames",
    [(b"\n", b"id-1", b"x"), (b"echo", b"id-1", b"x", b"soon"), (b"echo", b"id-1", b"x", b"1", b"!")],
)
def test_a_bad_request_with_an_id_is_rejected(frames: tuple[bytes, ...]) -> None:
    ex = broker()
    ex.send(FRONT, b"c", b"", C, b"REQ", *frames)
    message = ex.one(FRONT, b"c")
    assert message[:4] == [b"", W, b"REJECT", b"id-1"]
    assert message[4].startswith(b"rejected: ")
    assert ex.bus.counters.invalid == 1


def test_a_body_of_several_frames_does_not_fit() -> None:
    ex = broker()
    ready(ex)
    ex.handle(events.Submit((FRONT, b"c"), ClientVoice([]), b"1", b"echo", [b"a", b"b"]))
    assert ex.got(BACK, b"w") == []
    frames = ex.one(FRONT, b"c")
    assert frames[:3] == [W, b"REJECT", b"1"]
    assert b"2" in frames[3]


def test_only_an_expiry_is_without_words() -> None:
    voice = ClientVoice([])
    for reason in Reason:
        frames = voice.refuse(Refuse((1, b"c"), voice, b"echo", b"id", reason, "", []))
        assert len(frames) == (4 if reason is Reason.EXPIRED else 5)


@pytest.mark.parametrize("ttl_ms", [1, 999, 1500, 2**31])
def test_a_stale_time_reaches_the_worker_to_the_millisecond(ttl_ms: int) -> None:
    ex = broker()
    ready(ex)
    ex.send(FRONT, b"c", C, b"REQ", b"echo", b"id-1", b"x", b"%d" % ttl_ms)
    assert ex.one(BACK, b"w")[-1] == b"%d" % ttl_ms
    (request,) = ex.bus.requests.values()
    assert request.expires_at - request.accepted_at == pytest.approx(ttl_ms / 1000)
