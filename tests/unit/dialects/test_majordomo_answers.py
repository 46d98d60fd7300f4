"""Whose answers count in the Majordomo family, and whose conversation they end."""

from __future__ import annotations

import pytest

from polybus.core import events
from polybus.core.actions import Dismiss
from polybus.core.model import JobOptions
from polybus.core.restoring import restore
from polybus.dialects.port import Voice
from polybus.store.memory import MemoryStore
from support.majordomo import CLIENTS, DEAD_S, MDP2, MDR, TALKS, WORKERS, Household, Talk

W = (WORKERS, b"w")


@pytest.fixture
def house() -> Household:
    return Household()


@pytest.fixture(params=TALKS, ids=lambda talk: talk.name)
def talk(request: pytest.FixtureRequest) -> Talk:
    chosen: Talk = request.param
    return chosen


def busy(house: Household, talk: Talk) -> tuple[list[bytes], list[bytes]]:
    """A worker with two requests, and what it got."""
    house.say(b"w", talk.ready(b"echo", b"2"))
    for number in (b"1", b"2"):
        house.ask(b"c", talk.request(b"echo", b"r" + number, number))
    first, second = house.orders(b"w")
    return first, second


def test_a_second_answer_is_tolerated_while_the_worker_has_other_requests(
    house: Household, talk: Talk
) -> None:
    first, second = busy(house, talk)
    house.say(b"w", talk.reply(first, b"one"))
    house.say(b"w", talk.reply(first, b"one"))
    assert house.orders(b"w") == []
    assert W in house.bus.workers
    assert house.bus.counters.late == 1
    house.say(b"w", talk.reply(second, b"two"))
    assert house.answers(b"c") == [
        talk.final(b"echo", b"r1", b"one"),
        talk.final(b"echo", b"r2", b"two"),
    ]


@pytest.mark.parametrize("is_patient", [False, True])
def test_who_answers_the_request_of_another_worker_is_dismissed(house: Household, is_patient: bool) -> None:
    """Whether the request waits for as long as all do, or for a time of its own."""
    busy(house, MDP2)
    house.say(b"other", MDP2.ready(b"tea"))
    submit = events.Submit((CLIENTS, b"d"), Voice(), b"r", b"tea", [b"x"], ttl_s=60.0 if is_patient else None)
    house.handle(submit)
    order = house.order(b"other")
    assert (order[2] in house.bus.patient, order[2] in house.bus.prompt) == (is_patient, not is_patient)
    house.say(b"w", MDP2.reply(order, b"not mine"))
    assert house.orders(b"w") == [MDP2.dismissal()]
    assert W not in house.bus.workers
    # It still is the request of the one that has it.
    assert order[2] in house.bus.requests


def test_who_answers_what_never_was_a_request_is_dismissed(house: Household) -> None:
    first, _ = busy(house, MDP2)
    foreign = [*first[:2], b"x" + first[2], *first[3:]]
    house.say(b"w", MDP2.reply(foreign, b"one"))
    assert house.orders(b"w") == [MDP2.dismissal()]
    assert W not in house.bus.workers


@pytest.mark.parametrize("talk", [MDP2, MDR], ids=lambda talk: talk.name)
def test_who_sends_a_piece_of_what_it_does_not_have_is_dismissed(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    order = house.order(b"w")
    house.say(b"w", talk.reply(order, b"X"))
    house.answers(b"c")
    house.say(b"w", talk.part(order, b"more"))
    assert house.orders(b"w") == [talk.dismissal()]
    assert W not in house.bus.workers
    assert house.answers(b"c") == []


def test_all_answers_of_a_worker_that_was_silent_count(house: Household, talk: Talk) -> None:
    first, second = busy(house, talk)
    house.wait(DEAD_S + 0.5)
    house.orders(b"w")
    assert W not in house.bus.workers
    house.say(b"w", talk.reply(first, b"one"))
    house.say(b"w", talk.reply(second, b"two"))
    assert house.answers(b"c") == [
        talk.final(b"echo", b"r1", b"one"),
        talk.final(b"echo", b"r2", b"two"),
    ]


def test_a_stranger_is_dismissed_once_also_if_it_speaks_twice_in_a_turn(house: Household, talk: Talk) -> None:
    for _ in range(2):
        house.ears[WORKERS].receive(WORKERS, [b"w", *talk.heartbeat()], house.now)
    (dismissed,) = house.bus.take()
    assert isinstance(dismissed, Dismiss)
    assert dismissed.peer == W


def test_a_worker_has_no_weight(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    assert list(house.bus.workers[W].offers.values()) == [0]


# -- after a restart of the broker -----------------------------------------------------------------------


def restarted(house: Household, talk: Talk) -> tuple[Household, list[bytes]]:
    """A broker that took over from one whose worker has a job; and what the worker got."""
    house.say(b"w", talk.ready(b"echo"))
    options = JobOptions(guarantee=True)
    house.handle(events.Submit((CLIENTS, b"c"), Voice(), b"r1", b"echo", [b"x"], options))
    order = house.order(b"w")
    house.wait(5.0)
    store = MemoryStore()
    store.write(house.lines)
    heir = Household()
    heir.bus.nonce = b"heir-"
    heir.bus.link_names = {CLIENTS: "clients", WORKERS: "workers"}
    restore(heir.bus, store.load(), Voice(), heir.now)
    assert order[2] in heir.bus.patient
    return heir, order


def test_an_answer_to_a_job_that_was_out_when_the_broker_was_restarted_counts(talk: Talk) -> None:
    house = Household()
    house.bus.link_names = {CLIENTS: "clients", WORKERS: "workers"}
    heir, order = restarted(house, talk)
    heir.say(b"w", talk.reply(order, b"done"))
    assert heir.bus.counters.replied == 1
    assert heir.bus.request_count == 0
    # It is no worker for that: it has to say READY.
    assert heir.orders(b"w") == [talk.dismissal()]
    assert not heir.bus.workers
    assert not heir.bus.silent


def test_it_counts_after_the_time_of_grace_too(talk: Talk) -> None:
    house = Household()
    house.bus.link_names = {CLIENTS: "clients", WORKERS: "workers"}
    heir, order = restarted(house, talk)
    heir.wait(heir.bus.limits.orphan_grace_s + 1.0)
    heir.say(b"other", talk.ready(b"echo"))
    assert heir.order(b"other")[2] == order[2]
    # A failure does not: somebody else is trying.
    heir.say(b"w", talk.reply(order, b'{"error": "no"}'))
    assert heir.bus.counters.failed == heir.bus.counters.retried == 0
    heir.say(b"w", talk.reply(order, b"done"))
    assert (heir.bus.counters.replied, heir.bus.request_count) == (1, 0)
    # The other one is late, and goes on as a worker.
    heir.say(b"other", talk.reply(order, b"done"))
    assert heir.bus.counters.late == 2
    assert list(heir.bus.workers) == [(WORKERS, b"other")]


def test_a_worker_is_not_sent_away_for_such_an_answer(talk: Talk) -> None:
    house = Household()
    house.bus.link_names = {CLIENTS: "clients", WORKERS: "workers"}
    heir, order = restarted(house, talk)
    heir.wait(heir.bus.limits.orphan_grace_s + 1.0)
    heir.say(b"other", talk.ready(b"echo"))
    heir.order(b"other")
    heir.say(b"w", talk.ready(b"echo"))
    heir.say(b"w", talk.reply(order, b'{"error": "no"}'))
    assert heir.orders(b"w") == []
    assert W in heir.bus.workers
    heir.say(b"w", talk.reply(order, b"done"))
    assert heir.bus.counters.replied == 1
    assert heir.orders(b"w") == []
    assert W in heir.bus.workers


def test_only_the_job_that_was_out_is_claimed_by_an_answer(talk: Talk) -> None:
    """A request that another worker has is nobody else's."""
    house = Household()
    house.say(b"other", talk.ready(b"echo"))
    submit = events.Submit((CLIENTS, b"c"), Voice(), b"r1", b"echo", [b"x"], ttl_s=60.0)
    house.handle(submit)
    order = house.order(b"other")
    house.say(b"w", talk.reply(order, b"not mine"))
    assert house.bus.counters.replied == 0
    assert order[2] in house.bus.patient
    assert house.orders(b"w") == [talk.dismissal()]


# -- request ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_patient", [False, True])
def test_an_answer_with_the_id_of_another_request_is_refused(house: Household, is_patient: bool) -> None:
    house.say(b"w", MDR.ready(b"echo"))
    submit = events.Submit(
        (CLIENTS, b"c"), Voice(), b"r1", b"echo", [b"x"], ttl_s=60.0 if is_patient else None
    )
    house.handle(submit)
    order = house.order(b"w")
    assert order[4] == b"r1"
    mixed_up = [*order[:4], b"r2", *order[5:]]
    house.say(b"w", MDR.reply(mixed_up, b"X"))
    assert house.bus.counters.invalid == 1
    assert house.bus.counters.replied == 0
    assert house.orders(b"w") == [MDR.dismissal()]


def test_a_ping_that_is_answered_counts_as_our_heartbeat(house: Household) -> None:
    house.say(b"w", MDR.ready(b"echo"))
    worker = house.bus.workers[W]
    house.now += 1.25
    house.say(b"w", MDR.heartbeat())
    assert (worker.seen_at, worker.spoken_at) == (house.now, house.now)


# -- ends ------------------------------------------------------------------------------------------------


def test_who_was_given_up_is_told_once(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.wait(DEAD_S + 0.5)
    assert [frames for frames in house.orders(b"w") if frames == talk.dismissal()] == [talk.dismissal()]
    house.say(b"w", talk.heartbeat())
    assert house.orders(b"w") == []


def test_who_said_ready_again_has_a_new_conversation_that_can_end(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.say(b"w", talk.farewell())
    house.say(b"w", talk.ready(b"echo"))
    house.handle(events.WorkerGone(W, "it cannot be reached"))
    house.orders(b"w")
    # It believes in a conversation that has ended: it has to register again.
    house.say(b"w", talk.heartbeat())
    assert house.orders(b"w") == [talk.dismissal()]


def test_a_worker_that_is_dismissed_is_told_nothing_more_in_the_same_turn(
    house: Household, talk: Talk
) -> None:
    house.say(b"w", talk.ready(b"echo"))
    for frames in (talk.ready(b"echo"), talk.heartbeat()):
        house.ears[WORKERS].receive(WORKERS, [b"w", *frames], house.now)
    assert [action.peer for action in house.bus.take() if isinstance(action, Dismiss)] == [W]
