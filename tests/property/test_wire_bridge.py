"""Messages of a bridge: what is written is read again, and nothing that is read raises anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError
from polybus.wire import bridge as wire
from polybus.wire import bridge_messages as say

names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=15)
services = names.map(str.encode)
ids = st.binary(min_size=1, max_size=255)
paths = st.lists(names, min_size=1, max_size=wire.MAX_PATH).map(tuple)
bodies = st.lists(st.binary(max_size=50), max_size=5)
words = st.text(max_size=50)
seconds = st.floats(0, 1e6, allow_nan=False)

messages = st.one_of(
    st.builds(
        say.Hello,
        st.just(wire.VERSION),
        names,
        names,
        st.integers(1, wire.MAX_CREDIT),
        st.floats(0.001, 3600, allow_nan=False),
        words,
    ),
    st.builds(say.Denied, words, words),
    st.just(say.Beat()),
    st.builds(say.Bye, words),
    st.builds(
        say.Advert,
        st.dictionaries(services, paths, max_size=5),
        st.lists(services, max_size=5).map(tuple),
        st.booleans(),
    ),
    st.builds(
        say.Request,
        ids,
        services,
        paths,
        bodies,
        st.none() | st.integers(0, wire.MAX_MS),
        seconds,
        st.lists(words, max_size=3).map(tuple),
    ),
    st.builds(say.Partial, ids, bodies),
    st.builds(say.Reply, ids, bodies),
    st.builds(say.Refused, ids, words, words, bodies),
    st.builds(say.Return, ids, words),
    st.builds(say.Cancel, ids),
    st.builds(
        say.Publish,
        services,
        names,
        st.integers(0, wire.MAX_NUMBER),
        st.floats(-1e12, 1e12, allow_nan=False),
        paths,
        bodies,
        st.booleans(),
    ),
)


def write(message: say.Message) -> list[object]:
    match message:
        case say.Hello():
            return list(wire.write_hello(message))
        case say.Denied(reason, text):
            return list(wire.write_denied(reason, text))
        case say.Beat():
            return list(wire.write_beat())
        case say.Bye(reason):
            return list(wire.write_bye(reason))
        case say.Advert():
            return list(wire.write_advert(message))
        case say.Request():
            return list(wire.write_request(message))
        case say.Partial(request_id, body):
            return list(wire.write_partial(request_id, body))
        case say.Reply(request_id, body):
            return list(wire.write_reply(request_id, body))
        case say.Refused(request_id, reason, detail, body):
            return list(wire.write_refused(request_id, reason, detail, body))
        case say.Return(request_id, detail):
            return list(wire.write_return(request_id, detail))
        case say.Cancel(request_id):
            return list(wire.write_cancel(request_id))
        case say.Publish():
            return list(wire.write_publish(message))
    raise AssertionError(message)


@given(messages)
def test_what_is_written_is_read_again(message: say.Message) -> None:
    assert wire.read([b"identity", *write(message)], 1) == message


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_arbitrary_frames(frames: list[bytes]) -> None:
    for message in (frames, [wire.TAG, *frames]):
        try:
            wire.read(message)
        except RemoteProtocolError as error:
            assert error.reason


@given(st.sampled_from(list(wire.COMMANDS)), st.lists(st.binary(max_size=60), max_size=6))
def test_arbitrary_frames_behind_a_command(command: bytes, frames: list[bytes]) -> None:
    try:
        wire.read([wire.TAG, command, *frames])
    except RemoteProtocolError as error:
        assert error.reason


@given(messages, st.data())
def test_broken_messages(message: say.Message, data: st.DataObject) -> None:
    frames = write(message)
    at = data.draw(st.integers(1, len(frames) - 1))
    frame = bytes(frames[at])  # type: ignore[call-overload]
    cut = data.draw(st.integers(0, len(frame)))
    frames[at] = frame[:cut] + data.draw(st.binary(max_size=4)) + frame[cut + 1 :]
    try:
        wire.read(frames)  # type: ignore[arg-type]
    except RemoteProtocolError as error:
        assert error.reason


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "unknown_tag"),
        ([b"PBBR1"], "short"),
        ([b"PBBR1", b"NOTHING"], "unknown_command"),
        ([b"PBBR1", b"HELLO", b"x", b"{}"], "bad_version"),
        ([b"PBBR1", b"HELLO", b"1"], "length"),
        ([b"PBBR1", b"HELLO", b"1", b"{}"], "bad_json"),
        ([b"PBBR1", b"HELLO", b"1", b'{"name":"","instance":"x"}'], "bad_name"),
        ([b"PBBR1", b"HELLO", b"1", b'{"name":"a","instance":"x","credit":0}'], "bad_credit"),
        ([b"PBBR1", b"HELLO", b"1", b'{"name":"a","instance":"x","credit":1000001}'], "bad_credit"),
        ([b"PBBR1", b"HELLO", b"1", b'{"name":"a","instance":"x","heartbeat_s":0}'], "bad_heartbeat"),
        ([b"PBBR1", b"HELLO", b"1", b'{"name":"a","instance":"x","heartbeat_s":3601}'], "bad_heartbeat"),
        ([b"PBBR1", b"HELLO", b"1", b'{"name":"' + b"a" * 65 + b'","instance":"x"}'], "bad_name"),
        ([b"PBBR1", b"ADVERT", b'{"offers":{"s":[]}}'], "bad_path"),
        ([b"PBBR1", b"ADVERT", b'{"offers":{"":["a"]}}'], "bad_name"),
        ([b"PBBR1", b"ADVERT", b'{"offers":{"s":["a\\ud800"]}}'], "bad_json"),
        ([b"PBBR1", b"ADVERT", b" " * (wire.MAX_ADVERT_BYTES + 1)], "too_long"),
        ([b"PBBR1", b"ADVERT", b'{"offers":{},"x":' + b"[" * 60_000], "bad_json"),
        ([b"PBBR1", b"REQUEST", b"", b"s", b'{"hops":["a"]}'], "bad_id"),
        ([b"PBBR1", b"REQUEST", b"1", b"s", b'{"hops":[]}'], "bad_path"),
        ([b"PBBR1", b"REQUEST", b"1", b"s", b'{"hops":["a"],"ttl_ms":-1}'], "bad_ttl"),
        ([b"PBBR1", b"REQUEST", b"1", b"s", b'{"hops":["a"],"timeout_s":-1}'], "bad_timeout"),
        ([b"PBBR1", b"PUBLISH", b"t", b'{"origin":"a","number":-1,"at":0,"hops":["a"]}'], "bad_number"),
        (
            [b"PBBR1", b"PUBLISH", b"t", b'{"origin":"a","number":%d,"at":0,"hops":["a"]}' % 2**63],
            "bad_number",
        ),
        ([b"PBBR1", b"PUBLISH", b"t", b'{"origin":"","number":1,"at":0,"hops":["a"]}'], "bad_name"),
        ([b"PBBR1", b"CANCEL", b"1", b"2"], "length"),
        ([b"PBBR1", b"BEAT", b"1"], "length"),
    ],
)
def test_refused(frames: list[bytes], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        wire.read(frames)
    assert error.value.reason == reason


def test_the_largest_numbers_are_read() -> None:
    hello = say.Hello(wire.VERSION, "a", "x", 1_000_000, 3600.0, "")
    assert wire.read(wire.write_hello(hello)) == hello
    request = say.Request(b"1", b"s", ("a",), [b""], 365 * 86_400 * 1000)
    assert wire.read(wire.write_request(request)) == request
    publish = say.Publish(b"t", "a", 2**63 - 1, 0.0, ("a",), [b""])
    assert wire.read(wire.write_publish(publish)) == publish


def test_another_version_is_read_whatever_follows() -> None:
    assert wire.read([wire.TAG, wire.HELLO, b"2", b"anything", b"else"]) == say.Hello(2)
