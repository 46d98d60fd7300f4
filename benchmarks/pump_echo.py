"""Round trips per second through each pump, and through pyzmq's multipart calls, in one process.

A DEALER sends a batch of requests, a ROUTER returns them, the DEALER takes the answers: both ends use
the same pump, so a round trip is four crossings.  Rounds are interleaved and the median is printed,
because a busy machine changes its speed from second to second.

    python benchmarks/pump_echo.py [--transport inproc|tcp] [--size 64] [--seconds 0.5] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import zmq

from polybus.server.pump import Batch, Pump, open_pump, pump_report

BATCHES = (1, 20, 200)


class MultipartPump:
    """What one writes with pyzmq at first: a poller, recv_multipart and send_multipart."""

    kind = "recv_multipart"

    def __init__(self, sockets: Sequence[zmq.Socket[bytes]]) -> None:
        self._sockets = list(sockets)
        self._poller = zmq.Poller()
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> Batch:
        batch: Batch = []
        for socket, _ in self._poller.poll(timeout_ms):
            index = self._sockets.index(socket)
            try:
                for _ in range(limit):
                    batch.append((index, list(socket.recv_multipart(zmq.DONTWAIT))))
            except zmq.Again:
                continue
        return batch

    def send_many(self, messages: Sequence[tuple[int, Sequence[Any]]]) -> list[tuple[int, int]]:
        for index, frames in messages:
            self._sockets[index].send_multipart(frames, zmq.DONTWAIT)
        return []


def open_any(kind: str, socket: zmq.Socket[bytes]) -> Pump:
    return MultipartPump([socket]) if kind == MultipartPump.kind else open_pump([socket], kind=kind)


def echo(kind: str, transport: str, size: int, batch: int, seconds: float) -> float:
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    try:
        if transport == "tcp":
            dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        else:
            router.bind("inproc://echo")
            dealer.connect("inproc://echo")
        server, client = open_any(kind, router), open_any(kind, dealer)
        requests = [(0, [b"", b"MDPC01", b"\x01", b"echo", bytes(size)])] * batch
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            client.send_many(requests)
            returned = answered = 0
            while returned < batch:
                arrived = server.recv_many(-1)
                server.send_many(arrived)
                returned += len(arrived)
            while answered < batch:
                answered += len(client.recv_many(-1))
            done += batch
        return done / (time.perf_counter() - start)
    finally:
        dealer.close(linger=0)
        router.close(linger=0)
        context.term()


def main() -> None:
    parser = argparse.ArgumentParser(description="Round trips per second through each pump.")
    parser.add_argument("--transport", choices=("inproc", "tcp"), default="inproc")
    parser.add_argument("--size", type=int, default=64, help="bytes of the body")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kinds = ["pyzmq", MultipartPump.kind]
    if pump_report()[0] == "compiled":
        kinds.insert(0, "compiled")
    print(f"{options.transport}, {options.size}-byte bodies, 5 frames, libzmq {zmq.zmq_version()}")
    print(
        f"{'pump':16}" + "".join(f"{f'batch {batch}':>14}" for batch in BATCHES) + "   round trips/s, median"
    )
    results: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for batch in BATCHES:
            for kind in kinds:
                rate = echo(kind, options.transport, options.size, batch, options.seconds)
                results.setdefault((kind, batch), []).append(rate)
    for kind in kinds:
        rates = (statistics.median(results[kind, batch]) for batch in BATCHES)
        print(f"{kind:16}" + "".join(f"{rate:14,.0f}" for rate in rates))


if __name__ == "__main__":
    main()
