"""The actions that are no structs: made in two ways, equal if they say the same, readable."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core.actions import Answer, Deliver, Fanout, new_answer, new_deliver
from support.stage import Stage, client


def test_an_answer_is_the_same_however_it_is_made() -> None:
    facts = (client("c"), "voice", b"echo", b"1", [b"done"], b"token")
    called, made = Answer(*facts), new_answer(*facts)
    assert called == made
    for answer in (called, made):
        assert (answer.client, answer.voice, answer.service, answer.request_id) == facts[:4]
        assert (answer.body, answer.token) == facts[4:]
        # It is not kept for anybody yet.
        assert (answer.kept_for, answer.kept_at) == (None, 0.0)
    assert Answer(*facts[:5]).token == b""


def test_a_delivery_is_the_same_however_it_is_made() -> None:
    stage = Stage()
    known = stage.worker("w")
    stage.submit("c", "1")
    request = stage.request("c", "1")
    assert stage.one(Deliver) == Deliver(known, request) == new_deliver(known, request)


def test_a_publication_costs_nothing_before_it_is_kept() -> None:
    value = Fanout(b"t", [b"x"])
    assert (value.at, value.form, value.size) == (0.0, None, 0)


def test_deliveries_are_equal_if_worker_and_request_are() -> None:
    stage = Stage()
    w, v = stage.worker("w"), stage.worker("v")
    for name in "12":
        stage.submit("c", name)
    first, second = (stage.request("c", name) for name in "12")
    one = Deliver(w, first)
    assert one.worker is w
    assert one.request is first
    assert hash(one) == hash(Deliver(w, first))
    others: list[Any] = [Deliver(v, first), Deliver(w, second), Deliver(v, second), (w, first), None]
    for other in others:
        assert not one == other  # noqa: SIM201
        assert one != other
    assert repr(one) == f"Deliver({w!r}, {first!r})"


FACTS = ((1, b"c"), "voice", b"echo", b"1", [b"done"])


@pytest.mark.parametrize(
    ("place", "other"),
    [(0, (1, b"d")), (1, "another voice"), (2, b"other"), (3, b"2"), (4, [b"done", b"more"])],
)
def test_answers_are_equal_if_they_say_the_same_to_the_same_client(place: int, other: Any) -> None:
    one = Answer(*FACTS)
    # Which request it was is not said.
    assert one == Answer(*FACTS, b"token")
    assert hash(one) == hash(Answer(*FACTS, b"token"))
    facts: list[Any] = list(FACTS)
    facts[place] = other
    assert not one == Answer(*facts)  # noqa: SIM201
    assert one != Answer(*facts)
    assert one != FACTS
    assert repr(one) == f"Answer{FACTS!r}"


def test_publications_are_equal_if_they_say_the_same_about_the_same() -> None:
    one = Fanout(b"t", [b"x"], 5.0)
    assert (one.topic, one.body, one.at) == (b"t", [b"x"], 5.0)
    assert one == Fanout(b"t", [b"x"], 6.0)
    assert hash(one) == hash(Fanout(b"t", [b"x"], 6.0))
    others: list[Any] = [Fanout(b"u", [b"x"], 5.0), Fanout(b"t", [b"y"], 5.0), Fanout(b"u", [b"y"]), b"t"]
    for other in others:
        assert not one == other  # noqa: SIM201
        assert one != other
    assert repr(one) == "Fanout(b't', [b'x'])"
