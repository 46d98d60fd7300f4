"""Every client dialect calls every worker dialect: bodies only. `make matrix` does the rest.

One broker and one process with a worker of each dialect serve all cells.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.peer import BODIES, expected
from matrix.run import CLIENT_PORTS, DIALECTS, WORKER_PORTS
from polybus import Client
from support.live import LiveBroker, wait_for
from support.patience import patient

PEER = Path(__file__).parents[1] / "matrix" / "peer.py"


@pytest.fixture(scope="module")
def broker() -> Iterator[LiveBroker]:
    with LiveBroker() as broker:
        entries = [[name, broker[WORKER_PORTS[name]], {f"echo-{name}": "echo"}] for name in DIALECTS]
        workers = subprocess.Popen([sys.executable, str(PEER), "worker", json.dumps(entries)])
        try:
            wait_for(lambda: broker.has_workers(*(f"echo-{name}" for name in DIALECTS)), patient(30))
            yield broker
        finally:
            workers.kill()
            workers.wait()
        assert not broker.crashes()


@pytest.mark.parametrize("worker", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_bodies_come_back_as_they_were(broker: LiveBroker, client: str, worker: str) -> None:
    assert broker.is_alive, broker.errors()
    with Client(broker[CLIENT_PORTS[client]], client, timeout_s=patient(20)) as caller:
        for body in BODIES:
            assert caller.call(f"echo-{worker}", body) == expected(client, body)
