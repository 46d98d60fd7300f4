"""eMQP/1.0, as EventMQ speaks it: jobs in queues, a receipt for each, and results for those who ask.

A client's request is answered by a REPLY with its id (the receipt) and, if it asked for the result and the
broker forwards results (EventMQ's own does not), by a REPLY with the body and its id.

A strict polybus broker sends the document's REPLY, which has the id of the request in place of one of its
own, and no receipt; but a client that asks for a receipt gets an ACK.  So a request that ends with its
receipt asks for it.

A broker that says goodbye is sent nothing more: the client closes its socket, leaves the broker alone for a
moment, and asks on a new socket for what is unanswered, with the same ids (EMQP-36, EMQP-46).  Asked to
leave by DISCONNECT, it says goodbye itself before that (EMQP-45).

A worker says INFORM with its queues, waits for the ACK, and then sends one READY for every free slot,
another after each REPLY.  Both sides beat every 3 s; 15 s of silence (3 × 5 s) end the conversation, and
the worker begins a new one.  On leaving it says KBYE.

A worker that gives `holding` is one whose work outlives the conversation: its INFORM lists what it still
runs, and what it held before the conversation broke is its own until the broker says CANCEL.  It hands out
its slots with `grant`, and if the broker is a polybus one (`version`), it may tell progress, leave in good
order and give work back; from version 2 on it gets many requests in one message, and answers likewise.

Public peers decode every frame as UTF-8 text and expect the empty first frame: ids and identities of ours are
ASCII.  Bodies are the program's own: towards EventMQ's router they have to be text, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Final

from polybus.client.failures import read_failure, write_failure
from polybus.client.sessions.port import (
    Accepted,
    Cancelled,
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
from polybus.wire.context import NO_CONTEXT, Context, find_context
from polybus.wire.frames import EMPTY, Frame, refuse

BEAT_S: Final = 3.0
# How long a client leaves a broker alone that said goodbye, which is about to stop.
PAUSE_S: Final = 0.1
TIMEOUT_S: Final = 5.0
LIVENESS: Final = 3

# A job without a result is answered with a true value (EMQP-28).
NO_RESULT: Final = b"true"

_CALL: Final = wire.Headers(reply_requested=True)
_JOB: Final = wire.Headers(receipt_requested=True)
_NO_OPTIONS: Final = Options()


def headers_of(options: Options | None, wants_reply: bool, context: Context = NO_CONTEXT) -> wire.Headers:
    if options is None:
        if not context:
            return _CALL if wants_reply else _JOB
        options = _NO_OPTIONS
    return wire.Headers(
        reply_requested=wants_reply,
        retry_count=options.retries,
        timeout_s=options.time_limit_s,
        guarantee=options.guarantee,
        other=context,
        receipt_requested=not wants_reply,
    )


def new_goodbye_id() -> bytes:
    return b"bye-" + os.urandom(6).hex().encode()


class EmqpClient(ClientSession):
    dialect = "emqp"
    hears_goodbyes = True
    pause_s = PAUSE_S

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[bytes, Message] = {}
        # Asked for the result; the others are done with their receipt.
        self._calls: set[bytes] = set()
        self._accepted: set[bytes] = set()
        self._is_asked_to_leave = False

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
        message = wire.Request(request_id, service, headers_of(options, wants_reply, context), body)
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

    def farewell(self) -> list[Message]:
        if not self._is_asked_to_leave:
            return []
        self._is_asked_to_leave = False
        return [[EMPTY, *wire.write_goodbye(new_goodbye_id())]]

    def _forget(self, request_id: bytes) -> None:
        self._open.pop(request_id, None)
        self._calls.discard(request_id)
        self._accepted.discard(request_id)

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        message = wire.read_as_client(frames, at)
        if type(message) is wire.Ack:
            return self._receipt(message.acked_id)
        if type(message) is wire.Goodbye:
            return [Restart("the broker said goodbye")]
        if type(message) is wire.Disconnect:
            self._is_asked_to_leave = True
            return [Restart("the broker asked us to leave")]
        if type(message) is not wire.Reply:
            return []
        # The document's REPLY of a strict broker has the request's id for its own.
        request_id = message.original_id or (message.msg_id if message.msg_id in self._open else EMPTY)
        if request_id:
            if request_id not in self._open:
                raise refuse("unknown_request", "an answer to nothing that was asked")
            self._forget(request_id)
            failure = read_failure(message.body)
            if failure is None:
                return [Done(request_id, message.body)]
            return [Failed(request_id, *failure, message.body)]
        return self._receipt(wire.receipt_of(message))

    def _receipt(self, request_id: bytes) -> list[ClientEvent]:
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
    """Any number of queues with weights, `credit` slots.

    With `holding`, a function that names the requests which are not answered yet, nothing is forgotten when a
    conversation begins anew, and `credit` is ignored: whoever keeps the work grants the slots.
    """

    dialect = "emqp"
    beat_s = BEAT_S
    dead_after_s = TIMEOUT_S * LIVENESS

    def __init__(
        self,
        queues: Sequence[tuple[int, bytes]],
        credit: int = 1,
        prefix: bytes = b"w",
        wall_clock: Callable[[], float] = time.time,
        holding: Callable[[], Sequence[bytes]] | None = None,
    ) -> None:
        super().__init__()
        self.queues = tuple(wire.Queue(weight, name) for weight, name in queues)
        self._credit = credit
        self._prefix = prefix
        self._numbers = count(1)
        # HEARTBEAT carries the time of day, for people.
        self._wall_clock = wall_clock
        self._holding = holding
        self._inform = b""
        self._leaving = False
        self._held: set[bytes] = set()
        self._pending: list[Message] = []
        # The broker has answered our INFORM; the version of our own words that it knows, 0 if none.
        self.ready = False
        self.version = 0
        # Slots that were granted and not used yet.
        self.granted = 0

    def _id(self) -> bytes:
        return b"%s-%d" % (self._prefix, next(self._numbers))

    def _write(self, message: wire.WorkerMessage) -> Message:
        return [EMPTY, *wire.write_from_worker(message)]

    def greet(self, now: float) -> list[Message]:
        self._pending.clear()
        self.ready = False
        self.version = 0
        self.granted = 0
        self._inform = self._id()
        holding = None if self._holding is None else tuple(self._holding())
        self._held = set(holding or ())
        version = 0 if holding is None else wire.VERSION
        return [self._write(wire.Inform(self._inform, "worker", self.queues, holding, version))]

    def pending(self) -> list[Message]:
        messages, self._pending = self._pending, []
        return messages

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        message = wire.read_as_worker(frames, at)
        if type(message) is wire.Orders:
            return self._work(message.jobs)
        if type(message) is wire.Request:
            return self._work([message])
        match message:
            case wire.Ack(_, acked_id, version):
                if acked_id == self._inform and not self.ready:
                    self.ready = True
                    self.version = version
                    if self._holding is None:
                        self._pending += self.grant(self._credit)
                return []
            case wire.Cancel(_, token):
                return [Cancelled(token)] if token in self._held else []
            case wire.Goodbye():
                return [Restart("the broker said goodbye")]
            case wire.Disconnect():
                # What is pending is completed, but no new slot is offered (EMQP-34, EMQP-35).
                self._leaving = True
                return [Leave()]
            case _:
                return []

    def _work(self, jobs: list[wire.Request]) -> list[WorkerEvent]:
        if self._holding is not None and not self.ready:
            # Meant for an earlier conversation under the same identity: the broker takes it back.
            return []
        self.granted -= len(jobs)
        work: list[WorkerEvent] = []
        for job in jobs:
            token, headers = job.msg_id, job.headers
            self._held.add(token)
            context = find_context(headers.other) if headers.other else NO_CONTEXT
            work.append(
                Work(token, job.queue, token, job.body, None, headers.attempt, headers.timeout_s, context)
            )
        return work

    def beats(self, now: float) -> list[Message]:
        if now - self.spoke_at >= self.beat_s:
            return [self._write(wire.Heartbeat(self._id(), self._wall_clock()))]
        return []

    def grant(self, slots: int) -> list[Message]:
        """So many more requests may be sent to us."""
        self.granted += slots
        if self.version < wire.JOINING:
            return [[EMPTY, *wire.write_ready(self._id())] for _ in range(slots)]
        most = wire.MAX_SLOTS
        counts = (min(most, slots - told) for told in range(0, slots, most))
        return [self._write(wire.Slots(self._id(), count)) for count in counts]

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        frames = [EMPTY, *wire.write_result(self._id(), body or [NO_RESULT], token)]
        self._held.discard(token)
        self._spoke = True
        return [frames] if self._leaving or self._holding is not None else [frames, *self.grant(1)]

    @property
    def joins(self) -> bool:
        """Whether the broker takes many answers in one message, and is to send us more (`done`)."""
        return self.version >= wire.JOINING and not self._leaving

    def done(self, answers: Iterable[tuple[Token, list[Frame]]]) -> list[Message]:
        """Answers that give the slots of their requests back, as many in a message as it takes."""
        messages: list[Message] = []
        joined: list[tuple[bytes, Frame]] = []
        alone = 0
        held = self._held
        for token, body in answers:
            if token not in held:
                continue
            held.discard(token)
            frame = wire.one_frame(body) if body else NO_RESULT
            if len(frame) > wire.MAX_JOINED_BYTES:
                messages.append([EMPTY, *wire.write_result(self._id(), [frame], token)])
                alone += 1
                continue
            joined.append((token, frame))
            if len(joined) == wire.MAX_JOINED:
                messages.append([EMPTY, *wire.write_done(self._id(), joined)])
                self.granted += len(joined)
                joined = []
        if joined:
            messages.append([EMPTY, *wire.write_done(self._id(), joined)])
            self.granted += len(joined)
        if messages:
            self._spoke = True
        return [*messages, *self.grant(alone)]

    def part(self, token: Token, body: list[Frame]) -> list[Message]:
        """Only a polybus broker knows what to do with it."""
        if not self.version or token not in self._held:
            return []
        self._spoke = True
        return [self._write(wire.Progress(self._id(), token, body))]

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        return self.reply(token, [write_failure(reason, rejected)])

    def leave(self) -> list[Message]:
        """Take nothing more; a broker that does not know the word goes on sending until our goodbye."""
        self._leaving = True
        self.granted = 0
        return [self._write(wire.Leave(self._id()))] if self.version else []

    def give_back(self, token: Token) -> list[Message]:
        """Let somebody else have what we have not begun; where that cannot be said, it stays ours."""
        if not self.version or token not in self._held:
            return []
        self._held.discard(token)
        self._spoke = True
        return [self._write(wire.Return(self._id(), token))]

    def forget(self, token: Token) -> None:
        """There will be no answer, and nobody waits for one."""
        self._held.discard(token)

    def goodbye(self) -> list[Message]:
        return [self._write(wire.Goodbye(self._id()))]
