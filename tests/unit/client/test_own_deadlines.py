"""A caller's own time is up, and the broker says so too: whichever comes first, it is a `RequestTimeout`.

EBUS tells the broker how long its client waits. The clients here are as late as those that get no processor
when their time is up: the broker's REJECT is there by then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from polybus import AsyncClient, Client, RequestFailed, RequestTimeout
from support.fake_brokers import Background, FakeBroker
from support.patience import patient
from support.waiting import until

# Longer than a busy machine lets a thread stand still between two lines.
TTL_S = 1.0
WAIT_S = patient(10.0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.close()


class LateClient(Client):
    """Takes its first look at what the broker says when it is told to and its time is up."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, "ebus", timeout_s=TTL_S)
        self.may_look = threading.Event()
        self.has_looked = False

    def _step(self, timeout_s: float) -> bool:
        # Not whether it may look: `submit` sends, so that may be allowed before the first step.
        if self.has_looked:
            return super()._step(timeout_s)
        self.has_looked = True
        now = time.monotonic()
        self._flush()
        assert self.may_look.wait(WAIT_S)
        until(lambda: time.monotonic() > now + TTL_S)
        return super()._step(WAIT_S)


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[LateClient]:
    with LateClient(broker.endpoint) as client:
        yield client


def expire(broker: FakeBroker) -> None:
    """The next request is stale."""
    identity, frames = broker.receive()
    assert frames[-1] == b"%d" % (TTL_S * 1000)
    broker.send(identity, b"", b"EBW01", b"REJECT", frames[4])


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.call("nobody"),
        lambda client: client.call("nobody", timeout_s=TTL_S),
        lambda client: list(client.stream("nobody")),
        lambda client: list(client.call_many("nobody", [b"1"], return_errors=True)),
        lambda client: client.submit("nobody").result(),
    ],
)
def test_it_is_a_timeout(broker: FakeBroker, client: LateClient, ask: Callable[[Client], Any]) -> None:
    asking = Background(ask, client)
    expire(broker)
    client.may_look.set()
    with pytest.raises(RequestTimeout, match="in time"):
        asking.join()


@pytest.mark.parametrize("return_errors", [False, True])
def test_answers_before_it_are_kept(broker: FakeBroker, client: LateClient, return_errors: bool) -> None:
    answers = client.call_many("echo", [b"1", b"2"], return_errors=return_errors)
    first = Background(next, answers)
    identity, frames = broker.receive()
    broker.send(identity, b"", b"EBW01", b"REPLY", frames[4], b"out")
    expire(broker)
    client.may_look.set()
    assert first.join() == b"out"
    with pytest.raises(RequestTimeout, match="in time"):
        next(answers)


def test_who_waits_longer_than_the_request_lives_is_told_that_it_expired(
    broker: FakeBroker, client: LateClient
) -> None:
    pending = client.submit("nobody")
    expire(broker)
    client.may_look.set()
    with pytest.raises(RequestFailed) as caught:
        pending.result(timeout_s=WAIT_S)
    assert caught.value.code == "expired"
    # Also who looks again without waiting: it is over.
    with pytest.raises(RequestFailed):
        pending.result(timeout_s=0.0)


def test_a_broker_that_gives_up_earlier_says_so(broker: FakeBroker) -> None:
    with Client(broker.endpoint, "ebus", timeout_s=WAIT_S) as client:
        call = Background(client.call, "nobody")
        identity, frames = broker.receive()
        broker.send(identity, b"", b"EBW01", b"REJECT", frames[4])
        with pytest.raises(RequestFailed) as caught:
            call.join()
        assert caught.value.code == "expired"


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.call("nobody"),
        lambda client: anext(client.stream("nobody")),
        lambda client: anext(client.call_many("nobody", [b"1"], return_errors=True)),
    ],
)
def test_it_is_a_timeout_for_asyncio(broker: FakeBroker, ask: Callable[[AsyncClient], Any]) -> None:
    async def main() -> None:
        async with AsyncClient(broker.endpoint, "ebus", timeout_s=TTL_S) as client:
            asking = asyncio.ensure_future(ask(client))
            # It asks; then the event loop gets no time.
            await asyncio.sleep(0)
            asked_by = time.monotonic()
            client._take_step()
            expire(broker)
            until(lambda: time.monotonic() > asked_by + TTL_S)

            def is_told() -> bool:
                client._take_step()
                return not client._brain.open

            until(is_told)
            with pytest.raises(RequestTimeout, match="in time"):
                await asking

    asyncio.run(main())
