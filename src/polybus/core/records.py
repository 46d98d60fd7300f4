"""What every request touches: clients, requests, workers, services, and the two structures that choose.

Plain classes, so that the declarations in `records.pxd` can turn them into C structs when polybus is built
with a compiler; without one this file is what runs.  The sources are the same, so is what they do.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from polybus.core.lifecycle import RequestState, WorkerState

if TYPE_CHECKING:
    from polybus.core.actions import Answer, Refuse
    from polybus.core.model import Address, Body, Heartbeat, JobOptions, QueuePolicy

_ACCEPTED: Final = RequestState.ACCEPTED
_QUEUED: Final = RequestState.QUEUED
_SERVING: Final = WorkerState.SERVING


class Client:
    __slots__ = ("address", "known", "unanswered")

    def __init__(self, address: Address) -> None:
        self.address = address
        # Its requests by their key; each gives way to its answer, kept in case the client asks again.
        self.known: dict[bytes, Request | Answer | Refuse] = {}
        # How many of them are requests.
        self.unanswered = 0

    @property
    def outstanding(self) -> dict[bytes, Request]:
        """Its unanswered requests."""
        return {key: value for key, value in self.known.items() if isinstance(value, Request)}

    @property
    def done(self) -> dict[bytes, Answer | Refuse]:
        """The answers that are kept for it."""
        return {key: value for key, value in self.known.items() if not isinstance(value, Request)}


class Request:
    __slots__ = (
        "accepted_at",
        "alarm",
        "attempt",
        "body",
        "client",
        "context",
        "dispatched_at",
        "durable",
        "expires_at",
        "failures",
        "history",
        "is_start_noted",
        "options",
        "request_id",
        "service",
        "size",
        "slot",
        "state",
        "token",
        "voice",
        "worker",
    )

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
    state: RequestState
    worker: Worker | None
    attempt: int
    dispatched_at: float
    slot: int
    # Whether it is in the ledger: then every step of it is.
    durable: bool
    # Whether it is written down there that its worker has it.
    is_start_noted: bool
    # When something is due that is not its expiry: the next attempt, or the end of one that takes too long.
    alarm: Alarm | None
    # Attempts that failed (a lost worker is no failure), and every attempt that came to nothing.
    failures: int
    history: tuple[Any, ...]
    # Where it comes from, as whoever traces it wants its worker to know; None: as its client said.
    context: tuple[str, ...] | None

    @property
    def key(self) -> bytes:
        """Its name among the requests of its client: the client's own id, or ours if it has none."""
        return self.request_id or self.token


class Alarm:
    """A deadline of a request beside its expiry."""

    __slots__ = ("request", "slot")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.slot = 0


def new_request(
    token: bytes,
    request_id: bytes,
    client: Client,
    voice: Any,
    service: Service,
    body: Body,
    size: int,
    options: JobOptions,
    accepted_at: float,
    expires_at: float,
) -> Request:
    """A request as it begins. A function, because calling a class packs its arguments first."""
    request = Request.__new__(Request)
    request.token = token
    request.request_id = request_id
    request.client = client
    request.voice = voice
    request.service = service
    request.body = body
    request.size = size
    request.options = options
    request.accepted_at = accepted_at
    request.expires_at = expires_at
    request.state = _ACCEPTED
    request.worker = None
    request.attempt = 0
    request.dispatched_at = 0.0
    request.slot = 0
    request.durable = False
    request.is_start_noted = False
    request.alarm = None
    request.failures = 0
    request.history = ()
    request.context = None
    return request


class Worker:
    __slots__ = (
        "address",
        "contested",
        "credit",
        "done",
        "endpoint",
        "forgets_stopped",
        "free",
        "grants_slots",
        "heartbeat",
        "inflight",
        "is_scheduler",
        "missed",
        "obeys_stop",
        "offers",
        "owed",
        "owed_slots",
        "resumes",
        "seen_at",
        "since",
        "slot",
        "spoken_at",
        "state",
        "streak",
        "voice",
    )

    def __init__(
        self,
        address: Address,
        voice: Any,
        heartbeat: Heartbeat,
        credit: int,
        grants_slots: bool,
        now: float,
        offers: dict[Service, int] | None = None,
        is_scheduler: bool = False,
        endpoint: str = "",
        forgets_stopped: bool = False,
        obeys_stop: bool = False,
        resumes: bool = False,
    ) -> None:
        self.address = address
        self.voice = voice
        self.heartbeat = heartbeat
        # How many requests it takes at once; workers that hand out their own slots start with none.
        self.credit = credit
        self.grants_slots = grants_slots
        self.free = 0 if grants_slots else credit
        self.since = self.seen_at = self.spoken_at = now
        self.offers: dict[Service, int] = offers or {}
        self.inflight: dict[bytes, Request] = {}
        self.state = _SERVING
        self.done = 0
        self.missed = 0
        self.slot = 0
        # How many of its services have other workers too: with none there is nothing to choose.
        self.contested = 0
        # A scheduler is watched like a worker and offers nothing.
        self.is_scheduler = is_scheduler
        # Where we dialled it; empty if it came to us.
        self.endpoint = endpoint
        # It can be told to stop what it runs. It answers that, unless it drops what it is told to stop: then
        # its slot is free at once.
        self.obeys_stop = obeys_stop
        self.forgets_stopped = forgets_stopped
        # Its dialect has no word that makes it register again.
        self.resumes = resumes
        # So many requests it has not answered that ended while it was silent: an answer that names no request
        # is about the oldest one, so the next answers of this form are late. And so many of the slots that
        # they took it has not granted again.
        self.owed = self.owed_slots = 0
        # How often in a row its heaviest service was served while a lighter one waited.
        self.streak = 0


class Service:
    __slots__ = (
        "accepted",
        "allowance",
        "allowance_at",
        "answered",
        "failed",
        "idle_since",
        "limited",
        "name",
        "policy",
        "queue",
        "roster",
        "running",
        "slot",
        "waiting",
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.queue = FairQueue()
        self.roster = Roster()
        self.accepted = 0
        self.answered = 0
        self.failed = 0
        self.idle_since = 0.0
        # What the configuration says about it, and whether that limits how many are started.
        self.policy: QueuePolicy | None = None
        self.limited = False
        # Requests that workers have, and those that wait for their next attempt.
        self.running = 0
        self.waiting = 0
        # Starts that its rate still allows, as of a time; the slot of the timer that waits for the next one.
        self.allowance = 1.0
        self.allowance_at = 0.0
        self.slot = 0


# How many more shells than requests a queue may hold: few, because each has its body.
SHELLS_KEPT: Final = 16


def _waiting(requests: Iterable[Request], but: Request | None = None) -> Iterator[Request]:
    return (request for request in requests if request.state is _QUEUED and request is not but)


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

    def take_out(self, request: Request) -> None:
        """Remove a request that may come back: as a shell it would be here twice then."""
        try:
            self._front.remove(request)
        except ValueError:
            lane = self._lanes[request.client]
            lane.remove(request)
            if not lane:
                del self._lanes[request.client]
                self._turns.remove(request.client)
        self.length -= 1

    def forget(self, request: Request) -> None:
        """A queued request leaves its state for good; it stays here as a shell until it is met."""
        self.length -= 1
        self._shells += 1
        # Where nobody works, requests come and expire for ever and none is ever met.
        if self._shells > self.length + SHELLS_KEPT or not self.length:
            self._sweep(request)

    def _sweep(self, leaving: Request) -> None:
        """Let go of all shells, and of the one that is about to be one."""
        self._front = deque(_waiting(self._front, leaving))
        for client, lane in list(self._lanes.items()):
            self._lanes[client] = deque(_waiting(lane, leaving))
            if not self._lanes[client]:
                del self._lanes[client]
        self._turns = deque(client for client in self._turns if client in self._lanes)
        self._shells = 0

    def pop(self) -> Request:
        """The next request. There must be one (`length` > 0)."""
        request = self._next()
        while request.state is not _QUEUED:
            self._shells -= 1
            request = self._next()
        self.length -= 1
        return request

    def oldest_at(self) -> float | None:
        """When the longest waiting request was accepted; of each client the one that is next."""
        heads = [request.accepted_at for request in _waiting(self._front)]
        for lane in self._lanes.values():
            head = next(_waiting(lane), None)
            if head is not None:
                heads.append(head.accepted_at)
        return min(heads, default=None)

    def _next(self) -> Request:
        if self._front:
            return self._front.popleft()
        client = self._turns[0]
        lane = self._lanes[client]
        request = lane.popleft()
        if lane:
            if len(self._turns) > 1:
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
            return sole if sole.free > 0 and sole.state is _SERVING else None
        for loads in self._tiers.values():
            if loads:
                return next(iter(loads[min(loads)]))
        return None

    def refile(self, worker: Worker) -> None:
        """The load or the slots of `worker` changed: it goes to the end of its bucket."""
        if self._sole is not None:
            return
        self._unfile(worker)
        if worker.free > 0 and worker.state is _SERVING:
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
