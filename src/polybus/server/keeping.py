"""Between the loop and the scribe: what the core noted goes to disk, and the core is told when it is there.

At the start the store is read and the bus filled from it; a store that cannot be trusted stops the broker
with a word on what to do, because to go on without it would be to lose what was promised.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from polybus.config import Settings
from polybus.core import catalog, events
from polybus.core.bus import Bus
from polybus.core.catalog import Revive
from polybus.core.model import Retrying
from polybus.core.restoring import restore
from polybus.core.tables import DESK
from polybus.dialects.port import Voice
from polybus.server.scribe import Answered, Result, Scribe, Sick, Unwritten, Well, Written
from polybus.store.port import Store
from polybus.store.sqlite import SqliteStore

FOLDER: Final = "store"
BEHIND: Final = "the disk does not keep up with what is to be written; try again in a moment"


class Keeping:
    """The durable side of a broker. Everything but the scribe's own thread runs in the loop."""

    def __init__(self, bus: Bus, settings: Settings, data_dir: Path, wake: Callable[[], None]) -> None:
        self._bus = bus
        self._settings = settings
        self._scribe: Scribe | None = None
        self._behind = False
        bus.catalog.missed_beats = settings.dbp.liveness
        self.apply(settings)
        if not settings.jobs.store:
            return
        folder = data_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._store: Store = SqliteStore(folder)
        self._contents = self._store.load()
        self._scribe = Scribe(self._store, wake)

    def apply(self, settings: Settings) -> None:
        """Take over settings that may change while the broker runs."""
        jobs = settings.jobs
        self._settings = settings
        self._bus.retrying = Retrying(jobs.backoff_s, jobs.backoff_max_s, jobs.jitter)
        self._bus.outcomes_age_s = jobs.results_age_s
        values = settings.last_values
        self._bus.last.change(
            values.count if values.enabled else 0, values.bytes, values.durable and jobs.store
        )
        kept = settings.logs
        self._bus.logs.change(kept.count, kept.bytes, kept.age_s, kept.warnings_age_s)
        self._bus.book.timezone = jobs.timezone
        self._bus.book.missed = jobs.missed
        self._bus.change_policies(list(settings.queues.items()))

    def begin(
        self, links: dict[int, str], voices: dict[str, Any], now: float, revive: Revive = lambda entry: None
    ) -> None:
        """Fill the bus with what was there, now that it is known who can be spoken to."""
        bus = self._bus
        bus.link_names = {**links, DESK[0]: "jobs"}
        bus.voices = voices
        if self._scribe is not None:
            bus.store_trouble = ""
            restore(bus, self._contents, Voice(), now)
            bus.last.restore(self._contents.values)
            catalog.restore(bus, self._contents.nodes, revive, now)
            del self._contents
            self._scribe.start()

    def hand_over(self, now: float) -> None:
        """Have the lines of this turn written."""
        number, lines = self._bus.take_lines()
        scribe = self._scribe
        if scribe is None:
            # Nothing is guaranteed without a store; what is noted all the same (dead letters) goes nowhere.
            self._bus.handle(events.Written(number), now)
            return
        scribe.submit(number, lines)
        if scribe.is_full and not self._bus.store_trouble:
            self._behind = True
            self._bus.store_trouble = BEHIND

    def collect(self, now: float) -> None:
        """Tell the core what has become of lines that were handed over."""
        scribe = self._scribe
        if scribe is None:
            return
        bus = self._bus
        for result in _joined(scribe.results()):
            match result:
                case Written(number):
                    bus.handle(events.Written(number), now)
                case Unwritten(_, refused, reason):
                    bus.handle(events.Unwritten(refused, reason), now)
                case Sick(reason):
                    self._behind = False
                    bus.handle(events.StoreHealth(reason), now)
                case Well():
                    bus.handle(events.StoreHealth(""), now)
                case Answered():
                    result.tell()
        if self._behind and not scribe.is_full:
            self._behind = False
            bus.store_trouble = ""

    def ask(self, call: Callable[[Store], Any], done: Callable[[Any, Exception | None], None]) -> bool:
        """Ask the store something; `done` gets the answer in the loop. False if there is no store."""
        if self._scribe is None:
            return False
        self._scribe.ask(call, done)
        return True

    def abandon(self) -> None:
        """Close the store of a broker that does not start after all."""
        if self._scribe is not None:
            self._store.close()

    def close(self, now: float) -> int:
        """Write everything that is still to be written. How many lines could not be."""
        if self._scribe is None:
            return 0
        if self._bus.lines:
            self.hand_over(now)
        left = self._scribe.stop()
        self.collect(now)
        return left


def _joined(results: list[Result]) -> list[Result]:
    """What was refused for the same reason, batch after batch, as one: the core looks through all that waits
    for the disk each time, and when a disk is full many batches do."""
    joined: list[Result] = []
    for reason, group in groupby(results, lambda one: one.reason if isinstance(one, Unwritten) else None):
        some = list(group)
        if reason is None:
            joined += some
        else:
            refused = [token for one in some if isinstance(one, Unwritten) for token in one.refused]
            joined.append(Unwritten(0, tuple(refused), reason))
    return joined
