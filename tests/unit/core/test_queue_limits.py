"""Rules of queues: how many run at once, how many start in a second, who comes first."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from polybus.core import actions as act
from polybus.core import events, requests
from polybus.core.model import Heartbeat, JobOptions, QueuePolicy, Reason
from support import invariants
from support.stage import LedgerStage, client, worker

NEVER_DEAD = Heartbeat(0.0)


@pytest.fixture
def stage() -> LedgerStage:
    return LedgerStage()


def check(stage: LedgerStage) -> None:
    invariants.check(stage.bus, stage.now)


# -- what the operator decided --------------------------------------------------------------------


def test_guarantee_retries_and_time_limit_come_from_the_rule(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(guarantee=True, retries=2, timeout_s=7.0))
    stage.worker("w", credit=5)
    stage.submit("c", "1", receipt=True)
    assert stage.nothing()
    stage.write()
    stage.one(act.Accept)
    options = stage.request("c", "1").options
    assert (options.guarantee, options.retries, options.timeout_s) == (True, 2, 7.0)
    stage.submit("c", "2", options=JobOptions(retries=9, timeout_s=1.0))
    options = stage.request("c", "2").options
    assert (options.guarantee, options.retries, options.timeout_s) == (True, 9, 1.0)


def test_the_first_pattern_that_fits_is_the_rule(stage: LedgerStage) -> None:
    stage.policies = [("mail.*", QueuePolicy(retries=1)), ("*", QueuePolicy(retries=2))]
    stage.bus.change_policies(stage.policies)
    for service in ("mail.out", "other"):
        stage.submit("c", service, service)
    assert [stage.request("c", name).options.retries for name in ("mail.out", "other")] == [1, 2]


def test_a_rule_is_found_for_a_name_that_is_no_text(stage: LedgerStage) -> None:
    stage.queue_rules(**{"a?": QueuePolicy(retries=3)})
    for name in (b"a\xff", b"b\xff"):
        stage.do(events.Submit(client("c"), "c", name, name, [b"x"]))
    known = stage.bus.clients[client("c")].outstanding
    assert [request.options.retries for request in known.values()] == [3, 0]


def test_a_rule_makes_a_guaranteed_job_of_a_plain_call_that_survives(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(guarantee=True))
    stage.submit("c", "1")
    stage.write()
    stage.restart()
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]


def test_guaranteed_work_does_not_grow_stale(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(guarantee=True))
    stage.submit("c", "1")
    stage.write()
    stage.wait(100_000.0, step=100.0)
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]


# -- at once --------------------------------------------------------------------------------------


def test_no_more_run_at_once_than_allowed_over_all_workers(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(concurrency=3))
    for name in ("v", "w"):
        stage.worker(name, credit=5)
    for number in range(8):
        stage.submit("c", str(number))
    first = stage.delivered()
    assert len(first) == 3
    for name, request_id in first:
        stage.result(name, stage.token("c", request_id))
        assert len(stage.delivered()) == 1
        check(stage)
    stage.fail("v" if stage.bus.workers[worker("v")].inflight else "w")
    assert len(stage.delivered()) == 1
    assert stage.bus.services[b"echo"].running == 3


@pytest.mark.parametrize(
    "how", ["fail", "retry", "cancel", "expire", "overdue", "gone", "full", "large", "part"]
)
def test_whatever_ends_one_lets_the_next_begin(stage: LedgerStage, how: str) -> None:
    """Also at another worker: the one that had it may have no slot to give."""
    stage.queue_rules(echo=QueuePolicy(concurrency=1))
    stage.worker("w", grants_slots=True)
    stage.do(events.Slot(worker("w"), "w"))
    options = JobOptions(retries=1 if how == "retry" else 0, timeout_s=1.0 if how == "overdue" else 0.0)
    stage.submit("c", "1", options=options, ttl_s=2.0 if how == "expire" else inf)
    token = stage.token("c", "1")
    assert stage.delivered() == [("w", "1")]
    stage.worker("v")
    stage.submit("c", "2")
    assert not stage.delivered()
    if how in ("fail", "retry"):
        stage.fail("w", token)
    elif how == "cancel":
        stage.do(events.CancelToken(token))
    elif how in ("expire", "overdue"):
        stage.wait(8.0)
    elif how == "gone":
        stage.gone("w")
    elif how == "full":
        stage.do(events.WorkerFull(worker("w"), token))
    elif how == "large":
        stage.result("w", token, [b"x" * (stage.bus.max_body_bytes + 1)])
    else:
        stage.part("w", token, [b"x" * (stage.bus.max_body_bytes + 1)])
    (delivery,) = stage.delivered()
    assert delivery in (("v", "1"), ("v", "2"))
    check(stage)


def test_a_place_that_gets_free_goes_to_the_least_loaded_not_to_who_answered(stage: LedgerStage) -> None:
    """A worker that sends several answers at once gets new requests after the last of them."""
    stage.queue_rules(echo=QueuePolicy(concurrency=4))
    for name, slots in (("a", 3), ("b", 1)):
        stage.worker(name, grants_slots=True)
        for number in range(slots):
            stage.do(events.Slot(worker(name), name))
            stage.submit("c", f"{name}{number}")
    for name in "ab":
        for _ in range(2):
            stage.do(events.Slot(worker(name), name))
    stage.submit("c", "last")
    assert [name for name, _ in stage.delivered()] == ["a", "a", "a", "b"]
    requests.finish(stage.bus, worker("a"), stage.token("c", "a0"), [b"done"], stage.now, True)
    stage.do(events.Tick())
    assert stage.delivered() == [("b", "last")]
    requests.give_slots(stage.bus, worker("a"), 1, stage.now)
    stage.do(events.Tick())
    assert not stage.delivered()
    check(stage)


def test_a_rule_that_changes_holds_at_once(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(concurrency=1))
    stage.worker("w", credit=10)
    for number in range(6):
        stage.submit("c", str(number))
    assert len(stage.delivered()) == 1
    stage.queue_rules(echo=QueuePolicy(concurrency=3))
    stage.wait(0.1)
    assert len(stage.delivered()) == 2
    stage.queue_rules()
    stage.wait(0.1)
    assert len(stage.delivered()) == 3
    check(stage)


@pytest.mark.parametrize("rules", [{}, {"echo": QueuePolicy(rate_per_s=50.0)}])
def test_a_slow_rate_that_is_removed_or_raised_holds_up_nothing_more(
    stage: LedgerStage, rules: dict[str, QueuePolicy]
) -> None:
    stage.queue_rules(echo=QueuePolicy(rate_per_s=0.01))
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1")]
    stage.queue_rules(**rules)
    assert stage.bus.next_at(stage.now) <= stage.now
    stage.wait(0.1)
    assert stage.delivered() == [("w", "2")]
    assert not stage.bus.gates._slots, "nor is it looked at again when the old rate would have let it go"
    check(stage)


def test_a_rate_that_is_lowered_holds_for_what_waits(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(rate_per_s=0.2))
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1")]
    stage.queue_rules(echo=QueuePolicy(rate_per_s=0.1))
    stage.wait(9.8)
    assert not stage.delivered()
    stage.wait(0.4)
    assert stage.delivered() == [("w", "2")]
    check(stage)


def test_after_a_change_of_rules_only_queues_with_requests_are_looked_at(stage: LedgerStage) -> None:
    stage.worker("w", credit=2)
    stage.submit("c", "1")
    stage.queue_rules(echo=QueuePolicy(concurrency=1))
    assert stage.bus.next_at(stage.now) > stage.now


def test_a_queue_with_a_rule_does_not_hold_up_the_others_of_its_worker(stage: LedgerStage) -> None:
    stage.queue_rules(slow=QueuePolicy(concurrency=1))
    for number in range(3):
        stage.submit("c", f"s{number}", "slow")
        stage.submit("c", f"f{number}", "fast")
    stage.worker("w", "slow", "fast", credit=10)
    assert sorted(name for _, name in stage.delivered()) == ["f0", "f1", "f2", "s0"]
    check(stage)


# -- in a second ----------------------------------------------------------------------------------


def starts(stage: LedgerStage, seconds: float, takes_s: float = 0.0) -> list[float]:
    """When requests were handed out, with a worker that answers after a while."""
    times: list[float] = []
    busy: list[tuple[float, str, bytes]] = []
    end = stage.now + seconds
    while stage.now < end:
        stage.wait(0.05)
        for action in stage.actions(act.Deliver):
            times.append(action.request.dispatched_at)
            busy.append((stage.now + takes_s, action.worker.address[1].decode(), action.request.token))
        for at, name, token in [one for one in busy if one[0] <= stage.now]:
            busy.remove((at, name, token))
            stage.result(name, token)
        check(stage)
    return times


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0, 7.5, 40.0])
def test_in_no_window_more_start_than_the_rate_and_a_second_worth(stage: LedgerStage, rate: float) -> None:
    stage.queue_rules(echo=QueuePolicy(rate_per_s=rate))
    stage.worker("w", credit=100)
    seconds = 20.0
    for number in range(int(rate * seconds) + 60):
        stage.submit(f"c{number % 7}", str(number), ttl_s=inf)
    times = starts(stage, seconds)
    for first, since in enumerate(times):
        for last, until in enumerate(times[first:], first):
            allowed = rate * (until - since) + max(1.0, rate)
            assert last - first + 1 <= allowed + 1e-6, (since, until)
    assert len(times) >= rate * seconds * 0.95, "and it is used"


def test_an_idle_queue_saves_up_no_more_than_a_second(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(rate_per_s=5.0))
    stage.worker("w", credit=100)
    stage.wait(3600.0, step=60.0)
    for number in range(30):
        stage.submit("c", str(number))
    assert len(stage.delivered()) == 5


def test_rate_and_number_together_beside_other_queues(stage: LedgerStage) -> None:
    stage.queue_rules(slow=QueuePolicy(rate_per_s=4.0, concurrency=2))
    for name in ("v", "w"):
        stage.worker(name, "slow", "fast", credit=4)
    for number in range(60):
        stage.submit("c", f"s{number}", "slow", ttl_s=inf)
    random = Random(1)
    busy: list[tuple[float, str, bytes]] = []
    slow: list[float] = []
    fast = 0
    for step in range(200):
        if step % 4 == 0:
            stage.submit("d", f"f{step}", "fast", ttl_s=inf)
        stage.wait(0.05)
        for action in stage.actions(act.Deliver):
            request = action.request
            if request.service.name == b"slow":
                slow.append(request.dispatched_at)
            else:
                fast += 1
            busy.append(
                (stage.now + random.uniform(0.05, 0.6), action.worker.address[1].decode(), request.token)
            )
        assert stage.bus.services[b"slow"].running <= 2
        for one in [one for one in busy if one[0] <= stage.now]:
            busy.remove(one)
            stage.result(one[1], one[2])
        check(stage)
    for first, since in enumerate(slow):
        within = sum(since <= at < since + 1.0 for at in slow[first:])
        assert within <= 8
    assert len(slow) >= 25
    assert fast >= 45, "the others are not held up"


def test_a_gate_opens_by_itself(stage: LedgerStage) -> None:
    """Nothing else happens on the bus: the queue goes on all the same, and the bus says when to look."""
    stage.queue_rules(echo=QueuePolicy(rate_per_s=0.2))
    stage.worker("w", credit=10)
    for number in range(3):
        stage.submit("c", str(number), ttl_s=inf)
    assert len(stage.delivered()) == 1
    assert stage.bus.next_at(stage.now) <= stage.now + 5.1
    stage.wait(5.2)
    assert len(stage.delivered()) == 1
    stage.wait(5.2)
    assert len(stage.delivered()) == 1
    check(stage)


# -- weights --------------------------------------------------------------------------------------


def served(stage: LedgerStage, count: int) -> list[str]:
    names = []
    for _ in range(count):
        (action,) = stage.actions(act.Deliver)
        names.append(action.request.service.name.decode())
        stage.result("w", action.request.token)
    stage.delivered()
    return names


def test_the_heaviest_comes_first_and_the_lightest_not_never(stage: LedgerStage) -> None:
    for service in ("heavy", "middle", "light"):
        for number in range(200):
            stage.submit(f"c{service}", str(number), service, ttl_s=inf)
    offers = ((b"light", 1), (b"heavy", 10), (b"middle", 5))
    stage.do(events.WorkerUp(worker("w"), "w", offers, NEVER_DEAD))
    names = served(stage, 110)
    assert names[:10] == ["heavy"] * 10
    assert names.count("heavy") == 100
    assert {"light", "middle"} <= set(names[:30]), "nobody starves"
    assert names.count("light") == names.count("middle") == 5


def test_equal_ones_take_turns(stage: LedgerStage) -> None:
    for service in ("a", "b", "c"):
        for number in range(10):
            stage.submit(f"c{service}", str(number), service)
    stage.worker("w", "a", "b", "c")
    names = served(stage, 30)
    assert all(names[at : at + 3].count(name) == 1 for at in range(0, 30, 3) for name in "abc")


def test_a_heavy_queue_whose_rule_forbids_more_lets_the_lighter_go(stage: LedgerStage) -> None:
    stage.queue_rules(heavy=QueuePolicy(concurrency=1, weight=100))
    for service in ("heavy", "light"):
        for number in range(5):
            stage.submit("c", f"{service}{number}", service)
    stage.worker("w", "heavy", "light", credit=3)
    assert [name for _, name in stage.delivered()] == ["heavy0", "light0", "light1"]
    check(stage)


def test_a_full_queue_is_full_with_rules_too(stage: LedgerStage) -> None:
    from polybus.core.model import Limits

    stage = LedgerStage(Limits(queue_length=2))
    stage.queue_rules(echo=QueuePolicy(concurrency=1))
    stage.worker("w", credit=10)
    for number in range(5):
        stage.submit("c", str(number))
    assert [refusal.reason for refusal in stage.actions(act.Refuse)] == [Reason.QUEUE_FULL] * 2


def test_a_gate_opens_when_the_rest_of_what_it_waits_for_is_saved_up(stage: LedgerStage) -> None:
    stage.queue_rules(echo=QueuePolicy(rate_per_s=0.5))
    stage.worker("w", credit=10)
    stage.submit("c", "1")
    stage.now += 1.5
    stage.submit("c", "2")
    assert stage.delivered() == [("w", "1")]
    assert stage.bus.gates.soonest == pytest.approx(stage.now + 0.5, abs=0.051)
    stage.wait(0.6)
    assert stage.delivered() == [("w", "2")]


def test_what_started_without_a_rule_is_not_held_against_a_new_one(stage: LedgerStage) -> None:
    stage.worker("w", credit=100)
    for number in range(50):
        stage.submit("c", str(number), options=JobOptions(retries=1))
    stage.delivered()
    stage.queue_rules(echo=QueuePolicy(rate_per_s=0.01))
    stage.submit("c", "next")
    assert stage.delivered() == [("w", "next")]
