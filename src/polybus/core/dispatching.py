"""Who gets what next: requests to workers, within the limits of their queues.

By weight, then the least loaded worker, then the least recently used; clients in turn.  Everything here only
moves requests between queues and workers; what ends them is in `requests`.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from polybus.core.actions import new_deliver
from polybus.core.durable import peer_text
from polybus.core.ledger import Started, Waiting
from polybus.core.lifecycle import DISPATCH, QUEUE, REQUEUE, TERMINAL, WAIT, BusState, WorkerState
from polybus.core.model import PLAIN_CALL
from polybus.core.records import Alarm, Request, Service, Worker

if TYPE_CHECKING:
    from polybus.core.tables import Tables

# How many of its heaviest service a worker gets before one of a lighter one.
HEAVY_IN_A_ROW: Final = 10
# Jobs shorter than this are never written down as started: nobody waits for that line, and the next one says
# more. After a crash they are queued again at once, which is right for nearly all of them: their worker is
# done or gone.
LINGER_S: Final = 0.1
# The same moves as a plain dict, which is looked up without a call; what is not in it is, with a reason, not
# in the moves either.
_DISPATCH = dict(DISPATCH)
# Looking a member up in its enumeration costs as much as a dictionary.
_SERVING: Final = BusState.SERVING
_WORKER_SERVES: Final = WorkerState.SERVING


def dispatch(bus: Tables, request: Request, worker: Worker, now: float) -> None:
    # The number of attempts does not tell whether the worker has it: what was claimed, given back or revived
    # may have none.
    if request.token in worker.inflight:
        worker = _somebody_else(request) or worker
    hand_over(bus, request, worker, now)
    if worker.contested:
        refile(worker)


def _somebody_else(request: Request) -> Worker | None:
    """Who is free for a request that was tried before and has not had it, or has answered since."""
    best: Worker | None = None
    best_rank = (0, 0)
    for worker, weight in request.service.roster.members.items():
        if worker.free > 0 and worker.state is _WORKER_SERVES and request.token not in worker.inflight:
            rank = (-weight, len(worker.inflight))
            if best is None or rank < best_rank:
                best, best_rank = worker, rank
    return best


def hand_over(bus: Tables, request: Request, worker: Worker, now: float) -> None:
    """The same for a worker that gets several, and is filed anew after the last of them."""
    request.state = _DISPATCH.get(request.state) or DISPATCH[request.state]
    request.worker = worker
    request.dispatched_at = now
    request.attempt += 1
    still_has_it = False
    if request.token in worker.inflight:
        # It has had it before, was silent or took too long, and has not answered since. It works on it still,
        # unless it could be told to stop, or the job died of it and was revived.
        holding = bus.holders.get(request.token, {}).get(worker)
        still_has_it = holding is not None and holding.is_whole
        if still_has_it or not worker.grants_slots:
            # That slot is this: of two runs only the first answer gives a slot back, unless the worker does.
            worker.free += 1
    worker.inflight[request.token] = request
    worker.free -= 1
    worker.spoken_at = now
    service = request.service
    service.running += 1
    bus.counters.dispatched += 1
    if request.options is not PLAIN_CALL or service.limited:
        _note_start(bus, request, worker, service, now)
    if not still_has_it:
        bus.actions.append(new_deliver(worker, request))
    if bus.watched:
        bus.observe_request("dispatched", request, now)


def _note_start(bus: Tables, request: Request, worker: Worker, service: Service, now: float) -> None:
    """What a dispatch means for those that are counted, written down or limited in time."""
    if service.limited:
        service.allowance -= 1.0
    if request.durable:
        request.is_start_noted = False
        if bus.starts_at == inf:
            bus.starts_at = now + LINGER_S
    limit_s = request.options.timeout_s
    if limit_s:
        if request.alarm is None:
            request.alarm = Alarm(request)
        bus.alarms.clear(request.alarm)
        bus.alarms.set(request.alarm, now + limit_s + bus.limits.timeout_grace_s)


def note_starts_due(bus: Tables, now: float) -> None:
    """Write down who has the jobs that last."""
    if now >= bus.starts_at:
        note_starts(bus, now - LINGER_S)
        if bus.starts_at != inf:
            bus.starts_at = now + LINGER_S


def note_starts(bus: Tables, until: float = inf) -> None:
    """Write down who has the jobs that were handed out until then, unless that was done."""
    bus.starts_at = inf
    for worker in bus.workers.values():
        for request in worker.inflight.values():
            if not request.durable or request.is_start_noted:
                continue
            if request.worker is not worker or request.state in TERMINAL:
                continue
            if request.dispatched_at > until:
                bus.starts_at = until
                continue
            request.is_start_noted = True
            bus.lines.append(Started(request.token, request.attempt, peer_text(worker.address)))


def release(bus: Tables, request: Request, now: float) -> None:
    """Let an accepted request go its way: to a worker, into its queue, or to wait until it is due."""
    if request.alarm is not None and request.alarm.slot:
        request.state = WAIT[request.state]
        request.service.waiting += 1
    else:
        place(bus, request, now)


def place(bus: Tables, request: Request, now: float) -> None:
    """Give a request to a worker if one is free, else let it wait for one."""
    if request.durable and bus.state is not _SERVING:
        park(request)
        return
    service = request.service
    worker = None if service.queue.length or not may_start(bus, service, now) else service.roster.best()
    if worker is not None:
        dispatch(bus, request, worker, now)
        return
    request.state = QUEUE[request.state]
    service.queue.push(request)


def park(request: Request) -> None:
    """While we drain nothing is begun that our successor finds on disk."""
    request.state = WAIT[request.state]
    request.service.waiting += 1


def line_up(bus: Tables, request: Request) -> None:
    """Let a request that comes back wait for a worker before all others."""
    if request.durable and bus.state is not _SERVING:
        park(request)
    else:
        request.service.queue.push_front(request)


def may_start(bus: Tables, service: Service, now: float) -> bool:
    """Whether the queue's limits allow one more to be started now. If its rate forbids it, it is looked at
    again as soon as that changes; if too many are running, when one of them ends."""
    rule = service.policy
    if not service.limited or rule is None:
        return True
    if rule.concurrency and service.running >= rule.concurrency:
        return False
    if not rule.rate_per_s:
        return True
    # A second's worth may be saved up, and at least one.
    most = max(1.0, rule.rate_per_s)
    service.allowance = min(most, service.allowance + (now - service.allowance_at) * rule.rate_per_s)
    service.allowance_at = now
    if service.allowance >= 1.0:
        return True
    if not service.slot:
        bus.gates.set(service, now + (1.0 - service.allowance) / rule.rate_per_s)
    return False


def feed(bus: Tables, worker: Worker, now: float) -> None:
    """Give a worker what waits for it. One that rests gets a single request: it may have room for that."""
    sole = next(iter(worker.offers)) if len(worker.offers) == 1 else None
    was_free = worker.free
    while worker.free > 0:
        service = sole
        if service is None:
            service = _heaviest(bus, worker, now)
            if service is None:
                break
        elif not service.queue.length or (service.limited and not may_start(bus, service, now)):
            break
        hand_over(bus, service.queue.pop(), worker, now)
        if worker.state is not _WORKER_SERVES:
            break
    if worker.contested and worker.free != was_free:
        refile(worker)


def _heaviest(bus: Tables, worker: Worker, now: float) -> Service | None:
    """The service whose request a worker gets next: its heaviest one first, equal ones in turn; and after ten
    of the heaviest one of a lighter one, because to come last must not mean never."""
    best: Service | None = None
    best_weight = 0
    mixed = False
    for service, weight in worker.offers.items():
        if not service.queue.length or (service.limited and not may_start(bus, service, now)):
            continue
        if best is None:
            best, best_weight = service, weight
        elif weight != best_weight:
            mixed = True
            if weight > best_weight:
                best, best_weight = service, weight
    if not mixed:
        worker.streak = 0
    elif worker.streak < HEAVY_IN_A_ROW:
        worker.streak += 1
    else:
        worker.streak = 0
        for service, weight in worker.offers.items():
            # The one that was served last is at the end, so all lighter ones have their turn.
            if weight < best_weight and service.queue.length and may_start(bus, service, now):
                best = service
                break
    if best is not None and len(worker.offers) > 1:
        # To the end of the line among services of the same weight.
        worker.offers[best] = worker.offers.pop(best)
    return best


def flow(bus: Tables, service: Service, now: float) -> None:
    """Give what waits for a service to whoever is free."""
    while service.queue.length:
        worker = service.roster.best()
        if worker is None or (service.limited and not may_start(bus, service, now)):
            return
        dispatch(bus, service.queue.pop(), worker, now)


def refile(worker: Worker) -> None:
    for service in worker.offers:
        service.roster.refile(worker)


def slot_back(bus: Tables, worker: Worker, now: float) -> None:
    if not worker.grants_slots:
        worker.free += 1
    refile(worker)
    feed(bus, worker, now)


def requeue(bus: Tables, request: Request, why: str, now: float) -> None:
    bus.counters.requeued += 1
    bus.observe_request("requeued", request, now, why)
    request.state = REQUEUE[request.state]
    request.worker = None
    request.service.running -= 1
    line_up(bus, request)
    if request.alarm is not None:
        bus.alarms.clear(request.alarm)
    if request.durable:
        bus.lines.append(Waiting(request.token, request.attempt, 0.0, request.history))
