"""The UDP sockets of a DBP worker."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from polybus.client.packets import AT_ONCE, Packets
from support.live import wait_for
from support.ports import steady_ports


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as broker:
        broker.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        broker.bind(("127.0.0.1", 0))
        broker.settimeout(10)
        yield broker


@pytest.fixture
def packets() -> Iterator[Packets]:
    packets = Packets("127.0.0.1")
    yield packets
    packets.close()


def test_datagrams_go_both_ways(broker: socket.socket, packets: Packets) -> None:
    assert packets.ip == "127.0.0.1"
    packets.agree(broker.getsockname()[1], 0)
    packets.send([b"one"])
    found, source = broker.recvfrom(100)
    assert found == b"one"
    for _ in range(2 * AT_ONCE):
        broker.sendto(b"two", source)
    assert wait_for(packets.receive)[0] == b"two"
    packets.agree(0, 0)
    packets.send([b"nowhere to go"])
    assert packets.receive() == []


def test_broadcasts_of_its_broker_are_heard_by_all_and_no_others(
    broker: socket.socket, packets: Packets
) -> None:
    port = steady_ports(["broadcast"])["broadcast"]
    second = Packets("localhost")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        stranger.bind(("127.0.0.1", 0))
        for one in (packets, second):
            one.agree(broker.getsockname()[1], port)
        stranger.sendto(b"from elsewhere", ("127.255.255.255", port))
        broker.sendto(b"from the broker", ("127.255.255.255", port))
        for one in (packets, second):
            assert wait_for(one.receive) == [b"from the broker"]
    second.close()


@pytest.mark.parametrize("host", ["broker.example", "::1", "", "*", "127.0.0.1:5246"])
def test_what_is_no_address_has_no_datagrams(host: str) -> None:
    packets = Packets(host)
    assert packets.ip == ""
    packets.agree(5246, 5247)
    packets.send([b"x"])
    assert packets.receive() == []


def test_a_port_that_cannot_be_shared_leaves_the_rest(broker: socket.socket, packets: Packets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        packets.agree(broker.getsockname()[1], taken.getsockname()[1])
    packets.send([b"one"])
    assert broker.recv(100) == b"one"


def test_a_closed_port_is_only_silence(packets: Packets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    packets.agree(port, 0)
    for _ in range(3):
        packets.send([b"anybody?"])
        assert packets.receive() == []
