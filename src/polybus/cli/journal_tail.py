"""Records of the journal as lines, and which of them are wanted."""

from __future__ import annotations

import base64
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from polybus.cli import tap
from polybus.cli.output import print_json, say
from polybus.errors import JournalMoved
from polybus.journal.telling import json_row

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from polybus.journal.following import Follower


def glob_matches(column: str, pattern: str) -> pc.Expression:
    """Whether a column fits a pattern of the shell."""
    import pyarrow.compute as pc

    if not re.search(r"[*?\[]", pattern):
        return pc.field(column) == pattern
    parts = re.split(r"([*?])", pattern)
    signs = {"*": ".*", "?": "."}
    regular = "".join(signs.get(part) or re.escape(part) for part in parts)
    return pc.match_substring_regex(pc.field(column), f"^{regular}$")


def wanted_rows(service: str, words: list[str], beats: bool) -> pc.Expression | None:
    import pyarrow.compute as pc

    wanted = glob_matches("service", service) if service else None
    if words:
        named = pc.field("what").isin(words)
    elif beats:
        return wanted
    else:
        named = pc.field("what") != "beat"
    return named if wanted is None else wanted & named


class Printer:
    """One record a line, for people or programs."""

    def __init__(self, as_json: bool, bodies: bool) -> None:
        self._as_json = as_json
        self._bodies = bodies
        self._console = Console(soft_wrap=True, highlight=False)
        self._date = time.strftime("%Y-%m-%d")
        self.count = 0

    def print(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.count += 1
            if self._as_json:
                print_json(json_row(row, self._bodies))
                continue
            record = record_of(row, self._bodies)
            date = time.strftime("%Y-%m-%d", time.localtime(record["at"]))
            if date != self._date:
                self._date = date
                self._console.print(Text(f"— {date} —", style="dim"))
            self._console.print(tap.line(record))
        sys.stdout.flush()

    def remark(self, text: str) -> None:
        say(text)


def record_of(row: dict[str, Any], bodies: bool) -> dict[str, Any]:
    """A row in the form that a tap has."""
    at: datetime = row["at"]
    record = {name: row[name] or "" for name in ("what", "service", "token", "reason", "detail")}
    for role in ("client", "worker"):
        record[role] = row[role] or ""
        record[f"{role}_dialect"] = row[f"{role}_dialect"] or ""
    record |= {
        "at": at.timestamp(),
        "attempt": row["attempt"] or 0,
        "bytes": row["body_size"] or row["size"] or 0,
    }
    if row["accepted_at"] is not None:
        record["age_s"] = (at - row["accepted_at"]).total_seconds()
    if bodies and row["body"] is not None:
        record["body_base64"] = [base64.b64encode(frame).decode() for frame in row["body"]]
    return record


def newest(
    place: Path,
    wanted: pc.Expression | None,
    since: datetime | None,
    until: datetime | None,
    count: int,
    printer: Printer,
) -> Follower:
    """Print the newest rows; what goes on from there."""
    from polybus.journal.following import Follower

    while True:
        follower = Follower(place, wanted, since, until, printer.remark)
        try:
            rows = follower.newest(count)
        except JournalMoved:
            continue
        printer.print(rows)
        return follower


def following(follower: Follower, until: datetime | None, printer: Printer, look_s: float) -> None:
    """Print what comes, until Ctrl-C or until a time."""
    while until is None or datetime.now(until.tzinfo) < until:
        try:
            printer.print(follower.more())
        except JournalMoved:
            # Compacted in the middle of it; the next look finds it all.
            continue
        time.sleep(look_s)
