"""What must hold for the tables of a bus after every single event, whatever happened before.

`check(bus, now)` looks at all of it.  It reads the tables as they are, because that is what is to be checked.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from polybus.core import replies
from polybus.core.bus import Bus
from polybus.core.holders import can_be_reached
from polybus.core.lifecycle import ABSENT, TERMINAL, BusState, RequestState, WorkerState
from polybus.core.model import Client, Request, Service
from polybus.core.replies import KEPT_OVERHEAD_BYTES

R = RequestState
RUNNING = (R.DISPATCHED, R.STREAMING)


def check(bus: Bus, now: float) -> None:
    places(bus)
    counters_of_services(bus)
    slots(bus)
    nobody_waits_for_nothing(bus)
    owners(bus)
    kept_answers(bus)
    kept_outcomes(bus)
    deadlines(bus, now)
    alarms(bus)
    groups_and_waiters(bus)
    unwritten(bus)
    silent_workers(bus)


def _clients(bus: Bus) -> list[Client]:
    return [*bus.clients.values(), bus.desk]


def places(bus: Bus) -> None:
    """Every request is in one place: where its state says."""
    assert bus.held_bytes == sum(r.size for r in bus.requests.values())
    queued = Counter(
        request.token
        for service in bus.services.values()
        for line in (service.queue._front, *service.queue._lanes.values())
        for request in line
        if request.state is R.QUEUED
    )
    assert set(queued) <= set(bus.requests)
    for token, request in bus.requests.items():
        assert request.token == token
        assert request.state not in TERMINAL
        assert queued[token] == (request.state is R.QUEUED), (request.state, queued[token])
        assert (request.worker is not None) == (request.state in RUNNING), request.state
        assert bus.services.get(request.service.name) is request.service, "its service was forgotten"
        if request.worker is not None:
            assert request.worker.inflight[token] is request
            assert bus.workers[request.worker.address] is request.worker
        if request.state in (R.ACCEPTED, R.ORPHANED):
            assert request.durable


def counters_of_services(bus: Bus) -> None:
    counts: dict[Service, Counter[RequestState]] = {}
    for request in bus.requests.values():
        counts.setdefault(request.service, Counter())[request.state] += 1
    for service in bus.services.values():
        count = counts.get(service, Counter())
        queue = service.queue
        assert queue.length == count[R.QUEUED], service.name
        lines = [request for line in (queue._front, *queue._lanes.values()) for request in line]
        assert queue._shells == sum(request.state is not R.QUEUED for request in lines)
        assert len(queue._turns) == len(queue._lanes)
        assert service.waiting == count[R.WAITING] + count[R.SUSPENDED], service.name
        assert service.running == count[R.DISPATCHED] + count[R.STREAMING] + count[R.ORPHANED], service.name


def slots(bus: Bus) -> None:
    for address, worker in bus.workers.items():
        assert worker.address == address
        assert worker.state not in ABSENT
        if not worker.grants_slots:
            assert worker.free + len(worker.inflight) == worker.credit
        else:
            assert worker.free >= 0
        for token, request in worker.inflight.items():
            assert request.token == token
            assert request.state in TERMINAL or bus.requests[token] is request
    for service in bus.services.values():
        expected = {worker for worker in bus.workers.values() if service in worker.offers}
        assert set(service.roster.members) == expected


def nobody_waits_for_nothing(bus: Bus) -> None:
    """Nothing is queued while a worker is free for it and the rules of its queue let it start."""
    for service in bus.services.values():
        if not service.queue.length:
            continue
        free = [w for w in service.roster.members if w.free > 0 and w.state is WorkerState.SERVING]
        rule = service.policy
        if not free or (rule is not None and 0 < rule.concurrency <= service.running):
            continue
        # A gate that opens by itself may be late by a tick; one that is not there never opens.
        assert service.slot, service.name


def owners(bus: Bus) -> None:
    owned = {r.token for client in _clients(bus) for r in client.outstanding.values()}
    assert owned == set(bus.requests)
    for client in _clients(bus):
        assert len(client.outstanding) == client.unanswered
        for key, known in client.known.items():
            if isinstance(known, Request):
                assert known.key == key
                assert known.client is client
            else:
                assert known.request_id == key
    for address, client in bus.clients.items():
        assert client.address == address
        assert client.known, "an empty client is let go"


def kept_answers(bus: Bus) -> None:
    kept = [(client, answer.request_id) for client, answer in replies.kept(bus)]
    assert len(set(kept)) == len(kept) <= bus.limits.replies_count
    size = sum(KEPT_OVERHEAD_BYTES + sum(map(len, answer.body)) for _, answer in replies.kept(bus))
    assert bus.replies_bytes == size <= bus.limits.replies_bytes
    words = {id(word) for _, word in replies.kept(bus)}
    words |= {id(outcome.word) for outcome in bus.outcomes}
    words |= {id(kept[1]) for group in bus.groups.values() for kept in group.kept}
    for client in _clients(bus):
        for word in client.done.values():
            assert id(word) in words, "kept, and never forgotten"


def kept_outcomes(bus: Bus) -> None:
    assert bus.outcomes_bytes == sum(outcome.size for outcome in bus.outcomes)
    ages = [outcome.at for outcome in bus.outcomes]
    # Members of a group keep their time until it has ended; a clock that was set back may disturb it, too.
    if not any(outcome.word.request_id.count(b"/") for outcome in bus.outcomes):
        assert ages == sorted(ages)


def deadlines(bus: Bus, now: float) -> None:
    timed = {r.token for slot in bus.expiries._slots.values() for r in slot}
    assert timed == {r.token for r in bus.requests.values() if r.slot}
    for request in bus.patient.values():
        assert bool(request.slot) == (request.expires_at != inf)
    default = [r.expires_at for r in bus.prompt.values()]
    assert default == sorted(default)
    watched = [w for slot in bus.watches._slots.values() for w in slot]
    assert len(watched) == len(set(watched))
    for worker in watched:
        # One that was dialled and is remembered no more is looked at once more, to close its connection.
        known = bus.workers.get(worker.address) or bus.silent.get(worker.address)
        assert known is worker or worker.endpoint
    for worker in bus.workers.values():
        if worker.heartbeat.dead_after_s:
            assert worker in watched
    # Whoever ticks when the bus says so is never more than a slot late.
    soonest = [*(bus.requests[token].expires_at for token in timed), *default]
    assert bus.next_at(now) <= min(soonest, default=inf) + 0.1


def alarms(bus: Bus) -> None:
    """Who waits for something has an alarm for it, and nobody else has."""
    set_ones = {a.request.token: a for slot in bus.alarms._slots.values() for a in slot}
    for token, alarm in set_ones.items():
        request = bus.requests[token]
        assert request.alarm is alarm
        assert request.state is not R.QUEUED
    for token, request in bus.requests.items():
        wanted = request.state is R.ORPHANED or (request.state in RUNNING and bool(request.options.timeout_s))
        if request.state is R.WAITING and bus.state is BusState.SERVING:
            wanted = True
        if wanted:
            assert token in set_ones, request.state
    gates = [service for slot in bus.gates._slots.values() for service in slot]
    assert len(gates) == len(set(gates))
    assert set(gates) >= {service for service in bus.services.values() if service.slot}


def groups_and_waiters(bus: Bus) -> None:
    pending = Counter(r.options.group for r in bus.requests.values() if r.options.group)
    for key, group in bus.groups.items():
        assert group.missing == pending[key] > 0, key
        assert key not in bus.desk.known
    waiters = bus.waiters
    assert sum(waiters._counts.values()) == len(waiters)
    assert sum(len(keys) for keys in waiters.by_job.values()) == len(waiters)
    assert len(waiters) <= bus.limits.waiters
    for job_id in waiters.by_job:
        assert job_id in bus.groups or isinstance(bus.desk.known.get(job_id), Request), job_id


def unwritten(bus: Bus) -> None:
    """What is accepted and not on disk waits for that, in order."""
    numbers = [number for number, _, _ in bus.held]
    assert numbers == sorted(numbers)
    assert all(bus.written < number <= bus.batch for number in numbers)
    held = {request.token for _, request, _ in bus.held if request is not None}
    for token, request in bus.requests.items():
        if request.state is R.ACCEPTED:
            assert token in held


def silent_workers(bus: Bus) -> None:
    """A silent worker is remembered for what it may still answer, and for nothing else."""
    for address, worker in bus.silent.items():
        assert worker.address == address
        assert worker.state is WorkerState.SILENT
        assert address not in bus.workers
        unanswered = [r for r in worker.inflight.values() if r.state not in TERMINAL]
        assert unanswered
        assert address not in bus.resting
        for request in unanswered:
            assert worker in bus.holders[request.token]
        if any(r.state is R.SUSPENDED for r in unanswered) and not worker.endpoint:
            assert worker.slot, "nobody would find out whether it is still connected"
    for token, holders in bus.holders.items():
        request = bus.requests[token]
        assert holders
        for worker, holding in holders.items():
            if holding.has_slot:
                assert worker.inflight[token] is request
            known = bus.departed if worker.state is WorkerState.GONE else {**bus.workers, **bus.silent}
            assert known[worker.address] is worker
    for request in bus.requests.values():
        if request.state is R.SUSPENDED:
            assert can_be_reached(bus, request) or any(w.endpoint for w in bus.holders[request.token])
    for address, worker in bus.departed.items():
        assert worker.address == address
        assert address not in bus.workers
        assert not worker.offers
        is_open = [worker in bus.holders.get(token, ()) for token in worker.inflight]
        assert any(is_open), "there is nothing that it could answer"
    for address, worker in bus.resting.items():
        assert worker.state is WorkerState.SILENT
        assert address not in bus.workers
        assert not worker.inflight
