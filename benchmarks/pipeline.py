"""Events per second from the journal into tables, beside bare Spark and DuckDB; and how fresh tables are.

    python benchmarks/pipeline.py [--quick] [--events 5000000] [--rounds 2] [--seconds 30] [--json]

A journal of five million events is made first (`_pipeline_journal.py`).  All measurements are of one run, and
of one Spark session in this process:

    scan     bare Spark reads the same columns of the same files, and drops them
    build    all tables from nothing, as `polybus pipeline build` does; once cold, then warm
    stream   the same journal as a backlog of `polybus pipeline run`, in batches as it takes them
    duckdb   the same tables by DuckDB (`_pipeline_duckdb.py`), with as many threads
    fresh    `polybus pipeline run` beside a journal that grows by 5,000 events a second, through the broker's
             writer and archiver: from an event to its row in service_metrics, as another process sees it

Cold is the first build after the session has started: Java compiles while it works, and goes on with that for
some builds.  Warm are those after two more of the whole journal, which are told but not counted; the files of
the journal are in the page cache for everybody.

The exit status says whether everything worked and the tables have as many rows as DuckDB's, not whether it
was fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import _parts as parts
import psutil
from _pipeline_duckdb import build as build_with_duckdb
from _pipeline_journal import ROWS, Generator
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from polybus.spark.pipeline import EVENTS, Pipeline
from polybus.spark.session import open_session
from polybus.spark.tables import read_table

HERE: Final = Path(__file__).resolve().parent
NAMES: Final = (
    *("traces", "service_metrics", "calls", "workers", "last_values", "topics", "logs", "dead_letters"),
    "alerts",
)
GOALS: Final = {"batch": 400_000.0, "batch of scan": 0.2, "stream": 150_000.0, "fresh p95": 5.0}
FRESH_RATE: Final = 5_000
LOOK_S: Final = 0.1
# Of the whole journal, before it counts.
WARM_BUILDS: Final = 2
# After so many versions of the table the stream of a fresh Java has found its pace.
WARM_BATCHES: Final = 8
PATIENCE_S: Final = 300.0


@dataclass(frozen=True)
class Took:
    """Seconds by the clock, and of CPU time of this process and Java together."""

    wall: float
    cpu: float


def cpu_s() -> float:
    """CPU seconds so far, of this process and all that it started."""
    us = psutil.Process()
    total = 0.0
    for process in (us, *us.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


class Watch:
    """Takes the time."""

    def __init__(self) -> None:
        self._cpu = cpu_s()
        self._began = time.monotonic()

    def stop(self) -> Took:
        return Took(time.monotonic() - self._began, cpu_s() - self._cpu)


class Bench:
    def __init__(self, folder: Path, events: int, rounds: int, fresh_s: float, console: Console) -> None:
        self._folder = folder
        self._segments = max(2, events // ROWS)
        self._rounds = rounds
        self._fresh_s = fresh_s
        self._console = console
        self._tables = 0
        self.figures: dict[str, Any] = {}
        self.trouble: list[str] = []

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def run(self) -> None:
        big, small = self._folder / "big", self._folder / "small"
        events, fifth = self._make(big, small)
        spark = open_session()
        try:
            self._measure(spark, big, small, events, fifth)
        finally:
            spark.stop()
        try:
            self.figures["fresh"] = self._fresh()
        except parts.Broken as error:
            # The other figures are worth telling all the same.
            self.trouble.append(str(error))
            self.figures["fresh"] = {}

    def _make(self, big: Path, small: Path) -> tuple[int, int]:
        """A journal, and another that is its first fifth; how many events they have."""
        began = time.monotonic()
        generator = Generator(big)
        few = max(1, self._segments // 5)
        fifth = generator.write(few)
        shutil.copytree(big, small, copy_function=os.link)
        events = fifth + generator.write(self._segments - few)
        size = sum(path.stat().st_size for path in big.rglob("*.parquet"))
        took = time.monotonic() - began
        self.say(
            f"{events:,} events in {self._segments} segments of {size / 2**20:.0f} MiB, made in {took:.0f} s"
        )
        return events, fifth

    # -- Spark ----------------------------------------------------------------------------------

    def _measure(self, spark: Any, big: Path, small: Path, events: int, fifth: int) -> None:
        cold, _ = self._build(spark, small)
        self._note("build, cold", fifth, [cold])
        for n in range(WARM_BUILDS):
            self._note(f"build, warming up, {n + 1}", events, [self._build(spark, big)[0]])
        builds: list[Took] = []
        scans: list[Took] = []
        ducks: list[Took] = []
        smalls: list[Took] = []
        for _ in range(self._rounds):
            # Taking turns: a machine changes its speed while one looks.
            smalls.append(self._build(spark, small)[0])
            scans.append(self._scan(spark, big))
            took, counts = self._build(spark, big)
            builds.append(took)
            watch = Watch()
            others = build_with_duckdb(big, self._folder / "duckdb", os.cpu_count() or 1)
            ducks.append(watch.stop())
            if counts != others:
                self.trouble.append(f"the tables differ in their rows: {counts}, DuckDB: {others}")
        self._note("build of a fifth", fifth, smalls)
        self._note("build", events, builds)
        self._note("scan", events, scans)
        self._note("duckdb", events, ducks)
        self._note("stream", events, [self._stream(spark, big, events)])
        self.figures["rows"] = counts
        growth = {"events": events / fifth, "seconds": _median(builds) / _median(smalls)}
        cpu = [statistics.median(took.cpu for took in some) for some in (builds, smalls)]
        self.figures["growth"] = {**growth, "cpu": cpu[0] / cpu[1]}

    def _note(self, name: str, events: int, taken: list[Took]) -> None:
        rate = events / _median(taken)
        cpu = statistics.median(took.cpu for took in taken) * 1e6 / events
        self.figures[name] = {
            "events": events,
            "seconds": [round(took.wall, 2) for took in taken],
            "cpu_s": [round(took.cpu, 2) for took in taken],
            "rate": round(rate),
            "cpu_s_per_million": round(cpu, 2),
        }
        walls = ", ".join(f"{took.wall:.1f} s" for took in taken)
        self.say(f"{name}: {rate:,.0f} events/s ({walls}), {cpu:.1f} CPU s for a million")

    def _fresh_tables(self) -> Path:
        self._tables += 1
        return self._folder / f"tables-{self._tables}"

    def _build(self, spark: Any, journal: Path) -> tuple[Took, dict[str, int]]:
        tables = self._fresh_tables()
        watch = Watch()
        Pipeline(spark, str(journal), str(tables)).build()
        took = watch.stop()
        counts = {name: read_table(str(tables), name).num_rows for name in NAMES}
        shutil.rmtree(tables)
        _forget_readers(journal)
        return took, counts

    def _scan(self, spark: Any, journal: Path) -> Took:
        watch = Watch()
        rows = spark.read.schema(EVENTS).option("recursiveFileLookup", "true")
        # All that some table needs; this one none does.
        needed = rows.parquet(str(journal / "segments")).drop("client_link")
        needed.write.format("noop").mode("overwrite").save()
        return watch.stop()

    def _stream(self, spark: Any, journal: Path, events: int) -> Took:
        """From the start of the stream until all events are in the tables."""
        tables = self._fresh_tables()
        seen = 0
        batches = 0
        took = Took(float("inf"), float("inf"))

        def look(batch: Any) -> None:
            nonlocal seen, batches, took
            seen += batch.rows
            batches += 1
            if seen >= events:
                took = watch.stop()
                pipeline.stop()

        pipeline = Pipeline(spark, str(journal), str(tables), watch=look)
        watch = Watch()
        pipeline.run()
        if seen != events:
            self.trouble.append(f"the stream has seen {seen} events of {events}")
        self.figures["stream batches"] = batches
        shutil.rmtree(tables)
        _forget_readers(journal)
        return took

    # -- freshness ------------------------------------------------------------------------------

    def _fresh(self) -> dict[str, float]:
        journal, tables, out = (self._folder / name for name in ("live", "live-tables", "ends.json"))
        journal.mkdir()
        (journal / "segments").mkdir()
        polybus = str(Path(sys.executable).with_name("polybus"))
        feeder = subprocess.Popen(
            [sys.executable, str(HERE / "_pipeline_feed.py"), str(journal), str(FRESH_RATE), str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        log = (self._folder / "run.log").open("wb")
        command = [polybus, "pipeline", "run", "--journal", str(journal), "--tables", str(tables)]
        runner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            seen, warm_at = self._watch_rows(tables, runner)
        finally:
            assert feeder.stdin is not None
            feeder.stdin.close()
            parts.stop(runner)
            log.close()
            feeder.wait(PATIENCE_S)
        fed = json.loads(out.read_text())
        if fed["lost"]:
            self.trouble.append(f"the journal lost {fed['lost']} events")
        ages = sorted(_ages(fed["ends"], seen, warm_at))
        if not ages:
            raise parts.Broken("no event of the live journal came into the tables while it was watched")
        p50, p95 = (ages[int(len(ages) * q)] for q in (0.5, 0.95))
        self.say(
            f"fresh: at {fed['rate']:,.0f} events/s p50 {p50:.2f} s, p95 {p95:.2f} s, "
            f"longest {ages[-1]:.2f} s ({len(ages):,} requests)"
        )
        fresh = {"p50_s": p50, "p95_s": p95, "longest_s": ages[-1], "rate": fed["rate"]}
        return {**fresh, "lost": fed["lost"]}

    def _watch_rows(
        self, tables: Path, runner: subprocess.Popen[bytes]
    ) -> tuple[list[tuple[float, int]], float]:
        """When how many requests were in service_metrics; and from when on it counts."""
        place = str(tables / "service_metrics")
        deadline = time.monotonic() + PATIENCE_S
        seen: list[tuple[float, int]] = []
        table: DeltaTable | None = None
        warm_at = end_at = float("inf")
        pause = threading.Event()
        while time.time() < end_at:
            if runner.poll() is not None:
                raise parts.Broken(
                    f"polybus pipeline run has ended:\n{(self._folder / 'run.log').read_text()}"
                )
            if time.monotonic() > deadline:
                raise parts.Broken("the stream was not there in time")
            if table is None and DeltaTable.is_deltatable(place):
                table = DeltaTable(place)
            elif table is not None:
                before = table.version()
                table.update_incremental()
                if table.version() > before:
                    rows = table.to_pyarrow_dataset().to_table(columns=["requests"])
                    count = sum(rows["requests"].to_pylist())
                    seen.append((time.time(), count))
                    if len(seen) == WARM_BATCHES:
                        warm_at = time.time()
                        end_at = warm_at + self._fresh_s
                        deadline = time.monotonic() + self._fresh_s + PATIENCE_S
            pause.wait(LOOK_S)
        return seen, warm_at

    # -- the end --------------------------------------------------------------------------------

    def goals(self) -> list[parts.Goal]:
        batch, scan, stream = (self.figures[name]["rate"] for name in ("build", "scan", "stream"))
        found = [
            parts.Goal(f"pipeline, {what}: at least {GOALS[name]:,g}", value, value >= GOALS[name])
            for what, name, value in (
                ("events/s in a warm build", "batch", batch),
                ("a warm build, share of bare Spark", "batch of scan", batch / scan),
                ("events/s in a stream that catches up", "stream", stream),
            )
        ]
        p95 = self.figures["fresh"].get("p95_s")
        if p95 is not None:
            limit = GOALS["fresh p95"]
            found.append(parts.Goal(f"pipeline, freshness, p95: less than {limit:g} s", p95, p95 < limit))
        return found

    def record(self) -> dict[str, object]:
        """What `figures.py` takes from this run."""
        f = self.figures
        names = ("build", "stream", "scan", "duckdb")
        flat: dict[str, float] = {name: f[name]["rate"] for name in names}
        flat |= {f"{name}_cpu": f[name]["cpu_s_per_million"] for name in names}
        flat["build_of_scan"] = round(f["build"]["rate"] / f["scan"]["rate"], 4)
        flat["growth"] = round(f["growth"]["seconds"], 2)
        flat |= {name: round(f["fresh"][name], 2) for name in ("p50_s", "p95_s") if name in f["fresh"]}
        mishaps = {"wrong": len(self.trouble), "journal_lost": f["fresh"].get("lost", 0)}
        return parts.for_record(flat, self.goals(), {name: n for name, n in mishaps.items() if n})

    def report(self) -> str:
        f = self.figures
        batch, scan, stream = (f[name]["rate"] for name in ("build", "scan", "stream"))
        p95 = f["fresh"].get("p95_s", float("inf"))
        growth = f["growth"]
        table = Table("goal", "measured", "")
        for goal in self.goals():
            table.add_row(goal.text, f"{goal.value:,.2f}", "met" if goal.met else "not met")
        self._console.print(table)
        self.say(
            f"{growth['events']:.1f} times as many events took {growth['seconds']:.1f} times as long "
            f"({growth['cpu']:.1f} times the CPU time); "
            f"the stream took {f['stream batches']} batches"
        )
        return (
            f"bench-pipeline: batch={batch} stream={stream} scan={scan} duckdb={f['duckdb']['rate']} "
            f"fresh_p95={p95:.2f}"
        )


def _median(taken: list[Took]) -> float:
    return statistics.median(took.wall for took in taken)


def _ages(ends: list[int], seen: list[tuple[float, int]], since: float) -> list[float]:
    """How old each request's end was when it was first seen, for those that ended after `since`."""
    ages = []
    done = 0
    for at, count in seen:
        ages += [at - end / 1e6 for end in ends[done:count] if end / 1e6 >= since]
        done = max(done, count)
    return ages


def _forget_readers(journal: Path) -> None:
    """The tables are gone: so is the reader that made them."""
    shutil.rmtree(journal / "readers", ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="The pipeline, beside bare Spark and DuckDB.")
    parser.add_argument("--quick", action="store_true", help="few events and one round, for CI")
    parser.add_argument("--events", type=int, default=5_000_000, help="how many (5000000)")
    parser.add_argument("--rounds", type=int, default=2, help="of the warm measurements (2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long freshness is watched (30)")
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    options = parser.parse_args()
    if options.quick:
        options.events, options.rounds, options.seconds = 400_000, 1, 8.0
    parts.end_children_with_us()
    folder = Path(tempfile.mkdtemp(prefix="polybus-bench-pipeline-"))
    # With --json nothing else is printed to standard output.
    console = Console(stderr=options.json)
    bench = Bench(folder, options.events, options.rounds, options.seconds, console)
    try:
        bench.run()
        last = bench.report()
    except parts.Broken as error:
        print(f"bench-pipeline: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for trouble in bench.trouble:
        print(f"wrong: {trouble}", file=sys.stderr if options.json else sys.stdout)
    print(json.dumps({**bench.figures, **bench.record()}, indent=1) if options.json else last)
    return 1 if bench.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
