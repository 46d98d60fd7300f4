"""The roster against brute force: weight, then the least loaded, then the least recently used."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polybus.core.lifecycle import WorkerState
from polybus.core.model import Heartbeat, Service, Worker

SERVICES = 3
which = st.integers(0, 7)
where = st.integers(0, SERVICES - 1)


class Rosters(RuleBasedStateMachine):
    """Workers join and leave several services, take and give back requests, grant slots and rest.

    The model notes when a worker was last filed anew: among equals it is the one longest unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.services = [Service(b"%d" % n) for n in range(SERVICES)]
        self.workers = [Worker((2, b"%d" % n), None, Heartbeat(0.0), 1, False, 0.0) for n in range(8)]
        self.clock = count(1)
        # (service number, worker) -> when it was last filed
        self.filed: dict[tuple[int, Worker], int] = {}

    def touch(self, worker: Worker) -> None:
        """What the core does after any change: refile the worker everywhere it offers something."""
        for service in worker.offers:
            service.roster.refile(worker)
        self.note(worker)

    def note(self, worker: Worker) -> None:
        at = next(self.clock)
        for n, service in enumerate(self.services):
            if service in worker.offers:
                self.filed[n, worker] = at

    @rule(n=which, s=where, weight=st.integers(0, 2))
    def join(self, n: int, s: int, weight: int) -> None:
        worker, service = self.workers[n], self.services[s]
        was_alone = list(service.roster.members) if len(service.roster.members) == 1 else []
        worker.offers[service] = weight
        service.roster.add(worker, weight)
        # Whoever was alone was not filed until now.
        for other in was_alone:
            if other is not worker:
                self.filed[s, other] = next(self.clock)
        self.filed[s, worker] = next(self.clock)

    @rule(n=which, s=where)
    def leave(self, n: int, s: int) -> None:
        worker, service = self.workers[n], self.services[s]
        worker.offers.pop(service, None)
        service.roster.discard(worker)
        self.filed.pop((s, worker), None)

    @rule(s=where)
    @precondition(lambda self: any(service.roster.best() for service in self.services))
    def dispatch(self, s: int) -> None:
        worker = self.services[s].roster.best()
        if worker is None:
            return
        worker.inflight[b"%d" % next(self.clock)] = None  # type: ignore[assignment]
        worker.free -= 1
        # As in the core: with no competition there is nothing to file.
        if worker.contested:
            self.touch(worker)
        else:
            self.note(worker)

    @rule(n=which)
    def answer(self, n: int) -> None:
        worker = self.workers[n]
        if worker.inflight:
            del worker.inflight[next(iter(worker.inflight))]
            worker.free += 1
            if worker.contested:
                self.touch(worker)
            else:
                self.note(worker)

    @rule(n=which)
    def grant(self, n: int) -> None:
        self.workers[n].free += 1
        self.touch(self.workers[n])

    @rule(n=which, rests=st.booleans())
    def rest(self, n: int, rests: bool) -> None:
        self.workers[n].state = WorkerState.CONGESTED if rests else WorkerState.SERVING
        self.touch(self.workers[n])

    def expected(self, s: int) -> Worker | None:
        service = self.services[s]
        able = [w for w in self.workers if service in w.offers and w.free > 0 and w.state == 0]
        return min(able, key=lambda w: (-w.offers[service], len(w.inflight), self.filed[s, w]), default=None)

    @invariant()
    def the_best_is_the_best(self) -> None:
        for s, service in enumerate(self.services):
            best, expected = service.roster.best(), self.expected(s)
            if best is expected:
                continue
            assert best is not None, "somebody is free"
            assert expected is not None, "nobody is free"
            rank = [(w.offers[service], len(w.inflight)) for w in (best, expected)]
            assert rank[0] == rank[1], "weight and load decide"
            raise AssertionError("among equals the least recently used is next")

    @invariant()
    def members_are_those_who_offer(self) -> None:
        for service in self.services:
            expected = {w: w.offers[service] for w in self.workers if service in w.offers}
            assert service.roster.members == expected

    @invariant()
    def contested_counts_the_services_with_others(self) -> None:
        for worker in self.workers:
            shared = [s for s in worker.offers if len(s.roster.members) > 1]
            assert worker.contested == len(shared)

    @invariant()
    def nothing_is_kept_of_those_who_left(self) -> None:
        for service in self.services:
            roster = service.roster
            assert set(roster._filed) <= set(roster.members)
            assert set(roster._tiers) == set(roster.members.values())
            if len(roster.members) == 1:
                assert not roster._filed


Rosters.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRosters = Rosters.TestCase
