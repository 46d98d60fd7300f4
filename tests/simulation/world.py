"""A seeded world: a broker, clients and workers of every dialect, and everything that can go wrong.

`World(seed).run()` plays it and raises `Broken` with the first promise that did not hold:

- every request of a client that survives ends exactly once, with its own answer or a refusal, in its time;
- nobody hears more last words than it asked for;
- when all is over and time has passed, the bus has forgotten everything.

The broker is the real one from the ears to the outbox; only its sockets are missing.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import Address, Limits
from polybus.dialects.dbp import Dbp
from polybus.dialects.ebus import Ebus
from polybus.dialects.emqp import Emqp
from polybus.dialects.mdp1 import Mdp1
from polybus.dialects.mdp2 import Mdp2
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import Ear, RouterEar
from polybus.server.effects import Outbox
from simulation.network import Clock, Frames, Network
from simulation.peers import SimClient, SimWorker

EBUS, EMQP, MAJORDOMO, DBP = 1, 2, 3, 4
LINKS = {"ebus": EBUS, "emqp": EMQP, "mdp1": MAJORDOMO, "mdp2": MAJORDOMO, "mdr": MAJORDOMO, "dbp": DBP}
DIALECTS = tuple(LINKS)
# These notice a lost answer by themselves: they ask again, and the broker knows the id.
RESENDING = ("ebus", "mdr")
LIMITS = Limits(request_ttl_s=60.0, replies_age_s=20.0, idle_service_s=20.0, attempts=5)
# Requests are sent and things go wrong until then; afterwards everything has to come to its end.
TROUBLE_S = 25.0
END_S = 150.0


class Broken(AssertionError):
    """A promise did not hold."""


class WatchedBus(Bus):
    """Counts, per client, the last words that it may get and those that it got."""

    def __init__(self, nonce: bytes) -> None:
        super().__init__(nonce, LIMITS)
        self.finals: Counter[Address] = Counter()
        self.allowed: Counter[Address] = Counter()

    def take(self) -> list[Any]:
        actions = super().take()
        for action in actions:
            if isinstance(action, act.Answer | act.Refuse):
                self.finals[action.client] += 1
                if self.finals[action.client] > self.allowed[action.client]:
                    raise Broken(f"{action.client} was answered more often than it asked: {action}")
        return actions


class SimBroker:
    def __init__(self, network: Network) -> None:
        self.network, self.clock = network, network.clock
        self.lives = 0
        self.start()

    def new_bus(self) -> Bus:
        return WatchedBus(b"L%d-" % self.lives)

    def start(self) -> None:
        self.lives += 1
        self.draining = False
        self.network.log("broker", f"starts its life {self.lives}")
        self.bus = bus = self.new_bus()

        def wall() -> float:
            return 1_700_000_000.0 + self.clock.now

        family = {**Mdp1(bus).tags, **Mdp2(bus).tags, **Mdr(bus).tags}
        self.ears: dict[int, Ear] = {
            EBUS: RouterEar(bus, "ebus", Ebus(bus).tags),
            EMQP: RouterEar(bus, "emqp", Emqp(bus, wall=wall).tags),
            MAJORDOMO: RouterEar(bus, "majordomo", family),
            DBP: RouterEar(bus, "dbp", Dbp(bus, wall).tags),
        }
        self.outbox = Outbox(bus, self.network)
        self.outbox.handlers[act.Drained] = lambda action: self.stop()
        self.outbox.handlers[act.Forget] = lambda action: None
        self._tick_at = 0.0
        self.begin()
        self.network.broker = self.receive
        self._settle()

    def begin(self) -> None:
        """Before anything is heard."""

    def receive(self, link: int, identity: bytes, frames: Frames) -> None:
        bus, counters = self.bus, self.bus.counters
        before = counters.accepted + counters.rejected + counters.replayed
        self.ears[link].receive(link, [identity, *frames], self.clock.now)
        if isinstance(bus, WatchedBus):
            bus.allowed[link, identity] += counters.accepted + counters.rejected + counters.replayed - before
        if counters.invalid:
            raise Broken(f"a peer of our own library sent what cannot be read: {frames}")
        self._settle()

    def _settle(self) -> None:
        now, life = self.clock.now, self.lives
        self.outbox.settle(now)
        due = min(self.bus.next_at(now), max(now, self.outbox.pending.next_at))
        if self._tick_at <= now or due < self._tick_at:
            self._tick_at = due

            def tick() -> None:
                if self.lives == life and self._tick_at <= self.clock.now:
                    self._tick_at = 0.0
                    self.outbox.pending.resume(self.clock.now)
                    self.bus.handle(events.Tick(), self.clock.now)
                    self._settle()

            self.clock.at(due, tick)

    def drain(self) -> None:
        if not self.draining and self.network.broker is not None:
            self.network.log("broker", f"drains {len(self.bus.requests)} requests")
            self.draining = True
            self.bus.handle(events.Drain(), self.clock.now)
            self._settle()

    def stop(self) -> None:
        """Stop now, at a crash or when drained, and start again soon."""
        if self.network.broker is None:
            return
        self.network.log("broker", f"stops with {len(self.bus.requests)} unanswered requests")
        self.lives += 1
        self.network.cut_all()
        self.clock.after(self.network.random.uniform(0.05, 3.0), self.start)


class World:
    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self._tracing = trace
        self.random = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, self.random, self._log)
        self.broker = SimBroker(self.network)
        self.services = [b"s%d" % n for n in range(self.random.randint(1, 3))]
        self.clients = [self._client(n) for n in range(self.random.randint(2, 6))]
        self.workers = self._workers()

    def _log(self, who: str, what: str) -> None:
        if self._tracing:
            self.trace.append(f"{self.clock.now - 1000.0:9.4f}  {who:<8} {what}")

    def _client(self, number: int) -> SimClient:
        dialect = self.random.choice(DIALECTS)
        return SimClient(self.network, f"c{number}{dialect}", dialect, LINKS[dialect])

    def _workers(self) -> list[SimWorker]:
        workers = []
        for service in self.services:
            dialects = [self.random.choice(DIALECTS) for _ in range(self.random.randint(1, 3))]
            # A name in the catalog belongs to one node.
            while dialects.count("dbp") > 1:
                dialects.remove("dbp")
            for dialect in dialects:
                offered = [service]
                if dialect != "dbp" and self.random.random() < 0.2:
                    offered = list(self.services)
                credit = self.random.choice([1, 1, 3, 50])
                name = f"w{len(workers)}{dialect}"
                workers.append(SimWorker(self.network, name, dialect, LINKS[dialect], offered, credit))
        return workers

    # -- playing ------------------------------------------------------------------------------------

    def run(self) -> None:
        self._plan()
        start = self.clock.now
        self.clock.run(lambda: self.clock.now >= start + TROUBLE_S, start + TROUBLE_S)
        self.clock.run(self._all_ended, start + END_S)
        self._check_ends()
        # Work of those who crashed is done, too.
        if not self.clock.run(lambda: not self.broker.bus.requests, start + END_S + 200.0):
            raise Broken(f"never done: {list(self.broker.bus.requests.values())[:3]}")
        self._close()

    def _plan(self) -> None:
        random, clock = self.random, self.clock
        for client in self.clients:
            for _ in range(random.randint(1, 30)):
                clock.after(
                    random.uniform(0, TROUBLE_S), lambda c=client: c.ask(random.choice(self.services))
                )
        # Some worlds are calm, some are not.
        for _ in range(random.choice([0, 3, 10, 25, 60])):
            clock.after(random.uniform(0, TROUBLE_S), self._trouble)
        if random.random() < 0.5:
            clock.after(random.uniform(0, TROUBLE_S), self.broker.stop)
        if random.random() < 0.2:
            clock.after(random.uniform(0, TROUBLE_S), self.broker.drain)
        if random.random() < 0.3:
            clock.after(random.uniform(0, TROUBLE_S), self.clients[0].crash)

    def _trouble(self) -> None:
        random = self.random
        what = random.choice(["cut", "cut", "cut", "crash", "crash", "freeze", "stall", "stall", "dark"])
        if what in ("crash", "freeze"):
            worker = random.choice(self.workers)
            if what == "freeze":
                worker.freeze(random.uniform(0.5, 20.0))
            elif worker.alive:
                worker.crash()
                self.clock.after(random.uniform(0.01, 10.0), worker.start)
            return
        wire = random.choice(self.network.lines)
        seconds = random.uniform(0.1, 5.0)
        self._log(wire.name, f"trouble: {what} ({seconds:.1f} s)")
        if what == "cut":
            wire.cut()
        elif what == "stall":
            wire.stall(seconds)
        else:
            wire.go_dark(seconds)

    # -- what must hold -----------------------------------------------------------------------------

    def _all_ended(self) -> bool:
        return all(all(client.ends.values()) for client in self.clients if client.alive)

    def _check_ends(self) -> None:
        for client in self.clients:
            if client.wrong:
                raise Broken(f"wrong answers: {client.wrong}")
            for body, ends in client.ends.items():
                ticket = client.asked[body]
                if ends > 1:
                    raise Broken(f"{body} ended {ends} times")
                if client.alive and not ends:
                    raise Broken(f"{body} has not ended")
                timed_out = ticket.error is not None and ticket.error.code == "timeout"
                if client.alive and timed_out and not self._may_time_out(client):
                    raise Broken(f"{body} was never answered")

    def _may_time_out(self, client: SimClient) -> bool:
        """A client that did not read loses answers, and not every dialect lets it ask again."""
        lost = client.refused + client.wire.refused
        return client.dialect not in RESENDING and lost > 0

    def _close(self) -> None:
        for client in self.clients:
            client.wire.close()
            client.alive = False
        for worker in self.workers:
            worker.retired = True
            if worker.alive and self.random.random() < 0.5:
                worker.leave()
            else:
                worker.crash()
        end = self.clock.now + 120.0
        self.clock.run(lambda: False, end)
        bus = self.broker.bus
        left = {
            "requests": bus.requests,
            "clients": bus.clients,
            "workers": bus.workers,
            "nodes": bus.nodes,
            "services": bus.services,
            "replies": bus.replies,
            "schedulers": bus.schedulers,
            "expiries": bus.expiries._slots,
            "watches": bus.watches._slots,
            "leases": bus.leases._slots,
            "held bytes": bus.held_bytes,
            "bytes of replies": bus.replies_bytes,
        }
        for name, what in left.items():
            if what:
                raise Broken(f"{name} are left: {what}")
