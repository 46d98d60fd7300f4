"""The Majordomo family on the bus: each test runs with the frames of every dialect that says the same."""

from __future__ import annotations

import json

import pytest

from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import Limits
from polybus.dialects.mdp1 import Mdp1
from polybus.dialects.mdp2 import Mdp2
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import RouterEar
from support.majordomo import (
    BEAT_S,
    CLIENTS,
    DEAD_S,
    MDP1,
    MDP2,
    MDR,
    TALKS,
    WORKERS,
    Household,
    Talk,
    statement,
)


@pytest.fixture
def house() -> Household:
    return Household()


@pytest.mark.parametrize("dialect", [Mdp1, Mdp2, Mdr])
def test_a_worker_is_dead_after_three_intervals_of_2500_ms(dialect: type[Mdp1 | Mdp2 | Mdr]) -> None:
    """What the documents propose, if nothing else is set."""
    bus = Bus(b"n-")
    receiver = RouterEar(bus, "majordomo", dialect(bus).tags)
    delimiter = [] if dialect is Mdr else [b""]
    tag = {Mdp1: b"MDPW01", Mdp2: b"MDPW02", Mdr: b"MDRW01"}[dialect]
    receiver.receive(1, [b"w", *delimiter, tag, b"\x01", b"echo"], 0.0)
    (worker,) = bus.workers.values()
    assert worker.heartbeat.dead_after_s == 7.5


# -- dialogs ----------------------------------------------------------------------------------


@statement(
    mdp1="MDP1-3 MDP1-4 MDP1-5 MDP1-9 MDP1-10 MDP1-11 MDP1-12",
    mdp2="MDP2-3 MDP2-4 MDP2-6 MDP2-10 MDP2-11 MDP2-12 MDP2-14",
    mdr="MDR-4 MDR-5 MDR-7 MDR-12 MDR-13 MDR-15",
)
def test_a_request_gets_one_reply(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"one", b"two"))
    order = house.order(b"w")
    assert order == talk.order(order[2], b"r1", b"one", b"two")
    house.say(b"w", talk.reply(order, b"ONE", b"TWO"))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", b"ONE", b"TWO")]
    # A second reply to the same request goes to nobody, and ends the conversation.
    house.say(b"w", talk.reply(order, b"again"))
    assert house.answers(b"c") == []
    assert house.orders(b"w") == [talk.dismissal()]
    assert house.bus.counters.late == 1


@statement(mdp2="MDP2-3 MDP2-5 MDP2-13 MDP2-27", mdr="MDR-4 MDR-6 MDR-14 MDR-30")
def test_partial_replies_are_passed_on_in_order(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"count"))
    house.ask(b"c", talk.request(b"count", b"r1", b"3"))
    order = house.order(b"w")
    house.say(b"w", talk.part(order, b"1"))
    house.say(b"w", talk.part(order, b"2", b"two"))
    house.say(b"w", talk.reply(order, b"3"))
    assert house.answers(b"c") == [
        talk.partial(b"count", b"r1", b"1"),
        talk.partial(b"count", b"r1", b"2", b"two"),
        talk.final(b"count", b"r1", b"3"),
    ]
    house.say(b"w", talk.part(order, b"4"))
    assert house.answers(b"c") == []


@statement(mdp1="MDP1-3 MDP1-5")
def test_a_client_without_partials_gets_the_final_alone(house: Household, talk: Talk) -> None:
    house.say(b"w", MDP2.ready(b"count"))
    house.ask(b"c", talk.request(b"count", b"", b"3"))
    order = house.order(b"w")
    house.say(b"w", MDP2.part(order, b"1"))
    house.say(b"w", MDP2.reply(order, b"2"))
    assert house.answers(b"c") == [talk.final(b"count", b"", b"2")]


@statement(mdr="MDR-3 MDR-10")
def test_many_requests_of_a_client_may_be_outstanding(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo", b"10"))
    for number in range(3):
        house.ask(b"c", talk.request(b"echo", b"r%d" % number, b"%d" % number))
    orders = house.orders(b"w")
    assert [talk.body_of(order) for order in orders] == [[b"0"], [b"1"], [b"2"]]
    for order in reversed(orders):
        house.say(b"w", talk.reply(order, *talk.body_of(order)))
    assert house.answers(b"c") == [talk.final(b"echo", b"r%d" % n, b"%d" % n) for n in (2, 1, 0)]


@statement(mdr="MDR-10")
def test_a_request_that_is_asked_again_runs_once(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    order = house.order(b"w")
    house.say(b"w", talk.reply(order, b"X"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", b"X")] * 2
    assert house.orders(b"w") == []


@statement(mdr="MDR-3")
def test_beyond_the_limit_of_outstanding_requests_the_client_is_told(talk: Talk) -> None:
    house = Household(Limits(outstanding_per_client=1))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.ask(b"c", talk.request(b"echo", b"r2", b"x"))
    (refusal,) = house.answers(b"c")
    assert refusal[:-1] == talk.final(b"echo", b"r2")
    assert json.loads(refusal[-1])["error"] == "too_many_outstanding"


@statement(mdp2="MDP2-40")
def test_after_the_last_final_a_client_is_sent_nothing_more(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"", b"x"))
    house.say(b"w", talk.reply(house.order(b"w"), b"X"))
    assert house.answers(b"c") == [talk.final(b"echo", b"", b"X")]
    house.wait(60)
    assert house.answers(b"c") == []


# -- sockets and framing ----------------------------------------------------------------------


@statement(mdp1="MDP1-1", mdp2="MDP2-1", mdr="MDR-1")
def test_either_socket_takes_either_role(house: Household, talk: Talk) -> None:
    house.send(CLIENTS, b"w", *talk.ready(b"echo"))
    house.send(WORKERS, b"c", *talk.request(b"echo", b"r1", b"x"))
    order = house.one(CLIENTS, b"w")
    house.send(CLIENTS, b"w", *talk.reply(order, b"X"))
    assert house.one(WORKERS, b"c") == talk.final(b"echo", b"r1", b"X")


@statement(mdp1="MDP1-6 MDP1-7 MDP1-15", mdp2="MDP2-7", mdr="MDR-8")
@pytest.mark.parametrize("lead", [[], [b""]], ids=["plain", "with an empty frame"])
def test_the_empty_first_frame_is_mirrored(house: Household, talk: Talk, lead: list[bytes]) -> None:
    house.say(b"w", [*lead, *talk.ready(b"echo")])
    house.ask(b"c", [*lead, *talk.request(b"echo", b"r1", b"x")])
    order = house.order(b"w")
    assert order[: len(lead)] == lead
    order = order[len(lead) :]
    assert order == talk.order(order[2], b"r1", b"x")
    house.say(b"w", [*lead, *talk.reply(order, b"X")])
    assert house.answers(b"c") == [[*lead, *talk.final(b"echo", b"r1", b"X")]]
    house.say(b"w", [*lead, *talk.ready(b"echo")])
    assert house.orders(b"w") == [[*lead, *talk.dismissal()]]


@statement(mdp1="MDP1-6", mdp2="MDP2-7", mdr="MDR-8")
@pytest.mark.parametrize("lead", [[], [b""]], ids=["plain", "with an empty frame"])
def test_the_empty_first_frame_is_mirrored_in_partial_answers_and_refusals(
    house: Household, talk: Talk, lead: list[bytes]
) -> None:
    house.say(b"w", [*lead, *talk.ready(b"echo")])
    if talk.has_partials:
        house.ask(b"c", [*lead, *talk.request(b"echo", b"r1", b"x")])
        house.say(b"w", [*lead, *talk.part(house.order(b"w")[len(lead) :], b"X")])
        assert house.answers(b"c") == [[*lead, *talk.partial(b"echo", b"r1", b"X")]]
    house.handle(events.Drain())
    house.ask(b"c", [*lead, *talk.request(b"echo", b"r2", b"x")])
    (refusal,) = house.answers(b"c")
    assert json.loads(refusal[-1])["error"] == "draining"
    assert refusal[:-1] == [*lead, *talk.final(b"echo", b"r2")]


@pytest.mark.parametrize("asks", TALKS, ids=lambda talk: talk.name)
@pytest.mark.parametrize("serves", TALKS, ids=lambda talk: talk.name)
def test_clients_of_each_dialect_reach_workers_of_each(house: Household, asks: Talk, serves: Talk) -> None:
    house.say(b"w", serves.ready(b"echo"))
    house.ask(b"c", asks.request(b"echo", b"r1", b"a", b"b"))
    order = house.order(b"w")
    assert serves.body_of(order) == [b"a", b"b"]
    house.say(b"w", serves.reply(order, b"c", b"d"))
    assert house.answers(b"c") == [asks.final(b"echo", b"r1", b"c", b"d")]


@statement(mdp1="MDP1-26", mdp2="MDP2-28", mdr="MDR-31 MDR-32")
def test_an_order_has_one_address_one_empty_frame_and_the_token_names_the_request(
    house: Household, talk: Talk
) -> None:
    house.say(b"w", talk.ready(b"echo", b"2"))
    house.ask(b"c1", talk.request(b"echo", b"same", b"1"))
    house.ask(b"c2", talk.request(b"echo", b"same", b"2"))
    first, second = house.orders(b"w")
    assert first[2] != second[2]
    assert first[3] == second[3] == b""
    house.say(b"w", talk.reply(second, b"two"))
    house.say(b"w", talk.reply(first, b"one"))
    assert house.answers(b"c1") == [talk.final(b"echo", b"same", b"one")]
    assert house.answers(b"c2") == [talk.final(b"echo", b"same", b"two")]


@statement(mdp1="MDP1-17", mdp2="MDP2-18", mdr="MDR-20")
def test_everything_the_broker_sends_carries_the_header(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.say(b"w", talk.heartbeat())
    messages = house.orders(b"w")
    house.say(b"w", talk.reply(messages[0], b"X"))
    house.wait(DEAD_S + 1)
    messages += house.orders(b"w")
    assert len(messages) >= 2
    assert {message[0] for message in messages} == {talk.worker, talk.dismissal()[0]}
    house.say(b"w", [b"NOBODY", b"\x01", b"echo"])
    assert house.bus.counters.invalid == 1
    assert house.orders(b"w") == []


# -- opening and closing ----------------------------------------------------------------------


@statement(mdp1="MDP1-20", mdp2="MDP2-21", mdr="MDR-23")
def test_ready_has_no_answer(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    assert house.orders(b"w") == []


@statement(mdp1="MDP1-18", mdp2="MDP2-19", mdr="MDR-21")
def test_many_workers_may_serve_one_service(house: Household, talk: Talk) -> None:
    house.say(b"w1", talk.ready(b"echo"))
    house.say(b"w2", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"1"))
    house.ask(b"c", talk.request(b"echo", b"r2", b"2"))
    assert talk.body_of(house.order(b"w1")) == [b"1"]
    assert talk.body_of(house.order(b"w2")) == [b"2"]


@statement(mdp1="MDP1-10", mdp2="MDP2-11", mdr="MDR-12")
def test_ready_may_name_a_credit_and_means_one_without(house: Household, talk: Talk) -> None:
    house.say(b"w1", talk.ready(b"one"))
    house.say(b"w3", talk.ready(b"three", b"3"))
    for number in range(4):
        house.ask(b"c", talk.request(b"one", b"a%d" % number, b"x"))
        house.ask(b"c", talk.request(b"three", b"b%d" % number, b"x"))
    assert len(house.orders(b"w1")) == 1
    assert len(house.orders(b"w3")) == 3


@statement(
    mdp1="MDP1-14 MDP1-19 MDP1-22 MDP1-23",
    mdp2="MDP2-16 MDP2-20 MDP2-23 MDP2-24",
    mdr="MDR-18 MDR-22 MDR-26 MDR-27",
)
def test_a_second_ready_ends_the_conversation(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.order(b"w")
    house.say(b"w", talk.ready(b"other"))
    assert house.orders(b"w") == [talk.dismissal()]
    # Silence follows, and what it had goes to somebody else.
    house.say(b"w2", talk.ready(b"echo"))
    assert talk.body_of(house.order(b"w2")) == [b"x"]
    house.wait(60)
    assert house.orders(b"w") == []


@statement(mdp1="MDP1-14 MDP1-21", mdp2="MDP2-16 MDP2-22", mdr="MDR-18 MDR-24 MDR-25")
def test_after_disconnect_a_worker_is_sent_nothing(house: Household, talk: Talk) -> None:
    house.say(b"early", talk.farewell())
    house.say(b"w", talk.ready(b"echo"))
    house.say(b"w", talk.farewell())
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.wait(60)
    assert house.orders(b"early") == []
    assert house.orders(b"w") == []


@pytest.mark.parametrize("other", TALKS, ids=lambda talk: talk.name)
@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
def test_a_conversation_that_has_ended_is_over_in_all_three_dialects(talk: Talk, other: Talk) -> None:
    house = Household()
    house.say(b"w", talk.ready(b"echo"))
    house.say(b"w", talk.farewell())
    house.say(b"w", other.heartbeat())
    house.wait(60)
    assert house.orders(b"w") == []


@statement(mdr="MDR-18 MDR-25")
def test_the_draft_shows_disconnect_with_the_tag_of_its_sibling(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.say(b"w", [b"MDPW02", b"\x06"])
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    assert house.orders(b"w") == []
    assert not house.bus.workers


@statement(mdp1="MDP1-24", mdp2="MDP2-25", mdr="MDR-28")
@pytest.mark.parametrize("tail", [[], [b"\x7f"], [b"\x01"], [b"\x01", b""], [b"\x01", b"echo", b"zero"]])
def test_an_invalid_message_of_a_worker_makes_it_invalid(
    house: Household, talk: Talk, tail: list[bytes]
) -> None:
    house.say(b"stranger", [talk.worker, *tail])
    assert house.orders(b"stranger") == []
    house.say(b"w", talk.ready(b"echo"))
    house.say(b"w", [talk.worker, *tail])
    assert house.orders(b"w") == [talk.dismissal()]
    assert not house.bus.workers
    assert house.bus.counters.invalid == 2


@statement(mdp1="MDP1-24", mdp2="MDP2-25", mdr="MDR-28")
def test_an_invalid_message_of_a_client_is_dropped(house: Household, talk: Talk) -> None:
    house.ask(b"c", [talk.client])
    house.ask(b"c", [talk.client, b"\x01", b"\xff\xfe", b"r", b"body"])
    house.ask(b"c", talk.request(b"echo", b"r0"))
    assert house.answers(b"c") == []
    assert house.bus.counters.invalid == 3
    assert not house.bus.requests
    # A client has no conversation that could end: its next good request is served.
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.say(b"w", talk.reply(house.order(b"w"), b"X"))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", b"X")]


@statement(mdp1="MDP1-17 MDP1-24", mdp2="MDP2-18 MDP2-25", mdr="MDR-20 MDR-28")
@pytest.mark.parametrize("begin", [b"NOBODY", b"client"])
def test_a_worker_is_invalid_whatever_tag_its_message_has(house: Household, talk: Talk, begin: bytes) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.order(b"w")
    house.say(b"w", [talk.client if begin == b"client" else begin, b"\x7f"])
    assert house.orders(b"w") == [talk.dismissal()]
    assert not house.bus.workers
    # What it had goes to the next worker.
    house.say(b"w2", talk.ready(b"echo"))
    assert talk.body_of(house.order(b"w2")) == [b"x"]


@statement(mdp1="MDP1-23 MDP1-32", mdp2="MDP2-24 MDP2-34", mdr="MDR-27 MDR-33 MDR-40")
def test_a_beat_of_an_unknown_worker_is_answered_with_disconnect(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.heartbeat())
    assert house.orders(b"w") == [talk.dismissal()]
    # So a worker learns that the broker is a new one, and begins again.
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    assert talk.body_of(house.order(b"w")) == [b"x"]


@statement(mdp1="MDP1-23", mdp2="MDP2-24", mdr="MDR-27")
@pytest.mark.parametrize("body", [b"X", b'{"error": "failed"}'])
def test_an_answer_of_an_unknown_worker_is_answered_with_disconnect(
    house: Household, talk: Talk, body: bytes
) -> None:
    order = talk.order(b"older-life", b"r1")
    house.say(b"w", talk.reply(order, body))
    assert house.orders(b"w") == [talk.dismissal()]
    assert house.bus.counters.late == 1
    if talk.has_partials:
        # Another one, because each is told once; with its empty first frame, if it sends one.
        house.say(b"v", [b"", *talk.part(order, body)])
        assert house.orders(b"v") == [[b"", *talk.dismissal()]]
    house.say(b"w", talk.reply(order, body))
    assert house.orders(b"w") == []
    # It did not become a worker by that, and may become one.
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    assert talk.body_of(house.order(b"w")) == [b"x"]


@statement(mdp1="MDP1-23", mdp2="MDP2-24", mdr="MDR-27")
def test_a_late_answer_of_a_worker_is_not_punished(talk: Talk) -> None:
    house = Household(Limits(request_ttl_s=1))
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    order = house.order(b"w")
    house.wait(2)
    assert b"expired" in house.answers(b"c")[0][-1]
    if talk.has_partials:
        house.say(b"w", talk.part(order, b"late"))
    house.say(b"w", talk.reply(order, b"late"))
    assert house.orders(b"w") == []
    assert house.bus.counters.late == (2 if talk.has_partials else 1)
    house.ask(b"c", talk.request(b"echo", b"r2", b"y"))
    assert talk.body_of(house.order(b"w")) == [b"y"]


# -- answers that are none ----------------------------------------------------------------------


@statement(mdp1="MDP1-12", mdp2="MDP2-13 MDP2-14", mdr="MDR-44")
def test_an_answer_of_a_worker_may_have_no_body_frame(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    order = house.order(b"w")
    partials = [talk.partial(b"echo", b"r1", b"")] if talk.has_partials else []
    if talk.has_partials:
        house.say(b"w", talk.part(order))
    house.say(b"w", talk.reply(order))
    # The client's leg has a body frame at least.
    assert house.answers(b"c") == [*partials, talk.final(b"echo", b"r1", b"")]
    assert house.bus.counters.invalid == 0


@statement(mdp1="MDP1-26", mdp2="MDP2-28", mdr="MDR-31")
def test_an_answer_without_its_empty_frame_is_none(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    broken = talk.reply(house.order(b"w"), b"X")
    broken[3] = b"not empty"
    house.say(b"w", broken)
    assert house.answers(b"c") == []
    assert house.orders(b"w") == [talk.dismissal()]
    # The request is still unanswered: the next worker gets it.
    house.say(b"w2", talk.ready(b"echo"))
    house.say(b"w2", talk.reply(house.order(b"w2"), b"Y"))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", b"Y")]


@statement(mdr="MDR-45")
@pytest.mark.parametrize("body", [[b"X"], [], [b'{"error": "failed"}']])
def test_an_answer_with_a_wrong_id_is_none(house: Household, talk: Talk, body: list[bytes]) -> None:
    for say in (talk.reply, talk.part):
        house.say(b"w", talk.ready(b"echo"))
        house.ask(b"c", talk.request(b"echo", say.__name__.encode(), b"x"))
        order = house.order(b"w")
        order[4] = b"other"
        house.say(b"w", say(order, *body))
        assert house.answers(b"c") == []
        assert house.orders(b"w") == [talk.dismissal()]
        house.say(b"w2", talk.ready(b"echo"))
        house.say(b"w2", talk.reply(house.order(b"w2"), b"Y"))
        assert house.answers(b"c") == [talk.final(b"echo", say.__name__.encode(), b"Y")]
        house.say(b"w2", talk.farewell())
    assert house.bus.counters.invalid == 2


@statement(mdr="MDR-45")
def test_two_answers_with_their_ids_exchanged_are_none(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo", b"2"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"1"))
    house.ask(b"c", talk.request(b"echo", b"r2", b"2"))
    first, second = house.orders(b"w")
    house.say(b"w", talk.reply([*first[:4], second[4]], b"one"))
    assert house.answers(b"c") == []
    assert house.orders(b"w") == [talk.dismissal()]


@statement(mdr="MDR-45")
def test_a_request_without_an_id_has_its_token_as_id(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", MDP2.request(b"echo", b"", b"x"))
    order = house.order(b"w")
    assert order[4] == order[2]
    house.say(b"w", talk.reply(order, b"X"))
    assert house.answers(b"c") == [MDP2.final(b"echo", b"", b"X")]
    house.ask(b"c", MDP2.request(b"echo", b"", b"x"))
    order = house.order(b"w")
    house.say(b"w", talk.reply([*order[:4], b"other"], b"X"))
    assert house.orders(b"w") == [talk.dismissal()]
    assert house.answers(b"c") == []


# -- heartbeats -------------------------------------------------------------------------------


@statement(mdp1="MDP1-13 MDP1-27 MDP1-30", mdp2="MDP2-15 MDP2-29 MDP2-32")
def test_the_broker_beats_at_its_interval(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    for _ in range(4):
        house.wait(BEAT_S)
        house.say(b"w", talk.heartbeat())
    beats = house.orders(b"w")
    assert set(map(tuple, beats)) == {tuple(talk.heartbeat())}
    assert 3 <= len(beats) <= 4


@statement(mdr="MDR-16 MDR-17 MDR-33 MDR-38")
def test_ping_is_answered_with_pong_and_nothing_is_sent_unasked(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.wait(DEAD_S - 1)
    assert house.orders(b"w") == []
    house.say(b"w", talk.heartbeat())
    assert house.orders(b"w") == [[talk.worker, talk.beat_answer]]


@statement(mdp1="MDP1-29", mdp2="MDP2-31", mdr="MDR-35")
def test_no_beats_while_other_commands_are_sent(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    for number in range(10):
        house.wait(BEAT_S / 2)
        house.ask(b"c", talk.request(b"echo", b"r%d" % number, b"x"))
        order = house.order(b"w")  # and nothing beside it
        house.say(b"w", talk.reply(order, b"X"))


@statement(mdp1="MDP1-28", mdp2="MDP2-30", mdr="MDR-34")
def test_whatever_a_worker_sends_is_a_heartbeat(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.wait(DEAD_S - 0.5)
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    order = house.orders(b"w")[-1]
    if talk.has_partials:
        house.say(b"w", talk.part(order, b"0"))
        house.wait(DEAD_S - 0.5)
    house.say(b"w", talk.reply(order, b"X"))
    house.wait(DEAD_S - 0.5)
    assert (WORKERS, b"w") in house.bus.workers
    house.wait(1)
    assert (WORKERS, b"w") not in house.bus.workers


@statement(mdp1="MDP1-31 MDP1-33 MDP1-35", mdp2="MDP2-33 MDP2-35 MDP2-37", mdr="MDR-39 MDR-41 MDR-43")
def test_a_silent_worker_is_lost_and_its_requests_go_to_another(house: Household, talk: Talk) -> None:
    house.say(b"w1", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.order(b"w1")
    house.say(b"w2", talk.ready(b"echo"))
    for _ in range(3):
        house.wait(BEAT_S)
        house.say(b"w2", talk.heartbeat())
    house.wait(0.1)
    house.orders(b"w1")
    assert house.bus.counters.workers_lost == 1
    order = next(order for order in house.orders(b"w2") if len(order) > 2)
    house.say(b"w2", talk.reply(order, b"X"))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", b"X")]
    house.ask(b"c", talk.request(b"echo", b"r2", b"y"))
    house.wait(5)
    assert house.orders(b"w1") == []


@statement(mdp1="MDP1-35", mdp2="MDP2-37", mdr="MDR-43")
def test_requests_of_a_worker_that_left_go_to_another(house: Household, talk: Talk) -> None:
    house.say(b"w1", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.say(b"w2", talk.ready(b"echo"))
    lost = house.order(b"w1")
    house.say(b"w1", talk.farewell())
    order = house.order(b"w2")
    assert talk.body_of(order) == [b"x"]
    # What the first one says about it now is late; the second one's answer counts.
    house.say(b"w1", talk.reply(lost, b"old"))
    house.say(b"w2", talk.reply(order, b"new"))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", b"new")]


# -- dispatch ---------------------------------------------------------------------------------


@statement(mdp1="MDP1-34", mdp2="MDP2-36", mdr="MDR-42")
def test_the_least_recently_used_worker_is_next(house: Household, talk: Talk) -> None:
    for worker in (b"w1", b"w2", b"w3"):
        house.say(worker, talk.ready(b"echo"))
    turns = []
    for number in range(6):
        house.ask(b"c", talk.request(b"echo", b"r%d" % number, b"x"))
        (worker,) = [w for w in (b"w1", b"w2", b"w3") if (WORKERS, w) in house.sent]
        house.say(worker, talk.reply(house.order(worker), b"X"))
        turns.append(worker)
    assert turns == [b"w1", b"w2", b"w3"] * 2


@statement(mdp1="MDP1-36", mdp2="MDP2-38")
def test_clients_are_served_in_turn(house: Household, talk: Talk) -> None:
    for number in range(3):
        house.ask(b"greedy", talk.request(b"echo", b"", b"g%d" % number))
    house.ask(b"modest", talk.request(b"echo", b"", b"m"))
    house.say(b"w", talk.ready(b"echo", b"4"))
    bodies = [talk.body_of(order)[0] for order in house.orders(b"w")]
    assert bodies.index(b"m") == 1


@statement(mdp1="MDP1-37", mdp2="MDP2-39", mdr="MDR-10")
def test_a_request_without_workers_waits_and_then_expires(talk: Talk) -> None:
    house = Household(Limits(request_ttl_s=10))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    house.wait(9)
    assert house.answers(b"c") == []
    house.wait(1.2)
    (answer,) = house.answers(b"c")
    assert answer[:-1] == talk.final(b"echo", b"r1")
    error = json.loads(answer[-1])
    assert error["error"] == "expired"
    assert "no worker was free" in error["detail"]


# -- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
def test_a_workers_error_object_is_a_failure_and_reaches_the_client_as_it_was(
    house: Household, talk: Talk
) -> None:
    house.say(b"w", talk.ready(b"echo"))
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    error = b'{"error": "out of tea", "hint": "boil"}'
    house.say(b"w", talk.reply(house.order(b"w"), error))
    assert house.answers(b"c") == [talk.final(b"echo", b"r1", error)]
    assert house.bus.counters.failed == 1
    # The worker is free for the next one.
    house.ask(b"c", talk.request(b"echo", b"r2", b"x"))
    assert len(house.orders(b"w")) == 1


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
def test_a_draining_broker_says_so(house: Household, talk: Talk) -> None:
    house.handle(events.Drain())
    house.ask(b"c", talk.request(b"echo", b"r1", b"x"))
    (answer,) = house.answers(b"c")
    assert json.loads(answer[-1])["error"] == "draining"


def test_the_tags_of_the_draft_can_be_set() -> None:
    from polybus.dialects.mdr import Mdr

    house = Household(
        make=lambda bus, beat_s, liveness, ended: Mdr(bus, beat_s, liveness, b"C9", b"W9", ended)
    )
    house.say(b"w", [b"W9", b"\x01", b"echo"])
    house.ask(b"c", [b"C9", b"\x01", b"echo", b"r1", b"x"])
    order = house.order(b"w")
    assert order[0] == b"W9"
    house.say(b"w", [b"W9", b"\x04", *order[2:5], b"X"])
    assert house.answers(b"c") == [[b"C9", b"\x03", b"echo", b"r1", b"X"]]
    house.say(b"w", [b"W9", b"\x01", b"echo"])
    assert house.orders(b"w") == [[b"MDPW02", b"\x06"]]


def test_a_worker_of_one_dialect_is_spoken_to_in_its_own(house: Household) -> None:
    house.say(b"w1", MDP1.ready(b"a"))
    house.say(b"w2", MDR.ready(b"b"))
    house.ask(b"c", MDP2.request(b"a", b"", b"x"))
    house.ask(b"c", MDP2.request(b"b", b"", b"y"))
    assert house.order(b"w1")[:2] == [b"MDPW01", b"\x02"]
    order = house.order(b"w2")
    # The client has no id: the worker still gets one, and it is the token.
    assert order[4] == order[2] != b""


@pytest.mark.parametrize("talk", TALKS)
def test_workers_are_shown_with_their_dialect(house: Household, talk: Talk) -> None:
    house.send(WORKERS, b"w", *talk.ready(b"echo"))
    (worker,) = house.bus.workers.values()
    assert worker.voice.dialect == {b"MDPW01": "mdp1", b"MDPW02": "mdp2", b"MDRW01": "mdr"}[talk.worker]
