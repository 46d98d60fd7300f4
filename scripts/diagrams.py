"""Draws the state tables of the core into docs/states.md, as Mermaid diagrams and as tables.

The tables are the truth: `--check` fails if the page is not what they say, and CI runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from polybus.core import lifecycle
from polybus.core.lifecycle import Move

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"

INTRO = """\
# State machines

Made from the tables in `src/polybus/core/lifecycle.py` by `make diagrams`; do not edit. A move that is not
drawn from a state does not exist: the core refuses it before anything changes.
"""

MACHINES: Sequence[tuple[str, str, type[IntEnum], Sequence[Move[Any]]]] = (
    (
        "A request",
        "Each accepted request ends in exactly one of the terminal states (P2). `requeue` happens when its "
        "worker is lost or its pipe was full: the request goes to the front of its queue.",
        lifecycle.RequestState,
        lifecycle.REQUEST_MOVES,
    ),
    (
        "A worker",
        "Any message is `hear`. A congested worker gets no requests until it is heard again.",
        lifecycle.WorkerState,
        lifecycle.WORKER_MOVES,
    ),
    ("A node's lease", "Heartbeats keep a registration alive.", lifecycle.NodeState, lifecycle.NODE_MOVES),
    ("The bus", "SIGTERM and `polybus drain` are `drain`.", lifecycle.BusState, lifecycle.BUS_MOVES),
)


def draw() -> str:
    parts = [INTRO]
    for title, text, states, moves in MACHINES:
        parts.append(f"## {title}\n\n{text}\n\n{_mermaid(states, moves)}\n\n{_table(states, moves)}\n")
    return "\n".join(parts)


def _mermaid(states: type[IntEnum], moves: Sequence[Move[Any]]) -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        for before, after in move.items():
            arrows.setdefault((before.name.lower(), after.name.lower()), []).append(move.name)
    leaves = {before.name.lower() for move in moves for before in move}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(states)).name.lower()}"]
    lines += [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in arrows.items()]
    lines += [f"    {state.name.lower()} --> [*]" for state in states if state.name.lower() not in leaves]
    return "\n".join([*lines, "```"])


def _table(states: type[IntEnum], moves: Sequence[Move[Any]]) -> str:
    names = [state.name.lower() for state in states]
    rows = ["| move | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for move in moves:
        cells = [move.get(state).name.lower() if state in move else "–" for state in states]
        rows.append(f"| {move.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> int:
    page = draw()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != page:
            print("docs/states.md is not what the tables say; run 'make diagrams' and commit it")
            return 1
        print("docs/states.md: current")
        return 0
    PAGE.write_text(page)
    print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
