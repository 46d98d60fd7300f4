"""Answers that wait for room: their order, their limits, their end."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core.model import Limits
from polybus.server.pending import OVERHEAD_BYTES, RETRY_MAX_S, RETRY_S, ROUND, Pending

NOW = 100.0
ANN, BOB = (1, b"ann"), (1, b"bob")
LIMITS = Limits()


class Pipes:
    """A pump whose peers have room for so many messages; None is no connection."""

    def __init__(self) -> None:
        self.room: dict[bytes, int | None] = {}
        self.sent: list[tuple[bytes, bytes]] = []

    def send_many(self, messages: Sequence[tuple[int, Sequence[Any]]]) -> list[tuple[int, int]]:
        refused = []
        for position, (_, (identity, body)) in enumerate(messages):
            room = self.room.get(identity, 0)
            if room is None:
                refused.append((position, errno.EHOSTUNREACH))
            elif not room:
                refused.append((position, errno.EAGAIN))
            else:
                self.room[identity] = room - 1
                self.sent.append((identity, body))
        return refused


class Desk:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.pipes = Pipes()
        self.lost: list[tuple[bytes, bytes, str]] = []
        pump: Any = self.pipes
        self.pending = Pending(
            pump, lambda client, answer, why, now: self.lost.append((client[1], answer.request_id, why))
        )

    def add(self, client: tuple[int, bytes], body: bytes) -> None:
        answer = act.Answer(client, None, b"echo", body, [body])
        self.pending.add(client, client[0], [client[1], body], answer, self.limits, NOW)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_waits_is_sent_in_order_when_there_is_room(desk: Desk) -> None:
    for number in range(10):
        desk.add(ANN, b"%d" % number)
    assert desk.pending.next_at == NOW + RETRY_S
    desk.pending.resume(NOW)
    assert not desk.pipes.sent, "not before its time"
    desk.pipes.room[b"ann"] = 4
    desk.pending.resume(NOW + 1)
    assert desk.pipes.sent == [(b"ann", b"%d" % number) for number in range(4)]
    desk.pipes.room[b"ann"] = 100
    desk.pending.resume(NOW + 2)
    assert desk.pipes.sent == [(b"ann", b"%d" % number) for number in range(10)]
    assert not desk.pending
    assert desk.pending.next_at == inf
    assert desk.pending.facts() == {"pending_messages": 0, "pending_bytes": 0, "answers_lost_at": {}}
    assert not desk.lost


def test_one_without_room_does_not_hold_up_the_others(desk: Desk) -> None:
    desk.add(ANN, b"1")
    desk.add(BOB, b"2")
    desk.pipes.room[b"bob"] = 1
    desk.pending.resume(NOW + 1)
    assert desk.pipes.sent == [(b"bob", b"2")]
    assert ANN in desk.pending
    assert BOB not in desk.pending


def test_a_client_with_much_to_get_takes_turns(desk: Desk) -> None:
    for number in range(ROUND + 1):
        desk.add(ANN, b"%d" % number)
    desk.add(BOB, b"x")
    desk.pipes.room = {b"ann": 10 * ROUND, b"bob": 1}
    desk.pending.resume(NOW + 1)
    assert len(desk.pipes.sent) == ROUND + 1
    assert desk.pipes.sent[-1] == (b"bob", b"x")
    desk.pending.resume(NOW + 2)
    assert not desk.pending


def test_it_is_tried_less_often_while_nothing_moves(desk: Desk) -> None:
    desk.add(ANN, b"1")
    now = NOW
    pauses = []
    for _ in range(10):
        pauses.append(desk.pending.next_at - now)
        now = desk.pending.next_at
        desk.pending.resume(now)
    assert pauses[:3] == pytest.approx([RETRY_S, 2 * RETRY_S, 4 * RETRY_S])
    assert pauses[-1] == pytest.approx(RETRY_MAX_S)


def test_what_waits_for_a_client_that_is_gone_is_lost_and_counted(desk: Desk) -> None:
    desk.add(ANN, b"1")
    desk.add(ANN, b"2")
    desk.pipes.room[b"ann"] = None
    desk.pending.resume(NOW + 1)
    assert desk.lost == [(b"ann", b"1", "it cannot be reached"), (b"ann", b"2", "it cannot be reached")]
    assert desk.pending.facts() == {"pending_messages": 0, "pending_bytes": 0, "answers_lost_at": {}}
    assert not desk.pending


def test_the_limit_of_a_client_in_bytes() -> None:
    size = OVERHEAD_BYTES + len(b"ann") + 100
    desk = Desk(Limits(pending_bytes_per_client=2 * size))
    for _ in range(3):
        desk.add(ANN, b"x" * 100)
    assert desk.pending.messages == 2
    ((name, ident, why),) = desk.lost
    assert (name, ident) == (b"ann", b"x" * 100)
    assert f"{2 * size} bytes wait for it" in why
    assert desk.pending.facts()["answers_lost_at"] == {"limits.pending_bytes_per_client": 1}
    desk.add(BOB, b"x" * 100)
    assert desk.pending.messages == 3, "the others have a limit of their own"


def test_the_limit_of_all_clients_in_bytes() -> None:
    size = OVERHEAD_BYTES + len(b"ann") + 100
    desk = Desk(Limits(pending_bytes=2 * size))
    for client in (ANN, BOB, (1, b"eve")):
        desk.add(client, b"x" * 100)
    assert desk.pending.bytes == 2 * size
    assert [name for name, _, _ in desk.lost] == [b"eve"]
    assert desk.pending.facts()["answers_lost_at"] == {"limits.pending_bytes": 1}
