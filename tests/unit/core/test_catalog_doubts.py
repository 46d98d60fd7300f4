"""What becomes of a lease when a connection breaks, a question fails, or another connection speaks for it."""

from __future__ import annotations

from polybus.core import actions as act
from polybus.core import events
from polybus.core.lifecycle import NodeState
from polybus.core.model import Heartbeat
from support.stage import NEVER_DEAD, Stage

OUT = 9
ENDPOINT = "tcp://10.0.0.1:1"


def peer(name: str) -> tuple[int, bytes]:
    return (2, name.encode())


def dialled(name: str) -> events.WorkerUp:
    return events.WorkerUp((OUT, name.encode()), name, ((name.encode(), 0),), NEVER_DEAD, endpoint=ENDPOINT)


def talking(name: str, at: str) -> events.WorkerUp:
    return events.WorkerUp(peer(at), at, ((name.encode(), 0),), Heartbeat(4.0, 1.0))


def register(stage: Stage, name: str, at: str, serves: events.WorkerUp | None = None) -> None:
    facts = {"ip": "10.0.0.1", "port": 1}
    stage.do(events.Register(peer(at), at, name.encode(), facts, 1.0, serves=serves))
    stage.nothing()


def describe(stage: Stage, note: str) -> None:
    stage.do(events.UpdateNode(peer("stranger"), "stranger", b"n", {"note": note}))


def test_once_its_connection_is_known_to_be_closed_a_node_is_described_by_others_without_a_question() -> None:
    stage = Stage()
    register(stage, "n", "p")
    describe(stage, "first")
    assert stage.one(act.Ask).peer == peer("p")
    assert stage.bus.nodes[b"n"].info.get("note") is None, "nobody knows yet whether the connection is open"
    stage.do(events.Unasked(peer("p")))
    assert stage.one(act.Acknowledge).node == peer("stranger")
    assert stage.bus.nodes[b"n"].info["note"] == "first"
    describe(stage, "second")
    assert stage.one(act.Acknowledge).node == peer("stranger")
    assert not stage.actions(act.Ask)
    assert stage.bus.nodes[b"n"].info["note"] == "second"
    # It speaks for itself again: others are doubted again.
    stage.do(events.NodeBeat(peer("p"), "p", b"n"))
    describe(stage, "third")
    assert stage.one(act.Ask).peer == peer("p")
    assert stage.bus.nodes[b"n"].info["note"] == "second"


def test_a_worker_that_cannot_be_asked_is_gone_and_the_reason_is_told() -> None:
    stage = Stage()
    register(stage, "n", "p", talking("n", "p"))
    stage.do(events.Unasked(peer("p")))
    assert [(one.worker, one.reason) for one in stage.told("worker_down")] == [
        (peer("p"), "it cannot be reached")
    ]
    assert not stage.bus.workers


def test_a_new_connection_to_a_node_is_no_sign_of_life() -> None:
    stage = Stage()
    register(stage, "a", "one", dialled("a"))
    register(stage, "b", "two", dialled("b"))
    stage.wait(1.2)
    stage.do(events.NodeLeft(peer("one"), b"a"))
    assert stage.one(act.Dial).endpoint == ENDPOINT, "both had the same endpoint, so b is dialled anew"
    stage.wait(0.5)
    assert stage.bus.nodes[b"b"].state is NodeState.LATE
