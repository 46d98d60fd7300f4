"""Hermes' services and clients on polybus: the catalog, and calls across dialects."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from polybus import Client, Request, RequestFailed, RequestTimeout, Worker
from support.interop_hermes import Hermes, beacon
from support.interop_process import Broker, running, until
from support.patience import patient

ENDPOINTS = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}


def test_a_hermes_service_is_listed_and_updated(broker: Broker, hermes: Hermes) -> None:
    service, registration = hermes.service("rohan")
    assert registration["registered"] is True
    client = hermes.client()
    entry = client.ask("services", name="rohan")
    assert entry["interfaces"] == registration["interfaces"]
    assert entry["reg_time"]
    assert client.ask("services", name="") == {"rohan": entry}
    # Hermes makes None of an answer with an error.
    assert client.ask("services", name="mordor") is None

    # update_config returns nothing, and returns only after the acknowledgement.
    assert service.ask("update", config={"name": "rohan", "topics": ["horses"]}) is None
    assert client.ask("services", name="rohan") == {**entry, "topics": ["horses"]}
    assert [node["node"] for node in broker.ask("nodes")] == ["rohan"]
    assert broker.ask("status")["invalid"] == 0


def test_a_hermes_client_sees_every_dialect_and_pings_services(broker: Broker, hermes: Hermes) -> None:
    def echo(request: Request) -> bytes:
        return request.body

    hermes.service("rohan")
    with (
        running(Worker({"mdr-echo": echo}, broker.endpoints["majordomo.workers"], "mdr")),
        running(Worker({"ebus-echo": echo}, broker.endpoints["ebus.backend"], "ebus")),
        running(Worker({"emqp-echo": echo}, broker.endpoints["emqp.workers"], "emqp")),
        running(Worker({"dbp-echo": echo}, broker.endpoints["dbp.port"], "dbp")),
    ):
        names = {"rohan", "mdr-echo", "ebus-echo", "emqp-echo", "dbp-echo"}
        client = hermes.client()
        until(lambda: set(client.ask("services", name="")) == names, "all services in the catalog")
        assert client.ask("services", name="mdr-echo")["dialect"] == "mdr"
        # Hermes' client takes the address from the catalog and goes there itself.
        assert client.ask("ping", name="rohan") == ["rohan"]


def call(hermes: Hermes, client: Client, body: bytes) -> bytes:
    """The answer of a service that may have to be started again meanwhile: its call is not lost."""
    pending = client.submit("rohan", body, timeout_s=patient(20))
    deadline = time.monotonic() + patient(20)
    while not pending.is_done and time.monotonic() < deadline:
        hermes.revive()
        with contextlib.suppress(RequestTimeout, RequestFailed):
            pending.result(timeout_s=0.2)
    return pending.result(timeout_s=0)


def test_every_dialect_calls_a_hermes_service(broker: Broker, hermes: Hermes) -> None:
    hermes.service("rohan")
    for dialect, endpoint in ENDPOINTS.items():
        with Client(broker.endpoints[endpoint], dialect) as client:
            body = f"from {dialect}".encode()
            assert call(hermes, client, body) == b"rohan:" + body[::-1]
            with pytest.raises(RequestFailed, match="asked to fail"):
                call(hermes, client, b"fail")
    assert broker.ask("status")["invalid"] == 0


def test_a_hermes_service_may_register_again(broker: Broker, hermes: Hermes) -> None:
    old, _ = hermes.service("rohan")
    with Client(broker.endpoints["majordomo.clients"], "mdr", timeout_s=patient(10)) as client:
        assert client.call("rohan", b"abc") == b"rohan:cba"
        old.kill()
        _, second = hermes.service("rohan")
        assert second["registered"] is True
        assert client.call("rohan", b"def") == b"rohan:fed"


def test_a_hermes_service_is_asked_whether_it_is_there_and_missed_when_it_is_not(
    tmp_path: Path, hermes_home: Path
) -> None:
    """It names no heartbeat and sends none: it answers pings."""
    broker = Broker(tmp_path, {"dbp": {"heartbeat_s": 0.5}})
    hermes = Hermes(hermes_home, tmp_path)
    try:
        with beacon(broker.endpoints["dbp.port"]):
            hermes.service("rohan")

            def asked() -> bool:
                hermes.revive()
                return bool(broker.ask("status")["nodes_asked"] >= 8)

            def listed() -> Any:
                hermes.revive()
                return broker.ask("nodes")

            until(asked, "asked for longer than a lease lasts")
            (node,) = until(listed, "its entry")
            assert (node["node"], node["beats"]) == ("rohan", "asked")
            assert broker.ask("status")["invalid"] == 0
            hermes._services["rohan"].kill()
            until(lambda: not broker.ask("nodes"), "the lease of a dead service ends")
    finally:
        hermes.close()
        broker.kill()
