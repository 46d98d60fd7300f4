"""The pipeline's tables, read without Spark: few columns, few rows, and nothing twice.

Tables grow, and pages are looked at by several people every few seconds.  So a result is kept for as long as
its table has the same version, and the version is looked up at most every few seconds.  Of a large table only
the newest files are opened, and of these first the column that tells which rows are the newest.

Everything here blocks, and is called in threads.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec import Struct

from polybus.spark.report.facts import MEASURES, QUANTILES, quantile
from polybus.spark.schema import METRICS_WINDOW_S, SERVICE_METRICS, TABLES, Kind, Table
from polybus.web.answers import Refused

# So long a table is taken for unchanged.
LOOK_S: Final = 3.0
# Results that are kept; each is a page of a table.
MAX_KEPT: Final = 64
MAX_ROWS: Final = 5000
# With more rows than this, the newest are found by their times before anything else is read.
AT_ONCE: Final = 20_000
# Files of one batch are written side by side; which of them has the newest rows is not known.
TOGETHER_MS: Final = 60_000
# Points of a chart; more windows are added up to fewer.
MAX_POINTS: Final = 400
# Of bodies that are shown.
BODY_BYTES: Final = 1024
BODY_FRAMES: Final = 16
# What tells how new a row is, the first that a table has.
TIMES: Final = ("finished_at", "window_start", "at", "last_at", "last_seen_at")

Row = dict[str, Any]


class Opened(Struct):
    table: DeltaTable
    looked_at: float

    @property
    def mark(self) -> tuple[Any, ...]:
        """What changes when the table does, also if it is made anew from nothing."""
        return self.table.metadata().id, self.table.version()


class Tables:
    """The tables in a folder, or at an address that deltalake reads."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.place: Final = place.rstrip("/")
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: dict[str, Opened] = {}
        self._kept: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()

    # -- opening and keeping --------------------------------------------------------------------

    def open(self, name: str) -> Opened | None:
        """The table as it is now, or was a moment ago; None if it is not there."""
        if name not in TABLES:
            raise Refused(404, f"there is no table {name!r}", f"there are {', '.join(TABLES)}")
        with self._lock:
            found = self._opened.get(name)
            if found is not None and self._clock() < found.looked_at + LOOK_S:
                return found
            uri = f"{self.place}/{name}"
            try:
                # Opened anew, not brought up to date: it may be another table by now.
                table = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
            except (DeltaError, OSError) as error:
                raise unreadable(name, error) from None
            if table is None:
                self._opened.pop(name, None)
                return None
            self._opened[name] = Opened(table, self._clock())
            return self._opened[name]

    def kept(
        self, name: str, what: tuple[Any, ...], make: Callable[[DeltaTable], Any], nothing: Any
    ) -> bytes:
        """What `make` makes of the table, as JSON; `nothing` if it is not there."""
        opened = self.open(name)
        if opened is None:
            return msgspec.json.encode(nothing)
        key = (name, *what, *opened.mark)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            value = msgspec.json.encode(make(opened.table))
        except (DeltaError, pa.ArrowException, OSError) as error:
            # Files of an old version go after a while.
            with self._lock:
                self._opened.pop(name, None)
            raise unreadable(name, error) from None
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return value

    # -- questions ------------------------------------------------------------------------------

    def newest(self, name: str, limit: int) -> bytes:
        """The newest rows, the newest first."""
        if not 1 <= limit <= MAX_ROWS:
            raise Refused(400, f"limit is {limit}", f"it takes 1 to {MAX_ROWS}")
        return self.kept(name, ("newest", limit), lambda table: _newest(table, TABLES[name], limit), [])

    def service(self, name: str, minutes: float, now: float) -> bytes:
        """Rates, errors and times of a service in the last minutes, ordered by time."""
        # By whole windows, so that the same question a moment later is the same question.
        end = int(now // METRICS_WINDOW_S) * METRICS_WINDOW_S
        since = datetime.fromtimestamp(end, UTC) - timedelta(minutes=minutes)
        what = ("service", name, minutes, end)
        return self.kept(SERVICE_METRICS.name, what, lambda table: _history(table, name, since), [])


def unreadable(name: str, error: Exception) -> Refused:
    first = str(error).strip().partition("\n")[0]
    next_ = f"ask again; 'polybus pipeline show {name}' reads it, too"
    return Refused(503, f"the table {name} cannot be read now: {first}", next_)


# -- the newest rows ------------------------------------------------------------------------------


def time_of(table: Table) -> str:
    return next(name for name in TIMES if name in table.schema.names)


def _newest(there: DeltaTable, table: Table, limit: int) -> list[Row]:
    by = time_of(table)
    rows = _newest_files(there, table, limit)
    order = [(by, "descending"), *((key, "ascending") for key in table.key if key != by)]
    names = [name for name in table.schema.names if not name.endswith("_buckets")]
    wanted = None
    if rows.count_rows() > max(AT_ONCE, limit):
        times = rows.to_table(columns=[by])[by]
        least = pc.select_k_unstable(times, limit, [("", "descending")])
        wanted = pc.field(by) >= pc.min(times.take(least))
    found = rows.to_table(columns=names, filter=wanted).sort_by(order).slice(0, limit)
    return [{name: plain(value) for name, value in row.items()} for row in found.to_pylist()]


def _newest_files(there: DeltaTable, table: Table, limit: int) -> ds.Dataset:
    """All files, or of a table to which rows are only added those that were added last."""
    rows = there.to_pyarrow_dataset(as_large_types=False)
    if table.kind is not Kind.APPENDED:
        return rows
    added = pa.table(there.get_add_actions(flatten=True)).sort_by([("modification_time", "descending")])
    chosen: set[str] = set()
    count, enough_at = 0, 0
    for row in added.select(["path", "num_records", "modification_time"]).to_pylist():
        at = row["modification_time"]
        if count >= limit and at < enough_at - TOGETHER_MS:
            break
        chosen.add(row["path"])
        if count < limit:
            count, enough_at = count + (row["num_records"] or 0), at
    fragments = [one for one in rows.get_fragments() if any(one.path.endswith(path) for path in chosen)]
    return ds.FileSystemDataset(fragments, rows.schema, rows.format, rows.filesystem)


def plain(value: Any) -> Any:
    """A value of a table for JSON: times in ISO 8601, bodies as text, cut."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value[:BODY_BYTES].decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return [plain(one) for one in value[:BODY_FRAMES]]
    return value


# -- the history of a service ---------------------------------------------------------------------

COUNTS: Final = (
    "requests",
    "replied",
    "failed",
    "expired",
    "cancelled",
    "workers_down",
    "bytes_in",
    "bytes_out",
)


def _history(there: DeltaTable, name: str, since: datetime) -> list[Row]:
    start = pc.field("window_start")
    wanted = start >= pa.scalar(since, pa.timestamp("us", tz="UTC"))
    if name:
        wanted = wanted & (pc.field("service") == name)
    columns = ["window_start", *COUNTS, "wait_buckets", "service_buckets"]
    rows = there.to_pyarrow_dataset(as_large_types=False).to_table(columns=columns, filter=wanted)
    return merged(rows.to_pylist())


def merged(rows: list[Row]) -> list[Row]:
    """One point for each stretch of time, of one or several windows: counts and histograms add up exactly."""
    if not rows:
        return []
    starts = [row["window_start"].timestamp() for row in rows]
    windows = (max(starts) - min(starts)) / METRICS_WINDOW_S + 1
    step_s = METRICS_WINDOW_S * max(1, -int(-windows // MAX_POINTS))
    points: dict[float, list[Row]] = {}
    for row in rows:
        at = row["window_start"].timestamp() // step_s * step_s
        points.setdefault(at, []).append(row)
    return [_point(at, step_s, points[at]) for at in sorted(points)]


def _point(at: float, step_s: float, rows: list[Row]) -> Row:
    point: Row = {"at": at, "seconds": step_s, **{name: sum(row[name] for row in rows) for name in COUNTS}}
    requests = point["requests"]
    point["rate"] = requests / step_s
    point["error_rate"] = (point["failed"] + point["expired"]) / requests if requests else 0.0
    for measure in MEASURES:
        histogram: dict[int, int] = {}
        for row in rows:
            for bucket in row[f"{measure}_buckets"] or ():
                histogram[bucket["us"]] = histogram.get(bucket["us"], 0) + bucket["count"]
        for percent in QUANTILES:
            point[f"{measure}_p{percent}_us"] = quantile(histogram, percent)
    return point
