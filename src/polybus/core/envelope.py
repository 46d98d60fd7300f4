"""What a client of any dialect sends to the built-in services: jobs with options, as JSON.

Most dialects have no room for job options, so they travel in the body: one line of JSON, a line feed, then
the body of the job.  Unknown fields are refused, because a misspelt option would be a promise not kept.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from polybus.core.model import JobOptions

MAX_HEAD_BYTES: Final = 16 * 1024 * 1024
Name = Annotated[str, Meta(min_length=1, max_length=255)]
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


_SUBMISSION: Final = msgspec.json.Decoder(Submission)
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
    if bool(submission.group) == (submission.service is not None):
        raise BadEnvelope("name either a 'service' or a 'group' of jobs")
    if submission.group and (rest or len(body) > 1):
        raise BadEnvelope("a group has no body of its own: each of its jobs has one")
    return submission, [rest, *(bytes(frame) for frame in body[1:])]


def options_of(spec: Submission | JobSpec, then: tuple[bytes, ...], group: bytes = b"") -> JobOptions:
    return JobOptions(
        reply_requested=True,
        guarantee=spec.guarantee,
        retries=spec.retries,
        timeout_s=spec.timeout_s,
        backoff_s=spec.backoff_s,
        then=then,
        group=group,
    )


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
