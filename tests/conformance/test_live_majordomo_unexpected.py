"""Valid commands that nobody expects, and what follows a DISCONNECT, over real sockets."""

from __future__ import annotations

import json

import pytest

from conformance.live_settings import BEAT_S
from support.live import LiveBroker, Peer, wait_for
from support.live_majordomo import Talker, bye, silent, worker_of, workers_of
from support.majordomo import MDR, Frames, Talk, statement

unexpected = statement(mdp1="MDP1-23", mdp2="MDP2-24", mdr="MDR-27")
nothing_more = statement(mdp1="MDP1-21 MDP1-23", mdp2="MDP2-22 MDP2-24", mdr="MDR-25 MDR-27")
NOBODYS = b"never-given"


def answers_of(talk: Talk, order: Frames, *body: bytes) -> list[Frames]:
    return [talk.reply(order, *body), *([talk.part(order, *body)] if talk.has_partials else [])]


def misplaced_of(talk: Talk) -> list[Frames]:
    """What only a broker sends."""
    return [talk.order(b"client", b"id-1", b"work"), *([[talk.worker, b"PONG"]] if talk is MDR else [])]


def is_answered(broker: LiveBroker, peer: Talker) -> bool:
    """Whether the broker has read all that the peer sent, and the next thing that the peer gets is the answer
    to a question as a client."""
    talk = peer.talk
    peer.say(talk.request(b"mmi.nothing", b"id-0", b""))
    return peer.hear() == talk.final(b"mmi.nothing", b"id-0", b"501")


def is_sent_away(broker: LiveBroker, worker: Talker) -> bool:
    """Whether the broker answers what the worker sent with DISCONNECT: before the answer to a later question,
    so not because of the worker's silence."""
    worker.say(worker.talk.request(b"mmi.nothing", b"id-0", b""))
    return worker.hear() == bye(worker.talk) and worker.hear()[-1] == b"501"


@unexpected
@pytest.mark.parametrize("body", [b"X", b'{"error": "failed"}'])
def test_an_answer_of_a_worker_that_was_given_nothing(
    broker: LiveBroker, talk: Talk, service: bytes, body: bytes
) -> None:
    for answer in answers_of(talk, talk.order(NOBODYS, b"id-1"), body):
        with worker_of(broker, talk, service) as worker:
            worker.say(answer)
            assert is_sent_away(broker, worker), answer
            assert workers_of(broker, service) == 0


@unexpected
def test_an_answer_to_a_request_of_another_worker(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"work"))
        order = worker.hear()
        for answer in answers_of(talk, order, b"not mine"):
            with worker_of(broker, talk, service + b"-other") as other:
                other.say(answer)
                assert is_sent_away(broker, other), answer
        # Nobody else is touched by it.
        worker.say(talk.reply(order, b"mine"))
        assert client.hear() == talk.final(service, b"id-1", b"mine")


@unexpected
def test_an_answer_to_nothing_of_a_worker_that_has_a_request(
    broker: LiveBroker, talk: Talk, service: bytes
) -> None:
    for number, answer in enumerate(answers_of(talk, talk.order(NOBODYS, b"id"), b"X")):
        request_id = b"id-%d" % number
        with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
            client.say(talk.request(service, request_id, b"work"))
            worker.hear()
            worker.say(answer)
            assert is_sent_away(broker, worker)
            # Its request goes to somebody else.
            with worker_of(broker, talk, service) as other:
                other.say(talk.reply(other.hear(), b"done"))
                assert client.hear() == talk.final(service, request_id, b"done")
                other.say(talk.farewell())
                wait_for(lambda: workers_of(broker, service) == 0)


@unexpected
def test_a_second_answer_of_a_worker_that_has_nothing_more(
    broker: LiveBroker, talk: Talk, service: bytes
) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"work"))
        order = worker.hear()
        worker.say(talk.reply(order, b"one"))
        worker.say(talk.reply(order, b"two"))
        assert is_sent_away(broker, worker)
        assert client.hear() == talk.final(service, b"id-1", b"one")
        assert is_answered(broker, client)


@unexpected
def test_a_late_answer_is_tolerated(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    """The request was withdrawn: the worker could not know."""
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"work"))
        order = worker.hear()
        broker.ask("cancel", request=order[2].decode())
        assert json.loads(client.hear()[-1])["error"] == "cancelled"
        for answer in reversed(answers_of(talk, order, b"late")):
            worker.say(answer)
        # It has its slot again, and is given the next one.
        client.say(talk.request(service, b"id-2", b"more"))
        order = worker.hear()
        assert talk.body_of(order) == [b"more"]
        worker.say(talk.reply(order, b"done"))
        assert client.hear() == talk.final(service, b"id-2", b"done")


@unexpected
def test_a_command_of_the_broker_ends_the_conversation_before_and_after_ready(
    broker: LiveBroker, talk: Talk, service: bytes
) -> None:
    for command in misplaced_of(talk):
        with Talker(broker, "workers", talk) as stranger:
            stranger.say(command)
            assert stranger.hear() == bye(talk), command
        with worker_of(broker, talk, service) as worker:
            worker.say(command)
            assert is_sent_away(broker, worker), command
            assert workers_of(broker, service) == 0


@nothing_more
def test_after_its_own_disconnect_a_worker_is_sent_nothing(
    broker: LiveBroker, talk: Talk, service: bytes
) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"work"))
        order = worker.hear()
        worker.say(talk.farewell())
        for command in (talk.heartbeat(), *answers_of(talk, order, b"late"), *misplaced_of(talk)):
            worker.say(command)
        assert is_answered(broker, worker)
        assert silent(worker, BEAT_S * 2)
        # READY begins a new conversation, also on the same connection.
        worker.say(talk.ready(service))
        order = worker.hear()
        worker.say(talk.reply(order, b"done"))
        assert client.hear() == talk.final(service, b"id-1", b"done")


@nothing_more
@pytest.mark.parametrize("why", ["a heartbeat without READY", "a second READY", "silence"])
def test_after_the_brokers_disconnect_a_worker_is_sent_nothing(
    broker: LiveBroker, hasty: LiveBroker, talk: Talk, service: bytes, why: str
) -> None:
    chosen = hasty if why == "silence" else broker
    with Talker(chosen, "workers", talk) as worker, Talker(chosen, "clients", talk) as client:
        if why == "a heartbeat without READY":
            worker.say(talk.heartbeat())
        else:
            worker.say(talk.ready(service))
            if why == "a second READY":
                worker.say(talk.ready(service))
        assert worker.hear() == bye(talk)
        order = talk.order(NOBODYS, b"id-1")
        for command in (talk.heartbeat(), *answers_of(talk, order, b"X"), *misplaced_of(talk)):
            worker.say(command)
        client.say(talk.request(service, b"id-1", b"work"))
        assert is_answered(chosen, client)
        assert is_answered(chosen, worker)
        assert silent(worker, BEAT_S * 2)
        # READY makes it a worker again, which gets what waits.
        worker.say(talk.ready(service))
        assert talk.body_of(worker.hear()) == [b"work"]


@pytest.mark.conforms("MDR-18", "MDR-25")
def test_after_the_drafts_disconnect_nothing_is_sent_either(broker: LiveBroker, service: bytes) -> None:
    """It has the tag of MDP/0.2, and ends the conversation of the draft."""
    with Peer(broker["majordomo.workers"]) as worker:
        worker.send(b"MDRW01", b"\x01", service)
        worker.send(b"MDPW02", b"\x06")
        worker.send(b"MDRW01", b"PING")
        worker.send(b"MDRC01", b"\x01", b"mmi.nothing", b"id-0", b"")
        assert worker.recv() == [b"MDRC01", b"\x03", b"mmi.nothing", b"id-0", b"501"]
