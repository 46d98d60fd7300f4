"""Round trips per second through polybus, and through libzmq's own proxy, in one interleaved run.

A busy machine changes its speed from second to second, so absolute figures mean little: all contestants
take turns, round after round, and what counts is the ratio of their medians.  CPU seconds per 100,000
round trips are printed as well; they depend less on what else the machine does.

    python benchmarks/broker.py [--quick] [--rounds 5] [--seconds 2] [--case mdr64 …] [--json] [--profile]

The exit status says whether everything worked, not whether it was fast.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence

import _parts as parts
import zmq
from _cases import CASES, Case, Figures, against_proxy, flat, goals, with_journal
from _profile import profile
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# Connections are warm and every worker is known after this.
WARMUP_S = 0.3
# The brokers, and the pump that each is told to use (empty: the best there is).
PUMPS = {"polybus": "", "journal": "", "twin": "pyzmq"}
# Those that keep a journal, with an archiver at their side.
JOURNALING = {"journal"}
# Counters of the broker that stay at zero when nothing goes wrong.
MISHAPS = (
    "invalid",
    "answers_lost",
    "expired",
    "failed",
    "late",
    "rejected",
    "requeued",
    "workers_lost",
    "journal_lost",
)


class Arena:
    """The contestants and the generator.

    Brokers live through the whole run, as brokers do.  The proxy is started anew for each turn: it knows no
    goodbyes, and would hand requests to workers of the turn before until it notices that they are gone.
    """

    def __init__(self, generator: parts.Generator) -> None:
        self.generator = generator
        self._stack = contextlib.ExitStack()
        self.running: dict[str, parts.Running] = {}

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, through: str) -> None:
        if through in PUMPS and through not in self.running:
            self.running[through] = self._stack.enter_context(
                parts.broker(PUMPS[through], through in JOURNALING)
            )

    def measure(self, case: Case, seconds: float, figures: Figures) -> None:
        """One round of one case."""
        with contextlib.ExitStack() as stack:
            if case.through == "proxy":
                self.running["proxy"] = stack.enter_context(parts.proxy())
            self._measure(case, seconds, figures)
        if case.through in JOURNALING:
            self._let_archive(case.through)

    def _let_archive(self, through: str) -> None:
        """Wait until everything is archived: it must not slow down whoever has the next turn."""
        admin = self.running[through].endpoints["admin.port"]
        deadline = time.monotonic() + parts.PATIENCE_S
        while time.monotonic() < deadline:
            status = parts.ask_admin(admin, "status")
            if status.get("archiver_rows", 0) >= status["journal_written"] or status["archiver"] == "off":
                return
            time.sleep(0.05)

    def _measure(self, case: Case, seconds: float, figures: Figures) -> None:
        contestant = self.running.get(case.through)
        before = parts.cpu_of(contestant.pid) if contestant else None
        found = self._python_ends(case, seconds) if case.kind == "python" else self._generate(case, seconds)
        if contestant and before:
            contestant.check()
            used = parts.cpu_of(contestant.pid) - before
            figures.cpu_main.append(used.main / found["total"] * 100_000)
            figures.cpu_others.append(used.others / found["total"] * 100_000)
        if found["counted"] < 2 or found["seconds"] <= 0:
            raise parts.Broken(f"{case.name}: no round trips were counted; give it more --seconds")
        figures.rates.append(found["counted"] / found["seconds"])
        if case.is_latency:
            figures.p50_us.append(found["p50_us"])
            figures.p99_us.append(found["p99_us"])

    def mishaps(self) -> dict[str, int]:
        """Ask the brokers whether anything went wrong that the ends did not notice."""
        found: collections.Counter[str] = collections.Counter()
        for name in PUMPS.keys() & self.running.keys():
            status = parts.ask_admin(self.running[name].endpoints["admin.port"], "status")
            if name in JOURNALING and status["journal"] != "on":
                raise parts.Broken(f"the journal of {name} is {status['journal']}: it was not measured")
            found.update(parts.counted(status, MISHAPS))
        return dict(found)

    def _generate(self, case: Case, seconds: float) -> dict[str, float]:
        numbers = [case.size, case.window, seconds, WARMUP_S, case.credit, case.workers]
        command = [*self.generator.command, case.kind, *self._endpoints(case), *map(str, numbers)]
        return parts.run_for_json(command, seconds + parts.PATIENCE_S)

    def _endpoints(self, case: Case) -> Sequence[str]:
        if case.through == "nothing":
            return [parts.free_endpoint()] * 2
        found = self.running[case.through].endpoints
        names = {
            "plain": ("frontend", "backend"),
            "emqp": ("emqp.clients", "emqp.workers"),
        }.get(case.kind, ("majordomo.clients", "majordomo.workers"))
        return [found[name] for name in names]

    def _python_ends(self, case: Case, seconds: float) -> dict[str, float]:
        clients, workers = self._endpoints(case)
        ends = [sys.executable, str(parts.HERE / "_ends.py")]
        with parts.started([*ends, "worker", workers, str(case.credit)]):
            numbers = map(str, (case.size, case.window, seconds, WARMUP_S))
            return parts.run_for_json([*ends, "client", clients, *numbers], seconds + parts.PATIENCE_S)


def run(arena: Arena, cases: Sequence[Case], rounds: int, seconds: float) -> dict[str, Figures]:
    results = {case.name: Figures() for case in cases}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=rounds * len(cases))
        for case in cases:
            arena.start(case.through)
        for number in range(rounds):
            for case in cases:
                progress.update(task, description=f"round {number + 1}: {case.title}")
                arena.measure(case, seconds, results[case.name])
                progress.advance(task)
    return results


# -- showing ------------------------------------------------------------------------------------


def show(console: Console, cases: Sequence[Case], results: dict[str, Figures]) -> None:
    table = Table(title="Round trips", title_justify="left")
    for name in ("case", "through"):
        table.add_column(name)
    for name in ("/s, median", "min–max", "of proxy", "p50 µs", "p99 µs", "CPU s/100k", "of it main"):
        table.add_column(name, justify="right", no_wrap=True)
    for case in cases:
        figures = results[case.name]
        share = against_proxy(case, results)
        table.add_row(
            case.title,
            case.through,
            f"{figures.rate:,.0f}",
            f"{min(figures.rates):,.0f}–{max(figures.rates):,.0f}",
            "–" if share is None else f"{share:.2f}",
            middle(figures.p50_us, ".0f"),
            middle(figures.p99_us, ".0f"),
            middle([m + o for m, o in zip(figures.cpu_main, figures.cpu_others, strict=True)], ".2f"),
            middle(figures.cpu_main, ".2f"),
        )
    console.print(table)
    share = with_journal(results)
    if share is not None:
        console.print(f"  journal=on / off, MDR at 64 B: ratio {share:.2f}", highlight=False)
    for goal in goals(results):
        mark = "[green]met[/]    " if goal.met else "[yellow]not met[/]"
        console.print(f"  {mark} {goal.value:5.2f}  {goal.text}", highlight=False)


def middle(values: Sequence[float], form: str) -> str:
    return format(statistics.median(values), form) if values else "–"


def summary(results: dict[str, Figures]) -> str:
    """The line that scripts look for."""
    names = ("mdr64", "emqp64", "twin64", "proxy64")
    rates = " ".join(f"{name}={round(results[name].rate) if name in results else '-'}" for name in names)
    both = "mdr64" in results and "proxy64" in results
    ratio = f"{results['mdr64'].rate / results['proxy64'].rate:.2f}" if both else "-"
    share = with_journal(results)
    return f"bench-broker: {rates} ratio={ratio} journal={'-' if share is None else f'{share:.2f}'}"


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "libzmq": zmq.zmq_version(),
        "python": sys.version.split()[0],
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Round trips per second through polybus and zmq_proxy.")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each case, for CI")
    parser.add_argument("--rounds", type=int, help="how often each case has its turn (5; quick: 3)")
    parser.add_argument("--seconds", type=float, help="how long a turn is measured (2; quick: 0.5)")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    parser.add_argument(
        "--profile", action="store_true", help="show where the broker spends its time instead"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.5 if options.quick else 2.0)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds are more than 0")
    return options


def main() -> int:
    options = parse()
    parts.end_children_with_us()
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        generator = parts.make_generator()
        if not generator.compiled:
            Console(stderr=True).print(
                "[yellow]There is no C compiler: the generator is the one in Python, and may well be the "
                "bottleneck. Ratios are then too close to 1 and mean little.[/]"
            )
        if options.profile:
            profile(console, generator, max(options.seconds, 1.0))
            return 0
        cases = [CASES[name] for name in options.case or CASES]
        with Arena(generator) as arena:
            results = run(arena, cases, options.rounds, options.seconds)
            mishaps = arena.mishaps()
            pumps = {
                name: parts.ask_admin(arena.running[name].endpoints["admin.port"], "status")["pump"]
                for name in PUMPS
                if name in arena.running
            }
    except parts.Broken as error:
        Console(stderr=True).print(f"[red]bench-broker: something is broken[/]: {error}", highlight=False)
        return 1
    facts = {
        **machine(),
        "generator": "C" if generator.compiled else "Python, may be the bottleneck",
        "pumps": pumps,
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    if options.json:
        report = {
            **facts,
            "cases": {
                case.name: {**results[case.name].as_dict(), "of_proxy": against_proxy(case, results)}
                for case in cases
            },
            **parts.for_record(flat(results), goals(results), mishaps),
        }
        print(json.dumps(report, indent=1))
    else:
        console.print(
            ", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, markup=False
        )
        show(console, cases, results)
        print(summary(results))
    return parts.exit_status("bench-broker", mishaps)


if __name__ == "__main__":
    sys.exit(main())
