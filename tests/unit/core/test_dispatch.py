"""Who gets the next request: weight, then load, then the least recently used; slots; fairness."""

from __future__ import annotations

import pytest

from polybus.core import events, requests
from polybus.core.lifecycle import WorkerState
from support.stage import NEVER_DEAD, Stage, worker


def test_the_least_recently_used_is_next() -> None:
    stage = Stage()
    for name in "abc":
        stage.worker(name)
    for number in "1234":
        stage.submit("c", number)
        stage.result(stage.delivered()[0][0])
    order = [record.worker[1] for record in stage.told("dispatched") if record.worker]
    assert order == [b"a", b"b", b"c", b"a"]


def test_the_least_loaded_is_next() -> None:
    stage = Stage()
    stage.worker("a", credit=3)
    stage.worker("b", credit=3)
    for number in "1234":
        stage.submit("c", number)
    assert [name for name, _ in stage.delivered()] == ["a", "b", "a", "b"]
    stage.result("b")
    stage.result("b")
    stage.submit("c", "5")
    assert stage.delivered() == [("b", "5")]


def test_the_heaviest_is_next_as_long_as_it_has_slots() -> None:
    stage = Stage()
    stage.worker("light", weight=1, credit=5)
    stage.worker("heavy", weight=9, credit=2)
    for number in "123":
        stage.submit("c", number)
    assert [name for name, _ in stage.delivered()] == ["heavy", "heavy", "light"]


def test_a_free_worker_takes_its_heaviest_queue_first_and_equal_ones_in_turn() -> None:
    stage = Stage()
    for number, service in enumerate(("low", "low", "a", "a", "b", "b")):
        stage.submit("c", f"{service}{number}", service)
    offers = ((b"low", 1), (b"a", 5), (b"b", 5))
    stage.do(events.WorkerUp(worker("w"), None, offers, NEVER_DEAD, credit=6))
    assert [number for _, number in stage.delivered()] == ["a2", "b4", "a3", "b5", "low0", "low1"]


def test_after_ten_of_the_heaviest_comes_one_of_a_lighter_queue() -> None:
    stage = Stage()
    for number in range(25):
        stage.submit("c", f"heavy{number}", "heavy")
    for number in range(3):
        stage.submit("c", f"light{number}", "light")
    stage.do(events.WorkerUp(worker("w"), None, ((b"heavy", 5), (b"light", 1)), NEVER_DEAD, credit=28))
    names = [name.rstrip("0123456789") for _, name in stage.delivered()]
    ten = ["heavy"] * 10
    assert names == [*ten, "light", *ten, "light", *["heavy"] * 5, "light"]


@pytest.mark.parametrize("alone", range(8, 15))
def test_only_what_passes_over_a_lighter_queue_counts(alone: int) -> None:
    stage = Stage()
    stage.do(events.WorkerUp(worker("w"), None, ((b"heavy", 5), (b"light", 1)), NEVER_DEAD, credit=1))
    # Nobody waits for the lighter service yet.
    for number in range(alone):
        stage.submit("c", f"alone{number}", "heavy")
    for _ in range(alone - 1):
        stage.result("w")
    stage.delivered()
    stage.submit("c", "light", "light")
    stage.submit("c", "heavy", "heavy")
    stage.result("w")
    assert stage.delivered() == [("w", "heavy")]


def test_credit_is_respected() -> None:
    stage = Stage()
    held = stage.worker("w", credit=2)
    for number in "123":
        stage.submit("c", number)
    assert len(stage.delivered()) == 2
    assert (held.free, len(held.inflight)) == (0, 2)


def test_a_worker_that_grants_slots_gets_as_many_as_it_grants() -> None:
    stage = Stage()
    held = stage.worker("w", credit=7, grants_slots=True)
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.nothing()
    stage.do(events.Slot(worker("w"), None))
    assert stage.delivered() == [("w", "1")]
    stage.result("w")
    assert stage.delivered() == [], "an answer is no slot"
    stage.do(events.Slot(worker("w"), None))
    assert stage.delivered() == [("w", "2")]
    assert held.free == 0


def test_credit_is_shared_by_all_services_of_a_worker() -> None:
    stage = Stage()
    stage.worker("w", "a", "b", credit=1)
    stage.worker("x", "b", credit=1)
    stage.submit("c", "1", "a")
    stage.submit("c", "2", "b")
    stage.submit("c", "3", "b")
    assert stage.delivered() == [("w", "1"), ("x", "2")]
    stage.result("w")
    assert stage.delivered() == [("w", "3")]


def test_one_more_service() -> None:
    stage = Stage()
    stage.worker("w", "a", credit=1)
    stage.submit("c", "1", "b")
    stage.do(events.Offer(worker("w"), None, b"b", 3))
    assert stage.delivered() == [("w", "1")]
    assert stage.bus.services[b"b"].roster.members[stage.bus.workers[worker("w")]] == 3


def test_clients_are_served_in_turn() -> None:
    stage = Stage()
    for number in range(5):
        stage.submit("greedy", f"g{number}")
    stage.submit("modest", "m")
    stage.worker("w", credit=2)
    assert [number for _, number in stage.delivered()] == ["g0", "m"]


def test_only_who_offers_a_service_gets_its_requests() -> None:
    stage = Stage()
    stage.worker("w", "other", credit=9)
    stage.submit("c", "1")
    assert stage.nothing()


def test_a_resting_worker_gets_one_request_for_each_answer_of_a_message() -> None:
    stage = Stage()
    held = stage.worker("w", grants_slots=True)
    for number in range(10):
        stage.do(events.Slot(worker("w"), "w"))
        stage.submit("c", str(number))
    for number in (9, 8, 7):
        stage.do(events.WorkerFull(worker("w"), stage.token("c", str(number))))
    assert (held.state, held.free) == (WorkerState.CONGESTED, 3)
    for number in (10, 11, 12):
        stage.submit("c", str(number))
    stage.delivered()
    for number in (0, 1):
        requests.finish(stage.bus, worker("w"), stage.token("c", str(number)), [b"done"], stage.now, True)
    requests.give_slots(stage.bus, worker("w"), 2, stage.now)
    stage.do(events.Tick())
    assert stage.delivered() == [("w", "7"), ("w", "8")]
