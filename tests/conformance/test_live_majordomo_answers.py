"""What the Majordomo family says of commands that are unexpected or invalid, against a broker process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from conformance.live_settings import BEAT_S, UNHURRIED
from polybus import Client, Options
from support.live import LiveBroker, wait_for
from support.live_majordomo import Talker, bye, silent, worker_of, workers_of
from support.majordomo import MDR, Frames, Talk, statement
from support.patience import patient


def assert_sent_away(worker: Talker, why: object) -> None:
    """The broker sends DISCONNECT to a worker that goes on beating, so it was not lost by its silence."""
    until = time.monotonic() + patient(10)
    while time.monotonic() < until:
        frames = worker.get(BEAT_S / 4)
        if frames == [*worker.lead, *bye(worker.talk)]:
            return
        worker.say(worker.talk.heartbeat())
    raise AssertionError(f"the broker keeps the worker after {why}")


def answers_of(talk: Talk, order: Frames) -> Iterator[Frames]:
    """Every command by which a worker may answer this order."""
    yield talk.reply(order, b"X")
    yield talk.reply(order, b'{"error": "failed"}')
    yield talk.reply(order)
    if talk.has_partials:
        yield talk.part(order, b"X")
        yield talk.part(order)


@statement(mdp1="MDP1-23", mdp2="MDP2-24", mdr="MDR-27")
def test_an_answer_before_ready_ends_the_conversation(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    for answer in answers_of(talk, talk.order(b"nobody's", b"id-1")):
        with Talker(broker, "workers", talk) as stranger, Talker(broker, "clients", talk) as client:
            stranger.say(answer)
            # The next message, not the next one that is no heartbeat: a stranger gets none.
            assert stranger.recv() == [*stranger.lead, *bye(talk)], answer
            # And then no further commands.
            client.say(talk.request(service, b"id-1", b"anybody?"))
            assert silent(stranger, BEAT_S * 2)


@statement(mdp1="MDP1-23", mdp2="MDP2-24", mdr="MDR-27")
def test_a_late_answer_of_a_worker_is_dropped(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"id-1", b"x"))
        client.say(talk.request(service, b"id-2", b"y"))
        first = worker.hear()
        worker.say(talk.reply(first, b"in time"))
        second = worker.hear()
        assert talk.body_of(second) == [b"y"]
        # It answers the first again, and is not sent away: the second would be taken from it.
        for answer in answers_of(talk, first):
            worker.say(answer)
        worker.say(talk.reply(second, b"Y"))
        assert client.hear() == talk.final(service, b"id-1", b"in time")
        assert client.hear() == talk.final(service, b"id-2", b"Y")


@statement(mdp1="MDP1-23 MDP1-32", mdp2="MDP2-24 MDP2-34", mdr="MDR-27 MDR-40")
def test_a_worker_of_the_last_broker_is_sent_to_register(talk: Talk, service: bytes) -> None:
    with LiveBroker({"limits.orphan_grace_s": 60, "broker.drain_s": 0.1}) as broker:
        orders = []
        with (
            worker_of(broker, talk, service) as first,
            worker_of(broker, talk, service) as second,
            Client(broker["emqp.clients"], "emqp", timeout_s=patient(20)) as client,
        ):
            for worker in (first, second, None):
                job = client.submit(service, b"work", options=Options(guarantee=True), wants_reply=False)
                job.result()
                # The last one waits: both workers are busy.
                orders += [] if worker is None else [worker.hear()]
            # A broker that is killed may not have written yet that workers have the jobs.
            broker.stop()
            broker.restart()
        before, after = orders

        def is_done(order: Frames) -> bool:
            return bool(broker.ask("job", job=order[2].decode())["state"] == "done")

        # A worker does not know that the broker is another one. It is told, and its answer counts.
        with Talker(broker, "workers", talk) as worker:
            if talk.has_partials:
                worker.say(talk.part(before, b"nearly"))
            worker.say(talk.reply(before, b"done"))
            # It is told once.
            assert worker.recv() == [*worker.lead, *bye(talk)]
            wait_for(lambda: is_done(before))
            # That did not make it a worker: it is not given the job that waits.
            assert silent(worker, BEAT_S)
            assert workers_of(broker, service) == 0
            assert not is_done(after)
        # An answer after READY counts as well: nobody runs a job a second time.
        with worker_of(broker, talk, service) as worker:
            worker.say(talk.reply(after, b"done"))
            wait_for(lambda: is_done(after))
            order = worker.hear()
            assert order[2] not in (before[2], after[2])
            assert talk.body_of(order) == [b"work"]


@statement(mdp1="MDP1-12", mdp2="MDP2-13 MDP2-14")
def test_answers_without_a_body_frame_are_empty(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    with worker_of(broker, talk, service) as worker, Talker(broker, "clients", talk) as client:
        client.say(talk.request(service, b"", b"x"))
        order = worker.hear()
        if talk.has_partials:
            worker.say(talk.part(order))
            worker.say(talk.reply(order))
            assert client.hear() == talk.partial(service, b"", b"")
        else:
            worker.say(talk.reply(order))
        assert client.hear() == talk.final(service, b"", b"")


@pytest.mark.conforms("MDR-44")
def test_commands_of_workers_have_five_frames_or_more(broker: LiveBroker, service: bytes) -> None:
    with worker_of(broker, MDR, service) as worker, Talker(broker, "clients", MDR) as client:
        client.say([b"MDRC01", b"\x01", service, b"id-1", b""])
        _, _, address, empty, request_id, *_ = worker.hear()
        worker.say([b"MDRW01", b"\x03", address, empty, request_id])
        worker.say([b"MDRW01", b"\x04", address, empty, request_id])
        # The client's leg has a body frame at least: 5 frames with the body from frame 4 on.
        assert client.hear() == [b"MDRC01", b"\x02", service, b"id-1", b""]
        assert client.hear() == [b"MDRC01", b"\x03", service, b"id-1", b""]
        # One frame less is invalid, in either role; the client's is dropped.
        client.say([b"MDRC01", b"\x01", service, b"id-2"])
        client.say([b"MDRC01", b"\x01", service, b"id-3", b"good"])
        order = worker.hear()
        assert order[4:] == [b"id-3", b"good"]
        worker.say([b"MDRW01", b"\x04", order[2], b""])
        assert_sent_away(worker, "a FINAL of 4 frames")


def assert_not_an_answer(broker: LiveBroker, talk: Talk, service: bytes, change: dict[int, bytes]) -> None:
    """Answers that are changed so end the worker's conversation, and the next worker gets the request."""
    for at in range(len(list(answers_of(talk, talk.order(b"a", b"b"))))):
        request_id = b"id-%d" % at
        with Talker(broker, "clients", talk) as client, worker_of(broker, talk, service) as worker:
            client.say(talk.request(service, request_id, b"work"))
            answer = list(answers_of(talk, worker.hear()))[at]
            for index, frame in change.items():
                answer[index] = frame
            worker.say(answer)
            assert_sent_away(worker, answer)
            with worker_of(broker, talk, service) as other:
                other.say(talk.reply(other.hear(), b"right"))
                assert client.hear() == talk.final(service, request_id, b"right")
                other.say(talk.farewell())
                wait_for(lambda: workers_of(broker, service) == 0)


@pytest.mark.conforms("MDR-45")
def test_an_answer_with_another_id_is_none(broker: LiveBroker, service: bytes) -> None:
    assert_not_an_answer(broker, MDR, service, {4: b"another"})


@statement(mdp1="MDP1-26", mdp2="MDP2-28", mdr="MDR-31")
def test_an_answer_without_its_empty_frame_is_none(broker: LiveBroker, talk: Talk, service: bytes) -> None:
    assert_not_an_answer(broker, talk, service, {3: b"not empty"})


@statement(mdp1="MDP1-17 MDP1-24", mdp2="MDP2-18 MDP2-25", mdr="MDR-20 MDR-28")
def test_a_worker_that_sends_what_is_invalid_is_invalid(
    broker: LiveBroker, talk: Talk, service: bytes
) -> None:
    for invalid in (
        [b"NOBODY", b"\x01", service],
        [b"NOBODY"],
        [talk.worker],
        [talk.worker, b"\x7f"],
        [talk.worker, b"\x01"],
        [talk.worker, talk.beat, b"more"],
        [talk.worker, talk.disconnect, b"more"],
        [talk.client],
        [talk.client, b"\x7f", b""],
    ):
        with worker_of(broker, talk, service) as worker:
            worker.say(invalid)
            assert_sent_away(worker, invalid)
            assert workers_of(broker, service) == 0
        # A stranger's is dropped, as a client's is: neither has a conversation that could end.
        with Talker(broker, "workers", talk) as stranger:
            stranger.say(invalid)
            stranger.say(talk.request(b"mmi.nothing", b"id-1", b""))
            assert stranger.hear() == talk.final(b"mmi.nothing", b"id-1", b"501"), invalid


def test_a_body_that_is_too_large_is_refused_though_a_worker_is_free(service: bytes) -> None:
    with (
        LiveBroker({**UNHURRIED, "limits.body_bytes": 1000}) as broker,
        worker_of(broker, MDR, service) as worker,
        Talker(broker, "clients", MDR) as client,
    ):
        client.say(MDR.request(service, b"id-1", b"x" * 600, b"x" * 401))
        *head, body = client.hear()
        assert head == MDR.final(service, b"id-1")
        assert json.loads(body)["error"] == "too_large"
        client.say(MDR.request(service, b"id-2", b"x" * 600, b"x" * 400))
        assert MDR.body_of(worker.hear()) == [b"x" * 600, b"x" * 400]
