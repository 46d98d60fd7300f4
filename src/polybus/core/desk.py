"""The built-in services `polybus.*`, which clients of every dialect may call.

A job sent here has an id of its own: whoever knows it can ask for the outcome, from any connection and any
dialect, and sending it again does not run it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus.core import envelope, flows, scheduling
from polybus.core.actions import Accept, Answer, Refuse
from polybus.core.durable import addressed, after_written, tell_again, when_accepted
from polybus.core.envelope import BadEnvelope, JobSpec, Submission
from polybus.core.intake import BUILT_IN, accept, admit
from polybus.core.lifecycle import RequestState
from polybus.core.model import Address, Body, JobOptions, Reason
from polybus.core.records import Request
from polybus.core.requests import withdraw
from polybus.core.tables import Waiter

if TYPE_CHECKING:
    from polybus.core.tables import Tables

STATES: Final = {
    RequestState.ACCEPTED: "queued",
    RequestState.QUEUED: "queued",
    RequestState.ORPHANED: "running",
    RequestState.DISPATCHED: "running",
    RequestState.STREAMING: "running",
    RequestState.WAITING: "waiting",
}
ENDS: Final = {Reason.CANCELLED: "cancelled", Reason.EXPIRED: "expired"}


class Refused(Exception):
    """The caller is told this."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Call(msgspec.Struct, frozen=True):
    """Who called what."""

    client: Address
    voice: Any
    request_id: bytes
    service: bytes
    wants_reply: bool
    receipt: bool


def receive(
    bus: Tables,
    client: Address,
    voice: Any,
    request_id: bytes,
    service: bytes,
    body: Body,
    options: JobOptions,
    receipt: bool,
    now: float,
) -> None:
    """A request for one of our own services."""
    call = Call(client, voice, request_id, service, options.reply_requested, receipt)
    serve = SERVICES.get(service[len(BUILT_IN) :])
    try:
        if serve is None:
            known = ", ".join(sorted((BUILT_IN + name).decode() for name in SERVICES))
            raise Refused(Reason.REJECTED, f"there is no service {service.decode()}; there are {known}")
        serve(bus, call, body, now)
    except BadEnvelope as error:
        _refuse(bus, call, Reason.BAD_JOB, str(error))
    except Refused as error:
        _refuse(bus, call, error.reason, str(error))


def _refuse(bus: Tables, call: Call, reason: Reason, detail: str) -> None:
    bus.counters.rejected += 1
    bus.actions.append(Refuse(call.client, call.voice, call.service, call.request_id, reason, detail, []))


def _receipt(call: Call) -> Accept:
    return Accept(call.client, call.voice, call.service, call.request_id)


def _reply(call: Call, value: Any) -> Answer:
    body = [value if isinstance(value, bytes) else msgspec.json.encode(value)]
    return Answer(call.client, call.voice, call.service, call.request_id, body)


def _answer(bus: Tables, call: Call, value: Any, lines_before: int) -> None:
    """Answer at once; or when it is on disk, if something was noted since there were so many lines."""
    words: list[Any] = [_receipt(call)] if call.receipt else []
    if call.wants_reply:
        words.append(_reply(call, value))
    for word in words:
        if len(bus.lines) > lines_before:
            after_written(bus, word)
        else:
            bus.actions.append(word)


def _one_frame(body: Body) -> bytes:
    return b"".join(bytes(frame) for frame in body)


# -- jobs -------------------------------------------------------------------------------------


def _submit(bus: Tables, call: Call, body: Body, now: float) -> None:
    submission, frames = envelope.read_submission(body)
    job_id = submission.id.encode() if submission.id else bus.next_token()
    if job_id not in bus.desk.known and job_id not in bus.groups:
        if submission.group:
            _accept_group(bus, job_id, submission, now)
        else:
            assert submission.service is not None
            then = tuple(map(envelope.write_spec, submission.then))
            _accept_job(
                bus,
                job_id,
                submission.service,
                frames,
                envelope.options_of(submission, then),
                submission,
                now,
            )
    else:
        bus.counters.duplicates += 1
    first = flows.member_id(job_id, 0) if submission.group else job_id
    job = bus.desk.known.get(first)
    request = job if isinstance(job, Request) else None
    if call.receipt:
        when_accepted(bus, _receipt(call), request)
    if call.wants_reply and submission.reply == "result":
        _await(bus, call, job_id)
    elif call.wants_reply:
        when_accepted(bus, _reply(call, {"job": job_id.decode()}), request)


def _accept_job(
    bus: Tables,
    job_id: bytes,
    service: str,
    frames: list[bytes],
    options: JobOptions,
    submission: Submission,
    now: float,
) -> None:
    name = service.encode()
    if name.startswith(BUILT_IN):
        raise Refused(
            Reason.BAD_JOB, f"{service} is a service of the broker itself; a job goes to a worker's"
        )
    found, (reason, detail) = admit(bus, bus.desk, name, b"", sum(map(len, frames)))
    if found is None:
        raise Refused(reason, detail)
    if options.guarantee and bus.store_trouble:
        raise Refused(Reason.STORE_UNAVAILABLE, bus.store_trouble)
    accept(bus, bus.desk, None, job_id, found, frames, options, now, submission.ttl_s, submission.delay_s)


def _accept_group(bus: Tables, job_id: bytes, submission: Submission, now: float) -> None:
    members = submission.group
    if len(members) > bus.limits.group_size:
        raise Refused(
            Reason.TOO_LARGE, f"the group has {len(members)} jobs; allowed are {bus.limits.group_size}"
        )
    guarantee = any(spec.guarantee for spec in (*members, *submission.then))
    if guarantee and bus.store_trouble:
        raise Refused(Reason.STORE_UNAVAILABLE, bus.store_trouble)
    services = []
    # All or none: whether there is room is looked at before the first is accepted.
    for spec in members:
        found, (reason, detail) = admit(bus, bus.desk, spec.service.encode(), b"", len(spec.body))
        if found is None:
            raise Refused(reason, detail)
        services.append(found)
    then = tuple(map(envelope.write_spec, submission.then))
    flows.open_group(bus, job_id, flows.Group(len(members), guarantee, then))
    for position, (spec, service) in enumerate(zip(members, services, strict=True)):
        options = envelope.options_of(_durable_if(spec, guarantee), (), job_id)
        member = flows.member_id(job_id, position)
        accept(
            bus, bus.desk, None, member, service, [spec.body.encode()], options, now, None, submission.delay_s
        )


def _durable_if(spec: JobSpec, guarantee: bool) -> JobSpec:
    """A group that survives needs members that do."""
    return msgspec.structs.replace(spec, guarantee=guarantee)


def _await(bus: Tables, call: Call, job_id: bytes) -> None:
    known = bus.desk.known.get(job_id)
    if known is None and job_id not in bus.groups:
        raise Refused(
            Reason.UNKNOWN_JOB, f"no job {job_id.decode(errors='replace')!r} is known, or it ended long ago"
        )
    if known is not None and not isinstance(known, Request):
        word = addressed(known, call.client, call.voice, call.service, call.request_id)
        tell_again(bus, word, known)
        return
    waiters = bus.waiters.setdefault(job_id, [])
    waiter = Waiter(call.client, call.voice, call.service, call.request_id)
    if call.request_id and waiter in waiters:
        return
    if bus.waiting_clients >= bus.limits.waiters:
        raise Refused(Reason.TOO_MANY_OUTSTANDING, f"{bus.limits.waiters} clients wait for jobs; ask later")
    bus.waiting_clients += 1
    waiters.append(waiter)


def _result(bus: Tables, call: Call, body: Body, now: float) -> None:
    job_id = _one_frame(body)
    _must_know(bus, job_id)
    if call.receipt:
        bus.actions.append(_receipt(call))
    if call.wants_reply:
        _await(bus, call, job_id)


def _cancel(bus: Tables, call: Call, body: Body, now: float) -> None:
    job_id = _one_frame(body)
    _must_know(bus, job_id)
    ids = [job_id]
    group = bus.groups.get(job_id)
    if group is not None:
        ids = [flows.member_id(job_id, position) for position in range(group.size)]
    cancelled = False
    lines_before = len(bus.lines)
    for one in ids:
        request = bus.desk.known.get(one)
        if isinstance(request, Request):
            withdraw(bus, request, "it was cancelled by its id", now)
            cancelled = True
    _answer(bus, call, {"cancelled": cancelled}, lines_before)


def _must_know(bus: Tables, job_id: bytes) -> None:
    if job_id not in bus.desk.known and job_id not in bus.groups:
        raise Refused(
            Reason.UNKNOWN_JOB, f"no job {job_id.decode(errors='replace')!r} is known, or it ended long ago"
        )


def _job(bus: Tables, call: Call, body: Body, now: float) -> None:
    job_id = _one_frame(body)
    _must_know(bus, job_id)
    if call.receipt:
        bus.actions.append(_receipt(call))
    if not call.wants_reply:
        return
    answer = _reply(call, job_facts(bus, job_id, now))
    known = bus.desk.known.get(flows.member_id(job_id, 0) if job_id in bus.groups else job_id)
    if known is None or isinstance(known, Request):
        when_accepted(bus, answer, known)
    else:
        tell_again(bus, answer, known)


def job_facts(bus: Tables, job_id: bytes, now: float) -> dict[str, Any]:
    """What is known about a job, for its client."""
    facts: dict[str, Any] = {"job": job_id.decode(errors="replace")}
    group = bus.groups.get(job_id)
    if group is not None:
        return {**facts, "state": "running", "group": group.size, "missing": group.missing}
    known = bus.desk.known[job_id]
    if isinstance(known, Request):
        return {
            **facts,
            "state": STATES.get(known.state, "running"),
            "service": known.service.name.decode(errors="replace"),
            "attempt": known.attempt,
            "retries": known.options.retries,
            "age_s": round(now - known.accepted_at, 3),
            "history": [msgspec.to_builtins(attempt) for attempt in known.history],
        }
    facts["service"] = known.service.decode(errors="replace")
    if isinstance(known, Answer):
        return {**facts, "state": "done"}
    return {
        **facts,
        "state": ENDS.get(known.reason, "failed"),
        "reason": str(known.reason),
        "detail": known.detail,
        "history": [msgspec.to_builtins(attempt) for attempt in getattr(known, "history", ())],
    }


def _schedule(bus: Tables, call: Call, body: Body, now: float) -> None:
    lines_before = len(bus.lines)
    try:
        answer = scheduling.answer(bus, _one_frame(body), now)
    except scheduling.ScheduleRefused as error:
        raise Refused(error.reason, str(error)) from None
    _answer(bus, call, answer, lines_before)


SERVICES: Final[dict[bytes, Callable[[Tables, Call, Body, float], None]]] = {
    b"submit": _submit,
    b"result": _result,
    b"cancel": _cancel,
    b"job": _job,
    b"schedule": _schedule,
}
