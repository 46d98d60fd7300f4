"""MDP/0.2 (ZeroMQ RFC 18): requests without ids, any number of PARTIALs before the FINAL."""

from __future__ import annotations

from collections.abc import Sequence

from polybus.client.failures import read_failure
from polybus.client.sessions.mdp import MdpWorker
from polybus.client.sessions.port import ClientEvent, Done, Failed, Message, Part, Token
from polybus.client.sessions.queued import QueuedClient
from polybus.wire import mdp2 as wire
from polybus.wire.frames import Frame, refuse


class Mdp2Client(QueuedClient):
    dialect = "mdp2"

    def write(self, service: bytes, body: list[Frame]) -> Message:
        return wire.write_from_client(wire.Request(service, body))

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        if len(frames) <= at or frames[at] != wire.CLIENT_TAG:
            raise refuse("wrong_protocol", "the message does not begin with MDPC02")
        reply = wire.read_as_client(frames, at)
        if type(reply) is wire.Partial:
            return [Part(self.answered(reply.service, final=False), reply.body)]
        request_id = self.answered(reply.service, final=True)
        failure = read_failure(reply.body)
        return [Done(request_id, reply.body) if failure is None else Failed(request_id, *failure, reply.body)]


class Mdp2Worker(MdpWorker):
    dialect = "mdp2"
    tag = wire.WORKER_TAG

    def write(self, message: wire.WorkerMessage) -> Message:
        return wire.write_from_worker(message)

    def read(self, frames: Sequence[Frame], at: int) -> wire.Command:
        return wire.read_as_worker(frames, at)

    def part(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        self._spoke = True
        return [self.write(wire.WorkerPartial(token, body))]
