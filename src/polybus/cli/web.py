"""`polybus web`: the dashboard."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from polybus.cli.options import Admin, DataDir, Json, LogFormat, LogFormatOption, WrongUse, examples
from polybus.errors import ConfigError

DEFAULT_PORT: Final = 5280
# Shorter ones are guessed.
TOKEN_CHARACTERS: Final = 8

WEB_EXAMPLES = examples(
    "polybus web",
    "polybus web --admin tcp://10.0.0.7:5240 --port 0",
    "polybus web --host 0.0.0.0 --token-file /etc/polybus/token",
)


def web(
    admin: Admin = None,
    data_dir: DataDir = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            envvar="POLYBUS_WEB_HOST",
            show_envvar=True,
            help="The address to listen on; 0.0.0.0 means every one of this machine.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            envvar="POLYBUS_WEB_PORT",
            show_envvar=True,
            help="The port; 0 takes any free one.",
        ),
    ] = DEFAULT_PORT,
    tables: Annotated[
        str,
        typer.Option(
            "--tables", metavar="PLACE", help="The pipeline's tables, if they are not in the data directory."
        ),
    ] = "",
    journal: Annotated[
        list[Path] | None,
        typer.Option(
            "--journal",
            metavar="DIR",
            help="The journal for traces, if it is not in the data directory; repeat it for brokers that are "
            "joined by bridges.",
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="POLYBUS_WEB_TOKEN",
            show_envvar=True,
            help="What actions need; one is made up if none is given.",
        ),
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="POLYBUS_WEB_TOKEN_FILE",
            show_envvar=True,
            help="A file with the token; made, with a new one, if it is not there.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A name by which browsers reach it, as behind a proxy; repeat it for several. Reading needs "
            "the token then, too.",
        ),
    ] = None,
    log_format: LogFormatOption = LogFormat.text,
    json_: Json = False,
) -> None:
    """Show the whole bus in a browser: live rates and latency, services, workers, jobs, logs, traces, tables.

    It runs beside the broker and asks it through its admin socket. Everybody on this machine may look;
    whoever wants to retry, cancel or drop something needs the token, which is in the address that is printed.
    """
    require_web()
    from polybus.telemetry import logs

    logs.use(log_format.value)
    secret, is_kept = choose_token(token, token_file)
    from polybus.web.serving import listen, serve

    listener = listen(host, port)
    bound = listener.getsockname()[1]
    for number in (signal.SIGINT, signal.SIGTERM):
        # Whoever stops it while it starts wants the same as later.
        signal.signal(number, lambda *_: sys.exit(0))
    from polybus import config
    from polybus.cli.find import admin_place, config_path
    from polybus.web.app import make_app
    from polybus.web.guard import Guard, is_any

    guard = Guard(secret, host, allow_host or ())
    if guard.is_private:
        logs.log(
            "it can be reached from elsewhere: reading needs the token, too. There is no TLS here: "
            "whoever sees the traffic sees the token; put a proxy with TLS before it",
            "warning",
            "polybus.web",
        )

    def ready() -> None:
        shown = "127.0.0.1" if is_any(host) else host
        address = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound}/"
        # What is kept in a file is not for whoever reads our output.
        address += "" if is_kept else f"?token={secret}"
        print(json.dumps({"dashboard": address}) if json_ else f"ready dashboard={address}", flush=True)

    home = data_dir or Path(config.load(config_path()).broker.data_dir)
    place = tables or str(home / "tables")
    app = make_app(lambda: admin_place(admin, data_dir), guard, place, journal or [home])
    serve(app, listener, ready)


def require_web() -> None:
    """Raise with what to do if the packages of the dashboard are not there."""
    from importlib.util import find_spec

    missing = [
        name for name in ("starlette", "uvicorn", "prometheus_client", "deltalake") if not find_spec(name)
    ]
    if missing:
        raise ConfigError(
            f"the dashboard needs {', '.join(missing)}, which is not installed: pip install 'polybus[web]'"
        )


def choose_token(token: str, token_file: Path | None) -> tuple[str, bool]:
    """The token, and whether it is kept in a file."""
    if token and token_file:
        raise WrongUse("--token and --token-file both say what the token is: give one of them")
    if token_file is None:
        return check_token(token or secrets.token_urlsafe(24), "--token"), False
    try:
        return check_token(token_file.read_text(encoding="utf-8").strip(), str(token_file)), True
    except FileNotFoundError:
        made = secrets.token_urlsafe(24)
        with open(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(made + "\n")
        return made, True
    except UnicodeDecodeError:
        raise ConfigError(f"{token_file} is no text; it has to hold the token, in one line") from None


def check_token(token: str, source: str) -> str:
    if len(token) < TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token of {source} has to be at least {TOKEN_CHARACTERS} letters, digits or signs, no spaces"
        )
    return token
