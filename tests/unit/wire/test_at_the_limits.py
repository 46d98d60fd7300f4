"""What is exactly at a limit of the wire is taken, and one more is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import (
    bridge,
    dbp_udp,
    ebus,
    emqp_headers,
    emqp_inform,
    frames,
    mdr,
)
from polybus.wire import bridge_messages as say

MIB = 1024 * 1024


def path(count: int) -> list[str]:
    return [f"b{number}" for number in range(count)]


def hello(**facts: Any) -> Any:
    given = {"name": "a", "instance": "i", "credit": 1, "heartbeat_s": 1.0, **facts}
    return bridge.read([b"PBBR1", b"HELLO", b"1", msgspec.json.encode(given)])


def call(**facts: Any) -> Any:
    return bridge.read([b"PBBR1", b"REQUEST", b"id", b"echo", msgspec.json.encode({"hops": ["a"], **facts})])


def publish(**facts: Any) -> Any:
    given = {"origin": "a", "number": 1, "at": 1.0, "hops": ["a"], **facts}
    return bridge.read([b"PBBR1", b"PUBLISH", b"topic", msgspec.json.encode(given)])


def advert(service: str = "echo", names: int = 1) -> Any:
    return bridge.read([b"PBBR1", b"ADVERT", msgspec.json.encode({"offers": {service: path(names)}})])


def queues(count: int, weight: int = 1) -> Any:
    return emqp_inform.read_queues(msgspec.json.encode([[weight, "q"]] * count))


def holding(count: int) -> Any:
    return emqp_inform.read_extension(msgspec.json.encode({"polybus": 1, "holding": ["t"] * count}))


def padded(size: int) -> Any:
    return emqp_inform.read_extension(b'{"polybus": 1}'.ljust(size))


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (lambda n: frames.read_name(b"n" * n, "name"), (1, 255), (0, 256)),
        (lambda n: frames.read_id(b"n" * n), (1, 255), (0, 256)),
        (lambda n: frames.read_text(b"n" * n, "text"), (0, 65_536), (65_537,)),
        (lambda n: frames.read_body([b""] * n, 0), (0, 1024), (1025,)),
        (lambda n: mdr.read_credit(b"%d" % n), (1, 2, 1_000_000), (0, 1_000_001)),
        (lambda n: mdr.read_credit(b"1".rjust(n, b"0")), (1, 7), (8,)),
        (lambda n: ebus.read_ttl(b"%d" % n), (0, 2**31), (2**31 + 1,)),
        (lambda n: ebus.read_ttl(b"1".rjust(n, b"0")), (1, 10), (11,)),
        (queues, (0, 1, 1024), (1025,)),
        (lambda n: queues(1, n), (0, 1_000_000), (-1, 1_000_001)),
        (holding, (0, 1, 100_000), (100_001,)),
        (padded, (14, 4 * MIB), (4 * MIB + 1,)),
        (lambda n: emqp_inform.read_extension(b'{"polybus": %d}' % n), (1, 2, 99), (0, -1)),
        (lambda n: emqp_headers.read_headers(b",".join([b"h"] * n)), (1, 64), (65,)),
        (lambda n: advert(names=n), (1, 32), (0, 33)),
        (lambda n: advert(service="s" * n), (1, 255), (0, 256)),
        (lambda n: hello(name="n" * n), (1, 64), (0, 65)),
        (lambda n: hello(name="é" * n), (32,), (33,)),
        (lambda n: hello(credit=n), (1, 2, 1_000_000), (0, 1_000_001)),
        (lambda n: call(hops=path(n)), (1, 32), (0, 33)),
        (lambda n: call(ttl_ms=n), (0, 31_536_000_000), (-1, 31_536_000_001)),
        (lambda n: publish(hops=path(n)), (1, 32), (0, 33)),
        (lambda n: publish(number=n), (0, 2**63 - 1), (-1,)),
        (lambda n: publish(origin="o#" + "x" * (n - 2)), (2, 128), (129,)),
    ],
)
def test_reading_at_the_limit_and_beyond_it(
    read: Callable[[int], Any], good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    for number in good:
        read(number)
    for number in bad:
        with pytest.raises(RemoteProtocolError):
            read(number)


@pytest.mark.parametrize(
    ("write", "good", "bad"),
    [
        (lambda n: mdr.write_credit(n), (1, 2, 1_000_000), (0, 1_000_001)),
        (lambda n: dbp_udp.write_beacon(n), (1, 65_535), (0, 65_536)),
        (lambda n: emqp_inform.write_queues((emqp_inform.Queue(1, b"q"),) * n), (0, 1, 1024), (1025,)),
        (lambda n: emqp_inform.write_queues((emqp_inform.Queue(n, b"q"),)), (0, 1_000_000), (-1, 1_000_001)),
        (lambda n: emqp_inform.write_extension(n), (1, 2), (0, -1)),
        (lambda n: frames.check_name(b"n" * n, "name"), (1, 255), (0, 256)),
        (lambda n: frames.check_id(b"n" * n, "id"), (1, 255), (0, 256)),
    ],
)
def test_writing_at_the_limit_and_beyond_it(
    write: Callable[[int], Any], good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    for number in good:
        write(number)
    for number in bad:
        with pytest.raises(LocalProtocolError):
            write(number)


@pytest.mark.parametrize(
    ("write", "place"),
    [
        (lambda text: bridge.write_refused(b"id", "failed", text), 4),
        (lambda text: bridge.write_return(b"id", text), 3),
    ],
)
def test_what_a_worker_said_is_cut_before_it_crosses_a_bridge(
    write: Callable[[str], list[Any]], place: int
) -> None:
    assert write("x" * 4096)[place] == b"x" * 4096
    assert write("x" * 4097)[place] == b"x" * 4096


@pytest.mark.parametrize(
    ("command", "least", "most"),
    [
        (b"DENIED", 2, 2),
        (b"BEAT", 0, 0),
        (b"BYE", 1, 1),
        (b"ADVERT", 1, 1),
        (b"PARTIAL", 1, None),
        (b"REPLY", 1, None),
        (b"REFUSED", 3, None),
        (b"RETURN", 2, 2),
        (b"CANCEL", 1, 1),
    ],
)
def test_each_command_of_a_bridge_has_its_number_of_frames(
    command: bytes, least: int, most: int | None
) -> None:
    word = b'{"offers": {}}' if command == b"ADVERT" else b"failed"
    for count in (least, most if most is not None else least + 3):
        bridge.read([b"PBBR1", command, *[word] * count])
    for count in (least - 1, None if most is None else most + 1):
        if count is not None and count >= 0:
            with pytest.raises(RemoteProtocolError) as caught:
                bridge.read([b"PBBR1", command, *[word] * count])
            assert caught.value.reason == "length"


def test_a_refusal_over_a_bridge_has_its_parts_in_their_places() -> None:
    message = bridge.read([b"PBBR1", b"REFUSED", b"id", b"failed", b"why", b"one", b"two"])
    assert message == say.Refused(b"id", "failed", "why", [b"one", b"two"])
    assert bridge.write_refused(b"id", "failed", "why", [b"one", b"two"])[2:] == [
        b"id",
        b"failed",
        b"why",
        b"one",
        b"two",
    ]
