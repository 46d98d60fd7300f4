"""Connections for threads and for event loops, against a broker that does what the test tells it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from polybus import (
    AsyncClient,
    Bus,
    Client,
    JobRefused,
    JobUnconfirmed,
    LocalProtocolError,
    RequestFailed,
)
from polybus.client import desk as desks
from polybus.client.aio_jobs import LoopDesk
from polybus.client.desk import ThreadDesk
from polybus.client.questions import Question
from support.fake_brokers import Background, FakeBroker
from support.patience import patient
from support.waiting import until

REFUSAL = b'{"error":"queue_full","detail":"no room"}'


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


@pytest.fixture
def desk(broker: FakeBroker) -> Iterator[ThreadDesk]:
    desk = ThreadDesk(lambda: Client(broker.endpoint, timeout_s=patient(10.0)))
    yield desk
    desk.close()


def ask(body: bytes = b"x") -> Question:
    return Question(b"polybus.submit", body, 10.0)


def answer(broker: FakeBroker, body: bytes = b"ok") -> tuple[bytes, bytes]:
    """Answer the next MDR request; who sent it, and its body."""
    identity, frames = broker.receive()
    broker.send(identity, b"MDRC01", b"\x03", frames[2], frames[3], body)
    return identity, frames[4]


def test_a_thread_keeps_its_connection(broker: FakeBroker, desk: ThreadDesk) -> None:
    def twice() -> list[bytes]:
        return [desk.ask(ask()), desk.ask(ask())]

    first = Background(twice)
    identities = {answer(broker)[0] for _ in range(2)}
    assert first.join() == [b"ok", b"ok"]
    assert len(identities) == 1
    second = Background(twice)
    identities |= {answer(broker)[0] for _ in range(2)}
    second.join()
    assert len(identities) == 2


def test_a_connection_ends_with_its_thread(
    broker: FakeBroker, desk: ThreadDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = Client.close
    monkeypatch.setattr(Client, "close", lambda client: (closed.append(client.endpoint), close(client)))
    thread = Background(desk.ask, ask())
    answer(broker)
    thread.join()
    until(lambda: closed == [broker.endpoint])


def test_a_connection_ends_with_its_desk(broker: FakeBroker) -> None:
    bus = Bus(broker.endpoint)
    thread = threading.Thread(target=answer, args=(broker,))
    thread.start()
    assert bus.desk.ask(ask()) == b"ok"
    thread.join()
    gone = weakref.ref(bus)
    del bus
    # Not closed by hand: sockets that are left open would be a warning here, and that an error.
    gc.collect()
    assert gone() is None


def test_a_closed_desk_connects_again(broker: FakeBroker, desk: ThreadDesk) -> None:
    def ask_close_and_ask() -> bytes:
        desk.ask(ask())
        desk.close()
        return desk.ask(ask())

    thread = Background(ask_close_and_ask)
    assert answer(broker)[0] != answer(broker)[0]
    assert thread.join() == b"ok"


def test_a_connection_in_use_is_not_closed(broker: FakeBroker, desk: ThreadDesk) -> None:
    thread = Background(desk.ask, ask())
    identity, frames = broker.receive()
    desk.close()
    broker.send(identity, b"MDRC01", b"\x03", frames[2], frames[3], b"ok")
    assert thread.join() == b"ok"


def test_many(broker: FakeBroker, desk: ThreadDesk) -> None:
    thread = Background(lambda: list(desk.ask_many(b"s", [b"1", b"2", b"3"], 10.0)))
    answer(broker)
    answer(broker, REFUSAL)
    answer(broker)
    first, second, third = thread.join()
    assert (first, third) == (b"ok", b"ok")
    assert isinstance(second, RequestFailed)


def test_posted(broker: FakeBroker, desk: ThreadDesk, caplog: pytest.LogCaptureFixture) -> None:
    first, second = desk.post(ask(), "j1"), desk.post(ask(), "j2")
    answer(broker)
    answer(broker, REFUSAL)
    first.confirm(10.0)
    with pytest.raises(JobRefused, match="queue_full: no room") as caught:
        second.confirm(10.0)
    assert caught.value.job == "j2"
    third = desk.post(ask(), "j3")
    with pytest.raises(JobUnconfirmed, match="j3"):
        third.confirm(0.05)
    answer(broker)
    asyncio.run(third.aconfirm(10.0))
    assert caplog.records == []


def test_a_refusal_that_nobody_asked_about_is_logged(
    broker: FakeBroker, desk: ThreadDesk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.post(ask(), "j1")
    answer(broker, REFUSAL)
    later = desk.post(ask(), "j2")
    answer(broker)
    later.confirm(10.0)
    with caplog.at_level(logging.WARNING, "polybus"):
        desk.post(ask(), "j3")
        answer(broker)
        desk.flush(10.0)
    assert [record.getMessage() for record in caplog.records] == [
        "job j1, sent without waiting, was refused: queue_full: no room"
    ]


def test_flush(broker: FakeBroker, desk: ThreadDesk) -> None:
    for number in range(3):
        desk.post(ask(), f"j{number}")
    answer(broker, REFUSAL)
    answer(broker)
    answer(broker)
    with pytest.raises(JobRefused) as caught:
        desk.flush(10.0)
    assert caught.value.job == "j0"
    desk.flush(10.0)


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("how", ["flush", "close"])
def test_every_refusal_that_nobody_asked_about_is_raised_or_logged(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, form: str, how: str
) -> None:
    bus = Bus(broker.endpoint, timeout_s=patient(10.0))
    job = bus.job(name="a.b")(lambda: None)
    thread = Background(lambda: [answer(broker, REFUSAL) for _ in range(3)])
    raises = pytest.raises(JobRefused, match="queue_full") if how == "flush" else nullcontext()

    def send() -> None:
        with bus:
            for _ in range(3):
                job.send(wait=False)
            with raises:
                bus.flush() if how == "flush" else bus.close()

    async def asend() -> None:
        async with bus:
            for _ in range(3):
                await job.asend(wait=False)
            with raises:
                await (bus.aflush() if how == "flush" else bus.aclose())

    with caplog.at_level(logging.WARNING, "polybus"):
        if form == "sync":
            send()
        else:
            asyncio.run(asend())
    thread.join()
    refusals = [record for record in caplog.records if "queue_full: no room" in record.getMessage()]
    assert len(refusals) + (how == "flush") == 3


def test_a_program_that_ends_says_what_it_could_not_confirm(
    desk: ThreadDesk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "LAST_S", 0.05)
    desk.post(ask(), "j1")
    with caplog.at_level(logging.WARNING, "polybus"):
        desk.close()
    assert "may be lost: no receipt for job j1" in caplog.text


# -- asyncio ----------------------------------------------------------------------------------------


def test_a_loop_keeps_its_connection_and_loses_it_with_its_end(broker: FakeBroker) -> None:
    clients: list[AsyncClient] = []

    def make() -> AsyncClient:
        clients.append(AsyncClient(broker.endpoint, timeout_s=patient(10.0)))
        return clients[-1]

    desk = LoopDesk(make)

    async def twice(desk: LoopDesk) -> None:
        assert [await desk.ask(ask()), await desk.ask(ask())] == [b"ok", b"ok"]

    for count in (1, 2):
        thread = Background(lambda: [answer(broker) for _ in range(2)])
        asyncio.run(twice(desk))
        thread.join()
        assert len(clients) == count
    # The first loop has ended; the second one's is closed when the desk goes.
    assert [client.is_closed for client in clients] == [True, False]
    del desk
    gc.collect()
    assert clients[1].is_closed


def test_posted_tasks(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(broker.endpoint, timeout_s=patient(10.0))
    job = bus.job(name="a.b")(lambda: None)
    replies = [b"{}", REFUSAL, b"{}", REFUSAL]
    thread = Background(lambda: [answer(broker, reply) for reply in replies])

    async def main() -> None:
        async with bus:
            first, second = [await job.asend(wait=False) for _ in range(2)]
            await first.aconfirm()
            with pytest.raises(JobRefused, match="queue_full"):
                await second.aconfirm()
            await job.asend(wait=False)
            await job.asend(wait=False)
            with pytest.raises(JobRefused, match="queue_full"):
                await bus.aflush()
            await bus.aflush()

    asyncio.run(main())
    thread.join()
    assert caplog.records == []


def test_what_nobody_asked_about_is_logged(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(broker.endpoint, timeout_s=patient(10.0))
    job = bus.job(name="a.b")(lambda: None)

    async def main() -> None:
        async with bus:
            await job.asend(wait=False)
            await asyncio.to_thread(answer, broker, REFUSAL)
            with pytest.raises(LocalProtocolError, match=r"await handle\.aconfirm"):
                (await job.asend(wait=False)).confirm()
            await asyncio.to_thread(answer, broker, REFUSAL)
            await job.asend(wait=False)
            await asyncio.to_thread(answer, broker)

    with caplog.at_level(logging.WARNING, "polybus"):
        asyncio.run(main())
    # Whether each was found when the next was sent or at the end.
    assert [record.getMessage().count("queue_full: no room") for record in caplog.records] == [1, 1]
