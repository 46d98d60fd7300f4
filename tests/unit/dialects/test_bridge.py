"""Brokers that ask each other: the real dialect and core over wires that only move when told."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from polybus.core import events
from polybus.core.lifecycle import BusState
from polybus.core.model import JobOptions
from polybus.dialects.dbp_catalog import describe
from polybus.wire import bridge as wire
from polybus.wire import bridge_messages as say
from support.bridges import PARTIAL, ROUTER, Island, World


def line(**settings: Any) -> tuple[World, Island, Island, Island]:
    """A – B – C, linked."""
    world = World()
    c = world.broker("C", **settings)
    b = world.broker("B", peers=["C"], **settings)
    a = world.broker("A", peers=["B"], **settings)
    world.wait(1.0)
    assert (a.neighbours, b.neighbours, c.neighbours) == (["B"], ["A", "C"], ["B"])
    return world, a, b, c


def error(body: bytes) -> dict[str, str]:
    found: dict[str, str] = msgspec.json.decode(body)
    return found


# -- requests -----------------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-34")
def test_a_request_crosses_two_bridges_and_the_answer_comes_back() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    assert a.via("echo") == ["B", "C"]
    assert b.via("echo") == ["C"]
    assert c.via("echo") == []
    a.ask("c", "1", "echo", b"hello")
    world.run()
    token = c.order("w")
    c.answer("w", token, b"a piece", PARTIAL)
    c.answer("w", token, b"hi")
    world.run()
    assert [frames[1] for frames in a.sent[b"c"]] == [b"\x02", b"\x03"]
    assert a.finals("c") == {"1": [b"hi"]}


def test_a_request_is_called_the_same_on_the_whole_way() -> None:
    """The last broker knows by this name that it is sent again because a link was lost."""
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    (at_b,), (at_c,) = b.bus.requests.values(), c.bus.requests.values()
    assert at_b.request_id == at_c.request_id == a.bus.requests[next(iter(a.bus.requests))].token + b"/0"


def test_both_directions_over_one_link() -> None:
    world, a, _, c = line()
    a.worker("w", "tea")
    world.wait(0.1)
    c.ask("c", "1", "tea")
    world.run()
    a.answer("w", a.order("w"), b"hot")
    world.run()
    assert c.finals("c") == {"1": [b"hot"]}


def test_workers_of_our_own_come_first() -> None:
    world, a, _, c = line()
    c.worker("far", "echo")
    world.wait(0.1)
    a.worker("near", "echo", credit=1)
    for number in "123":
        a.ask("c", number, "echo")
    world.run()
    assert len(a.orders("near")) == 1
    assert c.orders("far") == []
    # When the last one goes, what waits takes the bridge.
    a.leave("near")
    world.run()
    assert len(c.orders("far")) == 3


def test_neighbours_that_offer_it_themselves_share_the_work() -> None:
    world = World()
    b, c = world.broker("B"), world.broker("C")
    a = world.broker("A", peers=["B", "C"])
    b.worker("w", "echo")
    c.worker("w", "echo")
    world.wait(1.0)
    for number in range(10):
        a.ask("c", str(number), "echo")
    world.run()
    assert (len(b.orders("w")), len(c.orders("w"))) == (5, 5)


def test_a_failure_keeps_its_reason_and_the_words_of_the_worker() -> None:
    world, a, _, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    c.answer("w", c.order("w"), b'{"error": "rejected", "detail": "no tea"}')
    world.run()
    (body,) = a.finals("c")["1"]
    assert error(body) == {"error": "rejected", "detail": "no tea"}


def test_it_expires_everywhere_with_that_reason() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("d", "1", "echo")
    world.run()
    world.wait(301, step_s=0.5)
    (body,) = a.finals("d")["1"]
    assert error(body)["error"] == "expired"
    assert [island.bus.request_count for island in (a, b, c)] == [0, 0, 0]


def test_what_is_withdrawn_is_withdrawn_everywhere() -> None:
    world, a, b, c = line()
    c.worker("w", "echo", credit=1)
    world.wait(0.1)
    for number in "12":
        a.ask("c", number, "echo")
    world.run()
    assert c.bus.request_count == 2
    a.bus.handle(events.ClientGone((0, b"c"), withdraw=True), world.now)
    world.run()
    assert [island.bus.request_count for island in (a, b, c)] == [0, 0, 0]
    # And the slots of the bridge are free again.
    assert a.bus.bridging is not None
    worker = a.bus.bridging.workers["B"]
    assert worker.free == worker.credit == 1000


def test_time_limits_and_headers_cross_retries_do_not() -> None:
    world, a, _, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    options = JobOptions(timeout_s=5, retries=1, backoff_s=0.1, other=("x:1",))
    a.bus.handle(events.Submit((0, b"c"), voice_of(a), b"1", b"echo", [b"body"], options), world.now)
    world.run()
    (request,) = c.bus.requests.values()
    assert (request.options.timeout_s, request.options.other, request.options.retries) == (5, ("x:1",), 0)
    # What failed is tried again by the broker that took it, and is no repetition at the other.
    c.answer("w", c.order("w"), b'{"error": "failed"}')
    world.wait(0.5)
    c.answer("w", c.order("w"), b"done")
    world.run()
    assert a.finals("c") == {"1": [b"done"]}


def voice_of(island: Island) -> Any:
    """How an MDR client is answered."""
    island.ask("nobody", "0", "nothing")
    return island.bus.clients[0, b"nobody"].outstanding[b"0"].voice


def test_a_guaranteed_job_stays_in_the_ledger_of_its_broker() -> None:
    world, a, b, c = line()
    a.bus.store_trouble = ""
    c.worker("w", "echo")
    world.wait(0.1)
    a.bus.handle(
        events.Submit((0, b"c"), voice_of(a), b"1", b"echo", [b"body"], JobOptions(guarantee=True)), world.now
    )
    number, lines = a.bus.take_lines()
    assert [type(one).__name__ for one in lines] == ["Accepted"]
    a.bus.handle(events.Written(number), world.now)
    world.run()
    assert not b.bus.lines
    assert not c.bus.lines
    c.answer("w", c.order("w"), b"done")
    world.run()
    number, lines = a.bus.take_lines()
    assert [type(one).__name__ for one in lines] == ["Ended"]
    a.bus.handle(events.Written(number), world.now)
    world.run()
    assert a.finals("c") == {"1": [b"done"]}


# -- lost links ---------------------------------------------------------------------------------------


def test_what_a_lost_link_held_is_sent_again_and_runs_once() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    token = c.order("w")
    world.cut(b, c)
    world.wait(10)
    assert c.neighbours == []
    world.heal(b, c)
    world.wait(10)
    assert c.neighbours == ["B"]
    # It came again, and was known: nobody was given it twice.
    assert c.orders("w") == []
    c.answer("w", token, b"once")
    world.run()
    assert a.finals("c") == {"1": [b"once"]}


def test_an_answer_that_was_lost_with_the_link_is_given_again() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    token = c.order("w")
    world.cut(b, c)
    c.answer("w", token, b"once")
    world.wait(10)
    world.heal(b, c)
    world.wait(10)
    assert a.finals("c") == {"1": [b"once"]}
    assert c.orders("w") == []


def test_a_dead_broker_in_the_middle_leaves_the_requests_to_its_successor() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    token = c.order("w")
    world.kill(b)
    world.wait(6)
    assert a.via("echo") == []
    assert a.bus.request_count == 1
    world.broker("B", peers=["C"])
    world.wait(12)
    # It kept its name on the new way, so it is known at its end.
    assert c.orders("w") == []
    c.answer("w", token, b"late")
    world.run()
    assert a.finals("c") == {"1": [b"late"]}


def test_a_dead_link_costs_a_request_no_more_than_its_attempts() -> None:
    world = World()
    world.broker("B").worker("w", "echo")
    a = world.broker("A", peers=["B"])
    world.wait(1)
    a.ask("c", "1", "echo")
    world.run()
    for _ in range(6):
        world.kill(world.islands["B"])
        world.wait(6)
        world.broker("B").worker("w", "echo")
        world.wait(12)
    (body,) = a.finals("c")["1"]
    assert error(body)["error"] == "worker_lost"


def test_pauses_between_dials_grow_and_have_an_end() -> None:
    world = World()
    a = world.broker("A", peers=["B"], retry_s=0.2, retry_max_s=4)
    world.wait(60)
    pauses = [later - sooner for sooner, later in zip(a.dials, a.dials[1:], strict=False)]
    for pause, meant in zip(pauses, [0.2, 0.4, 0.8, 1.6, 3.2, *[4.0] * 100], strict=False):
        assert 0.7 * meant <= pause <= 1.3 * meant + 0.02
    assert len(pauses) > 10
    world.broker("B")
    world.wait(6)
    assert a.neighbours == ["B"]


def test_a_peer_that_does_not_take_its_answers_is_linked_anew() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    b.worker("w", "echo")
    world.wait(1)
    a.ask("c", "1", "echo")
    world.run()
    token = b.order("w")
    b.full = {ROUTER}
    b.answer("w", token, b"once")
    assert b.neighbours == []
    b.full = set()
    world.wait(15)
    assert a.finals("c") == {"1": [b"once"]}


def test_a_peer_that_cannot_be_told_what_is_offered_is_linked_anew() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    world.wait(1)
    b.full = {ROUTER}
    b.worker("w", "echo")
    world.wait(0.1)
    assert b.neighbours == []
    b.full = set()
    world.wait(15)
    assert a.via("echo") == ["B"]


def test_there_is_an_end_to_the_number_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.dialects.bridge.NEIGHBOURS", 2)
    world = World()
    b = world.broker("B")
    for name in ("A", "C", "D"):
        world.broker(name, peers=["B"])
    world.wait(1)
    assert len(b.neighbours) == 2
    assert "B has 2 links; it takes no more" in world.islands["D"].troubles()


# -- given back ---------------------------------------------------------------------------------------


def test_what_nobody_does_any_more_is_given_back_and_goes_another_way() -> None:
    world = World()
    b, c = world.broker("B"), world.broker("C")
    a = world.broker("A", peers=["B"])
    b.worker("w", "echo", credit=1)
    world.wait(1)
    for number in "12":
        a.ask("c", number, "echo")
    world.run()
    assert len(b.orders("w")) == 1
    b.leave("w")
    world.wait(0.2)
    # Both wait at A now, where they can be given to whoever comes.
    assert b.bus.request_count == 0
    assert a.bus.request_count == 2
    a.worker("near", "echo")
    assert len(a.orders("near")) == 2
    assert c.neighbours == []


def test_a_broker_that_drains_offers_nothing_and_finishes_what_it_has() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    c.bus.handle(events.Drain(), world.now)
    # On its way before it is known.
    a.ask("c", "2", "echo")
    world.wait(0.2)
    assert a.via("echo") == []
    assert (a.bus.request_count, b.bus.request_count) == (2, 1)
    c.answer("w", c.order("w"), b"last")
    world.run()
    assert a.finals("c") == {"1": [b"last"]}
    assert c.bus.state is BusState.DRAINED


def test_a_broker_that_drains_takes_its_offers_back() -> None:
    world, a, _, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    assert a.via("echo") == ["B", "C"]
    c.bus.handle(events.Drain(), world.now)
    world.wait(0.2)
    assert a.via("echo") == []


def test_a_request_that_would_go_in_a_circle_is_given_back() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    request = say.Request(b"x/0", b"echo", ("B", "A"), [b"body"], 1000)
    (identity,) = [name for name, one in world.wires.items() if one.dialler is a]
    world.wires[identity].there.append(wire.write_request(request))
    world.run()
    assert b.bus.request_count == 0
    # A was told that this way is closed, and then, because it is not, that it is open.
    world.wait(0.2)
    assert a.via("echo") == ["B", "C"]


def test_a_request_that_would_come_to_a_broker_a_second_time_is_given_back() -> None:
    """B itself was not passed yet, but its way to the service is over C, where the request was."""
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    request = say.Request(b"x/0", b"echo", ("C", "A"), [b"body"], 1000)
    (identity,) = [name for name, one in world.wires.items() if one.dialler is a]
    world.wires[identity].there.append(wire.write_request(request))
    world.run()
    assert (b.bus.request_count, c.bus.request_count) == (0, 0)
    assert not c.orders("w")


def test_the_catalog_says_which_brokers_are_on_the_way() -> None:
    world, a, _, c = line()
    c.worker("w", "echo")
    a.worker("v", "tea")
    world.wait(0.1)
    assert msgspec.json.decode(describe(a.bus, b"echo"))["echo"]["via"] == ["B", "C"]
    assert "via" not in msgspec.json.decode(describe(a.bus, b"tea"))["tea"]


def test_a_request_keeps_the_rest_of_its_time() -> None:
    world, a, b, _ = line()
    b.worker("w", "echo", credit=1)
    (identity,) = [name for name, one in world.wires.items() if one.dialler is a]
    for number, ttl_ms in enumerate((90_000, None)):
        request = say.Request(b"x/%d" % number, b"echo", ("A",), [], ttl_ms)
        b.hear(ROUTER, [identity, *wire.write_request(request)])
    times = [request.expires_at - world.now for request in b.bus.requests.values()]
    assert times == [pytest.approx(90.0, abs=1e-6), inf]


def test_a_greeting_that_is_repeated_changes_nothing() -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo")
    world.run()
    (identity,) = [name for name, one in world.wires.items() if one.dialler is a]
    neighbour = b.bridges.dialect.peers[ROUTER, identity]
    worker = neighbour.worker
    b.hear(ROUTER, [identity, *a.bridges.dialect.hello()])
    assert neighbour.worker is worker
    assert not world.wires[identity].back
    c.answer("w", c.order("w"), b"hi")
    world.run()
    assert a.finals("c") == {"1": [b"hi"]}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (say.Request(b"x/0", b"echo", (*(f"b{n}" for n in range(8)), "A"), []), "undeliverable"),
        (say.Request(b"x/0", b"polybus.submit", ("A",), []), "rejected"),
        (say.Request(b"x/0", b"mmi.services", ("A",), []), "rejected"),
    ],
)
def test_requests_that_are_refused(request_: say.Request, words: str) -> None:
    world, a, b, c = line()
    c.worker("w", "echo")
    world.wait(0.1)
    (identity,) = [name for name, one in world.wires.items() if one.dialler is a]
    b.hear(ROUTER, [identity, *wire.write_request(request_)])
    refused = wire.read(world.wires[identity].back[-1])
    assert isinstance(refused, say.Refused)
    assert refused.reason == words
    assert b.bus.request_count == 0


def test_a_request_with_hops_of_somebody_else_is_invalid() -> None:
    world, a, b, _ = line()
    (identity,) = [name for name, one in world.wires.items() if one.dialler is a]
    b.hear(ROUTER, [identity, *wire.write_request(say.Request(b"x/0", b"echo", ("Z",), []))])
    assert b.bus.counters.invalid == 1


# -- who may link -------------------------------------------------------------------------------------


def test_only_what_both_allow_crosses() -> None:
    world = World()
    b = world.broker("B", services=["mail.*", "tea"])
    a = world.broker("A", peers=["B"], accept=["mail.*"])
    for service in ("mail.out", "tea", "secret"):
        b.worker(service, service)
    world.wait(1)
    assert [a.via(service) for service in ("mail.out", "tea", "secret")] == [["B"], [], []]
    # Nor can it be had by whoever asks all the same.
    (identity,) = world.wires
    b.hear(ROUTER, [identity, *wire.write_request(say.Request(b"x/0", b"secret", ("A",), []))])
    refused = wire.read(world.wires[identity].back[-1])
    assert isinstance(refused, say.Refused)
    assert (refused.reason, b.bus.request_count) == ("rejected", 0)


def test_two_of_the_same_name_refuse_each_other() -> None:
    world = World()
    world.broker("B", called="X")
    a = world.broker("A", peers=["B"], called="X")
    world.wait(1)
    assert a.neighbours == []
    assert a.troubles() == ["both brokers are called 'X'; give each a bridge.name of its own"]
    # It is not tried more often than it may help.
    assert len(a.dials) <= 2


def test_a_broker_that_dials_itself_is_told_so() -> None:
    world = World()
    a = world.broker("A", peers=["A"])
    world.wait(1)
    assert a.neighbours == []
    assert a.troubles() == ["A has dialled itself; take its own address out of bridge.peers"]


def test_another_version_is_refused() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    a.bridges.dialect.hello = lambda label="": [wire.TAG, wire.HELLO, b"2", b"?"]  # type: ignore[method-assign]
    world.wait(1)
    assert (a.neighbours, b.neighbours) == ([], [])
    assert a.troubles() == ["B speaks version 1 of the bridge, its peer version 2; update the older broker"]


def test_who_is_not_allowed_is_refused() -> None:
    world = World()
    b = world.broker("B", allow=["C"])
    a, c = world.broker("A", peers=["B"]), world.broker("C", peers=["B"])
    world.wait(1)
    assert b.neighbours == ["C"]
    assert a.troubles() == ["'A' is not in bridge.allow of B"]
    assert c.neighbours == ["B"]


def test_beyond_loopback_only_those_that_we_dial_may_link() -> None:
    world = World()
    c = world.broker("C")
    b = world.broker("B", peers=["C"], host="192.0.2.1")
    a = world.broker("A", peers=["B"])
    world.wait(1)
    assert b.neighbours == ["C"]
    assert (a.neighbours, c.neighbours) == ([], ["B"])


def test_a_name_that_is_taken_is_refused_until_its_owner_is_gone() -> None:
    world = World()
    c = world.broker("C")
    world.broker("A", peers=["C"], called="X")
    world.wait(1)
    b = world.broker("B", peers=["C"], called="X")
    world.wait(1)
    assert c.neighbours == ["X"]
    assert b.troubles() == ["another broker called 'X' is linked to C"]
    world.kill(world.islands["A"])
    world.wait(15)
    assert b.neighbours == ["C"]


def test_two_that_dial_each_other_keep_one_link() -> None:
    world = World()
    a, b = world.broker("A", peers=["B"]), world.broker("B", peers=["A"])
    b.worker("w", "echo")
    world.wait(5)
    assert (a.neighbours, b.neighbours) == (["B"], ["A"])
    a.ask("c", "1", "echo")
    world.run()
    b.answer("w", b.order("w"), b"hi")
    world.run()
    assert a.finals("c") == {"1": [b"hi"]}
    # And it stays: the other one is not tried again and again.
    dials = len(b.dials)
    world.wait(30)
    assert len(b.dials) <= dials + 4
    assert (a.neighbours, b.neighbours) == (["B"], ["A"])


def test_one_that_is_dialled_at_two_addresses_keeps_one_link() -> None:
    world = World()
    b = world.broker("B")
    world.islands["other"] = b
    a = world.broker("A", peers=["B", "other"])
    b.worker("w", "echo")
    world.wait(30, step_s=0.05)
    assert (a.neighbours, b.neighbours) == (["B"], ["A"])
    links = [peer for peer in a.bridges.dialect.peers.values() if peer.is_up]
    (up,) = links
    since = up.worker.since if up.worker is not None else world.now
    # It is the first one, and was never lost.
    assert since < 1002
    (down,) = [peer for peer in a.bridges.dialect.peers.values() if not peer.is_up]
    assert down.trouble == "B and A are linked already"


def test_who_speaks_without_a_greeting_is_asked_for_one() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    world.wait(1)
    (identity,) = world.wires
    # B has forgotten: it was replaced in between.
    b.bridges.dialect.peers.clear()
    b.hear(ROUTER, [identity, *wire.write_beat()])
    assert wire.read(world.wires[identity].back[-1]) == say.Denied("unknown", "say HELLO first")
    world.wait(5)
    assert (a.neighbours, len(a.dials)) == (["B"], 2)


def test_up_and_down_are_observed() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    a.bus.listen(True, None)
    world.wait(1)
    world.kill(b)
    world.wait(10)
    seen = [(one.what, one.service) for one in a.observed if one.what.startswith("bridge")]
    assert seen == [("bridge_up", b"B"), ("bridge_down", b"B")]


def test_views() -> None:
    world = World()
    world.broker("B").worker("w", "echo")
    a = world.broker("A", peers=["B", "Z"])
    world.wait(1)
    up, down = a.bridges.views({}, world.now)
    assert (up["broker"], up["state"], up["offers"], up["trouble"]) == ("B", "up", 1, "")
    assert (down["endpoint"], down["state"], down["offers"]) == ("tcp://Z:1", "down", None)
    assert a.bridges.facts()["bridges_up"] == 1


@pytest.mark.parametrize(
    ("ttl_s", "waits_s", "ttl_ms"),
    [
        (90.0, 0.0, 90_000),
        # What is left when the link gets it.
        (90.0, 30.0, 60_000),
        (0.0005, 0.0, 1),
        (31_536_001.0, 0.0, 31_536_000_000),
        (inf, 0.0, None),
    ],
)
def test_a_neighbour_is_told_how_much_time_is_left(ttl_s: float, waits_s: float, ttl_ms: int | None) -> None:
    world, a, b, _ = line()
    if not waits_s:
        b.worker("w", "echo")
        world.wait(0.1)
    submit = events.Submit((0, b"c"), voice_of(a), b"1", b"echo", [b"body"], ttl_s=ttl_s)
    a.bus.handle(submit, world.now)
    if waits_s:
        world.wait(waits_s, step_s=0.5)
        b.worker("w", "echo")
        world.wait(0.1)
    sent = a.bus.clients[0, b"c"].outstanding[b"1"]
    assert sent.worker is not None
    call = wire.read(sent.worker.voice.deliver(sent.worker, sent))
    assert isinstance(call, say.Request)
    assert call.ttl_ms == (None if ttl_ms is None else pytest.approx(ttl_ms, abs=200 if waits_s else 1))


def test_every_fact_about_a_neighbour() -> None:
    world = World()
    b = world.broker("B")
    b.worker("w", "echo", credit=9)
    a = world.broker("A", peers=["B"])
    a.worker("own", "tea")
    a.worker("own too", "milk")
    world.wait(1.0)
    for number in "123":
        a.ask("c", number, "echo")
    world.run()
    b.answer("w", b.orders("w")[0], b"done")
    world.run()
    assert a.bus.bridging is not None
    worker = a.bus.bridging.workers["B"]
    now = worker.seen_at + 1.23456
    worker.since = now - 7.65432
    assert a.bus.bridging.view("B", now) == {
        "up_s": 7.654,
        "silent_s": 1.235,
        "in_flight": 2,
        "done": 1,
        "offers": 1,
        "told": 2,
        "ignored": 0,
    }
