"""The Majordomo Protocol 0.2 ("MDP/0.2", ZeroMQ RFC 18): requests without ids, many replies each.

A client's request is answered by any number of PARTIALs and one FINAL.  Nothing on the client's
side tells one request from the next, so a client's answers go out in the order of its requests.
On the worker's side the client address is opaque to the worker and comes back as it was: what
a broker puts there is how it knows the request again.

`at` is the index of the tag frame.  Who reads what from whom:

    broker  reads  CLIENT_COMMANDS  from clients,  WORKER_COMMANDS  from workers
    client  reads  REPLY_COMMANDS   from the broker
    worker  reads  ORDER_COMMANDS   from the broker

MDP/0.1 says the same things with other frames: it shares these messages, see `mdp1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from polybus.wire.frames import (
    EMPTY,
    Frame,
    Frames,
    check_id,
    check_name,
    read_body,
    read_command,
    read_id,
    read_name,
    refuse,
)
from polybus.wire.mdr import read_credit, write_credit

CLIENT_TAG: Final = b"MDPC02"
WORKER_TAG: Final = b"MDPW02"


class Request(Struct, frozen=True):
    """Client to broker: run this."""

    service: bytes
    body: list[Frame]


class Partial(Struct, frozen=True):
    """Broker to client: a piece of the answer, more follows."""

    service: bytes
    body: list[Frame]


class FinalReply(Struct, frozen=True):
    """Broker to client: the last piece of the answer (RFC 7: REPLY, all of it)."""

    service: bytes
    body: list[Frame]


class Ready(Struct, frozen=True):
    """Worker to broker: I serve this, and take `credit` requests at a time."""

    service: bytes
    credit: int = 1


class Order(Struct, frozen=True):
    """Broker to worker: the RFCs' worker-side REQUEST."""

    address: bytes
    body: list[Frame]


class WorkerPartial(Struct, frozen=True):
    """Worker to broker: a piece of the answer."""

    address: bytes
    body: list[Frame]


class WorkerFinal(Struct, frozen=True):
    """Worker to broker: the last piece of the answer (RFC 7: REPLY, all of it)."""

    address: bytes
    body: list[Frame]


class Heartbeat(Struct, frozen=True):
    """Either way: I am here."""


class Disconnect(Struct, frozen=True):
    """Either way: this conversation is over."""


ClientMessage = Request
WorkerMessage = Ready | WorkerPartial | WorkerFinal | Heartbeat | Disconnect
# What a broker reads from workers: also REQUEST, which is valid, but which no worker has to send.
HeardFromWorker = WorkerMessage | Order
Reply = Partial | FinalReply
Command = Order | Heartbeat | Disconnect


# -- reading ----------------------------------------------------------------------------------


def read_request(frames: Frames, at: int) -> Request:
    return Request(*_named(frames, at, "REQUEST"))


def _read_partial(frames: Frames, at: int) -> Partial:
    return Partial(*_named(frames, at, "PARTIAL"))


def _read_final(frames: Frames, at: int) -> FinalReply:
    return FinalReply(*_named(frames, at, "FINAL"))


def read_ready(frames: Frames, at: int) -> Ready:
    if not at + 3 <= len(frames) <= at + 4:
        raise refuse("length", f"READY has {len(frames) - at} frames; it takes 3, or 4 with a credit")
    service = read_name(frames[at + 2], "service name")
    return Ready(service, read_credit(frames[at + 3]) if len(frames) == at + 4 else 1)


def read_order(frames: Frames, at: int) -> Order:
    return Order(*_envelope(frames, at, "REQUEST"))


def _read_worker_partial(frames: Frames, at: int) -> WorkerPartial:
    return WorkerPartial(*_envelope(frames, at, "PARTIAL"))


def read_worker_final(frames: Frames, at: int) -> WorkerFinal:
    return WorkerFinal(*_envelope(frames, at, "FINAL"))


def read_heartbeat(frames: Frames, at: int) -> Heartbeat:
    _exactly_two(frames, at, "HEARTBEAT")
    return Heartbeat()


def read_disconnect(frames: Frames, at: int) -> Disconnect:
    _exactly_two(frames, at, "DISCONNECT")
    return Disconnect()


def _named(frames: Frames, at: int, what: str) -> tuple[bytes, list[Frame]]:
    if len(frames) < at + 4:
        raise refuse("short", f"{what} has {len(frames) - at} frames; it takes 4 or more")
    return read_name(frames[at + 2], "service name"), read_body(frames, at + 3)


def _envelope(frames: Frames, at: int, what: str) -> tuple[bytes, list[Frame]]:
    # Precisely one address frame, then an empty one, then the body.  The RFCs count one body frame at least;
    # workers of the ZeroMQ guide send none if they have nothing to say, and its broker passes that on.
    if len(frames) < at + 4:
        raise refuse("short", f"{what} has {len(frames) - at} frames; it takes 5 or more")
    if len(frames[at + 3]):
        raise refuse("envelope", f"{what} has no empty frame after the client address")
    return read_id(frames[at + 2], "client address"), read_body(frames, at + 4)


def _exactly_two(frames: Frames, at: int, what: str) -> None:
    if len(frames) != at + 2:
        raise refuse("length", f"{what} has {len(frames) - at} frames; it takes 2")


CLIENT_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], ClientMessage]]] = {b"\x01": read_request}
WORKER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], HeardFromWorker]]] = {
    b"\x01": read_ready,
    b"\x02": read_order,
    b"\x03": _read_worker_partial,
    b"\x04": read_worker_final,
    b"\x05": read_heartbeat,
    b"\x06": read_disconnect,
}
REPLY_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], Reply]]] = {
    b"\x02": _read_partial,
    b"\x03": _read_final,
}
ORDER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], Command]]] = {
    b"\x02": read_order,
    b"\x05": read_heartbeat,
    b"\x06": read_disconnect,
}


def read_from_client(frames: Frames, at: int = 0) -> ClientMessage:
    return read_command(CLIENT_COMMANDS, frames, at)


def read_from_worker(frames: Frames, at: int = 0) -> HeardFromWorker:
    return read_command(WORKER_COMMANDS, frames, at)


def read_as_client(frames: Frames, at: int = 0) -> Reply:
    return read_command(REPLY_COMMANDS, frames, at)


def read_as_worker(frames: Frames, at: int = 0) -> Command:
    return read_command(ORDER_COMMANDS, frames, at)


# -- writing ----------------------------------------------------------------------------------


def write_from_client(message: ClientMessage) -> list[Frame]:
    return [CLIENT_TAG, b"\x01", check_name(message.service, "service name"), *_some(message.body)]


def write_from_worker(message: WorkerMessage) -> list[Frame]:
    match message:
        case WorkerFinal(address, body):
            return [WORKER_TAG, b"\x04", check_id(address, "client address"), EMPTY, *_some(body)]
        case WorkerPartial(address, body):
            return [WORKER_TAG, b"\x03", check_id(address, "client address"), EMPTY, *_some(body)]
        case Ready(service, 1):
            return [WORKER_TAG, b"\x01", check_name(service, "service name")]
        case Ready(service, credit):
            return [WORKER_TAG, b"\x01", check_name(service, "service name"), write_credit(credit)]
        case Heartbeat():
            return write_heartbeat()
        case Disconnect():
            return write_disconnect()


def write_partial(service: bytes, body: list[Frame]) -> list[Frame]:
    return [CLIENT_TAG, b"\x02", service, *_some(body)]


def write_final(service: bytes, body: list[Frame]) -> list[Frame]:
    return [CLIENT_TAG, b"\x03", service, *_some(body)]


def write_order(address: bytes, body: list[Frame]) -> list[Frame]:
    return [WORKER_TAG, b"\x02", address, EMPTY, *_some(body)]


def write_heartbeat() -> list[Frame]:
    return [WORKER_TAG, b"\x05"]


def write_disconnect() -> list[Frame]:
    return [WORKER_TAG, b"\x06"]


def _some(body: list[Frame]) -> list[Frame]:
    # Every command with a body has at least one body frame, be it empty.
    return body or [EMPTY]
