"""A strict broker of eMQP: every message that it sends is compared with the document's tables."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from conformance.live_settings import BEAT_S, UNHURRIED
from polybus import Client, Options, RequestFailed, Worker
from support.commands import Running, closing
from support.emqp_component import Component
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient


def is_empty(frame: bytes) -> bool:
    return frame == b""


def is_tag(frame: bytes) -> bool:
    return frame == b"eMQP/1.0"


def is_id(frame: bytes) -> bool:
    return 0 < len(frame) <= 255 and frame.isascii()


def is_timestamp(frame: bytes) -> bool:
    return float(frame) > 1_600_000_000


def is_name(frame: bytes) -> bool:
    return bool(frame) and frame.decode().isprintable()


def is_headers(frame: bytes) -> bool:
    return all(not item or item == item.strip() for item in frame.decode().split(","))


def is_any(frame: bytes) -> bool:
    return True


HEAD = (is_empty, is_tag)
# The tables of the document, frame by frame from frame 0; the third one is the command.
TABLES: dict[bytes, tuple[Callable[[bytes], bool], ...]] = {
    b"ACK": (*HEAD, is_any, is_id, is_id),
    b"REPLY": (*HEAD, is_any, is_id, is_any),
    b"HEARTBEAT": (*HEAD, is_any, is_id, is_timestamp),
    b"KBAI": (*HEAD, is_any, is_id),
    b"REQUEST": (*HEAD, is_any, is_id, is_name, is_headers, is_any),
    b"SCHEDULE": (*HEAD, is_any, is_id, is_name, is_headers, is_any),
    # Its queue is ignored, so there may be none.
    b"UNSCHEDULE": (*HEAD, is_any, is_id, is_any, is_headers, is_any),
}


# How many messages of each kind were compared.
compared: Counter[bytes] = Counter()


class Reader(Component):
    """A component that compares every message it gets with the document."""

    def get(self, timeout_s: float) -> list[bytes] | None:
        frames = super().get(timeout_s)
        if frames is not None:
            table = TABLES.get(frames[2] if len(frames) > 2 else b"")
            assert table is not None, f"no command of the document: {frames}"
            assert len(frames) == len(table), f"{len(table)} frames in the document: {frames}"
            wrong = [i for i, (fits, frame) in enumerate(zip(table, frames, strict=True)) if not fits(frame)]
            assert not wrong, f"frames {wrong} are not as in the document: {frames}"
            compared[frames[2]] += 1
        return frames


@pytest.fixture
def strict() -> Iterator[LiveBroker]:
    with LiveBroker({**UNHURRIED, "emqp.strict": True}) as broker:
        yield broker
        assert not broker.crashes(), broker.crashes()


JOB = [
    "run",
    {"path": "jobs", "callable": "f", "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}},
]


@pytest.mark.conforms(
    *(f"EMQP-{number}" for number in (5, 6, 7, 9, 10, 13, 14, 15, 16, 17, 26, 27, 28, 33, 41, 43))
)
def test_every_message_has_the_frames_of_its_table(strict: LiveBroker) -> None:
    compared.clear()
    with (
        Reader(strict, "workers") as worker,
        Reader(strict, "clients") as scheduler,
        Reader(strict, "clients") as client,
        Reader(strict, "admin") as admin,
    ):
        worker.inform(b'[[10, "queue"]]')
        scheduler.inform(b"", b"scheduler")
        for component in (worker, scheduler):
            assert component.recv()[2] == b"HEARTBEAT"
        check_jobs(worker, client)
        check_errors(client)
        check_schedules(scheduler, client)
        admin.say(b"STATUS", b"a-1")
        assert admin.hear()[0] == b"REPLY"
        admin.say(b"DISCONNECT", b"d-1")
        command, _, acked = admin.hear()
        assert (command, acked) == (b"ACK", b"d-1")
        for component in (worker, scheduler, client):
            assert component.hear()[0] == b"KBAI"
        assert strict.process.wait(patient(20)) == 0
        assert [component.get(0) for component in (worker, scheduler, client)] == [None] * 3
    assert set(compared) == set(TABLES), "not every kind of message was sent"


def check_jobs(worker: Reader, client: Reader) -> None:
    for slot, (said, told) in enumerate([(b"done", b"done"), (b"", b"True")]):
        job = b"job-%d" % slot
        client.say(b"REQUEST", job, b"queue", b"reply-requested", b"do it")
        worker.say(b"READY", b"ready-%d" % slot)
        token, body = worker.take()
        assert body == b"do it"
        # There is no receipt; the reply has the id of the request.
        worker.say(b"REPLY", b"reply-%d" % slot, said, token)
        assert client.hear() == [b"REPLY", job, told]
    # Without the header the client hears nothing at all, whether the job is guaranteed or not.
    for slot, headers in enumerate([b"", b"guarantee"]):
        client.say(b"REQUEST", b"silent-%d" % slot, b"queue", headers, b"do it")
        worker.say(b"READY", b"ready-%d" % slot)
        token, _ = worker.take()
        worker.say(b"REPLY", b"reply-%d" % slot, b"done", token)
    assert client.get(2 * BEAT_S) is None


def check_errors(client: Reader) -> None:
    client.say(b"NONSENSE", b"bad-1")
    command, original, error = client.hear()
    assert (command, original) == (b"REPLY", b"bad-1")
    assert json.loads(error)["error"]


def check_schedules(scheduler: Reader, client: Reader) -> None:
    short = json.dumps(["run", {"callable": "f", "interval_secs": 60}]).encode()
    client.say(b"SCHEDULE", b"s-1", b"queue", b"nohaste", short)
    assert scheduler.hear() == [b"SCHEDULE", b"s-1", b"queue", b"nohaste", short]
    client.say(b"UNSCHEDULE", b"s-2", b"", b"", short)
    assert scheduler.hear() == [b"UNSCHEDULE", b"s-2", b"", b"", short]
    # A public client sends the times in frames of their own; in the document they are in the message.
    message = json.dumps(JOB).encode()
    for times, told in (((b"60", b""), {"interval_secs": 60}), ((b"-1", b"@daily"), {"cron": "@daily"})):
        client.say(b"SCHEDULE", b"s-3", b"queue", b"", times[0], message, times[1])
        *rest, carried = scheduler.hear()
        assert rest == [b"SCHEDULE", b"s-3", b"queue", b""]
        assert json.loads(carried) == ["run", {**JOB[1], **told}]  # type: ignore[dict-item]
    client.say(b"UNSCHEDULE", b"s-4", b"queue", b"", b"-1", message, b"")
    assert scheduler.hear() == [b"UNSCHEDULE", b"s-4", b"queue", b"", message]
    # A message that has no place for its times has no such form.
    client.say(b"SCHEDULE", b"s-5", b"queue", b"", b"60", b"plain text", b"")
    command, original, error = client.hear()
    assert (command, original, json.loads(error)["error"]) == (b"REPLY", b"s-5", "no_document_form")


@pytest.mark.conforms("EMQP-13")
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_schedule_without_times_is_refused_for_one_reason(
    broker: LiveBroker, strict: LiveBroker, is_strict: bool
) -> None:
    with Component(strict if is_strict else broker, "clients") as client:
        client.say(b"SCHEDULE", b"s-1", b"queue", b"", b"[]")
        assert any(b'"no_schedule"' in frame for frame in client.hear())


@pytest.mark.conforms("EMQP-12", "EMQP-43")
def test_subscribers_get_topic_and_message(strict: LiveBroker) -> None:
    """The document has no table for them: both are frames 4 and 5 of the publisher's PUBLISH."""
    with (
        Component(strict, "publish") as publisher,
        Peer(strict["emqp.subscribe"], kind=zmq.SUB) as subscriber,
    ):

        def has_joined() -> bool:
            publisher.say(b"PUBLISH", b"p-0", b"news", b"joined?")
            return subscriber.get(0.05) is not None

        wait_for(has_joined)
        publisher.say(b"PUBLISH", b"p-1", b"news", b"it rains")
        assert subscriber.recv_until(lambda frames: frames[-1] != b"joined?") == [b"news", b"it rains"]


# -- our own peers ----------------------------------------------------------------------------------------


@contextmanager
def serving(worker: Worker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(patient(10))
        assert not thread.is_alive()


@pytest.mark.conforms("EMQP-43")
def test_our_own_client_and_worker_work_with_a_strict_broker(strict: LiveBroker) -> None:
    done: list[bytes] = []

    def keep(request: bytes) -> bytes:
        done.append(request)
        return b""

    services = {"echo": lambda request: request.body, "keep": lambda request: keep(request.body)}
    with (
        Client(strict["emqp.clients"], "emqp", timeout_s=patient(20)) as client,
        serving(Worker(services, strict["emqp.workers"], "emqp")),
    ):
        assert client.call("echo", b"hello") == b"hello"
        assert client.call("keep", b"1") == b"True"
        # These wait until the broker has the job.
        client.send("keep", b"2")
        pending = client.submit("keep", b"3", options=Options(guarantee=True), wants_reply=False)
        pending.result()
        wait_for(lambda: sorted(done) == [b"1", b"2", b"3"])
        with pytest.raises(RequestFailed):
            client.call("polybus.schedule", b"no question")


APP = """
from polybus import Bus

bus = Bus()

@bus.job(queue="sums")
def add(a, b):
    return a + b
"""


@pytest.mark.conforms("EMQP-43")
def test_our_own_pool_works_with_a_strict_broker(strict: LiveBroker, tmp_path: Path) -> None:
    """Its words beyond the document are between it and the broker."""
    (tmp_path / "sums.py").write_text(APP)
    job = {"path": "sums", "callable": "add", "args": [2, 3]}
    with Reader(strict, "clients") as client:
        pool = Running("worker", "sums:bus", "-c", "1", "--broker", strict["emqp.workers"], cwd=tmp_path)
        with closing(pool):
            pool.wait_for(pool.output, "ready")
            client.say(b"REQUEST", b"job-1", b"sums", b"reply-requested", json.dumps(["run", job]).encode())
            command, original, result = client.hear(patient(20))
            assert (command, original) == (b"REPLY", b"job-1")
            assert b"5" in result
