"""What a supervisor and a child say to each other.

Down go lists of `Order`s through a socket pair, one write for many; an empty list asks the child to end.  Up
come reports, a fixed head and a body: through the memory they share (`page`) if they are small and of a job,
else through the socket pair, and each of them before the next job begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import msgspec
from msgspec import Struct

from polybus.wire.context import Context
from polybus.wire.frames import Frame


class Order(Struct, array_like=True, gc=False):
    """Run this."""

    number: int
    id: bytes
    queue: bytes
    body: list[bytes]
    attempt: int
    limit_s: float
    # How long somebody will wait for the answer, if that is known.
    ttl_s: float | None = None
    # Where it comes from, if somebody traces it.
    context: tuple[str, ...] = ()


class Kind(IntEnum):
    """What a report is."""

    DONE = 1  # the answer, one frame
    FRAMES = 2  # the answer, any number of frames
    FAILED = 3  # an error object
    PART = 4  # a piece of the answer, one frame
    SKIPPED = 5  # taken back before it began
    # Of the child itself:
    UP = 6  # it is ready; the body is what it serves (`Facts`)
    FAULT = 7  # it cannot be; the body says why
    LARGE = 8  # it has outgrown its memory and wants to be replaced
    FILES = 9  # the modules that it has loaded since it came up
    BELL = 10  # there is something in the ring


class Facts(Struct):
    """What a child found in the application."""

    # Queue or service, and its weight if the application gives one.
    queues: dict[str, int | None]
    jobs: int
    services: int
    # The broker that the application itself speaks to.
    address: str | None
    files: list[str]
    # What its workers put into frame 0 (MDR), if it says so.
    worker_tag: str | None = None


_LENGTH: Final = struct.Struct("<I")
# Length of the body, number of the job, seconds that it took, kind.
_HEAD: Final = struct.Struct("<IqfB")
_ORDERS: Final = msgspec.msgpack.Decoder(list[Order])
_ENCODER: Final = msgspec.msgpack.Encoder()
FRAMES: Final = msgspec.msgpack.Decoder(list[bytes])

OrderValues = tuple[int, bytes, bytes, list[bytes], int, float, float | None, Context]
# Number of the job, kind, seconds that it took, body.
Report = tuple[int, int, float, bytes]


def write_orders(orders: list[OrderValues]) -> bytes:
    """Orders as they travel; plain tuples, because a supervisor makes one for every job."""
    body = _ENCODER.encode(orders)
    return _LENGTH.pack(len(body)) + body


def read_reports(data: bytes) -> list[Report]:
    """Whole reports, one after the other, as they come out of the ring."""
    reports: list[Report] = []
    at, size = 0, len(data)
    while at < size:
        length, number, took_s, kind = _HEAD.unpack_from(data, at)
        body_at = at + _HEAD.size
        at = body_at + length
        reports.append((number, kind, took_s, data[body_at:at]))
    return reports


def write_report(number: int, kind: Kind, took_s: float, body: bytes) -> bytes:
    return _HEAD.pack(len(body), number, took_s, kind) + body


def write_frames(frames: list[Frame]) -> bytes:
    return _ENCODER.encode([bytes(frame) for frame in frames])


class OrderReader:
    """Cuts the stream from the supervisor into lists of orders."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Order]]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            end = _LENGTH.size + length
            if len(buffer) < end:
                return
            orders = _ORDERS.decode(bytes(buffer[_LENGTH.size : end]))
            del buffer[:end]
            yield orders


BELL: Final = write_report(0, Kind.BELL, 0.0, b"")


class ReportReader:
    """Cuts the stream from a child into reports."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = 0

    def feed(self, data: bytes) -> list[Report]:
        if self._rest:
            # A large answer comes in many pieces: they are joined once, when the last one is there.
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data = bytes(self._rest)
        reports: list[Report] = []
        at, size = 0, len(data)
        self._wanted = _HEAD.size
        while size - at >= _HEAD.size:
            length, number, took_s, kind = _HEAD.unpack_from(data, at)
            body_at = at + _HEAD.size
            if size - body_at < length:
                self._wanted = _HEAD.size + length
                break
            at = body_at + length
            reports.append((number, kind, took_s, data[body_at:at]))
        self._rest = bytearray(data[at:])
        return reports
