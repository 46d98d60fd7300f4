"""The journal as rows, each of them exactly once, while others write and archive it.

Where a row is: in a log that is not archived yet, in a segment as it was archived, or in a file that
segments were compacted into.  It may be in two of them for a moment.  Nobody is locked out: what the archiver
has written down about its work (`Plan`, `State`) tells which of two copies counts, and is read again after
the files were listed; if it has changed, they are listed anew.

Logs are opened while they are listed, so they can be read even if they are archived meanwhile.  Segments that
disappear while they are read (by compaction or retention) raise `JournalMoved`: begin again.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from polybus.errors import JournalDamaged, JournalMissing, JournalMoved
from polybus.journal import archiver
from polybus.journal.batches import hole_before, tables_in
from polybus.journal.columns import SCHEMA, STAMP
from polybus.journal.log import FINISHED, OPEN, Damage, log_files, parse_head, split_batches
from polybus.journal.segment import in_order, sections

COMPACTED: Final = "compacted"
FOLDER: Final = "journal"
# Logs that are held open; with more of them nobody archives, and none disappears.
HELD: Final = 400
# How often files are listed anew because the archiver was at work.
TRIES: Final = 50
_HOUR: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})$")
_LANDED: Final = re.compile(r"(\d+)-[0-9a-f]+\.parquet")
_MERGED: Final = re.compile(r"(\d+)-(\d+)-[0-9a-f]+\.parquet")
_LOOK: Final = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
_CHECKED: Final = ds.ParquetFileFormat(default_fragment_scan_options=_LOOK)
# What is needed to put rows in order.
_ORDER: Final = ("life", "seq", "at")
Told = Callable[[str], None]


def find_journal(place: Path) -> Path:
    """The journal in a folder: a data directory, or the journal itself."""
    for folder in (place / FOLDER, place):
        if any((folder / name).is_dir() for name in (archiver.OPEN_LOGS, archiver.SEGMENTS, COMPACTED)):
            return folder
    raise JournalMissing(
        f"there is no journal in {place}; name the data directory of a broker whose journal.enabled is true"
    )


# -- segments -------------------------------------------------------------------------------------


def segment_files(journal: Path) -> list[Path]:
    """The files that together hold every archived row exactly once, by hour and number."""
    # In this order: a segment is removed only when the file that it was compacted into is there.
    landed = _by_hour(journal / archiver.SEGMENTS, _LANDED)
    merged = _by_hour(journal / COMPACTED, _MERGED)
    chosen: list[tuple[tuple[str, str], int, Path]] = []
    for hour, found in merged.items():
        chosen += [(hour, first, path) for first, _, path in found]
    for hour, found in landed.items():
        taken = [(first, last) for first, last, _ in merged.get(hour, ())]
        chosen += [
            (hour, number, path)
            for number, _, path in found
            if not any(first <= number <= last for first, last in taken)
        ]
    return [path for _, _, path in sorted(chosen)]


def _by_hour(folder: Path, names: re.Pattern[str]) -> dict[tuple[str, str], list[tuple[int, int, Path]]]:
    """The files of a folder by their hour: first number, last number, path."""
    found: dict[tuple[str, str], list[tuple[int, int, Path]]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in folder.glob("date=*/hour=*/*.parquet"):
            hour, name = _HOUR.search(path.parent.as_posix()), names.fullmatch(path.name)
            if hour and name:
                numbers = [int(number) for number in name.groups()]
                found.setdefault((hour[1], hour[2]), []).append((numbers[0], numbers[-1], path))
    return found


def hour_of(path: Path) -> datetime:
    """The beginning of the hour whose rows a segment holds."""
    found = _HOUR.search(path.parent.as_posix())
    assert found is not None, path
    return datetime.fromisoformat(f"{found[1]}T{found[2]}:00:00+00:00")


# -- everything at one moment ---------------------------------------------------------------------


class OpenedLog:
    """A log that is not archived; it can be read until it is closed."""

    def __init__(self, path: Path, file: BinaryIO | None) -> None:
        self.path = path
        self._file = file

    def read(self) -> bytes:
        if self._file is not None:
            self._file.seek(0)
            return self._file.read()
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            raise JournalMoved(self.path) from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Snapshot:
    """The files of a journal as they were at one moment."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        for _ in range(TRIES):
            notes = _notes(journal)
            # First, because a note that is damaged must leave no log open.
            plan, state = _parsed(journal, notes)
            logs = self._open_logs()
            segments = segment_files(journal)
            if logs is not None and notes == _notes(journal):
                break
            _close(logs or [])
        else:
            raise JournalMoved(journal)
        # The number that the next record of each life should have.
        self.next = dict(state.next)
        if plan is not None and plan.is_written:
            self.next = dict(plan.next)
            _close([log for log in logs if log.path.name in plan.logs])
            logs = [log for log in logs if log.path.name not in plan.logs]
        elif plan is not None:
            # Some of these may be there; the logs have it all.
            segments = [path for path in segments if path.stem != plan.name]
        self.logs = logs
        self.segments = segments

    def _open_logs(self) -> list[OpenedLog] | None:
        """None if one of them has gone meanwhile."""
        folder = self.journal / archiver.OPEN_LOGS
        # In this order: the one that is being written may be finished any time.
        names = {path.stem: path for suffix in (OPEN, FINISHED) for path in log_files(folder, suffix)}
        logs: list[OpenedLog] = []
        for number, (_, path) in enumerate(sorted(names.items())):
            try:
                file = path.open("rb") if number < HELD else None
            except FileNotFoundError:
                _close(logs)
                return None
            logs.append(OpenedLog(path, file))
        return logs

    def close(self) -> None:
        _close(self.logs)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(logs: Sequence[OpenedLog]) -> None:
    for log in logs:
        log.close()


def _notes(journal: Path) -> tuple[bytes, ...]:
    """What the archiver has written down, to see whether it did something."""
    notes = []
    for name in (archiver.PLAN, archiver.STATE):
        try:
            notes.append((journal / name).read_bytes())
        except FileNotFoundError:
            notes.append(b"")
    return tuple(notes)


def _parsed(journal: Path, notes: tuple[bytes, ...]) -> tuple[archiver.Plan | None, archiver.State]:
    plan, state = notes
    return (
        archiver.parse_note(journal / archiver.PLAN, plan, archiver.Plan) if plan else None,
        archiver.parse_note(journal / archiver.STATE, state, archiver.State) if state else archiver.State(),
    )


# -- rows -----------------------------------------------------------------------------------------


def read_rows(
    journal: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    where: pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    damage: Told | None = None,
    is_rare: bool = False,
) -> Iterator[pa.Table]:
    """The rows from `since` on and before `until` for which `where` holds, some at a time, roughly in the
    order of time. What cannot be read is told to `damage` (else logged), and the rest goes on.

    If what is looked for `is_rare`, it is quicker to look first which segments have any of it."""
    told = damage or logging.getLogger(__name__).warning
    with Snapshot(journal) as snapshot:
        wanted = within(since, until, where)
        for path in snapshot.segments:
            if is_in_range(path, since, until):
                yield from read_segment(path, wanted, columns, told, is_rare)
        for _, table in read_logs(snapshot, told):
            part = table if wanted is None else table.filter(wanted)
            if part.num_rows:
                yield part if columns is None else part.select(list(columns))


def is_in_range(path: Path, since: datetime | None, until: datetime | None) -> bool:
    begin = hour_of(path)
    return (until is None or begin < until) and (since is None or begin + timedelta(hours=1) > since)


def within(
    since: datetime | None, until: datetime | None, where: pc.Expression | None
) -> pc.Expression | None:
    wanted = where
    for limit, holds in ((since, pc.Expression.__ge__), (until, pc.Expression.__lt__)):
        if limit is not None:
            part = holds(pc.field("at"), pa.scalar(limit.astimezone(UTC), STAMP))
            wanted = part if wanted is None else wanted & part
    return wanted


def read_segment(
    path: Path,
    where: pc.Expression | None,
    columns: Sequence[str] | None,
    told: Told,
    is_rare: bool = False,
) -> Iterator[pa.Table]:
    """The rows of a segment in the order of their numbers, with every checksum looked at. What is damaged
    costs the rows of its section and no others."""
    wanted = None if columns is None else list(dict.fromkeys([*columns, *_ORDER]))
    try:
        data = ds.dataset(path, schema=SCHEMA, format=_CHECKED)
        (whole,) = data.get_fragments()
        metadata = whole.metadata
    except (OSError, pa.ArrowException) as error:
        _tell(path, "the segment", error, told)
        return
    if is_rare and _is_without(data, where):
        return
    for groups in sections(metadata):
        part = whole.subset(row_group_ids=list(groups), schema=SCHEMA)
        try:
            found = part.to_table(SCHEMA, filter=where, columns=wanted, fragment_scan_options=_LOOK)
        except (OSError, pa.ArrowException) as error:
            count = sum(metadata.row_group(group).num_rows for group in groups)
            _tell(path, f"{count} of the segment's {metadata.num_rows} rows", error, told)
            continue
        if found.num_rows:
            yield in_order(found) if columns is None else in_order(found).select(list(columns))


def _is_without(data: ds.Dataset, where: pc.Expression | None) -> bool:
    """Whether no row of a segment is wanted; False if that cannot be told, because one of them is damaged."""
    try:
        return not data.count_rows(filter=where)
    except (OSError, pa.ArrowException):
        return False


def _tell(path: Path, what: str, error: Exception, told: Told) -> None:
    """Tell what of a segment cannot be read, unless the segment was moved away meanwhile."""
    if not path.exists():
        raise JournalMoved(path) from None
    told(f"{path}: {what} cannot be read: {str(error).splitlines()[0]}")


def read_logs(
    snapshot: Snapshot, told: Told, is_running: bool = True
) -> Iterator[tuple[OpenedLog, pa.Table]]:
    """The rows of the logs that are not archived yet, with a row for each hole, as the archiver does it.

    If the broker runs, the end of the log that it is writing may not be there yet."""
    expected = dict(snapshot.next)
    for log in snapshot.logs:
        data = log.read()
        try:
            head, begin = parse_head(data, str(log.path))
        except JournalDamaged as error:
            # One that was begun a moment ago has no head yet.
            if data and not (is_running and log.path.suffix == OPEN):
                told(str(error))
            continue
        for found in tables_in(head, split_batches(data, begin)):
            if isinstance(found, Damage):
                is_end = found.offset + found.length == len(data)
                if not (is_running and log.path.suffix == OPEN and is_end):
                    told(f"{log.path}: {found.what} at byte {found.offset}: {found.length} bytes")
                continue
            batch, table = found
            due = expected.get(head.life, 1)
            if batch.first + batch.count <= due:
                continue
            if batch.first > due:
                yield log, hole_before(head, batch, batch.first - due)
                expected[head.life] = batch.first
            if isinstance(table, JournalDamaged):
                told(f"{log.path}: at byte {batch.offset}: {table}")
                continue
            expected[head.life] = batch.first + batch.count
            yield log, table
