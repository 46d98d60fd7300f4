"""What the pipeline's tables must hold, by a plain reading of the journal: loops, dicts and whole numbers.

Nothing here is shared with the pipeline, and nothing is clever: it is what the tables are, in Python.  Rows
of the journal are dicts by column, with times in microseconds since 1970; rows of tables are dicts, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Row = dict[str, Any]
Rows = list[Row]

SECOND: Final = 1_000_000
WINDOW: Final = 10 * SECOND
MINUTE: Final = 60 * SECOND
ENDS: Final = frozenset({"replied", "failed", "expired", "cancelled"})
# An identity that ZeroMQ made up: a zero and four random bytes, in hexadecimal digits; or our client library.
MADE_UP: Final = re.compile(r"00[0-9a-f]{8}|pb-[0-9a-f]{16}")
UNNAMED: Final = "(unnamed)"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

MIN_REQUESTS: Final = 10
ERROR_RATE: Final = 0.1
SLOW_US: Final = 1_000_000
FLAPS: Final = 3

# What tells the rows of a table apart.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "traces": ("broker", "life", "seq"),
    "service_metrics": ("broker", "service", "window_start"),
    "calls": ("broker", "date", "client", "client_dialect", "service"),
    "workers": ("broker", "life", "worker_link", "worker"),
    "last_values": ("broker", "topic"),
    "topics": ("broker", "topic", "window_start"),
    "logs": ("broker", "life", "seq"),
    "dead_letters": ("broker", "life", "seq"),
    "alerts": ("broker", "rule", "subject", "window_start"),
}
_BUCKETS: Final = "list of (us int64, count int64)"
_TRACE: Final = (
    "broker text, life text, seq int64, token text, request_id text, service text, client text, "
    "client_dialect text, worker text, worker_dialect text, accepted_at time, dispatched_at time, "
    "finished_at time, wait_us int64, service_us int64, attempts int32, outcome text, reason text, "
    "detail text, size int64, reply_size int64, date text"
)
_METRICS: Final = (
    "broker text, service text, window_start time, requests int64, replied int64, failed int64, "
    "expired int64, cancelled int64, workers_down int64, rate double, error_rate double, bytes_in int64, "
    "bytes_out int64, wait_p50_us int64, wait_p95_us int64, wait_p99_us int64, service_p50_us int64, "
    "service_p95_us int64, service_p99_us int64, date text"
)
_WORKERS: Final = (
    "broker text, life text, worker_link text, worker text, worker_dialect text, service text, "
    "sessions int64, ended int64, first_up_at time, last_up_at time, last_down_at time, "
    "last_down_reason text, closed_us int64, missed_beats int64, requests int64, errors int64, "
    "busy_us int64, last_seen_at time, up_us int64, busy double"
)
_CALLS: Final = (
    "broker text, date text, client text, client_dialect text, service text, requests int64, "
    "errors int64, service_us int64, bytes_in int64, bytes_out int64, first_at time, last_at time"
)
_DEAD: Final = (
    "broker text, life text, seq int64, at time, token text, request_id text, service text, client text, "
    "client_dialect text, worker text, attempts int32, reason text, detail text, accepted_at time, "
    "size int64, headers text, date text"
)


def _columns(text: str, **more: str) -> dict[str, str]:
    return dict(pair.split(" ") for pair in text.split(", ")) | more


# Columns and their kinds; `compare.kind_of` gives the kind of an Arrow type.
COLUMNS: Final[dict[str, dict[str, str]]] = {
    "traces": _columns(_TRACE),
    "service_metrics": _columns(_METRICS, wait_buckets=_BUCKETS, service_buckets=_BUCKETS),
    "calls": _columns(_CALLS),
    "workers": _columns(_WORKERS),
    "last_values": _columns(
        "broker text, topic text, at time, life text, seq int64, size int64", body="list of bytes"
    ),
    "topics": _columns("broker text, topic text, window_start time, messages int64, bytes int64, date text"),
    "logs": _columns(
        "broker text, life text, seq int64, at time, level text, node text, topic text, message text, "
        "date text"
    ),
    "dead_letters": _columns(_DEAD, body="list of bytes"),
    "alerts": _columns(
        "broker text, rule text, subject text, window_start time, value double, threshold double, date text"
    ),
}


def day_of(at: int) -> str:
    return (EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%d")


def bucket(x: int) -> int:
    """The middle of the small range that a number belongs to, at most 1.25 % away."""
    if x < 100:
        return x
    p = 1
    while x >= 1000 * p:
        p *= 10
    if x < 200 * p:
        step = 2 * p
    elif x < 500 * p:
        step = 5 * p
    else:
        step = 10 * p
    return x - x % step + step // 2


def percentile(buckets: dict[int, int], q: int) -> int | None:
    """The first bucket by which so many per cent of the values are counted."""
    n = sum(buckets.values())
    if n == 0:
        return None
    wanted = (n * q + 99) // 100
    counted = 0
    for us in sorted(buckets):
        counted += buckets[us]
        if counted >= wanted:
            return us
    raise AssertionError("more are wanted than there are")


def wait_us(row: Row) -> int | None:
    if row["accepted_at"] is None:
        return None
    until = row["at"] if row["dispatched_at"] is None else row["dispatched_at"]
    return max(0, int(until - row["accepted_at"]))


def service_us(row: Row) -> int | None:
    return None if row["dispatched_at"] is None else max(0, int(row["at"] - row["dispatched_at"]))


# -- appended tables --------------------------------------------------------------------------


def traces(rows: Iterable[Row]) -> Rows:
    same = (
        *("broker", "life", "seq", "token", "request_id", "service", "client", "client_dialect", "worker"),
        *("worker_dialect", "accepted_at", "dispatched_at", "reason", "detail", "size"),
    )
    return [
        {name: row[name] for name in same}
        | {
            "finished_at": row["at"],
            "wait_us": wait_us(row),
            "service_us": service_us(row),
            "attempts": row["attempt"],
            "outcome": row["what"],
            "reply_size": row["body_size"],
            "date": day_of(row["at"]),
        }
        for row in rows
        if row["what"] in ENDS
    ]


def logs(rows: Iterable[Row]) -> Rows:
    made = []
    for row in rows:
        if row["what"] != "log":
            continue
        topic = row["service"]
        parts = [] if topic is None else topic.split("/", 2)
        made.append(
            {name: row[name] for name in ("broker", "life", "seq", "at")}
            | {
                "level": row["reason"],
                "node": parts[2] if len(parts) == 3 else None,
                "topic": topic,
                "message": row["detail"],
                "date": day_of(row["at"]),
            }
        )
    return made


def dead_letters(rows: Iterable[Row]) -> Rows:
    same = (
        *("broker", "life", "seq", "at", "token", "request_id", "service", "client", "client_dialect"),
        *("worker", "reason", "detail", "accepted_at", "size", "headers", "body"),
    )
    return [
        {name: row[name] for name in same} | {"attempts": row["attempt"], "date": day_of(row["at"])}
        for row in rows
        if row["what"] == "dead"
    ]


# -- requests, added up -----------------------------------------------------------------------


class Window:
    """What happened to a service in ten seconds."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.workers_down = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.waits: Counter[int] = Counter()
        self.services: Counter[int] = Counter()

    def add(self, row: Row) -> None:
        self.ends[row["what"]] += 1
        self.bytes_in += row["size"] or 0
        self.bytes_out += row["body_size"] or 0
        for us, buckets in ((wait_us(row), self.waits), (service_us(row), self.services)):
            if us is not None:
                buckets[bucket(us)] += 1


def service_metrics(rows: Iterable[Row]) -> Rows:
    windows: dict[tuple[str, str, int], Window] = defaultdict(Window)
    for row in rows:
        if not row["service"]:
            continue
        start = row["at"] // WINDOW * WINDOW
        if row["what"] in ENDS:
            windows[row["broker"], row["service"], start].add(row)
        elif row["what"] == "worker_down":
            for service in filter(None, row["service"].split(",")):
                windows[row["broker"], service, start].workers_down += 1
    return [_metrics(*key, window) for key, window in windows.items()]


def _metrics(broker: str, service: str, start: int, window: Window) -> Row:
    ends = window.ends
    requests = sum(ends.values())
    row: Row = {"broker": broker, "service": service, "window_start": start, "requests": requests}
    row |= {what: ends[what] for what in ENDS}
    row |= {
        "workers_down": window.workers_down,
        "rate": requests / 10.0,
        "error_rate": (ends["failed"] + ends["expired"]) / requests if requests else None,
        "bytes_in": window.bytes_in,
        "bytes_out": window.bytes_out,
        "date": day_of(start),
    }
    for name, buckets in (("wait", window.waits), ("service", window.services)):
        for q in (50, 95, 99):
            row[f"{name}_p{q}_us"] = percentile(buckets, q)
        row[f"{name}_buckets"] = [{"us": us, "count": buckets[us]} for us in sorted(buckets)]
    return row


def calls(rows: Iterable[Row]) -> Rows:
    made: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["what"] not in ENDS or not row["service"]:
            continue
        client = row["client"]
        if client is not None and MADE_UP.fullmatch(client):
            client = UNNAMED
        key = (row["broker"], day_of(row["at"]), client, row["client_dialect"], row["service"])
        call = made.get(key)
        if call is None:
            call = made[key] = dict(zip(KEYS["calls"], key, strict=True))
            call |= dict.fromkeys(("requests", "errors", "service_us", "bytes_in", "bytes_out"), 0)
            call |= {"first_at": row["at"], "last_at": row["at"]}
        call["requests"] += 1
        call["errors"] += row["what"] in ("failed", "expired")
        call["service_us"] += service_us(row) or 0
        call["bytes_in"] += row["size"] or 0
        call["bytes_out"] += row["body_size"] or 0
        call["first_at"] = min(call["first_at"], row["at"])
        call["last_at"] = max(call["last_at"], row["at"])
    return list(made.values())


def workers(rows: Iterable[Row]) -> Rows:
    lives: dict[tuple[str, str, str, str], Rows] = defaultdict(list)
    wanted = {"worker_up", "worker_down", "heartbeat_missed", *ENDS}
    for row in rows:
        if row["what"] in wanted and row["worker"] is not None:
            lives[row["broker"], row["life"], row["worker_link"] or "", row["worker"]].append(row)
    return [dict(zip(KEYS["workers"], key, strict=True)) | _worker(found) for key, found in lives.items()]


def _worker(rows: Rows) -> Row:
    ups = [row for row in rows if row["what"] == "worker_up"]
    downs = [row for row in rows if row["what"] == "worker_down"]
    ends = [row for row in rows if row["what"] in ENDS]
    last_down = max(downs, key=lambda row: (row["at"], row["seq"]), default=None)
    closed = sum(max(0, row["at"] - row["accepted_at"]) for row in downs if row["accepted_at"] is not None)
    busy = sum(service_us(row) or 0 for row in ends)
    last_seen = max(row["at"] for row in rows)
    last_up = max((row["at"] for row in ups), default=None)
    up = closed
    if len(ups) > len(downs):
        up += last_seen - last_up
    return {
        "worker_dialect": max((row["worker_dialect"] for row in rows if row["worker_dialect"]), default=None),
        "service": max((row["service"] for row in ups if row["service"]), default=None),
        "sessions": len(ups),
        "ended": len(downs),
        "first_up_at": min((row["at"] for row in ups), default=None),
        "last_up_at": last_up,
        "last_down_at": max((row["at"] for row in downs), default=None),
        "last_down_reason": None if last_down is None else last_down["reason"],
        "closed_us": closed,
        "missed_beats": sum(row["what"] == "heartbeat_missed" for row in rows),
        "requests": len(ends),
        "errors": sum(row["what"] == "failed" for row in ends),
        "busy_us": busy,
        "last_seen_at": last_seen,
        "up_us": up,
        "busy": busy / up if up else None,
    }


# -- publications -----------------------------------------------------------------------------


def last_values(rows: Iterable[Row]) -> Rows:
    newest: dict[tuple[str, Any], Row] = {}
    for row in rows:
        if row["what"] != "published":
            continue
        key = (row["broker"], row["service"])
        if key not in newest or (row["at"], row["seq"]) > (newest[key]["at"], newest[key]["seq"]):
            newest[key] = row
    return [
        {"broker": broker, "topic": topic, "size": row["body_size"]}
        | {name: row[name] for name in ("at", "life", "seq", "body")}
        for (broker, topic), row in newest.items()
    ]


def topics(rows: Iterable[Row]) -> Rows:
    counts: Counter[tuple[str, Any, int]] = Counter()
    sizes: Counter[tuple[str, Any, int]] = Counter()
    for row in rows:
        if row["what"] == "published":
            key = (row["broker"], row["service"], row["at"] // MINUTE * MINUTE)
            counts[key] += 1
            sizes[key] += row["body_size"] or 0
    return [
        dict(zip(KEYS["topics"], key, strict=True))
        | {"messages": count, "bytes": sizes[key], "date": day_of(key[2])}
        for key, count in counts.items()
    ]


# -- alerts -----------------------------------------------------------------------------------


def alerts(metrics: Rows) -> Rows:
    """From the finished windows of `service_metrics`, and from nothing else."""
    made: Rows = []

    def alert(rule: str, broker: str, service: str, start: int, value: float, threshold: float) -> None:
        row = {"broker": broker, "rule": rule, "subject": service, "window_start": start}
        made.append(row | {"value": float(value), "threshold": float(threshold), "date": day_of(start)})

    downs: Counter[tuple[str, str, int]] = Counter()
    for row in metrics:
        place = row["broker"], row["service"], row["window_start"]
        if row["requests"] >= MIN_REQUESTS:
            if row["error_rate"] >= ERROR_RATE:
                alert("error_rate", *place, row["error_rate"], ERROR_RATE)
            if row["service_p95_us"] is not None and row["service_p95_us"] >= SLOW_US:
                alert("slow", *place, row["service_p95_us"], SLOW_US)
        if row["expired"] > 0 and row["replied"] == 0 and row["failed"] == 0:
            alert("silent", *place, row["expired"], 1)
        downs[place[0], place[1], row["window_start"] // MINUTE * MINUTE] += row["workers_down"]
    for (broker, service, minute), count in downs.items():
        if count >= FLAPS:
            alert("flapping", broker, service, minute, count, FLAPS)
    return made


_MAKERS: Final[dict[str, Callable[[Iterable[Row]], Rows]]] = {
    "traces": traces,
    "service_metrics": service_metrics,
    "calls": calls,
    "workers": workers,
    "last_values": last_values,
    "topics": topics,
    "logs": logs,
    "dead_letters": dead_letters,
}


def all_tables(rows: Rows) -> dict[str, Rows]:
    """All nine tables of a journal with these rows."""
    made = {name: make(rows) for name, make in _MAKERS.items()}
    made["alerts"] = alerts(made["service_metrics"])
    return made
