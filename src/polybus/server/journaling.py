"""Between the loop and the journal: what the core tells goes into a buffer, and once a turn to the writer.

Nothing here can stop the bus.  A journal that cannot be begun (no room, no permission) is reported like one
that cannot be written, and tried again by the writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from polybus.config import JournalSettings
from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.journal.recorder import Recorder, open_recorder
from polybus.journal.writer import ROLL_S, SLOW_ROLL_S, JournalWriter
from polybus.server.archiving import Archiving

FOLDER: Final = "journal"
OPEN_LOGS: Final = "open"
# On an idle bus nothing happens; this tells readers that it was idle, and not gone.
BEAT_S: Final = 30.0


class Journaling:
    """The journal of a broker; nothing, if it is turned off."""

    def __init__(self, bus: Bus, settings: JournalSettings, broker: str, data_dir: Path) -> None:
        self._bus = bus
        self._settings = settings
        self._broker = broker
        self._journal = data_dir / FOLDER
        self._recorder: Recorder | None = None
        self._writer: JournalWriter | None = None
        self._archiving = Archiving(self._journal, settings)
        self._beat_at = 0.0
        self._tend_at = 0.0
        if settings.enabled:
            self._recorder = open_recorder(settings.body_bytes, _keeps(settings.no_bodies))

    def begin(self, links: dict[int, str], now: float) -> None:
        """Note everything from now on."""
        if self._recorder is None:
            return
        bus = self._bus
        life = bus.nonce.decode().rstrip("-")
        archiving = self._archiving
        self._writer = JournalWriter(
            self._journal / OPEN_LOGS,
            self._broker,
            life,
            links,
            roll_s=ROLL_S if archiving.is_wanted else SLOW_ROLL_S,
            keep_bytes=0 if archiving.is_wanted else self._settings.keep_bytes,
            on_finished=archiving.wake,
        )
        self._writer.start()
        bus.listen(bus.tapped, self._recorder)
        self._note("started", now, f"broker {self._broker}")

    def flush(self, now: float) -> None:
        """Hand over what this turn noted."""
        recorder = self._recorder
        if recorder is None or self._writer is None:
            return
        if recorder.count:
            self._writer.append(*recorder.take())
            self._beat_at = now + BEAT_S
        elif now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._note("beat", now)
            self._writer.append(*recorder.take())
        if now >= self._tend_at:
            self._archiving.tend(now)
            self._tend_at = self._archiving.next_at
            # Without an archiver logs only become many.
            is_archived = self._archiving.is_alive
            self._writer.roll_s = ROLL_S if is_archived else SLOW_ROLL_S

    def _note(self, what: str, now: float, detail: str = "") -> None:
        assert self._recorder is not None
        self._recorder.note(Observed(now, what, detail=detail), self._bus.wall_offset)

    def facts(self) -> dict[str, Any]:
        if self._writer is None:
            return {"journal": "off"}
        state = self._writer.state()
        facts = {
            "journal": state.trouble or "on",
            "journal_written": state.written,
            "journal_lost": state.lost,
            "journal_waiting_bytes": state.waiting_bytes,
        }
        if state.removed:
            facts["journal_logs_removed"] = state.removed
        return {**facts, **self._archiving.facts(state.finished, time.time())}

    def close(self, now: float) -> int:
        """Write what is still to be written, and have it archived. How many records are missing."""
        if self._recorder is None or self._writer is None:
            return 0
        self._note("stopped", now)
        self._writer.append(*self._recorder.take())
        lost = self._writer.stop()
        self._archiving.stop()
        return lost


def _keeps(patterns: tuple[str, ...]) -> Callable[[bytes], bool] | None:
    if not patterns:
        return None

    def keeps(name: bytes) -> bool:
        text = name.decode(errors="replace")
        return not any(fnmatchcase(text, pattern) for pattern in patterns)

    return keeps
