"""The sockets of a broker: made, bound, and numbered.

A link is one socket with its ear.  Its number is its place in the pump and half of every
peer's address.  High-water marks and the backlog only count if set before bind.
"""

from __future__ import annotations

import errno
from typing import Final

import zmq
from msgspec import Struct

from polybus.config import BrokerSettings, variable
from polybus.dialects.port import Ear
from polybus.errors import ConfigError

# What a subscriber may lag behind before its messages are dropped, counted; if libzmq serves it (XPUB).
PUBLICATIONS_QUEUED: Final = 100_000
# If we serve it (STREAM): pieces in the pipe to it, which may each be 64 KiB (`subscriber.CHUNK_BYTES`); the
# rest waits in the broker, where it can be counted. And pieces from it, each at most 8 KiB.
CHUNKS_QUEUED: Final = 16
CHUNKS_UNREAD: Final = 64


class Link(Struct):
    number: int
    # The setting that says where it is bound (`ebus.frontend`), or its purpose.
    name: str
    socket: zmq.Socket[bytes]
    ear: Ear
    endpoint: str = ""


def make_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, settings: BrokerSettings, frame_bytes: int = -1
) -> zmq.Socket[bytes]:
    """A socket with everything set that counts only before bind; -1 means frames of any size."""
    socket = context.socket(kind)
    socket.linger = 0
    # libzmq itself ends a connection on which more than this is announced, before it is read into memory.
    socket.set(zmq.MAXMSGSIZE, frame_bytes)
    socket.set(zmq.BACKLOG, settings.backlog)
    socket.set(zmq.RCVHWM, settings.pipe_messages)
    socket.set(zmq.SNDHWM, settings.pipe_messages)
    # Peers come and go; a dead TCP connection must not keep its pipe for hours.  The kernel looks after that:
    # libzmq's own heartbeats search all timers of all connections for every answer, which at 10,000
    # connections keeps its thread busy for nothing.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 15)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
    if kind == zmq.ROUTER:
        # A message for a peer that is gone or full is refused, not lost; a peer that comes back
        # with the same identity takes over from its dead connection.
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
    if kind == zmq.XPUB:
        socket.set(zmq.SNDHWM, PUBLICATIONS_QUEUED)
        # Every subscription is seen, and the last end of each; a full subscriber is reported.
        socket.set(zmq.XPUB_VERBOSE, 1)
        socket.set(zmq.XPUB_NODROP, 1)
    if kind == zmq.STREAM:
        socket.set(zmq.SNDHWM, CHUNKS_QUEUED)
        socket.set(zmq.RCVHWM, CHUNKS_UNREAD)
    return socket


def bind(socket: zmq.Socket[bytes], endpoint: str, setting: str) -> str:
    """Bind, and say where it really is (a `*` port is chosen by the system)."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(_why(error, endpoint, setting)) from None
    last = socket.get(zmq.LAST_ENDPOINT)
    return last.decode().rstrip("\0") if isinstance(last, bytes) else str(last)


def _why(error: zmq.ZMQError, endpoint: str, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{endpoint} is in use. Stop the process that has it, or move this one: set {setting} in "
            f"polybus.toml or {variable(setting)} to another port (-1 turns it off). If no process has it, "
            "the system lent it to an outgoing connection: 'polybus doctor' says how to reserve it."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{endpoint} may not be bound by this user. Choose a port above 1023 for {setting}."
    return f"cannot listen on {endpoint} ({setting}): {error}. Check the address."
