"""Our own EBUS peers against a broker made by hand: which sockets they close, and whom they listen to."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from polybus import AsyncClient, Client, Worker
from polybus.client import hub
from polybus.client.sessions import ebus
from support.fake_brokers import Background
from support.patience import patient
from support.waiting import until

WAIT_MS = int(patient(10.0) * 1000)
# Fast beats, for tests in which the broker is silent.
BEAT_S = 0.05

DISCONNECT = (b"", b"EBW01", b"DISCONNECT")


class Side:
    """A bound socket of a broker, and the connections that come and go there."""

    def __init__(self, kind: int) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.ROUTER:
            # As the broker has it: an identity that comes again takes the place of the old connection.
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        elif kind == zmq.XPUB:
            # Say every subscription, also one that another connection has already.
            self.socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        seen = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(seen)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.accepted = self.lost = 0

    def recv(self) -> tuple[bytes, int, list[bytes]]:
        """The identity of a peer, the port that its connection comes from, and what it says."""
        assert self.socket.poll(WAIT_MS), "the peer said nothing"
        identity, *frames = self.socket.recv_multipart(copy=False)
        with socket.socket(fileno=os.dup(frames[-1].get(zmq.SRCFD))) as line:
            port = int(line.getpeername()[1])
        return bytes(identity), port, [bytes(frame) for frame in frames]

    def recv_word(self, word: bytes) -> tuple[bytes, int, list[bytes]]:
        while True:
            found = self.recv()
            if word in found[2]:
                return found

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def counts(self) -> tuple[int, int]:
        """How many connections have come so far, and how many of them have gone."""
        while self._monitor.poll(0):
            kind = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
            self.accepted += kind == zmq.EVENT_ACCEPTED
            self.lost += kind == zmq.EVENT_DISCONNECTED
        return self.accepted, self.lost

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)


@pytest.fixture
def sides() -> Iterator[Callable[[int], Side]]:
    opened: list[Side] = []

    def open_side(kind: int) -> Side:
        opened.append(Side(kind))
        return opened[-1]

    yield open_side
    for side in opened:
        side.close()


@contextmanager
def working(endpoint: str) -> Iterator[Worker]:
    worker = Worker({"echo": lambda request: request.body}, endpoint, "ebus")
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(patient(10))
        assert not thread.is_alive()


@pytest.fixture(
    params=[
        pytest.param("disconnect", marks=pytest.mark.conforms("EBUS-9", "EBUS-22")),
        pytest.param("silence", marks=pytest.mark.conforms("EBUS-10")),
    ]
)
def end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Side, bytes], None]:
    """How a conversation ends: the broker says so, or it says nothing."""
    if request.param == "silence":
        monkeypatch.setattr(ebus, "BEAT_S", BEAT_S)
        return lambda side, identity: None
    return lambda side, identity: side.send(identity, *DISCONNECT)


# -- requests and work ----------------------------------------------------------------------------


def test_a_client_replaces_its_socket(
    sides: Callable[[int], Side], end: Callable[[Side, bytes], None]
) -> None:
    broker = sides(zmq.ROUTER)
    with Client(broker.endpoint, "ebus", timeout_s=patient(10.0)) as client:
        call = Background(client.call, "echo", b"in")
        identity, port, asked = broker.recv_word(b"REQ")
        assert broker.counts() == (1, 0)
        end(broker, identity)
        again, new_port, repeated = broker.recv_word(b"REQ")
        # The same client asks the same thing with the same id, on another connection; the old one is closed.
        assert (again, repeated) == (identity, asked)
        assert new_port != port
        until(lambda: broker.counts()[1] == 1, "the old connection's end", 10)
        broker.send(identity, b"", b"EBW01", b"REPLY", asked[4], b"out")
        assert call.join() == b"out"


def test_a_worker_replaces_its_socket(
    sides: Callable[[int], Side], end: Callable[[Side, bytes], None]
) -> None:
    broker = sides(zmq.ROUTER)
    with working(broker.endpoint) as worker:
        identity, port, ready = broker.recv_word(b"READY")
        assert broker.counts() == (1, 0)
        end(broker, identity)
        new_identity, new_port, again = broker.recv_word(b"READY")
        assert again == ready
        assert new_identity != identity
        assert new_port != port
        until(lambda: broker.counts()[1] >= 1, "the old connection's end", 10)
        assert worker.restarts >= 1


def test_a_worker_closes_its_socket_before_it_comes_back(
    sides: Callable[[int], Side], end: Callable[[Side, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RESTART_S", 3600.0)
    broker = sides(zmq.ROUTER)
    with working(broker.endpoint):
        identity, _, _ = broker.recv_word(b"READY")
        end(broker, identity)
        until(lambda: broker.counts() == (1, 1), "the end of the connection", 10)


@pytest.mark.conforms("EBUS-9")
def test_an_answer_after_a_disconnect_is_not_sent(sides: Callable[[int], Side]) -> None:
    broker = sides(zmq.ROUTER)
    started, gate = threading.Event(), threading.Event()

    def handle(request: object) -> bytes:
        started.set()
        assert gate.wait(patient(10))
        return b"late"

    worker = Worker({"echo": handle}, broker.endpoint, "ebus")
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        identity, _, _ = broker.recv_word(b"READY")
        broker.send(identity, b"EBC01", b"REQ", b"r1", b"in", b"60000")
        assert started.wait(patient(10))
        broker.send(identity, *DISCONNECT)
        until(lambda: broker.counts()[1] == 1, "the end of the connection", 10)
        gate.set()
        # The next one is as good as the first, and the answer was nobody's.
        identity, _, frames = broker.recv()
        while b"READY" not in frames:
            assert b"REPLY" not in frames
            identity, _, frames = broker.recv()
        broker.send(identity, b"EBC01", b"REQ", b"r2", b"in", b"60000")
        assert broker.recv_word(b"REPLY")[2] == [b"EBW01", b"REPLY", b"r2", b"late"]
    finally:
        gate.set()
        worker.stop()
        thread.join(patient(10))
        assert not thread.is_alive()


# -- topics ---------------------------------------------------------------------------------------


class Broker:
    """Three sides of a broker: for requests, publications and subscriptions."""

    def __init__(self, sides: Callable[[int], Side]) -> None:
        self.requests, self.inbound, self.outbound = sides(zmq.ROUTER), sides(zmq.XSUB), sides(zmq.XPUB)
        self.inbound.send(b"\x01")

    @property
    def settings(self) -> dict[str, str]:
        return {"publish_address": self.inbound.endpoint, "subscribe_address": self.outbound.endpoint}

    def published(self) -> list[bytes]:
        """What is published next. While this waits, new publishers hear what the broker subscribes to."""
        assert self.inbound.socket.poll(WAIT_MS), "nothing was published"
        return self.inbound.socket.recv_multipart()

    def subscribed(self) -> bytes:
        """What is subscribed to next, or no longer."""
        assert self.outbound.socket.poll(WAIT_MS), "nobody subscribed"
        return self.outbound.socket.recv()


def test_a_client_closes_the_sockets_of_its_topics_too(
    sides: Callable[[int], Side], end: Callable[[Side, bytes], None]
) -> None:
    broker = Broker(sides)
    with Client(broker.requests.endpoint, "ebus", timeout_s=patient(10.0), **broker.settings) as client:
        subscription = client.subscribe("news")
        assert broker.subscribed() == b"\x01news"
        publishing = Background(client.publish, "weather", b"snow", 10.0)
        assert broker.published() == [b"weather", b"snow"]
        publishing.join()
        broker.outbound.send(b"news/1", b"before")
        assert subscription.get(patient(10.0)) == ("news/1", b"before")
        broker.outbound.send(b"news/2", b"unread")
        assert subscription._socket.poll(WAIT_MS)

        call = Background(client.call, "echo", b"in")
        identity, _, asked = broker.requests.recv_word(b"REQ")
        end(broker.requests, identity)
        broker.requests.recv_word(b"REQ")
        broker.requests.send(identity, b"", b"EBW01", b"REPLY", asked[4], b"out")
        assert call.join() == b"out"
        until(lambda: broker.inbound.counts() == (1, 1), "the end of the publishing connection", 10)

        # What had arrived is not lost; reading on takes a new connection.
        assert subscription.get(patient(10.0)) == ("news/2", b"unread")
        until(lambda: broker.outbound.counts()[1] >= 1, "the end of the subscribing connection", 10)
        while broker.subscribed() != b"\x01news":
            continue
        assert broker.outbound.counts()[0] >= 2
        broker.outbound.send(b"news/3", b"after")
        assert subscription.get(patient(10.0)) == ("news/3", b"after")
        publishing = Background(client.publish, "weather", b"sun", 10.0)
        assert broker.published() == [b"weather", b"sun"]
        publishing.join()
        subscription.close()


def test_an_async_client_closes_the_sockets_of_its_topics_too(
    sides: Callable[[int], Side], end: Callable[[Side, bytes], None]
) -> None:
    broker = Broker(sides)

    async def first(source: AsyncIterator[tuple[str, bytes]]) -> tuple[str, bytes]:
        return await asyncio.wait_for(anext(source), patient(10))

    async def run() -> None:
        async with AsyncClient(
            broker.requests.endpoint, "ebus", timeout_s=patient(10.0), **broker.settings
        ) as client:
            subscription = client.subscribe("news")
            reading = asyncio.create_task(first(subscription))
            assert await asyncio.to_thread(broker.subscribed) == b"\x01news"
            publishing = asyncio.create_task(client.publish("weather", b"snow", 10.0))
            assert await asyncio.to_thread(broker.published) == [b"weather", b"snow"]
            await publishing
            broker.outbound.send(b"news/1", b"before")
            assert await reading == ("news/1", b"before")

            reading = asyncio.create_task(first(subscription))
            calling = asyncio.create_task(client.call("echo", b"in"))
            identity, _, asked = await asyncio.to_thread(broker.requests.recv_word, b"REQ")
            end(broker.requests, identity)
            await asyncio.to_thread(broker.requests.recv_word, b"REQ")
            broker.requests.send(identity, b"", b"EBW01", b"REPLY", asked[4], b"out")
            assert await calling == b"out"

            def are_closed() -> bool:
                return broker.inbound.counts() == (1, 1) and broker.outbound.counts()[1] >= 1

            # A subscription that is waited for is replaced without anybody's help.
            await asyncio.to_thread(until, are_closed, "the end of both connections", 10)
            while await asyncio.to_thread(broker.subscribed) != b"\x01news":
                continue
            broker.outbound.send(b"news/2", b"after")
            assert await reading == ("news/2", b"after")
            publishing = asyncio.create_task(client.publish("weather", b"sun", 10.0))
            assert await asyncio.to_thread(broker.published) == [b"weather", b"sun"]
            await publishing
            await subscription.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())


# -- whom a peer listens to -----------------------------------------------------------------------


@pytest.mark.conforms("EBUS-4", "EBUS-16")
def test_a_client_discards_what_is_not_from_a_worker(sides: Callable[[int], Side]) -> None:
    broker = sides(zmq.ROUTER)
    with Client(broker.endpoint, "ebus", timeout_s=patient(10.0)) as client:
        call = Background(client.call, "echo", b"in")
        identity, port, asked = broker.recv_word(b"REQ")
        for tag in (b"EBC01", b"EBB01", b""):
            broker.send(identity, b"", tag, b"REPLY", asked[4], b"forged")
            broker.send(identity, b"", tag, b"REJECT", asked[4], b"forged")
            broker.send(identity, b"", tag, b"DISCONNECT")
        broker.send(identity, b"", b"EBW01", b"REPLY", b"another", b"not mine")
        # The connection is still the first one, and so is the question.
        assert broker.recv_word(b"PING")[1] == port
        broker.send(identity, b"", b"EBW01", b"REPLY", asked[4], b"out")
        assert call.join() == b"out"
        assert client.invalid == 10
        assert broker.counts() == (1, 0)


@pytest.mark.conforms("EBUS-4", "EBUS-16")
def test_a_worker_discards_what_is_of_the_wrong_sender_type(sides: Callable[[int], Side]) -> None:
    broker = sides(zmq.ROUTER)
    with working(broker.endpoint) as worker:
        identity, port, _ = broker.recv_word(b"READY")
        broker.send(identity, b"EBW01", b"REQ", b"r1", b"forged", b"60000")
        broker.send(identity, b"", b"EBW01", b"REQUEST", b"echo", b"r1", b"forged")
        broker.send(identity, b"EBX01", b"REQ", b"r1", b"forged", b"60000")
        broker.send(identity, b"EBX01", b"DISCONNECT")
        broker.send(identity, b"EBX01", b"PING")
        broker.send(identity, b"EBC01", b"REPLY", b"r1", b"forged")
        broker.send(identity, b"EBW01", b"REPLY", b"r1", b"not asked for")
        broker.send(identity, b"EBC01", b"REQ", b"r2", b"genuine", b"60000")
        _, same, answer = broker.recv_word(b"REPLY")
        assert (same, answer) == (port, [b"EBW01", b"REPLY", b"r2", b"genuine"])
        assert worker.invalid == 7


@pytest.mark.conforms("EBUS-4", "EBUS-5", "EBUS-10")
@pytest.mark.parametrize("role", ["client", "worker"])
def test_what_is_discarded_is_no_sign_of_life(
    sides: Callable[[int], Side], monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr(ebus, "BEAT_S", BEAT_S)
    broker = sides(zmq.ROUTER)

    def flooded() -> tuple[bytes, list[bytes]]:
        """What the peer said first; it has given the broker up, which says something all the time."""
        identity, port, said = broker.recv()
        for _ in range(100):
            broker.send(identity, b"", b"EBX01", b"HEARTBEAT")
            if broker.recv()[1] != port:
                return identity, said
        raise AssertionError("the peer takes anything for a sign of life")

    if role == "worker":
        with working(broker.endpoint):
            flooded()
    else:
        with Client(broker.endpoint, "ebus", timeout_s=patient(10.0)) as client:
            call = Background(client.call, "echo", b"in")
            identity, asked = flooded()
            broker.send(identity, b"", b"EBW01", b"REPLY", asked[4], b"out")
            assert call.join() == b"out"
