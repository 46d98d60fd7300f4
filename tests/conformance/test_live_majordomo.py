"""The Majordomo family against a broker process: frames as the documents have them, over real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count

import pytest
import zmq

from conformance.kept import is_kept
from conformance.live_settings import BEAT_S, DEAD_S, LIVENESS
from support.live import LiveBroker, Peer, wait_for
from support.live_majordomo import Talker, bye, let_pass, silent, worker_of, workers_of
from support.majordomo import Frames, Talk, statement


@statement(
    mdp1="MDP1-3 MDP1-4 MDP1-5 MDP1-7 MDP1-9 MDP1-10 MDP1-11 MDP1-12 MDP1-15 MDP1-26",
    mdp2="MDP2-3 MDP2-4 MDP2-6 MDP2-7 MDP2-10 MDP2-11 MDP2-12 MDP2-14 MDP2-28",
    mdr="MDR-4 MDR-5 MDR-7 MDR-8 MDR-12 MDR-13 MDR-15 MDR-31 MDR-32",
)
def test_request_and_reply(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"one", b"\x00\xff"))
        order = worker.hear()
        # Tag, command, one address, the empty frame, the id where there is one, the body.
        assert order == talk.order(order[2], b"id-1", b"one", b"\x00\xff")
        assert order[2]
        worker.say(talk.reply(order, b"two", b"three"))
        assert client.hear() == talk.final(service, b"id-1", b"two", b"three")
        # And nothing after the end: the next thing that comes is the next answer.
        client.say(talk.request(b"mmi.nothing", b"id-2", b""))
        assert client.hear() == talk.final(b"mmi.nothing", b"id-2", b"501")


@statement(mdp1="MDP1-6")
def test_a_req_socket_is_a_client(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with (
        worker_of(broker, talk, service) as worker,
        Peer(broker["majordomo.clients"], kind=zmq.REQ) as client,
    ):
        client.send(b"MDPC01", service, b"hello")
        worker.say(talk.reply(worker.hear(), b"world"))
        assert client.recv() == [b"MDPC01", service, b"world"]


@statement(mdp2="MDP2-3 MDP2-5 MDP2-13 MDP2-27", mdr="MDR-4 MDR-6 MDR-14 MDR-30")
def test_partials_come_before_the_final(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"count"))
        order = worker.hear()
        worker.say(talk.part(order, b"1"))
        worker.say(talk.part(order, b"2", b"two"))
        worker.say(talk.reply(order, b"3"))
        assert client.hear() == talk.partial(service, b"id-1", b"1")
        assert client.hear() == talk.partial(service, b"id-1", b"2", b"two")
        assert client.hear() == talk.final(service, b"id-1", b"3")


@statement(mdr="MDR-3 MDR-10")
def test_many_requests_without_waiting(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        for number in range(20):
            client.say(talk.request(service, b"id-%d" % number, b"%d" % number))
        answers = []
        for _ in range(20):
            order = worker.hear()
            worker.say(talk.reply(order, b"re " + order[5]))
        for _ in range(20):
            answers.append(client.hear())
        assert answers == [talk.final(service, b"id-%d" % n, b"re %d" % n) for n in range(20)]


@statement(mdp1="MDP1-13 MDP1-20 MDP1-30", mdp2="MDP2-15 MDP2-21 MDP2-32")
def test_ready_has_no_answer_but_heartbeats(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    waits = []
    with worker_of(broker, talk, service) as worker:
        for _ in range(3):
            began = time.monotonic()
            assert worker.recv() == [*worker.lead, talk.worker, talk.beat]
            waits.append(time.monotonic() - began)
            worker.say(talk.heartbeat())
    # A machine that stalls makes some of them late, but not all.
    assert min(waits) < BEAT_S * 3


@statement(mdr="MDR-16 MDR-17 MDR-23 MDR-33 MDR-38")
def test_ping_is_answered_with_pong(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker:
        assert silent(worker, BEAT_S * 2)
        worker.say([b"MDRW01", b"PING"])
        assert worker.recv() == [b"MDRW01", b"PONG"]


@statement(
    mdp1="MDP1-19 MDP1-22 MDP1-23 MDP1-14",
    mdp2="MDP2-20 MDP2-23 MDP2-24 MDP2-16",
    mdr="MDR-22 MDR-26 MDR-27",
)
def test_a_second_ready_ends_the_conversation(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker:
        worker.say(talk.ready(service))
        assert worker.hear() == bye(talk)
        assert workers_of(broker, service) == 0
        with Talker(broker, "clients", talk) as client:
            client.say(talk.request(service, b"id-1", b"anybody?"))
            assert silent(worker, BEAT_S * 3)


@statement(mdp1="MDP1-23", mdp2="MDP2-24", mdr="MDR-27 MDR-18")
def test_a_beat_without_ready_ends_the_conversation(broker: LiveBroker, talk: Talk) -> None:
    with Talker(broker, "workers", talk) as worker:
        worker.say(talk.heartbeat())
        assert worker.hear() == bye(talk)


@statement(mdp1="MDP1-21", mdp2="MDP2-22", mdr="MDR-24 MDR-25")
def test_after_its_disconnect_nothing_is_sent(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with Talker(broker, "workers", talk) as early:
        early.say(talk.farewell())
        assert silent(early, BEAT_S * 2)
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        worker.say(talk.farewell())
        wait_for(lambda: workers_of(broker, service) == 0)
        while worker.get(0) is not None:
            continue
        client.say(talk.request(service, b"id-1", b"anybody?"))
        assert silent(worker, BEAT_S * 3)


@pytest.mark.conforms("MDR-18", "MDR-25")
def test_the_drafts_disconnect_with_the_tag_of_mdp2(broker: LiveBroker, service: bytes) -> None:
    with Peer(broker["majordomo.workers"]) as worker:
        worker.send(b"MDRW01", b"\x01", service)
        wait_for(lambda: workers_of(broker, service) == 1)
        worker.send(b"MDPW02", b"\x06")
        wait_for(lambda: workers_of(broker, service) == 0)


@statement(mdp1="MDP1-17 MDP1-24", mdp2="MDP2-18 MDP2-25", mdr="MDR-20 MDR-28")
def test_invalid_messages_are_dropped(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.send(*client.lead, b"XYZ", *talk.request(service, b"id-0", b"no tag")[1:])
        client.say([talk.client, *talk.request_head, b"", b"id-0", b"no service"])
        client.say(talk.request(service, b"id-1", b"good"))
        # The first thing that the worker gets is the good one.
        order = worker.hear()
        assert talk.body_of(order) == [b"good"]
        # A worker whose message makes no sense is treated as invalid: its request goes to somebody else.
        worker.say([talk.worker, b"\x7f", b"?"])
        wait_for(lambda: workers_of(broker, service) == 0)
        with worker_of(broker, talk, service) as other:
            other.say(talk.reply(other.hear(), b"better"))
            assert client.hear() == talk.final(service, b"id-1", b"better")


@statement(mdp1="MDP1-31 MDP1-33 MDP1-35", mdp2="MDP2-33 MDP2-35 MDP2-37", mdr="MDR-39 MDR-41 MDR-43")
def test_a_silent_worker_is_lost_and_its_request_resent(
    hasty: LiveBroker, talk: Talk, service: bytes
) -> None:
    assert 3 <= LIVENESS <= 5
    with Talker(hasty, "workers", talk) as worker, Talker(hasty, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"work"))
        client.say(talk.request(b"mmi.nothing", b"id-0", b""))
        assert client.hear() == talk.final(b"mmi.nothing", b"id-0", b"501")
        # The request waits for it, so that it gets it however long this machine stalls.
        worker.say(talk.ready(service))
        order = worker.hear()
        with Talker(hasty, "workers", talk) as other:
            other.say(talk.ready(service))

            def takes_over() -> Frames | None:
                other.say(talk.heartbeat())
                said = (other.get(BEAT_S / 2) or [])[len(other.lead) :]
                if said == bye(talk):
                    # This machine stalled, and it was lost as well.
                    other.say(talk.ready(service))
                return said if talk.body_of(said) == [b"work"] else None

            taken = wait_for(takes_over)
            assert taken is not None
            # Nothing but beats was sent to the lost one, and then nothing more.
            left = [frames[len(worker.lead) :] for frames in iter(lambda: worker.get(0), None)]
            assert all(frames == [talk.worker, talk.beat] for frames in left), left
            assert silent(worker, 2 * BEAT_S)
            # The first answer ends the request, whoever gives it; the second one is dropped.
            other.say(talk.reply(taken, b"first"))
            assert client.hear() == talk.final(service, b"id-1", b"first")
            worker.say(talk.reply(order, b"second"))
            # The lost one has nothing to do any more: it is told to begin anew.
            assert worker.hear() == bye(talk)
            assert silent(client, BEAT_S)


@statement(mdp1="MDP1-27 MDP1-28", mdp2="MDP2-29 MDP2-30", mdr="MDR-33 MDR-34")
def test_who_beats_stays(hasty: LiveBroker, talk: Talk, service: bytes) -> None:
    numbers = count()

    def beat() -> Iterator[bool]:
        name = service + b"-%d" % next(numbers)
        with Talker(hasty, "workers", talk) as worker, Talker(hasty, "clients", talk) as client:
            worker.say(talk.ready(name))
            # Longer than silence is allowed to last; every answer is as good as a heartbeat.
            for turn in range(LIVENESS * 2):
                if turn % 2:
                    client.say(talk.request(name, b"id-%d" % turn, b"x"))
                    order = worker.hear()
                    if order == bye(talk):
                        yield False
                    worker.say(talk.reply(order, b"y"))
                    assert client.hear() == talk.final(name, b"id-%d" % turn, b"y")
                else:
                    worker.say(talk.heartbeat())
                let_pass(worker, DEAD_S / LIVENESS)
                yield workers_of(hasty, name) == 1

    assert is_kept(beat, DEAD_S)


@statement(mdp1="MDP1-18 MDP1-34", mdp2="MDP2-19 MDP2-36", mdr="MDR-21 MDR-42")
def test_the_least_recently_used_worker_is_next(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with (
        worker_of(broker, talk, service) as first,
        worker_of(broker, talk, service) as second,
        Talker(broker, "clients", talk) as client,
    ):
        for number, worker in enumerate((first, second, first, second)):
            client.say(talk.request(service, b"id-%d" % number, b"x"))
            worker.say(talk.reply(worker.hear(), b"y"))
            assert client.hear() == talk.final(service, b"id-%d" % number, b"y")


@statement(mdp1="MDP1-37", mdp2="MDP2-39")
def test_requests_wait_for_a_worker_and_expire(
    broker: LiveBroker, expiring: LiveBroker, talk: Talk, service: bytes
) -> None:
    with Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"", b"wait"))
        with worker_of(broker, talk, service) as worker:
            worker.say(talk.reply(worker.hear(), b"done"))
            assert client.hear() == talk.final(service, b"", b"done")
    with Talker(expiring, "clients", talk) as client:
        with worker_of(expiring, talk, service) as worker:
            worker.say(talk.farewell())
            wait_for(lambda: workers_of(expiring, service) == 0)
        client.say(talk.request(service, b"", b"in vain"))
        *head, body = client.hear()
        assert head == talk.final(service, b"")
        assert json.loads(body)["error"] == "expired"


@statement(mdp1="MDP1-1", mdp2="MDP2-1", mdr="MDR-1")
def test_either_socket_takes_either_role(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with Talker(broker, "clients", talk) as worker, Talker(broker, "workers", talk) as client:
        worker.say(talk.ready(service))
        client.say(talk.request(service, b"id-1", b"x"))
        worker.say(talk.reply(worker.hear(), b"y"))
        assert client.hear() == talk.final(service, b"id-1", b"y")


@pytest.mark.conforms("MMI-1", "MMI-3", "MMI-4")
def test_the_management_interface(broker: LiveBroker, service: bytes) -> None:
    with Peer(broker["majordomo.clients"]) as client, Peer(broker["majordomo.workers"]) as worker:

        def ask(query: bytes, body: bytes) -> bytes:
            client.send(b"", b"MDPC01", query, body)
            head, tag, echoed, answer = client.recv()
            assert (head, tag, echoed) == (b"", b"MDPC01", query)
            return answer

        assert ask(b"mmi.service", service) == b"404"
        worker.send(b"", b"MDPW01", b"\x01", service)
        wait_for(lambda: ask(b"mmi.service", service) == b"200")
        assert ask(b"mmi.unheard-of", service) == b"501"
        with Peer(broker["majordomo.workers"]) as impostor:
            impostor.send(b"", b"MDPW01", b"\x01", b"mmi.service")
            assert impostor.recv() == [b"", b"MDPW01", b"\x05"]
        assert ask(b"mmi.service", b"mmi.service") == b"404"
