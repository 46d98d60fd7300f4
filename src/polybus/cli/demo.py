"""`polybus demo`: the promise of polybus, kept before your eyes.

A broker and one worker for each dialect run in processes of their own; clients of each dialect call every
one of them, and publications cross between the dialects that have topics.  Then the journal of all this
becomes tables, by way of Spark.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import zmq
from msgspec import Struct, field
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polybus.cli import demo_tables
from polybus.cli.demo_part import greeting
from polybus.cli.find import PORT_OF
from polybus.cli.output import print_json, printable
from polybus.cli.processes import Processes
from polybus.client.addresses import DIALECTS
from polybus.client.admin import AdminClient
from polybus.client.client import Client
from polybus.client.pubsub import Publisher, Subscription, write_publication
from polybus.errors import ConnectionLost, PolybusError

START_S: Final = 10.0
CALL_S: Final = 3.0
# Calls that are timed for a cell of the table; the first, which connects, is not.
TIMED: Final = 5
TOPICS: Final = (("ebus", "emqp"), ("emqp", "ebus"))
NAMES: Final = {
    "ebus": "EBUS 1.0",
    "emqp": "eMQP/1.0",
    "mdp1": "MDP/0.1",
    "mdp2": "MDP/0.2",
    "mdr": "MDR",
    "dbp": "DBP",
}


class Outcome(Struct):
    """What came of one call or publication: milliseconds, or why not."""

    ms: float = 0.0
    error: str = ""


class Results(Struct):
    endpoints: dict[str, str]
    # (client dialect, worker dialect), and (publisher, subscriber).
    calls: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    topics: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    # Why there are no tables, and whether that is a failure: without Spark there are none.
    no_tables: str = "not asked for"
    has_failed: bool = False

    @property
    def is_good(self) -> bool:
        outcomes = (*self.calls.values(), *self.topics.values())
        return not self.has_failed and not any(outcome.error for outcome in outcomes)


def run(stay: bool, as_json: bool, with_tables: bool = True) -> bool:
    """Run the demo; True if every call and publication arrived, and the tables were made."""
    # Whoever ends us with SIGTERM gets the same tidy end as Ctrl-C.
    signal.signal(signal.SIGTERM, _terminated)
    began = time.perf_counter()
    # Progress is for people: with --json it goes beside the result.
    console = Console(stderr=as_json, highlight=False)
    with tempfile.TemporaryDirectory(prefix="polybus-demo-") as directory, Processes() as processes:
        data_dir = Path(directory)
        with console.status("starting a broker"):
            endpoints = start_broker(processes, data_dir)
        _done(console, f"a broker listens on {len(endpoints)} ports", began)
        with AdminClient(endpoints["admin.port"]) as admin:
            with console.status("starting a worker process for each dialect"):
                start_workers(processes, admin, endpoints)
            _done(console, f"{len(DIALECTS)} worker processes are ready, one for each dialect", began)
            results = Results(endpoints)
            with console.status("calling") as status:
                call_all(results, lambda text: status.update(text))
            _done(console, f"{len(results.calls)} pairs of client and worker have talked", began)
            with console.status("publishing"):
                publish_all(results, admin)
            _done(console, f"{len(results.topics)} publications have crossed between dialects", began)
            results.seconds = time.perf_counter() - began
            if not as_json:
                show(console, results)
            if with_tables:
                make_tables(console, results, admin, data_dir)
        if as_json:
            print_json(as_values(results))
        else:
            if not results.no_tables:
                demo_tables.show(console, data_dir)
            console.print()
            console.print(_summary(results))
        if stay:
            show_what_to_try(console, results, data_dir)
            processes.watch()
    return results.is_good


def make_tables(console: Console, results: Results, admin: AdminClient, data_dir: Path) -> None:
    began = time.perf_counter()
    results.no_tables = demo_tables.missing()
    if results.no_tables:
        console.print(Text(f"– {results.no_tables}", "yellow"))
        return
    console.print()
    try:
        with console.status("the journal becomes tables") as status:
            demo_tables.build(admin, data_dir, lambda text: status.update(printable(text)))
    except PolybusError as error:
        results.no_tables, results.has_failed = str(error), True
        console.print(Text(f"✗ {printable(str(error))}", "red"))
    else:
        _done(console, "the journal has become tables, by way of Spark", began)


def _terminated(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _done(console: Console, text: str, began: float) -> None:
    console.print(Text("✓ ", "green") + Text(text) + Text(f"  {time.perf_counter() - began:.1f} s", "dim"))


# -- the processes ----------------------------------------------------------------------------


def start_broker(processes: Processes, data_dir: Path) -> dict[str, str]:
    broker = processes.start("the broker", "broker", str(data_dir))
    words = processes.line_of(broker, "ready", START_S).split()
    return dict(word.split("=", 1) for word in words[1:])


def service_of(dialect: str) -> str:
    return f"greet-{dialect}"


def start_workers(processes: Processes, admin: AdminClient, endpoints: dict[str, str]) -> None:
    for dialect in DIALECTS:
        address = endpoints[PORT_OF[dialect, "worker"]]
        processes.start(f"the {dialect} worker", "worker", dialect, address, service_of(dialect))
    expected = set(map(service_of, DIALECTS))

    def ready() -> bool:
        processes.check()
        return expected <= {row["service"] for row in admin.ask("services") if row["workers"]}

    wait_until(ready, START_S, "not all workers were ready")


def wait_until(condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise ConnectionLost(f"{failure} within {timeout_s:g} s; is this machine very busy? Try again")
        time.sleep(0.02)


# -- what is shown ----------------------------------------------------------------------------


def call_all(results: Results, progress: Callable[[str], None]) -> None:
    for asking in DIALECTS:
        with Client(results.endpoints[PORT_OF[asking, "client"]], asking, timeout_s=CALL_S) as client:
            for serving in DIALECTS:
                progress(f"{NAMES[asking]} client calls {NAMES[serving]} worker")
                results.calls[asking, serving] = call(client, asking, serving)


def call(client: Client, asking: str, serving: str) -> Outcome:
    """Call a service some times: every answer must be right; the median says how long it takes."""
    name = asking.encode()
    took = []
    try:
        for _ in range(TIMED + 1):
            began = time.perf_counter()
            answer = client.call(service_of(serving), name)
            took.append((time.perf_counter() - began) * 1000)
            if answer != greeting(serving, name):
                return Outcome(error=f"wrong answer {answer[:80]!r}")
    except PolybusError as error:
        return Outcome(error=str(error))
    return Outcome(round(statistics.median(took[1:]), 3))


def publish_all(results: Results, admin: AdminClient) -> None:
    endpoints = results.endpoints
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        subscriptions = {
            (publishing, subscribed): stack.enter_context(
                Subscription(
                    subscribed, (f"demo.{publishing}",), endpoints[PORT_OF[subscribed, "subscribe"]], context
                )
            )
            for publishing, subscribed in TOPICS
        }
        # Nothing is kept for a subscriber that the broker does not know of yet.
        wait_until(
            lambda: admin.ask("status")["subscriptions"] >= len(TOPICS),
            START_S,
            "the subscriptions were not seen",
        )
        for pair, subscription in subscriptions.items():
            place = endpoints[PORT_OF[pair[0], "publish"]]
            results.topics[pair] = publish(pair[0], place, subscription, context)


def publish(dialect: str, place: str, subscription: Subscription, context: zmq.Context[Any]) -> Outcome:
    topic, body = f"demo.{dialect}", f"news from {dialect}".encode()
    publisher = Publisher(dialect, place, context)
    try:
        publisher.join(CALL_S)
        message = write_publication(dialect, b"demo-1", topic.encode(), [body])
        began = time.perf_counter()
        publisher.send(message, CALL_S)
        found = subscription.get(CALL_S)
        took_ms = (time.perf_counter() - began) * 1000
    except PolybusError as error:
        return Outcome(error=str(error))
    finally:
        publisher.close(0)
    if found != (topic, body):
        return Outcome(error=f"the subscriber got {found!r}")
    return Outcome(round(took_ms, 3))


# -- the result -------------------------------------------------------------------------------


def as_values(results: Results) -> dict[str, Any]:
    def values(outcomes: dict[tuple[str, str], Outcome], first: str, second: str) -> list[dict[str, Any]]:
        return [
            {first: a, second: b, "ok": not outcome.error, "ms": outcome.ms, "error": outcome.error}
            for (a, b), outcome in outcomes.items()
        ]

    return {
        "ok": results.is_good,
        "seconds": round(results.seconds, 3),
        "calls": values(results.calls, "client", "worker"),
        "publications": values(results.topics, "publisher", "subscriber"),
        "endpoints": results.endpoints,
        "tables": not results.no_tables,
        "no_tables": results.no_tables,
    }


def _cell(outcome: Outcome) -> Text:
    return Text("✗", "bold red") if outcome.error else Text("✓ ", "green") + Text(f"{outcome.ms:.1f}", "dim")


def show(console: Console, results: Results) -> None:
    table = Table(title="Calls: client ↓ worker → (median milliseconds)", box=box.ROUNDED, title_style="bold")
    table.add_column("", style="bold")
    for dialect in DIALECTS:
        table.add_column(NAMES[dialect], justify="right")
    for asking in DIALECTS:
        table.add_row(NAMES[asking], *(_cell(results.calls[asking, serving]) for serving in DIALECTS))
    console.print()
    console.print(table)
    for (publishing, subscribed), outcome in results.topics.items():
        text = f" published in {NAMES[publishing]}, seen by a subscriber of {NAMES[subscribed]}"
        console.print(_cell(outcome) + Text(text))
    problems = [
        (*pair, outcome.error)
        for outcomes in (results.calls, results.topics)
        for pair, outcome in outcomes.items()
        if outcome.error
    ]
    for one, other, error in problems:
        console.print(Text(f"✗ {one} → {other}: {printable(error)}", "red"))
    console.print()
    console.print(Text("Where this broker listened", "bold"))
    grid = Table.grid(padding=(0, 2))
    for name, endpoint in results.endpoints.items():
        grid.add_row(Text(name), Text(endpoint, "dim"))
    console.print(grid)


def _summary(results: Results) -> Text:
    calls = sum(not outcome.error for outcome in results.calls.values())
    topics = sum(not outcome.error for outcome in results.topics.values())
    return Text(
        f"{calls} of {len(results.calls)} calls were answered between {len(DIALECTS)} dialects and "
        f"{topics} of {len(results.topics)} publications crossed, in {results.seconds:.1f} s"
        f"{'' if results.no_tables else '; all of it is in the tables'}.",
        "bold green" if results.is_good else "bold red",
    )


def show_what_to_try(console: Console, results: Results, data_dir: Path) -> None:
    place = f"--data-dir {data_dir}"
    lines = (
        f"polybus services {place}",
        f"polybus call greet-ebus you --dialect emqp {place}",
        f"polybus tap {place}",
        f"polybus subscribe weather. --dialect emqp {place}",
        f"polybus publish weather.rome sunny --dialect ebus {place}",
        f"polybus pipeline show traces {place}",
        f"polybus journal tail -f {place}",
    )
    console.print()
    console.print(Text("Everything stays up until Ctrl-C. Try in another terminal:", "bold"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
