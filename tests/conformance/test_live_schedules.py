"""Schedules of eMQP against a broker process that keeps them itself: a job runs when it says, and no more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.live_settings import BEAT_S, FAST
from polybus import Client
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient

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
        found = self.next_job(patient(10.0))
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


def forms(place: Place, every_s: int = EVERY_S) -> list[tuple[bytes, ...]]:
    """The same schedule as public clients write it and as the document does."""
    job = json.dumps(["run", {"callable": place.queue.decode(), "interval_secs": every_s}]).encode()
    return [(b"%d" % every_s, job, b""), (job,)]


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
def test_a_cron_text_is_kept_to(place: Place, broker: LiveBroker) -> None:
    # Six fields: seconds are the last one. So it runs in every even second from here on.
    due = time.time() // 2 * 2 + 2
    assert place.set(b"nohaste", b"-1", place.queue, b"* * * * * */2") == [b"m-1"]
    for run in range(2):
        place.take()
        assert time.time() >= due + 2 * run - 0.05
        (row,) = [row for row in broker.ask("schedules") if row["queue"] == place.queue.decode()]
        # On a slow machine it may have run more often by now.
        assert row["next_at"] >= due + 2 * (run + 1)
        assert row["next_at"] % 2 == 0
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
    # With haste it runs at once. Nobody waits an hour here, however slow the machine is.
    hourly = forms(place, every_s=3600)[0]
    assert place.set(b"", *hourly) == [b"m-1"]
    place.take()
    place.set(b"", *hourly, command=b"UNSCHEDULE")


# -- what a schedule is known by -------------------------------------------------------------------------

# Not EventMQ's job, whose six parts name what runs.
MESSAGES = {
    "text": b"sweep the floor of %b",
    "object": b'{"do": "sweep", "where": "%b"}',
    "run": b'["run", {"callable": "%b", "args": [1]}]',
}


def rows(broker: LiveBroker, message: bytes) -> list[dict[str, Any]]:
    """The schedules that run this message, or the same one with other times."""
    mark = message.decode()
    return [row for row in broker.ask("schedules") if mark in row["message"]]


@pytest.mark.conforms("EMQP-14", "EMQP-39")
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize(
    "queue", [b"", b"some-other-queue", b"\xff\n"], ids=["no queue", "another queue", "no text"]
)
def test_unschedule_ignores_the_queue(place: Place, broker: LiveBroker, kind: str, queue: bytes) -> None:
    message = MESSAGES[kind] % place.queue
    for name in (place.queue, place.queue + b"-second"):
        place.say(place.client, b"SCHEDULE", b"m-1", name, b"nohaste", b"600", message, b"")
        assert place.hear(place.client, b"REPLY")[1:] == [b"m-1"]
    assert len(rows(broker, place.queue)) == 2
    place.say(place.client, b"UNSCHEDULE", b"m-2", queue, b"", b"-1", message, b"")
    assert place.hear(place.client, b"REPLY")[1:] == [b"m-2"]
    assert rows(broker, place.queue) == []


@pytest.mark.conforms("EMQP-14", "EMQP-39")
@pytest.mark.parametrize("times", [b"", b', "interval_secs": 7'], ids=["without times", "with other times"])
def test_unschedule_in_the_documents_form(place: Place, broker: LiveBroker, times: bytes) -> None:
    message = b'{"do": "%b", "interval_secs": 600}' % place.queue
    assert place.set(b"nohaste", message) == [b"m-1"]
    assert len(rows(broker, place.queue)) == 1
    place.say(place.client, b"UNSCHEDULE", b"m-2", b"elsewhere", b"", b'{"do":"%b"%b}' % (place.queue, times))
    assert place.hear(place.client, b"REPLY")[1:] == [b"m-2"]
    assert rows(broker, place.queue) == []


@pytest.mark.conforms("EMQP-39")
def test_unschedule_of_what_nobody_scheduled_is_not_told_as_done(place: Place) -> None:
    answer, original = place.set(b"", b"-1", b"never scheduled", b"", command=b"UNSCHEDULE")
    assert original == b"m-1"
    assert json.loads(answer)["error"] == "unknown_schedule"


@pytest.mark.conforms("EMQP-40")
@pytest.mark.parametrize("form", ["upstream", "document", "document, then upstream"])
def test_another_interval_replaces_the_first(place: Place, broker: LiveBroker, form: str) -> None:
    def frames(seconds: int, is_document: bool) -> tuple[bytes, ...]:
        if is_document:
            return (b'["sweep", {"where": "%b", "interval_secs": %d}]' % (place.queue, seconds),)
        return (b"%d" % seconds, b'["sweep", {"where": "%b"}]' % place.queue, b"")

    first, second = frames(600, form != "upstream"), frames(700, form == "document")
    assert place.set(b"nohaste", *first) == [b"m-1"]
    assert place.set(b"nohaste", *second) == [b"m-1"]
    assert [row["every_s"] for row in rows(broker, place.queue)] == [700]
    assert place.set(b"", *second, command=b"UNSCHEDULE") == [b"m-1"]
    assert rows(broker, place.queue) == []


@pytest.mark.conforms("EMQP-39", "EMQP-40")
def test_schedules_are_known_by_what_they_run_after_a_restart() -> None:
    job = b'{"do": "sweep", "interval_secs": %d}'
    with LiveBroker(FAST) as broker:
        place = Place(broker, b"floor")
        assert place.set(b"nohaste", job % 600) == [b"m-1"]
        # One that was named is known by its name alone.
        with Client(broker["emqp.clients"], dialect="emqp") as client:
            for facts in ({"message": (job % 600).decode(), "key": "named"}, {"message": "mop"}):
                question = {"do": "add", "queue": "floor", "every_s": 600, **facts}
                unnamed = json.loads(client.call("polybus.schedule", json.dumps(question).encode()))["key"]
        place.close()
        broker.restart()
        place = Place(broker, b"floor")
        assert place.set(b"nohaste", job % 700) == [b"m-1"]
        place.say(place.client, b"UNSCHEDULE", b"m-2", b"", b"", b"mop")
        assert place.hear(place.client, b"REPLY")[1:] == [b"m-2"]
        kept = {row["key"]: row["every_s"] for row in broker.ask("schedules")}
        assert sorted(kept.values()) == [600, 700]
        assert kept["named"] == 600
        assert unnamed not in kept
        place.close()
