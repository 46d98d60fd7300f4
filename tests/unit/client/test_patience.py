"""Workers that are started before their broker: they wait, and say for whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polybus import AsyncWorker, Bus, Request, Worker
from polybus.client import aio_worker, discovery, worker
from polybus.client.sessions.mdr import MdrWorker
from support.fake_brokers import Background, FakeBroker
from support.ports import steady_ports
from support.waiting import until


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def _nobody_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYBUS_BEACON_ENABLED", "false")
    monkeypatch.delenv("POLYBUS_MDR_WORKER", raising=False)
    monkeypatch.setattr(discovery, "PORTS", {"mdr": steady_ports(["worker"])})
    for module in (worker, aio_worker):
        monkeypatch.setattr(module, "PAUSE_S", 0.02)


def echo(request: Request) -> bytes:
    return request.body


def run_async(serving: AsyncWorker) -> None:
    asyncio.run(serving.run())


def comes_up(broker: FakeBroker, folder: Path) -> None:
    """It writes down where it listens."""
    (folder / "var").mkdir()
    (folder / "var" / "endpoints.json").write_text(
        json.dumps({"pid": 1, "endpoints": {"majordomo.workers": broker.endpoint}})
    )


SHELLS = pytest.mark.parametrize(
    ("make", "run"), [(Worker, Worker.run), (AsyncWorker, run_async)], ids=["sync", "asyncio"]
)


@SHELLS
def test_a_worker_waits_for_its_broker(
    make: Any,
    run: Callable[[Any], None],
    broker: FakeBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    serving = make({"echo": echo}, credit=7)
    thread = Background(run, serving)
    until(lambda: "Waiting for one" in caplog.text, "the word that it waits")
    assert "no bus was found for a mdr worker. Tried: POLYBUS_MDR_WORKER (not set)" in caplog.text
    comes_up(broker, tmp_path)
    assert broker.receive()[1] == [b"MDRW01", b"\x01", b"echo", b"7"]
    assert serving.endpoint == broker.endpoint
    serving.stop()
    thread.join()
    assert caplog.text.count("Waiting") == 1


@SHELLS
def test_a_worker_that_waits_can_be_stopped(
    make: Any, run: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    serving = make({"echo": echo})
    thread = Background(run, serving)
    until(lambda: "Waiting for one" in caplog.text, "the word that it waits")
    serving.stop()
    thread.join()


def test_a_bus_waits_too(broker: FakeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    bus.service("hello")(lambda body: b"hello " + body)
    thread = Background(bus.run)
    until(lambda: "Waiting for one" in caplog.text, "the word that it waits")
    comes_up(broker, tmp_path)
    assert broker.receive()[1][2] == b"hello"
    bus.stop()
    thread.join()


def test_interrupted_while_it_looks_a_bus_ends_as_programs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(discovery, "refusal", interrupt)
    bus = Bus()
    bus.service("hello")(lambda body: body)
    with pytest.raises(SystemExit) as caught:
        bus.run()
    assert caught.value.code == 130


@SHELLS
def test_an_address_where_nobody_answers_is_told_once(
    make: Any,
    run: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(MdrWorker, "dead_after_s", 0.02)
    monkeypatch.setattr(MdrWorker, "beat_s", 0.01)
    (port,) = steady_ports(["nobody"]).values()
    serving = make({"echo": echo}, f"tcp://127.0.0.1:{port}")
    thread = Background(run, serving)
    until(lambda: serving.restarts >= 2, "the second try")
    serving.stop()
    thread.join()
    assert caplog.messages == [f"no broker answers at tcp://127.0.0.1:{port}. Waiting for it"]
