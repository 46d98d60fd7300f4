"""The workers of a service: who shares it with others, and how a service looks that some of them serve."""

from __future__ import annotations

import pytest

from polybus.core.ledger import HISTORY, Attempt, shortened
from polybus.core.model import Heartbeat, JobOptions, Reason
from polybus.core.records import Roster, Worker
from polybus.core.views import state_of
from support.stage import LedgerStage, Stage


def test_a_worker_counts_the_services_that_it_shares() -> None:
    stage = Stage()
    w = stage.worker("w", "a", "b", "c")
    assert w.contested == 0
    v = stage.worker("v", "a", "b")
    assert (w.contested, v.contested) == (2, 2)
    u = stage.worker("u", "b")
    assert (w.contested, v.contested, u.contested) == (2, 2, 1)
    stage.gone("v")
    assert (w.contested, u.contested) == (1, 1)
    stage.gone("u")
    assert w.contested == 0
    again = stage.worker("v", "a")
    assert (w.contested, again.contested) == (1, 1)
    stage.gone("w")
    assert again.contested == 0


def test_weights_that_nobody_has_any_more_are_forgotten() -> None:
    """Workers choose their weights. Every one that is left behind would be looked at for every request."""
    stage = Stage()
    stage.worker("v", "a", weight=0)
    for weight in range(1, 1000):
        stage.worker("w", "a", weight=weight)
    roster = stage.bus.services[b"a"].roster
    assert sorted(roster._tiers) == [0, 999]
    for name in ("v", "w"):
        stage.gone(name)
    assert not roster._tiers


@pytest.mark.parametrize(
    ("silences", "silent", "state"),
    [
        ([], 0, "unserved"),
        ([], 1, "silent"),
        ([0.0], 0, "alive"),
        ([50.0], 0, "late"),
        ([0.0, 50.0], 0, "alive"),
        ([50.0, 50.0], 1, "late"),
        ([50.0, 50.0, 0.0], 1, "alive"),
    ],
)
def test_a_service_is_late_if_all_of_its_workers_are(silences: list[float], silent: int, state: str) -> None:
    stage = Stage()
    workers = []
    for number, silence_s in enumerate(silences):
        held = stage.worker(str(number), heartbeat=Heartbeat(dead_after_s=100.0, beat_every_s=10.0))
        held.seen_at = stage.now - silence_s
        workers.append(held)
    assert state_of(workers, stage.now, silent) == state


def test_losses_of_workers_are_never_left_out_of_a_history() -> None:
    lost = tuple(Attempt(number, 0.0, "w", Reason.WORKER_LOST, "") for number in range(1, HISTORY + 3))
    assert shortened(lost) == lost


def test_options_that_the_broker_does_not_know_go_with_a_job_to_its_worker() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.call("c", "1", "submit", b'{"service":"echo","id":"j"}\nwork', options=JobOptions(other=("x-y",)))
    assert stage.job_request("j").options.other == ("x-y",)
    stage.job("k")
    assert stage.job_request("k").options.other == ()


def members(count: int) -> tuple[Roster, list[Worker]]:
    """Workers of one service, all of the same weight."""
    roster = Roster()
    made = [Worker((2, b"%d" % number), None, Heartbeat(0.0), 1, False, 0.0) for number in range(count)]
    for one in made:
        roster.add(one, 1)
    return roster, made


def test_who_left_is_not_chosen_and_shares_nothing() -> None:
    roster, (first, second, third) = members(3)
    assert roster.best() is first
    roster.discard(first)
    assert first.contested == 0
    assert roster.best() is second
    roster.discard(second)
    assert (second.contested, third.contested) == (0, 0)
    assert roster.best() is third
    roster.discard(third)
    assert third.contested == 0
    assert roster.best() is None


def test_who_is_added_again_has_its_new_weight_and_counts_once() -> None:
    roster, (first, second, third) = members(3)
    roster.add(second, 5)
    assert [one.contested for one in (first, second, third)] == [1, 1, 1]
    assert roster.best() is second
    roster.add(second, 0)
    assert roster.best() is first
    second.free = 0
    roster.refile(second)
    roster.add(third, 9)
    assert roster.best() is third
    assert sorted(roster._tiers) == [0, 1, 9]


def test_with_a_single_worker_nothing_is_filed() -> None:
    roster, (first, second) = members(2)
    assert set(roster._filed) == {first, second}
    roster.discard(first)
    assert not roster._filed
    roster.refile(second)
    assert not roster._filed
    assert roster.best() is second
