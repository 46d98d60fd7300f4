"""Jobs that follow one another, and groups of jobs.

A chain is one job to the world: it has one id, and each step is accepted in the very batch in which the step
before ends, so a crash loses neither.  A group is accepted as a whole and ends when its last member has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from polybus.core import envelope, ledger
from polybus.core.actions import Answer, Refuse
from polybus.core.durable import keep_outcome, remember, tell_waiters
from polybus.core.intake import accept, governed
from polybus.core.lifecycle import ANSWER
from polybus.core.model import Body, Reason, Request
from polybus.core.requests import end
from polybus.core.tables import NO_STORE

if TYPE_CHECKING:
    from polybus.core.tables import Tables

SERVICE: Final = b"polybus.submit"


class Group(Struct):
    """A group that waits for its members. What they returned is found by their ids."""

    size: int
    guarantee: bool
    then: tuple[bytes, ...] = ()
    # Not written down, but found again after a restart: how many have not ended, and the outcomes of the
    # others, which nobody forgets before the group has them all (arguments of `durable.keep_outcome`).
    missing: int = 0
    kept: list[Any] = []
    # The batch that it was accepted in, and its first member, with which it is refused if need be.
    batch: int = 0
    first: Any = None
    # What the bus does not know about it, for what follows (`JobOptions.other`).
    other: tuple[str, ...] = ()


_GROUP: Final = msgspec.msgpack.Decoder(Group)


def member_id(group: bytes, position: int) -> bytes:
    return b"%b/%d" % (group, position)


# -- chains -----------------------------------------------------------------------------------


def follow(bus: Tables, request: Request, body: Body, now: float) -> bool:
    """Accept the job that follows a finished one, under the same id; False if none does."""
    if not request.options.then:
        return False
    then, group, other = request.options.then, request.options.group, request.options.other
    # The step ends without a word to anybody; what the job comes to is not known yet.
    step = msgspec.structs.replace(request.options, then=(), group=b"", reply_requested=False)
    request.options = step
    request_id, request.request_id = request.request_id, b""
    request.client.known[request.token] = request
    _accept_next(bus, request_id, then, group, request.durable, body, now, other)
    end(bus, request, ANSWER, None, "", [], now)
    return True


def _accept_next(
    bus: Tables,
    job_id: bytes,
    then: tuple[bytes, ...],
    group: bytes,
    durable: bool,
    body: Body,
    now: float,
    other: tuple[str, ...],
) -> None:
    """Accept the first of the jobs that follow. It was promised: no limit and no sick disk refuses it."""
    spec = envelope.read_spec(then[0])
    name = spec.service.encode()
    service = bus.service(name) or bus.extra_service(name)
    options = governed(envelope.options_of(spec, then[1:], group), service.policy)
    # What follows a guaranteed job is guaranteed, too; without a store nothing is.
    guarantee = (durable or options.guarantee) and bus.store_trouble != NO_STORE
    options = msgspec.structs.replace(options, guarantee=guarantee, other=other)
    frames = envelope.with_result(spec.body, [bytes(frame) for frame in body])
    accept(bus, bus.desk, None, job_id, service, frames, options, now, promised=True)


# -- groups -----------------------------------------------------------------------------------


def open_group(bus: Tables, key: bytes, group: Group) -> None:
    bus.groups[key] = group
    if group.guarantee and not bus.store_trouble:
        bus.lines.append(ledger.Grouped(key, msgspec.msgpack.encode(group)))
    group.missing = group.size


def reopen_group(bus: Tables, key: bytes, state: bytes) -> None:
    """A group that was not closed when the broker died. Its members follow, then `count_members`."""
    bus.groups[key] = _GROUP.decode(state)


def count_members(bus: Tables, key: bytes, now: float) -> None:
    group = bus.groups[key]
    known = bus.desk.known
    group.missing = sum(
        isinstance(known.get(member_id(key, position)), Request) for position in range(group.size)
    )
    if not group.missing:
        _close(bus, key, group, now)


def member_revived(bus: Tables, key: bytes) -> None:
    """A member that had failed is tried again: if its group has not ended, it waits for it once more."""
    if key in bus.groups:
        bus.groups[key].missing += 1


def member_ended(bus: Tables, request: Request, now: float) -> None:
    key = request.options.group
    group = bus.groups.get(key)
    if group is not None:
        group.missing -= 1
        if not group.missing:
            _close(bus, key, group, now)


def _close(bus: Tables, key: bytes, group: Group, now: float) -> None:
    """All members have ended: their results are the group's, and what follows it begins."""
    del bus.groups[key]
    if group.guarantee:
        bus.lines.append(ledger.Ungrouped(key))
    for kept in group.kept:
        keep_outcome(bus, *kept)
    results, failed = _results(bus, key, group.size)
    body = [b"[%b]" % b",".join(results)]
    if failed:
        detail = f"{len(failed)} of {group.size} jobs failed; the first: {failed[0]}"
        word: Answer | Refuse = Refuse(bus.desk.address, None, SERVICE, key, Reason.GROUP_FAILED, detail, [])
    elif group.then:
        _accept_next(bus, key, group.then, b"", group.guarantee, body, now, group.other)
        return
    else:
        word = Answer(bus.desk.address, None, SERVICE, key, body)
    remember(bus, key, word, group.guarantee, now)
    tell_waiters(bus, key, word, group.guarantee)


def _results(bus: Tables, key: bytes, size: int) -> tuple[list[bytes], list[str]]:
    results: list[bytes] = []
    failed: list[str] = []
    for position in range(size):
        known: Any = bus.desk.known.get(member_id(key, position))
        if isinstance(known, Answer):
            results.append(_as_json(known.body))
        else:
            reason = f"{known.reason}: {known.detail}" if isinstance(known, Refuse) else "its result is gone"
            failed.append(reason)
            results.append(msgspec.json.encode({"error": reason}))
    return results, failed


def _as_json(body: Body) -> bytes:
    """A result as a member of a JSON list: as it is, or as a text if it is no JSON."""
    data = b"".join(bytes(frame) for frame in body)
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(data.decode(errors="replace")) if data else b"null"
    return data
