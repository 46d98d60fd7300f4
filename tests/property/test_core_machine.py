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
from polybus.core import events
from polybus.core.lifecycle import BusState
from polybus.core.model import Address, Heartbeat, JobOptions, Limits, QueuePolicy, Request, Retrying, Worker
from support import invariants
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
    timeout_grace_s=0.5,
)
SERVICES = [b"a", b"b", b"c", b"d", b"e"]
clients = st.sampled_from([(1, b"c%d" % n) for n in range(3)])
workers = st.sampled_from([(2, b"w%d" % n) for n in range(4)])
ids = st.sampled_from([b"", b"1", b"2", b"3", b"4", b"5", b"6"])
options = st.builds(
    JobOptions,
    reply_requested=st.booleans(),
    retries=st.sampled_from([0, 0, 0, 1, 3]),
    timeout_s=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    backoff_s=st.sampled_from([None, 0.0, 0.2, 1.0]),
)
policies = st.sampled_from(
    [
        [],
        [("a", QueuePolicy(concurrency=1)), ("b", QueuePolicy(rate_per_s=2.0))],
        [("[a-c]", QueuePolicy(concurrency=2, rate_per_s=1.0, weight=1))],
        [("*", QueuePolicy(retries=1, timeout_s=1.0))],
    ]
)
heartbeats = st.sampled_from(
    [Heartbeat(0.0), Heartbeat(2.0, 0.5), Heartbeat(2.0, 0.5, when_silent=True), Heartbeat(3.0)]
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bus = CheckedBus(LIMITS)
        self.bus.retrying = Retrying(backoff_s=0.5, backoff_max_s=3.0, jitter=0.1)
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
        options=options,
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
        options: JobOptions,
        fallback: bytes,
    ) -> None:
        counters = self.bus.counters
        before = counters.accepted, counters.rejected, counters.duplicates, counters.replayed
        body = [b"x" * size] if size != 40 else [b"y" * 20, b"z" * 20]
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
        kind=st.sampled_from(["plain", "plain", "obeys", "grants", "forgets", "dialled"]),
        holds=st.lists(st.integers(0, 30), max_size=3),
    )
    def worker_up(
        self,
        worker: Address,
        offers: list[tuple[bytes, int]],
        heartbeat: Heartbeat,
        credit: int,
        kind: str,
        holds: list[int],
    ) -> None:
        self.do(
            events.WorkerUp(
                worker,
                None,
                tuple(offers),
                heartbeat,
                credit,
                grants_slots=kind == "grants",
                obeys_stop=kind in ("obeys", "forgets"),
                forgets_stopped=kind == "forgets",
                resumes=kind == "grants",
                endpoint=f"tcp://node:{credit}" if kind == "dialled" else "",
                holding=tuple(self.tokens[number % len(self.tokens)] for number in holds),
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
        what=st.sampled_from([events.Result, events.Part, events.WorkerFull, events.Returned]),
    )
    def out_of_turn(self, worker: Address, number: int, what: type) -> None:
        """About any token: another worker's, one that is over, or none (the oldest it holds)."""
        token = [b"", *self.tokens][number % (len(self.tokens) + 1)]
        short = what in (events.WorkerFull, events.Returned)
        if what is events.Returned and worker in self.bus.workers:
            # Only workers that grant their slots have a word for it.
            short = self.bus.workers[worker].grants_slots
            what = events.Returned if short else events.Result
        self.do(what(worker, token) if short else what(worker, token, [b"late"]))

    @rule(worker=workers)
    def leaving(self, worker: Address) -> None:
        self.do(events.Leaving(worker))

    @rule(worker=workers)
    def heard(self, worker: Address) -> None:
        self.do(events.Heard(worker, None))

    @rule(number=st.integers(0, 5), is_unreachable=st.booleans())
    def gone(self, number: int, is_unreachable: bool) -> None:
        bus = self.bus
        known = [*bus.workers, *bus.silent, *bus.departed, *bus.resting]
        if known:
            self.do(events.WorkerGone(known[number % len(known)], "it left", is_unreachable))

    # -- time -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.2, 0.6, 1.5, 3.0, 6.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.do(events.Tick())

    @rule(rules=policies)
    def change_policies(self, rules: list[tuple[str, QueuePolicy]]) -> None:
        self.bus.change_policies(rules)

    @precondition(lambda self: len(self.accepted) > 12)
    @rule()
    def drain(self) -> None:
        self.do(events.Drain())

    # -- what must hold ---------------------------------------------------------------------------

    @invariant()
    def the_tables_fit_together(self) -> None:
        invariants.check(self.bus, self.now)
        for client in self.bus.clients.values():
            assert client.unanswered <= LIMITS.outstanding_per_client

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
        for timers in (bus.expiries, bus.watches, bus.leases, bus.alarms, bus.gates):
            assert not timers._slots
            assert not timers._order
        assert all(count == 1 for count in self.ended.values())
        assert set(self.ended) == set(self.accepted)


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
