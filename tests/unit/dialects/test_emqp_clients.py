"""Which clients eMQP remembers for its goodbye, and what it keeps of their headers."""

from __future__ import annotations

import pytest

from polybus.dialects import emqp as module
from polybus.dialects.emqp import Emqp
from polybus.dialects.port import RouterEar
from support.exchange import Exchange

CLIENTS, PUBLISHERS = 1, 2
TAG = b"eMQP/1.0"


def broker() -> tuple[Exchange, Emqp]:
    ex = Exchange()
    emqp = Emqp(ex.bus, wall=lambda: 1700000000.5)
    ex.listen(CLIENTS, RouterEar(ex.bus, "emqp", emqp.client_tags))
    ex.listen(PUBLISHERS, RouterEar(ex.bus, "emqp", emqp.publish_tags))
    return ex, emqp


@pytest.mark.parametrize("lead", [[], [b""]])
@pytest.mark.parametrize(
    ("link", "frames"),
    [
        (CLIENTS, [b"REQUEST", b"m", b"default", b"", b"x"]),
        (CLIENTS, [b"PUBLISH", b"m", b"topic", b"", b"x"]),
        (PUBLISHERS, [b"PUBLISH", b"m", b"topic", b"", b"x"]),
        (CLIENTS, [b"SCHEDULE", b"m", b"default", b"", b"60", b'["run", {}]', b""]),
        (CLIENTS, [b"UNSCHEDULE", b"m", b"default", b"", b"60", b'["run", {}]', b""]),
    ],
    ids=["request", "publish", "publisher", "schedule", "unschedule"],
)
def test_whoever_sent_anything_is_told_goodbye(link: int, frames: list[bytes], lead: list[bytes]) -> None:
    ex, emqp = broker()
    ex.send(link, b"c", *lead, TAG, *frames)
    assert ex.bus.counters.invalid == 0
    ex.got(link, b"c")
    (goodbye,) = emqp.goodbyes()
    assert (goodbye.peer, goodbye.reason) == ((link, b"c"), "shutdown")
    ex.bus.actions.append(goodbye)
    ex.settle()
    assert ex.one(link, b"c")[: len(lead) + 2] == [*lead, TAG, b"KBYE"]


def test_headers_with_texts_of_a_clients_own_are_not_kept() -> None:
    ex, _ = broker()
    kept = module._read_options_cached
    kept.cache_clear()
    for number in range(5):
        headers = b"reply-requested,x-number:%d" % number
        ex.send(CLIENTS, b"c", TAG, b"REQUEST", b"m%d" % number, b"default", headers, b"x")
    assert kept.cache_info().currsize == 0
    ex.send(CLIENTS, b"c", TAG, b"REQUEST", b"plain", b"default", b"reply-requested", b"x")
    assert kept.cache_info().currsize == 1
