"""The client library against a real broker: every dialect, sync and asyncio, and a broker that restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from matrix.run import CLIENT_PORTS, DIALECTS, WORKER_PORTS
from polybus import (
    AsyncClient,
    AsyncWorker,
    Client,
    ConnectionLost,
    Request,
    RequestFailed,
    RequestTimeout,
    Subscription,
    Worker,
    WorkerRejected,
)
from polybus.config import PORTS, variable
from support.fake_brokers import Background
from support.live import POLYBUS, START_S, WAIT_S, LiveBroker, read_line, wait_for
from support.patience import patient
from support.ports import steady_ports

STREAMING = {"mdr", "mdp2"}


@pytest.fixture(scope="module")
def broker() -> Iterator[LiveBroker]:
    with LiveBroker() as broker:
        yield broker
        assert "Traceback" not in broker.errors()


@contextmanager
def serving(worker: Worker) -> Iterator[Worker]:
    thread = Background(worker.run)
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def echo(request: Request) -> bytes:
    return request.body


def count(request: Request) -> Generator[bytes, None, bytes]:
    yield b"1"
    yield b"2"
    return b"3"


def fail(request: Request) -> bytes:
    raise ValueError("boom")


def reject(request: Request) -> bytes:
    raise WorkerRejected("not today")


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(broker: LiveBroker, dialect: str) -> Iterator[Client]:
    with Client(broker[CLIENT_PORTS[dialect]], dialect, timeout_s=WAIT_S) as client:
        yield client


# -- synchronous ----------------------------------------------------------------------------------


def test_call_stream_and_failures(broker: LiveBroker, dialect: str, client: Client) -> None:
    names = {f"{dialect}-{handler.__name__}": handler for handler in (echo, count, fail, reject)}
    with serving(Worker(names, broker[WORKER_PORTS[dialect]], dialect)) as worker:  # type: ignore[arg-type]
        large = os.urandom(100_000)
        assert client.call(f"{dialect}-echo", large) == large
        pieces = [b"1", b"2", b"3"] if dialect in STREAMING else [b"3"]
        assert list(client.stream(f"{dialect}-count")) == pieces
        assert client.call(f"{dialect}-count") == b"3"
        for name, code, text in (("fail", "failed", "boom"), ("reject", "rejected", "not today")):
            with pytest.raises(RequestFailed, match=text) as caught:
                client.call(f"{dialect}-{name}")
            assert caught.value.code == code
        bodies = [b"%d" % i for i in range(500)]
        assert list(client.call_many(f"{dialect}-echo", bodies)) == bodies
        assert (client.invalid, worker.invalid, worker.restarts) == (0, 0, 0)


def test_a_call_that_nobody_serves_times_out_and_spoils_nothing(
    broker: LiveBroker, dialect: str, client: Client
) -> None:
    # EBUS tells the broker how long it waits; whoever is the first to notice, it is the caller's own time.
    with pytest.raises(RequestTimeout, match="in time"):
        client.call(f"{dialect}-nobody", timeout_s=0.1)
    with serving(Worker({f"{dialect}-late": echo}, broker[WORKER_PORTS[dialect]], dialect)):
        assert client.call(f"{dialect}-late", b"x") == b"x"


def test_ebus_cancellation_reaches_the_handler(broker: LiveBroker) -> None:
    started, over = threading.Event(), threading.Event()

    def wait(request: Request) -> bytes:
        started.set()
        pause = threading.Event()
        while not request.cancelled:
            pause.wait(0.005)
        over.set()
        return b""

    with (
        serving(Worker({"ebus-wait": wait}, broker["ebus.backend"], "ebus", credit=1)),
        Client(broker["ebus.frontend"], "ebus", timeout_s=WAIT_S) as client,
    ):
        pending = client.submit("ebus-wait")
        assert started.wait(WAIT_S)
        pending.cancel()
        assert over.wait(WAIT_S)
        # The slot is free again.
        started.clear()
        over.clear()
        again = client.submit("ebus-wait")
        assert started.wait(WAIT_S)
        again.cancel()
        assert over.wait(WAIT_S)


def test_ebus_says_when_a_request_is_stale(broker: LiveBroker) -> None:
    def left(request: Request) -> bytes:
        assert request.expires_in_s is not None
        return b"%d" % round(request.expires_in_s)

    with (
        serving(Worker({"ebus-left": left}, broker["ebus.backend"], "ebus")),
        Client(broker["ebus.frontend"], "ebus", timeout_s=WAIT_S) as client,
    ):
        # Counted from when the broker had the request.
        assert 60 - patient(10) <= int(client.call("ebus-left", timeout_s=60.0)) <= 60


def test_emqp_jobs_without_a_result(broker: LiveBroker) -> None:
    done: list[bytes] = []

    def job(request: Request) -> None:
        done.append(request.body)

    with (
        serving(Worker({"emqp-job": job}, broker["emqp.workers"], "emqp")),
        Client(broker["emqp.clients"], "emqp", timeout_s=WAIT_S) as client,
    ):
        client.send("emqp-job", b"1")
        client.submit("emqp-job", b"2", wants_reply=False).result()
        wait_for(lambda: len(done) == 2)


@pytest.mark.parametrize("name", ["ebus", "emqp"])
def test_publish_and_subscribe(broker: LiveBroker, name: str) -> None:
    with (
        Client(
            broker[CLIENT_PORTS[name]],
            name,
            publish_address=broker["ebus.publish"] if name == "ebus" else None,
            subscribe_address=broker[f"{name}.subscribe"],
        ) as client,
        client.subscribe("news.", "other") as subscription,
    ):
        # A subscription takes a moment to reach the broker: publish until the first one comes through.
        first = wait_for(lambda: _published(client, subscription, "news.first"))
        assert first == ("news.first", b"hello")
        client.publish("sports", b"not for us")
        client.publish("other", b"last")
        while (found := subscription.get(WAIT_S)) == first:
            continue
        assert found == ("other", b"last")


def _published(client: Client, subscription: Subscription, topic: str) -> tuple[str, bytes] | None:
    client.publish(topic, b"hello")
    return subscription.get(0.05)


# -- asyncio --------------------------------------------------------------------------------------


async def aecho(request: Request) -> bytes:
    return request.body


async def acount(request: Request) -> AsyncIterator[bytes]:
    for piece in (b"1", b"2", b"3"):
        yield piece


async def afail(request: Request) -> bytes:
    raise ValueError("boom")


class Meeting:
    """A handler that only answers when so many requests are there at once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here = 0
        self._all = asyncio.Event()

    async def __call__(self, request: Request) -> bytes:
        self._here += 1
        if self._here == self._size:
            self._all.set()
        await self._all.wait()
        return request.body


def test_asyncio(broker: LiveBroker, dialect: str) -> None:
    async def main() -> None:
        names: dict[str, Any] = {f"{dialect}-{h.__name__}": h for h in (aecho, acount, afail)}
        meeting = Meeting(1 if dialect in ("mdp1", "mdp2", "dbp") else 5)
        names[f"{dialect}-meet"] = meeting
        worker = AsyncWorker(names, broker[WORKER_PORTS[dialect]], dialect, credit=10)
        running = asyncio.create_task(worker.run())
        try:
            address = broker[CLIENT_PORTS[dialect]]
            async with AsyncClient(address, dialect, timeout_s=WAIT_S) as client:
                large = os.urandom(100_000)
                assert await client.call(f"{dialect}-aecho", large) == large
                pieces = [b"1", b"2", b"3"] if dialect in STREAMING else [b"3"]
                assert [piece async for piece in client.stream(f"{dialect}-acount")] == pieces
                with pytest.raises(RequestFailed, match="boom"):
                    await client.call(f"{dialect}-afail")
                bodies = [b"%d" % i for i in range(5)]
                asked = [client.call(f"{dialect}-meet", body) for body in bodies]
                assert await asyncio.gather(*asked) == bodies
                pending = await client.submit(f"{dialect}-aecho", b"x")
                assert await pending.result() == b"x"
                assert client.invalid == 0
                with pytest.raises(RequestTimeout):
                    await client.call(f"{dialect}-nobody", timeout_s=0.05)
                many = client.call_many(f"{dialect}-aecho", [b"%d" % i for i in range(200)], window=20)
                assert [body async for body in many] == [b"%d" % i for i in range(200)]
            assert worker.restarts == 0
        finally:
            worker.stop()
            await running

    asyncio.run(main())


def test_asyncio_window_and_cancelled_tasks(broker: LiveBroker) -> None:
    async def main() -> None:
        async with AsyncClient(broker["majordomo.clients"], window=2, timeout_s=WAIT_S) as client:
            waiting = [asyncio.create_task(client.call("mdr-nobody-at-all")) for _ in range(4)]
            done, pending = await asyncio.wait(waiting, timeout=0.05)
            assert (len(done), len(pending)) == (0, 4)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            worker = AsyncWorker({"mdr-somebody": aecho}, broker["majordomo.workers"])
            running = asyncio.create_task(worker.run())
            assert await client.call("mdr-somebody", b"x") == b"x"
            worker.stop()
            await running

    asyncio.run(main())


@pytest.mark.parametrize("name", ["ebus", "emqp"])
def test_asyncio_topics(broker: LiveBroker, name: str) -> None:
    async def main() -> None:
        async with AsyncClient(
            broker[CLIENT_PORTS[name]],
            name,
            publish_address=broker["ebus.publish"] if name == "ebus" else None,
            subscribe_address=broker[f"{name}.subscribe"],
        ) as client:
            heard: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()

            async def listen() -> None:
                async for publication in client.subscribe("aio."):
                    if not heard.done():
                        heard.set_result(publication)

            listening = asyncio.create_task(listen())
            while not heard.done():
                await client.publish("aio.news", b"hello")
                await asyncio.wait([heard], timeout=0.05)
            assert heard.result() == ("aio.news", b"hello")
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    asyncio.run(main())


# -- a broker that restarts -------------------------------------------------------------------------


class Phoenix:
    """A broker that can be killed and started again at the same endpoints."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._ports = {variable(name): str(port) for name, port in steady_ports(PORTS).items()}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("POLYBUS_", "EBUS_", "EMQ_"))}
        environ |= {**self._ports, "POLYBUS_BEACON_ENABLED": "false", "POLYBUS_JOURNAL_ARCHIVE": "false"}
        process = subprocess.Popen(
            [str(POLYBUS), "serve", "--data-dir", str(Path(self._folder, "data"))],
            stdout=subprocess.PIPE,
            env=environ,
            cwd=self._folder,
        )
        words = read_line(process, START_S).split()
        if words[:1] != ["ready"]:
            process.kill()
            process.communicate()
            pytest.fail(f"the broker said {words} instead of 'ready'")
        self.endpoints = dict(word.split("=", 1) for word in words[1:])
        return process

    def restart(self) -> None:
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def phoenix() -> Iterator[Phoenix]:
    with tempfile.TemporaryDirectory(prefix="polybus-test-") as folder:
        phoenix = Phoenix(folder)
        yield phoenix
        phoenix.kill()


def test_a_restart_of_the_broker_loses_no_answer(phoenix: Phoenix, dialect: str) -> None:
    gate, started = threading.Event(), threading.Event()

    def wait(request: Request) -> bytes:
        started.set()
        assert gate.wait(WAIT_S)
        return b"re " + request.body

    worker = Worker({"wait": wait}, phoenix.endpoints[WORKER_PORTS[dialect]], dialect, credit=5)
    address = phoenix.endpoints[CLIENT_PORTS[dialect]]
    with serving(worker), Client(address, dialect, timeout_s=patient(30)) as client:
        answer = Background(lambda: list(client.call_many("wait", [b"1", b"2", b"3"])))
        assert started.wait(WAIT_S)
        phoenix.restart()
        gate.set()
        assert answer.join() == [b"re 1", b"re 2", b"re 3"]


def test_a_restart_of_the_broker_loses_no_answer_with_asyncio(phoenix: Phoenix, dialect: str) -> None:
    async def main() -> None:
        gate, started = asyncio.Event(), asyncio.Event()

        async def wait(request: Request) -> bytes:
            started.set()
            await gate.wait()
            return b"re " + request.body

        worker = AsyncWorker({"wait": wait}, phoenix.endpoints[WORKER_PORTS[dialect]], dialect, credit=5)
        running = asyncio.create_task(worker.run())
        address = phoenix.endpoints[CLIENT_PORTS[dialect]]
        async with AsyncClient(address, dialect, timeout_s=patient(30)) as client:
            answers = asyncio.gather(*(client.call("wait", b"%d" % i) for i in range(3)))
            await asyncio.wait_for(started.wait(), WAIT_S)
            await asyncio.get_running_loop().run_in_executor(None, phoenix.restart)
            gate.set()
            assert await answers == [b"re 0", b"re 1", b"re 2"]
        worker.stop()
        await running

    asyncio.run(main())


@pytest.mark.parametrize("name", ["ebus", "emqp"])
def test_publications_wait_for_a_broker_that_has_no_room(broker: LiveBroker, name: str) -> None:
    """While the broker stands still, more is published than sockets hold: everything arrives, in order."""
    topic = f"room.{name}"
    bodies = [b"%02000d" % number for number in range(8_000)]
    with (
        Client(
            broker[CLIENT_PORTS[name]],
            name,
            publish_address=broker[f"{name}.publish"],
            subscribe_address=broker[f"{name}.subscribe"],
        ) as client,
        client.subscribe(topic) as news,
    ):
        client.publish(topic, b"first")
        assert news.get(WAIT_S) == (topic, b"first")
        broker.process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(0.5, broker.process.send_signal, (signal.SIGCONT,))
        timer.start()
        try:
            for body in bodies:
                client.publish(topic, body, timeout_s=WAIT_S)
        finally:
            timer.join()
        found = [news.get(WAIT_S) for _ in bodies]
    assert found == [(topic, body) for body in bodies]


def test_a_broker_that_is_gone_takes_no_more_publications_than_a_socket_holds() -> None:
    with (
        LiveBroker() as broker,
        Client(broker["ebus.frontend"], "ebus", publish_address=broker["ebus.publish"]) as client,
    ):
        client.publish("t", b"heard")
        broker.kill()

        def flood() -> None:
            for _ in range(100_000):
                client.publish("t", b"unheard", timeout_s=0.05)

        # What waits for it to come back is bounded; then it is said.
        with pytest.raises(ConnectionLost, match=r"took no publication|nobody takes publications"):
            flood()
