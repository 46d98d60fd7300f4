"""`polybus demo`: the promise of polybus, kept before your eyes, in chapters.

A broker and one worker for each dialect run in processes of their own; clients of each dialect call every
one of them, a worker is killed in the middle of a job, a schedule runs, a subscriber comes late.  Then the
journal of all this is read back: as the trace of one job, and as tables, by way of Spark.  Every chapter
checks what it shows; the exit status is that of all checks.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from rich.console import Console
from rich.text import Text

from polybus.cli.demo_calls import bus_is_up, everybody_calls
from polybus.cli.demo_jobs import schedule_runs, trace_job, worker_dies
from polybus.cli.demo_stage import Outcome, Stage, check_line, marked
from polybus.cli.demo_tables import start_pipeline, tables
from polybus.cli.demo_topics import late_subscriber
from polybus.cli.demo_web import dashboard, start_dashboard
from polybus.cli.output import print_json
from polybus.cli.processes import Processes
from polybus.errors import PolybusError


class Chapter(NamedTuple):
    title: str
    sentence: str
    play: Callable[[Stage], None]


CHAPTERS: Final = (
    Chapter("The bus is up", "One broker listens on the ports of six protocols.", bus_is_up),
    Chapter(
        "Anybody calls anybody",
        "A client of each dialect calls a worker of each; neither knows what the other speaks.",
        everybody_calls,
    ),
    Chapter(
        "A worker dies, its job does not",
        "One of two workers is killed in the middle of a guaranteed job; the other one finishes it.",
        worker_dies,
    ),
    Chapter("A schedule", "The broker itself starts a job again and again.", schedule_runs),
    Chapter(
        "A late subscriber",
        "What was published before anybody listened is there for whoever comes later.",
        late_subscriber,
    ),
    Chapter("Where did my job go?", "The journal tells the life of the job whose worker died.", trace_job),
    Chapter("The tables", "Spark turns the journal into tables: rates, latencies, who calls whom.", tables),
    Chapter("The dashboard", "All of it in a browser, live, with the tables beside it.", dashboard),
)
# What is started before a chapter and needed in a later one.
BEHIND: Final[dict[Callable[[Stage], None], Callable[[Stage], None]]] = {
    late_subscriber: start_dashboard,
}


def run(stay: bool, as_json: bool, with_tables: bool = True) -> bool:
    """Tell the story; True if everything in it was as it should be."""
    # Whoever ends us with SIGTERM gets the same tidy end as Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    # Progress is for people: with --json it goes beside the result.
    console = Console(stderr=as_json, highlight=False)
    with tempfile.TemporaryDirectory(prefix="polybus-demo-") as directory, Processes() as processes:
        stage = Stage(console, processes, Path(directory))
        try:
            for number, chapter in enumerate(CHAPTERS):
                stage.tell(*chapter)
                if number == 0 and not stage.endpoints:
                    # Without a broker there is no story.
                    raise PolybusError(stage.told[0].checks[-1].why)
                if chapter.play is everybody_calls and with_tables:
                    start_pipeline(stage)
                if chapter.play in BEHIND:
                    BEHIND[chapter.play](stage)
            summarise(stage)
            if as_json:
                print_json(as_values(stage))
            if stay:
                show_what_to_try(stage)
                processes.watch()
            elif stage.dashboard:
                console.print(
                    Text("The dashboard stays up with 'polybus demo --stay' (make demo ARGS=--stay).")
                )
        finally:
            stage.close()
    return stage.is_good


def _terminated(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


# -- the result -------------------------------------------------------------------------------


def summarise(stage: Stage) -> None:
    console = stage.console
    console.print()
    console.print(Text("What was shown", "bold cyan"))
    for number, chapter in enumerate(stage.told, 1):
        console.print(Text(f"{number}. {chapter.title}") + Text(f"  {chapter.seconds:.1f} s", "dim"))
        for check in chapter.checks:
            console.print(check_line(check))
        if not chapter.checks:
            for note in chapter.notes:
                console.print(marked("–", note, "yellow"))
    checks = [check for chapter in stage.told for check in chapter.checks]
    good = sum(check.is_good for check in checks)
    console.print()
    console.print(
        Text(
            f"{good} of {len(checks)} checks passed in {stage.seconds:.1f} s.",
            "bold green" if stage.is_good else "bold red",
        )
    )


def as_values(stage: Stage) -> dict[str, Any]:
    def values(outcomes: dict[tuple[str, str], Outcome], first: str, second: str) -> list[dict[str, Any]]:
        return [
            {first: a, second: b, "ok": not outcome.error, "ms": outcome.ms, "error": outcome.error}
            for (a, b), outcome in outcomes.items()
        ]

    return {
        "ok": stage.is_good,
        "seconds": round(stage.seconds, 3),
        "chapters": [
            {
                "title": chapter.title,
                "seconds": round(chapter.seconds, 3),
                "checks": [
                    {"text": check.text, "ok": check.is_good, "why": check.why} for check in chapter.checks
                ],
                "notes": chapter.notes,
            }
            for chapter in stage.told
        ],
        "calls": values(stage.calls, "client", "worker"),
        "publications": values(stage.topics, "publisher", "subscriber"),
        "job": None if stage.job is None else stage.job.id,
        "schedule_runs": stage.runs,
        "endpoints": stage.endpoints,
        "tables": stage.has_tables,
        "dashboard": bool(stage.dashboard),
    }


def show_what_to_try(stage: Stage) -> None:
    place = f"--data-dir {stage.data_dir}"
    lines = [
        f"polybus services {place}",
        f"polybus call greet-ebus you --dialect emqp {place}",
        f"polybus top {place}",
        f"polybus subscribe weather. --dialect emqp {place}",
        f"polybus publish weather.rome sunny --dialect ebus {place}",
        f"polybus journal tail -f {place}",
    ]
    if stage.job is not None:
        lines.append(f"polybus trace {stage.job.id} {place}")
    if stage.has_tables:
        lines.append(f"polybus pipeline show traces {place}")
    console = stage.console
    console.print()
    console.print(Text("Everything stays up until Ctrl-C. Try in another terminal:", "bold"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
    if stage.dashboard:
        console.print(Text(f"Dashboard: {stage.dashboard}", "bold"), soft_wrap=True)
