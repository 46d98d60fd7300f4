"""From the record of runs to the block of figures in the README, without running anything.

The record has one line of JSON for each run, also for runs that failed or missed a goal.  The block is made
from all runs of a benchmark's newest day: the median of each figure, its lowest and highest value, how many
runs it comes from, what was lost, and in how many runs each goal was met.  Nothing here can choose a run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from _jobs_sides import SIDES, durability

BEGIN: Final = "<!-- figures:begin -->"
END: Final = "<!-- figures:end -->"
NO_RUNS: Final = "No runs recorded yet."
# A reason in the README is a hint; the record has all of it.
REASON_CHARS: Final = 120


class BadRecord(Exception):
    """The record, or the README, cannot be read."""


@dataclass(frozen=True)
class Run:
    """One line of the record."""

    # The day on which the series of runs began: a series over midnight stays together.
    day: str
    at: str
    benchmark: str
    revision: str
    cores: int
    cpu: str
    memory_gib: float
    # Of the machine, over one minute, before the run.
    load: float
    exit: int
    # Why there are no figures; empty if there are some.
    error: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    goals: Sequence[Mapping[str, Any]] = field(default_factory=list)
    mishaps: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.error)

    def as_line(self) -> str:
        return json.dumps(vars(self), ensure_ascii=False) + "\n"


def read(text: str) -> list[Run]:
    """The runs of a record."""
    runs = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                runs.append(Run(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise BadRecord(f"line {number} of the record is not a run: {error}") from None
    return runs


# -- what the block shows -----------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    title: str
    # The name of the figure, with `{}` for the row.
    key: str
    form: str = ",.0f"


@dataclass(frozen=True)
class Section:
    """A benchmark in the block: a table of rows and columns, and figures that stand alone."""

    command: str
    title: str
    columns: Sequence[Column]
    rows: Mapping[str, str]
    # Name of the figure, its title, its form.
    singles: Sequence[tuple[str, str, str]] = ()
    notes: Sequence[str] = ()


SECTIONS: Final = {
    "broker": Section(
        "make bench-broker",
        "round trips through the broker",
        (Column("round trips/s", "{}"), Column("share of libzmq's proxy", "{}_of_proxy", ".2f")),
        {
            "proxy64": "libzmq's `zmq_proxy`, 64 B",
            "mdr64": "MDR, 64 B",
            "journal64": "MDR, 64 B, with a journal",
            "emqp64": "eMQP, 64 B",
            "twin64": "MDR, 64 B, pyzmq pump",
            "mdr64w16": "MDR, 64 B, 16 workers with credit 1",
            "python64": "MDR, 64 B, Python client and worker",
            "proxy1k": "libzmq's `zmq_proxy`, 1 KiB",
            "mdr1k": "MDR, 1 KiB",
            "emqp1k": "eMQP, 1 KiB",
            "direct64": "no broker, 64 B: the generator's limit",
            "proxy64lat": "libzmq's `zmq_proxy`, 64 B, one outstanding",
            "mdr64lat": "MDR, 64 B, one outstanding",
        },
        (
            ("proxy64lat_p50_us", "libzmq's `zmq_proxy`, one outstanding, p50", ",.0f µs"),
            ("mdr64lat_p50_us", "MDR, one outstanding, p50", ",.0f µs"),
            ("proxy64lat_p99_us", "libzmq's `zmq_proxy`, one outstanding, p99", ",.0f µs"),
            ("mdr64lat_p99_us", "MDR, one outstanding, p99", ",.0f µs"),
        ),
    ),
    "jobs": Section(
        "make bench-jobs",
        "guaranteed jobs that do nothing, one producer, two worker processes",
        (
            Column("jobs/s", "{}"),
            Column("multiple of Celery, one call per job", "{}_to_celery", ".2f"),
            Column("multiple of Dramatiq, one call per job", "{}_to_dramatiq", ".2f"),
        ),
        {name: SIDES[name].title for name in ("polybus_single", "celery", "dramatiq", "polybus")},
        (),
        (
            "The first three rows compare like with like. polybus' batches stand apart: the jobs of Celery\n"
            "and Dramatiq are sent one by one; their own batches (kombu: `Producer.batch`) are unmeasured.\n"
            "How each side sends, and where a job is when a call returns:",
            "\n".join(f"- {side.title}: {side.sends}; {durability(name)}." for name, side in SIDES.items()),
        ),
    ),
    "fanout": Section(
        "make bench-fanout",
        "deliveries from one publisher, 100-byte bodies, last values on",
        (Column("deliveries/s", "{}"), Column("share of libzmq's proxy", "{}_of_proxy", ".2f")),
        {
            f"{name}{count}": f"{title}, {count} subscriber{'s' if count > 1 else ''}"
            for count in (1, 10, 100)
            for name, title in (("proxy", "libzmq's proxy"), ("polybus", "polybus"))
        },
    ),
    "pipeline": Section(
        "make bench-pipeline",
        "five million events of a journal, one Spark session, warm",
        (Column("events/s", "{}"), Column("CPU s for a million", "{}_cpu", ".1f")),
        {
            "build": "`polybus pipeline build`: all nine tables",
            "stream": "`polybus pipeline run` that catches up",
            "scan": "bare Spark that reads the same columns and drops them",
            "duckdb": "the same tables by DuckDB",
        },
        (
            ("build_of_scan", "all nine tables, share of bare Spark", ".2f"),
            ("growth", "time for five times the events, multiple", ".1f"),
            ("p50_s", "from an event to its row in `service_metrics`, 5,000 events/s, p50", ".1f s"),
            ("p95_s", "the same, p95", ".1f s"),
        ),
    ),
    "dashboard": Section(
        "make bench-dashboard",
        "round trips without and with the dashboard in ten browsers",
        (),
        {},
        (
            ("without", "round trips/s without", ",.0f"),
            ("with", "round trips/s with it", ",.0f"),
            ("cost", "cost by pairs of rounds", ".1%"),
        ),
    ),
    "idle_workers": Section(
        "make idle-workers",
        "10,000 idle workers for a minute",
        (),
        {},
        (
            ("alive", "workers alive at the end", ",.0f"),
            ("cpu_percent", "broker's CPU, % of a core", ".1f"),
            ("rss_mib", "broker's memory", ",.0f MiB"),
            ("p50_ms", "requests among them, p50", ".2f ms"),
            ("p99_ms", "requests among them, p99", ".2f ms"),
        ),
    ),
    "idle_nodes": Section(
        "make idle-nodes",
        "10,000 nodes that beat every second, for a minute",
        (),
        {},
        (
            ("kept", "nodes kept that stopped beating but answered", ",.0f"),
            ("cpu_percent", "broker's CPU, % of a core", ".1f"),
            ("rss_mib", "broker's memory", ",.0f MiB"),
        ),
    ),
}


# -- numbers ------------------------------------------------------------------------------------


def values(runs: Iterable[Run], key: str) -> list[float]:
    return [run.figures[key] for run in runs if key in run.figures]


def spread(found: Sequence[float], form: str) -> str:
    """The median, and the lowest and highest value: `104 (82–119) µs`."""
    if not found:
        return "–"
    form, _, unit = form.partition(" ")
    middle, low, high = (format(value, form) for value in (statistics.median(found), min(found), max(found)))
    dash = " to " if min(found) < 0 else "–"
    return f"{middle} ({low}{dash}{high}){' ' if unit else ''}{unit}"


def form_of(found: Sequence[float]) -> str:
    """How values of a size that nobody has told are written."""
    return ",.0f" if max(map(abs, found), default=0) >= 100 else ".3g"


def of_runs(count: int, total: int) -> str:
    return f"{count} of {total}"


def times(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


# -- the block ----------------------------------------------------------------------------------


def newest(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """All runs of the newest day of each benchmark, in the order of the sections."""
    days: dict[str, str] = {}
    for run in runs:
        days[run.benchmark] = max(days.get(run.benchmark, ""), run.day)
    order = [*(name for name in SECTIONS if name in days), *sorted(days.keys() - SECTIONS.keys())]
    return {name: [run for run in runs if (run.benchmark, run.day) == (name, days[name])] for name in order}


def render(runs: Sequence[Run]) -> str:
    """The block, without its markers."""
    if not runs:
        return NO_RUNS
    chosen = newest(runs)
    every = [run for some in chosen.values() for run in some]
    machines = dict.fromkeys(f"{run.cores} cores ({run.cpu}, {run.memory_gib:g} GiB)" for run in every)
    low, high = min(run.load for run in every), max(run.load for run in every)
    parts = [
        f"Measured on {' and on '.join(machines)};\n"
        f"the load before a run was {low:.1f} to {high:.1f}. Every figure is the median of all runs of the\n"
        "day, with the lowest and the highest in parentheses; a run is itself the median of turns that all\n"
        "sides take. No run is left out: [the record](benchmarks/runs.jsonl) has each one, also those that\n"
        "failed, and `make figures` adds to it."
    ]
    for name, some in chosen.items():
        parts += section(name, some)
    parts += goals(chosen)
    parts.append(mishaps(chosen))
    return "\n\n".join(parts)


def section(name: str, runs: Sequence[Run]) -> list[str]:
    shape = SECTIONS.get(name, Section(name, name, (), {}))
    measured = [run for run in runs if not run.failed]
    revisions = ", ".join(dict.fromkeys(run.revision for run in runs))
    title = f"{shape.title[0].upper()}{shape.title[1:]}"
    head = f"**{title}** (`{shape.command}`): {times(len(runs), 'run')} on {runs[0].day}"
    failed = len(runs) - len(measured)
    parts = [f"{head}, {failed or 'none'} of them failed; revision {revisions}."]
    parts += [table for table in (grid(shape, measured), singles(shape, measured)) if table]
    if measured:
        parts += shape.notes
    reasons = [f"- A run failed: {shorten(run.error)}" for run in runs if run.failed]
    skips: dict[tuple[str, str], int] = {}
    for run in measured:
        for what, why in run.skipped.items():
            skips[what, why] = skips.get((what, why), 0) + 1
    reasons += [
        f"- Not measured in {times(count, 'run')}: {what}. {shorten(why)}"
        for (what, why), count in skips.items()
    ]
    if reasons:
        parts.append("\n".join(reasons))
    return parts


def grid(shape: Section, runs: Sequence[Run]) -> str:
    rows = []
    for key, title in shape.rows.items():
        found = [(values(runs, column.key.format(key)), column.form) for column in shape.columns]
        if any(some for some, _ in found):
            count = max(len(some) for some, _ in found)
            rows.append([title, *(spread(some, form) for some, form in found), str(count)])
    return table(["", *(column.title for column in shape.columns), "runs"], rows)


def singles(shape: Section, runs: Sequence[Run]) -> str:
    shown = {column.key.format(key) for key in shape.rows for column in shape.columns}
    told = {key for key, _, _ in shape.singles}
    # A figure that nobody has given a title is shown under its own name: the block hides nothing.
    others = dict.fromkeys(key for run in runs for key in run.figures if key not in shown | told)
    rows = []
    for key, title, form in (*shape.singles, *((key, f"`{key}`", "") for key in others)):
        found = values(runs, key)
        if found:
            rows.append([title, spread(found, form or form_of(found)), str(len(found))])
    return table(["", "median (lowest–highest)", "runs"], rows)


def goals(chosen: Mapping[str, Sequence[Run]]) -> list[str]:
    """In how many runs each goal was met. A run that failed has met none."""
    rows = []
    for runs in chosen.values():
        found: dict[str, list[Mapping[str, Any]]] = {}
        for run in runs:
            for goal in run.goals:
                found.setdefault(str(goal["text"]), []).append(goal)
        for text, results in found.items():
            numbers = [float(goal["value"]) for goal in results]
            met = of_runs(sum(bool(goal["met"]) for goal in results), len(runs))
            missing = len(runs) - len(results)
            met += f" ({missing} without a result)" if missing else ""
            rows.append([text, spread(numbers, form_of(numbers)), met])
    return [table(["goal", "median (lowest–highest)", "runs that met it"], rows)] if rows else []


def mishaps(chosen: Mapping[str, Sequence[Run]]) -> str:
    """What was lost, late or repeated, by the counters of the brokers."""
    told = []
    measured = 0
    for name, runs in chosen.items():
        done = [run for run in runs if not run.failed]
        measured += len(done)
        for counter in sorted({counter for run in done for counter in run.mishaps}):
            counts = [run.mishaps[counter] for run in done if counter in run.mishaps]
            told.append(f"{name}: `{counter}` {sum(counts):,}, in {of_runs(len(counts), len(done))} runs")
    if not measured:
        return "No run came to its end."
    if told:
        return "What was lost, late, repeated or refused, by all counters: " + "; ".join(told) + "."
    ended = times(measured, "run")
    return f"Nothing was lost, late, repeated or refused, by all counters, in {ended} with figures."


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |", 1) for cells in lines)


def shorten(text: str) -> str:
    text = text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "…"
    # The text comes from a program's output, and must be neither markup nor a marker of the block.
    text = text.replace("`", "'").replace("<!--", "<!-")
    return f"`{text}`"


# -- the README ---------------------------------------------------------------------------------


def replace(readme: str, block: str) -> str:
    """The README with this block between its markers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadRecord(f"the README has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def is_current(readme: str, runs: Sequence[Run]) -> bool:
    """Whether the README shows what the record gives; without any runs that is that there are none."""
    return replace(readme, render(runs)) == readme
