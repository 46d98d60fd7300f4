"""EBUS 1.0: services, requests with ids, and a tag that says who a message was sent by.

Every message is [tag, type, …].  The tag is the type of the sender as EBUS sees it: what comes from
the client side is `EBC01`, what comes from the worker side is `EBW01`, and the broker passes it on.  So a
broker speaks to workers as `EBC01` and to clients as `EBW01`; public peers drop anything else (EBUS-4).
The document shows `EBW01` on everything a worker gets but requests; that form, and the word REQUEST for
REQ, are arguments of the writers.  Readers take both.

    broker  reads  CLIENT_COMMANDS  from clients;  these and  WORKER_COMMANDS  from workers,
                   because a worker may itself be a client on the same socket (EBUS-26)
    client  reads  REPLY_COMMANDS   from the broker
    worker  reads  ORDER_COMMANDS   from the broker, and  REPLY_COMMANDS  for what it asked itself

A body is one frame or none, and "none" has a meaning (a REJECT without data is an expiry), so it is a
list of at most one frame.  `at` is the index of the tag frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.frames import (
    EMPTY,
    MAX_BODY_FRAMES,
    Frame,
    Frames,
    check_id,
    check_name,
    read_body,
    read_command,
    read_id,
    read_name,
    read_text,
    refuse,
)

CLIENT_TAG: Final = b"EBC01"
WORKER_TAG: Final = b"EBW01"

# The word for a request: public peers say REQ, the document says REQUEST.
REQ: Final = b"REQ"
REQUEST: Final = b"REQUEST"

# 24 days: more than any request waits, and it fits the 31 bits that timers of public peers take.
MAX_TTL_MS: Final = 2**31
# A worker that asks for more than this at once is refused: its credit bounds what one crash repeats.
MAX_CREDIT: Final = 1_000_000


class Request(Struct, frozen=True):
    """Client to broker, and broker to worker: run this, unless `ttl_ms` have passed."""

    service: bytes
    request_id: bytes
    body: list[Frame]
    ttl_ms: int | None = None


class Cancel(Struct, frozen=True):
    """Client to broker: I no longer want the answer."""

    service: bytes
    request_id: bytes


class CancelOrder(Struct, frozen=True):
    """Broker to worker: nobody wants this answer any more."""

    request_id: bytes


class ServicesQuery(Struct, frozen=True):
    """Client to broker: which services are there? The id, if any, is for the REPLY."""

    request_id: bytes = b""


class WorkersQuery(Struct, frozen=True):
    """Client to broker: which workers are there? The id, if any, is for the REPLY."""

    request_id: bytes = b""


class Ready(Struct, frozen=True):
    """Worker to broker: I serve this, and take `credit` requests at a time."""

    service: bytes
    credit: int = 1
    upstream: bool = True  # the public form, [READY, <anything>, service], not the short [READY, service]


class Reply(Struct, frozen=True):
    """Worker to broker, and broker to client: the answer."""

    request_id: bytes
    body: list[Frame]


class Reject(Struct, frozen=True):
    """The same ways: there will be no answer. The document shows no id, so it may be empty."""

    request_id: bytes
    body: list[Frame]


class Heartbeat(Struct, frozen=True):
    """Either way: I am here."""


class Ping(Struct, frozen=True):
    """Either way: are you there? The answer is a HEARTBEAT."""


class Disconnect(Struct, frozen=True):
    """Either way: this conversation is over."""


class Publish(Struct, frozen=True):
    """On the publishing sockets, without a tag: a channel and what is said on it."""

    channel: bytes
    body: list[Frame]


Beat = Heartbeat | Ping | Disconnect
ClientMessage = Request | Cancel | ServicesQuery | WorkersQuery | Beat
WorkerMessage = Ready | Reply | Reject | Beat
ReplyMessage = Reply | Reject | Beat
OrderMessage = Request | CancelOrder | Beat

M = TypeVar("M")
B = TypeVar("B", bound=Beat)
Q = TypeVar("Q", ServicesQuery, WorkersQuery)
Readers = Mapping[Frame, Callable[[Frames, int], M]]


# -- reading ----------------------------------------------------------------------------------


def read_request(frames: Frames, at: int) -> Request:
    count = len(frames) - at
    if not 4 <= count <= 6:
        raise refuse("length", f"REQUEST has {count} frames; it takes 4 to 6")
    return Request(
        read_name(frames[at + 2], "service name"),
        read_id(frames[at + 3]),
        [frames[at + 4]] if count > 4 else [],
        read_ttl(frames[at + 5]) if count == 6 else None,
    )


def read_ttl(frame: Frame) -> int | None:
    """Milliseconds until a request is stale, as decimal text; an empty frame sets no limit."""
    if type(frame) is bytes:
        if not frame:
            return None
        if len(frame) <= 10 and frame.isdigit() and (ttl_ms := int(frame)) <= MAX_TTL_MS:
            return ttl_ms
    raise refuse("bad_ttl", f"the time to live must be decimal text from 0 to {MAX_TTL_MS} ms")


def _read_cancel(frames: Frames, at: int) -> Cancel:
    _between(frames, at, "CANCEL", 4, 4)
    return Cancel(read_name(frames[at + 2], "service name"), read_id(frames[at + 3]))


def _read_cancel_order(frames: Frames, at: int) -> CancelOrder:
    _between(frames, at, "CANCEL", 3, 3)
    return CancelOrder(read_id(frames[at + 2]))


def _query(kind: Callable[[bytes], Q]) -> Callable[[Frames, int], Q]:
    def read(frames: Frames, at: int) -> Q:
        _between(frames, at, "a query", 2, 3)
        # It is answered to its sender even without an id: an empty frame is as good as none.
        named = len(frames) == at + 3 and len(frames[at + 2])
        return kind(read_id(frames[at + 2]) if named else EMPTY)

    return read


def _read_ready(frames: Frames, at: int) -> Ready:
    # Three frames are the short form.  It takes no credit: [READY, "a", "2"] must stay service "2".
    _between(frames, at, "READY", 3, 5)
    if len(frames) == at + 3:
        return Ready(read_name(frames[at + 2], "service name"), upstream=False)
    read_text(frames[at + 2], "the unused frame of READY")
    service = read_name(frames[at + 3], "service name")
    return Ready(service, _read_credit(frames[at + 4]) if len(frames) == at + 5 else 1)


def _read_credit(frame: Frame) -> int:
    text = frame if type(frame) is bytes and len(frame) <= 7 else EMPTY
    if text.isdigit() and 1 <= (credit := int(text)) <= MAX_CREDIT:
        return credit
    raise refuse("bad_credit", f"credit must be decimal text from 1 to {MAX_CREDIT}")


def _read_reply(frames: Frames, at: int) -> Reply:
    _between(frames, at, "REPLY", 3, 4)
    return Reply(read_id(frames[at + 2]), [frames[at + 3]] if len(frames) == at + 4 else [])


def _read_reject(frames: Frames, at: int) -> Reject:
    _between(frames, at, "REJECT", 2, 4)
    if len(frames) == at + 2:
        return Reject(EMPTY, [])
    return Reject(read_id(frames[at + 2]), list(frames[at + 3 :]))


def _beat(message: B) -> Callable[[Frames, int], B]:
    # Nothing to read but the word itself, so one message serves all; peers may put more behind it.
    def read(frames: Frames, at: int) -> B:
        _between(frames, at, type(message).__name__, 2, MAX_BODY_FRAMES)
        return message

    return read


def read_publish(frames: Frames, at: int = 0) -> Publish:
    if len(frames) <= at:
        raise refuse("short", "PUBLISH has no channel")
    return Publish(read_name(frames[at], "channel"), read_body(frames, at + 1))


def _between(frames: Frames, at: int, what: str, least: int, most: int) -> None:
    if not least <= len(frames) - at <= most:
        raise refuse("length", f"{what} has {len(frames) - at} frames; it takes {least} to {most}")


_BEATS: Final[Readers[Beat]] = {
    b"HEARTBEAT": _beat(Heartbeat()),
    b"PING": _beat(Ping()),
    b"DISCONNECT": _beat(Disconnect()),
}
CLIENT_COMMANDS: Final[Readers[ClientMessage]] = {
    REQ: read_request,
    REQUEST: read_request,
    b"CANCEL": _read_cancel,
    b"SERVICES": _query(ServicesQuery),
    b"WORKERS": _query(WorkersQuery),
    **_BEATS,
}
REPLY_COMMANDS: Final[Readers[ReplyMessage]] = {
    b"REPLY": _read_reply,
    b"REJECT": _read_reject,
    **_BEATS,
}
WORKER_COMMANDS: Final[Readers[WorkerMessage]] = {
    b"READY": _read_ready,
    **REPLY_COMMANDS,
}
ORDER_COMMANDS: Final[Readers[OrderMessage]] = {
    REQ: read_request,
    REQUEST: read_request,
    b"CANCEL": _read_cancel_order,
    **_BEATS,
}


def read_from_client(frames: Frames, at: int = 0) -> ClientMessage:
    return _read_from(CLIENT_TAG, CLIENT_COMMANDS, frames, at)


def read_from_worker(frames: Frames, at: int = 0) -> WorkerMessage | ClientMessage:
    return _read_either(CLIENT_COMMANDS, WORKER_COMMANDS, frames, at)


def read_as_client(frames: Frames, at: int = 0) -> ReplyMessage:
    return _read_from(WORKER_TAG, REPLY_COMMANDS, frames, at)


def read_as_worker(frames: Frames, at: int = 0) -> OrderMessage | ReplyMessage:
    return _read_either(ORDER_COMMANDS, REPLY_COMMANDS, frames, at)


def _read_from(sender: bytes, table: Readers[M], frames: Frames, at: int) -> M:
    tag = frames[at] if len(frames) > at else EMPTY
    if type(tag) is not bytes or tag != sender:
        raise _wrong_sender(tag)
    return read_command(table, frames, at)


def _read_either(client_side: Readers[M], worker_side: Readers[M], frames: Frames, at: int) -> M:
    tag = frames[at] if len(frames) > at else EMPTY
    is_worker = type(tag) is bytes and tag == WORKER_TAG
    here, there = (worker_side, client_side) if is_worker else (client_side, worker_side)
    try:
        return _read_from(WORKER_TAG if is_worker else CLIENT_TAG, here, frames, at)
    except RemoteProtocolError as error:
        # A known type under the other sender's tag is a wrong sender, not an unknown command.
        if error.reason == "unknown_command" and bytes(frames[at + 1]) in there:
            raise _wrong_sender(tag) from None
        raise


def _wrong_sender(tag: Frame) -> RemoteProtocolError:
    return refuse("wrong_sender", f"sender {bytes(tag)[:16]!r} may not send this here")


# -- writing ----------------------------------------------------------------------------------

_BEAT_WORDS: Final = {Heartbeat: b"HEARTBEAT", Ping: b"PING", Disconnect: b"DISCONNECT"}


def write_from_client(message: ClientMessage, word: bytes = REQ) -> list[Frame]:
    match message:
        case Request(service, request_id, body, ttl_ms):
            check_name(service, "service name")
            if ttl_ms is not None and not 0 <= ttl_ms <= MAX_TTL_MS:
                raise LocalProtocolError(f"ttl_ms is {ttl_ms}; allowed are 0 to {MAX_TTL_MS}")
            if not body and ttl_ms is None:
                return [CLIENT_TAG, word, service, check_id(request_id)]
            return write_order(service, check_id(request_id), body, ttl_ms, word)
        case Cancel(service, request_id):
            return [CLIENT_TAG, b"CANCEL", check_name(service, "service name"), check_id(request_id)]
        case ServicesQuery(request_id):
            return [CLIENT_TAG, b"SERVICES", *([check_id(request_id)] if request_id else [])]
        case WorkersQuery(request_id):
            return [CLIENT_TAG, b"WORKERS", *([check_id(request_id)] if request_id else [])]
        case _:
            return [CLIENT_TAG, _BEAT_WORDS[type(message)]]


def write_from_worker(message: WorkerMessage | ClientMessage, word: bytes = REQ) -> list[Frame]:
    match message:
        case Reply(request_id, body):
            return write_reply(check_id(request_id), body)
        case Reject(request_id, body):
            return write_reject(check_id(request_id) if request_id else EMPTY, body)
        case Ready(service, credit, upstream):
            check_name(service, "service name")
            if not 1 <= credit <= MAX_CREDIT:
                raise LocalProtocolError(f"credit is {credit}; allowed are 1 to {MAX_CREDIT}")
            if not upstream and credit == 1:
                return [WORKER_TAG, b"READY", service]
            # With one request at a time the frames are what public brokers know; a credit needs one more.
            return [WORKER_TAG, b"READY", EMPTY, service, *([b"%d" % credit] if credit != 1 else [])]
        case Heartbeat() | Ping() | Disconnect():
            return [WORKER_TAG, _BEAT_WORDS[type(message)]]
        case _:
            return write_from_client(message, word)


def write_order(
    service: bytes,
    request_id: bytes,
    body: list[Frame],
    ttl_ms: int | None = None,
    word: bytes = REQ,
    tag: bytes = CLIENT_TAG,
) -> list[Frame]:
    """A request to a worker, which always has a data frame: the time to live is known by its position."""
    head = [tag, word, service, request_id, *(_one(body) or (EMPTY,))]
    return head if ttl_ms is None else [*head, b"%d" % ttl_ms]


def write_reply(request_id: bytes, body: list[Frame], tag: bytes = WORKER_TAG) -> list[Frame]:
    return [tag, b"REPLY", request_id, *_one(body)]


def write_reject(request_id: bytes, body: list[Frame], tag: bytes = WORKER_TAG) -> list[Frame]:
    """Without a body it says "expired"; without an id it is the document's bare form."""
    if request_id:
        return [tag, b"REJECT", request_id, *_one(body)]
    if body:
        raise LocalProtocolError("a REJECT with data needs the id of its request")
    return [tag, b"REJECT"]


def write_cancel_order(request_id: bytes, tag: bytes = CLIENT_TAG) -> list[Frame]:
    return [tag, b"CANCEL", request_id]


def write_heartbeat(tag: bytes) -> list[Frame]:
    return [tag, b"HEARTBEAT"]


def write_ping(tag: bytes) -> list[Frame]:
    return [tag, b"PING"]


def write_disconnect(tag: bytes) -> list[Frame]:
    return [tag, b"DISCONNECT"]


def write_publish(channel: bytes, body: list[Frame]) -> list[Frame]:
    return [check_name(channel, "channel"), *body]


def _one(body: list[Frame]) -> list[Frame]:
    if len(body) > 1:
        raise LocalProtocolError(f"EBUS carries one body frame, not {len(body)}; join them before sending")
    return body
