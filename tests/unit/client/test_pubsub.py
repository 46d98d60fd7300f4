"""The socket for publications: the conversation may end while something is being published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from polybus.client import pubsub
from polybus.client.pubsub import SUBSCRIBED, Publisher, write_publication
from support.fake_brokers import OWN_ADDRESS, PATIENCE_MS
from support.waiting import until

MESSAGE = write_publication("ebus", b"id", b"price", [b"7"])


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(0)


@pytest.fixture
def reader(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.XSUB)
    socket.bind(f"tcp://{OWN_ADDRESS}:*")
    return socket


@pytest.fixture
def publisher(context: zmq.Context[zmq.Socket[bytes]], reader: zmq.Socket[bytes]) -> Publisher:
    publisher = Publisher("ebus", reader.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), context)
    reader.send(SUBSCRIBED)
    # libzmq lets a connection in when its socket is looked at.
    until(lambda: not reader.poll(0) and publisher.has_joined(), "the broker takes publications")
    return publisher


def is_closed(publisher: Publisher) -> bool:
    return publisher._socket.closed


def test_a_retired_publisher_closes_its_socket(publisher: Publisher) -> None:
    with publisher.using():
        assert publisher.try_send(MESSAGE)
    assert not is_closed(publisher)
    publisher.retire()
    assert is_closed(publisher)


def test_what_is_being_published_is_sent_before_the_socket_is_closed(
    publisher: Publisher, reader: zmq.Socket[bytes]
) -> None:
    with publisher.using():
        with publisher.using():
            publisher.retire()
            assert publisher.try_send(MESSAGE)
        assert not is_closed(publisher)
        assert publisher.try_send(MESSAGE)
    assert is_closed(publisher)
    for _ in range(2):
        assert reader.poll(PATIENCE_MS)
        assert reader.recv_multipart() == MESSAGE


def test_what_a_retired_socket_still_holds_goes_out(
    publisher: Publisher, reader: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is more than the system takes before anybody reads."""
    assert pubsub.RETIRE_S >= 1.0
    monkeypatch.setattr(pubsub, "RETIRE_S", PATIENCE_MS / 1000)
    many = [write_publication("ebus", b"id", b"price", [b"%d" % n * 100_000]) for n in range(100)]
    for message in many:
        assert publisher.try_send(message)
    publisher.retire()
    for message in many:
        assert reader.poll(PATIENCE_MS)
        assert reader.recv_multipart() == message
