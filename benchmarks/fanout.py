"""Deliveries per second from one publisher to many subscribers, through polybus and libzmq's own proxy.

One publisher, ten subscribers, bodies of 100 bytes, last values on.  Both contestants take turns, round after
round, with the same generator (fan.c), which never lets the publisher run so far ahead that something would
have to be dropped, and checks that every subscriber gets everything once and in order.

    python benchmarks/fanout.py [--quick] [--rounds 5] [--seconds 2] [--subscribers 1 10 100] [--json]

The exit status says whether everything worked, not whether it was fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import _parts as parts
from broker import machine
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

SIZE: Final = 100
# How far the publisher may be ahead of the slowest subscriber: enough that nobody ever waits for it.
WINDOW: Final = 5_000
WARMUP_S: Final = 0.3
MAIN: Final = 10
GOAL: Final = 0.7
# Counters of the broker that stay at zero when nothing goes wrong.
MISHAPS: Final = ("invalid", "publications_dropped", "publications_refused", "internal_errors")


@dataclass
class Figures:
    """What the rounds of one contestant gave: deliveries a second, and CPU seconds for a million of them."""

    rates: list[float] = field(default_factory=list)
    cpu_main: list[float] = field(default_factory=list)
    cpu_others: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def as_dict(self) -> dict[str, object]:
        return {
            "median": round(self.rate),
            "rounds": [round(rate) for rate in self.rates],
            "cpu_main_s_per_million": round(statistics.median(self.cpu_main), 3),
            "cpu_others_s_per_million": round(statistics.median(self.cpu_others), 3),
        }


Results = dict[tuple[str, int], Figures]


def measure(
    generator: Path, running: parts.Running, ports: Sequence[str], subscribers: int, seconds: float
) -> tuple[float, parts.Cpu]:
    """Deliveries a second, and CPU seconds for a million of them."""
    before = parts.cpu_of(running.pid)
    endpoints = [running.endpoints[port] for port in ports]
    numbers = map(str, (subscribers, SIZE, WINDOW, seconds, WARMUP_S))
    command = [str(generator), parts.libzmq_path(), *endpoints, *numbers]
    found = parts.run_for_json(command, seconds + 2 * parts.PATIENCE_S)
    running.check()
    used = parts.cpu_of(running.pid) - before
    million = found["total"] / 1e6
    return found["counted"] / found["seconds"], parts.Cpu(used.main / million, used.others / million)


def run(
    generator: Path, counts: Sequence[int], rounds: int, seconds: float
) -> tuple[Results, dict[str, int]]:
    """What the rounds gave, and what the broker counted that should not have happened."""
    results: Results = {(name, count): Figures() for count in counts for name in ("polybus", "proxy")}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = progress.add_task("starting", total=rounds * len(results))
        broker = stack.enter_context(parts.broker())
        for number in range(rounds):
            for (name, count), figures in results.items():
                progress.update(task, description=f"round {number + 1}: {name}, {count} subscribers")
                if name == "polybus":
                    ports = ("ebus.publish", "ebus.subscribe")
                    rate, cpu = measure(generator, broker, ports, count, seconds)
                else:
                    # Started anew for each turn, so that nothing of the turn before is left in its pipes.
                    with parts.proxy("topics") as proxy:
                        rate, cpu = measure(generator, proxy, ("frontend", "backend"), count, seconds)
                figures.rates.append(rate)
                figures.cpu_main.append(cpu.main)
                figures.cpu_others.append(cpu.others)
                progress.advance(task)
        status = parts.ask_admin(broker.endpoints["admin.port"], "status")
    if not status["last_values"]:
        raise parts.Broken("last values were not kept, so this is no comparison")
    return results, parts.counted(status, MISHAPS)


def show(console: Console, results: Results) -> None:
    table = Table(title="Deliveries, 1 publisher, 100 B", title_justify="left")
    table.add_column("through")
    for name in ("subscribers", "/s, median", "min–max", "of proxy", "CPU s/million", "of it main"):
        table.add_column(name, justify="right", no_wrap=True)
    for (name, count), figures in results.items():
        share = figures.rate / results["proxy", count].rate
        cpu = [main + others for main, others in zip(figures.cpu_main, figures.cpu_others, strict=True)]
        table.add_row(
            name,
            str(count),
            f"{figures.rate:,.0f}",
            f"{min(figures.rates):,.0f}–{max(figures.rates):,.0f}",
            "–" if name == "proxy" else f"{share:.2f}",
            f"{statistics.median(cpu):.2f}",
            f"{statistics.median(figures.cpu_main):.2f}",
        )
    console.print(table)
    for goal in goals(results):
        mark = "[green]met[/]    " if goal.met else "[yellow]not met[/]"
        console.print(f"  {mark} {goal.value:5.2f}  {goal.text}", highlight=False)


def goals(results: Results) -> list[parts.Goal]:
    if ("polybus", MAIN) not in results:
        return []
    text = f"publications to {MAIN} subscribers, share of the proxy: at least {GOAL:.2f}"
    return [parts.Goal(text, ratio(results), ratio(results) >= GOAL)]


def flat(results: Results) -> dict[str, float]:
    """The figures of this run for the record: deliveries a second, and shares of the proxy."""
    found: dict[str, float] = {f"{name}{count}": round(each.rate) for (name, count), each in results.items()}
    for name, count in results:
        if name == "polybus":
            share = results[name, count].rate / results["proxy", count].rate
            found[f"polybus{count}_of_proxy"] = round(share, 4)
    return found


def ratio(results: Results) -> float:
    return results["polybus", MAIN].rate / results["proxy", MAIN].rate


def summary(results: Results) -> str:
    """The line that scripts look for."""
    if ("polybus", MAIN) not in results:
        return "bench-fanout: polybus=- proxy=- ratio=-"
    polybus, proxy = (round(results[name, MAIN].rate) for name in ("polybus", "proxy"))
    return f"bench-fanout: polybus={polybus} proxy={proxy} ratio={ratio(results):.2f}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Deliveries from one publisher to many subscribers, through polybus and zmq_proxy."
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds, for CI")
    parser.add_argument("--rounds", type=int, help="how often each has its turn (5; quick: 3)")
    parser.add_argument("--seconds", type=float, help="how long a turn is measured (2; quick: 0.5)")
    parser.add_argument("--subscribers", type=int, nargs="+", help="how many (1 10 100; quick: 10)")
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.5 if options.quick else 2.0)
    options.subscribers = options.subscribers or ([MAIN] if options.quick else [1, MAIN, 100])
    if options.rounds < 1 or options.seconds <= 0 or min(options.subscribers) < 1:
        parser.error("--rounds, --seconds and --subscribers are more than 0")
    return options


def main() -> int:
    options = parse()
    parts.end_children_with_us()
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        generator = parts.compiled("fan")
        if generator is None:
            why = "There is no C compiler, and a generator in Python would only measure itself."
            if options.json:
                print(json.dumps({"skipped": {"fanout": why}, **parts.for_record({}, [], {})}))
                return 0
            console.print(why)
            print("bench-fanout: polybus=- proxy=- ratio=-")
            return 0
        results, mishaps = run(generator, options.subscribers, options.rounds, options.seconds)
    except parts.Broken as error:
        Console(stderr=True).print(f"[red]bench-fanout: something is broken[/]: {error}", highlight=False)
        return 1
    facts = {**machine(), "rounds": options.rounds, "seconds": options.seconds}
    if options.json:
        cases = {f"{name} {count}": found.as_dict() for (name, count), found in results.items()}
        record = parts.for_record(flat(results), goals(results), mishaps)
        print(json.dumps({**facts, "cases": cases, **record}, indent=1))
    else:
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        console.print(told, highlight=False, markup=False)
        show(console, results)
        print(summary(results))
    return parts.exit_status("bench-fanout", mishaps)


if __name__ == "__main__":
    sys.exit(main())
