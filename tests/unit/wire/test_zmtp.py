"""ZMTP as it is on the wire, byte by byte."""

from __future__ import annotations

import tracemalloc

import pytest

from polybus.errors import RemoteProtocolError
from polybus.wire import zmtp
from polybus.wire.zmtp import Failed, Greeted, Parser, Ping, Pong, Ready, Said, Stray, Subscription
from support.wire_frames import Opaque
from support.zmtp import GREETING, ready

SUB = GREETING + ready(b"SUB")


def said(data: bytes, step: int = 0) -> list[Said]:
    """Everything that these bytes say, whole or in pieces of `step` bytes."""
    parser = Parser()
    found = []
    for at in range(0, len(data), step or len(data)):
        parser.feed(data[at : at + (step or len(data))])
        while (one := parser.next()) is not None:
            found.append(one)
    assert parser.unread == 0
    return found


HELLO: list[Said] = [Greeted(0), Ready(b"SUB")]


# -- writing ------------------------------------------------------------------------------------------


def test_a_message_is_frames_and_every_frame_but_the_last_says_that_more_follow() -> None:
    assert zmtp.write_message([b"topic", b"", Opaque(b"body")]) == b"\x01\x05topic\x01\x00\x00\x04body"
    assert zmtp.write_message([b"x" * 255]) == b"\x00\xff" + b"x" * 255
    assert (
        zmtp.write_message([b"x" * 256, b""]) == b"\x03" + bytes(6) + b"\x01\x00" + b"x" * 256 + b"\x00\x00"
    )
    assert zmtp.write_message([b"x" * 70_000]) == b"\x02" + (70_000).to_bytes(8, "big") + b"x" * 70_000


def test_our_handshake() -> None:
    assert len(zmtp.GREETING) == zmtp.GREETING_BYTES
    assert zmtp.GREETING[:12] == b"\xff" + bytes(8) + b"\x7f\x03\x01"
    assert zmtp.GREETING[12:32] == b"NULL" + bytes(16)
    assert zmtp.write_ready(b"XPUB") == b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04XPUB"


def test_our_commands() -> None:
    assert zmtp.write_pong(b"ctx") == b"\x04\x08\x04PONGctx"
    # The time to live is in tenths of a second.
    assert zmtp.write_ping(2.5, b"ctx") == b"\x04\x0a\x04PING\x00\x19ctx"
    assert zmtp.write_ping(100) == b"\x04\x07\x04PING\x03\xe8"
    assert zmtp.write_error("no") == b"\x04\x09\x05ERROR\x02no"
    assert zmtp.write_error("ü" * 300).endswith(b"?" * 255)
    assert zmtp.write_subscription(True, b"a") == b"\x04\x0b\x09SUBSCRIBEa"
    long = zmtp.write_subscription(True, b"a" * 300)
    assert long == b"\x06" + (310).to_bytes(8, "big") + b"\x09SUBSCRIBE" + b"a" * 300


# -- reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 7, 64])
def test_the_life_of_a_subscriber(step: int) -> None:
    data = SUB + b"".join(
        (
            b"\x00\x02\x01a",  # as ZMTP 3.0 has it
            zmtp.write_subscription(True, b"b"),  # as 3.1 has it
            b"\x02" + (3).to_bytes(8, "big") + b"\x01cd",
            b"\x00\x01\x01",
            zmtp.write_ping(2.5, b"context"),
            zmtp.write_pong(b""),
            b"\x00\x02\x00a",
            zmtp.write_subscription(False, b"b"),
        )
    )
    assert said(data, step) == [
        *HELLO,
        Subscription(True, b"a"),
        Subscription(True, b"b"),
        Subscription(True, b"cd"),
        Subscription(True, b""),
        Ping(2.5, b"context"),
        Pong(),
        Subscription(False, b"a"),
        Subscription(False, b"b"),
    ]


def test_what_is_not_asked_for_stays_unread() -> None:
    parser = Parser()
    parser.feed(SUB + b"\x00\x02\x01a" * 10)
    assert [parser.next() for _ in range(3)] == [*HELLO, Subscription(True, b"a")]
    assert parser.unread == 9 * 4
    parser.feed(b"\x00\x02")
    assert parser.unread == 9 * 4 + 2
    assert [parser.next() for _ in range(9)] == [Subscription(True, b"a")] * 9
    assert parser.next() is None
    assert parser.unread == 2


def test_what_was_read_is_not_kept_if_nobody_asks_for_more() -> None:
    """Also if the peer's packets always end where one of its frames ends."""
    parser = Parser()
    parser.feed(SUB)
    assert [parser.next() for _ in HELLO] == HELLO
    tracemalloc.start()
    try:
        for _ in range(5_000):
            parser.feed(b"\x00\xc8\x01" + bytes(199))
            assert parser.next() == Subscription(True, bytes(199))
            assert parser.unread == 0
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("have", range(9))
def test_the_length_of_a_frame_is_not_guessed_from_a_part_of_it(have: int) -> None:
    parser = Parser()
    parser.feed(SUB + (b"\x02\x7f" + b"\xff" * 7)[:have])
    assert [parser.next() for _ in range(len(HELLO) + 1)] == [*HELLO, None]
    assert parser.unread == have


# A message that says something; and one that says nothing to us and never ends.
@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"\x00\xc8\x01" + bytes(199), [Subscription(True, bytes(199)), None]),
        (b"\x01\xc8" + bytes(200), [None]),
    ],
)
def test_what_was_read_is_not_kept(frame: bytes, says: list[Said | None]) -> None:
    """Also if the peer's packets never end where one of its frames ends."""
    parser = Parser()
    parser.feed(SUB + frame[:1])
    assert [parser.next() for _ in range(len(HELLO) + 1)] == [*HELLO, None]
    packet = frame[1:] + frame[:1]
    # The first one of those that say nothing is told of.
    parser.feed(packet)
    while parser.next() is not None:
        pass
    tracemalloc.start()
    try:
        for _ in range(5_000):
            parser.feed(packet)
            assert [parser.next() for _ in says] == says
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_newer_minor_versions_and_other_properties_are_fine() -> None:
    greeting = GREETING[:11] + b"\x07" + GREETING[12:]
    command = b"\x05READY\x08Identity\x00\x00\x00\x02me\x0bsocket-type\x00\x00\x00\x04XSUB"
    assert said(greeting + bytes((4, len(command))) + command) == [Greeted(7), Ready(b"XSUB")]


def test_a_peer_that_does_not_name_the_type_of_its_socket() -> None:
    assert said(GREETING + b"\x04\x06\x05READY") == [Greeted(0), Ready(b"")]


def test_messages_and_commands_that_say_nothing_to_us() -> None:
    found = said(
        SUB
        + b"\x00\x05hello"
        + b"\x00\x00"
        # One message of three frames, with a command in between, then something that can be read.
        + b"\x01\x02\x01a\x01\x02\x01b\x04\x08\x07UNKNOWN\x00\x02\x01c"
        + b"\x00\x02\x01d"
    )
    assert [type(one) for one in found] == [Greeted, Ready, Stray, Stray, Stray, Stray, Subscription]
    assert found[-1] == Subscription(True, b"d")


def test_an_error_of_the_peer() -> None:
    assert said(GREETING + zmtp.write_error("you")) == [Greeted(0), Failed("you")]
    assert said(SUB + zmtp.write_error("bye")) == [*HELLO, Failed("bye")]
    assert said(SUB + b"\x04\x06\x05ERROR") == [*HELLO, Failed("")]
    # It says how long its reason is; and any bytes may be in it.
    assert said(SUB + b"\x04\x0b\x05ERROR\x02no..") == [*HELLO, Failed("no")]
    assert said(SUB + b"\x04\x09\x05ERROR\x02n\xff") == [*HELLO, Failed("n\ufffd")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1", "no_zmtp"),
        (b"\x16\x03\x01", "no_zmtp"),
        (b"\xff" + bytes(8) + b"\x00", "old_zmtp"),
        (b"\xff" + bytes(8) + b"\x7e", "old_zmtp"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "old_zmtp"),
        (GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32), "mechanism"),
        (GREETING + b"\x00\x02\x01a", "handshake"),
        (GREETING + zmtp.write_ping(1), "handshake"),
        # A message is no READY, whatever it says.
        (GREETING + b"\x00" + ready(b"SUB")[1:], "handshake"),
        (GREETING + b"\x04\x08\x05READY\x05a", "metadata"),
        (GREETING + b"\x04\x0b\x05READY\x00\x00\x00\x00\x00", "metadata"),
        (GREETING + b"\x04\x0c\x05READY\x01a\xff\xff\xff\xff", "metadata"),
        (SUB + b"\x08\x00", "flags"),
        (SUB + b"\x05\x00", "flags"),
        (SUB + b"\x02\x7f" + b"\xff" * 7, "too_long"),
        (SUB + b"\x02\x01" + bytes(7), "too_long"),
        (SUB + b"\x00\x00\x02" + (zmtp.MAX_FRAME_BYTES + 1).to_bytes(8, "big"), "too_long"),
        (SUB + b"\x04\x00", "command"),
        (SUB + b"\x04\x05\x05PING", "command"),
        (SUB + b"\x04\x05\x05PONG", "command"),
        (SUB + b"\x04\x02\x00a", "command"),
        (SUB + zmtp.write_ping(1, b"x" * 17), "command"),
        (SUB + b"\x04\x06\x04PING\x00", "command"),
    ],
)
def test_what_cannot_be_read(data: bytes, reason: str) -> None:
    for step in (0, 1):
        with pytest.raises(RemoteProtocolError) as caught:
            said(data, step)
        assert caught.value.reason == reason


def test_the_longest_frame_and_the_longest_context() -> None:
    prefix = b"a" * (16 * 1024 - 1)
    frame = b"\x02" + (16 * 1024).to_bytes(8, "big") + b"\x01" + prefix
    assert said(SUB + frame) == [*HELLO, Subscription(True, prefix)]
    assert said(SUB + zmtp.write_ping(0.1, b"x" * 16)) == [*HELLO, Ping(0.1, b"x" * 16)]
    assert said(SUB + zmtp.write_ping(0)) == [*HELLO, Ping(0.0, b"")]


def test_a_mechanism_that_is_not_spoken_is_told_by_its_name() -> None:
    with pytest.raises(RemoteProtocolError, match="b'BOX';"):
        said(GREETING[:12] + b"BOX".ljust(20, b"\0") + bytes(32))


def test_garbage_is_found_with_its_first_byte() -> None:
    parser = Parser()
    parser.feed(b"x")
    with pytest.raises(RemoteProtocolError):
        parser.next()
