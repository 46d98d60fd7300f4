"""A process of workers: `peers.py '[["mdr", "tcp://…", {"echo.mdr": "echo"}], …]'`.

Each entry is a `Worker` in a thread of its own, so that one that holds its request does not stop the others.
Whoever holds a request says so with a line of output.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Generator
from typing import Any

from polybus import Request, Worker

SLOW_S = 1.1
seen: Counter[bytes] = Counter()
never = threading.Event()


def echo(request: Request) -> bytes:
    return request.body


def fail(request: Request) -> bytes:
    raise ValueError(f"no {request.body[:20].decode(errors='replace')} today")


def flaky(request: Request) -> bytes:
    """Fails the first time, and only then."""
    seen[request.body] += 1
    if seen[request.body] == 1:
        raise ValueError("not yet")
    return b"done"


def hold(request: Request) -> bytes:
    print(f"got {request.service}", flush=True)
    never.wait()
    return b""


def slow(request: Request) -> bytes:
    never.wait(SLOW_S)
    return b"at last"


def pieces(request: Request) -> Generator[bytes, None, bytes]:
    yield b"one"
    yield b"two"
    return b"three"


HANDLERS: dict[str, Any] = {
    "echo": echo,
    "fail": fail,
    "flaky": flaky,
    "hold": hold,
    "slow": slow,
    "pieces": pieces,
}


def serve(entries: list[tuple[str, str, dict[str, str]]]) -> None:
    threads = []
    for dialect, address, services in entries:
        worker = Worker({name: HANDLERS[kind] for name, kind in services.items()}, address, dialect)
        threads.append(threading.Thread(target=worker.run, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
