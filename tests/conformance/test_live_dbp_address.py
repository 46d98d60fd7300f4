"""DBP nodes at their own address: a REP, a ROUTER or a DEALER there is asked, called and answered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from conformance.dbp_node import BEAT_S, MOST, NOW, Node, is_listed
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient

KINDS = {"REP": zmq.REP, "ROUTER": zmq.ROUTER, "DEALER": zmq.DEALER}


class Listener:
    """A node that listens at an address of its own, and answers there in a thread."""

    def __init__(self, kind: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        # How many frames stand before the command.
        self._lead = {zmq.REP: 0, zmq.ROUTER: 2, zmq.DEALER: 1}[kind]
        self.heard: list[list[bytes]] = []
        self.answering = True
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while not self._done.is_set():
            if not self._socket.poll(20):
                continue
            frames = self._socket.recv_multipart()
            lead, (command, _, *rest) = frames[: self._lead], frames[self._lead :]
            self.heard.append([command, *rest])
            if not self.answering:
                self._done.wait()
            elif command == b"u_U":
                self._socket.send_multipart([*lead, b"o_O", NOW, rest[1][::-1]])
            else:
                self._socket.send_multipart([*lead, b"u.u", NOW])

    def commands(self) -> set[bytes]:
        return {frames[0] for frames in self.heard}

    def close(self) -> None:
        self._done.set()
        self._thread.join(patient(10))
        self._socket.close(0)
        self._context.term()


@contextmanager
def listening(kind: str) -> Iterator[Listener]:
    listener = Listener(KINDS[kind])
    try:
        yield listener
    finally:
        listener.close()


def entry(name: bytes, port: int, **more: object) -> bytes:
    basis = {"name": name.decode(), "ip": "127.0.0.1", "port": port, "function": "test"}
    return json.dumps({**basis, **more}).encode()


def register_and_close(broker: LiveBroker, info: bytes) -> None:
    with Peer(broker["dbp.port"], kind=zmq.REQ) as asking:
        asking.send(b"UwU", NOW, info)
        assert asking.recv()[0] == b"OwO"


@pytest.mark.conforms("DBP-15", "DBP-50")
@pytest.mark.parametrize("kind", KINDS)
def test_after_a_missed_beat_a_node_is_asked_at_its_own_address(
    broker: LiveBroker, service: bytes, kind: str
) -> None:
    with listening(kind) as listener:
        register_and_close(broker, entry(service, listener.port, heartbeat=BEAT_S))
        wait_for(lambda: listener.heard)
        assert listener.heard[0] == [b"<3", b"polybus"]
        # It answers, so it stays for longer than a lease lasts.
        until = time.monotonic() + 2 * MOST * BEAT_S
        wait_for(lambda: time.monotonic() > until)
        assert is_listed(broker, service)
        listener.answering = False
        wait_for(lambda: not is_listed(broker, service))


@pytest.mark.conforms("DBP-51")
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_is_called_at_its_own_address(broker: LiveBroker, service: bytes, kind: str) -> None:
    with listening(kind) as listener, Node(broker) as client:
        register_and_close(broker, entry(service, listener.port, heartbeat=60.0, transport="req"))
        for body in (b"hello", b"again", b"x" * 100_000):
            client.say(b"u_U", service, body)
            assert client.hear() == [b"o_O", body[::-1]]
        assert listener.commands() == {b"u_U"}


@pytest.mark.conforms("DBP-50", "DBP-51")
def test_a_node_on_a_rep_that_closed_its_socket_is_called_where_it_answers(
    broker: LiveBroker, service: bytes
) -> None:
    with listening("REP") as listener, Node(broker) as client:
        register_and_close(broker, entry(service, listener.port, heartbeat=BEAT_S))
        client.say(b"u_U", service, b"hello")
        assert client.hear() == [b"o_O", b"olleh"]
        assert listener.commands() == {b"<3", b"u_U"}


@pytest.mark.conforms("DBP-51")
def test_two_names_at_one_address(broker: LiveBroker, service: bytes) -> None:
    one, two = service + b"-1", service + b"-2"
    with listening("REP") as listener, Node(broker) as client, Node(broker) as owner:
        register_and_close(broker, entry(one, listener.port, heartbeat=60.0, transport="req"))
        owner.say(b"UwU", entry(two, listener.port, heartbeat=60.0, transport="req"))
        assert owner.hear()[0] == b"OwO"
        for name in (one, two):
            client.say(b"u_U", name, b"abc")
            assert client.hear() == [b"o_O", b"cba"]
        # One of them leaves; the other is still called.
        owner.say(b"</3", two)
        wait_for(lambda: not is_listed(broker, two))
        client.say(b"u_U", one, b"def")
        assert client.hear() == [b"o_O", b"fed"]
