"""Routes between brokers, in random networks with rings: whatever happens, in whatever order what is said
arrives, in the end everybody knows all it can reach, by the shortest way, and nothing goes in circles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.core.routes import Path, Routes

SERVICES = (b"tea", b"coffee", b"milk")
Update = tuple[dict[bytes, Path], list[bytes]]


class Network:
    """Brokers, and what is on its way between them, in order for each direction of a link."""

    def __init__(self, size: int, max_hops: int = 8) -> None:
        self.brokers = {f"b{number}": Routes(f"b{number}", max_hops) for number in range(size)}
        self.wires: dict[tuple[str, str], deque[Update]] = {}

    def link(self, one: str, other: str) -> None:
        if one != other and (one, other) not in self.wires:
            for here, there in ((one, other), (other, one)):
                self.wires[here, there] = deque()
                self.brokers[here].up(there)

    def cut(self, one: str, other: str) -> None:
        """What is on its way is lost."""
        for here, there in ((one, other), (other, one)):
            if self.wires.pop((here, there), None) is not None:
                self.brokers[here].down(there)

    def speak(self, here: str, there: str) -> None:
        update = self.brokers[here].updates(there)
        if any(update):
            self.wires[here, there].append(update)

    def listen(self, here: str, there: str) -> None:
        wire = self.wires[here, there]
        if wire:
            self.brokers[there].hear(here, *wire.popleft())

    def settle(self) -> int:
        """Let everybody speak and listen until nobody has anything to say. How many rounds that took."""
        for round_ in range(1000):
            for here, there in self.wires:
                self.speak(here, there)
            if not any(self.wires.values()):
                return round_
            for here, there in list(self.wires):
                self.listen(here, there)
        raise AssertionError("they never stop talking")

    def distances(self, service: bytes) -> dict[str, int]:
        """How far it is from everybody to the next broker that offers it."""
        near = {name: 0 for name, routes in self.brokers.items() if service in routes.local}
        line = deque(near)
        while line:
            here = line.popleft()
            for one, other in self.wires:
                if one == here and other not in near:
                    near[other] = near[here] + 1
                    line.append(other)
        return near

    def walk(self, name: str, service: bytes) -> Iterator[str]:
        """The brokers that a request passes."""
        while True:
            yield name
            ways = self.brokers[name].through(service)
            if not ways:
                return
            name = ways[-1]


def check(network: Network, max_hops: int) -> None:
    for service in SERVICES:
        distances = network.distances(service)
        for name, routes in network.brokers.items():
            path = routes.best(service)
            if name not in distances or distances[name] > max_hops:
                assert path is None, (name, service, path)
                continue
            assert path is not None, (name, service)
            assert len(path) == distances[name], (name, service, path)
            assert name not in path
            walked = []
            for step in network.walk(name, service):
                assert step not in walked, (name, service, walked, step)
                walked.append(step)
            assert len(walked) == distances[name] + 1
            assert service in network.brokers[walked[-1]].local


links = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=20)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 7), st.sampled_from(SERVICES), st.booleans()),
        st.tuples(st.just("link"), st.integers(0, 7), st.integers(0, 7)),
        st.tuples(st.just("cut"), st.integers(0, 7), st.integers(0, 7)),
        st.tuples(st.just("speak"), st.integers(0, 100)),
        st.tuples(st.just("listen"), st.integers(0, 100)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(links, steps, st.sampled_from([3, 8]))
def test_everybody_ends_with_the_shortest_ways(
    joined: list[tuple[int, int]], happened: list[tuple[object, ...]], max_hops: int
) -> None:
    network = Network(8, max_hops)
    for one, other in joined:
        network.link(f"b{one}", f"b{other}")
    for what, *facts in happened:
        if what == "offer":
            number, service, offered = facts
            network.brokers[f"b{number}"].offer(service, bool(offered))  # type: ignore[arg-type]
        elif what == "link":
            network.link(f"b{facts[0]}", f"b{facts[1]}")
        elif what == "cut":
            network.cut(f"b{facts[0]}", f"b{facts[1]}")
        elif network.wires:
            wires = list(network.wires)
            here, there = wires[int(str(facts[0])) % len(wires)]
            (network.speak if what == "speak" else network.listen)(here, there)
    assert network.settle() < 100
    check(network, max_hops)


def ring(size: int, max_hops: int = 8) -> Network:
    network = Network(size, max_hops)
    names = list(network.brokers)
    for one, other in zip(names, [*names[1:], names[0]], strict=True):
        network.link(one, other)
    return network


def test_in_a_ring_a_lost_service_is_forgotten_by_all() -> None:
    network = ring(6)
    network.brokers["b0"].offer(b"tea", True)
    network.settle()
    check(network, 8)
    network.brokers["b0"].offer(b"tea", False)
    # No counting to infinity: a path that comes back to somebody in it is not taken.
    assert network.settle() <= 8
    check(network, 8)


def test_a_cut_ring_goes_the_other_way_round() -> None:
    network = ring(5)
    network.brokers["b0"].offer(b"tea", True)
    network.settle()
    assert network.brokers["b1"].best(b"tea") == ("b0",)
    network.cut("b0", "b1")
    network.settle()
    assert network.brokers["b1"].best(b"tea") == ("b2", "b3", "b4", "b0")
    check(network, 8)


def test_paths_longer_than_allowed_are_not_taken() -> None:
    network = Network(6, max_hops=3)
    for number in range(5):
        network.link(f"b{number}", f"b{number + 1}")
    network.brokers["b5"].offer(b"tea", True)
    network.settle()
    assert network.brokers["b2"].best(b"tea") == ("b3", "b4", "b5")
    assert network.brokers["b1"].best(b"tea") is None
    check(network, 3)


def test_a_full_list_takes_the_place_of_what_was_said_before() -> None:
    routes = Routes("b0", 8)
    routes.up("b1")
    routes.hear("b1", {b"tea": ("b1",), b"milk": ("b1",)})
    assert routes.hear("b1", {b"milk": ("b1",)}) == []
    assert routes.best(b"tea") == ("b1",)
    assert routes.hear("b1", {b"milk": ("b1",)}, full=True) == [b"tea"]
    assert (routes.best(b"tea"), routes.best(b"milk")) == (None, ("b1",))
