"""What commands print: tables for people, one JSON value a line for programs.

Names and bodies come from the network: what is not printable is escaped before it reaches a terminal,
and nothing of it is taken for markup.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

# What of a body fits into a line.
LINE_CHARS = 200


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


def body_fields(body: bytes) -> dict[str, str]:
    """A body in JSON: text if it is text."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def printable(text: str) -> str:
    """The same text on one line, without anything a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(body: bytes, limit: int = LINE_CHARS) -> str:
    text = printable(body.decode(errors="backslashreplace"))
    return text if len(text) <= limit else f"{text[:limit]}… ({len(body)} bytes)"


def write_body(body: bytes, raw: bool) -> None:
    """A body as it is; with a line end unless it has one or the reader wants every byte."""
    sys.stdout.buffer.write(body if raw or body.endswith(b"\n") else body + b"\n")
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    """A remark for people; programs read standard output."""
    print(text, file=sys.stderr, flush=True)


def span(seconds: float | None) -> str:
    """A time span in the unit that fits."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def moment(at: float | None) -> str:
    """A time of the wall clock, as it is here."""
    if not at:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; columns whose name begins with `>` are numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        if column.startswith(">"):
            table.add_column(column[1:], justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
