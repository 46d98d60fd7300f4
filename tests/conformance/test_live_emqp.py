"""eMQP against a broker process: frames as the document has them, over real sockets."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import zmq

from conformance.live_settings import BEAT_S, UNHURRIED
from support.commands import Running, closing
from support.emqp_component import TAG, Component
from support.live import LiveBroker, Peer, wait_for


@pytest.mark.conforms("EMQP-5", "EMQP-6", "EMQP-10", "EMQP-16", "EMQP-17", "EMQP-26", "EMQP-27", "EMQP-28")
def test_a_job_and_its_result(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.inform(b'[[10, "%b"]]' % service)
        client.say(b"REQUEST", b"job-1", service, b"reply-requested", b"do it")
        command, own_id, receipt = client.hear()
        assert (command, receipt) == (b"REPLY", b"job-1")
        assert own_id
        # Without a READY there is no slot, and nothing is sent.
        assert worker.is_idle()
        worker.say(b"READY", b"ready-1")
        command, token, queue, headers, body = worker.hear()
        assert (command, queue, headers, body) == (b"REQUEST", service, b"reply-requested", b"do it")
        worker.say(b"REPLY", b"reply-1", b"done", token)
        command, _, result, original = client.hear()
        assert (command, result, original) == (b"REPLY", b"done", b"job-1")


@pytest.mark.conforms("EMQP-17")
def test_each_ready_is_one_slot(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.inform(b'[[10, "%b"]]' % service)
        for number in range(3):
            client.say(b"REQUEST", b"job-%d" % number, service, b"", b"%d" % number)
        worker.say(b"READY", b"ready-1")
        worker.say(b"READY", b"ready-2")
        assert [worker.hear()[4], worker.hear()[4]] == [b"0", b"1"]
        assert worker.is_idle()
        worker.say(b"READY", b"ready-3")
        assert worker.hear()[4] == b"2"


@pytest.mark.conforms("EMQP-28")
def test_a_client_that_asked_for_no_result_gets_none(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.inform(b'[[10, "%b"]]' % service)
        worker.say(b"READY", b"ready-1")
        client.say(b"REQUEST", b"job-1", service, b"", b"do it")
        assert client.hear()[2] == b"job-1"
        token = worker.hear()[1]
        worker.say(b"REPLY", b"reply-1", b"done", token)
        assert client.get(2 * BEAT_S) is None


@pytest.mark.conforms("EMQP-28", "EMQP-41")
@pytest.mark.parametrize(
    ("said", "told"),
    # EventMQ's job manager puts every result into an object: its None is a body like any other.
    [(b"", b"True"), (b'{"value": null}', b'{"value": null}'), (b"0", b"0")],
)
def test_a_job_without_information_is_answered_with_true(
    broker: LiveBroker, service: bytes, said: bytes, told: bytes
) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.serve(service)
        client.submit(service, b"reply-requested")
        token, _ = worker.take()
        worker.say(b"REPLY", b"reply-1", said, token)
        assert client.result() == told


# -- who is no worker ------------------------------------------------------------------------------------


@pytest.mark.conforms("EMQP-18", "EMQP-44")
def test_who_has_not_said_inform_is_no_worker(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as stranger, Component(broker, "clients") as client:
        client.submit(service, b"reply-requested")
        stranger.say(b"HEARTBEAT", b"beat-1", b"%d" % time.time())
        stranger.say(b"READY", b"ready-1")
        stranger.say(b"REPLY", b"reply-1", b"done", b"job-1")
        # Neither a job nor a heartbeat, which it would take for a sign that the broker knows it.
        assert stranger.get(3 * BEAT_S) is None
        assert not broker.has_workers(service.decode())
        assert client.get(0) is None
        # INFORM makes it one.
        stranger.serve(service)
        assert stranger.take()[1] == b"do it"


@pytest.mark.conforms("EMQP-44")
def test_the_reply_of_a_worker_that_was_not_given_the_job_is_none(broker: LiveBroker, service: bytes) -> None:
    with (
        Component(broker, "workers") as worker,
        Component(broker, "workers") as other,
        Component(broker, "clients") as stranger,
        Component(broker, "clients") as client,
    ):
        worker.serve(service)
        client.submit(service, b"reply-requested")
        token, _ = worker.take()
        other.inform(b'[[10, "%b"]]' % service)
        for peer in (other, stranger):
            peer.say(b"REPLY", b"reply-1", b"not from you", token)
        # Both were read before this is answered.
        for peer in (other, stranger):
            peer.say(b"REQUEST", b"after", service, b"", b"x")
            assert peer.hear()[2] == b"after"
        worker.say(b"REPLY", b"reply-1", b"done", token)
        assert client.result() == b"done"


# -- jobs that fail, take too long, or outlive those who have to do with them ---------------------------


@pytest.mark.conforms("EMQP-29")
def test_a_failed_job_is_tried_so_often_again_and_no_more(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.serve(service, slots=4)
        client.submit(service, b"reply-requested,retry-count:2")
        for _ in range(3):
            token, body = worker.take()
            assert body == b"do it"
            worker.say(b"REPLY", b"reply-1", b'{"error": "no tea"}', token)
        assert json.loads(client.result())["error"] == "no tea"
        assert worker.is_idle()


@pytest.mark.conforms("EMQP-29")
def test_a_job_that_succeeds_in_the_end_has_a_result(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.serve(service, slots=2)
        client.submit(service, b"reply-requested,retry-count:5")
        for answer in (b'{"error": "no tea"}', b"tea"):
            token, _ = worker.take()
            worker.say(b"REPLY", b"reply-1", answer, token)
        # The client hears nothing of the attempt that failed.
        assert client.result() == b"tea"


@pytest.mark.conforms("EMQP-29")
def test_without_the_header_a_failure_is_final(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.serve(service, slots=2)
        client.submit(service, b"reply-requested")
        token, _ = worker.take()
        worker.say(b"REPLY", b"reply-1", b'{"error": "no tea"}', token)
        assert json.loads(client.result())["error"] == "no tea"
        assert worker.is_idle()


@pytest.mark.conforms("EMQP-30")
def test_a_job_that_takes_too_long_is_stopped_and_0_is_never(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        # Only workers of polybus understand that they are to stop; they say so when they come.
        worker.inform(b'[[10, "%b"]]' % service, b"worker", b'{"polybus": 1}')
        for number in range(2):
            worker.say(b"READY", b"ready-%d" % number)
        client.submit(service, b"reply-requested,timeout:0", b"patient", b"patient")
        client.submit(service, b"reply-requested,timeout:1", b"hasty", b"hasty")
        tokens = {body: token for token, body in (worker.take(), worker.take())}
        assert worker.hear_beating() == (b"CANCEL", tokens[b"hasty"])
        assert json.loads(client.result(b"hasty"))["error"] == "timeout"
        # What comes now is too late, and the other one goes on.
        worker.say(b"REPLY", b"reply-1", b"done after all", tokens[b"hasty"])
        worker.say(b"REPLY", b"reply-2", b"done", tokens[b"patient"])
        assert client.result(b"patient") == b"done"


ENDLESS = """
import os, pathlib
from polybus import Bus

bus = Bus()

@bus.job(queue="endless")
def endless(path):
    pathlib.Path(path).write_text(str(os.getpid()))
    while True:
        pass
"""


@pytest.mark.conforms("EMQP-30")
def test_the_process_of_a_job_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    place = tmp_path / "pid"
    job = {"path": "endless", "callable": "endless", "args": [str(place)]}
    # Our own worker, which beats as often as the document has it: too seldom for the hasty broker.
    with LiveBroker() as broker, Component(broker, "clients") as client:
        worker = Running("worker", "endless:bus", "-c", "1", "--broker", broker["emqp.workers"], cwd=tmp_path)
        with closing(worker):
            worker.wait_for(worker.output, "ready")
            client.submit(b"endless", b"reply-requested,timeout:1", body=json.dumps(["run", job]).encode())
            assert json.loads(client.result())["error"] == "timeout"
            wait_for(lambda: not Path("/proc", place.read_text()).exists())
            assert worker.end(signal.SIGTERM) == 0


@pytest.mark.conforms("EMQP-31")
def test_a_guaranteed_job_outlives_its_worker(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "clients") as client:
        with Component(broker, "workers") as worker:
            worker.serve(service)
            client.submit(service, b"reply-requested,guarantee")
            worker.take()
        with Component(broker, "workers") as worker:
            worker.serve(service)
            token, body = worker.take()
            assert body == b"do it"
            worker.say(b"REPLY", b"reply-1", b"done", token)
            assert client.result() == b"done"


@pytest.mark.conforms("EMQP-28", "EMQP-31")
def test_a_guaranteed_job_outlives_its_client(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "clients", b"one-" + service) as client:
        client.submit(service, b"reply-requested,guarantee")
    with Component(broker, "workers") as worker:
        worker.serve(service)
        token, body = worker.take()
        assert body == b"do it"
        worker.say(b"REPLY", b"reply-1", b"done", token)
        wait_for(lambda: broker.ask("job", job=token.decode())["state"] == "done")
        # It comes back, asks again under the same id, and gets the result of the one run.
        with Component(broker, "clients", b"one-" + service) as client:
            client.submit(service, b"reply-requested,guarantee")
            assert client.result() == b"done"
        assert worker.is_idle()


@pytest.mark.conforms("EMQP-28", "EMQP-31")
def test_a_guaranteed_job_outlives_its_broker() -> None:
    me = b"the same client"
    with LiveBroker(UNHURRIED) as broker:
        with Component(broker, "clients", me) as client, Component(broker, "workers") as worker:
            client.submit(b"queue", b"reply-requested,guarantee", b"queued", b"queued")
            worker.serve(b"running")
            client.submit(b"running", b"reply-requested,guarantee", b"running", b"running")
            worker.take()
            worker.serve(b"done")
            client.submit(b"done", b"reply-requested,guarantee", b"done", b"done")
            token, _ = worker.take()
            worker.say(b"REPLY", b"reply-1", b"result", token)
            assert client.result(b"done") == b"result"
            client.submit(b"lost", b"reply-requested", b"lost", b"lost")
        broker.restart()
        with Component(broker, "clients", me) as client, Component(broker, "workers") as worker:
            # What was done is done; its result is still there.
            client.submit(b"done", b"reply-requested,guarantee", b"done", b"done")
            assert client.result(b"done") == b"result"
            for job in (b"queued", b"running"):
                client.submit(
                    b"queue" if job == b"queued" else job, b"reply-requested,guarantee", job, b"again"
                )
            worker.inform(b'[[10, "queue"], [10, "running"], [10, "done"], [10, "lost"]]')
            for number in range(4):
                worker.say(b"READY", b"ready-%d" % number)
            # The jobs of before, and not those that were just sent with their ids.
            taken = dict(worker.take() for _ in range(2))
            assert set(taken.values()) == {b"queued", b"running"}
            for token, body in taken.items():
                worker.say(b"REPLY", b"reply-1", body + b" is done", token)
            got = {bytes(client.hear()[2]) for _ in range(2)}
            assert got == {b"queued is done", b"running is done"}
            assert worker.is_idle()
        assert not broker.crashes(), broker.crashes()


@pytest.mark.conforms("EMQP-2")
def test_the_heavier_queue_comes_first(broker: LiveBroker, service: bytes) -> None:
    light, heavy = service + b"-light", service + b"-heavy"
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.inform(b'[[1, "%b"], [50, "%b"]]' % (light, heavy))
        for queue in (light, heavy):
            client.say(b"REQUEST", b"job-" + queue, queue, b"", queue)
            client.hear()
        for number, queue in enumerate((heavy, light)):
            worker.say(b"READY", b"ready-%d" % number)
            assert worker.hear()[4] == queue


@pytest.mark.conforms("EMQP-1")
def test_clients_are_served_in_turn(broker: LiveBroker, service: bytes) -> None:
    with (
        Component(broker, "workers") as worker,
        Component(broker, "clients") as greedy,
        Component(broker, "clients") as modest,
    ):
        worker.inform(b'[[10, "%b"]]' % service)
        for number in range(5):
            greedy.say(b"REQUEST", b"g-%d" % number, service, b"", b"greedy")
            greedy.hear()
        modest.say(b"REQUEST", b"m", service, b"", b"modest")
        modest.hear()
        got = []
        for number in range(3):
            worker.say(b"READY", b"ready-%d" % number)
            got.append(worker.hear()[4])
        assert b"modest" in got


@pytest.mark.conforms("EMQP-7", "EMQP-18", "EMQP-21", "EMQP-22")
@pytest.mark.parametrize("role", [b"worker", b"scheduler"])
def test_heartbeats(broker: LiveBroker, service: bytes, role: bytes) -> None:
    with Component(broker, "workers") as component:
        component.inform(b'[[10, "%b"]]' % service if role == b"worker" else b"", role)
        for _ in range(3):
            empty, tag, command, own_id, when = component.recv()
            assert (empty, tag, command) == (b"", TAG, b"HEARTBEAT")
            assert own_id
            assert abs(float(when) - time.time()) < 60
            component.say(b"HEARTBEAT", b"beat-1", b"%d" % time.time())


@pytest.mark.conforms("EMQP-15", "EMQP-25")
def test_a_scheduler_that_begins_anew_is_taken_back(broker: LiveBroker) -> None:
    with Component(broker, "clients") as scheduler:
        scheduler.inform(b"", b"scheduler")
        scheduler.inform(b"", b"scheduler")


@pytest.mark.conforms("EMQP-24")
def test_a_silent_worker_is_sent_nothing_more(hasty: LiveBroker, service: bytes) -> None:
    with Component(hasty, "workers") as worker, Component(hasty, "clients") as client:
        worker.inform(b'[[10, "%b"]]' % service)
        worker.say(b"READY", b"ready-1")
        wait_for(lambda: not hasty.has_workers(service.decode()))
        while worker.get(0) is not None:
            continue
        client.say(b"REQUEST", b"job-1", service, b"", b"anybody?")
        assert client.hear()[2] == b"job-1"
        assert worker.get(2 * BEAT_S) is None


@pytest.mark.conforms("EMQP-9", "EMQP-36", "EMQP-37")
@pytest.mark.parametrize("word", [b"KBAI", b"KBYE"])
def test_after_a_goodbye_nothing_is_sent(broker: LiveBroker, service: bytes, word: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.inform(b'[[10, "%b"]]' % service)
        worker.say(b"READY", b"ready-1")
        worker.say(word, b"bye-1")
        wait_for(lambda: not broker.has_workers(service.decode()))
        while worker.get(0) is not None:
            continue
        client.say(b"REQUEST", b"job-1", service, b"", b"anybody?")
        assert client.hear()[2] == b"job-1"
        assert worker.get(2 * BEAT_S) is None


@pytest.mark.conforms("EMQP-11", "EMQP-12")
def test_publish_with_and_without_headers(broker: LiveBroker, service: bytes) -> None:
    with (
        Component(broker, "clients") as publisher,
        Peer(broker["emqp.subscribe"], kind=zmq.SUB) as subscriber,
    ):

        def has_joined() -> bool:
            publisher.say(b"PUBLISH", b"p-0", service, b"", b"joined?")
            return subscriber.get(0.05) is not None

        wait_for(has_joined)
        publisher.say(b"PUBLISH", b"p-1", service, b"", b"seven frames")
        publisher.say(b"PUBLISH", b"p-2", service, b"six frames")

        def is_new(frames: list[bytes]) -> bool:
            return frames[0] == service and frames[1] != b"joined?"

        assert subscriber.recv_until(is_new) == [service, b"seven frames"]
        assert subscriber.recv_until(is_new) == [service, b"six frames"]


@pytest.mark.conforms("EMQP-38")
def test_a_message_is_traced_by_its_id(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "clients") as client, Peer(broker["admin.port"]) as tap:
        tap.send(b"", b"PBADM1", b"t1", json.dumps({"do": "tap", "service": service.decode()}).encode())
        # On the same connection, so that its answer says that the tap is there.
        tap.send(b"", b"PBADM1", b"p1", json.dumps({"do": "ping"}).encode())
        tap.recv_until(lambda frames: frames[2] == b"p1")
        client.say(b"REQUEST", b"find-me", service, b"", b"x")
        record = json.loads(tap.recv()[3])["ok"]
        assert (record["what"], record["request_id"]) == ("accepted", "find-me")
