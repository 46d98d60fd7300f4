"""Answers to jobs that a worker got before the broker was restarted, in EBUS and eMQP.

(Those of the Majordomo family are in `test_majordomo_answers`; an answer of DBP does not name its job.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec import Struct

from polybus.config import Settings
from polybus.core import events
from polybus.core.lifecycle import RequestState
from polybus.core.model import Heartbeat, JobOptions
from polybus.core.restoring import restore
from polybus.core.revival import revive
from polybus.core.tables import DESK
from polybus.dialects.ebus import Ebus
from polybus.dialects.emqp import TOKEN, Emqp
from polybus.dialects.port import RouterEar, Voice
from polybus.server.broker import Broker
from polybus.store.memory import MemoryStore
from support.exchange import Exchange, Sent

BACK: Final = 2
TAG: Final = b"eMQP/1.0"
GUARANTEED: Final = JobOptions(guarantee=True)
NO: Final = b'{"error": "no"}'


class Peer(Struct, frozen=True):
    """The frames of a worker of one dialect."""

    dialect: Callable[[Exchange], Any]
    hello: list[list[bytes]]
    # Where the token stands in the frames of an order.
    token_at: int
    reply: Callable[[bytes, bytes], list[bytes]]
    failure: Callable[[bytes], list[bytes]]


def ebus(hello: list[bytes], token_at: int, strict: bool = False) -> Peer:
    return Peer(
        lambda ex: Ebus(ex.bus, strict=strict),
        [[b"EBW01", b"READY", *hello]],
        token_at,
        lambda token, body: [b"EBW01", b"REPLY", token, body],
        lambda token: [b"EBW01", b"REJECT", token, b"no"],
    )


def emqp(strict: bool = False, has_own_ids: bool = True) -> Peer:
    """`has_own_ids`: its REPLY is upstream's; else the document's, whose one id is that of the request."""

    def say(command: bytes, *frames: bytes) -> list[bytes]:
        return [b"", TAG, command, b"m-1", *frames]

    def answer(token: bytes, body: bytes) -> list[bytes]:
        return [b"", TAG, b"REPLY", token, body]

    return Peer(
        lambda ex: Emqp(ex.bus, wall=lambda: 0.0, strict=strict),
        [say(b"INFORM", b'[[10, "echo"]]', b"worker"), say(b"READY")],
        3,
        lambda token, body: say(b"REPLY", body, token) if has_own_ids else answer(token, body),
        lambda token: say(b"REPLY", NO, token) if has_own_ids else answer(token, NO),
    )


PEERS: Final = {
    "EBUS, public": ebus([b"null", b"echo"], 2),
    "EBUS, of this library": ebus([b"", b"echo", b"5"], 3),
    "EBUS, strict": ebus([b"echo"], 4, strict=True),
    "eMQP": emqp(),
    "eMQP, strict": emqp(strict=True),
    "eMQP, the document's REPLY": emqp(has_own_ids=False),
}


@pytest.fixture(params=PEERS.values(), ids=PEERS.keys())
def peer(request: pytest.FixtureRequest) -> Peer:
    found: Peer = request.param
    return found


def broker(peer: Peer) -> Exchange:
    ex = Exchange(watched=True)
    ex.bus.link_names = {BACK: "workers"}
    ex.listen(BACK, RouterEar(ex.bus, "any", peer.dialect(ex).tags))
    return ex


def greet(ex: Exchange, peer: Peer, name: bytes = b"w") -> None:
    for frames in peer.hello:
        ex.send(BACK, name, *frames)


def orders(ex: Exchange, name: bytes) -> list[Sent]:
    return [frames for frames in ex.got(BACK, name) if b"REQ" in frames or b"REQUEST" in frames]


def order(ex: Exchange, name: bytes = b"w") -> Sent:
    (found,) = orders(ex, name)
    return found


def restarted(peer: Peer, options: JobOptions = GUARANTEED, busy_s: float = 1.0) -> tuple[Exchange, bytes]:
    """A broker that took over from one whose worker has a job, and the job's token."""
    ex = broker(peer)
    greet(ex, peer)
    ex.handle(events.Submit((BACK, b"c"), Voice(), b"r1", b"echo", [b"x"], options))
    token: bytes = order(ex)[peer.token_at]
    ex.wait(busy_s)
    store = MemoryStore()
    store.write(ex.lines)
    heir = broker(peer)
    heir.bus.nonce = b"heir-"
    restore(heir.bus, store.load(), Voice(), heir.now)
    assert token in heir.bus.patient
    return heir, token


def counts(ex: Exchange) -> tuple[int, int]:
    return ex.bus.counters.replied, ex.bus.counters.late


def test_the_answer_of_a_worker_that_is_not_known_yet_counts(peer: Peer) -> None:
    heir, token = restarted(peer)
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 0)
    assert heir.bus.request_count == 0
    # It is no worker for that: others get what waits, until it registers.
    assert not heir.bus.workers
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r2", b"echo", [b"y"]))
    assert heir.got(BACK, b"w") == []
    greet(heir, peer)
    assert order(heir)[peer.token_at] != token


def test_its_sender_is_given_nothing(peer: Peer) -> None:
    heir, token = restarted(peer)
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r2", b"echo", [b"y"]))
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 0)
    assert heir.bus.services[b"echo"].queue.length == 1
    assert heir.bus.counters.dispatched == 0


def test_it_counts_if_the_worker_was_silent_before_the_restart(peer: Peer) -> None:
    heir, token = restarted(peer, busy_s=16.0)
    assert heir.bus.patient[token].state is RequestState.QUEUED
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 0)
    assert not heir.bus.workers


def test_it_counts_when_the_job_was_given_to_another_since(peer: Peer) -> None:
    heir, token = restarted(peer)
    heir.wait(heir.bus.limits.orphan_grace_s + 1.0)
    greet(heir, peer, b"other")
    assert order(heir, b"other")[peer.token_at] == token
    # A failure does not: somebody else is trying.
    heir.send(BACK, b"w", *peer.failure(token))
    assert (heir.bus.counters.failed, heir.bus.counters.retried, heir.bus.counters.late) == (0, 0, 1)
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 1)
    heir.send(BACK, b"other", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 2)
    assert list(heir.bus.workers) == [(BACK, b"other")]


def test_it_does_not_while_parts_of_anothers_answer_are_with_the_client(peer: Peer) -> None:
    heir, token = restarted(peer)
    heir.wait(heir.bus.limits.orphan_grace_s + 1.0)
    greet(heir, peer, b"other")
    heir.handle(events.Part((BACK, b"other"), token, [b"part"]))
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (0, 1)
    assert token in heir.bus.patient


def test_a_failure_counts_in_the_time_of_grace(peer: Peer) -> None:
    heir, token = restarted(peer, JobOptions(guarantee=True, retries=3))
    heir.send(BACK, b"w", *peer.failure(token))
    assert heir.bus.counters.late == 0
    assert heir.bus.counters.failed + heir.bus.counters.retried == 1
    assert not heir.bus.workers


def test_the_journal_says_who_answered(peer: Peer) -> None:
    heir, token = restarted(peer)
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    (ended,) = (seen for seen in heir.observed if seen.what == "replied")
    assert (ended.worker, ended.token) == ((BACK, b"w"), token)
    assert ended.worker_voice is not None


def test_answers_of_a_worker_whose_connection_broke_all_count(peer: Peer) -> None:
    ex = broker(peer)
    greet(ex, peer)
    if peer.hello[-1][-1] == b"m-1":
        # A worker of eMQP takes one for each READY.
        ex.send(BACK, b"w", *peer.hello[-1])
    for name in (b"r1", b"r2"):
        ex.handle(events.Submit((BACK, b"c"), Voice(), name, b"echo", [b"x"], ttl_s=60.0))
    tokens = [frames[peer.token_at] for frames in orders(ex, b"w")]
    assert len(tokens) == 2
    ex.handle(events.WorkerGone((BACK, b"w"), "it cannot be reached", is_unreachable=True))
    for token in tokens:
        ex.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(ex) == (2, 0)


def test_an_answer_to_what_another_worker_got_from_this_broker_does_not_count(peer: Peer) -> None:
    ex = broker(peer)
    greet(ex, peer, b"other")
    ex.handle(events.Submit((BACK, b"c"), Voice(), b"r1", b"echo", [b"x"], GUARANTEED))
    token = order(ex, b"other")[peer.token_at]
    for frames in (peer.reply(token, b"not mine"), peer.failure(token)):
        ex.send(BACK, b"w", *frames)
    assert (ex.bus.counters.replied, ex.bus.counters.failed, ex.bus.counters.late) == (0, 0, 2)
    assert token in ex.bus.patient


def test_a_second_answer_is_late(peer: Peer) -> None:
    heir, token = restarted(peer)
    for _ in range(2):
        heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 1)


@pytest.mark.parametrize("is_in_time", [True, False])
def test_a_worker_that_has_registered_again_stays_one(peer: Peer, is_in_time: bool) -> None:
    heir, token = restarted(peer)
    if not is_in_time:
        greet(heir, peer, b"other")
        heir.wait(heir.bus.limits.orphan_grace_s)
    greet(heir, peer)
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (1, 0)
    assert (BACK, b"w") in heir.bus.workers


def test_a_worker_of_another_service_is_not_believed(peer: Peer) -> None:
    heir, token = restarted(peer)
    heir.handle(events.WorkerUp((BACK, b"w"), Voice(), ((b"other", 0),), Heartbeat(60.0)))
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (0, 1)
    assert token in heir.bus.patient


def test_a_silent_worker_that_answers_keeps_what_else_it_works_on(peer: Peer) -> None:
    heir, token = restarted(peer)
    greet(heir, peer)
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r2", b"echo", [b"y"], ttl_s=60.0))
    second = order(heir)[peer.token_at]
    heir.wait(16.0)
    assert (BACK, b"w") in heir.bus.silent
    for each in (token, second):
        heir.send(BACK, b"w", *peer.reply(each, b"done"))
    assert counts(heir) == (2, 0)
    assert (BACK, b"w") in heir.bus.workers


# -- what does not count ----------------------------------------------------------------------------


def test_a_dead_letter_that_is_being_revived_is_not_answered_by_its_old_worker(peer: Peer) -> None:
    """Its new life begins when that is written down."""
    ex = broker(peer)
    greet(ex, peer)
    ex.handle(events.Submit((BACK, b"c"), Voice(), b"r1", b"echo", [b"x"], GUARANTEED))
    token: bytes = order(ex)[peer.token_at]
    ex.send(BACK, b"w", *peer.failure(token))
    store = MemoryStore()
    store.write(ex.lines)
    (letter,) = store.dead(10)
    heir = broker(peer)
    heir.bus.nonce = b"heir-"
    heir.bus.link_names = {BACK: "workers", DESK[0]: ex.bus.link_names.get(DESK[0], "jobs")}
    restore(heir.bus, store.load(), Voice(), heir.now)
    job, why = revive(heir.bus, letter, heir.now)
    assert job is not None, why
    assert job.state is RequestState.ACCEPTED
    heir.send(BACK, b"w", *peer.reply(token, b"done"))
    assert counts(heir) == (0, 1)
    assert not heir.bus.workers


def test_both_answers_of_a_worker_whose_connection_broke_count(peer: Peer) -> None:
    """That of before the restart does not make the bus forget what it was given since."""
    heir, old = restarted(peer)
    greet(heir, peer)
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r2", b"echo", [b"y"], ttl_s=60.0))
    new: bytes = order(heir)[peer.token_at]
    heir.handle(events.WorkerGone((BACK, b"w"), "its connection broke", is_unreachable=True))
    assert set(heir.bus.departed) == {(BACK, b"w")}
    heir.send(BACK, b"w", *peer.reply(old, b"first"))
    heir.send(BACK, b"w", *peer.reply(new, b"second"))
    assert counts(heir) == (2, 0)
    assert not heir.bus.departed


def test_a_failure_of_a_worker_whose_connection_broke_counts_for_what_it_got_before_the_restart(
    peer: Peer,
) -> None:
    heir, old = restarted(peer)
    greet(heir, peer)
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r2", b"echo", [b"y"], ttl_s=60.0))
    new: bytes = order(heir)[peer.token_at]
    heir.handle(events.WorkerGone((BACK, b"w"), "its connection broke", is_unreachable=True))
    heir.send(BACK, b"w", *peer.failure(old))
    assert heir.bus.counters.failed == 1
    # That of what it got since does not: others may be trying.
    heir.send(BACK, b"w", *peer.failure(new))
    assert (heir.bus.counters.failed, heir.bus.counters.late) == (1, 1)
    heir.send(BACK, b"w", *peer.reply(new, b"done"))
    assert heir.bus.counters.replied == 1


def test_a_documents_reply_to_a_forgotten_request_of_before_the_restart_is_late() -> None:
    """Not an answer to what its worker has now."""
    peer = PEERS["eMQP, the document's REPLY"]
    heir = broker(peer)
    heir.bus.nonce = b"1f2e3d4d-"
    greet(heir, peer)
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r2", b"echo", [b"y"]))
    new: bytes = order(heir)[peer.token_at]
    heir.send(BACK, b"w", *peer.reply(b"1f2e3d4c-005", b"of the old one"))
    assert counts(heir) == (0, 1)
    heir.send(BACK, b"w", *peer.reply(new, b"of the new one"))
    assert counts(heir) == (1, 1)
    # What only looks similar is an id of the worker's own.
    heir.send(BACK, b"w", *peer.hello[-1])
    heir.handle(events.Submit((BACK, b"c"), Voice(), b"r3", b"echo", [b"y"]))
    heir.send(BACK, b"w", *peer.reply(b"1f2e3d4c-0005-4a6b-9c8d-1f2e3d4c5b6a", b"done"))
    assert counts(heir) == (2, 1)


def test_the_tokens_of_a_broker_look_like_tokens() -> None:
    bus = Broker(Settings()).bus
    for count in (1, 0x123456):
        bus.sequence = count
        assert TOKEN.fullmatch(bus.next_token())
