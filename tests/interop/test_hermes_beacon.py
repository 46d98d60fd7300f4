"""Hermes finds polybus by its beacon, on the standard ports, in a network that nobody else hears."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.interop_hermes import Hermes
from support.interop_process import until
from support.namespaces import Machine, Network

ECHO = """
from polybus import Worker
Worker({"mdr-echo": lambda request: request.body}).run()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Network() as network, network.here.serve(tmp_path):
        yield network.here


@pytest.fixture
def hermes(tmp_path: Path, hermes_home: Path, machine: Machine) -> Iterator[Hermes]:
    hermes = Hermes(hermes_home, tmp_path, machine.command)
    yield hermes
    hermes.close()


@pytest.mark.conforms("DBP-32")
def test_hermes_finds_the_bus_by_itself(machine: Machine, hermes: Hermes, tmp_path: Path) -> None:
    def ask(command: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(machine.polybus(command, "--json", cwd=tmp_path).stdout)
        return rows

    (tmp_path / "echo.py").write_text(ECHO)
    with machine.program("echo.py", folder=tmp_path):
        service, registration = hermes.service("rohan")
        assert registration["registered"] is True
        client = hermes.client()
        # Listed with all others, whoever asks.
        names = {"rohan", "mdr-echo"}
        until(lambda: set(client.ask("services", name="")) == names, "both services in the catalog")
        assert names <= {row["service"] for row in ask("services")}
        assert "rohan" in {row["node"] for row in ask("nodes")}
        assert client.ask("services", name="rohan")["interfaces"] == registration["interfaces"]
        # Called, by Hermes itself and through the bus.
        assert client.ask("ping", name="rohan") == ["rohan"]
        done = machine.polybus("call", "rohan", "abc", cwd=tmp_path)
        assert done.stdout == b"rohan:cba\n", done.stderr
        # To change its entry it looks for the bus once more.
        assert service.ask("update", config={"name": "rohan", "topics": ["horses"]}) is None
        assert client.ask("services", name="rohan")["topics"] == ["horses"]
