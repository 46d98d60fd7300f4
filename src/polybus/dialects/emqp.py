"""eMQP on the core: jobs in queues, workers that grant slots, schedulers and topics.

A client hears of its job twice: a receipt when it is accepted (`Accept`), and the result if it asked for one
(`reply-requested`).  The document has no receipt: if `strict`, only a client that asks for one gets it.  How
clients and workers are spoken to is in `emqp_voices`.

Jobs do not expire unless `expiry_s` says so: `timeout` limits how long one runs, not how long it waits, and
work that piled up overnight is still to be done.

Public workers and schedulers take any message as a sign that the broker knows them, and only begin anew after
silence.  So a worker that the bus does not know, or gave up for lost, is told nothing.  They exit on a
DISCONNECT, so the word for "go" is the goodbye, KBYE (the document's KBAI if `strict`).

A polybus worker says so when it comes (`wire.emqp_inform`).  It gets a voice of its own, and both may use the
words of `wire.emqp_extension`; no other peer sees any of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from math import inf
from typing import Any, Final

import msgspec

from polybus.core import events
from polybus.core.actions import Answer, Dismiss, Say
from polybus.core.bus import Bus
from polybus.core.ledger import ScheduleEntry
from polybus.core.model import Address, Heartbeat, JobOptions
from polybus.core.requests import finish, give_slots
from polybus.dialects import orphans
from polybus.dialects.crossing import read_error, reason_of
from polybus.dialects.emqp_voices import (
    LONG_SCHEDULE,
    ClientVoice,
    JoiningVoice,
    NewId,
    PolybusWorkerVoice,
    TracedWorkerVoice,
    WorkerVoice,
)
from polybus.dialects.ended import Ended
from polybus.dialects.port import Hear, Message, Rebuke, by_framing
from polybus.errors import RemoteProtocolError
from polybus.wire import emqp as wire
from polybus.wire.context import is_announced
from polybus.wire.frames import read_command, read_id, refuse

# What a worker without queues serves them with, as in public brokers.
DEFAULT_WEIGHT: Final = 10
# As many as the broker may have connections; each takes some 150 bytes.
MAX_RECENT_CLIENTS: Final = 65_536


def message_ids(bus: Bus) -> NewId:
    """Ids for the messages that we make up: short, ASCII, and not those of an earlier life of this broker."""
    numbers = count(1)
    return lambda: b"%b.%x" % (bus.nonce, next(numbers))


class Emqp:
    """The dialect: every role may speak on either of its ports."""

    name = "emqp"

    def __init__(
        self,
        bus: Bus,
        heartbeat_s: float = 3.0,
        timeout_s: float = 5.0,
        liveness: int = 3,
        default_queue: bytes = b"default",
        strict: bool = False,
        *,
        wall: Callable[[], float],
        expiry_s: float = inf,
        on_disconnect: Callable[[], None] | None = None,
    ) -> None:
        self._bus = bus
        self._expiry_s = expiry_s
        self._default_queue = default_queue
        self._strict = strict
        # Makes the broker stop; None if DISCONNECT is obeyed on the admin port alone.
        self._on_disconnect = on_disconnect
        self._clients = RecentClients()
        self._heartbeat = Heartbeat(timeout_s * liveness, heartbeat_s)
        bus.book.schedules.identify_by(identify)
        new_id = message_ids(bus)
        self._new_id = new_id
        self.client_voices = by_framing(lambda lead: ClientVoice(lead, new_id, strict, self._clients.left))
        self._worker_voices = by_framing(lambda lead: WorkerVoice(lead, new_id, wall, strict))
        self._traced_voices = by_framing(lambda lead: TracedWorkerVoice(lead, new_id, wall, strict))
        self._polybus_voices = by_framing(lambda lead: PolybusWorkerVoice(lead, new_id, wall, strict))
        self._joining_voices = by_framing(lambda lead: JoiningVoice(lead, new_id, wall, strict))
        self._leads: Sequence[Message] = by_framing(lambda lead: lead)
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {wire.TAG: (self.hear, self.rebuke)}
        self.client_tags = self.worker_tags = self.tags
        self.publish_tags: dict[bytes, tuple[Hear, Rebuke]] = {wire.TAG: (self.hear_publisher, self.rebuke)}

    def hear(self, link: int, frames: Message, at: int, now: float) -> None:
        message = read_command(COMMANDS, frames, at)
        peer = (link, bytes(frames[0]))
        kind = type(message)
        HEARERS[kind](self, peer, message, at, now)
        # Whatever a worker or scheduler sends shows that it is there (EMQP-19).
        if kind not in NOT_NOTED_HERE and self._is_known(peer):
            self._bus.handle(events.Heard(peer, self._worker_voices[at]), now)

    def _is_known(self, peer: Address) -> bool:
        """Whether a peer is a worker or scheduler, or was one whose conversation may go on."""
        bus = self._bus
        return peer in bus.workers or peer in bus.silent or peer in bus.resting

    def hear_publisher(self, link: int, frames: Message, at: int, now: float) -> None:
        self._publish((link, bytes(frames[0])), read_command(PUBLISH_ONLY, frames, at), at, now)

    def rebuke(self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float) -> None:
        """What cannot be read is answered with an error if its id can be, else dropped."""
        try:
            msg_id = read_id(frames[at + 2]) if len(frames) > at + 2 else b""
        except RemoteProtocolError:
            return
        if msg_id:
            body = msgspec.json.encode({"error": error.reason, "detail": str(error)})
            client = (link, bytes(frames[0]))
            # Written like a result, because it is the last word on that message.
            self._bus.actions.append(Answer(client, self.client_voices[at], b"", msg_id, [body]))

    def goodbyes(self) -> list[Dismiss]:
        """The last word to every client; workers and schedulers get theirs from the core."""
        return [
            Dismiss(client, self.client_voices[at], "shutdown")
            for client, at in self._clients
            if not self._is_known(client)
        ]

    # -- clients --------------------------------------------------------------------------------

    def _request(self, client: Address, message: wire.Request, at: int, now: float) -> None:
        self._clients.note(client, at)
        self._bus.handle(
            events.Submit(
                client,
                self.client_voices[at],
                message.msg_id,
                message.queue,
                message.body,
                _options_of(message.headers),
                self._expiry_s,
                self._wants_receipt(message.headers),
                self._default_queue,
            ),
            now,
        )

    def _wants_receipt(self, headers: wire.Headers) -> bool:
        return not self._strict or headers.receipt_requested

    def _publish(self, client: Address, message: wire.Publish, at: int, now: float) -> None:
        self._clients.note(client, at)
        self._bus.handle(events.Publish(message.topic, message.body), now)

    def _schedule(self, client: Address, message: wire.Schedule, at: int, now: float) -> None:
        self._clients.note(client, at)
        is_for_scheduler = self._strict and bool(self._bus.schedulers)
        if message.interval_s is None and not message.cron and not is_for_scheduler:
            # A strict broker passes the document's form on as it is: its scheduler may know what it means.
            raise refuse("no_schedule", "the message tells neither interval_secs nor cron")
        if is_for_scheduler and len(message.raw) == LONG_SCHEDULE and wire.with_times(message) is None:
            raise refuse(
                "no_document_form",
                "this broker is strict: its schedulers get the document's SCHEDULE, with the times in its "
                "message; send a JSON object as the message, or a list with an object in its second place",
            )
        headers = message.headers
        self._bus.handle(
            events.Schedule(
                client,
                self.client_voices[at],
                message.msg_id,
                message,
                False,
                wire.schedule_hash(message),
                message.queue,
                message.message,
                _options_of(headers),
                message.interval_s,
                message.cron.decode(),
                headers.nohaste,
                headers.run_count,
                receipt=self._wants_receipt(headers),
            ),
            now,
        )

    def _unschedule(self, client: Address, message: wire.Unschedule, at: int, now: float) -> None:
        self._clients.note(client, at)
        self._bus.handle(
            events.Schedule(
                client,
                self.client_voices[at],
                message.msg_id,
                message,
                True,
                jobs=wire.jobs_to_remove(message),
                receipt=self._wants_receipt(message.headers),
            ),
            now,
        )

    # -- workers and schedulers -----------------------------------------------------------------

    def _reply(self, worker: Address, message: wire.Reply, at: int, now: float) -> None:
        token, body = message.original_id or self._token_in(message.msg_id), message.body
        error = read_error(body)
        event: events.Result | events.Failure = events.Result(worker, token, body)
        if error is not None:
            event = events.Failure(worker, token, error, body, reason_of(error))
        if worker in self._bus.workers:
            # Nearly all of them: the call less is worth 4 % of the time of a job.
            self._bus.handle(event, now)
        else:
            orphans.answer(self._bus, event, self._worker_voices[at], self._heartbeat, now)

    def _token_in(self, msg_id: bytes) -> bytes:
        """The request that the one id of the document's REPLY names; none if it is an id of the worker's own:
        then the oldest request of that worker is meant. (A broker that was restarted may not know the
        request: then the answer is late.)"""
        bus = self._bus
        is_token = msg_id.startswith(bus.nonce) or msg_id in bus.patient or TOKEN.fullmatch(msg_id)
        return msg_id if is_token else b""

    def _ready(self, worker: Address, message: wire.Ready, at: int, now: float) -> None:
        self._bus.handle(events.Slot(worker, self._worker_voices[at]), now)

    def _inform(self, worker: Address, message: wire.Inform, at: int, now: float) -> None:
        bus = self._bus
        voice = self._voices_for(message.version, worker[1])[at]
        if message.role == "worker":
            offers = tuple((queue.name, queue.weight) for queue in message.queues)
            bus.handle(
                events.WorkerUp(
                    worker,
                    voice,
                    offers or ((self._default_queue, DEFAULT_WEIGHT),),
                    self._heartbeat,
                    grants_slots=True,
                    holding=message.holding or (),
                    obeys_stop=message.version > 0,
                    resumes=True,
                ),
                now,
            )
        else:
            bus.handle(events.SchedulerUp(worker, voice, self._heartbeat), now)
        # It has no slot yet, so no request was sent to it before this.
        if worker in bus.workers:
            bus.actions.append(Say(worker, voice.ack(worker, message.msg_id)))

    def _voices_for(self, version: int, identity: bytes) -> Sequence[WorkerVoice]:
        """How workers are spoken to that know this version of the extension, 0 if none."""
        if not version:
            return self._traced_voices if is_announced(identity) else self._worker_voices
        return self._joining_voices if version >= wire.JOINING else self._polybus_voices

    def _done(self, worker: Address, message: wire.Done, at: int, now: float) -> None:
        bus = self._bus
        for token, frame in message.answers:
            body = [frame]
            error = read_error(body)
            if error is None:
                finish(bus, worker, token, body, now, True)
            else:
                bus.handle(events.Failure(worker, token, error, body, reason_of(error)), now)
        give_slots(bus, worker, len(message.answers), now)

    def _slots(self, worker: Address, message: wire.Slots, at: int, now: float) -> None:
        give_slots(self._bus, worker, message.count, now)

    def _progress(self, worker: Address, message: wire.Progress, at: int, now: float) -> None:
        self._bus.handle(events.Part(worker, message.token, message.body), now)

    def _leave(self, worker: Address, message: wire.Leave, at: int, now: float) -> None:
        self._bus.handle(events.Leaving(worker), now)

    def _return(self, worker: Address, message: wire.Return, at: int, now: float) -> None:
        self._bus.handle(events.Returned(worker, message.token), now)

    def _heartbeat_of(self, peer: Address, message: wire.Heartbeat, at: int, now: float) -> None:
        """Workers and schedulers are noted for whatever they send; others are not answered."""
        self._note_quiet(peer, at)

    def _ack(self, peer: Address, message: wire.Ack, at: int, now: float) -> None:
        """Nothing of ours waits for it."""
        self._note_quiet(peer, at)

    def _note_quiet(self, peer: Address, at: int) -> None:
        """Remember a client that asks for nothing. After its goodbye these words mean nothing."""
        if not self._is_known(peer) and peer not in self._clients.left:
            self._clients.note(peer, at)

    def _goodbye(self, peer: Address, message: wire.Goodbye, at: int, now: float) -> None:
        self._bus.handle(events.WorkerGone(peer, "it said goodbye"), now)
        # Its jobs run on: most are sent by programs that do not stay to see the end.
        self._bus.handle(events.ClientGone(peer, withdraw=False), now)
        self._clients.forget(peer)

    def _disconnect(self, peer: Address, message: wire.Disconnect, at: int, now: float) -> None:
        self._clients.note(peer, at)
        if self._on_disconnect is None:
            raise refuse("not_admin", "DISCONNECT is obeyed on the admin port only (emqp.disconnect)")
        ack = wire.write_ack(self._new_id(), message.msg_id)
        self._bus.actions.append(Say(peer, [peer[1], *self._leads[at], *ack]))
        # At once: who has the ACK may count on it that no new work is taken.
        self._bus.handle(events.Drain(), now)
        self._on_disconnect()


class RecentClients:
    """The clients that sent something of late, with the index of their tag frame.

    A client says nothing when it comes and mostly nothing when it goes, so the broker can only remember who
    spoke.  When the newer half is full it becomes the older one, and the clients of the older one that were
    silent since are forgotten: whoever speaks now and then stays.  `left` are those that said goodbye and
    nothing since: a receipt that waits for the disk then must not follow.
    """

    def __init__(self, most: int = MAX_RECENT_CLIENTS) -> None:
        self._half = max(1, most // 2)
        self._newer: dict[Address, int] = {}
        self._older: dict[Address, int] = {}
        self.left: Final = Ended()

    def note(self, client: Address, at: int) -> None:
        if client in self._newer:
            return
        if len(self._newer) >= self._half:
            self._older, self._newer = self._newer, {}
        self._newer[client] = at
        self.left.discard(client)

    def forget(self, client: Address) -> None:
        self._newer.pop(client, None)
        self._older.pop(client, None)
        self.left.add(client)

    def __iter__(self) -> Iterator[tuple[Address, int]]:
        return iter({**self._older, **self._newer}.items())


COMMANDS: Final[Any] = {**wire.CLIENT_COMMANDS, **wire.WORKER_COMMANDS}
PUBLISH_ONLY: Final[Any] = {b"PUBLISH": wire.CLIENT_COMMANDS[b"PUBLISH"]}
HEARERS: Final[dict[type, Callable[[Emqp, Address, Any, int, float], None]]] = {
    wire.Request: Emqp._request,
    wire.Publish: Emqp._publish,
    wire.Schedule: Emqp._schedule,
    wire.Unschedule: Emqp._unschedule,
    wire.Reply: Emqp._reply,
    wire.Ready: Emqp._ready,
    wire.Inform: Emqp._inform,
    wire.Done: Emqp._done,
    wire.Slots: Emqp._slots,
    wire.Progress: Emqp._progress,
    wire.Leave: Emqp._leave,
    wire.Return: Emqp._return,
    wire.Heartbeat: Emqp._heartbeat_of,
    wire.Ack: Emqp._ack,
    wire.Goodbye: Emqp._goodbye,
    wire.Disconnect: Emqp._disconnect,
}

# What tokens of requests look like, in any life of a broker (`server.broker` chooses the first half).
TOKEN: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{3,16}")

# The core notes those who send one of the first four; DISCONNECT is no heartbeat.
NOT_NOTED_HERE: Final = frozenset({wire.Reply, wire.Ready, wire.Done, wire.Slots, wire.Disconnect})


def identify(entry: ScheduleEntry) -> tuple[str, bytes] | None:
    """What schedules are known by beside their keys (`core.schedules.Identify`)."""
    return wire.identify_kept(entry.key, entry.queue, entry.message, entry.interval_s, entry.cron)


# -- headers ------------------------------------------------------------------------------------
# Nearly all jobs have one of a few sets of headers. Those with texts of a client's own are not kept.


def _options_of(headers: wire.Headers) -> JobOptions:
    return _read_options(headers) if headers.other else _read_options_cached(headers)


def _read_options(headers: wire.Headers) -> JobOptions:
    return JobOptions(
        headers.reply_requested, headers.guarantee, headers.retry_count, headers.timeout_s, headers.other
    )


_read_options_cached = lru_cache(maxsize=256)(_read_options)
