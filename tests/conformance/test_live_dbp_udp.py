"""Heartbeats over UDP: the broker broadcasts, services send one-offs; after a missed one they go over TCP."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from conformance.dbp_node import BEAT_S, MOST, NOW, info
from polybus import Worker
from polybus.client.sessions.dbp import DbpWorker
from support.commands import Served, closing
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient
from support.ports import steady_ports

WAIT_S = patient(20.0)


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket that hears broadcasts of this machine, as others may."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ear.bind(("", port))
        yield ear


def heard(ear: socket.socket, timeout_s: float = WAIT_S) -> tuple[list[bytes], str] | None:
    ear.settimeout(timeout_s)
    try:
        packet, (host, port) = ear.recvfrom(1000)
    except TimeoutError:
        return None
    return packet.split(b" "), f"udp://{host}:{port}"


@contextlib.contextmanager
def running(endpoint: str, name: str) -> Iterator[Worker]:
    worker = Worker({name: lambda request: request.body}, endpoint, "dbp")
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.mark.conforms("DBP-15", "DBP-28", "DBP-41")
def test_the_broker_broadcasts_heartbeats_while_nodes_are_registered(tmp_path: Path, service: bytes) -> None:
    ports = steady_ports(["beacon", "broadcast"])
    options = {
        "beacon.enabled": "true",
        "beacon.port": ports["beacon"],
        "dbp.broadcast_port": ports["broadcast"],
    }
    settings = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    with (
        listening(ports["broadcast"]) as ear,
        listening(ports["broadcast"]) as other,
        closing(Served(tmp_path, *settings)) as broker,
        Peer(broker.endpoints["dbp.port"]) as node,
    ):
        # Nobody is registered: there is nobody to beat for.
        assert heard(ear, BEAT_S * MOST) is None
        node.send(b"", b"UwU", NOW, info(service, BEAT_S))
        _, command, _, configuration = node.recv()
        assert command == b"OwO"
        assert b'"broadcast":%d' % ports["broadcast"] in configuration
        began = time.monotonic()
        for _ in range(MOST):
            for one in (ear, other):
                found = heard(one)
                assert found is not None
                (word, when, name), source = found
                assert (word, name) == (b"<3", b"polybus")
                assert abs(float(when) - time.time()) < 60
                # A node knows its broker by this.
                assert source == broker.endpoints["dbp.udp"]
            # It sends no datagram itself.
            node.send(b"", b"<3", NOW, service)
        # At the agreed interval: the first came at once.
        assert time.monotonic() - began > BEAT_S * (MOST - 1) * 0.8
        node.send(b"", b"</3", NOW)
        node.send(b"", b"u_U", NOW, service)

        def is_silent() -> bool:
            return heard(ear, BEAT_S * MOST) is None

        wait_for(is_silent, WAIT_S)


@pytest.mark.conforms("DBP-42")
def test_our_worker_beats_in_datagrams(
    broker: LiveBroker, service: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)
    name = service.decode()
    with running(broker["dbp.port"], name) as worker:

        def view() -> dict[str, object]:
            found: list[dict[str, object]] = [row for row in broker.ask("nodes") if row["node"] == name]
            return found[0] if found else {}

        wait_for(lambda: view().get("beats") == "udp", WAIT_S)
        before = broker.ask("status")["node_datagrams"]
        wait_for(lambda: broker.ask("status")["node_datagrams"] >= before + 3, WAIT_S)
        assert view()["beats"] == "udp"
        assert worker.restarts == 0


def quickly(monkeypatch: pytest.MonkeyPatch, beat_s: float = BEAT_S) -> None:
    monkeypatch.setattr(DbpWorker, "beat_s", beat_s)
    monkeypatch.setattr(DbpWorker, "dead_after_s", beat_s * 50)


class Handmade:
    """A broker made by hand: a ROUTER and a UDP socket that do what the test says."""

    def __init__(self) -> None:
        self.router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.router.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.udp.bind(("127.0.0.1", 0))
        self.broadcast_port = steady_ports(["broadcast"])["broadcast"]

    def approve(self) -> None:
        assert self.router.poll(WAIT_S * 1000), "no registration"
        self.node, _, command, *_ = self.router.recv_multipart()
        assert command == b"UwU"
        config = b'{"udp": %d, "broadcast": %d}' % (self.udp.getsockname()[1], self.broadcast_port)
        self.router.send_multipart([self.node, b"", b"OwO", NOW, config])

    def beat(self) -> None:
        self.udp.sendto(b"<3 %s polybus" % NOW, ("127.255.255.255", self.broadcast_port))

    def packet(self, timeout_s: float = WAIT_S) -> bytes | None:
        self.udp.settimeout(timeout_s)
        try:
            return self.udp.recv(1000)
        except TimeoutError:
            return None

    def __enter__(self) -> Handmade:
        return self

    def __exit__(self, *_: object) -> None:
        self.udp.close()
        self.router.close(0)


def assert_beat(packet: bytes | None) -> None:
    assert packet is not None, "no datagram"
    word, when, name = packet.split(b" ")
    assert (word, name) == (b"<3", b"echo")
    assert abs(float(when) - time.time()) < 60


@pytest.mark.conforms("DBP-15", "DBP-41", "DBP-42")
def test_our_worker_listens_to_the_broadcast_and_goes_over_to_tcp_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beat_s = 1.0
    quickly(monkeypatch, beat_s)
    with Handmade() as broker, running(broker.endpoint, "echo"):
        broker.approve()
        assert_beat(broker.packet())
        # As long as it hears the broadcast, its heartbeats are datagrams.
        for _ in range(3):
            broker.beat()
            assert_beat(broker.packet())
            assert not broker.router.poll(0)
        # A beat of the broker is missing: they go over TCP, and no datagrams come any more.
        wait_for(lambda: broker.router.poll(10), WAIT_S)
        for _ in range(2):
            node, empty, command, _, name = broker.router.recv_multipart()
            assert (node, empty, command, name) == (broker.node, b"", b"<3", b"echo")
            assert broker.router.poll(WAIT_S * 1000)
        while broker.packet(0.01) is not None:
            continue
        assert broker.packet(beat_s * 1.5) is None


@pytest.mark.conforms("DBP-15", "DBP-42")
def test_our_worker_answers_over_tcp_when_its_datagrams_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly(monkeypatch, 1.0)
    with Handmade() as broker, running(broker.endpoint, "echo"):
        broker.approve()
        assert_beat(broker.packet())

        def is_answered() -> bool:
            # What crosses a datagram is no question, so it is asked again.
            broker.router.send_multipart([broker.node, b"", b"<3", NOW, b"polybus"])
            return bool(broker.router.poll(300))

        wait_for(is_answered, WAIT_S)
        _, empty, command, _, name = broker.router.recv_multipart()
        assert (empty, command, name) == (b"", b"<3", b"echo")
