"""The commands that a newcomer meets first: demo, serve, doctor, settings. What they do is elsewhere."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from polybus.cli.options import Admin, DataDir, Json, LogFormat, WrongUse, examples


class Pump(StrEnum):
    compiled = "compiled"
    pyzmq = "pyzmq"


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="POLYBUS_CONFIG",
        show_envvar=True,
        help="The settings' file; without it ./polybus.toml is read if it is there.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="Any other setting, as often as needed; in the environment it is POLYBUS_SECTION_NAME. "
        "'polybus settings' lists them all; those of a queue are queues.NAME.OPTION. "
        "A port takes a number, an endpoint, 0 (any free) or -1 (off).",
    ),
]
AnyPort = Annotated[
    bool,
    typer.Option(
        "--any-port",
        envvar="POLYBUS_ANY_PORT",
        show_envvar=True,
        help="Listen on free ports; they are printed, and written to endpoints.json in the data directory.",
    ),
]


FROM_SET: Final = "the option --set"


def _env(name: str, flag: str, **options: Any) -> Any:
    variable = f"POLYBUS_BROKER_{name.upper()}"
    return typer.Option(flag, envvar=variable, show_envvar=True, **options)


SERVE_EXAMPLES = examples(
    "polybus serve",
    "polybus serve --any-port --data-dir var/second --name second",
    "polybus serve --set ebus.frontend=6000 --set dbp.enabled=false --set limits.queue_length=1000",
)


def serve(
    data_dir: Annotated[
        str | None, _env("data_dir", "--data-dir", help="Where the broker keeps its files (default: var).")
    ] = None,
    config: Config = None,
    host: Annotated[
        str | None,
        _env("host", "--host", help="The interface to listen on (default: 127.0.0.1, this machine only)."),
    ] = None,
    any_port: AnyPort = False,
    pump: Annotated[
        Pump | None, _env("pump", "--pump", help="How messages are moved (default: the fastest there is).")
    ] = None,
    name: Annotated[
        str | None, _env("name", "--name", help="What other components call this broker (default: polybus).")
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        _env(
            "log_format",
            "--log-format",
            help="How lines on standard error are written: for people (text, the default), or one JSON "
            "object each (json).",
        ),
    ] = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Run a broker in the foreground, on the default ports of every dialect.

    One line that begins with 'ready' is printed as soon as everything is bound. SIGTERM (or Ctrl-C) lets it
    finish what is unanswered, a second one stops it at once; SIGHUP makes it read its settings again.
    """
    from polybus import config as configuration
    from polybus.cli.serve import serve as run

    overrides = configuration.any_free_ports() if any_port else {}
    origins = dict.fromkeys(overrides, "the option --any-port")
    named = {"data_dir": data_dir, "host": host, "pump": pump and pump.value, "name": name}
    named["log_format"] = log_format and log_format.value
    options = {f"broker.{option}": value for option, value in named.items() if value is not None}
    origins |= {setting: _origin(setting, value) for setting, value in options.items()}
    assigned = read_assignments(set_ or [])
    origins |= dict.fromkeys(assigned, FROM_SET)
    overrides |= options | assigned
    status = run(lambda: configuration.load(config, overrides, origins=origins), json_)
    if status:
        raise typer.Exit(status)


def _origin(setting: str, value: str) -> str:
    """Where the value of an option comes from: typer takes it from the environment as well."""
    from polybus.config import variable

    name = variable(setting)
    if os.environ.get(name) == value:
        return f"the environment variable {name}"
    return f"the option --{setting.partition('.')[2].replace('_', '-')}"


def read_assignments(texts: list[str]) -> dict[str, str]:
    """`section.name=value` → the settings that it means."""
    from polybus.cli.settings import names

    known = names()
    found: dict[str, str] = {}
    mistakes: list[str] = []
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        mistake = (
            _wrong_name(text, name, known)
            if equals
            else f"--set takes section.name=value, not {text!r}; for example ebus.frontend=6000"
        )
        if mistake:
            mistakes.append(mistake)
        else:
            found[name] = value.strip()
    if mistakes:
        raise WrongUse(" ".join(f"{text}{'' if text.endswith('?') else '.'}" for text in mistakes))
    return found


def _wrong_name(text: str, name: str, known: list[str]) -> str:
    """What is wrong with the name of a setting; nothing if there is one of this name. That of a queue is
    `queues.name.option`, where the name is free and may have dots."""
    from polybus.config import QUEUE_OPTIONS, QUEUES

    if name in known:
        return ""
    section, _, rest = name.partition(".")
    if section != QUEUES:
        return f"--set {text}: there is no setting {name!r}{_near(name, known)}"
    queue, _, option = rest.rpartition(".")
    if queue and option in QUEUE_OPTIONS:
        return ""
    options = ", ".join(QUEUE_OPTIONS)
    return f"--set {text}: {name!r} is no setting of a queue; write queues.NAME.OPTION with one of {options}"


def _near(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else "; 'polybus settings' lists them all"


SETTINGS_EXAMPLES = examples("polybus settings", "polybus settings --set broker.host=0.0.0.0 --json")


def settings(config: Config = None, set_: Set = None, json_: Json = False) -> None:
    """Show every setting, its value, where that comes from, and its environment variable."""
    from polybus.cli.settings import show

    show(config, read_assignments(set_ or []), json_)


DOCTOR_EXAMPLES = examples(
    "polybus doctor", "polybus doctor --json", "polybus doctor --data-dir var --salvage var.saved"
)


def doctor(
    admin: Admin = None,
    data_dir: DataDir = None,
    config: Config = None,
    salvage: Annotated[
        Path | None,
        typer.Option(
            "--salvage",
            metavar="DIR",
            help="Do something else: copy what is whole of a damaged store into DIR, which is to become a "
            "data directory of its own, and say what was lost. The broker must not run.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Check this machine and its broker, and say what to do about what is wrong.

    The exit status is 1 if something has to be repaired (or, with --salvage, was lost), 0 if all is well or
    could only be better.
    """
    from polybus.cli.doctor import examine, settings_of

    if salvage is not None:
        from polybus.cli.salvage import save

        if not save(data_dir or Path(settings_of(config).broker.data_dir), salvage, json_):
            raise typer.Exit(1)
    elif not examine(admin, data_dir, config, json_):
        raise typer.Exit(1)


DEMO_EXAMPLES = examples("polybus demo", "polybus demo --stay", "polybus demo --no-pipeline")


def demo(
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep everything running until Ctrl-C, to try commands on it.")
    ] = False,
    tables: Annotated[
        bool,
        typer.Option(
            "--pipeline/--no-pipeline",
            "--tables/--no-tables",
            " /--quick",
            help="Make tables of the journal with Spark, or do not.",
        ),
    ] = True,
    json_: Json = False,
) -> None:
    """See it work, in eight short chapters: a broker, workers of all six dialects, clients of all six.

    A worker is killed in the middle of a job, a schedule runs, a subscriber comes late; then the trace of the
    job, Spark's tables of all of it, and the dashboard. Everything shown is checked: the exit status is 1 if
    something is not as it should be. It runs on free ports and in a temporary directory, and leaves nothing
    behind.
    """
    from polybus.cli.demo import run

    if not run(stay, json_, tables):
        raise typer.Exit(1)
