"""Clients, requests, workers and services as they begin."""

from __future__ import annotations

from polybus.core.lifecycle import RequestState, WorkerState
from polybus.core.model import Heartbeat, JobOptions
from polybus.core.records import Client, FairQueue, Roster, Service, Worker, new_request

HEARTBEAT = Heartbeat(dead_after_s=7.0)


def test_a_client_has_asked_for_nothing() -> None:
    one = Client((1, b"c"))
    assert (one.address, one.known, one.unanswered) == ((1, b"c"), {}, 0)


def test_a_request_has_what_was_said_and_nothing_has_happened_to_it() -> None:
    one, service, options = Client((1, b"c")), Service(b"echo"), JobOptions(retries=3)
    made = new_request(b"t", b"1", one, "voice", service, [b"body"], 4, options, 5.0, 9.0)
    assert (made.token, made.request_id, made.key) == (b"t", b"1", b"1")
    assert made.client is one
    assert made.service is service
    assert (made.voice, made.body, made.size, made.options) == ("voice", [b"body"], 4, options)
    assert (made.accepted_at, made.expires_at, made.dispatched_at) == (5.0, 9.0, 0.0)
    assert (made.state, made.worker, made.alarm) == (RequestState.ACCEPTED, None, None)
    assert (made.attempt, made.failures, made.history, made.slot) == (0, 0, (), 0)
    assert (made.durable, made.is_start_noted, made.context) == (False, False, None)


def test_a_request_without_an_id_is_known_by_its_token() -> None:
    made = new_request(b"t", b"", Client((1, b"c")), None, Service(b"echo"), [], 0, JobOptions(), 5.0, 9.0)
    assert made.key == b"t"


def test_a_worker_has_what_was_said_and_does_nothing() -> None:
    service = Service(b"echo")
    made = Worker(
        (2, b"w"),
        "voice",
        HEARTBEAT,
        3,
        False,
        5.0,
        {service: 4},
        is_scheduler=True,
        endpoint="tcp://127.0.0.1:9",
        forgets_stopped=True,
        obeys_stop=True,
        resumes=True,
    )
    assert (made.address, made.voice, made.heartbeat) == ((2, b"w"), "voice", HEARTBEAT)
    assert (made.credit, made.free, made.grants_slots) == (3, 3, False)
    assert (made.since, made.seen_at, made.spoken_at) == (5.0, 5.0, 5.0)
    assert (made.offers, made.inflight, made.state) == ({service: 4}, {}, WorkerState.SERVING)
    assert (made.is_scheduler, made.endpoint) == (True, "tcp://127.0.0.1:9")
    assert (made.forgets_stopped, made.obeys_stop, made.resumes) == (True, True, True)
    assert (made.done, made.missed, made.slot, made.contested, made.streak) == (0, 0, 0, 0, 0)


def test_what_is_not_said_of_a_worker_does_not_hold() -> None:
    made = Worker((2, b"w"), None, HEARTBEAT, 3, True, 5.0)
    assert (made.credit, made.free, made.grants_slots) == (3, 0, True), "it has granted no slot yet"
    assert (made.offers, made.is_scheduler, made.endpoint) == ({}, False, "")
    assert (made.forgets_stopped, made.obeys_stop, made.resumes) == (False, False, False)


def test_nothing_waits_for_a_new_service() -> None:
    made = Service(b"echo")
    assert made.name == b"echo"
    assert isinstance(made.queue, FairQueue)
    assert isinstance(made.roster, Roster)
    assert (made.queue.length, made.queue._shells, made.roster.members) == (0, 0, {})
    assert (made.accepted, made.answered, made.failed) == (0, 0, 0)
    assert (made.running, made.waiting, made.slot) == (0, 0, 0)
    assert (made.policy, made.limited, made.idle_since) == (None, False, 0.0)
    assert (made.allowance, made.allowance_at) == (1.0, 0.0), "the first may start at once"
