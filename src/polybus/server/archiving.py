"""The archiver at the broker's side: a process of its own, started, told of news, watched, and ended.

A pipe is its standard input: a byte in it says that a log was finished, and its end, which comes however this
process ends, that it is to finish.  If it dies it is started again, after a while that grows with every
failure.  The bus does not depend on it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from polybus.config import JournalSettings
from polybus.journal.log import FINISHED, log_path
from polybus.journal.progress import read_progress
from polybus.telemetry.logs import log

LOOK_S: Final = 0.5
# The pause before it is started again; each further one is twice as long. One that lived so long did well.
PAUSE_S: Final = 0.25
PAUSE_MAX_S: Final = 60.0
WELL_S: Final = 60.0
# How long it may take for its last turn.
END_S: Final = 10.0
NO_COLUMNS: Final = "off: it needs the package pyarrow"


class Archiving:
    """One archiver. `wake` is for the writer's thread, everything else for the loop."""

    def __init__(self, journal: Path, settings: JournalSettings) -> None:
        self._journal = journal
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        # The writer must not write into a pipe that is being closed: its number may be another file's then.
        self._guard = threading.Lock()
        self._pipe = -1
        self._started_at = 0.0
        self._start_at = 0.0
        self._pause_s = PAUSE_S
        self._trouble = ""
        self.restarts = 0
        self.next_at = 0.0
        self.is_wanted = settings.archive and importlib.util.find_spec("pyarrow") is not None

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def tend(self, now: float) -> None:
        """Start it if it is not there and should be."""
        self.next_at = now + LOOK_S
        if not self.is_wanted:
            return
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._let_go()
            if now - self._started_at > WELL_S:
                self._pause_s = PAUSE_S
            self._trouble = f"it ended with status {status}"
            self._start_at = now + self._pause_s
            log(
                f"the journal's archiver ended with status {status}; it is started again in "
                f"{self._pause_s:g} s",
                "warning",
                status=status,
            )
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
            self.restarts += 1
        if now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        keep = self._settings
        command = [sys.executable, "-m", "polybus.journal.archive", str(self._journal)]
        command += ["--keep-days", str(keep.keep_days), "--keep-bytes", str(keep.keep_bytes)]
        command += ["--compact-after", str(keep.compact_after_s)]
        read, write = os.pipe()
        os.set_blocking(write, False)
        try:
            # In a session of its own, so that Ctrl-C ends us and not both at once.
            self._process = subprocess.Popen(
                command, stdin=read, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            os.close(write)
            self._trouble = f"it cannot be started: {error.strerror}"
            self._start_at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
            return
        finally:
            os.close(read)
        self._started_at = now
        self._pipe = write

    def wake(self) -> None:
        """There is something to archive."""
        with self._guard, contextlib.suppress(OSError):
            if self._pipe >= 0:
                os.write(self._pipe, b".")

    def _let_go(self) -> None:
        self._process = None
        with self._guard:
            pipe, self._pipe = self._pipe, -1
            if pipe >= 0:
                os.close(pipe)

    def stop(self) -> None:
        """Let it archive what is there, and end."""
        process = self._process
        self._let_go()
        self.is_wanted = False
        if process is None:
            return
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            # Nothing is lost by that.
            process.kill()
            process.wait()
            log(f"the journal's archiver was not done after {END_S:g} s; the next one goes on", "warning")

    def facts(self, finished: int, wall: float) -> dict[str, Any]:
        """What it is doing. `finished` is the number of the last log that is finished."""
        if not self._settings.archive:
            return {"archiver": "off"}
        if not self.is_wanted and self._process is None:
            return {"archiver": NO_COLUMNS}
        progress = read_progress(self._journal)
        state = progress.trouble or (f"process {self._process.pid}" if self._process else self._trouble)
        facts: dict[str, Any] = {
            "archiver": state,
            "archiver_restarts": self.restarts,
            "archiver_behind_s": self._behind_s(progress.log, finished, wall),
            "archiver_segments": progress.segments,
            "archiver_rows": progress.rows,
            "archiver_missing": progress.lost,
            "archiver_damage": progress.damage,
            "archiver_let_go_hours": progress.removed_hours,
        }
        for name, text in (
            ("archiver_last_damage", progress.last_damage),
            ("archiver_held_back", progress.held),
            ("archiver_stale_readers", progress.stale),
        ):
            if text:
                facts[name] = text
        return facts

    def _behind_s(self, archived: int, finished: int, wall: float) -> float:
        """How long the oldest log waits that was finished."""
        if archived >= finished:
            return 0.0
        try:
            facts = log_path(self._journal / "open", archived + 1, FINISHED).stat()
        except OSError:
            # It is being archived, or its number was skipped.
            return 0.0
        return round(max(0.0, wall - facts.st_mtime), 1)
