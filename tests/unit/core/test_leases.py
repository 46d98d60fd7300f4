"""How leases are kept: datagrams, questions over TCP, the end, and what is there after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import catalog, events, views
from polybus.core.leases import ANSWER_S, FASTEST_BEAT_S, LINES, MISSED_BEATS, NOTICE_S
from polybus.core.ledger import Deregistered, NodeEntry, Registered
from polybus.core.lifecycle import NodeState
from polybus.core.model import Heartbeat, QueuePolicy, Reach
from polybus.core.tables import NO_STORE
from support.stage import Stage

OUT = 9
HOME = ("10.0.0.1", 4000)
REACH = Reach((OUT, b"node:n"), "tcp://10.0.0.1:1", "reached")


def registration(heartbeat_s: float = 1.0, **more: Any) -> events.Register:
    facts: dict[str, Any] = {"ip": "10.0.0.1", "reach": REACH, "how": "some.way", **more}
    return events.Register((2, b"p"), "v", b"n", {"ip": "10.0.0.1", "port": 1}, heartbeat_s, **facts)


def talking(at: bytes = b"p") -> events.WorkerUp:
    return events.WorkerUp((2, at), "v", ((b"n", 0),), Heartbeat(4.0, 1.0))


def registered(heartbeat_s: float = 1.0, **more: Any) -> Stage:
    stage = Stage()
    stage.do(registration(heartbeat_s, **more))
    stage.nothing()
    return stage


def pulse(stage: Stage, source: tuple[Any, ...] = HOME) -> None:
    stage.do(events.Pulse(b"n", source))


def names(stage: Stage) -> list[str]:
    return [one.what for one in stage.observed]


def test_every_fact_about_a_node() -> None:
    stage = registered()
    stage.now += 1.23456
    pulse(stage)
    stage.now += 0.23456
    (view,) = views.nodes(stage.bus, stage.now)
    assert view == {
        "node": "n",
        "state": "alive",
        "heartbeat_s": 1.0,
        "up_s": 1.469,
        "silent_s": 0.235,
        "missed_beats": 0,
        "beats": "udp",
        "address": "10.0.0.1:1",
        "function": "",
        "in_flight": 0,
        "done": 0,
        "load": None,
        "info": {"ip": "10.0.0.1", "port": 1},
    }


@pytest.mark.parametrize("silent", [True, False])
def test_a_node_whose_worker_left_has_nothing_to_do(silent: bool) -> None:
    stage = registered(20.0, serves=talking(), reach=None)
    stage.submit("c", "1", "n")
    stage.wait(6.0 if silent else 1.0)
    assert ((2, b"p") in stage.bus.silent) == silent
    (view,) = views.nodes(stage.bus, stage.now)
    assert view["in_flight"] == 1, "it may still answer"
    stage.do(events.WorkerGone((2, b"p"), "it left"))
    (view,) = views.nodes(stage.bus, stage.now)
    assert (view["state"], view["in_flight"], view["load"]) == ("alive", 0, None)


def test_a_node_is_not_looked_at_before_it_can_be_late() -> None:
    """There may be thousands of nodes; only one of which somebody said that it leaves is looked at often."""
    stage = registered(2.0)
    stage.wait(2.9)
    pulse(stage)
    # The look that was due when the lease began.
    stage.wait(0.2)
    assert (stage.bus.leases.next_at() or 0.0) > stage.now + 1.0


# -- datagrams ----------------------------------------------------------------------------------------


def test_datagrams_keep_the_lease_and_are_returned_at_the_agreed_timing() -> None:
    stage = registered()
    for _ in range(20):
        pulse(stage)
        stage.wait(1.0)
    beckons = stage.actions(act.Beckon)
    assert 19 <= len(beckons) <= 21
    assert {beckon.to for beckon in beckons} == {HOME}
    assert not any(beckon.ended for beckon in beckons)
    assert stage.nothing(), "nobody is asked, nothing is said over TCP"
    assert stage.bus.catalog.pulses == 20
    facts = stage.bus.catalog.facts()
    assert (facts["node_datagrams"], facts["node_datagrams_sent"]) == (20, len(beckons))
    assert (facts["node_datagrams_refused"], facts["nodes_asked"], facts["nodes_lapsed"]) == (0, 0, 0)


def test_the_first_beat_of_ours_does_not_wait() -> None:
    stage = registered(60.0)
    stage.wait(5.0)
    pulse(stage)
    stage.wait(0.15)
    assert stage.one(act.Beckon).to == HOME


@pytest.mark.parametrize("source", [("10.0.0.2", 4000), ("127.0.0.1", 4000)])
def test_datagrams_from_elsewhere_count_for_nothing(source: tuple[Any, ...]) -> None:
    stage = registered(reach=None)
    for _ in range(4):
        pulse(stage, source)
        stage.wait(1.1)
    assert not stage.bus.nodes
    assert not stage.actions(act.Beckon)
    assert stage.bus.catalog.strays == 4


def test_a_node_that_gave_no_ip_cannot_beat_in_datagrams() -> None:
    stage = registered(ip="")
    pulse(stage)
    stage.do(events.Pulse(b"nobody", HOME))
    assert stage.bus.catalog.strays == 2
    assert stage.bus.catalog.pulses == 0


def test_our_datagrams_cease_with_theirs() -> None:
    """Somebody may have written another's address on them: what we send is bounded by what came."""
    stage = registered()
    pulse(stage)
    for _ in range(30):
        stage.wait(1.0)
        # It lives, over TCP.
        stage.do(events.NodeBeat((2, b"p"), "v", b"n"))
    assert len(stage.actions(act.Beckon)) <= MISSED_BEATS + 1
    assert stage.bus.nodes[b"n"].pulse_from is None


def test_a_node_that_moves_from_port_to_port_gets_no_more_than_others() -> None:
    stage = registered()
    for port in range(100):
        pulse(stage, ("10.0.0.1", port + 1))
        stage.wait(0.1)
    assert len(stage.actions(act.Beckon)) <= 12


def test_nobody_gets_datagrams_faster_than_allowed() -> None:
    stage = registered(0.01)
    for _ in range(100):
        pulse(stage)
        stage.wait(0.05)
    assert len(stage.actions(act.Beckon)) <= 5.0 / FASTEST_BEAT_S + 2


def test_while_datagrams_go_a_conversation_is_silent() -> None:
    stage = registered(serves=talking())
    for _ in range(10):
        pulse(stage)
        stage.wait(1.0)
    assert not stage.actions(act.Beat)
    stage.actions(act.Beckon)
    for _ in range(8):
        stage.wait(1.0)
        stage.do(events.Heard((2, b"p"), "v"))
    assert stage.actions(act.Beat), "they ceased: TCP has to do"


# -- heartbeats for everybody -------------------------------------------------------------------------


def broadcasting() -> Stage:
    stage = Stage()
    stage.bus.catalog.broadcasts = True
    return stage


def broadcasts(stage: Stage, seconds: float) -> int:
    stage.actions(act.BroadcastBeat)
    stage.wait(seconds)
    return len(stage.actions(act.BroadcastBeat))


@pytest.mark.conforms("DBP-41")
def test_heartbeats_are_broadcast_at_the_shortest_timing_while_nodes_are_registered() -> None:
    stage = broadcasting()
    assert broadcasts(stage, 5.0) == 0
    stage.do(registration(heartbeat_s=60.0))
    stage.do(events.Tick())
    assert stage.one(act.BroadcastBeat), "the first does not wait"
    assert broadcasts(stage, 59.0) == 0
    assert broadcasts(stage, 62.0) == 2
    other = events.Register((2, b"q"), "v", b"m", {}, 1.0)
    stage.do(other)
    # The other one's lease runs out after four.
    assert 3 <= broadcasts(stage, 3.9) <= 4
    stage.wait(2.0)
    assert set(stage.bus.nodes) == {b"n"}
    assert broadcasts(stage, 50.0) == 0
    stage.do(events.NodeLeft((2, b"p")))
    assert broadcasts(stage, 200.0) == 0


def test_nobody_makes_the_broker_broadcast_faster_than_allowed() -> None:
    stage = broadcasting()
    for number in range(100):
        stage.do(events.Register((2, b"%d" % number), "v", b"n%d" % number, {}, 0.01))
        stage.do(events.Tick())
    assert len(stage.actions(act.BroadcastBeat)) == 1
    assert broadcasts(stage, 1.0) <= 1.0 / FASTEST_BEAT_S + 1


def test_without_the_setting_and_for_nodes_without_heartbeats_nothing_is_broadcast() -> None:
    stage = registered(heartbeat_s=1.0)
    assert broadcasts(stage, 3.0) == 0
    stage = broadcasting()
    stage.do(registration(heartbeat_s=0.0))
    assert broadcasts(stage, 30.0) == 0


# -- questions ----------------------------------------------------------------------------------------


def test_who_misses_a_beat_is_asked_in_its_conversation() -> None:
    stage = registered(serves=talking())
    stage.wait(1.4)
    assert not stage.actions(act.Ask)
    stage.wait(0.2)
    assert stage.one(act.Ask) == act.Ask((2, b"p"), "v", b"n")
    assert stage.bus.nodes[b"n"].state is NodeState.LATE
    stage.do(events.Heard((2, b"p"), "v"))
    stage.wait(NOTICE_S + 0.1)
    assert stage.bus.nodes[b"n"].state is NodeState.ALIVE
    assert names(stage)[-3:] == ["node_late", "node_asked", "node_up"]


def test_who_has_no_conversation_is_asked_at_its_own_address() -> None:
    stage = registered()
    stage.wait(1.6)
    dial = stage.one(act.Dial)
    assert dial.endpoint == REACH.endpoint
    assert stage.one(act.Ask) == act.Ask((OUT, dial.identity), "reached", b"n")
    for _ in range(10):
        stage.do(events.Answered((OUT, dial.identity)))
        assert stage.bus.nodes[b"n"].state is NodeState.ALIVE
        stage.wait(1.6)
    assert {ask.peer for ask in stage.actions(act.Ask)} == {(OUT, dial.identity)}, "the connection stays"
    assert not stage.actions(act.HangUp)
    pulse(stage)
    stage.wait(0.2)
    assert stage.one(act.HangUp).endpoint == REACH.endpoint, "datagrams come again"
    assert not stage.bus.catalog.lines
    stage.do(events.Answered((OUT, dial.identity)))


def test_who_does_not_answer_is_asked_again_and_then_gone() -> None:
    stage = registered()
    stage.wait(MISSED_BEATS - 0.1)
    assert len(stage.actions(act.Ask)) == 3
    assert b"n" in stage.bus.nodes
    stage.wait(0.2)
    assert "no answer" in stage.one(act.Forget).reason
    assert stage.one(act.HangUp)
    assert not stage.bus.catalog.lines
    assert not stage.bus.catalog.lines_at
    assert stage.bus.catalog.lapsed == 1


def test_a_broker_that_stood_still_drops_nobody_unasked() -> None:
    stage = registered()
    stage.now += 100.0
    stage.do(events.Tick())
    assert b"n" in stage.bus.nodes
    identity = stage.one(act.Dial).identity
    stage.do(events.Answered((OUT, identity)))
    stage.wait(1.0)
    assert stage.bus.nodes[b"n"].state is NodeState.ALIVE
    stage.now += 100.0
    stage.wait(ANSWER_S + 0.1)
    assert not stage.bus.nodes


@pytest.mark.parametrize("missed_beats", [3, 5])
def test_how_many_beats_may_be_missed_is_a_setting(missed_beats: int) -> None:
    stage = Stage()
    stage.bus.catalog.missed_beats = missed_beats
    stage.do(registration(reach=None))
    stage.wait(missed_beats - 0.1)
    assert b"n" in stage.bus.nodes
    stage.wait(0.2)
    assert not stage.bus.nodes


def test_who_sends_no_beats_is_asked_and_is_not_late() -> None:
    stage = registered(10.0, quiet=True)
    for _ in range(5):
        stage.wait(10.1)
        stage.do(events.Answered(stage.one(act.Ask).peer))
    assert "node_late" not in names(stage)
    assert names(stage).count("node_up") == 1, "it was never away"
    stage.wait(41.0, step=0.5)
    assert not stage.bus.nodes


def test_a_quiet_service_is_not_asked_while_it_works_unless_it_is_late() -> None:
    dialled = events.WorkerUp(REACH.place, "r", ((b"n", 0),), Heartbeat(0.0), endpoint=REACH.endpoint)
    stage = registered(10.0, quiet=True, serves=dialled)
    stage.submit("c", "1", "n", ttl_s=1000.0)
    stage.wait(14.0)
    assert not stage.actions(act.Ask)
    stage.wait(2.0)
    assert stage.one(act.Ask)


def test_a_connection_for_questions_that_was_closed_is_made_anew() -> None:
    stage = registered()
    stage.wait(1.6)
    first = stage.one(act.Ask).peer
    stage.do(events.Unasked(first))
    stage.wait(1.0)
    assert stage.one(act.Ask).peer != first
    stage.do(events.Unasked(first))


def test_of_several_nodes_at_one_address_the_last_hangs_up() -> None:
    """Hanging up closes all connections to an endpoint."""
    stage = Stage()
    for name in (b"a", b"b"):
        stage.do(events.Register((2, name), "v", name, {}, 1.0, ip="10.0.0.1", reach=REACH))
    stage.wait(1.6)
    assert len(stage.actions(act.Dial)) == 2
    stage.do(events.Pulse(b"a", HOME))
    stage.wait(0.2)
    assert not stage.actions(act.HangUp)
    stage.do(events.Pulse(b"b", HOME))
    stage.wait(0.2)
    assert stage.one(act.HangUp)


def test_more_than_can_be_asked_at_once_wait_for_their_turn() -> None:
    stage = Stage()
    count = LINES + 100
    for number in range(count):
        reach = Reach((OUT, b"node:%d" % number), f"tcp://10.0.0.1:{number + 1}", "v")
        name = b"%d" % number
        stage.do(events.Register((2, name), "v", name, {}, 1.0, ip="10.0.0.1", reach=reach))
    stage.nothing()
    stage.wait(3.0)
    assert len(stage.bus.catalog.lines) == LINES
    first = {ask.name for ask in stage.actions(act.Ask)}
    assert len(first) == LINES
    stage.wait(1.2)
    assert len(stage.bus.nodes) == count - LINES, "those that were not asked are not dropped"
    asked = {ask.name for ask in stage.actions(act.Ask)} - first
    assert len(asked) == count - LINES
    # Answers make room.
    for line in list(stage.bus.catalog.lines):
        stage.do(events.Answered(line))
    assert len(stage.bus.nodes) == count - LINES


def test_who_registered_on_a_socket_that_it_closed_is_called_at_its_address_if_it_answers_there() -> None:
    stage = registered(serves=talking())
    stage.wait(1.6)
    stage.do(events.Unasked((2, b"p")))
    question = stage.actions(act.Ask)[-1]
    assert question.voice == "reached"
    stage.do(events.Answered(question.peer))
    stage.submit("c", "1", "n")
    assert stage.one(act.Deliver).worker.endpoint == REACH.endpoint


def test_who_lost_its_conversation_and_beats_in_datagrams_is_told_so() -> None:
    stage = registered(serves=talking())
    pulse(stage)
    stage.wait(0.2)
    assert not stage.one(act.Beckon).ended
    stage.do(events.WorkerGone((2, b"p"), "it cannot be reached"))
    for _ in range(4):
        pulse(stage)
        stage.wait(1.0)
    assert stage.actions(act.Beckon)[-1].ended
    assert b"n" in stage.bus.nodes
    stage.nothing()
    stage.do(registration(serves=talking(b"q")))
    assert stage.one(act.Approve)


# -- on disk ------------------------------------------------------------------------------------------


def stored() -> Stage:
    stage = Stage()
    stage.bus.store_trouble = ""
    stage.do(registration(serves=talking()))
    return stage


def test_approved_and_given_work_when_it_is_on_disk() -> None:
    stage = stored()
    stage.submit("c", "1", "n")
    assert stage.nothing()
    number, lines = stage.bus.take_lines()
    entry = NodeEntry(b"n", b'{"ip":"10.0.0.1","port":1}', 1.0, "some.way", stage.bus.wall_at(stage.now))
    assert lines == [Registered(entry)]
    # Whatever it says before counts.
    stage.do(events.NodeBeat((2, b"p"), "v", b"n"))
    stage.nothing()
    stage.do(events.Written(number))
    assert [type(action) for action in stage.taken] == [act.Approve, act.Deliver]


def test_a_sick_store_keeps_nobody_waiting() -> None:
    stage = stored()
    stage.do(events.StoreHealth("the disk is full"))
    assert stage.one(act.Approve)
    stage.do(events.Register((2, b"q"), "v", b"other", {}, 1.0))
    assert stage.one(act.Approve)
    assert len(stage.bus.take_lines()[1]) == 2, "written when that is possible again"


def test_that_the_store_is_well_does_not_mean_that_everything_is_on_disk() -> None:
    stage = stored()
    stage.do(events.StoreHealth(""))
    assert not stage.actions(act.Approve)
    number, _ = stage.bus.take_lines()
    stage.do(events.Written(number))
    assert stage.one(act.Approve)


def test_who_left_before_it_was_on_disk_is_not_approved() -> None:
    stage = stored()
    stage.do(events.NodeLeft((2, b"p"), b"n"))
    number, lines = stage.bus.take_lines()
    assert [type(line) for line in lines] == [Registered, Deregistered]
    stage.do(events.Written(number))
    assert not stage.actions(act.Approve)
    assert not stage.bus.workers


def test_without_a_store_nothing_is_written() -> None:
    stage = registered()
    assert stage.bus.store_trouble == NO_STORE
    stage.wait(MISSED_BEATS + 0.5)
    assert not stage.bus.nodes
    assert not stage.bus.lines


def test_an_update_is_written() -> None:
    stage = stored()
    stage.bus.take_lines()
    stage.do(events.UpdateNode((2, b"p"), "v", b"n", {"port": 2}, how="other.way"))
    (line,) = stage.bus.take_lines()[1]
    assert isinstance(line, Registered)
    assert (line.entry.info, line.entry.how) == (b'{"ip":"10.0.0.1","port":2}', "other.way")


def restored(**more: Any) -> Stage:
    stage = Stage()
    entry = NodeEntry(b"n", b"{}", 1.0, "some.way", 0.0)
    revived = {entry.name: registration(**more)}
    catalog.restore(
        stage.bus, [entry, NodeEntry(b"x", b"{}", 1.0, "?", 0.0)], lambda e: revived.get(e.name), 1000.0
    )
    return stage


def test_after_a_restart_a_node_has_the_usual_time_to_show_itself() -> None:
    stage = restored()
    stage.wait(1.0)
    assert set(stage.bus.nodes) == {b"n"}, "what nobody can speak to is left alone"
    stage.do(events.Register((2, b"new"), "v", b"n", {"ip": "10.0.0.9", "port": 9}, 1.0))
    assert "alive, at 10.0.0.1:1" in stage.one(act.Deny).reasons[0]
    stage.wait(0.6)
    assert stage.one(act.Ask).voice == "reached"
    stage.wait(MISSED_BEATS)
    assert not stage.bus.nodes


def test_after_a_restart_who_is_called_at_its_address_is_dialled() -> None:
    stage = restored(
        serves=events.WorkerUp(REACH.place, "r", ((b"n", 0),), Heartbeat(0.0), endpoint=REACH.endpoint)
    )
    stage.submit("c", "1", "n")
    stage.do(events.Tick())
    assert stage.one(act.Dial).endpoint == REACH.endpoint
    assert stage.one(act.Deliver)


def test_after_a_restart_a_heartbeat_over_tcp_begins_a_new_conversation() -> None:
    stage = restored(serves=talking())
    stage.do(events.NodeBeat((2, b"again"), "v", b"n"))
    assert stage.one(act.Dismiss).reason == act.UNKNOWN_WORKER
    stage.do(registration(serves=talking(b"again")))
    assert stage.one(act.Approve)


@pytest.mark.parametrize(("quiet", "after_s"), [(False, 1.5), (True, 1.0)])
def test_a_new_node_is_looked_at_when_its_first_beat_is_missing_or_the_first_question_is_due(
    quiet: bool, after_s: float
) -> None:
    stage = registered(1.0, quiet=quiet)
    assert stage.bus.leases.soonest == pytest.approx(stage.now + after_s, abs=0.051)


def test_a_node_at_work_may_be_silent_for_as_long_as_its_queue_allows() -> None:
    stage = registered(1.0, serves=talking())
    stage.bus.change_policies([("n", QueuePolicy(silence_s=20.0))])
    stage.submit("c", "1", "n", ttl_s=100.0)
    stage.wait(19.5)
    assert b"n" in stage.bus.nodes
    stage.wait(1.5)
    assert b"n" not in stage.bus.nodes
