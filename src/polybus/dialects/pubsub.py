"""The publishing sockets: no tags, no commands, only topics.

Publishers send [topic, data …] to an XSUB socket.  Subscribers over TCP are the server's own affair
(`server.subscribers`); for those that come another way an XPUB socket hands us what they want, one frame
each: a first byte of 1 or 0 (wanted, no longer wanted) and the beginning of the topics.  Neither socket says
who sent a message.  How a publication is written for the subscribers of each dialect is here too; eMQP's
PUBLISH command is in `emqp`.
"""

from __future__ import annotations

from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import Body
from polybus.core.topics import receive
from polybus.dialects.port import Message
from polybus.errors import RemoteProtocolError
from polybus.wire import ebus
from polybus.wire.frames import EMPTY, MAX_BODY_FRAMES, MAX_NAME_BYTES, is_name, refuse


class PublishEar:
    """The ear of a socket that publishers send to."""

    def __init__(self, bus: Bus, dialect: str) -> None:
        self._bus = bus
        self._dialect = dialect

    def receive(self, link: int, frames: Message, now: float) -> None:
        # What `read_publish` does, without a message in between; it says what is wrong if anything is.
        if 0 < len(frames) <= MAX_BODY_FRAMES + 1:
            topic = frames[0]
            if type(topic) is bytes and is_name(topic):
                receive(self._bus, topic, frames[1:], now)
                return
        try:
            ebus.read_publish(frames)
        except RemoteProtocolError as error:
            _note(self._bus, link, self._dialect, error, now)


class SubscribeEar:
    """The ear of an XPUB socket. It says that a prefix is wanted as often as somebody wants it, and that it
    is no longer wanted once, after the last of them."""

    def __init__(self, bus: Bus, dialect: str) -> None:
        self._bus = bus
        self._dialect = dialect
        self._wanted: set[bytes] = set()

    def receive(self, link: int, frames: Message, now: float) -> None:
        try:
            wanted, prefix = _read_subscription(frames)
        except RemoteProtocolError as error:
            _note(self._bus, link, self._dialect, error, now)
            return
        if wanted and prefix not in self._wanted:
            # Whether it is known here or not, the socket serves it.
            if len(self._wanted) < self._bus.limits.subscriptions:
                self._wanted.add(prefix)
                self._bus.handle(events.Subscribe(link, prefix, True), now)
        elif not wanted and prefix in self._wanted:
            self._wanted.discard(prefix)
            self._bus.handle(events.Subscribe(link, prefix, False), now)


def ebus_publication(topic: bytes, body: Body) -> Message:
    return [topic, *body]


def emqp_publication(topic: bytes, body: Body) -> Message:
    """One body frame, even if there is none; what came in several stays in several."""
    return [topic, *body] if body else [topic, EMPTY]


def _read_subscription(frames: Message) -> tuple[bool, bytes]:
    if len(frames) != 1:
        raise refuse("length", f"a subscription has {len(frames)} frames; it takes 1")
    # No topic is longer than a name, so a longer prefix matches nothing and need not be kept.
    if not 1 <= len(frames[0]) <= MAX_NAME_BYTES + 1:
        raise refuse("bad_subscription", f"a subscription has {len(frames[0])} bytes")
    frame = bytes(frames[0])
    if frame[0] > 1:
        raise refuse("bad_subscription", "a subscription begins with a byte of 0 or 1")
    return frame[0] == 1, frame[1:]


def _note(bus: Bus, link: int, dialect: str, error: RemoteProtocolError, now: float) -> None:
    bus.handle(events.Invalid((link, EMPTY), dialect, error.reason, str(error)), now)
