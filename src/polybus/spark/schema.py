"""The tables that the pipeline makes: what each is called, what its rows are, and how they are replaced.

All are Delta tables.  Their columns are written down here once, as Arrow types: Spark's rows are checked
against them when they are written, and readers that have no Spark find them here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import pyarrow as pa
from msgspec import Struct

STAMP: Final = pa.timestamp("us", tz="UTC")
BUCKETS: Final = pa.list_(pa.struct([("us", pa.int64()), ("count", pa.int64())]))
# Windows, in seconds since 1970.
METRICS_WINDOW_S: Final = 10
TOPICS_WINDOW_S: Final = 60
# Metrics and alerts are replaced by whole minutes, because alerts look at whole minutes.
MINUTE_S: Final = 60


class Kind(StrEnum):
    """How a micro-batch gets into a table."""

    # Its rows are new: executors write files, and the driver adds them.
    APPENDED = "appended"
    # Its rows and those that are there, of the same minutes, become the rows of these minutes.
    REPLACED = "replaced"
    # Rows with the same key become one (`Table.merged`).
    MERGED = "merged"


class Table(Struct, frozen=True):
    name: str
    kind: Kind
    schema: pa.Schema
    key: tuple[str, ...]
    # What becomes of a column if its row is there already: SQL, `t` is that row and `s` the new one.
    # Columns that are not named stay as they are.
    merged: dict[str, str] = {}
    # If not empty: only rows for which this holds are changed at all.
    merged_if: str = ""
    # A column by which files without rows of a batch are left alone: everything there is not smaller than in
    # the batch.
    since: str = ""


def _merged(sums: str = "", least: str = "", greatest: str = "", **others: str) -> dict[str, str]:
    return {
        **{name: f"t.{name} + s.{name}" for name in sums.split()},
        **{name: f"least(t.{name}, s.{name})" for name in least.split()},
        **{name: f"greatest(t.{name}, s.{name})" for name in greatest.split()},
        **others,
    }


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_TEXT: Final = pa.string()
_LONG: Final = pa.int64()

TRACES: Final = Table(
    "traces",
    Kind.APPENDED,
    _schema(
        broker=_TEXT,
        life=_TEXT,
        seq=_LONG,
        token=_TEXT,
        request_id=_TEXT,
        service=_TEXT,
        client=_TEXT,
        client_dialect=_TEXT,
        worker=_TEXT,
        worker_dialect=_TEXT,
        accepted_at=STAMP,
        dispatched_at=STAMP,
        finished_at=STAMP,
        wait_us=_LONG,
        service_us=_LONG,
        attempts=pa.int32(),
        outcome=_TEXT,
        reason=_TEXT,
        detail=_TEXT,
        size=_LONG,
        reply_size=_LONG,
        date=_TEXT,
    ),
    key=("broker", "life", "seq"),
)
SERVICE_METRICS: Final = Table(
    "service_metrics",
    Kind.REPLACED,
    _schema(
        broker=_TEXT,
        service=_TEXT,
        window_start=STAMP,
        requests=_LONG,
        replied=_LONG,
        failed=_LONG,
        expired=_LONG,
        cancelled=_LONG,
        workers_down=_LONG,
        rate=pa.float64(),
        error_rate=pa.float64(),
        bytes_in=_LONG,
        bytes_out=_LONG,
        wait_p50_us=_LONG,
        wait_p95_us=_LONG,
        wait_p99_us=_LONG,
        service_p50_us=_LONG,
        service_p95_us=_LONG,
        service_p99_us=_LONG,
        wait_buckets=BUCKETS,
        service_buckets=BUCKETS,
        date=_TEXT,
    ),
    key=("broker", "service", "window_start"),
)
CALLS: Final = Table(
    "calls",
    Kind.MERGED,
    _schema(
        broker=_TEXT,
        date=_TEXT,
        client=_TEXT,
        client_dialect=_TEXT,
        service=_TEXT,
        requests=_LONG,
        errors=_LONG,
        service_us=_LONG,
        bytes_in=_LONG,
        bytes_out=_LONG,
        first_at=STAMP,
        last_at=STAMP,
    ),
    key=("broker", "date", "client", "client_dialect", "service"),
    merged=_merged("requests errors service_us bytes_in bytes_out", "first_at", "last_at"),
    since="date",
)
# How long a worker was there: its sessions that have ended, and the one that has not.
_UP: Final = (
    "(t.closed_us + s.closed_us + case when t.sessions + s.sessions > t.ended + s.ended "
    "then cast(greatest(t.last_seen_at, s.last_seen_at) as bigint) "
    "- cast(greatest(t.last_up_at, s.last_up_at) as bigint) else 0 end)"
)
WORKERS: Final = Table(
    "workers",
    Kind.MERGED,
    _schema(
        broker=_TEXT,
        life=_TEXT,
        worker_link=_TEXT,
        worker=_TEXT,
        worker_dialect=_TEXT,
        service=_TEXT,
        sessions=_LONG,
        ended=_LONG,
        first_up_at=STAMP,
        last_up_at=STAMP,
        last_down_at=STAMP,
        last_down_reason=_TEXT,
        closed_us=_LONG,
        missed_beats=_LONG,
        requests=_LONG,
        errors=_LONG,
        busy_us=_LONG,
        last_seen_at=STAMP,
        up_us=_LONG,
        busy=pa.float64(),
    ),
    key=("broker", "life", "worker_link", "worker"),
    merged=_merged(
        "sessions ended closed_us missed_beats requests errors busy_us",
        "first_up_at",
        "worker_dialect service last_up_at last_down_at last_seen_at",
        last_down_reason="case when t.last_down_at is null or s.last_down_at >= t.last_down_at "
        "then s.last_down_reason else t.last_down_reason end",
        up_us=_UP,
        busy=f"case when {_UP} > 0 then cast(t.busy_us + s.busy_us as double) / cast({_UP} as double) end",
    ),
)
LAST_VALUES: Final = Table(
    "last_values",
    Kind.MERGED,
    _schema(
        broker=_TEXT,
        topic=_TEXT,
        at=STAMP,
        life=_TEXT,
        seq=_LONG,
        size=_LONG,
        body=pa.list_(pa.binary()),
    ),
    key=("broker", "topic"),
    merged=_merged(at="s.at", life="s.life", seq="s.seq", size="s.size", body="s.body"),
    merged_if="s.at > t.at or (s.at = t.at and s.seq > t.seq)",
)
TOPICS: Final = Table(
    "topics",
    Kind.MERGED,
    _schema(broker=_TEXT, topic=_TEXT, window_start=STAMP, messages=_LONG, bytes=_LONG, date=_TEXT),
    key=("broker", "topic", "window_start"),
    merged=_merged("messages bytes"),
    since="window_start",
)
LOGS: Final = Table(
    "logs",
    Kind.APPENDED,
    _schema(
        broker=_TEXT,
        life=_TEXT,
        seq=_LONG,
        at=STAMP,
        level=_TEXT,
        node=_TEXT,
        topic=_TEXT,
        message=_TEXT,
        date=_TEXT,
    ),
    key=("broker", "life", "seq"),
)
DEAD_LETTERS: Final = Table(
    "dead_letters",
    Kind.APPENDED,
    _schema(
        broker=_TEXT,
        life=_TEXT,
        seq=_LONG,
        at=STAMP,
        token=_TEXT,
        request_id=_TEXT,
        service=_TEXT,
        client=_TEXT,
        client_dialect=_TEXT,
        worker=_TEXT,
        attempts=pa.int32(),
        reason=_TEXT,
        detail=_TEXT,
        accepted_at=STAMP,
        size=_LONG,
        headers=_TEXT,
        body=pa.list_(pa.binary()),
        date=_TEXT,
    ),
    key=("broker", "life", "seq"),
)
ALERTS: Final = Table(
    "alerts",
    Kind.REPLACED,
    _schema(
        broker=_TEXT,
        rule=_TEXT,
        subject=_TEXT,
        window_start=STAMP,
        value=pa.float64(),
        threshold=pa.float64(),
        date=_TEXT,
    ),
    key=("broker", "rule", "subject", "window_start"),
)
TABLES: Final = {
    table.name: table
    for table in (
        TRACES,
        SERVICE_METRICS,
        CALLS,
        WORKERS,
        LAST_VALUES,
        TOPICS,
        LOGS,
        DEAD_LETTERS,
        ALERTS,
    )
}
