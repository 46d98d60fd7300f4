"""The files that hold archived rows: how they are laid out, so that little of them has to be read.

A file has one section or several, each with about as many rows as the archiver takes at once.  In a large
section rows of the same use lie together, each use a row group of its own: how requests ended, how they
began, publications, everything else.  Whoever wants some of these (each of the pipeline's tables does) finds
in the dictionaries of the column `what` which row groups are none of his business.

So rows lie in the order of their numbers only within a row group; `sections` tells which of these belong
together, and `in_order` puts rows in order again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polybus.journal.columns import SCHEMA
from polybus.journal.record import TERMINAL

# What is read together. Whatever is in none of these is few.
USES: Final = (sorted(TERMINAL), ["accepted", "dispatched", "partial"], ["published"])
# Smaller sections are one row group: looking for what to leave out would take longer than reading it.
LARGE: Final = 20_000
# In the file's metadata: how many row groups each section has.
SECTIONS: Final = b"polybus.sections"
# Columns whose values repeat. For others a dictionary costs time, and segments become three times as large.
REPEATED: Final = [
    *("broker", "life", "what", "service", "reason", "attempt", "size", "body_size"),
    *("client", "client_dialect", "client_link", "worker", "worker_dialect", "worker_link"),
]
# Columns by whose least and largest value readers leave out what they do not want.
SOUGHT: Final = ["at", "seq", "what", "service", "token", "request_id"]
# Readers look at the checksums.
WRITING: Final[Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": REPEATED,
    "write_statistics": SOUGHT,
    "write_page_checksum": True,
}


class SegmentWriter:
    """Writes a file, a section at a time. The caller syncs and closes it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._writer = pq.ParquetWriter(file, SCHEMA, **WRITING)
        self._sections: list[int] = []
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """One section: about a segment's worth of rows, which readers will have in memory together."""
        parts = list(by_use(table)) if table.num_rows >= LARGE else [table]
        for part in parts:
            self._writer.write_table(part, row_group_size=max(1, part.num_rows))
        self._sections.append(len(parts))
        self.rows += table.num_rows

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._writer.add_key_value_metadata({SECTIONS: msgspec.json.encode(self._sections)})
        self._writer.close()


def by_use(table: pa.Table) -> Iterator[pa.Table]:
    """The rows of each use, in the order in which they were."""
    left = table
    for use in USES:
        wanted = pc.is_in(left["what"], pa.array(use))
        found = pc.sum(wanted, min_count=0).as_py()
        if found == left.num_rows:
            break
        if found:
            yield left.filter(wanted)
            left = left.filter(pc.invert(wanted))
    if left.num_rows:
        yield left


def sections(metadata: pq.FileMetaData) -> list[range]:
    """The row groups of each section of a file."""
    known = (metadata.metadata or {}).get(SECTIONS)
    counts = [1] * metadata.num_row_groups if known is None else msgspec.json.decode(known, type=list[int])
    return [range(*ends) for ends in pairwise(accumulate(counts, initial=0))]


def in_order(table: pa.Table) -> pa.Table:
    """The rows of a section by their numbers, one life of a broker after the other."""
    lives = pc.unique(table["life"]).to_pylist()
    if len(lives) <= 1:
        return table.take(pc.sort_indices(table["seq"])) if _is_mixed(table) else table
    parts = [table.filter(pc.equal(table["life"], life)) for life in lives]
    parts.sort(key=lambda part: pc.min(part["at"]).as_py())
    return pa.concat_tables([in_order(part) for part in parts])


def _is_mixed(table: pa.Table) -> bool:
    return bool(pc.any(pc.less(pc.pairwise_diff(table["seq"].combine_chunks(), 1), 0), min_count=0).as_py())
