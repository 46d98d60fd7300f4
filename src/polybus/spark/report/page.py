"""The page: what is told, in which order, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from polybus.spark.report.facts import LEVELS, Facts
from polybus.spark.report.graph import call_graph
from polybus.spark.report.marks import Html, nothing, tag, text
from polybus.spark.report.numbers import count, micros, moment, rate, share
from polybus.spark.report.plots import lines, stacked
from polybus.spark.report.sections import alerts, failures, slow, topics, workers
from polybus.spark.report.style import SCRIPT, STYLE

# Nothing is fetched from anywhere, and a browser holds us to it.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
OUTCOME_KINDS: Final = {
    "replied": "s-main",
    "cancelled": "s-quiet",
    "expired": "s-warn",
    "failed": "s-bad",
}
LEVEL_KINDS: Final = {
    "debug": "s-main-3",
    "info": "s-main-2",
    "warning": "s-warn",
    "error": "s-bad",
    "critical": "s-bad",
}


def make_page(facts: Facts, tables: str, now: datetime) -> Html:
    """A whole document, that needs nothing else."""
    parts = [_head(facts), _tiles(facts)]
    sections: list[tuple[str, str, Callable[[Facts], Html]]] = [
        ("What needs attention", "Alerts: when a service broke a rule, and how badly at worst.", alerts),
        ("How much", "Requests that ended, and publications, per second.", _much),
        (
            "How fast",
            "Half, 95 % and 99 % of the requests took at most so long. The scale is logarithmic.",
            _fast,
        ),
        (
            "What is slow",
            "Services, the slowest first. The dots are the median, 95 % and 99 % of the time of service, "
            "on one logarithmic scale.",
            slow,
        ),
        ("What fails, and why", "Requests that failed or expired, and those that were given up.", failures),
        (
            "Who calls whom",
            "The busier, the wider; red is the share that failed or expired, from 2 % on. Whole days (UTC).",
            lambda facts: call_graph(facts.calls) if facts.calls else nothing("Nobody called anybody."),
        ),
        ("Workers", "How busy they were, and which come and go.", workers),
        ("Topics", "Publications, the busiest topics first.", topics),
        ("Logs", "What nodes wrote to the bus, by level.", _logs),
    ]
    parts += [
        tag("section", tag("h2", text(title)) + tag("p", text(subtitle)) + make(facts))
        for title, subtitle, make in sections
    ]
    made = f"Made {moment(now)} UTC from the tables in {tables}. All times are UTC."
    body = tag("main", "".join(parts) + tag("footer", text(made))) + '<div id="tip"></div>'
    title = f"polybus report: {', '.join(facts.brokers) or 'nothing yet'}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}<script>{SCRIPT}</script></body></html>\n"
    )


def _head(facts: Facts) -> Html:
    begin, end = facts.clock.begin.astimezone(UTC), facts.clock.end.astimezone(UTC)
    same_day = begin.date() == end.date()
    span = f"{moment(begin)} to {moment(end, with_date=not same_day)} UTC"
    who = f"{'broker' if len(facts.brokers) == 1 else 'brokers'} {', '.join(facts.brokers)}"
    words = f"{who} · {span}" if facts.brokers else "The tables are empty: nothing happened in this time."
    return tag("header", tag("h1", "polybus report") + tag("p", text(words)))


def _tiles(facts: Facts) -> Html:
    length_s = (facts.clock.end - facts.clock.begin).total_seconds()
    requests, errors = facts.requests, facts.errors
    published = facts.published
    dead = sum(number for _, _, number in facts.dead)
    wrong = errors / requests if requests else None
    tiles = [
        ("Requests", count(requests), f"{rate(requests / length_s)} per second", False),
        ("Failed or expired", count(errors), f"{share(wrong)} of them", bool(errors)),
        (
            "Service time, p95",
            micros(facts.overall["service"][95]),
            f"median {micros(facts.overall['service'][50])}",
            False,
        ),
        (
            "Wait, p95",
            micros(facts.overall["wait"][95]),
            f"median {micros(facts.overall['wait'][50])}",
            False,
        ),
        ("Publications", count(published), f"{rate(published / length_s)} per second", False),
        (
            "Alerts",
            count(len(facts.alerts)),
            f"{count(dead)} dead letter{'' if dead == 1 else 's'}",
            bool(facts.alerts),
        ),
    ]
    return tag(
        "div",
        "".join(
            tag(
                "div",
                tag("span", text(title)) + tag("b", text(value)) + tag("span", text(more)),
                class_="tile is-bad" if is_bad else "tile",
            )
            for title, value, more, is_bad in tiles
        ),
        class_="tiles",
    )


def legend(entries: list[tuple[str, str]]) -> Html:
    return tag(
        "div",
        "".join(tag("span", tag("i", "", class_=kind) + text(name)) for name, kind in entries),
        class_="legend",
    )


def _per_second(values: Sequence[float], facts: Facts) -> list[float]:
    return [value / facts.clock.width_s for value in values]


def _much(facts: Facts) -> Html:
    layers = [
        (name, kind, _per_second(facts.outcomes[name], facts))
        for name, kind in OUTCOME_KINDS.items()
        if any(facts.outcomes[name])
    ]
    if layers:
        entries = [(f"{name} {count(sum(facts.outcomes[name]))}", kind) for name, kind, _ in layers]
        plot = stacked(facts.clock, "Requests per second over time", layers, rate, "per second")
        above = tag("h3", "Requests per second") + legend(entries) + plot
    else:
        above = nothing("No requests ended in this time.")
    if not any(facts.publications):
        return above + nothing("Nothing was published.")
    values = _per_second(facts.publications, facts)
    below = stacked(
        facts.clock,
        "Publications per second over time",
        [("published", "s-main-2", values)],
        rate,
        "per second",
    )
    return (
        above
        + tag("h3", "Publications per second, by the minute", style="margin-top:14px")
        + below.replace('class="plot plain"', 'class="plot plain low"')
    )


def _fast(facts: Facts) -> Html:
    kinds = {50: "s-main-3", 95: "s-main-2", 99: "s-main"}
    parts = []
    for measure, title in (("wait", "Wait for a worker"), ("service", "Time of service")):
        found = facts.percentiles[measure]
        if not any(value is not None for values in found.values() for value in values):
            parts.append(tag("div", tag("h3", title) + nothing("No request has such a time.")))
            continue
        series = [(f"p{q}", kinds[q], values) for q, values in found.items()]
        parts.append(tag("div", tag("h3", title) + lines(facts.clock, f"{title} over time", series, micros)))
    return tag("div", "".join(parts), class_="pair")


def _logs(facts: Facts) -> Html:
    if not facts.logs:
        return nothing("No node wrote to the log.")
    order = [*LEVELS, *(level for level in facts.logs if level not in LEVELS)]
    layers = [
        (level, LEVEL_KINDS.get(level, "s-quiet"), _per_minute(facts.logs[level], facts))
        for level in order
        if level in facts.logs
    ]
    entries = [(f"{level} {count(sum(facts.logs[level]))}", kind) for level, kind, _ in layers]
    plot = stacked(facts.clock, "Log records per minute over time", layers, rate, "per minute")
    noisy = ""
    if facts.nodes:
        names = ", ".join(f"{name} ({count(number)})" for name, number in facts.nodes[:5])
        noisy = tag("p", text(f"Warnings and errors by node: {names}."), class_="hint")
    return tag("h3", "Records per minute") + legend(entries) + plot + noisy


def _per_minute(values: list[int], facts: Facts) -> list[float]:
    return [value * 60 / facts.clock.width_s for value in values]
