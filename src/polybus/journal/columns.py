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
from polybus.journal.record import DIALECT_NUMBERS, DIALECTS, WHAT_NUMBERS, WHATS, read_rows

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
Parts = tuple[list[bytes], list[bytes], list[bytes], tuple[bytes, bytes, bytes, bytes], bytes]


def split(payload: bytes, count: int) -> Parts:
    """The columns of so many records, as buffers (see `_columns`)."""
    rows = list(read_rows(payload))
    if len(rows) != count:
        raise JournalDamaged(f"a batch that says that it has {count} records has {len(rows)}")
    numbers = (
        [WHAT_NUMBERS[row.what] for row in rows],
        [DIALECT_NUMBERS[row.client_dialect] for row in rows],
        [DIALECT_NUMBERS[row.worker_dialect] for row in rows],
        [row.at for row in rows],
        [row.accepted_at for row in rows],
        [row.dispatched_at for row in rows],
        [row.size for row in rows],
        [row.body_size for row in rows],
        [row.attempt for row in rows],
        [row.client_link for row in rows],
        [row.worker_link for row in rows],
    )
    fixed = [struct.pack(f"<{count}{code}", *values) for values, code in zip(numbers, _PACKED, strict=True)]
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
    has_body = bytes(row.body is not None for row in rows)
    body = (_offsets(bodies), has_body, _offsets(frames), b"".join(frames))
    joined = [b"".join(column) for column in texts]
    plain = bytes(text.isascii() and text.decode().isprintable() for text in joined)
    return fixed, offsets, joined, body, plain


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
    fixed, offsets, texts, body, plain = best_split(payload, count)
    numbers = [
        pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
        for kind, data in zip(_FIXED, fixed, strict=True)
    ]
    what, client_dialect, worker_dialect, at, accepted, dispatched, size, body_size, attempt = numbers[:9]
    token, request_id, service, client, worker, reason, detail, headers = (
        _text(count, ends, data, bool(is_plain))
        for ends, data, is_plain in zip(offsets, texts, plain, strict=True)
    )
    links = {int(number): name for number, name in head.links.items()}
    columns = [
        pa.repeat(head.broker, count),
        pa.repeat(head.life, count),
        pa.arange(first, first + count),
        at.view(STAMP),
        _names(what, WHATS, WHAT_NUMBERS["other"]),
        token,
        request_id,
        service,
        client,
        _names(client_dialect, DIALECTS),
        _links(numbers[9], links),
        worker,
        _names(worker_dialect, DIALECTS),
        _links(numbers[10], links),
        attempt.cast(pa.int32()),
        reason,
        detail,
        _stamp(accepted),
        _stamp(dispatched),
        size.cast(pa.int64()),
        body_size.cast(pa.int64()),
        headers,
        _bodies(count, *body),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _names(numbers: pa.Array, names: tuple[str, ...], unknown: int = 0) -> pa.Array:
    """Numbers of a list of names, as these names: the empty one as null, what is beyond them as `unknown`."""
    known = pa.array([name or None for name in names], pa.string())
    return known.take(pc.if_else(pc.less(numbers, len(names)), numbers, unknown))


def _links(numbers: pa.Array, links: dict[int, str]) -> pa.Array:
    codes = numbers.dictionary_encode()
    names = pa.array([links.get(number) for number in codes.dictionary.to_pylist()], pa.string())
    return names.take(codes.indices)


def _text(count: int, ends: bytes, data: bytes, is_plain: bool) -> pa.Array:
    """Bytes as text, null if there are none; what cannot be read as text, in hexadecimal digits."""
    if not data:
        return pa.nulls(count, pa.string())
    column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    # A bitmap of what is there: the data buffer of a boolean array is one.
    bitmap = pc.not_equal(pc.binary_length(column), 0).buffers()[1]
    kind = pa.string() if is_plain else pa.binary()
    column = pa.Array.from_buffers(kind, count, [bitmap, *column.buffers()[1:]])
    if is_plain:
        return column
    # Rare where all values differ; elsewhere the same few repeat. Each is looked at once.
    codes = column.dictionary_encode()
    words = [readable(word) for word in codes.dictionary.to_pylist()]
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
    bitmap = there.buffers()[1]
    return pa.ListArray.from_buffers(
        pa.list_(pa.binary()), count, [bitmap, pa.py_buffer(lists)], children=[frames]
    )
