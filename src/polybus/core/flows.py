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
from polybus.core.durable import remember, tell_waiters
from polybus.core.intake import accept
from polybus.core.lifecycle import ANSWER
from polybus.core.model import Body, Reason, Request
from polybus.core.requests import end

if TYPE_CHECKING:
    from polybus.core.tables import Tables

SERVICE: Final = b"polybus.submit"


class Group(Struct):
    """A group that waits for its members. What they returned is found by their ids."""

    size: int
    guarantee: bool
    then: tuple[bytes, ...] = ()
    # Not written down: counted again after a restart.
    missing: int = 0


_GROUP: Final = msgspec.msgpack.Decoder(Group)


def member_id(group: bytes, position: int) -> bytes:
    return b"%b/%d" % (group, position)


# -- chains -----------------------------------------------------------------------------------


def follow(bus: Tables, request: Request, body: Body, now: float) -> bool:
    """Accept the job that follows a finished one, under the same id; False if none does."""
    if not request.options.then:
        return False
    spec = envelope.read_spec(request.options.then[0])
    service = bus.service(spec.service.encode())
    if service is None:
        return False
    frames = envelope.with_result(spec.body, [bytes(frame) for frame in body])
    options = envelope.options_of(spec, request.options.then[1:], request.options.group)
    # The step ends without a word to anybody; what the job comes to is not known yet.
    step = msgspec.structs.replace(request.options, then=(), group=b"", reply_requested=False)
    request.options = step
    request_id, request.request_id = request.request_id, b""
    client = request.client
    client.known.pop(request_id, None)
    client.known[request.token] = request
    end(bus, request, ANSWER, None, "", [], now)
    accept(bus, client, request.voice, request_id, service, frames, options, now)
    return True


# -- groups -----------------------------------------------------------------------------------


def open_group(bus: Tables, key: bytes, group: Group) -> None:
    group.missing = group.size
    bus.groups[key] = group
    if group.guarantee and not bus.store_trouble:
        bus.lines.append(ledger.Grouped(key, msgspec.msgpack.encode(group)))


def restore_group(bus: Tables, key: bytes, state: bytes, now: float) -> None:
    group = _GROUP.decode(state)
    known = bus.desk.known
    group.missing = sum(
        isinstance(known.get(member_id(key, position)), Request) for position in range(group.size)
    )
    bus.groups[key] = group
    if not group.missing:
        _close(bus, key, group, now)


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
    results, failed = _results(bus, key, group.size)
    body = [b"[%b]" % b",".join(results)]
    if failed:
        detail = f"{len(failed)} of {group.size} jobs failed; the first: {failed[0]}"
        word: Answer | Refuse = Refuse(bus.desk.address, None, SERVICE, key, Reason.GROUP_FAILED, detail, [])
    elif group.then:
        spec = envelope.read_spec(group.then[0])
        service = bus.service(spec.service.encode())
        if service is not None:
            options = envelope.options_of(spec, group.then[1:])
            frames = envelope.with_result(spec.body, body)
            accept(bus, bus.desk, None, key, service, frames, options, now)
            return
        word = Refuse(bus.desk.address, None, SERVICE, key, Reason.TOO_MANY_SERVICES, spec.service, [])
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.encode(data.decode(errors="replace")) if data else b"null"
    return data
