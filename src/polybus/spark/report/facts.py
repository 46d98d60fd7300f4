"""What a report tells, computed from the tables: no Spark, and nothing of HTML.

Tables are read with the columns that are needed and the rows that are in time.  Times are merged from the
histograms of `service_metrics`, whose buckets add up exactly: a percentile here is the one of all requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from polybus.spark.report.numbers import Clock
from polybus.spark.schema import METRICS_WINDOW_S, TOPICS_WINDOW_S
from polybus.spark.tables import read_table

OUTCOMES: Final = ("replied", "failed", "expired", "cancelled")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
QUANTILES: Final = (50, 95, 99)
MEASURES: Final = ("wait", "service")
MICRO: Final = 1_000_000
NEWEST_LETTERS: Final = 8
DRAWN_TOPICS: Final = 12
UNKNOWN: Final = "(none)"

Row = dict[str, Any]
# How often each bucket, in microseconds.
Histogram = dict[int, int]
# For each column of the plots, or None where nothing was.
Series = list[float | None]


class Service(Struct):
    name: str
    requests: int
    errors: int
    percentiles: dict[str, dict[int, int | None]]
    # The p95 of its time of service in each column.
    trend: Series


class Facts(Struct):
    clock: Clock
    brokers: list[str]
    # Requests in each column, by outcome.
    outcomes: dict[str, list[int]]
    # By measure and quantile, in each column; and over all.
    percentiles: dict[str, dict[int, Series]]
    overall: dict[str, dict[int, int | None]]
    services: list[Service]
    bytes_in: int
    bytes_out: int
    failures: list[tuple[str, str, str, int]]
    dead: list[tuple[str, str, int]]
    letters: list[Row]
    calls: list[Row]
    workers: list[Row]
    topics: list[tuple[str, int, int, list[float]]]
    published: int
    publications: list[float]
    logs: dict[str, list[int]]
    nodes: list[tuple[str, int]]
    alerts: list[Row]

    @property
    def requests(self) -> int:
        return sum(map(sum, self.outcomes.values()))

    @property
    def errors(self) -> int:
        return sum(self.outcomes["failed"]) + sum(self.outcomes["expired"])


def quantile(histogram: Histogram, percent: int) -> int | None:
    """The first bucket at which so many percent of the values are reached."""
    rank = (sum(histogram.values()) * percent + 99) // 100
    seen = 0
    for micros in sorted(histogram):
        seen += histogram[micros]
        if seen >= rank:
            return micros
    return None


class _Reader:
    """The tables, within some time."""

    def __init__(self, tables: str, since: datetime | None, until: datetime | None) -> None:
        self._tables = tables
        self._since = since and since.astimezone(UTC)
        self._until = until and until.astimezone(UTC)

    def read(self, name: str, columns: str, by: str, only: Any = None) -> pa.Table:
        """These columns of the rows whose time, in the column `by`, is in the report."""
        filters = only
        for limit, is_since in ((self._since, True), (self._until, False)):
            if limit is None:
                continue
            if by == "date":
                bound: Any = f"{limit:%Y-%m-%d}"
                test = pc.field(by) >= bound if is_since else pc.field(by) <= bound
            else:
                bound = pa.scalar(limit, pa.timestamp("us", tz="UTC"))
                test = pc.field(by) >= bound if is_since else pc.field(by) < bound
            filters = test if filters is None else filters & test
        return read_table(self._tables, name, columns.split(), filters)

    def clock(self, times: list[tuple[pa.Table, str, int]]) -> Clock:
        """From the first to the last moment of some columns, or as it was asked for."""
        begins, ends = [], []
        for table, column, width_s in times:
            if table.num_rows:
                limits = pc.min_max(table[column]).as_py()
                begins.append(limits["min"])
                ends.append(limits["max"] + timedelta(seconds=width_s))
        end = self._until or max(ends, default=None) or datetime.now(UTC)
        begin = self._since or min(begins, default=None) or end - timedelta(hours=1)
        return Clock(min(begin, end), end)


def gather(tables: str, since: datetime | None = None, until: datetime | None = None) -> Facts:
    """Everything a report tells."""
    reader = _Reader(tables, since, until)
    metrics = reader.read(
        "service_metrics",
        "broker service window_start requests replied failed expired cancelled bytes_in bytes_out "
        "wait_buckets service_buckets",
        "window_start",
    )
    topics = reader.read("topics", "broker topic window_start messages bytes", "window_start")
    logs = reader.read("logs", "level node at", "at")
    alerts = reader.read(
        "alerts", "broker rule subject window_start value threshold", "window_start"
    ).to_pylist()
    letters = reader.read("dead_letters", "at token service client reason detail attempts accepted_at", "at")
    clock = reader.clock(
        [
            (metrics, "window_start", METRICS_WINDOW_S),
            (topics, "window_start", TOPICS_WINDOW_S),
            (logs, "at", 1),
            (letters, "at", 1),
        ]
    )
    columns = _columns(metrics["window_start"], clock)
    merged = {measure: _merged(metrics, measure, columns) for measure in MEASURES}
    workers = reader.read(
        "workers",
        "broker worker worker_dialect service sessions ended last_down_reason missed_beats requests errors "
        "busy_us up_us busy last_seen_at",
        "last_seen_at",
    )
    calls = reader.read("calls", "broker client client_dialect service requests errors service_us", "date")
    found = metrics.num_rows or topics.num_rows
    return Facts(
        clock=clock,
        brokers=sorted(
            {name for table in (metrics, topics) for name in pc.unique(table["broker"]).to_pylist() if name}
        )
        if found
        else [],
        outcomes={name: _sums(columns, metrics[name], clock.columns) for name in OUTCOMES},
        percentiles={
            measure: {
                q: [quantile(histogram, q) for histogram in _by_column(parts, clock.columns)]
                for q in QUANTILES
            }
            for measure, parts in merged.items()
        },
        overall={
            measure: {q: quantile(_added(parts), q) for q in QUANTILES} for measure, parts in merged.items()
        },
        services=_services(metrics, columns, clock.columns),
        bytes_in=_total(metrics["bytes_in"]),
        bytes_out=_total(metrics["bytes_out"]),
        failures=_failures(reader),
        dead=_dead(letters),
        letters=letters.sort_by([("at", "descending")]).slice(0, NEWEST_LETTERS).to_pylist(),
        calls=calls.to_pylist(),
        workers=workers.to_pylist(),
        topics=_topics(topics, clock),
        published=_total(topics["messages"]),
        publications=_spread(topics, clock),
        logs=_logs(logs, clock),
        nodes=_noisy_nodes(logs),
        alerts=sorted(alerts, key=lambda row: row["window_start"]),
    )


# -- over time --------------------------------------------------------------------------------


def _columns(times: pa.ChunkedArray, clock: Clock) -> pa.ChunkedArray:
    """The number of the column that each moment belongs to."""
    micros = pc.subtract(times.cast(pa.int64()), int(clock.begin.timestamp()) * MICRO)
    return pc.divide(micros, clock.width_s * MICRO)


def _total(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values).as_py() or 0)


def _sums(columns: pa.ChunkedArray, values: pa.ChunkedArray, count: int) -> list[int]:
    found = pa.table({"column": columns, "value": values}).group_by("column").aggregate([("value", "sum")])
    sums = [0] * count
    for column, value in zip(found["column"].to_pylist(), found["value_sum"].to_pylist(), strict=True):
        if 0 <= column < count:
            sums[column] += value or 0
    return sums


def _spread(windows: pa.Table, clock: Clock) -> list[float]:
    """Publications in each column. Where columns are shorter than the table's minutes, each has its part."""
    parts = max(1, TOPICS_WINDOW_S // clock.width_s)
    sums = [0.0] * clock.columns
    columns = _columns(windows["window_start"], clock).to_pylist()
    for first, messages in zip(columns, windows["messages"].to_pylist(), strict=True):
        for column in range(first, first + parts):
            if 0 <= column < clock.columns:
                sums[column] += messages / parts
    return sums


def _merged(metrics: pa.Table, measure: str, groups: pa.ChunkedArray) -> dict[Any, Histogram]:
    """The histograms of the rows of each group, added."""
    lists = metrics[f"{measure}_buckets"].combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    buckets = pc.list_flatten(lists)
    parts = pa.table(
        {
            "group": pc.take(groups, pc.list_parent_indices(lists)),
            "us": pc.struct_field(buckets, "us"),
            "n": pc.struct_field(buckets, "count"),
        }
    )
    added = parts.group_by(["group", "us"]).aggregate([("n", "sum")])
    found: dict[Any, Histogram] = defaultdict(dict)
    for group, micros, number in zip(
        *(added[name].to_pylist() for name in ("group", "us", "n_sum")), strict=True
    ):
        found[group][micros] = number
    return found


def _by_column(parts: dict[Any, Histogram], count: int) -> list[Histogram]:
    return [parts.get(column, {}) for column in range(count)]


def _added(parts: dict[Any, Histogram]) -> Histogram:
    total: Counter[int] = Counter()
    for histogram in parts.values():
        total.update(histogram)
    return total


# -- services ---------------------------------------------------------------------------------


def _services(metrics: pa.Table, columns: pa.ChunkedArray, count: int) -> list[Service]:
    """All of them, the slowest first."""
    counts = metrics.group_by("service").aggregate(
        [("requests", "sum"), ("failed", "sum"), ("expired", "sum")]
    )
    merged = {measure: _merged(metrics, measure, metrics["service"]) for measure in MEASURES}
    names = sorted(counts["service"].to_pylist())
    index = pc.index_in(metrics["service"], pa.array(names, pa.string())).cast(pa.int64())
    cells = _merged(metrics, "service", pc.add(pc.multiply(index, count), columns)) if names else {}
    place = {name: number for number, name in enumerate(names)}
    services = []
    for row in counts.to_pylist():
        name = row["service"]
        first = place[name] * count
        services.append(
            Service(
                name,
                row["requests_sum"],
                row["failed_sum"] + row["expired_sum"],
                {
                    measure: {q: quantile(merged[measure].get(name, {}), q) for q in QUANTILES}
                    for measure in MEASURES
                },
                [quantile(cells.get(first + column, {}), 95) for column in range(count)],
            )
        )
    services.sort(key=lambda one: (-(one.percentiles["service"][95] or -1), -one.requests, one.name))
    return [one for one in services if one.requests]


def _failures(reader: _Reader) -> list[tuple[str, str, str, int]]:
    """(service, outcome, reason, how often), the most frequent first."""
    wrong = pc.field("outcome").isin(["failed", "expired"])
    rows = reader.read("traces", "service outcome reason", "finished_at", wrong)
    counted = rows.group_by(["service", "outcome", "reason"]).aggregate([([], "count_all")]).to_pylist()
    found = [
        (row["service"] or UNKNOWN, row["outcome"], row["reason"] or row["outcome"], row["count_all"])
        for row in counted
    ]
    return sorted(found, key=lambda one: (-one[3], one))


def _dead(letters: pa.Table) -> list[tuple[str, str, int]]:
    counted = letters.group_by(["service", "reason"]).aggregate([([], "count_all")]).to_pylist()
    found = [(row["service"] or UNKNOWN, row["reason"] or UNKNOWN, row["count_all"]) for row in counted]
    return sorted(found, key=lambda one: (-one[2], one))


# -- topics and logs --------------------------------------------------------------------------


def _topics(topics: pa.Table, clock: Clock) -> list[tuple[str, int, int, list[float]]]:
    """(topic, messages, bytes, messages in each column), the busiest first."""
    counted = topics.group_by("topic").aggregate([("messages", "sum"), ("bytes", "sum")]).to_pylist()
    counted.sort(key=lambda row: (-row["messages_sum"], row["topic"] or ""))
    found: list[tuple[str, int, int, list[float]]] = []
    for row in counted:
        # Only the busiest are drawn.
        name = row["topic"]
        is_it = pc.is_null(topics["topic"]) if name is None else pc.equal(topics["topic"], name)
        one = topics.filter(is_it) if len(found) < DRAWN_TOPICS else topics.slice(0, 0)
        trend = _spread(one, clock)
        found.append((name or "(empty)", row["messages_sum"], row["bytes_sum"] or 0, trend))
    return found


def _logs(logs: pa.Table, clock: Clock) -> dict[str, list[int]]:
    """Records in each column, by level; levels that we do not know come last."""
    columns = _columns(logs["at"], clock)
    found = pa.table({"level": logs["level"], "column": columns})
    counted = found.group_by(["level", "column"]).aggregate([([], "count_all")])
    levels: dict[str, list[int]] = {level: [0] * clock.columns for level in LEVELS}
    for row in counted.to_pylist():
        series = levels.setdefault(row["level"] or UNKNOWN, [0] * clock.columns)
        if 0 <= row["column"] < clock.columns:
            series[row["column"]] += row["count_all"]
    return {level: series for level, series in levels.items() if any(series)}


def _noisy_nodes(logs: pa.Table) -> list[tuple[str, int]]:
    """Who reports errors, the most first."""
    serious = logs.filter(pc.is_in(logs["level"], pa.array(["warning", "error", "critical"])))
    counted = serious.group_by("node").aggregate([([], "count_all")]).to_pylist()
    return sorted(
        ((row["node"] or UNKNOWN, row["count_all"]) for row in counted), key=lambda one: (-one[1], one)
    )
