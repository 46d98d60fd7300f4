"""The pipeline's tables in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from polybus.cli.output import print_json, printable
from polybus.spark.schema import TABLES, Table
from polybus.spark.tables import read_table

# Long lists are for programs.
UNSHOWN: Final = frozenset({"wait_buckets", "service_buckets", "date", "life", "seq", "headers"})
# What tells how new a row is, the first that a table has.
TIMES: Final = ("finished_at", "window_start", "at", "last_at", "last_seen_at")


def print_tables(place: str, json_: bool) -> None:
    """What tables there are, and how large they are."""
    from rich.console import Console
    from rich.table import Table as Grid

    facts = []
    for name, table in TABLES.items():
        rows = read_table(place, name, [_time_of(table)])
        newest = _newest(rows)
        facts.append({"table": name, "rows": rows.num_rows, "newest": newest})
    if json_:
        print_json([{**fact, "newest": fact["newest"] and fact["newest"].isoformat()} for fact in facts])
        return
    grid = Grid("table", "rows", "newest", title=f"Tables in {place}")
    grid.columns[1].justify = "right"
    for fact in facts:
        grid.add_row(fact["table"], f"{fact['rows']:,}", _text(fact["newest"]))
    Console().print(grid)


def print_table(place: str, name: str, limit: int, json_: bool) -> None:
    """The newest rows of a table."""
    from rich.console import Console
    from rich.table import Table as Grid

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
    columns = [column for column in table.schema.names if column not in UNSHOWN]
    grid = Grid(*columns, title=f"{name}: {rows.num_rows:,} rows")
    for row in newest.to_pylist():
        grid.add_row(*(_text(row[column]) for column in columns))
    Console().print(grid)


def _time_of(table: Table) -> str:
    return next(name for name in TIMES if name in table.schema.names)


def _newest(rows: pa.Table) -> datetime | None:
    import pyarrow.compute as pc

    newest: datetime | None = pc.max(rows.column(0)).as_py() if rows.num_rows else None
    return newest


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
