"""The admin socket: its questions, its orders, and taps that are leases."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from polybus.core import events
from polybus.core.actions import Drained, Forget
from polybus.core.bus import Bus
from polybus.core.lifecycle import BusState
from polybus.core.model import Heartbeat
from polybus.dialects.port import Voice
from polybus.server.admin import AdminEar
from polybus.server.draining import draining, stopped
from polybus.server.effects import Outbox
from polybus.server.taps import MAX_TAPS, TAG, TAP_BODY_BYTES, TAP_LEASE_S

ADMIN = 4
CLIENT = (1, b"client")


class Mute(Voice):
    dialect = "mute"

    def deliver(self, worker: Any, request: Any) -> list[Any]:
        return [worker.address[1], request.token]


VOICE = Mute()


class FakePump:
    kind = "fake"

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[Any]]] = []
        self.full: set[bytes] = set()

    def send_many(self, messages: Any) -> list[tuple[int, int]]:
        refused = []
        for position, (link, frames) in enumerate(messages):
            if frames[0] in self.full:
                refused.append((position, errno.EAGAIN))
            else:
                self.sent.append((link, list(frames)))
        return refused

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> list[Any]:
        raise AssertionError


class Desk:
    def __init__(self) -> None:
        self.bus = Bus(b"n-")
        self.pump = FakePump()
        self.outbox = Outbox(self.bus, self.pump)
        self.outbox.handlers[Drained] = lambda action: None
        self.outbox.handlers[Forget] = lambda action: None
        self.drains = 0
        self.admin = AdminEar(
            self.bus, self.outbox, lambda: 1_700_000_000.0, self._facts, self._on_drain, tap="bodies"
        )
        self.now = 100.0

    @staticmethod
    def _facts() -> dict[str, Any]:
        return {"pid": 7, "drain_s": 10.0}

    def _on_drain(self) -> None:
        self.drains += 1

    def say(self, peer: bytes, *frames: bytes) -> None:
        self.admin.receive(ADMIN, [peer, *frames], self.now)
        self.outbox.settle(self.now)

    def heard(self, peer: bytes) -> list[Any]:
        """What a peer got since the last look, from its number on."""
        mine = [frames for link, frames in self.pump.sent if (link, frames[0]) == (ADMIN, peer)]
        self.pump.sent = []
        for frames in mine:
            assert frames[1:3] == [b"", TAG]
        return [(frames[3], json.loads(frames[4])) for frames in mine]

    def ask(self, do: Any, **facts: Any) -> Any:
        self.say(b"op", b"", TAG, b"7", json.dumps({"do": do, **facts}).encode())
        ((number, answer),) = self.heard(b"op")
        assert number == b"7"
        return answer

    def tap(self, peer: bytes = b"ear", number: bytes = b"1", **facts: Any) -> None:
        self.say(peer, b"", TAG, number, json.dumps({"do": "tap", **facts}).encode())

    def records(self, peer: bytes = b"ear") -> list[Any]:
        return [answer["ok"] for _, answer in self.heard(peer)]

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        self.outbox.settle(self.now)

    def worker(self, name: bytes = b"w", service: bytes = b"echo") -> None:
        self.do(events.WorkerUp((2, name), VOICE, ((service, 3),), Heartbeat(0.0), 2))

    def submit(self, request_id: bytes, service: bytes = b"echo", client: Any = CLIENT) -> None:
        self.do(events.Submit(client, VOICE, request_id, service, [b"body"]))


def test_every_command_answers() -> None:
    desk = Desk()
    desk.worker()
    desk.submit(b"r1")
    desk.do(events.Register((3, b"node"), VOICE, b"camera", {"ip": "x"}, 1.0))
    assert desk.ask("ping") == {"ok": {"pong": True}}
    status = desk.ask("status")["ok"]
    assert (status["state"], status["workers"], status["requests"], status["pid"]) == ("serving", 1, 1, 7)
    assert status["accepted"] == 1
    (service,) = desk.ask("services")["ok"]
    assert (service["service"], service["workers"], service["in_flight"]) == ("echo", 1, 1)
    assert service["dialects"] == ["mute"]
    (worker,) = desk.ask("workers")["ok"]
    assert (worker["worker"], worker["services"], worker["free_slots"]) == ("w", {"echo": 3}, 1)
    (request,) = desk.ask("requests")["ok"]
    assert (request["request_id"], request["worker"], request["state"]) == ("r1", "w", "dispatched")
    (node,) = desk.ask("nodes")["ok"]
    assert (node["node"], node["state"], node["info"]) == ("camera", "alive", {"ip": "x"})


def test_queued_requests_are_shown_with_their_age() -> None:
    desk = Desk()
    desk.submit(b"r1")
    desk.now += 2.5
    (service,) = desk.ask("services")["ok"]
    assert (service["queued"], service["oldest_queued_s"], service["workers"]) == (1, 2.5, 0)
    (request,) = desk.ask("requests")["ok"]
    assert (request["age_s"], request["worker"]) == (2.5, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"do": "dance"}', "unknown command 'dance'; known: ping"),
        (b"{}", "unknown command None"),
        (b"[1]", "no JSON object"),
        (b"not json", "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b'{"do": "cancel"}', "which request"),
        (b'{"do": "cancel", "request": "nope"}', "no unanswered request is called 'nope'"),
        (b'{"do": ["x"]}', "unknown command"),
    ],
)
def test_bad_questions_are_answered_with_what_is_wrong(text: bytes, words: str) -> None:
    desk = Desk()
    desk.submit(b"")
    desk.say(b"op", b"", TAG, b"7", text)
    ((_, answer),) = desk.heard(b"op")
    assert words in answer["error"]
    assert len(desk.bus.requests) == 1


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"", TAG],
        [b"", TAG, b"1"],
        [b"", TAG, b"1", b"{}", b"more"],
        [b"x", TAG, b"1", b"{}"],
        [b"", b"PBADM2", b"1", b"{}"],
        [b"", TAG, b"n" * 256, b"{}"],
    ],
)
def test_what_is_no_question_is_counted_and_dropped(frames: list[bytes]) -> None:
    desk = Desk()
    desk.say(b"op", *frames)
    assert desk.heard(b"op") == []
    assert desk.bus.counters.invalid == 1


# -- orders -------------------------------------------------------------------------------------------


def test_cancel_by_id_and_by_token() -> None:
    desk = Desk()
    desk.submit(b"r1")
    desk.submit(b"r2")
    tokens = [token.decode() for token in desk.bus.requests]
    assert desk.ask("cancel", request="r1") == {"ok": {"cancelled": tokens[0]}}
    assert desk.ask("cancel", request=tokens[1]) == {"ok": {"cancelled": tokens[1]}}
    assert not desk.bus.requests
    assert desk.bus.counters.cancelled == 2


def test_cancel_asks_back_if_several_clients_use_the_id() -> None:
    desk = Desk()
    desk.submit(b"same", client=(1, b"a"))
    desk.submit(b"same", client=(1, b"b"))
    answer = desk.ask("cancel", request="same")
    assert "2 clients" in answer["error"]
    for token in desk.bus.requests:
        assert token.decode() in answer["error"]
    assert len(desk.bus.requests) == 2


def test_cancel_all_of_a_client() -> None:
    desk = Desk()
    desk.worker()
    for number in b"1234":
        desk.submit(b"r%d" % number, client=(1, b"gone"))
    desk.submit(b"r1", client=(1, b"here"))
    tokens = [row["token"] for row in desk.ask("requests")["ok"] if row["client"] == "gone"]
    assert desk.ask("cancel", client="gone") == {"ok": {"cancelled": tokens, "kept": []}}
    assert [row["client"] for row in desk.ask("requests")["ok"]] == ["here"]
    assert desk.ask("cancel", client="gone") == {"ok": {"cancelled": [], "kept": []}}
    assert "whose requests" in desk.ask("cancel", client="")["error"]


def test_drain(capfd: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    desk.submit(b"r1")
    assert desk.ask("drain") == {"ok": {"state": "draining", "requests": 1, "drain_s": 10.0}}
    assert desk.bus.state is BusState.DRAINING
    assert desk.drains == 1
    desk.ask("drain")
    # It is news once.
    (line,) = capfd.readouterr().err.splitlines()
    assert (
        "1 request is unanswered; the broker ends when it is answered or waits on disk, in 10 s at the latest"
        in line
    )


@pytest.mark.parametrize(
    ("is_drained", "unanswered", "words"),
    [
        (True, 0, "drained: the broker stops"),
        (True, 1, "drained: the broker stops; 1 job is kept for the next start"),
        (True, 2, "drained: the broker stops; 2 jobs are kept for the next start"),
        (False, 0, "draining: everything is answered; the broker stops"),
        (
            False,
            2,
            "draining: 2 requests are unanswered; the broker ends when they are answered or wait on disk, "
            "in 10 s at the latest",
        ),
    ],
)
def test_what_is_said_about_draining(is_drained: bool, unanswered: int, words: str) -> None:
    assert draining(is_drained, unanswered, 10.0) == words


@pytest.mark.parametrize(
    ("unanswered", "kept", "words"),
    [
        (0, 0, "stopped; everything was answered"),
        (0, 1, "stopped; 1 guaranteed job is kept for the next start"),
        (1, 0, "stopped with 1 unanswered request"),
        (2, 3, "stopped with 2 unanswered requests; 3 guaranteed jobs are kept for the next start"),
    ],
)
def test_the_last_words(unanswered: int, kept: int, words: str) -> None:
    assert stopped(unanswered, kept) == words


# -- taps ---------------------------------------------------------------------------------------------


def test_a_tap_is_told_everything_that_happens() -> None:
    desk = Desk()
    desk.submit(b"before")
    desk.tap()
    assert desk.bus.watched
    desk.submit(b"r1")
    desk.worker()
    (record, *more) = desk.records()
    assert record["what"] == "accepted"
    assert (record["request_id"], record["service"], record["client"]) == ("r1", "echo", "client")
    assert (record["client_dialect"], record["bytes"], record["at"]) == ("mute", 4, 1_700_000_000.0)
    assert [r["what"] for r in more] == ["worker_up", "dispatched", "dispatched"]
    assert "body_base64" not in record


def test_a_tap_may_choose() -> None:
    desk = Desk()
    desk.tap(b"by-service", service="echo")
    desk.tap(b"by-kind", what="worker_up")
    desk.submit(b"1", b"other")
    desk.submit(b"2", b"echo")
    desk.worker(service=b"third")
    sent = list(desk.pump.sent)
    assert [r["request_id"] for r in desk.records(b"by-service")] == ["2"]
    desk.pump.sent = sent
    assert [r["what"] for r in desk.records(b"by-kind")] == ["worker_up"]


def test_bodies_are_shown_if_asked_for_and_cut() -> None:
    import base64

    desk = Desk()
    desk.tap(bodies=True)
    desk.do(events.Submit(CLIENT, VOICE, b"1", b"echo", [b"small", b"x" * 5000]))
    (record,) = desk.records()
    small, large = map(base64.b64decode, record["body_base64"])
    assert small == b"small"
    assert large == b"x" * TAP_BODY_BYTES


def test_a_tap_ends_unless_it_is_asked_for_again() -> None:
    desk = Desk()
    desk.tap(b"lazy")
    desk.tap(b"keen")
    desk.now += TAP_LEASE_S - 1
    desk.tap(b"keen")
    desk.now += 2
    desk.admin.expire(desk.now)
    desk.submit(b"1")
    sent = list(desk.pump.sent)
    assert desk.records(b"lazy") == []
    desk.pump.sent = sent
    assert len(desk.records(b"keen")) == 1
    desk.now += TAP_LEASE_S + 1
    desk.admin.expire(desk.now)
    assert not desk.bus.watched


def test_a_tap_can_be_stopped() -> None:
    desk = Desk()
    desk.tap()
    desk.tap(stop=True)
    assert not desk.bus.watched
    desk.submit(b"1")
    assert desk.records() == []


def test_one_peer_may_have_several_taps() -> None:
    desk = Desk()
    desk.tap(number=b"1", what="accepted")
    desk.tap(number=b"2", what="cancelled")
    desk.submit(b"1")
    desk.do(events.Cancel(CLIENT, b"1"))
    assert [number for number, _ in desk.heard(b"ear")] == [b"1", b"2"]


def test_a_slow_listener_is_told_how_much_it_missed() -> None:
    desk = Desk()
    desk.tap()
    desk.pump.full.add(b"ear")
    for number in range(3):
        desk.submit(b"%d" % number)
    desk.pump.full.clear()
    desk.submit(b"next")
    desk.submit(b"after")
    records = desk.records()
    assert [r["request_id"] for r in records] == ["next", "after"]
    assert records[0]["missed_before"] == 3
    assert "missed_before" not in records[1]


def test_taps_are_limited() -> None:
    desk = Desk()
    for number in range(MAX_TAPS):
        desk.tap(b"p%d" % number)
    desk.tap(b"one-too-many")
    ((_, answer),) = desk.heard(b"one-too-many")
    assert "close one first" in answer["error"]
    desk.tap(b"p0")
    assert desk.heard(b"p0") == []
