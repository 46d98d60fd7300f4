"""What must not cost more with everything else that waits: it is done again and again."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events, holders, requests
from polybus.core.model import Heartbeat, JobOptions
from support.stage import Stage


def test_a_tick_looks_at_no_call_behind_the_first_that_is_not_due() -> None:
    looked_at: list[Any] = []

    class Waiting:
        @property
        def expires_at(self) -> float:
            looked_at.append(self)
            return 2000.0

    stage = Stage()
    waiting: Any = {b"%d" % number: Waiting() for number in range(100)}
    stage.bus.prompt.update(waiting)
    stage.do(events.Tick())
    assert looked_at == [waiting[b"0"]]


@pytest.mark.parametrize("oldest_first", [True, False])
def test_to_drain_each_job_is_looked_at_a_few_times(
    monkeypatch: pytest.MonkeyPatch, oldest_first: bool
) -> None:
    looks = 0
    holds_up = requests._holds_up

    def counted(request: Any) -> bool:
        nonlocal looks
        looks += 1
        return holds_up(request)

    monkeypatch.setattr(requests, "_holds_up", counted)
    stage = Stage()
    stage.worker("w", credit=100)
    for number in range(100):
        stage.submit("c", str(number), options=JobOptions(retries=1))
    tokens = [stage.token("c", str(number)) for number in range(100)]
    stage.do(events.Drain())
    for token in tokens if oldest_first else reversed(tokens):
        assert not stage.actions(act.Drained)
        stage.result("w", token)
    assert stage.one(act.Drained)
    assert looks <= 500


def test_what_all_workers_held_is_not_looked_through_for_each_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is for those that forget what they are told to stop; the others have what they are known for."""
    asked: list[Any] = []
    monkeypatch.setattr(holders, "forget_stopped", lambda bus, worker: asked.append(worker))
    stage = Stage()
    for number in range(10):
        stage.worker(str(number), heartbeat=Heartbeat(1.0))
        stage.submit("c", str(number))
    stage.wait(2.0)
    assert len(stage.bus.silent) == len(stage.bus.holders) == 10
    assert not asked
