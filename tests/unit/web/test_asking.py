"""Questions to the admin socket: what becomes of them when a connection breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import zmq
import zmq.asyncio

from polybus.errors import ConnectionLost
from polybus.web import asking
from polybus.web.asking import Desk
from support.fake_brokers import OWN_ADDRESS
from support.patience import patient


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "CONNECT_S", patient(5))


def run(test: Callable[[], Any]) -> None:
    """The test, in a loop that must have nothing to complain about."""

    async def watched() -> None:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told["message"]))
        await asyncio.wait_for(test(), patient(30))
        assert complaints == []

    asyncio.run(watched())


@asynccontextmanager
async def asking_at(port: int) -> AsyncIterator[Desk]:
    desk = Desk(lambda: f"tcp://{OWN_ADDRESS}:{port}")
    try:
        yield desk
    finally:
        await desk.close()


class Refusing:
    """A TCP port whose connections break as soon as they stand."""

    def __init__(self) -> None:
        self.port = 0
        self.broken = asyncio.Event()

    async def __aenter__(self) -> Refusing:
        self._server = await asyncio.start_server(self._break, OWN_ADDRESS, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def _break(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self.broken.set()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


def test_a_question_that_was_not_sent_waits_for_the_next_connection() -> None:
    async def test() -> None:
        async with Refusing() as refusing, asking_at(refusing.port) as desk:
            asked = asyncio.create_task(desk.ask("services"))
            await refusing.broken.wait()
            await refusing.__aexit__()
            with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as broker:
                broker.bind(f"tcp://{OWN_ADDRESS}:{refusing.port}")
                identity, empty, tag, number, question = await broker.recv_multipart()
                assert json.loads(question) == {"do": "services"}
                await broker.send_multipart([identity, empty, tag, number, b'{"ok":["a"]}'])
                assert await asked == b'["a"]'

    run(test)


def test_a_question_that_was_sent_ends_with_its_connection() -> None:
    async def test() -> None:
        with zmq.asyncio.Context() as context:
            broker = context.socket(zmq.ROUTER)
            port = broker.bind_to_random_port(f"tcp://{OWN_ADDRESS}")
            async with asking_at(port) as desk:
                asked = asyncio.create_task(desk.ask("services", timeout_s=patient(20)))
                await broker.recv_multipart()
                broker.close(0)
                with pytest.raises(ConnectionLost, match=f"{port} broke$"):
                    await asked

    run(test)


def test_nobody_answers_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "CONNECT_S", 0.3)

    async def test() -> None:
        async with Refusing() as refusing, asking_at(refusing.port) as desk:
            with pytest.raises(ConnectionLost, match="no broker answers"):
                await desk.ask("services")

    run(test)
