"""Actions that are made in two ways, the second one without the detour over a call of the class."""

from __future__ import annotations

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
