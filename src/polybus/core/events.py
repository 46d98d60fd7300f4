"""Everything that can happen to the bus.

Dialects turn messages into these; the clock and failing sends are events like any other.
`client` and `worker` are addresses, `voice` is how to answer them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from polybus.core.model import PLAIN_CALL, Address, Body, Heartbeat, JobOptions, Reach, Reason


class Submit(Struct, frozen=True):
    """A client wants a service to run something."""

    client: Address
    voice: Any
    # The client's own id for it; empty if its dialect has none, then it cannot be asked for again.
    request_id: bytes
    service: bytes
    body: Body
    options: JobOptions = PLAIN_CALL
    # Seconds until it is stale; None takes the default, infinity means never.
    ttl_s: float | None = None
    # Whether the client waits for a word that its request was accepted.
    receipt: bool = False
    # The service that takes it if nobody offers `service`.
    fallback: bytes = b""


class Cancel(Struct, frozen=True):
    """A client withdraws one of its requests."""

    client: Address
    request_id: bytes


class ClientGone(Struct, frozen=True):
    """A client left: nothing more is sent to it. What it asked for runs on, or is withdrawn as well."""

    client: Address
    withdraw: bool


class CancelToken(Struct, frozen=True):
    """Somebody withdraws a request from outside, named by the bus's own token."""

    token: bytes
    why: str = "an operator withdrew it"


class WorkerUp(Struct, frozen=True):
    """A worker offers services, each with a weight."""

    worker: Address
    voice: Any
    offers: tuple[tuple[bytes, int], ...]
    heartbeat: Heartbeat
    credit: int = 1
    # It hands out its slots itself (`Slot`) instead of getting one back with every answer.
    grants_slots: bool = False
    # Where to dial it; empty if it is connected. Then `worker` is the link to dial on and the beginning of
    # the identity: every connection gets an identity of its own.
    endpoint: str = ""
    # It can be told to stop what it runs; and if it is, it never speaks of that again.
    obeys_stop: bool = False
    forgets_stopped: bool = False
    # Its dialect has no word that makes it register again, so its conversation goes on whenever it is heard.
    resumes: bool = False
    # Tokens of requests that it still runs from an earlier conversation.
    holding: tuple[bytes, ...] = ()


class Written(Struct, frozen=True):
    """All lines of the ledger up to this batch are on disk."""

    number: int


class Unwritten(Struct, frozen=True):
    """These requests could not be put on disk: they are not accepted."""

    tokens: tuple[bytes, ...]
    reason: str


class StoreHealth(Struct, frozen=True):
    """The store cannot be written (with the reason), or can again (empty)."""

    trouble: str


class Offer(Struct, frozen=True):
    """A worker that is known already offers one more service, within the credit that it has."""

    worker: Address
    voice: Any
    service: bytes
    weight: int = 0


class SchedulerUp(Struct, frozen=True):
    """A component that keeps schedules has joined."""

    worker: Address
    voice: Any
    heartbeat: Heartbeat


class Slot(Struct, frozen=True):
    """A worker that grants its own slots has one more free."""

    worker: Address
    voice: Any


class Part(Struct, frozen=True):
    """A worker sent a piece of an answer. An empty token means the oldest request it holds."""

    worker: Address
    token: bytes
    body: Body


class Result(Struct, frozen=True):
    """A worker finished a request. An empty token means the oldest request it holds."""

    worker: Address
    token: bytes
    body: Body


class Failure(Struct, frozen=True):
    """A worker refused a request or failed at it; `body` is what it sent about it."""

    worker: Address
    token: bytes
    detail: str
    body: Body
    reason: Reason = Reason.FAILED


class Heard(Struct, frozen=True):
    """A worker or scheduler showed that it is there."""

    worker: Address
    voice: Any


class WorkerGone(Struct, frozen=True):
    """A worker or scheduler left, was lost or misbehaved."""

    worker: Address
    reason: str
    # Only its connection is gone: one with an identity of its own may make another.
    is_unreachable: bool = False


class WorkerFull(Struct, frozen=True):
    """The pipe to a worker did not take the request with this token."""

    worker: Address
    token: bytes


class Leaving(Struct, frozen=True):
    """A worker takes nothing more; what it has begun it will finish."""

    worker: Address


class Returned(Struct, frozen=True):
    """A worker gives back a request that it has not begun."""

    worker: Address
    token: bytes


class Undeliverable(Struct, frozen=True):
    """A request cannot be written in the dialect of the worker it was given to."""

    worker: Address
    token: bytes
    detail: str


class AnswerLost(Struct, frozen=True):
    """An answer could not be handed to its client, which is gone or does not read."""

    client: Address
    request_id: bytes
    reason: str
    # The request and its service, where there was one; and the voice of the client.
    token: bytes = b""
    service: bytes = b""
    voice: Any = None


class Schedule(Struct, frozen=True):
    """A schedule is set or removed; `message` is what a connected scheduler understands."""

    client: Address
    voice: Any
    request_id: bytes
    message: Any
    remove: bool
    # The same for us: its name, what is to be run, and when.
    key: str = ""
    queue: bytes = b""
    body: bytes = b""
    options: JobOptions = PLAIN_CALL
    # One of them; neither if the message does not tell.
    interval_s: float | None = None
    cron: str = ""
    # The first run is not at once, but when it is due for the first time.
    nohaste: bool = False
    # None means for ever.
    run_count: int | None = None
    # To be removed: the schedules of the first of these jobs that has any, in whatever queue.
    jobs: tuple[str, ...] = ()
    # Whether the client waits for a word that it was done.
    receipt: bool = True


class Publish(Struct, frozen=True):
    topic: bytes
    body: Body


class Subscribe(Struct, frozen=True):
    """Somebody on `link` began (or ceased) to want topics that begin with `prefix`."""

    link: int
    prefix: bytes
    wanted: bool


class Register(Struct, frozen=True):
    """A node asks for a lease in the catalog."""

    node: Address
    voice: Any
    name: bytes
    info: dict[str, Any]
    # Its heartbeat timing; 0 means that it will not send any and the lease has no end.
    heartbeat_s: float
    # What the registration lacks, in words; anything here refuses it.
    missing: tuple[str, ...] = ()
    # The worker that it becomes with its lease, if it can be called.
    serves: WorkerUp | None = None
    # What `Node` says of these.
    how: str = ""
    ip: str = ""
    reach: Reach | None = None
    quiet: bool = False


class UpdateNode(Struct, frozen=True):
    """A node changes its registration."""

    node: Address
    voice: Any
    name: bytes
    changes: dict[str, Any]
    # Its new heartbeat timing and its new way to be called; None means as before.
    heartbeat_s: float | None = None
    serves: WorkerUp | None = None
    how: str | None = None
    # Where it is now; only together.
    ip: str | None = None
    reach: Reach | None = None
    quiet: bool = False
    # Why the update cannot be taken, in words; anything here refuses it.
    missing: tuple[str, ...] = ()
    # Whether it changes where the node is reached, how it is called or how often it beats.
    moves: bool = False


class NodeBeat(Struct, frozen=True):
    """A registered node showed that it is there."""

    node: Address
    voice: Any
    name: bytes


class Pulse(Struct, frozen=True):
    """A datagram says that a node is there; `source` is where it came from, the ip first."""

    name: bytes
    source: tuple[Any, ...]


class Answered(Struct, frozen=True):
    """Somebody spoke on a connection that was made to ask whether a node is there."""

    peer: Address


class Unasked(Struct, frozen=True):
    """The question whether a node is there did not go out: nobody is at this address any more."""

    peer: Address


class NodeLeft(Struct, frozen=True):
    """A node gave its registration back. With an empty name: whatever it registered from this address."""

    node: Address
    name: bytes = b""
    # How the sender is told that it may not end somebody else's registration; None: it is not told.
    voice: Any = None


class Invalid(Struct, frozen=True):
    """A peer sent something that could not be read."""

    peer: Address
    dialect: str
    reason: str
    detail: str


class Tick(Struct, frozen=True):
    """Time has passed."""


class Drain(Struct, frozen=True):
    """Take no new requests and finish what is there."""


class EndUnanswered(Struct, frozen=True):
    """The bus ends before these requests are answered. What is on disk is left to the next start."""

    tokens: tuple[bytes, ...]
