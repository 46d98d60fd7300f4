"""INFORM of eMQP: a worker says which queues it serves, a scheduler that it is there.

The document writes the queues as `[40, 'email'], [10, 'default']`, public workers as the JSON list
`[[40, "email"], [10, "default"]]`.  Both are read; the JSON is written.

A polybus worker adds one more frame, which public brokers do not look at: `{"polybus": 2, "holding": [...]}`.
It says which words of `emqp_extension` the worker understands, and which requests of an earlier conversation
it still runs.  A polybus broker answers with an ACK that has one more frame as well, `{"polybus": 2}`, or 1
if one of them knows no more: then both may use the words of that version.  Nobody else ever sees any of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

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

# The version of the extension between polybus workers and brokers, and the first with ORDERS, DONE and SLOTS.
VERSION: Final = 2
JOINING: Final = 2
# A worker holds its slots and the answers that a broken connection may have cost; each takes some 20 bytes.
MAX_HOLDING: Final = 100_000
MAX_EXTENSION_BYTES: Final = 4 * 1024 * 1024

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
    # The ids of requests that a polybus worker still runs; None for every other peer.
    holding: tuple[bytes, ...] | None = None
    # The version of the extension that it speaks.
    version: int = 0


class _Extension(Struct):
    """The last frame of a polybus worker's INFORM, and of the ACK for it. Newer versions may say more."""

    polybus: Annotated[int, Meta(ge=1)]
    holding: list[str] = []


def read_inform(frames: Frames, at: int) -> Inform:
    if not at + 5 <= len(frames) <= at + 6:
        raise refuse("length", f"INFORM has {len(frames) - at} frames; it takes 5, or 6 of a polybus worker")
    msg_id, role = read_id(frames[at + 2], "message id"), frames[at + 4]
    if type(role) is bytes and role == b"worker":
        if len(frames) == at + 5:
            return Inform(msg_id, "worker", read_queues(frames[at + 3]))
        version, holding = read_extension(frames[at + 5])
        return Inform(msg_id, "worker", read_queues(frames[at + 3]), holding, version)
    if type(role) is bytes and role == b"scheduler":
        # Unused there, so not looked into; but nobody sends us a novel.
        read_text(frames[at + 3], "queues")
        return Inform(msg_id, "scheduler")
    raise refuse("bad_role", "INFORM is for a worker or a scheduler")


_EXTENSION: Final = msgspec.json.Decoder(_Extension)


def read_extension(frame: Frame) -> tuple[int, tuple[bytes, ...]]:
    """What a polybus peer adds: its version, and the ids in `holding`, often none."""
    if len(frame) > MAX_EXTENSION_BYTES:
        raise refuse("too_long", f"the last frame is {len(frame)} bytes; allowed are {MAX_EXTENSION_BYTES}")
    try:
        extension = _EXTENSION.decode(bytes(frame))
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise refuse("bad_extension", 'the last frame is no {"polybus": 1, "holding": ["id", …]}') from None
    if len(extension.holding) > MAX_HOLDING:
        raise refuse("bad_extension", f"{len(extension.holding)} ids in holding; allowed are {MAX_HOLDING}")
    return extension.polybus, tuple(read_id(_encode(token), "id in holding") for token in extension.holding)


def write_extension(version: int = VERSION, holding: Sequence[bytes] = ()) -> bytes:
    """The same frame; `holding` is left out if there is nothing in it."""
    if version < 1:
        raise LocalProtocolError(f"there is no version {version} of the extension; the first one is 1")
    if not holding:
        return b'{"polybus":%d}' % version
    try:
        tokens = [check_id(token, "id in holding").decode() for token in holding]
    except UnicodeDecodeError:
        raise LocalProtocolError("an id in holding is no UTF-8 text, which JSON cannot carry") from None
    return msgspec.json.encode({"polybus": version, "holding": tokens})


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
    frames: list[Frame] = [tag, b"INFORM", msg_id, write_queues(message.queues), message.role.encode()]
    if message.holding is not None:
        frames.append(write_extension(message.version, message.holding))
    return frames


def write_queues(queues: tuple[Queue, ...]) -> bytes:
    if len(queues) > MAX_QUEUES or not all(0 <= queue.weight <= MAX_WEIGHT for queue in queues):
        raise LocalProtocolError(f"up to {MAX_QUEUES} queues with weights from 0 to {MAX_WEIGHT} are allowed")
    if not queues:
        return EMPTY
    names = [check_name(queue.name, "queue name").decode() for queue in queues]
    return msgspec.json.encode([(queue.weight, name) for queue, name in zip(queues, names, strict=True)])
