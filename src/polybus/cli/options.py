"""What many commands share: their options, the panels of the help, and how examples are written.

Nothing here imports more than typer, so that `polybus --help` is quick.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from polybus.errors import PolybusError

FIRST: Final = "Start here"
TALK: Final = "Talk to services and topics"
WORK: Final = "Jobs and schedules"
LOOK: Final = "Look into a running broker"
ACT: Final = "Act on a running broker"
HISTORY: Final = "What happened: the journal and its tables"


class WrongUse(PolybusError):
    """Options or arguments that do not fit together; the exit status says so, as for a misspelt option."""


class Dialect(StrEnum):
    mdr = "mdr"
    mdp1 = "mdp1"
    mdp2 = "mdp2"
    ebus = "ebus"
    emqp = "emqp"
    dbp = "dbp"


class TopicDialect(StrEnum):
    ebus = "ebus"
    emqp = "emqp"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


def dialect_option(purpose: str, dialects: type[StrEnum] = Dialect) -> Any:
    return typer.Option("--dialect", metavar="DIALECT", help=f"The dialect {purpose}: {', '.join(dialects)}.")


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The data directory of the broker: where it listens is read from there.",
    ),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="ADDRESS",
        help="The broker's admin socket: an endpoint, host:port, a host or a port. Without it "
        "POLYBUS_ADMIN_PORT, else polybus.toml, else port 5240 here.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="Where the broker listens for this: an endpoint, host:port or a host. Without it the "
        "environment (POLYBUS_MDR_CLIENT, POLYBUS_EBUS_PUBLISH and so on), else the broker that "
        "var/endpoints.json names, else the default port here.",
    ),
]
Tag = Annotated[
    str | None,
    typer.Option(
        "--tag",
        metavar="TEXT",
        help="What stands in frame 0 of our messages (mdr only), if the broker's majordomo.client_tag or "
        "majordomo.worker_tag was set. Without it POLYBUS_MAJORDOMO_CLIENT_TAG or "
        "POLYBUS_MAJORDOMO_WORKER_TAG, else MDRC01 or MDRW01.",
    ),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="POLYBUS_LOG_FORMAT",
        show_envvar=True,
        help="How lines on standard error are written: for people (text), or one JSON object each (json).",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="How long to wait for an answer.")
]


def examples(*lines: str) -> str:
    """The end of a command's help. A blank line between two is what keeps them on lines of their own."""
    return "\n\n".join([f"[bold]{'Examples' if len(lines) > 1 else 'Example'}[/bold]", *lines])
