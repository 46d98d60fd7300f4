"""`polybus scheduler`: keeps schedules for any eMQP router, EventMQ's or ours."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from polybus.cli.options import DataDir, Json, WrongUse, examples


class Missed(StrEnum):
    late = "late"
    skip = "skip"


SCHEDULER_EXAMPLES = examples(
    "polybus scheduler --store /var/lib/polybus-scheduler",
    "polybus scheduler --broker tcp://10.0.0.5:47291 --tz Europe/Berlin",
)


def scheduler(
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="ADDRESS",
            help="Where the router listens for clients and schedulers: an endpoint, host:port or a host. "
            "Without it POLYBUS_EMQP_CLIENT or EMQ_BROKER_ADDR, else port 47291 here.",
        ),
    ] = None,
    data_dir: DataDir = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", help="Keep the schedules in this directory; without it they end with the process."
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option("--tz", metavar="ZONE", help="The zone that cron texts are read in.")
    ] = "UTC",
    missed: Annotated[
        Missed,
        typer.Option(
            "--missed",
            metavar="late|skip",
            help="Due times that passed while this scheduler or its router was away: one late run for all of "
            "them, or none.",
        ),
    ] = Missed.late,
    heartbeat: Annotated[
        float,
        typer.Option(
            "--heartbeat",
            min=0.1,
            max=3600,
            metavar="SECONDS",
            help="How often to show the router that we live; it is lost after five times as long.",
        ),
    ] = 3.0,
    json_: Json = False,
) -> None:
    """Keep schedules for an eMQP router: EventMQ's own, or a polybus broker.

    A polybus broker has a scheduler built in and needs this one only to keep schedules apart. While it is
    connected, new schedules are handed to it. One line that begins with 'ready' is printed when the router
    has taken it. SIGTERM ends it.
    """
    import signal
    from contextlib import closing

    from polybus.cli.keeper import Keeper, Shelf
    from polybus.cli.serve import log
    from polybus.client.scheduler import Scheduler
    from polybus.core.cron import BadSchedule, time_zone

    try:
        time_zone(timezone)
    except BadSchedule as error:
        raise WrongUse(f"--tz: {error}") from None
    with closing(Shelf(store)) as shelf:
        keeper = Keeper(shelf.store, timezone, missed.value, log)
        if len(keeper.schedules):
            log(f"{len(keeper.schedules)} schedules were kept")
        component = Scheduler(
            keeper,
            _address(broker, data_dir),
            beat_s=heartbeat,
            log=log,
            on_ready=lambda: _announce(component.endpoint, len(keeper.schedules), json_),
        )
        asked: list[int] = []

        def on_stop(number: int, frame: object) -> None:
            asked.append(number)
            component.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_stop)
        log(f"waiting for the router at {component.endpoint} to take this scheduler; Ctrl-C ends it")
        component.run()
    log(f"stopped; {component.sent} runs were sent")
    if asked[:1] == [signal.SIGINT]:
        raise typer.Exit(128 + signal.SIGINT)


def _address(broker: str | None, data_dir: Path | None) -> str | None:
    if broker is not None or data_dir is None:
        return broker
    from polybus.cli.find import PORT_OF, endpoints_in

    setting = PORT_OF["emqp", "client"]
    endpoint = endpoints_in(data_dir).get(setting)
    if endpoint is None:
        raise WrongUse(f"the broker in {data_dir} does not listen for eMQP clients; {setting} is off")
    return endpoint


def _announce(endpoint: str, schedules: int, as_json: bool) -> None:
    import contextlib

    from polybus.cli.output import print_json

    # A reader that closed our output early is no reason to stop.
    with contextlib.suppress(BrokenPipeError):
        print(f"ready schedules={schedules} broker={endpoint}", flush=True)
        if as_json:
            print_json({"schedules": schedules, "broker": endpoint})
