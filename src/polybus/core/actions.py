"""Everything the bus can ask to be done. Values only: the server carries them out.

Actions towards a client carry all that is needed to write the message, so that an answer from
the cache looks like the first one.  `token` is the request's own name in the bus, for whoever wants to know
what became of the message; empty if there was no request.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from polybus.core.model import Address, Body, Client, Node, Reason, Request, Worker


class Deliver:
    """Hand a request to a worker."""

    __match_args__ = ("worker", "request")
    __slots__ = ("request", "worker")

    def __init__(self, worker: Worker, request: Request) -> None:
        self.worker = worker
        self.request = request

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deliver) and self.worker is other.worker and self.request is other.request

    def __hash__(self) -> int:
        return hash((self.worker, self.request))

    def __repr__(self) -> str:
        return f"Deliver({self.worker!r}, {self.request!r})"


def new_deliver(worker: Worker, request: Request) -> Deliver:
    """The same as calling the class, which packs its arguments first."""
    deliver = Deliver.__new__(Deliver)
    deliver.worker = worker
    deliver.request = request
    return deliver


class Accept(Struct, frozen=True):
    """Tell the client that its request is accepted."""

    client: Address
    voice: Any
    service: bytes
    request_id: bytes
    token: bytes = b""


class Stream(Struct, frozen=True):
    """Hand a piece of an answer to the client."""

    client: Address
    voice: Any
    service: bytes
    request_id: bytes
    body: Body
    token: bytes = b""


class Answer:
    """Hand the answer to the client."""

    __match_args__ = ("client", "voice", "service", "request_id", "body")
    __slots__ = ("body", "client", "kept_at", "kept_for", "request_id", "service", "token", "voice")

    # Set while it is kept, in case the client asks again: for whom, and since when.
    kept_for: Client | None
    kept_at: float

    def __init__(
        self, client: Address, voice: Any, service: bytes, request_id: bytes, body: Body, token: bytes = b""
    ) -> None:
        self.client = client
        self.voice = voice
        self.service = service
        self.request_id = request_id
        self.body = body
        # The request that it answers; empty if the broker answered by itself.
        self.token = token
        self.kept_for = None
        self.kept_at = 0.0

    def _values(self) -> tuple[Any, ...]:
        return (self.client, self.voice, self.service, self.request_id, self.body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.client, self.service, self.request_id))

    def __repr__(self) -> str:
        return f"Answer{self._values()!r}"


def new_answer(
    client: Address, voice: Any, service: bytes, request_id: bytes, body: Body, token: bytes
) -> Answer:
    """The same as calling the class, which packs its arguments first."""
    answer = Answer.__new__(Answer)
    answer.client = client
    answer.voice = voice
    answer.service = service
    answer.request_id = request_id
    answer.body = body
    answer.token = token
    answer.kept_for = None
    answer.kept_at = 0.0
    return answer


class Refuse(Struct, frozen=True):
    """Tell the client that there will be no answer, and why. `body` is the worker's own word, if any."""

    client: Address
    voice: Any
    service: bytes
    request_id: bytes
    reason: Reason
    detail: str
    body: Body
    token: bytes = b""


class Stop(Struct, frozen=True):
    """Tell a worker that nobody waits for this request any more."""

    worker: Worker
    token: bytes


class Beat(Struct, frozen=True):
    """Show a worker that we are there, or ask whether it is."""

    worker: Worker


# Why a worker is dismissed that will not hear it or has no conversation to end: a dialect may be silent then.
UNKNOWN_WORKER: Final = "unknown_worker"
HEARTBEAT_MISSED: Final = "heartbeat_missed"
# Begins the detail of a refusal that means: try another way.
ELSEWHERE: Final = "elsewhere: "


class Dismiss(Struct, frozen=True):
    """End the conversation with a worker; nothing more is sent to it."""

    peer: Address
    voice: Any
    reason: str


class Reschedule(Struct, frozen=True):
    """Hand a schedule to a scheduler."""

    worker: Worker
    message: Any


class Fanout:
    """Send a publication to everyone who wants it. Kept as the last value of its topic."""

    __match_args__ = ("topic", "body")
    __slots__ = ("at", "body", "form", "size", "topic")

    # As subscribers get it, once somebody has written it so; the core never looks inside.
    form: Any
    # What it costs to keep it.
    size: int

    def __init__(self, topic: bytes, body: Body, at: float = 0.0) -> None:
        self.topic = topic
        self.body = body
        # The time of day.
        self.at = at
        self.form = None
        self.size = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fanout) and self.topic == other.topic and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.topic)

    def __repr__(self) -> str:
        return f"Fanout({self.topic!r}, {self.body!r})"


class Approve(Struct, frozen=True):
    """The catalog took a registration."""

    node: Address
    voice: Any
    entry: Node


class Deny(Struct, frozen=True):
    """The catalog refused a registration or an update."""

    node: Address
    voice: Any
    name: bytes
    reasons: tuple[str, ...]


class Acknowledge(Struct, frozen=True):
    """The catalog took an update or a beat."""

    node: Address
    voice: Any
    name: bytes


class Ask(Struct, frozen=True):
    """Ask a node, over TCP, whether it is there. Whatever it says is the answer."""

    peer: Address
    voice: Any
    name: bytes


class Beckon(Struct, frozen=True):
    """Show a node by a datagram that we are there; or, if its conversation is lost, to begin anew."""

    to: tuple[Any, ...]
    ended: bool


class BroadcastBeat(Struct, frozen=True):
    """Show by a datagram to everybody that we are there."""


class Forget(Struct, frozen=True):
    """A node is no longer in the catalog."""

    entry: Node
    reason: str


class Say(Struct, frozen=True):
    """Send these frames as they are: an answer that needs nothing of the core."""

    peer: Address
    frames: list[Any]


class Dial(Struct, frozen=True):
    """Connect to a node that is called at its own address; `identity` names the connection."""

    identity: bytes
    endpoint: str


class HangUp(Struct, frozen=True):
    """Close a connection made by `Dial`."""

    identity: bytes
    endpoint: str


class Drained(Struct, frozen=True):
    """Nothing is left to do: the bus may stop."""


class Observed(Struct, frozen=True):
    """Something happened that listeners (tap, journal) want to know."""

    at: float
    what: str
    token: bytes = b""
    request_id: bytes = b""
    service: bytes = b""
    client: Address | None = None
    client_voice: Any = None
    worker: Address | None = None
    worker_voice: Any = None
    attempt: int = 0
    reason: str = ""
    detail: str = ""
    size: int = 0
    accepted_at: float = 0.0
    dispatched_at: float = 0.0
    body: Body | None = None
