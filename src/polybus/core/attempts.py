"""What becomes of a request whose attempt came to nothing: tried again, later, or given up.

A worker that says that it failed, or that takes longer than the job's time limit, costs one of the job's
retries.  A worker that is lost costs none, because it is no fault of the job; but what has cost too many
workers is given up, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

from polybus.core import events, holders, ledger
from polybus.core.actions import Stop
from polybus.core.dispatching import flow, line_up, place, refile, requeue, slot_back
from polybus.core.durable import note_attempt
from polybus.core.lifecycle import FAIL, QUEUE, TERMINAL, WAIT, RequestState
from polybus.core.model import Body, Reason
from polybus.core.records import Alarm, Request, Service, Worker
from polybus.core.requests import end, held_by, late

if TYPE_CHECKING:
    from polybus.core.tables import Tables

# Where a request is that a worker may have without our knowing.
_CLAIMABLE = (RequestState.ORPHANED, RequestState.QUEUED, RequestState.SUSPENDED)


# -- failed -----------------------------------------------------------------------------------


def on_failure(bus: Tables, event: events.Failure, now: float) -> None:
    worker, request = held_by(bus, event.worker, event.token, now, failed=True)
    if worker is None:
        late(bus, event.worker, event.token, now)
        return
    if request is None:
        return
    worker.inflight.pop(request.token, None)
    if bus.holders:
        holders.forget_one(bus, request.token, worker)
    worker.done += 1
    if request.state in TERMINAL:
        late(bus, event.worker, event.token, now)
    else:
        fail(bus, request, event.reason, event.detail, event.body, now)
    slot_back(bus, worker, now)
    if request.service.limited:
        flow(bus, request.service, now)


def on_undeliverable(bus: Tables, event: events.Undeliverable, now: float) -> None:
    worker = bus.workers.get(event.worker)
    request = worker.inflight.get(event.token) if worker is not None else None
    if worker is None or request is None:
        return
    del worker.inflight[request.token]
    if bus.holders:
        holders.forget_one(bus, request.token, worker)
    worker.free += 1
    if request.state not in TERMINAL and request.worker is worker:
        bus.counters.failed += 1
        request.service.failed += 1
        note_attempt(bus, request, Reason.UNDELIVERABLE, event.detail, now)
        end(bus, request, FAIL, Reason.UNDELIVERABLE, event.detail, [], now)
    refile(worker)
    flow_of(bus, worker, now)


def flow_of(bus: Tables, worker: Worker, now: float) -> None:
    for service in list(worker.offers):
        flow(bus, service, now)


def fail(bus: Tables, request: Request, reason: Reason, detail: str, body: Body, now: float) -> None:
    """An attempt failed: the request waits for its next one, or ends."""
    request.service.failed += 1
    if request.options.retries <= request.failures:
        bus.counters.failed += 1
        note_attempt(bus, request, reason, detail, now)
        end(bus, request, FAIL, reason, detail, body, now)
        return
    request.failures += 1
    note_attempt(bus, request, reason, detail, now)
    pause = _pause(bus, request)
    bus.counters.retried += 1
    bus.observe_request(
        "retried", request, now, reason=str(reason), detail=f"{detail}; again in {pause:.3g} s"
    )
    # Only a worker that has it can fail it.
    request.worker = None
    request.service.running -= 1
    request.state = WAIT[request.state]
    request.service.waiting += 1
    set_alarm(bus, request, now + pause)
    note_waiting(bus, request, bus.wall_at(now + pause))


def note_waiting(bus: Tables, request: Request, due_at: float) -> None:
    if request.durable:
        bus.lines.append(ledger.Waiting(request.token, request.attempt, due_at, request.history))


def _pause(bus: Tables, request: Request) -> float:
    """Twice as long every time, a little more or less: what failed together shall not return together."""
    rule = bus.retrying
    first = rule.backoff_s if request.options.backoff_s is None else request.options.backoff_s
    # The exponent is bounded before the power is: a float has an end.
    pause = min(first * 2.0 ** min(request.failures - 1, 64), rule.backoff_max_s)
    chance = crc32(request.token, request.failures) / 2**32 * 2 - 1
    return pause * (1 + rule.jitter * chance)


# -- lost -------------------------------------------------------------------------------------


def take_back(
    bus: Tables, worker: Worker, why: str, now: float, kept: tuple[bytes, ...] = (), silent: bool = False
) -> Iterable[Service]:
    """Queue again, at the front, what a lost worker held. The services that have work again.

    What the worker has in fact `kept` costs no attempt: it will claim it in a moment.  A worker that only
    went `silent` may still answer what it has.
    """
    # A dict, because a set of them has no order: the same events shall always have the same effects.
    waiting: dict[Service, None] = {}
    claimed = frozenset(kept)
    if bus.holders and worker.forgets_stopped:
        holders.forget_stopped(bus, worker)
    # A copy, because a verdict may end what the bus remembers of the worker.
    for request in reversed(list(worker.inflight.values())):
        if request.state in TERMINAL:
            continue
        # Who was silent with it before lost it then.
        is_new_loss = request.token not in claimed and not holders.was_silent(bus, request, worker)
        if silent:
            holders.remember(bus, request, worker)
        elif bus.holders:
            holders.forget_one(bus, request.token, worker)
        if request.worker is not worker:
            continue
        waiting[request.service] = None
        if is_new_loss:
            note_attempt(bus, request, Reason.WORKER_LOST, why, now)
        if request.token in claimed or not _give_up(bus, request, why, now):
            requeue(bus, request, why, now)
        other = holders.present(bus, request) if bus.holders else None
        if other is not None:
            holders.take_up(bus, request, other, now)
    if not silent:
        worker.inflight.clear()
    return waiting


def requeue_one(bus: Tables, worker: Worker, token: bytes, why: str, now: float) -> None:
    """Queue again one request that a worker never got; it costs no attempt."""
    request = worker.inflight.pop(token, None)
    if bus.holders:
        holders.forget_one(bus, token, worker)
    if request is not None and request.state not in TERMINAL and request.worker is worker:
        request.attempt -= 1
        requeue(bus, request, why, now)


def _give_up(bus: Tables, request: Request, why: str, now: float) -> bool:
    """Whether a request has cost too many workers: it waits for those that may still answer, or fails."""
    # Attempts that failed did not cost a worker, nor did a broker that was restarted meanwhile.
    lost = ledger.losses_in(request.history) if request.history else request.attempt
    if lost < bus.limits.attempts:
        return False
    if holders.can_be_reached(bus, request):
        holders.suspend(bus, request, why, now)
    else:
        fail_as_lost(bus, request, why, now)
    return True


def fail_as_lost(bus: Tables, request: Request, why: str, now: float) -> None:
    """Too many workers were lost with a request, and none of them can answer it any more."""
    lost = ledger.losses_in(request.history) if request.history else request.attempt
    detail = f"{lost} workers were lost while they had it, the last one: {why}"
    if request.state is RequestState.SUSPENDED:
        request.service.waiting -= 1
    bus.counters.failed += 1
    end(bus, request, FAIL, Reason.WORKER_LOST, detail, [], now)


# -- alarms -----------------------------------------------------------------------------------


def set_alarm(bus: Tables, request: Request, at: float) -> None:
    alarm: Alarm | None = request.alarm
    if alarm is None:
        alarm = request.alarm = Alarm(request)
    elif alarm.slot:
        bus.alarms.clear(alarm)
    bus.alarms.set(alarm, at)


def alarms_due(bus: Tables, now: float) -> None:
    for alarm in bus.alarms.due(now):
        request = alarm.request
        state = request.state
        if state is RequestState.WAITING:
            request.service.waiting -= 1
            place(bus, request, now)
        elif state is RequestState.ORPHANED:
            bus.observe_request("requeued", request, now, "its worker did not come back")
            note_waiting(bus, request, 0.0)
            request.service.running -= 1
            request.state = QUEUE[state]
            line_up(bus, request)
            flow(bus, request.service, now)
        elif state in (RequestState.DISPATCHED, RequestState.STREAMING):
            _overdue(bus, request, now)
    for service in bus.gates.due(now):
        flow(bus, service, now)


def _overdue(bus: Tables, request: Request, now: float) -> None:
    """The worker should have killed it and has not said so: we count the attempt."""
    worker = request.worker
    assert worker is not None
    bus.counters.timeouts += 1
    # Until the job has ended its answer still counts. Its slot stays taken until it answers.
    freed = worker if holders.stop(bus, request, worker, is_overdue=True) else None
    if worker.endpoint and not worker.slot:
        # It need not even answer: it is looked after soon.
        bus.watches.set(worker, now)
    detail = f"no answer within its time limit of {request.options.timeout_s:g} s"
    fail(bus, request, Reason.TIMEOUT, detail, [], now)
    if freed is not None:
        slot_back(bus, freed, now)
    if request.service.limited:
        flow(bus, request.service, now)


# -- claimed ----------------------------------------------------------------------------------


def claim(bus: Tables, worker: Worker, tokens: tuple[bytes, ...], now: float) -> None:
    """A worker came back with requests that it still runs. What is not its own any more is stopped."""
    for token in tokens:
        request = bus.patient.get(token) or bus.prompt.get(token)
        if request is not None and request.worker is worker:
            continue
        if request is None or request.state not in _CLAIMABLE or request.service not in worker.offers:
            bus.actions.append(Stop(worker, token))
            continue
        holders.adopt(bus, request, worker, now)
    refile(worker)
