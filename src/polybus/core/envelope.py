"""What a client of any dialect sends to the built-in services: jobs with options, as JSON.

Most dialects have no room for job options, so they travel in the body: one line of JSON, a line feed, then
the body of the job.  Many jobs travel in one message if that line is a list; their bodies follow one after
the other, each as long as its entry says.  Unknown fields are refused, because a misspelt option would be
a promise not kept.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from polybus.core.model import JobOptions

MAX_HEAD_BYTES: Final = 16 * 1024 * 1024
USUAL_OPTIONS: Final = 1024
# As on the wire (`wire.frames`), where every worker says what it offers.
MAX_NAME_BYTES: Final = 255
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]
JobId = Annotated[str, Meta(min_length=1, max_length=200)]
Retries = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=10 * 31_536_000)]


class BadEnvelope(Exception):
    """What a client sent is no job; the text says why."""


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One job of a chain or a group."""

    service: Name
    body: str = ""
    guarantee: bool = True
    retries: Retries = 0
    timeout_s: Seconds = 0.0
    backoff_s: Seconds | None = None


class Submission(Struct, frozen=True, forbid_unknown_fields=True):
    """A job, or a group of them, and what is asked for besides."""

    service: Name | None = None
    group: tuple[JobSpec, ...] = ()
    id: JobId | None = None
    guarantee: bool = True
    retries: Retries = 0
    timeout_s: Seconds = 0.0
    backoff_s: Seconds | None = None
    delay_s: Seconds = 0.0
    ttl_s: Seconds | None = None
    reply: Literal["receipt", "result"] = "receipt"
    then: tuple[JobSpec, ...] = ()


class Listed(Submission, frozen=True, forbid_unknown_fields=True):
    """One job of several in a message."""

    # How many bytes its body has.
    size: Annotated[int, Meta(ge=0)] = 0


_SUBMISSION: Final = msgspec.json.Decoder(Submission)
_LIST: Final = msgspec.json.Decoder(list[Listed])
_SPEC: Final = msgspec.msgpack.Decoder(JobSpec)
_ENCODER: Final = msgspec.msgpack.Encoder()


def read_submission(body: list[Any]) -> tuple[Submission, list[bytes]]:
    """The head of an envelope, and the body of the job: what follows its first line, and further frames."""
    if not body:
        raise BadEnvelope("the body is empty; send one line of JSON, a line feed, and the body of the job")
    first = bytes(body[0])
    head, _, rest = first.partition(b"\n")
    if len(head) > MAX_HEAD_BYTES:
        raise BadEnvelope(f"the JSON has {len(head)} bytes; allowed are {MAX_HEAD_BYTES}")
    try:
        submission = _SUBMISSION.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEnvelope(f"the first line is no job in JSON: {error}") from None
    frames = [rest, *(bytes(frame) for frame in body[1:])]
    check(submission, frames)
    return submission, frames


def check(submission: Submission, frames: list[bytes]) -> None:
    """Whether the parts of a submission go together."""
    if bool(submission.group) == (submission.service is not None):
        raise BadEnvelope("name either a 'service' or a 'group' of jobs")
    if submission.group and (frames[0] or len(frames) > 1):
        raise BadEnvelope("a group has no body of its own: each of its jobs has one")


def is_list(body: list[Any]) -> bool:
    """Whether there are many jobs in it."""
    return len(body) == 1 and bytes(memoryview(body[0])[:1]) == b"["


def read_list(body: list[Any]) -> list[tuple[Listed, list[bytes]]]:
    """The jobs of a message that has many, each with its body."""
    whole = bytes(body[0])
    head, _, bodies = whole.partition(b"\n")
    if len(head) > MAX_HEAD_BYTES:
        raise BadEnvelope(f"the JSON has {len(head)} bytes; allowed are {MAX_HEAD_BYTES}")
    try:
        heads = _LIST.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEnvelope(f"the first line is no list of jobs in JSON: {error}") from None
    parts: list[tuple[Listed, list[bytes]]] = []
    at = 0
    for one in heads:
        if one.size > len(bodies) - at:
            raise BadEnvelope(f"a job should have {one.size} bytes, but {len(bodies) - at} are left")
        parts.append((one, [bodies[at : at + one.size]]))
        at += one.size
    if not parts:
        raise BadEnvelope("the list has no jobs")
    if at != len(bodies):
        raise BadEnvelope(f"the sizes of the jobs add up to {at} bytes, but {len(bodies)} follow")
    return parts


_last_name = ""
_last_encoded = b""


def encoded(name: str) -> bytes:
    """A name as the bus knows it. Jobs come in rows for one service, whose name is hashed once then."""
    global _last_name, _last_encoded
    if name != _last_name:
        _last_name, _last_encoded = name, name.encode()
    return _last_encoded


def is_name(name: str) -> bool:
    """Whether all dialects take it for the name of a service: printable text of 1 to 255 bytes."""
    return 0 < len(encoded(name)) <= MAX_NAME_BYTES and name.isprintable()


_usual_options: Final[dict[Any, JobOptions]] = {}


def options_of(spec: Submission | JobSpec, then: tuple[bytes, ...], group: bytes = b"") -> JobOptions:
    if then or group:
        return _new_options(spec, then, group)
    # Nearly all jobs have one of a few sets of options, and whoever gets them again knows them at sight.
    if (
        spec.guarantee
        and spec.backoff_s is None
        and spec.retries is _JOB.retries
        and spec.timeout_s is _JOB.timeout_s
    ):
        return _JOB_OPTIONS
    asked = (spec.guarantee, spec.retries, spec.timeout_s, spec.backoff_s)
    options = _usual_options.get(asked)
    if options is None:
        if len(_usual_options) >= USUAL_OPTIONS:
            _usual_options.clear()
        options = _usual_options[asked] = _new_options(spec, then, group)
    return options


def _new_options(spec: Submission | JobSpec, then: tuple[bytes, ...], group: bytes) -> JobOptions:
    return JobOptions(
        reply_requested=True,
        guarantee=spec.guarantee,
        retries=spec.retries,
        timeout_s=spec.timeout_s,
        backoff_s=spec.backoff_s,
        then=then,
        group=group,
    )


# What a job has if nothing is said. Fields that are not there are given these very objects.
_JOB: Final = Submission()
_JOB_OPTIONS: Final = _new_options(_JOB, (), b"")


def write_spec(spec: JobSpec) -> bytes:
    return _ENCODER.encode(spec)


def read_spec(data: bytes) -> JobSpec:
    return _SPEC.decode(data)


def with_result(body: str, result: list[bytes]) -> list[bytes]:
    """The body of a job that follows another: the result goes in front of its arguments, or is its body."""
    before = result[0] if len(result) == 1 else b"".join(result)
    if not body:
        return [before]
    try:
        message = msgspec.json.decode(body)
        job = message[1]
        value = msgspec.json.decode(before) if before else None
        job["args"] = [value, *job.get("args", ())]
        return [msgspec.json.encode(message)]
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        # No job message, or a result that is no JSON: then the body says all there is to say.
        return [body.encode()]
