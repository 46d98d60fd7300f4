"""Jobs, dead letters and runs of schedules as plain values, for the command line and dashboards.

A job looks the same wherever it is found: running in the core, or ended in the store.  Times are those of the
wall clock; bodies are cut, because they are there to be looked at.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final

from polybus.core.bus import Bus
from polybus.core.desk import ENDS, STATES
from polybus.core.durable import peer_text
from polybus.core.envelope import read_spec
from polybus.core.ledger import Attempt, DeadLetter, Outcome, ScheduleRun
from polybus.core.lifecycle import RequestState
from polybus.core.model import PLAIN_CALL, JobOptions, Request
from polybus.core.timers import SLOTS_PER_S
from polybus.core.views import NameOf, peer_name

# What of each frame of a body is shown, and how many frames.
PREVIEW_BYTES: Final = 1024
PREVIEW_FRAMES: Final = 16


def state_of(request: Request) -> str:
    return STATES.get(request.state, "running")


def is_job(request: Request) -> bool:
    """Whether a request asks for more than its answer."""
    return request.options is not PLAIN_CALL and request.options != PLAIN_CALL


def jobs(
    bus: Bus, now: float, name_of: NameOf, state: str, service: str, limit: int
) -> Iterator[dict[str, Any]]:
    """Jobs that have not ended, the oldest first."""
    wanted = service.encode()
    for request in bus.patient.values():
        if limit <= 0:
            return
        if (
            not is_job(request)
            or (state and state_of(request) != state)
            or (wanted and request.service.name != wanted)
        ):
            continue
        limit -= 1
        yield job_line(bus, request, now, name_of)


def job_line(bus: Bus, request: Request, now: float, name_of: NameOf) -> dict[str, Any]:
    """A job that has not ended, as a row of a list."""
    due_at = _due_at(request)
    last: Attempt | None = request.history[-1] if request.history else None
    return {
        "token": request.token.decode(),
        "job": _id(request.request_id),
        "service": request.service.name.decode(errors="replace"),
        "state": state_of(request),
        "attempt": request.attempt,
        "retries": request.options.retries,
        "guarantee": request.durable,
        "worker": peer_text(request.worker.address) if request.worker is not None else None,
        "age_s": round(now - request.accepted_at, 3),
        "due_in_s": None if due_at is None else round(max(0.0, due_at - now), 3),
        "reason": last.reason if last else "",
        "detail": last.detail if last else "",
        "client": "" if request.client is bus.desk else peer_name(request.client.address),
        "dialect": name_of(request.voice),
        "bytes": request.size,
    }


def job_whole(bus: Bus, request: Request, now: float, name_of: NameOf) -> dict[str, Any]:
    """A job that has not ended, with everything that is known of it."""
    due_at = _due_at(request)
    return {
        **job_line(bus, request, now, name_of),
        **_options(request.options),
        "dead": False,
        "accepted_at": bus.wall_at(request.accepted_at),
        "due_at": None if due_at is None else bus.wall_at(due_at),
        "expires_at": None if request.expires_at == inf else bus.wall_at(request.expires_at),
        "ended_at": None,
        "body_base64": preview(request.body),
        "result_base64": None,
        "history": [attempt_view(attempt) for attempt in request.history],
    }


def ended_whole(token: bytes, outcome: Outcome | None, letter: DeadLetter | None) -> dict[str, Any]:
    """A job that has ended, as far as its outcome and its dead letter tell; at least one of them is there."""
    entry = letter.job if letter else None
    last = letter or outcome
    assert last is not None
    found = outcome if entry is None else entry
    assert found is not None
    return {
        "token": token.decode(errors="replace"),
        "job": _id(found.request_id),
        "service": found.service.decode(errors="replace"),
        "state": ENDS.get(last.reason, "failed") if last.reason else "done",  # type: ignore[call-overload]
        "attempt": entry.attempt if entry else None,
        "retries": entry.options.retries if entry else None,
        "guarantee": entry.options.guarantee if entry else True,
        "worker": None,
        "age_s": None,
        "due_in_s": None,
        "reason": last.reason,
        "detail": last.detail,
        "client": _id(found.identity) if found.link else "",
        "dialect": found.link.partition(".")[0],
        "bytes": sum(map(len, entry.body)) if entry else None,
        **_options(entry.options if entry else JobOptions()),
        "dead": letter is not None,
        "accepted_at": entry.accepted_at if entry else None,
        "due_at": None,
        "expires_at": entry.expires_at if entry else None,
        "ended_at": last.at,
        "body_base64": preview(entry.body) if entry else None,
        "result_base64": preview(outcome.body) if outcome else None,
        "history": [attempt_view(attempt) for attempt in entry.history] if entry else [],
    }


def group_whole(bus: Bus, key: bytes) -> dict[str, Any]:
    """A group that waits for its members: a job without a body of its own."""
    group = bus.groups[key]
    name = _id(key)
    detail = (
        f"a group of {group.size} jobs, {name}/0 to {name}/{group.size - 1}; {group.missing} have not ended"
    )
    return {
        "token": name,
        "job": name,
        "service": "",
        "state": "running",
        "attempt": None,
        "retries": None,
        "guarantee": group.guarantee,
        "worker": None,
        "age_s": None,
        "due_in_s": None,
        "reason": "",
        "detail": detail,
        "client": "",
        "dialect": "",
        "bytes": None,
        **_options(JobOptions(then=group.then)),
        "dead": False,
        "accepted_at": None,
        "due_at": None,
        "expires_at": None,
        "ended_at": None,
        "body_base64": None,
        "result_base64": None,
        "history": [],
    }


def dead_line(letter: DeadLetter) -> dict[str, Any]:
    job = letter.job
    return {
        "token": job.token.decode(),
        "job": _id(job.request_id),
        "service": job.service.decode(errors="replace"),
        "at": letter.at,
        "attempts": job.attempt,
        "reason": letter.reason,
        "detail": letter.detail,
        "accepted_at": job.accepted_at,
        "bytes": sum(map(len, job.body)),
        "history": [attempt_view(attempt) for attempt in job.history],
    }


def attempt_view(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "at": attempt.at,
        "worker": attempt.worker,
        "reason": attempt.reason,
        "detail": attempt.detail,
    }


def run_view(run: ScheduleRun) -> dict[str, Any]:
    return {
        "key": run.key,
        "due_at": run.due_at,
        "at": run.at,
        "what": run.what,
        "missed": run.missed,
        "token": run.token.decode(errors="replace"),
    }


def preview(body: Sequence[Any]) -> list[str]:
    return [base64.b64encode(memoryview(frame)[:PREVIEW_BYTES]).decode() for frame in body[:PREVIEW_FRAMES]]


def _options(options: JobOptions) -> dict[str, Any]:
    return {
        "timeout_s": options.timeout_s,
        "backoff_s": options.backoff_s,
        "then": [read_spec(step).service for step in options.then],
        "group": _id(options.group),
    }


def _due_at(request: Request) -> float | None:
    """When a job that waits goes on, by our own clock."""
    if request.state is not RequestState.WAITING or request.alarm is None or not request.alarm.slot:
        return None
    return request.alarm.slot / SLOTS_PER_S


def _id(name: bytes) -> str:
    """A name for people; empty if there is none."""
    return peer_name((0, name))
