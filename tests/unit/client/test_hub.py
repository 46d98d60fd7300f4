"""When a worker's conversation that has ended begins again. The clock stands still unless a test moves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polybus.client import hub as module
from polybus.client.hub import MAX_RESTART_S, RESTART_S, Hub
from polybus.client.sessions.mdr import MdrWorker
from support.fake_brokers import FakeBroker
from support.waiting import until


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Bench:
    """A worker with one connection, a broker, and the clock of the former."""

    def __init__(self, clock: Clock) -> None:
        self.broker = FakeBroker()
        self.clock = clock
        self.hub = Hub(["echo"], self.broker.endpoint, "mdr", credit=1)
        self.hub.open(clock.now)

    def step(self) -> bool:
        self.hub.step(0.0)
        return True

    def hello(self) -> bytes:
        """The worker's next READY: who it is from."""
        until(lambda: self.step() and not self.broker.is_quiet(0))
        identity, frames = self.broker.receive()
        assert frames == [b"MDRW01", b"\x01", b"echo"]
        return identity

    def dismiss(self, identity: bytes) -> None:
        before = self.hub.restarts
        self.broker.send(identity, b"MDRW01", b"\x06")
        until(lambda: self.step() and self.hub.restarts > before, "the worker has noticed")

    def stays_away(self) -> None:
        self.step()
        assert self.broker.is_quiet()

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    def close(self) -> None:
        self.hub.close()
        self.broker.close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    # Silence and heartbeats are not what this is about.
    monkeypatch.setattr(MdrWorker, "beat_s", 1e6)
    monkeypatch.setattr(MdrWorker, "dead_after_s", 1e7)
    bench = Bench(clock)
    yield bench
    bench.close()


def test_pauses_grow_while_conversations_are_short(bench: Bench) -> None:
    """A broker that sends the worker away each time does not hear from it more and more often."""
    pause_s = RESTART_S
    for _ in range(8):
        bench.dismiss(bench.hello())
        bench.advance(pause_s - 0.001)
        bench.stays_away()
        bench.advance(0.002)
        pause_s = min(2 * pause_s, MAX_RESTART_S)
    # One that has lasted was fine.
    identity = bench.hello()
    bench.advance(MAX_RESTART_S + 0.001)
    bench.dismiss(identity)
    bench.advance(RESTART_S - 0.001)
    bench.stays_away()
    bench.advance(0.002)
    bench.hello()


def test_a_conversation_ends_once(bench: Bench) -> None:
    """A broker that goes after it has dismissed the worker does not make its pause longer."""
    bench.dismiss(bench.hello())
    bench.broker.restart()
    # The old socket comes back by itself, and is closed when the worker begins again.
    until(lambda: bench.step() and bench.broker.connections() == (1, 0))
    until(lambda: bench.step() and not bench.hub.lines.is_cut(0))
    bench.stays_away()
    assert bench.hub.restarts == 1
    bench.advance(RESTART_S + 0.001)
    bench.hello()
    until(lambda: bench.step() and bench.broker.connections() == (2, 1))


def test_work_of_a_conversation_that_is_over_is_cancelled_and_not_answered(bench: Bench) -> None:
    first = bench.hello()
    bench.broker.send(first, b"MDRW01", b"\x02", b"token", b"", b"1", b"in")
    until(lambda: bench.step() and bench.hub.inbox)
    request = bench.hub.inbox.popleft()
    assert not request.cancelled
    bench.dismiss(first)
    assert request.cancelled
    bench.advance(RESTART_S + 0.001)
    second = bench.hello()
    assert second != first
    bench.hub.reply(request, [b"out"])
    bench.stays_away()
