"""The beacon: where it goes, how often, and what happens when it cannot be sent."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from math import inf

import pytest

from polybus.config import BeaconSettings
from polybus.server import beacon as module
from polybus.server.beacon import Beacon, Place, places
from polybus.server.interfaces import Interface, interfaces
from support.ports import steady_ports

LO = Interface("lo", "127.0.0.1", "")
ETH0 = Interface("eth0", "10.0.0.5", "10.0.0.255")
ALIAS = Interface("eth0:1", "10.0.1.5", "10.0.1.255")
ETH1 = Interface("eth1", "10.9.0.5", "10.9.255.255")
TUNNEL = Interface("tun0", "10.8.0.5", "")
ALL = [LO, ETH0, ALIAS, ETH1, TUNNEL]
HERE = [("127.0.0.1", "127.0.0.1"), ("127.255.255.255", "127.0.0.1")]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", steady_ports(["beacon"])["beacon"]))
        found.settimeout(10)
        yield found


@pytest.mark.parametrize(
    ("host", "addresses", "names", "expected"),
    [
        ("127.0.0.1", (), (), HERE),
        ("127.0.0.2", (), (), [("127.0.0.1", "127.0.0.2"), ("127.255.255.255", "127.0.0.2")]),
        ("127.0.0.1", (), ("eth0",), HERE),
        ("10.0.0.5", (), (), [("10.0.0.255", "10.0.0.5")]),
        ("10.0.1.5", (), (), [("10.0.1.255", "10.0.1.5")]),
        ("10.0.0.5", (), ("eth1",), []),
        ("10.8.0.5", (), (), []),
        ("10.7.7.7", (), (), []),
        (
            "0.0.0.0",
            (),
            (),
            [*HERE, ("10.0.0.255", "10.0.0.5"), ("10.0.1.255", "10.0.1.5"), ("10.9.255.255", "10.9.0.5")],
        ),
        ("::", (), ("eth1",), [("10.9.255.255", "10.9.0.5")]),
        ("0.0.0.0", (), ("eth0",), [("10.0.0.255", "10.0.0.5"), ("10.0.1.255", "10.0.1.5")]),
        ("0.0.0.0", (), ("lo", "eth1"), [*HERE, ("10.9.255.255", "10.9.0.5")]),
        ("0.0.0.0", ("10.3.3.3",), (), [("10.3.3.3", "")]),
        ("10.0.0.5", ("10.3.3.3", "10.3.3.3"), ("eth1",), [("10.3.3.3", "10.0.0.5")]),
    ],
)
def test_where_it_goes(
    host: str, addresses: tuple[str, ...], names: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    found = places(host, addresses, names, ALL)
    assert [(place.address, place.source) for place in found] == expected


def test_a_bound_port_is_announced_once_a_second_and_not_more_often(listener: socket.socket) -> None:
    clock = Clock()
    port = listener.getsockname()[1]
    settings = BeaconSettings(port=port, addresses=("127.0.0.1",))
    beacon = Beacon(settings, "tcp://127.0.0.1:4711", clock=clock)
    try:
        beacon.shine()
        beacon.shine()
        clock.now += 0.999
        beacon.shine()
        assert beacon.sent == 1
        clock.now += 0.001
        beacon.shine()
        assert beacon.sent == 2
        for _ in range(2):
            packet, sender = listener.recvfrom(100)
            assert packet == b"SHALOM 4711"
            assert sender[0] == "127.0.0.1"
        assert beacon.facts() == {
            "beacon": f"127.0.0.1 port {port}",
            "beacons_sent": 2,
            "beacons_failed": 0,
        }
    finally:
        beacon.end()
    clock.now += 10
    assert beacon.next_at == inf
    beacon.shine()
    assert beacon.sent == 2
    assert beacon.facts()["beacon"] == "off: the broker is stopping"


@pytest.mark.parametrize(
    ("settings", "endpoint", "words"),
    [
        (BeaconSettings(enabled=False), "tcp://127.0.0.1:1", "beacon.enabled"),
        (BeaconSettings(), "", "does not listen"),
        (BeaconSettings(), "ipc:///tmp/x", "does not listen"),
        (BeaconSettings(), "tcp://[::1]:5246", "IPv4"),
    ],
)
def test_when_there_is_nothing_to_announce(settings: BeaconSettings, endpoint: str, words: str) -> None:
    beacon = Beacon(settings, endpoint)
    assert beacon.next_at == inf
    assert words in beacon.facts()["beacon"]


class Unreachable:
    closed = False

    def sendto(self, *_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    def close(self) -> None:
        self.closed = True


def test_what_cannot_be_sent_is_counted_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_sender", lambda place: Unreachable())
    clock, told = Clock(), list[str]()
    beacon = Beacon(
        BeaconSettings(), "tcp://10.0.0.5:5246", clock=clock, look=lambda: [ETH0], tell=told.append
    )
    for _ in range(5):
        clock.now += 1
        beacon.shine()
    assert (beacon.sent, beacon.failed) == (0, 5)
    assert len(told) == 1
    assert "10.0.0.255" in told[0]
    assert "unreachable" in told[0]


def test_an_address_that_is_not_ours_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(), list[str]()
    gone = Interface("eth0", "198.51.100.7", "198.51.100.255")
    beacon = Beacon(
        BeaconSettings(), "tcp://198.51.100.7:5246", clock=clock, look=lambda: [gone], tell=told.append
    )
    beacon.shine()
    assert (beacon.sent, beacon.failed, len(told)) == (0, 1, 1)


def test_an_interface_that_cannot_broadcast_is_told_once() -> None:
    clock, told = Clock(), list[str]()
    beacon = Beacon(BeaconSettings(), "tcp://10.8.0.5:5246", clock=clock, look=lambda: ALL, tell=told.append)
    for _ in range(3):
        beacon.shine()
        clock.now += module.LOOK_AGAIN_S
    assert len(told) == 1
    assert "beacon.addresses" in told[0]


def test_interfaces_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[Place, Unreachable] = {}

    def open_one(place: Place) -> Unreachable:
        assert place not in opened
        opened[place] = Unreachable()
        return opened[place]

    monkeypatch.setattr(module, "_sender", open_one)
    clock, found = Clock(), [ETH0]
    beacon = Beacon(
        BeaconSettings(interfaces=("eth0", "eth1")),
        "tcp://0.0.0.0:5246",
        clock=clock,
        look=lambda: list(found),
        tell=lambda text: None,
    )
    beacon.shine()
    found[:] = [ETH1, ETH0]
    clock.now += module.LOOK_AGAIN_S
    beacon.shine()
    assert {place.address for place in opened} == {"10.0.0.255", "10.9.255.255"}
    found[:] = [ETH1]
    clock.now += module.LOOK_AGAIN_S
    beacon.shine()
    assert opened[Place("10.0.0.255", "10.0.0.5")].closed
    beacon.end()
    assert all(sender.closed for sender in opened.values())


def test_a_system_that_does_not_list_its_interfaces(listener: socket.socket) -> None:
    def fail() -> list[Interface]:
        raise OSError(errno.EPERM, "Operation not permitted")

    told: list[str] = []
    settings = BeaconSettings(port=listener.getsockname()[1])
    beacon = Beacon(settings, "tcp://127.0.0.1:4711", look=fail, tell=told.append)
    beacon.shine()
    beacon.end()
    assert listener.recv(100) == b"SHALOM 4711"
    assert len(told) == 1


def test_loopback_is_there_and_cannot_broadcast() -> None:
    assert LO in interfaces()
