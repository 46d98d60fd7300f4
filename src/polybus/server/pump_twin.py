"""The pump without a compiler: the same interface and promises, through pyzmq alone.

Every frame costs a call here, two when it is received, so the calls are the cheapest that pyzmq has: the
methods of its backend class, unbound, with plain integers for flags; enums and the methods written in
Python cost several times more.  Receiving `zmq.Frame`s would be a third faster still, but pyzmq runs
signal handlers when one is freed and ignores what they raise: Ctrl-C would be lost now and then.

pyzmq runs signal handlers inside its other calls as well, and when one raises nobody learns what the
call did.  In the middle of receiving, then, what came before is kept for the next call and the message
at hand is skipped up to its end.  In the middle of sending, the message is finished, but it may lack the
frame that was going out: whoever lets a handler's exception out of `send_many` closes the socket.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import zmq
import zmq.backend

if TYPE_CHECKING:
    from polybus.server.pump import Batch, Sendable

# Plain integers: pyzmq's enums cost more than the call.
_POLLIN: Final = int(zmq.POLLIN)
_RCVMORE: Final = int(zmq.RCVMORE)
_LAST: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)

_backend: Final[Any] = zmq.backend.Socket
_recv: Final = _backend.recv
_send: Final = _backend.send
_get: Final = _backend.get
_poll: Final[Any] = zmq.backend.zmq_poll
_PLAIN: Final = frozenset({bytes})
_FAST: Final = frozenset({list, tuple})


class PyzmqPump:
    """Batches in, batches out, over some sockets and raw file descriptors; see `polybus.server.pump`."""

    kind: Final = "pyzmq"

    def __init__(self, sockets: Sequence[zmq.Socket[bytes]], fds: Sequence[int] = ()) -> None:
        self._sockets = tuple(sockets)
        if not (self._sockets or fds):
            raise ValueError("a pump needs at least one socket or fd")
        self._check_open()
        everything: list[Any] = [*self._sockets, *fds]
        self._index = {thing: i for i, thing in enumerate(everything)}
        items = [(thing, _POLLIN) for thing in everything]
        n = len(self._sockets)
        # The same items, beginning with each socket in turn; the fds always come last.
        self._orders = [items[i:n] + items[:i] + items[n:] for i in range(n or 1)]
        self._turn = 0
        self._kept: Batch = []

    def _check_open(self) -> None:
        for socket in self._sockets:
            if socket.closed:
                raise zmq.ZMQError(errno.ENOTSOCK)

    def close(self) -> None:
        """It holds nothing."""

    def suspect(self, index: int) -> None:
        """Every socket is asked every time."""

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> Batch:
        if limit < 1:
            raise ValueError("limit must be 1 or more")
        self._check_open()
        batch, self._kept = self._kept, []
        self._turn = (self._turn + 1) % len(self._orders)
        try:
            # Looks first and waits only if nothing is there, in one call.
            for thing, _ in _poll(self._orders[self._turn], 0 if batch else timeout_ms):
                index = self._index[thing]
                if index < len(self._sockets):
                    self._drain(thing, index, limit, batch)
                else:
                    batch.append((index, []))
        except zmq.ZMQError:
            # Errors last: what was received goes out first, and the next call raises.
            if not batch:
                raise
        except BaseException:
            self._kept = batch
            raise
        return batch

    def _drain(self, socket: Any, index: int, limit: int, batch: Batch) -> None:
        recv, get = _recv, _get
        try:
            for _ in range(limit):
                frames = [recv(socket, _LAST)]
                while get(socket, _RCVMORE):
                    frames.append(recv(socket, _LAST))
                batch.append((index, frames))
        except zmq.Again:
            pass
        except zmq.ZMQError:
            raise
        except BaseException:
            while get(socket, _RCVMORE):
                recv(socket, _LAST)
            raise

    def send_many(self, messages: Sequence[tuple[int, Sequence[Sendable]]]) -> list[tuple[int, int]]:
        self._check_open()
        batch = [self._checked(*message) for message in messages]
        refused: list[tuple[int, int]] = []
        # Peers whose pipe was found full: room may come up, but nothing must overtake what was refused.
        full: set[Any] = set()
        send = _send
        for position, (socket, frames) in enumerate(batch):
            if full and _receiver(socket, frames) in full:
                refused.append((position, errno.EAGAIN))
                continue
            last = len(frames) - 1
            at = -1
            try:
                # `at` moves right before its frame is sent: Python itself runs signal handlers after calls
                # and where loops turn, and wherever one raises there, `at` is the last frame that went out.
                while at < last - 1:
                    at += 1
                    send(socket, frames[at], _MORE)
                at = last
                send(socket, frames[at], _LAST)
            except zmq.ZMQError as error:
                refused.append((position, error.errno or errno.EIO))
                if error.errno == errno.EAGAIN and not at:
                    full.add(_receiver(socket, frames))
                if at:
                    _finish(socket, frames, at + 1)
            except BaseException:
                if at >= 0:
                    _finish(socket, frames, at + 1)
                raise
        return refused

    def _checked(self, index: int, frames: Sequence[Sendable]) -> tuple[Any, Sequence[Any]]:
        if not 0 <= index < len(self._sockets):
            raise IndexError(f"there is no socket {index}; the pump has {len(self._sockets)}")
        if not frames:
            raise ValueError("a message needs at least one frame")
        if type(frames) not in _FAST or not _PLAIN.issuperset(map(type, frames)):
            frames = [_settled(frame) for frame in frames]
        return self._sockets[index], frames


def _receiver(socket: Any, frames: Sequence[Any]) -> Any:
    """Who a message is for: the identity on sockets that have many peers, else the socket itself.
    Publications are for nobody in particular, and have no order to keep."""
    kind = socket.get(zmq.TYPE)
    if kind in (zmq.ROUTER, zmq.STREAM):
        return socket, bytes(frames[0])
    return socket if kind in (zmq.DEALER, zmq.PUSH, zmq.PAIR) else object()


def _settled(frame: Sendable) -> Sendable:
    if type(frame) is bytes:
        return frame
    try:
        return memoryview(cast(Any, frame)).cast("B")
    except TypeError:
        raise TypeError(f"a frame must be bytes-like, not {type(frame).__name__}") from None


def _finish(socket: Any, frames: Sequence[Any], at: int) -> None:
    """Send the rest of a message that broke: libzmq drops it up to the frame that ends it."""
    last = len(frames) - 1
    for i in range(at, last + 1):
        try:
            _send(socket, frames[i], _LAST if i == last else _MORE)
        except zmq.ZMQError:
            continue
