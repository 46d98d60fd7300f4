"""Neighbours as the core sees them, without dialects: rosters, refusals, links that break."""

from __future__ import annotations

from polybus.core.bridging import Bridging
from support.stage import Stage


def bridged(name: str = "A") -> Stage:
    stage = Stage()
    stage.bus.bridging = Bridging(stage.bus, name)
    return stage


def test_a_worker_of_a_bridged_broker_is_announced_before_it_is_given_work() -> None:
    stage = bridged()
    stage.submit("c", "1")
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]
    whats = [one.what for one in stage.observed]
    assert whats.index("worker_up") < whats.index("dispatched")
