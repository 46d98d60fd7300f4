"""The tables of the bus: what it knows, and the actions it has noted.

The handlers in `intake`, `requests`, `workers`, `topics` and `catalog` change them.  Like `records`, this may
be compiled (`tables.pxd`).
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from math import inf
from typing import TYPE_CHECKING, Any, Final

from polybus.core.actions import Answer, Observed, Refuse
from polybus.core.journal import Journal
from polybus.core.ledger import Line
from polybus.core.lifecycle import BusState
from polybus.core.model import Address, Body, Limits, Node, QueuePolicy, Retrying
from polybus.core.records import Alarm, Client, Request, Service, Worker
from polybus.core.timers import Timers
from polybus.core.waiting import Waiters

if TYPE_CHECKING:
    from polybus.core.bridging import Bridging
    from polybus.core.holders import Holding
    from polybus.core.replies import KeptOutcome

# The longest time between two ticks, and while requests wait whose default time may run out.
IDLE_TICK_S: Final = 1.0
BUSY_TICK_S: Final = 0.1
# The client that jobs with an id of their own belong to, whoever sent them.
DESK: Final[Address] = (-1, b"jobs")
NO_STORE: Final = "this broker has no store; turn it on with jobs.store = true and a data directory"
_LOW: Final = tuple(b"%02x" % low for low in range(256))


class Counters:
    """What happened since the start. Plain numbers: they are read often and written on the hot path."""

    __slots__ = (
        "accepted",
        "answers_lost",
        "cancelled",
        "dead",
        "dispatched",
        "duplicates",
        "expired",
        "failed",
        "invalid",
        "late",
        "published",
        "rejected",
        "replayed",
        "replied",
        "requeued",
        "retried",
        "timeouts",
        "workers_lost",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    accepted: int
    answers_lost: int
    cancelled: int
    dead: int
    dispatched: int
    duplicates: int
    expired: int
    failed: int
    invalid: int
    late: int
    published: int
    rejected: int
    replayed: int
    replied: int
    requeued: int
    retried: int
    timeouts: int
    workers_lost: int

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class Tables:
    """Everything the bus knows. Not thread-safe: one thread owns it."""

    def __init__(self, nonce: bytes, limits: Limits | None = None, watched: bool = False) -> None:
        # Tokens must not be mistaken for those of an earlier life of this broker.
        self.nonce = nonce
        self._apply(limits or Limits())
        # Whether anybody listens to `Observed` actions: building them costs time. And who writes down what
        # happens, if anybody does. `watched` is whether there is either.
        self.tapped = watched
        self.journal: Journal | None = None
        self.watched = watched
        # How many subscribed to what the broker says about itself; and whether it is noted how long requests
        # take, and by whom.
        self.monitored = 0
        self.timed = False
        # So many answers go by before the next is noted. Kept here, because calling somebody for each of
        # them, only to hear that it is not wanted, would cost a busy broker two percent.
        self.untimed = 0
        self.note_time: Callable[[bytes, float], int] = lambda service, seconds: 0
        self.state = BusState.SERVING
        self.sequence = 0
        self.token_block = b""
        # How often a worker was dialled: every connection has an identity of its own.
        self.dialled = 0
        self.held_bytes = 0
        self.counters = Counters()
        # Why what was refused at the door was refused, and how often.
        self.refusals: dict[str, int] = {}
        self.clients: dict[Address, Client] = {}
        self.services: dict[bytes, Service] = {}
        self.workers: dict[Address, Worker] = {}
        # Workers that count as disconnected because they were silent, and may still answer what they have;
        # those whose connection broke, and that may come back with their answer; and for each unanswered
        # request those that had it, do not have it now, and may still answer it (`holders`).
        self.silent: dict[Address, Worker] = {}
        self.departed: dict[Address, Worker] = {}
        self.holders: dict[bytes, dict[Worker, Holding]] = {}
        # Workers that the bus let go while they worked for nothing, and when they were told so; 0: not yet.
        self.let_go: dict[Address, float] = {}
        # The same for those that nothing can be told: when they are heard their conversation goes on.
        self.resting: dict[Address, Worker] = {}
        # Other brokers, if this one has a bridge.
        self.bridging: Bridging | None = None
        # Unanswered requests: those that may wait the default time, oldest first, and those with a time of
        # their own. Apart, because the first dict is then also the order of their deadlines.
        self.prompt: dict[bytes, Request] = {}
        self.patient: dict[bytes, Request] = {}
        self.schedulers: deque[Worker] = deque()
        self.nodes: dict[bytes, Node] = {}
        self.subscriptions: dict[int, dict[bytes, int]] = {}
        self.topic_counts: dict[bytes, int] = {}
        self.replies: deque[Answer | tuple[float, Client, Refuse]] = deque()
        # Looked up once: every answer is noted.
        self.note_reply = self.replies.append
        self.replies_bytes = 0
        # The deadlines of patient requests, if they have one.
        self.expiries: Timers[Request] = Timers()
        self.watches: Timers[Worker] = Timers()
        self.leases: Timers[Node] = Timers()
        self.alarms: Timers[Alarm] = Timers()
        self.gates: Timers[Service] = Timers()
        self.swept_at = 0.0
        self.actions: list[Any] = []
        # -- what must survive (`durable`) --
        # Why nothing can be written down; empty if it can.
        self.store_trouble = NO_STORE
        # Lines of this turn, the number of the batch that they will be, and the last one that is on disk.
        self.lines: list[Line] = []
        self.batch = 1
        self.written = 0
        # When to look for jobs that last, to note who has them.
        self.starts_at = inf
        # What waits for a batch to be on disk: requests to be released, and actions.
        self.held: deque[tuple[int, Request | None, Any]] = deque()
        # Of these actions, words about several jobs that are not of one batch: by the token of each job.
        self.shared_words: dict[bytes, list[Any]] = {}
        # Requests that hold up the end while we drain, as of the last look at all of them.
        self.undone: list[Request] = []
        # Outcomes of guaranteed requests, the oldest first.
        self.outcomes: deque[KeptOutcome] = deque()
        self.outcomes_bytes = 0
        self.outcomes_age_s = 86_400.0
        # Wall-clock time minus ours; the server keeps it right.
        self.wall_offset = 0.0
        # The names of links and of voices, which mean the same after a restart.
        self.link_names: dict[int, str] = {}
        self.voices: dict[str, Any] = {}
        self.policies: list[tuple[str, QueuePolicy]] = []
        self.retrying = Retrying()
        # -- jobs by their own id (`desk`) --
        self.desk = Client(DESK)
        self.waiters = Waiters()
        self.groups: dict[bytes, Any] = {}
        # Set by `bus`, which knows the modules that this one must not: what becomes of a job that others
        # follow (whether it goes on), calls of the broker's own services, and the end of a group's member.
        self.follow: Callable[[Tables, Request, Body, float], bool] = lambda bus, request, body, now: False
        self.serve: Callable[..., None] = lambda *call: None
        self.member_ended: Callable[[Tables, Request, float], None] = lambda bus, request, now: None

    def take(self) -> list[Any]:
        """The actions noted since the last call."""
        actions = self.actions
        self.actions = []
        return actions

    def next_at(self, now: float) -> float:
        """When a `Tick` is due at the latest: possibly too early, never too late, and cheap to ask."""
        at = min(
            self.expiries.soonest,
            self.watches.soonest,
            self.leases.soonest,
            self.alarms.soonest,
            self.gates.soonest,
            self.starts_at,
            now + IDLE_TICK_S,
        )
        return min(at, now + BUSY_TICK_S) if self.prompt or self.state is BusState.DRAINING else at

    def wall_at(self, now: float) -> float:
        """The time of day at a time of ours."""
        return now + self.wall_offset

    def take_lines(self) -> tuple[int, list[Line]]:
        """The lines noted since the last call, which are one batch, and its number."""
        number, lines = self.batch, self.lines
        self.batch += 1
        self.lines = []
        return number, lines

    @property
    def requests(self) -> Mapping[bytes, Request]:
        """All unanswered requests by token."""
        return ChainMap(self.patient, self.prompt)

    @property
    def request_count(self) -> int:
        return len(self.prompt) + len(self.patient)

    def next_token(self) -> bytes:
        """A name for a request that no other has, also in other lives of this broker."""
        sequence = self.sequence = self.sequence + 1
        low = sequence & 0xFF
        # Formatting a number costs as much as three look-ups: it is done for one in 256.
        if not low or not self.token_block:
            self.token_block = b"%b%x" % (self.nonce, sequence >> 8)
        return self.token_block + _LOW[low]

    def change_limits(self, limits: Limits) -> None:
        """Let other limits hold from now on; what is accepted already keeps its deadline."""
        for request in self.prompt.values():
            self.expiries.set(request, request.expires_at)
        self.patient.update(self.prompt)
        self.prompt.clear()
        self._apply(limits)

    def _apply(self, limits: Limits) -> None:
        self.limits = limits
        # Those that every request is measured by, as plain numbers.
        self.max_held_bytes = limits.held_bytes
        self.max_body_bytes = limits.body_bytes
        self.max_outstanding = limits.outstanding_per_client
        self.max_replies = limits.replies_count
        self.max_replies_bytes = limits.replies_bytes
        self.max_outcomes = limits.outcomes_count
        self.max_outcomes_bytes = limits.outcomes_bytes
        self.request_ttl_s = limits.request_ttl_s

    def service(self, name: bytes) -> Service | None:
        """The service of this name, made if it is new; None if there are too many."""
        service = self.services.get(name)
        if service is None and len(self.services) < self.limits.services:
            service = self.services[name] = Service(name)
            if self.policies:
                self._govern(service)
        return service

    def extra_service(self, name: bytes) -> Service:
        """A service beyond the limit: for what was promised before the limit was set."""
        service = self.services[name] = Service(name)
        self._govern(service)
        return service

    def change_policies(self, policies: list[tuple[str, QueuePolicy]]) -> None:
        """Let other rules for queues hold from now on. The first pattern that fits a name is its rule."""
        self.policies = policies
        for service in self.services.values():
            self._govern(service)
            if service.queue.length:
                # More may be allowed now than the old rule waited for: it is looked at with the next tick.
                self.gates.clear(service)
                self.gates.set(service, 0.0)

    def _govern(self, service: Service) -> None:
        name = service.name.decode(errors="replace")
        service.policy = next((rule for pattern, rule in self.policies if fnmatchcase(name, pattern)), None)
        rule = service.policy
        service.limited = rule is not None and bool(rule.concurrency or rule.rate_per_s)

    def listen(self, tapped: bool, journal: Journal | None) -> None:
        """Let these know what happens from now on."""
        self.tapped = tapped
        self.journal = journal
        self.watched = tapped or journal is not None

    def observe(self, what: str, now: float, **facts: Any) -> None:
        """Tell the listeners, if there are any."""
        if self.watched or self.monitored:
            observed = Observed(now, what, **facts)
            if self.journal is not None:
                self.journal.note(observed, self.wall_offset)
            if self.tapped or self.monitored:
                self.actions.append(observed)

    def observe_request(
        self,
        what: str,
        request: Request,
        now: float,
        reason: str = "",
        detail: str = "",
        body: Body | None = None,
    ) -> None:
        """Tell the listeners about a request, if there are any."""
        if self.journal is not None:
            self.journal.note_request(what, request, now, self.wall_offset, reason, detail, body)
        if self.tapped:
            self.actions.append(
                Observed(
                    now,
                    what,
                    token=request.token,
                    request_id=request.request_id,
                    service=request.service.name,
                    client=request.client.address,
                    client_voice=request.voice,
                    worker=request.worker.address if request.worker else None,
                    worker_voice=request.worker.voice if request.worker else None,
                    attempt=request.attempt,
                    size=request.size,
                    accepted_at=request.accepted_at,
                    dispatched_at=request.dispatched_at,
                    reason=reason,
                    detail=detail,
                    body=body,
                )
            )
