"""What is let go: whole hours, the oldest first, when they are too old or when there is too much.

Those who read the journal as it grows say how far they are (`readers/NAME.json`): nothing that one of them
has not read is removed from the landing (`segments/`), and nothing at all while somebody is in the middle of
a pass over everything (`readers/NAME.pin`).  Readers and pins that were not touched for a week no longer
count.

Before anything is removed it is written down from when on everything is still there (`Retained.since`), so a
reader can tell what was let go from what is missing.  Of an hour the landing goes first: a row that is in
both places is never there only in the one that does not count.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from polybus.journal.archiver import OPEN_LOGS, SEGMENTS, read_note, write_note
from polybus.journal.log import DAMAGED

COMPACTED: Final = "compacted"
READERS: Final = "readers"
RETAINED: Final = "retained.json"
STALE_S: Final = 7 * 86_400.0
DAY_S: Final = 86_400.0
_HOUR: Final = re.compile(r"date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})$")
_RANGE: Final = re.compile(r"(\d+)-(\d+)-[0-9a-f]+\.parquet")
_FIRST: Final = re.compile(r"(\d+)-")


class Reader(Struct, frozen=True):
    """Somebody who reads segments as they land: the highest number that was read, and when that was."""

    name: str
    upto: int
    at: float


class Readers:
    """Who reads the journal, as of now."""

    def __init__(self, journal: Path, now: float) -> None:
        self.active: list[Reader] = []
        self.pins: list[str] = []
        self.stale: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            for path in sorted((journal / READERS).iterdir()):
                self._look_at(path, now)

    def _look_at(self, path: Path, now: float) -> None:
        if path.name.startswith(".") or path.suffix not in (".json", ".pin"):
            return
        with contextlib.suppress(FileNotFoundError):
            touched = path.stat().st_mtime
            if path.suffix == ".pin":
                (self.pins if now - touched < STALE_S else self.stale).append(path.name)
                return
            try:
                reader = msgspec.json.decode(path.read_bytes(), type=Reader)
            except msgspec.DecodeError:
                # Nobody knows how far it is: it may have read nothing.
                reader = Reader(path.stem, 0, touched)
            if now - reader.at < STALE_S:
                self.active.append(reader)
            else:
                self.stale.append(path.name)

    def holding(self, number: int) -> str:
        """Who still needs the segment of this number in the landing; empty if nobody does."""
        if self.pins:
            return f"{self.pins[0]} is there"
        late = next((reader for reader in self.active if reader.upto < number), None)
        return "" if late is None else f"{late.name} has read up to {late.upto} only"


class Retained(Struct):
    """What was let go so far."""

    # Hours from this one on are there (`2026-11-16T07`); empty if none was removed yet.
    since: str = ""
    hours: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0


class Removal(Struct, frozen=True):
    """What one turn let go; `held` tells why not more."""

    hours: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0
    held: str = ""


class Hour(Struct):
    """The files of one hour."""

    begin: datetime
    landed: list[Path]
    compacted: list[Path]

    @property
    def paths(self) -> list[Path]:
        return [*self.landed, *self.compacted]


def hour_folders(folder: Path) -> Iterator[tuple[datetime, Path]]:
    """The folders of hours below a folder: when each begins."""
    for path in folder.glob("date=*/hour=*"):
        found = _HOUR.search(path.as_posix())
        if found:
            yield datetime.fromisoformat(f"{found[1]}T{found[2]}:00:00+00:00"), path


def first_number(path: PurePath) -> int:
    """The number of a segment, or the first of those that were compacted into it; 0 if it is neither."""
    found = _FIRST.match(path.name)
    return int(found[1]) if found else 0


def ranges_of(paths: Iterable[PurePath]) -> list[tuple[int, int]]:
    """The numbers of the segments that were compacted into these files."""
    found = filter(None, (_RANGE.fullmatch(path.name) for path in paths))
    return [(int(match[1]), int(match[2])) for match in found]


def is_within(number: int, ranges: list[tuple[int, int]]) -> bool:
    return any(first <= number <= last for first, last in ranges)


class Retention:
    """Lets go of what is too much in a journal. The archiver's own process does this."""

    def __init__(
        self, journal: Path, keep_days: float, keep_bytes: int, wall: Callable[[], float] = time.time
    ) -> None:
        self._journal = journal
        self._keep_days = keep_days
        self._keep_bytes = keep_bytes
        self._wall = wall
        self._file = journal / RETAINED
        self.retained = read_note(self._file, Retained) or Retained()

    def turn(self) -> Removal:
        """Let go of all hours that are too old, and of the oldest until the rest is small enough."""
        now = self._wall()
        readers = Readers(self._journal, now)
        hours = self._hours()
        total = self._sizes(path for hour in hours for path in hour.paths) + self._log_bytes(now)
        before = datetime.fromtimestamp(now, UTC) - timedelta(days=self._keep_days)
        current = datetime.fromtimestamp(now, UTC) - timedelta(hours=1)
        gone: list[str] = []
        files = rows = size = 0
        held = ""
        for hour in hours:
            is_old = hour.begin + timedelta(hours=1) <= before
            if hour.begin > current or not (is_old or total > self._keep_bytes):
                # The rest is younger, and the hour that has not ended stays in any case.
                break
            held = next(filter(None, (readers.holding(first_number(path)) for path in hour.landed)), "")
            if held:
                break
            freed = self._sizes(hour.paths)
            ranges = ranges_of(hour.compacted)
            landed = [path for path in hour.landed if not is_within(first_number(path), ranges)]
            rows += sum(map(rows_of, [*hour.compacted, *landed]))
            self._remove(hour)
            gone.append(f"{hour.begin:%Y-%m-%dT%H}")
            files += len(hour.paths)
            size += freed
            total -= freed
        if gone:
            kept = self.retained
            kept.hours += len(gone)
            kept.files += files
            kept.rows += rows
            kept.bytes += size
            write_note(self._file, kept)
        return Removal(tuple(gone), files, rows, size, held)

    def _hours(self) -> list[Hour]:
        found: dict[datetime, Hour] = {}
        for name in (SEGMENTS, COMPACTED):
            for begin, folder in hour_folders(self._journal / name):
                hour = found.setdefault(begin, Hour(begin, [], []))
                # Hidden files, which are of a turn that was cut short, go with it.
                (hour.landed if name == SEGMENTS else hour.compacted).extend(sorted(folder.iterdir()))
        return [hour for _, hour in sorted(found.items()) if hour.paths]

    def _remove(self, hour: Hour) -> None:
        since = f"{hour.begin + timedelta(hours=1):%Y-%m-%dT%H}"
        if since > self.retained.since:
            self.retained.since = since
            write_note(self._file, self.retained)
        for path in hour.paths:
            path.unlink(missing_ok=True)
        for name in (SEGMENTS, COMPACTED):
            folder = self._journal / name / f"date={hour.begin:%Y-%m-%d}" / f"hour={hour.begin:%H}"
            for empty in (folder, folder.parent):
                with contextlib.suppress(OSError):
                    empty.rmdir()

    def _log_bytes(self, now: float) -> int:
        """What the logs take; damaged ones that are too old are let go."""
        total = 0
        with contextlib.suppress(FileNotFoundError):
            for path in (self._journal / OPEN_LOGS).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    facts = path.stat()
                    if path.suffix == DAMAGED and now - facts.st_mtime > self._keep_days * DAY_S:
                        path.unlink()
                    else:
                        total += facts.st_size
        return total

    @staticmethod
    def _sizes(paths: Iterable[Path]) -> int:
        total = 0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total


def rows_of(path: Path) -> int:
    """How many rows a segment has; 0 if it cannot be read."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return 0
