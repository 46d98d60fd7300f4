"""Workers that go in good order: they get nothing more, and what they give back goes to others."""

from __future__ import annotations

import pytest

from polybus.core import events
from polybus.core.lifecycle import RequestState
from polybus.core.model import Worker
from support.invariants import check
from support.stage import Stage, worker


@pytest.fixture
def stage() -> Stage:
    return Stage()


def ready(stage: Stage, name: str, slots: int = 1) -> Worker:
    """A worker that grants its slots itself and has granted some."""
    known = stage.worker(name, grants_slots=True)
    for _ in range(slots):
        stage.do(events.Slot(worker(name), name))
    return known


def test_who_leaves_is_given_nothing_more(stage: Stage) -> None:
    ready(stage, "w", 2)
    ready(stage, "v", 2)
    stage.do(events.Leaving(worker("w")))
    for name in "123":
        stage.submit("c", name)
    assert stage.delivered() == [("v", "1"), ("v", "2")]
    assert stage.request("c", "3").state is RequestState.QUEUED
    check(stage.bus, stage.now)


def test_who_leaves_finishes_what_it_has(stage: Stage) -> None:
    ready(stage, "w", 2)
    stage.submit("c", "1")
    stage.do(events.Leaving(worker("w")))
    stage.result("w", stage.token("c", "1"))
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1")]
    check(stage.bus, stage.now)


@pytest.mark.parametrize("what", ["leaving", "returned", "returned what it does not have"])
def test_who_leaves_or_gives_something_back_is_there(stage: Stage, what: str) -> None:
    known = ready(stage, "w")
    stage.submit("c", "1")
    token = stage.token("c", "1") if what == "returned" else b"never heard of"
    stage.now += 5.0
    stage.do(events.Leaving(worker("w")) if what == "leaving" else events.Returned(worker("w"), token))
    assert known.seen_at == stage.now


def test_what_is_given_back_goes_to_somebody_else_and_costs_no_attempt(stage: Stage) -> None:
    ready(stage, "w")
    stage.submit("c", "1")
    ready(stage, "v")
    stage.do(events.Leaving(worker("w")))
    stage.do(events.Returned(worker("w"), stage.token("c", "1")))
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    assert stage.request("c", "1").attempt == 1
    check(stage.bus, stage.now)


def test_a_worker_whose_slots_the_broker_counts_does_not_leave_that_way(stage: Stage) -> None:
    stage.worker("w")
    stage.do(events.Leaving(worker("w")))
    stage.do(events.Leaving(worker("nobody")))
    stage.submit("c", "1")
    assert stage.delivered() == [("w", "1")]
