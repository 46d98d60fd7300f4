"""The rules that all dialects share: names, ids, texts, bodies, commands."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import frames
from support.wire_frames import Opaque, refused


@pytest.mark.parametrize(
    "name", [b"a", b"echo", b"mmi.service", b"two words", "größe ☃".encode(), b"x" * 255]
)
def test_a_name_is_printable_text(name: bytes) -> None:
    assert frames.read_name(name, "service name") is name
    assert frames.check_name(name, "service name") is name


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"x" * 256,
        b"a\x00",
        b"\n",
        b"tab\there",
        b"\xff\xfe",
        "\u200b".encode(),
        b"\x7f",
        b"\xc3",
    ],
)
def test_anything_else_is_no_name(name: bytes) -> None:
    assert refused(lambda: frames.read_name(name, "service name")) == "bad_name"
    with pytest.raises(LocalProtocolError, match="service name"):
        frames.check_name(name, "service name")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (b"", "queue name is 0 bytes; allowed are 1 to 255"),
        (b"x" * 256, "queue name is 256 bytes; allowed are 1 to 255"),
        (b"a\n", r"queue name is not printable text: b'a\\n'"),
    ],
)
def test_what_is_wrong_with_a_name_is_told(name: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        frames.read_name(name, "queue name")


@pytest.mark.parametrize("value", [b"\x00", b"id", b"\xff" * 255])
def test_an_id_is_any_bytes(value: bytes) -> None:
    assert frames.read_id(value) is value
    assert frames.check_id(value) is value


@pytest.mark.parametrize("value", [b"", b"x" * 256])
def test_an_id_has_a_length(value: bytes) -> None:
    assert refused(lambda: frames.read_id(value)) == "bad_id"
    with pytest.raises(LocalProtocolError, match="request id"):
        frames.check_id(value)
    for told in (frames.read_id, frames.check_id):
        with pytest.raises((RemoteProtocolError, LocalProtocolError), match=r"\brequest id is"):
            told(value)
        with pytest.raises((RemoteProtocolError, LocalProtocolError), match=r"\btoken is"):
            told(value, "token")


@pytest.mark.parametrize("read", [frames.read_name, frames.read_id])
def test_a_header_frame_is_bytes(read) -> None:
    frame = Opaque(b"echo")
    with pytest.raises(RemoteProtocolError):
        read(frame, "header")
    assert frame.copies == 0


def test_a_text_may_be_empty_and_has_a_limit() -> None:
    assert frames.read_text(b"", "headers") == b""
    assert frames.read_text(Opaque(b"x" * frames.MAX_TEXT_BYTES), "headers") == b"x" * frames.MAX_TEXT_BYTES
    too_long = Opaque(b"x" * (frames.MAX_TEXT_BYTES + 1))
    assert refused(lambda: frames.read_text(too_long, "headers")) == "too_long"
    assert too_long.copies == 0


def test_a_body_is_passed_on_as_it_is() -> None:
    large = Opaque(b"x" * 100)
    body = frames.read_body([b"tag", b"small", large], 1)
    assert body[0] == b"small"
    assert body[1] is large
    assert large.copies == 0
    assert frames.read_body([b"tag"], 1) == []


def test_a_body_has_a_limit() -> None:
    assert len(frames.read_body([b"tag"] + [b""] * frames.MAX_BODY_FRAMES, 1)) == frames.MAX_BODY_FRAMES
    assert refused(lambda: frames.read_body([b""] * (frames.MAX_BODY_FRAMES + 1), 0)) == "too_many_frames"


def test_a_command_is_looked_up_behind_the_tag() -> None:
    table = {b"\x01": lambda given, at: (given, at)}
    given = [b"peer", b"tag", b"\x01"]
    assert frames.read_command(table, given, 1) == (given, 1)
    assert refused(lambda: frames.read_command(table, given, 2)) == "short"
    assert refused(lambda: frames.read_command(table, given, 9)) == "short"
    assert refused(lambda: frames.read_command(table, [b"tag", b"\x02"], 0)) == "unknown_command"


def test_a_large_frame_is_no_command_and_is_not_copied() -> None:
    large = Opaque(b"\x01")
    assert refused(lambda: frames.read_command({b"\x01": lambda given, at: at}, [b"tag", large], 0)) == (
        "unknown_command"
    )
    assert large.copies == 0
