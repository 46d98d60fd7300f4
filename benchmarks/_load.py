"""The load generator for machines without a C compiler: what `load.c` does, in Python with the pump.

One thread serves the client and all workers, so it is often slower than the broker it measures; whoever
uses it says so.  It takes the arguments of `load.c` (the first, libzmq's path, is ignored) and prints the
same line.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from typing import Any

import zmq

from polybus.server.pump import open_pump
from polybus.wire import emqp, mdr

Message = list[Any]
PATIENCE_MS = 10_000
SERVICE = b"echo"


class Plain:
    """No dialect: what comes is sent back."""

    def ask(self, number: bytes, body: bytes) -> Message:  # noqa: ARG002
        return [b"", body]

    def is_answer(self, frames: Message, size: int) -> bool:
        return len(frames[1]) == size

    def greet(self) -> list[Message]:
        return []

    def work(self, frames: Message) -> list[Message]:
        return [frames]

    def leave(self) -> list[Message]:
        return []


class Mdr(Plain):
    def __init__(self, credit: int) -> None:
        self._credit = credit

    def ask(self, number: bytes, body: bytes) -> Message:
        return mdr.write_from_client(mdr.Request(SERVICE, number, [body]))

    def is_answer(self, frames: Message, size: int) -> bool:
        return frames[1] == b"\x03" and len(frames[4]) == size

    def greet(self) -> list[Message]:
        return [mdr.write_from_worker(mdr.Ready(SERVICE, self._credit))]

    def work(self, frames: Message) -> list[Message]:
        return [[frames[0], b"\x04", *frames[2:]]] if frames[1] == b"\x02" else []

    def leave(self) -> list[Message]:
        return [mdr.write_from_worker(mdr.Disconnect())]


class Emqp(Plain):
    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._ids = map(b"w%d".__mod__, count(1))

    def ask(self, number: bytes, body: bytes) -> Message:
        return [emqp.TAG, b"REQUEST", number, SERVICE, b"reply-requested", body]

    def is_answer(self, frames: Message, size: int) -> bool:
        # The receipt has one frame less than the result.
        return len(frames) == 5 and len(frames[3]) == size

    def greet(self) -> list[Message]:
        return [[emqp.TAG, b"INFORM", next(self._ids), b'[[10, "echo"]]', b"worker"]]

    def work(self, frames: Message) -> list[Message]:
        if frames[1] == b"ACK":
            return [self._ready() for _ in range(self._credit)]
        if frames[1] != b"REQUEST":
            return []
        return [[emqp.TAG, b"REPLY", next(self._ids), frames[5], frames[2]], self._ready()]

    def leave(self) -> list[Message]:
        return [[emqp.TAG, emqp.KBYE, next(self._ids)]]

    def _ready(self) -> Message:
        return [emqp.TAG, b"READY", next(self._ids)]


def dialect_of(kind: str, credit: int) -> Plain:
    if kind in ("plain", "direct"):
        return Plain()
    return Mdr(credit) if kind == "mdr" else Emqp(credit)


def run(
    kind: str,
    frontend: str,
    backend: str,
    size: int,
    window: int,
    seconds: float,
    warmup: float,
    credit: int,
    workers: int,
) -> dict[str, float]:
    dialect = dialect_of(kind, credit)
    context = zmq.Context()
    sockets = [context.socket(zmq.DEALER) for _ in range(workers + 1)]
    for index, socket in enumerate(sockets):
        socket.linger = 1000
        # A worker sends all its READYs at once; nothing that is sent here may be refused.
        socket.sndhwm = socket.rcvhwm = 0
        if index and kind == "direct":
            socket.bind(backend)
        else:
            socket.connect(backend if index else frontend)
    pump = open_pump(sockets)
    pump.send_many([(index, word) for index in range(1, workers + 1) for word in dialect.greet()])

    body = b"x" * size
    times: list[float] = []
    sent = got = counted = 0
    began, end = float("inf"), float("inf")
    asked = last = 0.0
    now = time.perf_counter()
    # One round trip before the clock starts; then `window` at a time until time is up and all is answered.
    while got < sent or now < end:
        most = window if began < float("inf") else 1
        out: list[tuple[int, Message]] = []
        if now < end and sent - got < most:
            asked = now
            while sent - got < most:
                sent += 1
                out.append((0, dialect.ask(b"%d" % sent, body)))
            pump.send_many(out)
        batch = pump.recv_many(PATIENCE_MS)
        now = time.perf_counter()
        if not batch:
            sys.exit("load: no answer came in 10 s")
        out = []
        for index, frames in batch:
            if index:
                out.extend((index, answer) for answer in dialect.work(frames))
            elif dialect.is_answer(frames, size):
                got += 1
                if began <= now < end:
                    counted, last = counted + 1, now
                    if window == 1:
                        times.append(now - asked)
        pump.send_many(out)
        if got and began == float("inf"):
            began = now + warmup
            end = began + seconds
    pump.send_many([(index, word) for index in range(1, workers + 1) for word in dialect.leave()])
    for socket in sockets:
        socket.close()
    context.term()
    figures = {"total": got, "counted": counted, "seconds": last - began}
    if times:
        times.sort()
        figures["p50_us"] = times[len(times) // 2] * 1e6
        figures["p99_us"] = times[int(len(times) * 0.99)] * 1e6
    return figures


def main() -> None:
    _, kind, frontend, backend, size, window, seconds, warmup, credit, workers = sys.argv[1:]
    print(
        json.dumps(
            run(
                kind,
                frontend,
                backend,
                int(size),
                int(window),
                float(seconds),
                float(warmup),
                int(credit),
                int(workers),
            )
        )
    )


if __name__ == "__main__":
    main()
