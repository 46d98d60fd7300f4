"""SCHEDULE and UNSCHEDULE of eMQP, in the two forms that exist, and the identity of a schedule.

The document has [queue, headers, message] and leaves open where the times are; public clients and
schedulers use [queue, headers, interval seconds, message, cron], where an interval of -1 means "by cron".
Both become one message.  In the document's form the times are looked for in the JSON message, an object or
["run", object], under the names that public clients use, `interval_secs` and `cron`.  `raw`
keeps the frames as they came, so that they can be forwarded to an external scheduler unchanged.

A schedule is known by what it runs, not by when (`identify`): scheduling the same job again replaces its
times, and UNSCHEDULE needs neither an interval nor a queue.  EventMQ's job names its callable, so it is one
job in whatever queue it runs.  Every other message means what the queue's workers make of it, so SCHEDULE
keeps one schedule for each queue, and UNSCHEDULE removes those of all queues.
"""

from __future__ import annotations

import json
from hashlib import sha1
from typing import Any, Final

from msgspec import Struct

from polybus.errors import LocalProtocolError
from polybus.wire.emqp_headers import NO_HEADERS, Headers, read_headers, write_headers
from polybus.wire.frames import (
    EMPTY,
    MAX_NAME_BYTES,
    Frame,
    Frames,
    check_id,
    check_name,
    is_name,
    read_id,
    read_name,
    refuse,
)

# A scheduled message is stored, hashed and parsed as a whole: a larger one belongs somewhere else.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
# 68 years of seconds.
MAX_INTERVAL_S: Final = 2**31 - 1
# Five or six fields; long lists of minutes fit.
MAX_CRON_BYTES: Final = 255

# The six parts that make one job different from another.
_IDENTITY: Final = ("args", "kwargs", "class_args", "class_kwargs", "path", "callable")
# Where a message in the document's form has its times.
_TIMES: Final = ("interval_secs", "cron")


class Schedule(Struct, frozen=True):
    """Client to broker to scheduler: run this again and again.

    Either `interval_s` or `cron` is set, or neither if a message in the document's form does not tell.
    """

    msg_id: bytes
    queue: bytes
    message: bytes
    headers: Headers = NO_HEADERS
    interval_s: int | None = None
    cron: bytes = b""
    raw: tuple[Frame, ...] = ()


class Unschedule(Struct, frozen=True):
    """Client to broker to all schedulers: run this no more.  The queue is empty if it was no name."""

    msg_id: bytes
    queue: bytes
    message: bytes
    headers: Headers = NO_HEADERS
    raw: tuple[Frame, ...] = ()


def read_schedule(frames: Frames, at: int) -> Schedule:
    long = _is_long(frames, at, "SCHEDULE")
    msg_id = read_id(frames[at + 2], "message id")
    queue = read_name(frames[at + 3], "queue name")
    headers = read_headers(frames[at + 4])
    message = _read_message(frames[at + (6 if long else 5)])
    if long:
        interval_s, cron = _read_interval(frames[at + 5]), _read_cron(frames[at + 7])
        if interval_s is None and not cron:
            raise refuse("no_schedule", "SCHEDULE has neither an interval nor a cron text")
    else:
        interval_s, cron = _times_in(message)
    # As in the public scheduler, an interval goes before cron.
    if interval_s is not None:
        cron = EMPTY
    return Schedule(msg_id, queue, message, headers, interval_s, cron, tuple(frames[at:]))


def read_unschedule(frames: Frames, at: int) -> Unschedule:
    long = _is_long(frames, at, "UNSCHEDULE")
    queue = _ignored_queue(frames[at + 3])
    return Unschedule(
        read_id(frames[at + 2], "message id"),
        queue,
        _read_message(frames[at + (6 if long else 5)]),
        read_headers(frames[at + 4]),
        (*frames[at : at + 3], queue, *frames[at + 4 :]),
    )


def _ignored_queue(frame: Frame) -> bytes:
    """The document ignores the queue of UNSCHEDULE, so anything may stand there.

    What is no name is not passed on: public schedulers decode every frame as text.
    """
    return frame if type(frame) is bytes and len(frame) <= MAX_NAME_BYTES and is_name(frame) else EMPTY


def write_schedule(message: Schedule, tag: bytes, document: bool = False) -> list[Frame]:
    """`document` writes the document's form; the times then have to be in the message."""
    _check(message)
    if message.interval_s is not None and not 1 <= message.interval_s <= MAX_INTERVAL_S:
        raise LocalProtocolError(f"interval_s is {message.interval_s}; allowed are 1 to {MAX_INTERVAL_S}")
    if message.interval_s is not None and message.cron:
        raise LocalProtocolError("a schedule has an interval or a cron text, not both")
    if not _is_cron(message.cron):
        raise LocalProtocolError(f"the cron text must be up to {MAX_CRON_BYTES} printable characters")
    head = [tag, b"SCHEDULE", message.msg_id, check_name(message.queue, "queue name")]
    headers = write_headers(message.headers)
    if document or (message.interval_s is None and not message.cron):
        return [*head, headers, message.message]
    interval = b"-1" if message.interval_s is None else b"%d" % message.interval_s
    return [*head, headers, interval, message.message, message.cron]


def write_unschedule(message: Unschedule, tag: bytes, document: bool = False) -> list[Frame]:
    """Public schedulers look for the job in the fourth place, so that is the form but for `document`."""
    _check(message)
    queue = check_name(message.queue, "queue name") if message.queue else EMPTY
    head = [tag, b"UNSCHEDULE", message.msg_id, queue, write_headers(message.headers)]
    return [*head, message.message] if document else [*head, b"-1", message.message, EMPTY]


class Identity(Struct, frozen=True):
    """What makes two schedules the same one."""

    # The job that it runs, without its times.
    job: str
    # The queue, where the same message in another queue is another schedule.
    queue: bytes
    # The key under which a new schedule is kept.
    key: str


def schedule_hash(message: Schedule) -> str:
    """The key of a new schedule: for a public client's job the hash that public schedulers use, too."""
    return identify(message.queue, message.message, message.interval_s, message.cron).key


def identify(queue: bytes, message: bytes, interval_s: float | None, cron: bytes) -> Identity:
    value = _json(message)
    public = _public_hash(value)
    if public:
        return Identity(public, EMPTY, public)
    # Times in a message are those of its schedule only if they are the same: else they belong to the job.
    timeless = _without_times(value) if _tells(value, interval_s, cron) else None
    job = _canonical(value if timeless is None else timeless)
    key = message if timeless is None or job is None else job
    return Identity(_hash(message if job is None else job), queue, _hash_in(queue, key))


def identify_kept(
    key: str, queue: bytes, message: bytes, interval_s: float | None, cron: str
) -> tuple[str, bytes] | None:
    """Job and queue of the identity of a schedule that is kept already; None if its owner chose its key.

    An earlier version kept every schedule of a message that is no public client's job under the hash of its
    queue and all of its bytes; so does the service `polybus.schedule`.
    """
    found = identify(queue, message, interval_s, cron.encode())
    return (found.job, found.queue) if key in (found.key, _hash_in(queue, message)) else None


def jobs_to_remove(message: Unschedule) -> tuple[str, ...]:
    """The jobs that an UNSCHEDULE may mean, the likeliest first.

    It need not tell the times of the schedule, and may tell others: what looks like times in it may also be a
    part of the job.
    """
    value = _json(message.message)
    public = _public_hash(value)
    if public:
        return (public,)
    found = [_canonical(value) or message.message]
    timeless = _without_times(value)
    if timeless is not None:
        found.append(_canonical(timeless) or message.message)
    return tuple(map(_hash, found))


def _public_hash(value: Any) -> str:
    """The hash that public schedulers use; empty if this is not their kind of job."""
    job = value[1] if type(value) is list and len(value) > 1 else None
    if type(job) is dict and all(part in job for part in _IDENTITY):
        text = _canonical({part: job[part] for part in _IDENTITY})
        if text is not None:
            return _hash(text)
    return ""


def _hash(text: bytes) -> str:
    return sha1(text, usedforsecurity=False).hexdigest()


def _hash_in(queue: bytes, text: bytes) -> str:
    # A queue name is printable, so a zero byte keeps ("ab", "c") and ("a", "bc") apart.
    return _hash(queue + b"\0" + text)


def _canonical(value: Any) -> bytes | None:
    """The same bytes for the same JSON list or object; None if the value is something else, or too deep."""
    if type(value) not in (list, dict):
        return None
    try:
        return json.dumps(value, sort_keys=True).encode()
    except RecursionError:
        return None


def _object_in(value: Any) -> dict[str, Any] | None:
    """The object that may have the times: the message itself, or what follows its first word."""
    if type(value) is list and len(value) > 1:
        value = value[1]
    return value if type(value) is dict else None


def _tells(value: Any, interval_s: float | None, cron: bytes) -> bool:
    job = _object_in(value)
    if job is None or not any(name in job for name in _TIMES):
        return False
    if interval_s is not None:
        return bool(job.get("interval_secs") == interval_s)
    return bool(cron) and bool(job.get("cron") == cron.decode())


def _without_times(value: Any) -> Any:
    """The same message without its times; None if it has none."""
    job = _object_in(value)
    if job is None or not any(name in job for name in _TIMES):
        return None
    rest = {name: part for name, part in job.items() if name not in _TIMES}
    return rest if value is job else [value[0], rest, *value[2:]]


def with_times(message: Schedule) -> bytes | None:
    """The message with the times of its schedule in it, as the document's form needs it; None if the message
    is no JSON that could carry them."""
    value = _json(message.message)
    job = _object_in(value)
    if job is None:
        return None
    if _tells(value, message.interval_s, message.cron):
        return message.message
    rest = {name: part for name, part in job.items() if name not in _TIMES}
    if message.interval_s is not None:
        rest["interval_secs"] = message.interval_s
    else:
        rest["cron"] = message.cron.decode()
    try:
        return json.dumps(rest if value is job else [value[0], rest, *value[2:]]).encode()
    except RecursionError:
        return None


def _is_long(frames: Frames, at: int, what: str) -> bool:
    count = len(frames) - at
    if count not in (6, 8):
        raise refuse("length", f"{what} has {count} frames; it takes 6, or 8 with interval and cron")
    return count == 8


def _read_message(frame: Frame) -> bytes:
    if len(frame) <= MAX_MESSAGE_BYTES:
        return bytes(frame)
    raise refuse("too_long", f"a scheduled message has {len(frame)} bytes; allowed are {MAX_MESSAGE_BYTES}")


def _read_interval(frame: Frame) -> int | None:
    if type(frame) is bytes and len(frame) <= 10:
        if frame == b"-1":
            return None
        if frame.isdigit() and 1 <= (interval_s := int(frame)) <= MAX_INTERVAL_S:
            return interval_s
    raise refuse("bad_interval", f"the interval must be -1 or decimal text from 1 to {MAX_INTERVAL_S}")


def _read_cron(frame: Frame) -> bytes:
    if type(frame) is bytes and _is_cron(frame):
        return frame
    raise refuse("bad_cron", f"the cron text must be up to {MAX_CRON_BYTES} printable characters")


def _is_cron(text: bytes) -> bool:
    return len(text) <= MAX_CRON_BYTES and text.isascii() and text.decode().isprintable()


def _times_in(message: bytes) -> tuple[int | None, bytes]:
    job = _object_in(_json(message))
    if job is None:
        return None, EMPTY
    interval_s, cron = job.get("interval_secs"), job.get("cron")
    if interval_s in (None, -1):
        interval_s = None
    elif type(interval_s) is not int or not 1 <= interval_s <= MAX_INTERVAL_S:
        raise refuse("bad_interval", f"interval_secs must be -1 or a number from 1 to {MAX_INTERVAL_S}")
    if cron is not None and type(cron) is not str:
        raise refuse("bad_cron", "cron must be a text")
    try:
        return interval_s, _read_cron((cron or "").encode())
    except UnicodeEncodeError:
        raise refuse("bad_cron", "cron must be a text") from None


def _json(message: bytes) -> Any:
    # The standard library's JSON, because the hash must not differ from a public scheduler's by a byte.
    try:
        return json.loads(message.decode())
    except (ValueError, RecursionError):
        return None


def _check(message: Schedule | Unschedule) -> None:
    check_id(message.msg_id, "message id")
    if len(message.message) > MAX_MESSAGE_BYTES:
        raise LocalProtocolError(
            f"a scheduled message has {len(message.message)} bytes; allowed are {MAX_MESSAGE_BYTES}"
        )
