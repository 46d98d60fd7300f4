"""What a client knows, whatever its shell: which requests are open, what came of them, what must be sent.

The shells move frames and wait; everything else is here.  `submit` and the others fill `outbox`;
`receive` takes a batch from the pump and brings tickets to their end.  When `restart` is set, the socket
has to be replaced (and with `new_identity`, the identity too) before the outbox is sent.

A broker may restart in the middle of a request: what it had not answered is asked again, with the same
ids, as soon as the connection is back, and now and then in any case.  The broker runs an id once and
answers a repetition from its cache.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from polybus.client.lines import Lines
from polybus.client.sessions.port import (
    NEVER,
    Accepted,
    ClientSession,
    Done,
    Failed,
    Message,
    Options,
    Part,
    Restart,
)
from polybus.errors import LocalProtocolError, RequestFailed
from polybus.server.pump import Batch
from polybus.wire.context import add_to_id
from polybus.wire.frames import Frame

if TYPE_CHECKING:
    from polybus.telemetry.spans import Tracing

# The broker's own services: what they are asked for is said by whoever asks (`client.calls`).
BUILT_IN: Final = b"polybus."
# A safety net for what the reconnect does not catch; slow, each repetition costs the broker a look-up.
RESEND_S: Final = 30.0
EXPIRED: Final = "expired"

Body = bytes | bytearray | memoryview | Sequence[bytes]


class Ticket(Struct, eq=False):
    """One request: open, or done with a body, or done with an error."""

    request_id: bytes
    deadline: float
    done: bool = False
    accepted: bool = False
    body: list[Frame] = []
    error: RequestFailed | None = None
    # When the broker said so.
    failed_at: float = 0.0
    # Only requests that stream keep their parts.
    parts: deque[list[Frame]] | None = None
    notify: Callable[[], None] | None = None
    # Its span, if somebody traces this client.
    span: Any = None

    def is_overdue(self, deadline: float) -> bool:
        """Whether it expired when its caller's own time was up as well.

        A broker that was told how long the caller waits says so a moment later; which of the two a busy
        program notices first is chance, so to the caller both are the same.
        """
        return self.error is not None and self.error.code == EXPIRED and self.failed_at >= deadline

    def frames(self) -> list[bytes]:
        """The answer; raises what went wrong instead."""
        if self.error is not None:
            raise self.error
        return [frame if type(frame) is bytes else bytes(frame) for frame in self.body]

    def single(self) -> bytes:
        """The answer, if it is one frame."""
        if self.error is None and len(self.body) == 1 and type(self.body[0]) is bytes:
            return self.body[0]
        return one_of(self.frames())


def one_of(frames: list[bytes]) -> bytes:
    if len(frames) > 1:
        raise LocalProtocolError(f"the answer has {len(frames)} frames; call_multipart returns them all")
    return frames[0] if frames else b""


def body_frames(body: object) -> list[Frame]:
    """A body as frames: bytes are one, a sequence of bytes is several."""
    if type(body) is bytes:
        return [body]
    if isinstance(body, bytes | bytearray | memoryview):
        return [bytes(body)]
    if isinstance(body, list | tuple) and all(isinstance(frame, bytes) for frame in body):
        return list(body)
    raise LocalProtocolError("a body is bytes or a list of bytes; encode anything else before sending it")


class Brain:
    """The requests of one client."""

    def __init__(
        self,
        session: ClientSession,
        window: int,
        resend_s: float = RESEND_S,
        tracing: Tracing | None = None,
    ) -> None:
        self.session: Final = session
        self.window: Final = window
        self.outbox: list[tuple[int, Message]] = []
        self.restart = False
        # Not before then; the socket is closed until then.
        self.restart_at = 0.0
        self.dropped = 0
        self.tracing: Final = tracing
        self._tickets: dict[bytes, Ticket] = {}
        self._resend_s = resend_s
        self._resend_at = NEVER
        # Other clients with the same identity, or this one before a restart, must not share ids with us.
        self._prefix = os.urandom(6).hex().encode()
        self._number = 0

    # -- asking ---------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more requests may be open."""
        return self.window - len(self._tickets)

    @property
    def open(self) -> int:
        return len(self._tickets)

    def new_id(self) -> bytes:
        self._number += 1
        return b"%s%x" % (self._prefix, self._number)

    def submit(
        self,
        service: bytes,
        body: list[Frame],
        now: float,
        deadline: float = NEVER,
        ttl_s: float | None = None,
        options: Options | None = None,
        wants_reply: bool = True,
    ) -> Ticket:
        self._number += 1
        request_id = b"%s%x" % (self._prefix, self._number)
        if self.tracing is None:
            messages = self.session.request(request_id, service, body, ttl_s, options, wants_reply)
            ticket = Ticket(request_id, deadline)
        else:
            ticket = Ticket(request_id, deadline)
            messages = self._request_traced(self.tracing, ticket, service, body, ttl_s, options, wants_reply)
            request_id = ticket.request_id
        self._tickets[request_id] = ticket
        for message in messages:
            self.outbox.append((0, message))
        if self._resend_at == NEVER and self.session.resends_by_time:
            self._resend_at = now + self._resend_s
        return ticket

    def _request_traced(
        self,
        tracing: Tracing,
        ticket: Ticket,
        service: bytes,
        body: list[Frame],
        ttl_s: float | None,
        options: Options | None,
        wants_reply: bool,
    ) -> list[Message]:
        """The same with a span, of which the other side learns where its dialect has room."""
        session = self.session
        if service.startswith(BUILT_IN):
            context = tracing.current_context()
        else:
            operation = "call" if wants_reply else "send"
            ticket.span, context = tracing.begin(operation, service, session.dialect)
        if context and session.context_in_id:
            ticket.request_id = add_to_id(ticket.request_id, context)
        try:
            messages = session.request(ticket.request_id, service, body, ttl_s, options, wants_reply, context)
        except LocalProtocolError as error:
            tracing.end(ticket.span, "local_protocol_error", str(error))
            raise
        return messages

    def forget(self, ticket: Ticket, code: str, detail: str) -> None:
        """Give a request up; the broker is told where the dialect has a word for it."""
        if self._tickets.pop(ticket.request_id, None) is None:
            return
        self._say(self.session.cancel(ticket.request_id))
        self.restart = self.restart or self.session.wants_restart
        self._finish(ticket, [], RequestFailed(code, detail))

    def find(self, request_id: bytes) -> Ticket | None:
        return self._tickets.get(request_id)

    def _say(self, messages: list[Message]) -> None:
        self.outbox.extend((0, message) for message in messages)

    # -- hearing --------------------------------------------------------------------------------

    def receive(self, batch: Batch, lines: Lines, now: float) -> None:
        receive, tickets = self.session.receive, self._tickets
        for index, frames in batch:
            if index:
                if lines.reconnected(index, frames) is not None:
                    self._reconnected()
                continue
            for event in receive(frames, now):
                kind = type(event)
                if kind is Done:
                    ticket = tickets.pop(event.request_id, None)  # type: ignore[union-attr]
                    if ticket is not None:
                        self._finish(ticket, event.body, None)  # type: ignore[union-attr]
                else:
                    self._other(event, now)
        self._say(self.session.release())

    def _other(self, event: Accepted | Part | Done | Failed | Restart, now: float) -> None:
        match event:
            case Failed(request_id, code, detail, body):
                ticket = self._tickets.pop(request_id, None)
                if ticket is not None:
                    own = bytes(body[0]) if len(body) == 1 else b""
                    ticket.failed_at = now
                    self._finish(ticket, [], RequestFailed(code, detail, own))
            case Part(request_id, body):
                ticket = self._tickets.get(request_id)
                if ticket is not None and ticket.parts is not None:
                    ticket.parts.append(body)
                    if ticket.notify is not None:
                        ticket.notify()
            case Accepted(request_id):
                ticket = self._tickets.get(request_id)
                if ticket is not None:
                    ticket.accepted = True
            case _:
                self.restart = True
                if self.session.pause_s:
                    self.restart_at = now + self.session.pause_s

    def _finish(self, ticket: Ticket, body: list[Frame], error: RequestFailed | None) -> None:
        ticket.body = body
        ticket.error = error
        ticket.done = True
        if ticket.span is not None and self.tracing is not None:
            self.tracing.end(ticket.span, *(("", "") if error is None else (error.code, error.detail)))
        if ticket.notify is not None:
            ticket.notify()
        if not self._tickets:
            self._resend_at = NEVER

    def _reconnected(self) -> None:
        if not self._tickets:
            return
        if self.session.has_ids:
            self._say(self.session.resend())
        else:
            # Its answer may come once or twice now, and nothing would tell: begin on a clean socket.
            self.restart = True

    # -- time -----------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When `tick` is due."""
        return min(self.session.deadline, self._resend_at, self.restart_at or NEVER)

    def tick(self, now: float) -> None:
        if self.session.is_lost(now):
            self.restart = True
            return
        self._say(self.session.tick(now))
        if now >= self._resend_at:
            self._resend_at = now + self._resend_s
            self._say(self.session.resend())

    def close(self) -> None:
        """Nobody waits any more for what is open."""
        if self.tracing is not None:
            for ticket in self._tickets.values():
                self.tracing.end(ticket.span)

    def restarted(self, now: float) -> None:
        """There is a new socket: what was meant for the old one is asked again."""
        self.restart = False
        self.restart_at = 0.0
        self.session.restarted(now)
        self.outbox.clear()
        self._say(self.session.resend())
        self._say(self.session.release())
