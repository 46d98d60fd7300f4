"""The pump: whole batches of messages between libzmq and Python.

What a broker written in Python spends is not its logic but the crossings: one call into pyzmq for
every frame, several for every message.  So there is one place that crosses, and it takes everything
that is there: `recv_many` returns all waiting messages of all sockets, `send_many` sends a list.

There are two pumps behind one interface.  `CompiledPump` (Cython) does a whole batch in one call and
does not copy large frames; `PyzmqPump`, its twin, needs no C compiler, passes the same tests and is
several times slower.  `open_pump` takes the best that is there, `pump_report` says which and why.

What both promise:

- Neither call loses a message in silence.  A message that could not be sent is reported with libzmq's
  errno: EAGAIN says that the peer's queue is full, EHOSTUNREACH (from a ROUTER with ROUTER_MANDATORY)
  that the peer is gone.  High-water marks count only if they were set before bind or connect.
- `send_many` never waits, and looks at the whole batch before it sends any of it: TypeError, IndexError
  and ValueError mean that nothing was sent.
- Messages to one peer keep their order: after one that found the peer's pipe full, `send_many` refuses the
  peer's further ones, too, even if there is room again.
- Messages of one socket are received in order.  The socket that is read first changes with every call, and
  none gives more than `limit` messages a call, so a busy one does not starve the others.
- A closed socket raises `zmq.ZMQError` (ENOTSOCK), a terminated context `zmq.ContextTerminated`.
- A pump belongs to the thread that uses its sockets.

Signals: a handler that raises ends a waiting `recv_many` with its exception.  One that returns may end
the wait early or not (pyzmq resumes it), and the system may give the signal to another thread, which
wakes nobody here.  A loop that must notice signals gives the pump the reading end of
`signal.set_wakeup_fd` among its `fds`.  The compiled pump runs handlers only when it holds no message; in
the twin one that raises can cost the message at hand (see there), so long-lived loops use handlers that
return.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import zmq

from polybus.errors import ConfigError
from polybus.server.pump_twin import PyzmqPump
from polybus.wire.frames import Frame

Batch: TypeAlias = list[tuple[int, list[Frame]]]
# Received frames can be sent on as they are; bytearray and memoryview are copied.
Sendable: TypeAlias = Frame | bytearray | memoryview

ENVIRONMENT: Final = "POLYBUS_PUMP"
COMPILED: Final = "compiled"
PYZMQ: Final = "pyzmq"

_ADVICE: Final = "install a C compiler and reinstall polybus to get about five times the throughput"


class Pump(Protocol):
    """Batch input and output over some sockets and raw file descriptors."""

    @property
    def kind(self) -> str:
        """`compiled` or `pyzmq`."""

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> Batch:
        """All waiting messages as `(index of the socket, frames)`, at most `limit` per socket.

        Waits up to `timeout_ms` (-1: for ever) only when there is nothing; may return an empty list.
        Frames of 8 KiB and more may be buffers that were not copied.  A readable fd number k is reported
        as `(len(sockets) + k, [])`; its owner reads it.
        """

    def send_many(self, messages: Sequence[tuple[int, Sequence[Sendable]]]) -> list[tuple[int, int]]:
        """Send each message whole or not at all; returns `(position, errno)` of those that did not go."""

    def close(self) -> None:
        """Let go of what the pump itself holds; it is of no use afterwards. The sockets stay as they are."""

    def suspect(self, index: int) -> None:
        """A socket was used without the pump (connected, set), which may hide that something came in."""


def open_pump(sockets: Sequence[zmq.Socket[bytes]], fds: Sequence[int] = (), kind: str | None = None) -> Pump:
    """The pump for these sockets: `kind`, else what POLYBUS_PUMP says, else the best there is."""
    wanted = _wanted(kind)
    if wanted != PYZMQ:
        try:
            from polybus.server._pump import CompiledPump
        except ImportError as error:
            if wanted == COMPILED:
                raise ConfigError(
                    f"the compiled pump was asked for, but {_why_not(error)}; "
                    f'{_ADVICE}, or choose "{PYZMQ}" (or nothing) instead'
                ) from error
        else:
            return CompiledPump(sockets, fds)
    return PyzmqPump(sockets, fds)


def pump_report() -> tuple[str, str]:
    """The kind of pump that `open_pump` would take now, and a sentence that says why."""
    wanted = _wanted(None)
    if wanted == PYZMQ:
        return PYZMQ, f"{ENVIRONMENT} asks for it; unset it to use the compiled pump if there is one"
    try:
        import polybus.server._pump  # noqa: F401
    except ImportError as error:
        return PYZMQ, f"{_why_not(error)}; {_ADVICE}"
    return COMPILED, f"it is installed and works with libzmq {zmq.zmq_version()}"


def _wanted(kind: str | None) -> str | None:
    if kind is None:
        kind = os.environ.get(ENVIRONMENT) or None
    if kind not in (None, COMPILED, PYZMQ):
        raise ConfigError(f'{ENVIRONMENT} is {kind!r}; it takes "{COMPILED}" or "{PYZMQ}", or nothing')
    return kind


def _why_not(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "it was not built when polybus was installed, most often because there was no C compiler"
    return f"it cannot be loaded ({error})"
