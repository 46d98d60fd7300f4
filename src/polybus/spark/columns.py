"""The largest tables, made of segments by executors in columns: no row of them passes through Java.

Spark hands out the names of segments, one task's worth after the other; a task reads the row groups that it
needs, makes what belongs into a table, and writes that down or hands it on.  For tables with a row for each
request this costs a quarter of what Spark's own rows do.

Like `histograms` and `files`, this travels to the executors by value and imports nothing else of polybus.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

Batches = Iterator[pa.RecordBatch]
_STAMP: Final = pa.timestamp("us", tz="UTC")


def of_segments(
    whats: Collection[str], columns: Sequence[str], make: Callable[[pa.Table], pa.Table], batches: Batches
) -> Batches:
    """What `make` makes of the rows of some kinds, of segments whose names come in."""
    for batch in batches:
        for path in batch["path"].to_pylist():
            for table in rows_of(path, whats, columns):
                yield from make(table).to_batches()


def rows_of(path: str, whats: Collection[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Columns of the rows of some kinds in a segment, a row group at a time."""
    system, place = _find(path)
    wanted = pa.array(sorted(whats))
    with system.open_input_file(place) as source:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        for group in range(file.num_row_groups):
            # Rows of the same kind lie together: most row groups have all of them, or none.
            kinds = file.read_row_group(group, ["what"], use_threads=False)["what"]
            is_wanted = pc.is_in(kinds, wanted)
            if not pc.any(is_wanted).as_py():
                continue
            table = file.read_row_group(group, list(columns), use_threads=False)
            yield table if pc.all(is_wanted).as_py() else table.filter(is_wanted)


def _find(path: str) -> tuple[pafs.FileSystem, str]:
    scheme, colon, place = path.partition(":")
    if not colon or scheme == "file":
        # Spark writes file:/, file:/// or nothing in front, and escapes nothing.
        return pafs.LocalFileSystem(), "/" + place.lstrip("/") if colon else path
    found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(path)
    return found


# -- traces ---------------------------------------------------------------------------------------

TRACE_COLUMNS: Final = (
    *("broker", "life", "seq", "at", "what", "token", "request_id", "service", "client", "client_dialect"),
    *("worker", "worker_dialect", "accepted_at", "dispatched_at", "attempt", "reason", "detail"),
    *("size", "body_size"),
)
_RENAMED: Final = {"at": "finished_at", "attempt": "attempts", "what": "outcome", "body_size": "reply_size"}


def traces_of(ended: pa.Table) -> pa.Table:
    """One row for each request that reached its end."""
    more: dict[str, Any] = {
        "wait_us": between(ended["accepted_at"], pc.coalesce(ended["dispatched_at"], ended["at"])),
        "service_us": between(ended["dispatched_at"], ended["at"]),
        "date": pc.strftime(ended["at"], "%Y-%m-%d"),
    }
    rows = ended.rename_columns([_RENAMED.get(name, name) for name in ended.column_names])
    for name, column in more.items():
        rows = rows.append_column(name, column)
    return rows


def between(begin: Any, end: Any) -> Any:
    """Microseconds from one to the other; a clock that was set back does not make them negative."""
    times = pc.subtract(end.cast(_STAMP).cast(pa.int64()), begin.cast(_STAMP).cast(pa.int64()))
    return pc.if_else(pc.less(times, 0), 0, times)
