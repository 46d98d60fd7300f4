"""The built-in services `polybus.*`, which clients of every dialect may call.

A job sent here has an id of its own: whoever knows it can ask for the outcome, from any connection and any
dialect, and sending it again does not run it again.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final

import msgspec

from polybus.core import envelope, flows, scheduling
from polybus.core.actions import Accept, Answer, Refuse
from polybus.core.durable import addressed, after_written, tell_again, when_accepted
from polybus.core.envelope import BadEnvelope, Submission
from polybus.core.intake import BUILT_IN, accept, admit, governed, note_refusal
from polybus.core.lifecycle import RequestState
from polybus.core.model import Address, Body, JobOptions, Reason
from polybus.core.records import Request, Service
from polybus.core.replies import body_size
from polybus.core.requests import waiting_first, withdraw
from polybus.core.waiting import Waiter

if TYPE_CHECKING:
    from polybus.core.bus import Bus
    from polybus.core.tables import Tables

STATES: Final = {
    RequestState.ACCEPTED: "queued",
    RequestState.QUEUED: "queued",
    RequestState.ORPHANED: "running",
    RequestState.DISPATCHED: "running",
    RequestState.STREAMING: "running",
    RequestState.WAITING: "waiting",
    # Workers that have gone silent may be at it.
    RequestState.SUSPENDED: "running",
}
# Looking a member up in its enumeration costs as much as a dictionary.
_ACCEPTED: Final = RequestState.ACCEPTED
BUILT_IN_NAME: Final = BUILT_IN.decode()
ENDS: Final = {Reason.CANCELLED: "cancelled", Reason.EXPIRED: "expired"}
Other = tuple[str, ...]  # what the bus does not know of a call is handed on with its job


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
    other: Other = ()


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
    """A request for one of our own services."""
    call = Call(client, voice, request_id, service, options.reply_requested, receipt, options.other)
    name = service[len(BUILT_IN) :]
    serve = SERVICES.get(name) or bus.own_services.get(name)
    try:
        if serve is None:
            known = ", ".join(sorted((BUILT_IN + one).decode() for one in {*SERVICES, *bus.own_services}))
            asked = service.decode(errors="replace")
            raise Refused(Reason.REJECTED, f"there is no service {asked}; there are {known}")
        serve(bus, call, body, now)
    except BadEnvelope as error:
        _refuse(bus, call, Reason.BAD_JOB, str(error), now)
    except Refused as error:
        _refuse(bus, call, error.reason, str(error), now)


def _refuse(bus: Tables, call: Call | Waiter, reason: Reason, detail: str, now: float) -> None:
    note_refusal(bus, call.client, call.voice, call.request_id, call.service, reason, detail, now)
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
    if envelope.is_list(body):
        _submit_many(bus, call, body, now)
        return
    submission, frames = envelope.read_submission(body)
    job_id = submission.id.encode() if submission.id else _new_id(bus, call)
    if submission.reply == "result" and call.wants_reply:
        _check_waiters(bus, call)
    _take_in(bus, job_id, submission, frames, now, call.other)
    if call.receipt:
        _say_about(bus, job_id, _receipt(call))
    if call.wants_reply and submission.reply == "result":
        _await(bus, call, job_id, now)
    elif call.wants_reply:
        _say_about(bus, job_id, _reply(call, {"job": job_id.decode()}))


def _take_in(
    bus: Tables, job_id: bytes, submission: Submission, frames: list[bytes], now: float, other: Other
) -> None:
    """Accept what was submitted, unless it is known already."""
    if job_id in bus.desk.known or job_id in bus.groups:
        bus.counters.duplicates += 1
        return
    if submission.then or submission.group:
        for spec in (*submission.group, *submission.then):
            _check_service(spec.service)
    if submission.group:
        _accept_group(bus, job_id, submission, now, other)
    else:
        _accept_job(bus, job_id, submission, frames, now, other)


def _submit_many(bus: Tables, call: Call, body: Body, now: float) -> None:
    """Many jobs in one message, each accepted or refused on its own; one answer when all are on disk."""
    parts = envelope.read_list(body)
    refused: dict[str, dict[str, str]] = {}
    # One of those whose lines are not on disk yet: what becomes of them becomes of all, because the lines of
    # a message are written together. Only those of jobs that were sent before are of other batches.
    unsure: Request | None = None
    duplicates = bus.counters.duplicates
    known, groups = bus.desk.known, bus.groups
    for position, (submission, frames) in enumerate(parts):
        try:
            if not submission.id or submission.reply != "receipt":
                raise Refused(Reason.BAD_JOB, "a job of a list has an 'id', and no reply but its receipt")
            job_id = submission.id.encode()
            envelope.check(submission, frames)
            _take_in(bus, job_id, submission, frames, now, call.other)
        except (BadEnvelope, Refused) as error:
            reason = error.reason if isinstance(error, Refused) else Reason.BAD_JOB
            if reason is Reason.DRAINING:
                # All of them: whoever sends the list to the next broker need not take it apart.
                raise
            refused[str(position)] = {"error": str(reason), "detail": str(error)}
            name, job = (submission.service or "").encode(), (submission.id or "").encode()
            note_refusal(bus, call.client, call.voice, job, name, reason, str(error), now)
        else:
            if unsure is None:
                found = groups[job_id].first if job_id in groups else known[job_id]
                if isinstance(found, Request) and _is_unsure(found):
                    unsure = found
    words: list[Accept | Answer] = [_receipt(call)] if call.receipt else []
    if call.wants_reply:
        words.append(_reply(call, {"jobs": len(parts) - len(refused), "refused": refused}))
    for word in words:
        if unsure is not None:
            after_written(bus, word, unsure)
        else:
            bus.actions.append(word)
    if unsure is not None and bus.counters.duplicates != duplicates:
        for position, (submission, _) in enumerate(parts):
            # Of a job that was refused here another one may be known.
            if str(position) not in refused:
                _share_words(bus, (submission.id or "").encode(), words)


def _share_words(bus: Tables, job_id: bytes, words: list[Accept | Answer]) -> None:
    """If this job cannot be written down, these words, which wait for others as well, are not said."""
    group = bus.groups.get(job_id)
    found = bus.desk.known.get(job_id) if group is None else group.first
    if isinstance(found, Request) and _is_unsure(found):
        bus.shared_words.setdefault(found.token, []).extend(words)


def _is_unsure(request: Request) -> bool:
    return request.durable and request.state is _ACCEPTED


def _say_about(bus: Tables, job_id: bytes, word: Accept | Answer) -> None:
    """Say something about a job that is known, as soon as it is certain."""
    group = bus.groups.get(job_id)
    if group is not None:
        if group.batch > bus.written:
            after_written(bus, word, group.first)
        else:
            bus.actions.append(word)
        return
    known = bus.desk.known[job_id]
    if isinstance(known, Request):
        when_accepted(bus, word, known)
    else:
        tell_again(bus, word, known)


def _new_id(bus: Tables, call: Call) -> bytes:
    """A job that its client gave no name. What the client sends again, because it heard nothing, is the same
    request, and so the same job."""
    if not call.request_id:
        return bus.next_token()
    link, identity = call.client
    who = b"%b%d:%d:%b" % (bus.nonce, link, len(identity), identity)
    return sha1(who + call.request_id, usedforsecurity=False).hexdigest().encode()


def _check_service(name: str) -> None:
    if name.startswith(BUILT_IN_NAME):
        raise Refused(Reason.BAD_JOB, f"{name} is a service of the broker itself; a job goes to a worker's")
    if not envelope.is_name(name):
        raise Refused(Reason.BAD_JOB, f"{name[:40]!r} is no name: it takes 1 to 255 bytes of printable text")


def _check_store(bus: Tables, guarantee: bool) -> None:
    if guarantee and bus.store_trouble:
        raise Refused(Reason.STORE_UNAVAILABLE, f"it cannot be guaranteed: {bus.store_trouble}")


def _promise(specs: tuple[envelope.JobSpec, ...]) -> bool:
    """Whether any of these is guaranteed."""
    return any(spec.guarantee for spec in specs)


def _admit(bus: Tables, name: str, size: int) -> Service:
    service, refusal = admit(bus, bus.desk, envelope.encoded(name), b"", size)
    if service is None:
        raise Refused(*refusal)
    return service


def _accept_job(
    bus: Tables, job_id: bytes, submission: Submission, frames: list[bytes], now: float, other: Other
) -> None:
    assert submission.service is not None
    _check_service(submission.service)
    service = _admit(bus, submission.service, body_size(frames))
    then = tuple(map(envelope.write_spec, submission.then)) if submission.then else ()
    options = envelope.options_of(submission, then)
    if other:
        options = msgspec.structs.replace(options, other=other)
    if service.policy is not None:
        options = governed(options, service.policy)
    if bus.store_trouble:
        # What follows is guaranteed by what it follows, so there must be a store for all of it.
        _check_store(bus, options.guarantee or _promise(submission.then))
    accept(bus, bus.desk, None, job_id, service, frames, options, now, submission.ttl_s, submission.delay_s)


def _accept_group(bus: Tables, job_id: bytes, submission: Submission, now: float, other: Other) -> None:
    members = submission.group
    if len(members) > bus.limits.group_size:
        raise Refused(
            Reason.TOO_LARGE, f"the group has {len(members)} jobs; allowed are {bus.limits.group_size}"
        )
    # All or none: whether there is room is looked at before the first is accepted.
    parts: list[tuple[bytes, Service, bytes, JobOptions]] = []
    for position, spec in enumerate(members):
        member = flows.member_id(job_id, position)
        if member in bus.desk.known or member in bus.groups:
            raise Refused(Reason.BAD_JOB, f"its member {member.decode()!r} is the id of another job")
        body = spec.body.encode()
        service = _admit(bus, spec.service, len(body))
        parts.append((member, service, body, governed(envelope.options_of(spec, (), job_id), service.policy)))
    # A group that survives needs members that do.
    guarantee = any(part[-1].guarantee for part in parts) or _promise(submission.then)
    _check_store(bus, guarantee)
    then = tuple(map(envelope.write_spec, submission.then))
    group = flows.Group(len(members), guarantee, then, other=other)
    flows.open_group(bus, job_id, group)
    for member, service, body, options in parts:
        options = msgspec.structs.replace(options, guarantee=guarantee, other=other)
        ttl_s, delay_s = submission.ttl_s, submission.delay_s
        accept(bus, bus.desk, None, member, service, [body], options, now, ttl_s, delay_s)
    if guarantee:
        group.batch, group.first = bus.batch, bus.desk.known[parts[0][0]]


def _check_waiters(bus: Tables, call: Call) -> None:
    most = bus.limits.outstanding_per_client
    if bus.waiters.count_of(call.client) >= most:
        raise Refused(Reason.TOO_MANY_OUTSTANDING, f"this client waits for {most} jobs; wait for some")


def _await(bus: Tables, call: Call, job_id: bytes, now: float) -> None:
    known = bus.desk.known.get(job_id)
    if known is not None and not isinstance(known, Request):
        word = addressed(known, call.client, call.voice, call.service, call.request_id)
        tell_again(bus, word, known)
        return
    _check_waiters(bus, call)
    bus.waiters.add(job_id, Waiter(call.client, call.voice, call.service, call.request_id))
    if len(bus.waiters) > bus.limits.waiters:
        oldest = bus.waiters.take_oldest()
        why = f"more than {bus.limits.waiters} wait; ask again"
        _refuse(bus, oldest, Reason.TOO_MANY_OUTSTANDING, why, now)


def _result(bus: Tables, call: Call, body: Body, now: float) -> None:
    job_id = _one_frame(body)
    _must_know(bus, job_id)
    if call.receipt:
        bus.actions.append(_receipt(call))
    if call.wants_reply:
        _await(bus, call, job_id, now)


def _cancel(bus: Tables, call: Call, body: Body, now: float) -> None:
    job_id = _one_frame(body)
    _must_know(bus, job_id)
    ids = [job_id]
    group = bus.groups.get(job_id)
    if group is not None:
        ids = [flows.member_id(job_id, position) for position in range(group.size)]
    lines_before = len(bus.lines)
    found = [bus.desk.known.get(one) for one in ids]
    requests = waiting_first(known for known in found if isinstance(known, Request))
    for request in requests:
        withdraw(bus, request, "it was cancelled by its id", now)
    _answer(bus, call, {"cancelled": bool(requests)}, lines_before)


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
    _say_about(bus, job_id, _reply(call, job_facts(bus, job_id, now)))


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
