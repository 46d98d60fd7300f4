"""Answers that wait for room: their order, their limits, their end."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from math import inf
from random import Random
from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core.model import Limits
from polybus.server.pending import OVERHEAD_BYTES, RETRY_MAX_S, RETRY_S, ROUND, TURN, Pending

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


def test_clients_without_room_take_turns_to_be_tried(desk: Desk) -> None:
    """Not all of them can be tried in a turn, and the last ones are the only ones with room."""
    many = 2 * TURN // ROUND
    clients = [(1, b"c%d" % number) for number in range(many)]
    for client in clients:
        for number in range(ROUND):
            desk.add(client, b"%d" % number)
    for _, identity in clients[many // 2 :]:
        desk.pipes.room[identity] = ROUND
    desk.pending.resume(NOW + 1)
    assert not desk.pipes.sent
    desk.pending.resume(NOW + 2)
    assert len(desk.pipes.sent) == ROUND * many // 2
    assert [client in desk.pending for client in clients] == [True] * (many // 2) + [False] * (many // 2)


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


def test_who_has_little_waiting_loses_nothing_because_of_others() -> None:
    size = OVERHEAD_BYTES + len(b"ann") + 100
    desk = Desk(Limits(pending_bytes=12 * size))
    bodies = [b"%02d" % number + b"x" * 98 for number in range(12)]
    for body in bodies[:8]:
        desk.add(ANN, body)
    for body in bodies[:4]:
        desk.add(BOB, body)
    assert not desk.lost, "the total is used up and not exceeded"
    # The third of eve is four messages. Those who hold the most pay, with their newest: here ann.
    for body in bodies[:4]:
        desk.add((1, b"eve"), body)
    assert [(name, ident) for name, ident, _ in desk.lost] == [(b"ann", body) for body in bodies[7:3:-1]]
    assert f"limits.pending_bytes allows no more to wait: {8 * size} bytes wait for it" in desk.lost[0][2]
    assert desk.pending.facts() == {
        "pending_messages": 12,
        "pending_bytes": 12 * size,
        "answers_lost_at": {"limits.pending_bytes": 4},
    }
    # Who has its share pays itself.
    desk.add((1, b"eve"), bodies[4])
    assert [(name, ident) for name, ident, _ in desk.lost[4:]] == [(b"eve", bodies[4])]
    desk.pipes.room = dict.fromkeys((b"ann", b"bob", b"eve"), 100)
    desk.pending.resume(NOW + 1)
    # What is left is in order.
    for name in (b"ann", b"bob", b"eve"):
        assert [body for client, body in desk.pipes.sent if client == name] == bodies[:4]
    assert not desk.pending
    assert desk.pending.bytes == 0


def test_a_client_that_pays_with_its_only_message_waits_for_nothing_more() -> None:
    size = OVERHEAD_BYTES + len(b"ann") + 1000
    desk = Desk(Limits(pending_bytes=size))
    desk.add(ANN, b"x" * 1000)
    desk.add(BOB, b"y")
    assert [name for name, _, _ in desk.lost] == [b"ann"]
    assert ANN not in desk.pending
    desk.pipes.room = {b"ann": 1, b"bob": 1}
    desk.pending.resume(NOW + 1)
    assert desk.pipes.sent == [(b"bob", b"y")]
    # It can wait again.
    desk.add(ANN, b"z")
    assert desk.pending.messages == 1


@pytest.mark.parametrize("seed", range(20))
def test_within_its_share_nothing_is_lost_whatever_the_others_do(seed: int) -> None:
    random = Random(seed)
    limit = 20_000
    desk = Desk(Limits(pending_bytes=limit))
    clients = [(1, b"c%d" % number) for number in range(5)]
    for _ in range(500):
        client = random.choice(clients)
        before = {client: held_by(desk, client) for client in clients}
        lost = len(desk.lost)
        body = b"x" * random.choice((10, 500, 3000))
        desk.add(client, body)
        size = OVERHEAD_BYTES + len(client[1]) + len(body)
        waiting = sum(bool(held) or other == client for other, held in before.items())
        for name, _, _ in desk.lost[lost:]:
            held = before[1, name] + (size if name == client[1] else 0)
            assert held > limit // waiting, "it was within its share"
        assert desk.pending.bytes == sum(held_by(desk, client) for client in clients) <= limit
        if random.random() < 0.2:
            desk.pipes.room = {random.choice(clients)[1]: random.randrange(5)}
            desk.pending.resume(desk.pending.next_at)
    assert desk.lost


def held_by(desk: Desk, client: tuple[int, bytes]) -> int:
    return desk.pending._bytes_of.get(client, 0)
