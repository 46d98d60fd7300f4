"""`polybus trace`: where did my message go?"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from polybus.cli.journal_places import journal_place
from polybus.cli.options import DataDir, Json, examples
from polybus.errors import JournalMissing, PolybusError

if TYPE_CHECKING:
    from rich.text import Text

    from polybus.journal.trace import Row, Trace, Traced

# Of more requests than this only the end is shown, and not every step.
IN_FULL: Final = 20
# Requests that are named if several are called so.
NAMED: Final = 10

TRACE_EXAMPLES = examples(
    "polybus trace 5f3a9c01-17",
    "polybus trace order-4711 --data-dir /var/lib/polybus",
    "polybus trace 5f3a9c01-17 --journal site-a/var --journal site-b/var",
)


def trace(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A token, a request id or a job's id; its beginning, if only one begins so."
        ),
    ],
    journal: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal",
            metavar="DIR",
            help="A journal, or the data directory that it is in; repeat it for brokers that are joined by "
            "bridges. Without it --data-dir, else the data directory of the settings.",
        ),
    ] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show bodies, as far as they were kept.")] = False,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show the whole life of one request: what happened to it, when, why, and who had it.

    It is read from the journal, so it works for what is long over and without a running broker: across
    dialects, retries, restarts of the broker and, with several journals, bridges. A job's id shows the steps
    of its chain or the members of its group. Tokens are shown by 'polybus journal tail', 'tap' and 'jobs'.
    """
    from polybus.cli.output import print_json, say
    from polybus.journal.telling import as_json
    from polybus.journal.trace import Ambiguous
    from polybus.journal.trace import trace as search

    places = [journal_place(each, None) for each in journal] if journal else [journal_place(None, data_dir)]
    try:
        found = search(places, name, say)
    except Ambiguous as error:
        raise _which(name, error.found) from None
    except JournalMissing:
        raise JournalMissing(
            f"no request in {' or '.join(map(str, places))} is called {name!r}; "
            "'polybus journal tail' shows tokens, --journal or --data-dir reads another journal, "
            "and what is older than journal.keep_days is gone"
        ) from None
    if json_:
        print_json(as_json(found, bodies))
        return
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    for number, request in enumerate(found.requests):
        if number:
            console.print()
        for line in told(found, request, bodies):
            console.print(line)
    if found.is_cut:
        say(f"There are more than these {len(found.requests)}; trace one of them by its token.")


def _which(name: str, rows: Any) -> PolybusError:
    from polybus.cli.output import moment, printable

    lines = [
        f"  {row['token'] or row['request_id']}  {moment(row['at'].timestamp())}  {row['service'] or ''} "
        f"from {row['client'] or ''}"
        for row in rows[:NAMED]
    ]
    more = f"\n  … and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    text = "\n".join(printable(line) for line in lines)
    return JournalMissing(
        f"{name!r} may be any of {len(rows)} requests; name one of them by its token:\n{text}{more}."
    )


# -- one request ----------------------------------------------------------------------------------


def told(found: Trace, request: Traced, bodies: bool) -> list[Text]:
    """The lines about one request."""
    from rich.text import Text

    from polybus.cli.output import printable
    from polybus.journal.telling import explained, outcome

    head = Text(f"{request.token}", style="bold")
    head.append(f"  {printable(request.first['service'] or '')}", "bold cyan")
    if request.request_id and request.request_id != request.token:
        head.append(f"  id {printable(request.request_id)}", "dim")
    if len({each.journal for each in found.requests}) > 1:
        head.append(f"  at broker {printable(request.broker)} ({printable(request.journal)})", "magenta")
    head.append(f"  {outcome(found, request)}", "bold green" if _is_answered(request) else "bold red")
    if len(found.requests) > IN_FULL:
        return [head]
    lines = [head]
    begin: datetime = request.first["at"]
    life = ""
    for row in request.rows:
        if life and row["life"] != life:
            lines += [
                _line(at, begin, "restarted", text) for at, text in _restarts(found, request, life, row)
            ]
        life = row["life"]
        lines.append(_line(row["at"], begin, row["what"], explained(row)))
        if bodies and row["body"] is not None:
            lines += _bodies(row)
    return lines


def _line(at: datetime, begin: datetime, what: str, text: str) -> Text:
    from rich.text import Text

    from polybus.cli import tap
    from polybus.cli.output import printable
    from polybus.journal.telling import since

    here = at.astimezone()
    line = Text(f"  {here:%Y-%m-%d %H:%M:%S}.{here.microsecond:06d}", style="dim")
    line.append(f" {'+' + since(begin, at):>10}")
    line.append(f"  {what:<11}", tap.STYLES.get(what, ""))
    line.append(f" {printable(text)}")
    return line


def _bodies(row: Row) -> list[Text]:
    from rich.text import Text

    from polybus.cli.output import one_line

    return [Text(f"{'':>55}{one_line(frame)}", style="italic") for frame in row["body"]]


def _is_answered(request: Traced) -> bool:
    end = request.end
    return end is not None and end["what"] == "replied"


def _restarts(found: Trace, request: Traced, life: str, row: Row) -> list[tuple[datetime, str]]:
    """The starts of the broker between a life and a row in a later one."""
    lives = [each for each in found.lives if each.journal == request.journal]
    previous = next((each for each in lives if each.name == life), None)
    lines = []
    for started in lives:
        if started.at > row["at"] or (previous is not None and started.at <= previous.at):
            continue
        how = "it had stopped" if previous is not None and previous.stopped_at else "it had been killed"
        lines.append((started.at, f"the broker {request.broker} started again, life {started.name}; {how}"))
        previous = started
    return lines
