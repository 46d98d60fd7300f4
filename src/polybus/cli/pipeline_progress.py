"""What a running pipeline tells: a line for each batch, and one at the end."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polybus.cli.output import print_json, say

if TYPE_CHECKING:
    from polybus.spark.batches import Batch


class Progress:
    """Tells of batches; `journal` is where their rows come from."""

    def __init__(self, journal: str, as_json: bool) -> None:
        self._journal = journal
        self._json = as_json
        self._batches = 0
        self._rows = 0

    def tell(self, batch: Batch) -> None:
        self._batches += 1
        self._rows += batch.rows
        if self._json:
            facts: dict[str, Any] = {
                "batch": batch.number,
                "rows": batch.rows,
                "rows_per_s": round(batch.rate, 1),
                "seconds": round(batch.seconds, 3),
                "lag_s": round(batch.lag_s(time.time()), 3),
                "tables": batch.tables,
            }
            print_json(facts)
        else:
            say(f"batch {batch.number}: {speed(batch)}, {self._state(batch)}")

    def end(self) -> None:
        if self._json:
            return
        if self._batches:
            batches = "1 batch" if self._batches == 1 else f"{self._batches} batches"
            say(f"the tables have {self._rows:,} more rows of the journal, in {batches}")
        else:
            say("nothing new in the journal: the tables are up to date")

    def _state(self, batch: Batch) -> str:
        """How far the tables are behind: what came long ago is not late if nothing came after it."""
        now = time.time()
        if "://" in self._journal:
            # Looking there takes its time.
            return f"the newest is {_span(batch.lag_s(now))} old"
        waiting = waiting_since(Path(self._journal), batch.upto)
        return "up to date" if waiting is None else f"{_span(max(0.0, now - waiting))} behind"


def speed(batch: Batch) -> str:
    rows = "1 row" if batch.rows == 1 else f"{batch.rows:,} rows"
    # A handful says nothing about how fast it is.
    rate = f" ({batch.rate:,.0f} a second)" if batch.rate >= 10 else ""
    return f"{rows} in {batch.seconds:.1f} s{rate}"


def waiting_since(journal: Path, upto: str) -> float | None:
    """When the oldest segment came that is newer than this one; None if there is none."""
    from polybus.journal.reader import segment_files
    from polybus.spark.pipeline import number_of

    landed: list[float] = []
    last = number_of(upto)
    for path in segment_files(journal):
        if number_of(path.name) > last:
            with contextlib.suppress(FileNotFoundError):
                landed.append(path.stat().st_mtime)
    return min(landed, default=None)


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
