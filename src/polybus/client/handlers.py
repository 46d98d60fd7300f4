"""What a worker runs: the request object, and how functions become handlers.

A handler takes a `Request` and returns the answer: bytes, a list of bytes (several frames), or None (an
empty answer).  A generator yields pieces of the answer and returns its end.  An exception is a failure
with its text; `WorkerRejected` refuses the request.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from polybus.client.sessions.port import Work
from polybus.errors import LocalProtocolError
from polybus.wire.frames import Frame

Answer = bytes | list[bytes] | None
Handler = Callable[["Request"], Answer | Generator[bytes | list[bytes], None, Answer]]
AsyncHandler = Callable[["Request"], Awaitable[Answer] | Any]


class Request:
    """What a handler gets: a body, and who asked for what."""

    __slots__ = ("_expires_at", "_frames", "cancelled", "line", "request_id", "token", "work")

    def __init__(self, work: Work, line: int, now: float) -> None:
        self.work = work
        self.line = line
        self.token = work.token
        self._frames = work.body
        self.request_id = work.request_id
        self._expires_at = None if work.ttl_s is None else now + work.ttl_s
        #: True as soon as nobody waits for the answer any more; a long handler may look at it now and then.
        self.cancelled = False

    @property
    def service(self) -> str:
        return self.work.service.decode()

    @property
    def body(self) -> bytes:
        """The body, if it is one frame."""
        frames = self._frames
        if len(frames) == 1:
            frame = frames[0]
            return frame if type(frame) is bytes else bytes(frame)
        if not frames:
            return b""
        raise LocalProtocolError(f"the request has {len(frames)} body frames; the handler takes one")

    @property
    def frames(self) -> list[bytes]:
        """All frames of the body."""
        return [frame if type(frame) is bytes else bytes(frame) for frame in self._frames]

    @property
    def expires_in_s(self) -> float | None:
        """How long somebody will wait for the answer; None if the dialect does not say."""
        return None if self._expires_at is None else self._expires_at - time.monotonic()

    def __repr__(self) -> str:
        return f"<Request {self.request_id!r} for {self.service}>"


def answer_frames(answer: object) -> list[Frame]:
    """What a handler returned, as frames."""
    if type(answer) is bytes:
        return [answer]
    if answer is None:
        # No information at all; each dialect has its own way to say so.
        return []
    if isinstance(answer, bytes | bytearray | memoryview):
        return [bytes(answer)]
    if isinstance(answer, list | tuple) and answer and all(isinstance(frame, bytes) for frame in answer):
        return list(answer)
    raise LocalProtocolError(
        f"a handler returns bytes, a list of bytes or None, not {type(answer).__name__}; encode it first"
    )


def failure_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def takes_request(function: Callable[..., Any]) -> bool:
    """Does a function want the whole `Request`, by the annotation or name of its first parameter?"""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if not parameters:
        raise LocalProtocolError(f"{function!r} takes no argument; a handler takes the body or the request")
    first = parameters[0]
    annotation = first.annotation
    if annotation is inspect.Parameter.empty:
        return first.name in ("request", "req")
    # Postponed annotations are text.
    name = annotation.rpartition(".")[2] if isinstance(annotation, str) else annotation
    return name is Request or name == "Request"
