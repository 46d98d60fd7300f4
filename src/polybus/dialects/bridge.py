"""Other brokers on the core: a dialect like the others, spoken in both directions over one link.

To the core a broker is a worker that offers what it can reach and a client whose requests have ids, so what
becomes of requests, of lost links and of answers is what becomes of them everywhere.  A request keeps its
name over all brokers: what is sent again because a link was lost runs once.

Who may link: every broker has a name, no two the same.  HELLO is answered with HELLO or DENIED and the
reason.  If two brokers dial each other, the link dialled by the one whose name comes first is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from msgspec import Struct

from polybus.core import events
from polybus.core.actions import ELSEWHERE, Beat, Fanout, Refuse, Say
from polybus.core.bridging import Advertise, Bridging, Parted
from polybus.core.bus import Bus
from polybus.core.intake import submit
from polybus.core.lifecycle import BusState
from polybus.core.model import PLAIN_CALL, Body, Heartbeat, JobOptions, Reason
from polybus.core.passage import Passage
from polybus.core.requests import finish, heard
from polybus.core.workers import bring_up
from polybus.dialects.bridge_voices import Peer
from polybus.dialects.port import Hear, Message, Rebuke, drop
from polybus.wire import bridge as wire
from polybus.wire import bridge_messages as say
from polybus.wire.frames import read_command, refuse

# Values sent to one new neighbour in a turn, and how soon the next ones follow.
VALUES_AT_ONCE: Final = 500
VALUES_EVERY_S: Final = 0.01
# Every one of them is told of every service: more are better joined by brokers between them.
NEIGHBOURS: Final = 256
# Why there is no link, in words that do not change.
LINKED: Final = "linked"
_REASONS: Final = {str(reason): reason for reason in Reason}


class Carry(Struct, frozen=True):
    """Send a publication to another broker."""

    peer: Peer
    topic: bytes
    frames: Message


class Link(Struct, frozen=True):
    """What a broker tells and demands of its neighbours."""

    name: str
    instance: str
    credit: int
    heartbeat_s: float
    liveness: int
    max_hops: int


class Bridge:
    name = "bridge"

    def __init__(
        self,
        bus: Bus,
        bridging: Bridging,
        passage: Passage,
        settings: Link,
        # Whether a broker of this name may link; True as second argument if we dialled it.
        is_allowed: Callable[[str, bool], bool] = lambda name, dialled: True,
    ) -> None:
        self._bus = bus
        self.bridging = bridging
        self.passage = passage
        self._settings = settings
        self._is_allowed = is_allowed
        # By link and identity; those that we dialled have an empty one.
        self.peers: dict[tuple[int, bytes], Peer] = {}
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {wire.TAG: (self.hear, drop)}
        self.next_at = inf

    # -- links ------------------------------------------------------------------------------------

    def dialled(self, link: int, endpoint: str) -> Peer:
        """The other end of a link that we dial."""
        peer = self.peers[link, b""] = Peer(self.bridging, link, None, endpoint)
        return peer

    def hello(self, label: str = "") -> Message:
        own = self._settings
        facts = say.Hello(wire.VERSION, own.name, own.instance, own.credit, own.heartbeat_s, label)
        return wire.write_hello(facts)

    def neighbours(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.is_up]

    def parted(self, action: Parted) -> None:
        """The core has let go of a neighbour."""
        peer = action.worker.voice
        if peer.worker is action.worker:
            peer.begin()
            peer.trouble = action.reason
            if peer.identity is not None:
                self.peers.pop((peer.link, peer.identity), None)

    def _on_hello(self, link: int, identity: bytes, hello: say.Hello, now: float) -> None:
        peer = self.peers.get((link, identity))
        if peer is not None and peer.is_up and peer.instance == hello.instance:
            return
        is_ours = peer is not None and peer.identity is None
        if peer is None:
            peer = Peer(self.bridging, link, identity)
            peer.label = hello.link
        why = self._why_not(peer, hello, now)
        if why is not None:
            peer.denied, peer.trouble = why
            self._say(peer, wire.write_denied(*why))
            return
        if not is_ours:
            self._say(peer, self.hello())
        self._link(peer, hello, now)

    def _link(self, peer: Peer, hello: say.Hello, now: float) -> None:
        settings = self._settings
        peer.begin()
        peer.name, peer.instance = hello.name, hello.instance
        peer.denied = peer.trouble = ""
        beat_s = max(settings.heartbeat_s, hello.heartbeat_s)
        heartbeat = Heartbeat(beat_s * settings.liveness, settings.heartbeat_s)
        peer.worker = bring_up(
            self._bus, events.WorkerUp(peer.address, peer, (), heartbeat, hello.credit, obeys_stop=True), now
        )
        assert peer.worker is not None
        self.peers[peer.link, peer.identity or b""] = peer
        self.bridging.join(peer.name, peer.worker, now)
        peer.pending = dict.fromkeys(self.passage.topics())
        self.next_at = now

    def _why_not(self, peer: Peer, hello: say.Hello, now: float) -> tuple[str, str] | None:
        """The reason and the words for people if there is to be no link."""
        own = self._settings
        is_ours = peer.identity is None
        if hello.version != wire.VERSION:
            mine = f"{own.name} speaks version {wire.VERSION} of the bridge"
            return "version", f"{mine}, its peer version {hello.version}; update the older broker"
        if hello.name == own.name:
            if hello.instance == own.instance:
                return "itself", f"{own.name} has dialled itself; take its own address out of bridge.peers"
            return "same_name", f"both brokers are called {own.name!r}; give each a bridge.name of its own"
        if not self._is_allowed(hello.name, is_ours):
            return "not_allowed", f"{hello.name!r} is not in bridge.allow of {own.name}"
        if self._bus.state is not BusState.SERVING:
            return "draining", f"{own.name} is shutting down"
        known = next((one for one in self.neighbours() if one.name == hello.name), None)
        if known is None:
            if len(self.neighbours()) >= NEIGHBOURS:
                return "full", f"{own.name} has {NEIGHBOURS} links; it takes no more"
            return None
        if known.instance != hello.instance:
            # If it is dead, this finds out.
            if known.worker is not None:
                self._bus.actions.append(Beat(known.worker))
            return "name_taken", f"another broker called {hello.name!r} is linked to {own.name}"
        same_side = (known.identity is None) == is_ours
        if known.label != peer.label if same_side else (own.name < hello.name) != is_ours:
            return LINKED, f"{own.name} and {hello.name} are linked already"
        self._bus.handle(events.WorkerGone(known.address, "it has linked anew"), now)
        return None

    def _say(self, peer: Peer, frames: Message) -> None:
        self._bus.actions.append(Say((peer.link, b""), [*peer.lead, *frames]))

    # -- hearing ----------------------------------------------------------------------------------

    def hear(self, link: int, frames: Message, at: int, now: float) -> None:
        message = read_command(wire.COMMANDS, frames, at)
        identity = bytes(frames[0])
        if isinstance(message, say.Hello):
            self._on_hello(link, identity, message, now)
            return
        peer = self.peers.get((link, identity))
        if isinstance(message, say.Denied | say.Bye):
            self._on_end(peer, message, now)
            return
        if peer is None or not peer.is_up or peer.worker is None:
            if peer is None:
                # It believes in a link that we do not know of.
                stranger = Peer(self.bridging, link, identity)
                self._say(stranger, wire.write_denied("unknown", "say HELLO first"))
            return
        heard(self._bus, peer.worker, now)
        on = self._ON.get(type(message))
        if on is not None:
            on(self, peer, message, now)

    def _on_end(self, peer: Peer | None, message: say.Denied | say.Bye, now: float) -> None:
        if peer is None:
            return
        was_up = peer.is_up
        # Nothing happens if it was not linked.
        self._bus.handle(events.WorkerGone(peer.address, f"it ended the link: {message.reason}"), now)
        if isinstance(message, say.Denied):
            peer.denied, peer.trouble = message.reason, message.text
        elif was_up:
            peer.trouble = message.reason

    def _on_advert(self, peer: Peer, message: say.Advert, now: float) -> None:
        self.bridging.hear(peer.name, message.offers, message.withdrawn, message.full, now)

    def _on_request(self, peer: Peer, message: say.Request, now: float) -> None:
        bus, own = self._bus, self._settings
        hops, service, request_id = message.hops, message.service, message.request_id
        if hops[-1] != peer.name:
            raise refuse("bad_path", f"a request of {peer.name!r} says that it comes from {hops[-1]!r}")
        client = bus.clients.get(peer.address)
        if client is None or request_id not in client.known:
            if not self.bridging.may_leave(service):
                self._refuse(peer, message, Reason.REJECTED, f"{own.name} does not lend this service")
                return
            if len(hops) > own.max_hops:
                detail = f"{len(hops)} brokers were passed; {own.name} allows {own.max_hops}"
                self._refuse(peer, message, Reason.UNDELIVERABLE, detail)
                return
            known = bus.services.get(service)
            path = self.bridging.routes.best(service) or ()
            if own.name in hops or not set(hops).isdisjoint(path):
                self._return(peer, message, "it would go in a circle")
                return
            if known is None or not known.roster.members:
                self._return(peer, message, f"nobody offers it at {own.name}")
                return
        options = PLAIN_CALL
        if message.timeout_s or message.other:
            options = JobOptions(timeout_s=message.timeout_s, other=message.other)
        ttl_s = inf if message.ttl_ms is None else message.ttl_ms / 1000
        voice = peer.caller(hops)
        submit(bus, peer.address, voice, request_id, service, message.body, now, options, ttl_s)

    def _refuse(self, peer: Peer, message: say.Request, reason: Reason, detail: str) -> None:
        self._bus.counters.rejected += 1
        voice = peer.caller(message.hops)
        refusal = Refuse(peer.address, voice, message.service, message.request_id, reason, detail, [])
        self._bus.actions.append(refusal)

    def _return(self, peer: Peer, message: say.Request, detail: str) -> None:
        self._refuse(peer, message, Reason.UNDELIVERABLE, f"{ELSEWHERE}{detail}")

    def _on_partial(self, peer: Peer, message: say.Partial, now: float) -> None:
        token = peer.token_of(message.request_id, is_last=False)
        if token is not None:
            self._bus.handle(events.Part(peer.address, token, message.body), now)

    def _on_reply(self, peer: Peer, message: say.Reply, now: float) -> None:
        token = peer.token_of(message.request_id)
        if token is not None:
            finish(self._bus, peer.address, token, message.body, now)

    def _on_refused(self, peer: Peer, message: say.Refused, now: float) -> None:
        token = peer.token_of(message.request_id)
        if token is None:
            return
        reason = _REASONS.get(message.reason)
        detail = message.detail
        if reason is None:
            reason, detail = Reason.FAILED, f"{message.reason}: {detail}"
        self._bus.handle(events.Failure(peer.address, token, detail, message.body, reason), now)

    def _on_return(self, peer: Peer, message: say.Return, now: float) -> None:
        token = peer.token_of(message.request_id)
        if token is not None and peer.worker is not None:
            self.bridging.given_back(peer.worker, token, now)

    def _on_cancel(self, peer: Peer, message: say.Cancel, now: float) -> None:
        client = self._bus.clients.get(peer.address)
        if client is None or message.request_id not in client.known:
            # It waits for a word before it takes the slot for free.
            detail = "it is not known here"
            self._say(peer, wire.write_refused(message.request_id, str(Reason.CANCELLED), detail))
            return
        self._bus.handle(events.Cancel(peer.address, message.request_id), now)

    # -- publications -----------------------------------------------------------------------------

    def publish(self, value: Fanout) -> None:
        """Something was published: other brokers hear of it if it was here."""
        number = self.passage.leave(value)
        if number is not None:
            hops = (self._settings.name,)
            for peer in self.neighbours():
                self._carry(
                    peer,
                    say.Publish(value.topic, self.passage.origin, number, value.at, hops, value.body),
                )

    def _on_publish(self, peer: Peer, message: say.Publish, now: float) -> None:
        own = self._settings
        peer.received += 1
        hops = message.hops
        if own.name in hops or len(hops) > own.max_hops:
            self.passage.duplicates += 1
            return
        body: Body = message.body
        if not self.passage.arrive(
            message.topic, body, message.origin, message.number, message.at, message.snapshot, now
        ):
            return
        further = say.Publish(
            message.topic,
            message.origin,
            message.number,
            message.at,
            (*hops, own.name),
            body,
            message.snapshot,
        )
        for other in self.neighbours():
            if other is not peer and other.name not in hops:
                self._carry(other, further)

    def _carry(self, peer: Peer, message: say.Publish) -> None:
        peer.published += 1
        self._bus.actions.append(Carry(peer, message.topic, [*peer.lead, *wire.write_publish(message)]))

    def not_carried(self, action: Carry) -> None:
        """A full pipe did not take it; the newest value of the topic follows when there is room."""
        peer = action.peer
        peer.published -= 1
        peer.dropped += 1
        if peer.is_up and self._bus.last.get(action.topic) is not None:
            peer.pending[action.topic] = None
            self.next_at = min(self.next_at, self._bus.swept_at + 1.0)

    def tick(self, now: float) -> None:
        """Send some of the values that new neighbours have to get."""
        if now < self.next_at:
            return
        self.next_at = inf
        hops = (self._settings.name,)
        for peer in self.neighbours():
            for topic in list(peer.pending)[:VALUES_AT_ONCE]:
                del peer.pending[topic]
                found = self.passage.value(topic)
                if found is not None:
                    value, origin, number = found
                    self._carry(peer, say.Publish(topic, origin, number, value.at, hops, value.body, True))
            if peer.pending:
                self.next_at = now + VALUES_EVERY_S

    def advertise(self, action: Advertise) -> list[tuple[Peer, Message]]:
        peer: Any = action.worker.voice
        return [(peer, frames) for frames in peer.advertise(action)]

    _ON: Final[dict[type, Callable[[Bridge, Peer, Any, float], None]]] = {
        say.Advert: _on_advert,
        say.Request: _on_request,
        say.Partial: _on_partial,
        say.Reply: _on_reply,
        say.Refused: _on_refused,
        say.Return: _on_return,
        say.Cancel: _on_cancel,
        say.Publish: _on_publish,
    }
