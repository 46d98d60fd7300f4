"""What brokers say to each other, byte by byte: another version of polybus may be at the other end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import bridge as wire
from polybus.wire import bridge_messages as say
from support.wire_frames import Opaque, refused

T = b"PBBR1"
LONG = "b" * 64
PATH = [f"b{number}" for number in range(32)]

FORMS: list[tuple[say.Message, list[Any], list[bytes]]] = [
    (
        say.Hello(1, "A", "life", 7, 2.5, "tcp://b:1"),
        wire.write_hello(say.Hello(1, "A", "life", 7, 2.5, "tcp://b:1")),
        [
            b"HELLO",
            b"1",
            b'{"name":"A","instance":"life","credit":7,"heartbeat_s":2.5,"link":"tcp://b:1"}',
        ],
    ),
    (say.Denied("taken", "it is"), wire.write_denied("taken", "it is"), [b"DENIED", b"taken", b"it is"]),
    (say.Beat(), wire.write_beat(), [b"BEAT"]),
    (say.Bye("done"), wire.write_bye("done"), [b"BYE", b"done"]),
    (
        say.Advert({b"echo": ("A", "B")}, (b"tea",), True),
        wire.write_advert(say.Advert({b"echo": ("A", "B")}, (b"tea",), True)),
        [b"ADVERT", b'{"offers":{"echo":["A","B"]},"withdrawn":["tea"],"full":true}'],
    ),
    (
        say.Request(b"id", b"echo", ("A",), [b"x", b"y"], 1500, 2.5, ("h:1",)),
        wire.write_request(say.Request(b"id", b"echo", ("A",), [b"x", b"y"], 1500, 2.5, ("h:1",))),
        [
            b"REQUEST",
            b"id",
            b"echo",
            b'{"hops":["A"],"ttl_ms":1500,"timeout_s":2.5,"other":["h:1"]}',
            b"x",
            b"y",
        ],
    ),
    (
        say.Request(b"id", b"echo", ("A",), [], timeout_s=1.5),
        wire.write_request(say.Request(b"id", b"echo", ("A",), [], timeout_s=1.5)),
        [b"REQUEST", b"id", b"echo", b'{"hops":["A"],"timeout_s":1.5}'],
    ),
    (say.Partial(b"id", [b"x"]), wire.write_partial(b"id", [b"x"]), [b"PARTIAL", b"id", b"x"]),
    (say.Reply(b"id", []), wire.write_reply(b"id", []), [b"REPLY", b"id"]),
    (
        say.Refused(b"id", "failed", "why", [b"x"]),
        wire.write_refused(b"id", "failed", "why", [b"x"]),
        [b"REFUSED", b"id", b"failed", b"why", b"x"],
    ),
    (say.Return(b"id", "gone"), wire.write_return(b"id", "gone"), [b"RETURN", b"id", b"gone"]),
    (say.Cancel(b"id"), wire.write_cancel(b"id"), [b"CANCEL", b"id"]),
    (
        say.Publish(b"t", "A#1", 7, 1.5, ("A",), [b"x"], True),
        wire.write_publish(say.Publish(b"t", "A#1", 7, 1.5, ("A",), [b"x"], True)),
        [b"PUBLISH", b"t", b'{"origin":"A#1","number":7,"at":1.5,"hops":["A"],"snapshot":true}', b"x"],
    ),
    (
        say.Publish(b"t", "A", 0, 0.0, ("A",), []),
        wire.write_publish(say.Publish(b"t", "A", 0, 0.0, ("A",), [])),
        [b"PUBLISH", b"t", b'{"origin":"A","number":0,"at":0.0,"hops":["A"]}'],
    ),
]


@pytest.mark.parametrize(("message", "written", "frames"), FORMS)
def test_every_message(message: say.Message, written: list[Any], frames: list[bytes]) -> None:
    assert written == [T, *frames]
    assert wire.read([T, *frames]) == message
    assert wire.read([b"identity", T, *frames], 1) == message


@pytest.mark.parametrize(
    ("frames", "least", "most"),
    [
        ([b"HELLO", b"1", b'{"name":"A","instance":"i"}'], 2, None),
        ([b"DENIED", b"r", b"t"], 2, 2),
        ([b"BEAT"], 0, 0),
        ([b"BYE", b"r"], 1, 1),
        ([b"ADVERT", b'{"offers":{}}'], 1, 1),
        ([b"REQUEST", b"id", b"s", b'{"hops":["A"]}'], 3, None),
        ([b"PARTIAL", b"id"], 1, None),
        ([b"REPLY", b"id"], 1, None),
        ([b"REFUSED", b"id", b"r", b"d"], 3, None),
        ([b"RETURN", b"id", b"d"], 2, 2),
        ([b"CANCEL", b"id"], 1, 1),
        ([b"PUBLISH", b"t", b'{"origin":"A","number":1,"at":1,"hops":["A"]}'], 2, None),
    ],
)
def test_every_message_has_its_length(frames: list[bytes], least: int, most: int | None) -> None:
    assert len(frames) - 1 == least
    wire.read([T, *frames])
    if least:
        assert refused(lambda: wire.read([T, *frames[:-1]])) == "length"
    if most is None:
        wire.read([T, *frames, b"more"])
    else:
        assert refused(lambda: wire.read([T, *frames, b"more"])) == "length"


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"HELLO"], "0 frames behind the command; it takes 1 or more"),
        ([b"HELLO", b"1"], "1 frames behind the command; it takes 2 or more"),
        ([b"BYE"], "0 frames behind the command; it takes 1"),
        ([b"CANCEL", b"id", b"more"], "2 frames behind the command; it takes 1"),
        ([b"REQUEST", b"id"], "1 frames behind the command; it takes 3 or more"),
    ],
)
def test_how_many_frames_a_message_takes_is_told(frames: list[bytes], words: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        wire.read([T, *frames])
    assert str(caught.value).endswith(words)


@pytest.mark.parametrize(("field", "words"), [("name", "the name ''"), ("instance", "the instance ''")])
def test_which_name_in_a_greeting_is_none_is_told(field: str, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        wire.read(hello(**{field: ""}))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"HELLO", b"1", b"{"], r"\bHELLO cannot be read"),
        ([b"ADVERT", b"{"], r"\bADVERT cannot be read"),
        ([b"REQUEST", b"id", b"s", b"{"], r"\bREQUEST cannot be read"),
        ([b"PUBLISH", b"t", b"{"], r"\bPUBLISH cannot be read"),
        ([b"ADVERT", b'{"offers":{"":["A"]}}'], r"\bservice is 0 bytes"),
        ([b"ADVERT", b'{"offers":{},"withdrawn":[""]}'], r"\bservice is 0 bytes"),
        ([b"ADVERT", b'{"offers":{"s":[]}}'], r"\bpath has 0 brokers"),
        ([b"ADVERT", b'{"offers":{"s":[""]}}'], r"\bpath names a broker ''"),
        ([b"REQUEST", b"id", b"s", b'{"hops":[]}'], r"\bhops has 0 brokers"),
        ([b"PUBLISH", b"t", b'{"origin":"A","number":1,"at":1,"hops":[]}'], r"\bhops has 0 brokers"),
    ],
)
def test_which_part_of_a_message_is_wrong_is_told(frames: list[bytes], words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        wire.read([T, *frames])


def test_words_for_people_are_read_even_if_they_are_no_text() -> None:
    assert wire.read([T, b"DENIED", b"r\xff", b"t\xff"]) == say.Denied("r\ufffd", "t\ufffd")
    assert wire.read([T, b"BYE", b"r\xff"]) == say.Bye("r\ufffd")


@pytest.mark.parametrize("text", [b"\\ud800", b"\\udc00", b"a\\ud800b", b"\xed\xa0\x80", b"\xff"])
def test_a_name_that_is_no_text_is_refused(text: bytes) -> None:
    """Half of a pair of UTF-16 words is no character."""
    advert = b'{"offers":{"' + text + b'":["A"]}}'
    assert refused(lambda: wire.read([T, b"ADVERT", advert])) == "bad_json"


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "unknown_tag"),
        ([b"PBBR2", b"BEAT"], "unknown_tag"),
        ([T], "short"),
        ([T, b"beat"], "unknown_command"),
        ([T, b"HELLO", b""], "bad_version"),
        ([T, b"HELLO", b"-1"], "bad_version"),
        ([T, b"HELLO", b"1" * 10], "bad_version"),
        ([T, b"CANCEL", b""], "bad_id"),
        ([T, b"CANCEL", b"x" * 256], "bad_id"),
        ([T, b"ADVERT", b"{}"], "bad_json"),
        ([T, b"ADVERT", b"["], "bad_json"),
        ([T, b"ADVERT", b"[" * 100_000], "bad_json"),
        ([T, b"ADVERT", b'{"offers":{"":["A"]}}'], "bad_name"),
        ([T, b"ADVERT", b'{"offers":{},"withdrawn":["\\n"]}'], "bad_name"),
        ([T, b"ADVERT", Opaque(b" " * (1024 * 1024 + 1))], "too_long"),
        ([T, b"REQUEST", b"", b"s", b'{"hops":["A"]}'], "bad_id"),
        ([T, b"REQUEST", b"id", b"", b'{"hops":["A"]}'], "bad_name"),
        ([T, b"REPLY", b"id", *[b""] * 1025], "too_many_frames"),
        ([T, b"PUBLISH", b"", b'{"origin":"A","number":1,"at":1,"hops":["A"]}'], "bad_name"),
    ],
)
def test_malformed(frames: list[Any], reason: str) -> None:
    assert refused(lambda: wire.read(frames)) == reason


def test_another_version_is_read_as_far_as_that() -> None:
    assert wire.read([T, b"HELLO", b"2"]) == say.Hello(2)
    assert wire.read([T, b"HELLO", b"9" * 9, b"anything"]) == say.Hello(999_999_999)
    assert wire.read([T, b"HELLO", b"0"]) == say.Hello(0)


def hello(**facts: Any) -> list[bytes]:
    return [T, b"HELLO", b"1", msgspec.json.encode({"name": "A", "instance": "i", **facts})]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", LONG),
        ("instance", LONG),
        ("credit", 1),
        ("credit", 1_000_000),
        ("heartbeat_s", 0.001),
        ("heartbeat_s", 3600.0),
        ("link", ""),
    ],
)
def test_the_least_and_the_most_of_a_greeting(field: str, value: object) -> None:
    assert getattr(wire.read(hello(**{field: value})), field) == value


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("name", "", "bad_name"),
        ("name", LONG + "b", "bad_name"),
        ("name", "ä" * 33, "bad_name"),
        ("name", "a\n", "bad_name"),
        ("instance", "", "bad_name"),
        ("instance", LONG + "b", "bad_name"),
        ("credit", 0, "bad_credit"),
        ("credit", 1_000_001, "bad_credit"),
        ("heartbeat_s", 0, "bad_heartbeat"),
        ("heartbeat_s", -1, "bad_heartbeat"),
        ("heartbeat_s", 3600.5, "bad_heartbeat"),
    ],
)
def test_a_greeting_beyond_its_limits(field: str, value: object, reason: str) -> None:
    assert refused(lambda: wire.read(hello(**{field: value}))) == reason


def call(**facts: Any) -> list[bytes]:
    return [T, b"REQUEST", b"id", b"s", msgspec.json.encode({"hops": ["A"], **facts})]


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("hops", PATH, tuple(PATH)),
        ("hops", [LONG], (LONG,)),
        ("ttl_ms", 0, 0),
        ("ttl_ms", 31_536_000_000, 31_536_000_000),
        ("ttl_ms", None, None),
        ("timeout_s", 0.0, 0.0),
        ("timeout_s", 31_536_000, 31_536_000.0),
    ],
)
def test_the_least_and_the_most_of_a_request(field: str, value: object, read: object) -> None:
    assert getattr(wire.read(call(**{field: value})), field) == read


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("hops", [], "bad_path"),
        ("hops", [*PATH, "one more"], "bad_path"),
        ("hops", [LONG + "b"], "bad_path"),
        ("hops", ["A", ""], "bad_path"),
        ("ttl_ms", -1, "bad_ttl"),
        ("ttl_ms", 31_536_000_001, "bad_ttl"),
        ("timeout_s", -0.5, "bad_timeout"),
        ("timeout_s", 31_536_000.5, "bad_timeout"),
        ("ttl_ms", "soon", "bad_json"),
    ],
)
def test_a_request_beyond_its_limits(field: str, value: object, reason: str) -> None:
    assert refused(lambda: wire.read(call(**{field: value}))) == reason


def publication(**facts: Any) -> list[bytes]:
    known = {"origin": "A", "number": 1, "at": 1.0, "hops": ["A"]}
    return [T, b"PUBLISH", b"t", msgspec.json.encode({**known, **facts})]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("origin", LONG),
        ("origin", f"{LONG}#{'x' * 63}"),
        ("number", 0),
        ("number", 2**63 - 1),
        ("at", -1.0),
        ("snapshot", True),
    ],
)
def test_the_least_and_the_most_of_a_publication(field: str, value: object) -> None:
    assert getattr(wire.read(publication(**{field: value})), field) == value


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("origin", "", "bad_name"),
        ("origin", "#1", "bad_name"),
        ("origin", LONG + "b", "bad_name"),
        ("origin", f"{LONG}#{'x' * 64}", "bad_name"),
        ("number", -1, "bad_number"),
        ("number", 2**63, "bad_number"),
        ("hops", [], "bad_path"),
    ],
)
def test_a_publication_beyond_its_limits(field: str, value: object, reason: str) -> None:
    assert refused(lambda: wire.read(publication(**{field: value}))) == reason


def test_an_advert_as_long_as_it_may_be() -> None:
    text = b'{"offers":{"echo":["A"]}}'
    assert wire.read([T, b"ADVERT", text + b" " * (1024 * 1024 - len(text))]) == say.Advert({b"echo": ("A",)})


def test_what_a_worker_said_is_cut() -> None:
    assert wire.write_refused(b"id", "failed", "x" * 4097) == [T, b"REFUSED", b"id", b"failed", b"x" * 4096]
    assert wire.write_return(b"id", "x" * 4097) == [T, b"RETURN", b"id", b"x" * 4096]
    # A lone surrogate cannot be sent, and is no reason to say nothing.
    assert wire.write_bye("a\ud800") == [T, b"BYE", b"a?"]
    assert wire.write_refused(b"id", "failed", "\ud800")[4] == b"?"
    assert wire.write_return(b"id", "\ud800")[3] == b"?"


def test_a_request_that_would_be_refused_is_not_written() -> None:
    for request in (say.Request(b"", b"s", ("A",), []), say.Request(b"id", b"\n", ("A",), [])):
        with pytest.raises(LocalProtocolError):
            wire.write_request(request)


@pytest.mark.parametrize(("name", "is_one"), [("A", True), (LONG, True), ("", False), ("\ud800", False)])
def test_what_is_a_name_of_a_broker(name: str, is_one: bool) -> None:
    assert wire.is_broker_name(name) == is_one
