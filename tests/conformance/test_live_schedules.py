"""Schedules of eMQP against a broker process that keeps them itself: a job runs when it says, and no more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from conformance.live_settings import BEAT_S
from support.live import LiveBroker, Peer, wait_for

TAG = b"eMQP/1.0"
EVERY_S = 1


class Place:
    """A worker of a queue of its own, and a client."""

    def __init__(self, broker: LiveBroker, queue: bytes) -> None:
        self.queue = queue
        self.client = Peer(broker["emqp.clients"])
        self.worker = Peer(broker["emqp.workers"])
        self.say(self.worker, b"INFORM", b"i", b'[[10, "%b"]]' % queue, b"worker")
        self.hear(self.worker, b"ACK")

    @staticmethod
    def say(peer: Peer, *frames: bytes) -> None:
        peer.send(b"", TAG, *frames)

    @staticmethod
    def hear(peer: Peer, command: bytes) -> list[bytes]:
        return peer.recv_until(lambda frames: frames[2] == command)[3:]

    def set(self, headers: bytes, *rest: bytes, command: bytes = b"SCHEDULE") -> list[bytes]:
        """What the broker answers to a SCHEDULE."""
        self.say(self.client, command, b"m-1", self.queue, headers, *rest)
        return self.hear(self.client, b"REPLY")[1:]

    def take(self) -> bytes:
        """Wait for a job, do it, and give its body."""
        self.say(self.worker, b"READY", b"r")
        found = self.next_job(10.0)
        assert found is not None, "no job came"
        token, _, _, body = found
        self.say(self.worker, b"REPLY", b"d", b"true", token)
        return body

    def next_job(self, within_s: float) -> list[bytes] | None:
        """The next REQUEST, or None if none comes in time; meanwhile the worker shows that it lives."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            self.say(self.worker, b"HEARTBEAT", b"h", b"1")
            found = self.worker.get(BEAT_S)
            if found is not None and found[2] == b"REQUEST":
                return found[3:]
        return None

    def close(self) -> None:
        self.client.close()
        self.worker.close()


@pytest.fixture
def place(broker: LiveBroker, service: bytes) -> Iterator[Place]:
    # Schedulers of other tests may linger; as long as they do, schedules are theirs.
    wait_for(lambda: all(one["role"] != "scheduler" for one in broker.ask("workers")))
    place = Place(broker, service)
    yield place
    place.close()


def forms(place: Place) -> list[tuple[bytes, ...]]:
    """The same schedule as public clients write it and as the document does."""
    job = json.dumps(["run", {"callable": place.queue.decode(), "interval_secs": EVERY_S}]).encode()
    return [(b"%d" % EVERY_S, job, b""), (job,)]


@pytest.mark.conforms("EMQP-13")
@pytest.mark.parametrize("form", [0, 1], ids=["upstream", "document"])
def test_a_schedule_runs_at_once_and_then_every_interval(place: Place, form: int) -> None:
    frames = forms(place)[form]
    began = time.monotonic()
    assert place.set(b"guarantee", *frames) == [b"m-1"]
    bodies = [place.take() for _ in range(3)]
    took = time.monotonic() - began
    assert set(bodies) == {max(frames, key=len)}
    assert took > 2 * EVERY_S - 0.1
    place.set(b"", *frames, command=b"UNSCHEDULE")


@pytest.mark.conforms("EMQP-13")
def test_a_cron_text_is_kept_to(place: Place) -> None:
    # Six fields: seconds are the last one.
    assert place.set(b"nohaste", b"-1", place.queue, b"* * * * * */2") == [b"m-1"]
    place.take()
    first = time.time()
    place.take()
    assert 1.5 < time.time() - first < 3
    place.set(b"", b"-1", place.queue, b"", command=b"UNSCHEDULE")


@pytest.mark.conforms("EMQP-13")
def test_a_schedule_ends_with_its_last_run(place: Place, broker: LiveBroker) -> None:
    assert place.set(b"run_count:2", *forms(place)[0]) == [b"m-1"]
    place.take()
    assert any(row["queue"] == place.queue.decode() for row in broker.ask("schedules"))
    place.take()
    assert all(row["queue"] != place.queue.decode() for row in broker.ask("schedules"))


@pytest.mark.conforms("EMQP-13")
def test_a_schedule_that_makes_no_sense_is_answered_with_the_reason(place: Place) -> None:
    answer, original = place.set(b"", b"-1", b"job", b"99 * * * *")
    assert original == b"m-1"
    assert json.loads(answer)["error"] == "bad_schedule"
    assert "minute" in json.loads(answer)["detail"]


@pytest.mark.conforms("EMQP-14")
@pytest.mark.parametrize("form", [0, 1], ids=["upstream", "document"])
def test_a_schedule_that_was_removed_runs_no_more(place: Place, broker: LiveBroker, form: int) -> None:
    frames = forms(place)[form]
    place.set(b"", *frames)
    place.take()
    assert place.set(b"", *frames, command=b"UNSCHEDULE") == [b"m-1"]
    place.say(place.worker, b"READY", b"r")
    assert place.next_job(1.5 * EVERY_S) is None
    assert all(row["queue"] != place.queue.decode() for row in broker.ask("schedules"))


@pytest.mark.conforms("EMQP-32")
def test_without_haste_it_runs_first_when_the_interval_has_passed(place: Place) -> None:
    began = time.monotonic()
    assert place.set(b"nohaste", *forms(place)[0]) == [b"m-1"]
    place.take()
    assert time.monotonic() - began > EVERY_S - 0.1
    place.set(b"", *forms(place)[0], command=b"UNSCHEDULE")
    began = time.monotonic()
    assert place.set(b"", *forms(place)[0]) == [b"m-1"]
    place.take()
    assert time.monotonic() - began < EVERY_S
    place.set(b"", *forms(place)[0], command=b"UNSCHEDULE")
