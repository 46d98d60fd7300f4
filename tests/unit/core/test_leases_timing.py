"""The instants at which leases end and questions and datagrams are due, and how often a node is looked at.

Times are multiples of 1/16 s, which are exact as floating-point numbers.
"""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core import actions as act
from polybus.core import events, leases
from polybus.core.leases import ANSWER_S, MISSED_BEATS, NOTICE_S
from polybus.core.lifecycle import NodeState
from polybus.core.model import Heartbeat, Reach
from polybus.core.timers import SLOTS_PER_S
from support.stage import NEVER_DEAD, Stage

OUT = 9
PEER = (2, b"p")
HOME = ("10.0.0.1", 4000)
REACH = Reach((OUT, b"node:n"), "tcp://10.0.0.1:1", "reached")
MOVED = Reach((OUT, b"node:n"), "tcp://10.0.0.2:1", "reached")
TALKING = events.WorkerUp(PEER, "v", ((b"n", 0),), Heartbeat(400.0, 100.0))
# The first moment after the slot in which a node with heartbeats every second is looked at.
FIRST_LOOK = 1.5625
SIXTEENTH = 0.0625


def registered(heartbeat_s: float = 1.0, now: float = 1000.0, **more: Any) -> Stage:
    stage = Stage()
    stage.now = now
    facts: dict[str, Any] = {"ip": "10.0.0.1", "reach": REACH, "how": "some.way", **more}
    stage.do(events.Register(PEER, "v", b"n", {"ip": "10.0.0.1", "port": 1}, heartbeat_s, **facts))
    stage.nothing()
    return stage


def pulse(stage: Stage, source: tuple[Any, ...] = HOME) -> None:
    stage.do(events.Pulse(b"n", source))


def at(stage: Stage, seconds: float) -> None:
    """The clock, which began at 1000, jumps to this time."""
    stage.now = 1000.0 + seconds
    stage.do(events.Tick())


def looks(stage: Stage, seconds: float) -> int:
    """How often the node is looked at within this time."""
    count = 0
    for _ in range(round(seconds * SLOTS_PER_S)):
        before = stage.bus.nodes[b"n"].slot
        stage.wait(1 / SLOTS_PER_S)
        count += stage.bus.nodes[b"n"].slot != before
    return count


# -- leases -------------------------------------------------------------------------------------------


def test_a_lease_ends_in_the_instant_in_which_the_last_beat_is_missing() -> None:
    stage = registered(reach=None)
    at(stage, MISSED_BEATS)
    gone = stage.one(act.Forget)
    assert gone.reason == "no heartbeat for 4.0 s", "nobody could be asked"
    assert gone.entry.state is NodeState.DOWN
    stage = registered(reach=None)
    at(stage, MISSED_BEATS - SIXTEENTH)
    assert not stage.actions(act.Forget)


def test_who_is_asked_late_has_the_whole_time_to_answer() -> None:
    stage = registered()
    at(stage, 100.0)
    assert stage.one(act.Ask).voice == "reached"
    for sixteenths in range(1, int(ANSWER_S * 16)):
        at(stage, 100.0 + sixteenths / 16)
        assert b"n" in stage.bus.nodes
    at(stage, 100.0 + ANSWER_S + SIXTEENTH)
    assert stage.one(act.Forget).reason == "no heartbeat for 102.1 s and no answer"


def test_who_is_asked_late_may_answer_until_exactly_then() -> None:
    stage = registered()
    at(stage, 100.0)
    at(stage, 100.0 + ANSWER_S)
    assert stage.one(act.Forget)


@pytest.mark.parametrize("after_s", [0.0, SIXTEENTH])
def test_who_answered_before_the_broker_stood_still_is_asked_again(after_s: float) -> None:
    stage = registered(serves=TALKING)
    stage.bus.nodes[b"n"].worker.heartbeat = NEVER_DEAD  # type: ignore[union-attr]
    at(stage, FIRST_LOOK)
    assert stage.one(act.Ask).peer == PEER
    stage.now += after_s
    stage.do(events.Heard(PEER, "v"))
    at(stage, 100.0)
    assert b"n" in stage.bus.nodes
    assert stage.one(act.Ask).peer == PEER


@pytest.mark.parametrize(("silent_s", "is_free"), [(1.5 - SIXTEENTH, False), (1.5, True)])
def test_others_may_have_the_name_of_a_late_node_half_an_interval_after_its_beat_was_due(
    silent_s: float, is_free: bool
) -> None:
    stage = registered(serves=TALKING)
    at(stage, FIRST_LOOK)
    assert stage.bus.nodes[b"n"].state is NodeState.LATE
    stage.do(events.Heard(PEER, "v"))
    stage.now += silent_s
    stage.nothing()
    stage.do(events.Register((2, b"q"), "q", b"n", {"ip": "10.0.0.2", "port": 1}, 1.0))
    assert len(stage.actions(act.Approve)) == is_free
    assert len(stage.actions(act.Deny)) == (not is_free)


def test_a_goodbye_counts_in_the_instant_in_which_the_time_for_an_answer_is_over() -> None:
    stage = registered(5.0)
    leases.say_goodbye(stage.bus, stage.bus.nodes[b"n"], stage.now)
    at(stage, ANSWER_S)
    assert stage.one(act.Forget).reason == "it left"


def test_after_a_claim_that_was_refused_the_holder_is_watched_as_before() -> None:
    stage = registered(serves=TALKING)
    stage.bus.nodes[b"n"].worker.heartbeat = NEVER_DEAD  # type: ignore[union-attr]
    serves = events.WorkerUp((2, b"q"), "q", ((b"n", 0),), NEVER_DEAD)
    stage.do(events.Register((2, b"q"), "q", b"n", {"ip": "10.0.0.1", "port": 1}, 1.0, serves=serves))
    stage.wait(0.1)
    stage.do(events.Heard(PEER, "v"))
    stage.wait(0.3)
    assert stage.one(act.Deny).node == (2, b"q")
    stage.wait(1.4)
    assert stage.bus.nodes[b"n"].state is NodeState.LATE
    stage.wait(2.6)
    assert not stage.bus.nodes


def test_a_lease_ends_also_if_the_clock_began_a_moment_ago() -> None:
    stage = registered(0.125, now=0.0)
    stage.wait(0.4)
    assert stage.bus.nodes[b"n"].asked_since > 0.0
    stage.wait(0.3)
    assert stage.one(act.Forget).reason.endswith(" and no answer")


@pytest.mark.parametrize(("heartbeat_s", "is_watched"), [(0.0, False), (0.5, True), (60.0, True)])
def test_an_answer_to_who_wants_a_name_is_noticed_soon(heartbeat_s: float, is_watched: bool) -> None:
    stage = registered(heartbeat_s, serves=TALKING)
    serves = events.WorkerUp((2, b"q"), "q", ((b"n", 0),), NEVER_DEAD)
    event = events.Register((2, b"q"), "q", b"n", {"ip": "10.0.0.1", "port": 1}, 1.0, serves=serves)
    stage.do(event)
    assert stage.one(act.Ask).peer == PEER
    slot = stage.bus.nodes[b"n"].slot
    assert slot == (int((stage.now + NOTICE_S) * SLOTS_PER_S) + 1 if is_watched else 0)


# -- questions ----------------------------------------------------------------------------------------


def test_questions_are_counted() -> None:
    stage = registered()
    stage.wait(MISSED_BEATS + 0.2)
    assert len(stage.actions(act.Ask)) == 3
    assert stage.bus.catalog.facts()["nodes_asked"] == 3


def test_who_does_not_answer_is_asked_again_after_exactly_one_interval() -> None:
    stage = registered()
    at(stage, FIRST_LOOK)
    assert stage.one(act.Ask)
    at(stage, FIRST_LOOK + 1.0 - SIXTEENTH)
    assert not stage.actions(act.Ask)
    stage = registered()
    at(stage, FIRST_LOOK)
    assert stage.one(act.Ask)
    at(stage, FIRST_LOOK + 1.0)
    assert stage.one(act.Ask)


def test_who_is_asked_in_time_has_what_is_left_of_its_lease_to_answer() -> None:
    """It is asked when it is late, which is noticed one slot of the timers later at most."""
    stage = registered(0.5)
    left_s = 0.5 * (MISSED_BEATS - 1.5) - 1 / SLOTS_PER_S
    assert leases.answer_s(stage.bus, stage.bus.nodes[b"n"]) == pytest.approx(left_s)
    for heartbeat_s, expected in ((0.0, NOTICE_S), (0.1, NOTICE_S), (1.0, ANSWER_S), (60.0, ANSWER_S)):
        stage.bus.nodes[b"n"].heartbeat_s = heartbeat_s
        assert leases.answer_s(stage.bus, stage.bus.nodes[b"n"]) == expected


def test_a_node_that_answered_and_lost_its_conversation_later_is_asked_at_its_address() -> None:
    stage = registered(serves=TALKING)
    stage.wait(1.6)
    assert stage.one(act.Ask).peer == PEER
    pulse(stage)
    stage.wait(0.2)
    assert not stage.one(act.Beckon).ended
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    for _ in range(2):
        pulse(stage)
        stage.wait(1.0)
    assert stage.one(act.Ask).voice == "reached"
    assert not any(beckon.ended for beckon in stage.actions(act.Beckon)), "it has time to answer"


def test_a_question_does_not_close_the_connection_of_a_worker_at_the_same_address() -> None:
    stage = Stage()
    serves = events.WorkerUp((OUT, b"a"), "a", ((b"a", 0),), NEVER_DEAD, endpoint=REACH.endpoint)
    stage.do(events.Register((2, b"a"), "a", b"a", {}, 0.0, serves=serves))
    stage.do(events.Register((2, b"n"), "n", b"n", {}, 1.0, ip="10.0.0.1", reach=REACH))
    called = stage.bus.nodes[b"a"].worker
    stage.wait(1.6)
    line = stage.one(act.Ask).peer
    assert line[0] == OUT
    stage.nothing()
    pulse(stage)
    stage.wait(0.2)
    assert stage.bus.nodes[b"n"].line is None
    assert not stage.actions(act.HangUp)
    assert stage.bus.nodes[b"a"].worker is called
    # The connection is there for the next question.
    stage.wait(1.6)
    assert stage.one(act.Ask).peer == line
    assert not stage.actions(act.Dial)


# -- datagrams ----------------------------------------------------------------------------------------


def beckoned(**more: Any) -> Stage:
    """Our first datagram has gone at 1/16 s."""
    stage = registered(**more)
    pulse(stage)
    at(stage, SIXTEENTH)
    assert stage.one(act.Beckon).to == HOME
    return stage


@pytest.mark.parametrize(("heartbeat_s", "next_s"), [(None, 1.0), (0.5, 0.5), (2.0, 2.0)])
def test_an_update_does_not_put_off_our_datagrams(heartbeat_s: float | None, next_s: float) -> None:
    stage = beckoned()
    for quarter in (1, 2):
        stage.now = 1000.0 + quarter / 4
        stage.do(events.UpdateNode(PEER, "v", b"n", {}, heartbeat_s=heartbeat_s))
    pulse(stage)
    while stage.now < 1000.0 + next_s:
        stage.wait(SIXTEENTH, step=SIXTEENTH)
        assert not stage.actions(act.Beckon) or stage.now - 1000.0 >= next_s
    stage.wait(0.125, step=SIXTEENTH)
    assert stage.one(act.Beckon).to == HOME


def test_an_update_after_the_interval_was_shortened_below_what_has_passed_sends_a_datagram_at_once() -> None:
    stage = beckoned(heartbeat_s=60.0)
    at(stage, 10.0)
    stage.do(events.UpdateNode(PEER, "v", b"n", {}, heartbeat_s=5.0))
    at(stage, 10.0625)
    assert stage.one(act.Beckon).to == HOME


def test_after_a_move_our_first_datagram_goes_one_interval_after_the_last() -> None:
    stage = beckoned()
    stage.now = 1000.5
    stage.do(events.UpdateNode(PEER, "v", b"n", {}, ip="10.0.0.2", reach=MOVED))
    stage.now = 1000.0 + SIXTEENTH + 1.0
    pulse(stage, ("10.0.0.2", 4000))
    at(stage, SIXTEENTH + 1.0 + SIXTEENTH)
    assert stage.one(act.Beckon).to == ("10.0.0.2", 4000)


@pytest.mark.parametrize(("after_s", "is_sent"), [(1.0 - SIXTEENTH, False), (1.0, True)])
def test_a_datagram_is_due_exactly_one_interval_after_the_last(after_s: float, is_sent: bool) -> None:
    stage = beckoned()
    stage.now = 1000.5
    pulse(stage)
    # The node is looked at every quarter of a second because of this.
    leases.say_goodbye(stage.bus, stage.bus.nodes[b"n"], stage.now)
    at(stage, SIXTEENTH + after_s)
    assert len(stage.actions(act.Beckon)) == is_sent


def test_datagrams_that_come_in_every_turn_do_not_put_off_ours() -> None:
    stage = beckoned()
    # A little more than four intervals.
    for _ in range(4 * 64 + 8):
        stage.now += SIXTEENTH / 4
        # As in a broker, which hears what came in before it looks at what is due.
        pulse(stage)
        stage.do(events.Tick())
    assert len(stage.actions(act.Beckon)) == 4


def test_after_a_standstill_of_exactly_two_intervals_no_datagram_is_made_up_for() -> None:
    stage = beckoned()
    stage.now = 1002.0
    pulse(stage)
    at(stage, SIXTEENTH + 2.0)
    assert stage.one(act.Beckon)
    stage.wait(0.875, step=SIXTEENTH)
    assert not stage.actions(act.Beckon)
    stage.wait(0.25, step=SIXTEENTH)
    assert stage.one(act.Beckon)


@pytest.mark.parametrize(("after_s", "is_sent"), [(4.0 - SIXTEENTH, True), (4.0, False)])
def test_our_datagrams_cease_when_none_came_for_as_many_intervals_as_the_setting_says(
    after_s: float, is_sent: bool
) -> None:
    stage = beckoned()
    stage.now = 1003.0
    stage.do(events.NodeBeat(PEER, "v", b"n"))
    at(stage, after_s)
    assert len(stage.actions(act.Beckon)) == is_sent
    assert (stage.bus.nodes[b"n"].pulse_from is not None) == is_sent


@pytest.mark.parametrize("began", [0.25, 1000.0])
def test_a_mute_node_is_told_so_in_the_instant_in_which_its_time_for_an_answer_is_over(began: float) -> None:
    stage = registered(0.25, now=began, serves=TALKING)
    stage.bus.catalog.missed_beats = 5
    node = stage.bus.nodes[b"n"]
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    pulse(stage)
    stage.now += 0.125
    stage.do(events.Tick())
    assert stage.one(act.Ask).voice == "reached"
    assert not stage.one(act.Beckon).ended
    answer_s = leases.answer_s(stage.bus, node)
    asked_at = stage.now
    stage.now = asked_at + answer_s - 0.125
    pulse(stage)
    stage.now = asked_at + answer_s
    assert stage.now - node.asked_since >= answer_s
    stage.do(events.Tick())
    assert stage.one(act.Beckon).ended


def test_a_mute_node_is_told_so_after_exactly_the_time_for_an_answer() -> None:
    stage = registered(serves=TALKING)
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    pulse(stage)
    at(stage, SIXTEENTH)
    assert stage.one(act.Ask).voice == "reached"
    stage.actions(act.Beckon)
    stage.now = 1001.0
    pulse(stage)
    at(stage, SIXTEENTH + ANSWER_S)
    assert stage.one(act.Beckon).ended
    assert stage.one(act.HangUp).endpoint == REACH.endpoint


def test_after_a_move_no_datagram_goes_before_the_node_has_shown_itself_at_its_new_place() -> None:
    stage = beckoned()
    stage.do(events.UpdateNode(PEER, "v", b"n", {}, ip="10.0.0.2", reach=MOVED))
    for _ in range(6):
        stage.wait(0.5)
        stage.do(events.NodeBeat(PEER, "v", b"n"))
    assert not stage.actions(act.Beckon)


def test_a_datagram_stands_for_a_beat_over_tcp_until_half_an_interval_after_the_next_is_due() -> None:
    stage = beckoned(serves=TALKING)
    worker = stage.bus.nodes[b"n"].worker
    assert worker is not None
    assert worker.spoken_at == stage.now + 0.5


# -- looks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [4000, 4001])
def test_a_node_without_heartbeats_is_not_looked_at_because_of_datagrams(port: int) -> None:
    stage = registered(0.0)
    assert stage.bus.nodes[b"n"].slot == 0
    pulse(stage)
    pulse(stage, (HOME[0], port))
    assert stage.bus.nodes[b"n"].slot == 0
    assert looks(stage, 2.0) == 0


def test_a_node_that_moves_from_port_to_port_is_not_looked_at_for_each_of_its_datagrams() -> None:
    stage = beckoned(heartbeat_s=60.0)
    slot = stage.bus.nodes[b"n"].slot
    for port in range(1, 10):
        stage.wait(0.1)
        pulse(stage, (HOME[0], port))
        assert stage.bus.nodes[b"n"].slot == slot


def test_a_node_that_beats_in_datagrams_is_looked_at_when_ours_are_due() -> None:
    stage = registered(2.0)
    count = 0
    for _ in range(5):
        pulse(stage)
        count += looks(stage, 2.0)
    assert count <= 2 * 5


def test_a_late_node_is_looked_at_when_an_answer_may_be_there_or_a_question_is_due() -> None:
    stage = registered(4.0)
    stage.wait(6.1)
    assert stage.one(act.Ask)
    assert looks(stage, 8.0) <= 5
    assert len(stage.actions(act.Ask)) == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_that_sends_no_beats_is_looked_at_when_it_is_to_be_asked_or_is_late(answers: bool) -> None:
    stage = registered(4.0, quiet=True)
    stage.wait(2.0)
    if answers:
        pulse(stage)
        stage.bus.nodes[b"n"].pulse_from = None
    assert looks(stage, 3.5) <= 2
    assert stage.bus.nodes[b"n"].state is NodeState.ALIVE


def test_a_node_that_sends_no_beats_is_asked_exactly_one_interval_after_it_was_heard() -> None:
    stage = registered(quiet=True)
    stage.now = 1000.25
    pulse(stage)
    at(stage, 1.25)
    assert stage.one(act.Ask).voice == "reached"


@pytest.mark.parametrize("heartbeat_s", [1.0, 10.0])
def test_a_node_that_sends_no_beats_and_does_not_answer_is_late_half_an_interval_later(
    heartbeat_s: float,
) -> None:
    stage = registered(heartbeat_s, quiet=True)
    assert looks(stage, 1.5 * heartbeat_s - 0.05) == 1
    assert stage.one(act.Ask)
    assert stage.bus.nodes[b"n"].state is NodeState.ALIVE
    stage.wait(0.15)
    assert stage.bus.nodes[b"n"].state is NodeState.LATE


def test_a_node_without_heartbeats_is_looked_at_while_a_goodbye_waits_for_an_answer() -> None:
    stage = registered(0.0, serves=events.WorkerUp(PEER, "v", ((b"n", 0),), NEVER_DEAD))
    stage.submit("c", "1", "n")
    leases.say_goodbye(stage.bus, stage.bus.nodes[b"n"], stage.now)
    # It has work, so it stays.
    assert 6 <= looks(stage, 2.0) <= 8
    stage.do(events.Heard(PEER, "v"))
    stage.wait(0.5)
    assert stage.bus.nodes[b"n"].slot == 0


def test_a_mute_node_is_looked_at_when_its_time_for_an_answer_is_over_and_then_once_in_an_interval() -> None:
    stage = registered(4.0, serves=TALKING)
    stage.do(events.WorkerGone(PEER, "it cannot be reached"))
    count = 0
    for _ in range(10):
        stage.do(events.Pulse(b"n", HOME))
        stage.bus.nodes[b"n"].pulse_from = None
        count += looks(stage, 2.0)
    assert stage.one(act.Ask).voice == "reached"
    assert stage.one(act.HangUp)
    assert count <= 10


def test_nodes_without_heartbeats_do_not_hasten_a_broadcast_that_others_wait_for() -> None:
    stage = Stage()
    stage.bus.catalog.broadcasts = True
    stage.do(events.Register((2, b"b"), "v", b"b", {}, 60.0))
    stage.wait(1.0)
    assert stage.one(act.BroadcastBeat)
    stage.do(events.Register((2, b"a"), "v", b"a", {}, 0.0))
    assert stage.bus.nodes[b"a"].slot == 0
    stage.wait(10.0)
    assert not stage.actions(act.BroadcastBeat)


def test_an_update_does_not_have_the_node_looked_at_before_a_datagram_is_due() -> None:
    stage = beckoned()
    stage.now = 1000.5
    stage.do(events.UpdateNode(PEER, "v", b"n", {}))
    assert stage.bus.nodes[b"n"].slot == int((1000.0 + SIXTEENTH + 1.0) * SLOTS_PER_S) + 1


def test_a_question_does_not_put_off_a_look_that_is_due_when_an_answer_may_be_there() -> None:
    stage = registered(now=1000.0 - 1.5 + 0.21875)
    slot = stage.bus.nodes[b"n"].slot
    assert slot == (1000.0 + NOTICE_S) * SLOTS_PER_S
    leases.say_goodbye(stage.bus, stage.bus.nodes[b"n"], 1000.0)
    assert stage.bus.nodes[b"n"].slot == slot


def test_a_node_that_left_after_a_question_is_not_looked_at_any_more() -> None:
    stage = registered(5.0)
    leases.say_goodbye(stage.bus, stage.bus.nodes[b"n"], stage.now)
    stage.do(events.NodeLeft(PEER, b"n"))
    stage.nothing()
    stage.wait(30.0, step=0.25)
    assert stage.nothing()
    assert not stage.told("node_late")
    assert len(stage.told("node_down")) == 1


def test_a_look_between_two_datagrams_is_followed_by_one_when_the_next_is_due() -> None:
    stage = beckoned(heartbeat_s=8.0)
    pulse(stage)
    leases.ask_now(stage.bus, stage.bus.nodes[b"n"], stage.now)
    assert looks(stage, 4.0) == 1
    assert stage.bus.nodes[b"n"].slot == int((1000.0 + SIXTEENTH + 8.0) * SLOTS_PER_S) + 1
