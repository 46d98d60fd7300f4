"""EBUS 1.0: services, requests with ids, and a tag that says who a message was sent by.

Every message is [tag, type, …].  The tag is the type of the sender as EBUS sees it: what comes from
the client side is `EBC01`, what comes from the worker side is `EBW01`, and the broker passes it on.  So
requests and cancellations go to workers as `EBC01`, answers go to clients as `EBW01`, and public peers drop
anything else (EBUS-4).  On PING, HEARTBEAT and DISCONNECT the document shows `EBW01` to everybody; public
brokers put `EBC01` on those for workers, so a worker takes both.

    broker  reads  CLIENT_COMMANDS  from clients;  these and  WORKER_COMMANDS  from workers,
                   because a worker may itself be a client on the same socket (EBUS-26)
    client  reads  REPLY_COMMANDS   from the broker
    worker  reads  ORDER_COMMANDS   from the broker, and  REPLY_COMMANDS  for what it asked itself

Two words ask for work.  From a client REQ (public peers) and REQUEST (the document) are the same: [service,
id, data, ttl].  To a worker they differ: REQUEST is that again, REQ has no service, [id, data, ttl], because
a public worker serves one and knows it.

Public peers run on Node.  There a number is sent as its decimal text, which may have a fraction, and what has
no value as `null`, `undefined` or nothing, depending on the version of the library; all of these mean "not
given" where a header is read.  Data is compressed BSON there; to us it is opaque.

`at` is the index of the tag frame.  The messages are in `ebus_messages`; this module offers all their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.ebus_messages import Beat as Beat
from polybus.wire.ebus_messages import Cancel as Cancel
from polybus.wire.ebus_messages import CancelOrder as CancelOrder
from polybus.wire.ebus_messages import ClientMessage as ClientMessage
from polybus.wire.ebus_messages import Disconnect as Disconnect
from polybus.wire.ebus_messages import Heartbeat as Heartbeat
from polybus.wire.ebus_messages import Listing as Listing
from polybus.wire.ebus_messages import Order as Order
from polybus.wire.ebus_messages import OrderMessage as OrderMessage
from polybus.wire.ebus_messages import Ping as Ping
from polybus.wire.ebus_messages import Publish as Publish
from polybus.wire.ebus_messages import Ready as Ready
from polybus.wire.ebus_messages import Reject as Reject
from polybus.wire.ebus_messages import Reply as Reply
from polybus.wire.ebus_messages import ReplyMessage as ReplyMessage
from polybus.wire.ebus_messages import Request as Request
from polybus.wire.ebus_messages import ServicesQuery as ServicesQuery
from polybus.wire.ebus_messages import WorkerMessage as WorkerMessage
from polybus.wire.ebus_messages import WorkersQuery as WorkersQuery
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

# The words for a request; what they mean to a worker differs, see above.
REQ: Final = b"REQ"
REQUEST: Final = b"REQUEST"

# 24 days: more than any request waits, and it fits the 31 bits that timers of public peers take.
MAX_TTL_MS: Final = 2**31
# A worker that asks for more than this at once is refused: its credit bounds what one crash repeats.
MAX_CREDIT: Final = 1_000_000
# How a number that is none looks when it comes from Node.
_NO_NUMBER: Final = frozenset((EMPTY, b"null", b"undefined", b"NaN", b"Infinity"))

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


def _read_order(frames: Frames, at: int) -> Order:
    _between(frames, at, "REQ", 3, 5)
    count = len(frames) - at
    return Order(
        read_id(frames[at + 2]),
        [frames[at + 3]] if count > 3 else [],
        read_ttl(frames[at + 4]) if count == 5 else None,
    )


def read_ttl(frame: Frame) -> int | None:
    """Milliseconds until a request is stale, as decimal text; without a number there is no limit."""
    if type(frame) is bytes:
        if frame.isdigit() and len(frame) <= 10 and (ttl_ms := int(frame)) <= MAX_TTL_MS:
            return ttl_ms
        if frame in _NO_NUMBER:
            return None
        whole, point, fraction = frame.partition(b".")
        # What was computed from seconds may have digits that nobody meant.
        if point and len(fraction) <= 20 and whole.isdigit() and fraction.isdigit():
            return read_ttl(whole)
    raise refuse("bad_ttl", f"the time to live must be decimal text from 0 to {MAX_TTL_MS} ms")


def _read_cancel(frames: Frames, at: int) -> Cancel:
    _between(frames, at, "CANCEL", 4, 4)
    return Cancel(read_name(frames[at + 2], "service name"), read_id(frames[at + 3]))


def _read_cancel_order(frames: Frames, at: int) -> CancelOrder:
    _between(frames, at, "CANCEL", 3, 3)
    return CancelOrder(read_id(frames[at + 2]))


def _query(kind: Callable[[bytes], Q]) -> Callable[[Frames, int], Q]:
    def read(frames: Frames, at: int) -> Q:
        # Public brokers find the id where a request has it, behind a service that nobody reads; public
        # clients send none.  It is answered to its sender either way: an empty frame is as good as none.
        _between(frames, at, "a query", 2, 4)
        named = len(frames) > at + 2 and len(frames[-1])
        return kind(read_id(frames[-1]) if named else EMPTY)

    return read


def _listing(word: bytes) -> Callable[[Frames, int], Listing]:
    def read(frames: Frames, at: int) -> Listing:
        _between(frames, at, "a listing", 3, 4)
        request_id = read_id(frames[at + 2]) if len(frames[at + 2]) else EMPTY
        return Listing(word, request_id, list(frames[at + 3 :]))

    return read


def _read_ready(frames: Frames, at: int) -> Ready:
    # Three frames are the short form.  It takes no credit: [READY, "a", "2"] must stay service "2".
    _between(frames, at, "READY", 3, 5)
    if len(frames) == at + 3:
        return Ready(read_name(frames[at + 2], "service name"), upstream=False)
    read_text(frames[at + 2], "the unused frame of READY")
    service = read_name(frames[at + 3], "service name")
    return Ready(service, _read_credit(frames[at + 4]) if len(frames) == at + 5 else None)


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
_ANSWERS: Final[Readers[Reply | Reject | Beat]] = {
    b"REPLY": _read_reply,
    b"REJECT": _read_reject,
    **_BEATS,
}
CLIENT_COMMANDS: Final[Readers[ClientMessage]] = {
    REQ: read_request,
    REQUEST: read_request,
    b"CANCEL": _read_cancel,
    b"REJECT": _read_reject,
    b"SERVICES": _query(ServicesQuery),
    b"WORKERS": _query(WorkersQuery),
    **_BEATS,
}
REPLY_COMMANDS: Final[Readers[ReplyMessage]] = {
    **_ANSWERS,
    b"SERVICES": _listing(b"SERVICES"),
    b"WORKERS": _listing(b"WORKERS"),
}
WORKER_COMMANDS: Final[Readers[WorkerMessage]] = {
    b"READY": _read_ready,
    **_ANSWERS,
}
ORDER_COMMANDS: Final[Readers[OrderMessage]] = {
    REQ: _read_order,
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
            return write_request(service, check_id(request_id), body, ttl_ms, word)
        case Cancel(service, request_id):
            return [CLIENT_TAG, b"CANCEL", check_name(service, "service name"), check_id(request_id)]
        case Reject(request_id, body):
            return write_reject(check_id(request_id) if request_id else EMPTY, body, CLIENT_TAG)
        case ServicesQuery(request_id):
            return [CLIENT_TAG, b"SERVICES", *([EMPTY, check_id(request_id)] if request_id else [])]
        case WorkersQuery(request_id):
            return [CLIENT_TAG, b"WORKERS", *([EMPTY, check_id(request_id)] if request_id else [])]
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
            if credit is None:
                return [WORKER_TAG, b"READY", *([EMPTY] if upstream else []), service]
            if not 1 <= credit <= MAX_CREDIT:
                raise LocalProtocolError(f"credit is {credit}; allowed are 1 to {MAX_CREDIT}")
            # Public brokers do not look at what comes behind the service.
            return [WORKER_TAG, b"READY", EMPTY, service, b"%d" % credit]
        case Heartbeat() | Ping() | Disconnect():
            return [WORKER_TAG, _BEAT_WORDS[type(message)]]
        case _:
            return write_from_client(message, word)


def write_request(
    service: bytes, request_id: bytes, body: list[Frame], ttl_ms: int | None = None, word: bytes = REQUEST
) -> list[Frame]:
    """Always with a data frame: the time to live is known by its position."""
    head = [CLIENT_TAG, word, service, request_id, *(_one(body) or (EMPTY,))]
    return head if ttl_ms is None else [*head, b"%d" % ttl_ms]


def write_document_request(service: bytes, request_id: bytes, body: list[Frame]) -> list[Frame]:
    """REQUEST with the frames of the document's table and no others; data is optional there."""
    return [CLIENT_TAG, REQUEST, service, request_id, *_one(body)]


def write_order(request_id: bytes, body: list[Frame], ttl_ms: int) -> list[Frame]:
    """A request to a public worker.  One that is told no time to live takes three seconds."""
    return [CLIENT_TAG, REQ, request_id, *(_one(body) or (EMPTY,)), b"%d" % ttl_ms]


def write_listing(query: bytes, request_id: bytes, body: list[Frame]) -> list[Frame]:
    return [WORKER_TAG, query, request_id, *_one(body)]


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
