"""Jobs that belong together: one after the other, or side by side.

    chain(fetch.s(url), parse.s(), store.s(table)).delay()      # each gets the result of the one before
    group(resize.s(n) for n in sizes).delay(then=pack.s())      # all at once, then pack gets the list

The broker keeps the whole flow: it is accepted in one transaction and goes on after any crash.  The handle is
that of the flow, its result that of the last job, or the list of the members' results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from polybus.client.calls import Call, Sendable
from polybus.client.questions import Order, Spec
from polybus.errors import ConfigError

if TYPE_CHECKING:
    from polybus.client.app import Bus
    from polybus.client.handles import JobHandle

R = TypeVar("R")


class Chain(Sendable[Any]):
    """Calls one after the other; the first may be a group."""

    def __init__(self, first: Call[Any] | Group, rest: tuple[Call[Any], ...]) -> None:
        self.first = first
        self.rest = rest

    @property
    def bus(self) -> Bus:
        return self.first.bus

    @property
    def queue(self) -> str:
        return self.first.queue

    def delay(self) -> JobHandle[Any]:
        return self.send()

    async def adelay(self) -> JobHandle[Any]:
        return await self.asend()

    def order(self, job_id: str, delay_s: float = 0.0, ttl_s: float | None = None) -> tuple[Order, bytes]:
        then = [call.spec(follows=True) for call in self.rest]
        return self.first.order_first(job_id, delay_s, ttl_s, then)

    def read(self, body: bytes) -> Any:
        return (self.rest[-1] if self.rest else self.first).read(body)

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, (self.first, *self.rest)))})"


class Group(Sendable[list[Any]]):
    """Calls side by side; the result is the list of theirs, in order."""

    def __init__(self, members: tuple[Call[Any], ...]) -> None:
        self.members = members

    @property
    def bus(self) -> Bus:
        return self.members[0].bus

    @property
    def queue(self) -> str:
        return self.members[0].queue

    def delay(self, then: Call[Any] | Chain | None = None) -> JobHandle[Any]:
        """Send it; `then` is what gets the list of results, and gives the result of it all."""
        return (self if then is None else chain(self, then)).send()

    async def adelay(self, then: Call[Any] | Chain | None = None) -> JobHandle[Any]:
        return await (self if then is None else chain(self, then)).asend()

    def order(self, job_id: str, delay_s: float = 0.0, ttl_s: float | None = None) -> tuple[Order, bytes]:
        return self.order_first(job_id, delay_s, ttl_s, [])

    def order_first(
        self, job_id: str, delay_s: float, ttl_s: float | None, then: list[Spec]
    ) -> tuple[Order, bytes]:
        if ttl_s is not None:
            raise ConfigError("a group has no ttl_s: all of its jobs run, or none")
        members = [call.spec(follows=False) for call in self.members]
        return Order(job_id, delay_s=delay_s or None, group=members, then=then), b""

    def read(self, body: bytes) -> list[Any]:
        results = msgspec.json.decode(body, type=list[msgspec.Raw])
        return [call.read(bytes(result)) for call, result in zip(self.members, results, strict=True)]

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.members))})"


def chain(*calls: Call[Any] | Group | Chain) -> Chain:
    """Calls to be run one after the other, each with the result of the one before as its first argument.

    The first may be a group: the next one gets the list of its results.
    """
    flat: list[Call[Any] | Group] = []
    for call in calls:
        flat += [call.first, *call.rest] if isinstance(call, Chain) else [call]
    if not flat:
        raise ConfigError("a chain takes one call or more: chain(a.s(1), b.s())")
    first, *rest = flat
    if not isinstance(first, Call | Group):
        raise _no_call(first, "a chain")
    followers = []
    for call in rest:
        if isinstance(call, Group):
            raise ConfigError(
                "a group can only be at the beginning of a chain; let the job before it send the group"
            )
        if not isinstance(call, Call):
            raise _no_call(call, "a chain")
        followers.append(call)
    return Chain(first, tuple(followers))


def group(*calls: Call[R] | Iterable[Call[R]]) -> Group:
    """Calls to be run side by side: `group(a.s(), b.s())`, or `group(a.s(n) for n in numbers)`."""
    members: list[Call[Any]] = []
    for call in calls:
        members += [call] if isinstance(call, Sendable) or not isinstance(call, Iterable) else list(call)
    if not members:
        raise ConfigError("a group takes one call or more: group(a.s(n) for n in numbers)")
    for member in members:
        if not isinstance(member, Call):
            raise _no_call(member, "a group")
    return Group(tuple(members))


def _no_call(value: object, what: str) -> ConfigError:
    if isinstance(value, Sendable):
        return ConfigError(f"{what} cannot contain {value!r}; it takes calls: job.s(…)")
    return ConfigError(f"{what} takes calls, not {value!r}; write job.s(…) instead of job(…) or job")
