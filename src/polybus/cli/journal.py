"""`polybus journal`: what was written down of everything that flowed: checked, shown, and sent again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from polybus.cli import replay
from polybus.cli.journal_places import (
    Journal,
    Since,
    Until,
    is_running,
    journal_place,
    read_time,
    store_beside,
)
from polybus.cli.options import DataDir, Json, WrongUse, examples

if TYPE_CHECKING:
    from polybus.journal.verify import Verdict

# Requests of each kind, and holes, that are shown to people.
SHOWN: Final = 10
# How often `tail -f` looks for more.
LOOK_S: Final = 0.2
# Records that `tail` shows, unless it is told how many.
NEWEST: Final = 20
WITHIN: Final = 1000

VERIFY_EXAMPLES = examples(
    "polybus journal verify",
    "polybus journal verify --data-dir /var/lib/polybus --json",
    "polybus journal verify --journal /backup/journal --strict",
)


def verify(
    journal: Journal = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Holes are wrong, too: status 1 if any record is missing, whatever the reason."
        ),
    ] = False,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Check the whole journal, and on its records that the broker kept its promises.

    Every checksum of every log and segment is looked at, and that no record is missing or there twice. Every
    request that was accepted must have come to exactly one end, with a reason: P1, what is guaranteed is not
    lost; P2, one end for each, which is named; P3, given to a worker at least once, answered at most once.

    Requests that are still open are listed, and so are those that a broker took along when it was killed:
    without a guarantee that is no breach. Holes are records that could not be written (a full or slow disk)
    and that the journal itself counts; a request whose end may be in one is unsure. The exit status is 1 if
    something is wrong. It may be run at any time.
    """
    from polybus.cli.output import print_json
    from polybus.journal.verify import verify as check

    place = journal_place(journal, data_dir)
    runs = is_running(place)
    began = time.monotonic()
    with store_beside(place, runs) as kept, _progress(not json_) as progress:
        verdict = check(place, is_running=runs, kept=kept, progress=progress)
    if json_:
        import msgspec

        print_json({**msgspec.to_builtins(verdict), "ok": verdict.is_well, "journal": str(place)})
    else:
        _show(verdict, time.monotonic() - began)
    if not verdict.is_well or (strict and verdict.holes):
        raise typer.Exit(1)


@contextmanager
def _progress(wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for whoever waits at a terminal."""
    import sys

    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(verdict: Verdict, took_s: float) -> None:
    from polybus.cli.output import printable

    lines: list[str] = []
    for problem in verdict.problems:
        lines.append(f"WRONG  {problem.kind}: {problem.text}")
    for hole in verdict.holes[:SHOWN]:
        numbers = f"{hole.first} to {hole.last}"
        text = f"hole   broker {hole.broker}, life {hole.life}: {hole.records} records, {numbers}"
        if hole.before is not None:
            text += f", before {hole.before:%Y-%m-%d %H:%M:%S}"
        lines.append(f"{text}: {hole.why}" if hole.why else text)
    lines += _more(len(verdict.holes), "holes")
    for kind, fates in sorted(verdict.fates.items()):
        for fate in fates[:SHOWN]:
            lines.append(f"{kind:<6} {fate.token} ({fate.service}): {fate.text}")
        lines += _more(verdict.counts[kind], kind)
    for line in lines:
        print(printable(line))
    if not verdict.has_store and verdict.lives:
        print("note   there is no store beside this journal: whether guaranteed requests got lost is unknown")
    print(summary(verdict, took_s))


def _more(count: int, what: str) -> list[str]:
    return [f"       … and {count - SHOWN} more {what}; --json has more of them"] if count > SHOWN else []


def summary(verdict: Verdict, took_s: float) -> str:
    """One line for logs and for whoever reads only the end."""
    ends = " ".join(f"{what}={count}" for what, count in verdict.ends.items())
    kinds = " ".join(f"{kind}={verdict.counts.get(kind, 0)}" for kind in ("open", "lost", "unsure"))
    missing = sum(hole.records for hole in verdict.holes)
    parts = [
        f"verify: {'ok' if verdict.is_well else f'{len(verdict.problems)} wrong'}",
        f"rows={verdict.rows} requests={verdict.requests}",
        ends,
        f"{kinds} holes={len(verdict.holes)} missing={missing} lives={verdict.lives} killed={verdict.killed}",
        f"segments={verdict.segments} logs={verdict.logs} in {took_s:.1f} s",
    ]
    return " ".join(part for part in parts if part)


# -- tail -----------------------------------------------------------------------------------------

TAIL_EXAMPLES = examples(
    "polybus journal tail -f --service echo",
    "polybus journal tail -n 100 --what failed,expired",
    "polybus journal tail --since 10m --json",
)


def tail(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--count",
            min=0,
            help=f"The newest so many of what is there: {NEWEST}, or {WITHIN} with --since or --until.",
        ),
    ] = None,
    service: Annotated[
        str, typer.Option("--service", help="Only this service or topic; 'mail.*' means all that fit.")
    ] = "",
    what: Annotated[
        str,
        typer.Option(
            "--what", metavar="WORDS", help="Only these things: accepted,failed,worker_down and so on."
        ),
    ] = "",
    since: Since = "",
    until: Until = "",
    bodies: Annotated[bool, typer.Option("--bodies", help="Show bodies, as far as they were kept.")] = False,
    beats: Annotated[
        bool, typer.Option("--beats", help="Show the signs of life of an idle broker, too.")
    ] = False,
    journal: Journal = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show the newest records of the journal, the newest last.

    It needs no running broker. 'polybus tap' shows what happens without the way over the disk; this has also
    what happened while nobody looked. 'polybus trace' shows all of one request.
    """
    from polybus.cli.journal_tail import Printer, following, newest, wanted_rows
    from polybus.journal.record import WHATS

    words = [word.strip() for word in what.split(",") if word.strip()]
    for word in words:
        if word not in WHATS:
            raise WrongUse(f"--what {word!r} is nothing that happens; it takes {', '.join(WHATS[1:])}")
    place = journal_place(journal, data_dir)
    wanted = wanted_rows(service, words, beats)
    begin, end = read_time(since, "--since"), read_time(until, "--until")
    printer = Printer(json_, bodies)
    most = count if count is not None else WITHIN if begin or end else NEWEST
    follower = newest(place, wanted, begin, end, most, printer)
    if count is None and most == WITHIN == printer.count:
        printer.remark(f"These are the newest {WITHIN}; -n shows more.")
    if not follow:
        if not printer.count and not json_:
            printer.remark("No records that fit; 'polybus journal tail --beats' shows whether there are any.")
        return
    following(follower, end, printer, LOOK_S)


COMMANDS = (
    ("verify", verify, VERIFY_EXAMPLES),
    ("tail", tail, TAIL_EXAMPLES),
    ("replay", replay.replay, replay.REPLAY_EXAMPLES),
)
