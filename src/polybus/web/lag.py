"""How far the pipeline is behind, for those who ask often and must not wait: the last that was found out.

It is found out anew, behind their backs, if that was some seconds ago.  Where there are no tables nothing is
read: to open one takes libraries that are large.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from polybus.errors import PolybusError
from polybus.web.answers import Refused
from polybus.web.history import History

FRESH_S: Final = 3.0


class Lag:
    def __init__(self) -> None:
        self.known: Mapping[str, Any] | None = None
        self._looked_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def look(self, history: History) -> None:
        now = time.monotonic()
        if now - self._looked_at >= FRESH_S and (self._task is None or self._task.done()):
            self._looked_at = now
            self._task = asyncio.get_running_loop().create_task(self._read(history))

    async def _read(self, history: History) -> None:
        def read() -> Mapping[str, Any] | None:
            if "://" not in history.place and not Path(history.place).is_dir():
                return None
            from polybus.web.pipeline import describe

            journal = history.journals[0] if history.journals else None
            return describe(history.tables(), journal, time.time())

        try:
            self.known = await history.read(read)
        except (Refused, PolybusError, OSError):
            # Tables that cannot be read are shown as such by /api/pipeline; here there is just no value.
            self.known = None


_lags: Final[WeakKeyDictionary[History, Lag]] = WeakKeyDictionary()


def pipeline_of(history: History) -> Mapping[str, Any] | None:
    """What `/api/pipeline` said the last time; None if it is not known yet, or there is none."""
    lag = _lags.get(history)
    if lag is None:
        lag = _lags[history] = Lag()
    lag.look(history)
    return lag.known
