"""The bus under any sequence of events: what must hold after every single one.

Peers do what they like here: they answer what was never asked, twice, too late or for others, vanish, refuse
and stay silent.  The limits are tiny, so that every one of them is met.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polybus.core import actions as act
from polybus.core import events, replies
from polybus.core.lifecycle import TERMINAL, BusState, RequestState, WorkerState
from polybus.core.model import Address, Heartbeat, JobOptions, Limits, Request, Worker
from polybus.core.replies import KEPT_OVERHEAD_BYTES
from support.checked_bus import CheckedBus

LIMITS = Limits(
    body_bytes=100,
    held_bytes=500,
    queue_length=6,
    outstanding_per_client=5,
    services=4,
    attempts=3,
    request_ttl_s=10.0,
    replies_age_s=5.0,
    replies_bytes=3000,
    replies_count=5,
    idle_service_s=8.0,
)
LIVE = {RequestState.QUEUED, RequestState.DISPATCHED, RequestState.STREAMING}
SERVICES = [b"a", b"b", b"c", b"d", b"e"]
clients = st.sampled_from([(1, b"c%d" % n) for n in range(3)])
workers = st.sampled_from([(2, b"w%d" % n) for n in range(4)])
ids = st.sampled_from([b"", b"1", b"2", b"3", b"4", b"5", b"6"])
heartbeats = st.sampled_from(
    [Heartbeat(0.0), Heartbeat(2.0, 0.5), Heartbeat(2.0, 0.5, when_silent=True), Heartbeat(3.0)]
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bus = CheckedBus(LIMITS)
        self.now = 100.0
        # Per (client, id): how many last words it may get, and how many it got.
        self.allowed: Counter[tuple[Address, bytes]] = Counter()
        self.finals: Counter[tuple[Address, bytes]] = Counter()
        self.accepted: list[bytes] = []
        self.ended: Counter[bytes] = Counter()
        self.drained = 0
        self.tokens: list[bytes] = [b"nonsense"]

    def do(self, event: Any) -> list[Any]:
        self.bus.handle(event, self.now)
        actions = self.bus.take()
        for action in actions:
            match action:
                case act.Answer() | act.Refuse():
                    self.finals[action.client, action.request_id] += 1
                case act.Drained():
                    self.drained += 1
                case act.Deliver(_, request):
                    self.tokens = [*self.tokens[-30:], request.token]
                case act.Observed(what="accepted"):
                    self.accepted.append(action.token)
                case act.Observed(what="replied" | "failed" | "expired" | "cancelled"):
                    self.ended[action.token] += 1
        return actions

    def pick(self, number: int) -> tuple[Worker, Request] | None:
        """Some request that some worker holds."""
        held = [(w, r) for w in self.bus.workers.values() for r in w.inflight.values()]
        return held[number % len(held)] if held else None

    # -- clients ----------------------------------------------------------------------------------

    @rule(
        client=clients,
        request_id=ids,
        service=st.sampled_from(SERVICES),
        size=st.sampled_from([0, 1, 40, 100, 101]),
        ttl_s=st.sampled_from([None, None, 0.0, 0.3, 2.0, 4.0, inf]),
        receipt=st.booleans(),
        wants=st.booleans(),
        fallback=st.sampled_from([b"", b"a"]),
    )
    def submit(
        self,
        client: Address,
        request_id: bytes,
        service: bytes,
        size: int,
        ttl_s: float | None,
        receipt: bool,
        wants: bool,
        fallback: bytes,
    ) -> None:
        counters = self.bus.counters
        before = counters.accepted, counters.rejected, counters.duplicates, counters.replayed
        body = [b"x" * size] if size != 40 else [b"y" * 20, b"z" * 20]
        options = JobOptions(reply_requested=wants)
        # However the request fares, this much is allowed for it, and is noted before answers are counted.
        self.allowed[client, request_id] += 1
        self.do(events.Submit(client, None, request_id, service, body, options, ttl_s, receipt, fallback))
        after = counters.accepted, counters.rejected, counters.duplicates, counters.replayed
        accepted, rejected, duplicates, replayed = (b - a for a, b in zip(before, after, strict=True))
        assert accepted + rejected + duplicates == 1, "one thing becomes of a request"
        assert replayed <= duplicates
        if duplicates and not replayed:
            # It waits with the first: there is one answer for both.
            self.allowed[client, request_id] -= 1

    @rule(client=clients, request_id=ids)
    def cancel(self, client: Address, request_id: bytes) -> None:
        self.do(events.Cancel(client, request_id))

    @rule(number=st.integers(0, 30))
    def cancel_by_token(self, number: int) -> None:
        tokens = [*self.bus.requests, b"nonsense"]
        self.do(events.CancelToken(tokens[number % len(tokens)]))

    @rule(client=clients, withdraw=st.booleans())
    def client_gone(self, client: Address, withdraw: bool) -> None:
        self.do(events.ClientGone(client, withdraw))

    @rule(client=clients, request_id=ids)
    def answer_lost(self, client: Address, request_id: bytes) -> None:
        self.do(events.AnswerLost(client, request_id, "its pipe is full"))

    # -- workers ----------------------------------------------------------------------------------

    @rule(
        worker=workers,
        offers=st.lists(
            st.tuples(st.sampled_from(SERVICES), st.integers(0, 2)),
            min_size=1,
            max_size=3,
            unique_by=lambda offer: offer[0],
        ),
        heartbeat=heartbeats,
        credit=st.integers(1, 3),
        kind=st.sampled_from(["plain", "plain", "grants", "forgets", "dialled"]),
    )
    def worker_up(
        self,
        worker: Address,
        offers: list[tuple[bytes, int]],
        heartbeat: Heartbeat,
        credit: int,
        kind: str,
    ) -> None:
        self.do(
            events.WorkerUp(
                worker,
                None,
                tuple(offers),
                heartbeat,
                credit,
                grants_slots=kind == "grants",
                forgets_stopped=kind == "forgets",
                endpoint=f"tcp://node:{credit}" if kind == "dialled" else "",
            )
        )

    @rule(worker=workers, service=st.sampled_from(SERVICES), weight=st.integers(0, 2))
    def offer(self, worker: Address, service: bytes, weight: int) -> None:
        self.do(events.Offer(worker, None, service, weight))

    @rule(number=st.integers(0, 5))
    def slot(self, number: int) -> None:
        granting = [w for w in self.bus.workers.values() if w.grants_slots]
        if granting:
            self.do(events.Slot(granting[number % len(granting)].address, None))

    @rule(number=st.integers(0, 30), what=st.sampled_from([events.Result, events.Part]))
    def speak(self, number: int, what: type) -> None:
        held = self.pick(number)
        if held:
            self.do(what(held[0].address, held[1].token, [b"answer"]))

    @rule(number=st.integers(0, 30))
    def answer_all(self, number: int) -> None:
        held = self.pick(number)
        for token in list(held[0].inflight) if held else ():
            self.do(events.Result(held[0].address, token, [b"answer"]))  # type: ignore[index]

    @rule(number=st.integers(0, 30))
    def fail(self, number: int) -> None:
        held = self.pick(number)
        if held:
            self.do(events.Failure(held[0].address, held[1].token, "no", []))

    @rule(number=st.integers(0, 30))
    def undeliverable(self, number: int) -> None:
        held = self.pick(number)
        if held:
            self.do(events.Undeliverable(held[0].address, held[1].token, "two frames"))

    @rule(number=st.integers(0, 30))
    def full(self, number: int) -> None:
        held = self.pick(number)
        if held:
            self.do(events.WorkerFull(held[0].address, held[1].token))

    @rule(
        worker=workers,
        number=st.integers(0, 40),
        what=st.sampled_from([events.Result, events.Part, events.WorkerFull]),
    )
    def out_of_turn(self, worker: Address, number: int, what: type) -> None:
        """About any token: another worker's, one that is over, or none (the oldest it holds)."""
        token = [b"", *self.tokens][number % (len(self.tokens) + 1)]
        self.do(what(worker, token) if what is events.WorkerFull else what(worker, token, [b"late"]))

    @rule(worker=workers)
    def heard(self, worker: Address) -> None:
        self.do(events.Heard(worker, None))

    @rule(number=st.integers(0, 5))
    def gone(self, number: int) -> None:
        known = list(self.bus.workers)
        if known:
            self.do(events.WorkerGone(known[number % len(known)], "it left"))

    # -- time -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.2, 0.6, 1.5, 3.0, 6.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.do(events.Tick())

    @precondition(lambda self: len(self.accepted) > 12)
    @rule()
    def drain(self) -> None:
        self.do(events.Drain())

    # -- what must hold ---------------------------------------------------------------------------

    @invariant()
    def held_bytes_are_those_of_the_unanswered(self) -> None:
        assert self.bus.held_bytes == sum(r.size for r in self.bus.requests.values())

    @invariant()
    def every_request_is_in_exactly_one_place(self) -> None:
        bus = self.bus
        queued = Counter(
            request.token
            for service in bus.services.values()
            for line in (service.queue._front, *service.queue._lanes.values())
            for request in line
            if request.state is RequestState.QUEUED
        )
        held = Counter(token for worker in bus.workers.values() for token in worker.inflight)
        for token, request in bus.requests.items():
            assert request.token == token
            assert request.state in LIVE
            assert queued[token] + held[token] == 1, (request.state, queued[token], held[token])
            assert (request.state is RequestState.QUEUED) == bool(queued[token])
            if request.worker is not None:
                assert request.worker.inflight[token] is request
                assert bus.workers[request.worker.address] is request.worker
        assert set(queued) <= set(bus.requests)

    @invariant()
    def queues_are_as_long_as_they_say(self) -> None:
        waiting = Counter(
            request.service for request in self.bus.requests.values() if request.state is RequestState.QUEUED
        )
        for service in self.bus.services.values():
            assert service.queue.length == waiting[service]
        assert set(waiting) <= set(self.bus.services.values())

    @invariant()
    def slots_are_free_or_taken(self) -> None:
        for address, worker in self.bus.workers.items():
            assert worker.address == address
            assert worker.state is not WorkerState.GONE
            assert worker.free >= 0
            if not worker.grants_slots:
                assert worker.free + len(worker.inflight) == worker.credit
            for token, request in worker.inflight.items():
                assert request.token == token
                assert request.state in TERMINAL or self.bus.requests[token] is request

    @invariant()
    def nobody_waits_while_somebody_is_free(self) -> None:
        for service in self.bus.services.values():
            if service.queue.length:
                free = [w for w in service.roster.members if w.free > 0 and w.state is WorkerState.SERVING]
                assert not free, service.name

    @invariant()
    def workers_are_filed_where_they_offer(self) -> None:
        for service in self.bus.services.values():
            expected = {w for w in self.bus.workers.values() if service in w.offers}
            assert set(service.roster.members) == expected

    @invariant()
    def clients_own_what_is_unanswered(self) -> None:
        bus = self.bus
        owned = {r.token for client in bus.clients.values() for r in client.outstanding.values()}
        assert owned == set(bus.requests)
        for address, client in bus.clients.items():
            assert client.address == address
            assert client.outstanding or client.done, "an empty client is let go"
            assert len(client.outstanding) == client.unanswered <= LIMITS.outstanding_per_client

    @invariant()
    def kept_answers_are_bounded_and_counted(self) -> None:
        bus = self.bus
        kept = [(client, answer.request_id) for client, answer in replies.kept(bus)]
        assert len(set(kept)) == len(kept) <= LIMITS.replies_count
        size = sum(KEPT_OVERHEAD_BYTES + sum(map(len, answer.body)) for _, answer in replies.kept(bus))
        assert bus.replies_bytes == size <= LIMITS.replies_bytes
        assert {(c, i) for c in bus.clients.values() for i in c.done} == set(kept)

    @invariant()
    def counters_add_up(self) -> None:
        counters = self.bus.counters
        over = counters.replied + counters.failed + counters.expired + counters.cancelled
        assert counters.accepted == over + len(self.bus.requests)
        assert counters.accepted == len(self.accepted)
        assert over == sum(self.ended.values())
        for service in self.bus.services.values():
            assert service.queue.length <= LIMITS.queue_length + counters.requeued

    @invariant()
    def every_request_ends_once(self) -> None:
        assert max(self.ended.values(), default=1) == 1
        assert set(self.accepted) - set(self.ended) == set(self.bus.requests)

    @invariant()
    def nobody_hears_more_than_it_asked_for(self) -> None:
        for key, count in self.finals.items():
            assert count <= self.allowed[key], key

    @invariant()
    def deadlines_belong_to_the_living(self) -> None:
        bus = self.bus
        timed = {r.token for slot in bus.expiries._slots.values() for r in slot}
        assert timed == {r.token for r in bus.requests.values() if r.slot}
        default = [r.expires_at for r in bus.requests.values() if not r.slot and r.expires_at != inf]
        assert default == sorted(default)
        watched = [w for slot in bus.watches._slots.values() for w in slot]
        assert len(watched) == len(set(watched))
        for worker in watched:
            assert bus.workers.get(worker.address) is worker
        for worker in bus.workers.values():
            if worker.heartbeat.dead_after_s:
                assert worker in watched
        # Whoever ticks when the bus says so is never more than a slot late.
        soonest = [*(bus.requests[token].expires_at for token in timed), *default]
        assert bus.next_at(self.now) <= min(soonest, default=inf) + 0.1

    @invariant()
    def it_is_drained_once_at_the_end(self) -> None:
        assert self.drained == (self.bus.state is BusState.DRAINED)
        if self.bus.state is not BusState.SERVING:
            assert (self.bus.state is BusState.DRAINED) == (not self.bus.requests)

    def teardown(self) -> None:
        """Everything ends, time passes, and nothing is left."""
        bus = self.bus
        # One by one: hanging up on a dialled worker dials the others at its endpoint anew.
        while bus.workers:
            self.do(events.WorkerGone(next(iter(bus.workers)), "the end"))
        for token in list(bus.requests):
            self.do(events.CancelToken(token))
        for _ in range(30):
            self.now += 1.0
            self.do(events.Tick())
        assert not bus.requests
        assert not bus.clients
        assert not bus.workers
        assert not bus.replies
        assert not bus.services
        assert bus.held_bytes == bus.replies_bytes == 0
        for timers in (bus.expiries, bus.watches, bus.leases):
            assert not timers._slots
            assert not timers._order
        assert all(count == 1 for count in self.ended.values())
        assert set(self.ended) == set(self.accepted)


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
