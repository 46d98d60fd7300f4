"""`polybus status` for people: what the broker says about itself, by subject.

A field of the answer is in one group.  A broker of another version may have fields that no group names; they
come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from polybus.cli.output import printable, span

# Fields, with what their number counts. Texts and times have no unit here.
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "broker": {
        "broker": "", "state": "", "pid": "", "pump": "", "up_s": "", "drain_s": "",
        "internal_errors": "errors", "invalid": "messages",
    },
    "requests": {
        "requests": "unanswered", "held_bytes": "", "accepted": "requests", "dispatched": "times",
        "replied": "requests", "failed": "requests", "expired": "requests", "cancelled": "requests",
        "rejected": "requests", "duplicates": "requests", "requeued": "times", "late": "answers",
    },
    "jobs and store": {
        "store": "", "retried": "times", "timeouts": "attempts", "dead": "jobs",
        "dead_letters_dropped": "dead letters",
    },
    "schedules": {"schedules": "schedules"},
    "services and workers": {
        "services": "services", "workers": "workers", "silent_workers": "workers", "workers_lost": "workers",
    },
    "clients and answers that wait for them": {
        "clients": "clients", "pending_messages": "answers", "pending_bytes": "", "answers_lost": "answers",
        "answers_lost_at": "",
        "kept_replies": "answers", "kept_replies_bytes": "", "replayed": "answers",
    },
    "topics": {
        "subscribers": "subscribers", "subscribers_behind": "subscribers", "subscriptions": "subscriptions",
        "published": "publications", "publications_refused": "publications",
        "publications_dropped": "publications", "last_values": "topics", "last_values_bytes": "",
        "last_values_evicted": "topics",
    },
    "logs": {"logs": "records", "logs_bytes": "", "logs_evicted": "records", "logs_cut": "records"},
    "nodes": {
        "nodes": "nodes", "nodes_asked": "times", "nodes_lapsed": "leases", "node_datagrams": "datagrams",
        "node_datagrams_refused": "datagrams", "node_datagrams_sent": "datagrams",
        "datagrams_broadcast": "datagrams", "datagrams_unsent": "datagrams", "datagrams_invalid": "datagrams",
        "beacon": "", "beacons_sent": "datagrams", "beacons_failed": "datagrams",
    },
    "bridges": {
        "bridge": "", "bridges_up": "links", "bridge_services_ignored": "services",
        "bridge_publications_dropped": "publications", "bridge_publications_repeated": "publications",
    },
    "journal and archiver": {
        "journal": "", "journal_written": "records", "journal_lost": "records",
        "journal_bodies_dropped": "records", "journal_waiting_bytes": "",
        "journal_logs_removed": "logs", "archiver": "", "archiver_restarts": "times", "archiver_behind_s": "",
        "archiver_segments": "segments", "archiver_rows": "rows", "archiver_missing": "records",
        "archiver_damage": "places", "archiver_last_damage": "", "archiver_held_back": "",
        "archiver_stale_readers": "", "archiver_let_go_hours": "hours",
    },
    "traces": {"spans_open": "spans", "spans_skipped": "spans"},
}  # fmt: skip
# Fields whose own name says too little.
LABELS: Final = {"pid": "process", "answers_lost_at": "answers lost, by limit", "drain_s": "drains at most"}
REFUSALS: Final = "refusals"
ENDPOINTS: Final = "endpoints"
OTHERS: Final = "others"
# Between a name and its value.
GAP: Final = 2


class Line(Struct, frozen=True):
    """A field as it is shown. A number and its unit are aligned, a text begins where numbers begin."""

    name: str
    value: str
    unit: str = ""
    is_number: bool = False


def groups(answer: Mapping[str, Any]) -> Iterator[tuple[str, list[Line]]]:
    """Headings and their lines."""
    left = dict(answer)
    refusals, endpoints = left.pop(REFUSALS, {}), left.pop(ENDPOINTS, {})
    for heading, fields in GROUPS.items():
        lines = [line(name, left.pop(name), unit) for name, unit in fields.items() if name in left]
        if lines:
            yield heading, lines
        if heading == "requests" and refusals:
            counts = sorted(refusals.items())
            yield "requests rejected, by reason", [line(name, count, "requests") for name, count in counts]
    if left:
        yield OTHERS, [line(name, value, "") for name, value in left.items()]
    if endpoints:
        yield ENDPOINTS, [Line(name, endpoint) for name, endpoint in endpoints.items()]


def line(name: str, value: Any, unit: str) -> Line:
    words = LABELS.get(name, name.replace("_", " "))
    if name == "pid":
        # It is a name and counts nothing.
        return Line(words, str(value))
    if isinstance(value, dict):
        return Line(words, ", ".join(f"{key}: {count:,}" for key, count in value.items()) or "–")
    if isinstance(value, list | tuple):
        return Line(words, ", ".join(map(str, value)) or "–")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Line(words, str(value))
    if name.endswith("_s"):
        number, _, time_unit = span(value).partition(" ")
        return Line(words.removesuffix(" s"), number, time_unit, is_number=True)
    if name.endswith("_bytes"):
        number, size_unit = size(value)
        return Line(words, number, size_unit, is_number=True)
    return Line(words, f"{value:,}", unit, is_number=True)


def size(count: float) -> tuple[str, str]:
    """A number of bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return (f"{count:,.0f}" if unit == "B" else f"{count:,.1f}"), unit
        count /= 1024
    return f"{count:,.1f}", "GiB"


def show(answer: Mapping[str, Any]) -> None:
    """Print it."""
    from rich.console import Console
    from rich.text import Text

    found = list(groups(answer))
    lines = [one for _, group in found for one in group]
    name_width = max(len(one.name) for one in lines)
    number_width = max((len(one.value) for one in lines if one.is_number), default=0)
    console = Console(soft_wrap=True, highlight=False)
    for number, (heading, group) in enumerate(found):
        if number:
            console.print()
        console.print(Text(heading, style="bold"))
        for one in group:
            value = one.value.rjust(number_width) if one.is_number else printable(one.value)
            text = f"  {printable(one.name):<{name_width + GAP}}{value} {one.unit}"
            console.print(Text(text.rstrip()))
