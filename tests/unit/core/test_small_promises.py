"""Promises of the core that are kept in one line each."""

from __future__ import annotations

import pytest

from polybus.core.actions import Dismiss
from polybus.core.bridging import Advertise
from polybus.core.ledger import Attempt
from polybus.core.model import JobOptions
from polybus.dialects.emqp import Emqp
from polybus.dialects.port import RouterEar
from support.bridges import World
from support.exchange import Exchange
from support.stage import LedgerStage


@pytest.mark.parametrize("delay_s", [0.0, 60.0])
def test_a_job_is_written_with_the_time_at_which_it_is_due(delay_s: float) -> None:
    stage = LedgerStage()
    stage.bus.wall_offset = 1_000_000.0
    more = {"delay_s": delay_s} if delay_s else {}
    stage.job("one", guarantee=True, **more)
    stage.write()
    (job,) = stage.contents().jobs
    due_at = stage.bus.wall_at(stage.now + delay_s) if delay_s else 0.0
    assert job.due_at == pytest.approx(due_at, abs=0.1)


def test_neighbours_are_told_what_changed_when_it_is_time_and_not_before() -> None:
    world = World()
    b = world.broker("B")
    world.broker("A", peers=["B"])
    world.wait(1.0)
    bridging = b.bus.bridging
    assert bridging is not None
    b.worker("w", "echo")
    assert bridging.next_at > world.now
    bridging.tick(world.now)
    assert not [action for action in b.bus.actions if isinstance(action, Advertise)]
    bridging.tick(bridging.next_at)
    assert [action.offers for action in b.bus.actions if isinstance(action, Advertise)] == [{b"echo": ("B",)}]


def test_a_client_is_not_taken_for_a_worker_that_was_forgotten() -> None:
    ex = Exchange()
    emqp = Emqp(ex.bus, wall=lambda: 0.0)
    ear = RouterEar(ex.bus, "emqp", emqp.client_tags)
    ear.receive(1, [b"c", b"", b"eMQP/1.0", b"REQUEST", b"job", b"default", b"", b"x"], ex.now)
    assert not [action for action in ex.bus.take() if isinstance(action, Dismiss)]


def test_a_history_has_at_most_a_hundred_entries() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=1000, backoff_s=0.01))
    request = stage.request("c", "1")
    before = tuple(Attempt(number, 0.0, "w", "failed", "") for number in range(1, 101))
    request.history = before
    stage.fail("w", request.token)
    assert len(request.history) == 100
    assert (request.history[-1].number, request.history[-1].detail) == (1, "it broke")
