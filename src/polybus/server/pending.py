"""Answers that wait until their client has room for them.

A client may send a hundred thousand requests before it reads the first answer.  Its pipe holds
`broker.pipe_messages` messages; what libzmq refuses beyond that waits here, in order, and is sent when there
is room.  libzmq does not say when that is, so the broker tries again after a few milliseconds.  What waits is
bounded in bytes, for each client and in total (`limits.pending_bytes_per_client`, `limits.pending_bytes`).

When the total is used up, those pay that use most of it.  The share of a client is the total divided by the
number of clients that something waits for.  A client loses its new message if that would bring it above its
share; otherwise the client that holds the most loses its newest messages until there is room.  So a client
that has little waiting loses nothing because of others.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from polybus.core import actions as act
from polybus.core.model import Address, Limits
from polybus.server.lost_answers import IN_ALL, PER_CLIENT, LostAnswers
from polybus.server.pump import Pump
from polybus.wire.frames import Frame

Message = list[Frame]
# What one waiting message costs beside its frames: a list, a tuple, its action, and objects of small frames.
OVERHEAD_BYTES: Final = 400
# Messages that are tried for one client, and for all of them, in a turn: others wait for theirs.
ROUND: Final = 512
TURN: Final = 4096
# A full pipe is tried again after this long, and less often if nothing moves.
RETRY_S: Final = 0.002
RETRY_MAX_S: Final = 0.05


def _of_client(action: act.Accept | act.Stream | act.Answer | act.Refuse) -> Address:
    return action.client


def _of_node(action: act.Approve | act.Deny | act.Acknowledge) -> Address:
    return action.node


def _of_peer(action: act.Say) -> Address:
    return action.peer


# The kinds of actions whose message may wait, and who it is for.
RECEIVERS: Final[dict[type, Callable[[Any], Address]]] = {
    act.Accept: _of_client,
    act.Stream: _of_client,
    act.Answer: _of_client,
    act.Refuse: _of_client,
    act.Say: _of_peer,
    act.Approve: _of_node,
    act.Deny: _of_node,
    act.Acknowledge: _of_node,
}


class Pending:
    """Messages for clients whose pipes are full."""

    def __init__(self, pump: Pump, on_lost: Callable[[Address, Any, str, float], None]) -> None:
        self._pump = pump
        # Called for every message that is given up: client, the action that it comes from, why, now.
        self._on_lost = on_lost
        # Those that were given up because too much waits.
        self.lost = LostAnswers()
        # By client, the one that was tried longest ago first: link, frames and action of each message.
        self._waiting: dict[Address, deque[tuple[int, Message, Any]]] = {}
        self._bytes_of: dict[Address, int] = {}
        # Who held the most when that was looked up last.
        self._largest: Address = (0, b"")
        self.messages = 0
        self.bytes = 0
        # When to try again; infinity while nothing waits.
        self.next_at = inf
        self._pause_s = RETRY_S

    def __contains__(self, client: Address) -> bool:
        return client in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(
        self, client: Address, link: int, message: Message, source: Any, limits: Limits, now: float
    ) -> None:
        """Let a message wait behind those that do already; if too much waits, give up this one or another."""
        size = _size(message)
        held = self._bytes_of.get(client, 0)
        if held + size > limits.pending_bytes_per_client:
            self._give_up(client, source, PER_CLIENT, now)
            return
        if self.bytes + size > limits.pending_bytes:
            clients = len(self._bytes_of) + (client not in self._bytes_of)
            share = limits.pending_bytes // clients
            if held + size > share:
                self._give_up(client, source, IN_ALL, now)
                return
            # The others hold more than their shares together, so one of them holds more than its own.
            while self.bytes + size > limits.pending_bytes:
                self._take_from_largest(share, now)
        self._waiting.setdefault(client, deque()).append((link, message, source))
        self._bytes_of[client] = held + size
        self.bytes += size
        self.messages += 1
        if self.next_at == inf:
            self.next_at = now + self._pause_s

    def resume(self, now: float) -> None:
        """Send what there is room for."""
        if now < self.next_at:
            return
        moved = False
        budget = TURN
        for client in list(self._waiting):
            if budget <= 0:
                break
            queue = self._waiting.pop(client)
            count = min(len(queue), ROUND, budget)
            budget -= count
            batch = [(link, message) for link, message, _ in (queue[i] for i in range(count))]
            refused = self._pump.send_many(batch)
            # The pump refuses everything after the first refusal, so the rest is still in order.
            sent = refused[0][0] if refused else count
            moved = moved or sent > 0
            for _ in range(sent):
                self._drop_first(client, queue)
            if refused and refused[0][1] != errno.EAGAIN:
                self._lose(client, queue, now)
            elif queue:
                # To the end of the line.
                self._waiting[client] = queue
            else:
                del self._bytes_of[client]
        self._pause_s = RETRY_S if moved else min(2 * self._pause_s, RETRY_MAX_S)
        self.next_at = now + self._pause_s if self._waiting else inf

    def _take_from_largest(self, share: int, now: float) -> None:
        """Give up the newest message of a client that holds more than its share."""
        if self._bytes_of.get(self._largest, 0) <= share:
            # It pays until it is down to its share: looking for the largest every time costs too much.
            self._largest = max(self._bytes_of, key=self._bytes_of.__getitem__)
        client = self._largest
        queue = self._waiting[client]
        _, message, source = queue.pop()
        self._give_up(client, source, IN_ALL, now)
        self._subtract(client, message)
        if not queue:
            del self._waiting[client], self._bytes_of[client]

    def _give_up(self, client: Address, source: Any, setting: str, now: float) -> None:
        why = (
            f"its pipe is full, and {setting} allows no more to wait: {self._bytes_of.get(client, 0)} bytes "
            f"wait for it, {self.bytes} for all clients"
        )
        self.lost.note(client, setting)
        self._on_lost(client, source, why, now)

    def _drop_first(self, client: Address, queue: deque[tuple[int, Message, Any]]) -> Any:
        _, message, source = queue.popleft()
        self._subtract(client, message)
        return source

    def _subtract(self, client: Address, message: Message) -> None:
        size = _size(message)
        self._bytes_of[client] -= size
        self.bytes -= size
        self.messages -= 1

    def _lose(self, client: Address, queue: deque[tuple[int, Message, Any]], now: float) -> None:
        """The client is gone: nobody will read what waits for it."""
        while queue:
            self._on_lost(client, self._drop_first(client, queue), "it cannot be reached", now)
        del self._bytes_of[client]

    def facts(self) -> dict[str, Any]:
        return {"pending_messages": self.messages, "pending_bytes": self.bytes, **self.lost.facts()}


def _size(message: Message) -> int:
    return OVERHEAD_BYTES + sum(map(len, message))
