"""Who gets the next request: weight, then load, then the least recently used; slots; fairness."""

from __future__ import annotations

from math import inf

import pytest

from polybus.core import dispatching, events, requests
from polybus.core.durable import peer_text
from polybus.core.ledger import Started, Waiting
from polybus.core.lifecycle import WorkerState
from polybus.core.model import JobOptions, Limits, QueuePolicy
from polybus.errors import LocalProtocolError
from support.stage import NEVER_DEAD, LedgerStage, Stage, client, worker


def test_the_least_recently_used_is_next() -> None:
    stage = Stage()
    for name in "abc":
        stage.worker(name)
    for number in "1234":
        stage.submit("c", number)
        stage.result(stage.delivered()[0][0])
    order = [record.worker[1] for record in stage.told("dispatched") if record.worker]
    assert order == [b"a", b"b", b"c", b"a"]


def test_the_least_loaded_is_next() -> None:
    stage = Stage()
    stage.worker("a", credit=3)
    stage.worker("b", credit=3)
    for number in "1234":
        stage.submit("c", number)
    assert [name for name, _ in stage.delivered()] == ["a", "b", "a", "b"]
    stage.result("b")
    stage.result("b")
    stage.submit("c", "5")
    assert stage.delivered() == [("b", "5")]


def test_the_heaviest_is_next_as_long_as_it_has_slots() -> None:
    stage = Stage()
    stage.worker("light", weight=1, credit=5)
    stage.worker("heavy", weight=9, credit=2)
    for number in "123":
        stage.submit("c", number)
    assert [name for name, _ in stage.delivered()] == ["heavy", "heavy", "light"]


def test_a_free_worker_takes_its_heaviest_queue_first_and_equal_ones_in_turn() -> None:
    stage = Stage()
    for number, service in enumerate(("low", "low", "a", "a", "b", "b")):
        stage.submit("c", f"{service}{number}", service)
    offers = ((b"low", 1), (b"a", 5), (b"b", 5))
    stage.do(events.WorkerUp(worker("w"), None, offers, NEVER_DEAD, credit=6))
    assert [number for _, number in stage.delivered()] == ["a2", "b4", "a3", "b5", "low0", "low1"]


def test_after_ten_of_the_heaviest_comes_one_of_a_lighter_queue() -> None:
    stage = Stage()
    for number in range(25):
        stage.submit("c", f"heavy{number}", "heavy")
    for number in range(3):
        stage.submit("c", f"light{number}", "light")
    stage.do(events.WorkerUp(worker("w"), None, ((b"heavy", 5), (b"light", 1)), NEVER_DEAD, credit=28))
    names = [name.rstrip("0123456789") for _, name in stage.delivered()]
    ten = ["heavy"] * 10
    assert names == [*ten, "light", *ten, "light", *["heavy"] * 5, "light"]


@pytest.mark.parametrize("alone", range(8, 15))
def test_only_what_passes_over_a_lighter_queue_counts(alone: int) -> None:
    stage = Stage()
    stage.do(events.WorkerUp(worker("w"), None, ((b"heavy", 5), (b"light", 1)), NEVER_DEAD, credit=1))
    # Nobody waits for the lighter service yet.
    for number in range(alone):
        stage.submit("c", f"alone{number}", "heavy")
    for _ in range(alone - 1):
        stage.result("w")
    stage.delivered()
    stage.submit("c", "light", "light")
    stage.submit("c", "heavy", "heavy")
    stage.result("w")
    assert stage.delivered() == [("w", "heavy")]


def test_what_passed_over_a_lighter_queue_is_forgotten_when_nobody_waits_there() -> None:
    stage = Stage()
    stage.do(events.WorkerUp(worker("w"), None, ((b"heavy", 5), (b"light", 1)), NEVER_DEAD, credit=1))
    for number in range(20):
        stage.submit("c", f"heavy{number}", "heavy")
    stage.submit("c", "light", "light")
    for _ in range(6):
        stage.result("w")
    stage.do(events.Cancel(client("c"), b"light"))
    stage.result("w")
    assert {name[:5] for _, name in stage.delivered()} == {"heavy"}
    stage.submit("c", "again", "light")
    for _ in range(10):
        stage.result("w")
    assert [name[:5] for _, name in stage.delivered()] == ["heavy"] * 10
    stage.result("w")
    assert stage.delivered() == [("w", "again")]


def test_a_second_attempt_goes_to_the_heaviest_then_least_loaded_of_those_that_do_not_have_it() -> None:
    stage = Stage(Limits(timeout_grace_s=0.0))
    stage.worker("stuck", weight=9, credit=3)
    stage.submit("c", "1", options=JobOptions(retries=3, backoff_s=0.1, timeout_s=1.0), ttl_s=100.0)
    assert stage.delivered() == [("stuck", "1")]
    stage.worker("light", weight=1, credit=3)
    stage.worker("heavy but busy", weight=5, credit=3)
    stage.worker("heavy", weight=5, credit=1)
    stage.worker("full", weight=8, credit=1).free = 0
    stage.bus.workers[worker("heavy but busy")].inflight[b"other"] = stage.request("c", "1")
    stage.wait(1.3)
    assert stage.delivered() == [("heavy", "1")]


def test_only_what_is_guaranteed_is_written_down_when_it_is_queued_again() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.submit("c", "1")
    stage.gone("w")
    assert [request.reason for request in stage.told("requeued")] == ["it left"]
    assert stage.bus.lines == []


def test_what_is_guaranteed_is_written_down_to_be_due_at_once_when_it_is_queued_again() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.write()
    token = stage.token("c", "1")
    stage.gone("w")
    assert stage.bus.lines[-1:] == [Waiting(token, 1, 0.0, stage.request("c", "1").history)]


def test_to_offer_one_more_service_is_not_to_be_used() -> None:
    stage = Stage()
    for name in "ab":
        stage.worker(name)
    stage.do(events.Offer(worker("a"), "a", b"more"))
    stage.submit("c", "1")
    assert stage.delivered() == [("a", "1")]


def test_who_took_all_that_waited_gets_no_more_than_it_has_slots() -> None:
    stage = Stage()
    stage.worker("b")
    for number in "123":
        stage.submit("c", number)
    stage.worker("a", credit=2)
    assert stage.delivered() == [("b", "1"), ("a", "2"), ("a", "3")]
    stage.submit("c", "4")
    assert stage.delivered() == []


def test_who_failed_gets_the_next_one_though_others_offer_the_service_as_well() -> None:
    stage = Stage()
    for name in "ab":
        stage.worker(name)
    for number in "12":
        stage.submit("c", number)
    stage.delivered()
    stage.fail("a")
    stage.submit("c", "3")
    assert stage.delivered() == [("a", "3")]


def test_the_lighter_queue_that_has_its_turn_is_one_that_may_start_something() -> None:
    stage = Stage()
    stage.bus.change_policies([("limited", QueuePolicy(concurrency=1))])
    stage.worker("other", "limited")
    for number in range(2):
        stage.submit("c", f"limited{number}", "limited")
    for number in range(12):
        stage.submit("c", f"heavy{number}", "heavy")
    stage.submit("c", "light", "light")
    stage.delivered()
    offers = ((b"idle", 1), (b"limited", 1), (b"equal", 5), (b"light", 1), (b"heavy", 5))
    stage.do(events.WorkerUp(worker("w"), None, offers, NEVER_DEAD, credit=11))
    assert [name[:5] for _, name in stage.delivered()] == ["heavy"] * 10 + ["light"]


def test_that_a_job_started_is_written_down_when_it_has_lasted_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatching, "LINGER_S", 0.125)
    stage = LedgerStage(starts_linger=True)
    stage.worker("w", credit=3)
    # Its client withdraws this one; the worker has not said anything about it yet.
    stage.submit("c", "0", options=JobOptions(guarantee=True), ttl_s=100.0)
    stage.write()
    stage.do(events.Cancel(client("c"), b"0"))
    stage.write()
    for number, pause_s in (("1", 0.0625), ("2", 0.0)):
        stage.submit("c", number, options=JobOptions(guarantee=True), ttl_s=100.0)
        stage.write()
        stage.now += pause_s
    first, second = stage.token("c", "1"), stage.token("c", "2")
    stage.now += 0.0625
    stage.do(events.Tick())
    assert stage.bus.lines == [Started(first, 1, peer_text(worker("w")))], "it has lasted exactly as long"
    assert stage.bus.next_at(stage.now) > stage.now, "nothing more is due"
    stage.wait(0.2)
    assert [line.token for line in stage.bus.lines if isinstance(line, Started)] == [first, second]


def test_what_has_ended_is_never_handed_out() -> None:
    stage = Stage()
    held = stage.worker("w")
    stage.submit("c", "1")
    ended = stage.request("c", "1")
    stage.result("w")
    with pytest.raises(LocalProtocolError):
        dispatching.hand_over(stage.bus, ended, held, stage.now)
    assert (held.free, held.inflight) == (1, {})


def test_two_queues_of_the_same_weight_have_their_turns_and_pass_over_nobody() -> None:
    stage = Stage()
    offers = ((b"a", 5), (b"b", 5), (b"light", 1))
    stage.do(events.WorkerUp(worker("two"), None, offers[:2], NEVER_DEAD, credit=1))
    for service in ("a", "b"):
        for number in range(3):
            stage.submit("c", f"{service}{number}", service)
    for _ in range(5):
        stage.result("two")
    # The first one found it idle, and is nobody's turn.
    assert [name[0] for _, name in stage.delivered()][1:] == ["a", "b", "a", "b", "b"]
    stage.gone("two")
    stage.do(events.WorkerUp(worker("w"), None, offers, NEVER_DEAD, credit=1))
    for number in range(20):
        stage.submit("c", f"{'ab'[number % 2]}{number}", "ab"[number % 2])
    for _ in range(7):
        stage.result("w")
    stage.delivered()
    stage.submit("c", "light", "light")
    for _ in range(10):
        stage.result("w")
    assert "light" not in [name for _, name in stage.delivered()]
    stage.result("w")
    assert stage.delivered() == [("w", "light")]


def test_the_turn_of_a_lighter_queue_is_not_taken_by_one_that_is_as_heavy() -> None:
    stage = Stage()
    offers = ((b"equal", 5), (b"light", 1), (b"heavy", 5))
    stage.do(events.WorkerUp(worker("w"), None, offers, NEVER_DEAD, credit=1))
    for number in range(20):
        stage.submit("c", f"heavy{number}", "heavy")
    stage.submit("c", "light", "light")
    for _ in range(10):
        stage.result("w")
    assert {name[:5] for _, name in stage.delivered()} == {"heavy"}
    stage.submit("c", "equal", "equal")
    stage.result("w")
    assert stage.delivered() == [("w", "light")]


def test_a_second_attempt_goes_to_the_least_recently_used() -> None:
    stage = Stage()
    for name in "ab":
        stage.worker(name)
    stage.submit("c", "1", options=JobOptions(retries=1, backoff_s=0.1))
    assert stage.delivered() == [("a", "1")]
    assert stage.bus.starts_at == inf, "nothing is to be written down of what is not guaranteed"
    stage.fail("a")
    stage.wait(0.3)
    assert stage.delivered() == [("b", "1")]


def test_credit_is_respected() -> None:
    stage = Stage()
    held = stage.worker("w", credit=2)
    for number in "123":
        stage.submit("c", number)
    assert len(stage.delivered()) == 2
    assert (held.free, len(held.inflight)) == (0, 2)


def test_a_worker_that_grants_slots_gets_as_many_as_it_grants() -> None:
    stage = Stage()
    held = stage.worker("w", credit=7, grants_slots=True)
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.nothing()
    stage.do(events.Slot(worker("w"), None))
    assert stage.delivered() == [("w", "1")]
    stage.result("w")
    assert stage.delivered() == [], "an answer is no slot"
    stage.do(events.Slot(worker("w"), None))
    assert stage.delivered() == [("w", "2")]
    assert held.free == 0


def test_credit_is_shared_by_all_services_of_a_worker() -> None:
    stage = Stage()
    stage.worker("w", "a", "b", credit=1)
    stage.worker("x", "b", credit=1)
    stage.submit("c", "1", "a")
    stage.submit("c", "2", "b")
    stage.submit("c", "3", "b")
    assert stage.delivered() == [("w", "1"), ("x", "2")]
    stage.result("w")
    assert stage.delivered() == [("w", "3")]


def test_one_more_service() -> None:
    stage = Stage()
    stage.worker("w", "a", credit=1)
    stage.submit("c", "1", "b")
    stage.do(events.Offer(worker("w"), None, b"b", 3))
    assert stage.delivered() == [("w", "1")]
    assert stage.bus.services[b"b"].roster.members[stage.bus.workers[worker("w")]] == 3


def test_clients_are_served_in_turn() -> None:
    stage = Stage()
    for number in range(5):
        stage.submit("greedy", f"g{number}")
    stage.submit("modest", "m")
    stage.worker("w", credit=2)
    assert [number for _, number in stage.delivered()] == ["g0", "m"]


def test_only_who_offers_a_service_gets_its_requests() -> None:
    stage = Stage()
    stage.worker("w", "other", credit=9)
    stage.submit("c", "1")
    assert stage.nothing()


def test_a_resting_worker_gets_one_request_for_each_answer_of_a_message() -> None:
    stage = Stage()
    held = stage.worker("w", grants_slots=True)
    for number in range(10):
        stage.do(events.Slot(worker("w"), "w"))
        stage.submit("c", str(number))
    for number in (9, 8, 7):
        stage.do(events.WorkerFull(worker("w"), stage.token("c", str(number))))
    assert (held.state, held.free) == (WorkerState.CONGESTED, 3)
    for number in (10, 11, 12):
        stage.submit("c", str(number))
    stage.delivered()
    for number in (0, 1):
        requests.finish(stage.bus, worker("w"), stage.token("c", str(number)), [b"done"], stage.now, True)
    requests.give_slots(stage.bus, worker("w"), 2, stage.now)
    stage.do(events.Tick())
    assert stage.delivered() == [("w", "7"), ("w", "8")]


def test_a_worker_that_answers_several_at_once_is_filed_anew_after_the_last() -> None:
    stage = Stage()
    stage.worker("w", grants_slots=True)
    requests.give_slots(stage.bus, worker("w"), 4, stage.now)
    for number in "12":
        stage.submit("c", number)
    stage.worker("v", credit=4)
    stage.submit("c", "3")
    assert stage.delivered() == [("w", "1"), ("w", "2"), ("v", "3")]
    for number in "12":
        assert requests.finish(stage.bus, worker("w"), stage.token("c", number), [], stage.now, True)
    stage.submit("c", "4")
    assert stage.delivered() == [("v", "4")], "it still counts as the one that has more"
    requests.give_slots(stage.bus, worker("w"), 2, stage.now)
    stage.submit("c", "5")
    assert stage.delivered() == [("w", "5")]


def test_a_worker_that_grants_slots_shows_that_it_is_there() -> None:
    stage = Stage()
    held = stage.worker("w", grants_slots=True)
    stage.now += 1.0
    requests.give_slots(stage.bus, worker("w"), 1, stage.now)
    assert (held.seen_at, held.free) == (stage.now, 1)


def test_a_worker_that_grants_slots_is_one_to_choose_from_at_once() -> None:
    stage = Stage()
    for name in "vw":
        stage.worker(name, grants_slots=True)
    requests.give_slots(stage.bus, worker("w"), 1, stage.now)
    stage.submit("c", "1")
    assert stage.delivered() == [("w", "1")]


def test_a_worker_that_rested_and_is_heard_is_one_to_choose_from_again() -> None:
    stage = Stage()
    stage.worker("w")
    stage.worker("v")
    stage.submit("c", "1")
    stage.do(events.WorkerFull(worker("w"), stage.token("c", "1")))
    assert stage.delivered() == [("w", "1"), ("v", "1")]
    stage.heard("w")
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "2")]
