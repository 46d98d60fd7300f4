"""What the sync and the asyncio client share: how they are set up, and every step that does not wait."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from weakref import WeakSet

import zmq

from polybus.client.addresses import Role, check_dialect, tag_for
from polybus.client.brain import Body, Brain, Ticket, body_frames
from polybus.client.discovery import Finder
from polybus.client.lines import Lines
from polybus.client.pubsub import Publisher, Subscription, check_topics, write_publication
from polybus.client.sessions import client_session
from polybus.client.sessions.port import NEVER, Message, Options, service_name
from polybus.errors import ConfigError, PolybusError, RequestTimeout
from polybus.telemetry import tracing

# How many answers may be awaited at once unless the caller says otherwise; the broker allows 10,000.
DEFAULT_WINDOW: Final = 1000
# How long a closing client lets libzmq send what it still holds.
LINGER_S: Final = 1.0
_NOTHING: Final = nullcontext()


class BaseClient:
    """A client without its waiting."""

    def __init__(
        self,
        address: str | None = None,
        dialect: str = "mdr",
        *,
        timeout_s: float = 30.0,
        window: int = DEFAULT_WINDOW,
        identity: bytes | None = None,
        publish_address: str | None = None,
        subscribe_address: str | None = None,
        context: zmq.Context[Any] | None = None,
        tag: str | None = None,
    ) -> None:
        self.dialect: Final = check_dialect(dialect)
        frame_0 = tag_for(dialect, "client", tag)
        self._finder: Final = Finder()
        self.endpoint: Final = self._finder.endpoint(dialect, "client", address)
        self.timeout_s: Final = timeout_s
        if window < 1:
            raise ConfigError(f"window is {window}; it takes 1 or more")
        # A stable identity: the broker knows a client that has reconnected, and what it asked, by it.
        self._identity = identity or new_identity()
        self._address = address
        self._publish_address = publish_address
        self._subscribe_address = subscribe_address
        self._context = context or zmq.Context.instance()
        self._brain = Brain(client_session(dialect, frame_0), window, tracing=tracing())
        self._publisher: Publisher | None = None
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._lines = Lines(1, context=self._context)
        self._lines.open(0, self.endpoint, self._identity)
        self._closed = False
        # Whether the socket is closed until `restart_at` of the brain.
        self._is_hung_up = False

    @property
    def invalid(self) -> int:
        """How many messages of the broker could not be read, or answered nothing that was asked."""
        return self._brain.session.invalid

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _submit(
        self,
        service: str | bytes,
        body: Body,
        timeout_s: float | None,
        options: Options | None,
        wants_reply: bool = True,
    ) -> Ticket:
        if self._closed:
            raise PolybusError("the client is closed")
        if self._brain.session.hears_goodbyes and not self._brain.open:
            self._step(0.0)
        now = time.monotonic()
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        ttl_s = None if limit_s == NEVER else limit_s
        return self._brain.submit(
            service_name(service), body_frames(body), now, now + limit_s, ttl_s, options, wants_reply
        )

    def _no_answer(self) -> RequestTimeout:
        return RequestTimeout(
            f"no answer from {self.endpoint} in time; is there a worker for it, and fast enough?"
        )

    def _step(self, timeout_s: float) -> bool:
        """Receive, do what is due, send. False if nothing had come in."""
        brain, lines = self._brain, self._lines
        self._flush()
        batch = lines.receive(timeout_s)
        now = time.monotonic()
        if batch:
            brain.receive(batch, lines, now)
        if now >= brain.deadline:
            brain.tick(now)
        self._flush()
        return bool(batch)

    def _flush(self) -> None:
        brain = self._brain
        if brain.restart:
            if brain.restart_at > time.monotonic():
                self._hang_up()
                return
            if not brain.session.has_ids:
                self._identity = new_identity()
            self._is_hung_up = False
            self._reopening()
            if self.dialect == "ebus":
                self._retire_topics()
            self._lines.open(0, self.endpoint, self._identity)
            brain.restarted(time.monotonic())
        if brain.outbox:
            outbox, brain.outbox = brain.outbox, []
            self._lines.send(outbox)

    def _hang_up(self) -> None:
        """Close the socket before the new one may be opened; what is to be sent until then waits."""
        if self._is_hung_up:
            return
        self._is_hung_up = True
        farewell = self._brain.session.farewell()
        if farewell:
            self._lines.send([(0, message) for message in farewell])
        self._reopening()
        self._lines.hang_up(0, LINGER_S if farewell else 0.0)

    def _retire_topics(self) -> None:
        """Close the other sockets, too (EBUS-9, EBUS-10). They are opened anew when they are needed."""
        if self._publisher is not None:
            self._publisher.retire()
            self._publisher = None
        for subscription in list(self._subscriptions):
            subscription.retire()

    def _reopening(self) -> None:
        """The socket is about to be replaced; an event loop must not watch its descriptor any longer."""

    def _publication(self, topic: str, body: Body) -> tuple[Publisher | None, Message]:
        """A publication as it travels, and through what: a socket of its own, or (None) the client's."""
        check_topics(self.dialect)
        message = write_publication(
            self.dialect, self._brain.new_id(), service_name(topic), body_frames(body)
        )
        if self.dialect == "emqp" and self._publish_address is None and not _is_set(self.dialect, "publish"):
            # A publication waits for nothing, so a broker that left is not given its pause.
            self._step(0.0)
            self._brain.restart_at = 0.0
            self._flush()
            return None, message
        if self._publisher is None:
            address = self._publish_address or _host_of(self._address)
            endpoint = self._finder.endpoint(self.dialect, "publish", address)
            self._publisher = Publisher(self.dialect, endpoint, self._context)
        return self._publisher, message

    def _publishing(self, topic: str) -> AbstractContextManager[Any]:
        """While a publication is sent: a span, if somebody traces this client. Subscribers get topic and body
        and nothing else, so it ends there."""
        tracing = self._brain.tracing
        return _NOTHING if tracing is None else tracing.during("publish", topic)

    def _subscribe(self, prefixes: tuple[str, ...]) -> Subscription:
        check_topics(self.dialect)
        address = self._subscribe_address or _host_of(self._address)
        endpoint = self._finder.endpoint(self.dialect, "subscribe", address)
        subscription = Subscription(self.dialect, prefixes, endpoint, self._context)
        self._subscriptions.add(subscription)
        return subscription

    def _close(self, linger_s: float) -> None:
        if not self._closed:
            self._closed = True
            self._brain.close()
            if self._is_hung_up:
                # What was sent while the socket was closed goes out all the same.
                self._brain.restart_at = 0.0
                self._flush()
            self._lines.close(linger_s)
            if self._publisher is not None:
                self._publisher.close(linger_s)


def new_identity() -> bytes:
    # ASCII, because some brokers decode it as text.
    return b"pb-" + os.urandom(8).hex().encode()


def _is_set(dialect: str, role: Role) -> bool:
    return bool(os.environ.get(f"POLYBUS_{dialect.upper()}_{role.upper()}"))


def _host_of(address: str | None) -> str | None:
    """The host of the client's address, for the other ports; a path or a name has none."""
    if address is None or address.startswith(("ipc://", "inproc://")):
        return None
    host = address.removeprefix("tcp://")
    return host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
