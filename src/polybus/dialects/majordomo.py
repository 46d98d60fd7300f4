"""What MDP/0.1, MDP/0.2 and the request-id draft share on the core.

They are one dialog in three sets of frames: a client sends requests, a worker says READY for one service and
answers, and either side ends the conversation with DISCONNECT.  Towards a worker the client address
frame carries the bus's own token: workers echo it, and it names the request on the way back.

What a worker must not do ends its conversation: its requests go to others and it is sent DISCONNECT.
That is a second READY, a READY for `mmi.*` (which the broker answers itself), and anything unreadable.
A late answer is none of these: it is dropped and counted, because a broker that was restarted, or that
gave the request to somebody else meanwhile, is no fault of the worker.

A dialect gives the readers; which messages they return decides what happens (`hear_worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polybus.core import events
from polybus.core.actions import Answer, Beat, Dismiss
from polybus.core.bus import Bus
from polybus.core.intake import submit
from polybus.core.model import Address, Body, Heartbeat
from polybus.core.requests import finish
from polybus.dialects import mmi
from polybus.dialects.crossing import read_error, reason_of
from polybus.dialects.port import Hear, Message, Rebuke, Voice, drop
from polybus.errors import RemoteProtocolError
from polybus.wire import mdp2


class FamilyWorkerVoice(Voice):
    """The commands of a worker that are always the same frames; `deliver` is the dialect's."""

    def __init__(self, lead: Message, beat: Message, disconnect: Message) -> None:
        self._lead = lead
        self._beat = [*lead, *beat]
        self._disconnect = [*lead, *disconnect]

    def beat(self, action: Beat) -> Message:
        return [action.worker.address[1], *self._beat]

    def dismiss(self, action: Dismiss) -> Message:
        return [action.peer[1], *self._disconnect]


class Majordomo:
    """A dialect of the family. `tags` is what it adds to the table of a Majordomo socket."""

    def __init__(
        self,
        bus: Bus,
        heartbeat: Heartbeat,
        client_voices: Sequence[Voice],
        worker_voices: Sequence[Voice],
    ) -> None:
        self._bus = bus
        self._heartbeat = heartbeat
        self.client_voices = client_voices
        self._worker_voices = worker_voices
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {}

    def _listen(self, client_tag: bytes, hear_client: Hear, worker_tag: bytes, hear_worker: Hear) -> None:
        """Say by which tags the dialect is known, and who reads what follows them."""
        self.tags[client_tag] = (hear_client, drop)
        self.tags[worker_tag] = (hear_worker, self.rebuke_worker)

    def rebuke_worker(
        self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float
    ) -> None:
        # An invalid message is dropped and its sender treated as invalid.
        worker = (link, bytes(frames[0]))
        if worker in self._bus.workers:
            self._end(worker, self._worker_voices[at], f"it sent an invalid message: {error}", now)

    def _submit(
        self, client: Address, voice: Voice, request_id: bytes, service: bytes, body: Body, now: float
    ) -> None:
        if service.startswith(mmi.PREFIX):
            self._manage(client, voice, request_id, service, body)
        else:
            submit(self._bus, client, voice, request_id, service, body, now)

    def _manage(self, client: Address, voice: Voice, request_id: bytes, service: bytes, body: Body) -> None:
        answer = mmi.answer(self._bus, service, body)
        self._bus.actions.append(Answer(client, voice, service, request_id, answer))

    def _final(self, worker: Address, token: bytes, body: Body, now: float) -> None:
        error = read_error(body)
        if error is None:
            finish(self._bus, worker, token, body, now)
        else:
            self._bus.handle(events.Failure(worker, token, error, body, reason_of(error)), now)

    def _ready(self, worker: Address, voice: Voice, service: bytes, credit: int, now: float) -> None:
        if worker in self._bus.workers:
            self._end(worker, voice, "a second READY", now)
        elif service.startswith(mmi.PREFIX):
            self._end(worker, voice, "the broker itself answers mmi.*", now)
        else:
            offers = ((service, 0),)
            self._bus.handle(events.WorkerUp(worker, voice, offers, self._heartbeat, credit), now)

    def _end(self, worker: Address, voice: Voice, why: str, now: float) -> None:
        self._bus.handle(events.WorkerGone(worker, why), now)
        self._bus.actions.append(Dismiss(worker, voice, why))


class Mdp(Majordomo):
    """RFC 7 and RFC 18: no request ids, and the same messages in other frames."""

    def __init__(
        self,
        bus: Bus,
        heartbeat: Heartbeat,
        clients: tuple[bytes, Sequence[Voice]],
        workers: tuple[bytes, Sequence[Voice]],
        read_from_client: Callable[[Message, int], mdp2.ClientMessage],
        read_from_worker: Callable[[Message, int], mdp2.WorkerMessage],
    ) -> None:
        client_tag, client_voices = clients
        worker_tag, worker_voices = workers
        super().__init__(bus, heartbeat, client_voices, worker_voices)
        self._read_from_client = read_from_client
        self._read_from_worker = read_from_worker
        self._listen(client_tag, self.hear_client, worker_tag, self.hear_worker)

    def hear_client(self, link: int, frames: Message, at: int, now: float) -> None:
        request = self._read_from_client(frames, at)
        client = (link, bytes(frames[0]))
        self._submit(client, self.client_voices[at], b"", request.service, request.body, now)

    def hear_worker(self, link: int, frames: Message, at: int, now: float) -> None:
        message = self._read_from_worker(frames, at)
        worker = (link, bytes(frames[0]))
        match message:
            case mdp2.WorkerFinal(token, body):
                self._final(worker, token, body, now)
            case mdp2.WorkerPartial(token, body):
                self._bus.handle(events.Part(worker, token, body), now)
            case mdp2.Heartbeat():
                self._bus.handle(events.Heard(worker, self._worker_voices[at]), now)
            case mdp2.Ready(service, credit):
                self._ready(worker, self._worker_voices[at], service, credit, now)
            case mdp2.Disconnect():
                # Whatever its dialect: the request-id draft shows its DISCONNECT with the tag of MDP/0.2.
                self._bus.handle(events.WorkerGone(worker, "it disconnected"), now)
