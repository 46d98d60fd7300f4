"""polybus workers on the real core: what they hold, what they are told to stop, and how they leave."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.core import events
from polybus.core.model import PLAIN_CALL
from polybus.dialects.emqp import Emqp
from polybus.dialects.emqp_voices import headers_of
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from polybus.errors import LocalProtocolError
from polybus.wire import emqp as wire
from support.exchange import Exchange

CLIENTS, WORKERS, MAJORDOMO = 1, 2, 3
TAG = b"eMQP/1.0"


def broker(**settings: Any) -> Exchange:
    ex = Exchange()
    dialect = Emqp(ex.bus, wall=lambda: 1700000000.5, **settings)
    ex.listen(CLIENTS, RouterEar(ex.bus, "emqp", dialect.client_tags))
    ex.listen(WORKERS, RouterEar(ex.bus, "emqp", dialect.worker_tags))
    ex.listen(MAJORDOMO, RouterEar(ex.bus, "mdr", Mdr(ex.bus).tags))
    return ex


def say(ex: Exchange, link: int, peer: bytes, *frames: bytes) -> None:
    ex.send(link, peer, b"", TAG, *frames)


def inform(
    ex: Exchange, *holding: str, worker: bytes = b"w", slots: int = 1, version: int = 1
) -> list[list[bytes]]:
    """A polybus worker comes; what it is told."""
    extension = json.dumps({"polybus": version, "holding": holding}).encode()
    say(ex, WORKERS, worker, b"INFORM", b"i-1", b'[[10, "email"]]', b"worker", extension)
    told = words(ex, worker)
    for n in range(slots):
        say(ex, WORKERS, worker, b"READY", b"r-%d" % n)
    return told


def words(ex: Exchange, worker: bytes = b"w") -> list[list[bytes]]:
    """What a worker was told, from the command on and without the messages' own ids."""
    return [[frames[2], *frames[4:]] for frames in ex.got(WORKERS, worker)]


def ask(ex: Exchange, msg_id: bytes = b"job-1", headers: bytes = b"reply-requested") -> None:
    say(ex, CLIENTS, b"c", b"REQUEST", msg_id, b"email", headers, b"body")


def orders(ex: Exchange, worker: bytes = b"w") -> list[bytes]:
    """The tokens of the requests that a worker got."""
    return [frames[3] for frames in ex.got(WORKERS, worker) if frames[2] == b"REQUEST"]


def answers(ex: Exchange) -> list[bytes]:
    """The bodies that the client got after its receipts."""
    return [frames[4] for frames in ex.got(CLIENTS, b"c") if len(frames) == 6]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("theirs", "both"), [(1, 1), (2, 2), (3, 2)])
def test_the_acknowledgement_says_what_we_both_understand(strict: bool, theirs: int, both: int) -> None:
    ex = broker(strict=strict)
    assert inform(ex, version=theirs) == [[b"ACK", b"i-1", b'{"polybus":%d}' % both]]


def test_others_get_the_acknowledgement_of_the_document() -> None:
    ex = broker()
    say(ex, WORKERS, b"w", b"INFORM", b"i-1", b'[[10, "email"]]', b"worker")
    assert words(ex) == [[b"ACK", b"i-1"]]


def test_a_bad_extension_is_answered_with_an_error() -> None:
    ex = broker()
    say(ex, WORKERS, b"w", b"INFORM", b"i-1", b"", b"worker", b"?")
    ((word, body, about),) = words(ex)
    assert (word, about) == (b"REPLY", b"i-1")
    assert json.loads(body)["error"] == "bad_extension"
    assert not ex.bus.workers


def test_requests_say_which_attempt_they_are() -> None:
    ex = broker()
    inform(ex)
    ask(ex, headers=b"reply-requested,retry-count:2,timeout:5,site-header")
    ((_, queue, headers, body),) = words(ex)
    assert (queue, body) == (b"email", b"body")
    assert headers.split(b",") == [
        *(b"reply-requested", b"retry-count:2", b"timeout:5"),
        *(b"attempt:1", b"site-header"),
    ]
    # Its worker is lost: the second attempt.
    say(ex, WORKERS, b"w", b"KBYE", b"k-1")
    inform(ex)
    assert b"attempt:2" in words(ex)[0][2]


def test_what_a_client_says_of_attempts_is_not_passed_on() -> None:
    ex = broker()
    inform(ex)
    ask(ex, headers=b"reply-requested,attempt:99")
    assert words(ex)[0][2] == b"reply-requested,attempt:1"


def test_a_cancelled_request_is_told_to_its_worker_and_answered_all_the_same() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (token,) = orders(ex)
    ex.handle(events.CancelToken(token))
    assert words(ex) == [[b"CANCEL", token]]
    say(ex, WORKERS, b"w", b"REPLY", b"x-1", b'{"error": "cancelled"}', token)
    say(ex, WORKERS, b"w", b"READY", b"x-2")
    ask(ex, b"job-2")
    assert len(orders(ex)) == 1


def test_other_workers_never_hear_of_it() -> None:
    ex = broker()
    say(ex, WORKERS, b"w", b"INFORM", b"i-1", b'[[10, "email"]]', b"worker")
    say(ex, WORKERS, b"w", b"READY", b"r-1")
    ask(ex)
    (_, (_, _, headers, _)) = words(ex)
    assert headers == b"reply-requested"
    (token,) = ex.bus.workers[WORKERS, b"w"].inflight
    ex.handle(events.CancelToken(token))
    assert words(ex) == []


def test_progress_reaches_clients_that_know_of_parts() -> None:
    ex = broker()
    inform(ex, slots=2)
    ex.send(MAJORDOMO, b"m", b"", b"MDRC01", b"\x01", b"email", b"id-1", b"body")
    ask(ex)
    first, second = orders(ex)
    ex.got(MAJORDOMO, b"m")
    say(ex, WORKERS, b"w", b"PROGRESS", b"p-1", first, b"50")
    (part,) = ex.got(MAJORDOMO, b"m")
    assert part[-1] == b"50"
    # eMQP itself has no word for it: its client hears the result only.
    say(ex, WORKERS, b"w", b"PROGRESS", b"p-2", second, b"50")
    assert answers(ex) == []
    say(ex, WORKERS, b"w", b"REPLY", b"p-3", b"100", second)
    assert answers(ex) == [b"100"]


def test_progress_of_something_that_is_not_held_is_late() -> None:
    ex = broker()
    inform(ex)
    say(ex, WORKERS, b"w", b"PROGRESS", b"p-1", b"nothing", b"50")
    assert ex.bus.counters.late == 1


# -- coming back --------------------------------------------------------------------------------


def test_a_worker_that_comes_back_keeps_what_it_holds() -> None:
    ex = broker()
    inform(ex, slots=2)
    ask(ex, b"job-1")
    ask(ex, b"job-2")
    first, second = orders(ex)
    # Another one would take them if they were free.
    inform(ex, worker=b"v", slots=5)
    assert inform(ex, first.decode(), "gone", slots=0) == [
        [b"CANCEL", b"gone"],
        [b"ACK", b"i-1", b'{"polybus":1}'],
    ]
    # What it did not name goes to somebody else.
    assert orders(ex, b"v") == [second]
    say(ex, WORKERS, b"w", b"REPLY", b"x-1", b"one", first)
    assert answers(ex) == [b"one"]
    assert ex.bus.counters.late == 0


# -- leaving ------------------------------------------------------------------------------------


def test_one_that_leaves_gets_nothing_more_and_finishes_what_it_has() -> None:
    ex = broker()
    inform(ex, slots=3)
    ask(ex, b"job-1")
    (token,) = orders(ex)
    say(ex, WORKERS, b"w", b"LEAVE", b"l-1")
    ask(ex, b"job-2")
    assert orders(ex) == []
    say(ex, WORKERS, b"w", b"REPLY", b"x-1", b"one", token)
    assert answers(ex) == [b"one"]
    assert orders(ex) == []
    inform(ex, worker=b"v")
    assert len(orders(ex, b"v")) == 1


def test_what_is_given_back_costs_no_attempt_and_comes_first() -> None:
    ex = broker()
    inform(ex, slots=2)
    ask(ex, b"job-1")
    ask(ex, b"job-2")
    ask(ex, b"job-3")
    first, second = orders(ex)
    say(ex, WORKERS, b"w", b"LEAVE", b"l-1")
    say(ex, WORKERS, b"w", b"RETURN", b"x-1", second)
    inform(ex, worker=b"v", slots=1)
    ((_, _, headers, _),) = words(ex, b"v")
    assert headers == b"reply-requested,attempt:1"
    assert list(ex.bus.workers[WORKERS, b"v"].inflight) == [second]
    assert list(ex.bus.workers[WORKERS, b"w"].inflight) == [first]


def test_giving_back_what_is_not_held_changes_nothing() -> None:
    ex = broker()
    inform(ex)
    ask(ex)
    (token,) = orders(ex)
    for about in (b"nothing", token, token):
        say(ex, WORKERS, b"w", b"RETURN", b"x-1", about)
    # It came back once, to the same worker only if that has a slot.
    assert orders(ex) == []
    assert ex.bus.request_count == 1
    say(ex, WORKERS, b"stranger", b"RETURN", b"x-1", token)
    say(ex, WORKERS, b"stranger", b"LEAVE", b"x-2")
    say(ex, WORKERS, b"stranger", b"PROGRESS", b"x-3", token, b"1")
    assert ex.bus.request_count == 1


def test_what_follows_a_job_is_not_kept_for_its_headers() -> None:
    """A chain's next steps may be megabytes."""
    ex = broker()
    inform(ex, slots=3, version=2)
    for n in range(3):
        head = {"service": "email", "id": str(n), "then": [{"service": "email", "body": f"{n}" * 1000}]}
        say(ex, CLIENTS, b"c", b"REQUEST", b"m%d" % n, b"polybus.submit", b"", json.dumps(head).encode())
    assert len(joined(ex)) == 3
    voice = ex.bus.workers[WORKERS, b"w"].voice
    assert voice._options is None
    assert voice._headers == b"reply-requested,guarantee,attempt:1"


# -- many in one message ------------------------------------------------------------------------


def joined(ex: Exchange, worker: bytes = b"w") -> list[list[bytes]]:
    """The jobs that a worker got in ORDERS, four frames each."""
    jobs = []
    for frames in ex.got(WORKERS, worker):
        if frames[2] == b"ORDERS":
            jobs += [frames[i : i + 4] for i in range(4, len(frames), 4)]
    return jobs


def test_a_worker_of_the_second_version_gets_orders() -> None:
    ex = broker()
    inform(ex, version=2)
    ask(ex)
    ((token, *rest),) = joined(ex)
    assert rest == [b"email", b"reply-requested,attempt:1", b"body"]
    assert list(ex.bus.workers[WORKERS, b"w"].inflight) == [token]


def test_each_of_many_orders_has_the_headers_of_its_own_job() -> None:
    ex = broker()
    inform(ex, slots=0, version=2)
    asked = [b"", b"retry-count:2", b"retry-count:2,timeout:7", b"retry-count:2", b"", b""]
    for n, headers in enumerate(asked):
        ask(ex, b"job-%d" % n, b",".join(filter(None, (b"reply-requested", headers))))
    say(ex, WORKERS, b"w", b"SLOTS", b"s-1", b"6")
    told = [job[2] for job in joined(ex)]
    assert told == [b",".join(filter(None, (b"reply-requested", headers, b"attempt:1"))) for headers in asked]


def test_an_order_that_is_repeated_says_so_among_others_with_the_same_options() -> None:
    ex = broker()
    inform(ex, slots=0, version=2)
    for n in range(2):
        ask(ex, b"job-%d" % n, b"reply-requested,retry-count:2")
    first, second = ex.bus.requests.values()
    first.attempt = 1
    worker = ex.bus.workers[WORKERS, b"w"]
    message = worker.voice.deliver(worker, first)
    second.attempt = 2
    assert worker.voice.join(message, second)
    read = wire.read_as_worker(message, 2)
    assert isinstance(read, wire.Orders)
    assert [(job.headers.retry_count, job.headers.attempt) for job in read.jobs] == [(2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("attempt", "text"),
    [(0, b"reply-requested"), (1, b"reply-requested,attempt:1"), (2, b"reply-requested,attempt:2")],
)
def test_a_worker_is_told_the_attempt_of_a_call_without_options_too(attempt: int, text: bytes) -> None:
    """0 is for workers that do not know the word."""
    assert wire.write_headers(headers_of(PLAIN_CALL, attempt)) == text


def test_a_body_of_another_dialect_goes_over_if_it_is_one_frame_or_none() -> None:
    ex = broker()
    inform(ex, slots=0, version=2)
    ask(ex)
    (request,) = ex.bus.requests.values()
    worker = ex.bus.workers[WORKERS, b"w"]
    request.body = []
    assert worker.voice.deliver(worker, request)[-1] == b""
    request.body = [b"one", b"two"]
    with pytest.raises(LocalProtocolError, match="one body frame, not 2"):
        worker.voice.deliver(worker, request)


def test_what_goes_together_is_small_with_its_headers() -> None:
    """A job whose body and headers have more than 4096 bytes goes alone."""
    headers = b"reply-requested,attempt:1"
    for more, is_joined in ((0, True), (1, False)):
        ex = broker()
        inform(ex, version=2)
        body = b"x" * (4096 - len(headers) + more)
        say(ex, CLIENTS, b"c", b"REQUEST", b"m", b"email", b"reply-requested", body)
        assert bool(joined(ex)) == is_joined


def test_many_slots_at_once() -> None:
    ex = broker()
    inform(ex, slots=0, version=2)
    for n in range(5):
        ask(ex, b"job-%d" % n)
    say(ex, WORKERS, b"w", b"SLOTS", b"s-1", b"3")
    assert len(joined(ex)) == 3
    say(ex, WORKERS, b"w", b"SLOTS", b"s-2", b"100")
    assert len(joined(ex)) == 2
    assert ex.bus.workers[WORKERS, b"w"].free == 98


def test_many_answers_at_once_give_their_slots_back() -> None:
    ex = broker()
    inform(ex, slots=2, version=2)
    for n in range(4):
        ask(ex, b"job-%d" % n)
    first, second = (job[0] for job in joined(ex))
    say(ex, WORKERS, b"w", b"DONE", b"d-1", first, b"one", second, b"two")
    assert answers(ex) == [b"one", b"two"]
    third, fourth = (job[0] for job in joined(ex))
    say(ex, WORKERS, b"w", b"DONE", b"d-2", third, b"three")
    assert ex.bus.workers[WORKERS, b"w"].free == 1
    assert list(ex.bus.workers[WORKERS, b"w"].inflight) == [fourth]
    assert ex.bus.counters.late == 0


def test_failures_are_among_them() -> None:
    ex = broker()
    inform(ex, slots=2, version=2)
    ask(ex, b"job-1")
    ask(ex, b"job-2", b"reply-requested,retry-count:1")
    first, second = (job[0] for job in joined(ex))
    error = b'{"error": "failed", "detail": "no tea"}'
    say(ex, WORKERS, b"w", b"DONE", b"d-1", first, error, second, error)
    assert answers(ex) == [error]
    assert ex.bus.counters.retried == 1
    ex.wait(3)
    ((token, *_),) = joined(ex)
    assert token == second
    assert ex.bus.workers[WORKERS, b"w"].free == 1


def test_late_answers_give_their_slots_back_too() -> None:
    ex = broker()
    inform(ex, slots=1, version=2)
    ask(ex)
    ((token, *_),) = joined(ex)
    say(ex, WORKERS, b"w", b"DONE", b"d-1", token, b"one", b"nothing", b"two", token, b"again")
    assert answers(ex) == [b"one"]
    assert ex.bus.counters.late == 2
    assert ex.bus.workers[WORKERS, b"w"].free == 3


def test_strangers_change_nothing() -> None:
    ex = broker()
    inform(ex, slots=1, version=2)
    ask(ex)
    ((token, *_),) = joined(ex)
    say(ex, WORKERS, b"stranger", b"DONE", b"d-1", token, b"one")
    say(ex, WORKERS, b"stranger", b"SLOTS", b"d-2", b"5")
    assert answers(ex) == []
    assert ex.got(WORKERS, b"stranger") == []
    assert ex.bus.request_count == 1


def test_what_cannot_be_read_counts_for_nothing() -> None:
    ex = broker()
    inform(ex, slots=2, version=2)
    ask(ex, b"job-1")
    ((token, *_),) = joined(ex)
    say(ex, WORKERS, b"w", b"DONE", b"d-1", token, b"one", b"", b"two")
    ((word, body, about),) = words(ex)
    assert (word, about, json.loads(body)["error"]) == (b"REPLY", b"d-1", "bad_id")
    assert answers(ex) == []
    assert token in ex.bus.workers[WORKERS, b"w"].inflight


def test_large_bodies_go_alone_and_many_small_ones_fill_a_message() -> None:
    ex = broker()
    inform(ex, slots=0, version=2)
    bodies = [b"%d" % n for n in range(70)]
    bodies[1] = b"x" * 5000
    for n, body in enumerate(bodies):
        say(ex, CLIENTS, b"c", b"REQUEST", b"m%d" % n, b"email", b"", body)
    worker = ex.bus.workers[WORKERS, b"w"]
    voice, requests = worker.voice, list(ex.bus.requests.values())
    first = voice.deliver(worker, requests[0])
    assert not voice.join(first, requests[1])
    alone = voice.deliver(worker, requests[1])
    assert [alone[3], alone[-1]] == [b"REQUEST", bodies[1]]
    assert not voice.join(alone, requests[2])
    many = voice.deliver(worker, requests[2])
    assert [voice.join(many, request) for request in requests[3:]] == [True] * 63 + [False] * 4
    read = wire.read_as_worker(many, 2)
    assert isinstance(read, wire.Orders)
    assert [job.body for job in read.jobs] == [[body] for body in bodies[2:66]]


def test_a_worker_that_rests_gets_one_for_each_slot() -> None:
    """As if it had said READY for each: it may have room for that much."""
    ex = broker()
    inform(ex, slots=1, version=2)
    ask(ex, b"job-0")
    ((token, *_),) = joined(ex)
    ex.handle(events.WorkerFull((WORKERS, b"w"), token))
    for n in range(1, 5):
        ask(ex, b"job-%d" % n)
    assert joined(ex) == []
    say(ex, WORKERS, b"w", b"SLOTS", b"s-1", b"3")
    assert len(joined(ex)) == 3
