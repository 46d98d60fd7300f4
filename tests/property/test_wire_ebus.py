"""EBUS 1.0: what is written is read back, and no frames whatever break a reader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.wire import ebus
from support.wire_frames import broken, ids, names, never_crashes

bodies = st.lists(st.binary(max_size=64), max_size=1)
ttls = st.none() | st.integers(0, ebus.MAX_TTL_MS)
words = st.sampled_from([ebus.REQ, ebus.REQUEST])
beats = st.sampled_from([ebus.Heartbeat(), ebus.Ping(), ebus.Disconnect()])
# A time to live needs a data frame before it, so a request has both or may lack data.
requests = st.builds(ebus.Request, names, ids, bodies) | st.builds(
    ebus.Request, names, ids, st.binary(max_size=64).map(lambda data: [data]), ttls
)
from_clients = st.one_of(
    requests,
    st.builds(ebus.Cancel, names, ids),
    st.builds(ebus.Reject, ids, bodies),
    st.builds(ebus.ServicesQuery, st.just(b"") | ids),
    st.builds(ebus.WorkersQuery, st.just(b"") | ids),
    beats,
)
replies = st.one_of(
    st.builds(ebus.Reply, ids, bodies),
    st.builds(ebus.Reject, ids, bodies),
    st.just(ebus.Reject(b"", [])),
    beats,
)
listings = st.builds(ebus.Listing, st.sampled_from([b"SERVICES", b"WORKERS"]), st.just(b"") | ids, bodies)
from_workers = st.one_of(
    replies,
    st.builds(ebus.Ready, names, st.integers(1, ebus.MAX_CREDIT)),
    st.builds(ebus.Ready, names, st.none(), st.booleans()),
)
envelopes = st.sampled_from([[], [b""], [b"peer"], [b"peer", b""]])


@given(from_clients, words, envelopes)
def test_client_to_broker(message: ebus.ClientMessage, word: bytes, envelope: list[bytes]) -> None:
    frames = [*envelope, *ebus.write_from_client(message, word)]
    assert ebus.read_from_client(frames, len(envelope)) == message


@given(from_workers | from_clients, words, envelopes)
def test_worker_to_broker(
    message: ebus.WorkerMessage | ebus.ClientMessage, word: bytes, envelope: list[bytes]
) -> None:
    frames = [*envelope, *ebus.write_from_worker(message, word)]
    assert ebus.read_from_worker(frames, len(envelope)) == message


@given(replies | listings)
def test_broker_to_client(message: ebus.ReplyMessage) -> None:
    match message:
        case ebus.Reply(request_id, body):
            frames = ebus.write_reply(request_id, body)
        case ebus.Reject(request_id, body):
            frames = ebus.write_reject(request_id, body)
        case ebus.Listing(query, request_id, body):
            frames = ebus.write_listing(query, request_id, body)
        case ebus.Heartbeat():
            frames = ebus.write_heartbeat(ebus.WORKER_TAG)
        case ebus.Ping():
            frames = ebus.write_ping(ebus.WORKER_TAG)
        case ebus.Disconnect():
            frames = ebus.write_disconnect(ebus.WORKER_TAG)
    assert ebus.read_as_client(frames) == ebus.read_as_worker(frames) == message


@given(names, ids, bodies, ttls)
def test_request_to_worker(service: bytes, request_id: bytes, body: list[Any], ttl_ms: int | None) -> None:
    frames = ebus.write_request(service, request_id, body, ttl_ms)
    assert ebus.read_as_worker(frames) == ebus.Request(service, request_id, body or [b""], ttl_ms)


@given(ids, bodies, st.integers(0, ebus.MAX_TTL_MS))
def test_order_to_public_worker(request_id: bytes, body: list[Any], ttl_ms: int) -> None:
    frames = ebus.write_order(request_id, body, ttl_ms)
    assert ebus.read_as_worker(frames) == ebus.Order(request_id, body or [b""], ttl_ms)


@given(st.floats(0, ebus.MAX_TTL_MS))
def test_a_stale_time_with_a_fraction(ttl_ms: float) -> None:
    assert ebus.read_ttl(f"{ttl_ms:.9f}".encode()) == int(f"{ttl_ms:.9f}".partition(".")[0])


@given(ids)
def test_cancel_to_worker(request_id: bytes) -> None:
    assert ebus.read_as_worker(ebus.write_cancel_order(request_id)) == ebus.CancelOrder(request_id)


@given(names, st.lists(st.binary(max_size=64), max_size=4))
def test_publish(channel: bytes, body: list[Any]) -> None:
    assert ebus.read_publish(ebus.write_publish(channel, body)) == ebus.Publish(channel, body)


PIECES = [
    *(
        ebus.CLIENT_TAG,
        ebus.WORKER_TAG,
        b"",
        b"echo",
        b"id-1",
        b"1",
        b"2147483649",
        b"-1",
        b"1.5",
        b"null",
        b"\xff",
        b"x" * 256,
    ),
    *(b"REQ", b"REQUEST", b"READY", b"REPLY", b"REJECT", b"CANCEL", b"SERVICES", b"WORKERS"),
    *(b"HEARTBEAT", b"PING", b"DISCONNECT"),
]
READERS = [
    ebus.read_from_client,
    ebus.read_from_worker,
    ebus.read_as_client,
    ebus.read_as_worker,
    ebus.read_publish,
]


@pytest.mark.parametrize("read", READERS)
@given(frames=broken(PIECES), at=st.integers(0, 2))
def test_any_frames(read: Any, frames: list[Any], at: int) -> None:
    never_crashes(read, frames, at)


@pytest.mark.parametrize("read", READERS)
@given(
    tag=st.sampled_from([ebus.CLIENT_TAG, ebus.WORKER_TAG]),
    word=st.sampled_from(sorted({*ebus.CLIENT_COMMANDS, *ebus.WORKER_COMMANDS, *ebus.ORDER_COMMANDS})),
    rest=broken(PIECES, 5),
)
def test_any_frames_after_a_good_beginning(read: Any, tag: bytes, word: bytes, rest: list[Any]) -> None:
    never_crashes(read, [tag, word, *rest], 0)
