"""Small segments of hours that have ended → few large ones, exactly once.

A file in `compacted/` is called FIRST-LAST-xxxxxxxx.parquet after the numbers of the first and the last
segment that it was made of; it holds all that the landing had of that hour with these numbers, and whoever
reads takes it in place of those.  It is written under a name that readers ignore, synced, counted, and then
renamed: from that moment on it counts, and the segments do not.  So it does not matter when they are removed,
which is when everybody who reads the landing has read them (`Readers`), nor at which step this process dies:
what it was about to do is written down first (`Intent`), so that the next one finds what is half done.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from polybus.journal.archiver import SEGMENTS, read_note, write_note
from polybus.journal.columns import SCHEMA
from polybus.journal.log import make_folder, sync_folder
from polybus.journal.retention import COMPACTED, Readers, first_number, hour_folders, is_within, ranges_of
from polybus.journal.segment import SegmentWriter

INTENT: Final = "compaction.json"
# Smaller segments than this are worth joining, up to so much in one file: Spark reads files of some
# ten megabytes best, and a turn must not keep new logs waiting for long.
SMALL_BYTES: Final = 2 * 1024 * 1024
FILE_BYTES: Final = 32 * 1024 * 1024
SECTION_ROWS: Final = 100_000
_SEGMENT: Final = re.compile(r"\d+-[0-9a-f]+\.parquet")


class Intent(Struct, frozen=True):
    """This file is about to be made in `compacted/`."""

    path: str


class Compaction(Struct, frozen=True):
    """What one turn did."""

    segments: int = 0
    rows: int = 0
    path: Path | None = None
    # Segments that were removed from the landing, and why others were not.
    removed: int = 0
    held: str = ""
    damage: tuple[str, ...] = ()


class Compactor:
    """Compacts the journal in a folder. The archiver's own process does this, between its turns."""

    def __init__(
        self,
        journal: Path,
        after_s: float = 300.0,
        *,
        small_bytes: int = SMALL_BYTES,
        file_bytes: int = FILE_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._after_s = after_s
        self._small_bytes = small_bytes
        self._file_bytes = file_bytes
        self._wall = wall
        self._intent = journal / INTENT
        # Segments that cannot be read, which are told once and left alone.
        self._unreadable: set[str] = set()

    def turn(self) -> Compaction:
        """Make one file of some segments, and remove what counts no more. Nothing to do: an empty report."""
        self._take_up()
        held, removed = self._clear_landing()
        damage: list[str] = []
        for folder, group in self._groups():
            made = self._compact(folder, group, damage)
            if made is not None:
                path, rows = made
                return Compaction(len(group), rows, path, removed, held, tuple(damage))
            # One of them cannot be read: without it the groups are others.
            break
        return Compaction(removed=removed, held=held, damage=tuple(damage))

    def _take_up(self) -> None:
        """Remove what a turn that was cut short left. A file that can be seen is whole, and stays."""
        intent = read_note(self._intent, Intent)
        if intent is not None:
            path = self._journal / COMPACTED / intent.path
            path.with_name("." + path.name).unlink(missing_ok=True)
            self._intent.unlink()

    # -- the landing ------------------------------------------------------------------------------

    def _clear_landing(self) -> tuple[str, int]:
        """Remove segments that were compacted and that nobody needs any more."""
        readers: Readers | None = None
        held, removed = "", 0
        for _, folder in hour_folders(self._journal / SEGMENTS):
            ranges = self._ranges(folder)
            if not ranges:
                continue
            readers = readers or Readers(self._journal, self._wall())
            for path in segments_in(folder):
                if not is_within(first_number(path), ranges):
                    continue
                why = readers.holding(first_number(path))
                if why:
                    held = why
                else:
                    path.unlink(missing_ok=True)
                    removed += 1
        return held, removed

    def _ranges(self, folder: Path) -> list[tuple[int, int]]:
        """The numbers that were compacted of the hour of a folder of the landing."""
        place = self._journal / COMPACTED / folder.relative_to(self._journal / SEGMENTS)
        return ranges_of(place.iterdir()) if place.is_dir() else []

    # -- compacting -------------------------------------------------------------------------------

    def _groups(self) -> Iterator[tuple[Path, list[Path]]]:
        """Segments that are to become one file: small neighbours of an hour that has ended."""
        ended = datetime.fromtimestamp(self._wall() - self._after_s, UTC) - timedelta(hours=1)
        hours = sorted(hour for hour in hour_folders(self._journal / SEGMENTS) if hour[0] <= ended)
        for _, folder in hours:
            ranges = self._ranges(folder)
            group: list[Path] = []
            total = 0
            for path in segments_in(folder):
                size = path.stat().st_size
                fits = size < self._small_bytes and path.name not in self._unreadable
                if is_within(first_number(path), ranges):
                    continue
                # No file may claim numbers of a segment that is not in it.
                if not fits or total + size > self._file_bytes:
                    if len(group) > 1:
                        yield folder, group
                    group, total = [], 0
                if fits:
                    group.append(path)
                    total += size
            if len(group) > 1:
                yield folder, group

    def _compact(self, folder: Path, group: list[Path], damage: list[str]) -> tuple[Path, int] | None:
        """The file that a group has become, and its rows; None if that cannot be."""
        hour = folder.relative_to(self._journal / SEGMENTS)
        target = self._journal / COMPACTED / hour
        ends = first_number(group[0]), first_number(group[-1])
        path = target / f"{ends[0]:012d}-{ends[1]:012d}-{os.urandom(4).hex()}.parquet"
        hidden = path.with_name("." + path.name)
        write_note(self._intent, Intent(str(hour / path.name)))
        make_folder(target)
        with hidden.open("wb") as file:
            rows = self._join(group, file, damage)
            file.flush()
            os.fsync(file.fileno())
        if rows is None:
            # The next turn removes what was written so far.
            return None
        written = pq.read_metadata(hidden).num_rows
        if written != rows:
            raise OSError(f"{hidden} has {written} rows instead of {rows}; its segments stay as they are")
        hidden.rename(path)
        sync_folder(target)
        self._intent.unlink()
        return path, rows

    def _join(self, group: list[Path], file: IO[bytes], damage: list[str]) -> int | None:
        waiting: list[pa.Table] = []
        with SegmentWriter(file) as writer:
            for path in group:
                try:
                    source = pq.ParquetFile(path, page_checksum_verification=True)
                    table = source.read().cast(SCHEMA)
                except (OSError, ValueError, pa.ArrowException) as error:
                    damage.append(f"{path}: the segment cannot be read: {str(error).splitlines()[0]}")
                    self._unreadable.add(path.name)
                    return None
                waiting.append(table)
                if sum(one.num_rows for one in waiting) >= SECTION_ROWS:
                    writer.write(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write(pa.concat_tables(waiting))
        return writer.rows


def segments_in(folder: Path) -> list[Path]:
    """The segments of an hour in the order of their numbers."""
    return sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))
