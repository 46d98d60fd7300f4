"""Workers and schedulers: how they come, how their life is watched, how they go.

Liveness is a deadline that is checked when it comes, not moved with every message: a message only
notes the time, so ten thousand chatty workers cost nothing on the hot path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polybus.core import attempts, dispatching, events, holders
from polybus.core.actions import (
    HEARTBEAT_MISSED,
    Beat,
    Dial,
    Dismiss,
    HangUp,
)
from polybus.core.holders import tell_to_register, worker_at
from polybus.core.intake import BUILT_IN
from polybus.core.lifecycle import ABSENT, CONGEST, LEAVE, LOSE, TERMINAL, Move, RequestState, WorkerState
from polybus.core.model import Address, Reason, Request, Service, Worker, is_made_up
from polybus.core.requests import heard

if TYPE_CHECKING:
    from polybus.core.bus import Bus


def on_worker_up(bus: Bus, event: events.WorkerUp, now: float) -> None:
    bring_up(bus, event, now)


def bring_up(bus: Bus, event: events.WorkerUp, now: float) -> Worker | None:
    """The new worker; None if it was sent away."""
    waiting: Iterable[Service] = ()
    undecided = _begin_anew(bus, event.worker)
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
            _decide(bus, undecided, "it began a new conversation", now)
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
        obeys_stop=event.obeys_stop,
        resumes=event.resumes,
    )
    bus.workers[address] = worker
    bus.let_go.pop(address, None)
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
    _decide(bus, undecided, "it began a new conversation", now)
    for service in waiting:
        dispatching.flow(bus, service, now)
    dispatching.feed(bus, worker, now)
    return worker


def on_offer(bus: Bus, event: events.Offer, now: float) -> None:
    worker = worker_at(bus, event.worker, now)
    if worker is None:
        tell_to_register(bus, event.worker, event.voice, now)
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
    _decide(bus, _begin_anew(bus, event.worker), "it began a new conversation", now)
    scheduler = Worker(event.worker, event.voice, event.heartbeat, 0, True, now, is_scheduler=True)
    bus.workers[event.worker] = scheduler
    bus.let_go.pop(event.worker, None)
    bus.schedulers.append(scheduler)
    _watch(bus, scheduler, now)
    bus.observe("scheduler_up", now, worker=event.worker, worker_voice=event.voice)


def on_slot(bus: Bus, event: events.Slot, now: float) -> None:
    worker = worker_at(bus, event.worker, now)
    if worker is None:
        tell_to_register(bus, event.worker, event.voice, now)
        return
    # One that rests gets one request for it, as with an answer: all at once would only be refused again.
    worker.seen_at = now
    worker.free += 1
    if worker.owed_slots:
        holders.slots_back(worker, 1)
    dispatching.refile(worker)
    dispatching.feed(bus, worker, now)


def on_heard(bus: Bus, event: events.Heard, now: float) -> None:
    worker = worker_at(bus, event.worker, now)
    if worker is None or worker.state in ABSENT:
        # It believes in a conversation that we do not know of: we are new, or gave it up for lost.
        tell_to_register(bus, event.worker, event.voice, now)
        return
    heard(bus, worker, now)


def on_worker_gone(bus: Bus, event: events.WorkerGone, now: float) -> None:
    worker = bus.workers.get(event.worker)
    silent = bus.silent.get(event.worker)
    if worker is not None:
        if event.is_unreachable and _may_return(bus, worker):
            _depart(bus, worker, event.reason, now)
        else:
            remove(bus, worker, event.reason, now)
    elif silent is not None:
        if event.is_unreachable and _may_return(bus, silent):
            _decide(bus, holders.depart(bus, silent), event.reason, now)
        else:
            forget_silent(bus, silent, event.reason, now)
    else:
        bus.let_go.pop(event.worker, None)
        bus.resting.pop(event.worker, None)
        if event.worker in bus.departed and not event.is_unreachable:
            holders.forget(bus, bus.departed[event.worker])


def _may_return(bus: Bus, worker: Worker) -> bool:
    """Whether a worker whose connection broke can be recognised when it comes back: by an identity that it
    chose itself."""
    is_neighbour = bus.bridging is not None and bus.bridging.is_neighbour(worker)
    return not (worker.endpoint or is_neighbour or is_made_up(worker.address[1]))


def _depart(bus: Bus, worker: Worker, why: str, now: float) -> None:
    """The connection of a worker broke. Others get what it has; but it may come back with an answer."""
    _detach(bus, worker, why, now)
    services = attempts.take_back(bus, worker, why, now, silent=True)
    bus.departed[worker.address] = worker
    holders.settle_departed(bus, worker)
    for service in services:
        dispatching.flow(bus, service, now)


def on_worker_full(bus: Bus, event: events.WorkerFull, now: float) -> None:
    """Its pipe took no more: the request goes to someone else, the worker rests until it is heard."""
    worker = bus.workers.get(event.worker)
    if worker is None:
        silent = bus.silent.get(event.worker)
        if silent is not None and event.token in silent.inflight:
            # It was declared lost in the same turn, and never got this one.
            _decide(bus, _never_got(bus, silent, event.token), "its pipe was full", now)
        return
    if worker.is_scheduler:
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


# -- silent ---------------------------------------------------------------------------------------


def is_busy(worker: Worker) -> bool:
    """Whether it has a request without an answer."""
    return any(request.state not in TERMINAL for request in worker.inflight.values())


def lose(bus: Bus, worker: Worker, why: str, now: float) -> None:
    """A worker was silent for too long: it counts as disconnected. If it has requests without an answer it
    may only be busy, so its connection is left alone: it may still answer (`holders`)."""
    bus.counters.workers_lost += 1
    is_neighbour = bus.bridging is not None and bus.bridging.is_neighbour(worker)
    if not is_busy(worker) and worker.inflight and worker.resumes:
        # It works for nothing, and nothing can be told to it.
        _detach(bus, worker, why, now, LOSE)
        holders.rest(bus, worker)
        return
    if not is_busy(worker) or is_neighbour:
        bus.actions.append(Dismiss(worker.address, worker.voice, HEARTBEAT_MISSED))
        if worker.inflight and not worker.endpoint and not is_neighbour:
            # It may work for nothing; what it sends before it reads the goodbye gets no second one.
            holders.note_let_go(bus, worker, now)
        remove(bus, worker, why, now)
        return
    _detach(bus, worker, why, now, LOSE)
    bus.silent[worker.address] = worker
    for service in attempts.take_back(bus, worker, why, now, silent=True):
        dispatching.flow(bus, service, now)


def _probe(bus: Bus, worker: Worker, now: float) -> None:
    """Find out whether a silent worker is still connected, if that matters: a socket without a connection
    refuses the message."""
    if holders.decides(worker):
        bus.actions.append(Beat(worker))
        bus.watches.set(worker, now + worker.heartbeat.dead_after_s)


def forget_silent(bus: Bus, worker: Worker, why: str, now: float) -> None:
    """A silent worker is gone for good."""
    undecided = holders.forget(bus, worker)
    worker.inflight.clear()
    if worker.endpoint:
        hang_up_unused(bus, worker, now)
    _decide(bus, undecided, why, now)


def _never_got(bus: Bus, worker: Worker, token: bytes) -> list[Request]:
    request = worker.inflight.pop(token)
    holders.forget_one(bus, token, worker)
    if request.state is RequestState.SUSPENDED and not holders.can_be_reached(bus, request):
        return [request]
    return []


def _begin_anew(bus: Bus, address: Address) -> list[Request]:
    """The identity of a worker that was silent, or whose connection broke, begins a new conversation: nothing
    is expected of the old one."""
    bus.resting.pop(address, None)
    old = bus.silent.get(address) or bus.departed.get(address)
    return [] if old is None else holders.forget(bus, old)


def _decide(bus: Bus, undecided: list[Request], why: str, now: float) -> None:
    """Nobody can answer these any more, unless somebody claimed them a moment ago."""
    for request in undecided:
        if request.state is RequestState.SUSPENDED:
            attempts.fail_as_lost(bus, request, why, now)


def _detach(bus: Bus, worker: Worker, why: str, now: float, move: Move[WorkerState] = LEAVE) -> None:
    worker.state = move[worker.state]
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
        if other.state not in ABSENT:
            _redial(bus, other, now)


def hang_up_unused(bus: Bus, worker: Worker, now: float) -> None:
    """Close the connection to a worker that is no longer one, if nobody else uses the endpoint: hanging up
    closes all connections to it."""
    endpoint = worker.endpoint
    if endpoint in bus.dialled_at or bus.catalog.lines_at[endpoint]:
        bus.catalog.spare.setdefault(endpoint, []).append(worker.address)
    else:
        hang_up(bus, worker.address[1], endpoint, now)


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
    # Its connection is closed: whoever looks at it in this turn must not keep that for questions.
    worker.endpoint = ""


# -- watching ---------------------------------------------------------------------------------


def _watch(bus: Bus, worker: Worker, now: float) -> None:
    if worker.heartbeat.dead_after_s > 0:
        bus.watches.set(worker, now + worker.heartbeat.period_s)


def _is_given_up(request: Request, worker: Worker) -> bool:
    """Whether a worker has something that it should not have any more."""
    return request.state in TERMINAL or request.worker is not worker


def silence_s(worker: Worker) -> float:
    """How long a worker may be silent: longer than its dialect says if the settings of a queue allow that
    and the worker has one of its requests."""
    return max(worker.heartbeat.dead_after_s, granted_silence_s(worker))


def granted_silence_s(worker: Worker) -> float:
    """How long the settings of queues allow a worker to be silent, because of the requests that it has."""
    longest_s = 0.0
    for request in worker.inflight.values():
        rule = request.service.policy
        if rule is not None and rule.silence_s is not None and rule.silence_s > longest_s:
            longest_s = rule.silence_s
    return longest_s


def watch_due(bus: Bus, now: float) -> None:
    for worker in bus.watches.due(now):
        if worker.state in ABSENT:
            if worker.state is WorkerState.SILENT:
                _probe(bus, worker, now)
            elif worker.endpoint and worker not in bus.dialled_at.get(worker.endpoint, ()):
                hang_up_unused(bus, worker, now)
            continue
        if worker.endpoint and any(_is_given_up(request, worker) for request in worker.inflight.values()):
            # Nobody waits for it any more and it may never come: the slot is taken back.
            _hang_up(bus, worker, now)
            continue
        heartbeat = worker.heartbeat
        if heartbeat.dead_after_s <= 0:
            continue
        silent_s = now - worker.seen_at
        look_at = worker.seen_at + heartbeat.dead_after_s
        if silent_s >= heartbeat.dead_after_s:
            allowed_s = silence_s(worker)
            if silent_s >= allowed_s:
                bus.observe(
                    "heartbeat_missed",
                    now,
                    worker=worker.address,
                    worker_voice=worker.voice,
                    reason=f"{silent_s:.1f} s",
                )
                lose(bus, worker, f"nothing was heard from it for {silent_s:.1f} s", now)
                continue
            look_at = worker.seen_at + allowed_s
        look_at = min(now + heartbeat.period_s, look_at)
        if heartbeat.beat_every_s:
            since = worker.seen_at if heartbeat.when_silent else worker.spoken_at
            if now - since >= heartbeat.beat_every_s:
                worker.spoken_at = now
                bus.actions.append(Beat(worker))
            else:
                # Something was said meanwhile: the next beat is due one interval after that.
                look_at = min(look_at, since + heartbeat.beat_every_s)
        elif silent_s >= heartbeat.dead_after_s:
            # The broker has nothing to say to it, but must find out whether the connection is still there.
            bus.actions.append(Beat(worker))
        if silent_s >= heartbeat.period_s * 1.5:
            worker.missed += 1
        if worker.state is WorkerState.CONGESTED:
            # Its pipe may have drained meanwhile; if not, the next refusal puts it to rest again.
            seen_at = worker.seen_at
            heard(bus, worker, now)
            worker.seen_at = seen_at
        bus.watches.set(worker, look_at)
