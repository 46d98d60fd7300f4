"""Workers that take many jobs in one message, and those of the version before, with a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polybus import Bus, JobFailed
from polybus.runtime.connection import Connection
from support.job_broker import JobBroker
from support.patience import patient
from support.waiting import until

JOBS = 150
SLOTS = 100
bus = Bus()


@bus.job(queue="many")
def echo(text: str) -> str:
    return text


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobBroker]:
    with JobBroker(tmp_path) as made:
        for name, value in made.places.items():
            monkeypatch.setenv(name, value)
        yield made
        bus.close()
        assert made.crashes() == ""


class Worker:
    """Answers everything with its own argument, but for what asks for a failure."""

    def __init__(self) -> None:
        self.link = Connection({"many": 10}, None, "emqp", SLOTS, ())
        self.words: list[bytes] = []
        assert self.link.emqp is not None
        self.session = self.link.emqp
        hear = self.session.hear

        def listen(frames: Any, at: int, now: float) -> Any:
            self.words.append(bytes(frames[at + 1]))
            return hear(frames, at, now)

        self.session.hear = listen  # type: ignore[method-assign]
        self.link.open(time.monotonic())

    def answer_all(self) -> int:
        """One turn, as in the supervisor; how many were answered."""
        self.link.step(0.01)
        answered = 0
        while self.link.inbox:
            request = self.link.inbox.popleft()
            text = json.loads(request.body)[1]["args"][0]
            if text.startswith("fail"):
                self.link.refuse(request, "failed", text)
            else:
                self.link.reply(request, [json.dumps(text).encode()])
            answered += 1
        self.link.grant(SLOTS, 0)
        self.link.flush()
        return answered


def text_of(number: int) -> str:
    """Some fail, some are too large to go with others."""
    return f"fail {number}" if number % 10 == 3 else f"{number}" * (5000 if number % 10 == 5 else 1)


@pytest.mark.parametrize("version", [1, 2])
def test_every_job_is_run_once_and_every_answer_arrives(
    broker: JobBroker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("polybus.wire.emqp.VERSION", version)
    handles = [echo.delay(text_of(number)) for number in range(JOBS)]
    worker = Worker()
    answered = 0

    def all_are_answered() -> bool:
        nonlocal answered
        answered += worker.answer_all()
        return answered >= JOBS

    try:
        until(all_are_answered)
        for number, handle in enumerate(handles):
            if number % 10 == 3:
                with pytest.raises(JobFailed, match=text_of(number)):
                    handle.get(timeout_s=patient(20))
            else:
                assert handle.get(timeout_s=patient(20)) == text_of(number)
        worker.answer_all()
        assert answered == JOBS
        assert worker.session.version == version
        joined, alone = worker.words.count(b"ORDERS"), worker.words.count(b"REQUEST")
        if version == 1:
            assert (joined, alone) == (0, JOBS)
        else:
            # All jobs were there before the worker; only the large ones between them part the others.
            assert alone == JOBS // 10
            assert joined <= JOBS // 2
    finally:
        worker.link.close()
