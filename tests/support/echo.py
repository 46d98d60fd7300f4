"""A worker that echoes what it gets, in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from support.live import LiveBroker, wait_for
from support.patience import patient


class Echo(threading.Thread):
    """A worker of the request-id draft that takes many requests at once."""

    def __init__(self, broker: LiveBroker) -> None:
        super().__init__(daemon=True)
        self._endpoint = broker["majordomo.workers"]
        self._ending = threading.Event()
        self.start()

    def run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.set_hwm(0)
            socket.connect(self._endpoint)
            socket.send_multipart([b"MDRW01", b"\x01", b"echo", b"2000"])
            beat_at = time.monotonic() + 1.0
            while not self._ending.is_set():
                if time.monotonic() >= beat_at:
                    socket.send_multipart([b"MDRW01", b"PING"])
                    beat_at = time.monotonic() + 1.0
                if socket.poll(100):
                    frames = socket.recv_multipart()
                    if frames[1] == b"\x02":
                        socket.send_multipart([b"MDRW01", b"\x04", *frames[2:]])

    def end(self) -> None:
        self._ending.set()
        self.join(patient(10.0))


@contextmanager
def echo(broker: LiveBroker) -> Iterator[None]:
    worker = Echo(broker)
    try:
        wait_for(lambda: broker.has_workers("echo"))
        yield
    finally:
        worker.end()
