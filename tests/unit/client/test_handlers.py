"""Requests, answers, failures and how functions become handlers."""

from __future__ import annotations

from typing import Any

import pytest

import polybus
from polybus.client.app import Bus, as_handler
from polybus.client.brain import body_frames
from polybus.client.failures import read_failure, split_failure, write_failure
from polybus.client.handlers import Request, answer_frames, takes_request
from polybus.client.sessions.port import Work
from polybus.errors import ConfigError, LocalProtocolError


def request(*body: bytes, ttl_s: float | None = None) -> Request:
    return Request(Work(b"t", b"echo", b"r1", list(body), ttl_s), 0, 0.0)


def test_request() -> None:
    one = request(b"in")
    assert (one.body, one.frames, one.service, one.request_id) == (b"in", [b"in"], "echo", b"r1")
    assert one.expires_in_s is None
    assert not one.cancelled
    assert request().body == b""
    assert request(b"a", b"b").frames == [b"a", b"b"]
    with pytest.raises(LocalProtocolError, match="2 body frames"):
        _ = request(b"a", b"b").body
    left_s = request(ttl_s=5.0).expires_in_s
    assert left_s is not None
    assert left_s <= 5.0


@pytest.mark.parametrize(
    ("answer", "frames"),
    [
        (b"x", [b"x"]),
        (None, []),
        ([b"a", b"b"], [b"a", b"b"]),
        (bytearray(b"x"), [b"x"]),
        ((b"a",), [b"a"]),
    ],
)
def test_answers(answer: Any, frames: list[bytes]) -> None:
    assert answer_frames(answer) == frames


@pytest.mark.parametrize("answer", ["text", 5, {}, [], ["text"], [b"a", 5]])
def test_answers_that_are_none(answer: Any) -> None:
    with pytest.raises(LocalProtocolError, match="a handler returns bytes"):
        answer_frames(answer)


@pytest.mark.parametrize("body", ["text", 5, {}, [1], iter([b"a"])])
def test_bodies_that_are_none(body: Any) -> None:
    with pytest.raises(LocalProtocolError, match="a body is bytes"):
        body_frames(body)


def test_failures_travel_as_objects() -> None:
    assert read_failure([write_failure("boom", rejected=False)]) == ("failed", "boom")
    assert read_failure([write_failure("no", rejected=True)]) == ("rejected", "no")
    assert read_failure([b'{"error": "What a mess"}']) == ("failed", "What a mess")
    for body in ([], [b""], [b"{}"], [b'{"error"'], [b'{"error":""}'], [b'{"errors":1}'], [b"a", b"b"]):
        assert read_failure(body) is None
    assert read_failure([b'{"error":"x","detail":"' + b"y" * 70_000 + b'"}']) is None
    assert split_failure("expired: at last") == ("expired", "at last")
    assert split_failure("Anything: else") == ("failed", "Anything: else")


def by_annotation(thing: Request) -> bytes:
    return thing.body


def by_name(request):  # type: ignore[no-untyped-def]
    return request.body


def body_annotated(request: bytes) -> bytes:
    return request


def body_plain(data):  # type: ignore[no-untyped-def]
    return data


@pytest.mark.parametrize(
    ("function", "whole"),
    [
        (by_annotation, True),
        (by_name, True),
        (body_annotated, False),
        (body_plain, False),
        (bytes.upper, False),
    ],
)
def test_body_or_request(function: Any, whole: bool) -> None:
    assert takes_request(function) is whole
    assert as_handler(function)(request(b"in")) in (b"in", b"IN")


def test_a_handler_takes_something() -> None:
    with pytest.raises(LocalProtocolError, match="takes no argument"):
        as_handler(lambda: b"")


def test_bus_registers_services_and_leaves_functions_alone() -> None:
    bus = Bus(dialect="emqp")

    @bus.service("hello", weight=20)
    def hello(body: bytes) -> bytes:
        return b"hello " + body

    assert hello(b"you") == b"hello you"
    assert bus.services["hello"](request(b"you")) == b"hello you"
    assert bus.weights == {"hello": 20}
    with pytest.raises(ConfigError, match="twice"):
        bus.service("hello")(hello)
    bus.stop()


def test_the_flat_namespace_has_every_name_that_it_lists() -> None:
    for name in polybus.__all__:
        assert getattr(polybus, name) is not None
    assert dir(polybus) == sorted(polybus.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = polybus.nonsense  # type: ignore[attr-defined]
