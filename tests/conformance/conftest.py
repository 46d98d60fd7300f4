"""One broker with fast heartbeats for all conformance tests of a process; each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from conformance.live_settings import FAST
from support.live import LiveBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[LiveBroker]:
    with LiveBroker(FAST) as broker:
        yield broker
        assert broker.is_alive, broker.errors()
        assert not broker.crashes(), broker.crashes()


_numbers = count(1)


@pytest.fixture
def service() -> bytes:
    """A name that no other test uses."""
    return b"service-%d" % next(_numbers)
