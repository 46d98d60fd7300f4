"""EBUS on the core.

A tag says on whose side a message was made: the broker passes on to workers what clients say (`EBC01`:
requests and CANCEL) and to clients what workers say (`EBW01`), and public peers drop anything else.  PING,
HEARTBEAT and DISCONNECT are the broker's own words.  They carry `EBW01` to everybody, as the document shows
them; public workers do not look at the tag there.

Workers are of two kinds, told apart by their READY.  A **public** one says [READY, <anything>, service]: it
gets REQ without the service, takes whatever comes (so it has `worker_credit`), and drops what is cancelled
or stale without a word, so its slot is free at once.  One that names its credit, uses the short form or
offers a second service gets the document's REQUEST with the service.

`strict` sends the tables of the document and nothing else: an empty frame first, REQUEST to every worker and
without the time that is left, REJECT without id and reason, no CANCEL, and JSON where a client asks for
services and workers.  Upstream's clients read deflated BSON there, so that is what they get otherwise.

There is one id field, so a worker gets the bus's own token as request id: two clients may use the same one.
A peer may be worker and client on one socket (EBUS-26).  The tag of what it sends tells in which role it
speaks, and whatever it sends shows that the worker is there (EBUS-5).

Public peers listen to the channels that begin with `ebus`; `FAREWELL` is what tells them that a broker goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

import msgspec

from polybus.core import events
from polybus.core.actions import Answer, Beat, Dismiss, Refuse, Say, Stop
from polybus.core.bus import Bus
from polybus.core.model import PLAIN_CALL, Address, Heartbeat, Reason, Request, Worker
from polybus.core.views import peer_name
from polybus.dialects import orphans
from polybus.dialects.context import options_of_id
from polybus.dialects.crossing import error_text
from polybus.dialects.port import Hear, Message, Rebuke, Voice, by_framing, drop
from polybus.errors import RemoteProtocolError
from polybus.wire import ebus as wire
from polybus.wire.context import SHORTEST_ID
from polybus.wire.ebus_bodies import pack_bson
from polybus.wire.frames import EMPTY, read_command, read_id

# Public peers are offline from the moment they read this.  The channel says it all; of data they can read
# compressed BSON and this word.
FAREWELL: Final = (b"ebus/shutdown", [b"null"])


class ClientVoice(Voice):
    dialect = "ebus"
    # How lists of services and workers are written.
    pack: Callable[[Any], bytes] = staticmethod(pack_bson)

    def __init__(self, lead: Message) -> None:
        self._lead = lead

    def answer(self, action: Answer) -> Message:
        return [action.client[1], *self._lead, *wire.write_reply(action.request_id, action.body)]

    def refuse(self, action: Refuse) -> Message:
        # A REJECT without data is an expiry, and nothing else is.
        body: Message = [] if action.reason is Reason.EXPIRED else [error_text(action)]
        return [action.client[1], *self._lead, *wire.write_reject(action.request_id, body)]

    def listing(self, client: Address, query: bytes, request_id: bytes, entries: list[Any]) -> Message:
        return [client[1], *self._lead, *wire.write_listing(query, request_id, [self.pack(entries)])]

    def heartbeat(self, client: Address) -> Message:
        return [client[1], *self._lead, *wire.write_heartbeat(wire.WORKER_TAG)]


class StrictClientVoice(ClientVoice):
    pack = staticmethod(msgspec.json.encode)

    def refuse(self, action: Refuse) -> Message:
        return [action.client[1], *self._lead, *wire.write_reject(EMPTY, [])]


class WorkerVoice(Voice):
    dialect = "ebus"

    def __init__(self, lead: Message) -> None:
        self._lead = lead

    def deliver(self, worker: Worker, request: Request) -> Message:
        left_s = request.expires_at - request.dispatched_at
        timeout_s = request.options.timeout_s
        if timeout_s and timeout_s < left_s:
            left_s = timeout_s
        left_ms = None if left_s == inf else _left_ms(left_s)
        tail = wire.write_request(request.service.name, request.token, request.body, left_ms)
        return [worker.address[1], *self._lead, *tail]

    def stop(self, action: Stop) -> Message | None:
        return [action.worker.address[1], *self._lead, *wire.write_cancel_order(action.token)]

    def beat(self, action: Beat) -> Message:
        return [action.worker.address[1], *self._lead, *wire.write_ping(wire.WORKER_TAG)]

    def dismiss(self, action: Dismiss) -> Message:
        return [action.peer[1], *self._lead, *wire.write_disconnect(wire.WORKER_TAG)]

    def heartbeat(self, worker: Address) -> Message:
        return [worker[1], *self._lead, *wire.write_heartbeat(wire.WORKER_TAG)]


class PublicWorkerVoice(WorkerVoice):
    def deliver(self, worker: Worker, request: Request) -> Message:
        # A public worker cannot end a run; it only refuses to answer what is stale.  So it is told when
        # nobody waits any more, and no sooner: a time limit would cost the answer and stop nothing.
        left_ms = _left_ms(request.expires_at - request.dispatched_at)
        return [
            worker.address[1],
            *self._lead,
            *wire.write_order(request.token, request.body, left_ms),
        ]


class StrictWorkerVoice(WorkerVoice):
    def deliver(self, worker: Worker, request: Request) -> Message:
        tail = wire.write_document_request(request.service.name, request.token, request.body)
        return [worker.address[1], *self._lead, *tail]

    def stop(self, action: Stop) -> None:
        """The document has no word for it: the worker goes on, and its answer is dropped."""


def _left_ms(left_s: float) -> int:
    # Public workers take a zero for "no limit given".
    return wire.MAX_TTL_MS if left_s == inf else min(max(int(left_s * 1000), 1), wire.MAX_TTL_MS)


class Ebus:
    """The dialect: what its tags mean on an EBUS socket, whichever of the two it is."""

    name = "ebus"

    def __init__(
        self,
        bus: Bus,
        heartbeat_s: float = 0.5,
        liveness: int = 5,
        expiry_s: float = 300.0,
        worker_credit: int = 100,
        strict: bool = False,
    ) -> None:
        self._bus = bus
        self._expiry_s = expiry_s
        self._worker_credit = worker_credit
        self._heartbeat = Heartbeat(heartbeat_s * liveness, heartbeat_s, when_silent=True)
        self.client_voices: Sequence[ClientVoice]
        self._public_workers: Sequence[WorkerVoice]
        self._document_workers: Sequence[WorkerVoice]
        if strict:
            # The document begins every message with an empty frame, whatever the peer does itself.
            self.client_voices = by_framing(lambda _: StrictClientVoice([EMPTY]))
            self._public_workers = self._document_workers = by_framing(lambda _: StrictWorkerVoice([EMPTY]))
        else:
            self.client_voices = by_framing(ClientVoice)
            self._public_workers = by_framing(PublicWorkerVoice)
            self._document_workers = by_framing(WorkerVoice)
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {
            wire.CLIENT_TAG: (self.hear_client, self.rebuke_client),
            wire.WORKER_TAG: (self.hear_worker, drop),
        }

    # -- clients --------------------------------------------------------------------------------

    def hear_client(self, link: int, frames: Message, at: int, now: float) -> None:
        message = read_command(wire.CLIENT_COMMANDS, frames, at)
        client = (link, bytes(frames[0]))
        voice = self.client_voices[at]
        bus = self._bus
        if client in bus.workers:
            bus.handle(events.Heard(client, voice), now)
        match message:
            case wire.Request(service, request_id, body, ttl_ms):
                if service in QUERIES:
                    self._tell(client, voice, service, request_id)
                    return
                # As in public brokers, a zero is no limit of the client's own.
                ttl_s = ttl_ms / 1000 if ttl_ms else self._expiry_s
                options = PLAIN_CALL if len(request_id) < SHORTEST_ID else options_of_id(request_id)
                bus.handle(events.Submit(client, voice, request_id, service, body, options, ttl_s), now)
            case wire.Ping():
                bus.actions.append(Say(client, voice.heartbeat(client)))
            case wire.Cancel(_, request_id) | wire.Reject(request_id):
                # A public client rejects answers that it does not know: mostly there is nothing to withdraw.
                bus.handle(events.Cancel(client, request_id), now)
            case wire.ServicesQuery(request_id):
                self._tell(client, voice, b"SERVICES", request_id)
            case wire.WorkersQuery(request_id):
                self._tell(client, voice, b"WORKERS", request_id)
            case wire.Disconnect():
                bus.handle(events.ClientGone(client, withdraw=True), now)
            case wire.Heartbeat():
                pass

    def rebuke_client(
        self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float
    ) -> None:
        """A request that cannot be read is rejected if its id can be, else dropped."""
        if len(frames) < at + 4 or frames[at + 1] not in (wire.REQ, wire.REQUEST):
            return
        try:
            request_id = read_id(frames[at + 3])
        except RemoteProtocolError:
            return
        client = (link, bytes(frames[0]))
        refusal = Refuse(client, self.client_voices[at], b"", request_id, Reason.REJECTED, str(error), [])
        self._bus.actions.append(refusal)

    def _tell(self, client: Address, voice: ClientVoice, query: bytes, request_id: bytes) -> None:
        entries = QUERIES[query](self._bus)
        self._bus.actions.append(Say(client, voice.listing(client, query, request_id, entries)))

    # -- workers --------------------------------------------------------------------------------

    def hear_worker(self, link: int, frames: Message, at: int, now: float) -> None:
        message = read_command(wire.WORKER_COMMANDS, frames, at)
        worker = (link, bytes(frames[0]))
        bus = self._bus
        match message:
            case wire.Reply(token, body):
                self._answer(events.Result(worker, token, body), at, now)
            case wire.Heartbeat():
                bus.handle(events.Heard(worker, self._public_workers[at]), now)
            case wire.Ping():
                voice = self._public_workers[at]
                bus.handle(events.Heard(worker, voice), now)
                known = bus.workers.get(worker)
                if known is not None:
                    known.spoken_at = now
                    bus.actions.append(Say(worker, voice.heartbeat(worker)))
            case wire.Reject(token, body):
                self._answer(events.Failure(worker, token, "", body, Reason.REJECTED), at, now)
            case wire.Ready():
                self._ready(worker, message, at, now)
            case wire.Disconnect():
                bus.handle(events.WorkerGone(worker, "it disconnected"), now)

    def _answer(self, event: events.Result | events.Failure, at: int, now: float) -> None:
        orphans.answer(self._bus, event, self._public_workers[at], self._heartbeat, now)

    def _ready(self, worker: Address, ready: wire.Ready, at: int, now: float) -> None:
        """A new worker, one more service of a worker, or a worker that began anew: it offers this already."""
        bus = self._bus
        service = ready.service
        known = bus.workers.get(worker)
        if known is not None and all(offered.name != service for offered in known.offers):
            # It serves several, so it has to be told which is meant.
            known.voice = self._document_workers[at]
            bus.handle(events.Offer(worker, known.voice, service), now)
            return
        is_public = ready.upstream and ready.credit is None
        voice = self._public_workers[at] if is_public else self._document_workers[at]
        bus.handle(
            events.WorkerUp(
                worker,
                voice,
                ((service, 0),),
                self._heartbeat,
                ready.credit or self._worker_credit,
                forgets_stopped=isinstance(voice, PublicWorkerVoice),
                obeys_stop=not isinstance(voice, StrictWorkerVoice),
            ),
            now,
        )


# -- queries ------------------------------------------------------------------------------------


def _services(bus: Bus) -> list[Any]:
    return sorted(s.name.decode(errors="replace") for s in bus.services.values() if s.roster.members)


def _workers(bus: Bus) -> list[Any]:
    """One entry for each service of a worker, as if it were a worker of its own: public ones serve one."""
    entries = [
        {
            "id": peer_name(worker.address),
            "service": service.name.decode(errors="replace"),
            "load": len(worker.inflight),
        }
        for worker in bus.workers.values()
        for service in worker.offers
    ]
    return sorted(entries, key=lambda entry: str(entry["service"]))


# The broker answers these itself, as a message's word and as a service's name (EBUS-27).
QUERIES: Final[dict[bytes, Callable[[Bus], list[Any]]]] = {
    b"SERVICES": _services,
    b"WORKERS": _workers,
}
