"""Other brokers, as the core sees them: workers that offer what they can reach, clients that ask.

A neighbour is a `Worker` whose offers follow from the routes (`routes`).  Workers of our own always come
first: while a service has any, no request for it leaves this broker.  What a lost link held goes to the
front of its queue like that of any lost worker.

What a neighbour asks for and cannot be done here any more, because the last worker is gone, is given back
to it: it may know another way, and a request shall not wait where nobody comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import translate
from math import inf
from re import compile as regular
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from polybus.core import dispatching, events
from polybus.core.actions import ELSEWHERE, Dismiss
from polybus.core.attempts import requeue_one
from polybus.core.intake import BUILT_IN
from polybus.core.lifecycle import CANCEL, BusState, RequestState
from polybus.core.model import Address, Reason, Service, Worker
from polybus.core.requests import end
from polybus.core.routes import Path, Routes

if TYPE_CHECKING:
    from polybus.core.bus import Bus

# Below anything that a worker can say about itself.
FAR: Final = -(1 << 40)
# How long changes are gathered before neighbours are told.
GATHER_S: Final = 0.02
# How soon one is told again what it has just given up.
RETELL_S: Final = 0.05
MANAGEMENT: Final = b"mmi."


class Advertise(Struct, frozen=True):
    """Tell a neighbour what can be reached here."""

    worker: Worker
    offers: dict[bytes, Path]
    withdrawn: list[bytes]


class Parted(Struct, frozen=True):
    """A link to a neighbour is down."""

    worker: Worker
    name: str
    reason: str


class Patterns:
    """Names of services by patterns (`mail.*`); what is the broker's own is never among them."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._pattern = regular("|".join(translate(pattern) for pattern in patterns) or r"(?!)")

    def __call__(self, service: bytes) -> bool:
        if service.startswith((BUILT_IN, MANAGEMENT)):
            return False
        return self._pattern.match(service.decode(errors="replace")) is not None


class Bridging:
    """The neighbours of one broker."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        max_hops: int = 8,
        may_leave: Iterable[str] = ("*",),
        may_enter: Iterable[str] = ("*",),
    ) -> None:
        self._bus = bus
        self.name = name
        self.may_leave = Patterns(may_leave)
        self.routes = Routes(name, max_hops, self.may_leave, Patterns(may_enter))
        self.workers: dict[str, Worker] = {}
        self._names: dict[Worker, str] = {}
        # How often a service of others was not taken, because there are too many.
        self.ignored = 0
        # Services that lost their last worker.
        self._empty: dict[bytes, None] = {}
        self.next_at = inf
        self._told_at = -inf
        for service in bus.services:
            self.settle(service, 0.0)

    # -- neighbours -------------------------------------------------------------------------------

    def join(self, name: str, worker: Worker, now: float) -> None:
        """A link is up."""
        self.workers[name] = worker
        self._names[worker] = name
        self.routes.up(name)
        self.soon(now)
        bus = self._bus
        bus.observe("bridge_up", now, worker=worker.address, worker_voice=worker.voice, service=name.encode())

    def is_neighbour(self, worker: Worker) -> bool:
        return worker in self._names

    def left(self, worker: Worker, why: str, now: float) -> None:
        """A worker is gone, of our own or a neighbour."""
        name = self._names.pop(worker, None)
        if name is None:
            for service in worker.offers:
                self.settle(service.name, now)
            return
        del self.workers[name]
        bus = self._bus
        bus.actions.append(Parted(worker, name, why))
        # What it asked for goes on: it may come back and ask again.
        bus.handle(events.ClientGone(worker.address, withdraw=False), now)
        for lost in self.routes.down(name):
            self.settle(lost, now)
        # Those that wait for it take a new neighbour with all that is known.
        self.soon(now)
        bus.observe(
            "bridge_down",
            now,
            worker=worker.address,
            worker_voice=worker.voice,
            service=name.encode(),
            reason=why,
        )

    def hear(
        self, name: str, offers: Mapping[bytes, Path], withdrawn: Iterable[bytes], full: bool, now: float
    ) -> None:
        """What a neighbour says that it can reach."""
        for service in self.routes.hear(name, offers, withdrawn, full):
            self.settle(service, now)
        self.soon(now)

    # -- services ---------------------------------------------------------------------------------

    def settle(self, name: bytes, now: float) -> None:
        """Bring the roster of a service in line with who offers it here and with the routes."""
        bus = self._bus
        service = bus.services.get(name)
        present = () if service is None else service.roster.members
        ours = len(present) > sum(worker in present for worker in self._names)
        if ours != (name in self.routes.local):
            self.routes.offer(name, ours)
            self.soon(now)
        wanted = self.routes.through(name)
        if wanted and service is None:
            service = bus.service(name)
            # With too many services it stays unknown here.
            self.ignored += service is None
        if service is None:
            return
        added = False
        for neighbour, worker in self.workers.items():
            if neighbour not in wanted:
                service.roster.discard(worker)
                worker.offers.pop(service, None)
                continue
            weight = FAR - len(self.routes.neighbours[neighbour].heard[name])
            if worker.offers.get(service) != weight:
                worker.offers[service] = weight
                service.roster.add(worker, weight)
                added = True
        if added:
            dispatching.flow(bus, service, now)
        if not service.roster.members:
            self._empty[name] = None
            self.soon(now)

    def retell(self, neighbour: str, service: bytes) -> None:
        """A neighbour will strike a service from its list: if we can reach it, it is told so again, but not
        at once, because paths that changed may have to be heard first."""
        self.routes.retell(neighbour, service)
        self.next_at = min(self.next_at, self._told_at + RETELL_S)

    def via(self, name: bytes) -> list[str]:
        """The brokers on the way to a service; none if it is offered here."""
        return list(self.routes.best(name) or ())

    def given_back(self, worker: Worker, token: bytes, now: float) -> None:
        """A neighbour cannot do a request: it gets nothing more for this service until it says so anew."""
        request = worker.inflight.get(token)
        if request is None:
            return
        service = request.service
        name = self._names.get(worker)
        if name is not None and self.routes.neighbours[name].heard.pop(service.name, None) is not None:
            self.routes.touch(service.name)
            self.settle(service.name, now)
            self.soon(now)
        worker.free += 1
        requeue_one(self._bus, worker, token, "the broker it was sent to gave it back", now)
        dispatching.refile(worker)
        dispatching.flow(self._bus, service, now)
        dispatching.feed(self._bus, worker, now)

    def answer_lost(self, client: Address, now: float) -> None:
        """A neighbour did not take an answer: rather than let it wait, the link is made anew, and it asks
        again."""
        worker = self._bus.workers.get(client)
        if worker is not None and worker in self._names:
            why = "it does not read what it asked for"
            self._bus.actions.append(Dismiss(worker.address, worker.voice, why))
            self._bus.handle(events.WorkerGone(worker.address, why), now)

    # -- in time ----------------------------------------------------------------------------------

    def soon(self, now: float) -> None:
        self.next_at = min(self.next_at, now + GATHER_S)

    def tick(self, now: float) -> None:
        """Tell the neighbours what changed."""
        bus = self._bus
        if bus.state is not BusState.SERVING and not self.routes.closed:
            self.routes.close()
            self.next_at = now
        if now < self.next_at:
            return
        self.next_at = inf
        self._told_at = now
        for name, worker in self.workers.items():
            offers, withdrawn = self.routes.updates(name)
            if offers or withdrawn:
                bus.actions.append(Advertise(worker, offers, withdrawn))
        empty, self._empty = self._empty, {}
        for service in empty:
            found = bus.services.get(service)
            if found is not None and not found.roster.members and found.queue.length:
                self._give_back(found, now)

    def _give_back(self, service: Service, now: float) -> None:
        bus = self._bus
        detail = f"{ELSEWHERE}nobody offers it at {self.name} any more"
        for worker in self.workers.values():
            client = bus.clients.get(worker.address)
            for request in list(client.outstanding.values()) if client else ():
                # What is written down here was promised here.
                if (
                    request.service is service
                    and request.state is RequestState.QUEUED
                    and not request.durable
                ):
                    service.queue.forget(request)
                    bus.counters.cancelled += 1
                    end(bus, request, CANCEL, Reason.UNDELIVERABLE, detail, [], now)

    def view(self, name: str, now: float) -> dict[str, Any]:
        """A neighbour for operators."""
        worker, neighbour = self.workers[name], self.routes.neighbours[name]
        return {
            "up_s": round(now - worker.since, 3),
            "silent_s": round(now - worker.seen_at, 3),
            "in_flight": len(worker.inflight),
            "done": worker.done,
            "offers": len(neighbour.heard),
            "told": len(neighbour.told),
            "ignored": neighbour.ignored,
        }
