"""What is asked of the broker about jobs, and what its answers mean: bytes in, bytes out, nothing waits.

The broker has built-in services for jobs (`polybus.submit` and the others below) that every dialect can
call.  A plan is one operation as a generator: it yields questions, gets the answers sent in (or the errors
thrown in), and returns what the operation is worth.  `desk` runs plans for threads, `aio_jobs` for
asyncio, `polybus.testing` in virtual time; none of them knows what the questions mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

import msgspec
from msgspec import Struct

from polybus.errors import (
    ConfigError,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobRefused,
    JobUnconfirmed,
    LocalProtocolError,
    RequestFailed,
    RequestTimeout,
    ResultTimeout,
    UnknownJob,
)
from polybus.wire.frames import is_name

SUBMIT: Final = b"polybus.submit"
RESULT: Final = b"polybus.result"
CANCEL: Final = b"polybus.cancel"
JOB: Final = b"polybus.job"
SCHEDULE: Final = b"polybus.schedule"
RESERVED: Final = ("polybus.", "mmi.")

# More would not end in anybody's lifetime; with it, a mistyped number is found here.
MOST_RETRIES: Final = 10_000
MOST_SECONDS: Final = 31_536_000.0
# An id has 255 bytes at most; this leaves room for what is made from it, such as the members of a group.
MAX_JOB_ID_BYTES: Final = 200
# The states of a job that is over and has no result.
CANCELLED, EXPIRED, FAILED = "cancelled", "expired", "failed"
UNKNOWN_JOB: Final = "unknown_job"

T = TypeVar("T")
_encode: Final = msgspec.json.Encoder().encode


class Question(NamedTuple):
    """Ask this of that service and wait so long at most."""

    service: bytes
    body: bytes
    timeout_s: float


Plan = Generator[Question, bytes, T]


class JobSettings(TypedDict, total=False):
    """How a job is run; each call of it may say otherwise."""

    queue: str
    retries: int
    timeout_s: float
    guarantee: bool
    backoff_s: float


class Settings(Struct, frozen=True):
    """The same, complete. None means that the broker decides, by its configuration of the queue."""

    queue: str = "default"
    guarantee: bool = True
    retries: int | None = None
    timeout_s: float | None = None
    backoff_s: float | None = None


# -- what is submitted ------------------------------------------------------------------------


class Spec(Struct, omit_defaults=True):
    """A job inside another question: one that follows, or a member of a group."""

    service: str
    body: str
    guarantee: bool | None = None
    retries: int | None = None
    timeout_s: float | None = None
    backoff_s: float | None = None


class Order(Struct, omit_defaults=True):
    """The first line of a submission."""

    id: str
    service: str = ""
    guarantee: bool | None = None
    retries: int | None = None
    timeout_s: float | None = None
    backoff_s: float | None = None
    delay_s: float | None = None
    ttl_s: float | None = None
    group: list[Spec] | None = None
    then: list[Spec] = []
    # How long its body is, if there are many orders in one line.
    size: int = 0


def write_message(path: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A call as EventMQ writes it; raises if something in it is no JSON, and says what."""
    call = {
        "path": path,
        "callable": name,
        "args": args,
        "kwargs": kwargs,
        "class_args": (),
        "class_kwargs": {},
    }
    try:
        message = _encode(("run", call))
    except (TypeError, ValueError, RecursionError) as error:
        raise _culprit(f"{path}.{name}", args, kwargs, error) from None
    if loses_a_number(message, (args, kwargs)):
        raise LocalProtocolError(
            f"an argument of {path}.{name} is infinite or not a number, which JSON cannot say; send a text"
        )
    return message


def _culprit(job: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> LocalProtocolError:
    for name, value in [*((str(at), value) for at, value in enumerate(args, 1)), *kwargs.items()]:
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as own:
            return LocalProtocolError(
                f"argument {name} of {job} cannot be written as JSON: {own}; send plain values, dataclasses, "
                "dates or UUIDs, or the key under which the worker finds the rest"
            )
    return LocalProtocolError(f"the arguments of {job} cannot be written as JSON: {error}")


def loses_a_number(encoded: bytes, value: Any) -> bool:
    """Whether it holds a number that is infinite or not a number, for which the encoder wrote null."""
    return b"null" in encoded and _has_no_number(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,)))


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_no_number, value))


def write_order(order: Order, message: bytes = b"") -> bytes:
    return b"%s\n%s" % (_encode(order), message)


def write_orders(orders: list[Order], messages: list[bytes]) -> bytes:
    """Many submissions in one."""
    for order, message in zip(orders, messages, strict=True):
        order.size = len(message)
    return b"%s\n%s" % (_encode(orders), b"".join(messages))


# -- what can be wrong with it ----------------------------------------------------------------


def check_settings(settings: Settings, what: str) -> Settings:
    check_queue(settings.queue, what)
    if not isinstance(settings.guarantee, bool):
        raise ConfigError(f"guarantee of {what} is {settings.guarantee!r}; it takes True or False")
    retries = settings.retries
    if retries is not None and not _is_whole(retries, MOST_RETRIES):
        raise ConfigError(
            f"retries of {what} are {retries!r}; they take a whole number from 0 to {MOST_RETRIES}"
        )
    check_seconds("timeout_s", settings.timeout_s, what)
    check_seconds("backoff_s", settings.backoff_s, what)
    return settings


def check_queue(name: object, what: str) -> None:
    if not isinstance(name, str) or not is_name(name.encode("utf-8", "replace")):
        raise ConfigError(f"the queue of {what} is {name!r}; it takes 1 to 255 bytes of printable text")
    if name.startswith(RESERVED):
        raise ConfigError(
            f"the queue of {what} is {name!r}; names in {', '.join(RESERVED)} are the broker's own"
        )


def check_seconds(name: str, value: object, what: str) -> None:
    if value is None or (_is_number(value) and 0 <= value <= MOST_SECONDS):  # type: ignore[operator]
        return
    raise ConfigError(f"{name} of {what} is {value!r}; it takes seconds from 0 to {MOST_SECONDS:.0f}")


def check_id(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and 0 < len(value.encode()) <= MAX_JOB_ID_BYTES:
        return value
    raise ConfigError(f"a job's id is {value!r}; it takes 1 to {MAX_JOB_ID_BYTES} bytes of printable text")


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- plans ------------------------------------------------------------------------------------


def submit(job: str, body: bytes, timeout_s: float) -> Plan[None]:
    """Until the broker has the job, on disk if it is guaranteed."""
    try:
        yield Question(SUBMIT, body, timeout_s)
    except RequestTimeout:
        raise unconfirmed(job, timeout_s) from None
    except RequestFailed as refusal:
        raise JobRefused(job, refusal.code, refusal.detail) from None


def unconfirmed(job: str, timeout_s: float) -> JobUnconfirmed:
    return JobUnconfirmed(
        job,
        f"no receipt for job {job} within {timeout_s:g} s; is the broker up? Sending it again with "
        f"id={job!r} is safe: it runs once",
    )


def result(job: str, timeout_s: float, clock: Callable[[], float]) -> Plan[bytes]:
    """The body of a job's result, however long it takes, or why there is none."""
    until = clock() + timeout_s
    while True:
        try:
            return (yield Question(RESULT, job.encode(), max(0.0, until - clock())))
        except RequestTimeout:
            raise no_result(job, timeout_s) from None
        except RequestFailed as refusal:
            # A refusal may be about the question or about the job: the job's own state tells.
            error = yield from _why(job, refusal)
        if error is not None:
            raise error
        if clock() >= until:
            raise no_result(job, timeout_s)


def reason(job: str, refusal: RequestFailed) -> Plan[None]:
    """Raise what a refusal says about a job."""
    error = yield from _why(job, refusal)
    raise error or no_result(job, 0.0)


def no_result(job: str, timeout_s: float) -> ResultTimeout:
    return ResultTimeout(
        job, f"job {job} has no result after {timeout_s:g} s; it goes on: ask again, or cancel it"
    )


def _why(job: str, refusal: RequestFailed) -> Plan[JobError | None]:
    """What a refusal says about a job; None if only the question got too old."""
    if refusal.code == UNKNOWN_JOB:
        return unknown(job)
    try:
        known = yield from facts(job, FACTS_S)
    except (JobError, RequestTimeout):
        # Nobody knows more than the refusal says.
        known = {"state": refusal.code if refusal.code in (CANCELLED, EXPIRED) else FAILED}
    state = known.get("state")
    if state == CANCELLED:
        return JobCancelled(job, f"job {job} was cancelled")
    if state == EXPIRED:
        return JobExpired(job, f"job {job} expired: {refusal.detail or 'its time was up before it ended'}")
    if state == FAILED:
        return JobFailed(job, refusal.code, refusal.detail, tuple(known.get("history") or ()))
    if refusal.code == EXPIRED:
        return None
    return JobRefused(job, refusal.code, refusal.detail)


# A look at what the broker has in memory takes no longer.
FACTS_S: Final = 10.0


def facts(job: str, timeout_s: float) -> Plan[dict[str, Any]]:
    """What the broker knows about a job."""
    return (yield from _ask(job, JOB, timeout_s))


def cancel(job: str, timeout_s: float) -> Plan[bool]:
    """Whether a job was stopped, or taken out of its queue, by this."""
    answer = yield from _ask(job, CANCEL, timeout_s)
    return bool(answer.get("cancelled"))


def _ask(job: str, service: bytes, timeout_s: float) -> Plan[dict[str, Any]]:
    try:
        answer = yield Question(service, job.encode(), timeout_s)
    except RequestFailed as refusal:
        if refusal.code == UNKNOWN_JOB:
            raise unknown(job) from None
        raise JobRefused(job, refusal.code, refusal.detail) from None
    return msgspec.json.decode(answer, type=dict[str, Any])


def unknown(job: str) -> UnknownJob:
    return UnknownJob(
        job, f"the broker knows no job {job}: it never got it, or its result was too old to be kept"
    )


def schedule(key: str, question: dict[str, Any], timeout_s: float) -> Plan[Any]:
    """Set, remove or list schedules."""
    try:
        answer = yield Question(SCHEDULE, msgspec.json.encode(question), timeout_s)
    except RequestFailed as refusal:
        raise JobRefused(key, refusal.code, refusal.detail) from None
    return msgspec.json.decode(answer)
