"""Who calls whom: clients on the left, services on the right, and between them how much they have to do."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from polybus.spark.report.marks import Html, short, tag, text, told
from polybus.spark.report.numbers import count, share
from polybus.spark.report.plots import HEIGHT, WIDTH, drawing

# More lines cannot be followed; the rest is one name.
MOST_NAMES: Final = 12
OTHERS: Final = "(others)"
# Strokes in pixels.
THINNEST: Final = 1.0
THICKEST: Final = 15.0
# From this share on, errors are drawn.
LEAST_SHARE: Final = 0.02
ROW_PX: Final = 34

Edge = tuple[str, str]


def call_graph(rows: list[dict[str, Any]]) -> Html:
    """Edges as wide as they are busy, the red part of them as their errors are."""
    requests: Counter[Edge] = Counter()
    errors: Counter[Edge] = Counter()
    dialects: dict[str, set[str]] = {}
    for row in rows:
        client = row["client"] or "(unnamed)"
        dialects.setdefault(client, set()).add(row["client_dialect"] or "")
        requests[client, row["service"]] += row["requests"]
        errors[client, row["service"]] += row["errors"]
    clients = _most(requests, 0)
    services = _most(requests, 1)
    joined: Counter[Edge] = Counter()
    wrong: Counter[Edge] = Counter()
    for (client, service), number in requests.items():
        edge = (client if client in clients else OTHERS, service if service in services else OTHERS)
        joined[edge] += number
        wrong[edge] += errors[client, service]
    left = _ordered(joined, 0)
    # A service stands about where its clients do, so that fewer lines cross.
    place = {name: number for number, name in enumerate(left)}
    weights: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for (client, service), number in joined.items():
        weights[service] += place[client] * number
        totals[service] += number
    right = sorted(totals, key=lambda name: (weights[name] / totals[name], name))
    height_px = max(len(left), len(right)) * ROW_PX
    names = [
        tag(
            "div",
            "".join(_label(name, number, left, joined, 0, dialects) for number, name in enumerate(left)),
        ),
        tag("div", _edges(joined, wrong, left, right), class_="area"),
        tag("div", "".join(_label(name, number, right, joined, 1, {}) for number, name in enumerate(right))),
    ]
    return tag("div", "".join(names), class_="graph", style=f"height:{height_px}px")


def _most(requests: Counter[Edge], side: int) -> set[str]:
    totals: Counter[str] = Counter()
    for edge, number in requests.items():
        totals[edge[side]] += number
    most = MOST_NAMES if len(totals) <= MOST_NAMES else MOST_NAMES - 1
    return {name for name, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:most]}


def _ordered(joined: Counter[Edge], side: int) -> list[str]:
    totals: Counter[str] = Counter()
    for edge, number in joined.items():
        totals[edge[side]] += number
    return sorted(totals, key=lambda name: (name == OTHERS, -totals[name], name))


def _height(number: int, names: list[str]) -> float:
    return (number + 0.5) / len(names) * HEIGHT


def _label(
    name: str, number: int, names: list[str], joined: Counter[Edge], side: int, dialects: dict[str, set[str]]
) -> Html:
    total = sum(value for edge, value in joined.items() if edge[side] == name)
    known = sorted(filter(None, dialects.get(name, ())))
    spoken = ", ".join(known) if len(known) < 3 else f"{len(known)} dialects"
    small = f"{count(total)}{' · ' + spoken if spoken else ''}"
    place = f"top:{_height(number, names):.2f}%"
    return tag("span", short(name, 28) + tag("small", text(small)), style=place)


def _edges(joined: Counter[Edge], wrong: Counter[Edge], left: list[str], right: list[str]) -> Html:
    top = max(joined.values(), default=1)
    drawn = ""
    for (client, service), number in sorted(joined.items(), key=lambda item: -item[1]):
        begin, end = _height(left.index(client), left), _height(right.index(service), right)
        path = f"M0 {begin:.2f}C{WIDTH / 2:g} {begin:.2f} {WIDTH / 2:g} {end:.2f} {WIDTH:g} {end:.2f}"
        # By area rather than by width: a thousandth of the traffic is still a line.
        width = THINNEST + (THICKEST - THINNEST) * math.sqrt(number / top)
        bad = wrong[client, service]
        words = f"{client} → {service}\n{count(number)} requests"
        if bad:
            words += f"\n{count(bad)} failed or expired ({share(bad / number)})"
        drawn += f'<path class="edge" d="{path}" stroke-width="{width:.1f}" data-t="{told(words)}"/>'
        # Fewer are no news; their number is told all the same.
        if bad / number >= LEAST_SHARE:
            inner = max(THINNEST, width * bad / number)
            drawn += f'<path class="edge bad" d="{path}" stroke-width="{inner:.1f}"/>'
    return drawing(drawn, "Who calls whom")
