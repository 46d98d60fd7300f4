"""The batches of a log as tables, many in one.

A busy broker writes two hundred batches in a second, and to make a table costs more than what is in a small
one: neighbours are joined first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from polybus.errors import JournalDamaged
from polybus.journal.columns import to_table
from polybus.journal.log import Batch, Damage, LogHead
from polybus.journal.record import Row, write_row

JOINED_BYTES: Final = 4 * 1024 * 1024
# The year 10000, in microseconds: neither a date nor a folder of segments can be made of later times.
_NO_DATE_US: Final = 253_402_300_800_000_000


def tables_in(
    head: LogHead, batches: Iterable[Batch | Damage]
) -> Iterator[tuple[Batch, pa.Table | JournalDamaged] | Damage]:
    """What a log has, in its order: rows, with the batch or the joined batches that they are of; why the
    records of a batch make no sense; and what is damaged between the batches."""
    parts: list[Batch] = []
    size = 0
    for found in batches:
        is_next = isinstance(found, Batch) and parts and parts[-1].first + parts[-1].count == found.first
        if parts and (not is_next or size > JOINED_BYTES):
            yield from _tables(head, parts)
            parts, size = [], 0
        if isinstance(found, Batch):
            parts.append(found)
            size += len(found.payload)
        else:
            yield found
    if parts:
        yield from _tables(head, parts)


def _tables(head: LogHead, parts: list[Batch]) -> Iterator[tuple[Batch, pa.Table | JournalDamaged]]:
    """The rows of neighbours: of all in one, or one by one if one of them makes no sense."""
    count = sum(part.count for part in parts)
    whole = Batch(parts[0].first, count, b"".join(part.payload for part in parts), parts[0].offset)
    try:
        yield whole, to_table(head, whole.first, whole.count, whole.payload)
    except JournalDamaged as error:
        if len(parts) == 1:
            yield whole, error
            return
        for part in parts:
            yield from _tables(head, [part])


def hole_before(head: LogHead, batch: Batch, missing: int) -> pa.Table:
    """The row that stands for those that are missing before a batch. Its time is that of the batch's first
    record, or the log's if the batch is nonsense."""
    detail = f"{missing} records are missing: they could not be written, or were damaged"
    at = int.from_bytes(batch.payload[8:16], "little", signed=True)
    if not 0 <= at < _NO_DATE_US:
        at = int(head.created_at * 1_000_000)
    record = write_row(Row("hole", at, size=missing, detail=detail))
    return to_table(head, batch.first - 1, 1, record)
