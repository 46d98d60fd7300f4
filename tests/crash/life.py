"""The life of a job, from everything that a run leaves behind: notes, marks, logs, and the broker's store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

# Of one file or table; a job that fills more has been in trouble for long.
MOST_LINES = 30
SHOWN_CHARS = 400


def life(folder: Path, job: str) -> Iterator[str]:
    """Lines for people: where the job is named, and what was said about it."""
    yield f"--- {job}"
    for kind in ("notes", "marks", "logs"):
        for path in sorted((folder / kind).iterdir()):
            found = [line for line in path.read_text(errors="replace").splitlines() if _names(line, job)]
            for line in found[:MOST_LINES]:
                yield f"{kind}/{path.name}: {line[:SHOWN_CHARS]}"
    for path in sorted((folder / "data").rglob("*")):
        if path.is_file() and path.suffix in (".db", ".sqlite", ".sqlite3"):
            yield from _in_store(path, job)


def _names(line: str, job: str) -> bool:
    at = line.find(job)
    # "mdr-00001" is not "mdr-000012".
    return at >= 0 and not line[at + len(job) : at + len(job) + 1].isdigit()


def _in_store(path: Path, job: str) -> Iterator[str]:
    """Rows that name the job anywhere: in a column of its own, or inside an encoded entry."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
            tables = [row[0] for row in store.execute("select name from sqlite_master where type = 'table'")]
            for table in tables:
                rows = (row for row in store.execute(f'select * from "{table}"') if _row_names(row, job))
                for number, row in enumerate(rows):
                    if number < MOST_LINES:
                        yield f"store, {table}: {str(row)[:SHOWN_CHARS]}"
    except sqlite3.Error as error:
        yield f"store {path.name}: cannot be read: {error}"


def _row_names(row: tuple[object, ...], job: str) -> bool:
    wanted = job.encode()
    return any(
        wanted in value if isinstance(value, bytes) else isinstance(value, str) and job in value
        for value in row
    )
