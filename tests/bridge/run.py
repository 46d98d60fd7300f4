"""`make bridge`: three brokers in a line, A – B – C, each in a network of its own.

A client of each dialect in A calls a worker of each dialect in C; publications and last values cross in both
dialects that have them.  Then, under running calls and publications, the broker in the middle is killed and
comes back, and links are cut and healed.  No request may be without an end, no answer and no publication may
come twice.

    bridge: calls=… delivered=… duplicates=0 lost=0

`delivered` are publications that arrived two networks away; `lost` are requests that came to no end.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from bridge.network import Line, Loopbacks, Namespaces, Program  # noqa: E402
from matrix.run import DIALECTS, WORKER_PORTS  # noqa: E402
from support.waiting import until  # noqa: E402

SETTINGS: dict[str, object] = {
    "bridge.heartbeat_s": 0.25,
    "bridge.liveness": 4,
    "bridge.retry_max_s": 1.0,
    "limits.request_ttl_s": 12,
    "emqp.expiry_s": 30,
}
PATIENCE_S = 60.0


class Trial:
    def __init__(self, line: Line) -> None:
        self.line = line
        self.programs: list[Program] = []
        self.wrong: list[str] = []
        self.calls = self.delivered = self.duplicates = self.lost = 0

    def open(self) -> None:
        for name in ("C", "B", "A"):
            self.line.start(name)
        places = self.line.places("C")
        entries = [[name, places[WORKER_PORTS[name]], {f"echo-{name}": "echo"}] for name in DIALECTS]
        script = [sys.executable, str(TESTS / "matrix" / "peer.py"), "worker", json.dumps(entries)]
        self.programs.append(Program(self.line.wires.within("C", script)))
        self.here, self.there = self.line.agent("A"), self.line.agent("C")
        self.programs += [self.here, self.there]
        self.wait_for_services()

    def wait_for_services(self) -> None:
        """Until A knows all services of C, by way of B."""
        wanted = {f"echo-{name}" for name in DIALECTS}

        def known() -> bool:
            rows = self.line.ask("A", "services")
            return wanted <= {row["service"] for row in rows if row["workers"] and row["via"] == ["B", "C"]}

        until(known, "A knows the services of C", PATIENCE_S)

    # -- what is looked at --------------------------------------------------------------------------

    def check_pairs(self, calls: int) -> None:
        found = self.here.ask("pairs", calls=calls)
        self.calls += found["calls"]
        self.wrong += found["wrong"]

    def check_values(self) -> None:
        """Values that were published before anybody listened, from either end."""
        for agent, other, name in ((self.here, self.there, "A"), (self.there, self.here, "C")):
            topics = {f"bridge/value/{name}{number}": str(number) for number in range(5)}
            agent.ask("publish_once", topics=topics)

            def arrived(other: Program = other, topics: dict[str, str] = topics) -> bool:
                found = other.ask("late", topics=list(topics))
                return all(values | topics == values for values in found.values())

            until(arrived, f"the last values of {name} cross", PATIENCE_S)

    def under_load(self, faults: list[tuple[str, float]]) -> None:
        for agent, name in ((self.here, "A"), (self.there, "C")):
            agent.ask("listen")
            agent.ask("publish_start", name=name)
        self.here.ask("load_start")
        self._let_pass(1.0)
        for what, seconds in faults:
            print(f"  {what}, {seconds:.1f} s", flush=True)
            if what == "kill B":
                self.line.kill("B")
                self._let_pass(seconds)
                self.line.start("B")
            else:
                heal = self.line.cut(what[-1])
                self._let_pass(seconds)
                heal()
            self.wait_for_services()
            self._let_pass(1.0)
        last = {**self.here.ask("publish_stop"), **self.there.ask("publish_stop")}
        load = self.here.ask("load_stop")
        print(f"  load: {load}", flush=True)
        self.calls += load["sent"]
        self.lost += load["lost"]
        self.duplicates += load["duplicates"]
        if load["wrong"]:
            self.wrong.append(f"{load['wrong']} answers were not what was asked for")
        if not load["words"].get("answered"):
            self.wrong.append("no request of the load was answered")
        self._check_publications(last)

    def _check_publications(self, last: dict[str, int]) -> None:
        heard: dict[str, Any] = {}
        for agent, name in ((self.here, "A"), (self.there, "C")):

            def complete(agent: Program = agent, name: str = name) -> bool:
                """The newest of every topic is there, at the latest as its last value."""
                heard[name] = agent.ask("heard")
                newest = heard[name]["newest"].values()
                return all(found.get(topic) == number for found in newest for topic, number in last.items())

            until(complete, f"{name} hears the newest of every topic", PATIENCE_S)
            found = heard[name]
            self.duplicates += len(found["twice"])
            self.wrong += found["twice"][:5]
            far = sum(
                count
                for topics in found["topics"].values()
                for topic, count in topics.items()
                if not topic.endswith(name)
            )
            self.delivered += far
            made = sum(number for topic, number in last.items() if not topic.endswith(name))
            print(f"  {name}: {far} publications of the other end, of {made} for two subscribers each")

    def _let_pass(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        for program in self.programs:
            program.close()


def plan(quick: bool, seed: int) -> list[tuple[str, float]]:
    """What breaks, and for how long: shorter and longer than the second after which silence counts."""
    chance = random.Random(seed)
    if quick:
        return [("kill B", 0.5), ("cut the link of A", 2.0)]
    faults = [("kill B", 0.0), ("kill B", 2.0), ("kill B", chance.uniform(0.1, 3))]
    for left in "AB":
        faults += [(f"cut the link of {left}", seconds) for seconds in (0.3, 3.0, chance.uniform(0.5, 5))]
    chance.shuffle(faults)
    return faults


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="one kill, one cut: for CI")
    options.add_argument("--loopback", action="store_true", help="addresses of the loopback, no namespaces")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    # What was made is removed, also when somebody has seen enough.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    wires: Namespaces | Loopbacks = Namespaces()
    if chosen.loopback or not (isinstance(wires, Namespaces) and wires.open()):
        print("no network namespaces: three loopback addresses; a cut link is a broker that stands still")
        wires = Loopbacks()
    line = Line(wires, SETTINGS)
    trial = Trial(line)
    try:
        trial.open()
        trial.check_pairs(2 if chosen.quick else 5)
        trial.check_values()
        trial.under_load(plan(chosen.quick, chosen.seed))
        trial.check_pairs(1 if chosen.quick else 3)
    except (AssertionError, TimeoutError, subprocess.SubprocessError) as error:
        trial.wrong.append(f"it stopped: {error}")
    finally:
        trial.close()
        crashes = line.crashes()
        line.close()
    if crashes:
        trial.wrong.append(f"a broker raised:\n{crashes}")
    for text in trial.wrong:
        print(f"✗ {text}")
    print(f"{'namespaces' if wires.is_real else 'loopback'}; {time.monotonic() - began:.0f} s")
    print(
        f"bridge: calls={trial.calls} delivered={trial.delivered} "
        f"duplicates={trial.duplicates} lost={trial.lost}"
    )
    return 1 if trial.wrong or trial.duplicates or trial.lost else 0


if __name__ == "__main__":
    sys.exit(main())
