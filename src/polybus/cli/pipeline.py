"""`polybus pipeline`: tables of what happened, made of the journal by Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from polybus.cli.alarm import AlarmAddress, NoPublish, RuleOptions
from polybus.cli.options import Json, WrongUse, examples
from polybus.cli.pipeline_report import REPORT_EXAMPLES, report

if TYPE_CHECKING:
    from polybus.spark.pipeline import Pipeline

DATA_DIR: Final = Path("var")
DataDir = Annotated[
    Path, typer.Option("--data-dir", help="The data directory of the broker: its journal, and our tables.")
]
Journal = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="PLACE",
        help="The journal, if it is elsewhere: a folder, or any URI Spark reads.",
    ),
]
Tables = Annotated[
    str, typer.Option("--tables", metavar="PLACE", help="The tables, if they are to be elsewhere.")
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="MASTER",
        envvar="POLYBUS_SPARK_MASTER",
        show_envvar=True,
        help="Where Spark runs: local[*] is this machine, spark://HOST:PORT a cluster.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's, as often as needed."),
]

BUILD_EXAMPLES = examples(
    "polybus pipeline build",
    "polybus pipeline build --data-dir var/second --master spark://10.0.0.7:7077",
    "polybus pipeline build --journal /srv/bus/journal --tables /srv/bus/tables",
)
RUN_EXAMPLES = examples(
    "polybus pipeline run", "polybus pipeline run --every 5 --rule error_rate=0.05 --rule slow=500ms"
)
REBUILD_EXAMPLES = examples("polybus pipeline rebuild")
SHOW_EXAMPLES = examples(
    "polybus pipeline show",
    "polybus pipeline show service_metrics --limit 5",
    "polybus pipeline show alerts --json",
)


def build(
    data_dir: DataDir = DATA_DIR,
    journal: Journal = "",
    tables: Tables = "",
    master: Master = "local[*]",
    conf: Conf = None,
    rule: RuleOptions = None,
    no_publish: NoPublish = False,
    address: AlarmAddress = None,
    json_: Json = False,
) -> None:
    """Bring the tables up to date with the journal, once.

    What is in the tables already is not read again. It can be interrupted at any point, also by kill -9: the
    next run goes on where this one was, and no row is lost or doubled. New alerts are published on the bus.
    """
    more = _Alerts(rule, not no_publish, address)
    _work(lambda pipeline: pipeline.build(), data_dir, journal, tables, master, conf, json_, more)


def run(
    data_dir: DataDir = DATA_DIR,
    journal: Journal = "",
    tables: Tables = "",
    master: Master = "local[*]",
    every: Annotated[
        float,
        typer.Option("--every", min=0.1, metavar="SECONDS", help="How often to look for something new."),
    ] = 1.0,
    conf: Conf = None,
    rule: RuleOptions = None,
    no_publish: NoPublish = False,
    address: AlarmAddress = None,
    json_: Json = False,
) -> None:
    """Keep the tables up to date, until Ctrl-C or SIGTERM. New alerts are published on the bus."""
    import signal

    def follow(pipeline: Pipeline) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: pipeline.stop())
        pipeline.run(every)

    more = _Alerts(rule, not no_publish, address)
    _work(follow, data_dir, journal, tables, master, conf, json_, more)


def rebuild(
    data_dir: DataDir = DATA_DIR,
    journal: Journal = "",
    tables: Tables = "",
    master: Master = "local[*]",
    conf: Conf = None,
    rule: RuleOptions = None,
    json_: Json = False,
) -> None:
    """Throw the tables away and make them from everything that the journal still has."""

    def again(pipeline: Pipeline) -> None:
        pipeline.forget()
        pipeline.build()

    _work(again, data_dir, journal, tables, master, conf, json_, _Alerts(rule))


def show(
    table: Annotated[
        str, typer.Argument(metavar="[TABLE]", help="Which table; without it: all, and how large they are.")
    ] = "",
    data_dir: DataDir = DATA_DIR,
    tables: Tables = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many rows, the newest.")] = 20,
    wide: Annotated[bool, typer.Option("--wide", help="All columns.")] = False,
    json_: Json = False,
) -> None:
    """Print a table, or what tables there are. This needs no Spark."""
    from polybus.cli.pipeline_show import print_table, print_tables

    place = tables or str(data_dir / "tables")
    if table:
        print_table(place, table, limit, json_, wide=wide)
    else:
        print_tables(place, json_)


class _Alerts(NamedTuple):
    """What the options say of alerts. A rebuild finds none that are news."""

    rules: list[str] | None
    are_published: bool = False
    address: str | None = None


def _work(
    task: Callable[[Pipeline], None],
    data_dir: Path,
    journal: str,
    tables: str,
    master: str,
    conf: list[str] | None,
    json_: bool,
    alerts: _Alerts,
) -> None:
    from polybus.cli.alarm import Alarm, broker_of, read_rules
    from polybus.cli.output import say
    from polybus.cli.pipeline_progress import Progress
    from polybus.spark.session import open_session, require_spark

    require_spark()
    rules = read_rules(alerts.rules)
    settings = dict(_setting(text) for text in conf or ())
    journal = journal or str((data_dir / "journal").absolute())
    tables = tables or str((data_dir / "tables").absolute())
    say(f"starting Spark ({master}); journal {journal}, tables {tables}")
    spark = open_session(master, "polybus pipeline", settings)
    say(f"Spark {spark.version} is up")
    from polybus.spark.pipeline import Pipeline

    progress = Progress(journal, json_)
    alarm = Alarm(alerts.address, broker_of(journal, data_dir)) if alerts.are_published else None
    try:
        task(Pipeline(spark, journal, tables, rules=rules, alarm=alarm, watch=progress.tell))
    finally:
        spark.stop()
    progress.end()


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise WrongUse(
            f"--conf {text!r} is no setting: write NAME=VALUE, as in spark.sql.shuffle.partitions=8"
        )
    return name, value


COMMANDS: Final = (
    ("build", build, BUILD_EXAMPLES),
    ("run", run, RUN_EXAMPLES),
    ("rebuild", rebuild, REBUILD_EXAMPLES),
    ("show", show, SHOW_EXAMPLES),
    ("report", report, REPORT_EXAMPLES),
)
