"""`polybus worker`: processes that run the jobs and services of an application (see `runtime`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from polybus.cli.options import (
    DataDir,
    Dialect,
    Json,
    LogFormat,
    LogFormatOption,
    Tag,
    WrongUse,
    dialect_option,
    examples,
)

# EventMQ's own default for a queue without a weight is 10; larger numbers come first.
MAX_WEIGHT = 1_000_000

WORKER_EXAMPLES = examples(
    "polybus worker shop.app:bus",
    "polybus worker shop.app:bus -Q email:10 -Q reports:1 -c 4",
    "polybus worker shop.app:bus --watch",
)


def worker(
    app: Annotated[
        str,
        typer.Argument(metavar="MODULE:BUS", help="The application: where its polybus.Bus is, shop.app:bus."),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-Q",
            metavar="NAME[:WEIGHT]",
            help="A queue to serve, as often as needed; the heavier one comes first. Without it all queues "
            "of the application.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            "-c",
            min=1,
            max=10_000,
            help="How many jobs run at once (default: one a processor).",
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="ADDRESS",
            help="Where the broker listens for workers: an endpoint, host:port or a host. Without it the "
            "environment (POLYBUS_EMQP_WORKER and so on), else the host of the application's broker, else "
            "this machine.",
        ),
    ] = None,
    data_dir: DataDir = None,
    dialect: Annotated[Dialect, dialect_option("spoken to the broker; jobs want emqp")] = Dialect.emqp,
    tag: Tag = None,
    prefetch: Annotated[
        int,
        typer.Option(
            "--prefetch",
            min=1,
            max=10_000,
            help="Ask for at most so many jobs a process, and for fewer if they take long. 1: only what can "
            "run.",
        ),
    ] = 100,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            min=0,
            metavar="SECONDS",
            help="Kill jobs that run longer and bring no limit of their own; 0: never.",
        ),
    ] = 0.0,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0, metavar="SECONDS", help="How long running jobs have after SIGTERM."),
    ] = 30.0,
    cancel_grace: Annotated[
        float,
        typer.Option(
            "--cancel-grace",
            min=0,
            metavar="SECONDS",
            help="How long a cancelled job has before it is killed.",
        ),
    ] = 2.0,
    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", min=1, help="Replace a process after so many jobs.")
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option("--max-memory", min=1, metavar="MB", help="Replace a process that has grown larger."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Load the application again when one of its files changes.")
    ] = False,
    prefix: Annotated[
        bool,
        typer.Option("--prefix", help="Put the number of the process before every line that jobs print."),
    ] = False,
    log_format: LogFormatOption = LogFormat.text,
    json_: Json = False,
) -> None:
    """Run the jobs and services of an application in a pool of processes.

    One line that begins with 'ready' is printed when the broker has taken this worker. A job that crashes, is
    cancelled or takes too long costs its own process, nothing else. SIGTERM (or Ctrl-C) gives back what has
    not begun and lets the rest finish, a second one stops at once; SIGHUP replaces the processes one by one.
    """
    from polybus.client.addresses import tag_for
    from polybus.runtime.pool import Rules
    from polybus.runtime.settings import Settings
    from polybus.runtime.supervisor import Supervisor
    from polybus.telemetry import logs

    # In its children the application comes first: it may have plans of its own for `logging`.
    logs.use(log_format.value, capture_logging=False)
    # A wrong tag is said before the application is loaded.
    tag_for(dialect.value, "worker", tag)
    settings = Settings(
        app=app,
        queues=read_queues(queue or []),
        broker=_address(broker, dialect.value, data_dir),
        dialect=dialect.value,
        tag=tag,
        rules=Rules(processes or os.cpu_count() or 1, prefetch, time_limit, cancel_grace, max_jobs),
        grace_s=grace,
        max_memory=(max_memory or 0) << 20,
        watch=watch,
        prefix=prefix,
    )
    status = Supervisor(settings, _log, lambda facts: _announce(facts, json_)).run()
    if status:
        raise typer.Exit(status)


def read_queues(texts: list[str]) -> dict[str, int | None]:
    """`name` or `name:weight` → name and weight."""
    queues: dict[str, int | None] = {}
    for text in texts:
        name, colon, weight = text.rpartition(":")
        if not colon:
            name, weight = text, ""
        if not name or (colon and not (weight.isascii() and weight.isdigit() and int(weight) <= MAX_WEIGHT)):
            raise WrongUse(
                f"--queue takes a name, or name:weight with a weight from 0 to {MAX_WEIGHT}, not {text!r}; "
                "for example email:10"
            )
        if name in queues:
            raise WrongUse(f"--queue names {name} twice")
        queues[name] = int(weight) if colon else None
    return queues


def _address(broker: str | None, dialect: str, data_dir: Path | None) -> str | None:
    if broker is not None or data_dir is None:
        return broker
    from polybus.cli.find import PORT_OF, endpoints_in

    setting = PORT_OF[(dialect, "worker")]
    endpoint = endpoints_in(data_dir).get(setting)
    if endpoint is None:
        raise WrongUse(f"the broker in {data_dir} does not listen for {dialect} workers; {setting} is off")
    return endpoint


def _announce(facts: dict[str, Any], as_json: bool) -> None:
    import contextlib

    from polybus.cli.output import print_json

    # A reader that closed our output early is no reason to stop.
    with contextlib.suppress(BrokenPipeError):
        names = " ".join(facts["queues"])
        print(f"ready {names} processes={facts['processes']} broker={facts['endpoint']}", flush=True)
        if as_json:
            print_json(facts)


def _log(text: str) -> None:
    from polybus.telemetry.logs import log

    log(text, logger="polybus.worker")
