"""What thousands of registered nodes cost that beat in datagrams, and whether any is dropped wrongly.

Every node has a lease in the catalog and no connection; the beats of all of them come from a few sockets of
one process.  First they idle: all must stay.  Then some stop beating but answer when they are asked over TCP:
they must stay, too.  As many others stop and say nothing: they must go, and not before they were asked.

    python benchmarks/idle_nodes.py [--quick] [--nodes 10000] [--seconds 60] [--heartbeat 1]

Exit status 1 if a node was dropped that lived, or kept that did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import _parts as parts
from rich.console import Console
from rich.table import Table

from polybus.errors import PolybusError

LOOK_EVERY_S = 1.0
# The broker drops a node after so many missed beats.
LIVENESS = 4
# On top of that, for a machine that does other things as well.
SLACK_S = 5.0


@dataclass
class Findings:
    nodes: int = 0
    register_s: float = 0.0
    fewest: int = 0
    # While all of them beat: how many were asked all the same, and how many leases ended.
    asked_idle: int = 0
    lapsed_idle: int = 0
    datagrams_per_s: float = 0.0
    sent_per_s: float = 0.0
    cpu_main: float = 0.0
    cpu_others: float = 0.0
    rss_empty_mib: float = 0.0
    rss_mib: float = 0.0
    faltering: int = 0
    first_gone_s: float = 0.0
    all_gone_s: float = 0.0
    left: int = 0
    fleet: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return self.cpu_main + self.cpu_others

    @property
    def is_whole(self) -> bool:
        stayed = self.fewest == self.nodes and not self.lapsed_idle
        asked = self.fleet["silent_asked"] == self.fleet["answering_asked"] == self.faltering
        return stayed and asked and self.left == self.nodes - self.faltering


def status(broker: parts.Running) -> dict[str, Any]:
    answer: dict[str, Any] = parts.ask_admin(broker.endpoints["admin.port"], "status")
    return answer


def run(nodes: int, seconds: float, heartbeat_s: float, faltering: int) -> Findings:
    found = Findings(nodes, faltering=faltering)
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(parts.broker())
        found.rss_empty_mib = parts.rss_mib(broker.pid)
        began = time.monotonic()
        command = [sys.executable, str(parts.HERE / "_nodes.py"), broker.endpoints["dbp.port"]]
        fleet = stack.enter_context(
            parts.started([*command, *map(str, (nodes, heartbeat_s, faltering))], patience_s=120.0)
        )
        found.register_s = time.monotonic() - began
        # Those that came first waited for the last ones.
        time.sleep(2 * heartbeat_s)
        idle(broker, found, seconds)
        falter(broker, fleet, found, heartbeat_s)
        broker.check()
        parts.stop(fleet.process)
        found.fleet = json.loads(fleet.log.read_text().splitlines()[-1])
    return found


def idle(broker: parts.Running, found: Findings, seconds: float) -> None:
    """Let time pass, and see what it costs and who is still there."""
    found.fewest = found.nodes
    first, before, began = status(broker), parts.cpu_of(broker.pid), time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        time.sleep(min(LOOK_EVERY_S, seconds - elapsed))
        found.fewest = min(found.fewest, status(broker)["nodes"])
    elapsed = time.monotonic() - began
    used = parts.cpu_of(broker.pid) - before
    last = status(broker)
    found.cpu_main, found.cpu_others = used.main / elapsed * 100, used.others / elapsed * 100
    found.rss_mib = parts.rss_mib(broker.pid)
    found.asked_idle = last["nodes_asked"] - first["nodes_asked"]
    found.lapsed_idle = last["nodes_lapsed"]
    found.datagrams_per_s = (last["node_datagrams"] - first["node_datagrams"]) / elapsed
    found.sent_per_s = (last["node_datagrams_sent"] - first["node_datagrams_sent"]) / elapsed


def falter(broker: parts.Running, fleet: parts.Running, found: Findings, heartbeat_s: float) -> None:
    """Let some nodes fall silent, and see who goes when."""
    fleet.process.send_signal(signal.SIGUSR1)
    began = time.monotonic()

    def gone() -> int:
        return found.nodes - int(status(broker)["nodes"])

    patience_s = heartbeat_s * LIVENESS + SLACK_S
    parts.wait_until(lambda: gone() > 0, patience_s, "the first silent node is dropped", 0.05)
    found.first_gone_s = time.monotonic() - began
    parts.wait_until(lambda: gone() >= found.faltering, patience_s, "all silent nodes are dropped", 0.05)
    found.all_gone_s = time.monotonic() - began
    # Those that answer have every chance to be dropped wrongly.
    time.sleep(heartbeat_s * LIVENESS * 2)
    found.left = found.nodes - gone()


def show(console: Console, found: Findings, seconds: float, heartbeat_s: float) -> None:
    fleet = found.fleet
    per_node = (found.rss_mib - found.rss_empty_mib) * 1024 / found.nodes
    title = f"{found.nodes:,} nodes that beat every {heartbeat_s:g} s, for {seconds:.0f} s"
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for what, figure in (
        ("until all were registered, on disk", f"{found.register_s:.1f} s"),
        ("fewest seen at any moment", f"{found.fewest:,}"),
        ("dropped while they beat", f"{found.lapsed_idle:,}"),
        ("asked over TCP while they beat", f"{found.asked_idle:,}"),
        (
            "datagrams taken / sent by the broker",
            f"{found.datagrams_per_s:,.0f} / {found.sent_per_s:,.0f} per s",
        ),
        ("beats sent by nodes / got from the broker", f"{fleet['beats']:,} / {fleet['beats_got']:,}"),
        ("a beat left late by at most", f"{fleet['latest_beat_s']:.2f} s"),
        ("broker's CPU, main thread", f"{found.cpu_main:.1f} % of a core"),
        ("broker's CPU, other threads", f"{found.cpu_others:.1f} % of a core"),
        ("broker's memory", f"{found.rss_mib:.0f} MiB"),
        ("of it for each node", f"{per_node:.1f} KiB"),
        ("stopped beating and answered: asked / kept", f"{fleet['answering_asked']:,} / {kept(found):,}"),
        ("… asked after, on average", f"{fleet.get('answering_asked_s', 0):.2f} s"),
        ("stopped altogether: asked / dropped", f"{fleet['silent_asked']:,} / {found.faltering:,}"),
        ("… asked after, on average", f"{fleet.get('silent_asked_s', 0):.2f} s"),
        (
            "… dropped, since they were told to stop, first / last",
            f"{found.first_gone_s:.2f} / {found.all_gone_s:.2f} s",
        ),
    ):
        table.add_row(what, figure)
    console.print(table)


def kept(found: Findings) -> int:
    return found.left - (found.nodes - 2 * found.faltering)


def record(found: Findings, seconds: float) -> dict[str, object]:
    """What `figures.py` takes from this run."""
    flat = {"kept": kept(found), "cpu_percent": round(found.cpu, 1), "rss_mib": round(found.rss_mib)}
    mishaps = {"nodes_dropped": found.lapsed_idle, "nodes_asked": found.asked_idle}
    text = f"{found.nodes:,} nodes that beat for {seconds:.0f} s: none is lost"
    goal = parts.Goal(text, found.fewest, found.is_whole)
    return parts.for_record(flat, [goal], {name: count for name, count in mishaps.items() if count})


def main() -> int:
    parser = argparse.ArgumentParser(description="What thousands of beating nodes cost.")
    parser.add_argument("--quick", action="store_true", help="1,000 nodes for 10 s, for CI")
    parser.add_argument("--nodes", type=int, help="how many (10000; quick: 1000)")
    parser.add_argument("--seconds", type=float, help="how long they idle (60; quick: 10)")
    parser.add_argument(
        "--heartbeat", type=float, default=1.0, help="seconds between the beats of a node (1)"
    )
    parser.add_argument("--json", action="store_true", help="print figures for machines instead of a table")
    options = parser.parse_args()
    nodes = options.nodes or (1000 if options.quick else 10_000)
    seconds = options.seconds or (10.0 if options.quick else 60.0)
    if min(nodes, seconds, options.heartbeat) <= 0:
        parser.error("numbers must be more than 0")
    parts.end_children_with_us()
    try:
        found = run(nodes, seconds, options.heartbeat, max(1, nodes // 100))
    except (parts.Broken, PolybusError) as error:
        Console(stderr=True).print(f"[red]idle-nodes: something is broken[/]: {error}", highlight=False)
        return 1
    if options.json:
        print(json.dumps({**vars(found), **record(found, seconds)}, indent=1))
    else:
        show(Console(), found, seconds, options.heartbeat)
        counted = f"nodes={found.nodes} dropped={found.lapsed_idle}"
        print(f"idle-nodes: {counted} cpu={found.cpu:.1f}% rss={found.rss_mib:.0f} MiB")
    return 0 if found.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
