"""EBUS requests at their limits: ids that say where they come from, what cannot be read, who is heard."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import events
from polybus.core.actions import Refuse, Say
from polybus.core.model import PLAIN_CALL, Heartbeat, Reason
from polybus.dialects.ebus import Ebus
from polybus.dialects.port import RouterEar, Voice
from polybus.wire.context import SHORTEST_ID
from polybus.wire.ebus_bodies import unpack_bson
from support.exchange import Exchange

FRONT = 1
C = b"EBC01"
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def ex() -> Exchange:
    ex = Exchange()
    ex.listen(FRONT, RouterEar(ex.bus, "ebus", Ebus(ex.bus).tags))
    return ex


@pytest.mark.parametrize("own", [b"1", b"request-1"])
def test_an_id_may_say_where_its_request_comes_from(ex: Exchange, own: bytes) -> None:
    """The shortest id that can has one byte of its own."""
    request_id = own + b"~" + PARENT
    assert len(request_id) - len(own) + 1 == SHORTEST_ID
    ex.send(FRONT, b"c", C, b"REQ", b"echo", request_id, b"x")
    (request,) = ex.bus.requests.values()
    assert request.options.other == (f"traceparent:{PARENT.decode()}",)


def test_an_id_that_says_nothing_is_a_plain_call(ex: Exchange) -> None:
    ex.send(FRONT, b"c", C, b"REQ", b"echo", b"1", b"x")
    (request,) = ex.bus.requests.values()
    assert request.options is PLAIN_CALL


@pytest.mark.parametrize("lead", [[], [b""]])
@pytest.mark.parametrize(
    ("frames", "request_id"),
    [
        # The name of the service cannot be read, the id can.
        ([b"REQ", b"\xff", b"id-1"], b"id-1"),
        ([b"REQUEST", b"\xff", b"id-1", b"x"], b"id-1"),
        ([b"REQ", b"\xff"], None),
        ([b"REQ"], None),
        ([], None),
        ([b"REQ", b"\xff", b""], None),
        ([b"DANCE", b"echo", b"id-1", b"x"], None),
    ],
)
def test_a_request_that_cannot_be_read_is_rejected_if_its_id_can_be(
    ex: Exchange, lead: list[bytes], frames: list[bytes], request_id: bytes | None
) -> None:
    ex.ears[FRONT].receive(FRONT, [b"c", *lead, C, *frames], ex.now)
    refusals = [action for action in ex.bus.take() if isinstance(action, Refuse)]
    assert [one.request_id for one in refusals] == ([] if request_id is None else [request_id])
    # Whose service is not known.
    assert all((one.service, one.reason) == (b"", Reason.REJECTED) for one in refusals)
    assert ex.bus.counters.invalid == 1


def test_a_client_that_is_no_worker_is_not_told_to_register(ex: Exchange) -> None:
    ex.ears[FRONT].receive(FRONT, [b"c", C, b"PING"], ex.now)
    assert [type(action) for action in ex.bus.take()] == [Say]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (b"SERVICES", ["caf\ufffd"]),
        (b"WORKERS", [{"id": "w", "service": "caf\ufffd", "load": 0}]),
    ],
)
def test_names_that_are_no_text_are_shown_as_far_as_they_are(
    ex: Exchange, query: bytes, found: list[Any]
) -> None:
    ex.handle(events.WorkerUp((2, b"w"), Voice(), ((b"caf\xe9", 0),), Heartbeat(0.0), 1))
    ex.send(FRONT, b"c", C, b"REQ", query, b"id-1", b"x")
    assert unpack_bson(ex.one(FRONT, b"c")[-1]) == found


def test_a_service_that_is_only_asked_for_is_not_listed(ex: Exchange) -> None:
    ex.send(FRONT, b"c", C, b"REQ", b"nobodys", b"id-1", b"x")
    ex.send(FRONT, b"c", C, b"REQ", b"SERVICES", b"id-2", b"x")
    assert unpack_bson(ex.one(FRONT, b"c")[-1]) == []


def test_a_workers_ping_that_is_answered_counts_as_our_heartbeat(ex: Exchange) -> None:
    ex.send(FRONT, b"w", b"EBW01", b"READY", b"null", b"echo")
    worker = ex.bus.workers[FRONT, b"w"]
    ex.now += 0.25
    ex.send(FRONT, b"w", b"EBW01", b"PING")
    assert (worker.seen_at, worker.spoken_at) == (ex.now, ex.now)
