"""Jobs that behave badly, for tests of the pool: `support.pool_app:bus`."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from polybus import Bus, JobInterrupted, current_job

bus = Bus()
hoard: list[bytes] = []


@bus.job
def double(n: int) -> int:
    return 2 * n


@bus.job
def pid() -> int:
    return os.getpid()


@bus.job
def note(path: str, word: str) -> int:
    """Adds a line to a file, whole; returns the process that did."""
    with open(path, "a") as file:
        file.write(word + "\n")
    return os.getpid()


@bus.job
def leave(status: int) -> None:
    os._exit(status)


@bus.job
def die(number: int) -> None:
    os.kill(os.getpid(), number)


@bus.job
def spin() -> None:
    """Never returns to Python, so no handler of a signal ever runs."""
    sum(itertools.repeat(0))


@bus.job
def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.005)
    return "found"


@bus.job
def tidy(path: str) -> None:
    """Sleeps, and cleans up when it is interrupted."""
    try:
        Path(path).write_text("begun")
        time.sleep(60)
    except JobInterrupted as interrupted:
        Path(path).write_text(f"cleaned up: {interrupted.reason}")
        raise


@bus.job
def stubborn(path: str) -> None:
    """Does not let itself be interrupted."""
    state = "begun"
    while True:
        try:
            Path(path).write_text(state)
            time.sleep(60)
        except BaseException:
            state = "ignored"


@bus.job
async def nap(path: str) -> str:
    Path(path).write_text("begun")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(path).write_text("cleaned up")
        raise
    return "awake"


@bus.job
def start_program(path: str) -> None:
    """Starts a program that would outlive it."""
    code = f"import time, os; open({path!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


@bus.job
def close_everything() -> None:
    os.closerange(3, 256)
    time.sleep(60)


@bus.job
def grow(megabytes: int) -> int:
    hoard.append(bytes(os.urandom(1)) * (megabytes << 20))
    return os.getpid()


@bus.job
def repeat(text: str, times: int) -> str:
    return text * times


@bus.job
def say(text: str) -> None:
    print(text, flush=True)
    print(text.upper(), file=sys.stderr, flush=True)


@bus.job
def steps(count: int) -> int:
    for step in range(count):
        current_job().progress(step)
    return count


@bus.service("echo")
def echo(body: bytes) -> Any:
    return body


if "POOL_APP_FILE" in os.environ:
    # What happens around jobs, for tests of hooks.
    def _note(word: str) -> None:
        note.function(os.environ["POOL_APP_FILE"], word)

    bus.hooks["start"].append(lambda: _note("start"))
    bus.hooks["stop"].append(lambda: _note("stop"))
