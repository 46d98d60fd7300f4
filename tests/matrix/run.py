"""`make matrix`: every client dialect against every worker dialect, over real sockets and real processes.

In each of the 36 cells: bodies of many sizes and all byte values come back as they were; an error raised by
the worker arrives with its text; a request that nobody answers arrives as `expired`; and a worker killed in
the middle of a request leaves it to another one.

There are two brokers, because one setting cannot be both: requests of the first live long enough to survive
a killed worker, those of the second expire after a second.  A killed worker's connection is gone at once, and
the broker learns of it with the next thing that it wants to send there, so heartbeats are frequent.  Only
the request-id draft has none from the broker: there silence has to tell, for longer than the 2.5 s between
two pings of a worker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from support.live import LiveBroker, read_line, wait_for  # noqa: E402

DIALECTS = ("ebus", "emqp", "mdp1", "mdp2", "mdr", "dbp")
CLIENT_PORTS = {
    "ebus": "ebus.frontend",
    "emqp": "emqp.clients",
    "mdp1": "majordomo.clients",
    "mdp2": "majordomo.clients",
    "mdr": "majordomo.clients",
    "dbp": "dbp.port",
}
WORKER_PORTS = {**CLIENT_PORTS, "ebus": "ebus.backend", "emqp": "emqp.workers"} | dict.fromkeys(
    ("mdp1", "mdp2", "mdr"), "majordomo.workers"
)
CHECKS = ("bodies", "failure", "expiry", "rescue")
BEATS: dict[str, object] = {
    "majordomo.heartbeat_s": 0.25,
    "majordomo.liveness": 20,
    "emqp.heartbeat_s": 0.25,
    "limits.request_ttl_s": 60,
}
SHORT: dict[str, object] = {**BEATS, "limits.request_ttl_s": 1, "emqp.expiry_s": 1}
PATIENCE_S = 60.0

Cell = tuple[str, str]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(Path(__file__).with_name("peer.py")), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class Matrix:
    def __init__(self, broker: LiveBroker, short: LiveBroker) -> None:
        self.broker = broker
        self.short = short
        self.processes: list[subprocess.Popen[bytes]] = []
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        # What was wrong, by client, worker and check.
        self.wrong: dict[tuple[str, str, str], str] = {}

    def open(self) -> None:
        """The peers that are there all the time: a client process and a worker process for each dialect."""
        for dialect in DIALECTS:
            here, there = self.broker[WORKER_PORTS[dialect]], self.short[WORKER_PORTS[dialect]]
            services = {f"bodies-{dialect}": "echo", f"failure-{dialect}": "fail"}
            self.start_worker([[dialect, here, services], [dialect, there, {f"expiry-{dialect}": "hold"}]])
            self.clients[dialect] = self.keep(start("client", dialect))
        names = [f"{check}-{dialect}" for check in ("bodies", "failure") for dialect in DIALECTS]
        wait_for(lambda: self.broker.has_workers(*names), PATIENCE_S)
        wait_for(lambda: self.short.has_workers(*(f"expiry-{d}" for d in DIALECTS)), PATIENCE_S)

    def keep(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        self.processes.append(process)
        return process

    def start_worker(self, entries: list[list[Any]]) -> subprocess.Popen[bytes]:
        return self.keep(start("worker", json.dumps(entries)))

    def order(self, check: str, broker: LiveBroker, client: str, worker: str, service: str) -> None:
        order = {"id": worker, "check": check, "address": broker[CLIENT_PORTS[client]], "service": service}
        stdin = self.clients[client].stdin
        assert stdin is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()

    def collect(self, check: str, client: str, count: int) -> None:
        for _ in range(count):
            answer = json.loads(
                read_line(self.clients[client], PATIENCE_S) or '{"id": "?", "error": "it died"}'
            )
            if answer["error"]:
                self.wrong[client, answer["id"], check] = answer["error"]

    def check_all(self, check: str, broker: LiveBroker, at_once: bool) -> None:
        """One check in all cells: all at the same time, or one row of clients after the other."""
        for client in DIALECTS:
            for worker in DIALECTS:
                self.order(check, broker, client, worker, f"{check}-{worker}")
            if not at_once:
                self.collect(check, client, len(DIALECTS))
        if at_once:
            for client in DIALECTS:
                self.collect(check, client, len(DIALECTS))

    def check_rescue(self, worker: str) -> None:
        """Clients of all dialects wait for the same worker process; it is killed, another one answers."""
        place = self.broker[WORKER_PORTS[worker]]
        services = [f"rescue-{worker}-{client}" for client in DIALECTS]
        victim = self.start_worker([[worker, place, {service: "hold"}] for service in services])
        wait_for(lambda: self.broker.has_workers(*services), PATIENCE_S)
        for client, service in zip(DIALECTS, services, strict=True):
            self.order("rescue", self.broker, client, worker, service)
        held = {read_line(victim, PATIENCE_S) for _ in services}
        assert held == {f"got {service}" for service in services}, held
        # In DBP a name belongs to one node: the other one can only come after the first is dead.
        alone = worker == "dbp"
        if not alone:
            self.start_rescuer(worker, place, services)
            wait_for(lambda: self.broker.has_workers(*services, count=2), PATIENCE_S)
        victim.kill()
        victim.wait()
        if alone:
            self.start_rescuer(worker, place, services)
        for client in DIALECTS:
            self.collect("rescue", client, 1)

    def start_rescuer(self, worker: str, place: str, services: list[str]) -> None:
        self.start_worker([[worker, place, dict.fromkeys(services, "echo")]])

    def run(self) -> None:
        self.open()
        self.check_all("bodies", self.broker, at_once=False)
        self.check_all("failure", self.broker, at_once=True)
        self.check_all("expiry", self.short, at_once=True)
        for worker in DIALECTS:
            self.check_rescue(worker)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def report(self) -> int:
        """Print the table; how many cells are as they should be."""
        bad: set[Cell] = {(client, worker) for client, worker, _ in self.wrong}
        print("client \\ worker  " + "  ".join(f"{worker:<5}" for worker in DIALECTS))
        for client in DIALECTS:
            marks = ["✗" if (client, worker) in bad else "✓" for worker in DIALECTS]
            print(f"{client:<15}  " + "  ".join(f"{mark:<5}" for mark in marks))
        for (client, worker, check), error in sorted(self.wrong.items()):
            print(f"✗ {client} → {worker}, {check}: {error}")
        return len(DIALECTS) ** 2 - len(bad & {(c, w) for c in DIALECTS for w in DIALECTS})


def main() -> int:
    began = time.monotonic()
    good = 0
    with LiveBroker(BEATS) as broker, LiveBroker(SHORT) as short:
        matrix = Matrix(broker, short)
        try:
            matrix.run()
            good = matrix.report()
        except (AssertionError, TimeoutError) as error:
            matrix.report()
            print(f"the matrix stopped: {error}")
        finally:
            matrix.close()
        errors = broker.crashes() + short.crashes()
    if errors:
        print(f"the broker raised:\n{errors}")
    print(f"each cell: {', '.join(CHECKS)}; {time.monotonic() - began:.0f} s")
    print(f"matrix: {good}/{len(DIALECTS) ** 2}")
    return 0 if good == len(DIALECTS) ** 2 and not matrix.wrong and not errors else 1


if __name__ == "__main__":
    sys.exit(main())
