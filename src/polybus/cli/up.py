"""`polybus up`: the whole bus with one command, for a first look and for one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polybus.cli.options import Json, examples
from polybus.cli.start import AnyPort

if TYPE_CHECKING:
    from polybus.cli.up_parts import Wanted

UP_EXAMPLES = examples(
    "polybus up",
    "polybus up shop:bus --workers 4",
    "polybus up --any-port --data-dir /tmp/second --no-pipeline",
)


def up(
    app: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:BUS",
            help="The application that the workers run, as for 'polybus worker'. Without it a small example: "
            "the service 'hello'.",
        ),
    ] = "",
    any_port: AnyPort = False,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Where everything is kept (default: that of the settings, var)."),
    ] = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="No Spark: no tables of what happened.")
    ] = False,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="No pages for a browser.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=0,
            max=10_000,
            help="How many jobs run at once (default: one a processor); 0: no workers.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Start everything: broker, workers, archiver, pipeline and dashboard; and keep it up until Ctrl-C.

    A line is printed whenever a part changes, and a table of where to connect when all is ready; Spark comes
    up behind. A part that dies is started again. Ctrl-C (or SIGTERM) stops the parts in order and lets the
    broker finish what is unanswered. What the parts say is kept in the data directory, in logs/.
    """
    from polybus import config
    from polybus.cli.find import config_path
    from polybus.cli.up_app import check_app
    from polybus.cli.up_parts import Wanted, plan
    from polybus.cli.up_run import UpRun
    from polybus.cli.up_screen import Screen

    place = data_dir or Path(config.load(config_path()).broker.data_dir)
    wanted = Wanted(place, app, workers, any_port, not no_pipeline, not no_dashboard)
    if app and workers != 0:
        check_app(app)
    made = plan(wanted)
    screen = Screen(place, hints(wanted), as_json=json_)
    screen.begin(made.missing)
    status = UpRun(made, place / "logs", screen).run()
    if status:
        raise typer.Exit(status)


def hints(wanted: Wanted) -> list[str]:
    """Commands to try in another terminal."""
    place = f" --data-dir {wanted.data_dir}" if wanted.any_port else ""
    call = [] if wanted.app or wanted.workers == 0 else [f"polybus call hello you{place}"]
    return [*call, f"polybus services{place}"]
