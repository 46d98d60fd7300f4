"""eMQP/1.0, the protocol of EventMQ: jobs in named queues, with headers, schedules and topics.

Every message is [tag, COMMAND, message id, …]; commands are upper case.  The document counts frames from
the empty frame before the tag, so its "7-frame" message has six here.  Public peers decode every frame
as UTF-8: ids and texts that a broker makes up must be ASCII, and a body that is not UTF-8 must not be sent
to them.

    broker     reads  CLIENT_COMMANDS     from clients, publishers and schedulers (one port),
                      WORKER_COMMANDS     from workers, ADMIN_COMMANDS on the admin port
    client     reads  REPLY_COMMANDS      from the broker
    worker     reads  ORDER_COMMANDS      from the broker
    scheduler  reads  SCHEDULER_COMMANDS  from the broker

A body is exactly one frame, in a list as in all dialects.  The messages are in `emqp_messages`, those with
rules of their own in `emqp_inform` and `emqp_schedule`; what is not in the document, but spoken between
polybus workers and brokers that have found each other out, is in `emqp_extension`.  This module offers all
their names.  `at` is the index of the tag frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from polybus.wire import emqp_extension as extension
from polybus.wire.emqp_extension import FULL_ORDERS as FULL_ORDERS
from polybus.wire.emqp_extension import HEAD_FRAMES as HEAD_FRAMES
from polybus.wire.emqp_extension import MAX_JOINED as MAX_JOINED
from polybus.wire.emqp_extension import MAX_JOINED_BYTES as MAX_JOINED_BYTES
from polybus.wire.emqp_extension import MAX_SLOTS as MAX_SLOTS
from polybus.wire.emqp_extension import ORDERS as ORDERS
from polybus.wire.emqp_extension import bare, wrong_length
from polybus.wire.emqp_extension import one_frame as one_frame
from polybus.wire.emqp_extension import write_cancel as write_cancel
from polybus.wire.emqp_extension import write_done as write_done
from polybus.wire.emqp_extension import write_orders as write_orders
from polybus.wire.emqp_headers import NO_HEADERS as NO_HEADERS
from polybus.wire.emqp_headers import Headers as Headers
from polybus.wire.emqp_headers import read_headers as read_headers
from polybus.wire.emqp_headers import write_headers as write_headers
from polybus.wire.emqp_inform import JOINING as JOINING
from polybus.wire.emqp_inform import VERSION as VERSION
from polybus.wire.emqp_inform import Inform as Inform
from polybus.wire.emqp_inform import Queue as Queue
from polybus.wire.emqp_inform import read_extension, read_inform, write_extension, write_inform
from polybus.wire.emqp_messages import TAG as TAG
from polybus.wire.emqp_messages import Ack as Ack
from polybus.wire.emqp_messages import AdminMessage as AdminMessage
from polybus.wire.emqp_messages import Cancel as Cancel
from polybus.wire.emqp_messages import ClientMessage as ClientMessage
from polybus.wire.emqp_messages import Common as Common
from polybus.wire.emqp_messages import Disconnect as Disconnect
from polybus.wire.emqp_messages import Done as Done
from polybus.wire.emqp_messages import Goodbye as Goodbye
from polybus.wire.emqp_messages import Heartbeat as Heartbeat
from polybus.wire.emqp_messages import Hello as Hello
from polybus.wire.emqp_messages import Leave as Leave
from polybus.wire.emqp_messages import OrderMessage as OrderMessage
from polybus.wire.emqp_messages import Orders as Orders
from polybus.wire.emqp_messages import Progress as Progress
from polybus.wire.emqp_messages import Publication as Publication
from polybus.wire.emqp_messages import Publish as Publish
from polybus.wire.emqp_messages import Ready as Ready
from polybus.wire.emqp_messages import Reply as Reply
from polybus.wire.emqp_messages import ReplyMessage as ReplyMessage
from polybus.wire.emqp_messages import Request as Request
from polybus.wire.emqp_messages import Return as Return
from polybus.wire.emqp_messages import SchedulerMessage as SchedulerMessage
from polybus.wire.emqp_messages import ShowSchedulers as ShowSchedulers
from polybus.wire.emqp_messages import ShowWorkers as ShowWorkers
from polybus.wire.emqp_messages import Slots as Slots
from polybus.wire.emqp_messages import Status as Status
from polybus.wire.emqp_messages import WorkerMessage as WorkerMessage
from polybus.wire.emqp_schedule import Schedule as Schedule
from polybus.wire.emqp_schedule import Unschedule as Unschedule
from polybus.wire.emqp_schedule import identify_kept as identify_kept
from polybus.wire.emqp_schedule import jobs_to_remove as jobs_to_remove
from polybus.wire.emqp_schedule import read_schedule, read_unschedule, write_schedule, write_unschedule
from polybus.wire.emqp_schedule import schedule_hash as schedule_hash
from polybus.wire.emqp_schedule import with_times as with_times
from polybus.wire.frames import (
    EMPTY,
    Frame,
    Frames,
    check_id,
    check_name,
    read_command,
    read_id,
    read_name,
    refuse,
)

# The word for goodbye: public peers say KBYE, the document says KBAI.
KBYE: Final = b"KBYE"
KBAI: Final = b"KBAI"

# The longest float in decimal text is far shorter.
MAX_TIMESTAMP_BYTES: Final = 64

M = TypeVar("M")
Readers = Mapping[Frame, Callable[[Frames, int], M]]


# -- reading ----------------------------------------------------------------------------------


def read_request(frames: Frames, at: int) -> Request:
    if len(frames) != at + 6:
        raise wrong_length("REQUEST", frames, at, "6")
    return Request(
        read_id(frames[at + 2], "message id"),
        read_name(frames[at + 3], "queue name"),
        read_headers(frames[at + 4]),
        [frames[at + 5]],
    )


def read_reply(frames: Frames, at: int) -> Reply:
    if len(frames) == at + 5:
        return Reply(
            read_id(frames[at + 2], "message id"),
            [frames[at + 3]],
            read_id(frames[at + 4], "original message id"),
        )
    if len(frames) != at + 4:
        raise wrong_length("REPLY", frames, at, "4 or 5")
    return Reply(read_id(frames[at + 2], "message id"), [frames[at + 3]])


def receipt_of(reply: Reply) -> bytes:
    """The id that a client's REPLY is the receipt for if it is one; empty if it cannot be one.

    A receipt and the document's REPLY look the same on the wire: only who sent a request with that id
    and got no receipt for it yet can tell.
    """
    if reply.original_id or not 0 < len(reply.body[0]) <= 255:
        return EMPTY
    return bytes(reply.body[0])


def _read_publish(frames: Frames, at: int) -> Publish:
    if not at + 5 <= len(frames) <= at + 6:
        raise wrong_length("PUBLISH", frames, at, "5 or 6")
    return Publish(
        read_id(frames[at + 2], "message id"),
        read_name(frames[at + 3], "topic"),
        read_headers(frames[at + 4]) if len(frames) == at + 6 else NO_HEADERS,
        [frames[-1]],
    )


def read_publication(frames: Frames, at: int = 0) -> Publication:
    if len(frames) != at + 2:
        raise wrong_length("a publication", frames, at, "2")
    return Publication(read_name(frames[at], "topic"), [frames[at + 1]])


def _read_ack(frames: Frames, at: int) -> Ack:
    if not at + 4 <= len(frames) <= at + 5:
        raise wrong_length("ACK", frames, at, "4, or 5 of a polybus broker")
    version = read_extension(frames[at + 4])[0] if len(frames) == at + 5 else 0
    acked_id = read_id(frames[at + 3], "acknowledged message id")
    return Ack(read_id(frames[at + 2], "message id"), acked_id, version)


def _read_heartbeat(frames: Frames, at: int) -> Heartbeat:
    if len(frames) != at + 4:
        raise wrong_length("HEARTBEAT", frames, at, "4")
    msg_id, stamp = read_id(frames[at + 2], "message id"), frames[at + 3]
    try:
        unix_ts = float(stamp) if type(stamp) is bytes and len(stamp) <= MAX_TIMESTAMP_BYTES else math.nan
    except ValueError:
        unix_ts = math.nan
    if not math.isfinite(unix_ts):
        raise refuse("bad_timestamp", "HEARTBEAT takes a unix timestamp in decimal text")
    return Heartbeat(msg_id, unix_ts)


_COMMON: Final[Readers[Common]] = {
    b"ACK": _read_ack,
    b"HEARTBEAT": _read_heartbeat,
    b"DISCONNECT": bare(Disconnect, "DISCONNECT"),
    KBYE: bare(Goodbye, "KBYE"),
    KBAI: bare(Goodbye, "KBAI"),
}
CLIENT_COMMANDS: Final[Readers[ClientMessage]] = {
    b"REQUEST": read_request,
    b"PUBLISH": _read_publish,
    b"SCHEDULE": read_schedule,
    b"UNSCHEDULE": read_unschedule,
    b"INFORM": read_inform,
    **_COMMON,
}
WORKER_COMMANDS: Final[Readers[WorkerMessage]] = {
    b"REPLY": read_reply,
    b"READY": bare(Ready, "READY"),
    b"INFORM": read_inform,
    **extension.READ_FROM_WORKER,
    **_COMMON,
}
ADMIN_COMMANDS: Final[Readers[AdminMessage]] = {
    b"HELLO": bare(Hello, "HELLO"),
    b"STATUS": bare(Status, "STATUS"),
    b"ROUTER_SHOW_WORKERS": bare(ShowWorkers, "ROUTER_SHOW_WORKERS"),
    b"ROUTER_SHOW_SCHEDULERS": bare(ShowSchedulers, "ROUTER_SHOW_SCHEDULERS"),
    b"DISCONNECT": bare(Disconnect, "DISCONNECT"),
}
REPLY_COMMANDS: Final[Readers[ReplyMessage]] = {b"REPLY": read_reply, **_COMMON}
ORDER_COMMANDS: Final[Readers[OrderMessage]] = {
    b"REQUEST": read_request,
    **extension.READ_AS_WORKER,
    **_COMMON,
}
SCHEDULER_COMMANDS: Final[Readers[SchedulerMessage]] = {
    b"SCHEDULE": read_schedule,
    b"UNSCHEDULE": read_unschedule,
    b"REPLY": read_reply,
    **_COMMON,
}


def _read(table: Readers[M], frames: Frames, at: int) -> M:
    tag = frames[at] if len(frames) > at else EMPTY
    if type(tag) is not bytes or tag != TAG:
        raise refuse("wrong_protocol", f"the message does not begin with {TAG.decode()}")
    return read_command(table, frames, at)


def read_from_client(frames: Frames, at: int = 0) -> ClientMessage:
    return _read(CLIENT_COMMANDS, frames, at)


def read_from_worker(frames: Frames, at: int = 0) -> WorkerMessage:
    return _read(WORKER_COMMANDS, frames, at)


def read_from_admin(frames: Frames, at: int = 0) -> AdminMessage:
    return _read(ADMIN_COMMANDS, frames, at)


def read_as_client(frames: Frames, at: int = 0) -> ReplyMessage:
    return _read(REPLY_COMMANDS, frames, at)


def read_as_worker(frames: Frames, at: int = 0) -> OrderMessage:
    return _read(ORDER_COMMANDS, frames, at)


def read_as_scheduler(frames: Frames, at: int = 0) -> SchedulerMessage:
    return _read(SCHEDULER_COMMANDS, frames, at)


# -- writing ----------------------------------------------------------------------------------


def write_from_client(message: ClientMessage, word: bytes = KBYE, document: bool = False) -> list[Frame]:
    """What a client or scheduler sends; `document` asks for its longer PUBLISH and shorter SCHEDULE."""
    match message:
        case Request(msg_id, queue, headers, body):
            check_id(msg_id, "message id")
            return write_order(msg_id, check_name(queue, "queue name"), headers, body)
        case Publish(msg_id, topic, headers, body):
            listed = write_headers(headers)
            # Public brokers take whatever follows the topic as the body: headers only if there are any.
            middle = [listed] if listed or document else []
            head = [TAG, b"PUBLISH", check_id(msg_id, "message id"), check_name(topic, "topic")]
            return [*head, *middle, one_frame(body)]
        case Schedule():
            return write_schedule(message, TAG, document)
        case Unschedule():
            return write_unschedule(message, TAG, document)
        case Inform():
            return write_inform(message, TAG)
        case _:
            return _write_common(message, word)


def write_from_worker(message: WorkerMessage, word: bytes = KBYE) -> list[Frame]:
    match message:
        case Reply(msg_id, body, original_id):
            check_id(msg_id, "message id")
            if not original_id:
                return write_reply(msg_id, body)
            return write_result(msg_id, body, check_id(original_id, "original message id"))
        case Ready(msg_id):
            return write_ready(check_id(msg_id, "message id"))
        case Inform():
            return write_inform(message, TAG)
        case Progress() | Return() | Leave() | Done() | Slots():
            return extension.write_from_worker(message)
        case _:
            return _write_common(message, word)


_ADMIN_WORDS: Final = {
    Hello: b"HELLO",
    Status: b"STATUS",
    ShowWorkers: b"ROUTER_SHOW_WORKERS",
    ShowSchedulers: b"ROUTER_SHOW_SCHEDULERS",
    Disconnect: b"DISCONNECT",
}


def write_from_admin(message: AdminMessage) -> list[Frame]:
    return [TAG, _ADMIN_WORDS[type(message)], check_id(message.msg_id, "message id")]


def write_order(msg_id: bytes, queue: bytes, headers: Headers, body: list[Frame]) -> list[Frame]:
    return [TAG, b"REQUEST", msg_id, queue, write_headers(headers), one_frame(body)]


def write_receipt(msg_id: bytes, original_id: bytes) -> list[Frame]:
    """Public clients wait for this: the broker has their request."""
    return [TAG, b"REPLY", msg_id, original_id]


def write_result(msg_id: bytes, body: list[Frame], original_id: bytes) -> list[Frame]:
    return [TAG, b"REPLY", msg_id, one_frame(body), original_id]


def write_reply(msg_id: bytes, body: list[Frame]) -> list[Frame]:
    """The document's form: for the admin port, and for clients if the broker is strict.

    It has room for one id.  A strict broker puts the id of the request there, because a client with more
    than one request open could not tell otherwise which of them this is the reply to.
    """
    return [TAG, b"REPLY", msg_id, one_frame(body)]


def write_ready(msg_id: bytes) -> list[Frame]:
    return [TAG, b"READY", msg_id]


def write_ack(msg_id: bytes, acked_id: bytes, version: int = 0) -> list[Frame]:
    frames: list[Frame] = [TAG, b"ACK", msg_id, acked_id]
    return [*frames, write_extension(version)] if version else frames


def write_heartbeat(msg_id: bytes, unix_ts: float) -> list[Frame]:
    return [TAG, b"HEARTBEAT", msg_id, repr(unix_ts).encode()]


def write_disconnect(msg_id: bytes) -> list[Frame]:
    return [TAG, b"DISCONNECT", msg_id]


def write_goodbye(msg_id: bytes, word: bytes = KBYE) -> list[Frame]:
    return [TAG, word, msg_id]


def write_publication(topic: bytes, body: list[Frame]) -> list[Frame]:
    """What subscribers get: no tag, so that the topic is what they match."""
    return [topic, one_frame(body)]


def _write_common(message: Common, word: bytes) -> list[Frame]:
    msg_id = check_id(message.msg_id, "message id")
    match message:
        case Ack(_, acked_id, version):
            return write_ack(msg_id, check_id(acked_id, "acknowledged message id"), version)
        case Heartbeat(_, unix_ts):
            return write_heartbeat(msg_id, unix_ts)
        case Disconnect():
            return write_disconnect(msg_id)
        case Goodbye():
            return write_goodbye(msg_id, word)
