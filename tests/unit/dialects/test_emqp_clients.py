"""Which clients eMQP remembers for its goodbye, and what it keeps of their headers."""

from __future__ import annotations

import pytest

from polybus.core.actions import Answer
from polybus.dialects import emqp as module
from polybus.dialects.emqp import Emqp, RecentClients
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


def test_what_cannot_be_read_is_answered_for_no_service() -> None:
    ex, _ = broker()
    ex.ears[CLIENTS].receive(CLIENTS, [b"c", TAG, b"DANCE", b"m"], ex.now)
    (answer,) = ex.bus.take()
    assert isinstance(answer, Answer)
    assert (answer.client, answer.service, answer.request_id) == ((CLIENTS, b"c"), b"", b"m")


@pytest.mark.parametrize(("version", "obeys"), [(0, False), (1, True), (2, True)])
def test_workers_that_know_the_extension_obey_a_stop(version: int, obeys: bool) -> None:
    ex, _ = broker()
    more = [b'{"polybus": %d, "holding": []}' % version] if version else []
    ex.send(CLIENTS, b"w", TAG, b"INFORM", b"i", b'[[10, "echo"]]', b"worker", *more)
    assert ex.bus.workers[CLIENTS, b"w"].obeys_stop == obeys


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_nobody_is_forgotten_while_there_is_room_in_the_newer_half(most: int) -> None:
    clients = RecentClients(most)
    for name in (b"a", b"b"):
        clients.note((1, name), 1)
    clients.forget((1, b"b"))
    clients.note((1, b"c"), 2)
    assert dict(clients) == {(1, b"a"): 1, (1, b"c"): 2}
