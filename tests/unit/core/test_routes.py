"""Which services are reached through which neighbour, rule by rule."""

from __future__ import annotations

import pytest

from polybus.core import routes as routes_module
from polybus.core.routes import Path, Routes


def linked(max_hops: int = 8) -> Routes:
    """A with its neighbours B and C."""
    routes = Routes("A", max_hops)
    for name in ("B", "C"):
        routes.up(name)
    return routes


@pytest.mark.parametrize(
    ("path", "is_used"),
    [
        (("B",), True),
        (("B", "X", "Y"), True),
        # No longer than max_hops, with the neighbour first, without us, and nobody twice.
        (("B", "X", "Y", "Z"), False),
        ((), False),
        (("C",), False),
        (("B", "A"), False),
        (("B", "X", "B"), False),
    ],
)
def test_which_paths_are_used(path: Path, is_used: bool) -> None:
    routes = linked(max_hops=3)
    assert routes.hear("B", {b"s": path}) == ([b"s"] if is_used else [])
    assert routes.best(b"s") == (path if is_used else None)
    # One that cannot be used takes the place of what was said before.
    routes.hear("B", {b"s": ("B",)})
    changes = path != ("B",)
    assert routes.hear("B", {b"s": path}) == ([b"s"] if changes else [])
    assert routes.best(b"s") == (path if is_used else None)


def test_paths_are_eight_brokers_long_at_most_unless_it_is_set() -> None:
    routes = Routes("A")
    routes.up("B")
    eight = ("B", *"CDEFGHI")
    assert routes.hear("B", {b"s": eight, b"t": (*eight, "J")}) == [b"s"]
    assert routes.known() == [b"s"]


def test_the_shortest_path_is_used_and_of_equal_ones_the_first_by_name() -> None:
    routes = linked()
    routes.hear("C", {b"s": ("C", "X")})
    assert (routes.best(b"s"), routes.through(b"s")) == (("C", "X"), ["C"])
    routes.hear("B", {b"s": ("B", "Y")})
    assert (routes.best(b"s"), routes.through(b"s")) == (("B", "Y"), ["B"])
    routes.hear("C", {b"s": ("C",)})
    assert (routes.best(b"s"), routes.through(b"s")) == (("C",), ["C"])
    # Those that offer it themselves share its requests.
    routes.hear("B", {b"s": ("B",)})
    assert routes.through(b"s") == ["B", "C"]
    routes.offer(b"s", True)
    assert (routes.best(b"s"), routes.through(b"s")) == ((), [])
    assert (routes.best(b"unknown"), routes.through(b"unknown")) == (None, [])


def test_what_a_neighbour_is_told() -> None:
    routes = linked(max_hops=3)
    routes.offer(b"own", True)
    routes.hear("B", {b"far": ("B", "X"), b"farthest": ("B", "X", "Y")})
    # Not what goes over itself, and not what would be too long with us on the way.
    assert routes.updates("B") == ({b"own": ("A",)}, [])
    assert routes.updates("C") == ({b"own": ("A",), b"far": ("A", "B", "X")}, [])
    assert routes.updates("B") == routes.updates("C") == ({}, [])
    # What stays as it was is not told again.
    routes.offer(b"own", True)
    routes.touch(b"own")
    assert routes.updates("C") == ({}, [])
    routes.hear("B", {b"far": ("B",)})
    assert routes.updates("C") == ({b"far": ("A", "B")}, [])
    routes.offer(b"own", False)
    assert routes.updates("C") == ({}, [b"own"])
    assert routes.updates("B") == ({}, [b"own"])


def test_a_neighbour_takes_back_what_it_offered() -> None:
    routes = linked()
    offers: dict[bytes, Path] = dict.fromkeys((b"a", b"b", b"c"), ("B",))
    assert routes.hear("B", offers) == [b"a", b"b", b"c"]
    assert routes.hear("B", offers) == []
    assert routes.hear("B", {}, [b"a", b"never"]) == [b"a"]
    assert routes.known() == [b"b", b"c"]
    # All that it has: what is not named is gone.
    assert routes.hear("B", {b"c": ("B",), b"d": ("B",)}, full=True) == [b"b", b"d"]
    assert routes.known() == [b"c", b"d"]
    assert routes.hear("B", {b"e": ("B",)}) == [b"e"]
    assert routes.known() == [b"c", b"d", b"e"]


def test_a_neighbour_that_is_gone_takes_its_services_along() -> None:
    routes = linked()
    routes.hear("B", {b"s": ("B",), b"t": ("B",)})
    routes.hear("C", {b"t": ("C",)})
    routes.updates("C")
    assert routes.down("B") == [b"s", b"t"]
    assert routes.down("B") == []
    assert (routes.best(b"s"), routes.best(b"t")) == (None, ("C",))
    assert routes.updates("C") == ({}, [b"s", b"t"])
    # When it comes back it knows nothing, and is told everything.
    routes.up("B")
    assert routes.updates("B") == ({b"t": ("A", "C")}, [])


def test_what_may_leave_and_what_may_enter() -> None:
    routes = Routes("A", 8, lambda service: service != b"secret", lambda service: service != b"spam")
    routes.up("B")
    routes.up("C")
    for service in (b"open", b"secret"):
        routes.offer(service, True)
    assert routes.hear("C", {b"spam": ("C",), b"tea": ("C",)}) == [b"tea"]
    assert routes.updates("B") == ({b"open": ("A",), b"tea": ("A", "C")}, [])


def test_a_broker_that_stops_takes_back_what_it_offered() -> None:
    routes = linked()
    routes.offer(b"own", True)
    routes.updates("B")
    routes.close()
    assert routes.updates("B") == ({}, [b"own"])
    assert routes.updates("C") == ({}, [])
    routes.offer(b"more", True)
    assert routes.updates("B") == ({}, [])


def test_what_a_neighbour_struck_from_its_list_is_told_again_if_it_is_true() -> None:
    routes = linked()
    routes.offer(b"own", True)
    routes.updates("B")
    routes.retell("B", b"own")
    routes.retell("nobody", b"own")
    assert routes.updates("B") == ({b"own": ("A",)}, [])
    routes.offer(b"own", False)
    routes.retell("B", b"own")
    assert routes.updates("B") == ({}, [])


def test_there_is_an_end_to_the_services_of_one_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert routes_module.SERVICES == 10_000
    monkeypatch.setattr(routes_module, "SERVICES", 2)
    routes = linked()
    assert routes.hear("B", dict.fromkeys((b"a", b"b", b"c"), ("B",))) == [b"a", b"b"]
    assert routes.neighbours["B"].ignored == 1
    # One that is known may change.
    assert routes.hear("B", {b"a": ("B", "X")}) == [b"a"]
    assert routes.hear("C", {b"c": ("C",)}) == [b"c"]
    assert routes.neighbours["C"].ignored == 0


def test_a_new_neighbour_knows_nothing_yet_and_is_to_be_told_everything() -> None:
    routes = linked()
    routes.offer(b"own", True)
    routes.hear("B", {b"far": ("B", "X")})
    neighbour = routes.up("D")
    assert neighbour is routes.neighbours["D"]
    assert (neighbour.heard, neighbour.told) == ({}, {})
    assert list(neighbour.dirty) == [b"own", b"far"]


def test_what_a_neighbour_was_told_is_not_looked_at_again() -> None:
    """Services come and go for as long as a broker runs: those of the past are not kept."""
    routes = linked()
    for number in range(10):
        routes.offer(b"%d" % number, True)
        routes.offer(b"%d" % number, False)
        assert routes.updates("B") == ({}, [])
        assert not routes.neighbours["B"].dirty
    assert len(routes.neighbours["C"].dirty) == 10, "it has not been told yet"


def test_who_offers_what_is_offered_already_gives_neighbours_nothing_to_be_told() -> None:
    routes = linked()
    for offered in (True, False):
        routes.offer(b"own", offered)
        routes.updates("B")
        routes.offer(b"own", offered)
        assert not routes.neighbours["B"].dirty
