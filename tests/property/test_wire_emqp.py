"""eMQP/1.0: what is written is read back, and no frames whatever break a reader."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.wire import emqp
from polybus.wire.emqp_extension import MAX_SLOTS
from polybus.wire.emqp_headers import MAX_NUMBER, MAX_RETRIES
from polybus.wire.emqp_inform import MAX_WEIGHT
from polybus.wire.emqp_schedule import MAX_INTERVAL_S
from support.wire_frames import broken, ids, names, never_crashes

bodies = st.binary(max_size=64).map(lambda data: [data])
# Printable, no comma, no spaces around, and none that the protocol knows.
others = st.from_regex(r"\Ax-[a-z]{1,8}(:[!-+\--~é]{0,8})?\Z")
headers = st.builds(
    emqp.Headers,
    reply_requested=st.booleans(),
    retry_count=st.integers(0, MAX_RETRIES),
    timeout_s=st.integers(0, MAX_NUMBER),
    guarantee=st.booleans(),
    nohaste=st.booleans(),
    run_count=st.none() | st.integers(0, MAX_NUMBER),
    attempt=st.integers(0, MAX_NUMBER),
    other=st.lists(others, max_size=4).map(tuple),
)
common = st.one_of(
    st.builds(emqp.Ack, ids, ids, st.integers(0, 3)),
    st.builds(emqp.Heartbeat, ids, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(emqp.Disconnect, ids),
    st.builds(emqp.Goodbye, ids),
)
queues = st.lists(st.builds(emqp.Queue, st.integers(0, MAX_WEIGHT), names), max_size=4).map(tuple)
# JSON carries text: the ids of a polybus broker are plain ASCII.
tokens = st.from_regex(r"\A[!-~]{1,40}\Z").map(str.encode)
informs = st.one_of(
    st.builds(emqp.Inform, ids, st.just("worker"), queues),
    st.builds(
        emqp.Inform,
        ids,
        st.just("worker"),
        queues,
        st.lists(tokens, max_size=4).map(tuple),
        st.integers(1, 3),
    ),
    st.builds(emqp.Inform, ids, st.just("scheduler")),
)
# Not JSON, so that a message in the document's form tells no times.
messages = st.binary(max_size=64).map(lambda data: b"#" + data)
crons = st.from_regex(r"\A[0-9*/,@a-z -]{1,40}\Z").map(str.encode)
schedules = st.one_of(
    st.builds(emqp.Schedule, ids, names, messages, headers),
    st.builds(emqp.Schedule, ids, names, st.binary(), headers, st.integers(1, MAX_INTERVAL_S)),
    st.builds(emqp.Schedule, ids, names, st.binary(), headers, st.none(), crons),
)
unschedules = st.builds(emqp.Unschedule, ids, st.just(b"") | names, st.binary(), headers)
replies = st.builds(emqp.Reply, ids, bodies, st.just(b"") | ids)
from_clients = st.one_of(
    st.builds(emqp.Request, ids, names, headers, bodies),
    st.builds(emqp.Publish, ids, names, headers, bodies),
    informs,
    common,
)
from_workers = st.one_of(
    replies,
    st.builds(emqp.Ready, ids),
    st.builds(emqp.Progress, ids, ids, bodies),
    st.builds(emqp.Leave, ids),
    st.builds(emqp.Return, ids, ids),
    st.builds(
        emqp.Done, ids, st.lists(st.tuples(ids, st.binary(max_size=64)), min_size=1, max_size=emqp.MAX_JOINED)
    ),
    st.builds(emqp.Slots, ids, st.integers(1, MAX_SLOTS)),
    informs,
    common,
)
from_admins = st.one_of(
    *(st.builds(kind, ids) for kind in (emqp.Hello, emqp.Status, emqp.ShowWorkers, emqp.ShowSchedulers)),
    st.builds(emqp.Disconnect, ids),
)
envelopes = st.sampled_from([[], [b""], [b"peer"], [b"peer", b""]])
words = st.sampled_from([emqp.KBYE, emqp.KBAI])


@given(from_clients, words, st.booleans(), envelopes)
def test_client_to_broker(
    message: emqp.ClientMessage, word: bytes, document: bool, envelope: list[bytes]
) -> None:
    frames = [*envelope, *emqp.write_from_client(message, word, document)]
    assert emqp.read_from_client(frames, len(envelope)) == message


@given(schedules | unschedules, envelopes)
def test_schedules(message: emqp.Schedule | emqp.Unschedule, envelope: list[bytes]) -> None:
    frames = emqp.write_from_client(message)
    expected = msgspec.structs.replace(message, raw=tuple(frames))
    assert emqp.read_from_client([*envelope, *frames], len(envelope)) == expected
    assert emqp.read_as_scheduler(frames) == expected


@given(unschedules)
def test_unschedule_of_the_document(message: emqp.Unschedule) -> None:
    frames = emqp.write_from_client(message, document=True)
    assert emqp.read_as_scheduler(frames) == msgspec.structs.replace(message, raw=tuple(frames))


@given(from_workers, words, envelopes)
def test_worker_to_broker(message: emqp.WorkerMessage, word: bytes, envelope: list[bytes]) -> None:
    frames = [*envelope, *emqp.write_from_worker(message, word)]
    assert emqp.read_from_worker(frames, len(envelope)) == message


@given(from_admins)
def test_admin_to_broker(message: emqp.AdminMessage) -> None:
    assert emqp.read_from_admin(emqp.write_from_admin(message)) == message


@given(common, words)
def test_broker_to_all(message: emqp.Common, word: bytes) -> None:
    match message:
        case emqp.Ack(msg_id, acked_id, version):
            frames = emqp.write_ack(msg_id, acked_id, version)
        case emqp.Heartbeat(msg_id, unix_ts):
            frames = emqp.write_heartbeat(msg_id, unix_ts)
        case emqp.Disconnect(msg_id):
            frames = emqp.write_disconnect(msg_id)
        case emqp.Goodbye(msg_id):
            frames = emqp.write_goodbye(msg_id, word)
    assert emqp.read_as_client(frames) == emqp.read_as_worker(frames) == message
    assert emqp.read_as_scheduler(frames) == message


@given(ids, bodies, ids)
def test_broker_to_client(msg_id: bytes, body: list[Any], original_id: bytes) -> None:
    result = emqp.read_as_client(emqp.write_result(msg_id, body, original_id))
    assert result == emqp.Reply(msg_id, body, original_id)
    assert emqp.read_as_client(emqp.write_reply(msg_id, body)) == emqp.Reply(msg_id, body)
    receipt = emqp.read_as_client(emqp.write_receipt(msg_id, original_id))
    assert isinstance(receipt, emqp.Reply)
    assert emqp.receipt_of(receipt) == original_id


@given(ids, names, headers, bodies)
def test_broker_to_worker(msg_id: bytes, queue: bytes, wanted: emqp.Headers, body: list[Any]) -> None:
    frames = emqp.write_order(msg_id, queue, wanted, body)
    assert emqp.read_as_worker(frames) == emqp.Request(msg_id, queue, wanted, body)


@given(ids, ids)
def test_broker_to_polybus_worker(msg_id: bytes, token: bytes) -> None:
    assert emqp.read_as_worker(emqp.write_cancel(msg_id, token)) == emqp.Cancel(msg_id, token)


orders = st.lists(st.builds(emqp.Request, ids, names, headers, bodies), min_size=1, max_size=6)


@given(ids, orders)
def test_many_jobs_to_a_polybus_worker(msg_id: bytes, jobs: list[emqp.Request]) -> None:
    assert emqp.read_as_worker(emqp.write_orders(msg_id, jobs)) == emqp.Orders(msg_id, jobs)


@given(names, bodies)
def test_publication(topic: bytes, body: list[Any]) -> None:
    assert emqp.read_publication(emqp.write_publication(topic, body)) == emqp.Publication(topic, body)


@given(headers)
def test_headers(wanted: emqp.Headers) -> None:
    text = emqp.write_headers(wanted)
    assert emqp.read_headers(text) == wanted
    # Writing what was read is stable: what a worker gets does not depend on how often it was resent.
    assert emqp.write_headers(emqp.read_headers(text)) == text


@given(st.binary(max_size=300) | st.text('abcde:,{}"-1 retry-countguarantee', max_size=60).map(str.encode))
def test_any_headers(text: bytes) -> None:
    never_crashes(lambda frames, at: emqp.write_headers(emqp.read_headers(frames[at])), [text], 0)


@given(st.text("[]{},:'\"0123 -a\\ud8", max_size=60).map(str.encode) | st.binary(max_size=60))
def test_any_queues(text: bytes) -> None:
    never_crashes(emqp.read_from_worker, [emqp.TAG, b"INFORM", b"m1", text, b"worker"], 0)


@given(st.text('[]{},:"0123polybushdng \\\\ud8', max_size=60).map(str.encode) | st.binary(max_size=60))
def test_any_extension(text: bytes) -> None:
    inform = [emqp.TAG, b"INFORM", b"m1", b"", b"worker", text]
    never_crashes(emqp.read_from_worker, inform, 0)
    never_crashes(emqp.read_as_worker, [emqp.TAG, b"ACK", b"m1", b"m2", text], 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
JOBS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (*("args", "kwargs", "class_args", "class_kwargs", "path", "callable"), *("interval_secs", "cron")),
        JSON,
    ),
)


@given(JSON | JOBS | st.tuples(st.just("run"), JOBS), st.booleans())
def test_any_scheduled_job(value: object, document: bool) -> None:
    text = json.dumps(value).encode()
    times = [text] if document else [b"5", text, b""]

    def read(frames: list[Any], at: int) -> None:
        message = emqp.read_from_client(frames, at)
        assert isinstance(message, emqp.Schedule)
        assert len(emqp.schedule_hash(message)) == 40

    never_crashes(read, [emqp.TAG, b"SCHEDULE", b"m1", b"default", b"", *times], 0)


PIECES = [
    *(emqp.TAG, b"", b"m1", b"default", b"worker", b"scheduler", b"\xff", b"x" * 256),
    *(b"guarantee,retry-count:1", b"retry-count:x", b"{}", b'{"timeout": 5}', b'[[10, "default"]]'),
    *(b"[40, 'email'], [10, 'x']", b"-1", b"10", b"1510000000.5", b"* * * * *"),
    b'["run", {"args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}, "path": "", "callable": ""}]',
    b'{"interval_secs": 5, "cron": "@daily"}',
    *(b'{"polybus": 1}', b'{"polybus": 1, "holding": ["a", "b"]}', b'{"polybus": 0}', b'{"holding": [1]}'),
    *sorted(
        word
        for word in {
            *emqp.CLIENT_COMMANDS,
            *emqp.WORKER_COMMANDS,
            *emqp.ADMIN_COMMANDS,
            *emqp.ORDER_COMMANDS,
        }
        if isinstance(word, bytes)
    ),
]
READERS = [
    emqp.read_from_client,
    emqp.read_from_worker,
    emqp.read_from_admin,
    emqp.read_as_client,
    emqp.read_as_worker,
    emqp.read_as_scheduler,
    emqp.read_publication,
]


@pytest.mark.parametrize("read", READERS)
@given(frames=broken(PIECES, 10), at=st.integers(0, 2))
def test_any_frames(read: Any, frames: list[Any], at: int) -> None:
    never_crashes(read, frames, at)


@pytest.mark.parametrize("read", READERS[:-1])
@given(
    word=st.sampled_from(PIECES).filter(lambda piece: piece.isupper()),
    rest=broken(PIECES, 7),
)
def test_any_frames_after_a_good_beginning(read: Any, word: bytes, rest: list[Any]) -> None:
    never_crashes(read, [emqp.TAG, word, b"m1", *rest], 0)
