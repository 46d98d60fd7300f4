"""The synchronous worker on real sockets, against a broker that does what the test tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from polybus import Bus, ConfigError, Request, Worker, WorkerRejected
from polybus.client.sessions.mdr import MdrWorker
from support.fake_brokers import PATIENCE_MS, Background, FakeBroker
from support.patience import patient

Serve = Callable[..., Worker]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


@pytest.fixture
def serve(broker: FakeBroker) -> Iterator[Serve]:
    running: list[tuple[Worker, Background]] = []

    def start(services: dict[str, Any], dialect: str = "mdr", **settings: Any) -> Worker:
        worker = Worker(services, broker.endpoint, dialect, **settings)
        running.append((worker, Background(worker.run)))
        return worker

    yield start
    for worker, thread in running:
        worker.stop()
        thread.join()


def order(broker: FakeBroker, identity: bytes, rid: bytes, *body: bytes) -> None:
    broker.send(identity, b"MDRW01", b"\x02", b"token-" + rid, b"", rid, *body)


def is_final(frames: list[bytes]) -> bool:
    return frames[1] == b"\x04"


def echo(request: Request) -> bytes:
    return request.body


@pytest.mark.conforms("MDR-12", "MDR-19", "MDR-23")
def test_ready_and_echo(broker: FakeBroker, serve: Serve) -> None:
    worker = serve({"echo": echo}, credit=7)
    identity, ready = broker.receive()
    assert ready == [b"MDRW01", b"\x01", b"echo", b"7"]
    order(broker, identity, b"1", b"in")
    assert broker.receive()[1] == [b"MDRW01", b"\x04", b"token-1", b"", b"1", b"in"]
    assert worker.handled == 1


@pytest.mark.conforms("MDR-21")
def test_one_connection_a_service(broker: FakeBroker, serve: Serve) -> None:
    serve({"echo": echo, "upper": lambda request: request.body.upper()})
    ready = {frames[2]: identity for identity, frames in (broker.receive() for _ in range(2))}
    assert set(ready) == {b"echo", b"upper"}
    order(broker, ready[b"upper"], b"1", b"in")
    order(broker, ready[b"echo"], b"2", b"in")
    assert {frames[4]: frames[5] for _, frames in (broker.receive() for _ in range(2))} == {
        b"1": b"IN",
        b"2": b"in",
    }


def test_emqp_lists_all_queues_on_one_connection(broker: FakeBroker, serve: Serve) -> None:
    serve({"a": echo, "b": echo}, "emqp", credit=2, weights={"b": 50})
    identity, inform = broker.receive()
    assert inform[4:] == [b'[[10,"a"],[50,"b"]]', b"worker"]
    broker.send(identity, b"", b"eMQP/1.0", b"ACK", b"b1", inform[3])
    assert [broker.receive()[1][2] for _ in range(2)] == [b"READY", b"READY"]
    broker.send(identity, b"", b"eMQP/1.0", b"REQUEST", b"r1", b"b", b"", b"in")
    _, reply = broker.receive()
    assert reply[2] == b"REPLY"
    assert reply[4:] == [b"in", b"r1"]
    assert broker.receive()[1][2] == b"READY"


def test_emqp_hands_what_nobody_serves_to_default(broker: FakeBroker, serve: Serve) -> None:
    serve({"default": lambda request: request.service.encode()}, "emqp", credit=1)
    identity, _ = broker.receive()
    broker.send(identity, b"", b"eMQP/1.0", b"REQUEST", b"r1", b"unknown", b"", b"in")
    _, reply = broker.receive()
    assert reply[4:] == [b"unknown", b"r1"]


def test_what_handlers_may_do(broker: FakeBroker, serve: Serve) -> None:
    def handle(request: Request) -> Any:
        match request.body:
            case b"none":
                return None
            case b"frames":
                return [b"a", b"b"]
            case b"reject":
                raise WorkerRejected("not today")
            case b"fail":
                raise ValueError("boom")
            case b"text":
                return "text"

    serve({"any": handle})
    identity, _ = broker.receive()
    for body, answer in (
        (b"none", [b""]),
        (b"frames", [b"a", b"b"]),
        (b"reject", [b'{"error":"rejected","detail":"not today"}']),
        (b"fail", [b'{"error":"failed","detail":"ValueError: boom"}']),
    ):
        order(broker, identity, b"1", body)
        assert broker.receive()[1][5:] == answer
    order(broker, identity, b"1", b"text")
    assert b"a handler returns bytes" in broker.receive()[1][5]


@pytest.mark.conforms("MDR-30")
def test_a_generator_streams(broker: FakeBroker, serve: Serve) -> None:
    gate = threading.Event()

    def count(request: Request) -> Generator[bytes, None, bytes]:
        yield b"1"
        assert gate.wait(PATIENCE_MS / 1000)
        yield b"2"
        return b"3"

    serve({"count": count})
    identity, _ = broker.receive()
    order(broker, identity, b"1", b"")
    # The first piece is on its way before the second is made.
    assert broker.receive()[1][1:] == [b"\x03", b"token-1", b"", b"1", b"1"]
    gate.set()
    assert broker.receive()[1][1:] == [b"\x03", b"token-1", b"", b"1", b"2"]
    assert broker.receive()[1][1:] == [b"\x04", b"token-1", b"", b"1", b"3"]


def test_a_slow_handler_does_not_hold_back_finished_answers(broker: FakeBroker, serve: Serve) -> None:
    gate = threading.Event()

    def handle(request: Request) -> bytes:
        if request.body == b"slow":
            assert gate.wait(PATIENCE_MS / 1000)
        return request.body

    serve({"any": handle})
    identity, _ = broker.receive()
    for i in range(20):
        order(broker, identity, b"%d" % i, b"slow" if i == 10 else b"fast")
    assert [broker.receive()[1][4] for _ in range(10)] == [b"%d" % i for i in range(10)]
    gate.set()
    assert [broker.receive()[1][4] for _ in range(10)] == [b"%d" % i for i in range(10, 20)]


@pytest.mark.conforms("MDR-33", "MDR-36")
def test_heartbeats_go_on_while_a_handler_takes_long(
    broker: FakeBroker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MdrWorker, "beat_s", 0.05)
    gate = threading.Event()

    def handle(request: Request) -> bytes:
        assert gate.wait(PATIENCE_MS / 1000)
        return b"done"

    worker = serve({"any": handle})
    identity, _ = broker.receive()
    order(broker, identity, b"1", b"")
    for _ in range(5):
        assert broker.receive()[1] == [b"MDRW01", b"PING"]
        broker.send(identity, b"MDRW01", b"PONG")
    gate.set()
    assert broker.receive_until(is_final)[1][5] == b"done"
    assert worker.restarts == 0


@pytest.mark.conforms("EBUS-3", "EBUS-7")
def test_ebus_cancellation_and_pings_reach_a_running_handler(broker: FakeBroker, serve: Serve) -> None:
    started = threading.Event()

    def handle(request: Request) -> bytes:
        started.set()
        ticks = threading.Event()
        while not request.cancelled:
            ticks.wait(0.005)
        raise WorkerRejected("nobody wants it")

    serve({"any": handle}, "ebus", credit=2)
    identity, _ = broker.receive()
    broker.send(identity, b"EBC01", b"REQUEST", b"any", b"r1", b"in", b"60000")
    assert started.wait(PATIENCE_MS / 1000)
    broker.send(identity, b"EBC01", b"PING")
    broker.receive_until(lambda frames: frames[1] == b"HEARTBEAT")
    broker.send(identity, b"EBC01", b"CANCEL", b"r1")
    _, reject = broker.receive_until(lambda frames: frames[1] == b"REJECT")
    assert reject[2] == b"r1"


def test_a_running_handler_learns_that_its_conversation_is_over(broker: FakeBroker, serve: Serve) -> None:
    """The broker gives what it works on to others, and its answer would be dropped."""
    started, stopped = threading.Event(), threading.Event()

    def handle(request: Request) -> bytes:
        started.set()
        ticks = threading.Event()
        while not request.cancelled:
            ticks.wait(0.005)
        stopped.set()
        return b"too late"

    serve({"any": handle})
    first, _ = broker.receive()
    order(broker, first, b"1", b"")
    assert started.wait(PATIENCE_MS / 1000)
    broker.send(first, b"MDRW01", b"\x06")
    second, _ = broker.receive_until(lambda frames: frames[1] == b"\x01")
    assert second != first
    assert stopped.wait(PATIENCE_MS / 1000)


@pytest.mark.conforms("MDR-29", "MDR-22")
def test_disconnect_opens_a_new_socket_with_a_new_ready(broker: FakeBroker, serve: Serve) -> None:
    worker = serve({"echo": echo})
    first, ready = broker.receive()
    broker.send(first, b"MDPW02", b"\x06")
    second, again = broker.receive()
    assert again == ready
    assert second != first
    order(broker, second, b"1", b"in")
    assert broker.receive()[0] == second
    assert worker.restarts == 1


@pytest.mark.conforms("MDR-40")
def test_a_restarted_broker_gets_a_new_ready(broker: FakeBroker, serve: Serve) -> None:
    serve({"echo": echo})
    first, ready = broker.receive()
    broker.restart()
    second, _ = broker.receive_until(lambda frames: frames == ready)
    assert second != first
    order(broker, second, b"1", b"in")
    assert broker.receive_until(is_final)[1][5] == b"in"


@pytest.mark.conforms("MDR-37", "MDR-40")
def test_a_silent_broker_is_left(broker: FakeBroker, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MdrWorker, "beat_s", 0.02)
    monkeypatch.setattr(MdrWorker, "dead_after_s", 0.06)
    serve({"echo": echo})
    first, ready = broker.receive()
    second, _ = broker.receive_until(lambda frames: frames == ready)
    assert second != first


@pytest.mark.conforms("MDR-24")
def test_stop_says_goodbye(broker: FakeBroker) -> None:
    worker = Worker({"echo": echo}, broker.endpoint)
    thread = Background(worker.run)
    broker.receive()
    worker.stop()
    thread.join()
    assert broker.receive()[1] == [b"MDRW01", b"\x06"]


@pytest.mark.conforms("EMQP-33", "EMQP-35")
def test_an_emqp_worker_leaves_when_it_is_told_to(broker: FakeBroker) -> None:
    thread = Background(Worker({"email": echo}, broker.endpoint, "emqp").run)
    identity, _ = broker.receive()
    broker.send(identity, b"", b"eMQP/1.0", b"DISCONNECT", b"b1")
    assert broker.receive()[1][2] == b"KBYE"
    thread.join()


@pytest.mark.conforms("DBP-11")
def test_a_denied_service_says_why(broker: FakeBroker) -> None:
    thread = Background(Worker({"echo": echo}, broker.endpoint, "dbp").run)
    identity, frames = broker.receive()
    broker.send(identity, b"", b"OmO", frames[2], b"the name is taken")
    with pytest.raises(ConfigError, match="the name is taken"):
        thread.join()


def test_settings_are_checked(broker: FakeBroker) -> None:
    for services, settings in (
        ({}, {}),
        ({"echo": echo}, {"credit": 0}),
        ({"echo": echo}, {"dialect": "amqp"}),
        ({"echo": echo}, {"address": "?"}),
    ):
        with pytest.raises(ConfigError):
            Worker(services, **{"address": broker.endpoint, **settings})  # type: ignore[arg-type]


def test_bus_runs_and_stops(broker: FakeBroker) -> None:
    bus = Bus(broker.endpoint)

    @bus.service("hello")
    def hello(body: bytes) -> bytes:
        return b"hello " + body

    thread = Background(bus.run, credit=3)
    identity, ready = broker.receive()
    assert ready == [b"MDRW01", b"\x01", b"hello", b"3"]
    order(broker, identity, b"1", b"you")
    assert broker.receive()[1][5] == b"hello you"
    bus.stop()
    thread.join()
    with bus.client(timeout_s=patient(10.0)) as client:
        assert client.endpoint == broker.endpoint
