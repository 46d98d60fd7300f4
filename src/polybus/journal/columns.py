"""Records → an Arrow table: what a segment holds, and what the pipeline reads.

The columns of fixed width and the texts are cut out of the records by compiled code if there is some, else by
`split` here.  Identities of peers are any bytes on the wire: here they are text, as they are if that can be
read, else in hexadecimal digits.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from polybus.errors import JournalDamaged
from polybus.journal.log import LogHead
from polybus.journal.record import DIALECTS, FLAG_BODY, HEAD, WHATS, read_rows

STAMP: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        # Which broker, in which of its lives, and the number of the record in that life: together unique.
        pa.field("broker", pa.string(), nullable=False),
        pa.field("life", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", STAMP, nullable=False),
        pa.field("what", pa.string(), nullable=False),
        pa.field("token", pa.string()),
        pa.field("request_id", pa.string()),
        # The service of a request, or the topic of a publication.
        pa.field("service", pa.string()),
        pa.field("client", pa.string()),
        pa.field("client_dialect", pa.string()),
        pa.field("client_link", pa.string()),
        pa.field("worker", pa.string()),
        pa.field("worker_dialect", pa.string()),
        pa.field("worker_link", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("accepted_at", STAMP),
        pa.field("dispatched_at", STAMP),
        pa.field("size", pa.int64()),
        pa.field("body_size", pa.int64()),
        pa.field("headers", pa.string()),
        pa.field("body", pa.list_(pa.binary())),
    ]
)
_FIXED: Final = (
    pa.uint8(),
    pa.uint8(),
    pa.uint8(),
    pa.int64(),
    pa.int64(),
    pa.int64(),
    pa.uint32(),
    pa.uint32(),
    pa.uint32(),
    pa.uint16(),
    pa.uint16(),
)
_PACKED: Final = "BBBqqqIIIHH"
Parts = tuple[list[bytes], list[bytes], list[bytes], tuple[bytes, bytes, bytes, bytes]]


def split(payload: bytes, count: int) -> Parts:
    """The columns of so many records, as buffers (see `_columns`)."""
    rows = list(read_rows(payload))
    if len(rows) != count:
        raise JournalDamaged(f"a batch that says that it has {count} records has {len(rows)}")
    heads: list[tuple[Any, ...]] = []
    at = 0
    while at < len(payload):
        head = HEAD.unpack_from(payload, at)
        heads.append(head)
        at += 4 + head[0]
    order = (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12)
    fixed = [
        struct.pack(f"<{len(heads)}{code}", *(head[place] for head in heads))
        for place, code in zip(order, _PACKED, strict=True)
    ]
    texts = [
        [row.token for row in rows],
        [row.request_id for row in rows],
        [row.service for row in rows],
        [row.client for row in rows],
        [row.worker for row in rows],
        [row.reason.encode() for row in rows],
        [row.detail.encode() for row in rows],
        [row.headers.encode() for row in rows],
    ]
    offsets = [_offsets(column) for column in texts]
    bodies = [row.body or () for row in rows]
    frames = [frame for body in bodies for frame in body]
    has_body = bytes(head[4] & FLAG_BODY for head in heads)
    body = (_offsets(bodies), has_body, _offsets(frames), b"".join(frames))
    return fixed, offsets, [b"".join(column) for column in texts], body


def _offsets(values: list[Any]) -> bytes:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    return struct.pack(f"<{len(ends)}i", *ends)


try:
    from polybus.journal._columns import split as best_split
except ImportError:
    best_split = split


def to_table(head: LogHead, first: int, count: int, payload: bytes) -> pa.Table:
    """The rows of a batch, or of neighbouring batches that were joined."""
    fixed, offsets, texts, body = best_split(payload, count)
    numbers = [
        pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
        for kind, data in zip(_FIXED, fixed, strict=True)
    ]
    what, client_dialect, worker_dialect, at, accepted, dispatched, size, body_size, attempt = numbers[:9]
    token, request_id, service, client, worker, reason, detail, headers = (
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
        for ends, data in zip(offsets, texts, strict=True)
    )
    links = {int(number): name for number, name in head.links.items()}
    columns = [
        _repeat(head.broker, count),
        _repeat(head.life, count),
        pa.array(range(first, first + count), pa.int64()),
        at.view(STAMP),
        _names(what, WHATS),
        _text(token),
        _text(request_id),
        _text(service),
        _text(client),
        _names(client_dialect, DIALECTS),
        _links(numbers[9], links),
        _text(worker),
        _names(worker_dialect, DIALECTS),
        _links(numbers[10], links),
        attempt.cast(pa.int32()),
        _text(reason),
        _text(detail),
        _stamp(accepted),
        _stamp(dispatched),
        size.cast(pa.int64()),
        body_size.cast(pa.int64()),
        _text(headers),
        _bodies(count, *body),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _repeat(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), [text]).cast(pa.string())


def _names(numbers: pa.Array, names: tuple[str, ...]) -> pa.Array:
    """Numbers of a list of names, as these names; what has none, as null."""
    known = pa.array([name or None for name in names], pa.string())
    return known.take(pc.if_else(pc.less(numbers, len(names)), numbers, 0))


def _links(numbers: pa.Array, links: dict[int, str]) -> pa.Array:
    codes = numbers.dictionary_encode()
    names = pa.array([links.get(number) for number in codes.dictionary.to_pylist()], pa.string())
    return names.take(codes.indices)


def _text(column: pa.Array) -> pa.Array:
    """Bytes as text, null if there are none; what cannot be read as text, in hexadecimal digits."""
    column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
    try:
        text = column.cast(pa.string())
        if pc.all(pc.utf8_is_printable(text), min_count=0).as_py():
            return text
    except pa.ArrowInvalid:
        pass
    # Rare, and few values repeat then: each is looked at once.
    codes = column.dictionary_encode()
    words = [None if word is None else readable(word) for word in codes.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(codes.indices)


def readable(word: bytes) -> str:
    """As text, if it is text that can be shown; else in hexadecimal digits."""
    try:
        text = word.decode()
    except UnicodeDecodeError:
        return word.hex()
    # Log messages and tracebacks have lines.
    return (
        text if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable() else word.hex()
    )


def _stamp(numbers: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(numbers, 0), None, numbers).view(STAMP)


def _bodies(count: int, lists: bytes, has_body: bytes, ends: bytes, data: bytes) -> pa.Array:
    frames = pa.Array.from_buffers(
        pa.binary(), len(ends) // 4 - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    there = pc.equal(pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(has_body)]), 1)
    # A bitmap of what is there: the data buffer of a boolean array is one.
    bitmap = there.buffers()[1]
    return pa.ListArray.from_buffers(
        pa.list_(pa.binary()), count, [bitmap, pa.py_buffer(lists)], children=[frames]
    )
