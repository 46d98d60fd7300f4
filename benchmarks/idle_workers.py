"""What thousands of connected, idle workers cost: CPU and memory of the broker, and whether any is lost.

Every worker is an MDR worker with a socket and an identity of its own that sends a PING every 2.5 s, as the
draft says, from a few processes that stand in for thousands of programs.  All must be alive at the end; then
some requests go to random services, and every one must be answered by a worker that offers it.

    python benchmarks/idle_workers.py [--quick] [--workers 10000] [--seconds 60] [--services 100]

Exit status 1 if a worker was lost, or anything else broke.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import _parts as parts
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from polybus import Client
from polybus.errors import PolybusError

PING_S = 2.5
# The broker gives a worker up after three silent intervals.
DEAD_AFTER_S = 3 * PING_S
# Each worker needs two descriptors in its process: the connection, and libzmq's own signal.
WORKERS_PER_PROCESS = 2500
# Descriptors that a process needs beside its connections.
SPARE_FILES = 200
CONNECT_S = 180.0
LOOK_EVERY_S = 2.0


@dataclass
class Findings:
    workers: int = 0
    alive: int = 0
    connect_s: float = 0.0
    fewest: int = 0
    missed_beats: int = 0
    workers_lost: int = 0
    cpu_main: float = 0.0
    cpu_others: float = 0.0
    rss_empty_mib: float = 0.0
    rss_mib: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    answered_by: set[bytes] = field(default_factory=set)
    fleet: dict[str, float] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return self.cpu_main + self.cpu_others

    @property
    def is_whole(self) -> bool:
        dismissed = self.fleet.get("dismissed", 0) + self.fleet.get("strange", 0)
        return self.alive == self.fewest == self.workers and not self.workers_lost and not dismissed

    def latency_ms(self, share: float) -> float:
        return sorted(self.latencies_ms)[int(len(self.latencies_ms) * share)]


def check_files(workers: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and workers + SPARE_FILES > hard:
        raise parts.Broken(
            f"{workers} connections need more open files than the {hard} a process may have here; "
            f"raise the limit (ulimit -Hn) or take --workers {max(1, hard - SPARE_FILES)}"
        )


def run(workers: int, seconds: float, services: int, calls: int) -> Findings:
    check_files(workers)
    found = Findings(workers)
    with contextlib.ExitStack() as stack:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        broker = stack.enter_context(parts.broker())
        stack.enter_context(progress)
        found.rss_empty_mib = parts.rss_mib(broker.pid)
        fleets = connect(stack, progress, broker, found, services)
        watch(progress, broker, found, seconds)
        call_some(progress, broker, found, services, calls)
        broker.check()
        found.fleet = recall(fleets)
    return found


def status(broker: parts.Running) -> dict[str, Any]:
    answer: dict[str, Any] = parts.ask_admin(broker.endpoints["admin.port"], "status")
    return answer


def connect(
    stack: contextlib.ExitStack, progress: Progress, broker: parts.Running, found: Findings, services: int
) -> list[parts.Running]:
    """Start the workers, and wait until the broker knows them all."""
    task = progress.add_task("connecting", total=found.workers)
    began = time.monotonic()
    fleets = []
    for first in range(0, found.workers, WORKERS_PER_PROCESS):
        numbers = (first, min(WORKERS_PER_PROCESS, found.workers - first), services, PING_S)
        command = [sys.executable, str(parts.HERE / "_fleet.py"), broker.endpoints["majordomo.workers"]]
        fleets.append(stack.enter_context(parts.started([*command, *map(str, numbers)])))

    def all_known() -> bool:
        known = status(broker)["workers"]
        progress.update(task, completed=known)
        return bool(known == found.workers)

    parts.wait_until(all_known, CONNECT_S, f"{found.workers} workers connected")
    found.connect_s = time.monotonic() - began
    return fleets


def watch(progress: Progress, broker: parts.Running, found: Findings, seconds: float) -> None:
    """Let time pass, and see what it costs and who is still there."""
    task = progress.add_task("idling, seconds", total=round(seconds))
    found.fewest = found.workers
    before, began = parts.cpu_of(broker.pid), time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        progress.update(task, completed=round(elapsed))
        time.sleep(min(LOOK_EVERY_S, seconds - elapsed))
        found.fewest = min(found.fewest, status(broker)["workers"])
    elapsed = time.monotonic() - began
    used = parts.cpu_of(broker.pid) - before
    found.cpu_main, found.cpu_others = used.main / elapsed * 100, used.others / elapsed * 100
    found.rss_mib = parts.rss_mib(broker.pid)
    views = parts.ask_admin(broker.endpoints["admin.port"], "workers", 60.0)
    # One that was lost and came back is not one that stayed.
    stayed = [view for view in views if view["up_s"] >= elapsed and view["silent_s"] < DEAD_AFTER_S]
    found.alive = len({view["worker"] for view in stayed})
    found.missed_beats = sum(view["missed_beats"] for view in views)
    found.workers_lost = status(broker)["workers_lost"]


def call_some(progress: Progress, broker: parts.Running, found: Findings, services: int, calls: int) -> None:
    task = progress.add_task("calling", total=calls)
    chance = random.Random(1)
    with Client(broker.endpoints["majordomo.clients"]) as client:
        for _ in range(calls):
            number = chance.randrange(min(services, found.workers))
            began = time.perf_counter()
            name = client.call(f"idle.{number}", b"who are you?")
            found.latencies_ms.append((time.perf_counter() - began) * 1000)
            if int(name.rpartition(b"-")[2]) % services != number:
                raise parts.Broken(f"service idle.{number} was answered by {name!r}, which does not offer it")
            found.answered_by.add(name)
            progress.advance(task)


def recall(fleets: Sequence[parts.Running]) -> dict[str, float]:
    """Stop the workers and add up what they saw; of times, the longest."""
    total: dict[str, float] = {}
    for fleet in fleets:
        parts.stop(fleet.process)
        report = json.loads(fleet.log.read_text().splitlines()[-1])
        for name, value in report.items():
            total[name] = (
                max(total.get(name, 0), value) if name.endswith("_s") else total.get(name, 0) + value
            )
    return total


def show(console: Console, found: Findings, seconds: float) -> None:
    per_worker = (found.rss_mib - found.rss_empty_mib) * 1024 / found.workers
    fleet = found.fleet
    table = Table(title=f"{found.workers:,} idle workers for {seconds:.0f} s", title_justify="left")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for what, figure in (
        ("alive all the time", f"{found.alive:,}"),
        ("fewest seen at any moment", f"{found.fewest:,}"),
        ("given up by the broker", f"{found.workers_lost:,}"),
        ("told to leave", f"{fleet['dismissed']:,.0f}"),
        ("heartbeats that came late", f"{found.missed_beats:,}"),
        ("PINGs sent / PONGs got", f"{fleet['pings']:,.0f} / {fleet['pongs']:,.0f}"),
        ("a PING left late by at most", f"{fleet['latest_ping_s']:.2f} s"),
        ("a worker heard nothing for at most, at the end", f"{fleet['longest_silence_s']:.2f} s"),
        ("until all were connected", f"{found.connect_s:.1f} s"),
        ("broker's CPU, main thread", f"{found.cpu_main:.1f} % of a core"),
        ("broker's CPU, other threads", f"{found.cpu_others:.1f} % of a core"),
        ("broker's memory", f"{found.rss_mib:.0f} MiB"),
        ("of it for each worker", f"{per_worker:.0f} KiB"),
        ("requests answered, by as many workers", f"{len(found.latencies_ms):,}, {len(found.answered_by):,}"),
        ("their latency, p50 / p99", f"{found.latency_ms(0.5):.2f} / {found.latency_ms(0.99):.2f} ms"),
    ):
        table.add_row(what, figure)
    console.print(table)


def record(found: Findings, seconds: float) -> dict[str, object]:
    """What `figures.py` takes from this run."""
    flat = {
        "alive": found.alive,
        "cpu_percent": round(found.cpu, 1),
        "rss_mib": round(found.rss_mib),
        "p50_ms": round(found.latency_ms(0.5), 3),
        "p99_ms": round(found.latency_ms(0.99), 3),
    }
    mishaps = {
        "workers_lost": found.workers_lost,
        "workers_dismissed": int(found.fleet.get("dismissed", 0) + found.fleet.get("strange", 0)),
        "missed_beats": found.missed_beats,
    }
    text = f"{found.workers:,} idle workers for {seconds:.0f} s: none is lost"
    goal = parts.Goal(text, found.alive, found.is_whole)
    return parts.for_record(flat, [goal], {name: count for name, count in mishaps.items() if count})


def main() -> int:
    parser = argparse.ArgumentParser(description="What thousands of idle workers cost.")
    parser.add_argument("--quick", action="store_true", help="1,000 workers for 10 s, for CI")
    parser.add_argument("--workers", type=int, help="how many (10000; quick: 1000)")
    parser.add_argument("--seconds", type=float, help="how long they idle (60; quick: 10)")
    parser.add_argument("--services", type=int, default=100, help="how many services they share (100)")
    parser.add_argument("--calls", type=int, help="requests at the end (1000; quick: 200)")
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    options = parser.parse_args()
    workers = options.workers or (1000 if options.quick else 10_000)
    seconds = options.seconds or (10.0 if options.quick else 60.0)
    calls = options.calls or (200 if options.quick else 1000)
    if min(workers, seconds, calls, options.services) <= 0:
        parser.error("numbers must be more than 0")
    parts.end_children_with_us()
    try:
        found = run(workers, seconds, options.services, calls)
    except (parts.Broken, PolybusError) as error:
        Console(stderr=True).print(f"[red]idle-workers: something is broken[/]: {error}", highlight=False)
        return 1
    if options.json:
        figures = {
            name: value for name, value in vars(found).items() if isinstance(value, int | float | dict)
        }
        latency = {f"p{share}_ms": round(found.latency_ms(share / 100), 3) for share in (50, 99)}
        report = {**figures, **latency, "answered_by": len(found.answered_by)}
        print(json.dumps({**report, **record(found, seconds)}, indent=1))
    else:
        show(Console(), found, seconds)
        counted = f"workers={found.workers} alive={found.alive}"
        print(f"idle-workers: {counted} cpu={found.cpu:.1f}% rss={found.rss_mib:.0f} MiB")
    return 0 if found.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
