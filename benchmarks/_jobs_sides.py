"""How each side of `jobs.py` sends its jobs, and when a job is safe: the words for its table and the README.

A comparison of job queues means little without this: one call for thousands of jobs is another thing than
one call for each, and a job in memory another thing than a job on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Side:
    title: str
    # Calls, connections, and what the producer waits for.
    sends: str
    # Where a job is when the producer's call returns. `{fsync}` is Redis' setting.
    durability: str


ON_DISK: Final = "synced to disk (SQLite, synchronous FULL) before the receipt"
IN_REDIS: Final = "in Redis' memory; its append-only file is synced {fsync}"
# Redis' own names for when it syncs, in words.
FSYNC: Final = {"everysec": "once a second", "always": "before each answer"}

SIDES: Final = {
    "polybus": Side(
        "polybus, in batches",
        "one `bus.send_many` call for all jobs, one connection; returns after the broker's receipts for all",
        ON_DISK,
    ),
    "polybus_single": Side(
        "polybus, one call per job",
        "one `job.delay()` call per job, one thread, one connection; each call waits for its receipt",
        ON_DISK,
    ),
    "celery": Side(
        "Celery on Redis, one call per job",
        "one `apply_async` call per job, one thread, one connection; each call waits for Redis' answer",
        IN_REDIS,
    ),
    "dramatiq": Side(
        "Dramatiq on Redis, one call per job",
        "one `send` call per job, one thread, one connection; each call waits for Redis' answer",
        IN_REDIS,
    ),
}


def durability(name: str, fsync: str = "everysec") -> str:
    return SIDES[name].durability.format(fsync=FSYNC[fsync])
