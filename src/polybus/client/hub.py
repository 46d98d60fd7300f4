"""What a worker knows, whatever its shell: its conversations with the broker and the work they brought.

Majordomo, EBUS and DBP offer one service a connection, eMQP all of them on one.  All connections share
one pump.  A step receives, watches over silence, beats and sends; new work lands in `inbox`.  A
conversation that has ended is begun again on a new socket at once: work of the old one is marked as
cancelled, and answers to it are dropped.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import zmq

from polybus.client.addresses import check_dialect, tag_for
from polybus.client.base import new_identity
from polybus.client.discovery import Finder
from polybus.client.handlers import Request
from polybus.client.lines import Lines
from polybus.client.packets import Packets
from polybus.client.sessions import worker_sessions
from polybus.client.sessions.dbp import DbpWorker
from polybus.client.sessions.port import (
    Cancelled,
    Denied,
    Leave,
    Message,
    Restart,
    Work,
    WorkerEvent,
    WorkerSession,
    service_name,
)
from polybus.errors import ConfigError
from polybus.wire.context import announce

# Dialects in which a worker is told where a request comes from if it says that it wants to know.
ANNOUNCING: Final = frozenset({"mdr", "emqp"})
# A conversation that ends as soon as it begins is begun again no faster than this.
RESTART_S: Final = 0.05
MAX_RESTART_S: Final = 2.0


class Hub:
    """The connections of one worker."""

    def __init__(
        self,
        services: Sequence[str],
        address: str | None,
        dialect: str,
        credit: int,
        weights: Mapping[str, int] | None = None,
        fds: Sequence[int] = (),
        context: zmq.Context[Any] | None = None,
        holding: Callable[[], Sequence[bytes]] | None = None,
        takes_context: bool = False,
        tag: str | None = None,
    ) -> None:
        if not services:
            raise ConfigError("a worker needs at least one service")
        if credit < 1:
            raise ConfigError(f"credit is {credit}; it takes 1 or more")
        self.dialect: Final = check_dialect(dialect)
        self._address = address
        self._finder: Final = Finder()
        # Why there is no bus to connect to, if there is none yet; then `search` looks for one again.
        self.endpoint, self.missing = self._finder.endpoint_or_usual(dialect, "worker", address)
        by_name = {service_name(name): weight for name, weight in (weights or {}).items()}
        prefix = os.urandom(6).hex().encode()
        names = [service_name(name) for name in services]
        self.sessions: Final[list[WorkerSession]] = worker_sessions(
            dialect, names, credit, by_name, prefix, holding, tag_for(dialect, "worker", tag)
        )
        # Whether the broker is to say where requests come from; the others have no room for it.
        self._announces: Final = takes_context and dialect in ANNOUNCING
        # Sockets for heartbeats in datagrams, by session (DBP).
        self._packets: Final[dict[int, Packets]] = {}
        self._tell_address()
        self.lines: Final = Lines(len(self.sessions), fds, context)
        self.inbox: deque[Request] = deque()
        self.outbox: list[tuple[int, Message]] = []
        self._opened = False
        self.leaving = False
        self.denied: tuple[str, ...] | None = None
        self.restarts = 0
        # An event loop must not watch the descriptor of a socket that is about to be closed.
        self.reopening: Callable[[], None] = lambda: None
        # Told once if nobody answers the first hello.
        self.unanswered: Callable[[], None] | None = None
        self.beat_s: Final = min(session.beat_s for session in self.sessions)
        self._held: list[dict[Any, Request]] = [{} for _ in self.sessions]
        # When a conversation that ended may begin again; None while one is going on.
        self._again_at: list[float | None] = [None for _ in self.sessions]
        self._pause_s = [RESTART_S for _ in self.sessions]

    def _tell_address(self) -> None:
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        for at, session in enumerate(self.sessions):
            if isinstance(session, DbpWorker) and self.endpoint.startswith("tcp://"):
                session.reached_at(host.strip("[]"), int(port))
                self._packets[at] = Packets(host)
                session.beats_from(self._packets[at].ip)

    def search(self) -> None:
        """Look once more for a bus that was not there; takes seconds."""
        self.endpoint, self.missing = self._finder.endpoint_or_usual(self.dialect, "worker", self._address)
        self._tell_address()

    def open(self, now: float) -> None:
        self._opened = True
        for at in range(len(self.sessions)):
            self._begin(at, now)

    def _begin(self, at: int, now: float) -> None:
        self._again_at[at] = None
        self.reopening()
        self.lines.open(at, self.endpoint, self._identity())
        self.outbox = [entry for entry in self.outbox if entry[0] != at]
        self.outbox += [(at, message) for message in self.sessions[at].hello(now)]

    def _identity(self) -> bytes:
        """A new conversation is a new peer: what the broker still sends to the old one cannot reach us."""
        identity = new_identity()
        return announce(identity) if self._announces else identity

    # -- steps ----------------------------------------------------------------------------------

    def step(self, timeout_s: float) -> bool:
        """Receive, do what is due, send. False if nothing had come in."""
        self.flush()
        batch = self.lines.receive(timeout_s)
        now = time.monotonic()
        if batch:
            count = self.lines.count
            sessions = self.sessions
            for index, frames in batch:
                if index < count:
                    for event in sessions[index].receive(frames, now):
                        if type(event) is Work:
                            request = Request(event, index, now)
                            self._held[index][event.token] = request
                            self.inbox.append(request)
                        else:
                            self._other(index, event, now)
                else:
                    at = self.lines.reconnected(index, frames)
                    if at is not None:
                        self._end(at, now)
        for at, session in enumerate(self.sessions):
            again_at = self._again_at[at]
            if again_at is not None:
                if now >= again_at:
                    self._begin(at, now)
                continue
            if self._packets:
                self._hear_packets(at, session, now)
            for message in session.pending():
                self.outbox.append((at, message))
            if session.is_lost(now):
                if self.unanswered is not None and session.heard_at == session.began_at:
                    self.unanswered()
                self.unanswered = None
                self._end(at, now)
            else:
                for message in session.tick(now):
                    self.outbox.append((at, message))
                if self._packets and isinstance(session, DbpWorker):
                    self._packets[at].send(session.packets())
        self.flush()
        return bool(batch)

    def _hear_packets(self, at: int, session: WorkerSession, now: float) -> None:
        if isinstance(session, DbpWorker):
            packets = self._packets[at]
            packets.agree(session.packet_port, session.broadcast_port)
            for packet in packets.receive():
                for event in session.hear_packet(packet, now):
                    self._other(at, event, now)

    def _other(self, at: int, event: WorkerEvent, now: float) -> None:
        match event:
            case Cancelled(token):
                request = self._held[at].get(token)
                if request is not None:
                    request.cancelled = True
            case Restart():
                self._end(at, now)
            case Leave():
                self.leaving = True
            case Denied(reasons):
                self.denied = reasons or ("no reason was given",)

    def _end(self, at: int, now: float) -> None:
        """A conversation is over: its work is somebody else's now."""
        if self._again_at[at] is not None:
            return
        self.restarts += 1
        for request in self._held[at].values():
            request.cancelled = True
        self._held[at].clear()
        # One that has lasted was fine: the next may begin at once.
        session = self.sessions[at]
        if now - session.began_at > MAX_RESTART_S:
            self._pause_s[at] = RESTART_S
        if session.hangs_up:
            self.reopening()
            self.lines.hang_up(at)
            self.outbox = [entry for entry in self.outbox if entry[0] != at]
        self._again_at[at] = now + self._pause_s[at]
        self._pause_s[at] = min(self._pause_s[at] * 2, MAX_RESTART_S)

    def flush(self) -> None:
        if self.outbox:
            outbox, self.outbox = self.outbox, []
            self.lines.send(outbox)

    @property
    def deadline(self) -> float:
        """When a step is due even if nothing comes in."""
        return min(
            session.deadline if again_at is None else again_at
            for session, again_at in zip(self.sessions, self._again_at, strict=True)
        )

    # -- answers --------------------------------------------------------------------------------

    def reply(self, request: Request, body: list[Any]) -> None:
        at = request.line
        self._say(at, self.sessions[at].reply(request.token, body))
        self._held[at].pop(request.token, None)

    def part(self, request: Request, body: list[Any]) -> None:
        self._say(request.line, self.sessions[request.line].part(request.token, body))

    def fail(self, request: Request, reason: str, rejected: bool) -> None:
        self._say(request.line, self.sessions[request.line].fail(request.token, reason, rejected))
        self._held[request.line].pop(request.token, None)

    def _say(self, at: int, messages: list[Message]) -> None:
        if self._again_at[at] is not None and self.sessions[at].hangs_up:
            # There is no connection, and the broker has given the work to others.
            return
        for message in messages:
            self.outbox.append((at, message))

    def close(self) -> None:
        """Say goodbye where somebody listens, and let go of the sockets."""
        for at, session in enumerate(self.sessions):
            if self._opened and self._again_at[at] is None:
                self.outbox += [(at, message) for message in session.goodbye()]
        self.flush()
        self.lines.close(linger_s=0.2)
        for packets in self._packets.values():
            packets.close()
