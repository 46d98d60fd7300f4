"""`polybus last` and `polybus subscribers` against a real broker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from polybus.cli.main import run
from support.commands import Served, environment, wait_until
from support.patience import patient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path, "--set", "broker.drain_s=0.5")
    yield served
    served.close()


class Shell:
    """Runs commands to one broker, in this process."""

    def __init__(
        self, broker: Served, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self._data_dir = str(broker.data_dir)
        self._capture = capture
        patch.chdir(folder)
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        patch.setenv("COLUMNS", "200")

    def run(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        self._capture.readouterr()
        got = run([*arguments, "--data-dir", self._data_dir])
        done = self._capture.readouterr()
        assert got == status, (arguments, done)
        return done.out, done.err

    def ok(self, *arguments: str) -> str:
        return self.run(*arguments)[0]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))


@pytest.fixture
def shell(
    broker: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(broker, monkeypatch, capsys, tmp_path)


def test_last_values_are_printed_listed_and_dropped(shell: Shell) -> None:
    shell.ok("publish", "weather.rome", "sunny")
    shell.ok("publish", "weather.oslo", "snow", "--dialect", "emqp")
    shell.ok("publish", "news", "none")
    wait_until(lambda: shell.json("status")["last_values"] == 3)
    assert shell.ok("last", "weather.rome") == "sunny\n"
    found = shell.json("last", "weather.rome")
    assert (found["topic"], found["body"], found["bytes"]) == ("weather.rome", "sunny", 5)
    assert 0 <= found["age_s"] < 60
    assert [row["topic"] for row in shell.json("last", "weather.", "--prefix")] == [
        "weather.oslo",
        "weather.rome",
    ]
    assert len(shell.json("last", "--prefix")) == 3
    table, remark = shell.run("last", "--prefix", "--limit", "2")
    assert "news" in table
    assert "weather.rome" not in table
    assert "the first 2" in remark
    assert shell.ok("last", "--drop", "weather.rome") == "dropped weather.rome\n"
    for wrong in (["last", "weather.rome"], ["last", "--drop", "weather.rome"]):
        assert "there is no last value of 'weather.rome'" in shell.run(*wrong, status=1)[1]
    assert shell.json("last", "news", "--drop") == {"dropped": "news"}
    assert "No topic that begins so" in shell.run("last", "x", "--prefix")[1]


@pytest.mark.parametrize("arguments", [["last"], ["last", "--drop"], ["last", "a", "--drop", "--prefix"]])
def test_misuse_is_told(arguments: list[str], shell: Shell) -> None:
    shell.run(*arguments, status=2)


def test_subscribers_are_listed(shell: Shell, broker: Served) -> None:
    assert "Nobody has subscribed" in shell.run("subscribers")[1]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        for prefix in ("", "a", "b", "c", "d"):
            socket.subscribe(prefix)
        socket.connect(broker.endpoints["emqp.subscribe"])
        wait_until(lambda: shell.json("status")["subscriptions"] == 5)
        shell.ok("publish", "a", "1")
        assert socket.poll(int(patient(10.0) * 1000))
        (row,) = shell.json("subscribers")
        assert (row["dialect"], row["prefixes"], row["delivered"], row["dropped"]) == ("emqp", 5, 1, 0)
        table = shell.ok("subscribers")
        assert "(everything), a, b and 2 more" in table
        assert shell.json("status")["subscribers"] == 1
