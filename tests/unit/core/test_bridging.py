"""Neighbours as the core sees them, without dialects: rosters, refusals, links that break."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec import structs

from polybus.core import actions as act
from polybus.core import events
from polybus.core.actions import ELSEWHERE
from polybus.core.bridging import FAR, GATHER_S, RETELL_S, Advertise, Bridging, Parted, Patterns
from polybus.core.lifecycle import RequestState
from polybus.core.model import PLAIN_CALL, Heartbeat, JobOptions, Limits, Reason, Worker
from polybus.core.replies import KEPT_OVERHEAD_BYTES
from polybus.core.tables import IDLE_TICK_S
from support.stage import NEVER_DEAD, LedgerStage, Stage, client, worker

# A request that does not take the quickest way.
NOTHING_SPECIAL = JobOptions()


def bridged(limits: Limits | None = None) -> tuple[Stage, Bridging]:
    stage = Stage(limits)
    bridging = Bridging(stage.bus, "A")
    stage.bus.bridging = bridging
    return stage, bridging


def link(stage: Stage, name: str, **offers: tuple[str, ...]) -> Worker:
    """A neighbour comes, and offers services over these paths."""
    stage.do(events.WorkerUp(worker(name), name, (), NEVER_DEAD, 10))
    held = stage.bus.workers[worker(name)]
    bridging = stage.bus.bridging
    assert bridging is not None
    bridging.join(name, held, stage.now)
    bridging.hear(name, {key.encode(): path for key, path in offers.items()}, [], True, stage.now)
    stage._collect()
    return held


def ask(
    stage: Stage,
    name: str,
    request_id: str,
    service: str = "echo",
    options: JobOptions = NOTHING_SPECIAL,
    **more: Any,
) -> None:
    """A neighbour asks for something: it is a client at the same address."""
    asked = (request_id.encode(), service.encode(), [b"x"], options)
    stage.do(events.Submit(worker(name), name, *asked, **more))


def test_a_worker_of_a_bridged_broker_is_announced_before_it_is_given_work() -> None:
    stage, _ = bridged()
    stage.submit("c", "1")
    stage.worker("w")
    assert stage.delivered() == [("w", "1")]
    whats = [one.what for one in stage.observed]
    assert whats.index("worker_up") < whats.index("dispatched")


def test_the_bus_is_looked_at_when_its_neighbours_are_to_be_told() -> None:
    stage, bridging = bridged()
    link(stage, "B")
    bridging.tick(bridging.next_at)
    assert stage.bus.next_at(stage.now) == stage.now + IDLE_TICK_S
    bridging.next_at = stage.now + 0.01
    assert stage.bus.next_at(stage.now) == stage.now + 0.01


@pytest.mark.parametrize(
    ("patterns", "service", "fits"),
    [
        (["*"], b"mail", True),
        (["mail.*"], b"mail.send", True),
        (["mail.*"], b"mail", False),
        (["mail.*", "echo"], b"echo", True),
        ([], b"echo", False),
        (["*"], b"polybus.submit", False),
        (["*"], b"mmi.service", False),
        (["*"], b"mmi", True),
        (["*"], b"\xff", True),
    ],
)
def test_services_are_named_by_patterns_and_the_brokers_own_are_never_among_them(
    patterns: list[str], service: bytes, fits: bool
) -> None:
    assert Patterns(patterns)(service) is fits


def test_a_neighbour_gets_what_nobody_offers_here_and_the_nearest_gets_it() -> None:
    stage, bridging = bridged()
    b = link(stage, "B", echo=("B",), far=("B", "D"))
    c = link(stage, "C", echo=("C", "B"), far=("C",))
    assert {service.name: weight for service, weight in b.offers.items()} == {b"echo": FAR - 1}
    assert {service.name: weight for service, weight in c.offers.items()} == {b"far": FAR - 1}
    assert bridging.via(b"echo") == ["B"]
    stage.submit("c", "1")
    stage.submit("c", "2", "far")
    assert stage.delivered() == [("B", "1"), ("C", "2")]
    stage.worker("w")
    assert bridging.via(b"echo") == []
    stage.submit("c", "3")
    stage.submit("c", "4")
    assert stage.delivered() == [("w", "3")], "no request leaves while a worker of our own offers it"
    stage.gone("w")
    assert bridging.via(b"echo") == ["B"]
    assert sorted(stage.delivered()) == [("B", "3"), ("B", "4")]
    bridging.hear("B", {}, [b"echo"], False, stage.now)
    assert bridging.via(b"echo") == ["C", "B"]
    assert bridging.via(b"nothing") == []


def test_more_services_than_allowed_are_counted_and_not_taken() -> None:
    stage, bridging = bridged(Limits(services=1))
    link(stage, "B", one=("B",), two=("B",))
    assert bridging.ignored == 1
    assert set(stage.bus.services) == {b"one"}


def test_links_are_announced_and_their_end_as_well() -> None:
    stage, bridging = bridged()
    held = link(stage, "B", echo=("B",))
    up = stage.told("bridge_up")
    assert [(one.worker, one.worker_voice, one.service) for one in up] == [(worker("B"), "B", b"B")]
    assert bridging.is_neighbour(held)
    assert not bridging.is_neighbour(stage.worker("w", "other"))
    stage.submit("c", "1")
    ask(stage, "B", "2", "other")
    stage.nothing()
    stage.gone("B", "the cable was cut")
    assert stage.one(Parted) == Parted(held, "B", "the cable was cut")
    (down,) = stage.told("bridge_down")
    assert (down.worker, down.worker_voice, down.service, down.reason) == (
        worker("B"),
        "B",
        b"B",
        "the cable was cut",
    )
    assert not bridging.is_neighbour(held)
    assert bridging.workers == {}
    assert stage.request("c", "1").state is RequestState.QUEUED
    # What it asked for goes on, and is not said to a link that is gone.
    assert stage.bus.clients[worker("B")].outstanding[b"2"].options.reply_requested is False
    stage.result("w")
    assert not stage.actions(act.Answer)
    ask(stage, "B", "2", "other")
    assert stage.one(act.Answer).request_id == b"2"


def test_what_a_neighbour_gives_back_goes_elsewhere_and_it_gets_no_more() -> None:
    stage, bridging = bridged()
    held = link(stage, "B", echo=("B",))
    stage.submit("c", "1")
    assert stage.delivered() == [("B", "1")]
    assert held.free == 9
    bridging.given_back(held, b"unknown", stage.now)
    assert held.free == 9
    bridging.given_back(held, stage.token("c", "1"), stage.now)
    stage._collect()
    assert held.free == 10
    assert stage.request("c", "1").state is RequestState.QUEUED
    assert [one.reason for one in stage.told("requeued")] == ["the broker it was sent to gave it back"]
    assert bridging.via(b"echo") == []
    assert bridging.next_at <= stage.now + GATHER_S
    assert stage.delivered() == []
    bridging.hear("B", {b"echo": ("B",)}, [], False, stage.now)
    stage._collect()
    assert stage.delivered() == [("B", "1")]


def test_a_request_that_is_given_back_goes_to_the_next_nearest() -> None:
    stage, bridging = bridged()
    held = link(stage, "B", echo=("B",))
    link(stage, "C", echo=("C", "D"))
    stage.submit("c", "1")
    assert stage.delivered() == [("B", "1")]
    bridging.given_back(held, stage.token("c", "1"), stage.now)
    stage._collect()
    assert stage.delivered() == [("C", "1")]


@pytest.mark.parametrize("options", [PLAIN_CALL, JobOptions()])
def test_what_is_given_back_to_a_neighbour_is_not_kept_and_other_refusals_are(options: JobOptions) -> None:
    stage, _ = bridged()
    link(stage, "B")
    stage.worker("w")
    ask(stage, "B", "0", "nobody", ttl_s=1.0, options=options)
    for request_id in ("1", "2"):
        ask(stage, "B", request_id, options=options)
    stage.submit("c", "1", "nobody", ttl_s=1.0)
    stage.wait(1.2)
    assert len(stage.actions(act.Refuse)) == 2
    held = (len(stage.bus.replies), stage.bus.replies_bytes)
    assert held == (2, 2 * KEPT_OVERHEAD_BYTES)
    stage.gone("w")
    stage.wait(GATHER_S + 0.05)
    assert {refusal.request_id for refusal in stage.actions(act.Refuse)} == {b"1", b"2"}
    assert set(stage.bus.clients[worker("B")].known) == {b"0"}
    assert (len(stage.bus.replies), stage.bus.replies_bytes) == held
    # It may ask again with the same id.
    stage.worker("w")
    stage.nothing()
    ask(stage, "B", "1")
    assert stage.delivered() == [("w", "1")]
    stage.result("w")
    assert stage.one(act.Answer).request_id == b"1"
    for request_id in ("0", "1"):
        ask(stage, "B", request_id)
    assert stage.one(act.Refuse).reason is Reason.EXPIRED, "what was refused here is kept"
    assert stage.one(act.Answer).request_id == b"1", "and so is an answer"


@pytest.mark.parametrize(
    "sorry",
    [
        events.Undeliverable(worker("w"), b"", "no such frame"),
        events.Failure(worker("w"), b"", f"{ELSEWHERE}it says so itself", []),
    ],
)
def test_other_refusals_are_kept_whatever_they_look_like(
    sorry: events.Undeliverable | events.Failure,
) -> None:
    stage, _ = bridged()
    stage.worker("w")
    stage.submit("c", "1")
    stage.delivered()
    stage.do(structs.replace(sorry, token=stage.token("c", "1")))
    told = stage.one(act.Refuse)
    stage.submit("c", "1")
    assert stage.one(act.Refuse).detail == told.detail
    assert not stage.delivered()


def test_refusals_leave_the_oldest_first_when_there_are_too_many() -> None:
    stage = Stage(Limits(replies_count=2))
    for number in "123":
        stage.submit("c", number, ttl_s=1.0)
        stage.wait(0.1)
    stage.wait(1.2)
    assert set(stage.bus.clients[client("c")].known) == {b"2", b"3"}
    assert (len(stage.bus.replies), stage.bus.replies_bytes) == (2, 2 * KEPT_OVERHEAD_BYTES)


def test_of_a_neighbour_of_which_nothing_is_kept_nothing_is_left() -> None:
    stage, _ = bridged()
    link(stage, "B")
    stage.worker("w")
    ask(stage, "B", "1")
    stage.gone("w")
    assert set(stage.bus.clients) == {worker("B")}
    stage.wait(GATHER_S + 0.05)
    assert not stage.bus.clients


def test_the_link_to_a_neighbour_that_does_not_read_is_made_anew() -> None:
    stage, bridging = bridged()
    link(stage, "B")
    stage.worker("w")
    for address in (worker("w"), client("c"), worker("nobody")):
        bridging.answer_lost(address, stage.now)
    assert stage.nothing()
    bridging.answer_lost(worker("B"), stage.now)
    stage._collect()
    why = "it does not read what it asked for"
    assert stage.one(act.Dismiss) == act.Dismiss(worker("B"), "B", why)
    assert stage.one(Parted).reason == why
    assert set(stage.bus.workers) == {worker("w")}


def test_what_a_neighbour_asked_for_is_given_back_when_the_last_worker_is_gone() -> None:
    stage, _ = bridged()
    link(stage, "B")
    stage.worker("w")
    stage.worker("v", "other")
    ask(stage, "B", "1")
    ask(stage, "B", "2")
    ask(stage, "B", "3", "other")
    ask(stage, "B", "4", "other")
    stage.submit("c", "1")
    stage.nothing()
    stage.gone("w")
    assert not stage.actions(act.Refuse)
    stage.wait(GATHER_S + 0.05)
    refused = {refusal.request_id: refusal for refusal in stage.actions(act.Refuse)}
    assert set(refused) == {b"1", b"2"}
    assert {refusal.client for refusal in refused.values()} == {worker("B")}
    assert {(refusal.reason, refusal.detail) for refusal in refused.values()} == {
        (Reason.UNDELIVERABLE, f"{ELSEWHERE}nobody offers it at A any more")
    }
    assert stage.bus.counters.cancelled == 2
    assert stage.request("c", "1").state is RequestState.QUEUED, "clients of our own wait"
    assert stage.bus.services[b"echo"].queue.length == 1


def told(stage: Stage) -> list[tuple[str, dict[bytes, tuple[str, ...]], list[bytes]]]:
    return [(one.worker.voice, one.offers, one.withdrawn) for one in stage.actions(Advertise)]


def test_neighbours_are_told_what_they_can_reach_here() -> None:
    stage, bridging = bridged()
    stage.worker("w")
    link(stage, "B", far=("B",))
    link(stage, "C")
    stage.wait(GATHER_S + 0.05)
    assert told(stage) == [
        ("B", {b"echo": ("A",)}, []),
        ("C", {b"echo": ("A",), b"far": ("A", "B")}, []),
    ]
    stage.wait(1.0)
    assert told(stage) == [], "once"
    # C gives something up: it is told again, but not at once.
    bridging.retell("C", b"echo")
    assert bridging.next_at <= stage.now
    stage.wait(0.05)
    assert told(stage) == [("C", {b"echo": ("A",)}, [])]
    bridging.retell("C", b"echo")
    assert bridging.next_at == pytest.approx(stage.now + RETELL_S, abs=0.001)
    stage.wait(0.1)
    assert told(stage) == [("C", {b"echo": ("A",)}, [])]
    stage.gone("w")
    stage.wait(GATHER_S + 0.05)
    assert told(stage) == [("B", {}, [b"echo"]), ("C", {}, [b"echo"])]
    stage.do(events.Drain())
    stage.do(events.Tick())
    assert told(stage) == [("C", {}, [b"far"])], "a broker that stops offers nothing"


def test_every_fact_about_a_neighbour() -> None:
    stage, bridging = bridged()
    held = link(stage, "B", echo=("B",), far=("B", "C"))
    stage.worker("w", "own")
    stage.wait(0.5)
    stage.submit("c", "1")
    stage.submit("c", "2")
    stage.result("B", stage.token("c", "1"))
    stage.now += 1.2345678
    bridging.routes.neighbours["B"].ignored = 3
    assert bridging.view("B", stage.now) == {
        "up_s": 1.735,
        "silent_s": 1.235,
        "in_flight": 1,
        "done": 1,
        "offers": 2,
        "told": 1,
        "ignored": 3,
    }
    assert held.done == 1


def test_before_anything_was_told_a_neighbour_is_told_again_at_once() -> None:
    stage, bridging = bridged()
    link(stage, "B")
    bridging.retell("B", b"echo")
    assert bridging.next_at <= stage.now


def test_what_a_neighbour_asked_for_waits_if_somebody_offers_the_service_again_in_time() -> None:
    stage, _ = bridged()
    link(stage, "B")
    stage.worker("w")
    ask(stage, "B", "1")
    ask(stage, "B", "2")
    stage.gone("w")
    stage.worker("v")
    stage.wait(GATHER_S + 0.1)
    assert not stage.actions(act.Refuse)
    assert stage.bus.services[b"echo"].queue.length == 1


def test_a_silent_worker_that_is_heard_again_offers_its_services_to_neighbours_again() -> None:
    stage, bridging = bridged()
    link(stage, "B")
    stage.worker("w", heartbeat=Heartbeat(dead_after_s=1.0))
    stage.submit("c", "1")
    stage.wait(0.1)
    stage.actions(Advertise)
    stage.wait(1.2)
    assert told(stage) == [("B", {}, [b"echo"])]
    assert bridging.via(b"echo") == []
    stage.heard("w")
    stage.wait(0.1)
    assert told(stage) == [("B", {b"echo": ("A",)}, [])]


def test_a_neighbour_whose_last_slot_a_withdrawn_service_had_gets_what_waits_for_the_other() -> None:
    stage, bridging = bridged()
    held = link(stage, "B", gone=("B",), stays=("B",))
    held.credit = held.free = 1
    stage.submit("c", "1", "gone")
    stage.submit("c", "2", "stays")
    assert stage.delivered() == [("B", "1")]
    bridging.hear("B", {}, [b"gone"], False, stage.now)
    stage.result("B")
    assert stage.delivered() == [("B", "2")]


def test_a_service_that_a_worker_offers_later_is_told_to_neighbours() -> None:
    stage, _ = bridged()
    link(stage, "B")
    stage.worker("w")
    stage.wait(GATHER_S + 0.1)
    stage.actions(Advertise)
    stage.do(events.Offer(worker("w"), "w", b"more"))
    stage.wait(GATHER_S + 0.1)
    assert told(stage) == [("B", {b"more": ("A",)}, [])]


def test_a_service_that_nobody_offers_is_not_made_by_looking_at_it() -> None:
    stage, bridging = bridged()
    bridging.settle(b"unknown", stage.now)
    assert not stage.bus.services
    assert bridging.ignored == 0


def gather(stage: Stage) -> list[tuple[str, dict[bytes, tuple[str, ...]], list[bytes]]]:
    """What neighbours are told of what has just happened."""
    stage.now += GATHER_S
    stage.do(events.Tick())
    return told(stage)


def test_what_was_offered_before_there_were_neighbours_is_told_to_the_first() -> None:
    stage = Stage()
    stage.worker("w")
    stage.bus.bridging = Bridging(stage.bus, "A")
    link(stage, "B")
    assert gather(stage) == [("B", {b"echo": ("A",)}, [])]


def test_a_second_worker_of_a_service_is_no_news_to_neighbours() -> None:
    stage, bridging = bridged()
    link(stage, "B")
    stage.worker("v")
    assert gather(stage) == [("B", {b"echo": ("A",)}, [])]
    stage.worker("w")
    stage.gone("v")
    assert bridging.next_at == inf
    assert gather(stage) == []


@pytest.mark.parametrize("how", ["it is lost", "it gives back"])
def test_the_next_way_is_taken_and_told_when_a_neighbour_fails(how: str) -> None:
    stage, bridging = bridged()
    nearest = link(stage, "B", echo=("B",))
    link(stage, "C", echo=("C", "E"))
    link(stage, "D")
    assert gather(stage)[-1] == ("D", {b"echo": ("A", "B")}, [])
    stage.submit("c", "1")
    assert stage.delivered() == [("B", "1")]
    if how == "it is lost":
        stage.gone("B")
    else:
        bridging.given_back(nearest, stage.token("c", "1"), stage.now)
        stage._collect()
    assert stage.delivered() == [("C", "1")]
    assert bridging.via(b"echo") == ["C", "E"]
    assert gather(stage)[-1] == ("D", {b"echo": ("A", "C", "E")}, [])


def test_what_is_written_down_here_is_not_given_back() -> None:
    stage = LedgerStage()
    bridging = stage.bus.bridging = Bridging(stage.bus, "A")
    stage.worker("w", credit=1)
    link(stage, "B")
    stage.submit("c", "1")
    ask(stage, "B", "durable", options=JobOptions(guarantee=True))
    ask(stage, "B", "plain")
    stage.write()
    stage.taken.clear()
    stage.gone("w")
    stage.wait(GATHER_S * 2)
    refused = stage.one(act.Refuse)
    assert (refused.client, refused.request_id) == (worker("B"), b"plain")
    assert refused.detail.startswith(ELSEWHERE)
    assert stage.bus.services[b"echo"].queue.length == 2
    assert bridging.via(b"echo") == []


def small_link(stage: Stage, name: str, **offers: tuple[str, ...]) -> Worker:
    """A neighbour that takes one request at a time."""
    held = link(stage, name)
    held.free = held.credit = 1
    bridging = stage.bus.bridging
    assert bridging is not None
    bridging.hear(name, {key.encode(): path for key, path in offers.items()}, [], True, stage.now)
    stage._collect()
    return held


@pytest.mark.parametrize("waits", [False, True])
def test_a_neighbour_that_gives_something_back_has_room_for_something_else(waits: bool) -> None:
    stage, bridging = bridged()
    held = small_link(stage, "B", echo=("B",), other=("B",))
    stage.submit("c", "1")
    if waits:
        stage.submit("c", "2", "other")
    assert stage.delivered() == [("B", "1")]
    bridging.given_back(held, stage.token("c", "1"), stage.now)
    stage._collect()
    if not waits:
        stage.submit("c", "2", "other")
    assert stage.delivered() == [("B", "2")]


def test_every_service_that_is_too_much_is_counted() -> None:
    stage, bridging = bridged(Limits(services=1))
    link(stage, "B", one=("B",), two=("B",), three=("B",))
    assert bridging.ignored == 2
    assert len(stage.bus.services) == 1


def test_neighbours_that_are_equally_near_take_turns_whatever_else_is_looked_at() -> None:
    stage, bridging = bridged()
    for name in ("B", "C"):
        link(stage, name, echo=(name,))
    turns = []
    for number in range(4):
        stage.submit("c", str(number))
        ((name, _),) = stage.delivered()
        turns.append(name)
        stage.result(name, stage.token("c", str(number)))
        bridging.settle(b"echo", stage.now)
    assert turns == ["B", "C", "B", "C"]


def test_a_neighbour_that_gave_something_back_is_found_among_others_that_offer_the_same() -> None:
    stage, bridging = bridged()
    held = small_link(stage, "B", echo=("B",), other=("B",))
    stage.submit("c", "1")
    small_link(stage, "C", other=("C",))
    stage.submit("c", "2", "other")
    assert stage.delivered() == [("B", "1"), ("C", "2")]
    bridging.given_back(held, stage.token("c", "1"), stage.now)
    stage._collect()
    stage.submit("c", "3", "other")
    assert stage.delivered() == [("B", "3")]
