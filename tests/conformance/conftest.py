"""Brokers with fast heartbeats for all conformance tests of a process; each test uses names of its own.

Most tests talk to `broker`, which waits for everybody. Only those that wait for a loss or an expiry
themselves take one of the others, and may not rely on being in time there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from conformance.live_settings import EXPIRING, HASTY, UNHURRIED
from support.live import LiveBroker


def _living(settings: dict[str, object]) -> Iterator[LiveBroker]:
    with LiveBroker(settings) as broker:
        yield broker
        assert broker.is_alive, broker.errors()
        assert not broker.crashes(), broker.crashes()


@pytest.fixture(scope="session")
def broker() -> Iterator[LiveBroker]:
    yield from _living(UNHURRIED)


@pytest.fixture(scope="session")
def hasty() -> Iterator[LiveBroker]:
    """A broker that soon loses who is silent."""
    yield from _living(HASTY)


@pytest.fixture(scope="session")
def expiring() -> Iterator[LiveBroker]:
    """A broker on which requests soon expire."""
    yield from _living(EXPIRING)


_numbers = count(1)


@pytest.fixture
def service() -> bytes:
    """A name that no other test uses."""
    return b"service-%d" % next(_numbers)
