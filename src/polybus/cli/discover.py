"""`polybus discover`: which buses announce themselves to this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from polybus.cli.options import Json, examples
from polybus.cli.rows import NOTHING, Cell, Row, field, show, span

DISCOVER_EXAMPLES = examples("polybus discover", "polybus discover --seconds 10 --json")


def discover(
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, max=3600, help="How long to listen; buses speak every second."),
    ] = 3.0,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            envvar="POLYBUS_BEACON_PORT",
            show_envvar=True,
            help="The UDP port on which buses announce themselves.",
        ),
    ] = 5245,
    json_: Json = False,
) -> None:
    """Listen for the beacons of buses on this machine and its networks, and list them.

    Those that are polybus are asked for their name and for what they listen for.
    """
    import sys

    from polybus.cli.output import say
    from polybus.client.discovery import Listener, introduce

    if sys.stderr.isatty():
        say(f"listening on UDP port {port} for {seconds:g} s")
    with Listener(port) as listener:
        for _ in listener.hear(seconds):
            pass
    buses = sorted(listener.buses.values(), key=lambda heard: heard.place)
    introduce(buses)
    rows: list[Row] = [
        {
            "address": heard.address,
            "port": heard.port,
            "times": heard.times,
            "every_s": None if heard.every_s is None else round(heard.every_s, 3),
            "name": heard.about.name if heard.about else "",
            "endpoints": heard.about.endpoints if heard.about else {},
        }
        for heard in buses
    ]
    columns: dict[str, Cell] = {
        "address": field("address"),
        ">port": field("port"),
        ">heard": field("times"),
        ">every": span("every_s"),
        "name": lambda row: row["name"] or NOTHING,
        "listens for": lambda row: ", ".join(dialects(row["endpoints"])) or "DBP",
    }
    nothing = (
        f"No bus announced itself on UDP port {port} within {seconds:g} s. A broker announces itself where "
        "it listens: 'polybus serve' to this machine, 'polybus serve --host 0.0.0.0' to its networks."
    )
    show(rows, json_, columns, nothing)


def dialects(endpoints: dict[str, str]) -> list[str]:
    """The sections of the settings that have a port there."""
    return list(dict.fromkeys(name.partition(".")[0] for name in endpoints))
