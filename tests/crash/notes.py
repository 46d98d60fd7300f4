"""What the processes of a run write down, so that a verdict can be found afterwards.

Everything is a line appended with a single write to a file that only one process writes: what was written
before a SIGKILL is there, whole, whatever happens next.

Marks (`marks/`): `begin <job id> <run>` and `end <job id> <run>`, where a run is one execution of one job.
Notes (`notes/`): JSON, `{"what": …, "job": …, …}`:

    submit   asked for it, on `connection` under `request`
    receipt  the broker says that it has it
    final    the one answer to a submit; `body` is what the job returned, `error` why it was refused
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Lines:
    """A file that lines are appended to, each with one write."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")


class Notebook:
    """A producer's notes."""

    def __init__(self, folder: Path, producer: str) -> None:
        self._lines = Lines(folder / producer)

    def note(self, what: str, job: str, **facts: Any) -> None:
        self._lines.write(json.dumps({"t": round(time.time(), 3), "what": what, "job": job, **facts}))


class Marker:
    """The marks of one process: what it ran."""

    def __init__(self, folder: Path) -> None:
        self._lines = Lines(folder / str(os.getpid()))
        self._runs = 0

    def begin(self, job: str) -> str:
        self._runs += 1
        run = f"{os.getpid()}.{self._runs}"
        self._lines.write(f"begin {job} {run} {time.time():.3f}")
        return run

    def end(self, job: str, run: str) -> None:
        self._lines.write(f"end {job} {run} {time.time():.3f}")


def read_notes(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(producer, note) of all notes, in the order of each producer."""
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            yield path.name, json.loads(line)


def read_marks(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(begin or end, job, run) of all marks."""
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            what, job, run, _ = line.split()
            yield what, job, run
