"""Brokers that announce themselves and peers that find them, on loopback and on networks of their own."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from polybus import Client, ConnectionLost, Worker
from polybus.client import discovery
from polybus.client.addresses import DIALECTS
from polybus.client.admin import AdminClient
from polybus.client.discovery import Listener
from support.commands import WAIT_S, Served, closing, polybus, wait_until
from support.interop_process import running
from support.namespaces import Machine, Network
from support.ports import steady_ports
from support.waiting import until

# Python does not name it on every version; <asm-generic/socket.h>.
SO_TIMESTAMPNS = 35


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """A port for beacons of this test alone; nobody listens on the usual ports of the dialects."""
    free = steady_ports(["beacon", *DIALECTS])
    usual = {dialect: dict.fromkeys(roles, free[dialect]) for dialect, roles in discovery.PORTS.items()}
    monkeypatch.setattr(discovery, "PORTS", usual)
    # What is found at all is found soon; a busy machine may take longer.
    monkeypatch.setattr(discovery, "LISTEN_S", WAIT_S)
    monkeypatch.setenv("POLYBUS_BEACON_PORT", str(free["beacon"]))
    monkeypatch.chdir(tmp_path)
    return free["beacon"]


@pytest.fixture
def broker(port: int, tmp_path: Path) -> Iterator[Served]:
    options = ("--set", "beacon.enabled=true", "--set", f"beacon.port={port}", "--name", "shire")
    with closing(Served(tmp_path, *options)) as served:
        yield served


def test_discover_lists_a_broker_with_its_name(broker: Served, port: int, tmp_path: Path) -> None:
    def listen(*options: str) -> bytes:
        return polybus("discover", "--port", str(port), *options, cwd=tmp_path).stdout

    def introduced() -> list[dict[str, Any]]:
        """On a busy machine a beacon, or the answer that has the name, may come too late."""
        found: list[dict[str, Any]] = json.loads(listen("--seconds", "2.5", "--json"))
        return found if any(bus["name"] for bus in found) else []

    (found,) = until(introduced, "a bus with its name")
    assert found["address"] == "127.0.0.1"
    assert found["port"] == int(broker.endpoints["dbp.port"].rpartition(":")[2])
    assert 1 <= found["times"] <= 3
    assert found["every_s"] is None or found["every_s"] > 0.5
    assert found["name"] == "shire"
    reached = {name: place for name, place in broker.endpoints.items() if place.startswith("tcp://")}
    assert found["endpoints"] == reached

    def named() -> bytes:
        text = listen("--seconds", "1.5")
        return text if b"shire" in text else b""

    assert b"majordomo" in until(named, "the same for people")


def test_peers_of_every_dialect_find_it_without_an_address(broker: Served) -> None:
    with ExitStack() as stack:
        for dialect in DIALECTS:
            worker = Worker({f"echo.{dialect}": lambda request: request.body[::-1]}, dialect=dialect)
            stack.enter_context(running(worker))
        for dialect in DIALECTS:
            with Client(dialect=dialect, timeout_s=WAIT_S) as client:
                assert client.endpoint in broker.endpoints.values()
                assert client.call(f"echo.{dialect}", b"abc") == b"cba"


@pytest.mark.parametrize("dialect", ["ebus", "emqp"])
def test_topics_are_found_with_the_client(broker: Served, dialect: str) -> None:
    with Client(dialect=dialect) as speaker, Client(dialect=dialect) as listener:
        speaker.publish("weather/rome", b"sunny")
        with listener.subscribe("weather/") as subscription:
            assert subscription.get(WAIT_S) == ("weather/rome", b"sunny")


def test_all_who_listen_on_one_machine_hear_it(broker: Served, port: int) -> None:
    with ExitStack() as stack:
        listeners = [stack.enter_context(Listener(port)) for _ in range(5)]
        for listener in listeners:
            assert next(listener.hear(WAIT_S)).endpoint == broker.endpoints["dbp.port"]


def test_a_place_gets_no_more_than_one_datagram_a_second(broker: Served, port: int, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        ear.settimeout(WAIT_S)
        # Bound to one address: the other way by which loopback is reached does not come here.
        ear.bind(("127.0.0.1", port))
        moments = []
        for _ in range(4):
            packet, ((_, _, stamp), *_), _, _ = ear.recvmsg(100, 100)
            assert packet == b"SHALOM " + broker.endpoints["dbp.port"].rpartition(":")[2].encode()
            seconds, nanoseconds = struct.unpack("ll", stamp)
            moments.append(seconds + nanoseconds / 1e9)
    gaps = [after - before for before, after in pairwise(moments)]
    # The time of day may be corrected a little meanwhile.
    assert min(gaps) > 0.99
    place = ("--data-dir", str(broker.data_dir))
    status = json.loads(polybus("status", *place, "--json", cwd=tmp_path).stdout)
    assert status["beacon"] == f"127.0.0.1, 127.255.255.255 port {port}"
    assert status["beacons_sent"] >= 8
    assert status["beacons_failed"] == 0


def test_a_broker_that_stops_is_not_announced(broker: Served, port: int) -> None:
    with Listener(port) as listener:
        next(listener.hear(WAIT_S))
        # An unanswered request keeps the broker draining.
        with (
            Client(broker.endpoints["majordomo.clients"]) as client,
            AdminClient(broker.endpoints["admin.port"], WAIT_S) as admin,
        ):
            client.submit("nobody")
            wait_until(lambda: bool(admin.ask("status")["requests"]))
            broker.process.send_signal(signal.SIGTERM)
            broker.wait_for(broker.errors, "draining")
            # What was sent before the signal may still be in the socket.
            heard = [heard.times for heard in listener.hear(2.5)]
            assert broker.process.poll() is None
    assert len(heard) <= 1


def test_without_any_bus_the_error_says_what_was_tried(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discovery, "LISTEN_S", 0.2)
    with pytest.raises(ConnectionLost, match=f"UDP port {port}"):
        Client()
    # A worker waits instead, and says for whom.
    worker = Worker({"echo": lambda request: request.body}, dialect="ebus")
    worker.stop()
    worker.run()
    (text,) = caplog.messages
    assert "POLYBUS_EBUS_WORKER" in text
    assert text.endswith("Waiting for one")


# -- networks of their own ------------------------------------------------------------------------------


def listen(machine: Machine, cwd: Path, seconds: float = 2.5) -> list[dict[str, Any]]:
    done = machine.polybus("discover", "--seconds", str(seconds), "--json", cwd=cwd)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_a_broker_is_found_over_a_network_by_broadcast(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    app = there / "echo.py"
    app.write_text(
        textwrap.dedent("""
            from polybus import Worker
            Worker({"reverse": lambda request: request.body[::-1]}).run()
            """)
    )
    with Network(3) as network, ExitStack() as stack:
        broker, *others = network.machines
        stack.enter_context(broker.serve(tmp_path, "--host", broker.address, "--name", "gondor"))
        for machine in others:
            (found,) = listen(machine, there)
            assert (found["address"], found["port"], found["name"]) == (broker.address, 5246, "gondor")
        stack.enter_context(others[0].program(str(app), folder=there))
        for dialect in DIALECTS:
            done = others[1].polybus("call", "reverse", "abc", "--dialect", dialect, cwd=there)
            assert (done.returncode, done.stdout, done.stderr) == (0, b"cba\n", b"")


@pytest.mark.long
def test_a_broker_on_every_interface_is_found_here_and_there(tmp_path: Path) -> None:
    with Network(2) as network, network.here.serve(tmp_path, "--host", "0.0.0.0"):
        here, there = network.machines
        assert [found["address"] for found in listen(here, tmp_path)] == [here.address, "127.0.0.1"]
        assert [found["address"] for found in listen(there, tmp_path)] == [here.address]


@pytest.mark.long
def test_a_broker_on_loopback_is_not_heard_elsewhere(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with Network(2) as network, network.here.serve(tmp_path):
        assert [found["address"] for found in listen(network.here, there)] == ["127.0.0.1"]
        assert listen(network.machines[1], there) == []
        done = network.machines[1].polybus("call", "reverse", "abc", cwd=there)
    assert done.returncode == 1
    text = done.stderr.decode()
    assert text.startswith("polybus: no bus was found for a mdr client. Tried: POLYBUS_MDR_CLIENT (not set);")
    assert "tcp://127.0.0.1:5555 (connection refused)" in text
    assert "UDP port 5245" in text


@pytest.mark.long
def test_addresses_without_a_broadcast_address_of_their_own(tmp_path: Path) -> None:
    code = (
        "from msgspec.structs import astuple\nfrom polybus.server.interfaces import interfaces\n"
        "for one in interfaces(): print('/'.join(astuple(one)))"
    )
    with Network(2) as network:
        machine = network.machines[1]
        machine.ip("addr", "add", "10.46.0.9/16", "brd", "10.46.7.7", "dev", "net0")
        machine.ip("addr", "add", "10.47.0.9/31", "dev", "net0")
        machine.ip("addr", "add", "10.48.0.9/24", "dev", "net0", "label", "net0:1")
        machine.ip("link", "add", "idle", "type", "bridge")
        machine.ip("addr", "add", "10.49.0.9/24", "dev", "idle")
        command = machine.command([sys.executable, "-c", code])
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert sorted(done.stdout.split()) == [
        "idle/10.49.0.9/",
        "lo/127.0.0.1/",
        "net0/10.45.0.2/10.45.0.255",
        "net0/10.46.0.9/10.46.7.7",
        "net0/10.47.0.9/",
        "net0:1/10.48.0.9/10.48.0.255",
    ]


def test_a_worker_may_be_there_before_its_broker(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        textwrap.dedent("""
            from polybus import Bus
            bus = Bus()

            @bus.job(queue="sums")
            def add(a: int, b: int) -> int:
                return a + b
            """)
    )
    with Network() as network, ExitStack() as stack:
        command = ("-m", "polybus", "worker", "app:bus")
        worker = stack.enter_context(network.here.program(*command, folder=tmp_path))
        worker.wait_for(lambda line: "Waiting for one at tcp://127.0.0.1:47290" in line)
        stack.enter_context(network.here.serve(tmp_path))
        worker.wait_for(lambda line: line.startswith("ready "))
