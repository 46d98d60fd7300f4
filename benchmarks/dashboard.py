"""What the dashboard costs the broker: round trips without it, and with it open in ten browsers.

Both take turns, round after round, each turn with a broker of its own: one that was looked at goes on
measuring for a while.  What counts is broker and load generator.  The dashboard's own process shares their
two cores here, which it need not elsewhere, so it runs with nice 10 and its CPU time is named separately; the
viewers stand for other machines and only run when nothing else wants to.

    python benchmarks/dashboard.py [--quick] [--rounds 15] [--seconds 2] [--viewers 10] [--json]

The exit status is 1 if the cost is above the goal; with --quick only if something did not work, because
a few short turns tell nothing about three percent.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import _parts as parts
from _cases import CASES
from broker import MISHAPS, WARMUP_S, machine
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

CASE: Final = CASES["mdr64"]
# Of the broker's throughput.
GOAL: Final = 0.03
NICE: Final = 10
# Of what a viewer should have seen, one look a second, at least so many.
SEEN: Final = 0.6


@dataclass
class Turn:
    """What one turn gave: round trips a second, CPU seconds for 100,000 of them, and shares of a core."""

    rate: float
    broker_cpu: parts.Cpu
    web_share: float = 0.0
    viewers_share: float = 0.0
    looks: int = 0
    answers: int = 0
    bytes: int = 0
    # What the broker counted that should not have happened.
    mishaps: dict[str, int] = field(default_factory=dict)


@dataclass
class Turns:
    all: list[Turn] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(turn.rate for turn in self.all)

    @property
    def cpu(self) -> float:
        return statistics.median(turn.broker_cpu.main + turn.broker_cpu.others for turn in self.all)

    def median(self, name: str) -> float:
        return statistics.median(getattr(turn, name) for turn in self.all)


def measure(generator: parts.Generator, viewers: int, seconds: float) -> Turn:
    """One turn, with so many viewers."""
    with parts.broker() as broker, contextlib.ExitStack() as stack:
        open_dashboard = stack.enter_context(dashboard(broker, viewers)) if viewers else None
        turn = generate(generator, broker, seconds, open_dashboard)
        status = parts.ask_admin(broker.endpoints["admin.port"], "status")
        turn.mishaps = parts.counted(status, MISHAPS)
        return turn


@dataclass
class Opened:
    web: parts.Running
    viewers: parts.Running

    def cpu(self) -> tuple[float, float]:
        found = [parts.cpu_of(running.pid) for running in (self.web, self.viewers)]
        return found[0].main + found[0].others, found[1].main + found[1].others


@contextlib.contextmanager
def dashboard(broker: parts.Running, viewers: int) -> Iterator[Opened]:
    """`polybus web` and its viewers, when all of them have seen everything once."""
    polybus = str(Path(sys.executable).with_name("polybus"))
    admin = broker.endpoints["admin.port"]
    command = ["nice", "-n", str(NICE), polybus, "web", "--port", "0", "--admin", admin]
    with parts.started(command) as web:
        watching = [sys.executable, str(parts.HERE / "_viewers.py"), web.endpoints["dashboard"], str(viewers)]
        with parts.started(watching, patience_s=3 * parts.PATIENCE_S) as crowd:
            yield Opened(web, crowd)


def generate(
    generator: parts.Generator, broker: parts.Running, seconds: float, opened: Opened | None
) -> Turn:
    names = ("majordomo.clients", "majordomo.workers")
    numbers = (CASE.size, CASE.window, seconds, WARMUP_S, CASE.credit, CASE.workers)
    command = [*generator.command, CASE.kind, *(broker.endpoints[name] for name in names), *map(str, numbers)]
    before, others_before = parts.cpu_of(broker.pid), opened.cpu() if opened else (0.0, 0.0)
    began = time.monotonic()
    found = parts.run_for_json(command, seconds + parts.PATIENCE_S)
    took_s = time.monotonic() - began
    broker.check()
    if found["counted"] < 2 or found["seconds"] <= 0:
        raise parts.Broken("no round trips were counted; give it more --seconds")
    used = parts.cpu_of(broker.pid) - before
    per = 100_000 / found["total"]
    turn = Turn(found["counted"] / found["seconds"], parts.Cpu(used.main * per, used.others * per))
    if opened is not None:
        web_s, viewers_s = (now - then for now, then in zip(opened.cpu(), others_before, strict=True))
        turn.web_share, turn.viewers_share = web_s / took_s, viewers_s / took_s
        count_seen(opened, turn, took_s)
    return turn


def count_seen(opened: Opened, turn: Turn, took_s: float) -> None:
    """What the viewers got; they must have been watching all the time."""
    for running in (opened.web, opened.viewers):
        running.check()
    parts.stop(opened.viewers.process)
    lines = opened.viewers.log.read_text().splitlines()
    try:
        seen: list[dict[str, int]] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise parts.Broken(f"the viewers ended otherwise than they should: {lines[-3:]}") from None
    least = min(one["looks"] for one in seen)
    if least < SEEN * took_s:
        raise parts.Broken(
            f"a viewer has seen {least} looks in {took_s:.1f} s: the dashboard did not keep up"
        )
    turn.looks = sum(one["looks"] for one in seen)
    turn.answers = sum(one["answers"] for one in seen)
    turn.bytes = sum(one["bytes"] for one in seen)


def run(generator: parts.Generator, rounds: int, seconds: float, viewers: int) -> tuple[Turns, Turns]:
    without, with_ = Turns(), Turns()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=2 * rounds)
        for number in range(rounds):
            pair = [(without, 0), (with_, viewers)]
            # Neither is always the first, because a machine changes its speed.
            for turns, count in pair if number % 2 == 0 else reversed(pair):
                progress.update(task, description=f"round {number + 1}: {count} viewers")
                turns.all.append(measure(generator, count, seconds))
                progress.advance(task)
    return without, with_


def cost_of(without: Turns, with_: Turns) -> float:
    """Which part of the throughput the dashboard takes: of each round, because they were side by side."""
    pairs = zip(without.all, with_.all, strict=True)
    return 1.0 - statistics.median(second.rate / first.rate for first, second in pairs)


# -- showing ------------------------------------------------------------------------------------


def show(console: Console, without: Turns, with_: Turns, viewers: int) -> None:
    table = Table(title=f"{CASE.title}: round trips through the broker", title_justify="left")
    table.add_column("dashboard")
    for name in ("/s, median", "min–max", "broker, CPU s/100k", "of it main"):
        table.add_column(name, justify="right", no_wrap=True)
    for title, turns in (("not there", without), (f"open in {viewers} browsers", with_)):
        rates = [turn.rate for turn in turns.all]
        main = statistics.median(turn.broker_cpu.main for turn in turns.all)
        table.add_row(
            title,
            f"{turns.rate:,.0f}",
            f"{min(rates):,.0f}–{max(rates):,.0f}",
            f"{turns.cpu:.3f}",
            f"{main:.3f}",
        )
    console.print(table)
    console.print(
        f"  beside it, on the same cores: the dashboard's process {with_.median('web_share'):.1%} of a core "
        f"(nice {NICE}), the viewers {with_.median('viewers_share'):.1%}\n"
        f"  broker's CPU for a round trip with the dashboard: {with_.cpu / without.cpu - 1.0:+.1%}",
        highlight=False,
    )


def report(without: Turns, with_: Turns) -> dict[str, Any]:
    return {
        "without": [round(turn.rate) for turn in without.all],
        "with": [round(turn.rate) for turn in with_.all],
        "cost": round(cost_of(without, with_), 4),
        "broker_cpu_s_per_100k": {"without": round(without.cpu, 4), "with": round(with_.cpu, 4)},
        "web_share_of_a_core": round(with_.median("web_share"), 4),
        "viewers_share_of_a_core": round(with_.median("viewers_share"), 4),
        "looks": with_.median("looks"),
        "answers": with_.median("answers"),
        "bytes": with_.median("bytes"),
    }


def summary(without: Turns, with_: Turns) -> str:
    """The line that scripts look for."""
    cost = cost_of(without, with_) * 100
    return f"bench-dashboard: without={without.rate:.0f} with={with_.rate:.0f} cost={cost:.1f}%"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the dashboard costs the broker.")
    parser.add_argument("--quick", action="store_true", help="two short rounds, for CI")
    parser.add_argument("--rounds", type=int, help="how often each has its turn (15; quick: 2)")
    parser.add_argument("--seconds", type=float, help="how long a turn is measured (2; quick: 1)")
    parser.add_argument("--viewers", type=int, default=10, help="browsers that look (10)")
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 15)
    options.seconds = options.seconds or (1.0 if options.quick else 2.0)
    if options.rounds < 1 or options.seconds <= 0 or options.viewers < 1:
        parser.error("--rounds, --seconds and --viewers are more than 0")
    return options


def main() -> int:
    options = parse()
    parts.end_children_with_us()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        generator = parts.make_generator()
        without, with_ = run(generator, options.rounds, options.seconds, options.viewers)
    except parts.Broken as error:
        Console(stderr=True).print(f"[red]bench-dashboard: something is broken[/]: {error}", highlight=False)
        return 1
    facts = {
        **machine(),
        "generator": "C" if generator.compiled else "Python, may be the bottleneck",
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    cost = cost_of(without, with_)
    is_met = cost < GOAL
    mishaps: collections.Counter[str] = collections.Counter()
    for turn in (*without.all, *with_.all):
        mishaps.update(turn.mishaps)
    if options.json:
        flat = {"without": round(without.rate), "with": round(with_.rate), "cost": round(cost, 4)}
        text = f"dashboard in {options.viewers} browsers, share of throughput it costs: less than {GOAL:.2f}"
        record = parts.for_record(flat, [parts.Goal(text, cost, is_met)], mishaps)
        told = {**facts, **report(without, with_), "goal": GOAL, "met": is_met, **record}
        print(json.dumps(told, indent=1))
    else:
        console.print(
            ", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, markup=False
        )
        show(console, without, with_, options.viewers)
        mark = "[green]met[/]" if is_met else "[yellow]not met[/]"
        console.print(
            f"  {mark}  the dashboard costs less than {GOAL:.0%} of the throughput", highlight=False
        )
        print(summary(without, with_))
    return parts.exit_status("bench-dashboard", mishaps) or (0 if is_met or options.quick else 1)


if __name__ == "__main__":
    sys.exit(main())
