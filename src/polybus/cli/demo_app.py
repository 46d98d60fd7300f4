"""The jobs of the demo, run by two pools of `polybus worker`: `polybus.cli.demo_app:bus`."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from polybus import Bus, Job, current_job

REPORTS: Final = "reports"
TIDYING: Final = "tidying"
PAGE_S: Final = 0.2
# Where the first attempt waits to be killed, 20 s at most.
KILL_AT_PAGE: Final = 2
WAITS: Final = 100
# What a pool is called; its processes inherit it.
NAME_VARIABLE: Final = "DEMO_WORKER"


def worker_name() -> str:
    return os.environ.get(NAME_VARIABLE, "nobody")


def report(pages: int) -> str:
    job = current_job()
    for page in range(1, pages + 1):
        # Said again and again: it is heard only once somebody follows.
        for _ in range(WAITS if page == KILL_AT_PAGE and job.attempt == 1 else 1):
            job.progress({"page": page, "attempt": job.attempt, "worker": worker_name()})
            time.sleep(PAGE_S)
    return worker_name()


def tidy() -> str:
    return worker_name()


def jobs_of(bus: Bus) -> tuple[Job[[int], str, Any], Job[[], str, Any]]:
    """The same jobs on any bus: that of the workers, or that of the demo, which knows its broker."""
    return (
        bus.job(name="demo.report", queue=REPORTS, retries=2)(report),
        bus.job(name="demo.tidy", queue=TIDYING)(tidy),
    )


bus = Bus()
jobs_of(bus)
