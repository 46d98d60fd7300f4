"""The messages of EBUS 1.0, in both directions.

A body is one frame or none, and "none" has a meaning (a REJECT without data is an expiry), so it is a list
of at most one frame.
"""

from __future__ import annotations

from msgspec import Struct

from polybus.wire.frames import Frame


class Request(Struct, frozen=True):
    """Client to broker, and broker to worker as REQUEST: run this, unless `ttl_ms` have passed."""

    service: bytes
    request_id: bytes
    body: list[Frame]
    ttl_ms: int | None = None


class Order(Struct, frozen=True):
    """Broker to worker as REQ: the same, without the service, for a worker that has only one."""

    request_id: bytes
    body: list[Frame]
    ttl_ms: int | None = None


class Cancel(Struct, frozen=True):
    """Client to broker: I no longer want the answer."""

    service: bytes
    request_id: bytes


class CancelOrder(Struct, frozen=True):
    """Broker to worker: nobody wants this answer any more."""

    request_id: bytes


class ServicesQuery(Struct, frozen=True):
    """Client to broker: which services are there? The id, if any, comes back with the answer."""

    request_id: bytes = b""


class WorkersQuery(Struct, frozen=True):
    """Client to broker: which workers are there? The id, if any, comes back with the answer."""

    request_id: bytes = b""


class Listing(Struct, frozen=True):
    """Broker to client: what a query asked for; `query` is its word."""

    query: bytes
    request_id: bytes
    body: list[Frame]


class Ready(Struct, frozen=True):
    """Worker to broker: I serve this, and take `credit` requests at a time. Public workers name no credit."""

    service: bytes
    credit: int | None = None
    upstream: bool = True  # the public form, [READY, <anything>, service], not the short [READY, service]


class Reply(Struct, frozen=True):
    """Worker to broker, and broker to client: the answer."""

    request_id: bytes
    body: list[Frame]


class Reject(Struct, frozen=True):
    """The same ways: there will be no answer. The document shows no id, so it may be empty.

    Client to broker: I did not ask for this answer, or want it no more.
    """

    request_id: bytes
    body: list[Frame]


class Heartbeat(Struct, frozen=True):
    """Either way: I am here."""


class Ping(Struct, frozen=True):
    """Either way: are you there? The answer is a HEARTBEAT."""


class Disconnect(Struct, frozen=True):
    """Either way: this conversation is over."""


class Publish(Struct, frozen=True):
    """On the publishing sockets, without a tag: a channel and what is said on it."""

    channel: bytes
    body: list[Frame]


Beat = Heartbeat | Ping | Disconnect
ClientMessage = Request | Cancel | Reject | ServicesQuery | WorkersQuery | Beat
WorkerMessage = Ready | Reply | Reject | Beat
ReplyMessage = Reply | Reject | Listing | Beat
OrderMessage = Request | Order | CancelOrder | Beat
