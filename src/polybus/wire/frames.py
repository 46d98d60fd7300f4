"""What every dialect shares on the wire: frames, limits, and how bad input is refused.

A message is a sequence of frames.  Header frames are short and always `bytes`; body frames
are opaque and may be large buffers that the pump did not copy, so nothing here looks into
them.  Decoders take the frames and the index `at` where the dialect's own frames begin,
because a broker's frames start with the peer's identity and slicing costs time.

A decoder either returns a message or raises `RemoteProtocolError`.  Nothing else may leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol, TypeVar

from polybus.errors import LocalProtocolError, RemoteProtocolError


class Frame(Protocol):
    """Anything that has a length and can be turned into bytes: `bytes`, or the pump's large frame."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


Frames = Sequence[Frame]

EMPTY: Final = b""

# A name travels in logs, tables and metrics labels: 255 bytes is what ZeroMQ allows an identity too.
MAX_NAME_BYTES: Final = 255
# Ids are opaque, 1 to 255 bytes in every dialect.
MAX_ID_BYTES: Final = 255
# Nobody sends a thousand body frames on purpose; each costs a crossing into libzmq.
MAX_BODY_FRAMES: Final = 1024
# Header lists and catalog entries are read by people and parsed by us: 64 KiB is generous.
MAX_TEXT_BYTES: Final = 64 * 1024


def refuse(reason: str, text: str) -> RemoteProtocolError:
    """The error for bad input, to be raised by the caller (`raise refuse(...)`)."""
    return RemoteProtocolError(reason, text)


def read_name(frame: Frame, what: str) -> bytes:
    """A service, topic or queue name: 1 to 255 bytes of printable UTF-8 text."""
    if type(frame) is bytes and 0 < len(frame) <= MAX_NAME_BYTES:
        if is_name(frame):
            return frame
        raise refuse("bad_name", f"{what} is not printable text: {frame[:40]!r}")
    raise refuse("bad_name", f"{what} is {len(frame)} bytes; allowed are 1 to {MAX_NAME_BYTES}")


def read_id(frame: Frame, what: str = "request id") -> bytes:
    """An opaque id: 1 to 255 bytes."""
    if type(frame) is bytes and 0 < len(frame) <= MAX_ID_BYTES:
        return frame
    raise refuse("bad_id", f"{what} is {len(frame)} bytes; allowed are 1 to {MAX_ID_BYTES}")


def read_text(frame: Frame, what: str) -> bytes:
    """A short text that is parsed further (headers, JSON, numbers): at most 64 KiB, may be empty."""
    if len(frame) <= MAX_TEXT_BYTES:
        return bytes(frame)
    raise refuse("too_long", f"{what} is {len(frame)} bytes; allowed are {MAX_TEXT_BYTES}")


def read_body(frames: Frames, at: int) -> list[Frame]:
    """The body frames from `at` on, as they are."""
    if len(frames) - at > MAX_BODY_FRAMES:
        raise refuse("too_many_frames", f"{len(frames) - at} body frames; allowed are {MAX_BODY_FRAMES}")
    return list(frames[at:])


M = TypeVar("M")


def read_command(table: Mapping[Frame, Callable[[Frames, int], M]], frames: Frames, at: int) -> M:
    """The message whose command is the frame behind the tag at `at`."""
    if len(frames) < at + 2:
        raise refuse("short", f"{len(frames) - at} frames; a command takes 2 or more")
    command = frames[at + 1]
    # A large frame is no command; it is not copied only to say so.
    word = command if type(command) is bytes else EMPTY
    read = table.get(word)
    if read is None:
        raise refuse("unknown_command", f"command {word[:16]!r} of {len(command)} bytes is not known here")
    return read(frames, at)


def check_name(name: bytes, what: str) -> bytes:
    """The same rule for what we send ourselves."""
    try:
        return read_name(name, what)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None


def check_id(value: bytes, what: str = "request id") -> bytes:
    """The same rule for what we send ourselves."""
    try:
        return read_id(value, what)
    except RemoteProtocolError as error:
        raise LocalProtocolError(str(error)) from None


@lru_cache(maxsize=4096)
def is_name(frame: bytes) -> bool:
    """Whether it is printable UTF-8 text of a name's length. The same few names come again and again."""
    try:
        return 0 < len(frame) <= MAX_NAME_BYTES and frame.decode("utf-8").isprintable()
    except UnicodeDecodeError:
        return False
