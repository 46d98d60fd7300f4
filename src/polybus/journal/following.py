"""The newest rows of a journal, and then what comes.

What is there is read from its end, so that a long journal takes no longer than a short one.  Afterwards the
highest number of each life that was seen is remembered; what is beyond it is new, wherever it is by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from polybus.errors import JournalDamaged
from polybus.journal.archiver import OPEN_LOGS, PLAN, STATE
from polybus.journal.batches import hole_before
from polybus.journal.columns import SCHEMA, to_table
from polybus.journal.log import FINISHED, OPEN, Batch, log_files, parse_head, split_batches
from polybus.journal.reader import (
    OpenedLog,
    Snapshot,
    Told,
    is_in_range,
    read_logs,
    read_segment,
    within,
)


class Follower:
    """Reads a journal from its end on. `where` is for all that it gives."""

    def __init__(
        self,
        journal: Path,
        where: pc.Expression | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        damage: Told | None = None,
    ) -> None:
        self._journal = journal
        self._since, self._until = since, until
        self._wanted = within(since, until, where)
        self._told = damage or logging.getLogger(__name__).warning
        # The highest number of each life that was given, or passed over.
        self._seen: dict[str, int] = {}
        self._segments: set[Path] = set()
        self._looked: Any = None

    def newest(self, count: int) -> list[dict[str, Any]]:
        """The newest so many rows; `more` goes on from there."""
        tables: list[pa.Table] = []
        found = 0
        self._looked = self._look()
        with Snapshot(self._journal) as snapshot:
            self._seen = {life: number - 1 for life, number in snapshot.next.items()}
            self._segments = set(snapshot.segments)
            for _, table in read_logs(snapshot, self._told):
                _see(table, self._seen)
                tables.append(self._fitting(table))
                found += tables[-1].num_rows
            for path in reversed(snapshot.segments):
                if found >= count:
                    break
                if is_in_range(path, self._since, self._until):
                    for table in read_segment(path, self._wanted, None, self._told):
                        tables.append(table)
                        found += table.num_rows
        return _in_order(tables, count) if count else []

    def more(self) -> list[dict[str, Any]]:
        """What has come since then."""
        looked = self._look()
        if looked == self._looked:
            return []
        seen, segments = dict(self._seen), set(self._segments)
        tables: list[pa.Table] = []
        with Snapshot(self._journal) as snapshot:
            for path in snapshot.segments:
                if path not in segments:
                    segments.add(path)
                    before = dict(seen)
                    for table in read_segment(path, None, None, self._told):
                        tables.append(_beyond(table, before))
                        _see(table, seen)
            for log in snapshot.logs:
                for table in _news(log, seen):
                    tables.append(table)
                    _see(table, seen)
        # Only now: if files were moved in the middle of it, all of it is read again.
        self._looked, self._seen, self._segments = looked, seen, segments
        return _in_order([self._fitting(table) for table in tables])

    def _fitting(self, table: pa.Table) -> pa.Table:
        return table if self._wanted is None else table.filter(self._wanted)

    def _look(self) -> Any:
        """Something that is another one when there may be news."""
        folder = self._journal / OPEN_LOGS
        files = [path for suffix in (OPEN, FINISHED) for path in log_files(folder, suffix)]
        return [(path.name, _stamp(path)) for path in [*files, self._journal / PLAN, self._journal / STATE]]


def _news(log: OpenedLog, seen: dict[str, int]) -> Iterator[pa.Table]:
    """The batches of a log that have something new; the others are not even made into rows."""
    data = log.read()
    try:
        head, begin = parse_head(data, str(log.path))
        for found in split_batches(data, begin):
            if not isinstance(found, Batch):
                continue
            due = seen.get(head.life, 0) + 1
            if found.first > due:
                yield hole_before(head, found, found.first - due)
            if found.first >= due:
                yield to_table(head, found.first, found.count, found.payload)
    except JournalDamaged:
        # It is being begun; if it really is damaged, `verify` says so.
        return


def _beyond(table: pa.Table, before: dict[str, int]) -> pa.Table:
    """The rows with numbers beyond those that were seen."""
    parts = [table.slice(0, 0)]
    for life in pc.unique(table["life"]).to_pylist():
        of_life = pc.equal(table["life"], life)
        parts.append(table.filter(pc.and_(of_life, pc.greater(table["seq"], before.get(life, 0)))))
    return pa.concat_tables(parts)


def _see(table: pa.Table, seen: dict[str, int]) -> None:
    highest = table.group_by("life").aggregate([("seq", "max")])
    for life, number in zip(highest["life"].to_pylist(), highest["seq_max"].to_pylist(), strict=True):
        seen[life] = max(seen.get(life, 0), number)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _in_order(tables: list[pa.Table], most: int = 0) -> list[dict[str, Any]]:
    """The rows by time, at most the last so many of them."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables])
    order = pc.sort_indices(table, [("at", "ascending"), ("life", "ascending"), ("seq", "ascending")])
    rows: list[dict[str, Any]] = table.take(order[-most:] if most else order).to_pylist()
    return rows
