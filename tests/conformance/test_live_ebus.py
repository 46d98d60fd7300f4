"""EBUS against a broker process: what the document says, in the frames that upstream's peers send and read.

What the broker sends with `ebus.strict` is in `test_live_ebus_strict`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count

import pytest
import zmq

from conformance.kept import is_kept
from conformance.live_settings import BEAT_S, DEAD_S
from polybus import Client
from polybus.wire.ebus_bodies import unpack_bson
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient


def worker_of(broker: LiveBroker, service: bytes) -> Peer:
    """A worker of the document's kind that the broker knows: its READY has no frame that means nothing."""
    worker = Peer(broker["ebus.backend"])
    worker.send(b"EBW01", b"READY", service)
    wait_for(lambda: broker.has_workers(service.decode()))
    return worker


def no_beat(frames: list[bytes]) -> bool:
    return not {b"PING", b"HEARTBEAT"} & set(frames)


@pytest.mark.conforms("EBUS-2", "EBUS-12", "EBUS-18", "EBUS-32")
@pytest.mark.parametrize("word", [b"REQUEST", b"REQ"])
def test_request_and_reply(broker: LiveBroker, service: bytes, word: bytes) -> None:
    with worker_of(broker, service) as worker, Peer(broker["ebus.frontend"]) as client:
        client.send(b"", b"EBC01", word, service, b"id-1", b'{"n": 1}')
        tag, command, name, token, body, ttl_ms = worker.recv_until(no_beat)
        assert (tag, command, name, body) == (b"EBC01", b"REQUEST", service, b'{"n": 1}')
        assert 0 < int(ttl_ms) <= 300_000
        worker.send(b"EBW01", b"REPLY", token, b'{"n": 2}')
        assert client.recv() == [b"", b"EBW01", b"REPLY", b"id-1", b'{"n": 2}']


@pytest.mark.conforms("EBUS-18", "EBUS-32", "EBUS-33")
def test_public_workers_get_the_public_form(broker: LiveBroker, service: bytes) -> None:
    with Peer(broker["ebus.backend"]) as worker, Peer(broker["ebus.frontend"]) as client:
        worker.send(b"EBW01", b"READY", b"", service)
        client.send(b"EBC01", b"REQ", service, b"id-1", b"x")
        tag, command, token, body, ttl_ms = worker.recv_until(no_beat)
        assert (tag, command, body) == (b"EBC01", b"REQ", b"x")
        assert 0 < int(ttl_ms) <= 300_000
        worker.send(b"EBW01", b"REPLY", token, b"y")
        assert client.recv() == [b"EBW01", b"REPLY", b"id-1", b"y"]


@pytest.mark.conforms("EBUS-11", "EBUS-15", "EBUS-18", "EBUS-31")
def test_reject(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service) as worker, Peer(broker["ebus.frontend"]) as client:
        client.send(b"", b"EBC01", b"REQUEST", service, b"id-1", b"x")
        token = worker.recv_until(no_beat)[3]
        worker.send(b"EBW01", b"REJECT", token, b"not today")
        assert client.recv() == [b"", b"EBW01", b"REJECT", b"id-1", b"not today"]
        # It is over: nobody gets it again, and asking again gets the same answer.
        client.send(b"", b"EBC01", b"REQUEST", service, b"id-1", b"x")
        assert client.recv() == [b"", b"EBW01", b"REJECT", b"id-1", b"not today"]
        assert all(not no_beat(frames) for frames in iter(lambda: worker.get(BEAT_S / 2), None))


@pytest.mark.conforms("EBUS-8", "EBUS-13")
def test_a_resend_runs_once_and_gets_the_kept_answer(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service) as worker, Peer(broker["ebus.frontend"]) as client:
        request = (b"", b"EBC01", b"REQUEST", service, b"id-1", b"x")
        for _ in range(3):
            client.send(*request)
        token = worker.recv_until(no_beat)[3]
        worker.send(b"EBW01", b"REPLY", token, b"y")
        assert client.recv() == [b"", b"EBW01", b"REPLY", b"id-1", b"y"]
        client.send(*request)
        assert client.recv() == [b"", b"EBW01", b"REPLY", b"id-1", b"y"]
        client.send(*request[:4], b"id-2", b"next")
        # What the worker gets next is the next request, not one of the resends.
        assert worker.recv_until(no_beat)[4] == b"next"


@pytest.mark.conforms("EBUS-14", "EBUS-31")
def test_expiry_is_a_reject_without_data(broker: LiveBroker, service: bytes) -> None:
    with Peer(broker["ebus.frontend"]) as client:
        client.send(b"", b"EBC01", b"REQUEST", service, b"id-1", b"x", b"200")
        assert client.recv() == [b"", b"EBW01", b"REJECT", b"id-1"]


@pytest.mark.conforms("EBUS-7", "EBUS-28")
def test_ping_is_answered_with_heartbeat(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service) as worker, Peer(broker["ebus.frontend"]) as client:
        client.send(b"", b"EBC01", b"PING")
        assert client.recv() == [b"", b"EBW01", b"HEARTBEAT"]
        worker.send(b"EBW01", b"PING")
        assert worker.recv_until(lambda frames: frames[1] != b"PING") == [b"EBW01", b"HEARTBEAT"]


@pytest.mark.conforms("EBUS-5", "EBUS-6", "EBUS-7", "EBUS-29")
def test_the_broker_pings_who_is_silent(hasty: LiveBroker, service: bytes) -> None:
    numbers, waits = count(), []

    def answer_pings() -> Iterator[bool]:
        name = service + b"-%d" % next(numbers)
        with Peer(hasty["ebus.backend"]) as worker:
            spoke_at = time.monotonic()
            # Longer than silence is allowed to last.
            until = spoke_at + 2 * DEAD_S
            worker.send(b"EBW01", b"READY", name)
            while spoke_at < until:
                said = worker.recv()
                if said == [b"EBW01", b"DISCONNECT"]:
                    yield False
                assert said == [b"EBW01", b"PING"]
                waits.append(time.monotonic() - spoke_at)
                spoke_at = time.monotonic()
                worker.send(b"EBW01", b"HEARTBEAT")
                yield hasty.has_workers(name.decode())

    assert is_kept(answer_pings, DEAD_S)
    # A machine that stalls makes some of them late, but not all.
    assert min(waits) < BEAT_S * 3


@pytest.mark.conforms("EBUS-10", "EBUS-30")
def test_who_does_not_answer_is_disconnected(hasty: LiveBroker, service: bytes) -> None:
    with Peer(hasty["ebus.backend"]) as worker:
        began = time.monotonic()
        worker.send(b"EBW01", b"READY", service)
        assert worker.recv_until(lambda frames: frames[1] != b"PING") == [b"EBW01", b"DISCONNECT"]
        # Until then it was known: one that is unknown is told at once.
        assert time.monotonic() - began >= DEAD_S
        assert not hasty.has_workers(service.decode())


@pytest.mark.conforms("EBUS-30")
def test_a_worker_that_the_broker_does_not_know_is_disconnected(broker: LiveBroker) -> None:
    with Peer(broker["ebus.backend"]) as worker:
        worker.send(b"", b"EBW01", b"HEARTBEAT")
        assert worker.recv() == [b"", b"EBW01", b"DISCONNECT"]


@pytest.mark.conforms("EBUS-4")
def test_messages_of_the_wrong_sender_type_are_discarded(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service) as worker, Peer(broker["ebus.frontend"]) as client:
        client.send(b"", b"EBW01", b"REQUEST", service, b"id-1", b"wrong type")
        client.send(b"", b"EBX01", b"REQUEST", service, b"id-2", b"no type")
        client.send(b"", b"EBC01", b"REQUEST", service, b"id-3", b"right")
        assert worker.recv_until(no_beat)[4] == b"right"


@pytest.mark.conforms("EBUS-4", "EBUS-5", "EBUS-10")
def test_what_a_worker_says_under_another_tag_is_discarded(hasty: LiveBroker, service: bytes) -> None:
    with Peer(hasty["ebus.backend"]) as worker, Peer(hasty["ebus.frontend"]) as client:
        client.send(b"", b"EBC01", b"REQUEST", service, b"id-1", b"x", b"60000")
        client.send(b"", b"EBC01", b"PING")
        assert client.recv() == [b"", b"EBW01", b"HEARTBEAT"]
        # The request waits for it, so that it gets it however long this machine stalls.
        worker.send(b"EBW01", b"READY", service)
        token = worker.recv_until(no_beat)[3]

        def has_gone() -> bool:
            # No answer, no new service, and no sign of life: the worker counts as silent.
            worker.send(b"EBC01", b"REPLY", token, b"forged")
            worker.send(b"EBC01", b"READY", service + b"-2")
            worker.send(b"EBX01", b"HEARTBEAT")
            worker.send(b"EBW01", b"SERVICES")
            return not hasty.has_workers(service.decode())

        wait_for(has_gone)
        assert not hasty.has_workers(service.decode() + "-2")
        assert client.get(BEAT_S) is None


@pytest.mark.conforms("EBUS-16")
def test_a_reply_to_somebody_elses_request_is_discarded(broker: LiveBroker, service: bytes) -> None:
    with (
        worker_of(broker, service) as worker,
        worker_of(broker, service + b"-other") as stranger,
        Peer(broker["ebus.frontend"]) as client,
    ):
        client.send(b"", b"EBC01", b"REQUEST", service, b"id-1", b"x")
        token = worker.recv_until(no_beat)[3]
        stranger.send(b"EBW01", b"REPLY", token, b"forged")
        stranger.send(b"EBW01", b"PING")
        stranger.recv_until(lambda frames: frames[1] == b"HEARTBEAT")
        worker.send(b"EBW01", b"REPLY", token, b"genuine")
        assert client.recv()[4] == b"genuine"


@pytest.mark.conforms("EBUS-26")
def test_a_worker_may_be_a_client(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service) as worker, worker_of(broker, service + b"-2") as other:
        worker.send(b"", b"EBC01", b"REQUEST", service + b"-2", b"id-1", b"x")
        token = other.recv_until(no_beat)[3]
        other.send(b"EBW01", b"REPLY", token, b"y")
        assert worker.recv_until(no_beat) == [b"", b"EBW01", b"REPLY", b"id-1", b"y"]


@pytest.mark.conforms("EBUS-34")
def test_queries(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service), Peer(broker["ebus.frontend"]) as client:
        # As upstream's `brokerServices()` and `brokerWorkers()` ask: without an id.
        client.send(b"", b"EBC01", b"SERVICES")
        *head, body = client.recv()
        assert head == [b"", b"EBW01", b"SERVICES", b""]
        assert service.decode() in unpack_bson(body)
        client.send(b"", b"EBC01", b"WORKERS")
        *head, body = client.recv()
        assert head == [b"", b"EBW01", b"WORKERS", b""]
        (entry,) = [entry for entry in unpack_bson(body) if entry["service"] == service.decode()]
        assert set(entry) == {"id", "service", "load"}
        assert entry["load"] == 0
        # With an id, and as the name of a service.
        client.send(b"EBC01", b"SERVICES", b"q1")
        assert client.recv()[:3] == [b"EBW01", b"SERVICES", b"q1"]
        client.send(b"EBC01", b"REQ", b"WORKERS", b"q2", b"")
        assert client.recv()[:3] == [b"EBW01", b"WORKERS", b"q2"]


@pytest.mark.conforms("EBUS-27")
def test_our_own_client_reads_lists_as_json(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, service), Client(broker["ebus.frontend"], "ebus", timeout_s=patient(10)) as client:
        assert service.decode() in json.loads(client.call("SERVICES"))
        assert service.decode() in [entry["service"] for entry in json.loads(client.call("WORKERS"))]
        assert client.invalid == 0


@pytest.mark.conforms("EBUS-17", "EBUS-19")
def test_publications_are_matched_by_the_beginning_of_the_channel(broker: LiveBroker) -> None:
    with (
        Peer(broker["ebus.publish"], kind=zmq.XPUB) as publisher,
        Peer(broker["ebus.subscribe"], kind=zmq.XSUB) as subscriber,
    ):
        subscriber.send(b"\x01A")
        publisher.recv()  # the broker's own subscription: from now on it listens

        def has_joined() -> bool:
            publisher.send(b"A-joined")
            return subscriber.get(0.05) is not None

        wait_for(has_joined)
        for channel in (b"B", b"A", b"BA", b"AB", b"ABCD"):
            publisher.send(channel, b"said on " + channel)
        got = [subscriber.recv_until(lambda frames: frames[0] != b"A-joined") for _ in range(3)]
        assert got == [[channel, b"said on " + channel] for channel in (b"A", b"AB", b"ABCD")]
