"""The UDP socket of a broker: what it takes, what it sends, and where it is bound."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from polybus import config
from polybus.core import actions as act
from polybus.core.bus import Bus
from polybus.errors import ConfigError
from polybus.server.datagrams import AT_ONCE, Datagrams
from support.live import wait_for
from support.ports import steady_ports

NOBODY = b"<3 1 nobody"


def opened(bus: Bus, **overrides: Any) -> Datagrams:
    settings = config.load(None, {**config.any_free_ports(), **overrides}, {})
    return Datagrams(bus, settings, lambda: 1700000000.5)


@pytest.fixture
def bus() -> Bus:
    return Bus(b"n")


@pytest.fixture
def datagrams(bus: Bus) -> Iterator[Datagrams]:
    datagrams = opened(bus)
    yield datagrams
    datagrams.close()


@pytest.fixture
def node() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
        node.bind(("127.0.0.1", 0))
        node.settimeout(10)
        yield node


def read(datagrams: Datagrams) -> None:
    if select.select(datagrams.fds, [], [], 10)[0]:
        datagrams.receive(0, [], 0.0)


def test_all_that_is_there_is_read_at_once(bus: Bus, datagrams: Datagrams, node: socket.socket) -> None:
    for packet in (NOBODY, b"rubbish", NOBODY, b"", NOBODY):
        node.sendto(packet, ("127.0.0.1", datagrams.port))
    read(datagrams)
    wait_for(lambda: read_if_any(datagrams) or bus.catalog.strays + datagrams.invalid == 5)
    assert (bus.catalog.strays, datagrams.facts()) == (
        3,
        {"datagrams_invalid": 2, "datagrams_unsent": 0, "datagrams_broadcast": 0},
    )
    # Nothing is there: nothing happens.
    datagrams.receive(0, [], 0.0)


def read_if_any(datagrams: Datagrams) -> None:
    if select.select(datagrams.fds, [], [], 0)[0]:
        datagrams.receive(0, [], 0.0)


def test_a_turn_reads_no_more_than_its_part() -> None:
    # Whoever sends faster than we read must not have the loop for himself.
    assert AT_ONCE < 10_000


def test_beats_and_endings(datagrams: Datagrams, node: socket.socket) -> None:
    send = datagrams.handlers[act.Beckon]
    send(act.Beckon(node.getsockname(), False))
    assert node.recv(100) == b"<3 1700000000.500000 polybus"
    send(act.Beckon(node.getsockname(), True))
    assert node.recv(100) == b"</3 1700000000.500000"


def test_what_cannot_be_sent_is_counted(datagrams: Datagrams) -> None:
    datagrams.handlers[act.Beckon](act.Beckon(("127.0.0.1", 0), False))
    assert datagrams.unsent == 1


@pytest.mark.parametrize(
    "off",
    [
        {"dbp.udp": -1},
        {"dbp.port": -1},
        {"dbp.port": -1, "dbp.udp": ""},
        {"dbp.enabled": False},
        {"dbp.port": "ipc://dbp", "dbp.udp": ""},
    ],
)
def test_it_may_be_off(bus: Bus, off: dict[str, Any]) -> None:
    datagrams = opened(bus, **off)
    assert (datagrams.fds, datagrams.endpoint, datagrams.port) == ([], "", 0)
    datagrams.close()


@pytest.mark.parametrize("place", ["{}", "tcp://127.0.0.1:{}"])
def test_unless_said_otherwise_it_has_the_number_of_the_tcp_port(bus: Bus, place: str) -> None:
    number = steady_ports(["dbp.port"])["dbp.port"]
    other = opened(bus, **{"dbp.port": place.format(number), "dbp.udp": ""})
    assert other.endpoint == f"udp://127.0.0.1:{number}"
    other.close()


def test_a_port_that_is_taken_is_an_error_with_a_way_out(bus: Bus, datagrams: Datagrams) -> None:
    with pytest.raises(ConfigError, match=r"Set dbp\.udp to another port"):
        opened(bus, **{"dbp.udp": datagrams.port})


@pytest.mark.parametrize("host", ["127.0.0.1", "lo", "localhost"])
def test_hosts(bus: Bus, host: str) -> None:
    datagrams = opened(bus, **{"broker.host": host})
    assert datagrams.endpoint == f"udp://127.0.0.1:{datagrams.port}"
    datagrams.close()


def test_ipv6(bus: Bus) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        datagrams = opened(bus, **{"dbp.udp": "udp://[::1]:0"})
    except ConfigError:
        pytest.skip("no IPv6 loopback here")
    assert datagrams.endpoint == f"udp://[::1]:{datagrams.port}"
    datagrams.close()
