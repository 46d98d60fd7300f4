"""Guaranteed jobs per second, from one producer to the end of the last job: polybus, Celery and Dramatiq.

The job does nothing.  One process produces, two run jobs, and everything shares this machine, as in the
smallest real installation.  The clock runs from before the first job is sent until every one has run and
its queue knows that it has.  Contestants take turns, round after round; what counts is the ratio of their
medians.

polybus has two producers: one sends each job with a call of its own, as Celery's and Dramatiq's producers do,
and one sends all jobs in a batch, for which the others have no equal.  `_jobs_sides.py` says how each side
sends and when its jobs are safe.

    python benchmarks/jobs.py [--quick] [--rounds 5] [--seconds 3] [--only celery …] [--fsync always] [--json]

Every guaranteed job of polybus is on disk (SQLite, synchronous FULL) before it is acknowledged.  Redis
syncs its append-only file once a second, which is its default and faster; `--fsync always` makes it
promise the same.

The exit status says whether everything worked, not whether it was fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import _jobs_parts as jobs
import _parts as parts
from _jobs_sides import FSYNC, SIDES, durability
from _jobs_tally import FOLDER_VARIABLE, processes
from broker import MISHAPS as BROKER_MISHAPS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

PROCESSES: Final = 2
# Of a worker of polybus, which asks for fewer where jobs take long: many of these short ones fit in a batch.
PREFETCH: Final = 500
# Enough that both processes of a contestant have begun, and to know roughly how fast it is.
WARMUP_JOBS: Final = 300
# The first is cold; the second says how many jobs a turn has.
WARMUPS: Final = 3
MOST_WARMUPS: Final = 20
MAX_JOBS: Final = 200_000
# A producer that waits for jobs that never end.
GIVE_UP_S: Final = 60.0
# Of polybus' batches against the single calls of the others.  Single calls against single calls have no goal.
GOALS: Final = {"celery": 20.0, "dramatiq": 10.0}
# Counters of the broker that stay at zero when nothing goes wrong.  Every job is counted as well, so these
# are told and do not make the run fail.
MISHAPS: Final = (*BROKER_MISHAPS, "internal_errors")


@dataclass(frozen=True)
class Contestant:
    """How a job queue is started: its workers, its producer, and how people should know it."""

    name: str
    settings: str
    workers: Sequence[str]
    producer: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return SIDES[self.name].title


@dataclass
class Figures:
    rates: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    # Of all processes, and of each part: the server, the workers, the producer.
    cpu_us: list[float] = field(default_factory=list)
    parts_us: list[Sequence[float]] = field(default_factory=list)
    jobs: int = 0

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


class Running:
    """A contestant whose processes are there."""

    def __init__(self, folder: Path, contestant: Contestant, servers: Sequence[jobs.Group]) -> None:
        self.contestant = contestant
        self._stack = contextlib.ExitStack()
        self._tally = folder / f"tally-{contestant.name}"
        self._tally.mkdir()
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("POLYBUS_")},
            **contestant.environ,
            FOLDER_VARIABLE: str(self._tally),
            "BENCH_JOBS_GIVE_UP_S": str(GIVE_UP_S),
            "PYTHONPATH": str(parts.HERE),
        }
        with self._stack:
            self._workers = self._start(
                contestant.workers, environ, folder / f"{contestant.name}-workers.log"
            )
            self._producer = self._start(
                contestant.producer, environ, folder / f"{contestant.name}.log", True
            )
            self._groups = [*servers, self._workers, self._producer]
            if self._producer.line(parts.PATIENCE_S) != "ready":
                raise parts.Broken(f"{contestant.name}: the producer did not get ready")
            self._stack = self._stack.pop_all()

    def _start(
        self, command: Sequence[str], environ: Mapping[str, str], log: Path, talks: bool = False
    ) -> jobs.Group:
        return self._stack.enter_context(jobs.Group(command, environ, log, talks))

    def turn(self, count: int, figures: Figures | None = None) -> float:
        """Have so many jobs done: how many a second."""
        for group in self._groups:
            group.check()
        before = self._cpu()
        self._producer.order(str(count))
        found = jobs.read_json(self._producer.line(GIVE_UP_S * 2))
        used = [(now - then) / count * 1e6 for now, then in zip(self._cpu(), before, strict=True)]
        if found["ran"] != count or found["left"]:
            facts = f"{found['ran']} of {count} jobs ran, {found['left']} are left"
            raise parts.Broken(f"{self.contestant.name}: {facts}\n{self._workers.words()}")
        rate = count / float(found["seconds"])
        if figures is not None:
            figures.rates.append(rate)
            figures.sent.append(count / float(found["sent_s"]))
            figures.cpu_us.append(sum(used))
            figures.parts_us.append(used)
            figures.jobs = count
        return rate

    def _cpu(self) -> list[float]:
        """CPU seconds of the server, the workers and the producer."""
        return [jobs.cpu_of_groups([group]) for group in self._groups]

    def warm_up(self, seconds: float) -> int:
        """How many jobs take about so long."""
        count = WARMUP_JOBS
        for number in range(MOST_WARMUPS):
            rate = self.turn(count)
            count = max(WARMUP_JOBS, min(MAX_JOBS, int(rate * seconds)))
            ran = processes(self._tally)
            # On a busy machine one process may be through before the other has started.
            if number + 1 >= WARMUPS and ran >= PROCESSES:
                break
        if ran != PROCESSES:
            raise parts.Broken(f"{self.contestant.name}: jobs ran in {ran} processes, not in {PROCESSES}")
        return count

    def close(self) -> None:
        self._stack.close()


# -- the contestants ----------------------------------------------------------------------------


def script(name: str) -> str:
    return str(parts.HERE / f"_jobs_{name}.py")


def celery(peers: Path, socket: Path) -> Contestant:
    options = ["--pool", "prefork", "--concurrency", str(PROCESSES), "--loglevel", "WARNING"]
    chatter = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return Contestant(
        "celery",
        f"prefork, {PROCESSES} processes, acks_late, prefetch multiplier 4, no results, no gossip",
        [str(peers / "bin" / "celery"), "-A", "_jobs_celery", "worker", *options, *chatter],
        [str(peers / "bin" / "python"), script("celery")],
        {"BENCH_JOBS_REDIS": str(socket), "C_FORCE_ROOT": "1"},
    )


def dramatiq(peers: Path, socket: Path) -> Contestant:
    return Contestant(
        "dramatiq",
        f"{PROCESSES} processes of 8 threads (its default), prefetch 16 (its default), usual middleware",
        [str(peers / "bin" / "dramatiq"), "--processes", str(PROCESSES), "_jobs_dramatiq"],
        [str(peers / "bin" / "python"), script("dramatiq")],
        {"BENCH_JOBS_REDIS": str(socket)},
    )


PEERS: Final[dict[str, Callable[[Path, Path], Contestant]]] = {"celery": celery, "dramatiq": dramatiq}


# The contestants of polybus, and what their producer is told.
OURS: Final = {"polybus": "batch", "polybus_single": "single"}
ALL: Final = (*OURS, *PEERS)


def polybus(name: str, folder: Path) -> Contestant:
    endpoints = json.loads((folder / "data" / "endpoints.json").read_text())["endpoints"]
    binaries = Path(sys.executable).parent
    options = ["--processes", str(PROCESSES), "--prefetch", str(PREFETCH)]
    options += ["--broker", endpoints["emqp.workers"]]
    return Contestant(
        name,
        f"{PROCESSES} processes, prefetch {PREFETCH}, every job guaranteed: SQLite, synchronous FULL",
        [str(binaries / "polybus"), "worker", "_jobs_polybus:bus", *options],
        [sys.executable, script("polybus")],
        {"BENCH_JOBS_ENDPOINTS": json.dumps(endpoints), "BENCH_JOBS_SEND": OURS[name]},
    )


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[jobs.Group]:
    """`polybus serve`, with its data in this folder."""
    command = parts.broker_command(str(folder / "data"))
    with jobs.Group(command, parts.broker_environment(), folder / "broker.log") as group:
        parts.wait_until(lambda: group.said("ready"), parts.PATIENCE_S, "the broker was not ready", 0.02)
        yield group


class Arena:
    """Everything that runs during the benchmark."""

    def __init__(self, folder: Path, wanted: Sequence[str], fsync: str) -> None:
        self.running: dict[str, Running] = {}
        self.skipped: dict[str, str] = {}
        self._admin = ""
        with contextlib.ExitStack() as stack:
            ours = [name for name in wanted if name in OURS]
            if ours:
                server = stack.enter_context(broker(folder))
                for name in ours:
                    self._add(stack, folder, polybus(name, folder), server)
                self._admin = json.loads((folder / "data" / "endpoints.json").read_text())["endpoints"][
                    "admin.port"
                ]
            peers = [name for name in wanted if name in PEERS]
            try:
                if peers:
                    environment = jobs.peers_environment()
                    server, socket = stack.enter_context(jobs.redis(folder, fsync))
                    for name in peers:
                        self._add(stack, folder, PEERS[name](environment, socket), server)
            except jobs.Missing as error:
                self.skipped = dict.fromkeys(peers, str(error))
            self._stack = stack.pop_all()

    def _add(
        self, stack: contextlib.ExitStack, folder: Path, contestant: Contestant, server: jobs.Group
    ) -> None:
        running = Running(folder, contestant, [server])
        stack.callback(running.close)
        self.running[contestant.name] = running

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def mishaps(self) -> dict[str, int]:
        """What the broker counted that should not have happened."""
        if not self._admin:
            return {}
        return parts.counted(parts.ask_admin(self._admin, "status"), MISHAPS)

    def run(self, rounds: int, seconds: float) -> dict[str, Figures]:
        results = {name: Figures() for name in self.running}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("warming up", total=(rounds + 1) * len(self.running))
            counts = {}
            for name, running in self.running.items():
                counts[name] = running.warm_up(seconds)
                progress.advance(task)
            for number in range(rounds):
                for name, running in self.running.items():
                    progress.update(task, description=f"round {number + 1}: {running.contestant.title}")
                    running.turn(counts[name], results[name])
                    progress.advance(task)
        return results


# -- showing ------------------------------------------------------------------------------------


def ratio(results: Mapping[str, Figures], to: str, of: str = "polybus") -> float | None:
    """How many times as fast one is as the other, if both ran."""
    if of not in results or to not in results:
        return None
    return results[of].rate / results[to].rate


def goals(results: Mapping[str, Figures]) -> list[parts.Goal]:
    """Those goals that the contestants that ran can answer."""
    found = []
    for name, goal in GOALS.items():
        times = ratio(results, name)
        if times is not None:
            text = f"jobs in batches, multiple of {name.capitalize()}'s one call per job: at least {goal:g}"
            found.append(parts.Goal(text, times, times >= goal))
    return found


def flat(results: Mapping[str, Figures]) -> dict[str, float]:
    """The figures of this run for the record: jobs a second, and the ratios."""
    found = {name: round(figures.rate) for name, figures in results.items()}
    ratios = {
        f"{of}_to_{to}": round(times, 2)
        for of in OURS
        for to in PEERS
        if (times := ratio(results, to, of)) is not None
    }
    return {**found, **ratios}


def show(
    console: Console,
    arena: Arena,
    results: Mapping[str, Figures],
    fsync: str,
    mishaps: Mapping[str, int],
) -> None:
    table = Table(title="Guaranteed jobs, one producer, no-op", title_justify="left")
    table.add_column("queue")
    for name in ("jobs/s, median", "min–max", "sent/s", "CPU µs/job", "of it", "jobs a turn"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("settings")
    for name, figures in results.items():
        table.add_row(
            arena.running[name].contestant.title,
            f"{figures.rate:,.0f}",
            f"{min(figures.rates):,.0f}–{max(figures.rates):,.0f}",
            f"{statistics.median(figures.sent):,.0f}",
            f"{statistics.median(figures.cpu_us):,.0f}",
            " + ".join(f"{statistics.median(part):,.0f}" for part in zip(*figures.parts_us, strict=True)),
            f"{figures.jobs:,}",
            arena.running[name].contestant.settings,
        )
    console.print(table)
    for name, why in arena.skipped.items():
        console.print(f"  [yellow]skipped[/] {name}: {why}", highlight=False)
    console.print("How each side sends, and where a job is when its call returns:", highlight=False)
    for name in results:
        side = SIDES[name]
        console.print(f"  {side.title}: {side.sends}; {durability(name, fsync)}", highlight=False)
    for of, words in (
        ("polybus_single", "one call per job on both sides"),
        ("polybus", "polybus in batches, the other one by one"),
    ):
        for to in PEERS:
            times = ratio(results, to, of)
            if times is not None:
                console.print(f"  {times:6.2f} × {to.capitalize()}: {words}", highlight=False)
    for goal in goals(results):
        mark = "[green]met[/]    " if goal.met else "[yellow]not met[/]"
        console.print(f"  {mark} {goal.value:5.1f}  {goal.text}", highlight=False)
    if mishaps:
        console.print(f"  [yellow]the broker counted[/] {dict(mishaps)}", highlight=False)


def summary(results: Mapping[str, Figures]) -> str:
    """The line that scripts look for. `polybus` and `ratio` are of batches, `single` of one call per job."""

    def rate(name: str) -> str:
        return str(round(results[name].rate)) if name in results else "-"

    def times(of: str) -> str:
        found = ratio(results, "celery", of)
        return "-" if found is None else f"{found:.2f}"

    rates = " ".join(f"{name}={rate(name)}" for name in ("polybus", *PEERS))
    single = f"single={rate('polybus_single')} single_ratio={times('polybus_single')}"
    return f"bench-jobs: {rates} ratio={times('polybus')} {single}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Guaranteed jobs per second: polybus, Celery, Dramatiq.")
    parser.add_argument("--quick", action="store_true", help="short turns, for CI")
    parser.add_argument("--rounds", type=int, help="how often each has its turn (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="how long a turn takes, about (3; quick: 0.7)")
    parser.add_argument("--only", action="append", choices=ALL, help="only this one; may be repeated")
    parser.add_argument(
        "--fsync",
        choices=list(FSYNC),
        default="everysec",
        help="when Redis syncs its file: once a second (its default), or before every answer",
    )
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (0.7 if options.quick else 3.0)
    options.only = options.only or list(ALL)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds are more than 0")
    return options


def main() -> int:
    options = parse()
    parts.end_children_with_us()
    parts.CACHE.mkdir(parents=True, exist_ok=True)
    # Beside the checkout, and not in /tmp, which may be memory: the disk is part of what is measured.
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parts.CACHE))
    try:
        sync_ms = jobs.sync_ms(folder)
        with Arena(folder, options.only, options.fsync) as arena:
            results = arena.run(options.rounds, options.seconds)
            mishaps = arena.mishaps()
    except parts.Broken as error:
        Console(stderr=True).print(f"[red]bench-jobs: something is broken[/]: {error}", highlight=False)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = {
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": sys.version.split()[0],
        "a sync of this disk": f"{sync_ms:.2f} ms",
        "Redis": f"append-only file, fsync {options.fsync}, Unix socket",
        "rounds": options.rounds,
    }
    if options.json:
        queues = {
            name: {
                **vars(found),
                "rate": found.rate,
                "sends": SIDES[name].sends,
                "durability": durability(name, options.fsync),
            }
            for name, found in results.items()
        }
        report = {
            **facts,
            "skipped": arena.skipped,
            "queues": queues,
            **parts.for_record(flat(results), goals(results), mishaps),
        }
        print(json.dumps(report, indent=1))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(
        ", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, markup=False
    )
    show(console, arena, results, options.fsync, mishaps)
    print(summary(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
