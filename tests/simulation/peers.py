"""Clients and workers of the client library, without sockets.

The client is the library's own brain; the worker does what the library's hub does, around the same sessions.
Both do only what their shells would: hand over what came in, do what is due, send what is to be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polybus.client.brain import Brain, Ticket
from polybus.client.hub import MAX_RESTART_S, RESTART_S
from polybus.client.sessions import client_session, worker_sessions
from polybus.client.sessions.port import NEVER, Restart, Work, WorkerSession
from simulation.network import Frames, Network, Wire

TIMEOUT_S = 90.0
# How the library is told that a connection is back; the simulated lines know of nothing else.
RETURNED = (1, [b"back"])


class Lines:
    def reconnected(self, index: int, frames: Any) -> int:
        return 0


class Peer:
    """Wakes up when it said it would, and at nothing else than messages."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name
        self.clock, self.random = network.clock, network.random
        self.identities = 0
        self._wake_at = NEVER

    def log(self, what: str) -> None:
        self.network.log(self.name, what)

    def new_identity(self) -> bytes:
        self.identities += 1
        return f"{self.name}.{self.identities}".encode()

    def wake_at(self, when: float, what: Callable[[], None]) -> None:
        if when >= self._wake_at or when == NEVER:
            return
        self._wake_at = max(when, self.clock.now)

        def wake() -> None:
            if self._wake_at <= self.clock.now:
                self._wake_at = NEVER
                what()

        self.clock.at(when, wake)


class SimClient(Peer):
    def __init__(self, network: Network, name: str, dialect: str, link: int) -> None:
        super().__init__(network, name)
        self.dialect, self.link = dialect, link
        self.brain = Brain(client_session(dialect), window=1000)
        # Ids are random otherwise, and a seed would not tell everything.
        self.brain._prefix = name.encode() + b"-"
        self.alive = True
        self.asked: dict[str, Ticket] = {}
        self.ends: dict[str, int] = {}
        self.wrong: list[str] = []
        self.refused = 0
        self._identity = self.new_identity()
        self._lines = Lines()
        self._open()

    def _open(self) -> None:
        self.wire = Wire(
            self.network,
            self.name,
            self.link,
            self._identity,
            lambda frames: self.step([(0, frames)]),
            lambda: self.step([RETURNED]),
        )

    def ask(self, service: bytes) -> None:
        if not self.alive:
            return
        body = f"{self.name}/{len(self.asked)}"
        now = self.clock.now
        # As the library does: the time that the caller allows is also the request's own.
        ticket = self.brain.submit(service, [body.encode()], now, now + TIMEOUT_S, ttl_s=TIMEOUT_S)
        self.asked[body] = ticket
        self.ends[body] = 0
        self.log(f"asks {service.decode()} for {body} as {ticket.request_id.decode()}")
        ticket.notify = lambda: self._ended(body, ticket)
        self.clock.after(TIMEOUT_S, lambda: self._give_up(ticket))
        self.step([])

    def _ended(self, body: str, ticket: Ticket) -> None:
        self.ends[body] += 1
        if ticket.error is not None:
            self.log(f"learns that {body} failed: {ticket.error}")
            return
        answer = b"".join(bytes(frame) for frame in ticket.body).decode()
        self.log(f"gets {answer} for {body}")
        if answer != f"re:{body}":
            self.wrong.append(f"{body} was answered with {answer}")

    def _give_up(self, ticket: Ticket) -> None:
        if self.alive and not ticket.done:
            self.brain.forget(ticket, "timeout", "no answer in the time allowed")
            self.step([])

    def step(self, batch: list[tuple[int, Frames]]) -> None:
        if not self.alive:
            return
        brain, now = self.brain, self.clock.now
        if batch:
            brain.receive(batch, self._lines, now)  # type: ignore[arg-type]
        if now >= brain.deadline:
            brain.tick(now)
        if brain.restart:
            self.refused += self.wire.refused
            self.log("begins on a new socket")
            self.wire.close()
            if not brain.session.has_ids:
                self._identity = self.new_identity()
            self._open()
            brain.restarted(now)
        outbox, brain.outbox = brain.outbox, []
        for _, frames in outbox:
            self.wire.send(list(frames))
        self.wake_at(brain.deadline, lambda: self.step([]))

    def crash(self) -> None:
        self.log("crashes")
        self.alive = False
        self.wire.close()


class Conversation:
    """One session of a worker and its connection."""

    def __init__(self, session: WorkerSession) -> None:
        self.session = session
        self.wire: Wire | None = None
        self.again_at: float | None = None
        self.pause_s = RESTART_S


class SimWorker(Peer):
    def __init__(
        self, network: Network, name: str, dialect: str, link: int, services: list[bytes], credit: int
    ) -> None:
        super().__init__(network, name)
        self.dialect, self.link, self.services, self.credit = dialect, link, services, credit
        self.handled = 0
        self.life = 0
        self.alive = self.retired = False
        self._frozen_until = 0.0
        self.start()

    def start(self) -> None:
        if self.retired:
            return
        self.log(f"starts, {self.dialect}, credit {self.credit}")
        self.life += 1
        self.alive = True
        prefix = f"{self.name}-{self.life}".encode()
        self.talks = [Conversation(session) for session in self._new_sessions(prefix)]
        for talk in self.talks:
            self._begin(talk)

    def _new_sessions(self, prefix: bytes) -> list[WorkerSession]:
        return worker_sessions(self.dialect, self.services, self.credit, {}, prefix)

    def _begin(self, talk: Conversation) -> None:
        talk.again_at = None
        if talk.wire is not None:
            talk.wire.close()
        life = self.life
        talk.wire = Wire(
            self.network,
            self.name,
            self.link,
            self.new_identity(),
            lambda frames: self._when_awake(lambda: self._hear(talk, frames), life),
            lambda: self._when_awake(lambda: self._end(talk, "it was cut off"), life),
        )
        self._send(talk, talk.session.hello(self.clock.now))
        self._look()

    def _send(self, talk: Conversation, messages: list[Frames]) -> None:
        for frames in messages:
            if talk.wire is not None:
                talk.wire.send(list(frames))

    def _when_awake(self, what: Callable[[], None], life: int) -> None:
        """A frozen process reads nothing; what came waits for it, in order."""
        if life != self.life or not self.alive:
            return
        if self.clock.now < self._frozen_until:
            self.clock.at(self._frozen_until, lambda: self._when_awake(what, life))
        else:
            what()

    def _hear(self, talk: Conversation, frames: Frames) -> None:
        if talk.again_at is not None:
            return
        for event in talk.session.receive(frames, self.clock.now):
            if isinstance(event, Work):
                self._work(talk, event)
            elif isinstance(event, Restart):
                self._end(talk, event.reason)
        self._look()

    def _work(self, talk: Conversation, work: Work) -> None:
        body = b"".join(bytes(frame) for frame in work.body).decode()
        self.log(f"is given {body}")
        takes_s = (
            self.random.expovariate(1 / 0.05) if self.random.random() < 0.9 else self.random.uniform(0, 4)
        )
        life = self.life

        def answer() -> None:
            session = talk.session
            chance = self.random.random()
            if chance < 0.1:
                self._send(talk, session.part(work.token, [b"part of " + body.encode()]))
            if chance > 0.95:
                self.log(f"fails at {body}")
                self._send(talk, session.fail(work.token, "it broke", rejected=chance > 0.97))
            else:
                self.log(f"answers {body}")
                self._send(talk, session.reply(work.token, [b"re:" + body.encode()]))
            self.handled += 1
            self._look()

        self.clock.after(takes_s, lambda: self._when_awake(answer, life))

    def _end(self, talk: Conversation, why: str) -> None:
        """As the hub does: a new conversation on a new socket, after a pause that grows."""
        if talk.again_at is not None:
            return
        now = self.clock.now
        self.log(f"ends a conversation: {why}")
        if now - talk.session.began_at > MAX_RESTART_S:
            talk.pause_s = RESTART_S
        talk.again_at = now + talk.pause_s
        talk.pause_s = min(talk.pause_s * 2, MAX_RESTART_S)
        self._look()

    def _look(self) -> None:
        now = self.clock.now
        for talk in self.talks:
            if talk.again_at is not None:
                if now >= talk.again_at:
                    self._begin(talk)
                continue
            self._send(talk, talk.session.pending())
            if talk.session.is_lost(now):
                self._end(talk, "the broker is silent")
                return
            self._send(talk, talk.session.tick(now))
        due = min(talk.session.deadline if talk.again_at is None else talk.again_at for talk in self.talks)
        life = self.life
        self.wake_at(due, lambda: self._when_awake(self._look, life))

    # -- what happens to it -------------------------------------------------------------------------

    def crash(self) -> None:
        if self.alive:
            self.log("crashes")
            self.alive = False
            self._wake_at = NEVER
            for talk in self.talks:
                if talk.wire is not None:
                    talk.wire.close()

    def freeze(self, seconds: float) -> None:
        self.log(f"is frozen for {seconds:.1f} s")
        self._frozen_until = max(self._frozen_until, self.clock.now + seconds)

    def leave(self) -> None:
        """Say goodbye and go."""
        for talk in self.talks:
            if talk.again_at is None:
                self._send(talk, talk.session.goodbye())
        self.crash()
