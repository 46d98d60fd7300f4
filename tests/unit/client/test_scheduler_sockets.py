"""A scheduler and its router over a real socket: each way in which a conversation ends, each alone.

The scheduler's clock stands still unless a test moves it, so silence, pauses and heartbeats happen when the
test says so and never by the way.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polybus.client import scheduler
from polybus.client.lines import Lines
from polybus.client.scheduler import MAX_RESTART_S, RESTART_S, SILENT_BEATS, Scheduler
from polybus.client.sessions.port import Message
from polybus.errors import ConnectionLost
from polybus.wire import emqp as wire
from support.fake_brokers import Background, FakeBroker
from support.waiting import until

BEAT_S = 3.0
LOST_AFTER_S = BEAT_S * SILENT_BEATS
WALL = 1_700_000_000.0


class Clock:
    """Stands for the module `time` in the scheduler; counts how often the scheduler looked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now


class OneJob:
    """A keeper without schedules: a job is due when a test says so, once. `taken` counts them."""

    def __init__(self) -> None:
        self.taken = 0
        self.is_due = False

    def set(self, message: wire.Schedule, wall: float) -> None:
        raise AssertionError

    def remove(self, message: wire.Unschedule) -> None:
        raise AssertionError

    def due(self, wall: float) -> list[wire.Request]:
        if not self.is_due:
            return []
        self.is_due = False
        self.taken += 1
        return [wire.Request(b"run-%d" % self.taken, b"queue", wire.NO_HEADERS, [b"tick"])]

    def next_at(self) -> float:
        # So that it looks again without waiting for a message.
        return WALL + 0.01


class Router:
    """The router's end, and everything that the scheduler is made of."""

    def __init__(self, clock: Clock) -> None:
        self.fake = FakeBroker()
        self.clock = clock
        self.keeper = OneJob()
        self.logged: list[str] = []
        self.announced = 0
        self.scheduler = Scheduler(
            self.keeper,
            self.fake.endpoint,
            beat_s=BEAT_S,
            log=self.logged.append,
            on_ready=self._count,
            wall=lambda: WALL,
        )
        self._running = Background(self.scheduler.run)

    def _count(self) -> None:
        self.announced += 1

    def inform(self) -> tuple[bytes, bytes]:
        """The next message, which has to be an INFORM: who it is from, and its id."""
        identity, frames = self.fake.receive()
        assert (frames[:3], frames[4:]) == ([b"", wire.TAG, b"INFORM"], [b"", b"scheduler"])
        return identity, frames[3]

    def accept(self) -> bytes:
        identity, inform_id = self.inform()
        self.say(identity, b"ACK", b"a-1", inform_id)
        return identity

    def say(self, identity: bytes, *frames: bytes) -> None:
        self.fake.send(identity, b"", wire.TAG, *frames)

    def has_looked(self, times: int = 4) -> None:
        """The scheduler has gone through its steps since now."""
        before = self.clock.looks
        until(lambda: self.clock.looks >= before + times, "the scheduler's next looks")

    def has_logged(self, word: str, times: int = 1) -> None:
        until(lambda: sum(word in line for line in self.logged) >= times, word)

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    def hears_nothing(self) -> None:
        self.has_looked()
        assert self.fake.is_quiet()

    def runs_what_is_due(self, identity: bytes) -> None:
        """It is a scheduler as before."""
        self.keeper.is_due = True
        sender, frames = self.fake.receive()
        assert (sender, frames[2], frames[6]) == (identity, b"REQUEST", b"tick")

    def is_replaced(self) -> bool:
        return self.fake.connections() == (2, 1)

    def close(self) -> None:
        self.scheduler.stop()
        self.fake.close()
        self.has_ended()

    def has_ended(self) -> None:
        self._running.join()


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    clock = Clock()
    monkeypatch.setattr(scheduler, "time", clock)
    # It looks often while the clock stands still.
    monkeypatch.setattr(scheduler, "LOOK_EVERY_S", 0.01)
    router = Router(clock)
    yield router
    router.close()


@pytest.mark.conforms("EMQP-15")
def test_nothing_is_run_before_the_router_has_taken_it(router: Router) -> None:
    router.keeper.is_due = True
    identity, inform_id = router.inform()
    router.say(identity, b"ACK", b"a-1", b"something else")
    router.hears_nothing()
    assert (router.keeper.taken, router.announced) == (0, 0)
    router.say(identity, b"ACK", b"a-2", inform_id)
    router.runs_what_is_due(identity)
    assert router.announced == 1


@pytest.mark.conforms("EMQP-36")
@pytest.mark.parametrize("word", [b"KBYE", b"KBAI"])
def test_it_leaves_a_router_that_says_goodbye(router: Router, word: bytes) -> None:
    first = router.accept()
    until(lambda: router.fake.connections() == (1, 0))
    router.advance(BEAT_S - RESTART_S / 2)
    router.has_looked()
    router.say(first, word, b"b-1")
    router.has_logged("said goodbye")
    # Until it may come back nothing is sent, no heartbeat either, and nothing counts as sent.
    router.keeper.is_due = True
    router.advance(RESTART_S * 0.9)
    router.hears_nothing()
    assert router.keeper.taken == 0
    router.advance(RESTART_S * 0.1 + 0.001)
    second = router.accept()
    assert second != first
    until(router.is_replaced, "the scheduler has closed the first socket and opened one more")
    router.runs_what_is_due(second)
    router.has_looked()
    # Who started it is told once, and the log says that all is well again.
    assert router.announced == 1
    assert router.logged == ["the router said goodbye; connecting again", "the router is back"]


def test_a_router_that_goes_after_its_goodbye_is_left_once(router: Router) -> None:
    first = router.accept()
    router.say(first, b"KBYE", b"b-1")
    router.has_logged("said goodbye")
    router.fake.close()
    until(lambda: router.scheduler._lines.is_cut(0), "the scheduler has noticed")
    router.has_looked()
    assert len(router.logged) == 1
    # And its pause is that of one conversation.
    router.fake.restart()
    router.advance(RESTART_S)
    assert router.accept() != first


@pytest.mark.conforms("EMQP-22", "EMQP-25")
def test_it_leaves_a_router_that_is_silent(router: Router) -> None:
    first = router.accept()
    router.runs_what_is_due(first)
    router.advance(LOST_AFTER_S - 0.001)
    _, frames = router.fake.receive()
    assert frames[2] == b"HEARTBEAT"
    router.hears_nothing()
    assert router.logged == []
    router.advance(0.001)
    router.has_logged("nothing was heard from the router for 15 s")
    router.advance(RESTART_S)
    second = router.accept()
    assert second != first
    until(router.is_replaced, "the scheduler has closed the first socket and opened one more")
    router.runs_what_is_due(second)


@pytest.mark.conforms("EMQP-25")
def test_it_leaves_a_router_that_is_gone_at_once(router: Router) -> None:
    """Not when the router is back: what is due until then would be sent into the void."""
    first = router.accept()
    router.fake.close()
    router.has_logged("the connection was cut")
    router.keeper.is_due = True
    router.advance(RESTART_S)
    router.has_looked()
    assert router.keeper.taken == 0
    router.fake.restart()
    second = router.accept()
    assert second != first
    router.runs_what_is_due(second)


def test_a_message_that_cannot_be_sent_ends_the_conversation(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = router.accept()

    def send(lines: Lines, messages: list[tuple[int, Message]]) -> None:
        raise ConnectionLost("the broker took nothing")

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "send", send)
        router.keeper.is_due = True
        router.has_logged("the broker took nothing")
    router.advance(RESTART_S)
    second = router.accept()
    assert second != first
    router.runs_what_is_due(second)


def test_pauses_grow_while_conversations_are_short(router: Router) -> None:
    """A router that sends it away each time is not asked more and more often."""

    def is_sent_away(times: int) -> bytes:
        identity, _ = router.inform()
        router.say(identity, b"KBYE", b"b-1")
        router.has_logged("said goodbye", times)
        return identity

    pause_s = RESTART_S
    for times in range(1, 9):
        identity = is_sent_away(times)
        if pause_s < 4 * RESTART_S:
            router.advance(pause_s - 0.001)
            router.hears_nothing()
            router.advance(0.001)
        else:
            router.advance(pause_s)
        # It waits for as long as it should, by another clock, unless something comes in.
        router.say(identity, b"HEARTBEAT", b"h-1", b"1")
        pause_s = min(2 * pause_s, MAX_RESTART_S)
    # One that lasted was fine.
    identity, _ = router.inform()
    router.advance(MAX_RESTART_S + 0.001)
    router.has_looked()
    router.say(identity, b"KBYE", b"b-1")
    router.has_logged("said goodbye", 9)
    router.advance(RESTART_S)
    router.inform()


@pytest.mark.conforms("EMQP-36")
def test_it_says_goodbye_when_it_is_stopped(router: Router) -> None:
    first = router.accept()
    router.scheduler.stop()
    sender, frames = router.fake.receive()
    assert (sender, frames[:3]) == (first, [b"", wire.TAG, b"KBYE"])
    router.has_ended()
    assert router.logged == []


def test_nothing_is_said_if_it_is_stopped_between_two_conversations(router: Router) -> None:
    first = router.accept()
    router.say(first, b"KBYE", b"b-1")
    router.has_logged("said goodbye")
    router.scheduler.stop()
    router.has_ended()
    assert router.fake.is_quiet()


@pytest.mark.conforms("EMQP-33", "EMQP-34")
def test_it_leaves_for_good_when_it_is_asked_to(router: Router) -> None:
    first = router.accept()
    router.say(first, b"DISCONNECT", b"d-1")
    sender, frames = router.fake.receive()
    assert (sender, frames[:3]) == (first, [b"", wire.TAG, b"KBYE"])
    router.has_ended()
    assert router.logged == ["the router asks us to leave"]
