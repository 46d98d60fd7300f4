"""The demo's first chapters: the bus comes up, and everybody calls everybody."""

from __future__ import annotations

import statistics
import time
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from polybus.cli import demo_app
from polybus.cli.demo_part import greeting
from polybus.cli.demo_stage import CALLS, NAMES, Outcome, Stage, wait_until
from polybus.cli.find import PORT_OF
from polybus.cli.where import endpoints_table
from polybus.client.addresses import DIALECTS
from polybus.client.client import Client
from polybus.errors import PolybusError

START_S: Final = 20.0
CALL_S: Final = 3.0
POOLS: Final = ("worker one", "worker two")
APP: Final = "polybus.cli.demo_app:bus"
# A worker that was killed is missed when it should hear the broker's next beat: sooner than usual.
IMPATIENT: Final = ("--set", "emqp.heartbeat_s=1")


def service_of(dialect: str) -> str:
    return f"greet-{dialect}"


# -- 1. the bus is up ---------------------------------------------------------------------------------


def bus_is_up(stage: Stage) -> None:
    processes = stage.processes
    with stage.console.status("starting a broker"):
        broker = processes.command(
            "the broker",
            *("serve", "--any-port", "--name", "demo", "--data-dir", str(stage.data_dir), *IMPATIENT),
        )
        words = processes.line_of(broker, "ready", START_S).split()
    stage.endpoints = dict(word.split("=", 1) for word in words[1:])
    stage.check(f"a broker listens on {len(stage.endpoints)} ports")
    for dialect in DIALECTS:
        address = stage.endpoints[PORT_OF[dialect, "worker"]]
        processes.module(
            f"the {dialect} worker", "polybus.cli.demo_part", dialect, address, service_of(dialect)
        )
    expected = set(map(service_of, DIALECTS))

    def ready() -> bool:
        processes.check()
        return expected <= {row["service"] for row in stage.admin.ask("services") if row["workers"]}

    with stage.console.status("starting a worker process for each dialect"):
        wait_until(ready, START_S, "not all workers were ready")
    stage.check(f"{len(DIALECTS)} worker processes are ready, one for each dialect")
    for text in slower():
        stage.note(text)
    stage.console.print()
    stage.console.print(endpoints_table(stage.endpoints))


def slower() -> list[str]:
    """What on this machine makes the bus slower than it could be, and why."""
    from polybus.journal.recorder import records_are_compiled
    from polybus.server.pump import COMPILED, pump_report

    plain = [] if pump_report()[0] == COMPILED else ["the pump, which moves messages"]
    plain += [] if records_are_compiled() else ["the broker's core"]
    if not plain:
        return []
    return [
        f"slower here: not compiled, but run as Python: {' and '.join(plain)}. It does the same with about a "
        "fifth of the throughput; a C compiler at setup makes it fast ('polybus doctor' says more)"
    ]


# -- 2. everybody calls everybody -----------------------------------------------------------------------


def everybody_calls(stage: Stage) -> None:
    with stage.console.status("calling") as status:
        for asking in DIALECTS:
            with Client(stage.endpoints[PORT_OF[asking, "client"]], asking, timeout_s=CALL_S) as client:
                for serving in DIALECTS:
                    status.update(f"{NAMES[asking]} client calls {NAMES[serving]} worker")
                    stage.calls[asking, serving] = call(client, asking, serving)
    stage.console.print(calls_table(stage.calls))
    failed = [f"{a} → {b}: {outcome.error}" for (a, b), outcome in stage.calls.items() if outcome.error]
    good = len(stage.calls) - len(failed)
    stage.check(f"{good} of {len(stage.calls)} pairs of client and worker have talked", "; ".join(failed))
    # Not needed before the next chapter; they come up while Spark does.
    start_pools(stage)


def start_pools(stage: Stage) -> None:
    for name in POOLS:
        stage.processes.command(
            name,
            *("worker", APP, "-c", "1", "--data-dir", str(stage.data_dir)),
            environment={demo_app.NAME_VARIABLE: name},
        )


def call(client: Client, asking: str, serving: str) -> Outcome:
    """Call a service some times: every answer must be right; the median says how long it takes."""
    name = asking.encode()
    took = []
    try:
        for _ in range(CALLS):
            began = time.perf_counter()
            answer = client.call(service_of(serving), name)
            took.append((time.perf_counter() - began) * 1000)
            if answer != greeting(serving, name):
                return Outcome(error=f"wrong answer {answer[:80]!r}")
    except PolybusError as error:
        return Outcome(error=str(error))
    return Outcome(round(statistics.median(took[1:]), 3))


def calls_table(calls: dict[tuple[str, str], Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("client ↓ worker →", style="bold")
    for dialect in DIALECTS:
        table.add_column(NAMES[dialect], justify="right")
    for asking in DIALECTS:
        cells = (calls.get((asking, serving), Outcome(error="not called")) for serving in DIALECTS)
        table.add_row(NAMES[asking], *map(_cell, cells))
    table.caption = "median milliseconds of a call, there and back"
    table.caption_justify = "left"
    return table


def _cell(outcome: Outcome) -> Text:
    return Text("✗", "bold red") if outcome.error else Text(f"✓ {outcome.ms:.1f}")
