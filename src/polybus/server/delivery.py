"""Bytes on their way to subscribers, at the end of every turn.

A turn's publications for an audience are joined once and handed to libzmq once for each subscriber in it.
What a full pipe does not take waits here, within limits for each subscriber; what is beyond them is dropped
and counted.  The others never wait for one that does not read.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from polybus.core.actions import Fanout
from polybus.server.audiences import Audience
from polybus.server.pump import Pump
from polybus.server.subscriber import CHUNK_BYTES, Subscriber

# What waited before is sent so many chunks to one subscriber, to so many of them together, and about so many
# bytes to all of them in a turn: others wait too.
ROUNDS: Final = 4
TOGETHER: Final = 64
TURN_BYTES: Final = 4 * 1024 * 1024
# A full pipe is tried again after this long, and less often if nothing moves.
RETRY_S: Final = 0.002
RETRY_MAX_S: Final = 0.05


class Delivery:
    def __init__(self, pipe_messages: int, pipe_bytes: int) -> None:
        # What may wait for one subscriber: publications, and bytes.
        self.pipe_messages = pipe_messages
        self.pipe_bytes = pipe_bytes
        # Set as soon as there is one.
        self.pump: Pump | None = None
        # Audiences with something to be sent; messages for the pump, and for whom and how many publications
        # each is.
        self._busy: list[Audience] = []
        self._messages: list[tuple[int, list[bytes]]] = []
        self._posted: list[tuple[Subscriber, int]] = []
        # Subscribers for whom something waits: that may be sent, and that libzmq refused lately.
        self._waiting: dict[Subscriber, None] = {}
        self._stuck: dict[Subscriber, None] = {}
        self._retry_at = inf
        self._pause_s = RETRY_S
        self.dropped = 0

    @property
    def next_at(self) -> float:
        """When there is something to do, whether anything happens or not."""
        return 0.0 if self._waiting else self._retry_at

    def is_stuck(self, peer: Subscriber) -> bool:
        return peer in self._stuck

    # -- during a turn ------------------------------------------------------------------------------

    def note(self, audience: Audience, form: bytes) -> None:
        """An audience gets this at the end of the turn."""
        pending = audience.pending
        if not pending:
            self._busy.append(audience)
        pending.append(form)
        if len(form) > CHUNK_BYTES:
            # Large ones are not gathered: joining them would copy them once more.
            self.deliver(audience)

    def deliver(self, audience: Audience | None) -> None:
        """Hand everyone in an audience what waits for it."""
        if audience is None or not audience.pending:
            return
        pending, audience.pending = audience.pending, []
        count = len(pending)
        data = pending[0] if count == 1 else b"".join(pending)
        is_large = len(data) > CHUNK_BYTES
        messages, posted = self._messages, self._posted
        for peer in audience.members:
            # One message for each in a batch: were the first of two refused, the second might be taken.
            if is_large or peer.is_posted or peer.is_behind:
                self.push(peer, data, count)
            else:
                peer.is_posted = True
                messages.append((peer.link, [peer.identity, data]))
                posted.append((peer, count))

    def push(self, peer: Subscriber, data: bytes, publications: int) -> None:
        """Let bytes for a subscriber wait for their turn, or drop them if too many wait already."""
        if peer.bytes_waiting and (
            peer.publications_waiting + publications > self.pipe_messages
            or peer.bytes_waiting + len(data) > self.pipe_bytes
        ):
            peer.dropped += publications
            self.dropped += publications
            return
        peer.push(data, publications)
        if peer not in self._stuck:
            self._waiting[peer] = None

    def push_values(
        self, peer: Subscriber, values: Sequence[Fanout], write: Callable[[Fanout], bytes], owed: int
    ) -> None:
        peer.push_values(values, write, owed)
        if peer not in self._stuck:
            self._waiting[peer] = None

    def forget(self, peer: Subscriber) -> None:
        self._waiting.pop(peer, None)
        self._stuck.pop(peer, None)

    # -- its end ------------------------------------------------------------------------------------

    def flush(self, now: float) -> list[Subscriber]:
        """Send what can be sent. Returns those that are not there any more."""
        gone: list[Subscriber] = []
        for audience in self._busy:
            self.deliver(audience)
        self._busy.clear()
        if self._messages:
            self._send_posted(gone, now)
        if now >= self._retry_at:
            self._retry_at = inf
            self._waiting.update(self._stuck)
            self._stuck.clear()
        if self._waiting:
            self._send_waiting(gone, now)
        return gone

    def _send_posted(self, gone: list[Subscriber], now: float) -> None:
        messages, posted = self._messages, self._posted
        self._messages, self._posted = [], []
        refused = self.send(messages)
        for peer, count in posted:
            peer.is_posted = False
            peer.delivered += count
        for position, number in refused:
            peer, count = posted[position]
            peer.delivered -= count
            if number == errno.EAGAIN:
                peer.push_first(messages[position][1][1], count)
                self._set_aside(peer, now)
            else:
                gone.append(peer)

    def _send_waiting(self, gone: list[Subscriber], now: float) -> None:
        peers = list(self._waiting)
        budget = TURN_BYTES
        for first in range(0, len(peers), TOGETHER):
            budget -= self._send_some(peers[first : first + TOGETHER], gone, now)
            if budget <= 0:
                break

    def _send_some(self, peers: list[Subscriber], gone: list[Subscriber], now: float) -> int:
        """A few chunks to each of these, one after the other. How many bytes that was."""
        sent_bytes = 0
        for _ in range(ROUNDS):
            messages = [(peer.link, [peer.identity, peer.next()]) for peer in peers]
            refused = dict(self.send(messages))
            left = []
            for position, peer in enumerate(peers):
                # Those that have more to get go to the end of the line.
                del self._waiting[peer]
                number = refused.get(position)
                if number is None:
                    self._pause_s = RETRY_S
                    sent_bytes += len(messages[position][1][1])
                    peer.sent()
                    if peer.is_behind:
                        self._waiting[peer] = None
                        left.append(peer)
                elif number == errno.EAGAIN:
                    self._set_aside(peer, now)
                else:
                    gone.append(peer)
            if not left:
                break
            peers = left
        return sent_bytes

    def _set_aside(self, peer: Subscriber, now: float) -> None:
        """Its pipe is full. That it has room again we may hear of or not: it is simply tried again."""
        self._waiting.pop(peer, None)
        self._stuck[peer] = None
        if self._retry_at == inf:
            self._retry_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    def send(self, messages: list[tuple[int, list[bytes]]]) -> list[tuple[int, int]]:
        """Positions and errors of those that did not go."""
        assert self.pump is not None
        return self.pump.send_many(messages)
