"""The Majordomo Management Interface, asked in every dialect of the family."""

from __future__ import annotations

import pytest

from polybus.dialects import mmi
from support.majordomo import TALKS, Household, Talk
from support.wire_frames import Opaque


@pytest.fixture
def house() -> Household:
    return Household()


def ask(house: Household, talk: Talk, service: bytes, *body: bytes) -> list[bytes]:
    house.ask(b"c", talk.request(service, b"r1", *body))
    (answer,) = house.answers(b"c")
    head = talk.final(service, b"r1")
    assert answer[: len(head)] == head
    rest: list[bytes] = answer[len(head) :]
    return rest


@pytest.fixture(params=TALKS, ids=lambda talk: talk.name)
def talk(request: pytest.FixtureRequest) -> Talk:
    chosen: Talk = request.param
    return chosen


@pytest.mark.conforms("MMI-1")
def test_whether_a_service_has_workers(house: Household, talk: Talk) -> None:
    assert ask(house, talk, b"mmi.service", b"echo") == [b"404"]
    house.say(b"w", talk.ready(b"echo"))
    assert ask(house, talk, b"mmi.service", b"echo") == [b"200"]
    house.say(b"w", talk.farewell())
    assert ask(house, talk, b"mmi.service", b"echo") == [b"404"]
    assert ask(house, talk, b"mmi.service", b"") == [b"404"]
    assert ask(house, talk, b"mmi.service", b"e" * 10_000) == [b"404"]


@pytest.mark.conforms("MMI-2")
def test_how_many_workers_there_are(house: Household, talk: Talk) -> None:
    assert ask(house, talk, b"mmi.workers", b"echo") == [b"404"]
    house.say(b"w1", talk.ready(b"echo"))
    house.say(b"w2", talk.ready(b"echo"))
    house.say(b"w3", talk.ready(b"other"))
    assert ask(house, talk, b"mmi.workers", b"echo") == [b"200", b"2"]
    assert ask(house, talk, b"mmi.workers", b"") == [b"200", b"3"]
    assert ask(house, talk, b"mmi.services", b"") == [b"200", b"echo", b"other"]


@pytest.mark.conforms("MMI-3")
@pytest.mark.parametrize("service", [b"mmi.", b"mmi.echo", b"mmi.service.x"])
def test_anything_else_is_not_implemented(house: Household, talk: Talk, service: bytes) -> None:
    assert ask(house, talk, service, b"x") == [b"501"]


@pytest.mark.conforms("MMI-4")
def test_the_namespace_belongs_to_the_broker(house: Household, talk: Talk) -> None:
    house.say(b"w", talk.ready(b"mmi.service"))
    assert house.orders(b"w") == [talk.dismissal()]
    assert not house.bus.workers
    assert ask(house, talk, b"mmi.service", b"mmi.service") == [b"404"]


@pytest.mark.conforms("MMI-2")
def test_a_name_has_at_most_255_bytes_and_a_longer_one_is_nobodys(house: Household, talk: Talk) -> None:
    longest = b"e" * 255
    house.say(b"w", talk.ready(longest))
    assert ask(house, talk, b"mmi.service", longest) == [b"200"]
    assert ask(house, talk, b"mmi.workers", longest) == [b"200", b"1"]
    # A name that is too long is no question for all workers.
    assert ask(house, talk, b"mmi.workers", longest + b"e") == [b"404"]
    assert ask(house, talk, b"mmi.service", longest + b"e") == [b"404"]


def test_a_service_that_is_only_asked_for_is_not_listed(house: Household, talk: Talk) -> None:
    house.ask(b"c", talk.request(b"nobodys", b"r0", b"x"))
    house.say(b"w", talk.ready(b"echo"))
    assert ask(house, talk, b"mmi.services", b"") == [b"200", b"echo"]
    assert ask(house, talk, b"mmi.workers", b"nobodys") == [b"200", b"0"]


def test_a_question_without_a_body_asks_for_no_name(house: Household) -> None:
    house.say(b"w", TALKS[0].ready(b"echo"))
    assert mmi.answer(house.bus, b"mmi.workers", []) == [b"200", b"1"]
    assert mmi.answer(house.bus, b"mmi.service", []) == [b"404"]
    assert mmi.answer(house.bus, b"mmi.services", []) == [b"200", b"echo"]
    assert mmi.answer(house.bus, b"mmi.echo", []) == [b"501"]


def test_a_frame_that_is_too_long_for_a_name_is_not_copied(house: Household) -> None:
    name, large = Opaque(b"e" * 255), Opaque(b"e" * 256)
    assert mmi.answer(house.bus, b"mmi.service", [name]) == [b"404"]
    assert mmi.answer(house.bus, b"mmi.service", [large]) == [b"404"]
    assert (name.copies, large.copies) == (1, 0)
