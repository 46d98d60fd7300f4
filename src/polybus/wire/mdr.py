"""The Majordomo request-id draft ("MDR"): every request carries its own id.

The draft leaves frame 0 open; `CLIENT_TAG` and `WORKER_TAG` are our default and a broker may be
told others, so the tag is looked up by whoever owns the table of dialects and handed to `write_*`.
`at` is the index of the tag frame.  Readers are grouped by who reads what from whom:

    broker  reads  CLIENT_COMMANDS  from clients,  WORKER_COMMANDS  from workers
    client  reads  REPLY_COMMANDS   from the broker
    worker  reads  ORDER_COMMANDS   from the broker
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from polybus.errors import LocalProtocolError
from polybus.wire.context import NO_CONTEXT, Context, read_context, write_context
from polybus.wire.frames import (
    EMPTY,
    MAX_BODY_FRAMES,
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    Frame,
    Frames,
    check_id,
    check_name,
    is_name,
    read_body,
    read_command,
    read_id,
    read_name,
    refuse,
)

CLIENT_TAG: Final = b"MDRC01"
WORKER_TAG: Final = b"MDRW01"
# The draft shows DISCONNECT with the header of MDP/0.2: so we send it, and take either.
DRAFT_DISCONNECT_TAG: Final = b"MDPW02"

# A REQUEST to a worker with one more frame, its context: a word between polybus brokers and workers.
TRACED: Final = b"TRACED"

# A worker that asks for more than this at once is refused: its credit bounds what one crash repeats.
MAX_CREDIT: Final = 1_000_000
# Numbers of C when compiled, for what every message passes.
_MAX_BODY = MAX_BODY_FRAMES
_MAX_ID = MAX_ID_BYTES


class Request(Struct, frozen=True):
    """Client to broker: run this."""

    service: bytes
    request_id: bytes
    body: list[Frame]


class Partial(Struct, frozen=True):
    """Broker to client: a piece of the answer, more follows."""

    service: bytes
    request_id: bytes
    body: list[Frame]


class FinalReply(Struct, frozen=True):
    """Broker to client: the last piece of the answer."""

    service: bytes
    request_id: bytes
    body: list[Frame]


class Ready(Struct, frozen=True):
    """Worker to broker: I serve this, and take `credit` requests at a time."""

    service: bytes
    credit: int = 1


class Order(Struct, frozen=True):
    """Broker to worker: the draft's worker-side REQUEST."""

    address: bytes
    request_id: bytes
    body: list[Frame]
    # Said only to workers that announced that they take it (`wire.context`).
    context: Context = NO_CONTEXT


class WorkerPartial(Struct, frozen=True):
    """Worker to broker: a piece of the answer."""

    address: bytes
    request_id: bytes
    body: list[Frame]


class WorkerFinal(Struct, frozen=True):
    """Worker to broker: the last piece of the answer."""

    address: bytes
    request_id: bytes
    body: list[Frame]


class Ping(Struct, frozen=True):
    """Worker to broker: are you there?"""


class Pong(Struct, frozen=True):
    """Broker to worker: I am."""


class Disconnect(Struct, frozen=True):
    """Either way: this conversation is over."""


ClientMessage = Request
WorkerMessage = Ready | WorkerPartial | WorkerFinal | Ping | Disconnect
# What a broker reads from workers: also REQUEST and PONG, which are valid, but which no worker has to send.
HeardFromWorker = WorkerMessage | Order | Pong
Reply = Partial | FinalReply
Command = Order | Pong | Disconnect


# -- reading ----------------------------------------------------------------------------------


def read_request(frames: Frames, at: int) -> Request:
    if len(frames) < at + 5:
        raise refuse("short", f"REQUEST has {len(frames) - at} frames; it takes 5 or more")
    return Request(
        read_name(frames[at + 2], "service name"), read_id(frames[at + 3]), read_body(frames, at + 4)
    )


def _read_partial(frames: Frames, at: int) -> Partial:
    if len(frames) < at + 5:
        raise refuse("short", f"PARTIAL has {len(frames) - at} frames; it takes 5 or more")
    return Partial(
        read_name(frames[at + 2], "service name"), read_id(frames[at + 3]), read_body(frames, at + 4)
    )


def _read_final(frames: Frames, at: int) -> FinalReply:
    if len(frames) < at + 5:
        raise refuse("short", f"FINAL has {len(frames) - at} frames; it takes 5 or more")
    return FinalReply(
        read_name(frames[at + 2], "service name"), read_id(frames[at + 3]), read_body(frames, at + 4)
    )


def _read_ready(frames: Frames, at: int) -> Ready:
    if not at + 3 <= len(frames) <= at + 4:
        raise refuse("length", f"READY has {len(frames) - at} frames; it takes 3, or 4 with a credit")
    service = read_name(frames[at + 2], "service name")
    return Ready(service, read_credit(frames[at + 3]) if len(frames) == at + 4 else 1)


def _read_order(frames: Frames, at: int) -> Order:
    return Order(*_envelope(frames, at, "REQUEST"))


def _read_traced_order(frames: Frames, at: int) -> Order:
    # [tag, TRACED, client address, empty, request id, context, body …]
    if len(frames) < at + 7:
        raise refuse("short", f"TRACED has {len(frames) - at} frames; it takes 7 or more")
    address, request_id, (said, *body) = _envelope(frames, at, "TRACED")
    return Order(address, request_id, body, read_context(said))


def _read_worker_partial(frames: Frames, at: int) -> WorkerPartial:
    return WorkerPartial(*_envelope(frames, at, "PARTIAL"))


def _read_worker_final(frames: Frames, at: int) -> WorkerFinal:
    return WorkerFinal(*_envelope(frames, at, "FINAL"))


def _read_ping(frames: Frames, at: int) -> Ping:
    _exactly_two(frames, at, "PING")
    return Ping()


def _read_pong(frames: Frames, at: int) -> Pong:
    _exactly_two(frames, at, "PONG")
    return Pong()


def _read_disconnect(frames: Frames, at: int) -> Disconnect:
    _exactly_two(frames, at, "DISCONNECT")
    return Disconnect()


def read_credit(frame: Frame) -> int:
    """How many requests a worker takes at once, as decimal text."""
    text = bytes(frame[:8]) if type(frame) is bytes else b""
    if text.isdigit() and len(frame) <= 7 and 1 <= int(text) <= MAX_CREDIT:
        return int(text)
    raise refuse("bad_credit", f"credit must be decimal text from 1 to {MAX_CREDIT}")


def _envelope(frames: Frames, at: int, what: str) -> tuple[bytes, bytes, list[Frame]]:
    # One address frame, one empty frame, one id frame, then the body (MDR-31, MDR-32).  The draft counts "5
    # or more frames" and shows the body from frame 5 on, so these commands may have no body frame (MDR-44).
    # A client's commands have one at least, because there the body begins with frame 4.
    if len(frames) < at + 5:
        raise refuse("short", f"{what} has {len(frames) - at} frames; it takes 5 or more")
    if len(frames[at + 3]):
        raise refuse("envelope", f"{what} has no empty frame after the client address")
    return read_id(frames[at + 2], "client address"), read_id(frames[at + 4]), read_body(frames, at + 5)


def _exactly_two(frames: Frames, at: int, what: str) -> None:
    if len(frames) != at + 2:
        raise refuse("length", f"{what} has {len(frames) - at} frames; it takes 2")


CLIENT_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], ClientMessage]]] = {b"\x01": read_request}
WORKER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], HeardFromWorker]]] = {
    b"\x01": _read_ready,
    b"\x02": _read_order,
    b"\x03": _read_worker_partial,
    b"\x04": _read_worker_final,
    b"PING": _read_ping,
    b"PONG": _read_pong,
    b"\x06": _read_disconnect,
}
REPLY_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], Reply]]] = {
    b"\x02": _read_partial,
    b"\x03": _read_final,
}
ORDER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], Command]]] = {
    b"\x02": _read_order,
    TRACED: _read_traced_order,
    b"PONG": _read_pong,
    b"\x06": _read_disconnect,
}


def split_request(
    frames: list[Frame], at: int, known: Mapping[bytes, object]
) -> tuple[bytes, bytes, list[Frame]] | None:
    """Service, id and body of a good REQUEST; None if it is anything else, which `read_from_client` names.

    Every request passes here, so nothing is built and nothing is called that need not be: a name that is
    `known` was looked at before.
    """
    if len(frames) < at + 5 or len(frames) > at + _MAX_BODY:
        return None
    command, service, request_id = frames[at + 1], frames[at + 2], frames[at + 3]
    if (
        type(command) is bytes
        and type(service) is bytes
        and type(request_id) is bytes
        and command == b"\x01"
        and (service in known or (len(service) <= MAX_NAME_BYTES and is_name(service)))
        and 0 < len(request_id) <= _MAX_ID
    ):
        return service, request_id, frames[at + 4 :]
    return None


def split_final(frames: list[Frame], at: int) -> tuple[bytes, bytes, list[Frame]] | None:
    """Client address, id and body of a good FINAL of a worker; None if it is anything else."""
    if len(frames) < at + 5 or len(frames) > at + _MAX_BODY:
        return None
    command, address, request_id = frames[at + 1], frames[at + 2], frames[at + 4]
    if (
        type(command) is bytes
        and type(address) is bytes
        and type(request_id) is bytes
        and command == b"\x04"
        and not len(frames[at + 3])
        and 0 < len(address) <= _MAX_ID
        and 0 < len(request_id) <= _MAX_ID
    ):
        return address, request_id, frames[at + 5 :]
    return None


def read_from_client(frames: Frames, at: int = 0) -> ClientMessage:
    return read_command(CLIENT_COMMANDS, frames, at)


def read_from_worker(frames: Frames, at: int = 0) -> HeardFromWorker:
    return read_command(WORKER_COMMANDS, frames, at)


def read_as_client(frames: Frames, at: int = 0) -> Reply:
    return read_command(REPLY_COMMANDS, frames, at)


def read_as_worker(frames: Frames, at: int = 0) -> Command:
    return read_command(ORDER_COMMANDS, frames, at)


# -- writing ----------------------------------------------------------------------------------


def write_from_client(message: ClientMessage, tag: bytes = CLIENT_TAG) -> list[Frame]:
    return [
        tag,
        b"\x01",
        check_name(message.service, "service name"),
        check_id(message.request_id),
        *_some(message.body),
    ]


def write_from_worker(message: WorkerMessage, tag: bytes = WORKER_TAG) -> list[Frame]:
    match message:
        case WorkerFinal(address, request_id, body):
            return [
                tag,
                b"\x04",
                check_id(address, "client address"),
                EMPTY,
                check_id(request_id),
                *_some(body),
            ]
        case WorkerPartial(address, request_id, body):
            return [
                tag,
                b"\x03",
                check_id(address, "client address"),
                EMPTY,
                check_id(request_id),
                *_some(body),
            ]
        case Ready(service, 1):
            return [tag, b"\x01", check_name(service, "service name")]
        case Ready(service, credit):
            return [tag, b"\x01", check_name(service, "service name"), write_credit(credit)]
        case Ping():
            return [tag, b"PING"]
        case Disconnect():
            return [tag, b"\x06"]


def write_credit(credit: int) -> bytes:
    """The frame that `read_credit` reads."""
    if 1 <= credit <= MAX_CREDIT:
        return b"%d" % credit
    raise LocalProtocolError(f"credit is {credit}; allowed are 1 to {MAX_CREDIT}")


def write_partial(
    service: bytes, request_id: bytes, body: list[Frame], tag: bytes = CLIENT_TAG
) -> list[Frame]:
    return [tag, b"\x02", service, request_id, *_some(body)]


def write_final(service: bytes, request_id: bytes, body: list[Frame], tag: bytes = CLIENT_TAG) -> list[Frame]:
    return [tag, b"\x03", service, request_id, *(body or _ONE_EMPTY)]


def write_order(address: bytes, request_id: bytes, body: list[Frame], tag: bytes = WORKER_TAG) -> list[Frame]:
    return [tag, b"\x02", address, EMPTY, request_id, *(body or _ONE_EMPTY)]


def address_final(
    identity: bytes, lead: list[Frame], service: bytes, request_id: bytes, body: list[Frame], tag: bytes
) -> list[Frame]:
    """The whole message of a FINAL. What nearly all of them are is built in one go."""
    if len(body) == 1 and not lead:
        return [identity, tag, b"\x03", service, request_id, body[0]]
    return [identity, *lead, *write_final(service, request_id, body, tag)]


def address_order(
    identity: bytes, lead: list[Frame], address: bytes, request_id: bytes, body: list[Frame], tag: bytes
) -> list[Frame]:
    """The whole message of an order to a worker, likewise."""
    if len(body) == 1 and not lead:
        return [identity, tag, b"\x02", address, EMPTY, request_id, body[0]]
    return [identity, *lead, *write_order(address, request_id, body, tag)]


def write_traced_order(
    address: bytes, request_id: bytes, context: Context, body: list[Frame], tag: bytes = WORKER_TAG
) -> list[Frame]:
    return [tag, TRACED, address, EMPTY, request_id, write_context(context), *_some(body)]


def write_pong(tag: bytes = WORKER_TAG) -> list[Frame]:
    return [tag, b"PONG"]


def write_disconnect(tag: bytes = DRAFT_DISCONNECT_TAG) -> list[Frame]:
    return [tag, b"\x06"]


# We send every command that has a body with at least one body frame, be it empty.
_ONE_EMPTY: Final[list[Frame]] = [EMPTY]


def _some(body: list[Frame]) -> list[Frame]:
    return body or _ONE_EMPTY
