"""Real traffic while the fuzzer works: workers and clients of all dialects, every answer checked.

Its own process, so that it does not share an interpreter with the fuzzer.  Prints `ready` when every worker
has answered once; runs until its input ends; then prints one line of JSON with what it saw.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

from polybus import Client, PolybusError, Request, Worker

# A request every so often per client: present all the time, and far from what the broker can do.
PACE_S = 0.02
PATIENCE_S = 30.0


def serve(request: Request) -> bytes:
    return b"re:" + request.body


class Caller(threading.Thread):
    def __init__(self, dialect: str, address: str, services: list[str]) -> None:
        super().__init__(daemon=True)
        self._dialect = dialect
        self._address = address
        self._services = services
        self._rng = random.Random(dialect)
        self.done = threading.Event()
        self.asked = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with Client(self._address, self._dialect, timeout_s=PATIENCE_S) as client:
            while not self.done.wait(PACE_S):
                self.ask(client, self._rng.choice(self._services))

    def ask(self, client: Client, service: str) -> None:
        self.asked += 1
        body = f"{self._dialect}-{self.asked}-".encode() + self._rng.randbytes(
            self._rng.choice((0, 50, 9000))
        )
        try:
            answer = client.call(service, body)
        except PolybusError as error:
            self.wrong.append(f"{self._dialect} → {service}, request {self.asked}: {error!r}")
            return
        if answer != b"re:" + body:
            self.wrong.append(f"{self._dialect} → {service}, request {self.asked}: got {answer[:60]!r}")


def main(plan: dict[str, Any]) -> None:
    services = []
    workers = []
    for dialect, address in plan["workers"].items():
        services.append(f"real-{dialect}")
        worker = Worker({services[-1]: serve}, address, dialect)
        workers.append(worker)
        threading.Thread(target=worker.run, daemon=True).start()
    with Client(plan["clients"]["mdr"], "mdr", timeout_s=PATIENCE_S) as client:
        for service in services:
            client.call(service, b"are you there?")
    callers = [Caller(dialect, address, services) for dialect, address in plan["clients"].items()]
    for caller in callers:
        caller.start()
    print("ready", flush=True)
    sys.stdin.read()
    for caller in callers:
        caller.done.set()
    until = time.monotonic() + PATIENCE_S + 5
    for caller in callers:
        caller.join(max(0.0, until - time.monotonic()))
        if caller.is_alive():
            caller.wrong.append("a caller did not come back")
    report = {
        "asked": sum(caller.asked for caller in callers),
        "wrong": [text for caller in callers for text in caller.wrong],
        "restarts": {w: worker.restarts for w, worker in zip(services, workers, strict=True)},
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
