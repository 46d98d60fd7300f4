"""eMQP against a broker process: frames as the document has them, over real sockets."""

from __future__ import annotations

import json
import time

import pytest
import zmq

from conformance.live_settings import BEAT_S, DEAD_S, FAST
from support.live import LiveBroker, Peer, wait_for

TAG = b"eMQP/1.0"


class Component(Peer):
    """A DEALER that adds the empty frame and the protocol version, and takes them off."""

    def __init__(self, broker: LiveBroker, port: str) -> None:
        super().__init__(broker[f"emqp.{port}"])

    def say(self, *frames: bytes) -> None:
        self.send(b"", TAG, *frames)

    def hear(self, timeout_s: float = 10.0) -> list[bytes]:
        """The next message that is no heartbeat."""
        empty, tag, *rest = self.recv_until(lambda frames: frames[2] != b"HEARTBEAT", timeout_s)
        assert (empty, tag) == (b"", TAG)
        return rest

    def inform(self, queues: bytes, role: bytes = b"worker") -> None:
        self.say(b"INFORM", b"inform-1", queues, role)
        command, own_id, acked = self.hear()
        assert (command, acked) == (b"ACK", b"inform-1")
        assert own_id

    def is_idle(self) -> bool:
        """Whether nothing but heartbeats comes for two beats."""
        until = time.monotonic() + 2 * BEAT_S
        while (left_s := until - time.monotonic()) > 0:
            found = self.get(left_s)
            if found is not None and found[2] != b"HEARTBEAT":
                return False
        return True


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
            empty, tag, command, own_id, when = component.recv(BEAT_S * 3)
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
def test_a_silent_worker_is_sent_nothing_more(broker: LiveBroker, service: bytes) -> None:
    with Component(broker, "workers") as worker, Component(broker, "clients") as client:
        worker.inform(b'[[10, "%b"]]' % service)
        worker.say(b"READY", b"ready-1")
        wait_for(lambda: not broker.has_workers(service.decode()), DEAD_S * 5)
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
        broker.ask("ping")
        client.say(b"REQUEST", b"find-me", service, b"", b"x")
        record = json.loads(tap.recv()[3])["ok"]
        assert (record["what"], record["request_id"]) == ("accepted", "find-me")


@pytest.mark.conforms("EMQP-8", "EMQP-9", "EMQP-33", "EMQP-34", "EMQP-35")
def test_disconnect_on_the_admin_port_lets_work_finish() -> None:
    with (
        LiveBroker(FAST) as broker,
        Component(broker, "workers") as worker,
        Component(broker, "clients") as client,
    ):
        # Anybody else who says it is told no.
        client.say(b"DISCONNECT", b"d-0")
        assert client.hear()[0] == b"REPLY"
        worker.inform(b'[[10, "queue"]]')
        worker.say(b"READY", b"ready-1")
        client.say(b"REQUEST", b"job-1", b"queue", b"reply-requested", b"x")
        assert client.hear()[2] == b"job-1"
        token = worker.hear()[1]
        with Component(broker, "admin") as admin:
            admin.say(b"DISCONNECT", b"d-1")
            command, _, acked = admin.hear()
            assert (command, acked) == (b"ACK", b"d-1")
        # No new work is taken, what is pending completes, everybody hears goodbye, and the broker is gone.
        client.say(b"REQUEST", b"job-2", b"queue", b"reply-requested", b"x")
        command, _, refusal, original = client.hear()
        assert (command, original, json.loads(refusal)["error"]) == (b"REPLY", b"job-2", "draining")
        worker.say(b"REPLY", b"reply-1", b"done", token)
        assert client.hear()[2] == b"done"
        assert worker.hear()[0] in (b"KBYE", b"KBAI")
        assert broker.process.wait(10) == 0
