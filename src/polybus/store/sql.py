"""The SQL of the store, read from `schema/`: migrations in order, and queries by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

_MARK: Final = "-- name: "


@cache
def migrations() -> tuple[str, ...]:
    """Forward only; the first makes an empty store. A store's version is how many of them it has had."""
    folder = files("polybus.store") / "schema"
    found = sorted(item.name for item in folder.iterdir() if item.name[:4].isdigit())
    return tuple((folder / name).read_text(encoding="utf-8") for name in found)


@cache
def _queries() -> dict[str, str]:
    text = (files("polybus.store") / "schema" / "queries.sql").read_text(encoding="utf-8")
    named = {}
    for part in text.split(_MARK)[1:]:
        name, _, body = part.partition("\n")
        named[name.strip()] = body.strip()
    return named


@cache
def query(name: str, table: str = "", rows: int = 0) -> str:
    """A query for one table, with places for so many rows."""
    return _queries()[name].format(
        table=table, rows=", ".join(["(?, ?, ?)"] * rows), numbers=", ".join(["?"] * rows)
    )


def version() -> int:
    return len(migrations())
