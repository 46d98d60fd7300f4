"""ZMTP: what is written is read again, and nothing else than a refusal comes out of arbitrary bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError
from polybus.wire import zmtp
from polybus.wire.zmtp import Greeted, Parser, Ping, Ready, Said, Subscription
from support.zmtp import GREETING, ready

SAYINGS = st.one_of(
    st.builds(Subscription, st.booleans(), st.binary(max_size=600)),
    st.builds(Ping, st.integers(0, 65535).map(lambda tenths: tenths * 0.1), st.binary(max_size=16)),
)


def write(said: Said, old: bool) -> bytes:
    if isinstance(said, Ping):
        return zmtp.write_ping(said.ttl_s, said.context)
    assert isinstance(said, Subscription)
    if old:
        return zmtp.write_message([bytes((said.wanted,)) + said.prefix])
    return zmtp.write_subscription(said.wanted, said.prefix)


def read(data: bytes, cuts: list[int]) -> list[Said]:
    parser, found = Parser(), []
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    for begin, end in pairwise(places):
        parser.feed(data[begin:end])
        while (one := parser.next()) is not None:
            found.append(one)
    return found


@given(st.lists(st.tuples(SAYINGS, st.booleans()), max_size=8), st.lists(st.integers(0, 10_000), max_size=6))
def test_round_trip(sayings: list[tuple[Said, bool]], cuts: list[int]) -> None:
    data = GREETING + ready(b"XSUB") + b"".join(write(said, old) for said, old in sayings)
    assert read(data, cuts) == [Greeted(0), Ready(b"XSUB"), *(said for said, _ in sayings)]


@given(
    st.sampled_from([b"", GREETING, GREETING + ready(b"SUB")]),
    st.binary(max_size=400),
    st.lists(st.integers(0, 10_000), max_size=6),
)
def test_arbitrary_bytes_are_read_or_refused(begin: bytes, data: bytes, cuts: list[int]) -> None:
    try:
        read(begin + data, cuts)
    except RemoteProtocolError as error:
        assert error.reason


@given(st.lists(st.binary(max_size=700), min_size=1, max_size=5))
def test_messages_have_the_frames_that_were_given(frames: list[bytes]) -> None:
    data = zmtp.write_message(frames)
    found = []
    while data:
        head = 9 if data[0] & zmtp.LONG else 2
        end = head + int.from_bytes(data[1:head], "big")
        found.append(data[head:end])
        assert bool(data[0] & zmtp.MORE) == (end < len(data))
        data = data[end:]
    assert found == frames
