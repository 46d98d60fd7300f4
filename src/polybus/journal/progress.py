"""What the archiver says about itself, in a file that the broker reads; this module needs no columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

PROGRESS: Final = "archiver.json"


class Progress(Struct):
    """What it did since it began; what was lost or damaged, since there is a journal."""

    pid: int = 0
    # Seconds since 1970.
    at: float = 0.0
    segments: int = 0
    rows: int = 0
    # Records that are missing, damaged places, and the last of those.
    lost: int = 0
    damage: int = 0
    last_damage: str = ""
    # The number of the last log that was archived.
    log: int = 0
    # Segments that became part of larger files; hours and rows that were let go.
    compacted: int = 0
    removed_hours: int = 0
    removed_rows: int = 0
    # Why old segments stay, why nothing is archived, and readers that do not count any more; empty if all is
    # well.
    held: str = ""
    trouble: str = ""
    stale: str = ""


def read_progress(journal: Path) -> Progress:
    """What the archiver of a journal last said; nothing, if it cannot be read."""
    try:
        return msgspec.json.decode((journal / PROGRESS).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
        return Progress()


def write_progress(journal: Path, progress: Progress) -> None:
    """Not synced: after a crash the archiver begins to count anew, and nobody relies on it."""
    hidden = journal / f".{PROGRESS}"
    hidden.write_bytes(msgspec.json.encode(progress))
    os.replace(hidden, journal / PROGRESS)
