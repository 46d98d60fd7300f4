"""eMQP on the real core: frames in, frames out."""

from __future__ import annotations

from hashlib import sha1
from math import inf
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from polybus.core import events
from polybus.core.actions import Dismiss
from polybus.core.ledger import ScheduleEntry, Unscheduled
from polybus.core.model import Limits
from polybus.dialects.emqp import Emqp, RecentClients
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from support.exchange import Exchange

CLIENTS, WORKERS = 1, 2
TAG = b"eMQP/1.0"


def broker(limits: Limits | None = None, watched: bool = False, **settings: Any) -> Exchange:
    ex = Exchange(limits, watched)
    emqp = Emqp(ex.bus, wall=lambda: 1700000000.5, **settings)
    ex.listen(CLIENTS, RouterEar(ex.bus, "emqp", emqp.client_tags))
    ex.listen(WORKERS, RouterEar(ex.bus, "emqp", emqp.worker_tags))
    return ex


def say(ex: Exchange, link: int, peer: bytes, *frames: bytes) -> None:
    ex.send(link, peer, b"", TAG, *frames)


def inform(
    ex: Exchange,
    worker: bytes = b"w",
    queues: bytes = b'[[10, "default"]]',
    slots: int = 1,
    link: int = WORKERS,
) -> None:
    say(ex, link, worker, b"INFORM", b"inform-1", queues, b"worker")
    for n in range(slots):
        say(ex, link, worker, b"READY", b"ready-%d" % n)


def ask(
    ex: Exchange,
    msg_id: bytes = b"job-1",
    headers: bytes = b"reply-requested",
    queue: bytes = b"default",
    body: bytes = b'["run", {}]',
    client: bytes = b"c",
) -> None:
    say(ex, CLIENTS, client, b"REQUEST", msg_id, queue, headers, body)


def orders(ex: Exchange, worker: bytes = b"w") -> list[list[bytes]]:
    return [frames for frames in ex.got(WORKERS, worker) if frames[2] == b"REQUEST"]


def answers(ex: Exchange, client: bytes = b"c") -> list[list[bytes]]:
    """The messages for a client after its receipt, from the command on and without their own ids."""
    return [[frames[2], *frames[4:]] for frames in ex.got(CLIENTS, client)]


# -- a job and its answer -----------------------------------------------------------------------


@pytest.mark.conforms("EMQP-3")
@pytest.mark.conforms("EMQP-6")
@pytest.mark.conforms("EMQP-10")
@pytest.mark.conforms("EMQP-28")
def test_receipt_first_then_the_result() -> None:
    ex = broker()
    inform(ex)
    ex.got(WORKERS, b"w")
    ask(ex)
    receipt = ex.one(CLIENTS, b"c")
    assert receipt[:3] == [b"", TAG, b"REPLY"]
    assert receipt[4:] == [b"job-1"]
    (order,) = orders(ex)
    token = order[3]
    assert order == [b"", TAG, b"REQUEST", token, b"default", b"reply-requested", b'["run", {}]']
    assert token.isascii()
    assert token != b"job-1"
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b'{"value": 3}', token)
    result = ex.one(CLIENTS, b"c")
    assert result[:3] == [b"", TAG, b"REPLY"]
    assert result[4:] == [b'{"value": 3}', b"job-1"]
    # Our own ids are all different and plain text.
    assert receipt[3] != result[3]
    assert receipt[3].isascii()


@pytest.mark.conforms("EMQP-28")
def test_without_reply_requested_the_worker_reports_and_the_client_is_spared() -> None:
    ex = broker()
    inform(ex)
    ask(ex, headers=b"")
    (order,) = orders(ex)
    assert order[5] == b"reply-requested"
    assert answers(ex) == [[b"REPLY", b"job-1"]]
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b'{"value": 3}', order[3])
    assert ex.got(CLIENTS, b"c") == []
    assert ex.bus.counters.replied == 1
    # Sent again, it is not run again: there is the receipt, and still no result.
    ask(ex, headers=b"")
    assert answers(ex) == [[b"REPLY", b"job-1"]]
    assert orders(ex) == []


@pytest.mark.conforms("EMQP-28")
def test_a_job_without_a_result_is_answered_with_true() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    # A worker of a dialect whose answers may have no body frame at all.
    ex.handle(events.Result((WORKERS, b"w"), order[3], []))
    assert answers(ex)[1:] == [[b"REPLY", b"True", b"job-1"]]


@pytest.mark.conforms("EMQP-41")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"", b"True"),
        # What EventMQ's job manager says of a job that returned None is a body like any other.
        (b'{"value": null}', b'{"value": null}'),
        (b"0", b"0"),
        (b"null", b"null"),
    ],
)
def test_an_empty_result_is_true(said: bytes, told: bytes) -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", said, order[3])
    assert answers(ex)[1:] == [[b"REPLY", told, b"job-1"]]
    # Asked again, it is the same.
    ask(ex)
    assert answers(ex)[1:] == [[b"REPLY", told, b"job-1"]]


@pytest.mark.conforms("EMQP-41", "EMQP-43")
def test_a_strict_broker_writes_true_as_the_document_does() -> None:
    ex = broker(strict=True)
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b"", order[3])
    assert ex.got(CLIENTS, b"c") == [[b"", TAG, b"REPLY", b"job-1", b"True"]]


def test_what_a_worker_said_reaches_clients_of_other_dialects_as_it_is() -> None:
    ex = broker()
    ex.listen(3, RouterEar(ex.bus, "majordomo", Mdr(ex.bus).tags))
    inform(ex)
    ex.send(3, b"m", b"", b"MDRC01", b"\x01", b"default", b"id-1", b"x")
    (order,) = orders(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b'{"value": null}', order[3])
    assert ex.one(3, b"m")[-1] == b'{"value": null}'


def test_a_client_of_ours_gets_its_receipt_from_a_strict_broker() -> None:
    ex = broker(strict=True)
    ask(ex, b"job-1", headers=b"guarantee,receipt-requested")
    ask(ex, b"job-2", headers=b"guarantee")
    (ack,) = ex.got(CLIENTS, b"c")
    assert [ack[2], ack[4]] == [b"ACK", b"job-1"]
    # The word is between them and the broker: no worker sees it.
    inform(ex)
    assert orders(ex)[0][5] == b"reply-requested,guarantee"


def test_recent_clients_are_bounded_and_those_that_speak_stay() -> None:
    clients = RecentClients(8)
    for number in range(100):
        clients.note((1, b"busy"), 1)
        clients.note((1, b"%d" % number), 2)
    kept = dict(clients)
    assert len(kept) <= 8
    assert kept[1, b"busy"] == 1
    assert kept[1, b"99"] == 2
    clients.forget((1, b"busy"))
    assert (1, b"busy") not in dict(clients)


def test_the_documents_reply_is_for_the_oldest_job() -> None:
    ex = broker()
    inform(ex, slots=2)
    ask(ex, b"job-1")
    ask(ex, b"job-2")
    ex.got(CLIENTS, b"c")
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b"first")
    assert answers(ex) == [[b"REPLY", b"first", b"job-1"]]


def test_the_documents_reply_is_for_the_job_whose_id_it_has() -> None:
    ex = broker()
    inform(ex, slots=2)
    ask(ex, b"job-1", client=b"c1")
    ask(ex, b"job-2", client=b"c2")
    _, second = orders(ex)
    ex.got(CLIENTS, b"c2")
    say(ex, WORKERS, b"w", b"REPLY", second[3], b"of the second")
    assert [frames[2:] for frames in ex.got(CLIENTS, b"c2")] == [[b"REPLY", ANY, b"of the second", b"job-2"]]
    # It has that one no more: a second answer is late, and nobody else's.
    say(ex, WORKERS, b"w", b"REPLY", second[3], b"again")
    assert ex.bus.counters.late == 1
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b"of the first")
    assert [frames[-2:] for frames in ex.got(CLIENTS, b"c1")][1:] == [[b"of the first", b"job-1"]]


def test_an_error_object_is_a_failure() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b'{"error": "division by zero"}', order[3])
    assert answers(ex)[1:] == [[b"REPLY", b'{"error": "division by zero"}', b"job-1"]]
    assert ex.bus.counters.failed == 1


def test_what_is_refused_is_answered_with_an_error_whether_a_reply_was_requested_or_not() -> None:
    ex = broker(Limits(body_bytes=3))
    ask(ex, headers=b"", body=b"long")
    (answer,) = answers(ex)
    assert answer[2] == b"job-1"
    assert msgspec.json.decode(answer[1])["error"] == "too_large"


@pytest.mark.conforms("EMQP-43")
def test_a_strict_broker_refuses_in_the_documents_form() -> None:
    ex = broker(Limits(body_bytes=3), strict=True)
    ask(ex, body=b"long")
    (frames,) = ex.got(CLIENTS, b"c")
    assert frames[:4] == [b"", TAG, b"REPLY", b"job-1"]
    assert msgspec.json.decode(frames[4])["error"] == "too_large"
    assert len(frames) == 5


def test_late_and_unknown_replies_are_counted() -> None:
    ex = broker()
    inform(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b"x", b"unknown")
    say(ex, WORKERS, b"w", b"REPLY", b"r-1", b"x")
    say(ex, WORKERS, b"stranger", b"REPLY", b"r-1", b"x", b"unknown")
    assert ex.bus.counters.late == 3


def test_jobs_wait_as_long_as_it_takes_unless_told_otherwise() -> None:
    ex = broker()
    ask(ex)
    ex.now += 30 * 24 * 3600
    ex.wait(1)
    inform(ex)
    assert len(orders(ex)) == 1
    ex = broker(expiry_s=5)
    ask(ex)
    ex.wait(6)
    error = answers(ex)[1]
    assert msgspec.json.decode(error[1])["error"] == "expired"
    assert error[2] == b"job-1"


# -- queues -------------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-1")
def test_clients_are_served_in_turn() -> None:
    ex = broker()
    for n in range(3):
        ask(ex, b"a%d" % n, client=b"a", body=b"a%d" % n)
    ask(ex, b"b0", client=b"b", body=b"b0")
    inform(ex, slots=4)
    assert [frames[6] for frames in orders(ex)] == [b"a0", b"b0", b"a1", b"a2"]


@pytest.mark.conforms("EMQP-2")
@pytest.mark.conforms("EMQP-16")
def test_the_heavier_queue_is_served_first() -> None:
    ex = broker()
    for queue in (b"low", b"high", b"low"):
        ask(ex, b"%b-%d" % (queue, len(ex.bus.requests)), queue=queue)
    inform(ex, queues=b'[[10, "low"], [40, "high"]]', slots=3)
    assert [frames[4] for frames in orders(ex)] == [b"high", b"low", b"low"]


@pytest.mark.conforms("EMQP-2")
def test_the_worker_with_the_heavier_weight_gets_the_job() -> None:
    ex = broker()
    inform(ex, b"light", b'[[10, "email"]]')
    inform(ex, b"heavy", b"[40, 'email'], [10, 'default']")
    ask(ex, queue=b"email")
    assert len(orders(ex, b"heavy")) == 1
    assert orders(ex, b"light") == []


@pytest.mark.conforms("EMQP-17")
def test_each_ready_is_one_slot() -> None:
    ex = broker()
    inform(ex, slots=0)
    for n in range(3):
        ask(ex, b"job-%d" % n)
    assert orders(ex) == []
    say(ex, WORKERS, b"w", b"READY", b"r-1")
    (first,) = orders(ex)
    # An answer gives no slot back: only the next READY does.
    say(ex, WORKERS, b"w", b"REPLY", b"r-2", b"x", first[3])
    assert orders(ex) == []
    say(ex, WORKERS, b"w", b"READY", b"r-3")
    say(ex, WORKERS, b"w", b"READY", b"r-4")
    assert len(orders(ex)) == 2


def test_an_unknown_queue_goes_to_default_if_that_has_workers_else_it_waits() -> None:
    ex = broker()
    ask(ex, b"job-1", queue=b"special")
    inform(ex, slots=2)
    assert orders(ex) == []
    ask(ex, b"job-2", queue=b"special")
    (order,) = orders(ex)
    assert order[4] == b"default"
    inform(ex, b"s", b'[[10, "special"]]')
    assert len(orders(ex, b"s")) == 1


def test_a_worker_without_queues_serves_the_default_one() -> None:
    ex = broker(default_queue=b"jobs")
    inform(ex, queues=b"")
    ask(ex, queue=b"jobs")
    assert len(orders(ex)) == 1
    ((service, weight),) = ex.bus.workers[WORKERS, b"w"].offers.items()
    assert (service.name, weight) == (b"jobs", 10)


# -- headers ------------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-26")
@pytest.mark.conforms("EMQP-27")
@pytest.mark.conforms("EMQP-29")
@pytest.mark.conforms("EMQP-30")
@pytest.mark.conforms("EMQP-31")
@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (b"", {"reply-requested"}),
        (b"timeout:30", {"reply-requested", "timeout:30"}),
        (b"retry-count:2,guarantee", {"reply-requested", "retry-count:2", "guarantee"}),
        (b"colour:blue,reply-requested,fast", {"reply-requested", "colour:blue", "fast"}),
    ],
)
def test_headers_reach_the_worker_and_always_ask_for_a_reply(given: bytes, passed_on: set[str]) -> None:
    ex = broker()
    inform(ex)
    ask(ex, headers=given)
    (order,) = orders(ex)
    assert set(order[5].decode().split(",")) == passed_on


@pytest.mark.conforms("EMQP-29")
@pytest.mark.conforms("EMQP-31")
def test_headers_become_options() -> None:
    ex = broker()
    ask(ex, headers=b"retry-count:2,guarantee,timeout:9,x")
    (request,) = ex.bus.requests.values()
    options = request.options
    assert (options.retries, options.guarantee, options.timeout_s) == (2, True, 9)
    assert options.other == ("x",)
    assert not options.reply_requested


def test_a_request_of_another_dialect_asks_the_worker_for_a_reply() -> None:
    ex = broker()
    inform(ex)
    ex.handle(events.Submit((9, b"x"), ex.bus.workers[WORKERS, b"w"].voice, b"1", b"default", [b"a"]))
    (order,) = orders(ex)
    assert order[4:] == [b"default", b"reply-requested", b"a"]


# -- who is there -------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-5")
@pytest.mark.conforms("EMQP-15")
@pytest.mark.conforms("EMQP-16")
@pytest.mark.parametrize(("role", "queues"), [(b"worker", b'[[10, "default"]]'), (b"scheduler", b"")])
def test_inform_is_acknowledged_before_anything_else(role: bytes, queues: bytes) -> None:
    ex = broker()
    ask(ex)
    say(ex, CLIENTS, b"p", b"INFORM", b"i-1", queues, role)
    ack = ex.one(CLIENTS, b"p")
    assert ack[:3] == [b"", TAG, b"ACK"]
    assert ack[4:] == [b"i-1"]


@pytest.mark.conforms("EMQP-7")
@pytest.mark.conforms("EMQP-18")
@pytest.mark.conforms("EMQP-21")
@pytest.mark.conforms("EMQP-22")
@pytest.mark.parametrize(("link", "role"), [(WORKERS, b"worker"), (CLIENTS, b"scheduler")])
def test_workers_and_schedulers_get_beats(link: int, role: bytes) -> None:
    ex = broker()
    ex.wait(10)
    assert ex.got(link, b"p") == []
    say(ex, link, b"p", b"INFORM", b"i-1", b"", role)
    ex.got(link, b"p")
    ex.wait(9.5)
    beats = ex.got(link, b"p")
    assert len(beats) == 3
    assert all(frames[:3] == [b"", TAG, b"HEARTBEAT"] for frames in beats)
    assert all(frames[4] == b"1700000000.5" for frames in beats)
    assert len({frames[3] for frames in beats}) == 3


@pytest.mark.conforms("EMQP-20")
def test_no_beat_is_sent_while_talking() -> None:
    ex = broker()
    inform(ex, slots=10)
    ex.got(WORKERS, b"w")
    for n in range(5):
        ex.wait(2)
        ask(ex, b"job-%d" % n)
    assert [frames[2] for frames in ex.got(WORKERS, b"w")] == [b"REQUEST"] * 5


@pytest.mark.conforms("EMQP-19")
@pytest.mark.parametrize(
    "message",
    [
        (b"HEARTBEAT", b"m", b"1.5"),
        (b"READY", b"m"),
        (b"REPLY", b"m", b"x", b"unknown"),
        (b"ACK", b"m", b"n"),
        (b"REQUEST", b"m", b"nowhere", b"", b"x"),
        (b"PUBLISH", b"m", b"topic", b"x"),
    ],
)
def test_everything_but_disconnect_is_a_heartbeat(message: tuple[bytes, ...]) -> None:
    ex = broker()
    inform(ex, slots=0)
    for _ in range(4):
        ex.wait(10)
        say(ex, WORKERS, b"w", *message)
    assert (WORKERS, b"w") in ex.bus.workers


@pytest.mark.conforms("EMQP-19")
def test_disconnect_is_none() -> None:
    ex = broker()
    inform(ex, slots=0)
    ex.wait(10)
    say(ex, WORKERS, b"w", b"DISCONNECT", b"m")
    ex.wait(6)
    assert not ex.bus.workers


@pytest.mark.conforms("EMQP-24")
def test_a_lost_worker_gets_nothing_more_and_its_job_goes_to_another() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    ex.wait(14)
    inform(ex, b"w2")
    ex.got(WORKERS, b"w")
    ex.wait(2)
    assert len(orders(ex, b"w2")) == 1
    assert (WORKERS, b"w") not in ex.bus.workers
    ex.wait(3)
    assert all(frames[2] == b"HEARTBEAT" for frames in ex.got(WORKERS, b"w"))
    ex.wait(10)
    assert ex.got(WORKERS, b"w") == []


@pytest.mark.conforms("EMQP-24", "EMQP-44")
@pytest.mark.parametrize("message", [(b"HEARTBEAT", b"m", b"1.5"), (b"ACK", b"m", b"n"), ()])
def test_a_worker_whose_job_another_one_answered_works_again_with_its_next_message(
    message: tuple[bytes, ...],
) -> None:
    """There is no word that would make it say INFORM again, and it need not: its conversation goes on."""
    ex = broker()
    inform(ex)
    ask(ex)
    ex.wait(16)
    inform(ex, b"w2")
    token = orders(ex, b"w2")[0][3]
    say(ex, WORKERS, b"w2", b"REPLY", b"m", b"fast", token)
    say(ex, WORKERS, b"w2", b"KBYE", b"m")
    ex.got(WORKERS, b"w")
    ex.got(CLIENTS, b"c")
    ex.wait(20)
    assert ex.got(WORKERS, b"w") == [], "nothing more is sent to a lost worker"
    if message:
        say(ex, WORKERS, b"w", *message)
        assert (WORKERS, b"w") in ex.bus.workers
    say(ex, WORKERS, b"w", b"REPLY", b"m", b"slow", token)
    say(ex, WORKERS, b"w", b"READY", b"m")
    assert ex.got(CLIENTS, b"c") == []
    assert ex.bus.counters.late == 1
    ask(ex, b"job-2")
    assert len(orders(ex)) == 1
    ex.wait(3.5)
    assert [frames[2] for frames in ex.got(WORKERS, b"w")] == [b"HEARTBEAT"]


@pytest.mark.conforms("EMQP-29", "EMQP-30")
def test_a_worker_that_ignores_the_timeout_is_not_given_the_retry_meanwhile() -> None:
    ex = broker(Limits(timeout_grace_s=0.1))
    inform(ex, slots=3)
    ask(ex, headers=b"reply-requested,retry-count:2,timeout:2")
    token = orders(ex)[0][3]
    for _ in range(4):
        ex.wait(1.0)
        say(ex, WORKERS, b"w", b"HEARTBEAT", b"m", b"1.5")
    assert ex.bus.counters.timeouts == 1
    assert orders(ex) == []
    say(ex, WORKERS, b"w", b"REPLY", b"m", b"done", token)
    assert ex.got(CLIENTS, b"c")[-1][-2:] == [b"done", b"job-1"]


@pytest.mark.conforms("EMQP-23")
@pytest.mark.conforms("EMQP-24")
@pytest.mark.parametrize(
    "message", [(b"HEARTBEAT", b"m", b"1.5"), (b"READY", b"m"), (b"REPLY", b"m", b"x", b"t")]
)
def test_a_worker_we_do_not_know_hears_nothing_until_it_restarts_the_conversation(
    message: tuple[bytes, ...],
) -> None:
    ex = broker()
    say(ex, WORKERS, b"w", *message)
    assert ex.got(WORKERS, b"w") == []
    inform(ex)
    assert ex.got(WORKERS, b"w")[0][2] == b"ACK"


@pytest.mark.conforms("EMQP-23")
def test_a_worker_that_informs_again_begins_anew() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (first,) = orders(ex)
    inform(ex)
    (again,) = orders(ex)
    assert again[3] == first[3]


# -- goodbyes -----------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-9")
@pytest.mark.conforms("EMQP-36")
@pytest.mark.conforms("EMQP-37")
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_who_says_goodbye_is_forgotten(word: bytes) -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    ex.got(WORKERS, b"w")
    say(ex, WORKERS, b"w", word, b"bye-1")
    assert not ex.bus.workers
    ex.wait(10)
    assert ex.got(WORKERS, b"w") == []
    inform(ex, b"w2")
    assert len(orders(ex, b"w2")) == 1
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    say(ex, CLIENTS, b"s", word, b"bye-2")
    assert not ex.bus.schedulers
    say(ex, CLIENTS, b"stranger", word, b"bye-3")


@pytest.mark.conforms("EMQP-36")
def test_the_jobs_of_a_client_that_said_goodbye_run_on_unheard() -> None:
    ex = broker()
    ask(ex)
    say(ex, CLIENTS, b"c", b"KBYE", b"bye")
    ex.got(CLIENTS, b"c")
    inform(ex)
    (order,) = orders(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r", b"x", order[3])
    assert ex.got(CLIENTS, b"c") == []
    assert ex.bus.counters.replied == 1
    # It comes back and asks again.
    ask(ex)
    assert answers(ex) == [[b"REPLY", b"job-1"], [b"REPLY", b"x", b"job-1"]]


@pytest.mark.conforms("EMQP-36")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_a_receipt_that_waits_for_the_disk_does_not_follow_a_goodbye(word: bytes, strict: bool) -> None:
    ex = broker(strict=strict)
    hear = ex.ears[CLIENTS].receive
    headers = b"guarantee,receipt-requested"
    # Nothing is written down in between.
    hear(CLIENTS, [b"c", b"", TAG, b"REQUEST", b"job-1", b"default", headers, b"x"], ex.now)
    hear(CLIENTS, [b"c", b"", TAG, word, b"bye"], ex.now)
    hear(CLIENTS, [b"c", b"", TAG, b"REQUEST", b""], ex.now)
    ex.settle()
    assert ex.got(CLIENTS, b"c") == []
    assert ex.bus.services[b"default"].queue.length == 1
    # What it says next begins a new conversation.
    ask(ex, headers=headers)
    assert len(ex.got(CLIENTS, b"c")) == 1


def test_a_client_that_comes_back_while_its_job_runs_gets_the_result() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    say(ex, CLIENTS, b"c", b"KBYE", b"bye")
    ask(ex)
    ex.got(CLIENTS, b"c")
    say(ex, WORKERS, b"w", b"REPLY", b"r", b"x", order[3])
    assert answers(ex) == [[b"REPLY", b"x", b"job-1"]]


@pytest.mark.conforms("EMQP-9")
@pytest.mark.parametrize(("strict", "word"), [(False, b"KBYE"), (True, b"KBAI")])
def test_the_frames_of_a_goodbye(strict: bool, word: bytes) -> None:
    ex = Exchange()
    emqp = Emqp(ex.bus, wall=lambda: 0.0, strict=strict)
    ex.listen(CLIENTS, RouterEar(ex.bus, "emqp", emqp.client_tags))
    ex.listen(WORKERS, RouterEar(ex.bus, "emqp", emqp.worker_tags))
    inform(ex, slots=0)
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    # A scheduler is a client as well when it sends what is due; it is told once.
    for client in (b"c", b"s", b"gone"):
        say(ex, CLIENTS, client, b"REQUEST", b"m-1", b"queue", b"", b"x")
    say(ex, CLIENTS, b"gone", b"KBYE", b"m-2")
    for peer in ((WORKERS, b"w"), (CLIENTS, b"s"), (CLIENTS, b"c"), (CLIENTS, b"gone")):
        ex.got(*peer)
    for worker in list(ex.bus.workers.values()):
        ex.bus.actions.append(Dismiss(worker.address, worker.voice, "draining"))
    ex.bus.actions += emqp.goodbyes()
    ex.settle()
    assert ex.got(CLIENTS, b"gone") == []
    for peer in ((WORKERS, b"w"), (CLIENTS, b"s"), (CLIENTS, b"c")):
        frames = ex.one(*peer)
        assert frames[:3] == [b"", TAG, word]
        assert len(frames) == 4


@pytest.mark.conforms("EMQP-34")
@pytest.mark.conforms("EMQP-35")
def test_while_draining_new_jobs_are_refused_and_pending_ones_complete() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    ex.handle(events.Drain())
    ask(ex, b"job-2", headers=b"")
    replies = answers(ex)
    assert msgspec.json.decode(replies[1][1])["error"] == "draining"
    assert not ex.drained
    say(ex, WORKERS, b"w", b"REPLY", b"r", b"x", order[3])
    assert answers(ex) == [[b"REPLY", b"x", b"job-1"]]
    assert ex.drained


@pytest.mark.conforms("EMQP-8")
@pytest.mark.parametrize("link", [CLIENTS, WORKERS])
def test_disconnect_is_refused_here(link: int) -> None:
    ex = broker()
    say(ex, link, b"p", b"DISCONNECT", b"d-1")
    frames = ex.one(link, b"p")
    assert frames[2] == b"REPLY"
    assert frames[5] == b"d-1"
    assert msgspec.json.decode(frames[4])["error"] == "not_admin"
    assert ex.bus.counters.invalid == 1


# -- schedules and topics -----------------------------------------------------------------------

LONG = (b"default", b"nohaste,run_count:3", b"60", b'["run", {}]', b"")


@pytest.mark.conforms("EMQP-13")
@pytest.mark.conforms("EMQP-14")
@pytest.mark.conforms("EMQP-32")
def test_schedules_are_forwarded_as_they_came_and_receipted() -> None:
    ex = broker()
    for name in (b"s1", b"s2"):
        say(ex, CLIENTS, name, b"INFORM", b"i", b"", b"scheduler")
        ex.got(CLIENTS, name)
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", *LONG)
    assert answers(ex) == [[b"REPLY", b"m-1"]]
    assert ex.one(CLIENTS, b"s1") == [b"", TAG, b"SCHEDULE", b"m-1", *LONG]
    assert ex.got(CLIENTS, b"s2") == []
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-2", *LONG)
    assert ex.one(CLIENTS, b"s2")[3] == b"m-2"
    say(ex, CLIENTS, b"c", b"UNSCHEDULE", b"m-3", *LONG)
    for name in (b"s1", b"s2"):
        assert ex.one(CLIENTS, name) == [b"", TAG, b"UNSCHEDULE", b"m-3", *LONG]
    assert answers(ex) == [[b"REPLY", b"m-2"], [b"REPLY", b"m-3"]]


@pytest.mark.conforms("EMQP-13")
@pytest.mark.conforms("EMQP-14")
def test_the_documents_form_is_written_for_public_schedulers() -> None:
    ex = broker()
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    ex.got(CLIENTS, b"s")
    message = b'["run", {"interval_secs": 60}]'
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"", message)
    assert ex.one(CLIENTS, b"s")[3:] == [b"m-1", b"default", b"", b"60", message, b""]
    say(ex, CLIENTS, b"c", b"UNSCHEDULE", b"m-2", b"", b"", message)
    assert ex.one(CLIENTS, b"s")[3:] == [b"m-2", b"", b"", b"-1", message, b""]
    ex.got(CLIENTS, b"c")
    # A message that does not tell when would be the end of a public scheduler.
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-3", b"default", b"", b"[]")
    assert ex.got(CLIENTS, b"s") == []
    assert msgspec.json.decode(answers(ex)[0][1])["error"] == "no_schedule"


def test_strict_forwards_the_documents_form() -> None:
    ex = broker(strict=True)
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    ex.got(CLIENTS, b"s")
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"", b"[]")
    assert ex.one(CLIENTS, b"s")[3:] == [b"m-1", b"default", b"", b"[]"]


@pytest.mark.conforms("EMQP-13")
@pytest.mark.conforms("EMQP-14")
@pytest.mark.conforms("EMQP-32")
def test_without_a_scheduler_the_broker_keeps_it() -> None:
    ex = broker()
    job = b'["run", {"interval_secs": 60}]'
    for form in ((b"60", job, b""), (job,)):
        say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"nohaste,run_count:3,retry-count:2", *form)
        assert answers(ex) == [[b"REPLY", b"m-1"]]
        (entry,) = ex.bus.book.schedules
        assert (entry.queue, entry.message, entry.interval_s, entry.cron) == (b"default", job, 60, "")
        assert (entry.runs_left, entry.options.retries, entry.next_at) == (3, 2, ex.now + 60)
        say(ex, CLIENTS, b"c", b"UNSCHEDULE", b"m-2", b"default", b"", *form)
        assert answers(ex) == [[b"REPLY", b"m-2"]]
        assert not len(ex.bus.book.schedules)


@pytest.mark.conforms("EMQP-39", "EMQP-40")
def test_schedules_of_an_earlier_version_are_replaced_and_removed() -> None:
    def kept(ex: Exchange) -> dict[str, float | None]:
        return {entry.key: entry.interval_s for entry in ex.bus.book.schedules}

    ex = broker()
    job = b'{"do": "sweep", "interval_secs": %d}'
    # It made a second schedule of another interval, and kept both under the hash of all their bytes.
    keys = [sha1(b"default\0" + job % seconds).hexdigest() for seconds in (60, 90)]
    ex.bus.book.schedules.load(
        ScheduleEntry(key, b"default", job % seconds, interval_s=seconds, next_at=inf)
        for key, seconds in zip((*keys, "named"), (60, 90, 90), strict=True)
    )
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"nohaste", job % 120)
    assert answers(ex) == [[b"REPLY", b"m-1"]]
    assert sorted(kept(ex).values()) == [90, 120]
    assert not kept(ex).keys() & set(keys)
    assert {line.key for line in ex.lines if isinstance(line, Unscheduled)} == set(keys)
    say(ex, CLIENTS, b"c", b"UNSCHEDULE", b"m-2", b"", b"", b'{"do": "sweep"}')
    assert answers(ex) == [[b"REPLY", b"m-2"]]
    assert kept(ex) == {"named": 90}


@pytest.mark.conforms("EMQP-40")
def test_a_schedule_that_is_refused_leaves_the_one_before_it() -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"nohaste", b"60", b'{"do": "sweep"}', b"")
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-2", b"default", b"", b"-1", b'{"do":"sweep"}', b"61 * * * *")
    assert [entry.interval_s for entry in ex.bus.book.schedules] == [60]


@pytest.mark.conforms("EMQP-40")
def test_what_goes_to_a_scheduler_is_kept_here_no_more() -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"nohaste", b"60", b'{"do": "sweep"}', b"")
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-2", b"default", b"nohaste", b"90", b'{"do":"sweep"}', b"")
    assert not len(ex.bus.book.schedules)
    # Only a scheduler knows what it has: what was passed on is not told as an error.
    ex.got(CLIENTS, b"c")
    say(ex, CLIENTS, b"c", b"UNSCHEDULE", b"m-3", b"default", b"", b"-1", b"nothing", b"")
    assert answers(ex) == [[b"REPLY", b"m-3"]]


@pytest.mark.parametrize("strict", [False, True])
def test_a_schedule_without_times_is_refused_for_one_reason(strict: bool) -> None:
    ex = broker(strict=strict)
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"", b"[]")
    assert b'"no_schedule"' in b"".join(answers(ex)[0])


def test_a_schedule_that_cannot_be_kept_is_answered_with_the_reason() -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"", b"-1", b"[]", b"61 * * * *")
    (answer,) = answers(ex)
    error = msgspec.json.decode(answer[1])
    assert (error["error"], answer[2]) == ("bad_schedule", b"m-1")
    assert "bad minute" in error["detail"]


@pytest.mark.conforms("EMQP-11")
@pytest.mark.conforms("EMQP-12")
def test_publish_in_both_forms() -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", b"PUBLISH", b"m-1", b"news", b"", b"long")
    say(ex, CLIENTS, b"c", b"PUBLISH", b"m-2", b"news", b"short")
    assert ex.publications == [(b"news", [b"long"]), (b"news", [b"short"])]
    assert ex.got(CLIENTS, b"c") == []


def test_the_publish_port_takes_nothing_else() -> None:
    ex = Exchange()
    ex.listen(3, RouterEar(ex.bus, "emqp", Emqp(ex.bus, wall=lambda: 0.0).publish_tags))
    say(ex, 3, b"c", b"PUBLISH", b"m-1", b"news", b"x")
    assert ex.publications == [(b"news", [b"x"])]
    say(ex, 3, b"c", b"REQUEST", b"m-2", b"default", b"", b"x")
    assert ex.bus.counters.invalid == 1
    assert not ex.bus.requests


# -- the rest -----------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-38")
def test_a_job_is_traced_by_its_message_id() -> None:
    ex = broker(watched=True)
    inform(ex)
    ask(ex)
    (order,) = orders(ex)
    say(ex, WORKERS, b"w", b"REPLY", b"r", b"x", order[3])
    trace = [seen for seen in ex.observed if seen.request_id == b"job-1"]
    assert [seen.what for seen in trace] == ["accepted", "dispatched", "replied"]
    # Each step also has the id that the worker knows it by.
    assert {seen.token for seen in trace} == {order[3]}


def test_a_peer_without_the_empty_frame_gets_none() -> None:
    ex = broker()
    ex.send(WORKERS, b"w", TAG, b"INFORM", b"i", b"", b"worker")
    ex.send(WORKERS, b"w", TAG, b"READY", b"r")
    assert ex.one(WORKERS, b"w")[:2] == [TAG, b"ACK"]
    ex.send(CLIENTS, b"c", TAG, b"REQUEST", b"job-1", b"default", b"", b"x")
    assert ex.one(CLIENTS, b"c")[:2] == [TAG, b"REPLY"]
    assert ex.one(WORKERS, b"w")[:2] == [TAG, b"REQUEST"]


@pytest.mark.parametrize(
    ("frames", "answered"),
    [
        ((b"REQUEST", b"m", b"default", b""), True),
        ((b"REQUEST", b"m", b"", b"", b"x"), True),
        ((b"REQUEST", b"m", b"default", b"timeout:soon", b"x"), True),
        ((b"INFORM", b"m", b"what", b"worker"), True),
        ((b"DANCE", b"m"), True),
        ((b"REQUEST", b"", b"default", b"", b"x"), False),
        ((b"REQUEST",), False),
        ((), False),
    ],
)
def test_bad_messages_are_counted_and_answered_if_they_can_be(
    frames: tuple[bytes, ...], answered: bool
) -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", *frames)
    assert ex.bus.counters.invalid == 1
    assert not ex.bus.requests
    assert not ex.bus.workers
    replies = answers(ex)
    assert len(replies) == answered
    assert all(reply[0] == b"REPLY" and b'"error"' in reply[1] and reply[2] == b"m" for reply in replies)


def test_a_body_of_several_frames_does_not_fit() -> None:
    ex = broker()
    inform(ex)
    voice = ex.bus.workers[WORKERS, b"w"].voice
    ex.got(WORKERS, b"w")
    ex.handle(events.Submit((9, b"x"), voice, b"1", b"default", [b"a", b"b"]))
    assert ex.got(WORKERS, b"w") == []
    assert ex.bus.counters.failed == 1


def test_one_queue_too_many_ends_in_a_goodbye() -> None:
    ex = broker(Limits(services=1))
    inform(ex, queues=b'[[10, "a"], [10, "b"]]', slots=0)
    assert ex.one(WORKERS, b"w")[2] == b"KBYE"
    assert not ex.bus.workers


# -- a broker that may be stopped from here -------------------------------------------------------


@pytest.mark.conforms("EMQP-8")
@pytest.mark.parametrize("lead", [[b""], []])
def test_where_disconnect_is_allowed_it_is_acknowledged_and_no_new_work_is_taken(lead: list[bytes]) -> None:
    stopped: list[bool] = []
    ex = Exchange()
    emqp = Emqp(ex.bus, wall=lambda: 0.0, on_disconnect=lambda: stopped.append(True))
    ex.listen(CLIENTS, RouterEar(ex.bus, "emqp", emqp.client_tags))
    ex.send(CLIENTS, b"p", *lead, TAG, b"DISCONNECT", b"d-1")
    frames = ex.one(CLIENTS, b"p")
    assert frames[: len(lead) + 2] == [*lead, TAG, b"ACK"]
    assert frames[-1] == b"d-1"
    assert stopped == [True]
    # Whoever stopped it is told goodbye like the others.
    (goodbye,) = emqp.goodbyes()
    assert goodbye.peer == (CLIENTS, b"p")
    ask(ex)
    assert msgspec.json.decode(answers(ex)[0][1])["error"] == "draining"


@pytest.mark.conforms("EMQP-33")
@pytest.mark.parametrize(
    "said", [[b"HEARTBEAT", b"h-1", b"1"], [b"ACK", b"a-1", b"x"], [b"DISCONNECT", b"d-1"]]
)
def test_a_client_that_said_anything_that_can_be_read_is_told_goodbye(said: list[bytes]) -> None:
    ex = Exchange()
    emqp = Emqp(ex.bus, wall=lambda: 0.0)
    ex.listen(CLIENTS, RouterEar(ex.bus, "emqp", emqp.client_tags))
    say(ex, CLIENTS, b"c", *said)
    assert [goodbye.peer for goodbye in emqp.goodbyes()] == [(CLIENTS, b"c")]
    say(ex, CLIENTS, b"c", b"KBYE", b"k-1")
    assert emqp.goodbyes() == []
    # Not again for what was on its way then.
    say(ex, CLIENTS, b"c", b"HEARTBEAT", b"h-2", b"1")
    say(ex, CLIENTS, b"c", b"ACK", b"a-2", b"x")
    assert emqp.goodbyes() == []
    assert (CLIENTS, b"c") in emqp._clients.left


def test_a_worker_that_beats_is_told_goodbye_once() -> None:
    ex = broker()
    inform(ex)
    emqp = Emqp(ex.bus, wall=lambda: 0.0)
    ex.listen(WORKERS, RouterEar(ex.bus, "emqp", emqp.worker_tags))
    say(ex, WORKERS, b"w", b"HEARTBEAT", b"h-1", b"1")
    say(ex, WORKERS, b"w", b"ACK", b"a-1", b"x")
    assert list(emqp._clients) == [], "the core says it to workers"


def test_of_the_fewest_clients_two_are_remembered() -> None:
    clients = RecentClients(2)
    for name in (b"a", b"b", b"c"):
        clients.note((1, name), 2)
    assert list(clients) == [((1, b"b"), 2), ((1, b"c"), 2)]
    clients.forget((1, b"b"))
    clients.forget((1, b"c"))
    clients.forget((1, b"stranger"))
    assert list(clients) == []
    assert len(list(RecentClients(0))) == 0


@pytest.mark.parametrize(
    ("message", "is_passed_on"),
    [
        (b'["run", {}]', True),
        (b'{"do": "sweep"}', True),
        (b'["run"]', False),
        (b"no JSON", False),
    ],
)
def test_a_strict_broker_passes_the_long_form_on_only_if_the_times_can_go_into_the_message(
    message: bytes, is_passed_on: bool
) -> None:
    ex = broker(strict=True)
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    ex.got(CLIENTS, b"s")
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"", b"60", message, b"")
    passed = [frames[3:-1] for frames in ex.got(CLIENTS, b"s")]
    assert passed == ([[b"m-1", b"default", b""]] if is_passed_on else [])
    if not is_passed_on:
        (answer,) = [frames for frames in ex.got(CLIENTS, b"c") if frames[2] == b"REPLY"]
        assert any(b"no_document_form" in frame for frame in answer)
    # Where nobody is passed anything, the broker keeps the schedule itself, whatever the message is.
    alone = broker(strict=True)
    say(alone, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"nohaste", b"60", message, b"")
    assert len(alone.bus.book.schedules) == 1


def test_the_documents_form_goes_to_strict_schedulers_as_it_came() -> None:
    ex = broker(strict=True)
    say(ex, CLIENTS, b"s", b"INFORM", b"i", b"", b"scheduler")
    ex.got(CLIENTS, b"s")
    say(ex, CLIENTS, b"c", b"SCHEDULE", b"m-1", b"default", b"", b"60", b'["run", {}]', b"")
    assert msgspec.json.decode(ex.one(CLIENTS, b"s")[-1]) == ["run", {"interval_secs": 60}]
    say(ex, CLIENTS, b"c", b"UNSCHEDULE", b"m-2", b"default", b"", b"-1", b'["run", {}]', b"")
    assert ex.one(CLIENTS, b"s")[2:] == [b"UNSCHEDULE", b"m-2", b"default", b"", b'["run", {}]']


@pytest.mark.parametrize(
    ("frames", "is_answered"),
    [
        ([b"NO_COMMAND", b"m-1"], True),
        ([b"NO_COMMAND"], False),
        ([b"NO_COMMAND", b""], False),
        ([b"NO_COMMAND", bytes(256)], False),
    ],
)
def test_an_error_needs_an_id_to_be_told(frames: list[bytes], is_answered: bool) -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", *frames)
    got = ex.got(CLIENTS, b"c")
    assert [msgspec.json.decode(answer[4])["error"] for answer in got] == (
        ["unknown_command"] if is_answered else []
    )
    assert ex.bus.counters.invalid == 1


def test_ids_of_the_brokers_own_messages_are_numbered_in_its_life() -> None:
    ex = broker()
    inform(ex, slots=0)
    inform(ex, b"v", slots=0)
    ids = [ex.one(WORKERS, name)[3] for name in (b"w", b"v")]
    assert ids == [b"n.1", b"n.2"]


def test_a_client_that_speaks_again_takes_no_place_of_another() -> None:
    clients = RecentClients(4)
    for name in (b"a", b"b", b"a", b"c", b"d"):
        clients.note((1, name), 2)
    assert {client for client, _ in clients} == {(1, b"a"), (1, b"b"), (1, b"c"), (1, b"d")}


def test_an_error_says_what_is_wrong() -> None:
    ex = broker()
    say(ex, CLIENTS, b"c", b"NO_COMMAND", b"m-1")
    error = msgspec.json.decode(ex.one(CLIENTS, b"c")[4])
    assert sorted(error) == ["detail", "error"]
    assert "NO_COMMAND" in error["detail"]
