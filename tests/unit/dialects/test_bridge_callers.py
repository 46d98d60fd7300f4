"""What a broker says to a neighbour that asked, and what it keeps when the neighbour is gone."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from polybus.core.actions import ELSEWHERE, Answer, Refuse, Stream
from polybus.core.bridging import Parted
from polybus.core.model import Limits, Reason
from polybus.dialects.bridge import Carry
from support.bridges import Island, World


def pair(**settings: Any) -> tuple[World, Island, Island]:
    """A dials B."""
    world = World()
    b = world.broker("B", **settings)
    a = world.broker("A", peers=["B"], **settings)
    world.wait(1.0)
    assert (a.neighbours, b.neighbours) == (["B"], ["A"])
    return world, a, b


def asked() -> tuple[World, Island, Island, Any]:
    """A client of A has asked for what a worker of B offers; and the caller that B answers to."""
    world, a, b = pair()
    b.worker("w", "echo")
    world.wait(0.1)
    a.ask("c", "1", "echo", b"x")
    world.run()
    (request,) = b.bus.requests.values()
    return world, a, b, request


@pytest.mark.parametrize("kind", ["stream", "answer", "refuse", "give back"])
def test_a_neighbour_that_is_gone_or_another_by_now_is_told_nothing(kind: str) -> None:
    _, _, _, request = asked()
    caller = request.voice

    def say(client: Any) -> Any:
        match kind:
            case "stream":
                return caller.stream(Stream(client, caller, b"echo", b"1", [b"x"]))
            case "answer":
                return caller.answer(Answer(client, caller, b"echo", b"1", [b"x"]))
            case "refuse":
                return caller.refuse(Refuse(client, caller, b"echo", b"1", Reason.FAILED, "why", []))
        detail = f"{ELSEWHERE}nobody offers it"
        return caller.refuse(Refuse(client, caller, b"echo", b"1", Reason.UNDELIVERABLE, detail, []))

    there = request.client.address
    assert say(there) is not None
    assert say((there[0], b"another")) is None
    caller._peer.begin()
    assert not caller._peer.is_up
    assert say(there) is None


@pytest.mark.parametrize(
    ("reason", "detail", "word"),
    [
        (Reason.FAILED, "why", b"REFUSED"),
        (Reason.UNDELIVERABLE, "why", b"REFUSED"),
        (Reason.DRAINING, "why", b"RETURN"),
        (Reason.UNDELIVERABLE, f"{ELSEWHERE}why", b"RETURN"),
    ],
)
def test_what_another_broker_may_do_is_given_back_and_all_else_is_refused(
    reason: Reason, detail: str, word: bytes
) -> None:
    _, _, _, request = asked()
    refusal = Refuse(request.client.address, request.voice, b"echo", b"1", reason, detail, [b"said"])
    frames = request.voice.refuse(refusal)
    tag = frames.index(b"PBBR1")
    body = [b"1", str(reason).encode(), b"why", b"said"] if word == b"REFUSED" else [b"1", b"why"]
    assert frames[tag + 1 :] == [word, *body]


def test_an_old_link_that_ends_late_does_not_end_its_successor() -> None:
    _, a, _ = pair()
    dialect = a.bridges.dialect
    (peer,) = dialect.neighbours()
    current = peer.worker
    assert current is not None
    stranger = type("Old", (), {"voice": peer})()
    dialect.parted(Parted(stranger, "B", "an old link ended"))
    assert peer.is_up
    assert peer.worker is current
    assert peer.trouble == ""
    dialect.parted(Parted(current, "B", "it is gone"))
    assert not peer.is_up
    assert peer.trouble == "it is gone"
    # A link that we dial is kept and dialled again.
    assert peer in dialect.peers.values()


def test_a_neighbour_that_dialled_us_is_forgotten_when_it_is_gone() -> None:
    _, _, b = pair()
    dialect = b.bridges.dialect
    (peer,) = dialect.neighbours()
    assert peer.identity is not None
    dialect.parted(Parted(peer.worker, "A", "it is gone"))
    assert peer not in dialect.peers.values()


def test_services_of_a_neighbour_that_are_too_many_stay_unknown_and_are_counted() -> None:
    world = World()
    b = world.broker("B")
    a = world.broker("A", peers=["B"])
    a.bus.limits = Limits(services=2)
    for number in range(4):
        b.worker(f"w{number}", f"service-{number}")
    world.wait(1.0)
    assert a.bus.bridging is not None
    assert len(a.bus.services) == 2
    assert a.bus.bridging.ignored == 2
    assert a.neighbours == ["B"]


def test_of_what_is_given_back_nothing_is_kept_however_much_it_is() -> None:
    """The neighbour may ask again under the same names: that is no repetition."""
    many = 10_050
    world, a, b = pair(credit=20_000)
    b.worker("w", "echo", credit=1)
    world.wait(0.1)
    for number in range(many):
        a.ask("c", str(number), "echo")
    world.run()
    (client,) = b.bus.clients.values()
    assert len(client.outstanding) == many
    b.leave("w")
    world.wait(0.2)
    assert a.bus.request_count == many
    assert not client.known
    assert not b.bus.clients
    assert (len(b.bus.replies), b.bus.replies_bytes) == (0, 0)
    assert b.bus.counters.cancelled == many


def test_what_is_given_back_is_asked_anew_when_the_service_is_there_again() -> None:
    world, a, b = pair()
    b.worker("w", "echo", credit=1)
    world.wait(0.1)
    for number in "12":
        a.ask("c", number, "echo")
    world.run()
    first = b.order("w")
    kept_before = (len(b.bus.replies), b.bus.replies_bytes)
    b.answer("w", first, b"one")
    b.leave("w")
    world.wait(0.2)
    b.worker("v", "echo")
    world.wait(1.0)
    for token in b.orders("v"):
        b.answer("v", token, b"two")
    world.run()
    assert set(a.finals("c")) == {"1", "2"}
    assert kept_before == (0, 0)
    assert b.bus.request_count == a.bus.request_count == 0


def test_the_view_of_a_neighbour() -> None:
    world, a, b = pair()
    b.worker("w", "echo")
    a.worker("v", "tea")
    world.wait(0.5)
    a.ask("c", "1", "echo")
    world.run()
    assert a.bus.bridging is not None
    view = a.bus.bridging.view("B", world.now)
    assert view["up_s"] > 0.0
    assert view["silent_s"] <= view["up_s"]
    assert {name: view[name] for name in ("in_flight", "done", "offers", "told", "ignored")} == {
        "in_flight": 1,
        "done": 0,
        "offers": 1,
        "told": 1,
        "ignored": 0,
    }


def test_a_publication_that_a_full_pipe_did_not_take_follows_a_second_later() -> None:
    world, a, _ = pair()
    a.publish("weather", b"cold")
    world.run()
    dialect = a.bridges.dialect
    (peer,) = dialect.neighbours()
    published, dropped = peer.published, peer.dropped
    dialect.next_at = inf
    dialect.not_carried(Carry(peer, b"weather", []))
    assert (peer.published, peer.dropped) == (published - 1, dropped + 1)
    assert list(peer.pending) == [b"weather"]
    assert dialect.next_at == a.bus.swept_at + 1.0
    # What has no last value cannot follow.
    dialect.not_carried(Carry(peer, b"unknown", []))
    assert list(peer.pending) == [b"weather"]
