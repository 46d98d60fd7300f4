"""Importing polybus costs nothing, and using the client needs no command line tools."""

from __future__ import annotations

import subprocess
import sys


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_polybus_loads_nothing_else() -> None:
    loaded = loaded_after("import polybus")
    assert not loaded & {"zmq", "msgspec", "asyncio", "typer", "rich"}


def test_the_client_needs_neither_typer_nor_rich_nor_the_broker() -> None:
    loaded = loaded_after("from polybus import Bus, Client, Worker")
    assert not loaded & {
        "typer",
        "rich",
        "asyncio",
        "polybus.core",
        "polybus.dialects",
        "polybus.server.broker",
    }
