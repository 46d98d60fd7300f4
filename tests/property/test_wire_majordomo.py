"""The Majordomo family: what is written reads back the same, and nothing read ever crashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.wire import mdp1, mdp2, mdr
from support.wire_frames import bodies, broken, ids, names, never_crashes

credits_ = st.integers(1, mdr.MAX_CREDIT)

MDP2_WORKER = st.one_of(
    st.builds(mdp2.Ready, names, credits_),
    st.builds(mdp2.WorkerPartial, ids, bodies),
    st.builds(mdp2.WorkerFinal, ids, bodies),
    st.just(mdp2.Heartbeat()),
    st.just(mdp2.Disconnect()),
)
MDP1_WORKER = MDP2_WORKER.filter(lambda message: not isinstance(message, mdp2.WorkerPartial))
MDR_WORKER = st.one_of(
    st.builds(mdr.Ready, names, credits_),
    st.builds(mdr.WorkerPartial, ids, ids, bodies),
    st.builds(mdr.WorkerFinal, ids, ids, bodies),
    st.just(mdr.Ping()),
    st.just(mdr.Disconnect()),
)


@given(names, ids, bodies)
def test_mdr_between_client_and_broker(service: bytes, request_id: bytes, body: list[Any]) -> None:
    request = mdr.Request(service, request_id, body)
    assert mdr.read_from_client(mdr.write_from_client(request)) == request
    assert mdr.read_as_client(mdr.write_partial(service, request_id, body)) == mdr.Partial(
        service, request_id, body
    )
    assert mdr.read_as_client(mdr.write_final(service, request_id, body)) == mdr.FinalReply(
        service, request_id, body
    )


@given(MDR_WORKER)
def test_mdr_from_worker(message: mdr.WorkerMessage) -> None:
    assert mdr.read_from_worker(mdr.write_from_worker(message)) == message


@given(ids, ids, bodies)
def test_mdr_to_worker(address: bytes, request_id: bytes, body: list[Any]) -> None:
    order = mdr.Order(address, request_id, body)
    assert mdr.read_as_worker(mdr.write_order(address, request_id, body)) == order
    assert mdr.read_as_worker(mdr.write_pong()) == mdr.Pong()
    assert mdr.read_as_worker(mdr.write_disconnect()) == mdr.Disconnect()


@given(names, bodies)
def test_mdp2_between_client_and_broker(service: bytes, body: list[Any]) -> None:
    request = mdp2.Request(service, body)
    assert mdp2.read_from_client(mdp2.write_from_client(request)) == request
    assert mdp2.read_as_client(mdp2.write_partial(service, body)) == mdp2.Partial(service, body)
    assert mdp2.read_as_client(mdp2.write_final(service, body)) == mdp2.FinalReply(service, body)


@given(MDP2_WORKER)
def test_mdp2_from_worker(message: mdp2.WorkerMessage) -> None:
    assert mdp2.read_from_worker(mdp2.write_from_worker(message)) == message


@given(names, bodies)
def test_mdp1_between_client_and_broker(service: bytes, body: list[Any]) -> None:
    request = mdp1.Request(service, body)
    assert mdp1.read_from_client(mdp1.write_from_client(request)) == request
    assert mdp1.read_as_client(mdp1.write_final(service, body)) == mdp1.FinalReply(service, body)


@given(MDP1_WORKER)
def test_mdp1_from_worker(message: mdp1.WorkerMessage) -> None:
    assert mdp1.read_from_worker(mdp1.write_from_worker(message)) == message


@pytest.mark.parametrize("codec", [mdp1, mdp2])
@given(ids, bodies)
def test_mdp_to_worker(codec: Any, address: bytes, body: list[Any]) -> None:
    assert codec.read_as_worker(codec.write_order(address, body)) == codec.Order(address, body)
    assert codec.read_as_worker(codec.write_heartbeat()) == codec.Heartbeat()
    assert codec.read_as_worker(codec.write_disconnect()) == codec.Disconnect()


PIECES = [
    *(codec.CLIENT_TAG for codec in (mdr, mdp1, mdp2)),
    *(codec.WORKER_TAG for codec in (mdr, mdp1, mdp2)),
    *(bytes([command]) for command in range(8)),
    *(b"PING", b"PONG", b"", b"echo", b"id-1", b"client", b"16", b"1000001"),
]


@pytest.mark.parametrize("codec", [mdr, mdp1, mdp2])
@pytest.mark.parametrize("read", ["read_from_client", "read_from_worker", "read_as_client", "read_as_worker"])
@given(broken(PIECES), st.integers(0, 3))
def test_arbitrary_frames_are_read_or_refused(codec: Any, read: str, frames: list[Any], at: int) -> None:
    never_crashes(getattr(codec, read), frames, at)
