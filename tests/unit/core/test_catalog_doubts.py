"""What becomes of a lease when a connection breaks, a question fails, or another connection speaks for it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from polybus.core import actions as act
from polybus.core import catalog, events
from polybus.core.ledger import NodeEntry
from polybus.core.lifecycle import NodeState
from polybus.core.model import Heartbeat, Limits, Reach
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


def asks(stage: Stage, seconds: float) -> list[float]:
    """When questions are asked within this time, in seconds from now."""
    began, times = stage.now, []
    while stage.now < began + seconds:
        stage.wait(0.05)
        times += [round(stage.now - began, 2) for _ in stage.actions(act.Ask)]
    return times


def test_a_holder_whose_name_is_wanted_is_asked_less_and_less_often() -> None:
    stage = Stage()
    facts = {"ip": "10.0.0.1", "port": 1}
    for at in ("old", "new"):
        stage.do(events.Register(peer(at), at, b"n", facts, 30.0, serves=talking("n", at)))
    stage.bus.workers[peer("old")].heartbeat = NEVER_DEAD
    assert stage.one(act.Ask).peer == peer("old")
    times = asks(stage, 12.0)
    # Each pause is twice the time since the claim, and noticed a quarter of a second later at most.
    assert times[0] <= 0.35
    assert all(2 * asked - 0.01 <= again - asked <= 2 * asked + 0.35 for asked, again in pairwise(times)), (
        times
    )
    assert len(times) == 4


def test_while_a_name_is_wanted_a_third_peer_that_beats_for_it_is_sent_away() -> None:
    stage = Stage()
    facts = {"ip": "10.0.0.1", "port": 1}
    for at in ("old", "new"):
        stage.do(events.Register(peer(at), at, b"n", facts, 30.0, serves=talking("n", at)))
    assert b"n" in stage.bus.catalog.claims
    stage.nothing()
    stage.do(events.NodeBeat(peer("new"), "new", b"n"))
    assert not stage.actions(act.Dismiss), "who wants the name is told when that is decided"
    stage.do(events.NodeBeat(peer("third"), "third", b"n"))
    assert stage.one(act.Dismiss).peer == peer("third")
    assert stage.bus.nodes[b"n"].address == peer("old")
    assert b"n" in stage.bus.catalog.claims


@pytest.mark.parametrize("is_called", [False, True])
def test_two_nodes_that_have_no_address_are_not_the_same_node(is_called: bool) -> None:
    stage = Stage()
    for at in ("one", "two"):
        serves = talking("n", at) if is_called else None
        stage.do(events.Register(peer(at), at, b"n", {}, 30.0, serves=serves))
    assert stage.one(act.Deny).node == peer("two")
    assert stage.bus.nodes[b"n"].address == peer("one")


def test_heartbeats_of_a_third_peer_do_not_keep_the_holder_of_a_wanted_name() -> None:
    stage = Stage()
    for at in ("old", "new"):
        stage.do(events.Register(peer(at), at, b"n", {"ip": "10.0.0.1"}, 1.0, serves=talking("n", at)))
    stage.nothing()
    for _ in range(40):
        stage.wait(0.1)
        stage.do(events.NodeBeat(peer("third"), "third", b"n"))
    assert stage.bus.nodes[b"n"].address == peer("new")
    assert not stage.actions(act.Deny)


def test_a_node_is_announced_with_the_reason() -> None:
    stage = Stage()
    register(stage, "n", "p")
    assert [(one.service, one.client, one.reason) for one in stage.told("node_up")] == [
        (b"n", peer("p"), "it registered")
    ]
    stage.wait(2.0)
    assert stage.bus.nodes[b"n"].missed == 1
    stage.do(events.NodeBeat(peer("p"), "p", b"n"))
    assert stage.told("node_up")[-1].reason == "it is heard again"
    stage.wait(2.0)
    assert stage.bus.nodes[b"n"].missed == 2
    assert len(stage.told("node_late")) == 2


def test_a_question_that_fails_decides_about_the_nodes_of_that_connection_alone() -> None:
    stage = Stage()
    register(stage, "n", "p")
    register(stage, "m", "q")
    for name in (b"n", b"m"):
        stage.do(events.UpdateNode(peer("stranger"), "stranger", name, {"note": "x"}))
    stage.nothing()
    stage.do(events.Unasked(peer("q")))
    assert stage.one(act.Acknowledge).name == b"m"
    assert set(stage.bus.catalog.unproven) == {b"n"}
    assert not stage.bus.nodes[b"n"].unplugged
    # The question to the other one is taken in: its connection is open.
    stage.wait(1.0)
    assert stage.one(act.Deny).name == b"n"
    assert stage.bus.counters.rejected == 1


def test_whoever_registers_anew_loses_its_old_worker_with_the_reason() -> None:
    stage = Stage()
    for _ in range(2):
        register(stage, "n", "p", talking("n", "p"))
    assert [one.reason for one in stage.told("worker_down")] == ["it registered anew"]
    assert len(stage.bus.workers) == 1


def test_an_update_of_its_own_shows_that_a_connection_is_open_again() -> None:
    stage = Stage()
    register(stage, "n", "p")
    describe(stage, "first")
    stage.do(events.Unasked(peer("p")))
    stage.do(events.UpdateNode(peer("p"), "p", b"n", {"own": 1}))
    stage.nothing()
    describe(stage, "second")
    assert stage.one(act.Ask).peer == peer("p")
    assert not stage.actions(act.Acknowledge)


@pytest.mark.parametrize("kind", ["update", "goodbye"])
def test_what_was_said_about_a_node_that_left_meanwhile(kind: str) -> None:
    stage = Stage()
    register(stage, "n", "p")
    if kind == "update":
        describe(stage, "note")
    else:
        stage.do(events.NodeLeft(peer("stranger"), b"n", "stranger"))
    assert set(stage.bus.catalog.unproven) == {b"n"}
    stage.do(events.NodeLeft(peer("p"), b"n"))
    stage.nothing()
    stage.wait(1.0)
    reasons = [reason for denied in stage.actions(act.Deny) for reason in denied.reasons]
    assert reasons == (["no node is registered as 'n'; register first"] if kind == "update" else [])
    assert not stage.bus.catalog.unproven


def test_of_several_nodes_on_one_connection_each_leaves_by_itself_or_all_together() -> None:
    stage = Stage()
    for name in ("a", "b", "c"):
        register(stage, name, "p")
    stage.do(events.NodeLeft(peer("p"), b"b"))
    assert set(stage.bus.nodes) == {b"a", b"c"}
    stage.do(events.NodeLeft(peer("p")))
    assert not stage.bus.nodes
    assert [gone.reason for gone in stage.actions(act.Forget)] == ["it left"] * 3
    assert not stage.bus.catalog.registered_on


def test_a_node_of_an_earlier_life_is_as_old_as_it_was() -> None:
    stage = Stage()
    stage.bus.wall_offset = 1_000_000.0
    entry = NodeEntry(b"n", b"{}", 1.0, "some.way", stage.bus.wall_at(stage.now) - 100.0)
    revived = events.Register(peer("p"), "p", b"n", {}, 1.0)
    catalog.restore(stage.bus, [entry], lambda entry: revived, stage.now)
    node = stage.bus.nodes[b"n"]
    assert (stage.now - node.registered_at, node.seen_at, node.unplugged) == (100.0, stage.now, True)
    catalog.restore(stage.bus, [entry], lambda entry: None, stage.now)
    assert stage.bus.nodes[b"n"] is node


def claimed(*names: str) -> Stage:
    """Nodes whose names somebody else wants as well."""
    stage = Stage()
    for at in ("old", "new"):
        for name in names:
            register(stage, name, f"{at}-{name}", talking(name, f"{at}-{name}"))
    assert set(stage.bus.catalog.claims) == {name.encode() for name in names}
    return stage


def test_claims_are_decided_each_by_itself() -> None:
    stage = claimed("a", "b", "c")
    stage.wait(0.1)
    stage.do(events.Heard(peer("old-a"), "old-a"))
    stage.do(events.Heard(peer("old-c"), "old-c"))
    stage.wait(0.3)
    assert [denied.name for denied in stage.actions(act.Deny)] == [b"a", b"c"]
    assert not stage.actions(act.Approve)
    stage.wait(1.5)
    assert [approval.node for approval in stage.actions(act.Approve)] == [peer("new-b")]
    assert not stage.bus.catalog.claims


def test_the_holder_of_a_claimed_name_is_asked_less_and_less_often() -> None:
    stage = Stage()
    facts = {"ip": "10.0.0.1", "port": 1}
    for name in ("a", "b"):
        serves = talking(name, f"old-{name}")
        stage.do(events.Register(peer(f"old-{name}"), name, name.encode(), facts, 60.0, serves=serves))
    asked: dict[tuple[int, bytes], list[float]] = {peer("old-a"): [], peer("old-b"): []}
    begun = stage.now

    def look(until: float) -> None:
        while stage.now < begun + until:
            stage.wait(0.05)
            for ask in stage.actions(act.Ask):
                asked[ask.peer].append(round(stage.now - begun, 2))

    stage.nothing()
    register(stage, "a", "new-a", talking("a", "new-a"))
    look(0.2)
    register(stage, "b", "new-b", talking("b", "new-b"))
    look(3.0)
    # Not before a quarter of a second has passed since the first question, whatever becomes of other names.
    assert asked == {peer("old-a"): [0.3, 0.9, 2.7], peer("old-b"): [0.6, 1.5]}


def test_a_claim_is_granted_soon_after_the_holder_is_gone() -> None:
    stage = claimed("a", "b")
    stage.do(events.WorkerGone(peer("old-b"), "it left"))
    stage.wait(0.4)
    assert [approval.node for approval in stage.actions(act.Approve)] == [peer("new-b")]
    assert set(stage.bus.catalog.claims) == {b"a"}


def test_a_goodbye_of_a_stranger_that_wants_no_answer_gets_none() -> None:
    stage = Stage()
    register(stage, "n", "p", talking("n", "p"))
    stage.do(events.NodeLeft(peer("stranger"), b"n"))
    assert stage.nothing()
    assert (stage.bus.counters.rejected, len(stage.told("denied"))) == (1, 1)
    stage.do(events.NodeLeft(peer("stranger"), b"n", "stranger"))
    assert stage.one(act.Deny).voice == "stranger"
    assert b"n" in stage.bus.nodes


def test_a_lease_that_has_run_out_and_is_not_ended_yet_is_about_to_end() -> None:
    stage = Stage()
    register(stage, "n", "p", talking("n", "p"))
    stage.now += 4.0
    stage.do(events.UpdateNode(peer("stranger"), "stranger", b"n", {}))
    assert "; its lease is about to end. Only that connection" in stage.one(act.Deny).reasons[0]


def test_a_node_that_leaves_is_expected_to_answer_nothing_any_more() -> None:
    stage = Stage(Limits(attempts=1))
    facts = {"ip": "10.0.0.1", "port": 1}
    serves = events.WorkerUp(peer("p"), "p", ((b"n", 0),), Heartbeat(1.0, 0.5))
    stage.do(events.Register(peer("p"), "p", b"n", facts, 30.0, serves=serves))
    stage.submit("c", "1", "n")
    stage.wait(1.2)
    assert peer("p") in stage.bus.silent
    assert not stage.actions(act.Refuse)
    stage.do(events.NodeLeft(peer("p"), b"n"))
    assert stage.one(act.Refuse).request_id == b"1"
    assert not stage.bus.silent


def test_a_node_whose_lease_ended_may_still_answer_and_gets_no_more_work() -> None:
    stage = Stage(Limits(attempts=1))
    register(stage, "n", "p", talking("n", "p"))
    stage.submit("c", "1", "n")
    token = stage.token("c", "1")
    stage.wait(4.3)
    assert not stage.bus.nodes
    stage.result("p", token, [b"slow"])
    assert stage.one(act.Answer).body == [b"slow"]
    stage.nothing()
    stage.submit("c", "2", "n")
    assert not stage.actions(act.Deliver)


def test_a_worker_that_cannot_be_asked_frees_the_name_among_all_that_it_offers() -> None:
    stage = Stage()
    old = events.WorkerUp(peer("old"), "old", ((b"a", 0), (b"n", 0), (b"z", 0)), Heartbeat(4.0, 1.0))
    register(stage, "n", "old", old)
    register(stage, "n", "new", talking("n", "new"))
    stage.do(events.Unasked(peer("old")))
    assert stage.one(act.Approve).node == peer("new")
    assert set(stage.bus.workers) == {peer("new")}


def test_a_connection_is_tried_twice_within_half_a_second_whatever_else_is_to_be_decided() -> None:
    stage = Stage()
    register(stage, "n", "p")
    register(stage, "m", "old", talking("m", "old"))
    describe(stage, "doubtful")
    began = stage.now
    # Sixteenths of a second are exact as floating-point numbers.
    stage.wait(0.125, step=0.0625)
    stage.do(events.Register(peer("new"), "new", b"m", {"ip": "10.0.0.1", "port": 1}, 1.0))
    asked = [one for one in stage.actions(act.Ask) if one.peer == peer("p")]
    while not (denied := stage.actions(act.Deny)):
        stage.wait(0.0625, step=0.0625)
        asked += [one for one in stage.actions(act.Ask) if one.peer == peer("p")]
    assert [one.node for one in denied] == [peer("stranger")]
    assert stage.now - began == 0.5
    assert len(asked) == 2


def test_who_leaves_claims_nothing_any_more_and_others_still_do() -> None:
    stage = claimed("a", "b")
    stage.do(events.NodeLeft(peer("new-a"), b""))
    assert set(stage.bus.catalog.claims) == {b"b"}


def test_whether_each_of_several_connections_is_open_is_found_out_by_two_questions() -> None:
    stage = Stage()
    for name in ("a", "b"):
        register(stage, name, f"p-{name}")
    for name in (b"a", b"b"):
        stage.do(events.UpdateNode(peer("stranger"), "stranger", name, {"note": "?"}))
    stage.wait(0.7)
    assert sorted(ask.peer for ask in stage.actions(act.Ask)) == sorted([peer("p-a"), peer("p-b")] * 2)
    assert [denial.name for denial in stage.actions(act.Deny)] == [b"a", b"b"]


def test_a_node_that_was_dialled_in_vain_is_dialled_again_when_somebody_beats_for_it() -> None:
    stage = Stage()
    facts = {"ip": "10.0.0.1", "port": 1}
    stage.do(events.Register(peer("p"), "p", b"n", facts, 1.0, serves=dialled("n")))
    first = stage.one(act.Dial)
    stage.nothing()
    stage.do(events.Unasked((OUT, first.identity)))
    assert stage.one(act.HangUp).identity == first.identity
    assert not stage.bus.workers
    assert not stage.actions(act.Ask), "there is nobody to be asked"
    stage.do(events.NodeBeat(peer("stranger"), "stranger", b"n"))
    again = stage.one(act.Dial)
    assert (again.endpoint, again.identity != first.identity) == (ENDPOINT, True)
    assert stage.one(act.Dismiss).peer == peer("stranger")
    # A node that nobody calls is not dialled.
    register(stage, "m", "q")
    stage.do(events.NodeBeat(peer("stranger"), "stranger", b"m"))
    assert not stage.actions(act.Dial)


def test_the_rest_of_a_lease_is_told_to_the_tenth_of_a_second_also_when_it_is_short() -> None:
    stage = Stage()
    for at, ip in (("p", "10.0.0.1"), ("q", "10.0.0.2")):
        stage.do(events.Register(peer(at), at, b"n", {"ip": ip, "port": 1}, 0.2))
    assert "; its lease ends in 0.8 s unless the node is heard of; " in stage.one(act.Deny).reasons[0]


def test_a_name_is_granted_in_the_instant_in_which_the_beat_of_its_holder_is_overdue() -> None:
    stage = claimed("n")
    began = stage.now
    stage.now = began + 1.4375
    stage.do(events.Tick())
    assert not stage.actions(act.Approve)
    # Half an interval after the beat was due.
    stage.now = began + 1.5
    stage.bus.catalog.claims_at = stage.now
    stage.do(events.Tick())
    assert stage.one(act.Approve).node == peer("new-n")


@pytest.mark.parametrize("heard", [True, False])
def test_a_broker_that_has_decided_about_all_claims_does_not_wake_up_for_claims(heard: bool) -> None:
    stage = claimed("a")
    assert stage.bus.catalog.claims_at <= stage.now + 0.25
    stage.wait(0.1)
    if heard:
        stage.do(events.Heard(peer("old-a"), "old-a"))
    stage.wait(2.0)
    assert not stage.bus.catalog.claims
    for node in list(stage.bus.nodes.values()):
        stage.do(events.NodeLeft(node.address, node.name))
    stage.wait(10.0)
    assert not stage.bus.workers
    assert stage.bus.next_at(stage.now) == stage.now + 1.0


def test_after_a_restart_what_nobody_can_speak_to_keeps_no_other_node_out() -> None:
    stage = Stage()
    entries = [NodeEntry(name, b"{}", 1.0, "some.way", 0.0) for name in (b"x", b"a", b"y", b"b")]

    def revive(entry: NodeEntry) -> events.Register | None:
        if entry.name in (b"x", b"y"):
            return None
        return events.Register(peer("p"), "p", entry.name, {}, 1.0)

    catalog.restore(stage.bus, entries, revive, stage.now)
    assert set(stage.bus.nodes) == {b"a", b"b"}
    # Those that are there already are left alone, and those after them are restored.
    entries.append(NodeEntry(b"c", b"{}", 1.0, "some.way", 0.0))
    before = dict(stage.bus.nodes)
    catalog.restore(stage.bus, entries, revive, stage.now)
    assert stage.bus.nodes == {**before, b"c": stage.bus.nodes[b"c"]}


def test_an_update_that_lacks_something_is_refused_also_when_the_registering_connection_is_closed() -> None:
    stage = Stage()
    register(stage, "n", "p")
    describe(stage, "first")
    stage.do(events.Unasked(peer("p")))
    stage.nothing()
    event = events.UpdateNode(peer("stranger"), "stranger", b"n", {"note": "second"}, missing=("no port",))
    stage.do(event)
    assert stage.one(act.Deny).reasons == ("no port",)
    assert not stage.actions(act.Acknowledge)
    assert stage.bus.nodes[b"n"].info["note"] == "first"


def test_who_is_called_at_its_own_address_and_cannot_be_reached_there_is_not_asked_there_at_once() -> None:
    stage = Stage()
    facts = {"ip": "10.0.0.1", "port": 1}
    reach = Reach((OUT, b"node:n"), ENDPOINT, "reached")
    stage.do(events.Register(peer("p"), "p", b"n", facts, 1.0, serves=dialled("n"), reach=reach))
    first = stage.one(act.Dial)
    stage.nothing()
    stage.do(events.Unasked((OUT, first.identity)))
    assert not stage.bus.workers
    assert not stage.actions(act.Ask)
    stage.wait(1.4)
    assert not stage.actions(act.Ask)
    stage.wait(0.2)
    assert stage.one(act.Ask).voice == "reached", "its beat is missing"


def test_what_a_disconnected_peer_asked_for_is_done_and_not_answered() -> None:
    stage = Stage()
    stage.worker("w")
    caller = peer("caller")
    stage.do(events.Submit(caller, "caller", b"1", b"echo", [b"work"]))
    token = stage.one(act.Deliver).request.token
    stage.do(events.NodeBeat(caller, "caller", b"unknown"))
    assert stage.one(act.Dismiss).peer == caller
    assert stage.nothing(), "its request is not withdrawn"
    assert stage.bus.counters.cancelled == 0
    stage.result("w", token)
    assert stage.bus.counters.replied == 1
    assert not stage.actions(act.Answer)


STRANGE = b"n\xff"
READABLE = "'n\N{REPLACEMENT CHARACTER}'"


def test_a_name_that_is_no_text_is_readable_in_every_refusal() -> None:
    stage = Stage()
    stage.do(events.NodeBeat(peer("q"), "q", STRANGE))
    assert stage.one(act.Dismiss).reason.startswith(f"a heartbeat for {READABLE}, but no node")
    stage.do(events.UpdateNode(peer("q"), "q", STRANGE, {}))
    assert stage.one(act.Deny).reasons == (f"no node is registered as {READABLE}; register first",)
    stage.do(events.Register(peer("p"), "p", STRANGE, {"ip": "10.0.0.1", "port": 1}, 1.0))
    stage.do(events.Register(peer("q"), "q", STRANGE, {"ip": "10.0.0.2", "port": 1}, 1.0))
    assert stage.one(act.Deny).reasons[0].startswith(f"the name {READABLE} is taken by a node that is alive")
    stage.do(events.NodeBeat(peer("q"), "q", STRANGE))
    assert stage.one(act.Dismiss).reason.startswith(f"a heartbeat, but the name {READABLE} was registered by")


def test_whoever_speaks_for_a_node_of_another_connection_is_told_how_that_is_called() -> None:
    stage = Stage()
    register(stage, "none", "p1")
    register(stage, "dialled", "p2", dialled("dialled"))
    register(stage, "talking", "p3", talking("talking", "p3"))
    told = []
    for name in (b"none", b"dialled", b"talking"):
        stage.do(events.NodeBeat(peer("stranger"), "stranger", name))
        told.append(stage.one(act.Dismiss).reason.split("; ")[1])
    assert told == [
        "the node is not called",
        f"the node is called at {ENDPOINT}",
        "the node is called on that connection",
    ]
