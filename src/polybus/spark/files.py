"""How executors write files of a table: columns as they are, by pyarrow, each under a name of its own.

Like `histograms`, this travels to the executors by value and imports nothing of polybus.  What an executor
has written it tells the driver, which makes it part of the table; files of which nothing is told, because
their writer died, belong to no table and are removed later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

# Rows that are kept until they are written: one row group.
GROUP_ROWS: Final = 128 * 1024
GROUP_BYTES: Final = 128 * 1024 * 1024
# What is told of each file, as Spark writes it.
WRITTEN: Final = "path string, size bigint, rows bigint, part string"
_SCHEMA: Final = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("part", pa.string())]
)
# Columns whose values hardly ever repeat.
DIFFERENT: Final = frozenset(
    (
        *("seq", "token", "request_id", "at", "accepted_at", "dispatched_at", "finished_at"),
        *("wait_us", "service_us", "headers", "body", "message"),
    )
)
Batches = Iterator[pa.RecordBatch]


class PartFile:
    """The file of one part of the table, as one task writes it."""

    def __init__(self, place: str, path: str, schema: pa.Schema) -> None:
        system, root = pafs.FileSystem.from_uri(place) if "://" in place else (pafs.LocalFileSystem(), place)
        full = f"{root}/{path}"
        system.create_dir(full.rsplit("/", 1)[0], recursive=True)
        self.path: Final = path
        self.rows = 0
        self._sink = system.open_output_stream(full)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=1,
            # Where each value is another, a dictionary takes time and room.
            use_dictionary=[field.name for field in schema if field.name not in DIFFERENT],
        )
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.rows += batch.num_rows
        rows = sum(one.num_rows for one in self._waiting)
        if rows >= GROUP_ROWS or sum(one.nbytes for one in self._waiting) >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting).cast(self._schema), GROUP_ROWS)
            self._waiting = []

    def close(self) -> int:
        """How large it became."""
        self._flush()
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return size


def writing(
    place: str, schema: pa.Schema, partition: str, make: Callable[[Batches], Batches] | None = None
) -> Callable[[Batches], Batches]:
    """A function that writes rows, or what `make` makes of them, below `place`, a folder for each value of
    `partition`, and tells what it has written."""
    inside = pa.schema([field for field in schema if field.name != partition])

    def write(batches: Batches) -> Batches:
        files: dict[str, Any] = {}
        for batch in batches if make is None else make(batches):
            values = pc.unique(batch[partition]).to_pylist()
            for value in values:
                if value not in files:
                    path = f"{partition}={value}/{uuid.uuid4().hex}.parquet"
                    files[value] = PartFile(place, path, inside)
                part = batch if len(values) == 1 else batch.filter(pc.equal(batch[partition], value))
                files[value].add(part.select(inside.names))
        told = [(file.path, file.close(), file.rows, value) for value, file in files.items()]
        columns = list(zip(*told, strict=True)) or [()] * len(_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    return write
