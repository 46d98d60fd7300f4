"""INFORM of eMQP: a worker says which queues it serves, a scheduler that it is there.

The document writes the queues as `[40, 'email'], [10, 'default']`, public workers as the JSON list
`[[40, "email"], [10, "default"]]`.  Both are read; the JSON is written.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from msgspec import Struct

from polybus.errors import LocalProtocolError
from polybus.wire.frames import (
    EMPTY,
    Frame,
    Frames,
    check_id,
    check_name,
    read_id,
    read_name,
    read_text,
    refuse,
)

# A worker in more queues than this is a mistake, and each costs a look at every READY.
MAX_QUEUES: Final = 1024
MAX_WEIGHT: Final = 1_000_000

Role = Literal["worker", "scheduler"]


class Queue(Struct, frozen=True):
    """A queue that a worker serves; the higher weight is served first."""

    weight: int
    name: bytes


class Inform(Struct, frozen=True):
    """Worker or scheduler to broker: here I am. A worker without queues serves the default ones."""

    msg_id: bytes
    role: Role
    queues: tuple[Queue, ...] = ()


def read_inform(frames: Frames, at: int) -> Inform:
    if len(frames) != at + 5:
        raise refuse("length", f"INFORM has {len(frames) - at} frames; it takes 5")
    msg_id, role = read_id(frames[at + 2], "message id"), frames[at + 4]
    if type(role) is bytes and role == b"worker":
        return Inform(msg_id, "worker", read_queues(frames[at + 3]))
    if type(role) is bytes and role == b"scheduler":
        # Unused there, so not looked into; but nobody sends us a novel.
        read_text(frames[at + 3], "queues")
        return Inform(msg_id, "scheduler")
    raise refuse("bad_role", "INFORM is for a worker or a scheduler")


_QUEUE_LIST: Final = msgspec.json.Decoder(list[tuple[int, str]])
# The document's own example has single quotes: [40, 'email'], [10, 'default'].
_QUEUE_TEXT: Final = re.compile(r"""\s*\[\s*(\d{1,7})\s*,\s*(?:'([^']*)'|"([^"]*)")\s*\]\s*""")


def read_queues(frame: Frame) -> tuple[Queue, ...]:
    """Weights and names, as a JSON list or as the document's comma-separated arrays; may be empty."""
    text = read_text(frame, "queues").strip()
    if not text:
        return ()
    try:
        pairs = _QUEUE_LIST.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pairs = _read_queue_text(text)
    if len(pairs) > MAX_QUEUES:
        raise refuse("bad_queues", f"{len(pairs)} queues; allowed are {MAX_QUEUES}")
    if not all(0 <= weight <= MAX_WEIGHT for weight, _ in pairs):
        raise refuse("bad_queues", f"the weight of a queue must be from 0 to {MAX_WEIGHT}")
    return tuple(Queue(weight, read_name(_encode(name), "queue name")) for weight, name in pairs)


def _read_queue_text(text: bytes) -> list[tuple[int, str]]:
    pairs: list[tuple[int, str]] = []
    line, start = text.decode("utf-8", "replace"), 0
    while found := _QUEUE_TEXT.match(line, start):
        pairs.append((int(found[1]), found[2] or found[3] or ""))
        if found.end() == len(line):
            return pairs
        if line[found.end()] != ",":
            break
        start = found.end() + 1
    raise refuse("bad_queues", "queues must be like [[10, \"default\"]] or [10, 'default'], [5, 'email']")


def _encode(name: str) -> bytes:
    # A lone surrogate becomes a name that is refused as unprintable.
    return name.encode("utf-8", "surrogatepass")


def write_inform(message: Inform, tag: bytes) -> list[Frame]:
    msg_id = check_id(message.msg_id, "message id")
    return [tag, b"INFORM", msg_id, write_queues(message.queues), message.role.encode()]


def write_queues(queues: tuple[Queue, ...]) -> bytes:
    if len(queues) > MAX_QUEUES or not all(0 <= queue.weight <= MAX_WEIGHT for queue in queues):
        raise LocalProtocolError(f"up to {MAX_QUEUES} queues with weights from 0 to {MAX_WEIGHT} are allowed")
    if not queues:
        return EMPTY
    names = [check_name(queue.name, "queue name").decode() for queue in queues]
    return msgspec.json.encode([(queue.weight, name) for queue, name in zip(queues, names, strict=True)])
