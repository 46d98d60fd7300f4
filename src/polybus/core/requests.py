"""The life of a request: given to a worker, answered, withdrawn, ended.

Order of work in every handler: look, decide, then change.  Each accepted request reaches exactly
one terminal state through `_end`, which is the only place that lets go of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import structs

from polybus.core.actions import Answer, Drained, Refuse, Stop, Stream, new_answer, new_deliver
from polybus.core.lifecycle import (
    ANSWER,
    CANCEL,
    DISPATCH,
    DRAIN,
    EXPIRE,
    FAIL,
    HEAR,
    PART,
    REQUEUE,
    RUN_DRY,
    TERMINAL,
    BusState,
    Move,
    RequestState,
    WorkerState,
)
from polybus.core.model import PLAIN_CALL, Address, Body, Reason
from polybus.core.records import Request, Service, Worker
from polybus.core.replies import body_size, keep, keep_refusal, release_client

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.tables import Tables

# Looking a member up in its enumeration costs as much as a dictionary.
_DRAINING: Final = BusState.DRAINING
# The same moves as plain dicts, which are looked up without a call; what is not in them is, with a reason,
# not in the moves either.
_DISPATCH = dict(DISPATCH)
_ANSWER = dict(ANSWER)

# -- given to a worker ------------------------------------------------------------------------


def dispatch(bus: Tables, request: Request, worker: Worker, now: float) -> None:
    request.state = _DISPATCH.get(request.state) or DISPATCH[request.state]
    request.worker = worker
    request.dispatched_at = now
    request.attempt += 1
    worker.inflight[request.token] = request
    worker.free -= 1
    worker.spoken_at = now
    if worker.contested:
        refile(worker)
    bus.counters.dispatched += 1
    bus.actions.append(new_deliver(worker, request))
    if bus.watched:
        bus.observe_request("dispatched", request, now)


def feed(bus: Tables, worker: Worker, now: float) -> None:
    """Give a worker what waits for it. One that rests gets a single request: it may have room for that."""
    while worker.free > 0:
        service = _heaviest(worker)
        if service is None:
            return
        dispatch(bus, service.queue.pop(), worker, now)
        if worker.state is not WorkerState.SERVING:
            return


def _heaviest(worker: Worker) -> Service | None:
    """The service whose request a worker gets next: its heaviest one first, equal ones in turn."""
    best: Service | None = None
    best_weight = 0
    for service, weight in worker.offers.items():
        if service.queue.length and (best is None or weight > best_weight):
            best, best_weight = service, weight
    if best is not None and len(worker.offers) > 1:
        # To the end of the line among services of the same weight.
        worker.offers[best] = worker.offers.pop(best)
    return best


def flow(bus: Tables, service: Service, now: float) -> None:
    """Give what waits for a service to whoever is free."""
    while service.queue.length:
        worker = service.roster.best()
        if worker is None:
            return
        dispatch(bus, service.queue.pop(), worker, now)


def take_back(bus: Tables, worker: Worker, why: str, now: float) -> Iterable[Service]:
    """Queue again, at the front, what a lost worker held. The services that have work again."""
    # A dict, because a set of them has no order: the same events shall always have the same effects.
    waiting: dict[Service, None] = {}
    for request in reversed(worker.inflight.values()):
        if request.state not in TERMINAL and not _give_up(bus, request, why, now):
            _requeue(bus, request, why, now)
            waiting[request.service] = None
    worker.inflight.clear()
    return waiting


def requeue_one(bus: Tables, worker: Worker, token: bytes, why: str, now: float) -> None:
    """Queue again one request that a worker never got; it costs no attempt."""
    request = worker.inflight.pop(token, None)
    if request is not None and request.state not in TERMINAL:
        request.attempt -= 1
        _requeue(bus, request, why, now)


def _requeue(bus: Tables, request: Request, why: str, now: float) -> None:
    bus.counters.requeued += 1
    bus.observe_request("requeued", request, now, reason=why)
    request.state = REQUEUE[request.state]
    request.worker = None
    request.service.queue.push_front(request)


def _give_up(bus: Tables, request: Request, why: str, now: float) -> bool:
    """Whether a request has cost too many workers."""
    if request.attempt < bus.limits.attempts:
        return False
    detail = f"{request.attempt} workers were lost while they had it, the last one: {why}"
    bus.counters.failed += 1
    _end(bus, request, FAIL, Reason.WORKER_LOST, detail, [], now)
    return True


# -- answered ---------------------------------------------------------------------------------


def _held(
    bus: Tables, address: tuple[int, bytes], token: bytes, now: float
) -> tuple[Worker | None, Request | None]:
    """The worker at this address and the request it speaks of, if it holds it."""
    worker = bus.workers.get(address)
    if worker is None:
        return None, None
    worker.seen_at = now
    if not token and worker.inflight:
        token = next(iter(worker.inflight))
    return worker, worker.inflight.get(token)


def heard(bus: Tables, worker: Worker, now: float) -> None:
    """A worker showed that it is there. If it rested, it takes requests again."""
    worker.seen_at = now
    if worker.state is WorkerState.CONGESTED:
        worker.state = HEAR[worker.state]
        refile(worker)
        feed(bus, worker, now)


def on_part(bus: Tables, event: events.Part, now: float) -> None:
    _, request = _held(bus, event.worker, event.token, now)
    if request is None or request.state in TERMINAL:
        _late(bus, event.worker, event.token, now)
        return
    if body_size(event.body) > bus.max_body_bytes:
        _too_large(bus, request, now)
        return
    request.state = PART[request.state]
    bus.actions.append(
        Stream(request.client.address, request.voice, request.service.name, request.request_id, event.body)
    )
    bus.observe_request("partial", request, now)


def on_result(bus: Tables, event: events.Result, now: float) -> None:
    finish(bus, event.worker, event.token, event.body, now)


def finish(bus: Tables, address: Address, token: bytes, body: Body, now: float) -> None:
    """The event `Result` as a call, for the same reason as `intake.submit`."""
    request = bus.prompt.get(token)
    worker = request.worker if request is not None else None
    if request is None or worker is None or worker.address != address:
        worker, request = _held(bus, address, token, now)
        if worker is None or request is None:
            _late(bus, address, token, now)
            return
    worker.seen_at = now
    del worker.inflight[request.token]
    worker.done += 1
    if request.state in TERMINAL:
        _late(bus, address, token, now)
    elif len(body) and body_size(body) > bus.max_body_bytes:
        _too_large(bus, request, now)
    else:
        bus.counters.replied += 1
        request.service.answered += 1
        _end(bus, request, ANSWER, None, "", body, now)
    if not worker.grants_slots:
        worker.free += 1
    if worker.contested:
        refile(worker)
    if request.service.queue.length or len(worker.offers) > 1:
        feed(bus, worker, now)


def _too_large(bus: Tables, request: Request, now: float) -> None:
    bus.counters.failed += 1
    request.service.failed += 1
    detail = f"the worker's answer is larger than the {bus.max_body_bytes} bytes that are allowed"
    _end(bus, request, FAIL, Reason.TOO_LARGE, detail, [], now)


def on_failure(bus: Tables, event: events.Failure, now: float) -> None:
    worker, request = _held(bus, event.worker, event.token, now)
    if worker is None or request is None:
        _late(bus, event.worker, event.token, now)
        return
    del worker.inflight[request.token]
    worker.done += 1
    if request.state in TERMINAL:
        _late(bus, event.worker, event.token, now)
    else:
        bus.counters.failed += 1
        request.service.failed += 1
        _end(bus, request, FAIL, event.reason, event.detail, event.body, now)
    _slot_back(bus, worker, now)


def on_undeliverable(bus: Tables, event: events.Undeliverable, now: float) -> None:
    worker = bus.workers.get(event.worker)
    request = worker.inflight.get(event.token) if worker is not None else None
    if worker is None or request is None:
        return
    del worker.inflight[request.token]
    worker.free += 1
    if request.state not in TERMINAL:
        bus.counters.failed += 1
        request.service.failed += 1
        _end(bus, request, FAIL, Reason.UNDELIVERABLE, event.detail, [], now)
    refile(worker)
    feed(bus, worker, now)


def on_answer_lost(bus: Tables, event: events.AnswerLost, now: float) -> None:
    # The answer stays in the cache: a client that asks again gets it.
    bus.counters.answers_lost += 1
    bus.observe("answer_lost", now, request_id=event.request_id, client=event.client, reason=event.reason)


def refile(worker: Worker) -> None:
    for service in worker.offers:
        service.roster.refile(worker)


def _slot_back(bus: Tables, worker: Worker, now: float) -> None:
    if not worker.grants_slots:
        worker.free += 1
    refile(worker)
    feed(bus, worker, now)


def _late(bus: Tables, worker: tuple[int, bytes], token: bytes, now: float) -> None:
    bus.counters.late += 1
    bus.observe("late", now, token=token, worker=worker)


# -- withdrawn --------------------------------------------------------------------------------


def on_cancel(bus: Tables, event: events.Cancel, now: float) -> None:
    client = bus.clients.get(event.client)
    request = client.known.get(event.request_id) if client else None
    if isinstance(request, Request):
        _withdraw(bus, request, "its client withdrew it", now)


def on_client_gone(bus: Tables, event: events.ClientGone, now: float) -> None:
    client = bus.clients.get(event.client)
    for request in list(client.outstanding.values()) if client else ():
        # Should it come back and ask again, it is answered again.
        request.options = structs.replace(request.options, reply_requested=False)
        if event.withdraw:
            _withdraw(bus, request, "its client left", now)


def on_cancel_token(bus: Tables, event: events.CancelToken, now: float) -> None:
    request = bus.requests.get(event.token)
    if request is not None:
        _withdraw(bus, request, "an operator withdrew it", now)


def _withdraw(bus: Tables, request: Request, detail: str, now: float) -> None:
    bus.counters.cancelled += 1
    freed = _abandon(bus, request, now)
    _end(bus, request, CANCEL, Reason.CANCELLED, detail, [], now)
    if freed is not None:
        _slot_back(bus, freed, now)


def expire_due(bus: Tables, now: float) -> None:
    due = bus.expiries.due(now)
    for request in bus.prompt.values():
        # All of these may wait equally long, so they stand in the order of their deadlines.
        if request.expires_at > now:
            break
        due.append(request)
    for request in due:
        waited = f"no answer within {request.expires_at - request.accepted_at:g} s"
        detail = f"{waited}, no worker was free" if request.worker is None else f"{waited}, a worker has it"
        bus.counters.expired += 1
        freed = _abandon(bus, request, now)
        _end(bus, request, EXPIRE, Reason.EXPIRED, detail, [], now)
        if freed is not None:
            _slot_back(bus, freed, now)


def _abandon(bus: Tables, request: Request, now: float) -> Worker | None:
    """Take a request out of its queue, or tell its worker. The worker's slot stays taken until it answers;
    one that we dialled need not even do that, so it is looked after soon.  Returns the worker if it will
    certainly not answer: its slot is free."""
    if request.state is RequestState.QUEUED:
        request.service.queue.forget_one()
    elif request.worker is not None:
        bus.actions.append(Stop(request.worker, request.token))
        if request.worker.forgets_stopped:
            del request.worker.inflight[request.token]
            return request.worker
        if request.worker.endpoint and not request.worker.slot:
            bus.watches.set(request.worker, now)
    return None


# -- ended ------------------------------------------------------------------------------------


def _end(
    bus: Tables,
    request: Request,
    move: Move[RequestState],
    reason: Reason | None,
    detail: str,
    body: Body,
    now: float,
) -> None:
    """Bring a request to its terminal state, tell its client, keep the answer, let go of everything else."""
    request.state = (_ANSWER.get(request.state) if reason is None else None) or move[request.state]
    client = request.client
    service = request.service.name
    request_id = request.request_id
    if bus.prompt.pop(request.token, None) is None:
        del bus.patient[request.token]
        bus.expiries.clear(request)
    bus.held_bytes -= request.size
    client.unanswered -= 1
    refusal: Refuse | None = None
    answer: Answer | None = None
    if reason is None:
        answer = new_answer(client.address, request.voice, service, request_id, body)
    else:
        refusal = Refuse(client.address, request.voice, service, request_id, reason, detail, body)
    if reason is not None and request.dispatched_at != now:
        # A worker may hold on to it for long; the body, which counts no more, goes now. (What was handed over
        # in this very turn is not written yet.)
        request.body = []
    if request.options is PLAIN_CALL or request.options.reply_requested:
        bus.actions.append(refusal if answer is None else answer)
    if bus.watched:
        what = request.state.name.lower()
        bus.observe_request(what, request, now, reason=str(reason or ""), detail=detail, body=body)
    if request_id:
        if answer is not None:
            keep(bus, client, answer, now)
        elif refusal is not None:
            keep_refusal(bus, client, refusal, now)
    else:
        del client.known[request.token]
        release_client(bus, client)
    if bus.state is _DRAINING and not bus.request_count:
        bus.state = RUN_DRY[bus.state]
        bus.actions.append(Drained())


def on_drain(bus: Tables, event: events.Drain, now: float) -> None:
    bus.state = DRAIN[bus.state]
    if bus.state is BusState.DRAINING and not bus.request_count:
        bus.state = RUN_DRY[bus.state]
        bus.actions.append(Drained())
