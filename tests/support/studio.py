"""Subscribers without sockets: the real ones of the server, a pump that keeps what it is given, and peers
that speak ZMTP by hand.

studio = Studio()
peer = studio.join(b"weather/")
studio.publish(b"weather/rome", b"sunny")
studio.turn()
assert peer.messages() == [[b"weather/rome", b"sunny"]]
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from polybus.core import events
from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.core.model import Limits
from polybus.dialects.pubsub import ebus_publication, emqp_publication
from polybus.server.effects import Outbox
from polybus.server.subscribers import Subscribers
from polybus.wire import zmtp
from support.zmtp import GREETING, ready

EBUS, EMQP = 3, 4


class FakePump:
    """Hands every peer its bytes; takes nothing for peers that are full or gone."""

    kind = "fake"

    def __init__(self) -> None:
        self.bytes: dict[bytes, bytearray] = {}
        self.full: set[bytes] = set()
        # How often something for a peer is refused before it has room again.
        self.refuse_next: dict[bytes, int] = {}
        self.gone: set[bytes] = set()
        self.closed: set[bytes] = set()
        self.calls = 0

    def suspect(self, index: int) -> None:
        pass

    def close(self) -> None:
        pass

    def send_many(self, messages: Sequence[tuple[int, Sequence[Any]]]) -> list[tuple[int, int]]:
        self.calls += 1
        refused = []
        for position, (_, (identity, data)) in enumerate(messages):
            if identity in self.full:
                refused.append((position, errno.EAGAIN))
            elif self.refuse_next.get(identity):
                self.refuse_next[identity] -= 1
                refused.append((position, errno.EAGAIN))
            elif identity in self.gone:
                refused.append((position, errno.EHOSTUNREACH))
            elif not len(data):
                self.closed.add(identity)
                self.gone.add(identity)
            else:
                self.bytes.setdefault(identity, bytearray()).extend(data)
        return refused

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> list[Any]:
        raise AssertionError


class Peer:
    def __init__(self, studio: Studio, identity: bytes, link: int) -> None:
        self.studio = studio
        self.identity = identity
        self.link = link
        self.commands: list[bytes] = []
        self._messages: list[list[bytes]] = []
        self._frames: list[bytes] = []
        self._greeted = False

    def send(self, data: bytes) -> None:
        self.studio.subscribers.receive(self.link, [self.identity, data], self.studio.now)

    def subscribe(self, prefix: bytes) -> None:
        self.send(zmtp.write_subscription(True, prefix))

    def cancel(self, prefix: bytes) -> None:
        self.send(zmtp.write_subscription(False, prefix))

    def hang_up(self) -> None:
        self.studio.pump.gone.add(self.identity)
        self.send(b"")

    @property
    def unread(self) -> int:
        return len(self.studio.pump.bytes.get(self.identity, b""))

    def messages(self) -> list[list[bytes]]:
        """What came since the last look, but for commands, which are kept in `commands`."""
        data = self.studio.pump.bytes.get(self.identity, bytearray())
        if not self._greeted and len(data) >= zmtp.GREETING_BYTES:
            assert data[:10] == b"\xff" + bytes(8) + b"\x7f"
            del data[: zmtp.GREETING_BYTES]
            self._greeted = True
        while len(data) >= 2:
            flags = data[0]
            head = 9 if flags & zmtp.LONG else 2
            size = int.from_bytes(data[1:head], "big")
            if len(data) < head + size:
                break
            content = bytes(data[head : head + size])
            del data[: head + size]
            if flags & zmtp.COMMAND:
                assert not self._frames, "a command in the middle of a message"
                self.commands.append(content)
                continue
            self._frames.append(content)
            if not flags & zmtp.MORE:
                self._messages.append(self._frames)
                self._frames = []
        taken, self._messages = self._messages, []
        return taken


class Studio:
    def __init__(
        self, limits: Limits | None = None, pipe_messages: int = 1000, pipe_bytes: int = 1_000_000
    ) -> None:
        self.bus = Bus(b"n-", limits)
        self.now = 100.0
        self.pump = FakePump()
        self.subscribers = Subscribers(self.bus, pipe_messages, pipe_bytes)
        self.subscribers.delivery.pump = self.pump
        self.subscribers.add(EBUS, "ebus", ebus_publication)
        self.subscribers.add(EMQP, "emqp", emqp_publication)
        self.outbox = Outbox(self.bus, self.pump)
        self.outbox.handlers.update(self.subscribers.handlers)
        self.observed: list[Observed] = []
        self.outbox.handlers[Observed] = self.observed.append
        self._number = 0

    def publish(self, topic: bytes, *body: bytes) -> None:
        self.bus.handle(events.Publish(topic, list(body)), self.now)

    def turn(self, seconds: float = 0.0) -> None:
        """The end of a turn of the loop."""
        self.now += seconds
        self.subscribers.resume(self.now)
        self.outbox.settle(self.now)
        self.subscribers.flush(self.now)

    def until_quiet(self) -> None:
        for _ in range(10_000):
            self.turn(0.1)
            if self.subscribers.next_at > self.now + 1:
                return
        raise AssertionError("it never comes to rest")

    def connect(self, link: int = EBUS) -> Peer:
        self._number += 1
        peer = Peer(self, b"\0%04d" % self._number, link)
        peer.send(b"")
        return peer

    def join(self, *prefixes: bytes, link: int = EBUS) -> Peer:
        """A peer that has done the handshake and wants this; what it gets first is sent."""
        peer = self.connect(link)
        peer.send(GREETING + ready(b"SUB"))
        for prefix in prefixes:
            peer.subscribe(prefix)
        self.turn()
        return peer
