"""The broker as a process over real sockets: draining, reloading, peers that vanish or do not read."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus import Client, Worker
from support.fake_brokers import Background
from support.interop_process import Broker, running
from support.journals import everything
from support.live import WAIT_S, LiveBroker, Peer, wait_for
from support.majordomo import MDR
from support.patience import patient

MIB = 1024 * 1024


class Context(zmq.Context[zmq.Socket[bytes]]):
    """Knows its sockets, so that all of them are closed at the end."""

    sockets: list[zmq.Socket[bytes]]

    def socket(self, *args: Any, **options: Any) -> zmq.Socket[bytes]:
        socket = super().socket(*args, **options)
        self.sockets.append(socket)
        return socket


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    object.__setattr__(context, "sockets", [])
    yield context
    for socket in context.sockets:
        socket.close(0)
    context.term()


class Cramped(Peer):
    """A peer that keeps no more than `room` messages at its end; 0 is as usual."""

    def __init__(self, endpoint: str, context: Context, identity: bytes, room: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.set(zmq.IDENTITY, identity)
        if room:
            # Marks count only before connecting.
            self.socket.set(zmq.RCVHWM, room)
            self.socket.set(zmq.RCVBUF, 4096)
        self.socket.connect(endpoint)


class Office:
    """A broker and its Majordomo peers, which talk by request ids."""

    def __init__(self, broker: LiveBroker, context: Context) -> None:
        self.broker, self.context = broker, context

    def client(self, identity: bytes = b"client", room: int = 0) -> Peer:
        return self._peer("majordomo.clients", identity, room)

    def worker(self, identity: bytes = b"worker", credit: int = 1, room: int = 0) -> Peer:
        worker = self._peer("majordomo.workers", identity, room)
        worker.send(*MDR.ready(b"echo", b"%d" % credit))
        name = identity.decode()
        wait_for(lambda: name in {view["worker"] for view in self.broker.ask("workers")})
        return worker

    def _peer(self, port: str, identity: bytes, room: int) -> Peer:
        return Cramped(self.broker[port], self.context, identity, room)

    def count(self, name: str) -> int:
        return int(self.broker.ask("status")[name])


def order(worker: Peer) -> list[bytes]:
    """The next request that a worker gets."""
    return worker.recv_until(lambda frames: frames[1] == b"\x02")


def final(client: Peer) -> tuple[bytes, list[bytes]]:
    """Id and body of the next answer."""
    frames = client.recv_until(lambda frames: frames[1] == b"\x03")
    return frames[3], frames[4:]


# -- its end ------------------------------------------------------------------------------------------


def test_draining_finishes_what_is_pending_and_ends_well(context: Context) -> None:
    with LiveBroker() as broker:
        office = Office(broker, context)
        worker, client = office.worker(), office.client()
        endpoints = next(Path(broker._folder.name).rglob("endpoints.json"))
        client.send(*MDR.request(b"echo", b"1", b"slow"))
        held = order(worker)
        broker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: office.count("requests") and broker.ask("status")["state"] == "draining")
        client.send(*MDR.request(b"echo", b"2", b"new"))
        number, body = final(client)
        assert (number, json.loads(body[0])["error"]) == (b"2", "draining")
        worker.send(*MDR.reply(held, b"done"))
        assert final(client) == (b"1", [b"done"])
        worker.recv_until(lambda frames: frames == MDR.dismissal())
        assert broker.process.wait(WAIT_S) == 0
        assert not endpoints.exists()


def test_a_second_signal_stops_at_once(context: Context) -> None:
    with LiveBroker({"broker.drain_s": 600}) as broker:
        office = Office(broker, context)
        office.client().send(*MDR.request(b"echo", b"1", b"never"))
        wait_for(lambda: office.count("requests"))
        broker.process.send_signal(signal.SIGTERM)
        wait_for(lambda: broker.ask("status")["state"] == "draining")
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(WAIT_S) == 0
        assert "1 unanswered" in broker.errors()


@pytest.mark.parametrize("how", ["signal", "admin"])
def test_draining_has_its_time(how: str, context: Context) -> None:
    with LiveBroker({"broker.drain_s": 0.3}) as broker:
        office = Office(broker, context)
        client = office.client()
        client.send(*MDR.request(b"echo", b"1", b"never"))
        wait_for(lambda: office.count("requests"))
        if how == "signal":
            broker.process.send_signal(signal.SIGTERM)
        else:
            assert broker.ask("drain")["state"] == "draining"
        number, body = final(client)
        assert (number, json.loads(body[0])["error"]) == (b"1", "draining")
        assert broker.process.wait(WAIT_S) == 0
        assert "stopped with 1 unanswered request" in broker.errors()


# An identity that the library makes for its clients.
LIBRARY = b"pb-0123456789abcdef"
LIBRARY_PORTS = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}
QUESTIONS = {
    "ebus.frontend": (b"", b"EBC01", b"REQUEST", b"nobody", b"id-1", b"x", b"60000"),
    "emqp.clients": (b"", b"eMQP/1.0", b"REQUEST", b"id-1", b"nobody", b"reply-requested", b"x"),
    "majordomo.clients": (b"", b"MDPC01", b"nobody", b"x"),
    "majordomo.workers": (b"MDPC02", b"\x01", b"nobody", b"x"),
    "dbp.port": (b"", b"u_U", b"1.0", b"nobody", b"x"),
}


def test_who_waits_in_any_dialect_is_told_at_the_end_of_draining(context: Context) -> None:
    with LiveBroker({"broker.drain_s": 0.3}) as broker, contextlib.ExitStack() as peers:
        asking = {port: peers.enter_context(Peer(broker[port], context)) for port in QUESTIONS}
        for port, question in QUESTIONS.items():
            asking[port].send(*question)
        # A client of the library asks the next broker instead.
        own = peers.enter_context(Peer(broker["majordomo.clients"], context, identity=LIBRARY))
        own.send(*MDR.request(b"nobody", b"1", b"x"))
        wait_for(lambda: broker.ask("status")["requests"] == len(QUESTIONS) + 1)
        broker.process.send_signal(signal.SIGTERM)
        for port, peer in asking.items():
            answer = peer.recv_until(lambda frames: any(b"draining" in frame for frame in frames))
            assert any(b"stopped before it was answered" in frame for frame in answer), port
        assert broker.process.wait(WAIT_S) == 0
        assert own.get(0) is None
        assert f"stopped with {len(QUESTIONS) + 1} unanswered requests\n" in broker.errors()


def test_what_library_clients_ask_of_a_draining_broker_waits_for_the_next(
    tmp_path: Path, context: Context
) -> None:
    broker = Broker(tmp_path, {"broker": {"drain_s": 600.0}})
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill)
        # Something that it waits for.
        held = stack.enter_context(Peer(broker.endpoints["majordomo.clients"], context))
        held.send(*MDR.request(b"nobody", b"1", b"slow"))
        wait_for(lambda: broker.ask("status")["requests"])
        assert broker.ask("drain")["state"] == "draining"
        asked: dict[str, Background] = {}
        for dialect, port in LIBRARY_PORTS.items():
            client = stack.enter_context(Client(broker.endpoints[port], dialect, timeout_s=WAIT_S))
            asked[dialect] = Background(client.call, "echo", dialect.encode())
        one = {"service": "echo", "id": "job", "reply": "receipt"}
        many = [{"service": "echo", "id": f"job-{n}", "reply": "receipt", "size": 0} for n in range(3)]
        for name, job in (("one job", one), ("many jobs", many)):
            client = stack.enter_context(Client(broker.endpoints["emqp.clients"], "emqp", timeout_s=WAIT_S))
            asked[name] = Background(client.call, "polybus.submit", json.dumps(job).encode() + b"\n")
        wait_for(lambda: broker.ask("status")["rejected"] == len(asked))
        broker.kill()
        broker.start()
        echo = Worker({"echo": lambda request: request.body}, broker.endpoints["majordomo.workers"])
        with running(echo):
            for dialect in LIBRARY_PORTS:
                assert asked[dialect].join() == dialect.encode()
            assert json.loads(asked["one job"].join()) == {"job": "job"}
            assert json.loads(asked["many jobs"].join()) == {"jobs": 3, "refused": {}}


def test_an_idle_broker_drains_at_once() -> None:
    with LiveBroker({"broker.drain_s": 600}) as broker:
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(WAIT_S) == 0


# -- while it runs --------------------------------------------------------------------------------------


def test_limits_are_read_again(context: Context) -> None:
    with LiveBroker() as broker:
        client = Office(broker, context).client()
        file = Path(broker._folder.name, "polybus.toml")
        file.write_text("[limits]\nbody_bytes = 10\n[broker]\nio_threads = 2\n")
        broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "needs a restart: broker.io_threads" in broker.errors())
        assert "limits.body_bytes" in broker.errors()
        client.send(*MDR.request(b"echo", b"1", b"x" * 11))
        assert json.loads(final(client)[1][0])["error"] == "too_large"
        file.write_text("[limits]\nbody_bites = 10\n")
        broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "nothing was changed" in broker.errors())
        assert broker.is_alive


def test_work_of_a_killed_worker_goes_to_the_next(context: Context) -> None:
    with LiveBroker({"majordomo.heartbeat_s": 0.2}) as broker:
        office = Office(broker, context)
        client = office.client()
        # Requests are there before the workers, which never beat: one with nothing to do would be sent away.
        client.send(*MDR.request(b"echo", b"1", b"one"))
        wait_for(lambda: office.count("requests"))
        first = office.worker(b"first", credit=5)
        order(first)
        first.close()
        # Whether the broker learns it from this one or from the silence is a matter of timing.
        client.send(*MDR.request(b"echo", b"2", b"two"))
        wait_for(lambda: office.count("requests") == 2 and office.count("workers") == 0)
        second = office.worker(b"second", credit=5)
        for expected in (b"one", b"two"):
            held = order(second)
            assert held[5:] == [expected]
            second.send(*MDR.reply(held, b"re:" + expected))
        assert [final(client), final(client)] == [(b"1", [b"re:one"]), (b"2", [b"re:two"])]
        assert office.count("requeued") >= 1


def test_a_worker_that_does_not_read_rests_and_others_work(context: Context) -> None:
    count = 60
    with LiveBroker({"broker.pipe_messages": 4, "majordomo.heartbeat_s": 600}) as broker:
        office = Office(broker, context)
        client = office.client()
        stuck = office.worker(b"stuck", credit=1000, room=1)
        bodies = {b"%d" % number: b"%d" % number + b"x" * MIB for number in range(count)}
        for number, body in bodies.items():
            client.send(*MDR.request(b"echo", number, body))

        def state() -> str:
            return str(next(v["state"] for v in broker.ask("workers") if v["worker"] == "stuck"))

        wait_for(lambda: state() == "congested", patient(30))
        other = office.worker(b"other", credit=1000)
        answered: dict[bytes, str] = {}

        def work(worker: Peer, name: str) -> None:
            held = order(worker)
            assert held[5] == bodies[held[4]]
            worker.send(*MDR.reply(held, name.encode()))
            number, (body,) = final(client)
            answered[number] = body.decode()

        def is_other_busy() -> bool:
            """Whether there is something for it to read, be it on its way."""
            is_queued = any(view["queued"] for view in broker.ask("services"))
            return is_queued or any(v["in_flight"] for v in broker.ask("workers") if v["worker"] == "other")

        # Nobody waits for the one that does not read.
        while is_other_busy():
            if other.socket.poll(50):
                work(other, "other")
        # What is in its pipe is its own, and it comes to it at last.
        while len(answered) < count:
            work(stuck, "stuck")
        assert set(answered) == set(bodies)
        assert set(answered.values()) == {"other", "stuck"}


def test_answers_that_a_client_does_not_read_are_counted_and_kept(
    context: Context,
) -> None:
    count = 50
    settings = {"broker.pipe_messages": 4, "limits.pending_bytes_per_client": 5 * MIB}
    with LiveBroker(settings) as broker:
        office = Office(broker, context)
        worker, client = office.worker(credit=1000), office.client(room=1)
        numbers = [b"%d" % number for number in range(count)]
        for number in numbers:
            client.send(*MDR.request(b"echo", number, b""))
        for _ in numbers:
            held = order(worker)
            worker.send(*MDR.reply(held, held[4] + b"x" * MIB))
        wait_for(lambda: office.count("replied") == count, patient(30))
        lost = wait_for(lambda: office.count("answers_lost"), patient(30))
        assert 0 < lost < count
        found = {}
        while len(found) < count - lost:
            number, body = final(client)
            found[number] = body[0][: len(number)]
        for number in numbers:
            if number not in found:
                client.send(*MDR.request(b"echo", number, b""))
                found[number] = final(client)[1][0][: len(number)]
        assert found == {number: number for number in numbers}
        assert office.count("replayed") == lost
        assert office.count("replied") == count, "nothing ran twice"
        setting = "limits.pending_bytes_per_client"
        assert broker.ask("status")["answers_lost_at"] == {setting: lost}
        # The log says so in few lines, whose counts add up; the last one may come when the broker stops.
        broker.stop()
        lines = [line for line in broker.errors().splitlines() if setting in line]
        told = re.findall(r": (\d+) answers? (?:was|were) lost, of the client client: ", "\n".join(lines))
        assert sum(map(int, told)) == lost
        assert len(told) == len(lines)
        # The journal names each of them.
        rows = [row for row in everything(broker.data_dir / "journal") if row["what"] == "answer_lost"]
        assert len({row["token"] for row in rows}) == lost
        assert {row["service"] for row in rows} == {"echo"}
        assert all(setting in row["reason"] for row in rows)


# -- topics -------------------------------------------------------------------------------------------


def subscriber(context: Context, endpoint: str, *prefixes: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    for prefix in prefixes:
        socket.set(zmq.SUBSCRIBE, prefix)
    socket.connect(endpoint)
    return socket


def received(socket: zmq.Socket[bytes], last: bytes) -> list[list[bytes]]:
    """Everything up to a topic that ends with `last`."""
    messages: list[list[bytes]] = []
    while not messages or not messages[-1][0].endswith(last):
        assert socket.poll(int(WAIT_S * 1000)), messages
        messages.append(socket.recv_multipart())
    return messages


@pytest.mark.parametrize("sender", ["ebus", "emqp"])
def test_publications_reach_subscribers_of_both_dialects(sender: str, context: Context) -> None:
    with LiveBroker() as broker:
        wants = {"ebus": (b"lab/", b"end"), "emqp": (b"lab/hot", b"end")}
        subscribers = {
            name: subscriber(context, broker[f"{name}.subscribe"], *prefixes)
            for name, prefixes in wants.items()
        }
        wait_for(lambda: broker.ask("status")["subscriptions"] == 4)
        # The publisher comes late: what it says before it is connected is nobody's loss but its own.
        if sender == "ebus":
            out = context.socket(zmq.PUB)
            out.linger = 0
            out.connect(broker["ebus.publish"])

            def publish(topic: bytes, body: bytes) -> None:
                out.send_multipart([topic, body])
        else:
            out = context.socket(zmq.DEALER)
            out.linger = 0
            out.connect(broker["emqp.publish"])

            def publish(topic: bytes, body: bytes) -> None:
                out.send_multipart([b"", b"eMQP/1.0", b"PUBLISH", b"id", topic, b"", body])

        def is_there() -> bool:
            publish(b"lab/hello", b"")
            return bool(subscribers["ebus"].poll(20))

        wait_for(is_there)
        for topic in (b"lab/hot", b"lab/hotter", b"lab/cold", b"office", b"end"):
            publish(topic, b"body of " + topic)
        got = {
            name: [message for message in received(socket, b"end") if message[0] != b"lab/hello"]
            for name, socket in subscribers.items()
        }
        expected = {
            "ebus": [b"lab/hot", b"lab/hotter", b"lab/cold", b"end"],
            "emqp": [b"lab/hot", b"lab/hotter", b"end"],
        }
        for name, topics in expected.items():
            assert got[name] == [[topic, b"body of " + topic] for topic in topics]
