"""`polybus trace`: where did my message go?"""

from __future__ import annotations

from collections.abc import Callable
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


def since(begin: datetime, at: datetime) -> str:
    """The time between, in the unit that fits."""
    seconds = (at - begin).total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:.1f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"


def _is_answered(request: Traced) -> bool:
    end = request.end
    return end is not None and end["what"] == "replied"


def outcome(found: Trace, request: Traced) -> str:
    """How it ended, or why it has not."""
    end = request.end
    if end is not None:
        took = since(end["accepted_at"] or request.first["at"], end["at"])
        if end["what"] == "rejected":
            return f"rejected: {end['reason']}"
        why = f": {end['reason']}" if end["reason"] else ""
        return f"{end['what']} after {took}{why}"
    last = request.rows[-1]
    lives = [life for life in found.lives if life.journal == request.journal]
    later = [life for life in lives if life.at > last["at"]]
    stopped_at = next((life.stopped_at for life in lives if life.name == last["life"]), None)
    if not later and stopped_at is None:
        return f"not ended: {last['what']}"
    how = "stopped" if stopped_at else "was killed"
    if any(row["reason"] in ("guaranteed", "revived") for row in request.rows):
        return f"not ended: {last['what']}; the broker {how} since then, but it is guaranteed and goes on"
    return f"lost: {last['what']} when the broker {how}"


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


def as_json(found: Trace, bodies: bool) -> dict[str, Any]:
    from polybus.cli.journal_tail import json_row

    return {
        "name": found.name,
        "requests": [
            {
                "token": request.token,
                "broker": request.broker,
                "journal": request.journal,
                "request_id": request.request_id or None,
                "service": request.first["service"],
                "outcome": None if request.end is None else request.end["what"],
                "reason": None if request.end is None else request.end["reason"],
                "told": outcome(found, request),
                "steps": [{**json_row(row, bodies), "told": explained(row)} for row in request.rows],
            }
            for request in found.requests
        ],
        "complete": not found.is_cut,
    }


# -- one step -------------------------------------------------------------------------------------


def explained(row: Row) -> str:
    """What a step means, with its reason."""
    text = _EXPLAIN.get(row["what"], _plain)(row)
    why = ": ".join(part for part in (row["reason"], row["detail"]) if part)
    if why and row["what"] != "accepted":
        text = f"{text}; {why}" if text else why
    return text


def _peer(row: Row, role: str) -> str:
    where = ", ".join(part for part in (row[f"{role}_dialect"], row[f"{role}_link"]) if part)
    name = row[role] or "nobody"
    if row[f"{role}_dialect"] == "bridge":
        return f"the broker {name} (bridge)"
    return f"{name} ({where})" if where else name


def _accepted(row: Row) -> str:
    who = (
        "jobs that were submitted by id"
        if row["client"] == "jobs" and not row["client_link"]
        else _peer(row, "client")
    )
    more = {
        "guaranteed": "; guaranteed: on disk before its client is told",
        "revived": "; an operator queued the dead letter again",
    }.get(row["reason"] or "", "")
    return f"from {who}, {row['size']} bytes{more}"


def _dispatched(row: Row) -> str:
    attempt = f", attempt {row['attempt']}" if row["attempt"] else ""
    return f"to {_peer(row, 'worker')}{attempt}"


def _ended(row: Row) -> str:
    by = f"by {_peer(row, 'worker')}" if row["worker"] else "no worker had it"
    parts = [by]
    if row["what"] == "replied":
        parts.append(f"{row['body_size']} bytes")
    if row["dispatched_at"] is not None:
        parts.append(f"{since(row['dispatched_at'], row['at'])} after it was given to it")
    return ", ".join(parts)


def _plain(row: Row) -> str:
    return f"at {_peer(row, 'worker')}" if row["worker"] else ""


_EXPLAIN: Final[dict[str, Callable[[Row], str]]] = {
    "accepted": _accepted,
    "dispatched": _dispatched,
    "replied": _ended,
    "failed": _ended,
    "expired": _ended,
    "cancelled": _ended,
    "partial": lambda row: f"a piece of the answer, from {_peer(row, 'worker')}",
    "rejected": lambda row: f"from {_peer(row, 'client')}: refused at the door, it was never accepted",
    "retried": lambda row: f"attempt {row['attempt']} failed at {_peer(row, 'worker')}",
    "requeued": lambda row: "back to the front of its queue",
    "claimed": lambda row: f"{_peer(row, 'worker')} came back and still has it",
    "late": lambda row: (
        f"an answer of {_peer(row, 'worker')} was dropped: nothing was waiting for it from there"
    ),
    "answer_lost": lambda row: (
        f"the answer did not reach {_peer(row, 'client')}; it is kept for when it asks again"
    ),
    "dead": lambda row: "given up; the request itself is kept, and can be sent again",
}
