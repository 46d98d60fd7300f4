"""Frames of clients in every dialect, without the library's sessions: they count what the library would
swallow.

A session of the library takes one answer for a request and drops the second in silence, as it should.
Here every answer is told, so that a second one can be counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from polybus.client.failures import read_failure
from polybus.wire import dbp, ebus, emqp, mdp1, mdp2, mdr
from polybus.wire.dbp_info import read_error
from polybus.wire.frames import EMPTY, Frame

# Longer than a whole run: the broker must not give up a request before its producer does.
TTL_MS: Final = 3_600_000
JOB_HEADERS: Final = emqp.Headers(reply_requested=True, guarantee=True, retry_count=5)
CALL_HEADERS: Final = emqp.Headers(reply_requested=True)


class Heard(NamedTuple):
    """What the broker said. Dialects without request ids leave theirs empty."""

    what: Literal["receipt", "part", "final", "other"]
    request_id: bytes = b""
    body: bytes = b""
    error: str = ""


OTHER: Final = Heard("other")


class Dialect(NamedTuple):
    """How a client asks, and how it reads what comes back (without the empty first frame)."""

    write: Callable[[bytes, bytes, bytes, bool], list[Frame]]
    read: Callable[[Sequence[Frame]], Heard]
    has_ids: bool


def _final(request_id: bytes, body: Sequence[Frame]) -> Heard:
    failure = read_failure(body)
    text = b"".join(bytes(frame) for frame in body)
    return Heard("final", request_id, text, "" if failure is None else failure[0])


def write_ebus(service: bytes, request_id: bytes, body: bytes, is_job: bool) -> list[Frame]:
    return [EMPTY, *ebus.write_from_client(ebus.Request(service, request_id, [body], TTL_MS))]


def read_ebus(frames: Sequence[Frame]) -> Heard:
    message = ebus.read_as_client(frames)
    match message:
        case ebus.Reply(request_id, body):
            return _final(request_id, body)
        case ebus.Reject(request_id, body):
            text = b"".join(bytes(frame) for frame in body)
            return Heard(
                "final", request_id, text, text.decode(errors="replace").partition(":")[0] or "expired"
            )
    return OTHER


def write_emqp(service: bytes, request_id: bytes, body: bytes, is_job: bool) -> list[Frame]:
    headers = JOB_HEADERS if is_job else CALL_HEADERS
    return [EMPTY, *emqp.write_from_client(emqp.Request(request_id, service, headers, [body]))]


def read_emqp(frames: Sequence[Frame]) -> Heard:
    message = emqp.read_as_client(frames)
    if not isinstance(message, emqp.Reply):
        return OTHER
    if message.original_id:
        return _final(message.original_id, message.body)
    return Heard("receipt", emqp.receipt_of(message))


def write_mdr(service: bytes, request_id: bytes, body: bytes, is_job: bool) -> list[Frame]:
    return mdr.write_from_client(mdr.Request(service, request_id, [body]))


def read_mdr(frames: Sequence[Frame]) -> Heard:
    message = mdr.read_as_client(frames)
    if isinstance(message, mdr.FinalReply):
        return _final(message.request_id, message.body)
    return Heard("part", message.request_id)


def write_mdp1(service: bytes, request_id: bytes, body: bytes, is_job: bool) -> list[Frame]:
    return [EMPTY, *mdp1.write_from_client(mdp2.Request(service, [body]))]


def read_mdp1(frames: Sequence[Frame]) -> Heard:
    return _final(b"", mdp1.read_as_client(frames).body)


def write_mdp2(service: bytes, request_id: bytes, body: bytes, is_job: bool) -> list[Frame]:
    return mdp2.write_from_client(mdp2.Request(service, [body]))


def read_mdp2(frames: Sequence[Frame]) -> Heard:
    message = mdp2.read_as_client(frames)
    return _final(b"", message.body) if isinstance(message, mdp2.FinalReply) else Heard("part")


def write_dbp(service: bytes, request_id: bytes, body: bytes, is_job: bool) -> list[Frame]:
    return [EMPTY, *dbp.write_from_node(dbp.Call(service, [body]), time.time())]


def read_dbp(frames: Sequence[Frame]) -> Heard:
    message = dbp.read_as_node(frames)
    if not isinstance(message, dbp.Answer):
        return OTHER
    error = read_error(message.body)
    text = b"".join(bytes(frame) for frame in message.body)
    return Heard("final", b"", text, "" if error is None else error.partition(":")[0])


DIALECTS: Final = {
    "ebus": Dialect(write_ebus, read_ebus, True),
    "emqp": Dialect(write_emqp, read_emqp, True),
    "mdp1": Dialect(write_mdp1, read_mdp1, False),
    "mdp2": Dialect(write_mdp2, read_mdp2, False),
    "mdr": Dialect(write_mdr, read_mdr, True),
    "dbp": Dialect(write_dbp, read_dbp, False),
}


def hear(dialect: Dialect, frames: list[bytes]) -> Heard:
    """Read a message as it came from the socket."""
    return dialect.read(frames[1:] if frames and not frames[0] else frames)
