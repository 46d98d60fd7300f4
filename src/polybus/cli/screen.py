"""What `polybus top` shows: two looks at the broker become rates and times, and those a screen.

A screen fits into its terminal: columns that have no room are left out, the least important first, and rows
that have none are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from polybus.cli.output import printable, span
from polybus.core.latency import percentile

Row = dict[str, Any]
NOTHING: Final = "–"
# Of the room for rows, so many parts go to services, and the rest to workers and nodes.
SERVICES_PART: Final = 0.5
# Lines that are no rows: title, two of totals, and for each table an empty one, a heading and its rule.
TITLE_LINES: Final = 3
TABLE_LINES: Final = 3
STYLES: Final = {
    "late": "yellow",
    "silent": "yellow",
    "unserved": "red",
    "gone": "red",
    "congested": "yellow",
    "alive": "green",
}


class Column(NamedTuple):
    heading: str
    width: int
    # The larger, the sooner it is left out.
    order: int
    cell: Callable[[Row], str]


# -- two looks --------------------------------------------------------------------------------


def compare(before: Row | None, now: Row) -> Row:
    """A look at the broker, with rates and times since the one before."""
    span_s = now["clock"] - before["clock"] if before else 0.0
    if before is None or span_s <= 0 or now["totals"]["accepted"] < before["totals"]["accepted"]:
        # The first look, or another broker than the last time.
        before, span_s = None, 0.0
    seen = {row["service"]: row for row in before["services"]} if before else {}
    done = {row["worker"]: row["done"] for row in before["workers"]} if before else {}
    everything: dict[int, int] = {}
    services = []
    for row in now["services"]:
        old = seen.get(row["service"])
        counts = _times(row, old)
        for place, count in counts.items():
            everything[place] = everything.get(place, 0) + count
        services.append(
            {
                **{name: value for name, value in row.items() if name != "times"},
                "done_per_s": _rate(row, old, ("answered", "failed"), span_s),
                "failed_per_s": _rate(row, old, ("failed",), span_s),
                "p50_s": percentile(counts, 0.5),
                "p95_s": percentile(counts, 0.95),
            }
        )
    workers = [{**row, "done_per_s": _worker_rate(row, done, span_s)} for row in now["workers"]]
    rates = {
        f"{name}_per_s": _rate(now["totals"], before["totals"] if before else None, (name,), span_s)
        for name in ("accepted", "replied", "failed", "published")
    }
    times = {"p50_s": percentile(everything, 0.5), "p95_s": percentile(everything, 0.95)}
    totals = {**now["totals"], **rates, **times}
    return {**now, "totals": totals, "services": services, "workers": workers, "span_s": round(span_s, 3)}


def _times(row: Row, old: Row | None) -> dict[int, int]:
    """How many requests of each class there were since the last look."""
    before = old["times"] if old else {}
    counts = {int(place): count - before.get(place, 0) for place, count in row["times"].items()}
    if any(count < 0 for count in counts.values()):
        # Nobody looked for a while, and it was counted anew.
        counts = {int(place): count for place, count in row["times"].items()}
    return {place: count for place, count in counts.items() if count}


def _rate(row: Row, old: Row | None, names: Sequence[str], span_s: float) -> float | None:
    if old is None or not span_s:
        return None
    grown: int = sum(row[name] - old[name] for name in names)
    return round(max(0, grown) / span_s, 1)


def _worker_rate(row: Row, done: dict[str, int], span_s: float) -> float | None:
    if row["worker"] not in done or not span_s:
        return None
    grown: int = row["done"] - done[row["worker"]]
    return round(max(0, grown) / span_s, 1)


# -- the screen -------------------------------------------------------------------------------


def number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if value >= 10_000:
        return f"{value / 1000:.0f}k" if value < 10_000_000 else f"{value / 1_000_000:.0f}M"
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.0f}%"


def short(seconds: float | None) -> str:
    """A time of a request: three digits are enough."""
    if seconds is None:
        return NOTHING
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return span(seconds)


def _numbers(name: str) -> Callable[[Row], str]:
    return lambda row: number(row[name])


def _spans(name: str) -> Callable[[Row], str]:
    return lambda row: span(row[name])


SERVICE_COLUMNS: Final = (
    Column("state", 8, 3, lambda row: row["state"]),
    Column(">workers", 7, 5, _numbers("workers")),
    Column(">load", 5, 7, lambda row: share(row["load"])),
    Column(">queued", 7, 1, _numbers("queued")),
    Column(">oldest", 8, 8, _spans("oldest_s")),
    Column(">running", 7, 6, _numbers("running")),
    Column(">done/s", 7, 0, _numbers("done_per_s")),
    Column(">failed/s", 8, 4, _numbers("failed_per_s")),
    Column(">p50", 8, 9, lambda row: short(row["p50_s"])),
    Column(">p95", 8, 2, lambda row: short(row["p95_s"])),
)
WORKER_COLUMNS: Final = (
    Column("dialect", 7, 4, lambda row: row["dialect"]),
    Column("state", 9, 1, lambda row: "late" if row["late"] else row["state"]),
    Column(">load", 5, 2, lambda row: share(row["load"])),
    Column(">in flight", 9, 3, _numbers("in_flight")),
    Column(">done/s", 7, 0, _numbers("done_per_s")),
    Column(">up", 8, 7, _spans("up_s")),
    Column(">silent", 8, 5, _spans("silent_s")),
    Column(">missed", 6, 6, _numbers("missed_beats")),
)
NODE_COLUMNS: Final = (
    Column("state", 9, 0, lambda row: row["state"]),
    Column("address", 21, 4, lambda row: row["address"] or NOTHING),
    Column(">load", 5, 3, lambda row: share(row["load"])),
    Column(">up", 8, 2, _spans("up_s")),
    Column(">silent", 8, 1, _spans("silent_s")),
    Column(">missed", 6, 5, _numbers("missed_beats")),
)
# What a name gets at least, and what is between two columns.
NAME_WIDTH: Final = 14
GAP: Final = 2


def draw(look: Row, sort: str, width: int, height: int, trouble: str = "") -> Group:
    """The whole screen."""
    counts = [len(look["services"]), len(look["workers"]), len(look["nodes"])]
    shares = room(counts, height)
    totals = look["totals"]
    # They are listed with the workers, though they count as disconnected.
    silent = totals.get("silent_workers", 0)
    parts: list[Any] = [_title(totals, sort, width, trouble), *_totals(look, width)]
    if not look["services"] and not look["workers"] and not look["nodes"]:
        parts.append(Text("\nNobody offers or asks for anything yet.", style="dim"))
    for heading, columns, rows, most, known in (
        ("service", SERVICE_COLUMNS, look["services"], shares[0], totals["services"]),
        ("worker", WORKER_COLUMNS, look["workers"], shares[1], totals["workers"] + silent),
        ("node", NODE_COLUMNS, look["nodes"], shares[2], totals["nodes"]),
    ):
        if most:
            parts += ["", table(heading, columns, rows[:most], width, known - min(most, len(rows)))]
    return Group(*parts)


def room(counts: Sequence[int], height: int) -> list[int]:
    """How many rows of each table are shown: services first, then what is left."""
    shown = [count for count in counts if count]
    left = max(len(shown), height - TITLE_LINES - TABLE_LINES * len(shown))
    services = min(counts[0], max(left - counts[1] - counts[2], int(left * SERVICES_PART), 1))
    left -= services
    workers = min(counts[1], max(left - counts[2], left // 2, 1 if counts[1] else 0))
    return [services, workers, min(counts[2], max(left - workers, 1 if counts[2] else 0))]


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that have room beside a name, in their order."""
    left = width - NAME_WIDTH
    kept = []
    for column in sorted(columns, key=lambda column: column.order):
        if left < column.width + GAP:
            break
        left -= column.width + GAP
        kept.append(column)
    return [column for column in columns if column in kept]


def table(heading: str, columns: Sequence[Column], rows: Sequence[Row], width: int, hidden: int) -> Table:
    shown = fitting(columns, width)
    # Between two columns the box has a space, and we have one.
    drawn = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), width=width, show_edge=False
    )
    title = f"{heading} (+{hidden})" if hidden > 0 else heading
    drawn.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1)
    for column in shown:
        justify = "right" if column.heading.startswith(">") else "left"
        name = column.heading.lstrip(">")
        drawn.add_column(name, justify=justify, no_wrap=True, width=column.width)  # type: ignore[arg-type]
    for row in rows:
        cells = [Text(printable(str(row[heading])))]
        for column in shown:
            words = printable(column.cell(row))
            cells.append(Text(words, style=STYLES.get(words, "")))
        drawn.add_row(*cells)
    return drawn


def _line(width: int, *words: str) -> Text:
    text = Text("   ".join(word for word in words if word), no_wrap=True, overflow="ellipsis")
    text.truncate(width, overflow="ellipsis")
    return text


def _title(totals: Row, sort: str, width: int, trouble: str) -> Text:
    if trouble:
        line = _line(width, printable(trouble))
        line.stylize("bold white on red")
        return line
    name = printable(str(totals.get("broker", "polybus")))
    store = "" if totals["store"] == "well" else f"store: {printable(str(totals['store']))}"
    line = _line(width, f"{name} {totals['state']}", f"up {span(totals.get('up_s'))}", f"by {sort}", store)
    line.stylize("bold")
    return line


def _totals(look: Row, width: int) -> list[Text]:
    totals = look["totals"]
    per_s = {name: number(totals[f"{name}_per_s"]) for name in ("accepted", "replied", "failed", "published")}
    late = [f" ({look[name]} late)" if look[name] else "" for name in ("workers_late", "nodes_late")]
    silent = f", {totals['silent_workers']} silent" if totals.get("silent_workers") else ""
    return [
        _line(
            width,
            f"requests {per_s['accepted']}/s",
            f"replies {per_s['replied']}/s",
            f"failed {per_s['failed']}/s",
            f"p50 {short(totals['p50_s'])} p95 {short(totals['p95_s'])}",
            f"unanswered {number(totals['requests'])}",
            f"published {per_s['published']}/s",
        ),
        _line(
            width,
            f"services {totals['services']}",
            f"workers {totals['workers']}{late[0]}{silent}",
            f"nodes {totals['nodes']}{late[1]}",
            f"clients {totals['clients']}",
            f"subscribers {totals.get('subscribers', 0)}",
            f"logs {totals['logs']}",
        ),
    ]
