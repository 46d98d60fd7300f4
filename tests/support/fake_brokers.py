"""A broker that does only what a test tells it: a ROUTER socket, read and written by hand."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import zmq

from support.patience import patient

# Not the loopback address where the brokers of other tests were: for a while their peers try to reconnect, to
# ports that the kernel may give to this test by now.
OWN_ADDRESS = "127.0.7.1"

_EVENT = struct.Struct("=hi")
# A test that waits longer than this has failed.
PATIENCE_MS = int(patient(10_000))


class FakeBroker:
    """A ROUTER on a free port of this machine; `restart` forgets all connections but keeps the port."""

    def __init__(self, address: str = OWN_ADDRESS) -> None:
        self._socket = self._bind(f"tcp://{address}:*")
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        self.endpoint = bytes(endpoint).rstrip(b"\0").decode()

    def _bind(self, endpoint: str) -> zmq.Socket[bytes]:
        # A context of its own: ending it is the only way to know that the port is free again.
        self._context: zmq.Context[Any] = zmq.Context()
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._accepted = self._ended = 0
        socket.bind(endpoint)
        return socket

    def connections(self) -> tuple[int, int]:
        """How many connections were made since it (re)started, and how many of them have ended."""
        while self._monitor.poll(0):
            kind, _ = _EVENT.unpack(self._monitor.recv_multipart()[0])
            self._accepted += kind == zmq.EVENT_ACCEPTED
            self._ended += kind == zmq.EVENT_DISCONNECTED
        return self._accepted, self._ended

    def receive(self) -> tuple[bytes, list[bytes]]:
        """The next message: who sent it, and its frames."""
        if not self._socket.poll(PATIENCE_MS):
            raise AssertionError("nothing came")
        identity, *frames = self._socket.recv_multipart()
        return identity, frames

    def receive_until(self, wanted: Callable[[list[bytes]], bool]) -> tuple[bytes, list[bytes]]:
        """The next message that is wanted; others are skipped."""
        while True:
            identity, frames = self.receive()
            if wanted(frames):
                return identity, frames

    def is_quiet(self, timeout_ms: int = 50) -> bool:
        return not self._socket.poll(timeout_ms)

    def send(self, identity: bytes, *frames: bytes) -> None:
        self._socket.send_multipart([identity, *frames])

    def restart(self) -> None:
        self.close()
        self._socket = self._bind(self.endpoint)

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.disable_monitor()
        self._socket.close(0)
        self._context.destroy(0)


class Background:
    """A function in a thread, its result or error for whoever joins it."""

    def __init__(self, function: Callable[..., Any], *args: Any, **settings: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._result = function(*args, **settings)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def join(self) -> Any:
        self._thread.join(PATIENCE_MS / 1000)
        assert not self._thread.is_alive(), "it has not come to an end"
        if self._error is not None:
            raise self._error
        return self._result
