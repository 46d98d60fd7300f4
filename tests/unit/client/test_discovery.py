"""Finding a bus: what is heard, what it says about itself, and what is said if there is none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from polybus import config
from polybus.client import discovery, places
from polybus.client.discovery import About, Finder, Heard, Listener, beacon_port, introduce
from polybus.errors import ConfigError, ConnectionLost
from polybus.wire.dbp import BROKER
from support.fake_brokers import FakeBroker
from support.patience import patient
from support.ports import steady_ports

# Long enough for a datagram to come round on a busy machine, and only waited for in vain.
SHORT_S = 0.2
PATIENCE_S = patient(20.0)


@pytest.fixture
def port() -> int:
    return steady_ports(["beacon"])["beacon"]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No broker of whoever runs the tests is found."""
    monkeypatch.chdir(tmp_path)
    usual = {
        dialect: {role: steady_ports([role])[role] for role in roles}
        for dialect, roles in discovery.PORTS.items()
    }
    monkeypatch.setattr(discovery, "PORTS", usual)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    # Where a broker of this machine is looked for, and where `announced` speaks from.
    found = FakeBroker("127.0.0.1")
    yield found
    found.close()


@contextmanager
def announced(port: int, *packets: bytes) -> Iterator[None]:
    """These datagrams come again and again."""
    done = threading.Event()

    def shine() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not done.wait(0.02):
                for packet in packets:
                    sender.sendto(packet, ("127.0.0.1", port))

    thread = threading.Thread(target=shine)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def answering(broker: FakeBroker, body: bytes) -> Iterator[None]:
    """The broker says this to the first question."""

    def answer() -> None:
        identity, frames = broker.receive()
        assert frames[1] == b"u_U"
        assert frames[3:] == [BROKER]
        broker.send(identity, b"", b"o_O", frames[2], body)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def introduction(endpoints: Mapping[str, str], name: str = "here") -> bytes:
    return json.dumps({BROKER.decode(): {"name": name, "function": "x", "endpoints": endpoints}}).encode()


def heard_at(endpoint: str, **more: object) -> Heard:
    host, port = endpoint.removeprefix("tcp://").split(":")
    return Heard(host, int(port), 1, 0.0, 0.0, **more)  # type: ignore[arg-type]


# -- hearing ------------------------------------------------------------------------------------------


def test_the_settings_of_both_sides_agree() -> None:
    assert config.BeaconSettings().port == discovery.DEFAULT_PORT
    assert config.BrokerSettings().data_dir == discovery.DEFAULT_DATA_DIR
    assert config.variable("beacon.port") == discovery.BEACON_PORT
    assert config.variable("beacon.enabled") == discovery.BEACON_ENABLED
    assert config.variable("broker.data_dir") == discovery.DATA_DIR


def test_announcements_are_told_from_noise(port: int) -> None:
    with Listener(port) as listener, announced(port, b"SHALOM 99999", b"hello", b"", b"SHALOM 5246"):
        heard = next(listener.hear(PATIENCE_S))
        assert (heard.address, heard.port, heard.times) == ("127.0.0.1", 5246, 1)
        assert heard.every_s is None
        assert heard.endpoint == "tcp://127.0.0.1:5246"
        assert listener.invalid >= 3
        assert list(listener.buses) == [("127.0.0.1", 5246)]


def test_one_announcement_by_two_ways_counts_once(port: int) -> None:
    with Listener(port) as listener:
        packet = b"SHALOM 1"
        for at in (10.0, 10.001, 11.0, 11.002, 12.0):
            listener._take(packet, "10.0.0.1", at)
        (heard,) = listener.buses.values()
        assert (heard.times, heard.every_s) == (3, 1.0)


def test_made_up_buses_do_not_fill_the_memory(port: int) -> None:
    with Listener(port) as listener:
        for number in range(1000):
            listener._take(b"SHALOM 1", f"10.0.{number // 250}.{number % 250}", 1.0)
        assert len(listener.buses) == discovery.MOST_BUSES


def test_several_listen_on_one_machine(port: int) -> None:
    with Listener(port), Listener(port):
        pass


def test_a_port_that_somebody_keeps_for_himself(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", port))
        with pytest.raises(ConnectionLost, match=str(port)):
            Listener(port)
        with pytest.raises(ConnectionLost, match="cannot be listened on"):
            Finder({"POLYBUS_BEACON_PORT": str(port)}).endpoint("mdr", "client")


# -- what a bus says about itself -----------------------------------------------------------------------


def test_a_bus_introduces_itself(broker: FakeBroker) -> None:
    heard = heard_at(broker.endpoint)
    endpoints = {
        "majordomo.clients": "tcp://0.0.0.0:5555",
        "bad": "tcp://127.0.0.1;1:1",
        "worse": "file:///x",
    }
    endpoints["name"] = "tcp://some.host:1"
    with answering(broker, introduction(endpoints)):
        introduce([heard], PATIENCE_S)
    assert heard.about == About("here", {"majordomo.clients": "tcp://0.0.0.0:5555"})


@pytest.mark.parametrize(
    "body",
    [
        b'{"Error": "No Registered Service With the Name polybus.broker"}',
        b"{}",
        b"[]",
        b"\xff",
        b"",
        b'{"polybus.broker": {"name": 5}}',
        b'{"polybus.broker": {"name": "x", "endpoints": {"a": 1}}}',
    ],
)
def test_a_bus_that_is_no_polybus(broker: FakeBroker, body: bytes) -> None:
    heard = heard_at(broker.endpoint)
    with answering(broker, body):
        introduce([heard], PATIENCE_S)
    assert heard.about is None


def test_a_bus_that_says_nothing_costs_a_moment(broker: FakeBroker) -> None:
    silent = [heard_at(broker.endpoint), heard_at("tcp://127.0.0.1:1")]
    introduce(silent, SHORT_S)
    assert [heard.about for heard in silent] == [None, None]


# -- searching ----------------------------------------------------------------------------------------


def test_arguments_and_environment_come_first() -> None:
    environ = {"POLYBUS_MDR_CLIENT": "there:1", "POLYBUS_BEACON_ENABLED": "false"}
    assert Finder(environ).endpoint("mdr", "client") == "tcp://there:1"
    assert Finder(environ).endpoint("mdr", "client", "elsewhere:2") == "tcp://elsewhere:2"


def test_what_a_broker_wrote_down_here(tmp_path: Path, broker: FakeBroker) -> None:
    (tmp_path / "var").mkdir()
    file = tmp_path / "var" / "endpoints.json"
    file.write_text(json.dumps({"endpoints": {"majordomo.clients": broker.endpoint}}))
    environ = {"POLYBUS_BEACON_ENABLED": "false"}
    assert Finder(environ).endpoint("mdp2", "client") == broker.endpoint
    # What is not in it, or not there any more, is not believed.
    with pytest.raises(ConnectionLost):
        Finder(environ).endpoint("ebus", "client")
    broker.close()
    with pytest.raises(ConnectionLost, match=r"from var/endpoints.json\) \(connection refused"):
        Finder(environ).endpoint("mdp2", "client")
    file.write_text("{")
    with pytest.raises(ConnectionLost, match="damaged"):
        Finder(environ).endpoint("mdp2", "client")


def test_the_data_directory_may_be_elsewhere(tmp_path: Path, broker: FakeBroker) -> None:
    (tmp_path / "endpoints.json").write_text(json.dumps({"endpoints": {"dbp.port": broker.endpoint}}))
    environ = {"POLYBUS_BROKER_DATA_DIR": str(tmp_path), "POLYBUS_BEACON_ENABLED": "false"}
    assert Finder(environ).endpoint("dbp", "worker") == broker.endpoint


def test_the_usual_port_of_this_machine(monkeypatch: pytest.MonkeyPatch, broker: FakeBroker) -> None:
    usual = int(broker.endpoint.rpartition(":")[2])
    monkeypatch.setattr(discovery, "PORTS", {"mdr": {"client": usual}})
    assert Finder({}).endpoint("mdr", "client") == broker.endpoint


def test_a_dbp_peer_goes_to_the_announced_port(port: int, broker: FakeBroker) -> None:
    packet = b"SHALOM " + broker.endpoint.rpartition(":")[2].encode()
    with announced(port, b"SHALOM 1", packet):
        finder = Finder({"POLYBUS_BEACON_PORT": str(port)}, PATIENCE_S)
        assert finder.endpoint("dbp", "client") == broker.endpoint


def test_other_dialects_ask_the_announced_broker(port: int, broker: FakeBroker) -> None:
    number = broker.endpoint.rpartition(":")[2]
    everywhere = f"tcp://0.0.0.0:{number}"
    offers = {
        "majordomo.clients": everywhere,
        "ebus.publish": everywhere,
        "emqp.clients": "tcp://127.0.0.1:1",
    }
    finder = Finder({"POLYBUS_BEACON_PORT": str(port)}, PATIENCE_S)
    with announced(port, b"SHALOM " + number.encode()), answering(broker, introduction(offers)):
        assert finder.endpoint("mdp1", "client") == broker.endpoint
    # The bus is remembered: nobody announces it any more, and it is not asked again.
    assert finder.endpoint("ebus", "publish") == broker.endpoint
    with pytest.raises(ConnectionLost, match=r"ebus\.backend is off"):
        finder.endpoint("ebus", "worker")
    with pytest.raises(ConnectionLost, match=r"tcp://127.0.0.1:1 \(announced\) \(connection refused\)"):
        finder.endpoint("emqp", "client")


def test_an_error_says_what_was_tried_and_what_to_do(port: int) -> None:
    environ = {"POLYBUS_BEACON_PORT": str(port)}
    with pytest.raises(ConnectionLost) as caught:
        Finder(environ, SHORT_S).endpoint("mdr", "client")
    text = str(caught.value)
    usual = discovery.PORTS["mdr"]["client"]
    for words in (
        "POLYBUS_MDR_CLIENT",
        "var/ (there is no endpoints.json)",
        f"tcp://127.0.0.1:{usual} (connection refused)",
        f"UDP port {port} within 0.2 s",
        "polybus serve",
    ):
        assert words in text
    found, why = Finder(environ, SHORT_S).endpoint_or_usual("mdr", "client")
    assert (found, why) == (f"tcp://127.0.0.1:{usual}", text)


def test_a_bus_without_the_dialect_is_no_polybus(port: int, broker: FakeBroker) -> None:
    packet = b"SHALOM " + broker.endpoint.rpartition(":")[2].encode()
    finder = Finder({"POLYBUS_BEACON_PORT": str(port)}, patient(1.0))
    with (
        announced(port, packet),
        answering(broker, b'{"Error": "unknown"}'),
        pytest.raises(ConnectionLost, match="does not answer as a polybus broker"),
    ):
        finder.endpoint("mdr", "client")


@pytest.mark.parametrize("text", ["0", "65536", "x", "-1", "1" * 5000])
def test_a_beacon_port_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="POLYBUS_BEACON_PORT"):
        beacon_port({"POLYBUS_BEACON_PORT": text})


# -- places -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "host", "reached"),
    [
        ("tcp://0.0.0.0:5", "198.51.100.1", "tcp://198.51.100.1:5"),
        ("tcp://[::]:5", "198.51.100.1", "tcp://198.51.100.1:5"),
        ("tcp://198.51.100.1:5", "198.51.100.1", "tcp://198.51.100.1:5"),
        ("tcp://127.0.0.1:5", "198.51.100.1", ""),
        ("tcp://[::1]:5", "198.51.100.1", ""),
        ("ipc:///tmp/x", "198.51.100.1", ""),
        ("tcp://127.0.0.1:5", "127.0.0.1", "tcp://127.0.0.1:5"),
        ("ipc:///tmp/x", "127.0.0.1", "ipc:///tmp/x"),
    ],
)
def test_how_an_endpoint_elsewhere_is_reached(bound: str, host: str, reached: str) -> None:
    assert places.from_there(bound, host) == reached


def test_what_stays_on_the_machine_of_the_broker(port: int) -> None:
    heard = heard_at("tcp://198.51.100.1:5246", about=About("far", {"ebus.frontend": "tcp://127.0.0.1:5000"}))
    search = discovery._Search("ebus", "client")
    assert search.offered(heard) == ""
    assert "keeps ebus.frontend to its own machine" in search.failure()
    assert msgspec.structs.asdict(heard)["about"].name == "far"
