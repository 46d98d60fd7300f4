"""The Majordomo request-id draft on the core.

Towards a worker the client address frame carries the bus's own token: workers echo it, and it
names the request even after the same client sent others.  The id frame is the client's own.
"""

from __future__ import annotations

from polybus.core import events
from polybus.core.actions import Answer, Beat, Dismiss, Refuse, Stream
from polybus.core.bus import Bus
from polybus.core.model import Heartbeat, Request, Worker
from polybus.dialects import mmi
from polybus.dialects.crossing import error_body, read_error
from polybus.dialects.port import Hear, Message, Rebuke, Voice, by_framing, drop
from polybus.errors import RemoteProtocolError
from polybus.wire import mdr as wire


class ClientVoice(Voice):
    dialect = "mdr"

    def __init__(self, lead: Message, tag: bytes) -> None:
        self._lead = lead
        self._tag = tag

    def stream(self, action: Stream) -> Message:
        tail = wire.write_partial(action.service, action.request_id, action.body, self._tag)
        return [action.client[1], *self._lead, *tail]

    def answer(self, action: Answer) -> Message:
        tail = wire.write_final(action.service, action.request_id, action.body, self._tag)
        return [action.client[1], *self._lead, *tail]

    def refuse(self, action: Refuse) -> Message:
        tail = wire.write_final(action.service, action.request_id, [error_body(action)], self._tag)
        return [action.client[1], *self._lead, *tail]


class WorkerVoice(Voice):
    dialect = "mdr"

    def __init__(self, lead: Message, tag: bytes) -> None:
        self._lead = lead
        self._tag = tag

    def deliver(self, worker: Worker, request: Request) -> Message:
        token = request.token
        tail = wire.write_order(token, request.request_id or token, request.body, self._tag)
        return [worker.address[1], *self._lead, *tail]

    def beat(self, action: Beat) -> Message:
        return [action.worker.address[1], *self._lead, *wire.write_pong(self._tag)]

    def dismiss(self, action: Dismiss) -> Message:
        return [action.peer[1], *self._lead, *wire.write_disconnect()]


class Mdr:
    """The dialect: what its tags mean on a Majordomo socket."""

    name = "mdr"

    def __init__(
        self,
        bus: Bus,
        heartbeat_s: float = 2.5,
        liveness: int = 3,
        client_tag: bytes = wire.CLIENT_TAG,
        worker_tag: bytes = wire.WORKER_TAG,
    ) -> None:
        self._bus = bus
        self._heartbeat = Heartbeat(dead_after_s=heartbeat_s * liveness)
        self._client_voices = by_framing(lambda lead: ClientVoice(lead, client_tag))
        self._worker_voices = by_framing(lambda lead: WorkerVoice(lead, worker_tag))
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {
            client_tag: (self.hear_client, drop),
            worker_tag: (self.hear_worker, self.rebuke_worker),
        }

    def hear_client(self, link: int, frames: Message, at: int, now: float) -> None:
        request = wire.read_from_client(frames, at)
        client = (link, bytes(frames[0]))
        voice = self._client_voices[at]
        if request.service.startswith(mmi.PREFIX):
            body = mmi.answer(self._bus, request.service, request.body)
            self._bus.actions.append(Answer(client, voice, request.service, request.request_id, body))
            return
        self._bus.handle(events.Submit(client, voice, request.request_id, request.service, request.body), now)

    def hear_worker(self, link: int, frames: Message, at: int, now: float) -> None:
        message = wire.read_from_worker(frames, at)
        bus = self._bus
        worker = (link, bytes(frames[0]))
        voice = self._worker_voices[at]
        match message:
            case wire.WorkerFinal(token, _, body):
                error = read_error(body)
                if error is None:
                    bus.handle(events.Result(worker, token, body), now)
                else:
                    bus.handle(events.Failure(worker, token, error, body), now)
            case wire.WorkerPartial(token, _, body):
                bus.handle(events.Part(worker, token, body), now)
            case wire.Ping():
                bus.handle(events.Heard(worker, voice), now)
                known = bus.workers.get(worker)
                if known is not None:
                    known.spoken_at = now
                    bus.actions.append(Beat(known))
            case wire.Ready(service, credit):
                if worker in bus.workers:
                    # Valid but unexpected: the conversation is over (MDR-27).
                    self._end(worker, voice, "a second READY", now)
                else:
                    bus.handle(events.WorkerUp(worker, voice, ((service, 0),), self._heartbeat, credit), now)
            case wire.Disconnect():
                bus.handle(events.WorkerGone(worker, "it disconnected"), now)

    def rebuke_worker(
        self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float
    ) -> None:
        # An invalid message is dropped and its sender treated as invalid (MDR-28).
        worker = (link, bytes(frames[0]))
        if worker in self._bus.workers:
            self._end(worker, self._worker_voices[at], f"it sent an invalid message: {error}", now)

    def _end(self, worker: tuple[int, bytes], voice: Voice, why: str, now: float) -> None:
        self._bus.handle(events.WorkerGone(worker, why), now)
        self._bus.actions.append(Dismiss(worker, voice, why))
