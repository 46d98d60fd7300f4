"""What the broker benchmark measures, and what it hopes to find.

A case is one way to send requests through one thing.  `plain` cases go through libzmq's proxy, which is
what everything is compared with; `direct` has nothing in between and shows what the generator itself can do.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from _parts import Goal

WINDOW: Final = 200
CREDIT: Final = 1000


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    # What the requests go through: polybus, journal (polybus that keeps one, as is the default; the others do
    # without), twin (polybus with the pyzmq pump), proxy, or nothing.
    through: str
    # The dialect for the generator, or `python` for the Python ends.
    kind: str
    size: int = 64
    window: int = WINDOW
    credit: int = CREDIT
    workers: int = 1

    @property
    def is_latency(self) -> bool:
        return self.window == 1


CASES: Final = {
    case.name: case
    for case in (
        Case("proxy64", "zmq_proxy, 64 B", "proxy", "plain"),
        Case("mdr64", "MDR, 64 B", "polybus", "mdr"),
        Case("journal64", "MDR, 64 B, with a journal", "journal", "mdr"),
        Case("emqp64", "eMQP, 64 B", "polybus", "emqp"),
        Case("twin64", "MDR, 64 B, pump without a compiler", "twin", "mdr"),
        Case("mdr64w16", "MDR, 64 B, 16 workers with credit 1", "polybus", "mdr", credit=1, workers=16),
        Case("python64", "MDR, 64 B, Python client and worker", "polybus", "python", window=400, credit=400),
        Case("proxy1k", "zmq_proxy, 1 KiB", "proxy", "plain", 1024),
        Case("mdr1k", "MDR, 1 KiB", "polybus", "mdr", 1024),
        Case("emqp1k", "eMQP, 1 KiB", "polybus", "emqp", 1024),
        Case("direct64", "no broker, 64 B: the generator's limit", "nothing", "direct"),
        Case("proxy64lat", "zmq_proxy, 64 B, one outstanding", "proxy", "plain", window=1),
        Case("mdr64lat", "MDR, 64 B, one outstanding", "polybus", "mdr", window=1),
    )
}


@dataclass
class Figures:
    """What the rounds of a case gave."""

    rates: list[float] = field(default_factory=list)
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    # CPU seconds of what is measured, per 100,000 round trips.
    cpu_main: list[float] = field(default_factory=list)
    cpu_others: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def as_dict(self) -> dict[str, object]:
        middle = {
            name: round(statistics.median(values), 4)
            for name, values in (
                ("p50_us", self.p50_us),
                ("p99_us", self.p99_us),
                ("cpu_main_s_per_100k", self.cpu_main),
                ("cpu_others_s_per_100k", self.cpu_others),
            )
            if values
        }
        spread = {"median": round(self.rate), "min": round(min(self.rates)), "max": round(max(self.rates))}
        return {**spread, "rounds": [round(rate) for rate in self.rates], **middle}


Results = Mapping[str, Figures]


def against_proxy(case: Case, results: Results) -> float | None:
    """The rate of a case as a share of what the proxy does with messages of the same size."""
    proxy = results.get(f"proxy{'1k' if case.size == 1024 else case.size}{'lat' if case.is_latency else ''}")
    if case.through == "nothing" or proxy is None or case.name not in results:
        return None
    return results[case.name].rate / proxy.rate


def with_journal(results: Results) -> float | None:
    """What the journal leaves of the rate."""
    if "journal64" not in results or "mdr64" not in results:
        return None
    return results["journal64"].rate / results["mdr64"].rate


def goals(results: Results) -> list[Goal]:
    """Those goals that the cases that ran can answer."""
    found: list[Goal] = []

    def at_least(name: str, base: str, share: float, text: str) -> None:
        if name in results and base in results:
            value = results[name].rate / results[base].rate
            found.append(Goal(f"{text}: at least {share:.2f}", value, value >= share))

    at_least("mdr64", "proxy64", 0.40, "MDR at 64 B, share of the proxy")
    at_least("journal64", "mdr64", 0.80, "the same with a journal, share of that without one")
    at_least("twin64", "proxy64", 0.08, "the same without a compiler, share of the proxy")
    at_least("python64", "mdr64", 0.40, "Python client and worker, share of the generator")
    if "mdr64lat" in results and "proxy64lat" in results:
        ours, theirs = results["mdr64lat"], results["proxy64lat"]
        for name, mine, base in (("p50", ours.p50_us, theirs.p50_us), ("p99", ours.p99_us, theirs.p99_us)):
            value = statistics.median(mine) / statistics.median(base)
            found.append(
                Goal(f"{name} at one outstanding, multiple of the proxy's: at most 1.30", value, value <= 1.3)
            )
    return found


def flat(results: Results) -> dict[str, float]:
    """The figures of this run for the record: round trips a second, shares of the proxy, latencies."""
    found: dict[str, float] = {name: round(figures.rate) for name, figures in results.items()}
    for name in results:
        share = against_proxy(CASES[name], results)
        if share is not None and CASES[name].through != "proxy":
            found[f"{name}_of_proxy"] = round(share, 4)
    for name, figures in results.items():
        if CASES[name].is_latency:
            found[f"{name}_p50_us"] = round(statistics.median(figures.p50_us), 1)
            found[f"{name}_p99_us"] = round(statistics.median(figures.p99_us), 1)
    return found
