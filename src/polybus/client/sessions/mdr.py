"""The request-id draft of Majordomo: any number of requests at once, each with its id.

The worker pings, the broker answers: a worker that hears nothing for three intervals is alone and begins a
new conversation on a new socket (MDR-29, MDR-40).  Other commands are life signs too, so a PING goes out only
if nothing was said for an interval, or nothing was heard for one (a stream of PARTIALs gets no answer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polybus.client.failures import read_failure, write_failure
from polybus.client.sessions.port import (
    ClientEvent,
    ClientSession,
    Done,
    Failed,
    Message,
    Options,
    Part,
    Restart,
    Token,
    Work,
    WorkerEvent,
    WorkerSession,
)
from polybus.errors import LocalProtocolError
from polybus.wire import mdr as wire
from polybus.wire.context import NO_CONTEXT, Context
from polybus.wire.frames import Frame, refuse
from polybus.wire.mdr import CLIENT_TAG, WORKER_TAG

BEAT_S: Final = 2.5
LIVENESS: Final = 3


class MdrClient(ClientSession):
    dialect = "mdr"
    resends_by_time = True
    context_in_id = True

    def __init__(self, tag: bytes = CLIENT_TAG) -> None:
        super().__init__()
        self._tag = tag
        self._open: dict[bytes, Message] = {}

    def request(
        self,
        request_id: bytes,
        service: bytes,
        body: list[Frame],
        ttl_s: float | None = None,
        options: Options | None = None,
        wants_reply: bool = True,
        context: Context = NO_CONTEXT,
    ) -> list[Message]:
        if options is not None:
            no_options(options, "MDR")
        frames = wire.write_from_client(wire.Request(service, request_id, body), self._tag)
        self._open[request_id] = frames
        return [frames]

    def cancel(self, request_id: bytes) -> list[Message]:
        # The draft has no word for it: the answer will come and be dropped.
        self._open.pop(request_id, None)
        return []

    def resend(self) -> list[Message]:
        return list(self._open.values())

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        if len(frames) <= at or frames[at] != self._tag:
            raise refuse("wrong_protocol", f"the message does not begin with {self._tag!r}")
        # Nearly all messages are FINALs of one frame for a request that is open; an id that we know has been
        # checked when we made it, so nothing is left to read.
        if len(frames) == at + 5 and frames[at + 1] == b"\x03":
            known = frames[at + 3]
            if type(known) is bytes and known in self._open:
                return [self._final(known, [frames[at + 4]])]
        message = wire.read_as_client(frames, at)
        request_id, body = message.request_id, message.body
        if type(message) is wire.FinalReply and request_id in self._open:
            return [self._final(request_id, body)]
        if request_id not in self._open:
            raise refuse("unknown_request", "an answer to nothing that was asked")
        return [Part(request_id, body)]

    def _final(self, request_id: bytes, body: list[Frame]) -> Done | Failed:
        del self._open[request_id]
        failure = read_failure(body)
        return Done(request_id, body) if failure is None else Failed(request_id, *failure, body)


class MdrWorker(WorkerSession):
    """One service, up to `credit` requests at a time."""

    dialect = "mdr"
    beat_s = BEAT_S
    dead_after_s = BEAT_S * LIVENESS

    def __init__(self, service: bytes, credit: int = 1, tag: bytes = WORKER_TAG) -> None:
        super().__init__()
        self._tag = tag
        self._service = service
        self._credit = credit
        self._held: set[tuple[bytes, bytes]] = set()

    def greet(self, now: float) -> list[Message]:
        self._held.clear()
        return [wire.write_from_worker(wire.Ready(self._service, self._credit), self._tag)]

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        tag = frames[at] if len(frames) > at else b""
        if tag != self._tag and tag != wire.DRAFT_DISCONNECT_TAG:
            raise refuse("wrong_protocol", f"the message does not begin with {self._tag!r}")
        message = wire.read_as_worker(frames, at)
        if tag != self._tag and type(message) is not wire.Disconnect:
            raise refuse("wrong_protocol", "only DISCONNECT may carry the tag of MDP/0.2")
        if type(message) is wire.Order:
            token = (message.address, message.request_id)
            self._held.add(token)
            request_id = message.request_id
            return [Work(token, self._service, request_id, message.body, context=message.context)]
        if type(message) is wire.Disconnect:
            return [Restart("the broker ended the conversation")]
        return []

    def beats(self, now: float) -> list[Message]:
        if now - self.spoke_at >= self.beat_s or now - self.heard_at >= self.beat_s:
            return [wire.write_from_worker(wire.Ping(), self._tag)]
        return []

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        address, request_id = token
        frames = wire.write_from_worker(wire.WorkerFinal(address, request_id, body), self._tag)
        self._held.discard(token)
        self._spoke = True
        return [frames]

    def part(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        self._spoke = True
        address, request_id = token
        return [wire.write_from_worker(wire.WorkerPartial(address, request_id, body), self._tag)]

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        return self.reply(token, [write_failure(reason, rejected)])

    def goodbye(self) -> list[Message]:
        return [wire.write_from_worker(wire.Disconnect(), self._tag)]


def no_options(options: Options, dialect: str) -> None:
    if options != Options():
        raise LocalProtocolError(
            f"{dialect} has no words for job options (guarantee, retries, time limit); eMQP has"
        )
