"""The things the bus knows: services, workers, clients, requests, nodes.

An `Address` is where a peer is: the number of the link (socket) and its identity there.
A `voice` says how a peer is spoken to; the core carries it and never looks inside, which is
how it stays free of dialects.  Records are compared by identity and live in the tables of
`polybus.core.tables.Tables`.  Those that every request touches are in `records`, which may be compiled.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from polybus.core.lifecycle import NodeState
from polybus.core.records import Client as Client
from polybus.core.records import FairQueue as FairQueue
from polybus.core.records import Request as Request
from polybus.core.records import Roster as Roster
from polybus.core.records import Service as Service
from polybus.core.records import Worker as Worker

if TYPE_CHECKING:
    from polybus.core.events import WorkerUp

Address = tuple[int, bytes]
# Opaque frames: `bytes`, or buffers that the pump did not copy. The core only asks for their length.
Body = list[Any]


def is_made_up(identity: bytes) -> bool:
    """Whether a peer chose no identity, so that libzmq made one up for it: it belongs to one connection."""
    return identity.startswith(b"\0")


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
    TOO_MANY_SCHEDULES = "too_many_schedules"
    TIMEOUT = "timeout"
    BAD_JOB = "bad_job"
    BAD_SCHEDULE = "bad_schedule"
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_SCHEDULE = "unknown_schedule"
    UNKNOWN_TOPIC = "unknown_topic"
    GROUP_FAILED = "group_failed"
    STORE_UNAVAILABLE = "store_unavailable"


# A limit of nothing would refuse everything; one that is not a number would refuse nothing.
Positive = Annotated[int, Meta(ge=1)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=31_536_000)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Every bound of the core, with its reason."""

    # One body larger than this is a file, not a message; 64 MiB also bounds what one peer can pin.
    body_bytes: Positive = 64 * 1024 * 1024
    # Bodies are held until the request ends, so that they can be sent to another worker.
    held_bytes: Positive = 2 * 1024 * 1024 * 1024
    # Longer than this a queue is an outage; at 1 KiB it is already 250 MiB.
    queue_length: Positive = 250_000
    # Programs send a hundred thousand requests before they read an answer; one with many more never will.
    outstanding_per_client: Positive = 250_000
    # Answers that wait because their client's pipe is full: for one client.
    pending_bytes_per_client: Positive = 256 * 1024 * 1024
    # The same for all clients. Beyond it those lose answers that have more than their share of it waiting.
    pending_bytes: Positive = 1024 * 1024 * 1024
    # Names come from the wire: without a bound a hostile peer fills the memory with them.
    services: Positive = 10_000
    # Work that has cost this many workers their life will cost the next one too.
    attempts: Positive = 5
    # How long an unanswered request is kept, unless its client says otherwise.
    request_ttl_s: PositiveSeconds = 300.0
    # Answers are kept for clients that ask again: long enough for a restart, bounded three ways.
    replies_age_s: PositiveSeconds = 300.0
    replies_bytes: Positive = 64 * 1024 * 1024
    replies_count: Positive = 100_000
    # Registrations in the catalog.
    nodes: Positive = 100_000
    # Prefixes that subscribers of one link may hold.
    subscriptions: Positive = 100_000
    # Topics whose rate is counted by name; the others are counted together.
    topics_counted: Positive = 10_000
    # Set by anybody who can send, and each makes requests for ever.
    schedules: Positive = 10_000
    # A service without workers and requests is forgotten after this long.
    idle_service_s: PositiveSeconds = 600.0
    # How long jobs that were running when the broker died wait for their worker to come back.
    orphan_grace_s: PositiveSeconds = 15.0
    # A worker kills a job that ran too long; if it has not said so after this, the attempt is counted here.
    timeout_grace_s: PositiveSeconds = 5.0
    # Outcomes of guaranteed requests that are kept (how long: jobs.results_age_s).
    outcomes_count: Positive = 100_000
    outcomes_bytes: Positive = 256 * 1024 * 1024
    # Clients that wait for the outcome of a job, and members of one group.
    waiters: Positive = 100_000
    group_size: Positive = 10_000


class QueuePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator of the broker decided for a queue, beside what its clients ask for."""

    # Every job of it is on disk before it is accepted, whether its client asked for that or not.
    guarantee: bool = False
    # For jobs whose client names none of its own; None leaves it at that.
    retries: Annotated[int, Meta(ge=0, le=1000)] | None = None
    timeout_s: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    # How many may run at once, over all workers, and start in a second; 0 is no limit. A run is no longer
    # counted when its worker is disconnected for its silence; see `silence_s`.
    concurrency: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    rate_per_s: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    # How long a worker may be silent while it has a request of this queue, before it counts as disconnected:
    # for workers that cannot send heartbeats while they work. It only lengthens the time of the dialect.
    silence_s: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    # How much workers prefer this queue to their others, instead of what they said themselves.
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class JobOptions(Struct, frozen=True, gc=False, cache_hash=True):
    """What a client asked for besides running its request."""

    reply_requested: bool = True
    guarantee: bool = False
    retries: int = 0
    timeout_s: float = 0.0
    # Options the bus does not know are handed to the worker as they came.
    other: tuple[str, ...] = ()
    # The first pause before a retry; each further one is twice as long. None takes the setting.
    backoff_s: float | None = None
    # Jobs that follow this one, each with the result of the one before (see `envelope.JobSpec`).
    then: tuple[bytes, ...] = ()
    # The group that waits for this job, if it is a member of one.
    group: bytes = b""


PLAIN_CALL = JobOptions()


class Retrying(Struct, frozen=True):
    """How long a failed job waits before it is tried again."""

    backoff_s: float = 1.0
    backoff_max_s: float = 300.0
    # The share by which a pause is made longer or shorter, so that jobs that failed together do not return
    # together.
    jitter: float = 0.1


class Heartbeat(Struct, frozen=True):
    """How a worker's life is watched."""

    # Silence for this long means that it is gone; 0 means that somebody else watches it.
    dead_after_s: float
    # We say something at least this often; 0 means that we only answer.
    beat_every_s: float = 0.0
    # True: we only speak when nothing came in (a question), not when nothing went out.
    when_silent: bool = False

    @property
    def period_s(self) -> float:
        """How often a worker is looked at."""
        return self.beat_every_s or self.dead_after_s / 3


class Reach(Struct, frozen=True):
    """Where a node can be asked whether it is there, without a conversation of its own: the link to dial on
    with the beginning of the identity, the endpoint, and how it is spoken to."""

    place: Address
    endpoint: str
    voice: Any


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
    # A word of its dialect that says how it is called and spoken to: what a restart must know.
    how: str = ""
    # Datagrams are believed to be its own if they come from here; empty: none are.
    ip: str = ""
    reach: Reach | None = None
    # It sends no heartbeats, so it is asked.
    quiet: bool = False
    # Whether it was told that it is registered.
    admitted: bool = True
    # Where its last datagram came from and when, and when our last one went there.
    pulse_from: tuple[Any, ...] | None = None
    pulse_at: float = 0.0
    pulsed_at: float = 0.0
    # Since when it has been asked without an answer, when last, and the connection that was made for it.
    asked_since: float = 0.0
    asked_at: float = 0.0
    line: Address | None = None
    # Whether the connection that it registered on is known to be closed.
    unplugged: bool = False
    # It was registered anew, at the same place, while the node of that name was there. Nothing shows that it
    # is the same one, so who registered it may neither move nor end the registration while the node answers.
    inherited: bool = False
    # When another connection said goodbye for it, which counts if the node does not answer any more.
    goodbye_at: float = 0.0
