"""The links to other brokers: the port that they dial, and those that we dial, again and again if we must.

Every peer in `bridge.peers` has a DEALER socket of its own, which we connect ourselves, once for every
attempt: libzmq would connect it again without a word, and then nobody knew that a new conversation begins.
An attempt that is not answered is given up after a while, and each one gets twice as long as the last, a
little more or less by chance, so that brokers that lost each other together do not dial together.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from ipaddress import ip_address
from math import inf
from typing import Any, Final

import zmq
from msgspec import Struct

from polybus.config import BridgeSettings, Settings, endpoint
from polybus.core import actions as act
from polybus.core import events
from polybus.core.bridging import Advertise, Bridging, Parted
from polybus.core.bus import Bus
from polybus.core.passage import Passage
from polybus.dialects.bridge import LINKED, Bridge, Carry
from polybus.dialects.bridge import Link as Terms
from polybus.dialects.bridge_voices import Peer
from polybus.dialects.port import Message, RouterEar
from polybus.errors import ConfigError
from polybus.server.effects import Outbox
from polybus.server.links import Link, make_socket
from polybus.server.pump import Pump
from polybus.telemetry.logs import log
from polybus.wire.bridge import is_broker_name
from polybus.wire.frames import EMPTY

PORT: Final = "bridge.port"
# Pauses are this much longer or shorter by chance.
JITTER: Final = 0.25
# A name is taken for a while after a restart: that is no trouble before so many dials.
PATIENCE: Final = 6
# A peer that refuses us may change its mind, but not soon.
_PATIENT: Final = frozenset({LINKED, "itself", "same_name", "version", "not_allowed"})


class DealerEar:
    """The ear of a socket that we connected: there is no identity before the message, so it gets one."""

    def __init__(self, ear: RouterEar) -> None:
        self._ear = ear

    def receive(self, link: int, frames: Message, now: float) -> None:
        self._ear.receive(link, [EMPTY, *frames], now)


class Line(Struct):
    """A peer that we dial."""

    peer: Peer
    socket: zmq.Socket[bytes]
    pause_s: float
    # When to dial next, unless it is up by then.
    at: float = 0.0
    attempts: int = 0
    complained: str = ""


class Bridges:
    """All links to other brokers; none if the bridge has no name."""

    def __init__(self, bus: Bus, settings: Settings, instance: str = "") -> None:
        bridge = settings.bridge
        self._bus = bus
        self._settings = bridge
        self._lines: list[Line] = []
        self.is_on = bridge.enabled
        # When to look after the lines.
        self._look_at = inf
        if not self.is_on:
            return
        _check(bridge)
        instance = instance or secrets.token_hex(8)
        accepted = bridge.accept or ("*",)
        bus.bridging = Bridging(bus, bridge.name, bridge.max_hops, bridge.services, accepted)
        prefixes = tuple(prefix.encode() for prefix in bridge.topics)
        self.passage = Passage(bus, bridge.name, instance, prefixes)
        # To the core a peer is one client.
        credit = min(bridge.credit, settings.limits.outstanding_per_client)
        terms = Terms(bridge.name, instance, credit, bridge.heartbeat_s, bridge.liveness, bridge.max_hops)
        is_private = _is_private(endpoint(settings, PORT))
        self.dialect = Bridge(bus, bus.bridging, self.passage, terms, _admission(bridge, is_private))
        self.ear = RouterEar(bus, "bridge", self.dialect.tags)

    def open(
        self, context: zmq.Context[zmq.Socket[bytes]], settings: Settings, links: list[Link], frame_bytes: int
    ) -> None:
        """Make the sockets of the peers that we dial."""
        for place in self._settings.peers if self.is_on else ():
            socket = make_socket(context, zmq.DEALER, settings.broker, frame_bytes)
            socket.set(zmq.RECONNECT_IVL, -1)
            link = Link(len(links), f"bridge.peers {place}", socket, DealerEar(self.ear))
            links.append(link)
            peer = self.dialect.dialled(link.number, place)
            self._lines.append(Line(peer, socket, self._settings.retry_s))
        self._links = {link.number for link in links if link.name.startswith("bridge.")}
        self._look_at = 0.0

    def attach(self, outbox: Outbox, pump: Pump) -> None:
        """Say how what concerns other brokers is carried out."""
        if not self.is_on:
            return
        self._outbox, self._pump = outbox, pump
        fan_out = outbox.handlers[act.Fanout]

        def publish(action: act.Fanout) -> None:
            fan_out(action)
            self.dialect.publish(action)

        outbox.handlers[act.Fanout] = publish
        outbox.handlers[Advertise] = self._advertise
        outbox.refusals[Advertise] = self._not_advertised
        outbox.handlers[Parted] = self._parted
        outbox.handlers[Carry] = lambda action: outbox.put(action.peer.link, action.frames, action)
        outbox.refusals[Carry] = self.dialect.not_carried
        # A neighbour that does not read is linked anew, and asks again.
        outbox.links_without_waiting |= self._links

    def _advertise(self, action: Advertise) -> None:
        for peer, frames in self.dialect.advertise(action):
            self._outbox.put(peer.link, frames, action)

    def _not_advertised(self, action: Advertise) -> None:
        """It would believe what is true no more: better to begin anew."""
        worker = action.worker
        self._bus.handle(events.WorkerGone(worker.address, "its pipe is full"), self._bus.swept_at)

    def _parted(self, action: Parted) -> None:
        self.dialect.parted(action)
        for line in self._lines:
            if line.peer is action.worker.voice:
                line.pause_s = self._settings.retry_s
                line.at = self._bus.swept_at
        self._look_at = 0.0

    # -- in time ----------------------------------------------------------------------------------

    @property
    def next_at(self) -> float:
        return min(self._look_at, self.dialect.next_at) if self.is_on else inf

    def tick(self, now: float) -> None:
        """Dial who is to be dialled, and send what new neighbours have to get."""
        if not self.is_on:
            return
        self.dialect.tick(now)
        at = inf
        for line in self._lines:
            if line.peer.is_up:
                line.pause_s = self._settings.retry_s
                line.attempts = 0
                # Should it be lost, we are told; this is for the case that we are not.
                line.at = now + self._settings.retry_max_s
            elif now >= line.at:
                self._complain(line)
                self._dial(line, now)
            at = min(at, line.at)
        self._look_at = at

    def _dial(self, line: Line, now: float) -> None:
        place = line.peer.endpoint
        line.attempts += 1
        if line.peer.denied in _PATIENT:
            line.pause_s = self._settings.retry_max_s
        line.at = now + line.pause_s * random.uniform(1 - JITTER, 1 + JITTER)
        line.pause_s = min(2 * line.pause_s, self._settings.retry_max_s)
        line.peer.begin()
        with contextlib.suppress(zmq.ZMQError):
            # Never connected, or given up by libzmq already.
            line.socket.disconnect(place)
        try:
            line.socket.connect(place)
        except zmq.ZMQError as error:
            line.peer.trouble = f"cannot dial {place}: {error}"
            return
        self._pump.suspect(line.peer.link)
        self._outbox.put(line.peer.link, self.dialect.hello(place), None)

    def _complain(self, line: Line) -> None:
        """What a person has to put right is said once."""
        text = line.peer.trouble
        if line.peer.denied == "name_taken" and line.attempts < PATIENCE:
            return
        if line.peer.denied and line.peer.denied != LINKED and text != line.complained:
            line.complained = text
            log(f"no bridge to {line.peer.endpoint}: {text}", "error", peer=line.peer.endpoint)

    # -- what is seen -----------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        if not self.is_on:
            return {}
        peers = list(self.dialect.peers.values())
        bridging = self.dialect.bridging
        neighbours = bridging.routes.neighbours.values()
        return {
            "bridge": self._settings.name,
            "bridges_up": sum(peer.is_up for peer in peers),
            "bridge_services_ignored": bridging.ignored + sum(one.ignored for one in neighbours),
            "bridge_publications_dropped": sum(peer.dropped for peer in peers),
            "bridge_publications_repeated": self.passage.duplicates,
        }

    def views(self, question: dict[str, Any], now: float) -> list[dict[str, Any]]:
        """The answer to the question `bridges`: every link, up or not."""
        return [self._view(peer, now) for peer in self.dialect.peers.values()] if self.is_on else []

    def _view(self, peer: Peer, now: float) -> dict[str, Any]:
        bridging = self._bus.bridging
        assert bridging is not None
        nothing = dict.fromkeys(("up_s", "silent_s", "in_flight", "done", "offers", "told", "ignored"), None)
        return {
            "broker": peer.name,
            "endpoint": peer.endpoint,
            "dialled": peer.identity is None,
            "state": "up" if peer.is_up else "down",
            **(bridging.view(peer.name, now) if peer.is_up else nothing),
            "published": peer.published,
            "received": peer.received,
            "dropped": peer.dropped,
            "trouble": "" if peer.is_up else peer.trouble,
        }


def _check(settings: BridgeSettings) -> None:
    named = [("bridge.name", settings.name), *(("bridge.allow", name) for name in settings.allow)]
    for setting, name in named:
        if not is_broker_name(name):
            raise ConfigError(
                f"{setting} has {name!r}, which is no name for a broker: "
                "it takes 1 to 64 bytes of printable text."
            )
    for place in settings.peers:
        if "://" not in place:
            raise ConfigError(
                f"bridge.peers has {place!r}; it takes endpoints such as tcp://192.0.2.7:5241: the bridge "
                "port of another broker."
            )
    if len(set(settings.peers)) < len(settings.peers):
        raise ConfigError("bridge.peers names a broker twice; one link is enough for both directions.")


def _admission(settings: BridgeSettings, is_private: bool) -> Any:
    """Whether a broker may link: those that are allowed by name; without names those that we dial ourselves,
    and everybody while only this machine can reach us."""
    allowed = frozenset(settings.allow)

    def is_allowed(name: str, dialled: bool) -> bool:
        return name in allowed if allowed else dialled or is_private

    return is_allowed


def _is_private(place: str | None) -> bool:
    """Whether only this machine can reach an endpoint."""
    if place is None or not place.startswith("tcp://"):
        return True
    host = place.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
