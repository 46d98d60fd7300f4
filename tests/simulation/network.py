"""A network without sockets: connections that delay, stall, go dark, break and come back.

What ZeroMQ promises holds here too: within one connection nothing is reordered, repeated or torn apart.
What it does not promise is used to the full: a connection that breaks loses all that was on its way, a peer
that reads slowly fills its pipe (the broker is told EAGAIN), and one that is gone cannot be reached
(EHOSTUNREACH).  What a peer says while it is cut off waits at its end and goes out when it is back.
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Frames = list[Any]
# More than this at one moment is somebody who wakes up for nothing, again and again.
AT_ONCE = 10_000
ROOM = 1000
ROOM_WHEN_STALLED = 2


class Clock:
    """Time that jumps from one appointment to the next."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._appointments: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._appointments, (max(when, self.now), self._number, what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Go on until `until` is true; False if that is not so by `limit`."""
        appointments = self._appointments
        at_once = 0
        while not until():
            if not appointments or appointments[0][0] > limit:
                self.now = max(self.now, limit)
                return until()
            when, _, what = heapq.heappop(appointments)
            at_once = at_once + 1 if when == self.now else 0
            if at_once > AT_ONCE:
                raise AssertionError(f"time stands still at {self.now}: {what}")
            self.now = when
            what()
        return True


class Network:
    """All connections to the broker, and the pump over its sockets."""

    kind = "simulated"

    def __init__(self, clock: Clock, random: Random, log: Callable[[str, str], None]) -> None:
        self.clock = clock
        self.random = random
        self.log = log
        # Who hears what arrives at the broker; None while there is no broker.
        self.broker: Callable[[int, bytes, Frames], None] | None = None
        self.routes: dict[tuple[int, bytes], Wire] = {}
        self.lines: list[Wire] = []

    def delay(self) -> float:
        return (
            self.random.expovariate(1 / 0.004) if self.random.random() < 0.95 else self.random.uniform(0, 0.4)
        )

    def send_many(self, messages: Sequence[tuple[int, Sequence[Any]]]) -> list[tuple[int, int]]:
        """What the broker's pump does: hand over, or say why not."""
        refused = []
        for position, (link, frames) in enumerate(messages):
            wire = self.routes.get((link, bytes(frames[0])))
            if wire is None:
                refused.append((position, errno.EHOSTUNREACH))
            elif not wire.take(list(frames[1:])):
                refused.append((position, errno.EAGAIN))
        return refused

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> list[tuple[int, Frames]]:
        raise AssertionError("messages come by appointment")

    def cut_all(self) -> None:
        """The broker is gone, and every connection with it."""
        self.broker = None
        for wire in list(self.lines):
            wire.cut()


class Wire:
    """One peer's socket: a connection that libzmq makes again whenever it breaks."""

    def __init__(
        self,
        network: Network,
        name: str,
        link: int,
        identity: bytes,
        hear: Callable[[Frames], None],
        on_return: Callable[[], None],
    ) -> None:
        self.network, self.name, self.link, self.identity = network, name, link, identity
        self.refused = 0
        self._hear, self._on_return = hear, on_return
        self._epoch = 0
        self._up = self._closed = self._was_cut = self._dark = False
        self._waiting: list[Frames] = []
        self._down_at = self._up_at = 0.0
        self._stalled_until = 0.0
        self._in_pipe = 0
        network.lines.append(self)
        self._connect_soon()

    def _connect_soon(self) -> None:
        self.network.clock.after(self.network.random.uniform(0.001, 0.2), self._connect)

    def _connect(self) -> None:
        network = self.network
        if self._closed or self._up:
            return
        if network.broker is None:
            self._connect_soon()
            return
        self._up, self._dark = True, False
        self._in_pipe = 0
        self._stalled_until = 0.0
        # The newest connection of an identity takes over.
        network.routes[self.link, self.identity] = self
        waiting, self._waiting = self._waiting, []
        for frames in waiting:
            self.send(frames)
        if self._was_cut:
            self._was_cut = False
            epoch = self._epoch
            network.clock.after(
                network.random.uniform(0, 0.02), lambda: self._on_return() if self._epoch == epoch else None
            )

    # -- peer to broker -----------------------------------------------------------------------------

    def send(self, frames: Frames) -> None:
        if self._closed:
            return
        if not self._up:
            self._waiting.append(frames)
            return
        if self._dark:
            return
        network, epoch = self.network, self._epoch
        self._up_at = max(self._up_at, network.clock.now + network.delay())

        def arrive() -> None:
            if self._epoch == epoch and network.broker is not None:
                network.broker(self.link, self.identity, frames)

        network.clock.at(self._up_at, arrive)

    # -- broker to peer -----------------------------------------------------------------------------

    def take(self, frames: Frames) -> bool:
        """Whether there was room in the pipe."""
        network, epoch = self.network, self._epoch
        now = network.clock.now
        if self._in_pipe >= (ROOM_WHEN_STALLED if now < self._stalled_until else ROOM):
            self.refused += 1
            return False
        if self._dark:
            return True
        self._in_pipe += 1
        self._down_at = max(self._down_at, self._stalled_until, now + network.delay())

        def arrive() -> None:
            if self._epoch == epoch and not self._closed:
                self._in_pipe -= 1
                self._hear(frames)

        network.clock.at(self._down_at, arrive)
        return True

    # -- what happens to it -------------------------------------------------------------------------

    def stall(self, seconds: float) -> None:
        """The peer reads nothing for a while."""
        if self._up:
            self._stalled_until = self.network.clock.now + seconds

    def go_dark(self, seconds: float) -> None:
        """Everything is lost in silence until both ends notice."""
        if self._up and not self._dark:
            self._dark = True
            epoch = self._epoch
            self.network.clock.after(seconds, lambda: self.cut() if self._epoch == epoch else None)

    def cut(self) -> None:
        if not self._up:
            return
        self._up, self._was_cut = False, True
        self._epoch += 1
        self._leave()
        self._connect_soon()

    def close(self) -> None:
        """The peer is done with it. What it said before may still arrive."""
        if self._closed:
            return
        self._closed = True
        self.network.lines.remove(self)
        if self._up:
            self._up_at = max(self._up_at, self.network.clock.now + self.network.delay())
            self.network.clock.at(self._up_at, self._leave)

    def _leave(self) -> None:
        if self.network.routes.get((self.link, self.identity)) is self:
            del self.network.routes[self.link, self.identity]
