"""Peers and brokers for the interop tests. Whatever a fixture starts it also ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.interop_env import peer
from support.interop_eventmq import EventMQ
from support.interop_hermes import Hermes, beacon
from support.interop_process import Broker

# Beats are frequent, so that EventMQ's job managers start at once; a silent peer is given up after 4 s.
QUICK = {"emqp": {"heartbeat_s": 0.3, "timeout_s": 2.0, "liveness": 2}, "broker": {"drain_s": 1.0}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.interop)
            # EventMQ's times are whole seconds, and its processes start slowly.
            item.add_marker(pytest.mark.timeout(150))


@pytest.fixture(scope="session")
def eventmq_home() -> Path:
    return peer("eventmq")


@pytest.fixture(scope="session")
def hermes_home() -> Path:
    return peer("hermes")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = Broker(folder, QUICK)
    yield broker
    broker.kill()


@pytest.fixture
def eventmq(tmp_path: Path, eventmq_home: Path) -> Iterator[EventMQ]:
    eventmq = EventMQ(eventmq_home, tmp_path)
    yield eventmq
    eventmq.close()


@pytest.fixture
def hermes(tmp_path: Path, hermes_home: Path, broker: Broker) -> Iterator[Hermes]:
    """Hermes' nodes find the broker of this test."""
    hermes = Hermes(hermes_home, tmp_path)
    with beacon(broker.endpoints["dbp.port"]):
        yield hermes
        hermes.close()
