"""Batches of the journal's rows become changes of tables.

The tables remember which batches they have (see `tables`), so a batch that is interrupted anywhere and
processed again changes nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import functions as F

from polybus.spark import histograms, transforms
from polybus.spark.alerts import alerts
from polybus.spark.rules import Rules
from polybus.spark.schema import (
    ALERTS,
    CALLS,
    DEAD_LETTERS,
    LAST_VALUES,
    LOGS,
    MINUTE_S,
    SERVICE_METRICS,
    TOPICS,
    TRACES,
    WORKERS,
    Kind,
    Table,
)
from polybus.spark.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from polybus.spark.files import Batches

TERMINAL: Final = frozenset(transforms.TERMINAL)
# A batch takes up to so many tables at once: while one waits for the disk, another computes.
AT_ONCE: Final = 3


class Batch(Struct, frozen=True):
    """What was in a batch, for whoever watches."""

    number: int
    rows: int
    seconds: float
    # The time of its newest row, and the number of the newest segment.
    newest: datetime
    upto: str
    # How many rows each table got; not all tables tell.
    tables: dict[str, int] = {}

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    def lag_s(self, now: float) -> float:
        return max(0.0, now - self.newest.timestamp())


class Input(Struct, frozen=True):
    """What a batch is made of."""

    # The rows of the journal, and the names of the segments in which they are: one column, `path`.
    events: DataFrame
    segments: DataFrame


class Maker(Struct, frozen=True):
    """How a table is made of a batch, and of which rows: of the events, or of segments in columns."""

    table: Table
    needs: frozenset[str]
    make: Callable[[DataFrame], DataFrame] | None = None
    make_columns: Callable[[Batches], Batches] | None = None


MAKERS: Final = (
    Maker(TRACES, TERMINAL, make_columns=transforms.traces),
    Maker(CALLS, TERMINAL, transforms.calls),
    Maker(WORKERS, TERMINAL | {"worker_up", "worker_down", "heartbeat_missed"}, transforms.workers),
    Maker(TOPICS, frozenset({"published"}), transforms.topics),
    Maker(LAST_VALUES, frozenset({"published"}), transforms.last_values),
    Maker(LOGS, frozenset({"log"}), transforms.logs),
    Maker(DEAD_LETTERS, frozenset({"dead"}), transforms.dead_letters),
)
METRICS_NEED: Final = TERMINAL | {"worker_down"}
Alarm = Callable[[list[dict[str, Any]]], None]


class Processor:
    """Turns batches into changes of the tables."""

    def __init__(self, lake: Lake, rules: Rules, alarm: Alarm | None = None) -> None:
        self._lake = lake
        self._rules = rules
        self._alarm = alarm

    def process(self, given: Input, number: int) -> Batch | None:
        """Put a batch into all tables that do not have it yet. None if it is empty."""
        began = time.monotonic()
        facts = given.events.groupBy("what").agg(
            F.count("*").alias("n"),
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.max("file_name").alias("upto"),
        )
        found = {row["what"]: row for row in facts.collect()}
        if not found:
            return None
        stages: list[Callable[[], tuple[str, int]]] = []
        measured = [found[what] for what in METRICS_NEED if what in found]
        if measured:
            begin = min(row["first"] for row in measured)
            end = max(row["last"] for row in measured)
            stages.append(lambda: self._metrics(given.segments, number, begin, end))
        for maker in MAKERS:
            if maker.needs & found.keys():
                stages.append(lambda maker=maker: self._make(maker, given, number))  # type: ignore[misc]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            counts = dict(pool.map(lambda stage: stage(), stages))
        return Batch(
            number,
            sum(row["n"] for row in found.values()),
            time.monotonic() - began,
            _utc(max(row["last"] for row in found.values())),
            max(row["upto"] for row in found.values()),
            counts,
        )

    def _make(self, maker: Maker, given: Input, number: int) -> tuple[str, int]:
        table = maker.table
        if self._lake.has(table, number):
            return table.name, 0
        if maker.make is None:
            return table.name, self._lake.append(table, number, given.segments, maker.make_columns)
        rows = maker.make(given.events)
        if table.kind is Kind.APPENDED:
            return table.name, self._lake.append(table, number, rows)
        found = rows.toArrow()
        self._lake.merge(table, number, found)
        return table.name, found.num_rows

    def _metrics(self, segments: DataFrame, number: int, first: datetime, last: datetime) -> tuple[str, int]:
        """The metrics of all minutes that the batch touches, and the alerts that follow from them."""
        begin, end = minute_of(first), minute_of(last) + timedelta(seconds=MINUTE_S)
        if self._lake.has(SERVICE_METRICS, number):
            rows = self._lake.rows_between(SERVICE_METRICS, begin, end)
        else:
            old = self._lake.rows_between(SERVICE_METRICS, begin, end)
            rows = histograms.unpacked(transforms.service_metrics(segments, old).toArrow())
            self._lake.replace(SERVICE_METRICS, number, rows, begin, end)
        if not self._lake.has(ALERTS, number):
            self._alerts(rows, number, begin, end)
        return SERVICE_METRICS.name, rows.num_rows

    def _alerts(self, rows: pa.Table, number: int, begin: datetime, end: datetime) -> None:
        found = alerts(rows, self._rules)
        old = self._lake.rows_between(ALERTS, begin, end)
        if not found.num_rows and not old.num_rows:
            return
        if self._alarm is not None:
            known = {tuple(row[name] for name in ALERTS.key) for row in old.to_pylist()}
            news = [row for row in found.to_pylist() if tuple(row[name] for name in ALERTS.key) not in known]
            if news:
                # Before the commit: after a crash they are told again, rather than never.
                self._alarm(news)
        self._lake.replace(ALERTS, number, found, begin, end)


def minute_of(moment: datetime) -> datetime:
    return _utc(moment).replace(second=0, microsecond=0)


def _utc(moment: datetime) -> datetime:
    # Spark hands out times without a zone, in that of this process.
    return moment.astimezone(UTC)
