"""The pipeline's tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid

from polybus.cli.output import print_json, printable
from polybus.spark.schema import TABLES, Table
from polybus.spark.tables import read_table

# Long lists are for programs.
UNSHOWN: Final = frozenset({"wait_buckets", "service_buckets", "date", "life", "seq", "headers"})
# What fits on a terminal; --wide shows the rest.
BRIEF: Final = {
    "traces": (
        "finished_at",
        "service",
        "client_dialect",
        "worker_dialect",
        "wait_us",
        "service_us",
        "outcome",
    ),
    "service_metrics": (
        *("window_start", "service", "requests", "failed", "expired"),
        *("wait_p95_us", "service_p50_us", "service_p99_us"),
    ),
    "calls": ("date", "client", "client_dialect", "service", "requests", "errors"),
    "workers": ("worker", "worker_dialect", "service", "sessions", "requests", "busy", "last_seen_at"),
    "last_values": ("topic", "at", "size", "body"),
    "topics": ("window_start", "topic", "messages", "bytes"),
    "logs": ("at", "level", "node", "message"),
    "dead_letters": ("at", "token", "service", "attempts", "reason", "detail"),
    "alerts": ("window_start", "rule", "subject", "value", "threshold"),
}
# Wider than any table, for those who read it with other programs: `less -S`, `grep`, a file.
UNLIMITED: Final = 100_000
# What tells how new a row is, the first that a table has.
TIMES: Final = ("finished_at", "window_start", "at", "last_at", "last_seen_at")


def print_tables(place: str, json_: bool, console: Console | None = None) -> None:
    """What tables there are, and how large they are."""

    facts = []
    for name, table in TABLES.items():
        rows = read_table(place, name, [_time_of(table)])
        newest = _newest(rows)
        facts.append({"table": name, "rows": rows.num_rows, "newest": newest})
    if json_:
        print_json([{**fact, "newest": fact["newest"] and fact["newest"].isoformat()} for fact in facts])
        return
    grid = Grid("table", "rows", "newest", title="Tables", box=box.ROUNDED, title_style="bold")
    grid.columns[1].justify = "right"
    for fact in facts:
        grid.add_row(fact["table"], f"{fact['rows']:,}", _text(fact["newest"]))
    (console or _console()).print(grid)


def print_table(
    place: str, name: str, limit: int, json_: bool, console: Console | None = None, wide: bool = False
) -> None:
    """The newest rows of a table."""
    # The name is looked at first: whoever asks for a table that there is not learns which there are.
    rows = read_table(place, name)
    table = TABLES[name]
    order = [(_time_of(table), "descending"), *((key, "ascending") for key in table.key)]
    newest = rows.sort_by([pair for pair in order if rows.schema.field(pair[0]).type != pa.null()]).slice(
        0, limit
    )
    if json_:
        print_json([{key: _plain(value) for key, value in row.items()} for row in newest.to_pylist()])
        return
    columns = [column for column in table.schema.names if column not in UNSHOWN] if wide else BRIEF[name]
    count = "1 row" if rows.num_rows == 1 else f"{rows.num_rows:,} rows"
    title = f"{name}: {count}" + (f", the newest {limit}" if rows.num_rows > limit else "")
    grid = Grid(title=title, box=box.ROUNDED, title_style="bold")
    for column in columns:
        kind = table.schema.field(column).type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        # In words, which a narrow terminal can put below each other.
        grid.add_column(column.replace("_", " "), justify="right" if is_number else "left")
    shown = [[row[column] for column in columns] for row in newest.to_pylist()]
    days = {value.date() for row in shown for value in row if isinstance(value, datetime)}
    if len(days) == 1:
        # The day that all rows share is said once.
        grid.title = f"{title} ({days.pop()})"
        shown = [[_clock(value) if isinstance(value, datetime) else value for value in row] for row in shown]
    for row in shown:
        grid.add_row(*map(_text, row))
    out = console or _console()
    if Measurement.get(out, out.options.update(width=UNLIMITED), grid).minimum > out.width:
        # Nothing is cut: what does not fit side by side stands below each other.
        out.print(grid.title, style="bold", highlight=False)
        for number, row in enumerate(shown, 1):
            out.print(_record(number, columns, row))
    else:
        out.print(grid)


def _console() -> Console:
    """A terminal is as wide as it is; whatever else reads this gets lines as long as they are."""
    return Console(width=None if sys.stdout.isatty() else UNLIMITED)


def _record(number: int, columns: Sequence[str], row: Sequence[Any]) -> Grid:
    """One row, a line for each column."""
    record = Grid(box=None, show_header=False, title=f"row {number}", title_justify="left", pad_edge=False)
    record.add_column(style="dim", no_wrap=True)
    record.add_column(overflow="fold")
    for column, value in zip(columns, row, strict=True):
        record.add_row(column.replace("_", " "), _text(value))
    return record


def _time_of(table: Table) -> str:
    return next(name for name in TIMES if name in table.schema.names)


def _newest(rows: pa.Table) -> datetime | None:
    newest: datetime | None = pc.max(rows.column(0)).as_py() if rows.num_rows else None
    return newest


def _clock(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S")


def _text(value: Any) -> str:
    make: Callable[[Any], str] = _TEXTS.get(type(value), str)
    return make(value)


def _frames(frames: list[Any]) -> str:
    return " ".join(printable(bytes(frame).decode("utf-8", "backslashreplace"))[:60] for frame in frames)


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _: "-",
    str: printable,
    int: lambda value: f"{value:,}",
    float: lambda value: f"{value:.3g}",
    datetime: lambda value: value.strftime("%Y-%m-%d %H:%M:%S"),
    list: _frames,
}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
