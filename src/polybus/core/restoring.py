"""The first thing a broker does: take up again what the ledger says was there.

Jobs that waited wait again, in their order.  Jobs that a worker had are orphans for a while: their worker
may still be running them and come back to say so, or simply answer; only later are they given to others.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from polybus.core import attempts, flows, ledger, scheduling
from polybus.core.actions import Answer, Refuse
from polybus.core.durable import keep_outcome
from polybus.core.lifecycle import ORPHAN, QUEUE, WAIT
from polybus.core.model import Reason, is_made_up
from polybus.core.records import Client, new_request
from polybus.core.replies import body_size
from polybus.core.tables import DESK

if TYPE_CHECKING:
    from polybus.core.bus import Bus

# The number of links that are no longer there: nothing can be sent to them.
NO_LINK = -2
# libzmq makes identities of a zero and a number of four bytes.
MADE_UP_BYTES: Final = 5


def restore(bus: Bus, contents: ledger.Contents, silent: Any, now: float) -> None:
    """Fill an empty bus. `silent` is the voice for clients that can no longer be spoken to."""
    links = {name: number for number, name in bus.link_names.items()}
    for key, state in contents.groups.items():
        flows.reopen_group(bus, key, state)
    for outcome in contents.outcomes:
        _restore_outcome(bus, outcome, links, silent)
    for entry in contents.jobs:
        _restore_job(bus, entry, links, silent, now)
    for key in contents.groups:
        flows.count_members(bus, key, now)
    scheduling.restore(bus, contents.schedules, now)


def _client(bus: Bus, link: str, identity: bytes, token: bytes, links: dict[str, int]) -> Client:
    address = (links.get(link, NO_LINK), _lasting(identity, token))
    if address == DESK:
        return bus.desk
    client = bus.clients.get(address)
    if client is None:
        client = bus.clients[address] = Client(address)
    return client


def _lasting(identity: bytes, token: bytes) -> bytes:
    """The identity of a client of an earlier life of the broker.

    One that libzmq made up belonged to a connection that is gone, and libzmq gives the same ones to the
    connections of this process: other clients, who must neither get answers that are not theirs nor find
    their request ids taken. So the earlier life, which the token of the request begins with, is added to it.
    """
    if len(identity) != MADE_UP_BYTES or not is_made_up(identity):
        return identity
    return identity + token.partition(b"-")[0]


def _restore_outcome(bus: Bus, outcome: ledger.Outcome, links: dict[str, int], silent: Any) -> None:
    client = _client(bus, outcome.link, outcome.identity, outcome.token, links)
    word: Answer | Refuse
    if outcome.reason:
        try:
            reason = Reason(outcome.reason)
        except ValueError:
            reason = Reason.FAILED
        word = Refuse(
            client.address,
            silent,
            outcome.service,
            outcome.request_id,
            reason,
            outcome.detail,
            outcome.body,
            outcome.token,
        )
    else:
        word = Answer(
            client.address, silent, outcome.service, outcome.request_id, outcome.body, outcome.token
        )
    client.known[outcome.request_id] = word
    kept = (client, word, outcome.token, outcome.at - bus.wall_offset)
    group = bus.groups.get(outcome.request_id.rpartition(b"/")[0]) if client is bus.desk else None
    if group is None:
        keep_outcome(bus, *kept)
    else:
        group.kept.append(kept)


def _restore_job(bus: Bus, entry: ledger.JobEntry, links: dict[str, int], silent: Any, now: float) -> None:
    client = _client(bus, entry.link, entry.identity, entry.token, links)
    # More services than allowed are no reason to lose what was promised.
    service = bus.service(entry.service) or bus.extra_service(entry.service)
    size = body_size(entry.body)
    request = new_request(
        entry.token,
        entry.request_id,
        client,
        bus.voices.get(entry.voice, silent),
        service,
        entry.body,
        size,
        entry.options,
        entry.accepted_at - bus.wall_offset,
        inf if entry.expires_at is None else entry.expires_at - bus.wall_offset,
    )
    request.durable = True
    request.attempt = entry.attempt
    request.history = entry.history
    request.failures = ledger.failures_in(entry.history)
    client.known[request.key] = request
    client.unanswered += 1
    bus.patient[request.token] = request
    bus.held_bytes += size
    bus.counters.accepted += 1
    service.accepted += 1
    if request.expires_at != inf:
        bus.expiries.set(request, request.expires_at)
    if entry.worker:
        # It counts as running, so that no more are started than the queue allows.
        request.state = ORPHAN[request.state]
        service.running += 1
        attempts.set_alarm(bus, request, now + bus.limits.orphan_grace_s)
    elif entry.due_at > bus.wall_at(now):
        request.state = WAIT[request.state]
        service.waiting += 1
        attempts.set_alarm(bus, request, entry.due_at - bus.wall_offset)
    else:
        request.state = QUEUE[request.state]
        service.queue.push(request)
