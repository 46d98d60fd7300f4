"""What every store must do: asked of memory, of SQLite, and of SQLite opened anew for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from polybus.core.ledger import (
    Accepted,
    Buried,
    Contents,
    DeadLetter,
    Ended,
    Forgotten,
    Grouped,
    Line,
    Outcome,
    Ran,
    Scheduled,
    ScheduleRun,
    Started,
    Ungrouped,
    Unscheduled,
    Waiting,
)
from polybus.store import memory, port, shelves
from polybus.store.memory import MemoryStore
from polybus.store.port import Store
from polybus.store.sqlite import SqliteStore
from support import ledgers
from support.ledgers import history, job, letter, outcome, run, schedule, token


class Reopening:
    """SQLite, opened anew for everything that is asked: what is told comes from the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _with(self, call: Callable[[SqliteStore], object]) -> object:
        store = SqliteStore(self._folder)
        try:
            return call(store)
        finally:
            store.close()

    def load(self) -> Contents:
        return self._with(lambda store: store.load())  # type: ignore[return-value]

    def write(self, lines: Sequence[Line]) -> None:
        self._with(lambda store: store.write(lines))

    def dead(self, limit: int, service: str = "", after: bytes = b"") -> list[DeadLetter]:
        return self._with(lambda store: store.dead(limit, service, after))  # type: ignore[return-value]

    def dead_letter(self, token: bytes) -> DeadLetter | None:
        return self._with(lambda store: store.dead_letter(token))  # type: ignore[return-value]

    def outcome(self, token: bytes) -> Outcome | None:
        return self._with(lambda store: store.outcome(token))  # type: ignore[return-value]

    def runs(self, key: str, limit: int) -> list[ScheduleRun]:
        return self._with(lambda store: store.runs(key, limit))  # type: ignore[return-value]

    def close(self) -> None:
        pass


@pytest.fixture(params=["memory", "sqlite", "reopened"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    match request.param:
        case "memory":
            made = MemoryStore()
        case "sqlite":
            made = SqliteStore(tmp_path)
        case _:
            made = Reopening(tmp_path)
    yield made
    made.close()


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.load() == Contents(jobs=[], outcomes=[], schedules=[], groups={})


def test_jobs_are_there_in_the_order_of_their_acceptance(store: Store) -> None:
    store.write([Accepted(job(2)), Accepted(job(1))])
    store.write([Accepted(job(3))])
    assert store.load().jobs == [job(2), job(1), job(3)]


def test_a_job_accepted_again_replaces_the_first_and_what_became_of_it(store: Store) -> None:
    store.write(
        [Accepted(job(1)), Accepted(job(2)), Started(token(1), 1, "w"), Waiting(token(1), 1, 5.0, history(1))]
    )
    store.write([Accepted(job(1, body=b"new"))])
    assert store.load().jobs == [job(1, body=b"new"), job(2)]


def test_started_and_waiting_change_the_job(store: Store) -> None:
    store.write([Accepted(job(1, due_at=9.0)), Accepted(job(2)), Accepted(job(3))])
    store.write([Started(token(1), 1, "w"), Waiting(token(2), 1, 77.0, history(1))])
    store.write(
        [Started(token(3), 1, "w"), Waiting(token(3), 1, 88.0, history(1)), Started(token(3), 2, "v")]
    )
    one, two, three = store.load().jobs
    assert one == job(1, attempt=1, worker="w", due_at=0.0)
    assert two == job(2, attempt=1, worker="", due_at=77.0, history=history(1))
    assert three == job(3, attempt=2, worker="v", due_at=0.0, history=history(1))
    store.write([Waiting(token(3), 2, 99.0, history(2))])
    assert store.load().jobs[2] == job(3, attempt=2, worker="", due_at=99.0, history=history(2))


def test_what_happens_to_an_unknown_job_means_nothing(store: Store) -> None:
    store.write([Started(token(1), 1, "w"), Waiting(token(2), 1, 5.0, history(1)), Ended(token(3))])
    store.write([Accepted(job(1)), Accepted(job(2))])
    assert store.load().jobs == [job(1), job(2)]


def test_an_ended_job_leaves_its_outcome(store: Store) -> None:
    store.write([Accepted(job(1)), Accepted(job(2)), Started(token(1), 1, "w")])
    store.write([Ended(token(1), outcome(1)), Ended(token(2))])
    assert store.load() == Contents(jobs=[], outcomes=[outcome(1)], schedules=[], groups={})
    assert store.outcome(token(1)) == outcome(1)
    assert store.outcome(token(2)) is None


def test_a_job_that_comes_and_goes_in_one_transaction_leaves_its_outcome(store: Store) -> None:
    store.write([Accepted(job(1)), Started(token(1), 1, "w"), Ended(token(1), outcome(1))])
    assert store.load() == Contents(jobs=[], outcomes=[outcome(1)], schedules=[], groups={})


def test_an_outcome_is_replaced_and_forgotten(store: Store) -> None:
    store.write([Ended(token(1), outcome(1)), Ended(token(2), outcome(2))])
    store.write([Ended(token(1), outcome(1, b"other"))])
    assert store.load().outcomes == [outcome(1, b"other"), outcome(2)]
    store.write([Forgotten((token(1), token(9)))])
    assert store.load().outcomes == [outcome(2)]


def test_a_token_may_be_used_again_after_its_end(store: Store) -> None:
    store.write([Accepted(job(1)), Accepted(job(2))])
    store.write([Ended(token(1)), Accepted(job(1, body=b"again"))])
    assert store.load().jobs == [job(2), job(1, body=b"again")]


def test_dead_letters_are_listed_from_the_oldest_and_in_pages(store: Store) -> None:
    store.write([Accepted(job(n)) for n in range(1, 6)])
    store.write([Ended(token(n), dead=letter(n, b"image" if n % 2 else b"email")) for n in (3, 1, 2, 5, 4)])
    assert store.load().dead == 5
    assert [found.job.token for found in store.dead(2)] == [token(3), token(1)]
    assert [found.job.token for found in store.dead(9, after=token(1))] == [token(2), token(5), token(4)]
    assert [found.job.token for found in store.dead(9, "image")] == [token(3), token(1), token(5)]
    assert [found.job.token for found in store.dead(1, "image", after=token(1))] == [token(5)]
    assert store.dead(9, "nobody") == []
    assert store.dead(9, after=token(99)) == []
    assert store.dead(0) == []


def test_a_dead_letter_is_whole_until_it_is_buried(store: Store) -> None:
    store.write([Ended(token(1), outcome(1), letter(1)), Ended(token(2), dead=letter(2))])
    assert store.dead_letter(token(1)) == letter(1)
    assert store.outcome(token(1)) == outcome(1)
    store.write([Buried((token(1), token(7)))])
    assert store.dead_letter(token(1)) is None
    assert store.dead(9) == [letter(2)]
    assert store.load().dead == 1


def test_schedules_are_replaced_and_removed(store: Store) -> None:
    store.write([Scheduled(schedule("a", 1.0)), Scheduled(schedule("ü", 2.0))])
    store.write([Scheduled(schedule("a", 3.0))])
    assert store.load().schedules == [schedule("a", 3.0), schedule("ü", 2.0)]
    store.write([Unscheduled("a"), Unscheduled("nobody")])
    assert store.load().schedules == [schedule("ü", 2.0)]


def test_runs_are_told_from_the_newest_also_when_the_schedule_is_gone(store: Store) -> None:
    store.write([Ran(run("a", 1.0)), Ran(run("a", 2.0)), Ran(run("b", 9.0)), Unscheduled("a")])
    store.write([Ran(run("a", 3.0))])
    assert store.runs("a", 2) == [run("a", 3.0), run("a", 2.0)]
    assert store.runs("b", 9) == [run("b", 9.0)]
    assert store.runs("c", 9) == []


def test_a_due_time_has_one_run(store: Store) -> None:
    again = ScheduleRun("a", 1.0, 7.0, "late")
    store.write([Ran(run("a", 1.0)), Ran(run("a", 2.0))])
    store.write([Ran(again)])
    assert store.runs("a", 9) == [run("a", 2.0), again]


def test_old_runs_leave(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, shelves):
        monkeypatch.setattr(module, "RUNS_PER_SCHEDULE", 3)
        monkeypatch.setattr(module, "RUNS", 5)
    assert port.RUNS > port.RUNS_PER_SCHEDULE
    store.write([Ran(run("a", float(due))) for due in range(5)])
    assert store.runs("a", 9) == [run("a", 4.0), run("a", 3.0), run("a", 2.0)]
    store.write([Ran(run("b", 1.0)), Ran(run("b", 2.0))])
    store.write([Ran(run("c", 1.0)), Ran(run("a", 5.0))])
    assert store.runs("a", 9) == [run("a", 5.0), run("a", 4.0)]
    assert store.runs("b", 9) == [run("b", 2.0), run("b", 1.0)]
    assert store.runs("c", 9) == [run("c", 1.0)]


def test_groups_are_replaced_and_removed(store: Store) -> None:
    store.write([Grouped(b"g", b"one"), Grouped(b"h", b"two"), Grouped(b"g", b"three")])
    assert store.load().groups == {b"g": b"three", b"h": b"two"}
    store.write([Ungrouped(b"g"), Ungrouped(b"x")])
    assert store.load().groups == {b"h": b"two"}


def test_no_lines_are_a_transaction_too(store: Store) -> None:
    store.write([])
    assert store.load() == Contents(jobs=[], outcomes=[], schedules=[], groups={})


def test_many_lines_at_once(store: Store) -> None:
    """More than one statement takes, and not a round number."""
    store.write([Accepted(job(n)) for n in range(1000)])
    store.write([Ended(token(n), outcome(n)) for n in range(0, 1000, 3)])
    contents = store.load()
    assert contents.jobs == [job(n) for n in range(1000) if n % 3]
    assert contents.outcomes == [outcome(n) for n in range(0, 1000, 3)]


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_bodies_of_any_size(store: Store, size: int) -> None:
    large = job(1, body=b"x" * size)
    store.write([Accepted(large), Accepted(job(2, body=b""))])
    assert store.load().jobs == [large, job(2, body=b"")]
    assert ledgers.everything(store)[0][0] == large


def test_a_job_accepted_again_has_no_worker(store: Store) -> None:
    store.write([Accepted(job(1)), Accepted(job(2)), Started(token(1), 1, "w"), Started(token(2), 1, "w")])
    store.write([Accepted(job(1, body=b"new"))])
    assert store.load().jobs == [job(1, body=b"new"), job(2, attempt=1, worker="w", due_at=0.0)]


def test_a_job_accepted_again_is_not_put_off(store: Store) -> None:
    store.write([Accepted(job(1)), Waiting(token(1), 1, 5.0, history(1))])
    store.write([Accepted(job(1, body=b"new"))])
    assert store.load().jobs == [job(1, body=b"new")]


def test_a_job_accepted_again_is_not_dead_and_has_no_outcome(store: Store) -> None:
    store.write([Ended(token(1), outcome(1), letter(1)), Ended(token(2), outcome(2), letter(2))])
    store.write([Accepted(job(1))])
    assert store.dead(9) == [letter(2)]
    assert (store.outcome(token(1)), store.outcome(token(2))) == (None, outcome(2))
