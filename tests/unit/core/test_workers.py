"""Workers and schedulers: how they come, how their life is watched, how they rest and go."""

from __future__ import annotations

from itertools import pairwise

import pytest

from polybus.core import actions as act
from polybus.core import events, views
from polybus.core.lifecycle import WorkerState
from polybus.core.model import Heartbeat, Limits, QueuePolicy, Reach, Reason, Worker
from support.stage import NEVER_DEAD, Stage, client, worker

ASKS = Heartbeat(dead_after_s=2.5, beat_every_s=0.5, when_silent=True)
BEATS = Heartbeat(dead_after_s=7.5, beat_every_s=2.5)
LISTENS = Heartbeat(dead_after_s=3.0)
QUICK = Heartbeat(dead_after_s=1.0, beat_every_s=0.25)


# -- watched ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heartbeat", [ASKS, BEATS, LISTENS, QUICK])
def test_a_silent_worker_is_given_up_in_time(heartbeat: Heartbeat) -> None:
    stage = Stage()
    stage.worker("w", heartbeat=heartbeat)
    stage.submit("c", "1")
    stage.wait(heartbeat.dead_after_s - 0.05)
    assert worker("w") in stage.bus.workers
    stage.actions(act.Beat)
    stage.nothing()
    stage.wait(0.15)
    assert worker("w") not in stage.bus.workers
    # It may only be busy, so it is not told to leave.
    assert not stage.actions(act.Dismiss)
    assert stage.bus.counters.workers_lost == 1
    assert stage.told("heartbeat_missed")
    assert stage.request("c", "1").worker is None
    assert stage.bus.next_at(stage.now) > stage.now


@pytest.mark.parametrize("heartbeat", [ASKS, BEATS, LISTENS, QUICK])
def test_a_silent_worker_without_work_is_sent_away(heartbeat: Heartbeat) -> None:
    stage = Stage()
    stage.worker("w", heartbeat=heartbeat)
    stage.wait(heartbeat.dead_after_s + 0.1)
    assert worker("w") not in stage.bus.workers
    dismissal = stage.one(act.Dismiss)
    assert (dismissal.peer, dismissal.voice, dismissal.reason) == (worker("w"), "w", act.HEARTBEAT_MISSED)


@pytest.mark.parametrize("heartbeat", [ASKS, BEATS, LISTENS, QUICK])
@pytest.mark.parametrize("sign", ["heard", "part", "result", "fail", "slot", "offer"])
def test_whatever_it_says_keeps_it(heartbeat: Heartbeat, sign: str) -> None:
    stage = Stage()
    stage.worker("w", credit=2, heartbeat=heartbeat)
    for number in range(20):
        stage.submit("c", str(number))
        stage.wait(heartbeat.dead_after_s * 0.4)
        match sign:
            case "heard":
                stage.heard("w")
            case "part":
                stage.part("w")
            case "result":
                stage.result("w")
            case "fail":
                stage.fail("w")
            case "slot":
                stage.do(events.Slot(worker("w"), "w"))
            case "offer":
                stage.do(events.Offer(worker("w"), "w", b"more"))
    assert worker("w") in stage.bus.workers
    assert stage.bus.counters.workers_lost == 0


def test_unwatched_workers_stay() -> None:
    stage = Stage()
    stage.worker("w", heartbeat=NEVER_DEAD)
    stage.wait(10_000.0, step=100.0)
    assert worker("w") in stage.bus.workers
    assert stage.nothing()


def test_it_is_asked_only_when_it_is_silent() -> None:
    stage = Stage()
    stage.worker("w", heartbeat=ASKS)
    for _ in range(20):
        stage.wait(0.4)
        stage.heard("w")
    assert stage.actions(act.Beat) == []
    # It is looked after once an interval, so it may take nearly two.
    stage.wait(0.95)
    assert stage.one(act.Beat).worker.address == worker("w")


def test_what_we_say_does_not_keep_us_from_asking() -> None:
    stage = Stage()
    stage.worker("w", credit=100, heartbeat=ASKS)
    for number in range(4):
        stage.submit("c", str(number))
        stage.wait(0.2)
    assert stage.actions(act.Beat)


def test_a_beat_is_due_only_when_nothing_was_said() -> None:
    stage = Stage()
    stage.worker("w", credit=1000, heartbeat=BEATS)
    for number in range(20):
        stage.submit("c", str(number))
        stage.wait(1.0)
        stage.heard("w")
    assert stage.actions(act.Beat) == []
    stage.wait(5.1)
    assert 1 <= len(stage.actions(act.Beat)) <= 2


def test_beats_come_regularly_to_a_silent_worker_until_it_is_given_up() -> None:
    stage = Stage()
    stage.worker("w", heartbeat=ASKS)
    stage.wait(5.0)
    assert 3 <= len(stage.actions(act.Beat)) <= 5


def test_only_listening_sends_no_beats() -> None:
    stage = Stage()
    stage.worker("w", heartbeat=LISTENS)
    stage.wait(2.5)
    assert stage.nothing()


def test_missed_beats_are_counted() -> None:
    stage = Stage()
    held = stage.worker("w", heartbeat=BEATS)
    stage.wait(6.0)
    assert held.missed >= 1


@pytest.mark.parametrize(
    "event",
    [
        events.Heard(worker("stranger"), "voice"),
        events.Slot(worker("stranger"), "voice"),
        events.Offer(worker("stranger"), "voice", b"echo"),
    ],
)
def test_a_stranger_is_told_that_it_is_unknown(event: object) -> None:
    stage = Stage()
    stage.do(event)
    dismissal = stage.one(act.Dismiss)
    assert (dismissal.peer, dismissal.voice) == (worker("stranger"), "voice")
    assert dismissal.reason == act.UNKNOWN_WORKER
    assert not stage.bus.workers


def test_a_stranger_that_goes_or_is_full_is_nobodys_business() -> None:
    stage = Stage()
    stage.gone("stranger")
    stage.do(events.WorkerFull(worker("stranger"), b"x"))
    assert stage.nothing()


def test_too_many_services_send_a_worker_away() -> None:
    stage = Stage(Limits(services=1))
    stage.worker("w", "a")
    stage.do(events.WorkerUp(worker("x"), "x", ((b"b", 0),), NEVER_DEAD))
    assert stage.one(act.Dismiss).reason == Reason.TOO_MANY_SERVICES
    assert worker("x") not in stage.bus.workers
    stage.do(events.Offer(worker("w"), "w", b"b"))
    assert stage.one(act.Dismiss).peer == worker("w")
    assert not stage.bus.workers, "it would wait for requests that never come"


# -- rests --------------------------------------------------------------------------------------------


def test_a_full_worker_rests_and_its_request_goes_to_somebody_else() -> None:
    stage = Stage()
    full = stage.worker("full", credit=5)
    stage.submit("c", "1")
    stage.worker("other", credit=1)
    stage.nothing()
    stage.do(events.WorkerFull(worker("full"), stage.token("c", "1")))
    assert stage.delivered() == [("other", "1")]
    assert full.state is WorkerState.CONGESTED
    stage.submit("c", "2")
    assert stage.nothing(), "it is left alone"


def resting(stage: Stage) -> Worker:
    """A worker with free slots, one request and a full pipe; four more wait."""
    held = stage.worker("w", credit=10)
    for number in "01234":
        stage.submit("c", number)
    for number in "4321":
        stage.do(events.WorkerFull(worker("w"), stage.token("c", number)))
    assert held.state is WorkerState.CONGESTED
    stage.nothing()
    return held


def test_it_takes_requests_again_when_it_is_heard() -> None:
    stage = Stage()
    held = resting(stage)
    stage.heard("w")
    assert held.state is WorkerState.SERVING
    assert stage.delivered() == [("w", number) for number in "1234"]


@pytest.mark.parametrize("sign", ["slot", "result", "fail"])
def test_while_it_rests_it_gets_one_request_for_each_slot(sign: str) -> None:
    """All at once would only be refused again, and that with every answer."""
    stage = Stage()
    held = resting(stage)
    for number in "12":
        match sign:
            case "slot":
                stage.do(events.Slot(worker("w"), "w"))
            case "result":
                stage.result("w")
            case "fail":
                stage.fail("w")
        assert stage.delivered() == [("w", number)]
    assert held.state is WorkerState.CONGESTED


def test_it_is_tried_again_after_a_while_even_if_it_says_nothing() -> None:
    stage = Stage()
    stage.worker("w", credit=3, heartbeat=BEATS)
    stage.submit("c", "1")
    stage.do(events.WorkerFull(worker("w"), stage.token("c", "1")))
    stage.nothing()
    stage.wait(2.6)
    assert stage.delivered() == [("w", "1")]
    stage.wait(5.1)
    assert worker("w") not in stage.bus.workers, "trying is not hearing"


def test_full_for_what_it_no_longer_has_means_nothing() -> None:
    stage = Stage()
    held = stage.worker("w", credit=2)
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.result("w")
    stage.nothing()
    stage.do(events.WorkerFull(worker("w"), token))
    assert stage.nothing()
    assert (held.state, held.free) == (WorkerState.SERVING, 2)


def test_full_for_what_was_withdrawn_frees_the_slot() -> None:
    stage = Stage()
    held = stage.worker("w", credit=1)
    stage.submit("c", "1")
    token = stage.token("c", "1")
    stage.do(events.Cancel(client("c"), b"1"))
    stage.do(events.WorkerFull(worker("w"), token))
    assert (held.free, held.inflight) == (1, {})
    assert not stage.bus.requests


# -- schedulers ---------------------------------------------------------------------------------------


def scheduler(stage: Stage, name: str) -> None:
    stage.do(events.SchedulerUp(worker(name), name, LISTENS))


def schedule(stage: Stage, message: str, remove: bool = False) -> None:
    stage.do(events.Schedule(client("c"), "voice", message.encode(), message, remove))


def test_schedules_go_to_schedulers_in_turn_and_removals_to_all() -> None:
    stage = Stage()
    scheduler(stage, "s1")
    scheduler(stage, "s2")
    for message in ("a", "b", "c"):
        schedule(stage, message)
    sent = [(a.worker.voice, a.message) for a in stage.actions(act.Reschedule)]
    assert sent == [("s1", "a"), ("s2", "b"), ("s1", "c")]
    assert [a.request_id for a in stage.actions(act.Accept)] == [b"a", b"b", b"c"]
    schedule(stage, "a", remove=True)
    assert {a.worker.voice for a in stage.actions(act.Reschedule)} == {"s1", "s2"}


def test_a_silent_scheduler_is_given_up() -> None:
    stage = Stage()
    scheduler(stage, "s")
    stage.wait(3.2)
    assert stage.one(act.Dismiss).peer == worker("s")
    assert not stage.bus.schedulers
    schedule(stage, "a")
    assert not stage.actions(act.Reschedule)


def test_a_scheduler_that_begins_anew_is_there_once() -> None:
    stage = Stage()
    scheduler(stage, "s")
    scheduler(stage, "s")
    assert len(stage.bus.schedulers) == 1
    stage.gone("s")
    assert not stage.bus.schedulers
    assert not stage.bus.workers


@pytest.mark.parametrize("said_at", [0.1, 0.9, 2.4])
def test_whatever_we_said_the_next_beat_is_one_interval_later(said_at: float) -> None:
    stage = Stage()
    stage.worker("w", "echo", heartbeat=Heartbeat(dead_after_s=100.0, beat_every_s=2.5))
    stage.wait(said_at)
    stage.submit("c", "1", "echo")
    said = stage.now
    stage.actions(act.Beat)
    while not stage.actions(act.Beat):
        stage.wait(0.05)
    assert stage.now - said == pytest.approx(2.5, abs=0.15)


# -- weights ------------------------------------------------------------------------------------------


def test_the_weight_of_a_queue_is_stronger_than_what_its_workers_say() -> None:
    stage = Stage()
    stage.bus.change_policies([("heavy", QueuePolicy(weight=50))])
    up = events.WorkerUp(worker("w"), "w", ((b"light", 10), (b"heavy", 1)), NEVER_DEAD, 1)
    stage.submit("c", "1", "light")
    stage.submit("c", "2", "heavy")
    stage.do(up)
    assert stage.delivered() == [("w", "2")]
    stage.do(events.Offer(worker("w"), "w", b"heavy.too", 7))
    assert {service.name: weight for service, weight in stage.bus.workers[worker("w")].offers.items()} == {
        b"light": 10,
        b"heavy": 50,
        b"heavy.too": 7,
    }


@pytest.mark.parametrize(("every_s", "dead_s"), [(1.0, 10.0), (10.0, 100.0)])
def test_a_beat_counts_as_missed_when_it_is_half_an_interval_overdue(every_s: float, dead_s: float) -> None:
    stage = Stage()
    held = stage.worker("w", heartbeat=Heartbeat(dead_after_s=dead_s, beat_every_s=every_s))
    missed = []
    for _ in range(4):
        stage.wait(every_s + 0.1)
        missed.append(held.missed)
    assert missed == [0, 1, 2, 3]


def test_several_workers_are_looked_at_in_one_turn_whatever_becomes_of_each() -> None:
    stage = Stage()
    dialled = [
        events.WorkerUp((9, name), "d", ((name, 0),), NEVER_DEAD, endpoint=f"tcp://{name.decode()}:1")
        for name in (b"answers", b"never")
    ]
    for up in dialled:
        stage.do(up)
    identities = {dial.endpoint: dial.identity for dial in stage.actions(act.Dial)}
    for service in ("answers", "never"):
        stage.submit("c", service, service)
        token = stage.token("c", service)
        stage.do(events.Cancel(client("c"), service.encode()))
        if service == "answers":
            stage.do(events.Result((9, identities["tcp://answers:1"]), token, []))
    for name in ("a", "b"):
        stage.worker(name, heartbeat=LISTENS)
    stage.worker("busy", "busy", heartbeat=LISTENS)
    stage.submit("c", "busy", "busy")
    alive = stage.worker("alive", heartbeat=Heartbeat(dead_after_s=100.0, beat_every_s=1.0))
    stage.nothing()
    stage.now += 10.0
    stage.do(events.Tick())
    assert [hung.endpoint for hung in stage.actions(act.HangUp)] == ["tcp://never:1"]
    assert {gone.peer for gone in stage.actions(act.Dismiss)} == {worker("a"), worker("b")}
    assert set(stage.bus.silent) == {worker("busy")}
    assert [beat.worker for beat in stage.actions(act.Beat)] == [alive]
    assert stage.bus.counters.workers_lost == 3


@pytest.mark.parametrize("begins", ["registers", "offers"])
def test_a_service_of_the_broker_itself_is_not_to_be_offered(begins: str) -> None:
    stage = Stage()
    if begins == "registers":
        stage.do(events.WorkerUp(worker("w"), "w", ((b"polybus.submit", 0),), NEVER_DEAD))
    else:
        stage.worker("w")
        stage.do(events.Offer(worker("w"), "w", b"polybus.submit", 0))
        assert [one.reason for one in stage.told("worker_down")] == [
            "polybus.submit is a service of the broker itself"
        ]
    assert stage.one(act.Dismiss) == act.Dismiss(
        worker("w"), "w", "polybus.submit is a service of the broker itself"
    )
    assert not stage.bus.workers


def test_a_request_that_a_full_pipe_refused_is_told_to_be_queued_again() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1")
    stage.do(events.WorkerFull(worker("w"), stage.token("c", "1")))
    assert stage.told("requeued")[0].reason == "its worker's pipe was full"
    assert (held.free, held.state) == (1, WorkerState.CONGESTED)


def test_the_connection_to_a_silent_worker_that_was_dialled_is_closed_when_it_is_gone() -> None:
    stage = Stage()
    stage.worker("w")
    assert not stage.bus.dialled_at, "it came by itself"
    stage.do(events.WorkerUp((9, b"d"), "d", ((b"far", 0),), LISTENS, endpoint="tcp://10.0.0.1:1"))
    identity = stage.one(act.Dial).identity
    stage.submit("c", "1", "far")
    stage.wait(LISTENS.dead_after_s + 0.2)
    assert set(stage.bus.silent) == {(9, identity)}
    assert not stage.actions(act.HangUp), "it may still answer"
    stage.do(events.WorkerGone((9, identity), "it cannot be reached"))
    assert stage.one(act.HangUp) == act.HangUp(identity, "tcp://10.0.0.1:1")
    assert not stage.bus.silent


def dialled(stage: Stage, name: str, endpoint: str, heartbeat: Heartbeat = NEVER_DEAD) -> bytes:
    """A worker that the broker dials, and the identity of the connection to it."""
    offers = ((name.encode(), 0),)
    stage.do(events.WorkerUp((9, name.encode()), "d", offers, heartbeat, endpoint=endpoint))
    return stage.one(act.Dial).identity


def test_a_connection_that_is_needed_no_more_is_kept_for_questions_while_others_use_the_endpoint() -> None:
    """Hanging up closes all connections to an endpoint."""
    stage = Stage()
    endpoint = "tcp://10.0.0.1:1"
    identity = dialled(stage, "far", endpoint, LISTENS)
    dialled(stage, "near", endpoint)
    stage.submit("c", "1", "far")
    stage.wait(LISTENS.dead_after_s + 0.2)
    stage.do(events.WorkerGone((9, identity), "it cannot be reached"))
    assert not stage.actions(act.HangUp)
    reach = Reach((9, b"node"), endpoint, "reached")
    stage.do(events.Register((2, b"p"), "v", b"n", {}, 1.0, ip="10.0.0.1", reach=reach))
    stage.wait(1.6)
    assert stage.one(act.Ask).peer == (9, identity)
    assert not stage.actions(act.Dial)


def test_a_worker_that_was_dialled_does_not_come_back_on_another_connection() -> None:
    stage = Stage()
    identity = dialled(stage, "far", "tcp://10.0.0.1:1")
    stage.submit("c", "1", "far")
    stage.do(events.WorkerGone((9, identity), "it cannot be reached", is_unreachable=True))
    assert not stage.bus.departed
    assert stage.one(act.HangUp) == act.HangUp(identity, "tcp://10.0.0.1:1")
    assert stage.request("c", "1").worker is None


def test_what_was_on_the_way_of_two_workers_at_one_endpoint_is_told_to_be_lost_with_the_connection() -> None:
    stage = Stage()
    first = dialled(stage, "a", "tcp://10.0.0.1:1")
    second = dialled(stage, "b", "tcp://10.0.0.1:1")
    stage.do(events.WorkerGone((9, first), "it left"))
    (anew,) = stage.actions(act.Dial)
    assert (anew.endpoint, anew.identity not in (first, second)) == ("tcp://10.0.0.1:1", True)
    assert [(down.worker, down.reason) for down in stage.told("worker_down")] == [
        ((9, first), "it left"),
        ((9, second), "its connection was made anew"),
    ]


def test_of_a_worker_that_begins_anew_the_old_conversation_is_told_to_be_over() -> None:
    stage = Stage()
    stage.worker("w")
    stage.worker("w")
    assert [down.reason for down in stage.told("worker_down")] == ["it began a new conversation"]


def test_of_two_workers_at_one_endpoint_that_never_answer_no_closed_connection_is_kept() -> None:
    stage = Stage()
    endpoint = "tcp://10.0.0.1:1"
    for name in ("a", "b"):
        dialled(stage, name, endpoint)
        stage.submit("c", name, name)
    for name in (b"a", b"b"):
        stage.do(events.Cancel(client("c"), name))
    stage.nothing()
    stage.wait(0.2)
    assert len(stage.actions(act.HangUp)) == 1, "it closes all connections to the endpoint"
    assert [dial.endpoint for dial in stage.actions(act.Dial)] == [endpoint] * 2
    reach = Reach((9, b"node"), endpoint, "reached")
    stage.do(events.Register((2, b"p"), "v", b"n", {}, 1.0, ip="10.0.0.1", reach=reach))
    stage.wait(1.6)
    assert stage.one(act.Ask).peer == (9, stage.one(act.Dial).identity)


# -- to the moment ------------------------------------------------------------------------------------


def at(stage: Stage, seconds: float) -> None:
    """The first look after so many seconds."""
    stage.now = 1000.0 + seconds
    stage.do(events.Tick())


def test_silence_of_exactly_the_time_that_is_allowed_is_too_long() -> None:
    stage = Stage()
    stage.worker("w", heartbeat=BEATS)
    at(stage, 7.5)
    assert worker("w") not in stage.bus.workers


def test_less_than_a_second_of_silence_is_allowed_if_the_worker_says_so() -> None:
    stage = Stage()
    stage.worker("w", heartbeat=Heartbeat(dead_after_s=0.5))
    stage.submit("c", "1")
    at(stage, 0.5)
    assert worker("w") not in stage.bus.workers


def test_a_beat_is_due_exactly_one_interval_after_the_last_word() -> None:
    stage = Stage()
    held = stage.worker("w", heartbeat=BEATS)
    stage.now += 0.5
    stage.submit("c", "1")
    at(stage, 3.0)
    assert stage.one(act.Beat).worker is held


def test_a_beat_is_missed_after_exactly_one_and_a_half_intervals() -> None:
    stage = Stage()
    held = stage.worker("w", heartbeat=BEATS)
    at(stage, 3.75)
    assert held.missed == 1


def test_a_worker_that_is_only_listened_to_is_looked_at_three_times_in_its_time() -> None:
    stage = Stage()
    held = stage.worker("w", heartbeat=Heartbeat(dead_after_s=6.0))
    stage.wait(3.9)
    assert held.missed == 0
    stage.wait(2.0)
    assert held.missed == 1, "two of the three intervals, and it may have been heard in the first"


def test_after_a_look_the_next_one_is_when_something_can_be_due() -> None:
    """Not at once: a broker with nothing to do sleeps."""
    stage = Stage()
    stage.worker("w", credit=2, heartbeat=BEATS)
    at(stage, 1.0)
    stage.submit("c", "1", ttl_s=1000.0)
    at(stage, 2.6)
    assert not stage.actions(act.Beat)
    assert stage.bus.watches.soonest == pytest.approx(1003.5, abs=0.051)


def test_a_worker_whose_queue_allows_more_silence_is_spoken_to_once_in_each_interval() -> None:
    stage = Stage()
    stage.bus.change_policies([("echo", QueuePolicy(silence_s=60.0))])
    stage.worker("w", heartbeat=BEATS)
    stage.submit("c", "1", ttl_s=1000.0)
    beats = []
    for _ in range(600):
        stage.wait(0.05)
        if stage.actions(act.Beat):
            beats.append(stage.now)
            assert stage.bus.watches.soonest > stage.now
    pauses = [later - sooner for sooner, later in pairwise(beats)]
    assert len(pauses) >= 8
    assert 2.49 <= min(pauses) <= max(pauses) <= 2.65


def test_whether_a_worker_that_is_only_listened_to_is_connected_is_found_out_when_it_is_overdue() -> None:
    stage = Stage()
    stage.bus.change_policies([("echo", QueuePolicy(silence_s=60.0))])
    held = stage.worker("w", heartbeat=LISTENS)
    stage.submit("c", "1", ttl_s=1000.0)
    stage.wait(0.9)
    stage.heard("w")
    stage.wait(LISTENS.dead_after_s)
    assert not stage.actions(act.Beat)
    stage.wait(0.1)
    assert stage.one(act.Beat).worker is held
    assert stage.bus.watches.soonest > stage.now + 0.5, "the next look is not at once"


def test_a_worker_that_is_only_listened_to_is_overdue_to_the_moment() -> None:
    stage = Stage()
    stage.bus.change_policies([("echo", QueuePolicy(silence_s=60.0))])
    held = stage.worker("w", heartbeat=LISTENS)
    stage.submit("c", "1", ttl_s=1000.0)
    at(stage, 3.0)
    assert stage.one(act.Beat).worker is held


# -- what is told of schedulers -----------------------------------------------------------------------


def test_a_scheduler_that_comes_is_told_and_has_no_slots() -> None:
    stage = Stage()
    scheduler(stage, "s")
    (told,) = stage.told("scheduler_up")
    assert (told.worker, told.worker_voice, told.at) == (worker("s"), "s", stage.now)
    view = views.worker_view(stage.bus.workers[worker("s")], stage.now, str)
    assert (view["role"], view["credit"], view["free_slots"]) == ("scheduler", 0, 0)
