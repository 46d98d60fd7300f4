"""Questions to a running broker, and their answers as rows of a table.

A table is a dict of columns: the heading (numbers begin with `>`) and what makes a cell of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Cell = Callable[[Row], object]
NOTHING = "–"
# Orders that may mean a hundred thousand jobs, each of them written to disk before the answer comes.
PATIENCE_S = {"job_retry": 120.0, "dead_drop": 120.0}


def ask(admin: str | None, data_dir: Path | None, do: str, **question: Any) -> Any:
    """What the broker answers; a person at a terminal is told at once if there is none."""
    from polybus.cli.find import admin_endpoint
    from polybus.client.admin import TIMEOUT_S, AdminClient

    with AdminClient(admin_endpoint(admin, data_dir), PATIENCE_S.get(do, TIMEOUT_S)) as client:
        return client.ask(do, **question)


def show(rows: list[Row], as_json: bool, columns: dict[str, Cell], nothing: str) -> None:
    """The rows as a table, as JSON, or the sentence that says why there are none."""
    from polybus.cli.output import print_json, print_table, say

    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(columns), ([cell(row) for cell in columns.values()] for row in rows))
    else:
        say(nothing)


def field(name: str) -> Cell:
    """The value itself; what is not there is a dash."""

    def cell(row: Row) -> object:
        value = row[name]
        return NOTHING if value is None or value == "" else value

    return cell


def span(name: str) -> Cell:
    from polybus.cli.output import span as write

    return lambda row: write(row[name])


def percent(name: str) -> Cell:
    return lambda row: NOTHING if row[name] is None else f"{row[name] * 100:.0f}%"


def moment(name: str) -> Cell:
    from polybus.cli.output import moment as write

    return lambda row: write(row[name])


def body(name: str, limit: int = 60) -> Cell:
    """The beginning of a body that came as a list of frames in base64."""
    from polybus.cli.output import one_line

    def cell(row: Row) -> object:
        return " | ".join(one_line(frame, limit) for frame in frames(row[name]))

    return cell


def frames(encoded: list[str] | None) -> list[bytes]:
    import base64

    return [base64.b64decode(frame) for frame in encoded or ()]
