"""How two brokers link, what they are told if they may not, and what goes over a link."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from polybus.core import events
from polybus.core.actions import ELSEWHERE, Beat, Dismiss, Stop
from polybus.core.bridging import Advertise
from polybus.core.model import Limits, Reason
from polybus.dialects.bridge import VALUES_AT_ONCE, VALUES_EVERY_S
from polybus.dialects.bridge_voices import Peer
from polybus.errors import LocalProtocolError
from polybus.wire import bridge as wire
from polybus.wire import bridge_messages as say
from support.bridges import ROUTER, Island, Wire, World


def pair(**settings: Any) -> tuple[World, Island, Island, Wire]:
    """A dials B; and the wire between them."""
    world = World()
    b = world.broker("B", **settings)
    a = world.broker("A", peers=["B"], **settings)
    world.wait(1.0)
    assert (a.neighbours, b.neighbours) == (["B"], ["A"])
    (between,) = world.wires.values()
    return world, a, b, between


def line() -> tuple[World, Island, Island, Island]:
    """A – B – C, linked, with a worker at C."""
    world = World()
    c = world.broker("C")
    b = world.broker("B", peers=["C"])
    a = world.broker("A", peers=["B"])
    c.worker("w", "echo")
    world.wait(1.0)
    return world, a, b, c


def peer_at(island: Island, name: str) -> Peer:
    return next(peer for peer in island.bridges.dialect.neighbours() if peer.name == name)


# -- greetings ----------------------------------------------------------------------------------------


def test_a_greeting_says_who_we_are_and_what_we_demand() -> None:
    world = World()
    b = world.broker("B", credit=77, heartbeat_s=2.5)
    instance = b.bridges.dialect._settings.instance
    assert wire.read(b.bridges.dialect.hello("tcp://A:1")) == say.Hello(
        1, "B", instance, 77, 2.5, "tcp://A:1"
    )
    assert wire.read(b.bridges.dialect.hello()) == say.Hello(1, "B", instance, 77, 2.5, "")


def test_one_greeting_of_each_side_makes_a_link() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    a.tick()
    (between,) = world.wires.values()
    assert [wire.read(frames).__class__ for frames in between.there] == [say.Hello]
    b.hear(ROUTER, [between.name, *between.there.popleft()])
    assert [wire.read(frames).__class__ for frames in between.back] == [say.Hello]
    a.hear(between.link, between.back.popleft())
    assert (a.neighbours, b.neighbours) == (["B"], ["A"])
    # Nobody greets again.
    assert not between.there
    assert not between.back


@pytest.mark.parametrize(("ours", "theirs"), [(1.0, 3.0), (3.0, 1.0)])
def test_a_neighbour_is_lost_after_so_many_of_the_slower_beats(ours: float, theirs: float) -> None:
    world = World()
    b = world.broker("B", heartbeat_s=theirs, credit=33)
    a = world.broker("A", peers=["B"], heartbeat_s=ours, liveness=5)
    world.wait(1.0)
    worker = peer_at(a, "B").worker
    assert worker is not None
    assert worker.heartbeat.dead_after_s == 15.0
    assert worker.heartbeat.beat_every_s == ours
    assert worker.credit == 33
    assert worker.obeys_stop
    assert peer_at(b, "A").worker is not None


def test_a_peer_that_was_never_linked_has_no_trouble() -> None:
    world = World()
    a = world.broker("A", peers=["B"])
    (peer,) = a.bridges.dialect.peers.values()
    assert (peer.denied, peer.trouble, peer.name, peer.instance) == ("", "", "", "")
    assert (peer.published, peer.received, peer.dropped) == (0, 0, 0)
    assert not peer.is_up
    # What we dial is called by where it is.
    assert (peer.label, peer.endpoint) == ("tcp://B:1", "tcp://B:1")


def test_a_link_that_is_up_has_no_trouble_any_more() -> None:
    world = World()
    b = world.broker("B", allow=["C"])
    a = world.broker("A", peers=["B"], retry_max_s=1.0)
    world.wait(1.0)
    (peer,) = a.bridges.dialect.peers.values()
    assert (peer.denied, peer.trouble) == ("not_allowed", "'A' is not in bridge.allow of B")
    world.kill(b)
    world.broker("B")
    world.wait(5.0)
    assert a.neighbours == ["B"]
    assert (peer.denied, peer.trouble) == ("", "")


# -- the words by which a link is denied -----------------------------------------------------------------


def denied(island: Island) -> str:
    (peer,) = island.bridges.dialect.peers.values()
    return peer.denied


@pytest.mark.parametrize(
    ("there", "here", "word"),
    [
        ({"called": "X"}, {"called": "X"}, "same_name"),
        ({"allow": ["C"]}, {}, "not_allowed"),
    ],
)
def test_why_there_is_no_link_is_said_in_a_word(
    there: dict[str, Any], here: dict[str, Any], word: str
) -> None:
    world = World()
    world.broker("B", **there)
    a = world.broker("A", peers=["B"], **here)
    world.wait(1.0)
    assert denied(a) == word


def test_a_broker_that_dials_itself_is_told_so_in_a_word() -> None:
    world = World()
    a = world.broker("A", peers=["A"])
    world.wait(1.0)
    assert denied(a) == "itself"


def test_another_version_is_refused_in_a_word() -> None:
    world = World()
    world.broker("B")
    a = world.broker("A", peers=["B"])
    a.bridges.dialect.hello = lambda label="": [wire.TAG, wire.HELLO, b"2", b"?"]  # type: ignore[method-assign]
    world.wait(1.0)
    assert denied(a) == "version"


def test_a_broker_that_drains_takes_no_new_link() -> None:
    world = World()
    b = world.broker("B")
    b.worker("w", "echo")
    b.ask("c", "1", "echo")
    b.bus.handle(events.Drain(), world.now)
    a = world.broker("A", peers=["B"])
    world.wait(1.0)
    assert (a.neighbours, b.neighbours) == ([], [])
    assert (denied(a), a.troubles()) == ("draining", ["B is shutting down"])


def test_a_broker_with_all_links_taken_says_that_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.dialects.bridge.NEIGHBOURS", 1)
    world = World()
    b = world.broker("B")
    world.broker("A", peers=["B"])
    world.wait(1.0)
    c = world.broker("C", peers=["B"])
    world.wait(1.0)
    assert b.neighbours == ["A"]
    assert denied(c) == "full"


def test_who_has_the_name_of_a_neighbour_is_refused_and_the_neighbour_is_asked() -> None:
    world = World()
    c = world.broker("C")
    world.broker("A", peers=["C"], called="X")
    world.wait(1.0)
    holder = peer_at(c, "X").worker
    c.bus.take()
    hello = wire.write_hello(say.Hello(1, "X", "another life", 10, 1.0, "tcp://C:1"))
    c.bridges.ear.receive(ROUTER, [b"stranger", *hello], world.now)
    actions = c.bus.take()
    assert [action.worker for action in actions if isinstance(action, Beat)] == [holder]
    (saying,) = [action for action in actions if not isinstance(action, Beat)]
    assert saying.peer == (ROUTER, b"")
    said = saying.frames
    assert said[0] == b"stranger"
    assert wire.read(said[1:]) == say.Denied("name_taken", "another broker called 'X' is linked to C")


def test_a_second_address_of_a_neighbour_is_linked_already() -> None:
    world = World()
    b = world.broker("B")
    world.islands["other"] = b
    a = world.broker("A", peers=["B", "other"])
    world.wait(2.0)
    (down,) = [peer for peer in a.bridges.dialect.peers.values() if not peer.is_up]
    assert down.denied == "linked"


def greeting(name: str, instance: str = "one", link: str = "") -> list[Any]:
    return wire.write_hello(say.Hello(1, name, instance, 10, 1.0, link))


@pytest.mark.parametrize(("label", "is_taken"), [("tcp://B:1", True), ("tcp://other:1", False)])
def test_a_neighbour_that_dials_again_under_the_same_label_is_linked_anew(label: str, is_taken: bool) -> None:
    """Its old connection may be dead without anybody knowing."""
    world = World()
    b = world.broker("B")
    b.hear(ROUTER, [b"first", *greeting("A", link="tcp://B:1")])
    b.hear(ROUTER, [b"second", *greeting("A", link=label)])
    assert b.neighbours == ["A"]
    assert peer_at(b, "A").identity == (b"second" if is_taken else b"first")


@pytest.mark.parametrize("ours_is_first", [False, True])
@pytest.mark.parametrize(("own", "other"), [("A", "B"), ("B", "A")])
def test_of_two_links_the_one_dialled_by_the_first_name_is_kept(
    own: str, other: str, ours_is_first: bool
) -> None:
    world = World()
    island = world.broker(own, peers=[other])
    (ours,) = island.bridges.dialect.peers.values()
    hellos: list[tuple[int, list[Any]]] = [
        (ours.link, greeting(other)),
        (ROUTER, [b"theirs", *greeting(other, link=f"tcp://{own}:1")]),
    ]
    for link, frames in hellos if ours_is_first else reversed(hellos):
        island.hear(link, frames)
    assert island.neighbours == [other]
    kept = peer_at(island, other)
    assert kept.identity == (None if own == "A" else b"theirs")


# -- what is heard without a link -------------------------------------------------------------------------


def test_one_that_we_dialled_and_that_is_not_linked_is_told_nothing() -> None:
    """It has our greeting, or will get the next one: it need not be asked for one."""
    world = World()
    world.broker("B", allow=["C"])
    a = world.broker("A", peers=["B"])
    world.wait(1.0)
    (between,) = world.wires.values()
    between.there.clear()
    a.hear(between.link, wire.write_beat())
    assert not between.there


@pytest.mark.parametrize("is_known", [False, True])
def test_the_withdrawal_of_what_is_not_known_is_answered(is_known: bool) -> None:
    """The neighbour takes its slot for free when it has an answer."""
    _, _, b, between = pair()
    b.worker("w", "echo")
    between.back.clear()
    if is_known:
        # It has asked for something else.
        request = say.Request(b"x/0", b"echo", ("A",), [b"body"], 1000)
        b.hear(ROUTER, [between.name, *wire.write_request(request)])
    b.hear(ROUTER, [between.name, *wire.write_cancel(b"y/0")])
    (answer,) = [wire.read(frames) for frames in between.back]
    assert answer == say.Refused(b"y/0", "cancelled", "it is not known here", [])


def test_a_goodbye_or_a_denial_of_somebody_unknown_means_nothing() -> None:
    _, _, b, between = pair()
    between.back.clear()
    for frames in (wire.write_bye("shutdown"), wire.write_denied("full", "no room")):
        b.hear(ROUTER, [b"nobody", *frames])
    assert b.neighbours == ["A"]
    assert not between.back
    assert b.bus.counters.invalid == 0


def test_what_comes_after_the_end_of_a_link_is_not_heard() -> None:
    """Also in the same turn of the loop, before the dialect is told of the end."""
    world, _, b, between = pair()
    b.worker("w", "echo")
    b.bus.handle(events.WorkerGone(peer_at(b, "A").address, "it is gone"), world.now)
    request = wire.write_request(say.Request(b"x/0", b"echo", ("A",), []))
    b.bridges.ear.receive(ROUTER, [between.name, *request], world.now)
    assert b.bus.request_count == 0


# -- requests ---------------------------------------------------------------------------------------------


def test_a_request_that_is_refused_is_counted_once() -> None:
    _, _, b, between = pair()
    request = say.Request(b"x/0", b"polybus.submit", ("A",), [])
    b.hear(ROUTER, [between.name, *wire.write_request(request)])
    assert b.bus.counters.rejected == 1


@pytest.mark.parametrize(("passed", "is_taken"), [(3, True), (4, False)])
def test_a_request_may_pass_as_many_brokers_as_are_allowed(passed: int, is_taken: bool) -> None:
    _, _, b, between = pair(max_hops=3)
    b.worker("w", "echo")
    hops = (*(f"b{number}" for number in range(passed - 1)), "A")
    b.hear(ROUTER, [between.name, *wire.write_request(say.Request(b"x/0", b"echo", hops, []))])
    assert b.bus.request_count == is_taken


def test_a_plain_request_of_a_neighbour_goes_to_a_free_worker_however_many_wait() -> None:
    world, a, b, _ = pair()
    b.worker("w", "echo")
    world.wait(0.1)
    b.bus.limits = Limits(queue_length=0)
    a.ask("c", "1", "echo")
    world.run()
    b.answer("w", b.order("w"), b"hi")
    world.run()
    assert a.finals("c") == {"1": [b"hi"]}


def test_a_request_is_not_sent_where_it_comes_from() -> None:
    world, a, b, _ = line()
    a.ask("c", "1", "echo", b"x")
    world.run()
    (request,) = b.bus.requests.values()
    assert request.voice.hops == ("A",)
    back, on = peer_at(b, "A"), peer_at(b, "C")
    assert back.worker is not None
    assert on.worker is not None
    with pytest.raises(LocalProtocolError, match="it came from where it would have to go") as caught:
        back.deliver(back.worker, request)
    assert str(caught.value).startswith(ELSEWHERE)
    call = wire.read(on.deliver(on.worker, request))
    assert isinstance(call, say.Request)
    assert call.hops == ("A", "B")
    # Nor to a neighbour whose way leads there.
    assert b.bus.bridging is not None
    heard = b.bus.bridging.routes.neighbours["C"].heard
    heard[b"echo"] = ("C", "A")
    with pytest.raises(LocalProtocolError, match="it came from where it would have to go"):
        on.deliver(on.worker, request)
    heard[b"echo"] = ("C", "D")
    assert on.deliver(on.worker, request)
    del b.bus.bridging.routes.neighbours["C"]
    assert on.deliver(on.worker, request)


@pytest.mark.parametrize(("left_s", "left_ms"), [(0.0, 1), (0.0005, 1), (0.002, 2), (2.5, 2500)])
def test_the_time_that_is_left_is_told_in_whole_milliseconds_and_is_never_none(
    left_s: float, left_ms: int
) -> None:
    world, a, _, _ = line()
    a.ask("c", "1", "echo", b"x")
    world.run()
    (request,) = a.bus.requests.values()
    request.dispatched_at = 0.0
    request.expires_at = left_s
    peer = peer_at(a, "B")
    assert peer.worker is not None
    call = wire.read(peer.deliver(peer.worker, request))
    assert isinstance(call, say.Request)
    assert call.ttl_ms == left_ms


def test_what_failed_is_another_request_to_the_next_broker() -> None:
    """Its first name is that of the attempt that failed: an answer to that one counts no more."""
    world, a, b, _ = line()
    a.ask("c", "1", "echo", b"x")
    world.run()
    for island, to in ((a, "B"), (b, "C")):
        (request,) = island.bus.requests.values()
        peer = peer_at(island, to)
        assert peer.worker is not None
        first = wire.read(peer.deliver(peer.worker, request))
        request.failures = 1
        second = wire.read(peer.deliver(peer.worker, request))
        assert isinstance(first, say.Request)
        assert isinstance(second, say.Request)
        if island is a:
            names = (request.token + b"/0", request.token + b"/1")
        else:
            names = (request.request_id, request.request_id + b"~1")
        assert (first.request_id, second.request_id) == names
        assert peer.token_of(names[0], is_last=False) is None
        assert peer.token_of(names[0]) is None
        assert peer.token_of(names[1], is_last=False) == request.token
        assert peer.token_of(names[1]) == request.token
        # That was the last word on it.
        assert peer.token_of(names[1]) is None
        assert peer.token_of(names[1], is_last=False) is None


def test_who_gives_a_request_back_and_can_still_reach_the_service_says_so_again() -> None:
    world, a, b, _ = line()
    (between,) = [one for one in world.wires.values() if one.dialler is a]
    circle = say.Request(b"x/0", b"echo", ("B", "A"), [b"body"], 1000)
    b.hear(ROUTER, [between.name, *wire.write_request(circle)])
    (given_back,) = [wire.read(frames) for frames in between.back]
    assert given_back == say.Return(b"x/0", "it would go in a circle")
    between.back.clear()
    told: list[Any] = []
    while world.now < 1010.0 and not told:
        world.now += 0.01
        b.tick()
        told = [wire.read(frames) for frames in between.back]
        told = [one for one in told if isinstance(one, say.Advert)]
    assert told == [say.Advert({b"echo": ("B", "C")})]


@pytest.mark.parametrize("was_known", [False, True])
def test_what_nobody_offers_is_given_back(was_known: bool) -> None:
    _, _, b, between = pair()
    if was_known:
        b.worker("w", "echo")
        b.leave("w")
        assert b"echo" in b.bus.services
    between.back.clear()
    b.hear(ROUTER, [between.name, *wire.write_request(say.Request(b"x/0", b"echo", ("A",), []))])
    (given_back,) = [wire.read(frames) for frames in between.back]
    assert given_back == say.Return(b"x/0", "nobody offers it at B")
    assert b.bus.request_count == 0


def test_what_was_answered_is_answered_again_also_when_nobody_offers_it_any_more() -> None:
    _, _, b, between = pair()
    b.worker("w", "echo")
    request = wire.write_request(say.Request(b"x/0", b"echo", ("A",), [b"body"], 60_000))
    b.hear(ROUTER, [between.name, *request])
    b.answer("w", b.order("w"), b"done")
    b.leave("w")
    between.back.clear()
    b.hear(ROUTER, [between.name, *request])
    assert [wire.read(frames) for frames in between.back] == [say.Reply(b"x/0", [b"done"])]
    assert b.bus.counters.rejected == 0


@pytest.mark.parametrize(("timeout_s", "other"), [(5.0, ()), (0.0, ("x:1",)), (5.0, ("x:1",))])
def test_a_time_limit_and_headers_of_a_neighbours_request_are_kept(
    timeout_s: float, other: tuple[str, ...]
) -> None:
    _, _, b, between = pair()
    b.worker("w", "echo")
    request = say.Request(b"x/0", b"echo", ("A",), [], 1000, timeout_s, other)
    b.hear(ROUTER, [between.name, *wire.write_request(request)])
    (taken,) = b.bus.requests.values()
    assert (taken.options.timeout_s, taken.options.other) == (timeout_s, other)


@pytest.mark.parametrize(
    "frames",
    [
        wire.write_partial(b"x/0", [b"a piece"]),
        wire.write_reply(b"x/0", [b"done"]),
        wire.write_refused(b"x/0", "failed", "no tea"),
        wire.write_return(b"x/0", "nobody offers it"),
    ],
    ids=["partial", "reply", "refused", "return"],
)
def test_an_answer_to_another_attempt_means_nothing(frames: list[Any]) -> None:
    _, a, _, between = pair()
    a.hear(between.link, frames)
    assert a.neighbours == ["B"]
    counters = a.bus.counters
    assert (counters.late, counters.invalid, counters.failed, counters.replied) == (0, 0, 0, 0)


def test_of_what_was_answered_or_went_with_the_link_nothing_is_kept() -> None:
    world, a, _, _ = line()
    a.ask("c", "1", "echo", b"x")
    world.run()
    (request,) = a.bus.requests.values()
    peer, name = peer_at(a, "B"), request.token + b"/0"
    assert peer.worker is not None
    stop = Stop(peer.worker, request.token)
    endings: list[Callable[[], object]] = [lambda: peer.token_of(name), peer.begin]
    for ends in endings:
        worker = peer.worker or stop.worker
        peer.deliver(worker, request)
        peer.pending[b"weather"] = None
        order = peer.stop(stop)
        assert order is not None
        assert wire.read(order) == say.Cancel(name)
        ends()
        assert (peer._sent, peer._tokens) == ({}, {})
        assert peer.stop(stop) is None
        assert peer.token_of(name) is None
    assert peer.pending == {}


def test_the_last_word_to_a_neighbour_has_its_reason() -> None:
    _, a, b, between = pair()
    for peer, lead in ((peer_at(a, "B"), []), (peer_at(b, "A"), [between.name])):
        frames = peer.dismiss(Dismiss(peer.address, peer, "shutdown"))
        assert frames[: len(lead)] == lead
        assert wire.read(frames[len(lead) :]) == say.Bye("shutdown")


def test_the_first_advert_of_a_link_says_that_it_is_all_there_is() -> None:
    _, a, _, _ = pair()
    assert a.bus.bridging is not None
    peer = Peer(a.bus.bridging, 7, None)
    worker = peer_at(a, "B").worker
    assert worker is not None
    many: dict[bytes, tuple[str, ...]] = {
        b"s%d" % number: ("A",) for number in range(wire.ADVERT_SERVICES + 1)
    }

    def told(offers: dict[bytes, tuple[str, ...]], withdrawn: list[bytes]) -> list[say.Advert]:
        adverts = [wire.read(frames) for frames in peer.advertise(Advertise(worker, offers, withdrawn))]
        assert all(isinstance(advert, say.Advert) for advert in adverts)
        return adverts  # type: ignore[return-value]

    first, second = told(many, [b"gone"])
    assert (len(first.offers), first.withdrawn, first.full) == (wire.ADVERT_SERVICES, (b"gone",), True)
    assert (len(second.offers), second.withdrawn, second.full) == (1, (), False)
    assert [advert.full for advert in told({b"x": ("A",)}, [])] == [False]
    peer.begin()
    assert [advert.full for advert in told({b"x": ("A",)}, [])] == [True]


@pytest.mark.parametrize(
    ("said", "reason", "detail"),
    [
        ("failed", Reason.FAILED, "no tea"),
        ("rejected", Reason.REJECTED, "no tea"),
        # A newer broker may know words that this one does not.
        ("unheard_of", Reason.FAILED, "unheard_of: no tea"),
    ],
)
def test_a_reason_that_is_not_known_here_is_told_in_the_detail(
    said: str, reason: Reason, detail: str
) -> None:
    world, a, _, between = pair()
    a.bus.bridging.hear("B", {b"echo": ("B",)}, (), False, world.now)  # type: ignore[union-attr]
    a.ask("c", "1", "echo", b"x")
    (request,) = a.bus.requests.values()
    a.bus.listen(True, None)
    a.hear(between.link, wire.write_refused(request.token + b"/0", said, "no tea"))
    (failed,) = [one for one in a.observed if one.what == "failed"]
    assert (failed.reason, failed.detail) == (str(reason), detail)


# -- publications -----------------------------------------------------------------------------------------


def test_publications_are_counted_where_they_leave_and_where_they_come() -> None:
    world, a, b, _ = pair(topics=["weather"])
    for number in range(3):
        a.publish("weather", b"%d" % number)
    world.run()
    (there,) = a.bridges.views({}, world.now)
    (here,) = b.bridges.views({}, world.now)
    assert (there["published"], there["received"], there["dropped"]) == (3, 0, 0)
    assert (here["published"], here["received"], here["dropped"]) == (0, 3, 0)


def test_a_new_neighbour_gets_the_values_in_turns_with_a_pause_between_them() -> None:
    world = World()
    b = world.broker("B", topics=["weather"])
    for number in range(VALUES_AT_ONCE + 3):
        b.publish(f"weather.{number}", b"x")
    a = world.broker("A", peers=["B"], topics=["weather"])
    a.tick()
    (between,) = world.wires.values()
    b.hear(ROUTER, [between.name, *between.there.popleft()])
    dialect, peer = b.bridges.dialect, peer_at(b, "A")
    assert dialect.next_at == world.now
    dialect.tick(world.now)
    assert (peer.published, len(peer.pending)) == (VALUES_AT_ONCE, 3)
    b.settle()
    sent = [wire.read(frames) for frames in between.back]
    # They are no news.
    assert {one.snapshot for one in sent if isinstance(one, say.Publish)} == {True}
    assert dialect.next_at == world.now + VALUES_EVERY_S
    dialect.tick(world.now)
    assert peer.published == VALUES_AT_ONCE
    world.now = dialect.next_at
    dialect.tick(world.now)
    assert (peer.published, len(peer.pending)) == (VALUES_AT_ONCE + 3, 0)
    # Then there is nothing more to look for.
    assert dialect.next_at == inf


def test_a_way_by_which_requests_come_is_one_caller_and_not_all_ways_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polybus.dialects.bridge_voices.CALLERS_KEPT", 2)
    _, _, b, _ = pair()
    peer = peer_at(b, "A")
    near, far = peer.caller(("A",)), peer.caller(("C", "A"))
    assert (near.hops, far.hops) == (("A",), ("C", "A"))
    assert peer.caller(("A",)) is near
    assert peer.caller(("C", "A")) is far
    for number in range(10):
        peer.caller((f"b{number}", "A"))
        assert len(peer._callers) <= 2


def test_why_a_neighbour_ended_the_link_is_known() -> None:
    _, a, _, between = pair()
    peer = peer_at(a, "B")
    a.hear(between.link, wire.write_bye("shutdown"))
    assert not peer.is_up
    assert peer.denied == ""
    assert "shutdown" in peer.trouble
    # A second goodbye says nothing new.
    peer.trouble = "as before"
    a.hear(between.link, wire.write_bye("again"))
    assert peer.trouble == "as before"


def test_a_neighbour_that_is_linked_again_in_the_turn_in_which_it_was_lost_begins_anew() -> None:
    world, a, b, between = pair()
    b.worker("w", "echo")
    world.wait(0.1)
    peer = peer_at(b, "A")
    b.bus.handle(events.WorkerGone(peer.address, "it is gone"), world.now)
    hello = a.bridges.dialect.hello("tcp://B:1")
    b.bridges.ear.receive(ROUTER, [between.name, *hello], world.now)
    b.settle()
    assert b.neighbours == ["A"]
    between.back.clear()
    while world.now < 1010.0 and not between.back:
        world.now += 0.01
        b.tick()
    adverts = [wire.read(frames) for frames in between.back]
    assert say.Advert({b"echo": ("B",)}, (), True) in adverts
