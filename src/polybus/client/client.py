"""The client: call services, stream answers, publish and subscribe, in any dialect.

    with Client() as client:
        print(client.call("hello", b"world"))

A client belongs to one thread at a time: it may be handed over, but not used by two threads at once.
Nothing happens behind the caller's back: frames move while one of its methods waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Literal, overload

from polybus.client.base import LINGER_S, BaseClient
from polybus.client.brain import Body, Ticket, body_frames, one_of
from polybus.client.pubsub import Subscription
from polybus.client.sessions.port import NEVER, Options, service_name
from polybus.errors import RequestFailed, RequestTimeout


class Pending:
    """A request on its way."""

    __slots__ = ("_client", "_ticket")

    def __init__(self, client: Client, ticket: Ticket) -> None:
        self._client = client
        self._ticket = ticket

    @property
    def request_id(self) -> bytes:
        return self._ticket.request_id

    @property
    def is_done(self) -> bool:
        return self._ticket.done

    @property
    def is_accepted(self) -> bool:
        """Whether the broker has said that it has the request; only eMQP says so before it is done."""
        return self._ticket.accepted or self._ticket.done

    def result(self, timeout_s: float | None = None) -> bytes:
        """The answer. `RequestTimeout` leaves the request open: ask again, or cancel it."""
        self._client._wait(self._ticket, timeout_s)
        return self._ticket.single()

    def result_multipart(self, timeout_s: float | None = None) -> list[bytes]:
        """The answer with all its frames."""
        self._client._wait(self._ticket, timeout_s)
        return self._ticket.frames()

    def cancel(self) -> None:
        """Give the request up: `result` raises `RequestFailed` with the code `cancelled`."""
        self._client._forget(self._ticket)


class Client(BaseClient):
    """A synchronous client.

    `address` is an endpoint, a host, or None for the environment and the dialect's default; `dialect` is
    one of mdr, mdp1, mdp2, ebus, emqp, dbp.  `timeout_s` is how long a call may take unless it says
    otherwise, `window` how many requests may be open at once.  `identity` makes the broker know this
    client again after a restart of the program; no two clients may have the same.  `tag` is what clients
    put into frame 0 of their requests at this broker, if its `majordomo.client_tag` was set (mdr).
    """

    def call(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> bytes:
        """Ask a service and wait for its answer.

        Raises `RequestFailed` if the bus or the worker says no, `RequestTimeout` if nobody says anything.
        """
        return one_of(self.call_multipart(service, body, timeout_s, options=options))

    def call_multipart(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> list[bytes]:
        """The same, for bodies and answers of several frames."""
        self._make_room(timeout_s)
        ticket = self._submit(service, body, timeout_s, options)
        try:
            self._wait(ticket, timeout_s)
        except BaseException:
            # Nobody is left to take the answer.
            self._forget(ticket)
            raise
        return ticket.frames()

    def submit(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
        wants_reply: bool = True,
    ) -> Pending:
        """Ask a service and go on; the `Pending` gets the answer. Waits only if the window is full.

        Without `wants_reply` an eMQP request is done with its receipt: the broker has it.
        """
        self._make_room(timeout_s)
        ticket = self._submit(service, body, timeout_s, options, wants_reply)
        self._flush()
        return Pending(self, ticket)

    def send(
        self,
        service: str | bytes,
        body: Body = b"",
        *,
        options: Options | None = None,
    ) -> bytes:
        """Have something run and do not wait for what comes of it; returns the request's id.

        eMQP asks for no result then; in other dialects the answer comes and is dropped.
        """
        self._make_room(None)
        ticket = self._submit(service, body, NEVER, options, wants_reply=False)
        self._flush()
        return ticket.request_id

    @overload
    def call_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body],
        window: int | None = ...,
        timeout_s: float | None = ...,
        *,
        return_errors: Literal[False] = ...,
    ) -> Iterator[bytes]: ...

    @overload
    def call_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body],
        window: int | None = ...,
        timeout_s: float | None = ...,
        *,
        return_errors: bool,
    ) -> Iterator[bytes | RequestFailed]: ...

    def call_many(
        self,
        service: str | bytes,
        bodies: Iterable[Body],
        window: int | None = None,
        timeout_s: float | None = None,
        *,
        return_errors: bool = False,
    ) -> Iterator[bytes | RequestFailed]:
        """Ask the same service many things, up to `window` at a time; the answers come in order.

        This is the fast way.  A failure is raised in its place and ends the iteration, or is returned in
        its place with `return_errors`.  `timeout_s` is for each request.
        """
        name = service_name(service)
        brain = self._brain
        most = min(window or brain.window, brain.window)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        ttl_s = None if limit_s == NEVER else limit_s
        ahead: deque[Ticket] = deque()
        source = iter(bodies)
        more = True
        try:
            while True:
                now = time.monotonic()
                while more and len(ahead) < most and brain.room > 0:
                    body = next(source, None)
                    if body is None:
                        more = False
                    else:
                        ahead.append(brain.submit(name, body_frames(body), now, now + limit_s, ttl_s))
                if not ahead:
                    return
                if not ahead[0].done:
                    self._wait(ahead[0], None)
                while ahead and ahead[0].done:
                    ticket = ahead.popleft()
                    if ticket.error is not None and ticket.is_overdue(ticket.deadline):
                        raise self._no_answer()
                    if ticket.error is not None and return_errors:
                        yield ticket.error
                    else:
                        yield ticket.single()
        finally:
            for ticket in ahead:
                self._forget(ticket)

    def stream(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> Iterator[bytes]:
        """The pieces of an answer as they come, the final one last.

        Where the dialect has no pieces there is only the final one.  `timeout_s` is for each piece.
        """
        with closing(self.pieces(service, body, timeout_s, options=options)) as pieces:
            for piece, _ in pieces:
                yield piece

    def pieces(
        self,
        service: str | bytes,
        body: Body = b"",
        timeout_s: float | None = None,
        *,
        options: Options | None = None,
    ) -> Generator[tuple[bytes, bool], None, None]:
        """The same with, for every piece, whether it is the final one."""
        self._make_room(timeout_s)
        ticket = self._submit(service, body, timeout_s, options)
        parts = ticket.parts = deque()
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            while True:
                self._wait(ticket, limit_s, piecewise=True)
                while parts:
                    yield one_of([bytes(frame) for frame in parts.popleft()]), False
                if ticket.done:
                    yield ticket.single(), True
                    return
        finally:
            self._forget(ticket)

    def publish(self, topic: str, body: Body = b"", timeout_s: float = 5.0) -> None:
        """Tell everybody who subscribed to a beginning of `topic` (EBUS, eMQP)."""
        publisher, message = self._publication(topic, body)
        with self._publishing(topic):
            if publisher is None:
                self._lines.send([(0, message)])
            else:
                publisher.join(timeout_s)
                publisher.send(message, timeout_s)

    def subscribe(self, *prefixes: str) -> Subscription:
        """What is published from now on under these prefixes (all, if there are none), as an iterator."""
        return self._subscribe(prefixes)

    def cancel(self, request_id: bytes) -> bool:
        """Give up an open request; False if there is none with this id."""
        ticket = self._brain.find(request_id)
        if ticket is None:
            return False
        self._forget(ticket)
        return True

    def close(self) -> None:
        """Let go of the connection; what was sent already still goes out."""
        self._close(LINGER_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- waiting --------------------------------------------------------------------------------

    def _wait(self, ticket: Ticket, timeout_s: float | None, piecewise: bool = False) -> None:
        """Move frames until the ticket is done (or has a part), or the time is up."""
        deadline = ticket.deadline if timeout_s is None else time.monotonic() + timeout_s
        while not (ticket.done or (piecewise and ticket.parts)):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._no_answer()
            self._step(self._until(left_s))
        if not ticket.parts and ticket.is_overdue(deadline):
            raise self._no_answer()

    def _until(self, left_s: float) -> float:
        due = self._brain.deadline
        return left_s if due == NEVER else min(left_s, max(0.0, due - time.monotonic()))

    def _make_room(self, timeout_s: float | None) -> None:
        if self._brain.room > 0:
            return
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while self._brain.room <= 0:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise RequestTimeout(f"{self._brain.window} requests are open and none was answered in time")
            self._step(self._until(left_s))

    def _forget(self, ticket: Ticket) -> None:
        if not ticket.done:
            self._brain.forget(ticket, "cancelled", "its client gave it up")
            if not self._closed:
                self._flush()
