"""The messages of a bridge between brokers; `bridge` reads and writes them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

Path = tuple[str, ...]


class Hello(Struct, frozen=True):
    version: int
    name: str = ""
    # Another one for every life of a broker.
    instance: str = ""
    # How many requests it takes from this peer at once.
    credit: int = 1
    heartbeat_s: float = 1.0
    # What the one that dialled calls this link: the same if it is dialled again.
    link: str = ""


class Denied(Struct, frozen=True):
    reason: str
    text: str


class Beat(Struct, frozen=True):
    pass


class Bye(Struct, frozen=True):
    reason: str


class Advert(Struct, frozen=True):
    offers: dict[bytes, Path]
    withdrawn: tuple[bytes, ...] = ()
    # What was advertised before counts no more.
    full: bool = False


class Request(Struct, frozen=True):
    request_id: bytes
    service: bytes
    hops: Path
    body: list[Any]
    # What is left of its time; None means that it does not grow stale.
    ttl_ms: int | None = None
    timeout_s: float = 0.0
    other: tuple[str, ...] = ()


class Partial(Struct, frozen=True):
    request_id: bytes
    body: list[Any]


class Reply(Struct, frozen=True):
    request_id: bytes
    body: list[Any]


class Refused(Struct, frozen=True):
    request_id: bytes
    reason: str
    detail: str
    body: list[Any]


class Return(Struct, frozen=True):
    request_id: bytes
    detail: str


class Cancel(Struct, frozen=True):
    request_id: bytes


class Publish(Struct, frozen=True):
    topic: bytes
    # Where it was published, and its number there: together they name it.
    origin: str
    number: int
    # When, by the clock of that place.
    at: float
    hops: Path
    body: list[Any]
    # The current value for a peer that has just come, not news.
    snapshot: bool = False


Message = (
    Hello | Denied | Beat | Bye | Advert | Request | Partial | Reply | Refused | Return | Cancel | Publish
)
