"""Workers and schedulers: how they come, how their life is watched, how they go.

Liveness is a deadline that is checked when it comes, not moved with every message: a message only
notes the time, so ten thousand chatty workers cost nothing on the hot path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polybus.core import attempts, dispatching, events
from polybus.core.actions import (
    HEARTBEAT_MISSED,
    UNKNOWN_WORKER,
    Beat,
    Dial,
    Dismiss,
    HangUp,
)
from polybus.core.intake import BUILT_IN
from polybus.core.lifecycle import CONGEST, LEAVE, TERMINAL, WorkerState
from polybus.core.model import Address, Heartbeat, Reason, Request, Service, Worker
from polybus.core.requests import heard

if TYPE_CHECKING:
    from polybus.core.bus import Bus


def on_worker_up(bus: Bus, event: events.WorkerUp, now: float) -> None:
    bring_up(bus, event, now)


def bring_up(bus: Bus, event: events.WorkerUp, now: float) -> Worker | None:
    """The new worker; None if it was sent away."""
    waiting: Iterable[Service] = ()
    if event.worker in bus.workers:
        # The same identity begins anew (a restarted process): what it held is lost to it, unless it says
        # below that it still has it.
        why = "it began a new conversation"
        waiting = withdraw(bus, bus.workers[event.worker], why, now, event.holding)
    offers = {}
    for name, weight in event.offers:
        service = None if name.startswith(BUILT_IN) else bus.service(name)
        if service is None:
            bus.actions.append(Dismiss(event.worker, event.voice, _why_not(name)))
            for waiting_service in waiting:
                dispatching.flow(bus, waiting_service, now)
            return None
        offers[service] = _weight(service, weight)
    address = dial(bus, event.worker, event.endpoint) if event.endpoint else event.worker
    worker = Worker(
        address,
        event.voice,
        event.heartbeat,
        event.credit,
        event.grants_slots,
        now,
        offers,
        endpoint=event.endpoint,
        forgets_stopped=event.forgets_stopped,
    )
    bus.workers[address] = worker
    if event.endpoint:
        bus.dialled_at.setdefault(event.endpoint, {})[worker] = None
    for service, weight in offers.items():
        service.roster.add(worker, weight)
        if bus.bridging is not None:
            bus.bridging.settle(service.name, now)
    _watch(bus, worker, now)
    bus.observe(
        "worker_up",
        now,
        worker=address,
        worker_voice=event.voice,
        service=b",".join(s.name for s in offers),
    )
    attempts.claim(bus, worker, event.holding, now)
    for service in waiting:
        dispatching.flow(bus, service, now)
    dispatching.feed(bus, worker, now)
    return worker


def on_offer(bus: Bus, event: events.Offer, now: float) -> None:
    worker = bus.workers.get(event.worker)
    if worker is None:
        bus.actions.append(Dismiss(event.worker, event.voice, UNKNOWN_WORKER))
        return
    heard(bus, worker, now)
    service = None if event.service.startswith(BUILT_IN) else bus.service(event.service)
    if service is None:
        # It would wait for requests that never come: better that it knows.
        why = _why_not(event.service)
        remove(bus, worker, why, now)
        bus.actions.append(Dismiss(event.worker, event.voice, why))
        return
    weight = _weight(service, event.weight)
    worker.offers[service] = weight
    service.roster.add(worker, weight)
    if bus.bridging is not None:
        bus.bridging.settle(service.name, now)
    bus.observe("offered", now, worker=event.worker, worker_voice=event.voice, service=event.service)
    dispatching.feed(bus, worker, now)


def _why_not(name: bytes) -> str:
    """Why a service is not to be offered."""
    if name.startswith(BUILT_IN):
        return f"{name.decode(errors='replace')} is a service of the broker itself"
    return str(Reason.TOO_MANY_SERVICES)


def _weight(service: Service, offered: int) -> int:
    """How much a worker prefers a service: what the settings of the queue say, else what it said itself."""
    rule = service.policy
    return offered if rule is None or rule.weight is None else rule.weight


def on_scheduler_up(bus: Bus, event: events.SchedulerUp, now: float) -> None:
    if event.worker in bus.workers:
        remove(bus, bus.workers[event.worker], "it began a new conversation", now)
    scheduler = Worker(event.worker, event.voice, event.heartbeat, 0, True, now, is_scheduler=True)
    bus.workers[event.worker] = scheduler
    bus.schedulers.append(scheduler)
    _watch(bus, scheduler, now)
    bus.observe("scheduler_up", now, worker=event.worker, worker_voice=event.voice)


def on_slot(bus: Bus, event: events.Slot, now: float) -> None:
    worker = bus.workers.get(event.worker)
    if worker is None:
        bus.actions.append(Dismiss(event.worker, event.voice, UNKNOWN_WORKER))
        return
    # One that rests gets one request for it, as with an answer: all at once would only be refused again.
    worker.seen_at = now
    worker.free += 1
    dispatching.refile(worker)
    dispatching.feed(bus, worker, now)


def on_heard(bus: Bus, event: events.Heard, now: float) -> None:
    worker = bus.workers.get(event.worker)
    if worker is None:
        # It believes in a conversation that we do not know of: we are new, or gave it up for lost.
        bus.actions.append(Dismiss(event.worker, event.voice, UNKNOWN_WORKER))
        return
    heard(bus, worker, now)


def on_worker_gone(bus: Bus, event: events.WorkerGone, now: float) -> None:
    worker = bus.workers.get(event.worker)
    if worker is not None:
        remove(bus, worker, event.reason, now)


def on_worker_full(bus: Bus, event: events.WorkerFull, now: float) -> None:
    """Its pipe took no more: the request goes to someone else, the worker rests until it is heard."""
    worker = bus.workers.get(event.worker)
    if worker is None or worker.is_scheduler:
        return
    if event.token in worker.inflight:
        service = worker.inflight[event.token].service
        worker.free += 1
        attempts.requeue_one(bus, worker, event.token, "its worker's pipe was full", now)
        worker.state = CONGEST[worker.state]
        dispatching.refile(worker)
        dispatching.flow(bus, service, now)


def remove(bus: Bus, worker: Worker, why: str, now: float) -> None:
    for service in withdraw(bus, worker, why, now):
        dispatching.flow(bus, service, now)


def withdraw(
    bus: Bus, worker: Worker, why: str, now: float, kept: tuple[bytes, ...] = ()
) -> Iterable[Service]:
    """Let a worker go. The services that have work again, which nobody has been given yet."""
    _detach(bus, worker, why, now)
    if worker.endpoint:
        _hang_up(bus, worker, now)
    return attempts.take_back(bus, worker, why, now, kept)


def _detach(bus: Bus, worker: Worker, why: str, now: float) -> None:
    worker.state = LEAVE[worker.state]
    del bus.workers[worker.address]
    bus.watches.clear(worker)
    if worker.endpoint:
        there = bus.dialled_at[worker.endpoint]
        del there[worker]
        if not there:
            del bus.dialled_at[worker.endpoint]
    if worker.is_scheduler:
        bus.schedulers.remove(worker)
    for service in worker.offers:
        service.roster.discard(worker)
    if bus.bridging is not None:
        bus.bridging.left(worker, why, now)
    bus.observe(
        "worker_down",
        now,
        worker=worker.address,
        worker_voice=worker.voice,
        service=b",".join(service.name for service in worker.offers),
        reason=why,
        # When it came: readers need not look for that.
        accepted_at=worker.since,
    )


# -- dialling ---------------------------------------------------------------------------------


def dial(bus: Bus, place: Address, endpoint: str) -> Address:
    bus.dialled += 1
    link, name = place
    identity = b"%b#%x" % (name, bus.dialled)
    bus.actions.append(Dial(identity, endpoint))
    return link, identity


def _hang_up(bus: Bus, worker: Worker, now: float) -> None:
    """Close the connection to a worker."""
    hang_up(bus, worker.address[1], worker.endpoint, now)


def hang_up(bus: Bus, identity: bytes, endpoint: str, now: float) -> None:
    """Close a connection that was dialled. Whoever still is a worker at this endpoint gets a new one."""
    bus.actions.append(HangUp(identity, endpoint))
    bus.catalog.spare.pop(endpoint, None)
    for other in list(bus.dialled_at.get(endpoint, ())):
        # Hanging up closes all connections to the endpoint, and one process may have several names.
        if other.state is not WorkerState.GONE:
            _redial(bus, other, now)


def _redial(bus: Bus, worker: Worker, now: float) -> None:
    """Go on with a worker on a new connection, where nothing that it still says about the past can arrive."""
    why = "its connection was made anew"
    _detach(bus, worker, why, now)
    link, identity = worker.address
    offers = tuple((service.name, weight) for service, weight in worker.offers.items())
    fresh = bring_up(
        bus,
        events.WorkerUp(
            (link, identity.rpartition(b"#")[0]),
            worker.voice,
            offers,
            worker.heartbeat,
            worker.credit,
            endpoint=worker.endpoint,
        ),
        now,
    )
    for name, _ in offers:
        node = bus.nodes.get(name)
        if node is not None and node.worker is worker:
            node.worker = fresh
    for service in attempts.take_back(bus, worker, why, now):
        dispatching.flow(bus, service, now)


# -- watching ---------------------------------------------------------------------------------


def _watch(bus: Bus, worker: Worker, now: float) -> None:
    if worker.heartbeat.dead_after_s > 0:
        bus.watches.set(worker, now + _period(worker.heartbeat))


def _period(heartbeat: Heartbeat) -> float:
    return heartbeat.beat_every_s or heartbeat.dead_after_s / 3


def _is_given_up(request: Request, worker: Worker) -> bool:
    """Whether a worker has something that it should not have any more."""
    return request.state in TERMINAL or request.worker is not worker


def watch_due(bus: Bus, now: float) -> None:
    for worker in bus.watches.due(now):
        if worker.state is WorkerState.GONE:
            # It went with another one at the same endpoint.
            continue
        if worker.endpoint and any(_is_given_up(request, worker) for request in worker.inflight.values()):
            # Nobody waits for it any more and it may never come: the slot is taken back.
            _hang_up(bus, worker, now)
            continue
        heartbeat = worker.heartbeat
        if heartbeat.dead_after_s <= 0:
            continue
        silent_s = now - worker.seen_at
        if silent_s >= heartbeat.dead_after_s:
            bus.counters.workers_lost += 1
            bus.observe(
                "heartbeat_missed",
                now,
                worker=worker.address,
                worker_voice=worker.voice,
                reason=f"{silent_s:.1f} s",
            )
            bus.actions.append(Dismiss(worker.address, worker.voice, HEARTBEAT_MISSED))
            remove(bus, worker, f"nothing was heard from it for {silent_s:.1f} s", now)
            continue
        look_at = min(now + _period(heartbeat), worker.seen_at + heartbeat.dead_after_s)
        if heartbeat.beat_every_s:
            since = worker.seen_at if heartbeat.when_silent else worker.spoken_at
            if now - since >= heartbeat.beat_every_s:
                worker.spoken_at = now
                bus.actions.append(Beat(worker))
            else:
                # Something was said meanwhile: the next beat is due one interval after that.
                look_at = min(look_at, since + heartbeat.beat_every_s)
        if silent_s >= _period(heartbeat) * 1.5:
            worker.missed += 1
        if worker.state is WorkerState.CONGESTED:
            # Its pipe may have drained meanwhile; if not, the next refusal puts it to rest again.
            seen_at = worker.seen_at
            heard(bus, worker, now)
            worker.seen_at = seen_at
        bus.watches.set(worker, look_at)
