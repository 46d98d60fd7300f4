"""`polybus pipeline report`: what happened, on one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from polybus.cli.options import Json, WrongUse, examples

DATA_DIR: Final = Path("var")
REPORT_EXAMPLES = examples(
    "polybus pipeline report",
    "polybus pipeline report --since 2h --out today.html",
    "polybus pipeline report --out - > report.html",
)


def report(
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where the page goes; - is standard output.")
    ] = "report.html",
    since: Annotated[
        str,
        typer.Option("--since", metavar="TIME", help="Not before this: 10m, 2h, 08:30, 2026-05-01T08:30."),
    ] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Before this; written like --since.")
    ] = "",
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="The data directory of the broker, with the tables in it.")
    ] = DATA_DIR,
    tables: Annotated[
        str, typer.Option("--tables", metavar="PLACE", help="The tables, if they are elsewhere.")
    ] = "",
    json_: Json = False,
) -> None:
    """Make a page of HTML from the tables: how much, how fast, what is slow, what fails, who calls whom.

    It is one file that needs nothing else, and this needs no Spark.
    """
    import sys

    from polybus.cli.journal_places import read_time
    from polybus.cli.output import print_json, say
    from polybus.spark.session import require_spark

    require_spark()
    from polybus.errors import ConfigError
    from polybus.spark.report import make_report
    from polybus.spark.tables import has_tables

    begin, end = read_time(since, "--since"), read_time(until, "--until")
    if begin is not None and end is not None and begin >= end:
        raise WrongUse(f"--since {since} is not before --until {until}; nothing is between them")
    place = tables or str(data_dir / "tables")
    if not has_tables(place):
        raise ConfigError(
            f"there are no tables in {place}; 'polybus pipeline build' makes them of the journal, and "
            "--data-dir or --tables says where they are"
        )
    page = make_report(place, begin, end)
    if out == "-":
        sys.stdout.write(page)
        return
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    if json_:
        print_json({"report": str(path), "bytes": len(page.encode()), "tables": place})
    else:
        say(f"the report is in {path}; open it in a browser")
