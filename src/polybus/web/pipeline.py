"""How the pipeline is: which tables there are, and how far they are behind the journal.

What the pipeline has taken in is in its own notes: which segments its stream had in which batch, and which
batches are done (Structured Streaming's checkpoint), and the number up to which it needs none any more.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from msgspec import Struct

from polybus.errors import ConfigError, JournalMissing
from polybus.journal.log import log_files
from polybus.journal.reader import find_journal, segment_files
from polybus.spark.schema import TABLES
from polybus.spark.tables import file_system
from polybus.web.tables import Row, Tables

STATE: Final = "_pipeline.json"
CHECKPOINT: Final = "_checkpoint"
READERS: Final = "readers"
OPEN: Final = "open"
NEXT: Final = "polybus pipeline run"
_NUMBER: Final = re.compile(r"(\d+)-(?:(\d+)-)?[0-9a-f]+\.parquet")


class Note(Struct):
    writer: str = ""


class Progress(Struct):
    """What a pipeline told the journal."""

    upto: int = 0


class Source(Struct):
    """A line of the checkpoint: a segment that was in a batch."""

    path: str


def describe(tables: Tables, journal: Path | None, now: float) -> Row:
    """Everything that there is to say; `next` says what to do if there are no tables."""
    rows = [found for name in TABLES if (found := _table(tables, name)) is not None]
    told: Row = {"place": tables.place, "tables": rows}
    committed = [row["committed_at"] for row in rows if row["committed_at"] is not None]
    batches = [row["batch"] for row in rows if row["batch"] is not None]
    told["committed_at"] = max(committed, default=None)
    told["batch"] = max(batches, default=None)
    told["journal"] = None
    told["lag_s"] = told["lag_segments"] = None
    try:
        place = find_journal(journal) if journal is not None else None
    except JournalMissing as error:
        place = None
        told["journal_error"] = str(error)
    if place is not None:
        told |= _lag(tables.place, place, bool(rows), now)
    if not rows:
        told["next"] = NEXT
    return told


def _table(tables: Tables, name: str) -> Row | None:
    opened = tables.open(name)
    if opened is None:
        return None
    writer = _writer(tables.place)

    def make(table: DeltaTable) -> Row:
        added = pa.table(table.get_add_actions(flatten=True))
        newest = table.history(1)
        return {
            "table": name,
            "rows": sum(count or 0 for count in added["num_records"].to_pylist()),
            "files": added.num_rows,
            "bytes": sum(added["size_bytes"].to_pylist()),
            "version": table.version(),
            "batch": table.transaction_version(writer) if writer else None,
            "committed_at": newest[0]["timestamp"] / 1000 if newest else None,
        }

    return msgspec.json.decode(tables.kept(name, ("facts", writer), make, None), type=Row | None)


# -- how far behind -------------------------------------------------------------------------------


def _lag(place: str, journal: Path, has_tables: bool, now: float) -> Row:
    """Segments that no table has yet, and how long the first of them has been waiting."""
    upto = taken(place, journal) if has_tables else 0
    segments = {path: number_of(path.name) for path in segment_files(journal)}
    landed: list[float] = []
    for path, number in segments.items():
        if number > upto:
            with contextlib.suppress(FileNotFoundError):
                landed.append(path.stat().st_mtime)
    logs = [path for path in log_files(journal / OPEN) if path.exists()]
    return {
        "journal": {
            "place": str(journal),
            "segments": len(segments),
            "newest": max(segments.values(), default=None),
            "open_logs": len(logs),
        },
        "taken_upto": upto,
        "lag_segments": len(landed),
        "lag_s": round(max(0.0, now - min(landed)), 3) if landed else 0.0,
    }


def taken(place: str, journal: Path) -> int:
    """The number of the last segment that is in the tables; 0 if none is known to be."""
    told = 0
    with contextlib.suppress(OSError, msgspec.DecodeError):
        note = (journal / READERS / f"{_writer(place)}.json").read_bytes()
        told = msgspec.json.decode(note, type=Progress).upto
    # The note is written when the next batch begins; the checkpoint knows when one has ended.
    return max(told, _committed(place))


def _committed(place: str) -> int:
    batches = [int(name) for name in _names(f"{place}/{CHECKPOINT}/commits") if name.isdigit()]
    if not batches:
        return 0
    last = max(batches)
    sources = f"{place}/{CHECKPOINT}/sources/0"
    text = _read(f"{sources}/{last}") or _read(f"{sources}/{last}.compact") or b""
    # The first line is the version of the format.
    numbers = [0]
    for line in text.splitlines()[1:]:
        with contextlib.suppress(msgspec.DecodeError):
            numbers.append(number_of(msgspec.json.decode(line, type=Source).path.rpartition("/")[2]))
    return max(numbers)


def number_of(segment: str) -> int:
    """The number of a segment, the last one of those that it was compacted from; 0 without one."""
    found = _NUMBER.fullmatch(segment)
    return int(found[2] or found[1]) if found else 0


def _writer(place: str) -> str:
    text = _read(f"{place}/{STATE}")
    try:
        return msgspec.json.decode(text, type=Note).writer if text else ""
    except msgspec.DecodeError:
        return ""


def _names(uri: str) -> list[str]:
    try:
        system, path = file_system(uri)
        found: Any = system.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    except (ConfigError, OSError):
        return []
    return [info.base_name for info in found]


def _read(uri: str) -> bytes | None:
    try:
        system, path = file_system(uri)
        with system.open_input_stream(path) as file:
            return bytes(file.read())
    except (ConfigError, OSError):
        return None
