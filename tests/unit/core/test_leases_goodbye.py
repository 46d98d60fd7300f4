"""A goodbye from another connection: the node is asked, stays if it answers, and leaves soon if not."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.leases import ANSWER_S, NOTICE_S, say_goodbye
from polybus.core.model import Heartbeat, Reach
from support.stage import Stage

REACH = Reach((9, b"node:n"), "tcp://10.0.0.1:1", "reached")


def registered(heartbeat_s: float, serves: bool = True) -> Stage:
    stage = Stage()
    facts: dict[str, Any] = {"ip": "10.0.0.1", "reach": REACH, "how": "some.way"}
    if serves:
        facts["serves"] = events.WorkerUp((2, b"p"), "v", ((b"n", 0),), Heartbeat(0.0, 0.0))
    info = {"ip": "10.0.0.1", "port": 1}
    stage.do(events.Register((2, b"p"), "v", b"n", info, heartbeat_s, **facts))
    stage.nothing()
    return stage


def goodbye(stage: Stage) -> None:
    say_goodbye(stage.bus, stage.bus.nodes[b"n"], stage.now)
    stage._collect()


@pytest.mark.parametrize("heartbeat_s", [0.0, 5.0])
def test_who_does_not_answer_is_gone_after_the_time_for_an_answer(heartbeat_s: float) -> None:
    stage = registered(heartbeat_s)
    goodbye(stage)
    assert stage.actions(act.Ask)
    limit_s = ANSWER_S if heartbeat_s else NOTICE_S
    stage.wait(limit_s - 0.1)
    assert b"n" in stage.bus.nodes
    stage.wait(0.1 + NOTICE_S + 0.1)
    assert b"n" not in stage.bus.nodes
    assert stage.one(act.Forget).reason == "it left"


@pytest.mark.parametrize("heartbeat_s", [0.0, 5.0])
def test_who_answers_stays(heartbeat_s: float) -> None:
    stage = registered(heartbeat_s)
    goodbye(stage)
    stage.wait(0.1)
    stage.do(events.Heard((2, b"p"), "v"))
    stage.wait(4.0)
    assert b"n" in stage.bus.nodes
    assert stage.bus.nodes[b"n"].goodbye_at == 0.0


def test_who_has_work_is_not_sent_away_by_another_connection() -> None:
    stage = registered(5.0)
    stage.submit("c", "1", "n")
    assert stage.bus.nodes[b"n"].worker is not None
    goodbye(stage)
    stage.wait(4.0)
    assert b"n" in stage.bus.nodes


def test_while_a_goodbye_waits_for_an_answer_the_node_is_looked_at_a_few_times_a_second() -> None:
    stage = registered(5.0)
    goodbye(stage)
    looks = 0
    for _ in range(20):
        before = stage.bus.nodes[b"n"].slot
        stage.wait(0.05)
        looks += stage.bus.nodes[b"n"].slot != before
    # Every quarter of a second, and not with every tick of the clock.
    assert 3 <= looks <= 5


def test_who_has_no_work_any_more_leaves_then() -> None:
    stage = Stage()
    serves = events.WorkerUp((2, b"p"), "v", ((b"n", 0),), Heartbeat(0.0, 0.0), forgets_stopped=True)
    stage.do(events.Register((2, b"p"), "v", b"n", {}, 0.0, serves=serves, ip="10.0.0.1", reach=REACH))
    stage.submit("c", "1", "n", ttl_s=2.0)
    goodbye(stage)
    stage.wait(1.9)
    assert b"n" in stage.bus.nodes
    # The request expires, and its worker forgets what it is told to stop.
    stage.wait(0.6)
    assert stage.one(act.Forget).reason == "it left"
