"""The Majordomo Protocol 0.1 ("MDP/0.1", ZeroMQ RFC 7): one request, one reply.

What is said is a part of MDP/0.2 (no PARTIAL), so the messages are those of `mdp2`; what differs
are the tags, the command bytes, and that a client's frames have no command at all: tag, service,
body.  RFC 7's REPLY is the whole answer, hence `FinalReply` and `WorkerFinal` here.

Every message of RFC 7 starts with an empty frame, which a REQ socket adds and removes by itself.
As everywhere in `wire`, it is not among the frames written here and `at`, the index of the tag,
is behind it: whoever owns the socket mirrors what the peer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from polybus.errors import LocalProtocolError
from polybus.wire.frames import (
    EMPTY,
    Frame,
    Frames,
    check_id,
    check_name,
    read_body,
    read_command,
    read_name,
    refuse,
)
from polybus.wire.mdp2 import (
    Disconnect,
    FinalReply,
    Heartbeat,
    Order,
    Ready,
    Request,
    WorkerFinal,
    read_disconnect,
    read_heartbeat,
    read_order,
    read_ready,
    read_worker_final,
)
from polybus.wire.mdr import write_credit

__all__ = [
    "CLIENT_TAG",
    "ORDER_COMMANDS",
    "WORKER_COMMANDS",
    "WORKER_TAG",
    "ClientMessage",
    "Command",
    "Disconnect",
    "FinalReply",
    "HeardFromWorker",
    "Heartbeat",
    "Order",
    "Ready",
    "Reply",
    "Request",
    "WorkerFinal",
    "WorkerMessage",
    "read_as_client",
    "read_as_worker",
    "read_from_client",
    "read_from_worker",
    "write_disconnect",
    "write_final",
    "write_from_client",
    "write_from_worker",
    "write_heartbeat",
    "write_order",
]

CLIENT_TAG: Final = b"MDPC01"
WORKER_TAG: Final = b"MDPW01"

ClientMessage = Request
WorkerMessage = Ready | WorkerFinal | Heartbeat | Disconnect
# What a broker reads from workers: also REQUEST, which is valid, but which no worker has to send.
HeardFromWorker = WorkerMessage | Order
Reply = FinalReply
Command = Order | Heartbeat | Disconnect


# -- reading ----------------------------------------------------------------------------------

WORKER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], HeardFromWorker]]] = {
    b"\x01": read_ready,
    b"\x02": read_order,
    b"\x03": read_worker_final,
    b"\x04": read_heartbeat,
    b"\x05": read_disconnect,
}
ORDER_COMMANDS: Final[Mapping[Frame, Callable[[Frames, int], Command]]] = {
    b"\x02": read_order,
    b"\x04": read_heartbeat,
    b"\x05": read_disconnect,
}


def read_from_client(frames: Frames, at: int = 0) -> ClientMessage:
    return Request(*_named(frames, at, "REQUEST"))


def read_from_worker(frames: Frames, at: int = 0) -> HeardFromWorker:
    return read_command(WORKER_COMMANDS, frames, at)


def read_as_client(frames: Frames, at: int = 0) -> Reply:
    return FinalReply(*_named(frames, at, "REPLY"))


def read_as_worker(frames: Frames, at: int = 0) -> Command:
    return read_command(ORDER_COMMANDS, frames, at)


def _named(frames: Frames, at: int, what: str) -> tuple[bytes, list[Frame]]:
    if len(frames) < at + 3:
        raise refuse("short", f"{what} has {len(frames) - at} frames; it takes 3 or more")
    return read_name(frames[at + 1], "service name"), read_body(frames, at + 2)


# -- writing ----------------------------------------------------------------------------------


def write_from_client(message: ClientMessage) -> list[Frame]:
    return [CLIENT_TAG, check_name(message.service, "service name"), *_some(message.body)]


def write_from_worker(message: WorkerMessage) -> list[Frame]:
    match message:
        case WorkerFinal(address, body):
            return [WORKER_TAG, b"\x03", check_id(address, "client address"), EMPTY, *_some(body)]
        case Ready(service, 1):
            return [WORKER_TAG, b"\x01", check_name(service, "service name")]
        case Ready(service, credit):
            return [WORKER_TAG, b"\x01", check_name(service, "service name"), write_credit(credit)]
        case Heartbeat():
            return write_heartbeat()
        case Disconnect():
            return write_disconnect()
        case _:
            # The messages are shared with MDP/0.2, so a PARTIAL can come this far by mistake.
            raise LocalProtocolError(f"MDP/0.1 has no {type(message).__name__}: send one WorkerFinal")


def write_final(service: bytes, body: list[Frame]) -> list[Frame]:
    return [CLIENT_TAG, service, *_some(body)]


def write_order(address: bytes, body: list[Frame]) -> list[Frame]:
    return [WORKER_TAG, b"\x02", address, EMPTY, *_some(body)]


def write_heartbeat() -> list[Frame]:
    return [WORKER_TAG, b"\x04"]


def write_disconnect() -> list[Frame]:
    return [WORKER_TAG, b"\x05"]


def _some(body: list[Frame]) -> list[Frame]:
    # Every command with a body has at least one body frame, be it empty.
    return body or [EMPTY]
