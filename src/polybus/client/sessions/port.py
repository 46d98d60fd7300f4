"""The port of the client library: a conversation with a broker, without sockets and without a clock.

A session turns what a program wants into frames, and frames into events.  It never waits: `now` is an
argument, and what has to be sent is returned.  One module a dialect stands behind this port, so the
shells (sync, asyncio) know no dialect.

Rules all sessions share:

- A message of the broker that cannot be read is counted in `invalid` and dropped, never raised.
- Something that cannot be said in the dialect is a `LocalProtocolError`, raised before anything changes.
- An empty first frame is taken off what comes in; `lead` is what the dialect wants before what goes out.
- Replies for a conversation that is over return nothing: the broker gave that work to somebody else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.context import NO_CONTEXT, Context
from polybus.wire.frames import Frame, check_name

Message = list[Frame]
# Names one piece of work; opaque to everybody but the session that made it.
Token = Any

NEVER: Final = float("inf")


class Options(Struct, frozen=True):
    """What a job asks for besides being run; only eMQP has words for it.

    `guarantee` survives a crash of the broker, `retries` are tried after a failure, `time_limit_s` ends a
    run that takes longer (0: never).
    """

    guarantee: bool = False
    retries: int = 0
    time_limit_s: int = 0


# Events are made by the ten thousand and never refer to each other, so the garbage collector need not look at
# them (`gc=False`).

# -- what a client learns ---------------------------------------------------------------------


class Accepted(Struct, frozen=True, gc=False):
    """The broker has the request."""

    request_id: bytes


class Part(Struct, frozen=True, gc=False):
    """A piece of the answer; more follows."""

    request_id: bytes
    body: list[Frame]


class Done(Struct, frozen=True, gc=False):
    """The answer, or its last piece."""

    request_id: bytes
    body: list[Frame]


class Failed(Struct, frozen=True, gc=False):
    """There will be no answer; `code` is the short word, `detail` the sentence."""

    request_id: bytes
    code: str
    detail: str = ""
    body: list[Frame] = []


class Restart(Struct, frozen=True, gc=False):
    """This conversation is over: close the socket, open a new one, begin again."""

    reason: str


ClientEvent = Accepted | Part | Done | Failed | Restart


# -- what a worker learns ---------------------------------------------------------------------


class Work(Struct, frozen=True, gc=False):
    """Run this and answer with `token`."""

    token: Token
    service: bytes
    request_id: bytes
    body: list[Frame]
    ttl_s: float | None = None
    # Which attempt this is, counted from 1; 0 if the broker does not say. After how long it is to be ended;
    # 0 means never.
    attempt: int = 0
    timeout_s: float = 0.0
    # Where it comes from, if somebody traces it.
    context: Context = NO_CONTEXT


class Cancelled(Struct, frozen=True, gc=False):
    """Nobody wants this answer any more. It is answered all the same: that frees the slot."""

    token: Token


class Leave(Struct, frozen=True, gc=False):
    """The broker asks this worker to finish what it has and go."""


class Denied(Struct, frozen=True, gc=False):
    """The broker does not take this worker; trying again would change nothing."""

    reasons: tuple[str, ...]


WorkerEvent = Work | Cancelled | Restart | Leave | Denied


class Session:
    """What both roles have: counting, and taking off the empty first frame."""

    dialect = "none"
    lead: tuple[bytes, ...] = ()

    def __init__(self) -> None:
        self.invalid = 0


class ClientSession(Session, ABC):
    """A client's side. Dialects with request ids leave `capacity` None: as many as the caller likes."""

    capacity: int | None = None
    # Whether an answer names its request.  If not, a request that was given up poisons the socket: its
    # answer would be taken for the next one's.  The session then asks for a new one (`Restart`) with a
    # new identity, so that the broker cannot confuse the two either.
    has_ids = True
    # Whether an unanswered request may be repeated now and then: the broker has to know it again by its id.
    resends_by_time = False

    # Whether its ids say where a request comes from, because it has no other place for that (`wire.context`).
    context_in_id = False

    # Silence only means something in dialects where the broker must answer a ping.
    deadline = NEVER

    # Whether the broker may say goodbye to a client that waits for nothing: it is listened to before the next
    # request, which must not go to a broker that left. And how long such a broker is left alone.
    hears_goodbyes = False
    pause_s = 0.0

    @abstractmethod
    def request(
        self,
        request_id: bytes,
        service: bytes,
        body: list[Frame],
        ttl_s: float | None = None,
        options: Options | None = None,
        wants_reply: bool = True,
        context: Context = NO_CONTEXT,
    ) -> list[Message]:
        """The messages that ask for a service; none if it has to wait for its turn. `context` is said only
        where the dialect has room for it."""

    @abstractmethod
    def cancel(self, request_id: bytes) -> list[Message]:
        """Forget a request, and tell the broker where the dialect has a word for it."""

    @abstractmethod
    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        """What one message means; raises `RemoteProtocolError` if it means nothing."""

    @abstractmethod
    def resend(self) -> list[Message]:
        """All unanswered requests again, with the same ids."""

    def release(self) -> list[Message]:
        """Requests whose turn has come, after answers were received."""
        return []

    def farewell(self) -> list[Message]:
        """What is still to be said before the socket is closed."""
        return []

    def tick(self, now: float) -> list[Message]:
        """What is due by now (pings)."""
        return []

    def is_lost(self, now: float) -> bool:
        """Has the broker been silent for too long?"""
        return False

    def restarted(self, now: float) -> None:
        """There is a new socket: what was heard before counts no more."""

    @property
    def wants_restart(self) -> bool:
        """Does the socket have to be replaced before anything else is sent?"""
        return False

    def receive(self, frames: Sequence[Frame], now: float = 0.0) -> list[ClientEvent]:
        try:
            return self.hear(frames, 1 if frames and not len(frames[0]) else 0, now)
        except RemoteProtocolError:
            self.invalid += 1
            return []


class WorkerSession(Session, ABC):
    """A worker's side: one conversation after another, each begun by `hello`.

    Life signs are reckoned from three times: when we last spoke, when we last heard, when we began.
    `reply` and the others do not know the time, so what they say counts from the `tick` before it: the next
    one may come much later, when a heartbeat seems to be due.
    """

    # How often we say something; how long the broker may be silent.
    beat_s = 2.5
    dead_after_s = 7.5
    # Whether the socket is closed as soon as the conversation has ended, not only when the next one begins.
    hangs_up = False

    def __init__(self) -> None:
        super().__init__()
        self.began_at = 0.0
        self.heard_at = 0.0
        self.spoke_at = 0.0
        self._spoke = False
        self._ticked_at = 0.0
        self.deadline = NEVER

    def hello(self, now: float) -> list[Message]:
        """Begin a conversation, on a socket that had none."""
        self.began_at = self.heard_at = self.spoke_at = self._ticked_at = now
        self._spoke = False
        self.deadline = now + self.beat_s
        return self.greet(now)

    def receive(self, frames: Sequence[Frame], now: float) -> list[WorkerEvent]:
        try:
            events = self.hear(frames, 1 if frames and not len(frames[0]) else 0, now)
        except RemoteProtocolError:
            self.invalid += 1
            return []
        self.heard_at = now
        return events

    def tick(self, now: float) -> list[Message]:
        """What is due by now (heartbeats, answers to pings)."""
        if self._spoke:
            self._spoke = False
            self.spoke_at = max(self.spoke_at, self._ticked_at)
        self._ticked_at = now
        if now < self.deadline:
            return []
        messages = self.beats(now)
        if messages:
            self.spoke_at = now
        self.deadline = self.next_beat(now)
        return messages

    def next_beat(self, now: float) -> float:
        return min(max(self.spoke_at + self.beat_s, now + 0.001), self.heard_at + self.dead_after_s)

    def is_lost(self, now: float) -> bool:
        """Has the broker been silent for too long?"""
        # Reckoned as in `next_beat`: whoever wakes up at the deadline must find it reached.
        return now >= self.heard_at + self.dead_after_s

    @abstractmethod
    def greet(self, now: float) -> list[Message]: ...

    @abstractmethod
    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        """What one message means; raises `RemoteProtocolError` if it means nothing."""

    def beats(self, now: float) -> list[Message]:
        """The heartbeats that are due, if any."""
        return []

    def pending(self) -> list[Message]:
        """What receiving left to be sent (a READY after an ACK, a HEARTBEAT after a PING)."""
        return []

    @abstractmethod
    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        """The answer."""

    def part(self, token: Token, body: list[Frame]) -> list[Message]:
        """A piece of the answer; nothing in dialects that have no such thing."""
        return []

    @abstractmethod
    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        """There will be no answer: a failure may be tried again, a rejection never."""

    @abstractmethod
    def goodbye(self) -> list[Message]:
        """The end of the conversation, from our side."""


def service_name(name: str | bytes) -> bytes:
    """A service, queue or topic name as it travels."""
    return check_name(name.encode() if isinstance(name, str) else name, "service name")


def one_frame(body: list[Frame], dialect: str) -> None:
    if len(body) > 1:
        raise LocalProtocolError(
            f"{dialect} carries one body frame, not {len(body)}; join them before sending"
        )
