"""A trace in words, and as values for programs: the command line and the dashboard tell the same."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from polybus.journal.trace import Row, Trace, Traced


def as_json(found: Trace, bodies: bool) -> dict[str, Any]:
    return {
        "name": found.name,
        "requests": [
            {
                "token": request.token,
                "broker": request.broker,
                "journal": request.journal,
                "request_id": request.request_id or None,
                "service": request.first["service"],
                "outcome": None if request.end is None else request.end["what"],
                "reason": None if request.end is None else request.end["reason"],
                "told": outcome(found, request),
                "steps": [{**json_row(row, bodies), "told": explained(row)} for row in request.rows],
            }
            for request in found.requests
        ],
        "complete": not found.is_cut,
    }


def json_row(row: dict[str, Any], bodies: bool) -> dict[str, Any]:
    """A row for programs: without what it does not have, times in ISO 8601, bodies in base64."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            found[name] = value.isoformat()
        elif name == "body":
            if bodies and value is not None:
                found["body_base64"] = [base64.b64encode(frame).decode() for frame in value]
        elif value is not None:
            found[name] = value
    return found


def since(begin: datetime, at: datetime) -> str:
    """The time between, in the unit that fits."""
    seconds = (at - begin).total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:.1f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:.1f} h"


def outcome(found: Trace, request: Traced) -> str:
    """How it ended, or why it has not."""
    end = request.end
    if end is not None:
        took = since(end["accepted_at"] or request.first["at"], end["at"])
        if end["what"] == "rejected":
            return f"rejected: {end['reason']}"
        why = f": {end['reason']}" if end["reason"] else ""
        return f"{end['what']} after {took}{why}"
    last = request.rows[-1]
    lives = [life for life in found.lives if life.journal == request.journal]
    later = [life for life in lives if life.at > last["at"]]
    stopped_at = next((life.stopped_at for life in lives if life.name == last["life"]), None)
    if not later and stopped_at is None:
        return f"not ended: {last['what']}"
    how = "stopped" if stopped_at else "was killed"
    if any(row["reason"] in ("guaranteed", "revived") for row in request.rows):
        return f"not ended: {last['what']}; the broker {how} since then, but it is guaranteed and goes on"
    return f"lost: {last['what']} when the broker {how}"


# -- one step -------------------------------------------------------------------------------------


def explained(row: Row) -> str:
    """What a step means, with its reason."""
    text = _EXPLAIN.get(row["what"], _plain)(row)
    why = ": ".join(part for part in (row["reason"], row["detail"]) if part)
    if why and row["what"] != "accepted":
        text = f"{text}; {why}" if text else why
    return text


def _peer(row: Row, role: str) -> str:
    where = ", ".join(part for part in (row[f"{role}_dialect"], row[f"{role}_link"]) if part)
    name = row[role] or "nobody"
    if row[f"{role}_dialect"] == "bridge":
        return f"the broker {name} (bridge)"
    return f"{name} ({where})" if where else name


def _accepted(row: Row) -> str:
    who = (
        "jobs that were submitted by id"
        if row["client"] == "jobs" and not row["client_link"]
        else _peer(row, "client")
    )
    more = {
        "guaranteed": "; guaranteed: on disk before its client is told",
        "revived": "; an operator queued the dead letter again",
    }.get(row["reason"] or "", "")
    return f"from {who}, {row['size']} bytes{more}"


def _dispatched(row: Row) -> str:
    attempt = f", attempt {row['attempt']}" if row["attempt"] else ""
    return f"to {_peer(row, 'worker')}{attempt}"


def _ended(row: Row) -> str:
    # Whoever withdraws a request, or lets it expire, is not the one that has it.
    role = "by" if row["what"] in ("replied", "failed") else "while it was at"
    parts = [f"{role} {_peer(row, 'worker')}" if row["worker"] else "no worker had it"]
    if row["what"] == "replied":
        parts.append(f"{row['body_size']} bytes")
    if row["dispatched_at"] is not None:
        parts.append(f"{since(row['dispatched_at'], row['at'])} after it was given to it")
    return ", ".join(parts)


def _plain(row: Row) -> str:
    return f"at {_peer(row, 'worker')}" if row["worker"] else ""


_EXPLAIN: Final[dict[str, Callable[[Row], str]]] = {
    "accepted": _accepted,
    "dispatched": _dispatched,
    "replied": _ended,
    "failed": _ended,
    "expired": _ended,
    "cancelled": _ended,
    "partial": lambda row: f"a piece of the answer, from {_peer(row, 'worker')}",
    "rejected": lambda row: f"from {_peer(row, 'client')}: refused at the door, it was never accepted",
    "retried": lambda row: f"attempt {row['attempt']} failed at {_peer(row, 'worker')}",
    "requeued": lambda _: "back to the front of its queue",
    "claimed": lambda row: f"{_peer(row, 'worker')} came back and still has it",
    "late": lambda row: (
        f"an answer of {_peer(row, 'worker')} was dropped: nothing was waiting for it from there"
    ),
    "answer_lost": lambda row: (
        f"the answer did not reach {_peer(row, 'client')}; "
        + (
            "it is kept for a while, should the client ask again with this id"
            if row["request_id"]
            else "the client gave the request no id, so it cannot ask for the answer again"
        )
    ),
    "dead": lambda _: "given up; the request itself is kept, and can be sent again",
}
