"""The conversation of a scheduler with an eMQP router, frame by frame."""

from __future__ import annotations

import pytest

from polybus.client.scheduler import SchedulerSession
from polybus.client.sessions.port import Leave, Message, Restart
from polybus.wire import emqp as wire

JOB = b'["run", {"path": "jobs", "callable": "f"}]'
LONG = (b"default", b"guarantee", b"60", JOB, b"")


def session() -> SchedulerSession:
    made = SchedulerSession(lambda: 123.5)
    made.hello(0.0)
    return made


def emqp(*frames: bytes) -> Message:
    return [b"", wire.TAG, *frames]


@pytest.mark.conforms("EMQP-15")
def test_it_informs_and_waits_to_be_taken() -> None:
    made = SchedulerSession(lambda: 123.5)
    (inform,) = made.hello(0.0)
    assert inform[:3] == [b"", wire.TAG, b"INFORM"]
    assert inform[4:] == [b"", b"scheduler"]
    assert not made.ready
    made.receive(emqp(b"ACK", b"a1", b"something else"), 0.1)
    assert not made.ready
    made.receive(emqp(b"ACK", b"a2", bytes(inform[3])), 0.2)
    assert made.ready


@pytest.mark.conforms("EMQP-22")
def test_it_beats_when_it_has_nothing_to_say() -> None:
    made = session()
    assert made.tick(2.9) == []
    (beat,) = made.tick(3.0)
    assert (beat[2], beat[4]) == (b"HEARTBEAT", b"123.5")
    made.receive(emqp(b"HEARTBEAT", b"h1", b"1.0"), 4.0)
    assert made.tick(5.0) == []
    made.ask([wire.Request(b"r1", b"default", wire.NO_HEADERS, [JOB])])
    # It looks again when the next beat would be due without that request, and beats when one is.
    assert made.tick(6.0) == []
    assert made.tick(7.9) == []
    assert made.deadline == 8.0
    assert [beat[2] for beat in made.tick(8.0)] == [b"HEARTBEAT"]


@pytest.mark.conforms("EMQP-25")
def test_a_silent_router_is_lost() -> None:
    made = session()
    made.receive(emqp(b"HEARTBEAT", b"h1", b"1.0"), 4.0)
    assert not made.is_lost(18.9)
    assert made.is_lost(19.0)
    # And the next conversation begins from the beginning.
    made.ready = True
    assert made.hello(20.0)[0][2] == b"INFORM"
    assert not made.ready
    assert not made.is_lost(20.0)


def test_what_clients_want_is_collected() -> None:
    made = session()
    made.receive(emqp(b"SCHEDULE", b"m1", *LONG), 1.0)
    made.receive(emqp(b"UNSCHEDULE", b"m2", *LONG), 1.0)
    first, second = made.wishes
    assert isinstance(first, wire.Schedule)
    assert (first.queue, first.interval_s, first.message) == (b"default", 60, JOB)
    assert isinstance(second, wire.Unschedule)
    identity = wire.identify_kept(wire.schedule_hash(first), first.queue, first.message, 60, "")
    assert identity is not None
    assert wire.jobs_to_remove(second) == (identity[0],)


def test_a_run_is_a_request() -> None:
    headers = wire.Headers(reply_requested=True, timeout_s=5)
    (frames,) = session().ask([wire.Request(b"key@1", b"mail", headers, [JOB])])
    assert frames == [b"", wire.TAG, b"REQUEST", b"key@1", b"mail", b"reply-requested,timeout:5", JOB]


def test_receipts_and_results_mean_nothing() -> None:
    made = session()
    assert made.receive(emqp(b"REPLY", b"m1", b"key@1"), 1.0) == []
    assert made.receive(emqp(b"REPLY", b"m2", b"true", b"key@1"), 1.0) == []
    assert made.invalid == 0


@pytest.mark.conforms("EMQP-36")
def test_goodbyes() -> None:
    made = session()
    (event,) = made.receive(emqp(b"KBYE", b"m1"), 1.0)
    assert isinstance(event, Restart)
    (event,) = made.receive(emqp(b"DISCONNECT", b"m2"), 1.0)
    assert isinstance(event, Leave)
    (frames,) = made.goodbye()
    assert frames[:3] == [b"", wire.TAG, b"KBYE"]


def test_what_cannot_be_read_is_counted() -> None:
    made = session()
    assert made.receive(emqp(b"SCHEDULE", b"m1"), 1.0) == []
    assert made.receive([b"nonsense"], 1.0) == []
    assert made.invalid == 2
    assert made.wishes == []
