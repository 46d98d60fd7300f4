"""A desk that answers what a test tells it: what a bus asks, without anybody to ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from polybus.client.questions import Question
from polybus.errors import RequestFailed
from polybus.testing.desks import MemoryPosted

Reply = bytes | Exception | Callable[[Question], bytes]


class FakeDesk:
    """`replies` are used up in order; after the last one everything is answered with a receipt."""

    is_here = False

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[Question] = []
        self.now = 100.0
        self.flushed = self.closed = 0

    def clock(self) -> float:
        return self.now

    def ask(self, question: Question) -> bytes:
        self.asked.append(question)
        reply = self.replies.pop(0) if self.replies else b'{"job":"x"}'
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, bytes) else reply(question)

    def ask_many(
        self, service: bytes, bodies: Iterable[bytes], timeout_s: float, window: int | None = None
    ) -> Iterator[bytes | RequestFailed]:
        for body in bodies:
            try:
                yield self.ask(Question(service, body, timeout_s))
            except RequestFailed as refusal:
                yield refusal

    def pieces(self, question: Question) -> Generator[tuple[bytes, bool], None, None]:
        yield self.ask(question), False
        yield self.ask(question), True

    def post(self, question: Question, job: str) -> MemoryPosted:
        self.ask(question)
        return MemoryPosted(None)

    def flush(self, timeout_s: float) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed += 1

    # -- what was asked -------------------------------------------------------------------------

    @property
    def order(self) -> dict[str, Any]:
        """The head of the last submission."""
        head: dict[str, Any] = json.loads(self.asked[-1].body.partition(b"\n")[0])
        return head

    @property
    def call(self) -> dict[str, Any]:
        """The call in the last submission."""
        return call_in(self.asked[-1].body.partition(b"\n")[2])


def call_in(message: bytes | str) -> dict[str, Any]:
    """What a job message asks for."""
    word, call = json.loads(message)
    assert word == "run"
    assert call.pop("class_args") == []
    assert call.pop("class_kwargs") == {}
    found: dict[str, Any] = call
    return found
