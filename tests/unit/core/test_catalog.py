"""The catalog: leases kept by beats, names that are taken, and nodes that are workers too."""

from __future__ import annotations

from typing import Any

from polybus.core import actions as act
from polybus.core import events, leases
from polybus.core.catalog import MISSED_BEATS
from polybus.core.lifecycle import NodeState
from polybus.core.model import Heartbeat, Limits
from support.stage import NEVER_DEAD, Stage, worker

OUT = 9


def node(name: str) -> tuple[int, bytes]:
    return (2, name.encode())


def info(port: int = 1, ip: str = "10.0.0.1") -> dict[str, Any]:
    return {"ip": ip, "port": port}


def register(
    stage: Stage,
    name: str = "n",
    at: str = "peer",
    heartbeat_s: float = 1.0,
    facts: dict[str, Any] | None = None,
    serves: events.WorkerUp | None = None,
    missing: tuple[str, ...] = (),
) -> None:
    facts = info() if facts is None else facts
    stage.do(events.Register(node(at), at, name.encode(), facts, heartbeat_s, missing, serves))


def serving(name: str = "n", at: str = "peer") -> events.WorkerUp:
    return events.WorkerUp(node(at), at, ((name.encode(), 0),), Heartbeat(4.0, 1.0))


def dialled(name: str = "n", endpoint: str = "tcp://10.0.0.1:1") -> events.WorkerUp:
    return events.WorkerUp((OUT, name.encode()), name, ((name.encode(), 0),), NEVER_DEAD, endpoint=endpoint)


def beat(stage: Stage, name: str = "n", at: str = "peer") -> None:
    stage.do(events.NodeBeat(node(at), at, name.encode()))


# -- leases -------------------------------------------------------------------------------------------


def test_a_registration_is_approved_and_kept_by_beats() -> None:
    stage = Stage()
    register(stage)
    approval = stage.one(act.Approve)
    assert (approval.node, approval.voice, approval.entry.name) == (node("peer"), "peer", b"n")
    for _ in range(20):
        stage.wait(0.9)
        beat(stage)
    assert len(stage.actions(act.Acknowledge)) == 20
    assert stage.bus.nodes[b"n"].state is NodeState.ALIVE
    assert stage.nothing()


def test_a_silent_node_is_late_and_then_forgotten() -> None:
    stage = Stage()
    register(stage)
    stage.wait(2.1)
    assert stage.bus.nodes[b"n"].state is NodeState.LATE
    assert stage.told("node_late")
    stage.wait(MISSED_BEATS - 2.1 - 0.05)
    assert b"n" in stage.bus.nodes
    stage.nothing()
    stage.wait(0.15)
    gone = stage.one(act.Forget)
    assert gone.entry.name == b"n"
    assert "no heartbeat" in gone.reason
    assert not stage.bus.nodes
    assert stage.told("node_down")


def test_a_beat_in_time_makes_a_late_node_live() -> None:
    stage = Stage()
    register(stage)
    stage.wait(3.5)
    beat(stage)
    assert stage.bus.nodes[b"n"].state is NodeState.ALIVE
    stage.wait(MISSED_BEATS - 0.1)
    assert b"n" in stage.bus.nodes


def test_a_lease_without_heartbeats_has_no_end() -> None:
    stage = Stage()
    register(stage, heartbeat_s=0.0)
    stage.wait(10_000.0, step=100.0)
    assert b"n" in stage.bus.nodes


def test_a_beat_of_an_unknown_node_is_dismissed() -> None:
    stage = Stage()
    beat(stage, "never")
    reason = "a heartbeat for 'never', but no node is registered so; it must register first"
    assert stage.one(act.Dismiss).reason == reason


def test_a_node_gives_its_lease_back() -> None:
    stage = Stage()
    register(stage, "a", "one")
    register(stage, "b", "one")
    register(stage, "c", "two")
    stage.do(events.NodeLeft(node("two"), b"c"))
    assert set(stage.bus.nodes) == {b"a", b"b"}
    stage.do(events.NodeLeft(node("one")))
    assert not stage.bus.nodes
    assert len(stage.actions(act.Forget)) == 3
    stage.do(events.NodeLeft(node("one"), b"a"))
    assert stage.actions(act.Forget) == []


# -- refused ------------------------------------------------------------------------------------------


def test_what_is_missing_is_named() -> None:
    stage = Stage()
    register(stage, missing=("a name", "a port"))
    assert stage.one(act.Deny).reasons == ("a name", "a port")
    assert not stage.bus.nodes
    assert stage.bus.counters.rejected == 1
    assert stage.told("denied")[0].reason == "a name; a port"


def test_a_name_that_is_taken_is_refused_to_others() -> None:
    stage = Stage()
    register(stage, at="first", facts=info(1))
    stage.nothing()
    register(stage, at="second", facts=info(2))
    assert "taken" in stage.one(act.Deny).reasons[0]
    assert stage.bus.nodes[b"n"].address == node("first")


def test_the_same_node_come_back_gets_its_name() -> None:
    stage = Stage()
    register(stage, at="first", facts=info(1))
    register(stage, at="first", facts=info(7))
    assert len(stage.actions(act.Approve)) == 2
    register(stage, at="second", facts=info(7))
    assert stage.one(act.Ask).peer == node("first"), "is that connection open?"
    stage.do(events.Unasked(node("first")))
    assert stage.one(act.Approve).node == node("second")
    assert stage.bus.nodes[b"n"].address == node("second")
    stage.wait(MISSED_BEATS + 0.2)
    assert not stage.bus.nodes, "there is one lease, and it ends"


def test_a_name_whose_holder_is_late_is_free() -> None:
    stage = Stage()
    register(stage, at="first", facts=info(1))
    stage.wait(2.1)
    register(stage, at="second", facts=info(2))
    assert len(stage.actions(act.Approve)) == 2


def test_the_catalog_may_be_full() -> None:
    stage = Stage(Limits(nodes=1))
    register(stage, "a")
    register(stage, "b", "other")
    assert "full" in stage.one(act.Deny).reasons[0]
    register(stage, "a")
    assert len(stage.actions(act.Approve)) == 2


def test_too_many_services_refuse_a_node_that_serves() -> None:
    stage = Stage(Limits(services=1))
    stage.worker("w", "other")
    register(stage, serves=serving())
    assert "services are known" in stage.one(act.Deny).reasons[0]
    assert not stage.bus.nodes


# -- updates ------------------------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_is_a_beat() -> None:
    stage = Stage()
    register(stage, facts={"ip": "a", "port": 1, "extra": "x"})
    stage.wait(3.0)
    stage.do(events.UpdateNode(node("peer"), "peer", b"n", {"port": 2}))
    assert stage.one(act.Acknowledge).name == b"n"
    assert [record.service for record in stage.told("updated")] == [b"n"]
    assert stage.bus.nodes[b"n"].info == {"ip": "a", "port": 2, "extra": "x"}
    stage.wait(3.0)
    assert b"n" in stage.bus.nodes


def test_an_update_may_change_the_heartbeat() -> None:
    stage = Stage()
    register(stage, heartbeat_s=1.0)
    stage.do(events.UpdateNode(node("peer"), "peer", b"n", {}, heartbeat_s=10.0))
    stage.wait(35.0)
    assert b"n" in stage.bus.nodes
    stage.wait(6.0)
    assert not stage.bus.nodes


def test_an_update_of_an_unknown_node_is_denied() -> None:
    stage = Stage()
    stage.do(events.UpdateNode(node("peer"), "peer", b"n", {}))
    assert "register first" in stage.one(act.Deny).reasons[0]


def reason_of_update(stage: Stage, **changes: Any) -> str:
    stage.do(events.UpdateNode(node("stranger"), "stranger", b"n", {}, **changes))
    (reason,) = stage.one(act.Deny).reasons
    return reason


def test_an_update_for_a_node_on_a_closed_connection_says_who_holds_the_name_and_what_to_do() -> None:
    stage = Stage()
    register(stage, serves=serving())
    stage.wait(0.5)
    stage.taken.clear()
    assert reason_of_update(stage) == (
        "the name 'n' was registered by another connection, 0.5 s ago for 10.0.0.1:1; the node is called on "
        "that connection; its lease ends in 3.5 s unless the node is heard of. Only that connection speaks "
        "for the node: send this there, or register again with 10.0.0.1:1 as ip and port, which gets the "
        "name if that one is closed"
    )
    stage.do(events.Unasked(node("peer")))
    stage.nothing()
    assert "the node was called on that connection, which is closed; " in reason_of_update(stage)
    # What the reason advises works.
    register(stage, at="stranger", serves=serving(at="stranger"))
    assert stage.one(act.Approve).node == node("stranger")


def test_what_is_said_of_a_lease() -> None:
    stage = Stage()
    register(stage, heartbeat_s=0.0, facts={}, serves=serving())
    stage.nothing()
    reason = reason_of_update(stage)
    assert "; its lease does not end by itself. " in reason
    assert reason.endswith("send this there, or register again when the lease has ended")


def test_what_is_said_while_the_broker_finds_out_whether_a_connection_is_open() -> None:
    stage = Stage()
    register(stage, serves=dialled())
    stage.nothing()
    stage.do(events.UpdateNode(node("stranger"), "stranger", b"n", {}))
    reason = reason_of_update(stage)
    assert "the node is called at tcp://10.0.0.1:1; " in reason
    assert reason.endswith("message like this: try again in a second")
    stage.nothing()
    stage.wait(1.0)
    (reason,) = stage.one(act.Deny).reasons
    assert reason.endswith("if that one is closed; that one is open")
    stage.do(events.UpdateNode(node("stranger"), "stranger", b"n", {}, moves=True))
    stage.nothing()
    stage.do(events.Unasked(node("peer")))
    (reason,) = stage.one(act.Deny).reasons
    assert (
        "; that one is closed, so others may change the description of the node, but not where it is"
        in reason
    )


def test_a_heartbeat_over_another_connection_is_dismissed_with_the_holder() -> None:
    stage = Stage()
    register(stage, serves=serving())
    stage.wait(1.0)
    stage.nothing()
    heard_at = stage.bus.nodes[b"n"].seen_at
    beat(stage, at="stranger")
    reason = stage.one(act.Dismiss).reason
    assert reason.startswith("a heartbeat, but the name 'n' was registered by another connection, ")
    assert stage.bus.nodes[b"n"].seen_at == heard_at, "it does not keep the holder alive"


# -- nodes that serve ---------------------------------------------------------------------------------


def test_a_node_that_serves_is_a_worker_as_long_as_its_lease() -> None:
    stage = Stage()
    stage.submit("c", "1", "n")
    register(stage, serves=serving())
    assert stage.delivered() == [("peer", "1")]
    assert [type(a) for a in stage.taken] == [act.Approve], "approved before it is given work"
    stage.do(events.NodeLeft(node("peer"), b"n"))
    assert worker("peer") not in stage.bus.workers
    assert stage.request("c", "1").worker is None


def test_what_the_worker_says_counts_for_the_lease_and_the_other_way_round() -> None:
    stage = Stage()
    register(stage, serves=serving())
    for _ in range(5):
        stage.wait(2.0)
        stage.do(events.Heard(node("peer"), "peer"))
        stage.wait(2.0)
        beat(stage)
    assert b"n" in stage.bus.nodes
    assert worker("peer") in stage.bus.workers


def test_a_node_whose_conversation_was_lost_has_to_register_again() -> None:
    stage = Stage()
    register(stage, serves=serving())
    stage.gone("peer")
    stage.nothing()
    beat(stage)
    assert stage.one(act.Dismiss).reason == act.UNKNOWN_WORKER
    assert b"n" in stage.bus.nodes, "the lease waits for it"
    register(stage, at="again", serves=serving(at="again"))
    assert stage.one(act.Approve).node == node("again")
    assert set(stage.bus.workers) == {worker("again")}


# -- a name that two want -----------------------------------------------------------------------------


def test_a_node_that_comes_back_is_served_as_soon_as_its_old_conversation_is_known_to_be_lost() -> None:
    stage = Stage()
    register(stage, at="old", serves=serving(at="old"))
    stage.submit("c", "1", "n")
    stage.nothing()
    register(stage, at="new", serves=serving(at="new"))
    assert stage.one(act.Ask).peer == node("old"), "it may be a second node behind the same address"
    assert not stage.actions(act.Approve)
    stage.do(events.Unasked(node("old")))
    assert stage.one(act.Approve).node == node("new")
    assert stage.delivered() == [("new", "1")]
    assert set(stage.bus.workers) == {worker("new")}
    assert not stage.bus.catalog.claims


def test_a_question_that_broke_with_its_connection_is_asked_again_soon() -> None:
    stage = Stage()
    register(stage, at="old", heartbeat_s=30.0, serves=serving(at="old"))
    stage.nothing()
    register(stage, at="new", heartbeat_s=30.0, serves=serving(at="new"))
    assert stage.one(act.Ask).peer == node("old")
    stage.nothing()
    # Nobody has noticed that the connection is gone, so the first question got lost.
    stage.wait(0.3)
    assert stage.one(act.Ask).peer == node("old")
    stage.do(events.Unasked(node("old")))
    assert stage.one(act.Approve).node == node("new")


def test_a_holder_that_speaks_up_keeps_its_name() -> None:
    stage = Stage()
    register(stage, at="old", serves=serving(at="old"))
    register(stage, at="new", serves=serving(at="new"))
    # What the newcomer says in the meantime is not the holder's.
    beat(stage, at="new")
    stage.wait(0.1)
    stage.do(events.Heard(node("old"), "old"))
    stage.wait(0.3)
    (reason,) = stage.one(act.Deny).reasons
    assert reason == (
        "the name 'n' is taken by a node that is alive, at 10.0.0.1:1; its lease ends in 3.8 s unless the "
        "node is heard of; choose another name, or register when that node is gone"
    )
    assert set(stage.bus.workers) == {worker("old")}
    register(stage, at="new", serves=serving(at="new"))
    register(stage, at="third", serves=serving(at="third"))
    assert "at this moment" in stage.one(act.Deny).reasons[0]


def test_a_holder_that_says_nothing_until_it_is_late_loses_its_name() -> None:
    stage = Stage()
    register(stage, at="old", serves=serving(at="old"))
    stage.nothing()
    register(stage, at="new", serves=serving(at="new"))
    stage.wait(1.4)
    assert not stage.actions(act.Approve)
    stage.wait(0.5)
    assert stage.one(act.Approve).node == node("new")
    assert set(stage.bus.workers) == {worker("new")}


def test_a_claimants_heartbeats_do_not_keep_the_holder_alive() -> None:
    stage = Stage()
    register(stage, at="old", serves=serving(at="old"))
    register(stage, at="new", serves=serving(at="new"))
    stage.nothing()
    for _ in range(20):
        stage.wait(0.1)
        beat(stage, at="new")
    # They are no fault either: the claimant is told nothing until its claim is decided.
    assert not stage.actions(act.Dismiss)
    assert not stage.actions(act.Deny)
    assert stage.one(act.Approve).node == node("new")
    assert set(stage.bus.workers) == {worker("new")}


def test_a_claim_is_no_sign_of_life_of_the_holder() -> None:
    """A holder whose beat is nearly missed has no more time from the claim on than it takes to answer."""
    stage = Stage()
    register(stage, at="old", heartbeat_s=1.0, serves=serving(at="old"))
    stage.wait(1.0 * leases.LATE - 0.1)
    stage.taken.clear()
    register(stage, at="new", serves=serving(at="new"))
    assert not stage.actions(act.Approve)
    stage.wait(leases.NOTICE_S + 0.1)
    assert stage.one(act.Approve).node == node("new")


# -- nodes that are dialled ---------------------------------------------------------------------------


def test_a_node_is_dialled_when_it_registers_and_hung_up_on_when_it_leaves() -> None:
    stage = Stage()
    register(stage, serves=dialled())
    dial = stage.one(act.Dial)
    assert dial.endpoint == "tcp://10.0.0.1:1"
    assert set(stage.bus.workers) == {(OUT, dial.identity)}
    stage.do(events.NodeLeft(node("peer"), b"n"))
    assert stage.one(act.HangUp) == act.HangUp(dial.identity, dial.endpoint)
    assert not stage.bus.workers


def test_a_dialled_node_that_was_lost_is_dialled_again_with_its_next_beat() -> None:
    stage = Stage()
    register(stage, serves=dialled())
    first = stage.one(act.Dial)
    stage.do(events.WorkerGone((OUT, first.identity), "it cannot be reached"))
    beat(stage)
    again = stage.one(act.Dial)
    assert again.endpoint == first.endpoint
    assert again.identity != first.identity
    assert stage.one(act.Acknowledge)


def test_a_node_that_moves_is_dialled_where_it_is_now() -> None:
    stage = Stage()
    register(stage, serves=dialled())
    stage.one(act.Dial)
    moved = dialled(endpoint="tcp://10.0.0.2:1")
    stage.do(events.UpdateNode(node("peer"), "peer", b"n", {}, serves=moved))
    assert stage.one(act.HangUp).endpoint == "tcp://10.0.0.1:1"
    assert stage.one(act.Dial).endpoint == "tcp://10.0.0.2:1"


def test_names_of_one_process_are_dialled_anew_when_one_of_them_is_hung_up_on() -> None:
    stage = Stage()
    register(stage, "a", "one", serves=dialled("a"))
    register(stage, "b", "two", serves=dialled("b"))
    identities = {dial.identity for dial in stage.actions(act.Dial)}
    stage.submit("c", "1", "b")
    stage.nothing()
    stage.do(events.NodeLeft(node("one"), b"a"))
    again = stage.one(act.Dial)
    assert again.identity not in identities
    (held,) = stage.bus.workers.values()
    assert held.address == (OUT, again.identity)
    assert stage.bus.nodes[b"b"].worker is held
    assert stage.one(act.Deliver).worker is held, "what was on its way is sent again"


def test_a_dialled_worker_that_never_answers_gets_its_slot_back() -> None:
    """It has one call at a time: without its answer, or a new connection, it would never be called again."""
    stage = Stage()
    register(stage, heartbeat_s=0.0, serves=dialled())
    stage.submit("c", "1", "n", ttl_s=1.0)
    stage.submit("c", "2", "n")
    stage.nothing()
    stage.wait(1.3)
    assert stage.one(act.Refuse).request_id == b"1"
    assert stage.one(act.HangUp)
    assert stage.one(act.Dial)
    assert [number for _, number in stage.delivered()] == ["2"]
