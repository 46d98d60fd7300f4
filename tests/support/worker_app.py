"""Jobs for tests of `polybus worker`: `support.worker_app:bus`."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from polybus import Bus, current_job

bus = Bus()
bus.allow("support.shop:*")
bus.allow("support.shop:Till.*")


@bus.job(queue="email")
def add(a: int, b: int) -> int:
    return a + b


@bus.job(queue="email")
def who() -> list[object]:
    job = current_job()
    return [job.id, job.attempt, os.getpid()]


@bus.job(queue="email")
def note(path: str, word: str) -> str:
    with open(path, "a") as file:
        file.write(word + "\n")
    return word


@bus.job(queue="slow", retries=2, backoff_s=0.01)
def crash_once(path: str) -> int:
    """Takes its process with it the first time."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(9)
    return current_job().attempt


@bus.job(queue="slow", timeout_s=1)
def spin() -> None:
    sum(itertools.repeat(0))


@bus.job(queue="slow")
def hold(begun: str, go: str) -> str:
    """Says that it has begun, and ends when it may."""
    with open(begun, "a") as file:
        file.write("begun\n")
    while not Path(go).exists():
        time.sleep(0.005)
    return "done"


@bus.job(queue="slow")
def say(text: str) -> None:
    print(text, flush=True)


@bus.service("shout")
def shout(body: bytes) -> bytes:
    return body.upper()
