"""The service `lvc`, by which clients of every dialect ask for last values.

The body is a topic, and the answer is the newest body that was published there; or it is JSON,
`{"prefix": "…"}`, and the answer is the list of the topics that begin so.  A worker that offers a service of
this name takes its place: the name was free before there were last values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from polybus.core.actions import Accept, Answer, Refuse
from polybus.core.model import Address, Body, JobOptions, Reason

if TYPE_CHECKING:
    from polybus.core.bus import Bus

# A name in a message of errors is shown so far.
SHOWN_BYTES: Final = 100


class _Question(Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str


_read = msgspec.json.Decoder(_Question).decode


def receive(
    bus: Bus,
    client: Address,
    voice: Any,
    request_id: bytes,
    service: bytes,
    body: Body,
    options: JobOptions,
    receipt: bool,
    now: float,
) -> None:
    """A request for the service."""
    found = answer(bus, b"".join(bytes(frame) for frame in body))
    if isinstance(found, str):
        bus.counters.rejected += 1
        reason = Reason.UNKNOWN_TOPIC
        bus.actions.append(Refuse(client, voice, service, request_id, reason, found, []))
        return
    if receipt:
        bus.actions.append(Accept(client, voice, service, request_id))
    if options.reply_requested:
        bus.actions.append(Answer(client, voice, service, request_id, found))


def answer(bus: Bus, asked: bytes) -> Body | str:
    """The frames of the answer, or why there is none."""
    value = bus.last.get(asked)
    if value is not None:
        # A body of no frames is an answer of one that is empty.
        return value.body or [b""]
    try:
        prefix = _read(asked).prefix
    except (msgspec.DecodeError, UnicodeDecodeError):
        topic = asked[:SHOWN_BYTES].decode(errors="replace")
        if not bus.last.count:
            return f"no value of {topic!r}: this broker keeps no last values (last_values.enabled)"
        return f"nothing was published on {topic!r}, or its value had to give way to newer ones"
    topics = [topic.decode(errors="replace") for topic in bus.last.topics(prefix.encode())]
    return [msgspec.json.encode(topics)]
