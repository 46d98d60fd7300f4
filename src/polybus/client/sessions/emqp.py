"""eMQP/1.0, as EventMQ speaks it: jobs in queues, a receipt for each, and results for those who ask.

A client's request is answered by a REPLY with its id (the receipt) and, if it asked for the result and the
broker forwards results (EventMQ's own does not), by a REPLY with the body and its id.

A worker says INFORM with its queues, waits for the ACK, and then sends one READY for every free slot,
another after each REPLY.  Both sides beat every 3 s; 15 s of silence (3 × 5 s) end the conversation, and
the worker begins a new one.  On leaving it says KBYE.

Public peers decode every frame as UTF-8 text and expect the empty first frame: ids and identities of ours are
ASCII.  Bodies are the program's own: towards EventMQ's router they have to be text, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from polybus.client.failures import read_failure, write_failure
from polybus.client.sessions.port import (
    Accepted,
    ClientEvent,
    ClientSession,
    Done,
    Failed,
    Leave,
    Message,
    Options,
    Restart,
    Token,
    Work,
    WorkerEvent,
    WorkerSession,
)
from polybus.wire import emqp as wire
from polybus.wire.frames import EMPTY, Frame, refuse

BEAT_S: Final = 3.0
TIMEOUT_S: Final = 5.0
LIVENESS: Final = 3

_CALL: Final = wire.Headers(reply_requested=True)


def headers_of(options: Options | None, wants_reply: bool) -> wire.Headers:
    if options is None:
        return _CALL if wants_reply else wire.NO_HEADERS
    return wire.Headers(
        reply_requested=wants_reply,
        retry_count=options.retries,
        timeout_s=options.time_limit_s,
        guarantee=options.guarantee,
    )


class EmqpClient(ClientSession):
    dialect = "emqp"

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[bytes, Message] = {}
        # Asked for the result; the others are done with their receipt.
        self._calls: set[bytes] = set()
        self._accepted: set[bytes] = set()

    def request(
        self,
        request_id: bytes,
        service: bytes,
        body: list[Frame],
        ttl_s: float | None = None,
        options: Options | None = None,
        wants_reply: bool = True,
    ) -> list[Message]:
        message = wire.Request(request_id, service, headers_of(options, wants_reply), body)
        frames: Message = [EMPTY, *wire.write_from_client(message)]
        self._open[request_id] = frames
        if wants_reply:
            self._calls.add(request_id)
        return [frames]

    def cancel(self, request_id: bytes) -> list[Message]:
        self._forget(request_id)
        return []

    def resend(self) -> list[Message]:
        return list(self._open.values())

    def _forget(self, request_id: bytes) -> None:
        self._open.pop(request_id, None)
        self._calls.discard(request_id)
        self._accepted.discard(request_id)

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        message = wire.read_as_client(frames, at)
        if type(message) is not wire.Reply:
            return []
        request_id = message.original_id
        if request_id:
            if request_id not in self._open:
                raise refuse("unknown_request", "an answer to nothing that was asked")
            self._forget(request_id)
            failure = read_failure(message.body)
            if failure is None:
                return [Done(request_id, message.body)]
            return [Failed(request_id, *failure, message.body)]
        request_id = wire.receipt_of(message)
        if request_id not in self._open:
            raise refuse("unknown_request", "a receipt for nothing that was asked")
        if request_id not in self._calls:
            self._forget(request_id)
            return [Accepted(request_id), Done(request_id, [])]
        if request_id in self._accepted:
            return []
        self._accepted.add(request_id)
        return [Accepted(request_id)]


class EmqpWorker(WorkerSession):
    """Any number of queues with weights, `credit` slots."""

    dialect = "emqp"
    beat_s = BEAT_S
    dead_after_s = TIMEOUT_S * LIVENESS

    def __init__(
        self,
        queues: Sequence[tuple[int, bytes]],
        credit: int = 1,
        prefix: bytes = b"w",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._queues = tuple(wire.Queue(weight, name) for weight, name in queues)
        self._credit = credit
        self._prefix = prefix
        self._numbers = count(1)
        # HEARTBEAT carries the time of day, for people.
        self._wall_clock = wall_clock
        self._inform = b""
        self._ready = False
        self._leaving = False
        self._held: set[bytes] = set()
        self._pending: list[Message] = []

    def _id(self) -> bytes:
        return b"%s-%d" % (self._prefix, next(self._numbers))

    def _write(self, message: wire.WorkerMessage) -> Message:
        return [EMPTY, *wire.write_from_worker(message)]

    def greet(self, now: float) -> list[Message]:
        self._held.clear()
        self._pending.clear()
        self._ready = False
        self._inform = self._id()
        return [self._write(wire.Inform(self._inform, "worker", self._queues))]

    def pending(self) -> list[Message]:
        messages, self._pending = self._pending, []
        return messages

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        message = wire.read_as_worker(frames, at)
        match message:
            case wire.Request(msg_id, queue, _, body):
                self._held.add(msg_id)
                return [Work(msg_id, queue, msg_id, body)]
            case wire.Ack(_, acked_id):
                if acked_id == self._inform and not self._ready:
                    self._ready = True
                    self._pending += [self._write(wire.Ready(self._id())) for _ in range(self._credit)]
                return []
            case wire.Goodbye():
                return [Restart("the broker said goodbye")]
            case wire.Disconnect():
                # What is pending is completed, but no new slot is offered (EMQP-34, EMQP-35).
                self._leaving = True
                return [Leave()]
            case _:
                return []

    def beats(self, now: float) -> list[Message]:
        if now - self.spoke_at >= self.beat_s:
            return [self._write(wire.Heartbeat(self._id(), self._wall_clock()))]
        return []

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        # A job without a result is answered with a true value (EMQP-28).
        frames = self._write(wire.Reply(self._id(), body or [b"true"], token))
        self._held.discard(token)
        self._spoke = True
        return [frames] if self._leaving else [frames, self._write(wire.Ready(self._id()))]

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        return self.reply(token, [write_failure(reason, rejected)])

    def goodbye(self) -> list[Message]:
        return [self._write(wire.Goodbye(self._id()))]
