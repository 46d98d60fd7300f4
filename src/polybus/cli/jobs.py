"""`polybus jobs`: what was asked to be done, what became of it, and what to do about what failed.

A job is named by its token, which every list shows, or by the id that its client gave it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from polybus.cli.options import Admin, DataDir, Json, WrongUse, examples
from polybus.cli.rows import NOTHING, Cell, Row, ask, body, field, frames, moment, show, span

Queue = Annotated[str, typer.Option("--queue", help="Only jobs of this queue.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="Tokens of dead letters; 'jobs dead' lists them.")
]


class State(StrEnum):
    queued = "queued"
    running = "running"
    waiting = "waiting"


LS_EXAMPLES = examples("polybus jobs ls", "polybus jobs ls --state waiting --queue email --json")


def ls(
    state: Annotated[
        State | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only these: queued (for a worker), running, or waiting (for the next attempt).",
        ),
    ] = None,
    queue: Queue = "",
    limit: Limit = 100,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """List the jobs that have not ended, the oldest first."""
    rows = ask(admin, data_dir, "jobs", state=state.value if state else "", service=queue, limit=limit)
    columns: dict[str, Cell] = {
        "job": field("token"),
        "id": field("job"),
        "queue": field("service"),
        "state": field("state"),
        ">attempt": attempts,
        "worker": field("worker"),
        ">age": span("age_s"),
        ">next in": span("due_in_s"),
        "last reason": field("reason"),
        "kept": lambda row: "on disk" if row["guarantee"] else "in memory",
    }
    which = f" {state.value}" if state else ""
    show(rows, json_, columns, f"No{which} jobs{f' in {queue}' if queue else ''}.")


def attempts(row: Row) -> str:
    """`2 of 4`: this attempt, and how many there are at most."""
    return f"{row['attempt']} of {row['retries'] + 1}"


SHOW_EXAMPLES = examples("polybus jobs show 5f3a9c01-17", "polybus jobs show 5f3a9c01-17 --json")


def show_job(
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's token, or the id its client gave it.")],
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show everything about a job: where it is, every attempt and why it failed, its body, its result.

    Jobs that have ended are found as long as their result is kept, and for good if they are dead letters.
    """
    from polybus.cli.output import print_json, print_table

    found: Row = ask(admin, data_dir, "job", job=job)
    if json_:
        print_json(found)
        return
    print_table(("", ""), facts(found))
    if found["history"]:
        columns: dict[str, Cell] = {
            ">attempt": lambda row: row["number"] or NOTHING,
            "ended": moment("at"),
            "worker": field("worker"),
            "reason": field("reason"),
            "detail": field("detail"),
        }
        show(found["history"], False, columns, "")


def facts(found: Row) -> list[tuple[str, object]]:
    """What is known of a job, in the order people ask; what does not apply is left out."""
    state = found["state"]
    if found["dead"]:
        state += f" (a dead letter; 'polybus jobs retry {found['token']}' runs it again)"
    lines: list[tuple[str, object]] = [
        ("job", found["token"]),
        ("id", found["job"]),
        ("queue", found["service"]),
        ("state", state),
        ("why", ": ".join(filter(None, (found["reason"], found["detail"])))),
        ("worker", found["worker"]),
        ("attempt", "" if found["attempt"] is None else attempts(found)),
        ("kept", "on disk" if found["guarantee"] else "in memory"),
        ("time limit", span("timeout_s")(found) if found["timeout_s"] else ""),
        (
            "client",
            " ".join(filter(None, (found["client"], f"({found['dialect']})" if found["dialect"] else ""))),
        ),
    ]
    for words, name in (
        ("accepted", "accepted_at"),
        ("not before", "due_at"),
        ("expires", "expires_at"),
        ("ended", "ended_at"),
    ):
        lines.append((words, moment(name)(found) if found[name] else ""))
    for words, name in (("body", "body_base64"), ("result", "result_base64")):
        if frames(found[name]):
            lines.append((words, body(name, 400)(found)))
    lines.append(("then", ", ".join(found["then"])))
    return [(words, value) for words, value in lines if value not in ("", None)]


RETRY_EXAMPLES = examples(
    "polybus jobs retry 5f3a9c01-17 5f3a9c01-18",
    "polybus jobs retry --all --queue email",
    'polybus jobs retry --from-table \'service = "email" AND reason LIKE "timeout%"\' --dry-run',
)


def retry(
    names: Names = None,
    all_: Annotated[bool, typer.Option("--all", help="Every dead letter, or every one of --queue.")] = False,
    queue: Queue = "",
    from_table: Annotated[
        str,
        typer.Option(
            "--from-table",
            metavar="CONDITION",
            help="Those in the pipeline's table dead_letters for which this condition of Spark SQL holds.",
        ),
    ] = "",
    tables: Annotated[
        str, typer.Option("--tables", metavar="PLACE", help="The tables, if not in the data directory.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --from-table: only tell which ones would be retried.")
    ] = False,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Put dead letters back into their queues, with all their attempts ahead of them again.

    They are named, or all, or found in the table dead_letters ('polybus pipeline build' makes it).
    """
    from polybus.cli.output import print_json, say

    if from_table:
        if names or all_ or queue:
            raise WrongUse("--from-table says which jobs are meant: no names, --all or --queue beside it")
        from polybus.cli.dead_letters import retry_from_table

        retry_from_table(from_table, tables, dry_run, admin, data_dir, json_)
        return
    if dry_run or tables:
        raise WrongUse("--dry-run and --tables go with --from-table; 'polybus jobs dead' lists dead letters")
    answer = ask(admin, data_dir, "job_retry", **_which(names, all_, queue))
    if json_:
        print_json(answer)
    elif answer["refused"]:
        for token, reason in answer["refused"].items():
            say(f"{token} stays a dead letter: {reason}")
    if not json_:
        print(f"{count(answer['retried'], 'job')} queued again")
    if answer["refused"]:
        raise typer.Exit(1)


CANCEL_EXAMPLES = examples("polybus jobs cancel 5f3a9c01-17")


def cancel(
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's token, or the id its client gave it.")],
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Cancel a job that has not ended: it is not started any more, and a polybus worker is told to stop it.

    Its client is told, and so is the store: a cancelled job stays cancelled when the broker restarts.
    """
    from polybus.cli.output import print_json

    answer = ask(admin, data_dir, "job_cancel", job=job)
    if json_:
        print_json(answer)
    else:
        print("cancelled", answer["cancelled"])


DEAD_EXAMPLES = examples(
    "polybus jobs dead --queue email",
    "polybus jobs dead --drop 5f3a9c01-17 5f3a9c01-18",
    "polybus jobs dead --drop --all --queue email --yes",
)


def dead(
    names: Names = None,
    queue: Queue = "",
    limit: Limit = 100,
    drop: Annotated[bool, typer.Option("--drop", help="Throw the named ones away, for good.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="With --drop: all of them, or all of --queue.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether to drop them.")] = False,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """List the dead letters, jobs that were given up after their last attempt, the oldest first.

    'polybus jobs show' tells every attempt of one, 'polybus jobs retry' puts it back into its queue.
    """
    if drop:
        _drop(names, all_, queue, yes, admin, data_dir, json_)
        return
    if names or all_:
        raise WrongUse(
            "without --drop nothing is named: 'polybus jobs show ID' shows one, 'jobs dead' lists all"
        )
    columns: dict[str, Cell] = {
        "when": moment("at"),
        "job": field("token"),
        "id": field("job"),
        "queue": field("service"),
        ">attempts": field("attempts"),
        "reason": field("reason"),
        "detail": field("detail"),
    }
    rows = ask(admin, data_dir, "dead", service=queue, limit=limit)
    show(rows, json_, columns, f"No dead letters{f' in {queue}' if queue else ''}.")


def _drop(
    names: list[str] | None,
    all_: bool,
    queue: str,
    yes: bool,
    admin: str | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    from polybus.cli.output import print_json, say

    which = _which(names, all_, queue)
    what = (
        (f"every dead letter{f' of {queue}' if queue else ''}")
        if all_
        else count(len(names or ()), "dead letter")
    )
    if not yes:
        _confirm(f"Throw {what} away, for good?")
    answer = ask(admin, data_dir, "dead_drop", **which)
    if as_json:
        print_json(answer)
    else:
        for name in answer["unknown"]:
            say(f"no dead letter is called {name}; 'polybus jobs dead' lists them")
        print(f"{count(answer['dropped'], 'dead letter')} dropped")
    if answer["unknown"]:
        raise typer.Exit(1)


def _confirm(question: str) -> None:
    """Go on after a yes. Standard output is for what the command prints, so the question is not there."""
    import sys

    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
        raise WrongUse("nothing was dropped, because nobody was there to say yes; --yes does not ask")
    if answer.strip().lower() not in ("y", "yes"):
        raise typer.Exit(1)


def _which(names: list[str] | None, all_: bool, queue: str) -> dict[str, object]:
    """The part of a question that names dead letters."""
    if all_ and names:
        raise WrongUse("name the jobs or say --all, not both")
    if all_:
        return {"all": queue}
    if not names:
        raise WrongUse("which jobs? Name them, or say --all (with --queue: all of one queue)")
    if queue:
        raise WrongUse("--queue goes with --all; a job's name says which queue it is in")
    return {"jobs": list(dict.fromkeys(names))}


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


COMMANDS: Final[tuple[tuple[str, Callable[..., None], str], ...]] = (
    ("ls", ls, LS_EXAMPLES),
    ("show", show_job, SHOW_EXAMPLES),
    ("retry", retry, RETRY_EXAMPLES),
    ("cancel", cancel, CANCEL_EXAMPLES),
    ("dead", dead, DEAD_EXAMPLES),
)
