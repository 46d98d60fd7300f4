"""A bus with all that looks on, without sockets: calls of the broker's own services and admin questions."""

from __future__ import annotations

import json
from typing import Any

from polybus.core import events
from polybus.core.actions import Accept, Answer, Fanout, Observed, Refuse
from polybus.core.bus import Bus
from polybus.core.model import Heartbeat
from polybus.dialects.port import Voice
from polybus.server.admin import AdminEar
from polybus.server.effects import Outbox
from polybus.server.taps import TAG
from polybus.server.watchers import Watchers

CLIENT, WORKER = (1, b"client"), (2, b"w")
ADMIN = 4
VOICE = Voice()


class NoPump:
    kind = "none"

    def send_many(self, messages: Any) -> list[tuple[int, int]]:
        raise AssertionError

    def recv_many(self, timeout_ms: int, limit: int = 1000) -> list[Any]:
        raise AssertionError

    def suspect(self, *arguments: Any) -> Any:
        raise AssertionError


class Lookout:
    def __init__(self, tap: str = "meta") -> None:
        self.bus = Bus(b"n-")
        self.bus.wall_offset = 1_000_000.0
        pump: Any = NoPump()
        self.outbox = Outbox(self.bus, pump)
        self.admin = AdminEar(
            self.bus,
            self.outbox,
            lambda: self.now + 1_000_000.0,
            lambda: {"broker": "b1", "up_s": 1.0},
            tap=tap,
        )
        self.watchers = Watchers(self.bus, self.outbox, self.admin, lambda: {"broker": "b1", "up_s": 1.0})
        self.now = 100.0
        self._number = 0
        self.words: list[Any] = []

    def settle(self) -> None:
        while self.bus.actions:
            for action in self.bus.take():
                if isinstance(action, Observed):
                    self.outbox.handlers[Observed](action)
                elif isinstance(action, Answer | Refuse | Accept | Fanout):
                    self.words.append(action)

    def do(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        self.settle()

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.admin.expire(self.now)
        self.watchers.tick(self.now)
        self.settle()

    # -- calls of the broker's own services ---------------------------------------------------------

    def call(self, service: str, body: Any = None) -> None:
        self._number += 1
        text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request_id = b"call-%d" % self._number
        self.do(events.Submit(CLIENT, VOICE, request_id, b"polybus." + service.encode(), [text]))

    def answers(self) -> list[Any]:
        """The answers since the last look; a refusal is its text."""
        words, self.words = self.words, []
        return [
            json.loads(word.body[0]) if isinstance(word, Answer) else word.detail
            for word in words
            if isinstance(word, Answer | Refuse) and word.service.startswith(b"polybus.")
        ]

    def said(self) -> list[str]:
        words, self.words = self.words, []
        return [word.topic.decode() for word in words if isinstance(word, Fanout)]

    # -- questions to the admin socket --------------------------------------------------------------

    def ask(self, do: str, **facts: Any) -> list[Any]:
        """What came to the admin socket's asker, now and before."""
        question = json.dumps({"do": do, **facts}).encode()
        self.admin.receive(ADMIN, [b"op", b"", TAG, b"7", question], self.now)
        self.settle()
        return self.told()

    def told(self) -> list[Any]:
        messages, self.outbox._messages = self.outbox._messages, []
        self.outbox._sources = []
        return [json.loads(bytes(frames[-1])) for link, frames in messages if link == ADMIN]

    # -- peers ----------------------------------------------------------------------------------------

    def worker(self, service: bytes = b"echo", credit: int = 2) -> None:
        self.do(events.WorkerUp(WORKER, VOICE, ((service, 0),), Heartbeat(0.0), credit))

    def submit(self, request_id: bytes, service: bytes = b"echo") -> None:
        self.do(events.Submit(CLIENT, VOICE, request_id, service, [b"secret"]))

    def log(self, level: str, node: str, text: str) -> None:
        self.do(events.Publish(f"log/{level}/{node}".encode(), [text.encode()]))
