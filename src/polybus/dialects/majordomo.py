"""What MDP/0.1, MDP/0.2 and the request-id draft share on the core.

They are one dialog in three sets of frames: a client sends requests, a worker says READY for one service and
answers, and either side ends the conversation with DISCONNECT.  Towards a worker the client address
frame carries the bus's own token: workers echo it, and it names the request on the way back.

What a worker must not do ends its conversation: its requests go to others and it is sent DISCONNECT.
That is a second READY, a READY for `mmi.*` (which the broker answers itself), a command that only the broker
sends, an answer to a request that the worker was never given, and anything unreadable, also what begins with
no known tag.  A peer that is no worker is sent DISCONNECT for the first valid command that is neither READY
nor DISCONNECT, so that it registers (anew); its answer to a job that was out when the broker was restarted
still counts.  A late answer of a worker is none of these: it is dropped and counted, because a broker that
gave the request to somebody else meanwhile is no fault of the worker.

After a DISCONNECT, the peer's or ours, the peer is sent nothing more until it says READY (`Ended`).

A client has no conversation that could end: what it sends and cannot be read is dropped and counted.

A dialect gives the readers; which messages they return decides what happens (`hear_worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polybus.core import events
from polybus.core.actions import UNKNOWN_WORKER, Answer, Beat, Dismiss
from polybus.core.bus import Bus
from polybus.core.holders import accepted_before_restart
from polybus.core.intake import submit
from polybus.core.model import Address, Body, Heartbeat
from polybus.core.requests import finish, has_request
from polybus.dialects import mmi, orphans
from polybus.dialects.crossing import read_error, reason_of
from polybus.dialects.ended import Ended
from polybus.dialects.port import Hear, Message, Rebuke, Voice
from polybus.errors import RemoteProtocolError
from polybus.wire import mdp2


class FamilyWorkerVoice(Voice):
    """The commands of a worker that are always the same frames; `deliver` is the dialect's."""

    def __init__(self, lead: Message, beat: Message, disconnect: Message, ended: Ended) -> None:
        self._lead = lead
        self._beat = [*lead, *beat]
        self._disconnect = [*lead, *disconnect]
        self._ended = ended

    def beat(self, action: Beat) -> Message:
        return [action.worker.address[1], *self._beat]

    def dismiss(self, action: Dismiss) -> Message:
        self._ended.add(action.peer)
        return [action.peer[1], *self._disconnect]


class Majordomo:
    """A dialect of the family. `tags` is what it adds to the table of a Majordomo socket.

    All of the family on one broker share `ended`: a worker of the request-id draft disconnects by the tag of
    MDP/0.2.
    """

    def __init__(
        self,
        bus: Bus,
        heartbeat: Heartbeat,
        client_voices: Sequence[Voice],
        worker_voices: Sequence[Voice],
        ended: Ended,
    ) -> None:
        self._bus = bus
        self._ended = ended
        self._heartbeat = heartbeat
        self.client_voices = client_voices
        self._worker_voices = worker_voices
        self.tags: dict[bytes, tuple[Hear, Rebuke]] = {}

    def _listen(self, client_tag: bytes, hear_client: Hear, worker_tag: bytes, hear_worker: Hear) -> None:
        """Say by which tags the dialect is known, and who reads what follows them."""
        self.tags[client_tag] = (hear_client, self.rebuke)
        self.tags[worker_tag] = (hear_worker, self.rebuke)

    def rebuke(self, link: int, frames: Message, at: int, error: RemoteProtocolError, now: float) -> None:
        """An invalid message is dropped and its sender treated as invalid: if it is a worker, it is one no
        longer, whatever tag the message had."""
        address = (link, bytes(frames[0]))
        worker = self._bus.workers.get(address) or self._bus.silent.get(address)
        if worker is not None:
            self._end(worker.address, worker.voice, f"it sent an invalid message: {error}", now)

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

    def _final(self, worker: Address, voice: Voice, token: bytes, body: Body, now: float) -> None:
        bus = self._bus
        has_orphan = worker not in bus.workers and orphans.claim(
            bus, worker, voice, token, self._heartbeat, now
        )
        error = read_error(body)
        try:
            if error is None:
                had_it = finish(bus, worker, token, body, now)
            else:
                had_it = has_request(bus, worker, token)
                bus.handle(events.Failure(worker, token, error, body, reason_of(error)), now)
        finally:
            if has_orphan:
                orphans.release(bus, worker, now)
        if not had_it or worker not in bus.workers:
            self._unexpected(worker, voice, token, now)

    def _part(self, worker: Address, voice: Voice, token: bytes, body: Body, now: float) -> None:
        bus = self._bus
        had_it = has_request(bus, worker, token)
        bus.handle(events.Part(worker, token, body), now)
        if not had_it or worker not in bus.workers:
            self._unexpected(worker, voice, token, now)

    def _ready(self, worker: Address, voice: Voice, service: bytes, credit: int, now: float) -> None:
        self._ended.discard(worker)
        if worker in self._bus.workers:
            self._end(worker, voice, "a second READY", now)
        elif service.startswith(mmi.PREFIX):
            self._end(worker, voice, "the broker itself answers mmi.*", now)
        else:
            offers = ((service, 0),)
            self._bus.handle(events.WorkerUp(worker, voice, offers, self._heartbeat, credit), now)

    def _beat(self, worker: Address, voice: Voice, now: float) -> None:
        bus = self._bus
        if worker in bus.workers or worker in bus.silent:
            bus.handle(events.Heard(worker, voice), now)
        else:
            self._dismiss_once(worker, voice)

    def _leave(self, worker: Address, now: float) -> None:
        """A peer said DISCONNECT, be it a worker or not."""
        self._bus.handle(events.WorkerGone(worker, "it disconnected"), now)
        self._ended.add(worker)

    def _unexpected(self, worker: Address, voice: Voice, token: bytes, now: float) -> None:
        """An answer came from a peer that is no worker (it never said READY, the broker gave it up, or the
        broker is a new one), or from a worker that does not have the request.

        A worker keeps what it was given until it answers, even if the request has ended, so without anything
        to answer it cannot be late.  With other requests at hand it may have answered this one twice: that is
        tolerated, because ending the conversation would take those from it. But what was never a request
        here, or still is one of others, it cannot have answered.  (A job that was accepted before the broker
        was restarted it may have been given then.)
        """
        bus = self._bus
        known = bus.workers.get(worker)
        if known is None:
            self._dismiss_once(worker, voice)
        elif accepted_before_restart(bus, token) is None and (
            not known.inflight
            or token in bus.prompt
            or token in bus.patient
            or not token.startswith(bus.nonce)
        ):
            self._end(worker, voice, "it answered a request that it does not have", now)

    def _misplaced(self, worker: Address, voice: Voice, now: float) -> None:
        """A peer sent a command that only the broker sends."""
        if worker in self._bus.workers or worker in self._bus.silent:
            self._end(worker, voice, "it sent a command that only the broker sends", now)
        else:
            self._dismiss_once(worker, voice)

    def _dismiss_once(self, stranger: Address, voice: Voice) -> None:
        """Send DISCONNECT to a peer that is no worker, unless its conversation has ended already."""
        if stranger not in self._ended:
            self._ended.add(stranger)
            self._bus.actions.append(Dismiss(stranger, voice, UNKNOWN_WORKER))

    def _end(self, worker: Address, voice: Voice, why: str, now: float) -> None:
        self._bus.handle(events.WorkerGone(worker, why), now)
        self._ended.add(worker)
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
        read_from_worker: Callable[[Message, int], mdp2.HeardFromWorker],
        ended: Ended,
    ) -> None:
        client_tag, client_voices = clients
        worker_tag, worker_voices = workers
        super().__init__(bus, heartbeat, client_voices, worker_voices, ended)
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
                self._final(worker, self._worker_voices[at], token, body, now)
            case mdp2.WorkerPartial(token, body):
                self._part(worker, self._worker_voices[at], token, body, now)
            case mdp2.Heartbeat():
                self._beat(worker, self._worker_voices[at], now)
            case mdp2.Ready(service, credit):
                self._ready(worker, self._worker_voices[at], service, credit, now)
            case mdp2.Disconnect():
                # Whatever its dialect: the request-id draft shows its DISCONNECT with the tag of MDP/0.2.
                self._leave(worker, now)
            case mdp2.Order():
                self._misplaced(worker, self._worker_voices[at], now)
