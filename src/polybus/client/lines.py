"""The sockets of a client or worker behind one pump, and when each of them was cut off and came back.

Every line is a DEALER with a monitor.  libzmq reconnects by itself but what was on its way is lost, so the
session has to know: a handshake after a disconnection is reported as "reconnected".  The pump sees the lines
first, then their monitors, then raw file descriptors; an index below `count` is a line.
"""

from __future__ import annotations

import errno
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import zmq

from polybus.errors import ConfigError, ConnectionLost
from polybus.server.pump import Batch, Pump, open_pump
from polybus.wire.frames import Frame

# More than a window of requests, or a worker's whole credit, is never on its way at once.
SEND_HWM: Final = 100_000
# The broker decides how much is sent to us: it knows the window and the credit.
RECEIVE_HWM: Final = 100_000
# A broker that was restarted is found again soon, one that stays away is not hammered.
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1000
# A connection whose other end vanished without a word is given up after this, and made anew.
PROBE_MS: Final = 10_000
PROBE_TIMEOUT_MS: Final = 30_000
# How long a full pipe is waited for before the broker counts as lost.
FULL_WAIT_MS: Final = 5000

_EVENT: Final = struct.Struct("=hi")
_WATCHED: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class Lines:
    """`count` DEALER sockets, opened one by one, and the pump over them."""

    def __init__(self, count: int, fds: Sequence[int] = (), context: zmq.Context[Any] | None = None) -> None:
        self.count: Final = count
        self._context = context or zmq.Context.instance()
        self._fds = fds
        self._sockets: list[zmq.Socket[bytes] | None] = [None] * count
        self._monitors: list[zmq.Socket[bytes] | None] = [None] * count
        self._cut = [False] * count
        self._pump: Pump | None = None

    def hang_up(self, at: int, linger_s: float = 0.0) -> None:
        """Close a line until it is opened again. An unconnected socket keeps its place in the pump."""
        self._close(at, int(linger_s * 1000))
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        self._sockets[at], self._monitors[at] = socket, socket.get_monitor_socket(_WATCHED)
        self._cut[at] = False

    def open(self, at: int, endpoint: str, identity: bytes) -> None:
        """Connect a line, on a new socket."""
        self._close(at, linger_ms=0)
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, SEND_HWM)
            socket.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            socket.setsockopt(zmq.HEARTBEAT_IVL, PROBE_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, PROBE_TIMEOUT_MS)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.IDENTITY, identity)
            monitor = socket.get_monitor_socket(_WATCHED)
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigError(f"cannot connect to {endpoint}: {error}") from error
        self._sockets[at], self._monitors[at] = socket, monitor
        self._cut[at] = False

    @property
    def pump(self) -> Pump:
        if self._pump is None:
            self._pump = open_pump([s for s in (*self._sockets, *self._monitors) if s is not None], self._fds)
        return self._pump

    @property
    def fds(self) -> list[int]:
        """What an event loop watches: one descriptor a socket, edge-triggered."""
        return [int(s.getsockopt(zmq.FD)) for s in (*self._sockets, *self._monitors) if s is not None]

    def receive(self, timeout_s: float, limit: int = 1000) -> Batch:
        """What has come in: messages of lines, of monitors (see `reconnected`), and readable fds."""
        if timeout_s == math.inf:
            return self.pump.recv_many(-1, limit)
        # Rounded up: waking a moment too early would turn the wait into a spin.
        return self.pump.recv_many(0 if timeout_s <= 0 else min(int(timeout_s * 1000) + 1, 2**31 - 1), limit)

    def reconnected(self, index: int, frames: Sequence[Frame]) -> int | None:
        """The line that has just come back, if that is what a monitor's message says."""
        at = index - self.count
        if not 0 <= at < self.count or not frames:
            return None
        kind, _ = _EVENT.unpack(bytes(frames[0]))
        if kind == zmq.EVENT_DISCONNECTED:
            self._cut[at] = True
        elif self._cut[at]:
            self._cut[at] = False
            return at
        return None

    def is_cut(self, at: int) -> bool:
        """Whether a line has lost its connection, as far as is known."""
        return self._cut[at]

    def send(self, messages: list[tuple[int, list[Frame]]]) -> None:
        """Send all of them; waits for a full pipe, but not for ever."""
        while messages:
            refused = self.pump.send_many(messages)
            if not refused:
                return
            for _, number in refused:
                if number != errno.EAGAIN:
                    raise ConnectionLost(f"a message could not be sent: {zmq.strerror(number)}")
            messages = [messages[position] for position, _ in refused]
            for at in {at for at, _ in messages}:
                socket = self._sockets[at]
                if socket is not None and not socket.poll(FULL_WAIT_MS, zmq.POLLOUT):
                    raise ConnectionLost(
                        f"the broker took nothing for {FULL_WAIT_MS / 1000:g} s and {SEND_HWM} messages wait"
                    )

    def close(self, linger_s: float = 0.0) -> None:
        for at in range(self.count):
            self._close(at, int(linger_s * 1000))

    def _close(self, at: int, linger_ms: int) -> None:
        self._pump = None
        socket, monitor = self._sockets[at], self._monitors[at]
        self._sockets[at] = self._monitors[at] = None
        if socket is not None and not socket.closed:
            socket.disable_monitor()
            socket.close(linger_ms)
        if monitor is not None:
            monitor.close(0)
