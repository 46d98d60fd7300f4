"""The application that `polybus up` runs if it is given none: something to call at once."""

from __future__ import annotations

import time

from polybus import Bus, current_job

bus = Bus()


@bus.service("hello")
def hello(body: bytes) -> bytes:
    return b"hello " + (body or b"world")


@bus.job(queue="example", retries=2, timeout_s=60)
def count(to: int, pause_s: float = 0.5) -> int:
    """Takes its time, so that there is something to see and to cancel."""
    for number in range(to):
        current_job().progress(f"{number + 1} of {to}")
        time.sleep(pause_s)
    return to
