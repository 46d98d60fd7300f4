"""Public EBUS peers against a broker process: frames and habits of the Node library, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus import Client, Worker
from polybus.config import PORTS, variable
from support.ebus_peer import WAIT_S, Loop, PublicClient, PublicWorker
from support.patience import patient
from support.ports import steady_ports
from support.waiting import until

POLYBUS = Path(sys.executable).with_name("polybus")


class Broker:
    """`polybus serve` on free ports; started again, it is where EBUS peers found it before."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._folder = folder
        steady = steady_ports(name for name in PORTS if name.startswith("ebus."))
        self._settings = {**dict.fromkeys(PORTS, 0), **steady, **settings}
        self.start()

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("POLYBUS_", "EBUS_", "EMQ_"))}
        settings = {"journal.archive": False, **self._settings}
        environ |= {variable(name): str(value) for name, value in settings.items()}
        place = self._folder / "data" / "endpoints.json"
        place.unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [POLYBUS, "serve", "--data-dir", place.parent],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=self._folder,
            )
        until(lambda: place.exists() or self.process.poll() is not None, "the broker's start", WAIT_S)
        assert self.process.poll() is None, self.log()
        self.endpoints: dict[str, str] = json.loads(place.read_text())["endpoints"]

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def status(self, do: str = "status") -> Any:
        """An answer of the admin socket."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self.endpoints["admin.port"])
            socket.send_multipart([b"", b"PBADM1", b"1", json.dumps({"do": do}).encode()])
            assert socket.poll(int(WAIT_S * 1000)), "the broker does not answer"
            return json.loads(socket.recv_multipart()[3])["ok"]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    started: list[Broker] = []

    def start(**settings: object) -> Broker:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Broker(folder, {f"ebus.{name}": value for name, value in settings.items()}))
        return started[-1]

    yield start
    for broker in started:
        broker.kill()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def echo(worker: PublicWorker, rid: str, text: Any) -> None:
    worker.respond(rid, text or None)


def keep(worker: PublicWorker, rid: str, text: Any) -> None:
    """Leaves it to the test to answer, if anybody does."""


def served(broker: Broker, count: int = 1) -> Callable[[], bool]:
    return lambda: len([view for view in broker.status("workers") if view["services"]]) == count


def aside(loop: Loop, call: Callable[[], Any]) -> Any:
    """The result of a call that blocks, while the peers live on."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    loop.until(lambda: not thread.is_alive())
    assert results, "the call failed"
    return results[0]


# -- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("null", [b"null", b""], ids=["library 5", "library 6"])
def test_a_request_and_its_reply(brokers: Any, loop: Loop, null: bytes) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", echo, null)
    client = PublicClient(loop, broker.endpoints, null)
    rid = client.request("echo", "žluťoučký kůň", 5000)
    loop.until(lambda: client.events)
    ((_, token, text, stale_ms),) = loop.until(lambda: worker.told("request"))
    # The worker knows it by the bus's own id, and how long there is left.
    assert token != rid
    assert text == "žluťoučký kůň"
    assert 0 < stale_ms <= 5000
    assert loop.until(lambda: client.told("reply")) == [("reply", rid, "žluťoučký kůň")]
    # Without a value there is an answer, too.
    client.request("echo", None)
    assert loop.until(lambda: client.told("reply")[1:])[0][2] in (None, b"")
    assert client.is_online
    assert not worker.told("error") + client.told("error")
    assert broker.status()["invalid"] == 0


def test_many_requests_of_two_clients(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    workers = [PublicWorker(loop, broker.endpoints, "echo", echo) for _ in range(2)]
    clients = [PublicClient(loop, broker.endpoints) for _ in range(2)]
    asked = [{client.request("echo", f"{i}"): f"{i}" for i in range(200)} for client in clients]
    for client, expected in zip(clients, asked, strict=True):
        loop.until(lambda: len(client.told("reply")) == 200)  # noqa: B023
        assert {rid: text for _, rid, text in client.told("reply")} == expected
    assert sum(len(worker.told("request")) for worker in workers) == 400
    status = broker.status()
    assert (status["invalid"], status["requests"], status["replied"]) == (0, 0, 400)


@pytest.mark.parametrize("data", ["no such thing", None])
def test_a_rejection(brokers: Any, loop: Loop, data: str | None) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", lambda worker, rid, text: worker.reject(rid, data))
    client = PublicClient(loop, broker.endpoints)
    rid = client.request("echo", "x")
    assert loop.until(lambda: client.told("reject")) == [("reject", rid, data)]
    assert len(worker.told("request")) == 1


def test_a_stale_request_is_rejected_and_costs_its_worker_nothing(brokers: Any, loop: Loop) -> None:
    broker = brokers(worker_credit=1)
    client = PublicClient(loop, broker.endpoints)

    def ask(text: str, stale_ms: float) -> str:
        rid = client.request("echo", text, stale_ms)
        # The client itself waits for longer than it says: only the broker's word is to count here.
        client.requests[rid].expires_at += WAIT_S
        return rid

    # Computed from seconds, as a program would: the number has a fraction.
    first = ask("nobody is there", 1.1 * 700)
    assert loop.until(lambda: client.told("reject")) == [("reject", first, None)]
    worker = PublicWorker(loop, broker.endpoints, "echo", keep)
    loop.until(served(broker))
    second = ask("slow", 700)
    ((_, token, _, _),) = loop.until(lambda: worker.told("request"))
    assert loop.until(lambda: client.told("reject")[1:]) == [("reject", second, None)]
    # The worker drops it when the broker says so, or by itself a moment before; it answers in vain.
    loop.until(lambda: token not in worker.requests)
    worker.respond(token, "too late")
    assert worker.told("error")
    third = client.request("echo", "quick")
    ((_, token, _, _),) = loop.until(lambda: worker.told("request")[1:])
    worker.respond(token, "quick")
    assert loop.until(lambda: client.told("reply")) == [("reply", third, "quick")]


@pytest.mark.parametrize("how", ["cancel", "stop", "reject"])
def test_what_a_client_withdraws_the_worker_need_not_do(brokers: Any, loop: Loop, how: str) -> None:
    broker = brokers(worker_credit=1)
    worker = PublicWorker(loop, broker.endpoints, "echo", keep)
    client, other = PublicClient(loop, broker.endpoints), PublicClient(loop, broker.endpoints)
    rid = client.request("echo", "x")
    ((_, token, _, _),) = loop.until(lambda: worker.told("request"))
    if how == "cancel":
        client.cancel(rid)
    elif how == "stop":
        client.stop()
    else:
        client.say("REJECT", rid, "no request with " + rid)
    assert loop.until(lambda: worker.told("cancel")) == [("cancel", token)]
    rid = other.request("echo", "y")
    ((_, token, _, _),) = loop.until(lambda: worker.told("request")[1:])
    worker.respond(token, "z")
    assert loop.until(lambda: other.told("reply")) == [("reply", rid, "z")]
    assert broker.status()["invalid"] == 0


def test_a_client_that_forgot_what_it_asked(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", keep)
    client = PublicClient(loop, broker.endpoints)
    del client.requests[client.request("echo", "x")]
    ((_, token, _, _),) = loop.until(lambda: worker.told("request"))
    worker.respond(token, "who asked?")
    rid = client.request("echo", "y")
    ((_, token, _, _),) = loop.until(lambda: worker.told("request")[1:])
    worker.respond(token, "z")
    assert loop.until(lambda: client.told("reply")) == [("reply", rid, "z")]
    assert broker.status()["invalid"] == 0


def test_services_and_workers(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    names = ("sum", "echo", "echo")
    workers = [PublicWorker(loop, broker.endpoints, name, keep) for name in names]
    client = PublicClient(loop, broker.endpoints)
    client.request("sum", "1 2")
    loop.until(lambda: workers[0].told("request"))
    loop.until(served(broker, 3))
    client.say("SERVICES")
    assert loop.until(lambda: client.told("services")) == [("services", ["echo", "sum"])]
    client.say("WORKERS")
    ((_, entries),) = loop.until(lambda: client.told("workers"))
    assert [(entry["service"], entry["load"]) for entry in entries] == [("echo", 0), ("echo", 0), ("sum", 1)]
    assert {entry["id"].encode() for entry in entries} == {worker.identity for worker in workers}


# -- peers that go and come back ------------------------------------------------------------------


@pytest.mark.parametrize("end", ["die", "freeze", "stop"])
def test_the_work_of_a_worker_that_is_gone_goes_to_another(brokers: Any, loop: Loop, end: str) -> None:
    broker = brokers()
    lost = PublicWorker(loop, broker.endpoints, "echo", keep)
    client = PublicClient(loop, broker.endpoints)
    rid = client.request("echo", "x")
    loop.until(lambda: lost.told("request"))
    PublicWorker(loop, broker.endpoints, "echo", echo)
    loop.until(served(broker, 2))
    getattr(lost, end)()
    assert loop.until(lambda: client.told("reply")) == [("reply", rid, "x")]
    assert served(broker)()
    lost.close()


def test_peers_that_are_idle_stay_online(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", echo)
    client = PublicClient(loop, broker.endpoints)
    until = time.monotonic() + 4.0
    loop.until(lambda: time.monotonic() > until)
    assert worker.starts == client.starts == 1
    assert worker.events == client.events == [("online",)]
    assert served(broker)()


def test_peers_come_back_by_themselves_after_a_crash_of_the_broker(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", echo)
    client = PublicClient(loop, broker.endpoints)
    client.request("echo", "before")
    loop.until(lambda: client.told("reply"))
    loop.until(lambda: worker.is_online)
    broker.kill()
    rid = client.request("echo", "meanwhile")
    # Both notice by themselves, and try again and again.
    loop.until(lambda: client.told("offline") and worker.told("offline") and worker.starts > 1)
    broker.start()
    assert loop.until(lambda: client.told("reply")[1:]) == [("reply", rid, "meanwhile")]
    assert worker.is_online
    assert client.is_online
    loop.until(served(broker))


def test_a_restart_too_short_to_be_noticed(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", echo)
    loop.until(lambda: worker.is_online)
    first = worker.identity
    broker.kill()
    broker.start()
    # The new broker does not know the worker that beats, tells it so, and it begins anew.
    loop.until(lambda: worker.told("disconnect"))
    loop.until(served(broker))
    assert worker.identity != first
    client = PublicClient(loop, broker.endpoints)
    rid = client.request("echo", "x")
    assert loop.until(lambda: client.told("reply")) == [("reply", rid, "x")]


def test_a_broker_that_goes_says_so(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", echo)
    client = PublicClient(loop, broker.endpoints)
    loop.until(lambda: worker.is_online and client.is_online)
    # Each of them subscribes to what it hears about the broker.
    loop.until(lambda: sum(row["prefixes"] for row in broker.status("subscribers")) >= 2)
    broker.process.send_signal(signal.SIGTERM)
    # No missed beats are needed for it.
    assert loop.until(lambda: client.told("message")) == [("message", "ebus/shutdown", None)]
    assert not client.is_online
    assert client.starts == 1
    loop.until(lambda: worker.told("disconnect"))
    loop.until(lambda: broker.process.poll() is not None)


# -- channels and other dialects ------------------------------------------------------------------


def test_channels_are_matched_by_their_beginning(brokers: Any, loop: Loop) -> None:
    broker = brokers()
    worker = PublicWorker(loop, broker.endpoints, "echo", echo)
    client = PublicClient(loop, broker.endpoints)
    client.subscribe("db/tenant")
    loop.until(lambda: broker.status()["subscriptions"] >= 2)

    def arrived(mark: str) -> Callable[[], bool]:
        def look() -> bool:
            # A publisher that is not connected yet publishes into the void.
            worker.publish("db/other", "not this")
            worker.publish("db/tenant/users", mark)
            return ("message", "db/tenant/users", mark) in client.events

        return look

    loop.until(arrived("one"))
    assert not [event for event in client.told("message") if event[1] == "db/other"]
    with Client(
        broker.endpoints["ebus.frontend"], "ebus", subscribe_address=broker.endpoints["ebus.subscribe"]
    ) as own:
        subscription = own.subscribe("db/tenant")
        loop.until(arrived("two"))
        subscription.close()


@pytest.mark.parametrize("dialect", ["ebus", "mdr"])
def test_public_clients_and_workers_of_this_project(brokers: Any, loop: Loop, dialect: str) -> None:
    broker = brokers()
    place = {"ebus": "ebus.backend", "mdr": "majordomo.workers"}[dialect]
    own = Worker({"own": lambda request: request.body}, broker.endpoints[place], dialect, credit=1)
    thread = threading.Thread(target=own.run, daemon=True)
    thread.start()
    try:
        client = PublicClient(loop, broker.endpoints)
        rid = client.request("own", "x")
        assert loop.until(lambda: client.told("reply")) == [("reply", rid, "x")]
    finally:
        own.stop()
        thread.join(WAIT_S)
    assert own.invalid == 0


@pytest.mark.parametrize("dialect", ["ebus", "mdr"])
def test_clients_of_this_project_and_public_workers(brokers: Any, loop: Loop, dialect: str) -> None:
    broker = brokers()
    # It gets what is no BSON as it is.
    PublicWorker(loop, broker.endpoints, "echo", lambda worker, rid, data: worker.respond(rid, data.decode()))
    place = {"ebus": "ebus.frontend", "mdr": "majordomo.clients"}[dialect]
    with Client(broker.endpoints[place], dialect, timeout_s=patient(15)) as own:
        packed = aside(loop, lambda: own.call("echo", b"hello"))
        assert b"hello" not in packed
        if dialect == "ebus":
            assert json.loads(aside(loop, lambda: own.call("SERVICES"))) == ["echo"]
            (entry,) = json.loads(aside(loop, lambda: own.call("WORKERS")))
            assert (entry["service"], entry["load"]) == ("echo", 0)
        assert own.invalid == 0
