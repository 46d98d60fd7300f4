"""The application of `polybus worker`: one job, which does what the plain workers do (`serving.py`)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from notes import Marker
from producers import POOL

from polybus import Bus

bus = Bus()
_markers: dict[int, Marker] = {}


@bus.job(queue=POOL, retries=5)
def mark(job: str, ms: int) -> dict[str, str]:
    # A process that was forked writes a file of its own.
    marker = _markers.get(os.getpid())
    if marker is None:
        marker = _markers[os.getpid()] = Marker(Path(os.environ["CRASH_FOLDER"], "marks"))
    run = marker.begin(job)
    time.sleep(ms / 1000)
    marker.end(job, run)
    return {"job": job, "run": run}
