"""Questions to nodes and datagrams to them: when they are sent, over which connection, and what ends them."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events, leases
from polybus.core.leases import ANSWER_S
from polybus.core.model import Heartbeat, Reach
from support.stage import NEVER_DEAD, Stage

OUT = 9
PEER = (2, b"p")
HOME = ("10.0.0.1", 4000)
REACH = Reach((OUT, b"node:n"), "tcp://10.0.0.1:1", "reached")
TALKING = events.WorkerUp(PEER, "v", ((b"n", 0),), Heartbeat(40.0, 1.0))
DIALLED = events.WorkerUp((OUT, b"n"), "v", ((b"n", 0),), NEVER_DEAD, 7, endpoint="tcp://10.0.0.1:2")


def registered(heartbeat_s: float = 1.0, **more: Any) -> Stage:
    stage = Stage()
    facts: dict[str, Any] = {"ip": "10.0.0.1", "reach": REACH, "how": "some.way", **more}
    stage.do(events.Register(PEER, "v", b"n", {"ip": "10.0.0.1", "port": 1}, heartbeat_s, **facts))
    stage.nothing()
    return stage


def pulse(stage: Stage) -> None:
    stage.do(events.Pulse(b"n", HOME))


def test_a_node_whose_conversation_is_lost_is_told_so_when_it_does_not_answer_at_its_address() -> None:
    stage = registered(serves=TALKING)
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    asked_at, hung_up_at = 0.0, 0.0
    ended = []
    for number in range(120):
        if number % 5 == 0:
            pulse(stage)
        stage.wait(0.05)
        for action in stage.taken:
            if isinstance(action, act.Ask) and not asked_at:
                assert action.voice == "reached"
                asked_at = stage.now
            elif isinstance(action, act.HangUp) and not hung_up_at:
                hung_up_at = stage.now
            elif isinstance(action, act.Beckon):
                ended.append((asked_at > 0 and stage.now - asked_at >= ANSWER_S, action.ended))
        stage.nothing()
    assert asked_at
    assert [said for _, said in ended] == [expected for expected, _ in ended]
    assert {said for _, said in ended} == {False, True}
    assert hung_up_at - asked_at == pytest.approx(ANSWER_S, abs=1.1)
    assert hung_up_at - asked_at >= ANSWER_S - 0.01
    assert b"n" in stage.bus.nodes


def test_a_node_without_an_address_is_told_at_once_that_its_conversation_is_lost() -> None:
    stage = registered(serves=TALKING, reach=None)
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    pulse(stage)
    stage.wait(0.1)
    assert stage.one(act.Beckon).ended
    assert not stage.actions(act.Ask)


def test_when_our_datagrams_cease_the_conversation_is_spoken_in_half_an_interval_later() -> None:
    stage = registered(serves=TALKING)
    last_beckon, beats = 0.0, []
    for number in range(200):
        if number < 60 and number % 20 == 0:
            pulse(stage)
        if number % 10 == 0:
            stage.do(events.Heard(PEER, "v"))
        stage.wait(0.05)
        if stage.actions(act.Beckon):
            last_beckon = stage.now
        beats += [stage.now for _ in stage.actions(act.Beat)]
    assert beats[0] > last_beckon, "a datagram is enough"
    assert beats[0] - last_beckon == pytest.approx(1.5, abs=0.15)


def test_a_node_that_is_dialled_and_answers_a_question_is_called_as_it_registered() -> None:
    stage = registered(serves=DIALLED)
    lost = stage.bus.nodes[b"n"].worker
    assert lost is not None
    stage.do(events.WorkerGone(lost.address, "it cannot be reached"))
    stage.wait(1.6)
    question = stage.one(act.Ask)
    stage.nothing()
    stage.do(events.Answered(question.peer))
    node = stage.bus.nodes[b"n"]
    assert node.serves is DIALLED
    assert node.line == question.peer, "the connection is kept for the next question"
    assert stage.nothing()
    stage.do(events.NodeBeat(PEER, "v", b"n"))
    assert stage.one(act.Dial).endpoint == DIALLED.endpoint
    assert node.worker is not None
    assert node.worker.credit == 7


def test_a_mute_node_that_answers_at_its_address_is_called_there_with_one_request_at_a_time() -> None:
    stage = registered(serves=TALKING)
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    stage.wait(1.6)
    question = stage.actions(act.Ask)[0]
    stage.nothing()
    stage.do(events.Answered(question.peer))
    node = stage.bus.nodes[b"n"]
    assert node.worker is not None
    assert (node.worker.endpoint, node.worker.voice, node.worker.credit) == (REACH.endpoint, "reached", 1)
    assert node.worker.heartbeat.dead_after_s == 0.0, "its lease is watched, not its connection"
    assert (node.line, node.asked_since) == (None, 0.0)
    assert not stage.bus.catalog.lines
    for request_id in ("1", "2"):
        stage.submit("c", request_id, "n")
    assert len(stage.actions(act.Deliver)) == 1


def test_a_datagram_that_leaves_late_does_not_put_off_those_after_it() -> None:
    stage = registered(serves=TALKING)
    pulse(stage)
    stage.wait(0.1)
    stage.actions(act.Beckon)
    for _ in range(20):
        # The broker looks at its timers every 0.3 seconds only.
        stage.wait(3.0, step=0.3)
        pulse(stage)
    assert 58 <= len(stage.actions(act.Beckon)) <= 61
    # After a long standstill none is made up for.
    stage.now += 2.5
    pulse(stage)
    stage.wait(0.5)
    assert len(stage.actions(act.Beckon)) == 1
    stage.wait(0.9)
    assert len(stage.actions(act.Beckon)) == 1


def two_nodes() -> tuple[Stage, dict[bytes, tuple[int, bytes]]]:
    """Two nodes at one address that were asked, and the connections of the questions."""
    stage = Stage()
    for name in (b"a", b"b"):
        stage.do(events.Register((2, name), "v", name, {}, 1.0, ip="10.0.0.1", reach=REACH))
    stage.wait(1.6)
    assert len(stage.actions(act.Dial)) == 2
    lines = {ask.name: ask.peer for ask in stage.actions(act.Ask)}
    stage.nothing()
    return stage, lines


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_connection_that_is_not_needed_now_is_kept_for_the_next_question(is_closed: bool) -> None:
    stage, lines = two_nodes()
    if is_closed:
        stage.do(events.Unasked(lines[b"a"]))
    else:
        stage.do(events.Pulse(b"a", HOME))
        stage.do(events.Answered(lines[b"b"]))
        stage.wait(0.2)
    assert not stage.actions(act.HangUp), "that would close the other one's connection"
    assert set(stage.bus.catalog.lines) == {lines[b"b"]}
    assert stage.bus.catalog.lines_at == {REACH.endpoint: 1}
    stage.nothing()
    stage.wait(1.6)
    asked = {ask.name: ask.peer for ask in stage.actions(act.Ask)}
    assert asked[b"b"] == lines[b"b"]
    assert (asked[b"a"] == lines[b"a"]) is not is_closed
    assert len(stage.actions(act.Dial)) == (1 if is_closed else 0)
    stage.wait(5.0)
    assert not stage.bus.nodes
    assert len(stage.actions(act.HangUp)) == 1, "the last one closes them all"
    assert (stage.bus.catalog.lines, stage.bus.catalog.spare) == ({}, {})
    assert not stage.bus.catalog.lines_at


def test_a_goodbye_waits_until_the_node_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LINES", 0)
    stage = registered(5.0)
    leases.say_goodbye(stage.bus, stage.bus.nodes[b"n"], stage.now)
    stage.wait(4.0)
    assert b"n" in stage.bus.nodes, "no connection was free for the question"
    assert not stage.actions(act.Ask)
    monkeypatch.setattr(leases, "LINES", 2)
    stage.wait(0.6)
    assert stage.one(act.Ask).voice == "reached"
    stage.wait(ANSWER_S - 0.6)
    assert b"n" in stage.bus.nodes
    stage.wait(1.0)
    assert stage.one(act.Forget).reason == "it left"


def test_beyond_half_of_the_connections_an_answer_closes_the_one_that_it_came_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "LINES", 4)
    stage = Stage()
    for name in (b"a", b"b", b"c"):
        reach = Reach((OUT, name), f"tcp://{name.decode()}:1", "reached")
        stage.do(events.Register((2, name), "v", name, {}, 1.0, ip="10.0.0.1", reach=reach))
    stage.wait(1.6)
    first, *others = [ask.peer for ask in stage.actions(act.Ask)]
    stage.nothing()
    stage.do(events.Answered(first))
    assert stage.one(act.HangUp).identity == first[1]
    for line in others:
        stage.do(events.Answered(line))
    assert not stage.actions(act.HangUp), "two of four are kept"
    assert set(stage.bus.catalog.lines) == set(others)


def test_a_mute_node_that_could_not_be_asked_yet_is_not_told_that_its_conversation_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "LINES", 0)
    stage = registered(serves=TALKING)
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    for _ in range(5):
        pulse(stage)
        stage.wait(1.0)
    beckons = stage.actions(act.Beckon)
    assert len(beckons) >= 4
    assert not any(beckon.ended for beckon in beckons)
    assert not stage.actions(act.Ask)


def test_a_node_that_left_is_not_looked_at_any_more() -> None:
    stage = registered(60.0)
    stage.wait(5.0)
    pulse(stage)
    stage.wait(0.2)
    assert stage.one(act.Beckon)
    stage.do(events.NodeLeft(PEER, b"n"))
    stage.nothing()
    stage.wait(600.0, step=1.0)
    assert stage.nothing()
    assert not stage.told("node_late")
    assert len(stage.told("node_down")) == 1


def test_nodes_without_heartbeats_do_not_hasten_the_broadcast() -> None:
    stage = Stage()
    stage.bus.catalog.broadcasts = True
    stage.do(events.Register((2, b"a"), "v", b"a", {}, 0.0))
    stage.wait(5.0)
    assert not stage.actions(act.BroadcastBeat)
    stage.do(events.Register((2, b"b"), "v", b"b", {}, 60.0))
    stage.wait(59.0, step=0.5)
    assert len(stage.actions(act.BroadcastBeat)) == 1
