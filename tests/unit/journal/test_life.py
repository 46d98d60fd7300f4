"""What the journal tells of a request: accepted once, ended once, whatever happens in between."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from polybus.core import events
from polybus.core.ledger import DeadLetter
from polybus.core.model import JobOptions, Limits, Reason
from polybus.core.revival import revive
from polybus.journal.record import TERMINAL, Row, read_rows
from polybus.journal.recorder import Recorder, open_recorder
from support.stage import LedgerStage, worker


class Voice(str):
    """A name that can also be spoken to."""

    dialect = "mdr"


C, W = Voice("c"), Voice("w")


class JournalStage(LedgerStage):
    """The bus with a ledger and a journal."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.recorder: Recorder = open_recorder(4096)
        super().__init__(limits)
        self.kept: list[Row] = []

    def _prepare(self, bus: Any) -> None:
        super()._prepare(bus)
        bus.voices = {"": C}
        bus.listen(False, self.recorder)

    @property
    def rows(self) -> list[Row]:
        self.kept += read_rows(self.recorder.take()[1])
        return self.kept

    def told(self, what: str) -> list[Any]:
        return [row for row in self.rows if row.what == what]

    def the(self, what: str) -> Row:
        rows: list[Row] = self.told(what)
        (row,) = rows
        return row

    def is_balanced(self) -> bool:
        """Every accepted request has ended exactly once, and nothing else has."""
        begun = Counter(row.token for row in self.told("accepted"))
        ended = Counter(row.token for row in self.rows if row.what in TERMINAL)
        assert begun == ended, (begun - ended, ended - begun)
        return bool(begun)


@pytest.fixture
def stage() -> JournalStage:
    return JournalStage()


GUARANTEED = JobOptions(guarantee=True, retries=1, backoff_s=0.1)


def test_a_job_that_is_given_up_is_there_with_its_body_and_its_options(stage: JournalStage) -> None:
    stage.worker(W, "echo")
    stage.submit(C, "1", "echo", [b"a", b"b"], GUARANTEED)
    stage.write()
    stage.fail(W)
    stage.wait(1)
    stage.fail(W)
    stage.write()
    dead = stage.the("dead")
    assert (dead.service, dead.body, dead.size, dead.body_size) == (b"echo", (b"a", b"b"), 2, 2)
    assert (dead.request_id, dead.client, dead.client_dialect) == (b"1", b"c", "mdr")
    assert (dead.reason, dead.detail, dead.attempt) == ("failed", "it broke", 2)
    assert msgspec.json.decode(dead.headers) == {"guarantee": True, "retries": 1, "backoff_s": 0.1}
    assert dead.token == stage.the("failed").token
    (letter,) = stage.dead()
    assert isinstance(letter, DeadLetter)
    assert letter.job.token == dead.token
    assert stage.is_balanced()


def test_what_nobody_answered_in_time_is_there_with_its_body(stage: JournalStage) -> None:
    stage.submit(C, "1", "nobody", [b"please"], ttl_s=1.0)
    stage.worker(W, "slow")
    stage.submit(C, "2", "slow", [b"soon"], ttl_s=1.0)
    stage.wait(2)
    waited, had = stage.told("dead")
    assert (waited.body, waited.reason, waited.headers, waited.worker) == ((b"please",), "expired", "", b"")
    assert (had.body, had.worker, had.attempt) == ((b"soon",), b"w", 1)
    assert stage.is_balanced()


def test_a_failed_call_and_a_withdrawn_job_are_no_dead_letters(stage: JournalStage) -> None:
    stage.worker(W, "echo", credit=2)
    stage.submit(C, "1", "echo")
    stage.fail(W, stage.token(C, "1"))
    stage.submit(C, "2", "echo", options=GUARANTEED)
    stage.write()
    stage.do(events.Cancel((1, b"c"), b"2"))
    stage.write()
    assert not stage.told("dead")
    assert [row.what for row in stage.rows if row.what in TERMINAL] == ["failed", "cancelled"]
    assert stage.is_balanced()


def test_a_worker_that_goes_tells_since_when_it_was_there_and_what_for(stage: JournalStage) -> None:
    stage.worker(W, "one", "two")
    stage.do(events.Offer(worker("w"), W, b"three"))
    up_at = stage.the("worker_up").at
    stage.wait(3)
    stage.gone(W)
    down = stage.the("worker_down")
    assert (down.service, down.reason, down.worker) == (b"one,two,three", "it left", b"w")
    assert (down.accepted_at, down.at - down.accepted_at) == (up_at, 3_000_000)
    # One more service is no second coming.
    assert stage.the("offered").service == b"three"


def test_a_job_that_outlives_its_broker_ends_once_in_another_life(stage: JournalStage) -> None:
    stage.worker(W, "echo")
    stage.submit(C, "waits", "nobody", options=GUARANTEED)
    stage.submit(C, "runs", "echo", options=GUARANTEED)
    stage.job("desk", "echo", guarantee=True)
    stage.group("all", {"service": "echo", "guarantee": True}, {"service": "echo", "guarantee": True})
    stage.write()
    assert len(stage.told("accepted")) == 5
    stage.restart()
    stage.restart(after_s=60)
    assert len(stage.told("accepted")) == 5
    stage.worker(W, "echo", "nobody", credit=10)
    stage.wait(20)
    for request in list(stage.bus.requests.values()):
        stage.result(W, request.token, [b"1"])
    stage.write()
    assert not stage.bus.requests
    assert stage.is_balanced()
    # It tells when it was accepted, by the clock of those days.
    accepted = {row.token: row.at for row in stage.told("accepted")}
    assert all(row.accepted_at == accepted[row.token] for row in stage.told("replied"))


def test_every_step_of_a_chain_begins_and_ends(stage: JournalStage) -> None:
    stage.worker(W, "echo", credit=5)
    step = {"service": "echo", "guarantee": True}
    stage.job("chain", "echo", guarantee=True, then=[step, step])
    stage.group("group", step, step, then=[step])
    stage.write()
    while stage.bus.requests:
        for request in list(stage.bus.requests.values()):
            stage.result(W, request.token, [b"1"])
        stage.write()
    assert len(stage.told("accepted")) == 3 + 3
    assert stage.is_balanced()


def test_a_revived_job_begins_and_ends_twice(stage: JournalStage) -> None:
    stage.worker(W, "echo")
    stage.submit(C, "1", options=JobOptions(guarantee=True))
    stage.write()
    stage.fail(W)
    stage.write()
    (letter,) = stage.dead()
    assert revive(stage.bus, letter, stage.now)[0] is not None
    stage.write()
    stage.result(W)
    stage.write()
    assert stage.is_balanced()
    assert [row.what for row in stage.rows if row.what in TERMINAL] == ["failed", "replied"]


def test_what_is_refused_at_the_door_was_never_accepted() -> None:
    stage = JournalStage(Limits(queue_length=1))
    stage.submit(C, "1", "nobody", ttl_s=1.0)
    stage.submit(C, "2", "nobody")
    rejected = stage.the("rejected")
    assert (rejected.request_id, rejected.reason, rejected.token) == (b"2", Reason.QUEUE_FULL, b"")
    assert len(stage.told("accepted")) == 1
    stage.wait(2)
    assert stage.is_balanced()


def test_jobs_that_the_desk_refuses_were_never_accepted() -> None:
    stage = JournalStage(Limits(queue_length=0))
    stage.job("one", "nobody", by=C)
    stage.call(C, "odd", "submit", b"{")
    many = [
        {"id": "three", "service": "nobody", "size": 0},
        {"id": "four", "service": "polybus.x", "size": 0},
    ]
    stage.call(C, "many", "submit", msgspec.json.encode(many) + b"\n")
    assert not stage.told("accepted")
    refused = {(row.request_id, row.service, row.reason) for row in stage.told("rejected")}
    assert (b"submit one", b"polybus.submit", "queue_full") in refused
    assert (b"odd", b"polybus.submit", "bad_job") in refused
    assert (b"three", b"nobody", "queue_full") in refused
    assert len(refused) == stage.bus.counters.rejected


def test_what_could_not_be_written_down_has_failed(stage: JournalStage) -> None:
    stage.submit(C, "1", "nobody", options=GUARANTEED)
    stage.refuse_writes()
    assert stage.the("failed").reason == Reason.STORE_UNAVAILABLE
    assert not stage.told("dead")
    assert stage.is_balanced()


def test_a_request_that_costs_too_many_workers_ends_once() -> None:
    stage = JournalStage(Limits(attempts=2))
    stage.submit(C, "1", "echo", options=GUARANTEED)
    stage.write()
    for _ in range(2):
        stage.worker(W, "echo")
        stage.gone(W)
    stage.write()
    assert stage.the("dead").reason == Reason.WORKER_LOST
    assert stage.is_balanced()
