"""The demo's last chapter: the dashboard, which knows what was called."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from rich.text import Text

from polybus.cli.demo_calls import START_S, service_of
from polybus.cli.demo_stage import CALLS_OF_A_SERVICE, Stage
from polybus.cli.up_parts import why_no_dashboard
from polybus.client.addresses import DIALECTS
from polybus.errors import ConnectionLost

ASK_S: Final = 10.0
NAME: Final = "the dashboard"


def start_dashboard(stage: Stage) -> None:
    """Behind the chapters before its own, so that nobody waits for it."""
    if not why_no_dashboard():
        stage.processes.command(NAME, "web", "--port", "0", "--data-dir", str(stage.data_dir))


def dashboard(stage: Stage) -> None:
    child = dict(stage.processes.named()).get(NAME)
    if child is None:
        stage.note(f"left out: {why_no_dashboard()}")
        return
    address = listening(stage, child)
    base = address.partition("?")[0]
    status, _ = fetch(f"{base}healthz")
    stage.check("it answers", "" if status == 200 else f"/healthz says {status}")
    _, rows = fetch(f"{base}api/services")
    wrong = disagreement(rows)
    stage.check(
        f"it knows of all {CALLS_OF_A_SERVICE * len(DIALECTS)} calls of the second chapter, as the broker "
        "counted them",
        wrong,
    )
    stage.dashboard = address
    stage.console.print(Text(f"  {address}", "bold"), soft_wrap=True)


def listening(stage: Stage, child: subprocess.Popen[bytes]) -> str:
    with stage.console.status("waiting for the dashboard"):
        return stage.processes.line_of(child, "ready dashboard=", START_S).partition("=")[2]


def disagreement(rows: list[dict[str, Any]]) -> str:
    """Where the counts are not what was called."""
    counts = {row["service"]: row["answered"] for row in rows}
    return "; ".join(
        f"{service} was answered {counts.get(service, 0)} times, not {CALLS_OF_A_SERVICE}"
        for service in map(service_of, DIALECTS)
        if counts.get(service) != CALLS_OF_A_SERVICE
    )


def fetch(address: str) -> tuple[int, Any]:
    """Status and content. Without a proxy: this is on our own machine."""
    try:
        with build_opener(ProxyHandler({})).open(address, timeout=ASK_S) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except (URLError, TimeoutError) as error:
        raise ConnectionLost(f"{address} did not answer: {getattr(error, 'reason', error)}") from None
    except ValueError:
        return 200, None
