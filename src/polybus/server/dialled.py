"""The connections to DBP nodes that are called, or asked, at their own address.

Each has a DEALER socket of its own.  A DEALER talks to a REP, a ROUTER or a DEALER at the other end; libzmq
ends every connection between a ROUTER and a REP as soon as they have told each other what they are.

The sockets come and go, so they are not among those of the pump.  The pump watches one descriptor that stands
for all of them.  A socket's descriptor does not show what came in while the socket was used, so a socket is
looked at again after each message that was sent on it.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
from collections.abc import Callable
from math import inf
from typing import Final

import zmq

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.dialects.port import Ear, Message

# The link of these connections. No socket of the pump has this number, and the journal has two bytes for it.
NUMBER: Final = 0xFF00
NAME: Final = "dbp.outbound"
# Messages read from one connection in one turn.
AT_ONCE: Final = 256


class Dialled:
    """All such connections, by the identity that the core gave them. True as soon as there was one."""

    number: Final = NUMBER

    def __init__(self, bus: Bus, make: Callable[[], zmq.Socket[bytes]], ear: Ear) -> None:
        self._bus = bus
        self._make = make
        self._ear = ear
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}
        self._at: dict[str, set[bytes]] = {}
        # Connections on which something may have come in that their descriptors do not show.
        self._unread: dict[bytes, None] = {}
        self._was_used = False
        # When to look at them: at once, or never.
        self.next_at = inf

    def __bool__(self) -> bool:
        return self._was_used

    def __len__(self) -> int:
        return len(self._sockets)

    def fileno(self) -> int:
        """The descriptor that is readable when one of the sockets may be."""
        return self._selector.fileno()

    def dial(self, action: act.Dial, now: float) -> None:
        self._was_used = True
        try:
            socket = self._make()
            try:
                socket.connect(action.endpoint)
                self._selector.register(_descriptor(socket), selectors.EVENT_READ, action.identity)
            except BaseException:
                socket.close(0)
                raise
        except (zmq.ZMQError, OSError) as error:
            why = f"cannot dial {action.endpoint}: {error}"
            self._bus.handle(events.WorkerGone((NUMBER, action.identity), why), now)
            return
        self._sockets[action.identity] = socket
        self._at.setdefault(action.endpoint, set()).add(action.identity)
        self._look_again(action.identity)

    def hang_up(self, action: act.HangUp) -> None:
        """Close all connections to an endpoint, as the core expects it."""
        for identity in self._at.pop(action.endpoint, ()):
            self._close(identity)

    def send(self, message: Message) -> int:
        """Send a message whole or not at all; returns 0, or libzmq's number for the reason."""
        identity = bytes(message[0])
        socket = self._sockets.get(identity)
        if socket is None:
            return errno.EHOSTUNREACH
        try:
            socket.send_multipart([bytes(frame) for frame in message[1:]], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            return error.errno or errno.EHOSTUNREACH
        finally:
            self._look_again(identity)
        return 0

    def receive(self, link: int, frames: Message, now: float) -> None:
        """The descriptor is readable, or it is time to look again."""
        for key, _ in self._selector.select(0):
            self._look_again(key.data)
        for identity in list(self._unread):
            if self._read(identity, now):
                self._unread.pop(identity, None)
        self.next_at = 0.0 if self._unread else inf

    def _look_again(self, identity: bytes) -> None:
        self._unread[identity] = None
        self.next_at = 0.0

    def _read(self, identity: bytes, now: float) -> bool:
        """Whether everything was read that there is."""
        socket = self._sockets.get(identity)
        if socket is None:
            return True
        for _ in range(AT_ONCE):
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.ZMQError:
                return True
            self._ear.receive(NUMBER, [identity, *frames], now)
        return False

    def _close(self, identity: bytes) -> None:
        socket = self._sockets.pop(identity)
        self._unread.pop(identity, None)
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(_descriptor(socket))
        socket.close(0)

    def close(self, linger_ms: int = 0) -> None:
        """Close everything, with a moment for what is still in the pipes."""
        self._selector.close()
        for socket in self._sockets.values():
            socket.close(linger_ms)
        self._sockets.clear()
        self._at.clear()


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.get(zmq.FD))
