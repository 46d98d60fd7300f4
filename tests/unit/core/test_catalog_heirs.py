"""Who registers the node of another one, and what it may do with the name then."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events
from polybus.core.lifecycle import WorkerState
from polybus.core.model import Heartbeat, QueuePolicy, Reach
from support.stage import NEVER_DEAD, Stage

OUT = 9
IP = "10.0.0.1"
ENDPOINT = "tcp://10.0.0.1:1"


def peer(name: str) -> tuple[int, bytes]:
    return (2, name.encode())


def dialled(endpoint: str = ENDPOINT) -> events.WorkerUp:
    return events.WorkerUp((OUT, b"n"), "n", ((b"n", 0),), NEVER_DEAD, endpoint=endpoint)


def talking(at: str) -> events.WorkerUp:
    return events.WorkerUp(peer(at), at, ((b"n", 0),), Heartbeat(4.0, 1.0))


def register(
    stage: Stage,
    at: str,
    serves: events.WorkerUp | None = None,
    heartbeat_s: float = 1.0,
    how: str = "how",
    ip: str = IP,
    **facts: Any,
) -> None:
    info = {"ip": IP, "port": 1, "heartbeat_s": heartbeat_s, **facts}
    reach = Reach((OUT, b"n"), ENDPOINT, "n")
    stage.do(events.Register(peer(at), at, b"n", info, heartbeat_s, (), serves, how, ip, reach))


def move(stage: Stage, at: str) -> None:
    stage.do(events.UpdateNode(peer(at), at, b"n", {"port": 6}, moves=True))


def inherited(serves: events.WorkerUp | None = None, heartbeat_s: float = 1.0) -> Stage:
    """A node that closed its registering connection, and another connection that registered it again."""
    stage = Stage()
    register(stage, "first", serves, heartbeat_s)
    register(stage, "heir", serves, heartbeat_s)
    stage.nothing()
    stage.do(events.Unasked(peer("first")))
    assert stage.one(act.Approve).node == peer("heir")
    stage.nothing()
    return stage


def pulse(stage: Stage) -> None:
    stage.do(events.Pulse(b"n", (IP, 4000)))


@pytest.mark.parametrize("serves", [None, dialled()])
def test_while_the_registering_connection_is_open_the_node_keeps_its_name(
    serves: events.WorkerUp | None,
) -> None:
    stage = Stage()
    register(stage, "first", serves, 60.0)
    stage.nothing()
    register(stage, "second", serves, 60.0)
    assert stage.one(act.Ask).peer == peer("first")
    assert not stage.actions(act.Deny)
    # One message at a time is looked into.
    register(stage, "third", serves, 60.0)
    denied = stage.one(act.Deny)
    assert denied.node == peer("third")
    assert "the broker is finding out whether that one is open" in denied.reasons[0]
    stage.wait(0.6)
    denied = stage.one(act.Deny)
    assert denied.node == peer("second")
    assert denied.reasons[0].endswith("that one is open")
    assert stage.bus.nodes[b"n"].address == peer("first")
    assert stage.bus.counters.rejected == 2


def test_who_asked_for_the_name_of_a_node_that_left_meanwhile_has_it() -> None:
    stage = Stage()
    register(stage, "first")
    register(stage, "second")
    stage.nothing()
    stage.do(events.NodeLeft(peer("first"), b"n"))
    stage.wait(0.4)
    assert stage.one(act.Approve).node == peer("second")
    assert not stage.bus.nodes[b"n"].inherited


@pytest.mark.parametrize(
    "changes",
    [
        {"serves": None},
        {"serves": talking("second")},
        {"serves": dialled("tcp://10.0.0.1:2")},
        {"how": "other"},
        {"ip": "10.0.0.2"},
        {"interfaces": {"pub": 1}},
    ],
)
def test_who_would_move_a_living_node_waits_until_the_node_was_asked(changes: dict[str, Any]) -> None:
    stage = Stage()
    register(stage, "first", dialled())
    stage.nothing()
    register(stage, "second", **{"serves": dialled(), **changes})
    stage.do(events.Unasked(peer("first")))
    assert not stage.actions(act.Approve)
    assert [ask.peer[0] for ask in stage.actions(act.Ask)] == [2, OUT]
    stage.wait(0.1)
    pulse(stage)
    stage.wait(0.4)
    assert "is taken by a node that is alive" in stage.one(act.Deny).reasons[0]
    # Another time nobody speaks up.
    register(stage, "second", **{"serves": dialled(), **changes})
    stage.wait(1.3)
    assert not stage.actions(act.Approve)
    stage.wait(1.0)
    assert stage.one(act.Approve).node == peer("second")
    assert not stage.bus.nodes[b"n"].inherited


def test_who_owns_a_node_registers_it_as_it_likes() -> None:
    stage = Stage()
    register(stage, "first", dialled())
    register(stage, "first", None, port=2)
    assert len(stage.actions(act.Approve)) == 2
    assert not stage.bus.workers
    assert not stage.bus.nodes[b"n"].inherited


def test_a_node_without_heartbeats_has_two_seconds_to_keep_its_name() -> None:
    stage = Stage()
    register(stage, "first", dialled(), 0.0)
    stage.do(events.UpdateNode(peer("other"), "other", b"n", {}))
    stage.do(events.Unasked(peer("first")))
    stage.nothing()
    register(stage, "second", None, 0.0)
    stage.wait(1.9)
    assert not stage.actions(act.Approve)
    stage.wait(0.5)
    assert stage.one(act.Approve).node == peer("second")


def test_an_heir_describes_the_node_and_keeps_it_alive() -> None:
    stage = inherited()
    for _ in range(8):
        stage.wait(0.9)
        stage.do(events.NodeBeat(peer("heir"), "heir", b"n"))
    assert len(stage.actions(act.Acknowledge)) == 8
    stage.do(events.UpdateNode(peer("heir"), "heir", b"n", {"note": "x"}))
    assert stage.one(act.Acknowledge).node == peer("heir")
    assert stage.bus.nodes[b"n"].info["note"] == "x"
    assert stage.bus.nodes[b"n"].inherited


def test_an_heir_does_not_move_a_node_that_is_heard_of() -> None:
    stage = inherited()
    move(stage, "heir")
    assert stage.one(act.Ask).peer[0] == OUT, "the node is asked at its address"
    # What the heir itself says shows nothing, and it is told once.
    stage.do(events.NodeBeat(peer("heir"), "heir", b"n"))
    assert not stage.actions(act.Acknowledge)
    move(stage, "heir")
    assert "the node is being asked whether it is there" in stage.one(act.Deny).reasons[0]
    stage.wait(0.1)
    pulse(stage)
    stage.wait(0.4)
    assert "so it stays where it is" in stage.one(act.Deny).reasons[0]
    assert stage.bus.nodes[b"n"].info["port"] == 1
    assert stage.bus.nodes[b"n"].inherited


def test_an_heir_moves_a_node_that_nobody_hears_of_and_owns_it_then() -> None:
    stage = inherited()
    move(stage, "heir")
    stage.wait(1.3)
    assert not stage.actions(act.Acknowledge)
    stage.wait(1.0)
    assert stage.one(act.Acknowledge).node == peer("heir")
    assert stage.bus.nodes[b"n"].info["port"] == 6
    assert not stage.bus.nodes[b"n"].inherited
    stage.do(events.NodeLeft(peer("heir"), b"n"))
    assert not stage.bus.nodes


def test_a_node_that_comes_back_while_an_heir_wants_to_move_it_stays() -> None:
    stage = inherited(dialled())
    move(stage, "heir")
    stage.wait(0.1)
    register(stage, "node", dialled())
    assert stage.one(act.Approve).node == peer("node")
    stage.wait(0.4)
    assert stage.one(act.Deny).node == peer("heir")
    node = stage.bus.nodes[b"n"]
    assert (node.address, node.info["port"]) == (peer("node"), 1)


@pytest.mark.parametrize("name", [b"n", b""])
@pytest.mark.parametrize("answers", [True, False])
def test_a_goodbye_of_an_heir_counts_if_the_node_does_not_answer(name: bytes, answers: bool) -> None:
    stage = inherited()
    stage.do(events.NodeLeft(peer("heir"), name))
    asked = stage.one(act.Ask).peer
    assert asked[0] == OUT
    assert not stage.bus.catalog.registered_on, "nothing is sent to the heir any more"
    if answers:
        stage.wait(0.1)
        stage.do(events.Answered(asked))
    stage.wait(2.3)
    assert bool(stage.bus.nodes) is answers
    assert [ask.peer[0] for ask in stage.actions(act.Ask) if ask.peer[0] != OUT] == []


def test_an_heir_that_is_disconnected_does_not_end_the_node() -> None:
    stage = inherited()
    stage.do(events.NodeBeat(peer("heir"), "heir", b"unknown"))
    assert stage.one(act.Dismiss).peer == peer("heir")
    assert b"n" in stage.bus.nodes
    assert stage.one(act.Ask).peer[0] == OUT


def test_a_node_that_says_goodbye_at_its_own_address_leaves_whoever_registered_it() -> None:
    stage = inherited(dialled())
    node = stage.bus.nodes[b"n"]
    assert node.worker is not None
    stage.do(events.NodeLeft(node.worker.address, b"n"))
    assert not stage.bus.nodes


@pytest.mark.parametrize(
    ("before_s", "registered_s", "agreed_s"),
    [(1.0, 0.5, 1.0), (1.0, 1.0, 1.0), (1.0, 5.0, 5.0), (0.0, 5.0, 0.0), (5.0, 0.0, 0.0)],
)
def test_an_heir_does_not_make_a_node_late(before_s: float, registered_s: float, agreed_s: float) -> None:
    stage = Stage()
    register(stage, "first", None, before_s)
    register(stage, "heir", None, registered_s)
    stage.nothing()
    stage.do(events.Unasked(peer("first")))
    node = stage.one(act.Approve).entry
    assert (node.heartbeat_s, node.info["heartbeat_s"]) == (agreed_s, agreed_s)
    assert node.info["port"] == 1


def test_a_node_that_is_replaced_while_it_works_may_still_answer() -> None:
    stage = Stage()
    register(stage, "first", talking("first"))
    stage.submit("c", "1", "n")
    token = stage.token("c", "1")
    stage.wait(1.7)
    register(stage, "second", talking("second"), port=2)
    assert [given.worker.address for given in stage.actions(act.Deliver)] == [peer("first"), peer("second")]
    stage.result("first", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    # It offers nothing any more.
    stage.submit("c", "2", "n")
    stage.result("second", token, [b"too late"])
    assert [given.worker.address for given in stage.actions(act.Deliver)] == [peer("second")]
    assert not stage.actions(act.Answer)
    assert not stage.bus.silent


def test_an_idle_node_that_is_replaced_is_not_lost() -> None:
    stage = Stage()
    register(stage, "first", talking("first"))
    stage.wait(1.7)
    register(stage, "second", talking("second"), port=2)
    assert stage.bus.counters.workers_lost == 0
    assert not stage.actions(act.Dismiss)
    assert list(stage.bus.workers) == [peer("second")]


def test_who_registers_anew_on_its_own_connection_answers_nothing_of_before() -> None:
    stage = Stage()
    register(stage, "first", talking("first"))
    stage.submit("c", "1", "n")
    held = stage.bus.workers[peer("first")]
    register(stage, "first", talking("first"))
    assert held.state is WorkerState.GONE
    assert not stage.bus.silent
    assert len(stage.actions(act.Deliver)) == 2


def test_a_node_that_moves_while_it_works_may_still_answer() -> None:
    stage = Stage()
    register(stage, "first", dialled())
    stage.submit("c", "1", "n")
    (given,) = stage.actions(act.Deliver)
    there = dialled("tcp://10.0.0.1:6")
    stage.do(events.UpdateNode(peer("first"), "first", b"n", {"port": 6}, serves=there, moves=True))
    (again,) = stage.actions(act.Deliver)
    assert again.worker.endpoint == "tcp://10.0.0.1:6"
    stage.do(events.Result(given.worker.address, b"", [b"old place"]))
    assert stage.one(act.Answer).body == [b"old place"]


def test_a_busy_node_keeps_its_name_for_as_long_as_the_settings_of_its_queue_allow() -> None:
    stage = Stage()
    stage.bus.change_policies([("n", QueuePolicy(silence_s=20.0))])
    register(stage, "first", talking("first"))
    stage.submit("c", "1", "n")
    stage.nothing()
    stage.wait(3.0)
    register(stage, "other", talking("other"), port=2)
    assert "is taken by a node that is alive" in stage.one(act.Deny).reasons[0]
    # With the same ip and port it may be the same one: it waits until the time is over.
    register(stage, "again", talking("again"))
    stage.wait(16.5)
    assert not stage.actions(act.Approve)
    stage.wait(1.0)
    assert stage.one(act.Approve).node == peer("again")


def test_a_node_with_a_short_interval_keeps_its_name_for_as_long_as_its_lease_leaves_for_an_answer() -> None:
    stage = Stage()
    register(stage, "first", dialled(), 0.2)
    stage.nothing()
    register(stage, "second", None, 0.2)
    stage.do(events.Unasked(peer("first")))
    stage.wait(0.4)
    assert not stage.actions(act.Approve), "0.45 seconds"
    stage.wait(0.3)
    assert stage.one(act.Approve).node == peer("second")
    assert not stage.actions(act.Forget), "its lease had not ended"


def test_an_heir_that_wants_to_move_a_node_that_left_meanwhile_has_to_register() -> None:
    stage = inherited(dialled())
    node = stage.bus.nodes[b"n"]
    assert node.worker is not None
    move(stage, "heir")
    stage.do(events.NodeLeft(node.worker.address, b"n"))
    stage.nothing()
    stage.wait(0.4)
    denied = stage.one(act.Deny)
    assert denied.node == peer("heir")
    assert denied.reasons == ("no node is registered as 'n'; register first",)
    assert not stage.bus.catalog.claims


def test_an_heir_that_left_is_not_asked_whether_its_connection_is_open() -> None:
    stage = inherited()
    stage.do(events.NodeLeft(peer("heir"), b"n"))
    stage.nothing()
    stage.do(events.UpdateNode(peer("stranger"), "stranger", b"n", {"note": "x"}))
    assert stage.one(act.Acknowledge).node == peer("stranger")
    assert stage.bus.nodes[b"n"].info["note"] == "x"
    assert not stage.actions(act.Ask)


def test_an_heir_is_told_why_it_does_not_move_the_node_whatever_the_name_is_made_of() -> None:
    stage = Stage()
    info = {"ip": IP, "port": 1}
    reach = Reach((OUT, b"n"), ENDPOINT, "n")
    for at in ("first", "heir"):
        stage.do(events.Register(peer(at), at, b"n\xff", info, 1.0, (), None, "how", IP, reach))
    stage.do(events.Unasked(peer("first")))
    stage.nothing()
    for _ in range(2):
        stage.do(events.UpdateNode(peer("heir"), "heir", b"n\xff", {"port": 6}, moves=True))
    (reason,) = stage.one(act.Deny).reasons
    assert reason.startswith(
        "the name 'n\N{REPLACEMENT CHARACTER}' was registered by another connection before, for 10.0.0.1:1, "
        "and the node was alive when this one registered it for the same place; "
    )


def test_an_heir_that_beats_as_often_as_the_holder_says_itself_how() -> None:
    """The holder named no timing, so it is asked; the heir names the same one, and beats by itself."""
    stage = Stage()
    place = {"ip": IP, "port": 1}
    stage.do(events.Register(peer("first"), "first", b"n", place, 10.0, ip=IP, quiet=True))
    info = {**place, "heartbeat_s": 10.0}
    stage.do(events.Register(peer("heir"), "heir", b"n", info, 10.0, ip=IP))
    stage.nothing()
    stage.do(events.Unasked(peer("first")))
    node = stage.one(act.Approve).entry
    assert (node.heartbeat_s, node.quiet, node.info) == (10.0, False, info)


@pytest.mark.parametrize("place", [{"port": 6}, {"ip": "10.0.0.2"}, {"interfaces": {"pub": 1}}])
def test_an_heir_that_registers_another_place_on_its_own_connection_waits_until_the_node_was_asked(
    place: dict[str, Any],
) -> None:
    stage = inherited()
    info = {"ip": IP, "port": 1, "heartbeat_s": 1.0, **place}
    reach = Reach((OUT, b"n"), ENDPOINT, "n")
    event = events.Register(peer("heir"), "heir", b"n", info, 1.0, (), None, "how", IP, reach)
    stage.do(event)
    assert not stage.actions(act.Approve)
    assert stage.one(act.Ask).peer[0] == OUT
    stage.wait(0.1)
    pulse(stage)
    stage.wait(0.4)
    assert "is taken by a node that is alive" in stage.one(act.Deny).reasons[0]
    stage.do(event)
    stage.wait(2.3)
    assert stage.one(act.Approve).node == peer("heir")
    assert stage.bus.nodes[b"n"].info == info
    assert not stage.bus.nodes[b"n"].inherited
