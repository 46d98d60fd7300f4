"""How a request comes in: known already, refused, or accepted and on its way.

What is refused here never becomes a request: its client is told why, and nothing is kept.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from polybus.core.actions import Accept, Refuse
from polybus.core.dispatching import dispatch, release
from polybus.core.durable import addressed, note_accepted, tell_again, when_accepted
from polybus.core.ledger import GUARANTEED
from polybus.core.lifecycle import QUEUE, BusState
from polybus.core.model import PLAIN_CALL, Address, Body, JobOptions, QueuePolicy, Reason
from polybus.core.records import Alarm, Client, Request, Service, new_request
from polybus.core.replies import body_size, release_client

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.tables import Tables

# Looking a member up in its enumeration costs as much as a dictionary.
_SERVING: Final = BusState.SERVING
_NO_REFUSAL: Final = (Reason.REJECTED, "")
# Services of the broker itself (`desk`, `lvc`).
BUILT_IN: Final = b"polybus."
LAST_VALUES: Final = b"lvc"


def on_submit(bus: Tables, event: events.Submit, now: float) -> None:
    submit(
        bus,
        event.client,
        event.voice,
        event.request_id,
        event.service,
        event.body,
        now,
        event.options,
        event.ttl_s,
        event.receipt,
        event.fallback,
    )


def submit(
    bus: Tables,
    address: Address,
    voice: Any,
    request_id: bytes,
    name: bytes,
    body: Body,
    now: float,
    options: JobOptions = PLAIN_CALL,
    ttl_s: float | None = None,
    receipt: bool = False,
    fallback: bytes = b"",
) -> None:
    """The event `Submit` as a call: every request passes here, and an event for each would cost more
    than the look-ups it leads to."""
    client = bus.clients.get(address)
    if client is None:
        client = bus.clients[address] = Client(address)
    known = client.known
    if request_id and request_id in known:
        _seen_before(bus, client, voice, request_id, options, receipt)
        return
    size = body_size(body)
    held_bytes = bus.held_bytes + size
    service = bus.services.get(name)
    worker = None if service is None or service.queue.length else service.roster.best()
    if (
        service is None
        or worker is None
        or held_bytes > bus.max_held_bytes
        or size > bus.max_body_bytes
        or client.unanswered >= bus.max_outstanding
        or bus.state is not _SERVING
        or options is not PLAIN_CALL
        or service.policy is not None
    ):
        # With a free worker and all limits kept there is nothing to decide; the others get a closer look.
        if name.startswith(BUILT_IN) or (
            name == LAST_VALUES and (service is None or not service.roster.members)
        ):
            bus.serve(bus, address, voice, request_id, name, body, options, receipt, now)
            release_client(bus, client)
            return
        service, refusal = admit(bus, client, name, fallback, size, options is PLAIN_CALL)
        if service is None:
            _turn_away(bus, client, voice, request_id, name, *refusal, now)
            return
        if options is not PLAIN_CALL or service.policy is not None:
            _accept_special(bus, client, voice, request_id, service, body, options, now, ttl_s, receipt)
            return
        worker = None if service.queue.length else service.roster.best()
    token = bus.next_token()
    expires_at = now + (bus.request_ttl_s if ttl_s is None else ttl_s)
    request = new_request(token, request_id, client, voice, service, body, size, options, now, expires_at)
    known[request_id or token] = request
    client.unanswered += 1
    bus.held_bytes = held_bytes
    bus.counters.accepted += 1
    service.accepted += 1
    if ttl_s is None:
        bus.prompt[token] = request
    else:
        bus.patient[token] = request
        if ttl_s != inf:
            bus.expiries.set(request, expires_at)
    if receipt:
        bus.actions.append(Accept(address, voice, service.name, request_id, token))
    if bus.watched:
        bus.observe_request("accepted", request, now, "", "", body)
    if worker is None:
        request.state = QUEUE[request.state]
        service.queue.push(request)
    else:
        dispatch(bus, request, worker, now)


def _accept_special(
    bus: Tables,
    client: Client,
    voice: Any,
    request_id: bytes,
    service: Service,
    body: Body,
    options: JobOptions,
    now: float,
    ttl_s: float | None,
    receipt: bool,
) -> None:
    """A request that asks for something, or whose queue has rules."""
    options = governed(options, service.policy)
    if options.guarantee and bus.store_trouble:
        reason = Reason.STORE_UNAVAILABLE
        detail = f"it cannot be guaranteed: {bus.store_trouble}"
        _turn_away(bus, client, voice, request_id, service.name, reason, detail, now)
        return
    accept(bus, client, voice, request_id, service, body, options, now, ttl_s, receipt=receipt)


def governed(options: JobOptions, rule: QueuePolicy | None) -> JobOptions:
    """What a client asked for, and what its queue's rule adds to that."""
    if rule is None:
        return options
    return structs.replace(
        options,
        guarantee=options.guarantee or rule.guarantee,
        retries=options.retries or rule.retries or 0,
        timeout_s=options.timeout_s or rule.timeout_s or 0.0,
    )


def accept(
    bus: Tables,
    client: Client,
    voice: Any,
    request_id: bytes,
    service: Service,
    body: Body,
    options: JobOptions,
    now: float,
    ttl_s: float | None = None,
    delay_s: float = 0.0,
    receipt: bool = False,
    promised: bool = False,
) -> Request:
    """Make an admitted request of what a client sent. If it is guaranteed it goes on when it is on disk."""
    token = bus.next_token()
    if ttl_s is None:
        # Work that must be done does not grow stale, unless its client says so.
        ttl_s = inf if options.guarantee or client is bus.desk else bus.request_ttl_s
    size = body_size(body)
    request = new_request(token, request_id, client, voice, service, body, size, options, now, now + ttl_s)
    client.known[request.key] = request
    client.unanswered += 1
    bus.patient[token] = request
    bus.held_bytes += size
    bus.counters.accepted += 1
    service.accepted += 1
    if ttl_s != inf:
        bus.expiries.set(request, request.expires_at)
    if delay_s:
        request.alarm = Alarm(request)
        bus.alarms.set(request.alarm, now + delay_s)
    # Whoever checks the journal must know what was to survive.
    bus.observe_request("accepted", request, now, GUARANTEED if options.guarantee else "", "", body)
    if options.guarantee:
        note_accepted(bus, request, receipt, bus.wall_at(now + delay_s) if delay_s else 0.0, promised)
        return request
    if receipt:
        bus.actions.append(Accept(client.address, voice, service.name, request_id, request.token))
    release(bus, request, now)
    return request


def _seen_before(
    bus: Tables, client: Client, voice: Any, request_id: bytes, options: JobOptions, receipt: bool
) -> None:
    """A request id seen before is not run again: it waits with the first, or gets its answer."""
    bus.counters.duplicates += 1
    seen = client.known[request_id]
    if isinstance(seen, Request):
        pending = seen
        # The peer may have come back with another framing: the newest way to answer counts.
        pending.voice = voice
        if options.reply_requested and not pending.options.reply_requested:
            pending.options = structs.replace(pending.options, reply_requested=True)
        if receipt:
            told = Accept(client.address, voice, pending.service.name, request_id, pending.token)
            when_accepted(bus, told, pending)
        return
    bus.counters.replayed += 1
    done = seen
    if receipt:
        tell_again(bus, Accept(client.address, voice, done.service, request_id, done.token), done)
    if options.reply_requested:
        tell_again(bus, addressed(done, client.address, voice, done.service, request_id), done)


def admit(
    bus: Tables, client: Client, name: bytes, fallback: bytes, size: int, plain: bool = False
) -> tuple[Service | None, tuple[Reason, str]]:
    """The service that takes the request, or why none does. `plain` is a call that is not tried again."""
    limits = bus.limits
    if bus.state is not _SERVING:
        return None, (Reason.DRAINING, "the broker is shutting down; send it again to its successor")
    if client.unanswered >= bus.max_outstanding and client is not bus.desk:
        return None, (
            Reason.TOO_MANY_OUTSTANDING,
            f"{limits.outstanding_per_client} requests of this client are unanswered; wait for answers",
        )
    if size > bus.max_body_bytes:
        return None, (Reason.TOO_LARGE, f"the body has {size} bytes; allowed are {limits.body_bytes}")
    if bus.held_bytes + size > bus.max_held_bytes:
        return None, (
            Reason.OUT_OF_MEMORY,
            f"unanswered requests hold {bus.held_bytes} of {limits.held_bytes} bytes; try again later",
        )
    service = bus.services.get(name)
    if fallback and (service is None or not service.roster.members):
        other = bus.services.get(fallback)
        if other is not None and other.roster.members:
            service = other
    if service is None:
        service = bus.service(name)
        if service is None:
            return None, (
                Reason.TOO_MANY_SERVICES,
                f"{limits.services} services are known; allowed are no more",
            )
    # Those that wait for a time of their own cost as much as those that wait for a worker.
    waiting = service.queue.length + service.waiting
    if waiting >= limits.queue_length and not (plain and _begins_at_once(service)):
        return None, (
            Reason.QUEUE_FULL,
            f"{waiting} requests wait for this service; add workers or try again later",
        )
    return service, _NO_REFUSAL


def _begins_at_once(service: Service) -> bool:
    """Whether a plain call of a service goes to a free worker now, as `submit` does without asking here: it
    does not wait, however many jobs wait for a time of their own."""
    return service.policy is None and not service.queue.length and service.roster.best() is not None


def _turn_away(
    bus: Tables,
    client: Client,
    voice: Any,
    request_id: bytes,
    name: bytes,
    reason: Reason,
    detail: str,
    now: float,
) -> None:
    bus.actions.append(Refuse(client.address, voice, name, request_id, reason, detail, []))
    note_refusal(bus, client.address, voice, request_id, name, reason, detail, now)
    release_client(bus, client)


def note_refusal(
    bus: Tables,
    address: Address,
    voice: Any,
    request_id: bytes,
    name: bytes,
    reason: Reason,
    detail: str,
    now: float,
) -> None:
    """Count what never became a request, and let listeners know."""
    bus.counters.rejected += 1
    word = str(reason)
    bus.refusals[word] = bus.refusals.get(word, 0) + 1
    bus.observe(
        "rejected",
        now,
        request_id=request_id,
        service=name,
        client=address,
        client_voice=voice,
        reason=word,
        detail=detail,
    )
