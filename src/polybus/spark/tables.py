"""Tables on disk: Delta tables, changed in one commit for each batch.

With every commit goes the number of its batch, so that a batch that is processed again after a crash finds
what it has done already.  Files of large tables are written by Spark's executors, next to the table's own and
with names that no attempt uses twice; they belong to the table when the driver has committed them.  What an
attempt that died left behind is removed before the next batch.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from polybus.errors import ConfigError
from polybus.spark import files
from polybus.spark.schema import TABLES, Kind, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from polybus.spark.files import Batches

# Files of a batch lie in a folder of their own: this, the number of the batch, and chance.
BATCH_FOLDER: Final = "batch-"
PARTITION: Final = "date"
# Old versions are nobody's business after this; a reader that has one open for longer is cut off.
HISTORY: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "50",
}


def file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """Where a path or an address leads, and the path there."""
    try:
        return pafs.FileSystem.from_uri(uri) if "://" in uri else (pafs.LocalFileSystem(), uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"{uri} cannot be reached: {error}") from error


class Lake:
    """The tables in a folder, as one pipeline writes them; `writer` is its name in their history."""

    def __init__(self, uri: str, writer: str) -> None:
        self.uri = uri.rstrip("/")
        self._writer = writer
        # Reading a table's history anew for each question would take most of a small batch's time.
        self._opened: dict[str, DeltaTable] = {}

    def uri_of(self, table: Table) -> str:
        return f"{self.uri}/{table.name}"

    def open(self, table: Table) -> DeltaTable:
        """The table, made if it is not there. Nobody else changes it: what we know of it stays true."""
        known = self._opened.get(table.name)
        if known is not None:
            return known
        uri = self.uri_of(table)
        if DeltaTable.is_deltatable(uri):
            found = DeltaTable(uri)
        else:
            parts = [PARTITION] if table.kind is Kind.APPENDED else None
            found = DeltaTable.create(
                uri, table.schema, mode="ignore", partition_by=parts, name=table.name, configuration=HISTORY
            )
        self._opened[table.name] = found
        return found

    def has(self, table: Table, batch: int) -> bool:
        done = self.open(table).transaction_version(self._writer)
        return done is not None and done >= batch

    def _commit(self, batch: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._writer, batch)])

    # -- large tables -------------------------------------------------------------------------

    def append(
        self, table: Table, batch: int, source: DataFrame, make: Callable[[Batches], Batches] | None = None
    ) -> int:
        """Have the executors write these rows, and make them part of the table. How many they were.

        With `make` they are what it makes of `source`, in columns."""
        folder = f"{BATCH_FOLDER}{batch:012d}-{uuid.uuid4().hex[:8]}"
        place = f"{self.uri_of(table)}/{folder}"
        write = files.writing(place, table.schema, PARTITION, make)
        written = source.mapInArrow(write, files.WRITTEN).collect()
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                f"{folder}/{file['path']}",
                file["size"],
                {PARTITION: file["part"]},
                now_ms,
                True,
                json.dumps({"numRecords": file["rows"]}),
            )
            for file in written
        ]
        if actions:
            there = self.open(table)
            there.create_write_transaction(
                actions, "append", table.schema, [PARTITION], commit_properties=self._commit(batch)
            )
            # Other changes do this by themselves.
            there.update_incremental()
        return sum(file["rows"] for file in written)

    def sweep(self, table: Table) -> None:
        """Remove what attempts left behind that never became part of the table."""
        system, root = file_system(self.uri_of(table))
        known = {f"{root}/{path}" for path in _paths(self.open(table))}
        folders = {path[len(root) + 1 :].split("/", 1)[0] for path in known}
        for info in system.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
            if not info.base_name.startswith(BATCH_FOLDER):
                continue
            if info.base_name not in folders:
                system.delete_dir(info.path)
                continue
            # A task that was tried again leaves the file of its first attempt.
            for file in system.get_file_info(pafs.FileSelector(info.path, recursive=True)):
                if file.type is pafs.FileType.File and file.path not in known:
                    system.delete_file(file.path)

    # -- small tables -------------------------------------------------------------------------

    def replace(self, table: Table, batch: int, rows: pa.Table, begin: datetime, end: datetime) -> None:
        """Let these be the rows whose windows begin in this time."""
        where = f"window_start >= '{begin.isoformat()}' and window_start < '{end.isoformat()}'"
        there = self.open(table)
        if rows.num_rows:
            write_deltalake(
                there,
                rows.cast(table.schema),
                mode="overwrite",
                predicate=where,
                commit_properties=self._commit(batch),
            )
        else:
            there.delete(where, commit_properties=self._commit(batch))

    def merge(self, table: Table, batch: int, rows: pa.Table) -> None:
        """Add these rows to those with the same key."""
        if not rows.num_rows:
            return
        rows = rows.cast(table.schema)
        same = [f"(t.{name} is not distinct from s.{name})" for name in table.key]
        if table.since:
            least = pc.min(rows[table.since]).as_py()
            same.append(f"t.{table.since} >= '{least.isoformat() if isinstance(least, datetime) else least}'")
        merger = self.open(table).merge(
            rows,
            " and ".join(same),
            source_alias="s",
            target_alias="t",
            commit_properties=self._commit(batch),
        )
        merger = merger.when_matched_update(table.merged, predicate=table.merged_if or None)
        merger.when_not_matched_insert_all().execute()

    def rows_between(self, table: Table, begin: datetime, end: datetime) -> pa.Table:
        """The rows whose windows begin in this time."""
        window = pc.field("window_start")
        there = self.open(table).to_pyarrow_dataset(as_large_types=False)
        found = there.to_table(filter=(window >= pa.scalar(begin)) & (window < pa.scalar(end)))
        return found.select(table.schema.names).cast(table.schema)

    # -- housekeeping -------------------------------------------------------------------------

    def tidy(self, table: Table) -> None:
        """Join small files, and remove those that no version needs."""
        there = self.open(table)
        there.optimize.compact()
        there.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
        there.update_incremental()


def _paths(table: DeltaTable) -> Sequence[str]:
    paths: list[str] = pa.table(table.get_add_actions())["path"].to_pylist()
    return paths


def read_table(tables: str, name: str, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
    """A table as it is now, without Spark. `filters` is an expression of pyarrow's."""
    if name not in TABLES:
        raise ConfigError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    table = TABLES[name]
    uri = f"{tables.rstrip('/')}/{name}"
    if not DeltaTable.is_deltatable(uri):
        return table.schema.empty_table().select(columns or table.schema.names)
    wanted = list(columns or table.schema.names)
    found = DeltaTable(uri).to_pyarrow_dataset(as_large_types=False).to_table(columns=wanted, filter=filters)
    schema = pa.schema([table.schema.field(name) for name in wanted])
    # Without rows there is not even an empty chunk, which Spark does not take.
    return found.cast(schema) if found.num_rows else schema.empty_table()


def has_tables(tables: str) -> bool:
    """Whether any of the tables is there."""
    return any(DeltaTable.is_deltatable(f"{tables.rstrip('/')}/{name}") for name in TABLES)
