"""With `dbp.strict` the broker sends the document's frames: every kind of message, frame by frame."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
import zmq

from conformance.dbp_node import BEAT_S, NOW, Node, info
from conformance.live_settings import FAST
from support.live import LiveBroker, Peer, wait_for


@pytest.fixture(scope="module")
def strict() -> Iterator[LiveBroker]:
    with LiveBroker({**FAST, "dbp.strict": True}) as broker:
        yield broker
        assert not broker.crashes(), broker.crashes()


def frames_of(peer: Peer, command: bytes) -> list[bytes]:
    """The next message with this command, without its time; all others must be heartbeats."""
    frames = peer.recv_until(lambda frames: frames[1] != b"<3" or command == b"<3")
    assert frames[:2] == [b"", command], frames
    assert abs(float(frames[2]) - time.time()) < 60
    return [*frames[:2], *frames[3:]]


@pytest.mark.conforms("DBP-43", "DBP-4", "DBP-10", "DBP-11", "DBP-12", "DBP-13", "DBP-14")
def test_every_message_has_the_documents_frames(strict: LiveBroker, service: bytes) -> None:
    with Node(strict) as node, Node(strict) as client:
        # DENIED: empty, '(O_O)', time, reasons.
        node.say(b"UwU", b"{}")
        empty, command, reason = frames_of(node, b"(O_O)")
        assert (empty, command, reason) == (b"", b"(O_O)", b"name is missing")
        # APPROVED: empty, 'OwO', time, configuration.
        node.say(b"UwU", info(service, BEAT_S))
        empty, command, configuration = frames_of(node, b"OwO")
        assert json.loads(configuration)["heartbeat_s"] == BEAT_S
        # HEARTBEAT: empty, '<3', time, name.
        assert frames_of(node, b"<3") == [b"", b"<3", b"polybus"]
        # AWK, after a HEARTBEAT and after an UPDATE: empty, 'u.u', time.
        node.say(b"<3", service)
        assert frames_of(node, b"u.u") == [b"", b"u.u"]
        node.say(b"UoU", json.dumps({"name": service.decode(), "function": "new", "heartbeat": 60}).encode())
        assert frames_of(node, b"u.u") == [b"", b"u.u"]
        # REPLY: empty, 'o_O', time, JSON; for information, for an inactive service, and to a call.
        client.say(b"u_U", service)
        empty, command, body = frames_of(client, b"o_O")
        assert json.loads(body)[service.decode()]["function"] == "new"
        client.say(b"u_U", b"nobody")
        empty, command, body = frames_of(client, b"o_O")
        assert list(json.loads(body)) == ["Error"]
        # REQUEST to the service: empty, 'u_U', time, service, and the body of the call.
        client.say(b"u_U", service, b"question")
        assert frames_of(node, b"u_U") == [b"", b"u_U", service, b"question"]
        node.say(b"o_O", b"answer")
        assert frames_of(client, b"o_O") == [b"", b"o_O", b"answer"]
        # DISCONNECT: empty, '</3', time.
        node.say(b"o_O", b"an answer to nothing")
        assert frames_of(node, b"</3") == [b"", b"</3"]


@pytest.mark.conforms("DBP-43")
def test_a_req_peer_gets_them_without_the_empty_frame(strict: LiveBroker) -> None:
    with Peer(strict["dbp.port"], kind=zmq.REQ) as req:
        req.send(b"<3", NOW, b"nobody")
        command, _ = req.recv()
        assert command == b"</3"


@pytest.mark.conforms("DBP-43", "DBP-15")
def test_datagrams_have_the_same_parts(strict: LiveBroker, service: bytes) -> None:
    with Node(strict) as node, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beats:
        node.say(b"UwU", info(service, BEAT_S))
        agreed = json.loads(frames_of(node, b"OwO")[2])
        beats.settimeout(10.0)
        beats.sendto(b"<3 %s %s" % (NOW, service), ("127.0.0.1", agreed["udp"]))
        command, when, name = beats.recv(1000).split(b" ")
        assert (command, name) == (b"<3", b"polybus")
        assert abs(float(when) - time.time()) < 60


@pytest.mark.conforms("DBP-43", "DBP-11")
def test_every_refusal_is_the_documents(strict: LiveBroker, service: bytes) -> None:
    """Also towards peers that write the time as upstream does."""
    with Peer(strict["dbp.port"], kind=zmq.REQ) as hermes:
        hermes.send(b"UoU", b"\0\0\xca\x4e", json.dumps({"name": service.decode()}).encode())
        command, when, reason = hermes.recv()
        assert (command, len(when)) == (b"(O_O)", 4)
        assert b"register first" in reason


@pytest.mark.conforms("DBP-8", "DBP-43")
def test_the_minimum_is_asked_of_everybody(strict: LiveBroker, service: bytes) -> None:
    """Upstream names no function and no heartbeat timing: strictly that is not enough."""
    registration = {"name": service.decode(), "interfaces": {"router": {"ip": "127.0.0.1", "port": 7777}}}
    with Peer(strict["dbp.port"], kind=zmq.REQ) as hermes:
        hermes.send(b"UwU", NOW, json.dumps(registration).encode())
        command, _, *reasons = hermes.recv()
        assert (command, reasons) == (b"(O_O)", [b"function is missing", b"heartbeat is missing"])
    with Peer(strict["dbp.port"], kind=zmq.REQ) as hermes:
        hermes.send(b"UwU", NOW, json.dumps({**registration, "function": "f", "heartbeat": 60}).encode())
        assert hermes.recv()[0] == b"OwO"


@pytest.mark.conforms("DBP-43", "DBP-12")
def test_a_node_is_asked_at_its_address_in_the_documents_words(strict: LiveBroker, service: bytes) -> None:
    with Peer(strict["dbp.port"], kind=zmq.REQ) as req, zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        interfaces = {"router": {"ip": "127.0.0.1", "port": port}}
        req.send(b"UwU", NOW, info(service, BEAT_S, port=port, interfaces=interfaces))
        assert req.recv()[0] == b"OwO"
        # It says nothing, so it is asked: empty, '<3', time, name.
        wait_for(lambda: router.poll(10))
        _, empty, command, _, name = router.recv_multipart()
        assert (empty, command, name) == (b"", b"<3", b"polybus")
