"""MDP/0.2 (ZeroMQ RFC 18) on the core: requests without ids, any number of PARTIALs and one FINAL.

Nothing in a reply says which request it answers: a client with several outstanding requests gets
the replies as they come and knows them by their service.
"""

from __future__ import annotations

from polybus.core.actions import Answer, Refuse, Stream
from polybus.core.bus import Bus
from polybus.core.model import Heartbeat, Request, Worker
from polybus.dialects import majordomo
from polybus.dialects.crossing import error_body
from polybus.dialects.ended import Ended
from polybus.dialects.port import Message, Voice, by_framing
from polybus.wire import mdp2 as wire


class ClientVoice(Voice):
    dialect = "mdp2"

    def __init__(self, lead: Message) -> None:
        self._lead = lead

    def stream(self, action: Stream) -> Message:
        return [action.client[1], *self._lead, *wire.write_partial(action.service, action.body)]

    def answer(self, action: Answer) -> Message:
        return [action.client[1], *self._lead, *wire.write_final(action.service, action.body)]

    def refuse(self, action: Refuse) -> Message:
        return [action.client[1], *self._lead, *wire.write_final(action.service, [error_body(action)])]


class WorkerVoice(majordomo.FamilyWorkerVoice):
    dialect = "mdp2"

    def __init__(self, lead: Message, ended: Ended) -> None:
        super().__init__(lead, wire.write_heartbeat(), wire.write_disconnect(), ended)

    def deliver(self, worker: Worker, request: Request) -> Message:
        return [worker.address[1], *self._lead, *wire.write_order(request.token, request.body)]


class Mdp2(majordomo.Mdp):
    """The dialect: what its tags mean on a Majordomo socket."""

    name = "mdp2"

    def __init__(
        self, bus: Bus, heartbeat_s: float = 2.5, liveness: int = 3, ended: Ended | None = None
    ) -> None:
        over = Ended() if ended is None else ended
        super().__init__(
            bus,
            Heartbeat(dead_after_s=heartbeat_s * liveness, beat_every_s=heartbeat_s),
            (wire.CLIENT_TAG, by_framing(ClientVoice)),
            (wire.WORKER_TAG, by_framing(lambda lead: WorkerVoice(lead, over))),
            wire.read_from_client,
            wire.read_from_worker,
            over,
        )
