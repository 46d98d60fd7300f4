"""The parts of the page that are tables: services, failures, workers, topics and alerts."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from typing import Any, Final

from polybus.spark.report.facts import Facts, Row
from polybus.spark.report.marks import Html, nothing, short, table, tag, text
from polybus.spark.report.numbers import count, micros, moment, share, size
from polybus.spark.report.plots import bar, range_, spark, strip
from polybus.spark.schema import METRICS_WINDOW_S, MINUTE_S

MOST_ROWS: Final = 12
MOST_ALERTS: Final = 8
# A worker that came so often is said to flap.
FLAPPING: Final = 3
# How the value of an alert is written, by its rule, and what the rule says.
RULES: Final[dict[str, tuple[Any, str]]] = {
    "error_rate": (share, "too many errors"),
    "slow": (micros, "too slow"),
    "silent": (lambda value: f"{count(value)} expired", "nobody answers"),
    "flapping": (lambda value: f"{count(value)} losses a minute", "workers come and go"),
}


def more(shown: int, there: int, what: str) -> Html:
    """Nothing is left out in silence."""
    left = there - shown
    return tag("p", text(f"… and {count(left)} more {what}."), class_="hint") if left > 0 else ""


def alerts(facts: Facts) -> Html:
    if not facts.alerts:
        return nothing("Nothing: no rule was broken.")
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in facts.alerts:
        groups[row["subject"] or "", row["rule"], row["broker"] or ""].append(row)
    rows = []
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    for (subject, rule, broker), found in ordered[:MOST_ALERTS]:
        write, words = RULES.get(rule, (lambda value: f"{value:g}", rule))
        width_s = MINUTE_S if rule == "flapping" else METRICS_WINDOW_S
        marks = [
            (row["window_start"], width_s, f"{moment(row['window_start'])}\n{rule}: {write(row['value'])}")
            for row in found
        ]
        place = f' <span class="soft">at {text(broker)}</span>' if len(facts.brokers) > 1 else ""
        worst = max(row["value"] for row in found)
        rows.append(
            [
                short(subject, 40) + place,
                tag("span", text(words), class_="badge"),
                strip(facts.clock, marks, f"{rule} of {subject} over time"),
                text(count(len(found))),
                text(write(worst)),
                text(write(found[-1]["threshold"])),
            ]
        )
    heads = [
        ("name", "service"),
        ("", "rule"),
        ("grow", "when"),
        ("n", "times"),
        ("n wide", "worst"),
        ("n wide", "limit"),
    ]
    return table(heads, rows) + more(len(rows), len(groups), "services and rules")


def slow(facts: Facts) -> Html:
    if not facts.services:
        return nothing("No requests ended in this time.")
    known = [
        value for one in facts.services for value in one.percentiles["service"].values() if value is not None
    ]
    low = math.floor(math.log10(max(min(known, default=1), 1)))
    high = max(math.ceil(math.log10(max(*known, 1, 1))), low + 1)
    rows = []
    for one in facts.services[:MOST_ROWS]:
        times = one.percentiles["service"]
        wrong = one.errors / one.requests
        rows.append(
            [
                short(one.name, 40),
                text(count(one.requests)),
                tag("span", text(share(wrong)), class_="red") if wrong >= 0.1 else text(share(wrong)),
                text(micros(one.percentiles["wait"][95])),
                text(micros(times[50])),
                text(micros(times[95])),
                text(micros(times[99])),
                range_(times, low, high),
                spark(one.trend, f"p95 of {one.name} over time"),
            ]
        )
    heads = [
        ("name", "service"),
        ("n", "requests"),
        ("n", "errors"),
        ("n wide", "wait p95"),
        ("n", "p50"),
        ("n", "p95"),
        ("n wide", "p99"),
        ("less wide", f"{micros(10**low)} – {micros(10**high)}"),
        ("less wide", "p95 over time"),
    ]
    return table(heads, rows) + more(len(rows), len(facts.services), "services")


def failures(facts: Facts) -> Html:
    left = tag("h3", "Failures by reason")
    if facts.failures:
        top = facts.failures[0][3]
        rows = [
            [
                short(service, 32),
                short(reason, 40),
                bar(number, top, "s-warn" if outcome == "expired" else "s-bad"),
                text(count(number)),
            ]
            for service, outcome, reason, number in facts.failures[:MOST_ROWS]
        ]
        left += table([("name", "service"), ("", "reason"), ("grow", ""), ("n", "requests")], rows)
        left += more(len(rows), len(facts.failures), "reasons")
    else:
        left += nothing("No request failed or expired.")
    return tag("div", tag("div", left) + tag("div", _dead(facts)), class_="pair")


def _dead(facts: Facts) -> Html:
    title = tag("h3", "Dead letters")
    if not facts.dead:
        return title + nothing("None: nothing was given up.")
    top = facts.dead[0][2]
    rows = [
        [short(service, 32), short(reason, 40), bar(number, top, "s-quiet"), text(count(number))]
        for service, reason, number in facts.dead[:MOST_ROWS]
    ]
    parts = table([("name", "service"), ("", "reason"), ("grow", ""), ("n", "letters")], rows)
    newest = facts.letters[0]
    words = f"The newest: {newest['token'] or 'without a token'}, {moment(newest['at'])}"
    if newest["detail"]:
        words += f", {newest['detail'][:120]}"
    service = newest["service"] or facts.dead[0][0]
    quoted = service.replace("\\", "\\\\").replace('"', '\\"')
    condition = f'service = "{quoted}"'
    order = f"polybus jobs retry --from-table {shlex.quote(condition)}"
    hint = f"{text(words)}. Run them again: {tag('code', text(order))}"
    return title + parts + more(len(rows), len(facts.dead), "kinds") + tag("p", hint, class_="hint")


def workers(facts: Facts) -> Html:
    if not facts.workers:
        return nothing("No worker was seen in this time.")
    ordered = sorted(
        facts.workers,
        key=lambda row: (-(row["sessions"] >= FLAPPING), -(row["busy"] or 0.0), row["worker"]),
    )
    rows = []
    for row in ordered[:MOST_ROWS]:
        sessions = text(count(row["sessions"]))
        if row["sessions"] >= FLAPPING:
            sessions = tag("span", sessions, class_="red")
        rows.append(
            [
                short(row["service"] or "–", 40),
                short(row["worker"], 22),
                text(row["worker_dialect"] or "–"),
                bar(min(row["busy"] or 0.0, 1.0), 1.0),
                text(share(None if row["busy"] is None else min(row["busy"], 1.0))),
                text(micros(row["up_us"])),
                text(count(row["requests"])),
                text(count(row["errors"])),
                sessions,
                text(count(row["missed_beats"])),
                text(row["last_down_reason"] or ("–" if row["sessions"] > row["ended"] else "left")),
            ]
        )
    heads = [
        ("name", "service"),
        ("id", "worker"),
        ("wide", "dialect"),
        ("less wide", "busy"),
        ("n", ""),
        ("n wide", "there for"),
        ("n", "requests"),
        ("n wide", "failed"),
        ("n", "sessions"),
        ("n wide", "missed beats"),
        ("wide", "why it left"),
    ]
    return table(heads, rows) + more(len(rows), len(facts.workers), "workers") + _flappers(facts)


def _flappers(facts: Facts) -> Html:
    """Workers have a new name with every connection: coming and going shows in how many names there were."""
    names: dict[str, int] = defaultdict(int)
    for row in facts.workers:
        for service in (row["service"] or "").split(","):
            names[service] += row["ended"]
    often = sorted(((n, name) for name, n in names.items() if n >= FLAPPING and name), reverse=True)
    if not often:
        return ""
    words = ", ".join(f"{name} ({count(number)} times)" for number, name in often[:5])
    return tag("p", text(f"Workers left {words}."), class_="hint")


def topics(facts: Facts) -> Html:
    if not facts.topics:
        return nothing("Nothing was published.")
    top = facts.topics[0][1]
    rows = [
        [
            short(topic, 50),
            bar(messages, top, "s-main-2"),
            text(count(messages)),
            text(size(volume)),
            spark(trend, f"messages of {topic} over time", "s-main-2"),
        ]
        for topic, messages, volume, trend in facts.topics[:MOST_ROWS]
    ]
    heads = [("name", "topic"), ("grow", ""), ("n", "messages"), ("n", "bytes"), ("less wide", "over time")]
    return table(heads, rows) + more(len(rows), len(facts.topics), "topics")
