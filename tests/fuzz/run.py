"""`make fuzz SECONDS=60`: a live broker under broken input on every listening socket.

Real traffic runs all the time.  Meanwhile messages made from valid ones of every dialect and role, whole or
spoiled, and bytes that are no ZeroMQ hit all ports.  At the end the broker must be alive and answer, every
real request must have been answered correctly, nothing may have been raised, and what the input occupied must
have been let go.

About the last: what the broker keeps on purpose is bounded and short-lived here by settings (requests live
10 s, kept answers and idle services 3 s), so after a pause its tables must be as small as before, within what
the real traffic has under way and leases without an end (the fuzzer has few names) occupy.  Memory is
compared with what it was after a warm-up of the same kind, because allocators keep what they once had; a few
MiB above that are fragmentation, while a leak of 150 bytes per message would be more after a minute.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import zmq  # noqa: E402

from fuzz.messages import DIALLED, MAKERS, is_allowed, make  # noqa: E402
from fuzz.raw import RawPeers  # noqa: E402
from matrix.run import CLIENT_PORTS, DIALECTS, WORKER_PORTS  # noqa: E402
from support.live import LiveBroker, read_line, wait_for  # noqa: E402

SETTINGS: dict[str, object] = {
    "limits.request_ttl_s": 10,
    "emqp.expiry_s": 10,
    "ebus.expiry_s": 10,
    "limits.replies_age_s": 3,
    "jobs.results_age_s": 3,
    "limits.replies_bytes": 8_000_000,
    "limits.idle_service_s": 3,
    "limits.topics_counted": 100,
    "limits.held_bytes": 512_000_000,
    "bridge.name": "fuzzed",
    "bridge.topics": "fuzz",
    "last_values.count": 200,
    "last_values.bytes": 4_000_000,
}
# Messages a second at most: two cores are to survive it, with the real traffic on them.
RATE = 1500
BURST = 30
SOCKETS_PER_PORT = 4
WARM_UP_S = 8.0
# All that the settings above keep is gone after this long.
SETTLE_S = 40.0
RSS_ALLOWED = 0.15
RSS_ALLOWED_BYTES = 12 * 1024 * 1024
# What may be left in the broker's tables, beyond what was there before the fuzzer came.
LEFT = {"requests": 20, "clients": 40, "services": 40, "workers": 20, "nodes": 40, "subscriptions": 10}
# How a fuzzing peer connects where the port is no ROUTER.
KINDS = {"ebus.publish": (zmq.XPUB, zmq.PUB), "ebus.subscribe": (zmq.XSUB,), "emqp.subscribe": (zmq.XSUB,)}


class Fuzzer:
    def __init__(self, broker: LiveBroker, seed: int) -> None:
        self.broker = broker
        self.rng = random.Random(seed)
        self.sent = 0
        self.refused = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, list[zmq.Socket[bytes]]] = {
            port: [] for port, endpoint in broker.endpoints.items() if not endpoint.startswith("udp://")
        }
        self._raw = RawPeers(broker.endpoints)

    def run(self, seconds: float) -> None:
        began = time.monotonic()
        first = self.sent
        while (now := time.monotonic()) < began + seconds and self.broker.is_alive:
            ahead_s = (self.sent - first) / RATE - (now - began)
            if ahead_s > 0:
                time.sleep(min(ahead_s, 0.1))
            for _ in range(BURST):
                self.send_one()
            self.sent += self._raw.poke(self.rng) + self._raw.beat(self.rng)

    def send_one(self) -> None:
        port = self.rng.choice(list(self._sockets))
        frames = make(self.rng, port)
        if not is_allowed(port, frames):
            return
        socket = self._socket(port)
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
            self.sent += 1
        except zmq.Again:
            self.refused += 1
        # Most peers read their answers, some never do.
        if self.rng.random() < 0.5:
            while socket.poll(0, zmq.POLLIN):
                socket.recv_multipart(zmq.NOBLOCK)

    def _socket(self, port: str) -> zmq.Socket[bytes]:
        pool = self._sockets[port]
        if len(pool) < SOCKETS_PER_PORT or self.rng.random() < 0.01:
            if len(pool) >= SOCKETS_PER_PORT:
                pool.pop(self.rng.randrange(len(pool))).close(0)
            socket = self._context.socket(self.rng.choice(KINDS.get(port, (zmq.DEALER,))))
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 100)
            socket.setsockopt(zmq.SNDHWM, 100)
            socket.connect(self.broker[port])
            pool.append(socket)
        return self.rng.choice(pool)

    def rest(self) -> None:
        """Hang up everywhere."""
        self._raw.close()
        for pool in self._sockets.values():
            while pool:
                pool.pop().close(0)

    def close(self) -> None:
        self.rest()
        self._context.destroy(linger=0)


def start_traffic(broker: LiveBroker) -> subprocess.Popen[bytes]:
    plan = {
        "workers": {dialect: broker[WORKER_PORTS[dialect]] for dialect in DIALECTS},
        "clients": {dialect: broker[CLIENT_PORTS[dialect]] for dialect in DIALECTS},
    }
    command = [sys.executable, str(Path(__file__).with_name("traffic.py")), json.dumps(plan)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert read_line(process, 60) == "ready"
    return process


def tables(broker: LiveBroker) -> dict[str, int]:
    status = broker.ask("status", timeout_s=30)
    return {table: int(status[table]) for table in LEFT}


def is_settled(broker: LiveBroker, before: dict[str, int]) -> bool:
    now = tables(broker)
    return all(now[table] <= before[table] + LEFT[table] for table in LEFT)


def settle(broker: LiveBroker, before: dict[str, int]) -> int:
    """Wait until the tables are small again and memory no longer falls; the memory then."""
    wait_for(lambda: is_settled(broker, before), SETTLE_S)
    lowest = broker.rss_bytes()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        time.sleep(0.25)
        lowest = min(lowest, broker.rss_bytes())
    return lowest


def fuzz(broker: LiveBroker, seconds: float, seed: int) -> tuple[int, list[str], dict[str, Any]]:
    """How many messages, what is wrong, and what the traffic saw."""
    problems: list[str] = []
    report: dict[str, Any] = {"asked": 0, "wrong": ["the traffic did not report"]}
    traffic = start_traffic(broker)
    fuzzer = Fuzzer(broker, seed)
    try:
        before = tables(broker)
        fuzzer.run(min(WARM_UP_S, seconds))
        fuzzer.rest()
        warm = settle(broker, before)
        fuzzer.run(seconds)
        fuzzer.rest()
        after = settle(broker, before)
        allowed = warm + max(int(warm * RSS_ALLOWED), RSS_ALLOWED_BYTES)
        print(
            f"memory: {warm / 2**20:.1f} MiB after the warm-up, {after / 2**20:.1f} MiB at the end, "
            f"allowed {allowed / 2**20:.1f} MiB"
        )
        if after > allowed:
            problems.append("the broker did not let go of memory")
        status = broker.ask("status")
        print(f"broker: {status['invalid']} messages were invalid, tables at the end {tables(broker)}")
        internal = int(status.get("internal_errors", 0))
        if internal:
            problems.append(f"{internal} internal errors")
    except (AssertionError, TimeoutError, OSError) as error:
        problems.append(f"{type(error).__name__}: {error}")
        if broker.is_alive:
            problems.append(f"tables: {broker.ask('status', timeout_s=30)}")
            problems.append(f"requests: {broker.ask('requests', timeout_s=30)}")
    finally:
        fuzzer.close()
        report = stop_traffic(traffic) or report
    if not broker.is_alive:
        problems.append(f"the broker died with status {broker.process.returncode}")
    if broker.crashes():
        problems.append("the broker raised:\n" + broker.crashes()[-4000:])
    return fuzzer.sent, problems, report


def stop_traffic(traffic: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    assert traffic.stdin is not None
    traffic.stdin.close()
    try:
        found: dict[str, Any] = json.loads(read_line(traffic, 60))
    except (TimeoutError, ValueError):
        return None
    finally:
        traffic.kill()
        traffic.wait()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with LiveBroker(SETTINGS) as broker:
        assert set(broker.endpoints) - {"dbp.udp"} == set(MAKERS), "a port is not fuzzed"
        # Nodes may also claim to live where the broker itself does.
        DIALLED.extend(int(endpoint.rpartition(":")[2]) for endpoint in broker.endpoints.values())
        sent, problems, report = fuzz(broker, options.seconds, seed)
    print(f"traffic: {report['asked']} requests, restarts of workers {report.get('restarts')}")
    for text in report["wrong"][:20]:
        print(f"lost: {text}")
    for problem in problems:
        print(f"problem: {problem}")
    lost = len(report["wrong"])
    print(f"fuzz: {sent} messages, {len(problems)} crashes, {lost} lost requests")
    return 1 if problems or lost else 0


if __name__ == "__main__":
    sys.exit(main())
