"""A scheduler for any eMQP router: it is told what to run when, and sends it as a request when it is due.

It connects where clients do, says INFORM, and from then on is handed the SCHEDULEs of clients.  What it keeps
and what is due is the business of a `Keeper`; here is the conversation.  While the router is away nothing is
sent: what is due then is late when it is back, as after a restart of the scheduler itself.

A request is handed to the router once.  Nobody can tell a router that is gone from one that has taken it, so
a run that was on its way is not sent again: it is never run twice, and may be lost with its router.
polybus' own scheduler, inside the broker, has no such gap.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Protocol

import zmq

from polybus.client.base import new_identity
from polybus.client.discovery import Finder
from polybus.client.lines import Lines
from polybus.client.sessions.emqp import BEAT_S, LIVENESS, TIMEOUT_S
from polybus.client.sessions.port import Leave, Message, Restart, Token, WorkerEvent, WorkerSession
from polybus.errors import ConnectionLost, PolybusError
from polybus.wire import emqp as wire
from polybus.wire.frames import EMPTY, Frame

# The time of day may be set while we wait.
LOOK_EVERY_S: Final = 1.0
# A conversation that ends as soon as it begins is begun again no faster than this.
RESTART_S: Final = 0.05
MAX_RESTART_S: Final = 2.0
# A router that was silent for so many beats is lost: 15 s unless said otherwise, as with workers.
SILENT_BEATS: Final = TIMEOUT_S * LIVENESS / BEAT_S
# How long the goodbye may take.
LINGER_S: Final = 0.2


class Keeper(Protocol):
    """Who keeps the schedules. `wall` is the time of day."""

    def set(self, message: wire.Schedule, wall: float) -> None:
        """Raises `PolybusError` if it cannot be kept."""

    def remove(self, message: wire.Unschedule) -> None: ...

    def due(self, wall: float) -> list[wire.Request]:
        """What is to be sent now; from then on it counts as sent."""

    def next_at(self) -> float:
        """The time of day when something is due, at the earliest."""


class SchedulerSession(WorkerSession):
    """One conversation after another with a router. What clients want is collected in `wishes`."""

    dialect = "emqp"

    def __init__(self, wall: Callable[[], float], beat_s: float = BEAT_S) -> None:
        super().__init__()
        self.beat_s = beat_s
        self.dead_after_s = beat_s * SILENT_BEATS
        self._wall = wall
        self._prefix = os.urandom(6).hex().encode()
        self._numbers = count(1)
        self._inform = b""
        # The router has taken us.
        self.ready = False
        self.wishes: list[wire.Schedule | wire.Unschedule] = []

    def _id(self) -> bytes:
        return b"%s-%d" % (self._prefix, next(self._numbers))

    def greet(self, now: float) -> list[Message]:
        self.ready = False
        self._inform = self._id()
        return [_write(wire.Inform(self._inform, "scheduler"))]

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        message = wire.read_as_scheduler(frames, at)
        match message:
            case wire.Schedule() | wire.Unschedule():
                self.wishes.append(message)
            case wire.Ack():
                self.ready = self.ready or message.acked_id == self._inform
            case wire.Goodbye():
                return [Restart("the router said goodbye")]
            case wire.Disconnect():
                return [Leave()]
            case _:
                pass  # a beat, or the receipt or the result of a run, which nobody here waits for
        return []

    def beats(self, now: float) -> list[Message]:
        if now - self.spoke_at >= self.beat_s:
            return [_write(wire.Heartbeat(self._id(), self._wall()))]
        return []

    def ask(self, requests: list[wire.Request]) -> list[Message]:
        if requests:
            self._spoke = True
        return [_write(request) for request in requests]

    def goodbye(self) -> list[Message]:
        return [_write(wire.Goodbye(self._id()))]

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        return []  # a scheduler is given no work

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        return []


def _write(message: wire.ClientMessage) -> Message:
    # Public routers want the empty frame.
    return [EMPTY, *wire.write_from_client(message)]


class Scheduler:
    """Runs until `stop` is called or the router asks it to leave."""

    def __init__(
        self,
        keeper: Keeper,
        address: str | None = None,
        *,
        beat_s: float = BEAT_S,
        log: Callable[[str], None] = lambda text: None,
        on_ready: Callable[[], None] = lambda: None,
        wall: Callable[[], float] = time.time,
        context: zmq.Context[Any] | None = None,
    ) -> None:
        # It may be started before its broker: then it waits at the usual place.
        endpoint, why = Finder().endpoint_or_usual("emqp", "client", address)
        if why:
            log(f"{why}. Waiting for one at {endpoint}")
        self.endpoint: Final = endpoint
        self._keeper = keeper
        self._log = log
        self._on_ready = on_ready
        self._wall = wall
        self.session: Final = SchedulerSession(wall, beat_s)
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._lines = Lines(1, (self._wake_r,), context)
        self._stopping = False
        self._announced = False
        # The log says that a conversation has ended, and not yet that another goes on.
        self._is_lost = False
        # When a conversation that ended may begin again; None while one is going on.
        self._again_at: float | None = None
        self._pause_s = RESTART_S
        self.sent = 0

    def stop(self) -> None:
        """Let `run` return. Any thread, or a signal handler, may call this."""
        self._stopping = True
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    def run(self) -> None:
        try:
            self._begin(time.monotonic())
            while not self._stopping:
                self._step()
            if self._again_at is None:
                with contextlib.suppress(ConnectionLost):
                    self._send(self.session.goodbye())
        finally:
            self._lines.close(LINGER_S)
            os.close(self._wake_r)
            os.close(self._wake_w)

    # -- steps ----------------------------------------------------------------------------------

    def _step(self) -> None:
        batch = self._lines.receive(self._pause(time.monotonic()))
        now = time.monotonic()
        for index, frames in batch:
            if index == 0:
                for event in self.session.receive(frames, now):
                    self._obey(event, now)
            elif self._lines.reconnected(index, frames) is not None or self._lines.is_cut(0):
                # At once, not when the router is back: what is due until then must not be sent into the void.
                self._end("the connection was cut", now)
        self._grant_wishes()
        if self._again_at is not None:
            if now >= self._again_at:
                self._begin(now)
            return
        if self.session.is_lost(now):
            self._end(f"nothing was heard from the router for {self.session.dead_after_s:g} s", now)
            return
        try:
            if self.session.ready:
                self._run_due()
            self._send(self.session.tick(now))
        except ConnectionLost as error:
            self._end(str(error), now)

    def _pause(self, now: float) -> float:
        """How long nothing has to be done if nothing comes in."""
        if self._again_at is not None:
            return max(0.0, self._again_at - now)
        pause_s = min(self.session.deadline - now, LOOK_EVERY_S)
        if self.session.ready:
            pause_s = min(pause_s, self._keeper.next_at() - self._wall())
        return max(0.0, pause_s)

    def _obey(self, event: WorkerEvent, now: float) -> None:
        if isinstance(event, Restart):
            self._end(event.reason, now)
        elif isinstance(event, Leave):
            self._log("the router asks us to leave")
            self._stopping = True

    def _grant_wishes(self) -> None:
        session = self.session
        wishes, session.wishes = session.wishes, []
        for message in wishes:
            try:
                if isinstance(message, wire.Schedule):
                    self._keeper.set(message, self._wall())
                else:
                    self._keeper.remove(message)
            except PolybusError as error:
                # eMQP has no answer from a scheduler to the client.
                self._log(f"not taken: {message.queue.decode(errors='replace')}: {error}")
        if session.ready and not self._announced:
            self._announced = True
            self._on_ready()
        if session.ready and self._is_lost:
            self._is_lost = False
            self._log("the router is back")

    def _run_due(self) -> None:
        requests = self._keeper.due(self._wall())
        self.sent += len(requests)
        self._send(self.session.ask(requests))

    # -- conversations --------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._again_at = None
        # A new identity: public routers do not survive one that is known to them already.
        self._lines.open(0, self.endpoint, new_identity())
        self._send(self.session.hello(now))

    def _end(self, reason: str, now: float) -> None:
        if self._again_at is not None:
            return
        self._log(f"{reason}; connecting again")
        self._is_lost = True
        self.session.ready = False
        if now - self.session.began_at > MAX_RESTART_S:
            self._pause_s = RESTART_S
        self._again_at = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, MAX_RESTART_S)

    def _send(self, messages: list[Message]) -> None:
        if messages:
            self._lines.send([(0, message) for message in messages])
