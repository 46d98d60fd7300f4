"""An application with jobs, for tests: run in memory, or by workers as `support.job_app:bus`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from polybus import Bus, WorkerRejected, current_job

bus = Bus()


@dataclass
class Parcel:
    number: int
    sent: date


@bus.job
def add(a: int, b: int) -> int:
    return a + b


@bus.job
def total(numbers: list[int]) -> int:
    return sum(numbers)


@bus.job(queue="parcels")
def deliver(parcel: Parcel, days: int = 1) -> Parcel:
    return Parcel(parcel.number, parcel.sent + timedelta(days=days))


@bus.job
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@bus.job
def note(path: str, word: str) -> int:
    """Adds a line to a file; how many there are now."""
    file = Path(path)
    with file.open("a") as lines:
        lines.write(word + "\n")
    return len(file.read_text().splitlines())


@bus.job(retries=3, backoff_s=0.05)
def flaky(path: str, failures: int) -> int:
    """Fails so many times; returns the number of its attempt."""
    current_job().progress("begun")
    if note(path, "tried") <= failures:
        raise ConnectionError("the other side is not there yet")
    return current_job().attempt


@bus.job
def fail() -> None:
    raise ValueError("this never works")


@bus.job
def refuse() -> None:
    raise WorkerRejected("not today")


@bus.job
def unspeakable() -> object:
    return object()


@bus.job(timeout_s=1, queue="slow")
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


@bus.job(queue="slow")
def sleep_until(path: str) -> str:
    """Sleeps until a file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return "awake"


@bus.job
def report(steps: int) -> int:
    """Says how far it is, and who it is."""
    job = current_job()
    for step in range(steps):
        job.progress({"done": step})
    return job.attempt
