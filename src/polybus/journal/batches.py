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

JOINED_BYTES: Final = 4 * 1024 * 1024


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
