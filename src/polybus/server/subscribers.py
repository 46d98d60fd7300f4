"""The subscribers of the broker: raw connections on which we are the XPUB socket.

libzmq's own XPUB cannot say something to one subscriber alone, so it cannot give a new one the last values
without a gap or a repetition.  A STREAM socket can: libzmq still accepts, reads and writes in its own thread,
and hands us the bytes of each connection.  We speak ZMTP there (`wire.zmtp`), and subscribers notice nothing.

Order is what makes it exact.  A subscription takes the last values as they are when it is read, and its
subscriber joins in the order of the bus's actions: publications before it are in those values, publications
after it come live, and none is both.  Who gets the same is in `audiences`, how it gets there in `delivery`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from polybus.core import events
from polybus.core.actions import Fanout
from polybus.core.bus import Bus
from polybus.dialects.port import Message
from polybus.errors import RemoteProtocolError
from polybus.server.audiences import Hall
from polybus.server.delivery import Delivery
from polybus.server.subscriber import Subscriber
from polybus.wire import zmtp
from polybus.wire.frames import EMPTY, MAX_NAME_BYTES, refuse
from polybus.wire.zmtp import write_message

# Writes a publication in the words of one dialect.
Publication = Callable[[bytes, list[Any]], Message]

# Whoever has not introduced itself by then is no subscriber.
HANDSHAKE_S: Final = 10.0
# A moment in which a peer that is turned away can read why.
FAREWELL_S: Final = 1.0
# While so many bytes of values are on their way to a subscriber, its next subscription waits unread; one
# that goes on asking all the same, without reading, is cut off.
OWED_BYTES: Final = 256 * 1024
UNREAD_BYTES: Final = 1024 * 1024
# When a turn has looked up so many values, further subscriptions wait for the next: after a restart everybody
# asks for everything at once.
TURN_VALUES: Final = 100_000
# More prefixes than this are better asked for with a shorter one.
PREFIXES: Final = 10_000
SUBSCRIBER_TYPES: Final = (b"SUB", b"XSUB")


class Join(Struct, frozen=True):
    """From here on a subscriber gets what begins with `prefix`, and these values before."""

    subscriber: Subscriber
    prefix: bytes
    values: list[Fanout]
    owed: int


class Leave(Struct, frozen=True):
    subscriber: Subscriber
    prefix: bytes


class Subscribers:
    """All of them, on all links that are theirs."""

    def __init__(self, bus: Bus, pipe_messages: int, pipe_bytes: int) -> None:
        self._bus = bus
        self.delivery = Delivery(pipe_messages, pipe_bytes)
        # By link: the name of the dialect, who wants what, and how it is written there.
        self._dialects: dict[int, str] = {}
        self._halls: dict[int, Hall] = {}
        self._publications: dict[int, Publication] = {}
        self._open_halls: list[tuple[int, Hall]] = []
        self._peers: dict[tuple[int, bytes], Subscriber] = {}
        self._prefixes = 0
        # Who said more than is read, who has not introduced itself, who is turned away and until when, who
        # promised to be heard of.
        self._unread: dict[Subscriber, None] = {}
        self._strangers: dict[Subscriber, None] = {}
        self._closing: dict[Subscriber, float] = {}
        self._mortal: dict[Subscriber, None] = {}
        # How many values were looked up in this turn, and when we last looked after everybody.
        self._looked_up = 0
        self._looked_at = 0.0
        self.handlers: dict[type, Callable[[Any], None]] = {
            Fanout: self.fan_out,
            Join: self._join,
            Leave: self._leave,
        }

    def add(self, link: int, dialect: str, publication: Publication) -> None:
        """One more link on which subscribers come."""
        self._dialects[link] = dialect
        self._halls[link] = Hall()
        self._publications[link] = publication
        self._open_halls = list(self._halls.items())

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def next_at(self) -> float:
        """When there is something to do, whether anything happens or not."""
        can_read = any(peer.owed <= OWED_BYTES for peer in self._unread)
        return 0.0 if can_read else self.delivery.next_at

    def facts(self) -> dict[str, Any]:
        slow = sum(1 for peer in self._peers.values() if peer.is_behind)
        return {
            "subscribers": len(self._peers),
            "subscribers_behind": slow,
            "publications_dropped": self.delivery.dropped,
        }

    def views(self, now: float) -> list[dict[str, Any]]:
        """All subscribers, those that missed most first."""
        peers = sorted(self._peers.values(), key=lambda peer: -peer.dropped)
        return [{"dialect": self._dialects[peer.link], **peer.view(now)} for peer in peers]

    # -- publications -------------------------------------------------------------------------------

    def fan_out(self, action: Fanout) -> None:
        """Put a publication where it will be sent from at the end of the turn."""
        topic = action.topic
        delivery = self.delivery
        for link, hall in self._open_halls:
            audiences = hall.find(topic)
            if not audiences:
                continue
            form = action.form
            if form is None:
                form = self._write(action)
            if type(form) is not bytes:
                form = form[link]
            for audience in audiences:
                delivery.note(audience, form)

    def _write(self, action: Fanout) -> Any:
        """The bytes of a publication: the same for all links, or by link where dialects differ."""
        messages = [write(action.topic, action.body) for write in self._publications.values()]
        first = messages[0]
        for message in messages:
            if message != first:
                action.form = dict(zip(self._publications, map(write_message, messages), strict=True))
                return action.form
        action.form = write_message(first)
        return action.form

    def _written_for(self, link: int) -> Callable[[Fanout], bytes]:
        def written(value: Fanout) -> bytes:
            form = value.form if value.form is not None else self._write(value)
            data: bytes = form if type(form) is bytes else form[link]
            return data

        return written

    def say(self, dialect: str, topic: bytes, body: list[Any]) -> None:
        """Tell the subscribers of one dialect something that is no last value."""
        for link, hall in self._open_halls:
            if self._dialects[link] == dialect:
                form = write_message(self._publications[link](topic, body))
                for audience in hall.find(topic):
                    self.delivery.note(audience, form)

    def flush(self, now: float) -> None:
        """The end of a turn: send what it brought, and what waited before."""
        self._looked_up = 0
        for peer in self.delivery.flush(now):
            self._forget(peer, now)
        if now - self._looked_at >= FAREWELL_S:
            self._looked_at = now
            self._look_after(now)

    # -- what they say ------------------------------------------------------------------------------

    def receive(self, link: int, frames: Message, now: float) -> None:
        """Bytes of a connection; none mean that it begins or ends."""
        identity = bytes(frames[0])
        peer = self._peers.get((link, identity))
        if peer is None:
            if not len(frames[1]):
                self._greet(link, identity, now)
        elif not len(frames[1]):
            self._forget(peer, now)
        elif not peer.is_closing:
            peer.heard_at = now
            peer.parser.feed(bytes(frames[1]))
            self._read(peer, now)

    def resume(self, now: float) -> None:
        """Read on where somebody had to wait. Before the actions of a turn are carried out."""
        if self._unread:
            for peer in list(self._unread):
                if self._looked_up >= TURN_VALUES:
                    break
                if peer.owed <= OWED_BYTES:
                    del self._unread[peer]
                    self._read(peer, now)

    def _greet(self, link: int, identity: bytes, now: float) -> None:
        peer = Subscriber(link, identity, self._halls[link], now)
        self._peers[link, identity] = peer
        self._strangers[peer] = None
        self.delivery.push(peer, zmtp.GREETING, 0)

    def _read(self, peer: Subscriber, now: float) -> None:
        try:
            while peer.owed <= OWED_BYTES and self._looked_up < TURN_VALUES and not peer.is_closing:
                said = peer.parser.next()
                if said is None:
                    break
                _HEAR[type(said)](self, peer, said, now)
            else:
                if not peer.is_closing:
                    self._unread[peer] = None
            if peer.parser.unread > UNREAD_BYTES:
                raise refuse("too_much", "it asks for more and more and does not read the answers")
        except RemoteProtocolError as error:
            self._turn_away(peer, error, now)

    def _greeted(self, peer: Subscriber, said: zmtp.Greeted, now: float) -> None:
        self.delivery.push(peer, zmtp.write_ready(b"XPUB"), 0)

    def _ready(self, peer: Subscriber, said: zmtp.Ready, now: float) -> None:
        if said.socket_type not in SUBSCRIBER_TYPES:
            raise refuse("socket_type", f"a {said.socket_type[:16]!r} socket has nothing to do here; use SUB")
        peer.is_ready = True
        del self._strangers[peer]

    def _subscription(self, peer: Subscriber, said: zmtp.Subscription, now: float) -> None:
        prefix = said.prefix
        if len(prefix) > MAX_NAME_BYTES:
            # No topic is longer than a name, so a longer prefix matches nothing and need not be kept.
            self._invalid(peer, "bad_subscription", f"a subscription has {len(prefix)} bytes", now)
        elif said.wanted:
            if not peer.wants(prefix):
                self._subscribe(peer, prefix, now)
        elif peer.wants(prefix):
            peer.unwant(prefix)
            self._prefixes -= 1
            self._bus.handle(events.Subscribe(peer.link, prefix, False), now)
            self._bus.actions.append(Leave(peer, prefix))

    def _subscribe(self, peer: Subscriber, prefix: bytes, now: float) -> None:
        bus = self._bus
        if len(peer.wanted) >= PREFIXES or self._prefixes >= bus.limits.subscriptions:
            raise refuse("too_many_subscriptions", "too many subscriptions; subscribe to shorter prefixes")
        # What it has from another subscription it must not get twice.
        values = [] if peer.covers(prefix) else bus.last.matching(prefix, peer.longer(prefix))
        owed = sum(value.size for value in values)
        self._looked_up += len(values)
        peer.owed += owed
        peer.want(prefix)
        self._prefixes += 1
        bus.handle(events.Subscribe(peer.link, prefix, True), now)
        bus.actions.append(Join(peer, prefix, values, owed))

    def _ping(self, peer: Subscriber, said: zmtp.Ping, now: float) -> None:
        peer.ttl_s = said.ttl_s
        if said.ttl_s:
            self._mortal[peer] = None
        if not self.delivery.is_stuck(peer):
            # Whoever does not read does not see an answer either.
            self.delivery.push(peer, zmtp.write_pong(said.context), 0)

    def _pong(self, peer: Subscriber, said: zmtp.Pong, now: float) -> None:
        """It was heard of, that is all."""

    def _failed(self, peer: Subscriber, said: zmtp.Failed, now: float) -> None:
        raise refuse("error", f"it sent an error: {said.reason[:100]}")

    def _stray(self, peer: Subscriber, said: zmtp.Stray, now: float) -> None:
        self._invalid(peer, "bad_subscription", said.detail, now)

    def _invalid(self, peer: Subscriber, reason: str, detail: str, now: float) -> None:
        address = (peer.link, peer.identity)
        self._bus.handle(events.Invalid(address, self._dialects[peer.link], reason, detail), now)

    # -- joining and leaving ------------------------------------------------------------------------

    def _join(self, action: Join) -> None:
        peer = action.subscriber
        if peer.is_gone or peer.is_closing:
            return
        self.delivery.deliver(peer.audience)
        audience = peer.hall.with_more(peer, action.prefix)
        self.delivery.deliver(audience)
        peer.hall.seat(peer, audience)
        if action.values:
            self.delivery.push_values(peer, action.values, self._written_for(peer.link), action.owed)

    def _leave(self, action: Leave) -> None:
        peer = action.subscriber
        if peer.is_gone or peer.is_closing:
            return
        self.delivery.deliver(peer.audience)
        audience = peer.hall.with_less(peer, action.prefix)
        self.delivery.deliver(audience)
        peer.hall.seat(peer, audience)

    def _turn_away(self, peer: Subscriber, error: RemoteProtocolError, now: float) -> None:
        """Tell it why, and hang up a moment later."""
        self._invalid(peer, error.reason, str(error), now)
        self._let_go(peer, now)
        peer.is_closing = True
        self._closing[peer] = now + FAREWELL_S
        self.delivery.push(peer, zmtp.write_error(error.reason), 0)

    def _forget(self, peer: Subscriber, now: float) -> None:
        """The connection is over."""
        if peer.is_gone:
            return
        peer.is_gone = True
        del self._peers[peer.link, peer.identity]
        self._let_go(peer, now)
        self.delivery.forget(peer)
        self._closing.pop(peer, None)

    def _let_go(self, peer: Subscriber, now: float) -> None:
        """It wants nothing any more."""
        peer.hall.seat(peer, None)
        self._prefixes -= len(peer.wanted)
        wanted, peer.wanted = peer.wanted, []
        for prefix in wanted:
            self._bus.handle(events.Subscribe(peer.link, prefix, False), now)
        for known in (self._unread, self._strangers, self._mortal):
            known.pop(peer, None)

    def _look_after(self, now: float) -> None:
        """About every second: who is silent for too long, and who had time enough to read a farewell."""
        for peer in list(self._strangers):
            if now - peer.since > HANDSHAKE_S:
                detail = f"no handshake within {HANDSHAKE_S:g} s"
                self._turn_away(peer, RemoteProtocolError("handshake", detail), now)
        for peer in list(self._mortal):
            if peer.ttl_s and now - peer.heard_at > peer.ttl_s:
                detail = f"it said that it would be heard of within {peer.ttl_s:g} s"
                self._turn_away(peer, RemoteProtocolError("silent", detail), now)
        leaving = [peer for peer, at in self._closing.items() if now >= at]
        if leaving:
            refused = dict(self.delivery.send([(peer.link, [peer.identity, EMPTY]) for peer in leaving]))
            for position, peer in enumerate(leaving):
                # A full pipe takes no end either; the next time, perhaps.
                if refused.get(position) != errno.EAGAIN:
                    self._forget(peer, now)


_HEAR: Final[dict[type, Callable[[Subscribers, Subscriber, Any, float], None]]] = {
    zmtp.Greeted: Subscribers._greeted,
    zmtp.Ready: Subscribers._ready,
    zmtp.Subscription: Subscribers._subscription,
    zmtp.Ping: Subscribers._ping,
    zmtp.Pong: Subscribers._pong,
    zmtp.Failed: Subscribers._failed,
    zmtp.Stray: Subscribers._stray,
}
