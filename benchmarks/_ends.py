"""The Python ends: a `polybus.Worker` and a `polybus.Client`, each a process of its own.

    _ends.py worker ENDPOINT CREDIT
    _ends.py client ENDPOINT SIZE WINDOW SECONDS WARMUP

The client prints the same line of JSON as the load generator.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator

from polybus import Client, Request, Worker

SERVICE = "python-echo"


def work(endpoint: str, credit: int) -> None:
    def echo(request: Request) -> bytes:
        return request.body

    worker = Worker({SERVICE: echo}, endpoint, credit=credit)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    print("ready", flush=True)
    worker.run()


def call(endpoint: str, size: int, window: int, seconds: float, warmup: float) -> None:
    body = b"x" * size
    with Client(endpoint, window=window) as client:
        client.call(SERVICE, body)
        began = time.perf_counter() + warmup
        end = began + seconds

        def bodies() -> Iterator[bytes]:
            while time.perf_counter() < end:
                yield body

        total, counted, now = 1, 0, began
        for answer in client.call_many(SERVICE, bodies(), window):
            if len(answer) != size:
                sys.exit("an answer is not what the request asked for")
            total += 1
            if began <= (later := time.perf_counter()) < end:
                counted, now = counted + 1, later
    print(json.dumps({"total": total, "counted": counted, "seconds": now - began}))


def main() -> None:
    role, endpoint, *rest = sys.argv[1:]
    if role == "worker":
        work(endpoint, int(rest[0]))
    else:
        call(endpoint, int(rest[0]), int(rest[1]), float(rest[2]), float(rest[3]))


if __name__ == "__main__":
    main()
