"""The life of a request after it was given to a worker: answered, withdrawn, ended.

Order of work in every handler: look, decide, then change.  Each accepted request reaches exactly
one terminal state through `end`, which is the only place that lets go of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import structs

from polybus.core import holders
from polybus.core.actions import Answer, Drained, Refuse, Stop, Stream, new_answer
from polybus.core.dispatching import feed, flow, park, refile, slot_back
from polybus.core.durable import conclude, is_given_up, note_attempt
from polybus.core.holders import worker_at
from polybus.core.lifecycle import (
    ANSWER,
    CANCEL,
    CLAIM,
    DRAIN,
    EXPIRE,
    FAIL,
    HEAR,
    PART,
    RUN_DRY,
    TERMINAL,
    BusState,
    Move,
    RequestState,
    WorkerState,
)
from polybus.core.model import PLAIN_CALL, Address, Body, Reason
from polybus.core.records import Request, Worker
from polybus.core.replies import body_size, keep, keep_refusal, release_client

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.tables import Tables

# Looking a member up in its enumeration costs as much as a dictionary.
_DRAINING: Final = BusState.DRAINING
_ORPHANED: Final = RequestState.ORPHANED
# The same moves as a plain dict, which is looked up without a call; what is not in it is, with a reason,
# not in the moves either.
_ANSWER = dict(ANSWER)
_STATE_NAMES = {state: state.name.lower() for state in RequestState}

# -- answered ---------------------------------------------------------------------------------


def held_by(
    bus: Tables, address: tuple[int, bytes], token: bytes, now: float, failed: bool = False
) -> tuple[Worker | None, Request | None]:
    """The worker at this address and the request that it speaks of, if it was given it.

    A final answer ends the request even if it was taken from that worker meanwhile, because the worker was
    silent or took too long; a failure does so only if nobody else tries. What does not count is late: the
    worker's slot is free again.
    """
    worker = worker_at(bus, address, now)
    if worker is None and bus.departed:
        # Its connection broke, and the identity is back with an answer, not with a new conversation. A
        # failure counts only if it is about a job of before a restart.
        worker = bus.departed.get(address)
        if failed and worker is not None and (not token or token in worker.inflight):
            worker = None
    if worker is None:
        return None, None
    worker.seen_at = now
    if not token and worker.owed:
        # About a request that ended while it was silent.
        worker.owed -= 1
        return None, None
    if not token and worker.inflight:
        token = next(iter(worker.inflight))
    request = worker.inflight.get(token)
    if request is None and bus.holders:
        stopped = holders.stopped(bus, worker, token)
        if stopped is not None:
            if not failed and holders.may_end(bus, stopped, worker):
                holders.take_over(bus, stopped, worker, now)
                return worker, stopped
            holders.forget_one(bus, token, worker)
            return None, None
    if request is None:
        orphan = holders.accepted_before_restart(bus, token)
        if orphan is None:
            worker.owed -= worker.owed > 0
            return None, None
        if orphan.service not in worker.offers and worker.state is not WorkerState.GONE:
            return None, None
        if orphan.state is not _ORPHANED:
            # The time of grace is over, and others may have it. As with silent workers, its answer ends it.
            if failed or orphan.state is RequestState.STREAMING:
                return None, None
            holders.take_over(bus, orphan, worker, now)
            return worker, orphan
        orphan.state = CLAIM[orphan.state]
        orphan.worker = worker
        worker.inflight[token] = orphan
        if not worker.grants_slots:
            worker.free -= 1
        return worker, orphan
    if request.worker is not worker and request.state not in TERMINAL:
        counts = holders.may_fail if failed else holders.may_end
        if counts(bus, request, worker):
            holders.take_over(bus, request, worker, now)
            return worker, request
        del worker.inflight[token]
        holders.forget_one(bus, token, worker)
        late(bus, address, token, now)
        slot_back(bus, worker, now)
        return worker, None
    return worker, request


def heard(bus: Tables, worker: Worker, now: float) -> None:
    """A worker showed that it is there. If it rested, it takes requests again."""
    worker.seen_at = now
    if worker.state is WorkerState.CONGESTED:
        worker.state = HEAR[worker.state]
        refile(worker)
        feed(bus, worker, now)


def on_part(bus: Tables, event: events.Part, now: float) -> None:
    worker = worker_at(bus, event.worker, now)
    request = worker.inflight.get(event.token) if worker is not None else None
    if worker is not None and not event.token:
        request = next(iter(worker.inflight.values()), None)
    if worker is None or request is None or request.state in TERMINAL:
        if bus.holders:
            holders.drop_part(bus, event.worker, event.token)
        late(bus, event.worker, event.token, now)
        return
    worker.seen_at = now
    if request.worker is not worker:
        if not holders.may_stream(bus, request, worker):
            late(bus, event.worker, event.token, now)
            return
        holders.take_over(bus, request, worker, now)
    if body_size(event.body) > bus.max_body_bytes:
        _too_large(bus, request, now)
        if request.service.limited:
            flow(bus, request.service, now)
        return
    request.state = PART[request.state]
    if request.client is bus.desk:
        # A job belongs to nobody: those are told who wait for it.
        for waiter in bus.waiters.of(request.request_id):
            address, service, request_id = waiter.client, waiter.service, waiter.request_id
            bus.actions.append(Stream(address, waiter.voice, service, request_id, event.body, request.token))
    else:
        address, service, request_id = request.client.address, request.service.name, request.request_id
        bus.actions.append(Stream(address, request.voice, service, request_id, event.body, request.token))
    bus.observe_request("partial", request, now)


def on_result(bus: Tables, event: events.Result, now: float) -> None:
    finish(bus, event.worker, event.token, event.body, now)


def finish(
    bus: Tables, address: Address, token: bytes, body: Body, now: float, more_follow: bool = False
) -> bool:
    """The event `Result` as a call, for the same reason as `intake.submit`. If more follow, the worker, which
    grants its own slots, is filed anew and fed after the last of them (`give_slots`).

    Returns whether the sender had the request; if it had, the answer may still be late.
    """
    request = bus.prompt.get(token)
    if request is None:
        request = bus.patient.get(token)
    worker = request.worker if request is not None else None
    if request is None or worker is None or worker.address != address:
        worker, request = held_by(bus, address, token, now)
        if worker is None:
            late(bus, address, token, now)
            return False
        if request is None:
            return True
    worker.seen_at = now
    del worker.inflight[request.token]
    worker.done += 1
    if request.state in TERMINAL:
        late(bus, address, token, now)
    elif len(body) and body_size(body) > bus.max_body_bytes:
        _too_large(bus, request, now)
    else:
        bus.counters.replied += 1
        request.service.answered += 1
        if (
            request.options is PLAIN_CALL
            or not request.options.then
            or not bus.follow(bus, request, body, now)
        ):
            end(bus, request, ANSWER, None, "", body, now)
    if not worker.grants_slots:
        worker.free += 1
    if worker.contested and not more_follow:
        refile(worker)
    if request.service.queue.length or len(worker.offers) > 1 or request.service not in worker.offers:
        # (Of a service that it no longer offers a neighbour may have had the last slot.)
        if not more_follow:
            feed(bus, worker, now)
        if request.service.limited:
            flow(bus, request.service, now)
    return True


def has_request(bus: Tables, address: Address, token: bytes) -> bool:
    """Whether the worker at an address may speak of a request: it was given it and has not answered it yet,
    be it that the request has ended meanwhile, or it got it from our predecessor."""
    worker = bus.workers.get(address) or bus.silent.get(address)
    if worker is None:
        return False
    if token in worker.inflight:
        return True
    orphan = bus.patient.get(token)
    return orphan is not None and orphan.state is RequestState.ORPHANED and orphan.service in worker.offers


def give_slots(bus: Tables, address: Address, slots: int, now: float) -> None:
    """A worker that grants its own slots has so many more. One that rests gets one request for each, as with
    an answer: all at once would only be refused again."""
    worker = worker_at(bus, address, now)
    if worker is None:
        return
    worker.seen_at = now
    worker.free += slots
    if worker.owed_slots:
        holders.slots_back(worker, slots)
    refile(worker)
    feed(bus, worker, now)
    for _ in range(slots - 1 if worker.state is WorkerState.CONGESTED else 0):
        feed(bus, worker, now)


def _too_large(bus: Tables, request: Request, now: float) -> None:
    bus.counters.failed += 1
    request.service.failed += 1
    detail = f"the worker's answer is larger than the {bus.max_body_bytes} bytes that are allowed"
    note_attempt(bus, request, Reason.TOO_LARGE, detail, now)
    end(bus, request, FAIL, Reason.TOO_LARGE, detail, [], now)


def on_answer_lost(bus: Tables, event: events.AnswerLost, now: float) -> None:
    # The answer stays in the cache: a client that asks again gets it.
    bus.counters.answers_lost += 1
    bus.observe(
        "answer_lost",
        now,
        token=event.token,
        request_id=event.request_id,
        service=event.service,
        client=event.client,
        client_voice=event.voice,
        reason=event.reason,
    )


def late(bus: Tables, worker: tuple[int, bytes], token: bytes, now: float) -> None:
    bus.counters.late += 1
    bus.observe("late", now, token=token, worker=worker)


# -- withdrawn --------------------------------------------------------------------------------


def on_cancel(bus: Tables, event: events.Cancel, now: float) -> None:
    client = bus.clients.get(event.client)
    request = client.known.get(event.request_id) if client else None
    if isinstance(request, Request):
        withdraw(bus, request, "its client withdrew it", now)
    elif event.request_id:
        # It may have asked for the outcome of a job, which goes on.
        bus.waiters.forget(event.client, event.request_id)


def on_client_gone(bus: Tables, event: events.ClientGone, now: float) -> None:
    bus.waiters.forget_all(event.client)
    client = bus.clients.get(event.client)
    for request in waiting_first(client.outstanding.values()) if client else ():
        # Should it come back and ask again, it is answered again.
        request.options = structs.replace(request.options, reply_requested=False)
        # What is guaranteed survives its client.
        if event.withdraw and not request.durable:
            withdraw(bus, request, "its client left", now)


def on_cancel_token(bus: Tables, event: events.CancelToken, now: float) -> None:
    request = bus.requests.get(event.token)
    if request is not None:
        withdraw(bus, request, event.why, now)


def waiting_first(requests: Iterable[Request]) -> list[Request]:
    """In the order in which to withdraw them: else a slot that becomes free is given to the next of them."""
    return sorted(requests, key=lambda request: request.worker is not None)


def withdraw(
    bus: Tables, request: Request, detail: str, now: float, reason: Reason = Reason.CANCELLED
) -> None:
    bus.counters.cancelled += 1
    freed = _abandon(bus, request, now)
    end(bus, request, CANCEL, reason, detail, [], now)
    if freed is not None:
        slot_back(bus, freed, now)
    if request.service.limited:
        flow(bus, request.service, now)


def expire_due(bus: Tables, now: float) -> None:
    due = bus.expiries.due(now)
    for request in bus.prompt.values():
        # All of these may wait equally long, so they stand in the order of their deadlines.
        if request.expires_at > now:
            break
        due.append(request)
    freed: list[Worker] = []
    for request in due:
        waited = f"no answer within {request.expires_at - request.accepted_at:g} s"
        detail = f"{waited}, no worker was free" if request.worker is None else f"{waited}, a worker has it"
        bus.counters.expired += 1
        worker = _abandon(bus, request, now)
        if worker is not None:
            freed.append(worker)
        end(bus, request, EXPIRE, Reason.EXPIRED, detail, [], now)
    # Not before all have ended: what is due, too, may be the next one in a queue.
    for worker in freed:
        slot_back(bus, worker, now)
    for request in due:
        if request.service.limited:
            flow(bus, request.service, now)


def _abandon(bus: Tables, request: Request, now: float) -> Worker | None:
    """Take a request out of its queue, or tell its worker. The worker's slot stays taken until it answers;
    one that we dialled need not even do that, so it is looked after soon.  Returns the worker if it will
    certainly not answer: its slot is free."""
    if request.state is RequestState.QUEUED:
        request.service.queue.forget(request)
    elif request.state is RequestState.WAITING or request.state is RequestState.SUSPENDED:
        request.service.waiting -= 1
    elif request.worker is not None:
        bus.actions.append(Stop(request.worker, request.token))
        if request.worker.forgets_stopped:
            del request.worker.inflight[request.token]
            return request.worker
        if request.worker.endpoint and not request.worker.slot:
            bus.watches.set(request.worker, now)
    return None


# -- ended ------------------------------------------------------------------------------------


def end(
    bus: Tables,
    request: Request,
    move: Move[RequestState],
    reason: Reason | None,
    detail: str,
    body: Body,
    now: float,
) -> None:
    """Bring a request to its terminal state, tell its client, keep the answer, let go of everything else."""
    if request.worker is not None or request.state is _ORPHANED:
        request.service.running -= 1
    request.state = (_ANSWER.get(request.state) if reason is None else None) or move[request.state]
    client = request.client
    service = request.service.name
    request_id = request.request_id
    if bus.prompt.pop(request.token, None) is None:
        del bus.patient[request.token]
        if request.slot:
            bus.expiries.clear(request)
    if request.alarm is not None:
        bus.alarms.clear(request.alarm)
    if bus.holders:
        holders.release(bus, request)
    bus.held_bytes -= request.size
    client.unanswered -= 1
    refusal: Refuse | None = None
    answer: Answer | None = None
    if reason is None:
        answer = new_answer(client.address, request.voice, service, request_id, body, request.token)
    else:
        token = request.token
        refusal = Refuse(client.address, request.voice, service, request_id, reason, detail, body, token)
    if request.options is not PLAIN_CALL:
        conclude(bus, request, answer, refusal, now)
    else:
        bus.actions.append(refusal if answer is None else answer)
        if not request_id:
            del client.known[request.token]
            release_client(bus, client)
        elif answer is not None:
            keep(bus, client, answer, now)
        elif refusal is not None:
            keep_refusal(bus, client, refusal, now)
    sent = request.body
    if reason is not None and request.dispatched_at != now:
        # A worker may hold on to it for long; the body, which counts no more, goes now. (What was handed over
        # in this very turn is not written yet.)
        request.body = []
    if bus.timed and answer is not None:
        if bus.untimed:
            bus.untimed -= 1
        else:
            bus.untimed = bus.note_time(service, now - request.accepted_at)
    if bus.watched:
        why = "" if reason is None else str(reason)
        bus.observe_request(_STATE_NAMES[request.state], request, now, why, detail, body)
        if (
            bus.journal is not None
            and reason is not None
            and (reason is Reason.EXPIRED or is_given_up(request, reason))
        ):
            bus.journal.note_dead(request, now, bus.wall_offset, why, detail, sent)
    if bus.state is _DRAINING:
        look_whether_dry(bus)


def on_drain(bus: Tables, event: events.Drain, now: float) -> None:
    bus.state = DRAIN[bus.state]
    for request in bus.patient.values():
        if request.durable and request.state is RequestState.QUEUED:
            request.service.queue.forget(request)
            park(request)
    look_whether_dry(bus)


def on_end_unanswered(bus: Tables, event: events.EndUnanswered, now: float) -> None:
    found = [bus.requests.get(token) for token in event.tokens]
    for request in waiting_first(request for request in found if request is not None and not request.durable):
        withdraw(bus, request, "the broker stopped before it was answered", now, Reason.DRAINING)


def look_whether_dry(bus: Tables) -> None:
    """Draining ends when nothing is left that would be lost: jobs that are written down and that no worker
    has are there again after the next start."""
    if bus.state is not BusState.DRAINING or bus.prompt or bus.held:
        return
    # All jobs are looked at when those that held us up the last time no longer do.
    while bus.undone and not _holds_up(bus.undone[-1]):
        bus.undone.pop()
    if not bus.undone:
        bus.undone = [request for request in bus.patient.values() if _holds_up(request)]
    if not bus.undone:
        bus.state = RUN_DRY[bus.state]
        bus.actions.append(Drained())


def _holds_up(request: Request) -> bool:
    return request.state not in TERMINAL and (not request.durable or request.worker is not None)
