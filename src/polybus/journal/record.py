"""A record: one thing that happened, as bytes in the log and as a row for everybody else.

A record is a fixed head and then texts, each with its length in front.  Times are microseconds since 1970;
0 means none.  The times at which a request was accepted and dispatched are on every later record of it,
so that nobody has to look for the earlier ones.  All integers are little-endian.

    offset  bytes
    0       4      how long the record is, without these four
    4       1      what happened, a number of `WHATS`
    5       1      the client's dialect, a number of `DIALECTS`
    6       1      the worker's dialect
    7       1      flags: FLAG_BODY says that frames of a body follow, FLAG_DISPATCHED that a tail follows
    8       8      when
    16      8      when the request was accepted
    24      8      when it was last given to a worker
    32      4      its size: all frames of its body
    36      4      the size of the body that this record is about (an answer, a publication)
    40      4      which attempt
    44      2 + 2  the links of client and worker; NO_LINK means none
    48      –      token, request id, service or topic, identity of the client, identity of the worker,
                   reason: each with two bytes of length
            –      detail, headers: each with four bytes of length
            –      the frames of the body: two bytes for their number, four bytes of length before each
            –      the tail: when (8 bytes), attempt (4), link (2) and dialect (1) of the worker, and its
                   identity with two bytes of length

Nearly every request is given to a worker in the moment in which it is accepted.  Then one record stands for
two rows: its own, and one that says `dispatched` with what is in the tail.  Each counts.

The number of a thing that happened never changes its meaning; new ones are added at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from polybus.core.actions import Observed
from polybus.core.model import Body, JobOptions
from polybus.core.records import Request
from polybus.errors import JournalDamaged

WHATS: Final = (
    "none",
    # The life of a request.
    "accepted",
    "dispatched",
    "partial",
    "replied",
    "failed",
    "expired",
    "cancelled",
    "rejected",
    "retried",
    "requeued",
    "claimed",
    "late",
    "answer_lost",
    "duplicate",
    "dead",
    # Workers, nodes, bridges.
    "worker_up",
    "worker_down",
    "scheduler_up",
    "heartbeat_missed",
    "node_up",
    "node_late",
    "node_down",
    "node_asked",
    "registered",
    "updated",
    "denied",
    "bridge_up",
    "bridge_down",
    # Topics, logs, schedules.
    "published",
    "subscribed",
    "refused",
    "dropped",
    "log",
    "scheduled",
    "unscheduled",
    "schedule_odd",
    # The broker itself.
    "started",
    "stopped",
    "beat",
    "invalid",
    "store_sick",
    "store_well",
    "hole",
    # What has no number of its own yet: its name is in front of the detail.
    "other",
    # A worker offers one more service.
    "offered",
    # The journal about itself: records that it has not, and records whose bodies it has not, with the reason.
    "records_lost",
    "bodies_dropped",
)
WHAT_NUMBERS: Final = {name: number for number, name in enumerate(WHATS)}
DIALECTS: Final = ("", "ebus", "emqp", "mdp1", "mdp2", "mdr", "dbp", "bridge", "broker", "none")
DIALECT_NUMBERS: Final = {name: number for number, name in enumerate(DIALECTS)}
# How a request may end. `rejected` is one that never began.
TERMINAL: Final = frozenset({"replied", "failed", "expired", "cancelled"})

FLAG_BODY: Final = 1
FLAG_DISPATCHED: Final = 2
NO_LINK: Final = 0xFFFF
HEAD: Final = struct.Struct("<IBBBBqqqIIIHH")
assert HEAD.size == 48
_SHORT: Final = struct.Struct("<H")
_LONG: Final = struct.Struct("<I")
TAIL: Final = struct.Struct("<qIHBH")
# Texts that are longer than their length can tell are cut.
SHORT_MAX: Final = 0xFFFF
DETAIL_MAX: Final = 64 * 1024


class Row(Struct, frozen=True):
    """One thing that happened."""

    what: str
    at: int
    client_dialect: str = ""
    worker_dialect: str = ""
    accepted_at: int = 0
    dispatched_at: int = 0
    size: int = 0
    body_size: int = 0
    attempt: int = 0
    client_link: int = NO_LINK
    worker_link: int = NO_LINK
    token: bytes = b""
    request_id: bytes = b""
    # The service of a request, or the topic of a publication.
    service: bytes = b""
    client: bytes = b""
    worker: bytes = b""
    reason: str = ""
    detail: str = ""
    headers: str = ""
    # None if it was not kept.
    body: tuple[bytes, ...] | None = None


def write_row(row: Row) -> bytes:
    """The record of a row. What happens often is written by a recorder, without rows."""
    parts = [
        *(_short(text) for text in (row.token, row.request_id, row.service, row.client, row.worker)),
        _short(row.reason.encode()),
        _long(row.detail.encode()[:DETAIL_MAX]),
        _long(row.headers.encode()),
    ]
    if row.body is not None:
        parts.append(_SHORT.pack(len(row.body)))
        parts += [_long(frame) for frame in row.body]
    rest = b"".join(parts)
    head = HEAD.pack(
        HEAD.size - 4 + len(rest),
        WHAT_NUMBERS.get(row.what, WHAT_NUMBERS["other"]),
        DIALECT_NUMBERS.get(row.client_dialect, 0),
        DIALECT_NUMBERS.get(row.worker_dialect, 0),
        FLAG_BODY if row.body is not None else 0,
        row.at,
        row.accepted_at,
        row.dispatched_at,
        min(row.size, 0xFFFFFFFF),
        min(row.body_size, 0xFFFFFFFF),
        min(row.attempt, 0xFFFFFFFF),
        row.client_link,
        row.worker_link,
    )
    return head + rest


def _short(text: bytes) -> bytes:
    return _SHORT.pack(min(len(text), SHORT_MAX)) + text[:SHORT_MAX]


def _long(text: bytes) -> bytes:
    return _LONG.pack(len(text)) + text


def microseconds(seconds: float) -> int:
    return int(seconds * 1e6 + 0.5)


def write_request(
    what: str,
    request: Request,
    now: float,
    offset: float,
    reason: str,
    detail: str,
    body: Body | None,
    kept: tuple[bytes, ...] | None,
    headers: str = "",
) -> bytes:
    """The record of something that happened to a request; `kept` is what is kept of the body."""
    link, client = request.client.address
    worker = request.worker
    return write_row(
        Row(
            what,
            microseconds(now + offset),
            "" if request.voice is None else request.voice.dialect,
            "" if worker is None or worker.voice is None else worker.voice.dialect,
            microseconds(request.accepted_at + offset),
            microseconds(request.dispatched_at + offset) if request.dispatched_at else 0,
            request.size,
            0 if body is None else sum(map(len, body)),
            request.attempt,
            link if 0 <= link < NO_LINK else NO_LINK,
            NO_LINK if worker is None else worker.address[0],
            request.token,
            request.request_id,
            request.service.name,
            bytes(client),
            b"" if worker is None else bytes(worker.address[1]),
            reason,
            detail,
            headers,
            kept,
        )
    )


def with_dispatch(record: bytes, request: Request, now: float, offset: float) -> bytes:
    """The record of a request that was accepted, as the record of one that was given to a worker as well."""
    worker = request.worker
    dialect = "" if worker is None or worker.voice is None else worker.voice.dialect
    name = b"" if worker is None else bytes(worker.address[1])[:SHORT_MAX]
    tail = TAIL.pack(
        microseconds(now + offset),
        min(request.attempt, 0xFFFFFFFF),
        NO_LINK if worker is None else worker.address[0],
        DIALECT_NUMBERS.get(dialect, 0),
        len(name),
    )
    size = _LONG.pack(len(record) - 4 + len(tail) + len(name))
    return size + record[4:7] + bytes((record[7] | FLAG_DISPATCHED,)) + record[8:] + tail + name


def options_text(options: JobOptions) -> str:
    """What a client asked for besides running its request, as JSON; empty if it was nothing. Jobs that follow
    are left out if they are too long to be kept."""
    facts = {
        name: value
        for name, default in zip(options.__struct_fields__, options.__struct_defaults__, strict=True)
        if (value := getattr(options, name)) != default
    }
    if "then" in facts:
        facts["then"] = [spec.decode(errors="replace") for spec in options.then]
    if "group" in facts:
        facts["group"] = options.group.decode(errors="replace")
    text = msgspec.json.encode(facts).decode() if facts else ""
    if len(text) > DETAIL_MAX and options.then:
        return options_text(structs.replace(options, then=()))
    return text if len(text) <= DETAIL_MAX else ""


def write_observed(
    observed: Observed, offset: float, body_bytes: int, keeps_bodies: Callable[[bytes], bool] | None = None
) -> bytes:
    """The record of something that happens rarely."""
    client, worker = observed.client, observed.worker
    known = observed.what in WHAT_NUMBERS
    body = observed.body
    return write_row(
        Row(
            observed.what,
            microseconds(observed.at + offset),
            getattr(observed.client_voice, "dialect", ""),
            getattr(observed.worker_voice, "dialect", ""),
            microseconds(observed.accepted_at + offset) if observed.accepted_at else 0,
            microseconds(observed.dispatched_at + offset) if observed.dispatched_at else 0,
            observed.size,
            0 if body is None else sum(map(len, body)),
            observed.attempt,
            NO_LINK if client is None or client[0] < 0 else client[0],
            NO_LINK if worker is None or worker[0] < 0 else worker[0],
            observed.token,
            observed.request_id,
            observed.service,
            b"" if client is None else bytes(client[1]),
            b"" if worker is None else bytes(worker[1]),
            observed.reason,
            # A kind without a number is written as "other".
            observed.detail if known else f"{observed.what}: {observed.detail}",
            "",
            kept_of(body, observed.service, body_bytes, keeps_bodies),
        )
    )


def kept_of(
    body: Body | None, name: bytes, limit: int, keeps_bodies: Callable[[bytes], bool] | None
) -> tuple[bytes, ...] | None:
    """What is kept of a body that is about a service or topic of this name."""
    if body is None or (keeps_bodies is not None and not keeps_bodies(name)):
        return None
    return body_of(body, limit)


def read_rows(payload: bytes) -> Iterator[Row]:
    """The rows of some records, one after the other. Raises JournalDamaged where that makes no sense."""
    at = 0
    while at < len(payload):
        row, dispatched, at = _read_record(payload, at)
        yield row
        if dispatched is not None:
            yield dispatched


def _read_record(payload: bytes, at: int) -> tuple[Row, Row | None, int]:
    """The record at a place: its row, the one of its tail if it has one, and where it ends."""
    try:
        head = HEAD.unpack_from(payload, at)
        size, what, one, other, flags, when, accepted, dispatched = head[:8]
        end = at + 4 + size
        if end > len(payload):
            raise JournalDamaged(f"a record at byte {at} is longer than its batch")
        at += HEAD.size
        texts: list[bytes] = []
        for _ in range(6):
            (length,) = _SHORT.unpack_from(payload, at)
            texts.append(payload[at + 2 : at + 2 + length])
            at += 2 + length
        long: list[bytes] = []
        for _ in range(2):
            (length,) = _LONG.unpack_from(payload, at)
            long.append(payload[at + 4 : at + 4 + length])
            at += 4 + length
        body: tuple[bytes, ...] | None = None
        if flags & FLAG_BODY:
            (count,) = _SHORT.unpack_from(payload, at)
            at += 2
            frames = []
            for _ in range(count):
                (length,) = _LONG.unpack_from(payload, at)
                frames.append(payload[at + 4 : at + 4 + length])
                at += 4 + length
            body = tuple(frames)
        tail: tuple[Any, ...] | None = None
        if flags & FLAG_DISPATCHED:
            tail = TAIL.unpack_from(payload, at)
            at += TAIL.size + tail[-1]
    except struct.error as error:
        raise JournalDamaged(f"a record at byte {at} is cut off: {error}") from None
    if at != end:
        raise JournalDamaged(f"a record that should end at byte {end} ends at {at}")
    token, request_id, service, client, worker, reason = texts
    row = Row(
        WHATS[what] if what < len(WHATS) else "other",
        when,
        DIALECTS[one] if one < len(DIALECTS) else "",
        DIALECTS[other] if other < len(DIALECTS) else "",
        accepted,
        dispatched,
        head[8],
        head[9],
        head[10],
        head[11],
        head[12],
        token,
        request_id,
        service,
        client,
        worker,
        reason.decode("utf-8", "replace"),
        long[0].decode("utf-8", "replace"),
        long[1].decode("utf-8", "replace"),
        body,
    )
    if tail is None:
        return row, None, end
    when, attempt, link, other, length = tail
    second = structs.replace(
        row,
        what="dispatched",
        at=when,
        dispatched_at=when,
        attempt=attempt,
        worker=payload[end - length : end],
        worker_link=link,
        worker_dialect=DIALECTS[other] if other < len(DIALECTS) else "",
        body_size=0,
        reason="",
        detail="",
        headers="",
        body=None,
    )
    return row, second, end


def body_of(frames: Sequence[Any], limit: int) -> tuple[bytes, ...] | None:
    """A body as it is kept: whole, or not at all if it is larger than the limit."""
    if sum(map(len, frames)) > limit or len(frames) > SHORT_MAX:
        return None
    return tuple(bytes(frame) for frame in frames)
