"""What an update of a node changes, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.ledger import NodeEntry, Registered
from polybus.core.model import Heartbeat, Reach
from polybus.core.tables import NO_STORE
from support.stage import NEVER_DEAD, Stage

PEER = (2, b"p")
HOME = ("10.0.0.1", 4000)
REACH = Reach((9, b"node:n"), "tcp://10.0.0.1:1", "reached")
MOVED = Reach((9, b"node:n"), "tcp://10.0.0.2:1", "reached")


def registered(**more: Any) -> Stage:
    stage = Stage()
    stage.bus.store_trouble = ""
    facts: dict[str, Any] = {"ip": "10.0.0.1", "reach": REACH, "how": "some.way", **more}
    stage.do(events.Register(PEER, "v", b"n", {"port": 1}, 1.0, **facts))
    written(stage)
    stage.nothing()
    return stage


def written(stage: Stage) -> list[Any]:
    number, lines = stage.bus.take_lines()
    stage.do(events.Written(number))
    return lines


def update(stage: Stage, **changes: Any) -> None:
    stage.do(events.UpdateNode(PEER, "v", b"n", **{"changes": {}, **changes}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"changes": {"port": 2, "x": "y"}}, {"info": {"port": 2, "x": "y"}}),
        ({"how": "other.way"}, {"how": "other.way"}),
        ({"heartbeat_s": 7.0}, {"heartbeat_s": 7.0, "quiet": False}),
        ({"heartbeat_s": 7.0, "quiet": True}, {"heartbeat_s": 7.0, "quiet": True}),
        ({"ip": "10.0.0.2", "reach": MOVED}, {"ip": "10.0.0.2", "reach": MOVED, "pulse_from": None}),
        ({"ip": "10.0.0.1", "reach": MOVED}, {"reach": MOVED, "pulse_from": None}),
        ({"ip": "10.0.0.1", "reach": REACH}, {}),
    ],
)
def test_an_update_changes_what_it_names_and_nothing_else(
    changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    stage = registered()
    stage.do(events.Pulse(b"n", HOME))
    node = stage.bus.nodes[b"n"]
    fields = ("info", "how", "heartbeat_s", "quiet", "ip", "reach", "pulse_from", "serves", "registered_at")
    before = {field: getattr(node, field) for field in fields}
    since = stage.now
    stage.now += 0.5
    update(stage, **changes)
    assert {field: getattr(node, field) for field in fields} == {**before, **expected}
    assert node.seen_at == stage.now
    info = msgspec.json.encode(node.info)
    assert written(stage) == [
        Registered(NodeEntry(b"n", info, node.heartbeat_s, node.how, stage.bus.wall_at(since)))
    ]
    assert stage.one(act.Acknowledge).name == b"n"


def test_a_node_that_moves_is_asked_at_its_new_place() -> None:
    stage = registered()
    stage.wait(1.6)
    old = stage.one(act.Ask).peer
    stage.nothing()
    update(stage, ip="10.0.0.2", reach=MOVED)
    assert stage.one(act.HangUp) == act.HangUp(old[1], REACH.endpoint)
    stage.wait(1.6)
    assert stage.one(act.Dial).endpoint == MOVED.endpoint


def test_a_longer_interval_holds_from_the_update_on() -> None:
    stage = registered(reach=None)
    update(stage, heartbeat_s=10.0)
    stage.wait(14.9)
    assert not stage.told("node_late")
    stage.wait(0.3)
    assert len(stage.told("node_late")) == 1


def up(credit: int = 1, endpoint: str = "", beat_s: float = 1.0) -> events.WorkerUp:
    heartbeat = NEVER_DEAD if endpoint else Heartbeat(4 * beat_s, beat_s)
    place = (9, b"n") if endpoint else PEER
    return events.WorkerUp(place, "v", ((b"n", 0),), heartbeat, credit, endpoint=endpoint)


def test_a_node_may_begin_to_serve_and_serve_otherwise() -> None:
    stage = registered()
    stage.submit("c", "1", "n")
    update(stage, serves=up())
    node = stage.bus.nodes[b"n"]
    first = node.worker
    assert first is not None
    assert stage.one(act.Deliver).worker is first
    # Another timing on the same connection is no new worker.
    update(stage, serves=up(beat_s=5.0))
    assert node.worker is first
    assert first.heartbeat == Heartbeat(20.0, 5.0)
    update(stage, serves=up(endpoint="tcp://10.0.0.1:7"))
    assert [one.reason for one in stage.told("worker_down")] == ["it is called in another way now"]
    assert node.worker is not None
    assert stage.one(act.Dial).endpoint == node.worker.endpoint == "tcp://10.0.0.1:7"
    assert stage.one(act.Deliver).worker is node.worker


def test_a_node_that_is_not_on_disk_yet_is_given_no_work_because_of_an_update() -> None:
    stage = Stage()
    stage.bus.store_trouble = ""
    stage.submit("c", "1", "n")
    stage.do(events.Register(PEER, "v", b"n", {}, 1.0))
    update(stage, serves=up())
    assert not stage.actions(act.Deliver)
    written(stage)
    assert len(stage.actions(act.Deliver)) == 1


def test_a_node_that_left_after_an_update_is_not_looked_at_any_more() -> None:
    stage = registered()
    stage.wait(0.5)
    update(stage, changes={"port": 2})
    stage.do(events.NodeLeft(PEER, b"n"))
    stage.nothing()
    stage.wait(10.0)
    assert stage.nothing()
    assert not stage.told("node_late")
    assert len(stage.told("node_down")) == 1


def test_without_a_store_an_update_is_not_written() -> None:
    stage = Stage()
    assert stage.bus.store_trouble == NO_STORE
    stage.do(events.Register(PEER, "v", b"n", {"port": 1}, 1.0))
    update(stage, changes={"port": 2})
    assert stage.one(act.Acknowledge).name == b"n"
    assert stage.bus.nodes[b"n"].info == {"port": 2}
    assert not stage.bus.lines


@pytest.mark.parametrize("endpoint", ["", "tcp://10.0.0.1:7"])
def test_an_update_of_the_description_leaves_alone_how_a_node_is_called(endpoint: str) -> None:
    serves = up(endpoint=endpoint)
    stage = registered(serves=serves)
    node = stage.bus.nodes[b"n"]
    called = node.worker
    assert called is not None
    update(stage, changes={"note": "x"})
    assert (node.info["note"], node.serves, node.worker) == ("x", serves, called)
    stage.submit("c", "1", "n")
    assert stage.one(act.Deliver).worker is called


def test_all_that_an_update_lacks_is_told() -> None:
    stage = registered()
    update(stage, missing=("no port", "no ip"))
    assert stage.one(act.Deny).reasons == ("no port", "no ip")
    assert [one.reason for one in stage.told("denied")] == ["no port; no ip"]
