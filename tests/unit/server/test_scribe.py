"""The scribe: group commit, what it does while the disk does not work, and how it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from polybus.core.ledger import Accepted, Ended, Line, Waiting
from polybus.errors import StoreFailed, StoreFull
from polybus.server import scribe as scribes
from polybus.server.scribe import Answered, Scribe, Sick, Unwritten, Well, Written
from polybus.store.memory import MemoryStore
from polybus.store.sqlite import SqliteStore
from support.folders import small_file_system
from support.ledgers import history, job, outcome, token
from support.patience import patient
from support.waiting import until


class Fussy(MemoryStore):
    """A store in memory that fails and dawdles as it is told, and remembers its transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[list[Line]] = []
        self.tried = 0
        self.trouble: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = False

    def write(self, lines: Sequence[Line]) -> None:
        self.tried += 1
        self.entered.set()
        assert self.gate.wait(patient(30))
        if self.trouble is not None:
            raise self.trouble
        super().write(lines)
        self.transactions.append(list(lines))

    def close(self) -> None:
        self.closed = True


class Desk:
    """A loop's side of the scribe: it collects results."""

    def __init__(self, store: Any, **options: float) -> None:
        self.told: list[Any] = []
        self.woken = 0
        self.scribe = Scribe(store, self.wake, **{"retry_s": 0.02, **options})
        self.scribe.start()

    def wake(self) -> None:
        self.woken += 1

    def look(self) -> list[Any]:
        self.told += self.scribe.results()
        return self.told

    def wait_for(self, result: Any) -> None:
        until(lambda: result in self.look(), f"{result}, of {self.told}")


@pytest.fixture
def store() -> Fussy:
    return Fussy()


@pytest.fixture
def desks() -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(store: Any, **options: float) -> Desk:
        made.append(Desk(store, **options))
        return made[-1]

    yield make
    for desk in made:
        desk.scribe.stop()
        assert not desk.scribe._thread.is_alive()


@pytest.fixture
def desk(store: Fussy, desks: Callable[..., Desk]) -> Desk:
    return desks(store)


# -- when all is well -------------------------------------------------------------------------


def test_what_is_submitted_is_written_and_told(store: Fussy, desk: Desk) -> None:
    desk.scribe.submit(1, [Accepted(job(1))])
    desk.wait_for(Written(1))
    until(lambda: desk.woken, "it wakes the loop")
    assert store.load().jobs == [job(1)]
    until(lambda: desk.scribe.waiting_lines == 0)


def test_batches_gather_while_one_is_written(store: Fussy, desk: Desk) -> None:
    store.gate.clear()
    desk.scribe.submit(1, [Accepted(job(1))])
    assert store.entered.wait(patient(30))
    for number in range(2, 10):
        desk.scribe.submit(number, [Accepted(job(number))])
    store.gate.set()
    desk.wait_for(Written(9))
    assert [len(lines) for lines in store.transactions] == [1, 8]
    assert desk.told == [Written(1), Written(9)]


def test_a_transaction_has_its_limit(store: Fussy, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribes, "TRANSACTION_LINES", 4)
    store.gate.clear()
    desk.scribe.submit(1, [Accepted(job(1))])
    assert store.entered.wait(patient(30))
    for number in range(2, 10):
        desk.scribe.submit(number, [Accepted(job(number))])
    store.gate.set()
    desk.wait_for(Written(9))
    assert [len(lines) for lines in store.transactions] == [1, 4, 4]


def test_an_empty_batch_is_answered_in_turn(store: Fussy, desk: Desk) -> None:
    desk.scribe.submit(1, [])
    desk.wait_for(Written(1))


# -- questions --------------------------------------------------------------------------------


def test_questions_are_answered_from_what_was_written_before(desk: Desk) -> None:
    answers: list[Any] = []
    desk.scribe.submit(1, [Ended(token(1), outcome(1))])
    desk.scribe.ask(
        lambda store: store.outcome(token(1)), lambda value, error: answers.append((value, error))
    )
    told = until(lambda: [one for one in desk.look() if isinstance(one, Answered)])
    told[0].tell()
    assert answers == [(outcome(1), None)]


def test_a_question_that_fails_is_answered_with_the_error(desk: Desk) -> None:
    def fail(store: Any) -> None:
        raise StoreFailed("cannot read")

    answers: list[Any] = []
    desk.scribe.ask(fail, lambda value, error: answers.append((value, str(error))))
    until(lambda: [one for one in desk.look() if isinstance(one, Answered)])[0].tell()
    assert answers == [(None, "cannot read")]
    desk.scribe.submit(1, [])
    desk.wait_for(Written(1))


# -- when the disk does not work --------------------------------------------------------------


def test_a_full_disk_refuses_new_jobs_and_keeps_the_rest(store: Fussy, desk: Desk) -> None:
    desk.scribe.submit(1, [Accepted(job(1))])
    desk.wait_for(Written(1))
    store.trouble = StoreFull("no room")
    desk.scribe.submit(2, [Accepted(job(2)), Ended(token(1), outcome(1)), Accepted(job(3))])
    desk.wait_for(Unwritten(2, (token(2), token(3)), "no room"))
    assert desk.told == [Written(1), Sick("no room"), Unwritten(2, (token(2), token(3)), "no room")]
    until(lambda: desk.scribe.waiting_lines == 1)
    tried = store.tried
    until(lambda: store.tried > tried + 2, "it is tried again and again")
    assert desk.look()[3:] == []
    store.trouble = None
    desk.wait_for(Well())
    assert desk.told[3:] == [Written(2), Well()]
    assert store.load().jobs == []
    assert store.outcome(token(1)) == outcome(1)
    assert desk.scribe.waiting_lines == 0


def test_while_the_disk_is_full_new_jobs_are_refused_at_once(
    store: Fussy, desks: Callable[..., Desk]
) -> None:
    desk = desks(store, retry_s=60.0)
    store.trouble = StoreFull("no room")
    desk.scribe.submit(1, [Accepted(job(1))])
    desk.wait_for(Sick("no room"))
    desk.scribe.submit(2, [Accepted(job(2)), Ended(token(9), outcome(9))])
    desk.wait_for(Unwritten(2, (token(2),), "no room"))
    assert store.tried == 1
    store.trouble = None
    assert desk.scribe.stop() == 0
    assert store.outcome(token(9)) == outcome(9)
    assert store.load().jobs == []


def test_lines_keep_their_order_over_failures(store: Fussy, desk: Desk) -> None:
    desk.scribe.submit(1, [Accepted(job(1)), Accepted(job(2))])
    desk.wait_for(Written(1))
    store.trouble = StoreFull("no room")
    desk.scribe.submit(2, [Waiting(token(1), 1, 5.0, history(1))])
    desk.wait_for(Sick("no room"))
    desk.scribe.submit(3, [Waiting(token(1), 2, 6.0, history(2)), Waiting(token(2), 1, 5.0, history(1))])
    desk.scribe.submit(4, [Ended(token(2), outcome(2))])
    store.trouble = None
    desk.wait_for(Written(4))
    assert store.load().jobs == [job(1, attempt=2, due_at=6.0, history=history(2))]
    assert store.load().outcomes == [outcome(2)]


def test_a_disk_with_nothing_to_write_is_asked_all_the_same(store: Fussy, desk: Desk) -> None:
    store.trouble = StoreFull("no room")
    desk.scribe.submit(1, [Accepted(job(1))])
    desk.wait_for(Sick("no room"))
    store.trouble = None
    desk.wait_for(Well())


def test_what_may_be_on_disk_after_an_io_error_is_taken_back(store: Fussy, desk: Desk) -> None:
    desk.scribe.submit(1, [])
    desk.wait_for(Written(1))
    store.trouble = StoreFailed("I/O error")
    desk.scribe.submit(2, [Accepted(job(2))])
    desk.wait_for(Unwritten(2, (token(2),), "I/O error"))
    MemoryStore.write(store, [Accepted(job(2))])  # it was on disk after all
    store.trouble = None
    desk.wait_for(Well())
    assert store.load().jobs == []


def test_another_trouble_is_told_too(store: Fussy, desk: Desk) -> None:
    store.trouble = StoreFull("no room")
    desk.scribe.submit(1, [])
    desk.wait_for(Sick("no room"))
    store.trouble = StoreFailed("I/O error")
    desk.wait_for(Sick("I/O error"))


def test_a_bug_in_the_store_is_told_with_its_place(store: Fussy, desk: Desk) -> None:
    store.trouble = ZeroDivisionError("oh")
    desk.scribe.submit(1, [Accepted(job(1))])
    sick = until(lambda: [one for one in desk.look() if isinstance(one, Sick)])
    assert sick[0].reason.startswith("a bug in the store: ZeroDivisionError: oh at ")
    assert "test_scribe.py:" in sick[0].reason
    store.trouble = None
    desk.wait_for(Well())


def test_a_scribe_that_dies_says_so_and_takes_nothing_more(store: Fussy, desks: Callable[..., Desk]) -> None:
    desk = desks(store)
    desk.scribe._take_batches = None  # type: ignore[assignment, method-assign]
    desk.scribe.submit(1, [Accepted(job(1))])
    sick = until(lambda: [one for one in desk.look() if isinstance(one, Sick)])
    assert "the scribe has stopped" in sick[0].reason
    until(lambda: desk.scribe.is_full)
    assert desk.scribe.stop() == 1


def test_a_long_absence_is_made_up_for_in_pieces(
    store: Fussy, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribes, "TRANSACTION_LINES", 10)
    store.trouble = StoreFull("no room")
    for number in range(1, 36):
        desk.scribe.submit(number, [Ended(token(number), outcome(number))])
    desk.wait_for(Sick("no room"))
    until(lambda: not desk.scribe._batches)
    store.trouble = None
    desk.wait_for(Written(35))
    assert max(len(lines) for lines in store.transactions) <= 20
    assert len(store.load().outcomes) == 35
    assert desk.scribe.waiting_lines == 0
    assert desk.scribe._waiting_bytes == 0


# -- limits -----------------------------------------------------------------------------------


def test_it_is_full_when_too_many_lines_wait(
    store: Fussy, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribes, "WAITING_LINES", 10)
    store.gate.clear()
    assert not desk.scribe.is_full
    desk.scribe.submit(1, [Accepted(job(n)) for n in range(11)])
    assert desk.scribe.is_full
    store.gate.set()
    desk.wait_for(Written(1))
    until(lambda: not desk.scribe.is_full)


def test_it_is_full_when_too_many_bytes_wait(
    store: Fussy, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribes, "WAITING_BYTES", 10_000)
    store.trouble = StoreFull("no room")
    desk.scribe.submit(1, [Accepted(job(1, body=b"x" * 20_000))])
    desk.wait_for(Unwritten(1, (token(1),), "no room"))
    until(lambda: not desk.scribe.is_full, "what was refused is gone")
    desk.scribe.submit(2, [Ended(token(1), outcome(1, b"x" * 20_000))])
    assert desk.scribe.is_full
    store.trouble = None
    desk.wait_for(Written(2))
    until(lambda: not desk.scribe.is_full)


# -- the end ----------------------------------------------------------------------------------


def test_stop_writes_what_waits_and_closes_the_store(store: Fussy, desk: Desk) -> None:
    store.gate.clear()
    desk.scribe.submit(1, [Accepted(job(1))])
    assert store.entered.wait(patient(30))
    for number in range(2, 9):
        desk.scribe.submit(number, [Accepted(job(number))])
    threading.Timer(0.05, store.gate.set).start()
    assert desk.scribe.stop() == 0
    assert len(store.load().jobs) == 8
    assert store.closed
    assert desk.look()[-1] == Written(8)


def test_stop_says_what_could_not_be_written(store: Fussy, desk: Desk) -> None:
    store.trouble = StoreFull("no room")
    desk.scribe.submit(1, [Accepted(job(1)), Ended(token(2)), Ended(token(3))])
    assert desk.scribe.stop() == 2
    assert store.closed
    assert Unwritten(1, (token(1),), "no room") in desk.look()


def test_stop_does_not_wait_for_ever(store: Fussy, desk: Desk) -> None:
    store.gate.clear()
    desk.scribe.submit(1, [Accepted(job(1))])
    assert desk.scribe.stop(timeout_s=0.05) == 1
    store.gate.set()


# -- a real disk ------------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[Path]:
    with small_file_system() as disk:
        yield disk


def test_a_disk_that_fills_up_and_is_cleared(small_disk: Path, desks: Callable[..., Desk]) -> None:
    ballast = small_disk / "ballast"
    store = SqliteStore(small_disk)
    store.load()
    desk = desks(store)
    desk.scribe.submit(1, [Accepted(job(1)), Accepted(job(2))])
    desk.wait_for(Written(1))
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while file.write(bytes(65_536)):
            pass
    number = 2
    desk.scribe.submit(number, [Ended(token(1), outcome(1))])
    while not any(isinstance(one, Sick) for one in desk.look()):
        number += 1
        desk.scribe.submit(number, [Accepted(job(number, body=b"x" * 50_000))])
        until(lambda: not desk.scribe._batches)
    sick = next(one for one in desk.told if isinstance(one, Sick))
    assert "no room" in sick.reason
    accepted = {token(1), token(2)} | {token(n) for n in range(3, number + 1)}
    desk.scribe.submit(number + 1, [Ended(token(2), outcome(2))])
    ballast.unlink()
    desk.wait_for(Written(number + 1))
    desk.scribe.submit(number + 2, [Accepted(job(9999))])
    desk.wait_for(Written(number + 2))
    refused = {refused for one in desk.look() if isinstance(one, Unwritten) for refused in one.refused}
    assert desk.scribe.stop() == 0
    again = SqliteStore(small_disk)
    contents = again.load()
    again.close()
    assert {entry.token for entry in contents.jobs} == accepted - refused - {token(1), token(2)} | {
        token(9999)
    }
    assert contents.outcomes == [outcome(1), outcome(2)]
