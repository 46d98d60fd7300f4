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


# -- registering the node of another ------------------------------------------------------------------


def same(node: DbpNode, **changes: object) -> bytes:
    """What everybody can read of a node, as a registration."""
    return json.dumps({**node.info, **changes}).encode()


def call(broker: LiveBroker, service: bytes, body: bytes) -> bytes:
    with Node(broker) as client:
        client.say(b"u_U", service, body)
        command, answer = client.hear()
        assert command == b"o_O"
        return answer


@pytest.mark.conforms("DBP-11", "DBP-37", "DBP-53")
def test_a_registration_does_not_make_a_stranger_the_owner_of_a_connected_node(
    broker: LiveBroker, service: bytes
) -> None:
    with DbpNode(broker, service.decode(), 60.0, transport="req") as node, Node(broker) as stranger:
        before = entry(broker, service)
        stranger.say(b"UwU", same(node))
        assert_denied(stranger.hear())
        stranger.say(b"UoU", update(service, port=6666))
        assert_denied(stranger.hear())
        assert entry(broker, service) == before
        assert call(broker, service, b"abc") == b"cba"


@pytest.mark.conforms("DBP-37", "DBP-53")
@pytest.mark.parametrize("changes", [{"transport": "none"}, {"transport": "dealer"}, {"heartbeat": 0.05}])
def test_a_strangers_registration_does_not_change_how_a_connected_node_is_called(
    broker: LiveBroker, service: bytes, changes: dict[str, object]
) -> None:
    with DbpNode(broker, service.decode(), 60.0, transport="req") as node, Node(broker) as stranger:
        before = entry(broker, service)
        stranger.say(b"UwU", same(node, **changes))
        assert_denied(stranger.hear())
        assert entry(broker, service) == before
        assert call(broker, service, b"abc") == b"cba"


@pytest.mark.conforms("DBP-53")
@pytest.mark.parametrize("changes", [{}, {"transport": "req"}, {"transport": "dealer"}])
def test_a_strangers_registration_does_not_take_a_connected_node_that_is_only_listed(
    broker: LiveBroker, service: bytes, changes: dict[str, object]
) -> None:
    with Node(broker) as node, Node(broker) as stranger:
        node.register(service, transport="none")
        before = entry(broker, service)
        stranger.say(b"UwU", info(service, **{"transport": "none", **changes}))
        assert_denied(stranger.hear())
        assert entry(broker, service) == before
        # It is still the owner.
        node.say(b"UoU", update(service, port=7778))
        assert node.hear()[0] == b"u.u"


@pytest.mark.conforms("DBP-37", "DBP-40", "DBP-53")
def test_who_registers_a_node_that_closed_its_connection_cannot_move_it(
    broker: LiveBroker, service: bytes
) -> None:
    """The node itself comes back like this, and nothing tells it from a stranger."""
    with DbpNode(broker, service.decode(), 60.0, True, "req") as node, Node(broker) as stranger:
        before = entry(broker, service)
        stranger.say(b"UwU", same(node))
        assert stranger.hear()[0] == b"OwO"
        stranger.say(b"UoU", update(service, port=6666))
        assert_denied(stranger.hear())
        stranger.say(b"UwU", same(node, transport="none"))
        command, reason = stranger.hear()
        assert command == b"(O_O)"
        assert b"is taken by a node that is alive" in reason
        assert entry(broker, service) == before
        assert call(broker, service, b"abc") == b"cba"


@pytest.mark.conforms("DBP-39", "DBP-53")
@pytest.mark.parametrize("words", [(b"</3",), (b"OwO",)], ids=["goodbye", "unexpected"])
def test_who_registers_a_node_that_closed_its_connection_cannot_end_it(
    broker: LiveBroker, service: bytes, words: tuple[bytes, ...]
) -> None:
    with DbpNode(broker, service.decode(), 60.0, True, "req") as node, Node(broker) as stranger:
        stranger.say(b"UwU", same(node))
        assert stranger.hear()[0] == b"OwO"
        asked = len(node.questions)
        stranger.say(*words)
        wait_for(lambda: len(node.questions) > asked)
        # It had the time for an answer, and gave one.
        assert stranger.get(BEAT_S * MOST) is None or words != (b"</3",)
        assert is_listed(broker, service)
        assert call(broker, service, b"abc") == b"cba"


@pytest.mark.conforms("DBP-38", "DBP-53")
def test_who_registers_a_node_that_closed_its_connection_cannot_hurry_it(
    broker: LiveBroker, service: bytes
) -> None:
    with DbpNode(broker, service.decode(), 60.0, True, "req") as node, Node(broker) as stranger:
        node.beating = False
        stranger.say(b"UwU", same(node, heartbeat=0.05))
        command, agreed = stranger.hear()
        assert (command, json.loads(agreed)["heartbeat_s"]) == (b"OwO", 60.0)
        assert entry(broker, service)["heartbeat_s"] == 60.0
        # A late node could be had by anybody.
        assert stranger.get(0.2) is None
        with Node(broker) as other:
            other.say(b"UwU", same(node, port=6666))
            assert other.hear()[0] == b"(O_O)"


@pytest.mark.conforms("DBP-53")
def test_a_node_comes_back_although_a_stranger_registered_it_meanwhile(
    broker: LiveBroker, service: bytes
) -> None:
    with DbpNode(broker, service.decode(), 60.0, True, "req") as node, Node(broker) as stranger:
        stranger.say(b"UwU", same(node))
        assert stranger.hear()[0] == b"OwO"
        with Peer(broker["dbp.port"], kind=zmq.REQ) as again:
            again.send(b"UwU", NOW, same(node, function="new"))
            assert again.recv()[0] == b"OwO"
        assert entry(broker, service)["function"] == "new"
        assert call(broker, service, b"abc") == b"cba"


@pytest.mark.conforms("DBP-9", "DBP-53")
def test_a_node_that_came_back_moves_when_nobody_is_at_its_old_place(
    broker: LiveBroker, service: bytes
) -> None:
    first = DbpNode(broker, service.decode(), 0.5, True, "none")
    first.die()
    with Node(broker) as again:
        again.say(b"UwU", same(first))
        assert again.hear()[0] == b"OwO"
        again.say(b"UoU", update(service, port=7778))
        assert again.hear() == [b"u.u", b""]
        assert entry(broker, service)["port"] == 7778
        # Now it is the owner.
        again.say(b"UoU", update(service, port=7779))
        assert again.hear()[0] == b"u.u"
