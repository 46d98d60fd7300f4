"""ZMTP 3, the protocol below ZeroMQ's messages, as a broker needs it that speaks to subscribers itself.

    greeting       64 bytes from either side: signature, version, mechanism
    READY          a command from either side, which names the type of its socket
    traffic        frames: flags, length, content; messages are one frame or more, commands exactly one

A subscriber says what it wants with the commands SUBSCRIBE and CANCEL (3.1), or with messages of one frame
that begin with a byte of 1 or 0 (3.0).  Only the mechanism NULL is spoken.

`Parser` takes bytes as they come and gives out what they say, one by one.  Whoever asks decides how fast:
what was not asked for stays unread.  What cannot be read raises `RemoteProtocolError`, and then the
connection is beyond repair, because nobody knows where the next frame begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from polybus.wire.frames import Frame, refuse

# The first byte and the tenth are the signature; the eight between them once were a length.
_FIRST: Final = 0xFF
_TENTH: Final = 0x7F
_VERSION: Final = b"\x03\x01"
_NULL: Final = b"NULL".ljust(20, b"\0")
GREETING_BYTES: Final = 64
GREETING: Final = bytes((_FIRST, *bytes(8), _TENTH)) + _VERSION + _NULL + bytes(32)

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_FLAGS: Final = MORE | LONG | COMMAND
_SHORTEST_LONG: Final = 256

# Metadata of a handshake is a few dozen bytes, a subscription at most a name: whoever announces more is no
# subscriber.
MAX_FRAME_BYTES: Final = 16 * 1024
# A PING's time to live is in tenths of a second; its context comes back in the PONG.
_TTL_BYTES: Final = 2
_TTL_S: Final = 0.1
MAX_CONTEXT_BYTES: Final = 16
MAX_REASON_BYTES: Final = 255


# -- what a peer may say ----------------------------------------------------------------------


class Greeted(Struct, frozen=True):
    """Its greeting is whole; now it may be told what we are."""

    minor: int


class Ready(Struct, frozen=True):
    """The end of its handshake."""

    socket_type: bytes


class Subscription(Struct, frozen=True):
    """It wants what begins with `prefix`, or no longer wants it."""

    wanted: bool
    prefix: bytes


class Ping(Struct, frozen=True):
    """It wants a PONG; if there is a `ttl_s`, we may give it up when it is silent for longer."""

    ttl_s: float
    context: bytes


class Pong(Struct, frozen=True):
    """An answer to a PING."""


class Failed(Struct, frozen=True):
    """It does not want to go on."""

    reason: str


class Stray(Struct, frozen=True):
    """A message or command that says nothing to us; the next one may."""

    detail: str


Said = Greeted | Ready | Subscription | Ping | Pong | Failed | Stray


# -- writing ----------------------------------------------------------------------------------

# Heads of short frames by length: those that more frames follow, and those that are the last.
_MORE: Final = tuple(bytes((MORE, size)) for size in range(_SHORTEST_LONG))
_LAST: Final = tuple(bytes((0, size)) for size in range(_SHORTEST_LONG))


def write_message(frames: Sequence[Frame]) -> bytes:
    """One message of all these frames."""
    parts: list[bytes] = []
    last = len(frames) - 1
    for position, frame in enumerate(frames):
        data = frame if type(frame) is bytes else bytes(frame)
        size = len(data)
        if size < _SHORTEST_LONG:
            parts.append(_LAST[size] if position == last else _MORE[size])
        else:
            parts.append(_long_head(0 if position == last else MORE, size))
        parts.append(data)
    return b"".join(parts)


def _long_head(flags: int, size: int) -> bytes:
    return bytes((flags | LONG,)) + size.to_bytes(8, "big")


def _write_command(name: bytes, body: bytes) -> bytes:
    data = bytes((len(name),)) + name + body
    size = len(data)
    head = bytes((COMMAND, size)) if size < _SHORTEST_LONG else _long_head(COMMAND, size)
    return head + data


def write_ready(socket_type: bytes) -> bytes:
    return _write_command(b"READY", _property(b"Socket-Type", socket_type))


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def write_pong(context: bytes) -> bytes:
    return _write_command(b"PONG", context)


def write_ping(ttl_s: float, context: bytes = b"") -> bytes:
    return _write_command(b"PING", round(ttl_s / _TTL_S).to_bytes(_TTL_BYTES, "big") + context)


def write_error(reason: str) -> bytes:
    text = reason.encode("ascii", "replace")[:MAX_REASON_BYTES]
    return _write_command(b"ERROR", bytes((len(text),)) + text)


def write_subscription(wanted: bool, prefix: bytes) -> bytes:
    """As ZMTP 3.1 has it."""
    return _write_command(b"SUBSCRIBE" if wanted else b"CANCEL", prefix)


# -- reading ----------------------------------------------------------------------------------


class Parser:
    """What one peer says, from its first byte on."""

    __slots__ = ("_at", "_data", "_in_message", "_step")

    def __init__(self) -> None:
        self._data = bytearray()
        # How far it is read.
        self._at = 0
        self._step: Callable[[Parser], Said | None] = Parser._greeting
        # Whether the frames to come still belong to a message that says nothing to us.
        self._in_message = False

    @property
    def unread(self) -> int:
        """How many bytes have not been asked for."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data):
            self._data.clear()
            self._at = 0
        self._data += data

    def next(self) -> Said | None:
        """What it says next, or None until there is more of it."""
        said = self._step(self)
        if said is None and self._at:
            del self._data[: self._at]
            self._at = 0
        return said

    def _greeting(self) -> Said | None:
        data = self._data
        # As early as possible: whoever speaks something else may wait for our answer to it.
        if data and data[0] != _FIRST:
            raise refuse("no_zmtp", f"it begins with the byte {data[0]:#04x}: this is no ZeroMQ peer")
        if len(data) > 9 and not data[9] & 1:
            raise refuse("old_zmtp", "it speaks ZMTP 1; version 3 is needed (libzmq 4)")
        if len(data) > 10 and data[10] < _VERSION[0]:
            raise refuse("old_zmtp", f"it speaks ZMTP {data[10]}; version 3 is needed (libzmq 4)")
        if len(data) < GREETING_BYTES:
            return None
        mechanism = bytes(data[12:32])
        if mechanism != _NULL:
            name = mechanism.rstrip(b"\0")
            raise refuse("mechanism", f"its security mechanism is {name!r}; only NULL is spoken here")
        self._at = GREETING_BYTES
        self._step = Parser._handshake
        return Greeted(data[11])

    def _handshake(self) -> Said | None:
        found = self._frame()
        if found is None:
            return None
        flags, content = found
        name, body = _split(content) if flags & COMMAND else (b"", b"")
        if name == b"ERROR":
            return _read_error(body)
        if name != b"READY":
            raise refuse("handshake", f"READY was expected, and {content[:16]!r} came")
        self._step = Parser._traffic
        return Ready(_read_metadata(body).get(b"socket-type", b""))

    def _traffic(self) -> Said | None:
        while True:
            found = self._frame()
            if found is None:
                return None
            flags, content = found
            if flags & COMMAND:
                name, body = _split(content)
                read = _COMMANDS.get(name)
                return Stray(f"the command {name[:16]!r} is not known") if read is None else read(body)
            if self._in_message:
                self._in_message = bool(flags & MORE)
                continue
            self._in_message = bool(flags & MORE)
            if self._in_message:
                return Stray("a message of several frames is no subscription")
            if content[:1] in (b"\0", b"\1"):
                return Subscription(content[0] == 1, content[1:])
            return Stray(f"a message that begins with {content[:1]!r} is no subscription")

    def _frame(self) -> tuple[int, bytes] | None:
        """Flags and content of the next frame, if it is whole."""
        data, at = self._data, self._at
        have = len(data) - at
        if have < 2:
            return None
        flags = data[at]
        if flags & ~_FLAGS or (flags & COMMAND and flags & MORE):
            raise refuse("flags", f"no frame has the flags {flags:#04x}")
        if flags & LONG:
            if have < 9:
                return None
            begin, size = at + 9, int.from_bytes(data[at + 1 : at + 9], "big")
        else:
            begin, size = at + 2, data[at + 1]
        if size > MAX_FRAME_BYTES:
            raise refuse("too_long", f"a frame of {size} bytes; subscribers have no use for more than 16 KiB")
        end = begin + size
        if end > len(data):
            return None
        self._at = end
        return flags, bytes(data[begin:end])


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Name and body of a command."""
    if not content or not content[0] or len(content) <= content[0]:
        raise refuse("command", f"{content[:16]!r} is no command")
    end = 1 + content[0]
    return content[1:end], content[end:]


def _read_metadata(data: bytes) -> dict[bytes, bytes]:
    """Properties by their names, which are the same in capitals and small letters."""
    found = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_at = name_end + 4
        end = value_at + int.from_bytes(data[name_end:value_at], "big")
        if data[at] == 0 or end > len(data):
            raise refuse("metadata", "its properties do not end where they should")
        found[data[at + 1 : name_end].lower()] = data[value_at:end]
        at = end
    return found


def _read_ping(body: bytes) -> Ping:
    if not _TTL_BYTES <= len(body) <= _TTL_BYTES + MAX_CONTEXT_BYTES:
        raise refuse("command", f"a PING has {len(body)} bytes")
    return Ping(int.from_bytes(body[:_TTL_BYTES], "big") * _TTL_S, body[_TTL_BYTES:])


def _read_error(body: bytes) -> Failed:
    return Failed(body[1 : 1 + body[0]].decode("ascii", "replace") if body else "")


_COMMANDS: Final[dict[bytes, Callable[[bytes], Said]]] = {
    b"SUBSCRIBE": lambda body: Subscription(True, body),
    b"CANCEL": lambda body: Subscription(False, body),
    b"PING": _read_ping,
    b"PONG": lambda _: Pong(),
    b"ERROR": _read_error,
}
