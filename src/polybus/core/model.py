"""The things the bus knows: services, workers, clients, requests, nodes.

An `Address` is where a peer is: the number of the link (socket) and its identity there.
A `voice` says how a peer is spoken to; the core carries it and never looks inside, which is
how it stays free of dialects.  Records are compared by identity (`eq=False`) and live in the
tables of `polybus.core.bus.Bus`.  Records that are made for every request are Structs, which are cheap to
make; those that every request changes are slotted dataclasses, which are cheap to change.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from polybus.core.lifecycle import NodeState, RequestState, WorkerState

if TYPE_CHECKING:
    from polybus.core.actions import Answer, Refuse
    from polybus.core.events import WorkerUp

Address = tuple[int, bytes]
# Opaque frames: `bytes`, or buffers that the pump did not copy. The core only asks for their length.
Body = list[Any]


class Reason(StrEnum):
    """Why the bus did not answer a request with a reply. Clients, logs and tables see these words."""

    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"
    QUEUE_FULL = "queue_full"
    TOO_MANY_OUTSTANDING = "too_many_outstanding"
    TOO_LARGE = "too_large"
    TOO_MANY_SERVICES = "too_many_services"
    OUT_OF_MEMORY = "out_of_memory"
    DRAINING = "draining"
    WORKER_LOST = "worker_lost"
    UNDELIVERABLE = "undeliverable"
    NO_SCHEDULER = "no_scheduler"


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Every bound of the core, with its reason."""

    # One body larger than this is a file, not a message; 64 MiB also bounds what one peer can pin.
    body_bytes: int = 64 * 1024 * 1024
    # Bodies are held until the request ends, so that they can be sent to another worker.
    held_bytes: int = 2 * 1024 * 1024 * 1024
    # Longer than this a queue is an outage; at 1 KiB it is already 100 MiB.
    queue_length: int = 100_000
    # A client with more than this unanswered is not reading its answers.
    outstanding_per_client: int = 10_000
    # Names come from the wire: without a bound a hostile peer fills the memory with them.
    services: int = 10_000
    # Work that has cost this many workers their life will cost the next one too.
    attempts: int = 5
    # How long an unanswered request is kept, unless its client says otherwise.
    request_ttl_s: float = 300.0
    # Answers are kept for clients that ask again: long enough for a restart, bounded three ways.
    replies_age_s: float = 300.0
    replies_bytes: int = 64 * 1024 * 1024
    replies_count: int = 100_000
    # Registrations in the catalog.
    nodes: int = 100_000
    # Prefixes that subscribers of one link may hold.
    subscriptions: int = 100_000
    # Topics whose rate is counted by name; the others are counted together.
    topics_counted: int = 10_000
    # A service without workers and requests is forgotten after this long.
    idle_service_s: float = 600.0


class JobOptions(Struct, frozen=True):
    """What a client asked for besides running its request."""

    reply_requested: bool = True
    guarantee: bool = False
    retries: int = 0
    timeout_s: float = 0.0
    # Options the bus does not know are handed to the worker as they came.
    other: tuple[str, ...] = ()


PLAIN_CALL = JobOptions()


class Heartbeat(Struct, frozen=True):
    """How a worker's life is watched."""

    # Silence for this long means that it is gone; 0 means that somebody else watches it.
    dead_after_s: float
    # We say something at least this often; 0 means that we only answer.
    beat_every_s: float = 0.0
    # True: we only speak when nothing came in (a question), not when nothing went out.
    when_silent: bool = False


class Client(Struct, eq=False):
    address: Address
    outstanding: dict[bytes, Request] = field(default_factory=dict)
    # The answers it got last, kept in case it asks again.
    done: dict[bytes, Answer | Refuse] = field(default_factory=dict)


class Request(Struct, eq=False):
    token: bytes
    request_id: bytes
    client: Client
    voice: Any
    service: Service
    body: Body
    size: int
    options: JobOptions
    accepted_at: float
    expires_at: float
    state: RequestState = RequestState.ACCEPTED
    worker: Worker | None = None
    attempt: int = 0
    dispatched_at: float = 0.0
    slot: int = 0

    @property
    def key(self) -> bytes:
        """Its name among the requests of its client: the client's own id, or ours if it has none."""
        return self.request_id or self.token


@dataclass(slots=True, eq=False)
class Worker:
    address: Address
    voice: Any
    heartbeat: Heartbeat
    # How many requests it takes at once; workers that hand out their own slots start with none.
    credit: int
    grants_slots: bool
    since: float
    seen_at: float
    spoken_at: float
    free: int = 0
    offers: dict[Service, int] = dataclass_field(default_factory=dict)
    inflight: dict[bytes, Request] = dataclass_field(default_factory=dict)
    state: WorkerState = WorkerState.SERVING
    done: int = 0
    missed: int = 0
    slot: int = 0
    # How many of its services have other workers too: with none there is nothing to choose.
    contested: int = 0
    # A scheduler is watched like a worker and offers nothing.
    is_scheduler: bool = False
    # Where we dialled it; empty if it came to us.
    endpoint: str = ""
    # What it is told to stop it drops without an answer, so the slot is free at once.
    forgets_stopped: bool = False


@dataclass(slots=True, eq=False)
class Service:
    name: bytes
    queue: FairQueue
    roster: Roster
    accepted: int = 0
    answered: int = 0
    failed: int = 0
    idle_since: float = 0.0


class Node(Struct, eq=False):
    """A registration in the catalog: a lease, not a connection."""

    name: bytes
    info: dict[str, Any]
    address: Address
    voice: Any
    heartbeat_s: float
    registered_at: float
    seen_at: float
    # How it can be called, and the worker that it is therefore, if that is not gone.
    serves: WorkerUp | None = None
    worker: Worker | None = None
    state: NodeState = NodeState.ALIVE
    missed: int = 0
    slot: int = 0


# How many more shells than requests a queue may hold: few, because each has its body.
SHELLS_KEPT: Final = 16


def _waiting(requests: Iterable[Request]) -> Iterator[Request]:
    return (request for request in requests if request.state is RequestState.QUEUED)


class FairQueue:
    """Requests waiting for one service: those sent back first, then one of each client in turn."""

    __slots__ = ("_front", "_lanes", "_shells", "_turns", "length")

    def __init__(self) -> None:
        self._front: deque[Request] = deque()
        self._lanes: dict[Client, deque[Request]] = {}
        self._turns: deque[Client] = deque()
        # Only requests still in state QUEUED count; others are shells, skipped when they are met.
        self.length = 0
        self._shells = 0

    def push(self, request: Request) -> None:
        lane = self._lanes.get(request.client)
        if lane is None:
            self._lanes[request.client] = deque((request,))
            self._turns.append(request.client)
        else:
            lane.append(request)
        self.length += 1

    def push_front(self, request: Request) -> None:
        self._front.appendleft(request)
        self.length += 1

    def forget_one(self) -> None:
        """A queued request has left its state; it stays here as a shell until it is met."""
        self.length -= 1
        self._shells += 1
        # Where nobody works, requests come and expire for ever and none is ever met.
        if self._shells > self.length + SHELLS_KEPT or not self.length:
            self._sweep()

    def _sweep(self) -> None:
        """Let go of all shells."""
        self._front = deque(_waiting(self._front))
        for client, lane in list(self._lanes.items()):
            self._lanes[client] = deque(_waiting(lane))
            if not self._lanes[client]:
                del self._lanes[client]
        self._turns = deque(client for client in self._turns if client in self._lanes)
        self._shells = 0

    def pop(self) -> Request:
        """The next request. There must be one (`length` > 0)."""
        request = self._next()
        while request.state is not RequestState.QUEUED:
            self._shells -= 1
            request = self._next()
        self.length -= 1
        return request

    def oldest_at(self) -> float | None:
        """When the longest waiting request was accepted."""
        heads = [request.accepted_at for request in _waiting(self._front)]
        for lane in self._lanes.values():
            heads += [request.accepted_at for request in islice(_waiting(lane), 1)]
        return min(heads, default=None)

    def _next(self) -> Request:
        if self._front:
            return self._front.popleft()
        client = self._turns[0]
        lane = self._lanes[client]
        request = lane.popleft()
        if lane:
            self._turns.rotate(-1)
        else:
            self._turns.popleft()
            del self._lanes[client]
        return request


class Roster:
    """The workers of one service, in the order in which they get the next request:
    by weight, then the least loaded, then the least recently used.

    A worker with a free slot is filed in the bucket of its load, the one longest there in front.
    With a single worker there is nothing to choose and nothing is filed.
    """

    __slots__ = ("_filed", "_sole", "_tiers", "members")

    def __init__(self) -> None:
        self.members: dict[Worker, int] = {}
        self._sole: Worker | None = None
        # weight (highest first) -> load -> workers, least recently used first
        self._tiers: dict[int, dict[int, OrderedDict[Worker, None]]] = {}
        self._filed: dict[Worker, int] = {}

    def add(self, worker: Worker, weight: int) -> None:
        self.discard(worker)
        self.members[worker] = weight
        if weight not in self._tiers:
            self._tiers = {w: self._tiers.get(w, {}) for w in sorted({*self._tiers, weight}, reverse=True)}
        if len(self.members) == 1:
            self._sole = worker
            return
        worker.contested += 1
        if self._sole is not None:
            self._sole.contested += 1
            first, self._sole = self._sole, None
            self.refile(first)
        self.refile(worker)

    def discard(self, worker: Worker) -> None:
        if worker not in self.members:
            return
        self._unfile(worker)
        weight = self.members.pop(worker)
        if weight not in self.members.values():
            del self._tiers[weight]
        if self._sole is worker:
            self._sole = None
            return
        worker.contested -= 1
        if len(self.members) == 1:
            (self._sole,) = self.members
            self._sole.contested -= 1
            self._unfile(self._sole)

    def best(self) -> Worker | None:
        """Who gets the next request; None if every slot is taken."""
        sole = self._sole
        if sole is not None:
            return sole if sole.free > 0 and sole.state is WorkerState.SERVING else None
        for loads in self._tiers.values():
            if loads:
                return next(iter(loads[min(loads)]))
        return None

    def refile(self, worker: Worker) -> None:
        """The load or the slots of `worker` changed: it goes to the end of its bucket."""
        if self._sole is not None:
            return
        self._unfile(worker)
        if worker.free > 0 and worker.state is WorkerState.SERVING:
            load = len(worker.inflight)
            loads = self._tiers[self.members[worker]]
            bucket = loads.get(load)
            if bucket is None:
                bucket = loads[load] = OrderedDict()
            bucket[worker] = None
            self._filed[worker] = load

    def _unfile(self, worker: Worker) -> None:
        load = self._filed.pop(worker, None)
        if load is not None:
            loads = self._tiers[self.members[worker]]
            bucket = loads[load]
            del bucket[worker]
            if not bucket:
                del loads[load]
