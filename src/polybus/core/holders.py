"""Workers that were given requests, do not have them now, and may still answer them.

Silence means that a worker counts as disconnected: its requests are queued again, and other workers may get
them.  But many workers are single-threaded and cannot send heartbeats while they work.  As long as the
connection of such a worker exists and one of its requests has no answer, the bus remembers it in
`bus.silent`; `bus.holders` names, for each such request, the workers that were given it (`Holding`).

- A sign of life brings a silent worker back (`worker_at`).  It takes up again what nobody else has.
- The first final answer of anybody who was given a request ends it (`take_over`), wherever it is.
- A request that has cost too many workers is suspended, not failed, while one of them can be reached. Only
  then is anything sent to a silent worker: a heartbeat, which its socket refuses if the connection is gone.
- A worker that returned is not given again what it is still busy with.  Nor is one that took longer than the
  time limit of a job and cannot be told to stop: should the retry come to it, it has the job again, for as
  long as a new attempt may take, without being sent it.
- Who was given a job before the broker was restarted is not remembered, but only those workers know its
  token: an answer that names it counts likewise (`accepted_before_restart`).
- A worker that was told to stop, and forgets what it is told to stop, may have answered before it read that.
- A worker whose connection broke is remembered in `bus.departed` if its identity is its own: it may make
  another connection, and its answers count.  Nothing else that it says does, because what was on the way to
  it may be lost: it has to register again.  No verdict waits for it.
- A silent worker whose requests others have answered is let go.  It does not know that yet: what it sends
  before it reads that it has to register again belongs to the old conversation.  So it is told once
  (`tell_to_register`), however many messages that are.  A dialect that has no word for it (eMQP) leaves the
  conversation as it is: such a worker rests (`bus.resting`) until it is heard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from polybus.core import ledger
from polybus.core.actions import UNKNOWN_WORKER, Dismiss, Stop
from polybus.core.dispatching import feed, slot_back
from polybus.core.durable import peer_text
from polybus.core.lifecycle import CLAIM, LEAVE, RETURN, SUSPEND, TERMINAL, RequestState, WorkerState
from polybus.core.records import Alarm, Request, Service, Worker

if TYPE_CHECKING:
    from polybus.core.model import Address
    from polybus.core.tables import Tables

# A worker that was let go is told so again if it still sends messages after this long: what it was told may
# have been lost with its connection.
TOLD_FOR_S: Final = 60.0
# So many of them are remembered. Who is forgotten may be told twice, or (eMQP) begins anew by its own
# liveness.
MAX_LET_GO: Final = 1_000
# Where a request is that no worker has now; a worker that still runs it takes it up again.
_WITHOUT_WORKER = (RequestState.QUEUED, RequestState.WAITING, RequestState.SUSPENDED)
_SILENT: Final = WorkerState.SILENT
_GONE: Final = WorkerState.GONE


class Holding(Struct, eq=False):
    """That a worker was given a request which was taken from it again, and why."""

    # When it got it, as far as that is known.
    given_at: float
    is_silent: bool = False
    is_overdue: bool = False
    # Whether all parts of its answer so far have reached the client: else the rest does not count.
    is_whole: bool = True
    # Whether one of its slots is taken by it: not if it forgets what it is told to stop.
    has_slot: bool = True


def _holding(bus: Tables, request: Request, worker: Worker) -> Holding:
    of_request = bus.holders.setdefault(request.token, {})
    found = of_request.get(worker)
    if found is None:
        found = of_request[worker] = Holding(request.dispatched_at)
    return found


def remember(bus: Tables, request: Request, worker: Worker) -> None:
    """A worker goes silent with this request, or its connection breaks."""
    holding = _holding(bus, request, worker)
    holding.is_silent = holding.has_slot = True


def stop(bus: Tables, request: Request, worker: Worker, is_overdue: bool = False) -> bool:
    """Take a request from a worker that has it, and tell the worker to stop, if that is possible. Returns
    whether its slot is free at once."""
    bus.actions.append(Stop(worker, request.token))
    if worker.obeys_stop and not worker.forgets_stopped:
        # It will say that it stopped, or answer.
        return False
    holding = _holding(bus, request, worker)
    holding.is_overdue = is_overdue
    holding.has_slot = not worker.forgets_stopped
    if worker.forgets_stopped:
        del worker.inflight[request.token]
    return worker.forgets_stopped


def stopped(bus: Tables, worker: Worker, token: bytes) -> Request | None:
    """The request that a worker was told to stop and no longer counts as having, if it has not ended."""
    if worker not in bus.holders.get(token, ()):
        return None
    return bus.prompt.get(token) or bus.patient.get(token)


def forget_stopped(bus: Tables, worker: Worker) -> None:
    """A worker that forgets what it is told to stop is lost: nothing more is to be expected of that."""
    for token in [token for token, of_request in bus.holders.items() if worker in of_request]:
        if token not in worker.inflight:
            forget_one(bus, token, worker)


def accepted_before_restart(bus: Tables, token: bytes) -> Request | None:
    """The job that an answer names, if it was accepted before the broker was restarted and has not ended.
    Who was given it then is not remembered, but only those workers know its token. (A dead letter that is
    being revived has not begun its new life before that is written down.)"""
    job = None if token.startswith(bus.nonce) else bus.patient.get(token)
    return None if job is None or job.state is RequestState.ACCEPTED else job


def was_silent(bus: Tables, request: Request, worker: Worker) -> bool:
    """Whether a worker went silent with this request before, and has neither answered nor left since."""
    holding = bus.holders.get(request.token, {}).get(worker)
    return holding is not None and holding.is_silent and holding.is_whole


def can_be_reached(bus: Tables, request: Request) -> bool:
    """Whether a worker that the request was taken from may still answer it. A service that the broker dialled
    is no evidence: its connection exists whether somebody listens there or not."""
    for worker, holding in bus.holders.get(request.token, {}).items():
        if holding.is_whole and holding.has_slot and not worker.endpoint and worker.state is not _GONE:
            return True
    return False


def may_end(bus: Tables, request: Request, worker: Worker) -> bool:
    """Whether a final answer of a worker that was given the request, but does not have it now, ends it: not
    if its client has parts of another worker's answer, or lacks parts of this one's."""
    holding = bus.holders.get(request.token, {}).get(worker)
    is_whole = holding is None or holding.is_whole
    return is_whole and request.state is not RequestState.STREAMING


def may_fail(bus: Tables, request: Request, worker: Worker) -> bool:
    """Whether a failure of such a worker counts: only if nobody else is trying, and not if it took too long
    before, because that was counted already."""
    holding = bus.holders.get(request.token, {}).get(worker)
    if holding is None or holding.is_overdue:
        return False
    return request.state in _WITHOUT_WORKER and holding.is_silent and holding.is_whole


def may_stream(bus: Tables, request: Request, worker: Worker) -> bool:
    """Whether a part of such a worker's answer goes to the client. If not, the final one must not either."""
    holding = bus.holders.get(request.token, {}).get(worker)
    if holding is not None and holding.is_whole and request.state is not RequestState.STREAMING:
        return True
    _holding(bus, request, worker).is_whole = False
    return False


def drop_part(bus: Tables, address: Address, token: bytes) -> None:
    """A part of an answer came from a worker whose conversation is over, or that was told to stop."""
    for worker, holding in bus.holders.get(token, {}).items():
        if worker.address == address:
            holding.is_whole = False


def present(bus: Tables, request: Request) -> Worker | None:
    """A worker that the request was taken from, that is there, and still works on it."""
    for worker, holding in bus.holders.get(request.token, {}).items():
        if holding.is_whole and holding.has_slot and bus.workers.get(worker.address) is worker:
            return worker
    return None


def silent_holders(bus: Tables, request: Request) -> list[Worker]:
    """The silent workers that may still answer a request."""
    given = bus.holders.get(request.token, {})
    return [worker for worker, holding in given.items() if holding.is_whole and worker.state is _SILENT]


def forget(bus: Tables, worker: Worker) -> list[Request]:
    """Forget a worker that left for good or begins anew. Returns the suspended requests that nobody can
    answer any more."""
    if bus.silent.get(worker.address) is worker:
        _let_go(bus, worker)
    elif bus.departed.get(worker.address) is worker:
        del bus.departed[worker.address]
    undecided: list[Request] = []
    for token, request in worker.inflight.items():
        forget_one(bus, token, worker)
        if request.state is RequestState.SUSPENDED and not can_be_reached(bus, request):
            undecided.append(request)
    return undecided


def forget_one(bus: Tables, token: bytes, worker: Worker) -> None:
    """A worker no longer has this request: it answered, or never got it."""
    others = bus.holders.get(token)
    if others is not None and worker in others:
        del others[worker]
        if not others:
            del bus.holders[token]
        if worker.state is _GONE:
            settle_departed(bus, worker)


def depart(bus: Tables, worker: Worker) -> list[Request]:
    """The connection of a silent worker is gone, and it may come back with an answer. Returns the suspended
    requests that nobody can be expected to answer any more."""
    _let_go(bus, worker)
    bus.departed[worker.address] = worker
    settle_departed(bus, worker)
    suspended = [request for request in worker.inflight.values() if request.state is RequestState.SUSPENDED]
    return [request for request in suspended if not can_be_reached(bus, request)]


def settle_departed(bus: Tables, worker: Worker) -> None:
    """Keep what a worker without a connection may still answer, and forget it if there is nothing."""
    if bus.departed.get(worker.address) is not worker:
        return
    # It is given nothing. What has ended stays until nothing is open any more: an answer that names no
    # request is about the oldest one.
    worker.offers = {}
    if not any(worker in bus.holders.get(token, ()) for token in worker.inflight):
        worker.inflight.clear()
        del bus.departed[worker.address]
        note_let_go(bus, worker)


def release(bus: Tables, request: Request) -> None:
    """A request ended: nobody needs to be remembered for it any more."""
    for worker in bus.holders.pop(request.token, ()):
        if worker.state is _GONE:
            settle_departed(bus, worker)
        if bus.silent.get(worker.address) is not worker:
            continue
        if any(other.state not in TERMINAL for other in worker.inflight.values()):
            continue
        if worker.resumes:
            rest(bus, worker)
            continue
        _let_go(bus, worker)
        note_let_go(bus, worker)
        if worker.endpoint:
            # The next look at it closes the connection that was kept for its answer.
            bus.watches.set(worker, 0.0)


def _let_go(bus: Tables, worker: Worker) -> None:
    worker.state = LEAVE[worker.state]
    del bus.silent[worker.address]
    bus.watches.clear(worker)


def rest(bus: Tables, worker: Worker) -> None:
    """A silent worker works for nothing, and nothing can be told to it: its conversation goes on when it is
    heard."""
    bus.silent.pop(worker.address, None)
    bus.watches.clear(worker)
    # What it says of these is late. It grants its slots itself, so they are not needed for these.
    worker.owed += len(worker.inflight)
    worker.owed_slots += len(worker.inflight)
    worker.inflight.clear()
    if len(bus.resting) >= MAX_LET_GO:
        del bus.resting[next(iter(bus.resting))]
    bus.resting[worker.address] = worker


def slots_back(worker: Worker, slots: int) -> None:
    """A worker that owes answers has free slots again. It answers before it says so: an answer that did not
    come by then does not come any more."""
    worker.owed_slots = max(0, worker.owed_slots - slots)
    worker.owed = min(worker.owed, worker.owed_slots)


def note_let_go(bus: Tables, worker: Worker, told_at: float = 0.0) -> None:
    """A worker was let go that still works, and will send its answer before it reads anything. It was told so
    at this time, or (0) it is told when it is heard."""
    if len(bus.let_go) >= MAX_LET_GO:
        del bus.let_go[next(iter(bus.let_go))]
    bus.let_go[worker.address] = told_at


def tell_to_register(bus: Tables, peer: Address, voice: Any, now: float) -> None:
    """Answer a command of a peer that is no worker: it has to register (again). A worker that was let go is
    told once; others, of which the bus knows nothing, are told for every command."""
    told_at = bus.let_go.get(peer)
    if told_at:
        return
    if told_at is not None:
        bus.let_go[peer] = now
    bus.actions.append(Dismiss(peer, voice, UNKNOWN_WORKER))


def forget_told(bus: Tables, now: float) -> None:
    """Forget the workers that were told long ago."""
    for peer in [peer for peer, told_at in bus.let_go.items() if told_at and now - told_at >= TOLD_FOR_S]:
        del bus.let_go[peer]


def worker_at(bus: Tables, address: Address, now: float) -> Worker | None:
    """The worker at an address. One that was silent is back, unless its lease ended meanwhile (then it offers
    nothing any more): that one may answer, but must register again."""
    worker = bus.workers.get(address)
    if worker is None and (bus.silent or bus.resting):
        worker = bus.silent.get(address) or bus.resting.get(address)
        if worker is not None and worker.offers:
            _come_back(bus, worker, now)
    return worker


def _come_back(bus: Tables, worker: Worker, now: float) -> None:
    """A silent worker was heard: its conversation goes on, and so does what it works on."""
    if bus.resting.pop(worker.address, None) is None:
        del bus.silent[worker.address]
    worker.state = RETURN[worker.state]
    worker.seen_at = now
    bus.workers[worker.address] = worker
    offers: dict[Service, int] = {}
    for offered, weight in worker.offers.items():
        # A service that nobody offered or used meanwhile was forgotten.
        service = bus.service(offered.name)
        if service is not None:
            offers[service] = weight
    worker.offers = offers
    for service, weight in offers.items():
        service.roster.add(worker, weight)
        if bus.bridging is not None:
            bus.bridging.settle(service.name, now)
    bus.watches.clear(worker)
    if worker.heartbeat.dead_after_s > 0:
        bus.watches.set(worker, now + worker.heartbeat.period_s)
    bus.observe(
        "worker_up",
        now,
        worker=worker.address,
        worker_voice=worker.voice,
        service=b",".join(service.name for service in offers),
        reason="it is heard again",
    )
    for request in list(worker.inflight.values()):
        if request.state in _WITHOUT_WORKER and not _awaits_retry(bus, request, worker):
            take_up(bus, request, worker, now)
    feed(bus, worker, now)


def _awaits_retry(bus: Tables, request: Request, worker: Worker) -> bool:
    """Whether the worker took too long and the next attempt is due later. That attempt was counted: if the
    request became the worker's own again, a failure of the same attempt would count once more."""
    holding = bus.holders.get(request.token, {}).get(worker)
    return holding is not None and holding.is_overdue and request.state is not RequestState.SUSPENDED


def take_over(bus: Tables, request: Request, worker: Worker, now: float) -> None:
    """A worker answers a request that was taken from it and has not ended: the request is its own again."""
    if request.state in _WITHOUT_WORKER:
        take_up(bus, request, worker, now)
        return
    other = request.worker
    assert other is not None
    # The other one works for nothing; its slot stays taken until it says something.
    is_free = stop(bus, request, other)
    request.worker = worker
    request.dispatched_at = _given_at(bus, request, worker)
    if request.token not in worker.inflight:
        worker.inflight[request.token] = request
        if not worker.grants_slots:
            worker.free -= 1
    if is_free:
        slot_back(bus, other, now)


def take_up(bus: Tables, request: Request, worker: Worker, now: float) -> None:
    """Give a request to the worker that has it already. Mostly its slot is taken by it."""
    given_at = _given_at(bus, request, worker)
    has_slot = request.token in worker.inflight
    adopt(bus, request, worker, now, given_at)
    if has_slot and not worker.grants_slots:
        worker.free += 1


def _given_at(bus: Tables, request: Request, worker: Worker) -> float:
    """When the worker got the request, as far as that is known: how long it took is told from then on."""
    holding = bus.holders.get(request.token, {}).get(worker)
    return request.dispatched_at if holding is None else holding.given_at


def adopt(bus: Tables, request: Request, worker: Worker, now: float, given_at: float | None = None) -> None:
    """Let a worker have a request that it says it has."""
    state = request.state
    request.state = CLAIM[state]
    if state is RequestState.QUEUED:
        request.service.queue.take_out(request)
    elif state is not RequestState.ORPHANED:
        request.service.waiting -= 1
    if state is not RequestState.ORPHANED:
        request.service.running += 1
    request.worker = worker
    request.dispatched_at = now if given_at is None else given_at
    # That it was started may not have been written down.
    request.attempt = max(1, request.attempt)
    worker.inflight[request.token] = request
    if not worker.grants_slots:
        worker.free -= 1
    if request.alarm is not None:
        bus.alarms.clear(request.alarm)
    if request.options.timeout_s:
        if request.alarm is None:
            request.alarm = Alarm(request)
        bus.alarms.set(request.alarm, now + request.options.timeout_s + bus.limits.timeout_grace_s)
    if request.durable:
        request.is_start_noted = True
        bus.lines.append(ledger.Started(request.token, request.attempt, peer_text(worker.address)))
    bus.observe_request("claimed", request, now)


def suspend(bus: Tables, request: Request, why: str, now: float) -> None:
    """Give a request to nobody else, and wait for those that have it."""
    bus.counters.requeued += 1
    bus.observe_request("requeued", request, now, why)
    request.state = SUSPEND[request.state]
    request.worker = None
    request.service.running -= 1
    request.service.waiting += 1
    if request.alarm is not None:
        bus.alarms.clear(request.alarm)
    if request.durable:
        bus.lines.append(ledger.Waiting(request.token, request.attempt, 0.0, request.history))
    for worker in bus.holders[request.token]:
        # Whether these are still connected decides what becomes of it: the next look at them finds out.
        if worker.state is _SILENT and not worker.endpoint:
            bus.watches.clear(worker)
            bus.watches.set(worker, now)


def decides(worker: Worker) -> bool:
    """Whether the fate of a request depends on a silent worker alone, or on others that are silent, too."""
    return any(request.state is RequestState.SUSPENDED for request in worker.inflight.values())
