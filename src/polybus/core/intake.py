"""How a request comes in: known already, refused, or accepted and on its way.

What is refused here never becomes a request: its client is told why, and nothing is kept.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from msgspec import structs

from polybus.core.actions import Accept, Answer, Refuse
from polybus.core.lifecycle import QUEUE, BusState
from polybus.core.model import Client, Reason, Request, Service
from polybus.core.replies import release_client
from polybus.core.requests import dispatch

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.bus import Bus


def on_submit(bus: Bus, event: events.Submit, now: float) -> None:
    client = bus.clients.get(event.client)
    if client is None:
        client = bus.clients[event.client] = Client(event.client)
    request_id = event.request_id
    if request_id and (request_id in client.outstanding or request_id in client.done):
        _seen_before(bus, client, event)
        return
    body = event.body
    size = len(body[0]) if len(body) == 1 else sum(map(len, body))
    service = bus.services.get(event.service)
    limits = bus.limits
    if (
        service is None
        or bus.state is not BusState.SERVING
        or size > limits.body_bytes
        or bus.held_bytes + size > limits.held_bytes
        or service.queue.length >= limits.queue_length
        or len(client.outstanding) >= limits.outstanding_per_client
        or not service.roster.members
    ):
        # Most requests pass all of these; the others get a closer look.
        service, refusal = _admit(bus, client, event, size)
        if service is None:
            reason, detail = refusal
            _turn_away(bus, client, event, reason, detail, now)
            return
    bus.sequence += 1
    token = b"%b%x" % (bus.nonce, bus.sequence)
    ttl_s = event.ttl_s if event.ttl_s is not None else limits.request_ttl_s
    expires_at = now + ttl_s
    request = Request(
        token, request_id, client, event.voice, service, body, size, event.options, now, expires_at
    )
    client.outstanding[request_id or token] = request
    bus.requests[token] = request
    bus.held_bytes += size
    bus.counters.accepted += 1
    service.accepted += 1
    if ttl_s != inf:
        bus.expiries.set(request, expires_at)
    if event.receipt:
        bus.actions.append(Accept(event.client, event.voice, service.name, request_id))
    if bus.watched:
        bus.observe_request("accepted", request, now, body=event.body)
    worker = service.roster.best() if not service.queue.length else None
    if worker is None:
        request.state = QUEUE[request.state]
        service.queue.push(request)
    else:
        dispatch(bus, request, worker, now)


def _seen_before(bus: Bus, client: Client, event: events.Submit) -> None:
    """A request id seen before is not run again: it waits with the first, or gets its answer."""
    pending = client.outstanding.get(event.request_id)
    if pending is not None:
        bus.counters.duplicates += 1
        # The peer may have come back with another framing: the newest way to answer counts.
        pending.voice = event.voice
        if event.options.reply_requested and not pending.options.reply_requested:
            pending.options = structs.replace(pending.options, reply_requested=True)
        if event.receipt:
            bus.actions.append(Accept(client.address, event.voice, pending.service.name, event.request_id))
        return
    done = client.done[event.request_id]
    bus.counters.duplicates += 1
    bus.counters.replayed += 1
    if event.receipt:
        bus.actions.append(Accept(client.address, event.voice, done.service, event.request_id))
    if not event.options.reply_requested:
        return
    if done.reason is None:
        bus.actions.append(Answer(client.address, event.voice, done.service, event.request_id, done.body))
    else:
        bus.actions.append(
            Refuse(
                client.address,
                event.voice,
                done.service,
                event.request_id,
                done.reason,
                done.detail,
                done.body,
            )
        )


def _admit(
    bus: Bus, client: Client, event: events.Submit, size: int
) -> tuple[Service | None, tuple[Reason, str]]:
    """The service that takes the request, or why none does."""
    limits = bus.limits
    if bus.state is not BusState.SERVING:
        return None, (Reason.DRAINING, "the broker is shutting down; send it again to its successor")
    if len(client.outstanding) >= limits.outstanding_per_client:
        return None, (
            Reason.TOO_MANY_OUTSTANDING,
            f"{limits.outstanding_per_client} requests of this client are unanswered; wait for answers",
        )
    if size > limits.body_bytes:
        return None, (Reason.TOO_LARGE, f"the body has {size} bytes; allowed are {limits.body_bytes}")
    if bus.held_bytes + size > limits.held_bytes:
        return None, (
            Reason.OUT_OF_MEMORY,
            f"unanswered requests hold {bus.held_bytes} of {limits.held_bytes} bytes; try again later",
        )
    service = bus.services.get(event.service)
    if event.fallback and (service is None or not service.roster.members):
        other = bus.services.get(event.fallback)
        if other is not None and other.roster.members:
            service = other
    if service is None:
        service = bus.service(event.service)
        if service is None:
            return None, (
                Reason.TOO_MANY_SERVICES,
                f"{limits.services} services are known; allowed are no more",
            )
    if service.queue.length >= limits.queue_length:
        return None, (
            Reason.QUEUE_FULL,
            f"{service.queue.length} requests wait for this service; add workers or try again later",
        )
    return service, (Reason.REJECTED, "")


def _turn_away(
    bus: Bus, client: Client, event: events.Submit, reason: Reason, detail: str, now: float
) -> None:
    bus.counters.rejected += 1
    bus.actions.append(
        Refuse(client.address, event.voice, event.service, event.request_id, reason, detail, [])
    )
    bus.observe(
        "rejected",
        now,
        request_id=event.request_id,
        service=event.service,
        client=client.address,
        client_voice=event.voice,
        reason=str(reason),
        detail=detail,
    )
    release_client(bus, client)
