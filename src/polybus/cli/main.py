"""The command line. Each command is a thin shell over the library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from polybus import config
from polybus.errors import PolybusError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="One ZeroMQ bus for many dialects.")


@app.callback()
def root() -> None:
    """One ZeroMQ bus for many dialects."""


@app.command("serve")
def serve_command(
    data_dir: Annotated[str | None, typer.Option(help="Where the broker keeps its files.")] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="A polybus.toml.")] = None,
    any_port: Annotated[bool, typer.Option(help="Bind every port to a free one.")] = False,
) -> None:
    """Run a broker in the foreground."""
    from polybus.cli.serve import serve

    overrides = config.any_free_ports() if any_port else {}
    if data_dir is not None:
        overrides["broker.data_dir"] = data_dir
    serve(
        lambda: config.load(config_file, overrides),
        lambda broker: print("ready", *(f"{k}={v}" for k, v in broker.endpoints.items()), flush=True),
    )


def main() -> None:
    try:
        app()
    except PolybusError as error:
        print(f"polybus: {error}", file=sys.stderr)
        sys.exit(1)
