"""Carrying out what the bus asks for.

`Outbox.add` turns actions into messages; `Outbox.send` hands them to the pump in one batch and
turns every refusal back into an event, so that nothing is lost without the core knowing:
EHOSTUNREACH means that the peer is gone, EAGAIN that its pipe is full: what a client has no room for waits
(`pending`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any, Final

from polybus.core import actions as act
from polybus.core import events
from polybus.core.actions import Answer, Deliver
from polybus.core.bus import Bus
from polybus.core.model import Address, Reason
from polybus.core.records import Worker
from polybus.errors import LocalProtocolError
from polybus.server.dialled import Dialled
from polybus.server.pending import RECEIVERS, Pending
from polybus.server.pump import Pump
from polybus.wire.context import asks_again
from polybus.wire.frames import Frame

Message = list[Frame]
# Writes a publication in the words of one subscriber link.
Publication = Callable[[bytes, list[Any]], Message]
Handler = Callable[[Any], None]
# What takes a message in: link, frames, now.
Receive = Callable[[int, Message, float], None]


# What may be said between two requests of one message to a worker, because it is said to others.
TO_OTHERS: Final = frozenset({act.Accept, act.Stream, act.Refuse, act.Fanout, act.Observed})


class Parcel:
    """A message to a worker that has, or may get, more requests than one."""

    __slots__ = ("delivers", "message")

    def __init__(self, message: Message, first: Deliver) -> None:
        self.message = message
        self.delivers = [first]


class Outbox:
    """The messages of one turn of the loop, each with the action it came from."""

    def __init__(self, bus: Bus, pump: Pump) -> None:
        self._bus = bus
        self._pump = pump
        self._messages: list[tuple[int, Message]] = []
        self._sources: list[Any] = []
        self.pending = Pending(pump, self._answer_lost)
        # The connections to nodes that were dialled, which are no sockets of the pump.
        self.dialled: Dialled | None = None
        # Links to peers that do not wait for what they have no room for.
        self.links_without_waiting: set[int] = set()
        # Where publications go that libzmq hands to its subscribers: link number and how it is written there.
        self.subscribers: list[tuple[int, Publication]] = []
        # Called for a publication that a full subscriber did not take: (link, message).
        self.on_full_subscriber: Callable[[int, Message], None] = lambda link, message: None
        # What else is to be told of refused messages, by the action they came from.
        self.refusals: dict[type, Handler] = {}
        # Actions that are not messages to a peer; the server adds its own.
        self.handlers: dict[type, Handler] = {
            act.Accept: self._accept,
            act.Stream: self._stream,
            act.Refuse: self._refuse,
            act.Stop: self._stop,
            act.Beat: self._beat,
            act.Dismiss: self._dismiss,
            act.Reschedule: self._reschedule,
            act.Fanout: self.fan_out,
            act.Approve: self._approve,
            act.Deny: self._deny,
            act.Acknowledge: self._acknowledge,
            act.Say: self._say,
            act.Ask: self._ask,
        }

    def hear(
        self,
        batch: list[tuple[int, Message]],
        receive: list[Receive],
        now: float,
        survive: Callable[[int, Message], None],
    ) -> None:
        """Hand every message of a batch to the ear of its link."""
        for link, frames in batch:
            try:
                receive[link](link, frames, now)
            except Exception:  # a bug of ours must cost one message, not everybody's broker
                survive(link, frames)

    def settle(self, now: float) -> None:
        """Carry out all actions, and those that follow from refusals, until none is left."""
        # What was put here directly (answers of the admin socket) goes out even if nothing else happened.
        while self._bus.actions or self._messages:
            self._add(self._bus.take(), now)
            if self._messages:
                self._send(now)

    def _add(self, actions: Sequence[Any], now: float) -> None:
        messages, sources = self._messages, self._sources
        handlers = self.handlers
        # The last message of this batch to each worker that takes many requests in one.
        parcels: dict[Worker, Parcel] = {}
        for action in actions:
            kind = type(action)
            # The two that every request costs come first and are not looked up.
            if kind is Deliver:
                deliver = action
                worker = deliver.worker
                voice = worker.voice
                parcel = parcels.get(worker) if parcels else None
                try:
                    if parcel is not None and voice.join(parcel.message, deliver.request):
                        parcel.delivers.append(deliver)
                        continue
                    message = voice.deliver(worker, deliver.request)
                except LocalProtocolError as error:
                    token = deliver.request.token
                    self._bus.handle(events.Undeliverable(worker.address, token, str(error)), now)
                    continue
                messages.append((worker.address[0], message))
                if voice.joins:
                    parcels[worker] = parcel = Parcel(message, deliver)
                    sources.append(parcel)
                else:
                    sources.append(action)
            elif kind is Answer:
                answer = action
                voice = answer.voice
                try:
                    message = voice.answer(answer)
                except LocalProtocolError as error:
                    self._unspeakable(answer, str(error))
                    continue
                if message is not None:
                    messages.append((answer.client[0], message))
                    sources.append(action)
            else:
                if parcels and kind not in TO_OTHERS:
                    # It may be for one of those workers, and must not be overtaken by what comes later.
                    parcels.clear()
                handlers[kind](action)

    def _send(self, now: float) -> None:
        messages, sources = self._messages, self._sources
        self._messages, self._sources = [], []
        if self.pending:
            messages, sources = self._queue_behind(messages, sources, now)
        refused = self._send_apart(messages) if self.dialled else self._pump.send_many(messages)
        for position, number in refused:
            if type(sources[position]) not in (Deliver, Parcel):
                self._refused(sources[position], messages[position], number, now)
        # The last one first: what a full worker gives back goes to the front, and keeps its order so.
        for position, number in reversed(refused):
            source = sources[position]
            if type(source) is Deliver:
                self._refused(source, messages[position], number, now)
            elif type(source) is Parcel:
                for deliver in reversed(source.delivers):
                    self._refused(deliver, messages[position], number, now)

    def _send_apart(self, messages: list[tuple[int, Message]]) -> list[tuple[int, int]]:
        """Send messages to nodes that were dialled, each on its own socket, and the others with the pump."""
        dialled = self.dialled
        assert dialled is not None
        others: list[tuple[int, Message]] = []
        positions: list[int] = []
        refused: list[tuple[int, int]] = []
        for position, (link, message) in enumerate(messages):
            if link != dialled.number:
                others.append((link, message))
                positions.append(position)
            elif number := dialled.send(message):
                refused.append((position, number))
        refused += [(positions[at], number) for at, number in self._pump.send_many(others)]
        refused.sort()
        return refused

    def _queue_behind(
        self, messages: list[tuple[int, Message]], sources: list[Any], now: float
    ) -> tuple[list[tuple[int, Message]], list[Any]]:
        """Let messages wait whose client waits for earlier ones. Returns the others."""
        free_messages: list[tuple[int, Message]] = []
        free_sources: list[Any] = []
        pending, limits = self.pending, self._bus.limits
        for (link, message), source in zip(messages, sources, strict=True):
            receiver = RECEIVERS.get(type(source))
            if receiver is not None and (client := receiver(source)) in pending:
                pending.add(client, link, message, source, limits, now)
            else:
                free_messages.append((link, message))
                free_sources.append(source)
        return free_messages, free_sources

    def _answer_lost(self, client: Address, action: Any, why: str, now: float) -> None:
        # Words of the catalog and other answers that the broker gives by itself have no request.
        self._bus.handle(
            events.AnswerLost(
                client,
                getattr(action, "request_id", b""),
                why,
                getattr(action, "token", b""),
                getattr(action, "service", b""),
                getattr(action, "voice", None),
            ),
            now,
        )

    def _refused(self, action: Any, message: tuple[int, Message], number: int, now: float) -> None:
        gone = number == errno.EHOSTUNREACH
        why = (
            "it cannot be reached"
            if gone
            else "its pipe is full"
            if number == errno.EAGAIN
            else "the send failed"
        )
        receiver = RECEIVERS.get(type(action)) if number == errno.EAGAIN else None
        if receiver is not None and message[0] not in self.links_without_waiting:
            self.pending.add(receiver(action), *message, action, self._bus.limits, now)
            return
        match action:
            case act.Deliver(worker, request):
                if gone:
                    self._bus.handle(events.WorkerGone(worker.address, why, True), now)
                else:
                    self._bus.handle(events.WorkerFull(worker.address, request.token), now)
            case act.Beat(worker) | act.Stop(worker, _) | act.Reschedule(worker, _):
                if gone:
                    self._bus.handle(events.WorkerGone(worker.address, why, True), now)
            case act.Ask(peer):
                if gone:
                    self._bus.handle(events.Unasked(peer), now)
            case act.Answer() | act.Refuse() | act.Stream() | act.Accept():
                self._answer_lost(action.client, action, why, now)
            case act.Fanout():
                self.on_full_subscriber(*message)
            case _:
                # A farewell or a catalog answer to a peer that is already gone: nobody waits for it,
                # unless somebody said so.
                refusal = self.refusals.get(type(action))
                if refusal is not None:
                    refusal(action)

    def _unspeakable(self, action: act.Answer, detail: str) -> None:
        """An answer that the client's dialect cannot carry is refused with that reason."""
        client, voice, service, request_id = action.client, action.voice, action.service, action.request_id
        reason = Reason.UNDELIVERABLE
        self._refuse(act.Refuse(client, voice, service, request_id, reason, detail, [], action.token))

    def put(self, link: int, message: Message | None, source: Any) -> None:
        if message is not None:
            self._messages.append((link, message))
            self._sources.append(source)

    def _accept(self, action: act.Accept) -> None:
        self.put(action.client[0], action.voice.accept(action), action)

    def _stream(self, action: act.Stream) -> None:
        self.put(action.client[0], action.voice.stream(action), action)

    def _refuse(self, action: act.Refuse) -> None:
        if action.reason is Reason.DRAINING and self._asks_the_next(action.client):
            return
        self.put(action.client[0], action.voice.refuse(action), action)

    def _asks_the_next(self, client: Address) -> bool:
        """Whether a client takes no answer for the end of this conversation: a client of the library asks the
        next broker. (Neighbours have to know what they may give to somebody else.)"""
        link, identity = client
        return link not in self.links_without_waiting and asks_again(identity)

    def _stop(self, action: act.Stop) -> None:
        self.put(action.worker.address[0], action.worker.voice.stop(action), action)

    def _beat(self, action: act.Beat) -> None:
        self.put(action.worker.address[0], action.worker.voice.beat(action), action)

    def _dismiss(self, action: act.Dismiss) -> None:
        self.put(action.peer[0], action.voice.dismiss(action), action)

    def _reschedule(self, action: act.Reschedule) -> None:
        self.put(action.worker.address[0], action.worker.voice.reschedule(action), action)

    def _approve(self, action: act.Approve) -> None:
        self.put(action.node[0], action.voice.approve(action), action)

    def _deny(self, action: act.Deny) -> None:
        self.put(action.node[0], action.voice.deny(action), action)

    def _acknowledge(self, action: act.Acknowledge) -> None:
        self.put(action.node[0], action.voice.acknowledge(action), action)

    def _ask(self, action: act.Ask) -> None:
        self.put(action.peer[0], action.voice.ask(action), action)

    def _say(self, action: act.Say) -> None:
        self.put(action.peer[0], action.frames, action)

    def fan_out(self, action: act.Fanout) -> None:
        """To links on which libzmq serves the subscribers."""
        for link, publication in self.subscribers:
            self.put(link, publication(action.topic, action.body), action)
