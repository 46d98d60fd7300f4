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


def stranger_says_goodbye(stage: Stage) -> None:
    stage.do(events.NodeLeft((2, b"stranger"), b"n"))


def unplugged(heartbeat_s: float) -> Stage:
    """A node that is not called and whose registering connection is closed."""
    stage = registered(heartbeat_s, serves=False)
    stage.do(events.UpdateNode((2, b"stranger"), "stranger", b"n", {}))
    stage.do(events.Unasked((2, b"p")))
    stage.nothing()
    return stage


@pytest.mark.parametrize(("heartbeat_s", "questions"), [(0.0, 1), (1.0, 2), (5.0, 1)])
def test_who_says_goodbye_for_a_node_again_and_again_does_not_keep_it(
    heartbeat_s: float, questions: int
) -> None:
    stage = unplugged(heartbeat_s)
    for _ in range(12):
        stranger_says_goodbye(stage)
        stage.wait(0.2)
    assert not stage.bus.nodes
    assert stage.one(act.Forget).reason == "it left"
    # One for the goodbye, and one when a beat is missing.
    assert len(stage.actions(act.Ask)) == questions


def test_after_an_answer_another_goodbye_asks_again() -> None:
    stage = unplugged(5.0)
    for _ in range(3):
        stranger_says_goodbye(stage)
        line = stage.one(act.Ask).peer
        stage.wait(0.05)
        stage.do(events.Answered(line))
        stage.wait(0.05)
    assert b"n" in stage.bus.nodes


def test_goodbyes_that_a_node_answers_do_not_hold_up_our_datagrams() -> None:
    stage = unplugged(1.0)
    for number in range(50):
        if number % 5 == 0:
            stage.do(events.Pulse(b"n", ("10.0.0.1", 4000)))
        stage.wait(0.1)
        stranger_says_goodbye(stage)
        stage.wait(0.05)
        for question in stage.actions(act.Ask):
            stage.do(events.Answered(question.peer))
        stage.wait(0.05)
    assert 9 <= len(stage.actions(act.Beckon)) <= 11


def test_a_goodbye_for_a_node_without_heartbeats_counts_also_if_somebody_wants_its_name() -> None:
    stage = unplugged(0.0)
    stranger_says_goodbye(stage)
    serves = events.WorkerUp((2, b"q"), "q", ((b"n", 0),), Heartbeat(0.0, 0.0))
    stage.do(events.Register((2, b"q"), "q", b"n", {"ip": "10.0.0.1", "port": 1}, 0.0, serves=serves))
    assert not stage.actions(act.Approve), "the node is asked first"
    stage.wait(0.6)
    assert stage.one(act.Forget).reason == "it left"
    assert stage.one(act.Approve).node == (2, b"q")
