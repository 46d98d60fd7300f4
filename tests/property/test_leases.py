"""Random lives of nodes: whoever shows itself stays, whoever does not goes, and nobody goes unasked."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.leases import LATE, MISSED_BEATS
from polybus.core.model import Address, Heartbeat, Node, Reach

DBP, OUT = 3, 9
STEP_S = 0.05
STEPS = 2000
# Timers have slots of 50 ms, and the last question has a quarter of a second.
SLACK_S = 0.6


class Life:
    """What a node does: how often it beats, by what, and whether it answers."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.name = b"n%d" % number
        self.number = number
        self.heartbeat_s = rng.choice((0.5, 1.0, 2.0))
        self.kind = rng.choice(("dealer", "req", "none"))
        # Some share an address.
        self.ip = f"10.0.0.{number % 3 + 1}"
        self.endpoint = f"tcp://{self.ip}:{number % 5 + 1}"
        self.address: Address = (DBP, b"peer-%d-0" % number)
        self.lives = 0
        self.beats, self.answers, self.connected = True, True, True
        self.beat_at = 0.0
        self.shown_at = -inf


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bus = Bus(b"n-", watched=True)
        self.now = 1000.0
        self.nodes = [Life(self.rng, number) for number in range(12)]
        self.asked: dict[bytes, float] = {}
        self.dialled: dict[bytes, str] = {}
        self.shown: set[tuple[Any, ...]] = set()
        self.pending: list[tuple[float, Any]] = []

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        while self.bus.actions:
            for action in self.bus.take():
                self.carry_out(action)

    def carry_out(self, action: Any) -> None:
        match action:
            case act.Dial(identity, endpoint):
                assert identity not in self.dialled
                self.dialled[identity] = endpoint
            case act.HangUp(_, endpoint):
                self.dialled = {key: place for key, place in self.dialled.items() if place != endpoint}
            case act.Ask(peer, _, name):
                self.asked[name] = self.now
                life = self.nodes[int(name[1:])]
                if peer[0] == OUT:
                    if peer[1] not in self.dialled:
                        self.bus.handle(events.Unasked(peer), self.now)
                    elif life.answers:
                        self.pending.append((self.now + self.rng.random() * 0.1, ("answer", peer, life)))
                elif peer != life.address or not life.connected:
                    self.bus.handle(events.Unasked(peer), self.now)
                elif life.answers:
                    self.pending.append((self.now + self.rng.random() * 0.1, ("heard", peer, life)))
            case act.Beckon(to, _):
                assert to in self.shown, "nothing is sent to where nothing came from"
            case act.Forget(entry, why):
                self.forgotten(entry, why)

    def forgotten(self, node: Node, why: str) -> None:
        life = self.nodes[int(node.name[1:])]
        silent_s = self.now - life.shown_at
        assert silent_s >= life.heartbeat_s * (MISSED_BEATS - LATE), (life.kind, why, silent_s)
        assert self.asked.get(node.name, -inf) >= life.shown_at, (life.kind, why, "it was not asked")

    def register(self, life: Life) -> None:
        life.lives += 1
        life.address = (DBP, b"peer-%d-%d" % (life.number, life.lives))
        life.connected = True
        reach = Reach((OUT, b"node:" + life.name), life.endpoint, "v")
        offers = ((life.name, 0),)
        serves = {
            "dealer": events.WorkerUp(
                life.address, "v", offers, Heartbeat(life.heartbeat_s * MISSED_BEATS, life.heartbeat_s)
            ),
            "req": events.WorkerUp(reach.place, "v", offers, Heartbeat(0.0), endpoint=life.endpoint),
            "none": None,
        }[life.kind]
        info = {"ip": life.ip, "port": life.number % 5 + 1}
        life.shown_at = self.now
        self.do(
            events.Register(
                life.address, "v", life.name, info, life.heartbeat_s, (), serves, "how", life.ip, reach
            )
        )

    def step(self) -> None:
        self.now += STEP_S if self.rng.random() < 0.999 else 20.0
        due = [what for at, what in self.pending if at <= self.now]
        self.pending = [(at, what) for at, what in self.pending if at > self.now]
        for how, peer, life in due:
            if how == "answer" and peer in self.bus.workers:
                life.shown_at = self.now
                self.do(events.Heard(peer, "v"))
            elif how == "answer" and peer in self.bus.catalog.lines:
                self.nodes[int(self.bus.catalog.lines[peer].name[1:])].shown_at = self.now
                self.do(events.Answered(peer))
            elif how == "heard" and peer in self.bus.workers:
                life.shown_at = self.now
                self.do(events.Heard(peer, "v"))
        for life in self.nodes:
            self.live(life)
        self.do(events.Tick())

    def live(self, life: Life) -> None:
        rng = self.rng
        if rng.random() < 0.002:
            life.beats = not life.beats
        if rng.random() < 0.002:
            life.answers = not life.answers
        if rng.random() < 0.001:
            life.connected = False
        if life.name not in self.bus.nodes:
            if rng.random() < 0.02:
                self.register(life)
        elif rng.random() < 0.001:
            self.register(life)
        elif life.beats and self.now >= life.beat_at and rng.random() < 0.95:
            life.beat_at = self.now + life.heartbeat_s
            life.shown_at = self.now
            source = (life.ip, 4000 + life.number + rng.randrange(2))
            self.shown.add(source)
            self.do(events.Pulse(life.name, source))
        elif rng.random() < 0.01:
            # Somebody else says that it is this node.
            self.do(events.Pulse(life.name, ("10.9.9.9", 1)))

    def check(self) -> None:
        bus, catalog = self.bus, self.bus.catalog
        assert set(catalog.lines) == {node.line for node in bus.nodes.values() if node.line is not None}
        assert sum(catalog.lines_at.values()) == len(catalog.lines)
        assert all(count > 0 for count in catalog.lines_at.values())
        for endpoint, spare in catalog.spare.items():
            assert all(self.dialled.get(line[1]) == endpoint for line in spare)
        for endpoint, there in bus.dialled_at.items():
            assert there
            assert all(bus.workers[worker.address] is worker for worker in there)
            assert all(worker.endpoint == endpoint for worker in there)
        for node in bus.nodes.values():
            assert node.slot, "somebody looks at every lease"
        needed = (
            len(catalog.lines)
            + sum(map(len, catalog.spare.values()))
            + sum(map(len, bus.dialled_at.values()))
        )
        assert len(self.dialled) <= needed + len(self.nodes), "connections do not pile up"


@pytest.mark.parametrize("seed", range(15))
def test_random_lives(seed: int) -> None:
    world = World(seed)
    for number in range(STEPS):
        world.step()
        if number % 20 == 0:
            world.check()
    # All fall silent: all are gone soon, and nothing is left of them.
    for life in world.nodes:
        life.beats = life.answers = life.connected = False
    world.pending.clear()
    until = world.now + 2.0 * MISSED_BEATS + SLACK_S
    while world.now < until:
        world.now += STEP_S
        world.do(events.Tick())
    world.check()
    assert not world.bus.nodes
    assert not world.bus.catalog.lines
    assert not world.bus.workers
    assert not world.dialled
