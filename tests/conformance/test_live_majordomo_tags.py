"""Frame 0 of the request-id draft, which its document leaves open: set at the broker and at all our peers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.live_settings import BEAT_S
from polybus import AsyncClient, AsyncWorker, Bus, Client, Worker
from support.commands import Running, closing, polybus
from support.live import LiveBroker, Peer, wait_for
from support.live_majordomo import silent, workers_of
from support.patience import patient

pytestmark = pytest.mark.conforms("MDR-46")

CLIENT_TAG, WORKER_TAG = "ACME/client", "ACME/worker"
C, W = CLIENT_TAG.encode(), WORKER_TAG.encode()
APP = f"""
from polybus import Bus

bus = Bus(worker_tag={WORKER_TAG!r})


@bus.service("app")
def app(body: bytes) -> bytes:
    return body.upper()
"""


@pytest.fixture(scope="module")
def tagged() -> Iterator[LiveBroker]:
    # With the usual heartbeats: workers of the library beat as often as these say.
    with LiveBroker({"majordomo.client_tag": CLIENT_TAG, "majordomo.worker_tag": WORKER_TAG}) as broker:
        yield broker
        assert not broker.crashes(), broker.crashes()


@contextmanager
def running(worker: Worker | Bus, broker: LiveBroker, service: bytes) -> Iterator[None]:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: workers_of(broker, service) == 1)
        yield
    finally:
        worker.stop()
        thread.join(patient(10))
        assert not thread.is_alive()


def test_the_broker_takes_and_sends_the_tags_it_was_told(tagged: LiveBroker, service: bytes) -> None:
    with Peer(tagged["majordomo.workers"]) as worker, Peer(tagged["majordomo.clients"]) as client:
        worker.send(W, b"\x01", service)
        wait_for(lambda: workers_of(tagged, service) == 1)
        client.send(C, b"\x01", service, b"id-1", b"x")
        tag, command, address, empty, request_id, body = worker.recv()
        assert (tag, command, empty, request_id, body) == (W, b"\x02", b"", b"id-1", b"x")
        worker.send(W, b"\x03", address, empty, request_id, b"1")
        worker.send(W, b"\x04", address, empty, request_id, b"2")
        assert client.recv() == [C, b"\x02", service, b"id-1", b"1"]
        assert client.recv() == [C, b"\x03", service, b"id-1", b"2"]
        worker.send(W, b"PING")
        assert worker.recv() == [W, b"PONG"]
        worker.send(W, b"\x06")
        wait_for(lambda: workers_of(tagged, service) == 0)
        # What is usual elsewhere is unknown here.
        client.send(b"MDRC01", b"\x01", b"mmi.service", b"id-2", b"x")
        assert silent(client, BEAT_S)


def test_client_and_worker(tagged: LiveBroker, service: bytes) -> None:
    name = service.decode()
    worker = Worker({name: lambda request: request.body.upper()}, tagged["majordomo.workers"], tag=WORKER_TAG)
    with (
        running(worker, tagged, service),
        Client(tagged["majordomo.clients"], tag=CLIENT_TAG, timeout_s=patient(20)) as client,
    ):
        assert client.call(name, b"hello") == b"HELLO"


def test_the_asyncio_client_and_worker(tagged: LiveBroker, service: bytes) -> None:
    name = service.decode()

    async def talk() -> bytes:
        handlers = {name: lambda request: request.body.upper()}
        worker = AsyncWorker(handlers, tagged["majordomo.workers"], tag=WORKER_TAG)
        serving = asyncio.create_task(worker.run())
        try:
            async with AsyncClient(
                tagged["majordomo.clients"], tag=CLIENT_TAG, timeout_s=patient(20)
            ) as client:
                return await client.call(name, b"hello")
        finally:
            worker.stop()
            await serving

    assert asyncio.run(talk()) == b"HELLO"


def test_the_bus(tagged: LiveBroker, service: bytes) -> None:
    name = service.decode()
    # Either socket takes either role, so one address is enough for both.
    bus = Bus(tagged["majordomo.clients"], client_tag=CLIENT_TAG, worker_tag=WORKER_TAG)

    @bus.service(name)
    def shout(body: bytes) -> bytes:
        return body.upper()

    with running(bus, tagged, service), bus.client(timeout_s=patient(20)) as client:
        assert client.call(name, b"hello") == b"HELLO"


def test_the_environment(tagged: LiveBroker, service: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    name = service.decode()
    monkeypatch.setenv("POLYBUS_MAJORDOMO_CLIENT_TAG", CLIENT_TAG)
    monkeypatch.setenv("POLYBUS_MAJORDOMO_WORKER_TAG", WORKER_TAG)
    worker = Worker({name: lambda request: request.body.upper()}, tagged["majordomo.workers"])
    with (
        running(worker, tagged, service),
        Client(tagged["majordomo.clients"], timeout_s=patient(20)) as client,
    ):
        assert client.call(name, b"hello") == b"HELLO"


@pytest.mark.parametrize("option", [[], ["--tag", WORKER_TAG]], ids=["application", "option"])
def test_the_commands(tagged: LiveBroker, tmp_path: Path, option: list[str]) -> None:
    app = APP.replace(f"worker_tag={WORKER_TAG!r}", "") if option else APP
    (tmp_path / "shop.py").write_text(app)
    words = ["--dialect", "mdr", "--broker", tagged["majordomo.workers"], "-c", "1", *option]
    with closing(Running("worker", "shop:bus", *words, cwd=tmp_path)) as worker:
        worker.wait_for(worker.output, "ready ")
        place = ["--address", tagged["majordomo.clients"], "--tag", CLIENT_TAG]
        done = polybus("call", "app", "hello", *place, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, b"HELLO\n"), done.stderr
        done = polybus("send", "app", "hello", "--dialect", "mdr", *place, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert worker.end(signal.SIGTERM) == 0
    wait_for(lambda: workers_of(tagged, b"app") == 0)


def test_a_tag_belongs_to_the_request_id_draft(tagged: LiveBroker, tmp_path: Path) -> None:
    place = ["--address", tagged["ebus.frontend"]]
    done = polybus("call", "app", "hello", "--dialect", "ebus", "--tag", "X", *place, cwd=tmp_path)
    assert done.returncode != 0
    assert b"only mdr has a tag" in done.stderr
