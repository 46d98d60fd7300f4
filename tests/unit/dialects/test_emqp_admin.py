"""The admin port of eMQP."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polybus.core import events
from polybus.core.actions import Drained, Say
from polybus.core.model import Heartbeat
from polybus.dialects.ebus import Ebus
from polybus.dialects.emqp import Emqp
from polybus.dialects.emqp_admin import EmqpAdmin
from polybus.dialects.port import RouterEar, Voice
from support.exchange import Exchange

PORT, ADMIN, EBUS = 1, 2, 3
TAG = b"eMQP/1.0"


@pytest.fixture
def ex() -> Exchange:
    ex = Exchange()
    ex.listen(PORT, RouterEar(ex.bus, "emqp", Emqp(ex.bus, wall=lambda: 0.0).tags))
    ex.listen(EBUS, RouterEar(ex.bus, "ebus", Ebus(ex.bus).tags))
    ex.listen(ADMIN, EmqpAdmin(ex.bus, lambda: None))
    ex.send(PORT, b"w", b"", TAG, b"INFORM", b"i", b'[[10, "default"], [20, "email"]]', b"worker")
    ex.send(PORT, b"w", b"", TAG, b"READY", b"r")
    ex.send(EBUS, b"\x00\xff", b"EBW01", b"READY", b"", b"echo")
    ex.send(PORT, b"s", b"", TAG, b"INFORM", b"i", b"", b"scheduler")
    for n in range(3):
        ex.send(PORT, b"c", b"", TAG, b"REQUEST", b"job-%d" % n, b"default", b"", b"x")
    ex.now += 2.5
    return ex


def query(ex: Exchange, word: bytes) -> Any:
    ex.send(ADMIN, b"a", b"", TAG, word, b"admin:1")
    frames = ex.one(ADMIN, b"a")
    assert frames[:3] == [b"", TAG, b"REPLY"]
    assert len(frames) == 5
    return msgspec.json.decode(frames[4])


@pytest.mark.conforms("EMQP-38")
def test_status(ex: Exchange) -> None:
    assert query(ex, b"STATUS") == {
        "inflight_messages_by_queue": {"default": 1},
        "latency_messages_by_queue": {"default": 2500},
        "max_latency_messages_by_queue": {"default": 2500},
        "waiting_messages_by_queue": {"default": 2},
        "processed_messages_by_queue": {"default": 1},
        "processed_messages_by_worker": {"w": 1},
    }


def test_workers_of_all_dialects_are_shown(ex: Exchange) -> None:
    assert query(ex, b"ROUTER_SHOW_WORKERS") == {
        "connected_workers": {
            "w": {"queues": [[10, "default"], [20, "email"]], "hb": 1000.0, "available_slots": 0},
            "00ff": {"queues": [[0, "echo"]], "hb": 1000.0, "available_slots": 100},
        },
        "connected_queues": {
            "default": [[10, "w"]],
            "email": [[20, "w"]],
            "echo": [[0, "00ff"]],
        },
    }


def test_schedulers(ex: Exchange) -> None:
    assert query(ex, b"ROUTER_SHOW_SCHEDULERS") == {"connected_schedulers": {"s": {"hb": 1000.0}}}


def test_hello_has_no_answer(ex: Exchange) -> None:
    ex.send(ADMIN, b"a", b"", TAG, b"HELLO", b"admin:1")
    assert ex.got(ADMIN, b"a") == []
    assert ex.bus.counters.invalid == 0


@pytest.mark.conforms("EMQP-8")
def test_disconnect_is_acknowledged_and_obeyed() -> None:
    ex = Exchange()
    noted: list[list[Any]] = []
    # The acknowledgement is there before the broker is told, so that it goes out first.
    ex.listen(ADMIN, EmqpAdmin(ex.bus, lambda: noted.append(list(ex.bus.actions))))
    ex.send(ADMIN, b"a", TAG, b"DISCONNECT", b"admin:1")
    assert [[type(action) for action in actions] for actions in noted] == [[Say, Drained]]
    assert ex.drained
    frames = ex.one(ADMIN, b"a")
    assert frames[:2] == [TAG, b"ACK"]
    assert frames[3:] == [b"admin:1"]


@pytest.mark.parametrize("frames", [(b"DANCE", b"m"), (b"STATUS",), (b"STATUS", b""), (b"REQUEST", b"m")])
def test_what_is_not_known_is_answered_with_an_error(ex: Exchange, frames: tuple[bytes, ...]) -> None:
    ex.send(ADMIN, b"a", b"", TAG, *frames)
    assert b'"error"' in ex.one(ADMIN, b"a")[4]
    assert ex.bus.counters.invalid == 1


def test_another_dialect_is_dropped(ex: Exchange) -> None:
    ex.send(ADMIN, b"a", b"EBC01", b"PING")
    assert ex.got(ADMIN, b"a") == []
    assert ex.bus.counters.invalid == 1


def test_an_error_has_its_reason_and_says_more(ex: Exchange) -> None:
    ex.send(ADMIN, b"a", b"", TAG, b"DANCE", b"m")
    error = msgspec.json.decode(ex.one(ADMIN, b"a")[4])
    assert error["error"] == "unknown_command"
    assert "DANCE" in error["detail"]


def test_latency_is_the_mean_and_the_most_of_what_workers_have(ex: Exchange) -> None:
    ex.send(PORT, b"w", b"", TAG, b"READY", b"r2")
    ex.send(PORT, b"w", b"", TAG, b"READY", b"r3")
    ex.send(PORT, b"late", b"", TAG, b"REQUEST", b"job", b"email", b"", b"x")
    ex.send(PORT, b"w", b"", TAG, b"READY", b"r4")
    ex.now += 1.0
    ex.send(PORT, b"late", b"", TAG, b"REQUEST", b"job-9", b"default", b"", b"x")
    ex.send(PORT, b"w", b"", TAG, b"READY", b"r5")
    told = query(ex, b"STATUS")
    assert told["inflight_messages_by_queue"] == {"default": 4, "email": 1}
    assert told["latency_messages_by_queue"] == {"default": 3 * 3500 // 4, "email": 1000}
    assert told["max_latency_messages_by_queue"] == {"default": 3500, "email": 1000}


def test_the_workers_of_a_queue_are_told_from_the_largest_weight(ex: Exchange) -> None:
    for name, weight in ((b"v", 5), (b"x", 30)):
        queues = b'[[%d, "email"]]' % weight
        ex.send(PORT, name, b"", TAG, b"INFORM", b"i", queues, b"worker")
    # A queue that nobody serves is not connected.
    ex.send(PORT, b"c", b"", TAG, b"REQUEST", b"job", b"nobodys", b"guarantee", b"x")
    ex.bus.service(b"never served")
    told = query(ex, b"ROUTER_SHOW_WORKERS")["connected_queues"]
    assert told["email"] == [[30, "x"], [20, "w"], [5, "v"]]
    assert set(told) == {"default", "email", "echo"}


def test_names_that_are_no_text_are_shown_as_far_as_they_are(ex: Exchange) -> None:
    ex.handle(events.WorkerUp((EBUS, b"v"), Voice(), ((b"caf\xe9", 0),), Heartbeat(0.0), 1))
    assert query(ex, b"ROUTER_SHOW_WORKERS")["connected_queues"]["caf\ufffd"] == [[0, "v"]]


def test_what_is_not_known_is_noted_with_its_dialect(ex: Exchange) -> None:
    ex.bus.listen(True, None)
    ex.send(ADMIN, b"a", b"", TAG, b"DANCE", b"m")
    (noted,) = [one for one in ex.observed if one.what == "invalid"]
    assert noted.detail.startswith("emqp: ")
