"""What the bus looks like from outside: plain values for queries, the command line and dashboards.

`name_of` turns a voice into the name of its dialect; the core does not know it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from polybus.core.bus import Bus
from polybus.core.holders import silent_holders
from polybus.core.leases import seen_at
from polybus.core.lifecycle import TERMINAL, WorkerState
from polybus.core.model import Address, Node, QueuePolicy, Request, Service, Worker

NameOf = Callable[[Any], str]
# A rate is counted over at least this long and at most twice as long.
RATE_SPAN_S: Final = 5.0
NO_POLICY: Final = QueuePolicy()
# A heartbeat that is this much overdue is missed.
LATE_BEATS: Final = 1.5


def peer_name(address: Address) -> str:
    """An identity for people: text if it is text, else hexadecimal."""
    identity = address[1]
    try:
        text = identity.decode("utf-8")
    except UnicodeDecodeError:
        return identity.hex()
    return text if text.isprintable() and text else identity.hex()


class Rates:
    """How many requests of each service end in a second, from two counts that are a while apart.

    Counting all services every few seconds costs less than a clock on the path of every request.
    """

    def __init__(self) -> None:
        self._old: dict[bytes, int] = {}
        self._new: dict[bytes, int] = {}
        self._old_at = self._new_at = 0.0

    def sample(self, services: Mapping[bytes, Service], now: float) -> None:
        """Count, unless that was done a moment ago. To be called about every second."""
        if now - self._new_at < RATE_SPAN_S and self._new_at:
            return
        self._old, self._old_at = self._new, self._new_at
        self._new = {name: _ended(service) for name, service in services.items()}
        self._new_at = now
        if not self._old_at:
            self._old, self._old_at = self._new, now

    def of(self, service: Service, now: float) -> float:
        if now <= self._old_at:
            return 0.0
        # A service that is younger than the count has done all it did since then.
        return round((_ended(service) - self._old.get(service.name, 0)) / (now - self._old_at), 2)


def _ended(service: Service) -> int:
    return service.answered + service.failed


def is_late(worker: Worker, now: float) -> bool:
    """Whether a worker that promised heartbeats owes one."""
    beats = worker.heartbeat
    every_s = beats.beat_every_s or beats.dead_after_s / 3
    return beats.dead_after_s > 0 and now - worker.seen_at >= every_s * LATE_BEATS


def load_of(workers: Iterable[Worker]) -> float | None:
    """The part of all slots that is taken; None if there are no slots."""
    taken = free = 0
    for worker in workers:
        taken += len(worker.inflight)
        free += max(worker.free, 0)
    return round(taken / (taken + free), 3) if taken + free else None


def state_of(workers: Collection[Worker], now: float, silent: int = 0) -> str:
    """A service is alive if somebody serves it that does not owe a heartbeat, and silent if only workers are
    left that count as disconnected but may still answer what they have."""
    return _state(len(workers), sum(1 for worker in workers if is_late(worker, now)), silent)


def _state(workers: int, late: int, silent: int) -> str:
    if not workers:
        return "silent" if silent else "unserved"
    return "late" if late == workers else "alive"


def silent_by_service(bus: Bus) -> Counter[bytes]:
    """How many silent workers each service has. There are few of them, if any."""
    return Counter(service.name for worker in bus.silent.values() for service in services_of(worker))


def services_of(worker: Worker) -> dict[Service, int]:
    """What a worker offers, with its weights. A silent one whose lease has ended offers nothing any more, but
    may still answer requests of these."""
    if worker.offers or worker.state is not WorkerState.SILENT:
        return worker.offers
    unanswered = (request for request in worker.inflight.values() if request.state not in TERMINAL)
    return {request.service: 0 for request in unanswered}


def service_view(
    service: Service, now: float, name_of: NameOf, rate_per_s: float = 0.0, silent: int = 0
) -> dict[str, Any]:
    workers = service.roster.members
    oldest = service.queue.oldest_at()
    policy = service.policy or NO_POLICY
    oldest_s = round(now - oldest, 3) if oldest is not None else None
    late = sum(1 for worker in workers if is_late(worker, now))
    return {
        "service": service.name.decode(errors="replace"),
        "state": _state(len(workers), late, silent),
        "workers": len(workers),
        "late_workers": late,
        # Those that count as disconnected and may still answer what they have. They are not among the others.
        "silent_workers": silent,
        # How long the oldest of its workers has been there, and when any of them was last heard.
        "up_s": round(now - min(worker.since for worker in workers), 3) if workers else None,
        "silent_s": round(now - max(worker.seen_at for worker in workers), 3) if workers else None,
        "missed_beats": sum(worker.missed for worker in workers),
        "load": load_of(workers),
        "dialects": sorted({name_of(worker.voice) for worker in workers}),
        "free_slots": sum(max(worker.free, 0) for worker in workers),
        "queued": service.queue.length,
        "oldest_queued_s": oldest_s,
        "in_flight": sum(
            1 for worker in workers for request in worker.inflight.values() if request.service is service
        ),
        "accepted": service.accepted,
        "answered": service.answered,
        "failed": service.failed,
        # The same as a queue of jobs: what waits for a worker, for its next attempt, and what may run.
        "depth": service.queue.length,
        "oldest_s": oldest_s,
        "rate_per_s": rate_per_s,
        "running": service.running,
        "waiting": service.waiting,
        "limits": {"concurrency": policy.concurrency, "rate_per_s": policy.rate_per_s},
        "guarantee": policy.guarantee,
    }


def worker_view(worker: Worker, now: float, name_of: NameOf, wall_offset: float = 0.0) -> dict[str, Any]:
    is_silent = worker.state is WorkerState.SILENT
    unanswered = sum(1 for request in worker.inflight.values() if request.state not in TERMINAL)
    return {
        "worker": peer_name(worker.address),
        "dialect": name_of(worker.voice),
        "role": "scheduler" if worker.is_scheduler else "worker",
        "services": {s.name.decode(errors="replace"): weight for s, weight in services_of(worker).items()},
        "state": worker.state.name.lower(),
        "credit": worker.credit,
        # Nothing is given to a silent one.
        "free_slots": 0 if is_silent else worker.free,
        "in_flight": len(worker.inflight),
        # Of these, the requests that have no answer yet.
        "unanswered": unanswered,
        "load": None if is_silent else load_of((worker,)),
        "done": worker.done,
        "late": not is_silent and is_late(worker, now),
        "dead_after_s": worker.heartbeat.dead_after_s or None,
        "up_s": round(now - worker.since, 3),
        "silent_s": round(now - worker.seen_at, 3),
        # When a silent one was last heard; the time of day.
        "silent_since": round(worker.seen_at + wall_offset, 3) if is_silent else None,
        "missed_beats": worker.missed,
    }


def request_view(
    request: Request, now: float, name_of: NameOf, silent: Iterable[Worker] = ()
) -> dict[str, Any]:
    return {
        "token": request.token.decode(),
        "request_id": peer_name((0, request.request_id)),
        "service": request.service.name.decode(errors="replace"),
        "client": peer_name(request.client.address),
        "dialect": name_of(request.voice),
        "state": request.state.name.lower(),
        "worker": peer_name(request.worker.address) if request.worker else None,
        # Workers that went silent with it and may still answer it, whoever else gets it.
        "silent_workers": [peer_name(worker.address) for worker in silent],
        "attempt": request.attempt,
        "age_s": round(now - request.accepted_at, 3),
        "expires_in_s": round(request.expires_at - now, 3),
        "bytes": request.size,
    }


def node_view(node: Node, now: float) -> dict[str, Any]:
    return {
        "node": node.name.decode(errors="replace"),
        "state": node.state.name.lower(),
        "heartbeat_s": node.heartbeat_s,
        "up_s": round(now - node.registered_at, 3),
        "silent_s": round(now - seen_at(node), 3),
        "missed_beats": node.missed,
        # Whether its heartbeats come as datagrams, or over TCP; or it sends none, and is asked.
        "beats": "udp" if node.pulse_from is not None else "asked" if node.quiet else "tcp",
        "address": _place(node),
        "function": str(node.info.get("function") or ""),
        "in_flight": len(node.worker.inflight) if node.worker else 0,
        "done": node.worker.done if node.worker else 0,
        "load": load_of((node.worker,)) if node.worker else None,
        "info": node.info,
    }


def _place(node: Node) -> str:
    ip, port = node.info.get("ip"), node.info.get("port")
    return f"{ip}:{port}" if ip and port else ""


def services(bus: Bus, now: float, name_of: NameOf, rates: Rates | None = None) -> list[dict[str, Any]]:
    found = (bus.services[name] for name in sorted(bus.services))
    silent = silent_by_service(bus)
    return [
        {
            **service_view(
                service, now, name_of, rates.of(service, now) if rates else 0.0, silent[service.name]
            ),
            # The brokers on the way, if it is offered elsewhere.
            "via": bus.bridging.via(service.name) if bus.bridging is not None else [],
        }
        for service in found
    ]


def workers(bus: Bus, now: float, name_of: NameOf) -> list[dict[str, Any]]:
    """All workers, the silent ones last."""
    return [worker_view(worker, now, name_of, bus.wall_offset) for worker in all_workers(bus)]


def all_workers(bus: Bus) -> Iterator[Worker]:
    """Those that are connected, then those that are silent."""
    return chain(bus.workers.values(), bus.silent.values())


def requests(bus: Bus, now: float, name_of: NameOf, limit: int) -> list[dict[str, Any]]:
    views: list[dict[str, Any]] = []
    for request in bus.requests.values():
        if len(views) == limit:
            break
        views.append(request_view(request, now, name_of, silent_holders(bus, request)))
    return views


def nodes(bus: Bus, now: float) -> list[dict[str, Any]]:
    return [node_view(bus.nodes[name], now) for name in sorted(bus.nodes)]


def totals(bus: Bus) -> dict[str, Any]:
    return {
        "state": bus.state.name.lower(),
        "services": len(bus.services),
        "workers": len(bus.workers),
        "silent_workers": len(bus.silent),
        "clients": len(bus.clients),
        "nodes": len(bus.nodes),
        "requests": bus.request_count,
        "schedules": len(bus.book.schedules),
        # "well", or why nothing can be written down.
        "store": bus.store_trouble or "well",
        "held_bytes": bus.held_bytes,
        "kept_replies": len(bus.replies),
        "kept_replies_bytes": bus.replies_bytes,
        "subscriptions": sum(map(len, bus.subscriptions.values())),
        "last_values": len(bus.last),
        "last_values_bytes": bus.last.held_bytes,
        "last_values_evicted": bus.last.evicted,
        "publications_refused": bus.publications_refused,
        **bus.catalog.facts(),
        "logs": len(bus.logs),
        "logs_bytes": bus.logs.held_bytes,
        "logs_evicted": bus.logs.evicted,
        "logs_cut": bus.logs.cut,
        **bus.counters.as_dict(),
        # By reason, which are few.
        "refusals": dict(bus.refusals),
    }
