"""Last values over real sockets: late subscribers, restarts, many of them, and those that die."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq

from fuzz.raw import RawPeers
from polybus import Client, RequestFailed
from support.live import WAIT_S, LiveBroker, wait_for
from support.patience import patient

Socket = zmq.Socket[bytes]


class Context(zmq.Context[Socket]):
    """Knows its sockets, so that all of them are closed at the end."""

    sockets: list[Socket]

    def socket(self, *args: Any, **options: Any) -> Socket:
        socket = super().socket(*args, **options)
        self.sockets.append(socket)
        return socket


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    object.__setattr__(context, "sockets", [])
    context.set(zmq.MAX_SOCKETS, 4000)
    yield context
    for socket in context.sockets:
        socket.close(0)
    context.term()


def subscriber(context: Context, endpoint: str, *prefixes: bytes) -> Socket:
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    socket.set(zmq.RCVHWM, 0)
    for prefix in prefixes:
        socket.set(zmq.SUBSCRIBE, prefix)
    socket.connect(endpoint)
    return socket


class Publisher:
    """Says things in one of the two dialects; knows when the broker takes them."""

    def __init__(self, context: Context, broker: LiveBroker, dialect: str) -> None:
        self._is_ebus = dialect == "ebus"
        self.socket = context.socket(zmq.XPUB if self._is_ebus else zmq.DEALER)
        self.socket.linger = 0
        self.socket.set(zmq.SNDHWM, 0)
        self.socket.connect(broker[f"{dialect}.publish"])
        if self._is_ebus:
            assert self.socket.poll(int(WAIT_S * 1000))
            assert self.socket.recv() == b"\x01"

    def say(self, topic: bytes, body: bytes) -> None:
        if self._is_ebus:
            self.socket.send_multipart([topic, body])
        else:
            self.socket.send_multipart([b"", b"eMQP/1.0", b"PUBLISH", b"id", topic, b"", body])


def take(socket: Socket, timeout_s: float = WAIT_S) -> list[bytes]:
    assert socket.poll(int(timeout_s * 1000)), "nothing came"
    return socket.recv_multipart()


def status(broker: LiveBroker, name: str) -> Any:
    return broker.ask("status")[name]


# -- the promise --------------------------------------------------------------------------------------


@dataclass
class Listener:
    """A subscriber, what it may see first of each topic, and what it saw last."""

    socket: Socket
    prefixes: tuple[bytes, ...]
    floor: dict[bytes, int]
    seen: dict[bytes, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many publications there were of the topics that it saw."""
        self.hear()
        return sum(self.seen.values())

    def has(self, values: dict[bytes, int]) -> bool:
        self.hear()
        return self.seen == values

    def hear(self) -> None:
        while True:
            try:
                topic, body = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            number = int(body)
            assert topic.startswith(self.prefixes)
            if topic in self.seen:
                assert number == self.seen[topic] + 1, (topic, number, self.seen[topic])
            else:
                assert number >= self.floor.get(topic, 0), "this was not current when it joined"
            self.seen[topic] = number


def some_prefixes(rng: random.Random) -> tuple[bytes, ...]:
    """Everything, a tenth, a hundredth, one topic, or some that overlap."""
    number = rng.randrange(1000)
    full = b"topic/%03d" % number
    choices: list[tuple[bytes, ...]] = [
        (b"",),
        (b"topic/%d" % (number // 100),),
        (b"topic/%02d" % (number // 10),),
        (full,),
        (full, full[:8], full[:7]),
        (full[:7], full, b"topic/%03d" % rng.randrange(1000)),
        tuple({b"topic/%03d" % rng.randrange(1000) for _ in range(12)}),
    ]
    return rng.choices(choices, weights=(1, 2, 4, 4, 1, 1, 2))[0]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.conforms("DBP-35")
def test_everyone_gets_everything_from_the_current_values_on_exactly_once(
    context: Context,
) -> None:
    """1,000 topics, four publishers in both dialects, 100 subscribers of both that join while they talk."""
    rng = random.Random(5)
    topics = [b"topic/%03d" % number for number in range(1000)]
    with LiveBroker() as broker:
        publishers = [Publisher(context, broker, dialect) for dialect in ("ebus", "emqp") * 2]
        newest = dict.fromkeys(topics, 0)
        # It sees everything from the beginning: what it has seen, the broker had before.
        witness = Listener(subscriber(context, broker["ebus.subscribe"], b""), (b"",), {})
        listeners = [witness]
        wait_for(lambda: status(broker, "subscriptions") == 1)
        total = 0
        while len(listeners) <= 100 or total < 30_000:
            for _ in range(100):
                topic = rng.choice(topics)
                newest[topic] += 1
                # One publisher speaks for a topic: between two there is no order.
                publishers[int(topic[-3:]) % 4].say(topic, b"%d" % newest[topic])
                total += 1
            if len(listeners) <= 100 and rng.random() < 0.5:
                prefixes = some_prefixes(rng)
                endpoint = broker[rng.choice(("ebus.subscribe", "emqp.subscribe"))]
                floor = dict(witness.seen)
                listeners.append(Listener(subscriber(context, endpoint, *prefixes), prefixes, floor))
            for listener in listeners:
                listener.hear()
            # Nobody is to be so slow that something is dropped.
            wait_for(lambda least=total - 3000: witness.count > least)
        published = {topic: number for topic, number in newest.items() if number}
        for listener in listeners:
            wanted = {t: n for t, n in published.items() if t.startswith(listener.prefixes)}
            wait_for(lambda one=listener, values=wanted: one.has(values), patient(30))
        facts = broker.ask("status")
        assert (facts["publications_dropped"], facts["internal_errors"]) == (0, 0)
        assert (facts["published"], facts["last_values"]) == (total, len(published))
        assert facts["subscribers"] == 101


# -- subscriptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["ebus", "emqp"])
def test_a_value_comes_once_however_often_it_is_asked_for(dialect: str, context: Context) -> None:
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "emqp")
        for topic in (b"lab/a", b"lab/b", b"office"):
            publisher.say(topic, b"old")
            publisher.say(topic, b"new")
        publisher.say(b"lab/empty", b"")
        wait_for(lambda: status(broker, "published") == 7)
        socket = subscriber(context, broker[f"{dialect}.subscribe"], b"lab/b")
        assert take(socket) == [b"lab/b", b"new"]
        socket.set(zmq.SUBSCRIBE, b"lab/")
        assert [take(socket), take(socket)] == [[b"lab/a", b"new"], [b"lab/empty", b""]]
        # Covered, asked for twice: nothing new.
        socket.set(zmq.SUBSCRIBE, b"lab/a")
        socket.set(zmq.SUBSCRIBE, b"lab/")
        socket.set(zmq.SUBSCRIBE, b"off")
        assert take(socket) == [b"office", b"new"]
        publisher.say(b"lab/a", b"live")
        assert take(socket) == [b"lab/a", b"live"]
        # What it gave up and asks for again it gets as it is now.
        socket.set(zmq.UNSUBSCRIBE, b"off")
        wait_for(lambda: status(broker, "subscriptions") == 3)
        publisher.say(b"office", b"newer")
        wait_for(lambda: status(broker, "published") == 9)
        socket.set(zmq.SUBSCRIBE, b"office")
        assert take(socket) == [b"office", b"newer"]
        assert not socket.poll(50)


def test_large_values_arrive_whole(context: Context) -> None:
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "ebus")
        bodies = {b"big/%d" % number: os.urandom(3_000_000 + number) for number in range(5)}
        for topic, body in bodies.items():
            publisher.say(topic, body)
        wait_for(lambda: status(broker, "published") == 5)
        late = [subscriber(context, broker["emqp.subscribe"], b"big/") for _ in range(3)]
        for socket in late:
            assert dict(take(socket) for _ in bodies) == bodies
        publisher.say(b"big/0", bodies[b"big/4"])
        for socket in late:
            assert take(socket) == [b"big/0", bodies[b"big/4"]]


def test_topics_of_the_broker_itself_cannot_be_published(context: Context) -> None:
    with LiveBroker() as broker:
        for dialect in ("ebus", "emqp"):
            Publisher(context, broker, dialect).say(b"polybus/monitor/node_up", b"{}")
        wait_for(lambda: status(broker, "publications_refused") == 2)
        assert status(broker, "last_values") == 0


# -- limits and restarts ------------------------------------------------------------------------------


def test_values_survive_a_crash_and_a_stop(context: Context) -> None:
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "ebus")
        for number in range(3):
            for topic in (b"a", b"b", b"gone"):
                publisher.say(topic, b"%d" % number)
        wait_for(lambda: status(broker, "published") == 9)
        broker.ask("last_drop", topic="gone")
        # A crash may cost the last second, so they are given the time to get to the disk.
        wait_for(lambda: all(broker.ask("last", topic=topic)["on_disk"] for topic in ("a", "b")))
        broker.restart()
        socket = subscriber(context, broker["ebus.subscribe"], b"")
        assert [take(socket), take(socket)] == [[b"a", b"2"], [b"b", b"2"]]
        Publisher(context, broker, "ebus").say(b"b", b"last words")
        assert take(socket) == [b"b", b"last words"]
        # A stop loses nothing.
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(WAIT_S) == 0
        broker.restart()
        socket = subscriber(context, broker["emqp.subscribe"], b"")
        assert [take(socket), take(socket)] == [[b"a", b"2"], [b"b", b"last words"]]
        assert not socket.poll(50)


def test_values_have_limits_and_can_be_turned_off(context: Context) -> None:
    with LiveBroker({"last_values.count": 3}) as broker:
        publisher = Publisher(context, broker, "ebus")
        for number in range(10):
            publisher.say(b"%d" % number, b"")
        publisher.say(b"7", b"again")
        publisher.say(b"new", b"")
        wait_for(lambda: status(broker, "published") == 12)
        facts = broker.ask("status")
        assert (facts["last_values"], facts["last_values_evicted"]) == (3, 8)
        socket = subscriber(context, broker["ebus.subscribe"], b"")
        assert [take(socket)[0] for _ in range(3)] == [b"7", b"9", b"new"]
    with LiveBroker({"last_values.enabled": False}) as broker:
        publisher = Publisher(context, broker, "ebus")
        publisher.say(b"early", b"")
        wait_for(lambda: status(broker, "published") == 1)
        socket = subscriber(context, broker["ebus.subscribe"], b"")
        wait_for(lambda: status(broker, "subscriptions") == 1)
        publisher.say(b"late", b"")
        assert take(socket) == [b"late", b""]


# -- asking -------------------------------------------------------------------------------------------

CLIENTS = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}


@pytest.mark.conforms("DBP-35")
def test_clients_of_every_dialect_ask_for_a_value(context: Context) -> None:
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "ebus")
        publisher.say(b"weather/rome", b"sunny")
        publisher.say(b"weather/oslo", b"snow")
        wait_for(lambda: status(broker, "published") == 2)
        for dialect, port in CLIENTS.items():
            with Client(broker[port], dialect) as client:
                assert client.call("lvc", b"weather/rome") == b"sunny"
                listed = client.call("lvc", b'{"prefix": "weather/"}')
                assert json.loads(listed) == ["weather/oslo", "weather/rome"]
                assert json.loads(client.call("lvc", b'{"prefix": "x"}')) == []
                with pytest.raises(RequestFailed, match="unknown_topic"):
                    client.call("lvc", b"weather/paris")


# -- many, and some that die --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_thousand_subscribers(context: Context) -> None:
    count = 1000
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "ebus")
        publisher.say(b"all/last", b"value")
        wait_for(lambda: status(broker, "published") == 1)
        ports = (broker["ebus.subscribe"], broker["emqp.subscribe"])
        sockets = [subscriber(context, ports[n % 2], b"all/", b"own/%d" % n) for n in range(count)]
        for socket in sockets:
            assert take(socket, 60) == [b"all/last", b"value"]
        wait_for(lambda: status(broker, "subscriptions") == count + 2, patient(30))
        for number in range(3):
            publisher.say(b"all/%d" % number, b"live")
        for number, socket in enumerate(sockets):
            publisher.say(b"own/%d" % number, b"%d" % number)
            assert [take(socket, 60)[0] for _ in range(3)] == [b"all/0", b"all/1", b"all/2"]
            assert take(socket, 60) == [b"own/%d" % number, b"%d" % number]
        assert status(broker, "publications_dropped") == 0
        for socket in sockets:
            socket.close(0)
        wait_for(
            lambda: (status(broker, "subscribers"), status(broker, "subscriptions")) == (0, 0), patient(30)
        )


DOOMED = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.subscribe(b"")
socket.connect(sys.argv[1])
print(socket.recv_multipart()[1].decode(), flush=True)
sys.stdin.read()
"""


def test_killed_subscribers_are_forgotten_and_others_miss_nothing(context: Context) -> None:
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "ebus")
        publisher.say(b"t", b"0")
        wait_for(lambda: status(broker, "published") == 1)
        alive = subscriber(context, broker["ebus.subscribe"], b"")
        assert take(alive) == [b"t", b"0"]
        doomed = [
            subprocess.Popen(
                [sys.executable, "-c", DOOMED, broker[port]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for port in ("ebus.subscribe", "emqp.subscribe") * 2
        ]
        try:
            for process in doomed:
                assert process.stdout is not None
                assert process.stdout.readline() == b"0\n"
            assert status(broker, "subscribers") == 5
            for number in range(1, 2001):
                publisher.say(b"t", b"%d" % number)
                if number == 1000:
                    for process in doomed:
                        process.kill()
        finally:
            for process in doomed:
                process.kill()
                process.communicate()
        assert [int(take(alive)[1]) for _ in range(2000)] == list(range(1, 2001))
        wait_for(lambda: status(broker, "subscribers") == 1)
        assert status(broker, "internal_errors") == 0


def test_hostile_bytes_beside_real_subscribers(context: Context) -> None:
    rng = random.Random(7)
    with LiveBroker() as broker:
        publisher = Publisher(context, broker, "ebus")
        ports = ("ebus.subscribe", "emqp.subscribe")
        real = [subscriber(context, broker[port], b"real/") for port in ports]
        wait_for(lambda: status(broker, "subscriptions") == 2)
        hostile = RawPeers({port: broker[port] for port in ports})
        try:
            for number in range(400):
                hostile.poke(rng)
                publisher.say(b"real/t", b"%d" % number)
                publisher.say(b"fuzz-topic-%d" % (number % 7), b"x" * 1000)
        finally:
            hostile.close()
        for socket in real:
            assert [int(take(socket)[1]) for _ in range(400)] == list(range(400))
        wait_for(
            lambda: (status(broker, "subscribers"), status(broker, "subscriptions")) == (2, 2), patient(30)
        )
        facts = broker.ask("status")
        assert facts["internal_errors"] == 0
        assert facts["invalid"] > 0
        assert not broker.crashes()
