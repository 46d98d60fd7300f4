"""A worker's connection, frame by frame, against a broker that a test plays itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY

import pytest
import zmq

from polybus.runtime.connection import Connection
from support.patience import patient

TAG = b"eMQP/1.0"
ACK = b'{"polybus":1}'
JOINING_ACK = b'{"polybus":2}'
PATIENCE_S = patient(20.0)


class Broker:
    """A ROUTER that says what the test tells it to."""

    def __init__(self) -> None:
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.link = Connection({"email": 10, "other": None}, f"tcp://127.0.0.1:{self.port}", "emqp", 5, ())
        self.link.open(time.monotonic())
        self.peer = b""

    def hear(self, *words: bytes) -> list[bytes]:
        """The next message with one of these commands, from the command on and without its own id."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.link.step(0.01)
            while self.socket.poll(0):
                peer, _, tag, word, *rest = self.socket.recv_multipart()
                assert tag == TAG
                self.peer = peer
                if word in words:
                    self.last_id = rest[0]
                    return [word, *rest[1:]]
        raise AssertionError(f"nothing of {words} came")

    def silent(self, *words: bytes) -> bool:
        """Whether none of these commands is on its way."""
        for _ in range(10):
            self.link.step(0.01)
            while self.socket.poll(0):
                if self.socket.recv_multipart()[3] in words:
                    return False
        return True

    def say(self, *frames: bytes) -> None:
        self.socket.send_multipart([self.peer, b"", TAG, *frames])

    def greet(self, extended: bool = True, ack: bytes = ACK) -> list[bytes]:
        """Take the worker's INFORM and acknowledge it; what it was."""
        inform = self.hear(b"INFORM")
        self.say(b"ACK", b"b1", self.last_id, *([ack] if extended else []))
        self.step_until(lambda: self.link.is_up)
        return inform

    def give(self, *tokens: bytes) -> list[Any]:
        """Hand over requests; the worker's objects for them."""
        for token in tokens:
            self.say(b"REQUEST", token, b"email", b"reply-requested,attempt:2", b"body")
        self.step_until(lambda: len(self.link.inbox) >= len(tokens))
        return [self.link.inbox.popleft() for _ in tokens]

    def step_until(self, condition: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            self.link.step(0.01)

    def lose(self) -> None:
        """The conversation ends, as after a cut or a long silence."""
        self.link.reopen()

    def close(self) -> None:
        self.link.lines.close()
        self.socket.close(0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def holding(inform: list[bytes]) -> list[str]:
    return list(json.loads(inform[3]).get("holding", []))


def test_it_offers_its_queues_and_asks_for_what_it_is_told_to(broker: Broker) -> None:
    assert broker.greet() == [b"INFORM", b'[[10,"email"],[10,"other"]]', b"worker", b'{"polybus":2}']
    assert broker.silent(b"READY")
    broker.link.grant(3, 0)
    assert [broker.hear(b"READY") for _ in range(3)] == [[b"READY"]] * 3
    # Two of three are used, so one more makes four slots.
    broker.give(b"t1", b"t2")
    broker.link.grant(4, 2)
    assert broker.hear(b"READY") == [b"READY"]
    assert broker.silent(b"READY")


def test_what_is_held_is_listed_after_a_break_under_the_same_identity(broker: Broker) -> None:
    broker.greet()
    peer = broker.peer
    broker.link.grant(2, 0)
    first, second = broker.give(b"t1", b"t2")
    assert first.work.attempt == 2
    broker.lose()
    assert not broker.link.is_up
    inform = broker.greet()
    assert holding(inform) == ["t1", "t2"]
    assert broker.peer == peer
    assert not first.cancelled
    broker.link.reply(first, [b"one"])
    assert broker.hear(b"REPLY") == [b"REPLY", b"one", b"t1"]
    assert second.request_id == b"t2"


def test_answers_of_the_meantime_are_sent_after_the_acknowledgement(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(1, 0)
    (request,) = broker.give(b"t1")
    broker.lose()
    broker.link.reply(request, [b"one"])
    assert broker.link.has_parked
    inform = broker.hear(b"INFORM")
    assert holding(inform) == ["t1"]
    assert broker.silent(b"REPLY")
    broker.say(b"ACK", b"b1", broker.last_id, ACK)
    assert broker.hear(b"REPLY") == [b"REPLY", b"one", b"t1"]
    assert not broker.link.has_parked


def test_answers_that_may_not_have_arrived_are_sent_again(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(1, 0)
    (request,) = broker.give(b"t1")
    broker.link.reply(request, [b"one"])
    broker.hear(b"REPLY")
    broker.lose()
    assert holding(broker.greet()) == ["t1"]
    assert broker.hear(b"REPLY") == [b"REPLY", b"one", b"t1"]


def test_but_no_failures_which_would_count_for_the_next_attempt(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(1, 0)
    (request,) = broker.give(b"t1")
    broker.link.refuse(request, "failed", "no tea")
    broker.hear(b"REPLY")
    broker.lose()
    assert holding(broker.greet()) == []
    assert broker.silent(b"REPLY")


def test_ids_that_are_no_text_are_not_listed(broker: Broker) -> None:
    broker.greet(extended=False)
    broker.link.grant(2, 0)
    broker.give(b"\xff\x00", b"t2")
    broker.lose()
    assert holding(broker.greet(extended=False)) == ["t2"]


def test_but_not_those_of_long_ago(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.runtime.connection.UNSURE_S", -3600.0)
    broker.greet()
    broker.link.grant(1, 0)
    (request,) = broker.give(b"t1")
    broker.link.reply(request, [b"one"])
    broker.hear(b"REPLY")
    broker.lose()
    assert holding(broker.greet()) == []


def test_what_the_broker_does_not_want_any_more_is_let_go(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(2, 0)
    running, answered = broker.give(b"t1", b"t2")
    broker.lose()
    broker.link.reply(answered, [b"two"])
    broker.hear(b"INFORM")
    informed = broker.last_id
    # A broker says so before its acknowledgement.
    broker.say(b"CANCEL", b"b1", b"t1")
    broker.say(b"CANCEL", b"b2", b"t2")
    broker.say(b"CANCEL", b"b3", b"unknown")
    broker.say(b"ACK", b"b4", informed, ACK)
    broker.step_until(lambda: broker.link.is_up)
    assert broker.link.unwanted == [running]
    assert running.cancelled
    assert broker.silent(b"REPLY")
    broker.link.refuse(running, "cancelled", "it was cancelled")
    _, body, token = broker.hear(b"REPLY")
    assert json.loads(body) == {"error": "cancelled", "detail": "it was cancelled"}
    assert token == b"t1"


def test_leaving_in_good_order(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(2, 0)
    begun, waiting = broker.give(b"t1", b"t2")
    broker.link.leave()
    assert broker.hear(b"LEAVE") == [b"LEAVE"]
    assert broker.link.give_back(waiting)
    assert broker.hear(b"RETURN") == [b"RETURN", b"t2"]
    broker.link.reply(begun, [b"one"])
    assert broker.hear(b"REPLY") == [b"REPLY", b"one", b"t1"]
    broker.link.close()
    assert broker.socket.recv_multipart()[3] == b"KBYE"


def test_a_broker_of_another_make_gets_none_of_our_words(broker: Broker) -> None:
    broker.greet(extended=False)
    broker.link.grant(2, 0)
    (request, other) = broker.give(b"t1", b"t2")
    broker.link.part(request, [b"50"])
    broker.link.leave()
    assert not broker.link.give_back(other)
    assert broker.silent(b"PROGRESS", b"LEAVE", b"RETURN")
    broker.link.reply(request, [b"one"])
    assert broker.hear(b"REPLY") == [b"REPLY", b"one", b"t1"]


def test_progress(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(1, 0)
    (request,) = broker.give(b"t1")
    broker.link.part(request, [b"50"])
    assert broker.hear(b"PROGRESS") == [b"PROGRESS", b"t1", b"50"]


def test_other_queues_are_offered_in_a_new_conversation(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(1, 0)
    broker.give(b"t1")
    assert broker.link.offer({"email": None, "new": 3})
    inform = broker.greet()
    assert inform[1] == b'[[10,"email"],[3,"new"]]'
    assert holding(inform) == ["t1"]


def test_an_answer_of_many_frames_is_a_failure(broker: Broker) -> None:
    broker.greet()
    broker.link.grant(1, 0)
    (request,) = broker.give(b"t1")
    broker.link.reply(request, [b"a", b"b"])
    assert json.loads(broker.hear(b"REPLY")[1])["error"] == "bad_result"


# -- many in one message ------------------------------------------------------------------------


def order(broker: Broker, *tokens: bytes) -> list[Any]:
    """Hand over requests in one message; the worker's objects for them."""
    jobs = [frame for token in tokens for frame in (token, b"email", b"attempt:1", b"body")]
    broker.say(b"ORDERS", b"b2", *jobs)
    broker.step_until(lambda: len(broker.link.inbox) >= len(tokens))
    return [broker.link.inbox.popleft() for _ in tokens]


def test_the_answers_of_a_turn_go_together_and_give_their_slots_back(broker: Broker) -> None:
    broker.greet(ack=JOINING_ACK)
    broker.link.grant(3, 0)
    assert broker.hear(b"SLOTS") == [b"SLOTS", b"3"]
    first, second, third = order(broker, b"t1", b"t2", b"t3")
    broker.link.reply(first, [b"one"])
    broker.link.refuse(second, "failed", "no tea")
    broker.link.grant(3, 1)
    word, *frames = broker.hear(b"DONE", b"SLOTS", b"REPLY")
    assert (word, frames[0::2], frames[1]) == (b"DONE", [b"t1", b"t2"], b"one")
    assert json.loads(frames[3])["detail"] == "no tea"
    # They gave back what was wanted: nothing more is asked for.
    assert broker.silent(b"SLOTS", b"READY", b"REPLY")
    assert broker.link.emqp is not None
    assert broker.link.emqp.granted == 2
    broker.link.reply(third, [b"three"])
    broker.link.grant(5, 0)
    assert broker.hear(b"DONE") == [b"DONE", b"t3", b"three"]
    assert broker.hear(b"SLOTS") == [b"SLOTS", b"2"]


def test_slots_that_are_not_wanted_again_are_not_given_back(broker: Broker) -> None:
    broker.greet(ack=JOINING_ACK)
    broker.link.grant(3, 0)
    requests = order(broker, b"t1", b"t2", b"t3")
    for request in requests:
        broker.link.reply(request, [b"x"])
    broker.link.grant(1, 0)
    assert broker.hear(b"DONE", b"REPLY") == [b"DONE", b"t1", b"x"]
    assert broker.hear(b"DONE", b"REPLY") == [b"REPLY", b"x", b"t2"]
    assert broker.hear(b"DONE", b"REPLY") == [b"REPLY", b"x", b"t3"]
    assert broker.silent(b"SLOTS")


def test_nor_are_those_of_one_that_leaves(broker: Broker) -> None:
    broker.greet(ack=JOINING_ACK)
    broker.link.grant(2, 0)
    first, second = order(broker, b"t1", b"t2")
    broker.link.reply(first, [b"one"])
    broker.link.leave()
    broker.link.reply(second, [b"two"])
    assert broker.hear(b"LEAVE") == [b"LEAVE"]
    said = [broker.hear(b"REPLY", b"DONE", b"SLOTS") for _ in range(2)]
    assert sorted(said) == [[b"REPLY", b"one", b"t1"], [b"REPLY", b"two", b"t2"]]


def test_answers_go_before_the_goodbye(broker: Broker) -> None:
    broker.greet(ack=JOINING_ACK)
    broker.link.grant(1, 0)
    assert broker.hear(b"SLOTS") == [b"SLOTS", b"1"]
    (request,) = order(broker, b"t1")
    broker.link.reply(request, [b"one"])
    broker.link.close()
    assert broker.socket.recv_multipart()[3:] == [b"REPLY", ANY, b"one", b"t1"]
    assert broker.socket.recv_multipart()[3] == b"KBYE"


def test_answers_that_were_not_sent_yet_are_sent_in_the_next_conversation(broker: Broker) -> None:
    broker.greet(ack=JOINING_ACK)
    broker.link.grant(2, 0)
    first, second = order(broker, b"t1", b"t2")
    broker.link.reply(first, [b"one"])
    broker.link.refuse(second, "failed", "no tea")
    broker.lose()
    assert broker.link.has_parked
    assert holding(broker.greet(ack=JOINING_ACK)) == ["t1", "t2"]
    assert broker.hear(b"REPLY") == [b"REPLY", b"one", b"t1"]
    _, body, token = broker.hear(b"REPLY")
    assert (json.loads(body)["detail"], token) == ("no tea", b"t2")
    assert broker.silent(b"REPLY", b"DONE")


def test_many_answers_that_may_not_have_arrived_are_sent_again(broker: Broker) -> None:
    broker.greet(ack=JOINING_ACK)
    broker.link.grant(2, 0)
    for request in order(broker, b"t1", b"t2"):
        broker.link.reply(request, [b"x"])
    broker.link.grant(2, 0)
    assert broker.hear(b"DONE") == [b"DONE", b"t1", b"x", b"t2", b"x"]
    broker.lose()
    assert holding(broker.greet(ack=JOINING_ACK)) == ["t1", "t2"]
    assert [broker.hear(b"REPLY")[2] for _ in range(2)] == [b"t1", b"t2"]
