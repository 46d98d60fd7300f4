"""Publishing and subscribing: topics, matched by the beginning of their name.

EBUS publishes on a PUB socket, which throws away what it is given before the broker has subscribed, when the
broker is gone, and when there is no room.  So an XPUB is used, which says all of these, and a publication
waits until it can be sent.  eMQP
publishes with a command to the broker; there the message goes through the client's own connection, or a
second one to the publishing port.

An EBUS peer closes all its sockets when its conversation with the broker has ended (EBUS-9, EBUS-10), so its
client retires these, too: a publisher is closed, a subscription goes on with a new socket.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import zmq

from polybus.client.addresses import endpoint_for
from polybus.client.sessions.port import Message
from polybus.errors import ConfigError, ConnectionLost, LocalProtocolError, RemoteProtocolError
from polybus.wire import ebus, emqp
from polybus.wire.frames import EMPTY, Frame

# What a subscriber that does not read may pile up before messages to it are dropped.
RECEIVE_HWM: Final = 100_000

# What an XPUB socket gets when somebody subscribes; anything else means that nobody does any more.
SUBSCRIBED: Final = b"\x01"
# Room in a socket is not always announced: it is looked for again after this many milliseconds.
ROOM_MS: Final = 20
# A Ctrl-C that comes just before libzmq begins to wait does not wake it: no wait is longer than this.
SIGNALS_S: Final = 0.5
# How long libzmq goes on sending what a socket still holds that is replaced.
RETIRE_S: Final = 1.0


def check_topics(dialect: str) -> None:
    if dialect not in ("ebus", "emqp"):
        raise LocalProtocolError(f"{dialect} has no topics: publish and subscribe with ebus or emqp")


def write_publication(dialect: str, msg_id: bytes, topic: bytes, body: list[Frame]) -> Message:
    if dialect == "ebus":
        return ebus.write_publish(topic, body)
    return [EMPTY, *emqp.write_from_client(emqp.Publish(msg_id, topic, emqp.NO_HEADERS, body))]


def read_publication(dialect: str, frames: list[bytes]) -> tuple[str, bytes]:
    """Topic and body; raises `RemoteProtocolError` for what is neither."""
    publication = ebus.read_publish(frames) if dialect == "ebus" else emqp.read_publication(frames)
    body = publication.body
    topic = publication.channel if isinstance(publication, ebus.Publish) else publication.topic
    return topic.decode(), b"".join(bytes(frame) for frame in body)


class Publisher:
    """A socket of its own for publications."""

    def __init__(self, dialect: str, address: str | None, context: zmq.Context[Any]) -> None:
        self._endpoint = endpoint_for(dialect, "publish", address)
        self._listens = dialect == "ebus"
        self._waits = self._listens
        # How many publications are on their way, and whether the socket is closed after the last of them.
        self._users = 0
        self._retired = False
        self._socket: zmq.Socket[bytes] = context.socket(zmq.XPUB if self._listens else zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if self._listens:
            # Without it a publication that the broker has no room for would be dropped without a word.
            self._socket.setsockopt(zmq.XPUB_NODROP, 1)
        _connect(self._socket, self._endpoint)

    def has_joined(self) -> bool:
        """Whether the broker takes publications: it has subscribed, and the connection was not lost since."""
        while self._listens and self._socket.poll(0, zmq.POLLIN):
            self._waits = not self._socket.recv().startswith(SUBSCRIBED)
        return not self._waits

    def join(self, timeout_s: float) -> None:
        """Wait until the broker takes publications."""
        give_up = 0.0
        while not self.has_joined():
            now = time.monotonic()
            give_up = give_up or now + timeout_s
            if now >= give_up:
                raise self.nobody()
            self._socket.poll(int((give_up - now) * 1000) + 1, zmq.POLLIN)

    def nobody(self) -> ConnectionLost:
        return ConnectionLost(f"nobody takes publications at {self._endpoint}; is the broker running?")

    @property
    def fd(self) -> int:
        """What an event loop watches (edge-triggered)."""
        return int(self._socket.getsockopt(zmq.FD))

    def try_send(self, message: Message) -> bool:
        """Send it if there is room."""
        try:
            self._socket.send_multipart([bytes(frame) for frame in message], zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def send(self, message: Message, timeout_s: float) -> None:
        """Send it as soon as there is room."""
        give_up = 0.0
        while not self.try_send(message):
            now = time.monotonic()
            give_up = give_up or now + timeout_s
            if now >= give_up:
                raise self.no_room(timeout_s)
            self._socket.poll(min(ROOM_MS, int((give_up - now) * 1000) + 1), zmq.POLLOUT)

    def no_room(self, timeout_s: float) -> ConnectionLost:
        return ConnectionLost(
            f"the broker at {self._endpoint} took no publication for {timeout_s:g} s; is it busy, or stopped?"
        )

    @contextmanager
    def using(self) -> Iterator[None]:
        """Keeps the socket open while something is published, even if it is retired meanwhile."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """The conversation with the broker is over: close the socket, after what is just being published."""
        self._retired = True
        if not self._users:
            self.close(RETIRE_S)

    def close(self, linger_s: float) -> None:
        self._socket.close(int(linger_s * 1000))


class Subscription:
    """What is published under some prefixes, as `(topic, body)`; an iterator that ends when it is closed.

    The broker keeps the newest message of each topic: it comes first, and everything that is published after.
    """

    def __init__(
        self, dialect: str, prefixes: tuple[str, ...], address: str | None, context: zmq.Context[Any]
    ) -> None:
        check_topics(dialect)
        self._dialect = dialect
        self.invalid = 0
        self._prefixes = [prefix.encode() for prefix in prefixes or ("",)]
        self._endpoint = endpoint_for(dialect, "subscribe", address)
        self._context = context
        # What had arrived on a socket that was replaced.
        self._arrived: deque[list[bytes]] = deque()
        self._retired = False
        # Wakes up an event loop that waits for this subscription.
        self.wake: Callable[[], None] = lambda: None
        self._socket = self._open()

    def _open(self) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
        for prefix in self._prefixes:
            socket.setsockopt(zmq.SUBSCRIBE, prefix)
        _connect(socket, self._endpoint)
        return socket

    def retire(self) -> None:
        """The conversation with the broker is over: whoever reads this subscription replaces the socket.

        The reader may be another thread, and a socket belongs to one.
        """
        self._retired = True
        self.wake()

    @property
    def is_retired(self) -> bool:
        return self._retired and not self._socket.closed

    def renew(self) -> None:
        """Go on with a new socket. What the old one had received is still handed out."""
        self._retired = False
        while len(self._arrived) < RECEIVE_HWM and self._socket.poll(0, zmq.POLLIN):
            self._arrived.append(self._socket.recv_multipart())
        self._socket.close(0)
        self._socket = self._open()

    def get(self, timeout_s: float = math.inf) -> tuple[str, bytes] | None:
        """The next publication, or None if none came in time."""
        until = time.monotonic() + timeout_s
        while True:
            if self.is_retired:
                self.renew()
            found = self.take()
            left_s = until - time.monotonic()
            if found is not None or left_s <= 0:
                return found
            self._socket.poll(math.ceil(min(left_s, SIGNALS_S) * 1000), zmq.POLLIN)

    def take(self) -> tuple[str, bytes] | None:
        """A publication that has arrived already, if there is one."""
        while True:
            if self._arrived:
                frames = self._arrived.popleft()
            elif self._socket.poll(0, zmq.POLLIN):
                frames = self._socket.recv_multipart()
            else:
                return None
            try:
                return read_publication(self._dialect, frames)
            except RemoteProtocolError:
                self.invalid += 1

    @property
    def fd(self) -> int:
        """What an event loop watches (edge-triggered)."""
        return int(self._socket.getsockopt(zmq.FD))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        while not self._socket.closed:
            found = self.get()
            if found is not None:
                yield found

    def close(self) -> None:
        self._socket.close(0)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect(socket: zmq.Socket[bytes], endpoint: str) -> None:
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(f"cannot connect to {endpoint}: {error}") from error
