"""Between the loop and the journal: what the core tells goes into a buffer, and once a turn to the writer.

Nothing here can stop the bus.  A journal that cannot be begun (no room, no permission) is reported like one
that cannot be written, and tried again by the writer.

A burst may be faster than the disk.  What then waits in memory is bounded by `journal.buffer_bytes`:

    up to half of it     everything is noted
    more than half       records are noted without bodies, which are most of their bytes
    all of it            records are lost

Both losses are counted, logged with the reason, and noted in the journal itself (`bodies_dropped`,
`records_lost`), so that a reader of the journal finds them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from polybus.config import JournalSettings
from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.journal.recorder import Recorder, open_recorder
from polybus.journal.writer import ROLL_S, SLOW_ROLL_S, STOP_S, JournalWriter
from polybus.server.archiving import Archiving
from polybus.telemetry.logs import log

FOLDER: Final = "journal"
OPEN_LOGS: Final = "open"
# On an idle bus nothing happens; this tells readers that it was idle, and not gone.
BEAT_S: Final = 30.0
# Losses are told at once, and then no more often than this.
TELL_S: Final = 10.0
# The reasons of `records_lost`: the limit that was reached, or the disk.
BUFFER_FULL: Final = "journal.buffer_bytes"
DISK: Final = "disk"
ADVICE: Final = (
    "No request was affected. Give broker.data_dir a faster disk, raise journal.buffer_bytes, "
    "or keep fewer bodies (journal.body_bytes, journal.no_bodies)."
)
VERIFY: Final = "'polybus journal verify' shows where they are missing."


class Losses(Struct, frozen=True):
    """What is not in the journal, counted since the start."""

    # Records without room in the buffer, records that the disk refused, and bodies.
    overflowed: int = 0
    refused: int = 0
    bodies: int = 0

    @property
    def total(self) -> int:
        return self.overflowed + self.refused + self.bodies


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
        # What was told of the losses, and when the next line is allowed.
        self._told = Losses()
        self._tell_at = 0.0
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
            waiting_bytes=self._settings.buffer_bytes,
            roll_s=ROLL_S if archiving.is_wanted else SLOW_ROLL_S,
            keep_bytes=0 if archiving.is_wanted else self._settings.keep_bytes,
            on_finished=archiving.wake,
        )
        self._writer.start()
        bus.listen(bus.tapped, self._recorder)
        self._note("started", now, f"broker {self._broker}")

    def flush(self, now: float) -> None:
        """Hand over what this turn noted."""
        recorder, writer = self._recorder, self._writer
        if recorder is None or writer is None:
            return
        if recorder.count:
            writer.append(*recorder.take())
            self._beat_at = now + BEAT_S
        elif now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._note("beat", now)
            writer.append(*recorder.take())
        recorder.drops_bodies = writer.waiting_bytes > self._settings.buffer_bytes // 2
        if writer.lost + recorder.bodies_dropped != self._told.total and now >= self._tell_at:
            self._tell_at = now + TELL_S
            self._tell_losses(now)
        if now >= self._tend_at:
            self._archiving.tend(now)
            self._tend_at = self._archiving.next_at
            # Without an archiver logs only become many.
            is_archived = self._archiving.is_alive
            writer.roll_s = ROLL_S if is_archived else SLOW_ROLL_S

    def _note(self, what: str, now: float, detail: str = "", reason: str = "", size: int = 0) -> None:
        assert self._recorder is not None
        observed = Observed(now, what, reason=reason, detail=detail, size=size)
        self._recorder.note(observed, self._bus.wall_offset)

    def _tell_losses(self, now: float) -> None:
        """Log what was lost since the last time, and note it in the journal."""
        recorder, writer, told = self._recorder, self._writer, self._told
        assert recorder is not None
        assert writer is not None
        state = writer.state()
        self._told = Losses(state.overflowed, state.lost - state.overflowed, recorder.bodies_dropped)
        buffer = f"journal.buffer_bytes = {self._settings.buffer_bytes}"
        overflowed = self._told.overflowed - told.overflowed
        refused = self._told.refused - told.refused
        bodies = self._told.bodies - told.bodies
        if overflowed:
            why = f"the disk is slower than the traffic, and the buffer is full ({buffer})"
            self._note("records_lost", now, why, BUFFER_FULL, overflowed)
            text = f"{overflowed} records are missing in the journal: {why}. {ADVICE} {VERIFY}"
            log(text, "error", missing=overflowed, missing_in_all=state.lost, reason=BUFFER_FULL)
        if refused:
            why = state.refusal
            self._note("records_lost", now, why, DISK, refused)
            advice = "Make room on the disk, or repair it."
            text = f"{refused} records are missing in the journal: {why}. {advice} {VERIFY}"
            log(text, "error", missing=refused, missing_in_all=state.lost, reason=DISK)
        if bodies:
            why = f"the disk is slower than the traffic, and more than half of the buffer is full ({buffer})"
            self._note("bodies_dropped", now, why, BUFFER_FULL, bodies)
            text = f"{bodies} records are in the journal without their bodies: {why}. {ADVICE}"
            log(text, "warning", bodies=bodies, bodies_in_all=self._told.bodies, reason=BUFFER_FULL)
        writer.append(*recorder.take(), force=True)

    def facts(self) -> dict[str, Any]:
        if self._writer is None:
            return {"journal": "off"}
        state = self._writer.state()
        facts = {
            "journal": state.trouble or "on",
            "journal_written": state.written,
            "journal_lost": state.lost,
            "journal_bodies_dropped": 0 if self._recorder is None else self._recorder.bodies_dropped,
            "journal_waiting_bytes": state.waiting_bytes,
        }
        if state.removed:
            facts["journal_logs_removed"] = state.removed
        return {**facts, **self._archiving.facts(state.finished, time.time())}

    def close(self, now: float) -> int:
        """Write what is still to be written, and have it archived. How many records are missing."""
        if self._recorder is None or self._writer is None:
            return 0
        if self._writer.lost + self._recorder.bodies_dropped != self._told.total:
            self._tell_losses(now)
        self._note("stopped", now)
        self._writer.append(*self._recorder.take(), force=True)
        lost = self._writer.stop()
        unwritten = lost - self._writer.lost
        if unwritten:
            why = f"the disk did not take them within {STOP_S:g} s after the broker ended"
            log(
                f"{unwritten} records are missing in the journal: {why}",
                "error",
                missing=unwritten,
                reason=DISK,
            )
        self._archiving.stop()
        return lost


def _keeps(patterns: tuple[str, ...]) -> Callable[[bytes], bool] | None:
    if not patterns:
        return None

    def keeps(name: bytes) -> bool:
        text = name.decode(errors="replace")
        return not any(fnmatchcase(text, pattern) for pattern in patterns)

    return keeps
