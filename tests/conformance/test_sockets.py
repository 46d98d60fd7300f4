"""Which sockets there are: seen in the handshake of a connection, where each side names its type."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polybus import Worker, config
from support.fake_brokers import OWN_ADDRESS
from support.live import LiveBroker, Peer
from support.patience import patient
from support.zmtp import type_at, type_on


@pytest.mark.parametrize(
    "port",
    [
        pytest.param(
            "ebus.frontend",
            marks=pytest.mark.conforms("EBUS-1"),
        ),
        pytest.param("ebus.backend", marks=pytest.mark.conforms("EBUS-1")),
        pytest.param("emqp.clients", marks=pytest.mark.conforms("EMQP-3")),
        pytest.param("emqp.workers", marks=pytest.mark.conforms("EMQP-3")),
        pytest.param("majordomo.clients", marks=pytest.mark.conforms("MDP1-2", "MDP2-2", "MDR-1", "MDR-2")),
        pytest.param("majordomo.workers", marks=pytest.mark.conforms("MDP1-2", "MDP2-2", "MDR-1", "MDR-2")),
        pytest.param("dbp.port", marks=pytest.mark.conforms("DBP-1")),
    ],
)
def test_the_broker_binds_routers(broker: LiveBroker, port: str) -> None:
    assert type_at(broker[port]) == b"ROUTER"


@pytest.mark.conforms("DBP-1")
def test_dbp_is_at_5246_unless_somebody_moves_it() -> None:
    settings = config.load(overrides={}, environ={})
    assert config.endpoint(settings, "dbp.port") == "tcp://127.0.0.1:5246"


@pytest.mark.conforms("EBUS-17", "EBUS-19")
def test_the_publishing_sockets_of_ebus(broker: LiveBroker) -> None:
    assert type_at(broker["ebus.publish"], b"PUB") == b"XSUB"
    assert type_at(broker["ebus.subscribe"], b"SUB") == b"XPUB"


@pytest.mark.conforms("EMQP-3")
def test_one_socket_of_emqp_takes_every_role(broker: LiveBroker, service: bytes) -> None:
    with Peer(broker["emqp.clients"]) as worker, Peer(broker["emqp.workers"]) as client:
        worker.send(b"", b"eMQP/1.0", b"INFORM", b"i1", b'[[10, "%b"]]' % service, b"worker")
        assert worker.recv()[:3] == [b"", b"eMQP/1.0", b"ACK"]
        worker.send(b"", b"eMQP/1.0", b"READY", b"r1")
        client.send(b"", b"eMQP/1.0", b"REQUEST", b"q1", service, b"", b"job")
        order = worker.recv_until(lambda frames: frames[2] != b"HEARTBEAT")
        assert order[2] == b"REQUEST"
        assert order[4] == service
        assert order[6] == b"job"


@contextmanager
def running(dialect: str, endpoint: str) -> Iterator[None]:
    worker = Worker({"echo": lambda request: request.body}, endpoint, dialect)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(patient(10))
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "dialect",
    [
        pytest.param("ebus", marks=pytest.mark.conforms("EBUS-1")),
        pytest.param("mdp1", marks=pytest.mark.conforms("MDP1-16")),
        pytest.param("mdp2", marks=pytest.mark.conforms("MDP2-17")),
        pytest.param("mdr", marks=pytest.mark.conforms("MDR-19")),
        pytest.param("dbp", marks=pytest.mark.conforms("DBP-17")),
    ],
)
def test_a_worker_connects_one_dealer(dialect: str) -> None:
    with socket.create_server((OWN_ADDRESS, 0)) as server:
        server.settimeout(patient(10))
        with running(dialect, f"tcp://{OWN_ADDRESS}:{server.getsockname()[1]}"):
            line, _ = server.accept()
            with line:
                assert type_on(line) == b"DEALER"
                # It began the conversation on this connection, and there is no other.
                assert line.recv(1)
                server.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    server.accept()
