"""The asking side of the admin socket, against a socket that answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from polybus.client import admin as module
from polybus.client.admin import TAG, AdminClient, QuestionRefused
from polybus.errors import ConfigError, ConnectionLost
from support.patience import patient

Answers = Callable[[bytes, dict[str, Any]], list[list[bytes]]]


def frames(number: bytes, answer: object) -> list[bytes]:
    return [b"", TAG, number, json.dumps(answer).encode()]


class Scripted:
    """A ROUTER that answers each question with what a function returns."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.questions: list[tuple[bytes, dict[str, Any]]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            if self._socket.poll(20):
                peer, _, _, number, text = self._socket.recv_multipart()
                self.questions.append((number, json.loads(text)))
                for message in self._answers(*self.questions[-1]):
                    self._socket.send_multipart([peer, *message])

    def close(self) -> None:
        self._stopping = True
        self._thread.join(patient(10))
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def scripted() -> Iterator[Callable[[Answers], Scripted]]:
    made: list[Scripted] = []

    def make(answers: Answers) -> Scripted:
        made.append(Scripted(answers))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def test_a_question_and_its_answer(scripted: Callable[[Answers], Scripted]) -> None:
    def answers(number: bytes, question: dict[str, Any]) -> list[list[bytes]]:
        # What is not an admin answer, or answers something else, is passed over.
        return [[b"what"], frames(b"other", {"ok": 1}), frames(number, {"ok": [question]})]

    broker = scripted(answers)
    with AdminClient(broker.endpoint) as client:
        assert client.ask("cancel", request="x") == [{"do": "cancel", "request": "x"}]
        assert client.ask("nodes") == [{"do": "nodes"}]


def test_a_refused_question(scripted: Callable[[Answers], Scripted]) -> None:
    broker = scripted(lambda number, question: [frames(number, {"error": "no such thing"})])
    with AdminClient(broker.endpoint) as client, pytest.raises(QuestionRefused, match="no such thing"):
        client.ask("x")


def test_nobody_answers(scripted: Callable[[Answers], Scripted]) -> None:
    broker = scripted(lambda number, question: [])
    with AdminClient(broker.endpoint, timeout_s=0.05) as client:
        with pytest.raises(ConnectionLost, match=broker.endpoint):
            client.ask("ping")
        with pytest.raises(ConnectionLost, match=broker.endpoint):
            next(client.tap())


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError):
        AdminClient("nonsense")


def test_a_tap_is_renewed_and_closed(
    scripted: Callable[[Answers], Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.02)

    def answers(number: bytes, question: dict[str, Any]) -> list[list[bytes]]:
        if question["do"] == "ping":
            return [frames(number, {"ok": {"pong": True}}), frames(b"tap", {"ok": {"what": "accepted"}})]
        return []

    broker = scripted(answers)
    with AdminClient(broker.endpoint) as client:
        records = client.tap("hello", bodies=True)
        assert next(records) == {}
        assert [next(records) for _ in range(3)] == [{"what": "accepted"}] * 3
        records.close()  # type: ignore[attr-defined]
        # The pong comes after everything that was sent before it.
        client.ask("ping")
    taps = [question for _, question in broker.questions if question["do"] == "tap"]
    assert len(taps) >= 4
    assert taps[0] == {"do": "tap", "service": "hello", "what": "", "bodies": True}
    assert taps[-1] == {"do": "tap", "stop": True}


def test_a_tapped_broker_that_falls_silent(
    scripted: Callable[[Answers], Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.1)
    pongs = iter([1])

    def answers(number: bytes, question: dict[str, Any]) -> list[list[bytes]]:
        return [frames(number, {"ok": 1})] if question["do"] == "ping" and next(pongs, 0) else []

    broker = scripted(answers)
    with AdminClient(broker.endpoint) as client:
        records = client.tap()
        assert next(records) == {}
        with pytest.raises(ConnectionLost):
            next(records)
