"""The live state: asked for once, told to everybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from polybus.errors import ConnectionLost
from polybus.web import live as module
from polybus.web.live import Live
from support.patience import patient


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.05)
    monkeypatch.setattr(module, "SHARED_S", 0.04)


class Broker:
    """Answers in the place of a desk, and counts what it was asked."""

    endpoint = "tcp://127.0.0.1:1"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_there = True

    async def ask(self, do: str, timeout_s: float = 5.0, **question: Any) -> bytes:
        self.asked.append(do)
        await asyncio.sleep(0)
        if not self.is_there:
            raise ConnectionLost("no broker answers")
        return json.dumps({"do": do, "number": len(self.asked)}).encode()


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Live]:
    live = Live(broker)  # type: ignore[arg-type]
    poller = asyncio.create_task(live.run())
    try:
        yield live
    finally:
        poller.cancel()
        await asyncio.gather(poller, return_exceptions=True)


def read(event: bytes) -> tuple[str, Any]:
    name, data = event.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), patient(30)))


def test_ten_viewers_cost_what_one_costs() -> None:
    async def test() -> None:
        broker = Broker()
        async with running(broker) as live:
            viewers = [live.follow() for _ in range(10)]
            first = await asyncio.gather(*(anext(viewer) for viewer in viewers))
            again = await asyncio.gather(*(anext(viewer) for viewer in viewers))
            assert live.viewers == 10
            assert len(set(first)) == len(set(again)) == 1
            name, told = read(first[0])
            assert (name, told["do"], told["health"]["broker"]) == ("top", "top", "up")
            # The answer says how many questions there had been by then; another look may have begun since.
            number = read(again[0])[1]["number"]
            assert broker.asked[:number].count("top") == 2
            for viewer in viewers:
                await viewer.aclose()
            assert live.viewers == 0

    run(test)


def test_without_viewers_nothing_is_counted_for_them() -> None:
    """`top` makes the broker measure how long requests take."""

    async def test() -> None:
        broker = Broker()
        async with running(broker) as live:
            while not live.is_up:
                await asyncio.sleep(0)
            assert set(broker.asked) == {"status"}
            assert live.top() is None
            assert live.status() == {"do": "status", "number": 1}

    run(test)


def test_a_slow_viewer_gets_the_newest() -> None:
    async def test() -> None:
        broker = Broker()
        async with running(broker) as live:
            quick, slow = live.follow(), live.follow()
            await asyncio.gather(anext(quick), anext(slow))
            for _ in range(2):
                newest = await anext(quick)
            assert await anext(slow) == newest
            await quick.aclose()
            await slow.aclose()

    run(test)


def test_a_broker_that_goes_and_comes_back() -> None:
    async def test() -> None:
        broker = Broker()
        broker.is_there = False
        async with running(broker) as live:
            viewer = live.follow()
            name, told = read(await anext(viewer))
            assert name == "down"
            assert told["health"]["error"] == "no broker answers"
            assert "polybus serve" in told["health"]["next"]
            assert live.top() is None
            broker.is_there = True
            name, told = read(await anext(viewer))
            assert (name, told["health"]["error"]) == ("top", None)
            await viewer.aclose()

    run(test)


def test_the_same_question_at_the_same_time_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_S", 60.0)

    async def test() -> None:
        broker = Broker()
        live = Live(broker)  # type: ignore[arg-type]
        answers = await asyncio.gather(*(live.ask("services") for _ in range(50)))
        assert len(set(answers)) == 1
        await asyncio.gather(live.ask("jobs", limit=1), live.ask("jobs", limit=2))
        assert broker.asked == ["services", "jobs", "jobs"]
        # What was ordered may have changed the answer.
        await live.order("cancel", request="x")
        await live.ask("services")
        assert broker.asked[3:] == ["cancel", "services"]

    run(test)


def test_a_failure_is_not_kept() -> None:
    async def test() -> None:
        broker = Broker()
        broker.is_there = False
        live = Live(broker)  # type: ignore[arg-type]
        for _ in range(2):
            try:
                await live.ask("services")
            except ConnectionLost:
                continue
            raise AssertionError
        broker.is_there = True
        assert json.loads(await live.ask("services"))["number"] == 3

    run(test)


def test_who_leaves_does_not_take_the_answer_away_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_S", 60.0)

    async def test() -> None:
        broker = Broker()
        live = Live(broker)  # type: ignore[arg-type]
        leaving = asyncio.create_task(live.ask("services"))
        staying = asyncio.create_task(live.ask("services"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert json.loads(await staying)["number"] == 1

    run(test)


def test_what_is_kept_is_bounded() -> None:
    async def test() -> None:
        live = Live(Broker())  # type: ignore[arg-type]
        for number in range(module.MAX_SHARED + 50):
            await live.ask("job", job=str(number))
        assert len(live._asked) <= module.MAX_SHARED

    run(test)
