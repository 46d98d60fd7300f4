"""`polybus logs`: what nodes published as log records, from the broker's memory and live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from polybus.cli.options import Admin, DataDir, Json, WrongUse, examples
from polybus.cli.rows import Cell, Row, ask, field, show

LOGS_EXAMPLES = examples(
    "polybus logs --level warning",
    "polybus logs -f --node 'probe*'",
    "polybus logs --since 10m --json",
    "polybus logs --nodes",
)
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
STYLES: Final = {
    "debug": "dim",
    "info": "",
    "warning": "yellow",
    "error": "red",
    "critical": "bold white on red",
}
MOST: Final = 1000
# How long the broker lets us wait for a record before it says that there is none.
WAIT_S: Final = 3.0
# A pause before a broker that is away is asked again.
AWAY_S: Final = 1.0


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    level: Annotated[
        str, typer.Option("--level", metavar="LEVEL", help=f"This level and worse: {', '.join(LEVELS)}.")
    ] = "debug",
    node: Annotated[str, typer.Option("--node", help="Only this node; 'probe*' means all that fit.")] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Not older than this: 90, 10m, 2h, 1d.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=MOST, help="The newest so many of what is there.")
    ] = 100,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="How many records there are, by node and level.")
    ] = False,
    admin: Admin = None,
    data_dir: DataDir = None,
    json_: Json = False,
) -> None:
    """Show the log records that nodes sent to the broker, the newest last.

    Nodes publish them as log/LEVEL/NODE; polybus.LogHandler does that for Python's logging.
    """
    from polybus.cli.schedule import seconds

    if level not in LEVELS:
        raise WrongUse(f"--level is {level!r}; it takes {', '.join(LEVELS)}")
    if nodes:
        show_nodes(ask(admin, data_dir, "log_nodes"), json_)
        return
    question: Row = {"level": level, "node": node, "limit": limit}
    if since:
        question["since"] = time.time() - seconds(since)
    printer = Printer(json_)
    if not follow:
        found = ask(admin, data_dir, "logs", **question)["records"]
        printer.print(found)
        if not found and not json_:
            printer.remark("No log records that fit; 'polybus logs --nodes' shows what there is.")
        return
    for records, missed in following(admin, data_dir, question, printer):
        if missed:
            printer.remark(f"({missed} records came faster than they could be shown)")
        printer.print(records)


def show_nodes(found: dict[str, dict[str, int]], as_json: bool) -> None:
    rows = [{"node": node, **dict.fromkeys(LEVELS, 0), **counts} for node, counts in found.items()]
    columns: dict[str, Cell] = {"node": field("node"), **{f">{level}": field(level) for level in LEVELS}}
    show(rows, as_json, columns, "Nobody has sent log records yet.")


def following(
    admin: str | None, data_dir: Path | None, question: Row, printer: Printer
) -> Iterator[tuple[list[Row], int]]:
    """Records as they come, and how many were missed before them; over restarts of the broker, too."""
    from polybus.cli.find import admin_endpoint, admin_place
    from polybus.client.admin import AdminClient
    from polybus.errors import ConnectionLost, PolybusError

    endpoint = admin_endpoint(admin, data_dir)
    more: Row = {}
    is_away = False
    while True:
        try:
            with AdminClient(endpoint, WAIT_S + 3.0) as client:
                while True:
                    answer = client.ask("logs", **question, **more)
                    if is_away:
                        is_away = False
                        printer.remark("(the broker is there again)")
                    yield answer["records"], answer["missed"]
                    question = {**question, "limit": MOST}
                    question.pop("since", None)
                    more = {"after": answer["cursor"], "life": answer["life"], "wait_s": WAIT_S}
        except ConnectionLost:
            if not is_away:
                printer.remark("(the broker does not answer; waiting for it)")
            is_away = True
        time.sleep(AWAY_S)
        try:
            # It may be somewhere else now.
            endpoint = admin_place(admin, data_dir)
        except PolybusError:
            continue


class Printer:
    """One record a line, for people or programs."""

    def __init__(self, as_json: bool) -> None:
        from rich.console import Console

        self._as_json = as_json
        self._console = Console(soft_wrap=True, highlight=False)

    def print(self, records: list[Row]) -> None:
        from polybus.cli.output import print_json

        for record in records:
            if self._as_json:
                print_json(record)
            else:
                self._console.print(line(record))
        sys.stdout.flush()

    def remark(self, text: str) -> None:
        from polybus.cli.output import say

        say(text)


def line(record: Row) -> Any:
    """One record for people."""
    from rich.text import Text

    from polybus.cli.output import printable

    at = record["at"] if 0 <= record["at"] < 1 << 36 else record["received_at"]
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
    text = Text(stamp, style="dim")
    text.append(f" {record['level']:<8}", STYLES[record["level"]])
    text.append(f" {printable(record['node'])}", "bold")
    if record["logger"]:
        text.append(f" {printable(record['logger'])}", "cyan")
    # A traceback stays readable: line ends are kept, everything else that a terminal obeys is not.
    text.append(" " + "\n    ".join(printable(part) for part in record["message"].split("\n")))
    for name, value in record["extra"].items():
        text.append(f" {printable(name)}={printable(str(value))}", "dim")
    if record["cut"]:
        text.append(" (cut)", "yellow")
    return text
