"""DBP on the core: a catalog of services with leases, and calls to them.

The command frame is the tag.  Any peer may ask, register and serve, and whatever a service sends shows that
it is there.  What it sends out of turn ends its conversation with DISCONNECT: an answer that nobody waits
for, a second registration on the same socket, a heartbeat without a registration or with the name of another
node, a command that only brokers send.  After that, and after its own DISCONNECT, its registration has ended,
and it is sent nothing until it registers again.  (An answer of its may still count: no command is
sent for it.)

How a registered service gets its calls:

- as the document has it, on the DEALER socket that it registered on and keeps: REQUEST there, REPLY back,
  heartbeats both ways;
- at its own address, if the registration has `interfaces`.  The original implementation registers so, over a
  REQ socket that it closes at once.  We dial the address and call there.
- The field `transport` ("dealer" or "req") in the registration decides it where this rule does not fit; with
  "none" a node is listed and watched, but not called.

An answer does not say which call it belongs to, so it belongs to the oldest one.  A service may ask for more
calls at a time (`credit`) on its own socket if it answers in order; one that is dialled gets one at a time,
because ZeroMQ may reconnect to it between two calls without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from polybus.core import events
from polybus.core.actions import Answer, Deny, Dismiss, Say
from polybus.core.bus import Bus
from polybus.core.holders import worker_at
from polybus.core.intake import BUILT_IN
from polybus.core.leases import beat, is_mute, nodes_on
from polybus.core.ledger import NodeEntry
from polybus.core.model import Address, Heartbeat, Node, Reach, Worker
from polybus.dialects import dbp_catalog as catalog
from polybus.dialects.dbp_outbound import OutboundEar
from polybus.dialects.dbp_voices import DialledVoice, ExplainedEnds, NodeVoice, Wall
from polybus.dialects.port import Hear, Message, Rebuke, RouterEar, Voice, by_framing
from polybus.errors import RemoteProtocolError
from polybus.wire import dbp as wire
from polybus.wire.dbp_info import NodeInfo, RegistrationRefused, read_error, read_info
from polybus.wire.dbp_time import TimeForm

# By framing, then by the form of the time.
Voices = Sequence[Mapping[TimeForm, NodeVoice]]

# Who is dialled has no conversation to be watched: its lease is.
UNWATCHED: Final = Heartbeat(dead_after_s=0.0)
# The address of a conversation that ended with an earlier life of the broker.
NOBODY: Final[Address] = (-1, b"")
SILENT: Final = Voice()
# An identity has 255 bytes, and the core adds a number to what we give it.
MAX_IDENTITY_NAME: Final = 200


class How(Struct, frozen=True):
    """How a node registered: in the original's form or not, how it is called, how it writes the time."""

    is_original: bool
    transport: str
    form: TimeForm

    @property
    def text(self) -> str:
        return f"{'original' if self.is_original else 'document'}.{self.transport}.{self.form.value}"

    @classmethod
    def read(cls, text: str) -> How:
        style, transport, form = text.split(".")
        return cls(style == "original", transport, TimeForm(form))


class Dbp:
    """The dialect: what its commands mean on a DBP socket, and on the connections that we dial."""

    name = "dbp"

    def __init__(
        self,
        bus: Bus,
        wall: Wall,
        *,
        strict: bool = False,
        outbound_link: int | None = None,
        default_heartbeat_s: float = 0.0,
        broker: bytes = b"polybus",
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`wall` tells the time of day; `outbound_link` is the link on which `Dial` connects, without which
        services that are called at their own address are listed but not called; `default_heartbeat_s` is for
        registrations that name no heartbeat: such nodes are asked that often, 0 meaning never;
        `tell` gets why a conversation is ended, which DISCONNECT cannot say."""
        self._bus = bus
        self._strict = strict
        self._ended = ExplainedEnds(tell)
        self._outbound_link = outbound_link
        self._default_heartbeat_s = default_heartbeat_s
        # What the broker tells about itself to those who found it by its beacon.
        self.about: Callable[[], dict[str, Any]] = lambda: {"name": broker.decode()}

        # What nodes are told about heartbeats; the port for datagrams is known later.
        self.agreed: dict[str, Any] = {"liveness": bus.catalog.missed_beats}

        def voices(words: Mapping[TimeForm, bytes]) -> Voices:
            return by_framing(
                lambda lead: {
                    form: NodeVoice(lead, form, words[form], broker, wall, self.agreed, self._ended, strict)
                    for form in TimeForm
                }
            )

        # A refusal is said in the word that the peer knows. Which one that is follows from its registration,
        # and before that from how it writes the time: the original always packs a float.
        document = dict.fromkeys(TimeForm, wire.DENIED_STRICT)
        original = document if strict else dict.fromkeys(TimeForm, wire.DENIED)
        self.client_voices = voices({**document, TimeForm.FLOAT: original[TimeForm.FLOAT]})
        self._original_voices = voices(original)
        self._document_voices = voices(document)
        self._dialled_voices = {
            (form, is_original): DialledVoice(form, broker, wall, is_original and not strict)
            for form in TimeForm
            for is_original in (True, False)
        }
        self._handlers: dict[type, Callable[[Address, int, Any, float], None]] = {
            wire.Call: self._call,
            wire.Answer: self._answer,
            wire.InfoRequest: self._inform,
            wire.Registration: self._register,
            wire.Update: self._update,
            wire.Heartbeat: self._beat,
            wire.Disconnect: self._disconnect,
            wire.Acknowledge: self._sign_of_life,
            wire.Pong: self._sign_of_life,
            wire.Ping: self._pong,
            wire.Exit: self._refuse_exit,
        }
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {
            bytes(command): (self.hear, self.rebuke) for command in wire.BROKER_COMMANDS
        }
        for command in wire.COMMANDS_OF_BROKERS:
            self.tags[command] = (self._hear_broker_command, self.rebuke)
        # What begins with no known command is as invalid as what cannot be read.
        self.ear = RouterEar(bus, self.name, self.tags, self.rebuke)
        self.outbound_ear = OutboundEar(bus, self._leave)

    def hear(self, link: int, frames: Message, at: int, now: float) -> None:
        message = wire.read_from_node(frames, at)
        address = (link, bytes(frames[0]))
        if address in self._ended and not self._is_heard(address, message):
            # Our DISCONNECT may still be on its way to it, so that is no mistake.
            self._bus.counters.late += 1
            return
        worker = self._bus.workers.get(address)
        if worker is not None:
            worker.seen_at = now
        self._handlers[type(message)](address, at, message, now)

    def _hear_broker_command(self, link: int, frames: Message, at: int, now: float) -> None:
        """APPROVED and DENIED are commands, but nobody sends them to a broker."""
        message = wire.read_as_node(frames, at)
        address = (link, bytes(frames[0]))
        if address in self._ended:
            self._bus.counters.late += 1
            return
        word = type(message).__name__.upper()
        voice = self.client_voices[at][message.form]
        self._end(address, voice, f"it sent {word}, which only brokers send", now)

    def _is_heard(self, address: Address, message: wire.BrokerReads) -> bool:
        """Whether what a disconnected peer says means anything."""
        if type(message) is wire.Registration:
            self._ended.discard(address)
        return type(message) is wire.Registration or type(message) is wire.Answer

    def rebuke(self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float) -> None:
        address = (link, bytes(frames[0]))
        if isinstance(error, RegistrationRefused):
            is_update = bytes(frames[at]) == wire.UPDATE
            if is_update and address in self._ended:
                # Only a registration begins anew.
                return
            if not is_update and self._serves(address):
                self._end(address, self.client_voices[at][error.form], "a second registration", now)
                return
            if not is_update:
                self._ended.discard(address)
            self._deny(address, self.client_voices[at][error.form], error.reasons)
            return
        worker = self._bus.workers.get(address)
        if worker is not None:
            # An invalid message is dropped and its sender treated as invalid.
            self._end(address, worker.voice, f"it sent an invalid message: {error}", now)
        elif (nodes := nodes_on(self._bus, address)) and address not in self._ended:
            # So is one that registered here, and is called elsewhere or not at all.
            self._end(address, nodes[0].voice, f"it sent an invalid message: {error}", now)

    # -- clients ----------------------------------------------------------------------------------

    def _call(self, address: Address, at: int, message: wire.Call, now: float) -> None:
        voice = self.client_voices[at][message.form]
        self._beat_nodes(address, now)
        self._bus.handle(events.Submit(address, voice, b"", message.service, message.body), now)

    def _inform(self, address: Address, at: int, message: wire.InfoRequest, now: float) -> None:
        voice = self.client_voices[at][message.form]
        self._beat_nodes(address, now)
        if message.service == wire.BROKER:
            body = [catalog.introduce(self.about())]
        elif message.several and not catalog.is_known(self._bus, message.service):
            body = [catalog.describe_several(self._bus, message.several)]
        elif message.service.startswith(BUILT_IN):
            # Asking about the broker's own (`polybus.monitor`) is asking it.
            self._bus.handle(events.Submit(address, voice, b"", message.service, []), now)
            return
        else:
            body = [catalog.describe(self._bus, message.service)]
        self._bus.actions.append(Answer(address, voice, message.service, b"", body))

    def _pong(self, address: Address, at: int, message: wire.Ping, now: float) -> None:
        self._beat_nodes(address, now)
        self._bus.actions.append(Say(address, self.client_voices[at][message.form].pong(address)))

    def _refuse_exit(self, address: Address, at: int, message: wire.Exit, now: float) -> None:
        reasons = ("nobody on the network may stop this broker",)
        self._deny(address, self.client_voices[at][message.form], reasons)

    # -- services ---------------------------------------------------------------------------------

    def _answer(self, address: Address, at: int, message: wire.Answer, now: float) -> None:
        bus = self._bus
        worker = worker_at(bus, address, now)
        if worker is None or not worker.inflight:
            bus.counters.late += 1
            self._end(address, self.client_voices[at][message.form], "an answer that nobody waits for", now)
            return
        error = read_error(message.body)
        if error is None:
            bus.handle(events.Result(address, b"", message.body), now)
        else:
            bus.handle(events.Failure(address, b"", error, [error.encode()]), now)
        if address not in bus.workers and not nodes_on(bus, address):
            # It was silent for so long that its lease ended; its answer counted, now it must register again.
            self._end(address, worker.voice, "its lease ended", now)

    def _sign_of_life(
        self, address: Address, at: int, message: wire.Acknowledge | wire.Pong, now: float
    ) -> None:
        self._signal(address, self.client_voices[at][message.form], now)

    def _signal(self, address: Address, voice: Voice, now: float) -> None:
        """Whoever is registered on this connection is there."""
        bus = self._bus
        worker_at(bus, address, now)
        for node in nodes_on(bus, address):
            if is_mute(node):
                # As with a heartbeat that names it: it has to register again.
                bus.handle(events.NodeBeat(address, voice, node.name), now)
                return
        has_nodes = self._beat_nodes(address, now)
        if address in bus.workers or not has_nodes:
            bus.handle(events.Heard(address, voice), now)

    def _beat_nodes(self, address: Address, now: float) -> bool:
        """Any command keeps those alive that are registered on this connection and called elsewhere or not at
        all; they are no workers on it. One that was called here and whose conversation is lost has to
        register again, so it is not kept. Returns whether anything is registered here."""
        if address not in self._bus.catalog.registered_on:
            return False
        worker = self._bus.workers.get(address)
        nodes = nodes_on(self._bus, address)
        for node in nodes:
            # One that it wants to move meanwhile must show itself.
            claim = self._bus.catalog.claims.get(node.name)
            is_served_here = worker is not None and node.worker is worker
            is_claimed = claim is not None and claim.event.node == address
            # One that is silent with a call may still answer it.
            is_lost = is_mute(node) and address not in self._bus.silent
            if not is_served_here and not is_claimed and not is_lost:
                beat(self._bus, node, now)
        return bool(nodes)

    def _serves(self, address: Address) -> bool:
        """Whether a node is called on this connection, or will be as soon as its registration is on disk."""
        if address in self._bus.workers:
            return True
        for node in nodes_on(self._bus, address):
            if not node.admitted and node.serves is not None and not node.serves.endpoint:
                return True
        return False

    def _beat(self, address: Address, at: int, message: wire.Heartbeat, now: float) -> None:
        bus = self._bus
        voice = self.client_voices[at][message.form]
        worker = worker_at(bus, address, now)
        name = message.name
        if worker is not None:
            # Our acknowledgement says as much as a heartbeat of ours.
            worker.spoken_at = now
            name = name or _name_of(worker)
        if name:
            bus.handle(events.NodeBeat(address, voice, name), now)
        else:
            self._signal(address, voice, now)

    def _disconnect(self, address: Address, at: int, message: wire.Disconnect, now: float) -> None:
        bus = self._bus
        node = bus.nodes.get(message.name)
        if node is None or node.address == address or address in bus.workers:
            # Unless it spoke for somebody else, it is sent nothing more.
            self._ended.add(address)
        if address not in bus.workers:
            # Without a name: whatever was registered from here.
            bus.handle(events.NodeLeft(address, message.name, self.client_voices[at][message.form]), now)
        self._leave(address, "it disconnected", now)

    # -- the catalog ------------------------------------------------------------------------------

    def _register(self, address: Address, at: int, message: wire.Registration, now: float) -> None:
        info = message.info
        by_form = self._original_voices if info.interfaces else self._document_voices
        voice = by_form[at][message.form]
        if self._serves(address):
            self._end(address, voice, "a second registration", now)
            return
        how = How(info.is_upstream_form, catalog.transport_of(info), message.form)
        self._bus.handle(self._registration(info, address, voice, how, self._lacks(info)), now)

    def _registration(
        self, info: NodeInfo, address: Address, voice: Voice, how: How, reasons: tuple[str, ...] = ()
    ) -> events.Register:
        return events.Register(
            address,
            voice,
            info.name,
            catalog.entry_of(info),
            self._heartbeat_s(info),
            reasons,
            self._serving(info, address, voice, how),
            how.text,
            catalog.source_of(info),
            self._reach(info, how),
            quiet=info.heartbeat_s is None,
        )

    def revive(self, entry: NodeEntry) -> events.Register | None:
        """A registration that was made in an earlier life of the broker."""
        try:
            how = How.read(entry.how)
            info = read_info(
                msgspec.json.encode({**msgspec.json.decode(entry.info), "name": entry.name.decode()}),
                how.form,
            )
        except (ValueError, RemoteProtocolError):
            # A later version may write what this one does not know.
            return None
        return self._registration(info, NOBODY, SILENT, how)

    def _update(self, address: Address, at: int, message: wire.Update, now: float) -> None:
        bus = self._bus
        voice = self.client_voices[at][message.form]
        node = bus.nodes.get(message.name)
        if node is None:
            bus.handle(events.UpdateNode(address, voice, message.name, {}), now)
            return
        info = catalog.updated(node, message.changes, message.form)
        how = How.read(node.how)
        # As before, unless it says so: the entry that is kept does not tell how the node registered.
        chosen = message.changes.get("extra", {}).get("transport")
        how = How(how.is_original, chosen or how.transport, message.form)
        event = events.UpdateNode(
            address,
            voice,
            message.name,
            catalog.entry_of(info),
            self._heartbeat_s(info),
            self._serving_now(node, info, how),
            how.text,
            catalog.source_of(info),
            self._reach(info, how),
            quiet=info.heartbeat_s is None,
            missing=self._lacks(info),
            moves=catalog.moves(node, info),
        )
        bus.handle(event, now)

    def _lacks(self, info: NodeInfo) -> tuple[str, ...]:
        return catalog.lacks(info, self._strict)

    def _serving(self, info: NodeInfo, address: Address, voice: Voice, how: How) -> events.WorkerUp | None:
        if how.transport == catalog.NOWHERE:
            return None
        if how.transport == catalog.OWN_ADDRESS:
            return self._dialled(info, how)
        heartbeat = self._heartbeat(info)
        return events.WorkerUp(address, voice, ((info.name, 0),), heartbeat, info.credit)

    def _serving_now(self, node: Node, info: NodeInfo, how: How) -> events.WorkerUp | None:
        """How a node is called after an UPDATE: as before, unless it moved or chose its own address."""
        serves = node.serves
        if serves is not None and not serves.endpoint and how.transport != catalog.OWN_ADDRESS:
            return structs.replace(serves, heartbeat=self._heartbeat(info))
        return None if how.transport == catalog.NOWHERE else self._dialled(info, how)

    def _dialled(self, info: NodeInfo, how: How) -> events.WorkerUp | None:
        reach = self._reach(info, how)
        if reach is None:
            return None
        return events.WorkerUp(
            reach.place, reach.voice, ((info.name, 0),), UNWATCHED, endpoint=reach.endpoint
        )

    def _reach(self, info: NodeInfo, how: How) -> Reach | None:
        """Where a node is asked that has no conversation, or called at its own address."""
        endpoint = catalog.endpoint_of(info)
        if self._outbound_link is None or info.ip is None or not endpoint or not catalog.is_address(info.ip):
            return None
        place = (self._outbound_link, b"node:" + info.name[:MAX_IDENTITY_NAME])
        return Reach(place, endpoint, self._dialled_voices[how.form, how.is_original])

    def _heartbeat_s(self, info: NodeInfo) -> float:
        return self._default_heartbeat_s if info.heartbeat_s is None else info.heartbeat_s

    def _heartbeat(self, info: NodeInfo) -> Heartbeat:
        every_s = self._heartbeat_s(info)
        return Heartbeat(dead_after_s=every_s * self._bus.catalog.missed_beats, beat_every_s=every_s)

    # -- endings ----------------------------------------------------------------------------------

    def _deny(self, address: Address, voice: Voice, reasons: tuple[str, ...]) -> None:
        self._bus.counters.rejected += 1
        self._bus.actions.append(Deny(address, voice, b"", reasons))

    def _leave(self, address: Address, why: str, now: float) -> None:
        """Whoever serves or asks at this address is gone, with its lease: it is sent nothing more."""
        bus = self._bus
        bus.handle(events.ClientGone(address, withdraw=False), now)
        worker = bus.workers.get(address)
        if worker is None:
            return
        node = bus.nodes.get(_name_of(worker))
        if node is not None and node.worker is worker:
            bus.handle(events.NodeLeft(address, node.name), now)
        bus.handle(events.WorkerGone(address, why), now)

    def _end(self, address: Address, voice: Voice, why: str, now: float) -> None:
        """A peer sent what nobody expected: nothing more is sent to it."""
        self._leave(address, why, now)
        # Also what was registered here and is called elsewhere or not at all.
        self._bus.handle(events.NodeLeft(address, b""), now)
        self._bus.actions.append(Dismiss(address, voice, why))


def _name_of(worker: Worker) -> bytes:
    """The one service that a DBP worker offers."""
    for service in worker.offers:
        return service.name
    return b""
