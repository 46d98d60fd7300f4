"""MDP/0.1 (ZeroMQ RFC 7): one request, one reply, an empty frame before everything."""

from __future__ import annotations

from collections.abc import Sequence

from polybus.client.failures import read_failure
from polybus.client.sessions.mdp import MdpWorker
from polybus.client.sessions.port import ClientEvent, Done, Failed, Message
from polybus.client.sessions.queued import QueuedClient
from polybus.wire import mdp1 as wire
from polybus.wire import mdp2
from polybus.wire.frames import EMPTY, Frame, refuse


class Mdp1Client(QueuedClient):
    dialect = "mdp1"

    def write(self, service: bytes, body: list[Frame]) -> Message:
        # A REQ socket would make the empty frame; a DEALER has to do it itself.
        return [EMPTY, *wire.write_from_client(wire.Request(service, body))]

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        if len(frames) <= at or frames[at] != wire.CLIENT_TAG:
            raise refuse("wrong_protocol", "the message does not begin with MDPC01")
        reply = wire.read_as_client(frames, at)
        request_id = self.answered(reply.service, final=True)
        failure = read_failure(reply.body)
        return [Done(request_id, reply.body) if failure is None else Failed(request_id, *failure, reply.body)]


class Mdp1Worker(MdpWorker):
    dialect = "mdp1"
    tag = wire.WORKER_TAG

    def write(self, message: mdp2.WorkerMessage) -> Message:
        if isinstance(message, mdp2.WorkerPartial):
            raise AssertionError("MDP/0.1 has no PARTIAL")
        return [EMPTY, *wire.write_from_worker(message)]

    def read(self, frames: Sequence[Frame], at: int) -> mdp2.Command:
        return wire.read_as_worker(frames, at)
