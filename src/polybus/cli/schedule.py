"""`polybus schedule`: jobs that the broker starts again and again, by interval or by cron."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

import typer

from polybus.cli.options import Admin, DataDir, Json, WrongUse, examples
from polybus.cli.rows import NOTHING, Cell, Row, ask, field, moment, show
from polybus.errors import PolybusError

UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The schedule's key; 'schedule ls' lists them.")]


class Missed(StrEnum):
    late = "late"
    skip = "skip"


ADD_EXAMPLES = examples(
    "polybus schedule add reports daily --cron '0 6 * * mon-fri' --tz Europe/Berlin --key morning",
    "polybus schedule add cleanup '' --every 10m --missed skip",
    "polybus schedule add email - --every 1h --runs 3 --guarantee --retries 5 < job.json",
)


def add(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue (service) that gets the job.")],
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="The body of the job; - reads it from standard input.")
    ],
    every: Annotated[
        str | None, typer.Option("--every", metavar="SPAN", help="How often: 500ms, 60s, 5m, 2h, 1d.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="CRON", help="When: minute hour day month weekday.")
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            "--tz", metavar="ZONE", help="The zone that --cron is read in (default: jobs.timezone)."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="NAME", help="Its name; one that exists is replaced (default: made up)."
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option("--runs", min=1, help="End after so many runs (default: never).")
    ] = None,
    missed: Annotated[
        Missed | None,
        typer.Option(
            "--missed",
            metavar="late|skip",
            help="Due times that passed while the broker was down: one late run for all of them, or none "
            "(default: jobs.missed).",
        ),
    ] = None,
    at_once: Annotated[
        bool, typer.Option("--now", help="With --every: the first run is at once, not after the interval.")
    ] = False,
    guarantee: Annotated[
        bool | None,
        typer.Option(
            "--guarantee/--no-guarantee",
            help="Refuse it if this broker keeps nothing on disk (default), or run it all the same.",
        ),
    ] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", min=0, help="Try a failed run so often again.")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", min=0, metavar="SECONDS", help="End a run that takes longer."),
    ] = None,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Have a job run again and again, by interval or by cron. The schedule survives restarts of the broker.

    What is due while the broker is down is made up for by one late run, or skipped: --missed decides, and
    'polybus schedule runs' tells what happened.
    """
    from polybus.cli.output import moment as write
    from polybus.cli.output import print_json

    if (every is None) == (cron is None):
        raise WrongUse("say when: either --every 60s or --cron '*/5 * * * *'")
    if timezone is not None and cron is None:
        raise WrongUse("--tz goes with --cron: an interval is the same everywhere")
    if at_once and every is None:
        raise WrongUse("--now goes with --every: a cron expression says itself when it is time")
    wanted = {
        "queue": queue,
        "message": _read(message),
        "every_s": None if every is None else seconds(every),
        "cron": cron,
        "timezone": timezone,
        "key": key,
        "runs": runs,
        "missed": missed and missed.value,
        "haste": at_once or None,
        "guarantee": guarantee,
        "retries": retries,
        "timeout_s": time_limit,
    }
    answer = ask(
        admin,
        data_dir,
        "schedule_add",
        **{name: value for name, value in wanted.items() if value is not None},
    )
    if json_:
        print_json(answer)
    else:
        print(f"{answer['key']} runs next at {write(answer['next_at'])}")


def seconds(text: str) -> float:
    """`90`, `90s`, `1.5m` → seconds."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise WrongUse(f"{text!r} is no time span: write 500ms, 60s, 5m, 2h or 1d")
    value = float(found[1]) * UNITS[found[2]]
    if value <= 0:
        raise WrongUse(f"--every {text} never ends: give more than 0 seconds")
    return value


def _read(message: str) -> str:
    import sys

    if message != "-":
        return message
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise WrongUse("the message of a schedule is text, and standard input is not UTF-8") from None


LS_EXAMPLES = examples("polybus schedule ls", "polybus schedule ls --json")


def ls(admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """List the schedules: what they run, when, and when next."""
    columns: dict[str, Cell] = {
        "key": field("key"),
        "queue": field("queue"),
        "when": rhythm,
        "next": moment("next_at"),
        ">runs left": lambda row: "∞" if row["runs_left"] is None else row["runs_left"],
        "missed": field("missed"),
        ">retries": field("retries"),
        "message": lambda row: _short(row["message"]),
    }
    nothing = "No schedules. 'polybus schedule add --help' shows how to make one."
    show(ask(admin, data_dir, "schedules"), json_, columns, nothing)


def rhythm(row: Row) -> str:
    from polybus.cli.output import span

    if row["cron"]:
        return f"{row['cron']} ({row['timezone']})"
    return f"every {span(row['every_s'])}"


def _short(text: str) -> str:
    from polybus.cli.output import one_line

    return one_line(text.encode(), 60) or NOTHING


RM_EXAMPLES = examples("polybus schedule rm morning")


def rm(key: Key, admin: Admin = None, data_dir: DataDir = None, json_: Json = False) -> None:
    """Remove a schedule. Runs that it has already started go on."""
    from polybus.cli.output import print_json

    answer = ask(admin, data_dir, "schedule_rm", key=key)
    if not answer["removed"]:
        raise PolybusError(f"no schedule is called {key!r}; 'polybus schedule ls' lists them")
    if json_:
        print_json(answer)
    else:
        print("removed", key)


RUNS_EXAMPLES = examples("polybus schedule runs morning", "polybus schedule runs morning --limit 1000 --json")


def runs(
    key: Key,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 20,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show what became of a schedule's due times, the newest first: ran, ran late, or skipped."""
    columns: dict[str, Cell] = {
        "due": moment("due_at"),
        "at": moment("at"),
        "what": field("what"),
        ">missed before": lambda row: row["missed"] or NOTHING,
        "job": field("token"),
    }
    rows = ask(admin, data_dir, "schedule_runs", key=key, limit=limit)
    show(rows, json_, columns, f"{key} has not run yet.")


COMMANDS: Final[tuple[tuple[str, Callable[..., None], str], ...]] = (
    ("add", add, ADD_EXAMPLES),
    ("ls", ls, LS_EXAMPLES),
    ("rm", rm, RM_EXAMPLES),
    ("runs", runs, RUNS_EXAMPLES),
)
