"""The Majordomo request-id draft on the core.

Every request carries its client's own id, which a worker gets as well; its client address frame carries
the bus's token as in the whole family (see `majordomo`).  Workers ask with PING and get PONG.
"""

from __future__ import annotations

from polybus.core.actions import Answer, Beat, Refuse, Stream
from polybus.core.bus import Bus
from polybus.core.intake import submit
from polybus.core.model import Address, Heartbeat
from polybus.core.records import Request, Worker
from polybus.dialects.context import context_of, options_of_id
from polybus.dialects.crossing import error_body
from polybus.dialects.ended import Ended
from polybus.dialects.majordomo import FamilyWorkerVoice, Majordomo
from polybus.dialects.mmi import PREFIX as MANAGEMENT
from polybus.dialects.port import Message, Voice, by_framing
from polybus.wire import mdr as wire
from polybus.wire.context import SHORTEST_ID, is_announced
from polybus.wire.frames import refuse
from polybus.wire.mdr import address_final, address_order, split_final, split_request

# A number of C when compiled: every request is measured by it.
_SHORTEST = SHORTEST_ID


class ClientVoice(Voice):
    dialect = "mdr"

    def __init__(self, lead: Message, tag: bytes) -> None:
        self._lead = lead
        self._tag = tag

    def stream(self, action: Stream) -> Message:
        tail = wire.write_partial(action.service, action.request_id, action.body, self._tag)
        return [action.client[1], *self._lead, *tail]

    def answer(self, action: Answer) -> Message:
        reply = action
        identity = reply.client[1]
        return address_final(identity, self._lead, reply.service, reply.request_id, reply.body, self._tag)

    def refuse(self, action: Refuse) -> Message:
        tail = wire.write_final(action.service, action.request_id, [error_body(action)], self._tag)
        return [action.client[1], *self._lead, *tail]


class WorkerVoice(FamilyWorkerVoice):
    dialect = "mdr"

    def __init__(self, lead: Message, tag: bytes, ended: Ended) -> None:
        super().__init__(lead, wire.write_pong(tag), wire.write_disconnect(), ended)
        self._tag = tag

    def deliver(self, worker: Worker, request: Request) -> Message:
        # The names below are declared as records in mdr.pxd, the arguments as anything.
        order, receiver = request, worker
        token = order.token
        identity = receiver.address[1]
        return address_order(identity, self._lead, token, order.request_id or token, order.body, self._tag)


class TracedWorkerVoice(WorkerVoice):
    """Workers of our own that make spans: where a request comes from has a frame of its own."""

    def deliver(self, worker: Worker, request: Request) -> Message:
        context = context_of(request)
        if not context:
            return super().deliver(worker, request)
        token = request.token
        tail = wire.write_traced_order(token, request.request_id or token, context, request.body, self._tag)
        return [worker.address[1], *self._lead, *tail]


class Mdr(Majordomo):
    """The dialect: what its tags mean on a Majordomo socket."""

    name = "mdr"

    def __init__(
        self,
        bus: Bus,
        heartbeat_s: float = 2.5,
        liveness: int = 3,
        client_tag: bytes = wire.CLIENT_TAG,
        worker_tag: bytes = wire.WORKER_TAG,
        ended: Ended | None = None,
    ) -> None:
        over = Ended() if ended is None else ended
        super().__init__(
            bus,
            Heartbeat(dead_after_s=heartbeat_s * liveness),
            by_framing(lambda lead: ClientVoice(lead, client_tag)),
            by_framing(lambda lead: WorkerVoice(lead, worker_tag, over)),
            over,
        )
        self._traced_voices = by_framing(lambda lead: TracedWorkerVoice(lead, worker_tag, over))
        self._listen(client_tag, self.hear_client, worker_tag, self.hear_worker)

    def hear_client(self, link: int, frames: Message, at: int, now: float) -> None:
        parts = split_request(frames, at, self._bus.services)
        if parts is None:
            request = wire.read_from_client(frames, at)
            parts = (request.service, request.request_id, request.body)
        service, request_id, body = parts
        client: Address = (link, frames[0])  # type: ignore[assignment]
        voice = self.client_voices[at]
        if service.startswith(MANAGEMENT):
            self._manage(client, voice, request_id, service, body)
        elif len(request_id) < _SHORTEST:
            submit(self._bus, client, voice, request_id, service, body, now)
        else:
            submit(self._bus, client, voice, request_id, service, body, now, options_of_id(request_id))

    def hear_worker(self, link: int, frames: Message, at: int, now: float) -> None:
        worker: Address = (link, frames[0])  # type: ignore[assignment]
        final = split_final(frames, at)
        if final is not None:
            token, request_id, body = final
            self._check_id(token, request_id)
            self._final(worker, self._worker_voices[at], token, body, now)
            return
        message = wire.read_from_worker(frames, at)
        bus = self._bus
        match message:
            case wire.WorkerFinal(token, request_id, body):
                self._check_id(token, request_id)
                self._final(worker, self._worker_voices[at], token, body, now)
            case wire.WorkerPartial(token, request_id, body):
                self._check_id(token, request_id)
                self._part(worker, self._worker_voices[at], token, body, now)
            case wire.Ping():
                self._beat(worker, self._worker_voices[at], now)
                known = bus.workers.get(worker)
                if known is not None:
                    known.spoken_at = now
                    bus.actions.append(Beat(known))
            case wire.Ready(service, credit):
                voices = self._traced_voices if is_announced(worker[1]) else self._worker_voices
                self._ready(worker, voices[at], service, credit, now)
            case wire.Disconnect():
                self._leave(worker, now)
            case wire.Order() | wire.Pong():
                self._misplaced(worker, self._worker_voices[at], now)

    def _check_id(self, token: bytes, request_id: bytes) -> None:
        """Refuse an answer whose request id is not the id of the request that its address frame names: the
        worker has mixed up two requests, and nobody can say to which of them the body belongs."""
        bus = self._bus
        request = bus.prompt.get(token)
        if request is None:
            request = bus.patient.get(token)
        if request is not None and request_id != (request.request_id or token):
            raise refuse("wrong_id", "the request id is not that of the request in the client address frame")
