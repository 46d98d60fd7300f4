"""Random networks of brokers, from a seed: links are cut and healed, brokers die and come back, workers come
and go, while clients ask and publish.  In the end every request of a broker that lived has exactly one answer
or refusal, nobody heard a publication twice, and everybody knows every service by the shortest way."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

from support.bridges import Island, World

SERVICES = ("tea", "coffee", "milk")
SEEDS = range(40)
STEPS = 120
# Longer than any request lives, in steps that heartbeats survive.
END_S = 400.0


class Life:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = World()
        size = self.chance.randint(3, 6)
        self.names = [f"b{number}" for number in range(size)]
        # A line, so that everybody can be reached, and some links more, which make rings.
        pairs = {(one, one + 1) for one in range(size - 1)}
        pairs |= {tuple(sorted(self.chance.sample(range(size), 2))) for _ in range(self.chance.randint(0, 4))}  # type: ignore[misc]
        self.pairs = sorted(pairs)
        self.count = 0
        # What was asked for in this life of a broker, and where workers are.
        self.asked: dict[str, list[str]] = {}
        self.offered: dict[tuple[str, str], bool] = {}
        self.heard: list[tuple[str, Island]] = []
        for name in self.names:
            self.start(name)
        self.world.wait(2)

    def start(self, name: str) -> None:
        at = self.names.index(name)
        peers = [self.names[other] for one, other in self.pairs if one == at]
        island = self.world.broker(name, peers, topics=["t"], retry_max_s=2)
        self.asked[name] = []
        self.heard.append((name, island))
        for (where, service), offered in self.offered.items():
            if where == name and offered:
                island.worker(f"w-{service}", service)

    def step(self) -> None:
        chance, world = self.chance, self.world
        here = chance.choice(self.names)
        island = world.islands.get(here)
        match chance.randrange(12):
            case 0:
                one, other = (self.names[end] for end in chance.choice(self.pairs))
                if one in world.islands and other in world.islands:
                    world.cut(world.islands[one], world.islands[other])
            case 1 | 2:
                self.heal_one()
            case 3 if island is not None and chance.random() < 0.4:
                world.kill(island)
            case 4:
                if island is None:
                    self.start(here)
            case 5 if island is not None:
                service = chance.choice(SERVICES)
                is_there = self.offered.get((here, service), False)
                self.offered[here, service] = not is_there
                if is_there:
                    island.leave(f"w-{service}")
                else:
                    island.worker(f"w-{service}", service)
            case 6 | 7 | 8 | 9 if island is not None:
                self.count += 1
                island.ask("c", str(self.count), chance.choice(SERVICES), b"%d" % self.count)
                self.asked[here].append(str(self.count))
            case 10 | 11 if island is not None:
                self.count += 1
                island.publish(f"t.{chance.randrange(3)}", b"%d" % self.count, settle=chance.random() < 0.5)
            case _:
                pass
        world.wait(chance.choice((0.0, 0.02, 0.1, 1.0)))
        if chance.random() < 0.7:
            self.work()

    def heal_one(self) -> None:
        cuts = sorted(tuple(sorted(pair)) for pair in self.world._cut)
        if cuts:
            self.world._cut.discard(frozenset(self.chance.choice(cuts)))

    def work(self) -> None:
        """Workers answer what they have."""
        for island in list(self.world.islands.values()):
            for service in SERVICES:
                for token in island.orders(f"w-{service}"):
                    island.answer(f"w-{service}", token, b"done")
        self.world.run()

    def finish(self) -> None:
        world = self.world
        world._cut.clear()
        for name in self.names:
            if name not in world.islands:
                self.start(name)
        waited = 0.0
        while waited < END_S:
            world.wait(2.0, step_s=0.1)
            self.work()
            waited += 2.0

    def distances(self, service: str) -> dict[str, int]:
        near = {
            name: 0 for (name, offered), is_there in self.offered.items() if offered == service and is_there
        }
        line = deque(near)
        while line:
            here = self.names.index(line.popleft())
            for pair in self.pairs:
                if here in pair:
                    other = self.names[pair[0] + pair[1] - here]
                    if other not in near:
                        near[other] = near[self.names[here]] + 1
                        line.append(other)
        return near


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.finish()
    for name, island in life.world.islands.items():
        finals = island.finals("c")
        assert {request: len(finals.get(request, [])) for request in life.asked[name]} == dict.fromkeys(
            life.asked[name], 1
        ), (name, seed)
        assert island.bus.request_count == 0
        assert island.bus.held_bytes == 0
        for worker in island.bus.workers.values():
            assert worker.free == worker.credit, (name, worker.address)
        for service in SERVICES:
            distances = life.distances(service)
            assert len(island.via(service)) == distances.get(name, 0)
    for name, island in life.heard:
        twice = [what for what, count in Counter(island.publications).items() if count > 1]
        assert not twice, (name, seed)
