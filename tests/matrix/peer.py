"""The processes of the matrix: one that serves, one that asks, both with the public library.

    peer.py worker '[["mdr", "tcp://…", {"echo-mdr": "echo"}], …]'
    peer.py client DIALECT ADDRESS

Every entry of a worker is a `Worker` in a thread of its own, so that one that holds its request does not
stop the others.  A client takes its orders as lines of JSON, works on all of them at the same time, each
with a `Client` of its own, and answers each with a line: {"id": …, "error": "what was wrong, or nothing"}.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from polybus import Client, Request, RequestFailed, Worker

ALL_BYTES = bytes(range(256))
# Empty, one byte, all values, both sides of the size from which the pump does not copy, and a mebibyte.
BODIES = (
    b"",
    b"\x00",
    b"x",
    ALL_BYTES,
    ALL_BYTES[::-1] * 31 + ALL_BYTES[:255],
    ALL_BYTES * 32,
    ALL_BYTES * 32 + b"\xff",
    b"\n\x00" * 40_000,
    ALL_BYTES * 4096,
)
# What eMQP's document wants a client to get for a reply without information.
NO_INFORMATION = b"True"
PATIENCE_S = 40.0
SHORT_S = 1.0


# -- serving ----------------------------------------------------------------------------------


def echo(request: Request) -> bytes:
    return request.body


def fail(request: Request) -> bytes:
    raise ValueError(f"no {request.body.decode()} today")


def hold(request: Request) -> bytes:
    """Take a request, say so, and never answer."""
    say(f"got {request.service}")
    threading.Event().wait()
    return b""


HANDLERS = {"echo": echo, "fail": fail, "hold": hold}


def serve(entries: list[tuple[str, str, dict[str, str]]]) -> None:
    threads = []
    for dialect, address, services in entries:
        worker = Worker({name: HANDLERS[kind] for name, kind in services.items()}, address, dialect)
        threads.append(threading.Thread(target=worker.run, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


# -- asking -----------------------------------------------------------------------------------


def expected(dialect: str, body: bytes) -> bytes:
    """What a client gets for a body that a worker sent back as it was."""
    return NO_INFORMATION if dialect == "emqp" and not body else body


def check_bodies(client: Client, service: str) -> str:
    for body in BODIES:
        answer = client.call(service, body, PATIENCE_S)
        if answer != expected(client.dialect, body):
            return f"a body of {len(body)} bytes came back as {len(answer)}: {answer[:40]!r}"
    return ""


def check_failure(client: Client, service: str) -> str:
    try:
        answer = client.call(service, b"tea", PATIENCE_S)
    except RequestFailed as error:
        return "" if "no tea today" in str(error) else f"the error lost its text: {error}"
    return f"no error but {answer[:40]!r}"


def check_expiry(client: Client, service: str) -> str:
    # EBUS says how long it waits; in the others the broker decides. Either way it is the bus that tells.
    pending = client.submit(service, b"hello", SHORT_S)
    try:
        answer = pending.result(PATIENCE_S)
    except RequestFailed as error:
        return "" if error.code == "expired" else f"no expiry but {error.code}: {error}"
    return f"no expiry but {answer[:40]!r}"


def check_rescue(client: Client, service: str) -> str:
    answer = client.call(service, ALL_BYTES, PATIENCE_S)
    return "" if answer == ALL_BYTES else f"the answer is {answer[:40]!r}"


CHECKS = {"bodies": check_bodies, "failure": check_failure, "expiry": check_expiry, "rescue": check_rescue}


def ask(dialect: str, order: dict[str, Any]) -> None:
    try:
        with Client(order["address"], dialect) as client:
            error = CHECKS[order["check"]](client, order["service"])
    except Exception as problem:
        # Whatever it is, it belongs to the cell, not to this process.
        error = f"{type(problem).__name__}: {problem}"
    say(json.dumps({"id": order["id"], "error": error}))


def take_orders(dialect: str) -> None:
    for line in sys.stdin:
        threading.Thread(target=ask, args=(dialect, json.loads(line)), daemon=True).start()


_voice = threading.Lock()


def say(text: str) -> None:
    with _voice:
        print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        serve(json.loads(sys.argv[2]))
    else:
        take_orders(sys.argv[2])
