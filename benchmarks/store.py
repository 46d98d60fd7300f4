"""What the store takes: lines and commits a second, and what they cost.

Each job is an `Accepted`, a `Started`, and an `Ended` with an outcome; outcomes are forgotten once there
are as many as a broker keeps.  Two ways to look at it:

    alone      the store itself, one transaction after the other, by jobs in a transaction
    scribe     through the scribe, from a loop that is busy with other things and waits for nobody

    python benchmarks/store.py [--seconds 3] [--body 120] [--busy-us 10] [--dir .]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from polybus.core.ledger import Accepted, Ended, Forgotten, JobEntry, Line, Outcome, Started
from polybus.core.model import JobOptions
from polybus.server.scribe import Scribe, Written
from polybus.store.sqlite import SqliteStore

OUTCOMES_KEPT = 100_000
OPTIONS = JobOptions(guarantee=True, retries=3)


class Jobs:
    """An endless row of jobs, and the lines of their lives."""

    def __init__(self, body_bytes: int) -> None:
        self._body = [b"x" * body_bytes]
        self._numbers = itertools.count()
        self._kept: deque[bytes] = deque()

    def accepted(self, count: int) -> list[JobEntry]:
        return [
            JobEntry(
                token=b"0123abcd-%x" % number,
                link="emqp",
                identity=b"\0abcd",
                request_id=b"request-%d" % number,
                voice="emqp",
                service=b"email",
                body=self._body,
                options=OPTIONS,
                accepted_at=1.7e9 + number,
            )
            for number in itertools.islice(self._numbers, count)
        ]

    def ended(self, jobs: list[JobEntry]) -> list[Line]:
        lines: list[Line] = []
        for job in jobs:
            who = (job.token, job.link, job.identity, job.request_id, job.service)
            lines.append(Ended(job.token, Outcome(*who, at=1.7e9, body=[b"true"])))
            self._kept.append(job.token)
        if len(self._kept) > OUTCOMES_KEPT:
            old = tuple(self._kept.popleft() for _ in range(len(self._kept) - OUTCOMES_KEPT))
            lines.append(Forgotten(old))
        return lines


def transactions(jobs: Jobs, at_once: int) -> Iterator[list[Line]]:
    """Jobs end in the transaction after the next, as they do when workers are quick."""
    running: deque[list[JobEntry]] = deque()
    while True:
        new = jobs.accepted(at_once)
        running.append(new)
        lines: list[Line] = [Accepted(job) for job in new]
        if len(running) > 2:
            lines += jobs.ended(running.popleft())
        yield lines


def alone(folder: Path, at_once: int, body_bytes: int, seconds: float) -> str:
    store = SqliteStore(folder)
    store.load()
    commits = lines = 0
    spent = cpu = longest = 0.0
    source = transactions(Jobs(body_bytes), at_once)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        batch = next(source)
        start, start_cpu = time.perf_counter(), time.thread_time()
        store.write(batch)
        took = time.perf_counter() - start
        cpu += time.thread_time() - start_cpu
        spent += took
        longest = max(longest, took)
        commits += 1
        lines += len(batch)
    store.close()
    jobs = commits * at_once
    return (
        f"{lines / spent:9,.0f} lines/s {jobs / spent:8,.0f} jobs/s {commits / spent:6,.0f} commits/s "
        f"{cpu / jobs * 1e6:6.1f} µs CPU a job   longest commit {longest * 1000:.0f} ms"
    )


def through_scribe(folder: Path, body_bytes: int, seconds: float, busy_us: float, outstanding: int) -> str:
    store = SqliteStore(folder)
    store.load()
    woken = threading.Event()
    scribe = Scribe(store, woken.set)
    scribe.start()
    jobs = Jobs(body_bytes)
    waiting: deque[tuple[int, list[JobEntry]]] = deque()
    answering: deque[tuple[int, int]] = deque()
    running: list[JobEntry] = []
    done = number = written = in_flight = 0
    began = time.perf_counter()
    first = store.commit
    while time.perf_counter() - began < seconds:
        for result in scribe.results():
            if isinstance(result, Written):
                written = result.number
        lines: list[Line] = []
        if running:
            lines += jobs.ended(running)
            answering.append((number + 1, len(running)))
            running = []
        while waiting and waiting[0][0] <= written:
            running += waiting.popleft()[1]
        lines += [Started(job.token, 1, "worker-1") for job in running]
        while answering and answering[0][0] <= written:
            count = answering.popleft()[1]
            done += count
            in_flight -= count
        new = jobs.accepted(min(256, outstanding - in_flight))
        if new:
            in_flight += len(new)
            waiting.append((number + 1, new))
            lines += [Accepted(job) for job in new]
        if lines:
            number += 1
            scribe.submit(number, lines)
            until = time.perf_counter() + len(lines) / 3 * busy_us / 1e6
            while time.perf_counter() < until:
                pass
        else:
            woken.wait(0.1)
        woken.clear()
    spent = time.perf_counter() - began
    commits = store.commit - first
    lost = scribe.stop(60)
    figures = f"{done / spent:8,.0f} jobs/s {commits / spent:6,.0f} commits/s"
    return f"{figures} {lost} LINES LOST" if lost else figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--body", type=int, default=120, help="bytes of a job's body")
    parser.add_argument("--busy-us", type=float, default=10.0, help="what the loop does beside, for each job")
    parser.add_argument("--dir", type=Path, default=Path("."), help="on the disk that is to be measured")
    options = parser.parse_args()
    for at_once in (1, 20, 100, 500, 2000):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            figures = alone(Path(folder), at_once, options.body, options.seconds)
        print(f"alone, {at_once:4d} jobs a commit: {figures}")
    for outstanding in (1, 256, 2048, 8192):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            path = Path(folder)
            figures = through_scribe(path, options.body, options.seconds, options.busy_us, outstanding)
        print(f"scribe, {outstanding:4d} in flight: {figures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
