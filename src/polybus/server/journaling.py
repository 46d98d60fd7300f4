"""Between the loop and the journal: what the core tells goes into a buffer, and once a turn to the writer.

Nothing here can stop the bus.  A journal that cannot be begun (no room, no permission) is reported like one
that cannot be written, and tried again by the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from polybus.config import JournalSettings
from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.journal.recorder import Recorder, open_recorder
from polybus.journal.writer import JournalWriter

FOLDER: Final = "journal"
OPEN_LOGS: Final = "open"
# On an idle bus nothing happens; this tells readers that it was idle, and not gone.
BEAT_S: Final = 5.0


class Journaling:
    """The journal of a broker; nothing, if it is turned off."""

    def __init__(self, bus: Bus, settings: JournalSettings, broker: str, data_dir: Path) -> None:
        self._bus = bus
        self._broker = broker
        self._folder = data_dir / FOLDER / OPEN_LOGS
        self._recorder: Recorder | None = None
        self._writer: JournalWriter | None = None
        self._beat_at = 0.0
        if settings.enabled:
            self._recorder = open_recorder(settings.body_bytes, _keeps(settings.no_bodies))

    def begin(self, links: dict[int, str], now: float) -> None:
        """Note everything from now on."""
        if self._recorder is None:
            return
        bus = self._bus
        life = bus.nonce.decode().rstrip("-")
        self._writer = JournalWriter(self._folder, self._broker, life, links)
        self._writer.start()
        bus.listen(bus.tapped, self._recorder)
        self._note("started", now, f"broker {self._broker}")

    def flush(self, now: float) -> None:
        """Hand over what this turn noted."""
        recorder = self._recorder
        if recorder is None or self._writer is None:
            return
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._note("beat", now)
        if recorder.count:
            self._writer.append(*recorder.take())

    def _note(self, what: str, now: float, detail: str = "") -> None:
        assert self._recorder is not None
        self._recorder.note(Observed(now, what, detail=detail), self._bus.wall_offset)

    def facts(self) -> dict[str, Any]:
        if self._writer is None:
            return {"journal": "off"}
        state = self._writer.state()
        return {
            "journal": state.trouble or "on",
            "journal_written": state.written,
            "journal_lost": state.lost,
            "journal_waiting_bytes": state.waiting_bytes,
        }

    def close(self, now: float) -> int:
        """Write what is still to be written. How many records are missing."""
        if self._recorder is None or self._writer is None:
            return 0
        self._note("stopped", now)
        self._writer.append(*self._recorder.take())
        return self._writer.stop()


def _keeps(patterns: tuple[str, ...]) -> Callable[[bytes], bool] | None:
    if not patterns:
        return None

    def keeps(name: bytes) -> bool:
        text = name.decode(errors="replace")
        return not any(fnmatchcase(text, pattern) for pattern in patterns)

    return keeps
