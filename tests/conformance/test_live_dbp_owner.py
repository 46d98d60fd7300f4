"""Who may speak for a registered name: the connection that registered it, and nobody else."""

from __future__ import annotations

import json
import time

import pytest
import zmq

from conformance.dbp_node import BEAT_S, MOST, NOW, Node, info, is_listed
from support.dbp_nodes import DbpNode
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient


def update(name: bytes, **changes: object) -> bytes:
    return json.dumps({"name": name.decode(), **changes}).encode()


def entry(broker: LiveBroker, name: bytes) -> dict[str, object]:
    with Node(broker) as client:
        client.say(b"u_U", name)
        found: dict[str, object] = json.loads(client.hear()[1])[name.decode()]
        return found


def assert_denied(frames: list[bytes]) -> None:
    command, *reasons = frames
    assert command == b"(O_O)"
    assert any(b"registered by another connection" in reason for reason in reasons), reasons


@pytest.mark.conforms("DBP-11", "DBP-37")
@pytest.mark.parametrize("changes", [{"function": "stolen"}, {"transport": "req"}, {"port": 7778}])
def test_a_strangers_update_is_denied_and_calls_go_to_the_holder(
    broker: LiveBroker, service: bytes, changes: dict[str, object]
) -> None:
    with Node(broker) as node, Node(broker) as stranger, Node(broker) as client:
        node.register(service)
        before = entry(broker, service)
        stranger.say(b"UoU", update(service, **changes))
        assert_denied(stranger.hear())
        assert entry(broker, service) == before
        client.say(b"u_U", service, b"hello")
        assert node.hear() == [b"u_U", service, b"hello"]


@pytest.mark.conforms("DBP-37")
@pytest.mark.parametrize("transport", ["req", "none"])
def test_a_strangers_update_is_denied_while_the_holder_is_connected_elsewhere_called(
    broker: LiveBroker, service: bytes, transport: str
) -> None:
    with Node(broker) as node, Node(broker) as stranger:
        node.register(service, transport=transport)
        stranger.say(b"UoU", update(service, function="stolen"))
        assert_denied(stranger.hear())
        assert entry(broker, service)["function"] == "test"
        # The holder itself may.
        node.say(b"UoU", update(service, function="new"))
        assert node.hear()[0] == b"u.u"
        assert entry(broker, service)["function"] == "new"


@pytest.mark.conforms("DBP-38")
@pytest.mark.parametrize("transport", ["dealer", "none"])
def test_a_strangers_heartbeats_keep_nobody_alive(broker: LiveBroker, service: bytes, transport: str) -> None:
    with Node(broker) as node:
        node.register(service, BEAT_S, transport=transport)
        until = time.monotonic() + patient(10.0)
        while is_listed(broker, service):
            assert time.monotonic() < until, "the stranger's heartbeats keep it alive"
            with Node(broker) as stranger:
                stranger.say(b"<3", service)
                assert stranger.hear()[0] == b"</3"
            node.get(BEAT_S / 4)


@pytest.mark.conforms("DBP-38")
def test_a_claimants_heartbeats_do_not_keep_the_holder_alive(broker: LiveBroker, service: bytes) -> None:
    heartbeat_s = 1.0
    with Node(broker) as holder, Node(broker) as claimant:
        holder.register(service, heartbeat_s)
        # The same ip and port: the holder is asked, and says nothing.
        claimant.say(b"UwU", info(service, heartbeat_s))
        until = time.monotonic() + patient(10.0)
        while (frames := claimant.get(heartbeat_s / 5)) is None:
            assert time.monotonic() < until, "the claimant's heartbeats keep the holder alive"
            claimant.say(b"<3", service)
        assert frames[1] == b"OwO", frames


@pytest.mark.conforms("DBP-39")
@pytest.mark.parametrize("transport", ["dealer", "req", "none"])
def test_a_strangers_disconnect_removes_nobody(broker: LiveBroker, service: bytes, transport: str) -> None:
    with Node(broker) as node, Node(broker) as stranger:
        node.register(service, transport=transport)
        stranger.say(b"</3", service)
        assert_denied(stranger.hear())
        assert is_listed(broker, service)


@pytest.mark.conforms("DBP-39")
def test_a_goodbye_over_another_connection_counts_if_the_node_does_not_answer(
    broker: LiveBroker, service: bytes
) -> None:
    with DbpNode(broker, service.decode(), 60.0, True, "req") as node, Node(broker) as other:
        other.say(b"</3", service)
        wait_for(lambda: node.questions)
        # It answers, so it stays.
        assert other.get(BEAT_S * MOST) is None
        assert is_listed(broker, service)
        node.beating = node.answering = False
        other.say(b"</3", service)
        wait_for(lambda: not is_listed(broker, service))


@pytest.mark.conforms("DBP-37", "DBP-40")
def test_who_closed_its_connection_changes_its_description_only(broker: LiveBroker, service: bytes) -> None:
    router = {"ip": "127.0.0.1", "port": 7777}
    registration = {"name": service.decode(), "interfaces": {"router": router}, "topics": None}
    with Peer(broker["dbp.port"], kind=zmq.REQ) as hermes:
        hermes.send(b"UwU", NOW, json.dumps(registration).encode())
        assert hermes.recv()[0] == b"OwO"
    with Peer(broker["dbp.port"], kind=zmq.REQ) as hermes:
        hermes.send(b"UoU", NOW, update(service, topics=["horses"]))
        assert hermes.recv()[0] == b"u.u"
    assert entry(broker, service)["topics"] == ["horses"]
    with Peer(broker["dbp.port"], kind=zmq.REQ) as stranger:
        stranger.send(b"UoU", NOW, update(service, interfaces={"router": {**router, "port": 7778}}))
        command, _, reason = stranger.recv()
        assert command == b"(O_O)"
        assert b"register again" in reason
    assert entry(broker, service)["interfaces"] == {"router": router}
