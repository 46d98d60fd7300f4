"""How eMQP speaks to its clients and workers.

A public job manager reports the end of a job only if `reply-requested` is set, so on the way to a worker it
always is.  Polybus workers are told the number of the attempt and may be told to stop; those of version 2 get
many requests in one message, as the broker has them (see `wire.emqp_extension`).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import lru_cache
from math import ceil
from typing import Final

from msgspec.structs import replace

from polybus.core.actions import (
    HEARTBEAT_MISSED,
    UNKNOWN_WORKER,
    Accept,
    Answer,
    Beat,
    Dismiss,
    Refuse,
    Reschedule,
    Stop,
)
from polybus.core.model import PLAIN_CALL, Address, Body, JobOptions, Request, Worker
from polybus.dialects.context import options_for_others, options_for_ours
from polybus.dialects.crossing import error_body
from polybus.dialects.port import Message, Voice
from polybus.wire import emqp as wire

# The result of a job whose worker gave none, as the document writes it (EMQP-41).
NO_RESULT: Final = b"True"
# The frames of a SCHEDULE with interval and cron.
LONG_SCHEDULE: Final = 8

NewId = Callable[[], bytes]


class ClientVoice(Voice):
    """Clients.  The document has no receipt, so a strict broker sends one, an ACK, only to those who ask."""

    dialect = "emqp"

    def __init__(
        self, lead: Message, new_id: NewId, strict: bool = False, left: Container[Address] = ()
    ) -> None:
        """`left` are the clients that said goodbye: they are sent nothing more."""
        self._lead = lead
        self._new_id = new_id
        self._strict = strict
        self._left = left

    def accept(self, action: Accept) -> Message | None:
        if action.client in self._left:
            return None
        write = wire.write_ack if self._strict else wire.write_receipt
        return [action.client[1], *self._lead, *write(self._new_id(), action.request_id)]

    def answer(self, action: Answer) -> Message | None:
        body = action.body
        if not body or (len(body) == 1 and not len(body[0])):
            body = [NO_RESULT]
        return self._reply(action.client, body, action.request_id)

    def refuse(self, action: Refuse) -> Message | None:
        return self._reply(action.client, [error_body(action)], action.request_id)

    def dismiss(self, action: Dismiss) -> Message:
        tail = wire.write_goodbye(self._new_id(), wire.KBAI if self._strict else wire.KBYE)
        return [action.peer[1], *self._lead, *tail]

    def _reply(self, client: Address, body: Body, request_id: bytes) -> Message | None:
        if client in self._left:
            return None
        if self._strict:
            return [client[1], *self._lead, *wire.write_reply(request_id, body)]
        return [client[1], *self._lead, *wire.write_result(self._new_id(), body, request_id)]


class WorkerVoice(Voice):
    """Workers and schedulers alike."""

    dialect = "emqp"

    def __init__(self, lead: Message, new_id: NewId, wall: Callable[[], float], strict: bool) -> None:
        self._lead = lead
        self._new_id = new_id
        self._wall = wall
        self._strict = strict

    def deliver(self, worker: Worker, request: Request) -> Message:
        options = request.options
        if options.other and type(request.voice) is not ClientVoice:
            options = options_for_others(request)
        headers = headers_of(options, 0)
        tail = wire.write_order(request.token, request.service.name, headers, request.body)
        return [worker.address[1], *self._lead, *tail]

    def beat(self, action: Beat) -> Message:
        tail = wire.write_heartbeat(self._new_id(), self._wall())
        return [action.worker.address[1], *self._lead, *tail]

    def dismiss(self, action: Dismiss) -> Message | None:
        if action.reason in (UNKNOWN_WORKER, HEARTBEAT_MISSED):
            return None
        tail = wire.write_goodbye(self._new_id(), wire.KBAI if self._strict else wire.KBYE)
        return [action.peer[1], *self._lead, *tail]

    def reschedule(self, action: Reschedule) -> Message:
        return [action.worker.address[1], *self._lead, *self._schedule(action.message)]

    def _schedule(self, message: wire.Schedule | wire.Unschedule) -> Message:
        # Public schedulers know the long form only, and do not survive the other.
        if self._strict == (len(message.raw) != LONG_SCHEDULE):
            return list(message.raw)
        if self._strict and isinstance(message, wire.Schedule):
            # The dialect takes no other message while a scheduler is connected.
            message = replace(message, message=wire.with_times(message) or message.message)
        return wire.write_from_client(message, document=self._strict)

    def ack(self, peer: Address, msg_id: bytes) -> Message:
        return [peer[1], *self._lead, *wire.write_ack(self._new_id(), msg_id)]


class TracedWorkerVoice(WorkerVoice):
    """Workers of our own that make spans, and are in all else as in the document."""

    def deliver(self, worker: Worker, request: Request) -> Message:
        headers = headers_of(options_for_ours(request), 0)
        tail = wire.write_order(request.token, request.service.name, headers, request.body)
        return [worker.address[1], *self._lead, *tail]


class PolybusWorkerVoice(WorkerVoice):
    """Workers of our own: they can stop what they run, and want to know which attempt it is."""

    version = 1

    def deliver(self, worker: Worker, request: Request) -> Message:
        headers = headers_of(options_for_ours(request), request.attempt)
        tail = wire.write_order(request.token, request.service.name, headers, request.body)
        return [worker.address[1], *self._lead, *tail]

    def stop(self, action: Stop) -> Message:
        return [action.worker.address[1], *self._lead, *wire.write_cancel(self._new_id(), action.token)]

    def ack(self, peer: Address, msg_id: bytes) -> Message:
        return [peer[1], *self._lead, *wire.write_ack(self._new_id(), msg_id, self.version)]


class JoiningVoice(PolybusWorkerVoice):
    """Those that take many requests in one message."""

    version = 2
    joins = True

    def __init__(self, lead: Message, new_id: NewId, wall: Callable[[], float], strict: bool) -> None:
        super().__init__(lead, new_id, wall, strict)
        # Behind the identity and what stands before the tag.
        self._word = len(lead) + 2
        self._full = len(lead) + 1 + wire.FULL_ORDERS
        # Jobs that come one after the other mostly have the very same options.
        self._options: JobOptions | None = None
        self._attempt = 0
        self._headers = b""

    def deliver(self, worker: Worker, request: Request) -> Message:
        message: Message = [worker.address[1], *self._lead, wire.TAG, wire.ORDERS, self._new_id()]
        return message if self.join(message, request) else super().deliver(worker, request)

    def join(self, message: Message, request: Request) -> bool:
        if len(message) >= self._full or message[self._word] is not wire.ORDERS:
            return False
        options, body = request.options, request.body
        if request.context is not None:
            options = options_for_ours(request)
        if options is not self._options or request.attempt != self._attempt:
            self._remember(options, request.attempt)
        headers = self._headers
        frame = body[0] if len(body) == 1 else wire.one_frame(body)
        if len(frame) + len(headers) > wire.MAX_JOINED_BYTES:
            return False
        message += (request.token, request.service.name, headers, frame)
        return True

    def _remember(self, options: JobOptions, attempt: int) -> None:
        self._headers = wire.write_headers(headers_of(options, attempt))
        # What follows a job may be megabytes: nobody must keep it for its headers.
        self._options = None if options.then else options
        self._attempt = attempt


# -- headers ------------------------------------------------------------------------------------
# Nearly all jobs have one of a few sets of headers. Those with texts of a client's own are not kept.


def headers_of(options: JobOptions, attempt: int) -> wire.Headers:
    """What a worker is told of a job; 0 is no attempt, for those who do not know the word."""
    if options is PLAIN_CALL and attempt == 1:
        return FIRST_ORDER
    if options.other:
        return _headers(options.retries, options.timeout_s, options.guarantee, attempt, options.other)
    return _headers_cached(options.retries, options.timeout_s, options.guarantee, attempt)


def _headers(
    retries: int, timeout_s: float, guarantee: bool, attempt: int, other: tuple[str, ...] = ()
) -> wire.Headers:
    return wire.Headers(
        reply_requested=True,
        retry_count=retries,
        timeout_s=ceil(timeout_s),
        guarantee=guarantee,
        attempt=attempt,
        other=other,
    )


_headers_cached = lru_cache(maxsize=256)(_headers)
FIRST_ORDER: Final = wire.Headers(reply_requested=True, attempt=1)
