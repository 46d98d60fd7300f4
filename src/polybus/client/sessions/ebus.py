"""EBUS 1.0: a peer asks "are you there?" when it has heard nothing, and hangs up when nobody answers.

Both roles: PING after 500 ms without a word from the broker, a HEARTBEAT for every PING; after five silent
intervals or a DISCONNECT all sockets are closed, and there are new ones.  A client that waits for nothing has
nothing to lose and does not ping.

A client puts an empty frame first, a worker does not: public brokers insist on both.  A worker always names
its credit, by which our broker knows that it wants to hear the service; public brokers do not look at it and
send REQ without one.  `SERVICES` and `WORKERS` are asked of the broker itself, in words of their own; the
answer is JSON, whichever form it had on the wire.

A worker may ask for services itself, on the same socket (EBUS-26): `ask` makes the request, what comes of
it is in `answers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from polybus.client.failures import read_failure, split_failure, write_failure
from polybus.client.sessions.mdr import no_options
from polybus.client.sessions.port import (
    NEVER,
    Cancelled,
    ClientEvent,
    ClientSession,
    Done,
    Failed,
    Message,
    Options,
    Restart,
    Token,
    Work,
    WorkerEvent,
    WorkerSession,
)
from polybus.errors import RemoteProtocolError
from polybus.wire import ebus as wire
from polybus.wire.context import NO_CONTEXT, Context
from polybus.wire.ebus_bodies import unpack_bson
from polybus.wire.frames import EMPTY, Frame, refuse

BEAT_S: Final = 0.5
LIVENESS: Final = 5

_EXPIRED: Final = ("expired", "no answer before the request was stale")
_NO_REASON: Final = ("rejected", "the broker gave no reason")


class Silence:
    """Asks after every silent interval, and gives up after `LIVENESS` of them.

    Questions are counted rather than time: a program that did not look for a while has asked nothing, so it
    concludes nothing.
    """

    def __init__(self) -> None:
        self.since = 0.0
        self._asked = 0

    def broken(self, now: float) -> None:
        self.since = now
        self._asked = 0

    def is_due(self, now: float) -> bool:
        """Is it time to ask (again)?"""
        if now < self.since + BEAT_S:
            return False
        self.since = now
        self._asked += 1
        return True

    def is_final(self, now: float) -> bool:
        return self._asked >= LIVENESS - 1 and now >= self.since + BEAT_S


# What the broker answers itself.
_QUERIES: Final[dict[bytes, type[wire.ServicesQuery] | type[wire.WorkersQuery]]] = {
    b"SERVICES": wire.ServicesQuery,
    b"WORKERS": wire.WorkersQuery,
}


class Asking:
    """The requests of one peer that are not answered yet; `lead` goes before each."""

    def __init__(self, lead: Message) -> None:
        self.open: dict[bytes, tuple[bytes, Message]] = {}
        self._lead = lead

    def say(self, message: wire.ClientMessage) -> Message:
        return [*self._lead, *wire.write_from_client(message)]

    def request(self, request_id: bytes, service: bytes, body: list[Frame], ttl_s: float | None) -> Message:
        # Not down: a broker must not give up before its client does, and takes a zero for no limit.
        ttl_ms = None if ttl_s is None else max(0, min(math.ceil(ttl_s * 1000), wire.MAX_TTL_MS))
        query = _QUERIES.get(service)
        frames = self.say(query(request_id) if query else wire.Request(service, request_id, body, ttl_ms))
        self.open[request_id] = (service, frames)
        return frames

    def hear(self, message: wire.Reply | wire.Reject | wire.Listing) -> list[ClientEvent]:
        request_id = message.request_id
        is_bare = type(message) is wire.Reject and not request_id
        if is_bare and len(self.open) == 1:
            # The document's REJECT has no id: it is clear which request is meant only if there is one.
            (request_id,) = self.open
        if self.open.pop(request_id, None) is None:
            # Somebody else's (EBUS-16), or answered already.
            raise refuse("unknown_request", "an answer to nothing that was asked")
        if is_bare:
            return [Failed(request_id, *_NO_REASON, [])]
        if type(message) is wire.Reject:
            return [Failed(request_id, *read_reject(message.body), message.body)]
        if type(message) is wire.Listing:
            return [_read_listing(message)]
        return [Done(request_id, message.body)]


def _read_listing(message: wire.Listing) -> ClientEvent:
    """The list as JSON: a broker writes it so (the document), or as deflated BSON (upstream)."""
    data = b"".join(bytes(frame) for frame in message.body)
    if data.startswith(b"["):
        return Done(message.request_id, [data])
    try:
        return Done(message.request_id, [msgspec.json.encode(unpack_bson(data))])
    except RemoteProtocolError as error:
        return Failed(message.request_id, error.reason, str(error), message.body)


def read_reject(body: list[Frame]) -> tuple[str, str]:
    """Code and detail of a REJECT; without data it is an expiry."""
    if not body:
        return _EXPIRED
    text = bytes(body[0]).decode(errors="replace")
    return read_failure(body) or split_failure(text, "rejected")


class EbusClient(ClientSession):
    dialect = "ebus"
    resends_by_time = True
    context_in_id = True

    def __init__(self) -> None:
        super().__init__()
        self._asking = Asking([EMPTY])
        self._silence = Silence()
        self._fresh = True
        self._pending: list[Message] = []

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
        if options is not None:
            no_options(options, "EBUS")
        # Nobody listened while nothing was asked: silence counts from here on.
        self._fresh = self._fresh or not self._asking.open
        return [self._asking.request(request_id, service, body, ttl_s)]

    def cancel(self, request_id: bytes) -> list[Message]:
        asked = self._asking.open.pop(request_id, None)
        return [] if asked is None else [self._asking.say(wire.Cancel(asked[0], request_id))]

    def resend(self) -> list[Message]:
        return [frames for _, frames in self._asking.open.values()]

    def release(self) -> list[Message]:
        messages, self._pending = self._pending, []
        return messages

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        message = wire.read_as_client(frames, at)
        self._silence.broken(now)
        if isinstance(message, wire.Reply | wire.Reject | wire.Listing):
            return self._asking.hear(message)
        if type(message) is wire.Ping:
            self._pending.append(self._asking.say(wire.Heartbeat()))
        elif type(message) is wire.Disconnect:
            return [Restart("the broker ended the conversation")]
        return []

    @property
    def deadline(self) -> float:  # type: ignore[override]
        if not self._asking.open:
            return NEVER
        return 0.0 if self._fresh else self._silence.since + BEAT_S

    def tick(self, now: float) -> list[Message]:
        if self._fresh:
            self._fresh = False
            self._silence.broken(now)
        if self._asking.open and self._silence.is_due(now):
            return [self._asking.say(wire.Ping())]
        return []

    def is_lost(self, now: float) -> bool:
        return bool(self._asking.open) and not self._fresh and self._silence.is_final(now)

    def restarted(self, now: float) -> None:
        self._fresh = False
        self._pending.clear()
        self._silence.broken(now)


class EbusWorker(WorkerSession):
    """One service, up to `credit` requests at a time."""

    dialect = "ebus"
    beat_s = BEAT_S
    dead_after_s = BEAT_S * LIVENESS
    hangs_up = True

    def __init__(self, service: bytes, credit: int = 1) -> None:
        super().__init__()
        self._service = service
        self._credit = credit
        self._held: set[bytes] = set()
        self._asking = Asking([])
        self._silence = Silence()
        self._pending: list[Message] = []
        self._answers: list[ClientEvent] = []

    def greet(self, now: float) -> list[Message]:
        self._held.clear()
        self._pending.clear()
        self._silence.broken(now)
        ready = wire.write_from_worker(wire.Ready(self._service, self._credit))
        return [ready, *(frames for _, frames in self._asking.open.values())]

    def ask(
        self, request_id: bytes, service: bytes, body: list[Frame], ttl_s: float | None = None
    ) -> list[Message]:
        """Request a service, as a client would."""
        return [self._asking.request(request_id, service, body, ttl_s)]

    def answers(self) -> list[ClientEvent]:
        """What came of the requests, since the last look."""
        events, self._answers = self._answers, []
        return events

    def pending(self) -> list[Message]:
        messages, self._pending = self._pending, []
        return messages

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        message = wire.read_as_worker(frames, at)
        self._silence.broken(now)
        match message:
            # A worker serves one service, so it does not matter that REQ does not name it.
            case wire.Request(_, request_id, body, ttl_ms) | wire.Order(request_id, body, ttl_ms):
                self._held.add(request_id)
                ttl_s = None if ttl_ms is None else ttl_ms / 1000
                return [Work(request_id, self._service, request_id, body, ttl_s)]
            case wire.CancelOrder(request_id):
                return [Cancelled(request_id)] if request_id in self._held else []
            case wire.Ping():
                self._pending.append(wire.write_from_worker(wire.Heartbeat()))
            case wire.Disconnect():
                return [Restart("the broker ended the conversation")]
            case wire.Reply() | wire.Reject() | wire.Listing():
                self._answers += self._asking.hear(message)
        return []

    def tick(self, now: float) -> list[Message]:
        # Overrides the common rule: EBUS asks when it has heard nothing, whatever it has said itself.
        messages = [wire.write_from_worker(wire.Ping())] if self._silence.is_due(now) else []
        self.deadline = self._silence.since + BEAT_S
        return messages

    def is_lost(self, now: float) -> bool:
        return self._silence.is_final(now)

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        frames = wire.write_from_worker(wire.Reply(token, body))
        self._held.discard(token)
        return [frames]

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        if token not in self._held:
            return []
        self._held.discard(token)
        return [wire.write_from_worker(wire.Reject(token, [write_failure(reason, rejected)]))]

    def goodbye(self) -> list[Message]:
        return [wire.write_from_worker(wire.Disconnect())]
