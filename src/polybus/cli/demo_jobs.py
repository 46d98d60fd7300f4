"""The demo's chapters about jobs: one that survives its worker, one that a schedule starts, and a trace."""

from __future__ import annotations

import itertools
import subprocess
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from polybus.cli import demo_app
from polybus.cli.demo_calls import POOLS, START_S
from polybus.cli.demo_stage import KilledJob, Stage, wait_until
from polybus.client.app import Bus
from polybus.errors import JournalMissing, PolybusError

if TYPE_CHECKING:
    from polybus.journal.trace import Traced

PAGES: Final = 5
# The broker takes a silent worker for lost after seconds; then the job runs from its beginning.
JOB_S: Final = 60.0
EVERY_S: Final = 0.3
RUNS: Final = 3
KEY: Final = "tidy-up"
JOURNAL_S: Final = 10.0


# -- a worker dies --------------------------------------------------------------------------------------


def worker_dies(stage: Stage) -> None:
    pools = {name: child for name, child in stage.processes.named() if name in POOLS}
    with stage.console.status("waiting for the two workers"):
        for child in pools.values():
            stage.processes.line_of(child, "ready", START_S)
    with Bus(stage.endpoints["majordomo.clients"]) as bus:
        report, _ = demo_app.jobs_of(bus)
        handle = report.delay(PAGES)
        stage.say(f"job {handle.id}: a report of {PAGES} pages, on disk before its sender was told")
        words: list[dict[str, Any]] = []
        killed = ""
        with stage.console.status("the report is being written") as status:
            for word in handle.progress(JOB_S):
                words.append(word)
                if not killed and word["page"] >= demo_app.KILL_AT_PAGE:
                    killed = word["worker"]
                    kill(stage, pools[killed])
                    status.update(f"{killed} was killed; the broker finds out that it is silent")
        finished_by = handle.get(JOB_S)
    stage.console.print(attempts_table(words, killed))
    stage.job = KilledJob(handle.id, killed, finished_by)
    stage.check(f"SIGKILL took {killed} in the middle of the job", "" if killed else "nobody was killed")
    attempts = {word["attempt"]: word["worker"] for word in words}
    other = finished_by not in ("", killed) and attempts == {1: killed, 2: finished_by}
    stage.check(
        f"{finished_by} has finished it, at the second attempt", "" if other else f"attempts: {attempts}"
    )


def kill(stage: Stage, child: subprocess.Popen[bytes]) -> None:
    stage.processes.expect_end(child)
    child.kill()


def attempts_table(words: list[dict[str, Any]], killed: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("attempt", "worker", "pages", "end"):
        table.add_column(column)
    for attempt in sorted({word["attempt"] for word in words}):
        own = [word for word in words if word["attempt"] == attempt]
        pages = max(word["page"] for word in own)
        worker = own[0]["worker"]
        end = "killed with SIGKILL" if worker == killed else "done"
        table.add_row(str(attempt), worker, f"{'▪' * pages}{'▫' * (PAGES - pages)} {pages} of {PAGES}", end)
    return table


# -- a schedule -----------------------------------------------------------------------------------------


def schedule_runs(stage: Stage) -> None:
    with Bus(stage.endpoints["majordomo.clients"]) as bus:
        _, tidy = demo_app.jobs_of(bus)
        tidy.schedule(every_s=EVERY_S, runs=RUNS, haste=True, key=KEY)

    def over() -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = stage.admin.ask("schedule_runs", key=KEY)
        return runs if len(runs) >= RUNS and _answered(stage, demo_app.TIDYING) >= RUNS else []

    with stage.console.status(f"a schedule runs every {EVERY_S:g} s"):
        runs = wait_until(over, START_S, f"the schedule did not run {RUNS} times")
    stage.runs = len(runs)
    marks = sorted(float(run["at"]) for run in runs)
    stage.say("runs at " + ", ".join(f"+{at - marks[0]:.2f} s" for at in marks))
    # On a busy machine a run may be late.
    ran = sum(run["what"] in ("ran", "late") for run in runs)
    answered = _answered(stage, demo_app.TIDYING)
    why = "" if ran == answered == RUNS else f"{ran} of {len(runs)} ran, {answered} were answered"
    stage.check(f"a schedule ran {RUNS} times, and ended", why)


def _answered(stage: Stage, service: str) -> int:
    rows = stage.admin.ask("services")
    return int(next((row["answered"] for row in rows if row["service"] == service), 0))


# -- a trace --------------------------------------------------------------------------------------------


def trace_job(stage: Stage) -> None:
    if stage.job is None:
        raise PolybusError("there is no job to trace, because its chapter failed")
    found = traced(stage, stage.job.id)
    stage.console.print(Text(f"  $ polybus trace {stage.job.id}", "dim"))
    stage.console.print(trace_table(found))
    dispatched = [row["worker"] for row in found.rows if row["what"] == "dispatched"]
    lost = [row for row in found.rows if row["what"] == "requeued"]
    end = found.end
    assert end is not None
    right = len(set(dispatched)) == 2 and lost and end["what"] == "replied"
    steps = [row["what"] for row in found.rows]
    stage.check(
        f"the journal has all {len(steps)} steps: given to one worker, which was lost, then to another",
        "" if right else f"steps: {', '.join(steps)}",
    )


def traced(stage: Stage, name: str) -> Traced:
    """The life of one request, as soon as its end is written."""
    from polybus.journal.trace import trace

    def whole() -> Traced | None:
        try:
            requests = trace([stage.data_dir / "journal"], name).requests
        except JournalMissing:
            return None
        return requests[0] if requests and requests[0].end is not None else None

    with stage.console.status("reading the journal"):
        found: Traced = wait_until(whole, JOURNAL_S, "the journal did not have the end of the job")
    return found


def trace_table(found: Traced) -> Table:
    """The steps as `polybus trace` tells them, for a narrow terminal."""
    from polybus.cli.output import printable
    from polybus.journal.telling import explained, since

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for _, same in itertools.groupby(found.rows, lambda row: (row["what"], row["worker"])):
        row, *more = same
        at = f"+{since(found.first['at'], row['at'])}"
        often = f" ({1 + len(more)} times)" if more else ""
        table.add_row(at, row["what"], Text(printable(explained(row)) + often))
    return table
