"""The pool with real processes: whatever a job does, it costs that job and nothing else."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from polybus.runtime import handing, staffing
from polybus.runtime.seat import SeatState
from support.patience import patient
from support.pool_bench import PATIENCE_S, TESTS, Bench
from support.waiting import until


@pytest.fixture(autouse=True)
def _find_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def is_alive(pid: int) -> bool:
    """Whether there is such a process that is not merely unburied."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# -- all is well --------------------------------------------------------------------------------


def test_jobs_are_run_and_answered() -> None:
    with Bench(2) as bench:
        jobs = [bench.submit("double", n) for n in range(500)]
        assert [bench.outcome(job) for job in jobs] == [2 * n for n in range(500)]
        assert bench.pool.load == 0
        assert bench.facts.jobs > 10


def test_both_processes_work() -> None:
    with Bench(2) as bench:
        bench.until_up(2)
        jobs = [bench.submit("pid") for _ in range(200)]
        assert len({bench.outcome(job) for job in jobs}) == 2


def test_large_bodies_go_both_ways() -> None:
    with Bench() as bench:
        text = "x" * 3_000_000
        assert bench.outcome(bench.submit("repeat", text, 2)) == text * 2
        body = os.urandom(5_000_000)
        assert bench.outcome(bench.submit_raw(b"echo", body)) == body
        assert bench.outcome(bench.submit("double", 4)) == 8


def test_progress_comes_before_the_result() -> None:
    with Bench() as bench:
        job = bench.submit("steps", 3)
        assert bench.outcome(job) == 3
        assert bench.parts[job] == [0, 1, 2]


def test_quick_jobs_go_out_many_at_a_time_and_slow_ones_alone(tmp_path: Path) -> None:
    with Bench(1, prefetch=50) as bench:
        bench.until_up()
        assert bench.pool.slots == 1

        def are_quick() -> bool:
            for job in [bench.submit("double", n) for n in range(200)]:
                bench.outcome(job)
            return bench.pool.slots == 50

        # The newest jobs count most, and a busy machine makes one of them slow now and then.
        until(are_quick, "as many slots as are allowed")
        bench.pool.mean_s = 0.05
        assert bench.pool.slots == 2
        bench.pool.mean_s = 60.0
        assert bench.pool.slots == 1


# -- crashes ------------------------------------------------------------------------------------


def test_a_crash_costs_one_attempt_of_one_job(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    with Bench(1) as bench:
        bench.until_up()
        # Quick jobs, so that many are handed out together, with the bad one among them.
        for job in [bench.submit("double", n) for n in range(100)]:
            bench.outcome(job)
        before = [bench.submit("note", str(path), f"a{n}") for n in range(10)]
        bad = bench.submit("leave", 7)
        after = [bench.submit("note", str(path), f"b{n}") for n in range(10)]
        assert bench.outcome(bad) == ("crashed", "its process exited with status 7")
        pids = [bench.outcome(job) for job in (*before, *after)]
        assert lines(path) == [*(f"a{n}" for n in range(10)), *(f"b{n}" for n in range(10))]
        assert len(set(pids)) == 2
        assert "exited with status 7; another takes its place" in bench.notes[0]


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGKILL, "signal 9 (SIGKILL)"), (signal.SIGSEGV, "signal 11 (SIGSEGV)")]
)
def test_a_signal_kills_one_job(number: int, word: str) -> None:
    with Bench(1) as bench:
        code, detail = bench.outcome(bench.submit("die", number))
        assert code == "crashed"
        assert f"killed by {word}" in detail
        assert ("memory" in detail) == (number == signal.SIGKILL)
        assert bench.outcome(bench.submit("double", 1)) == 2


def test_many_crashes_in_a_row_and_nothing_else_suffers(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    with Bench(2) as bench:
        good = []
        bad = []
        for n in range(10):
            good += [bench.submit("note", str(path), f"{n}.{m}") for m in range(5)]
            bad.append(bench.submit("leave", 1))
        for job in good:
            assert isinstance(bench.outcome(job), int)
        assert {bench.outcome(job)[0] for job in bad} == {"crashed"}
        assert sorted(lines(path)) == sorted(f"{n}.{m}" for n in range(10) for m in range(5))


def test_a_job_that_closes_our_pipe_is_given_up() -> None:
    with Bench(1) as bench:
        assert bench.outcome(bench.submit("close_everything"))[0] == "crashed"
        assert bench.outcome(bench.submit("double", 1)) == 2


# -- time limits --------------------------------------------------------------------------------


def test_a_loop_in_c_is_killed_at_its_limit() -> None:
    with Bench(1) as bench:
        bench.until_up()
        began = time.monotonic()
        job = bench.submit("spin", limit_s=0.3)
        behind = bench.submit("double", 3)
        assert bench.outcome(job) == ("timeout", "ran longer than 0.3 s")
        assert time.monotonic() - began < patient(5)
        assert bench.outcome(behind) == 6
        # Who reads the log need not look for another culprit.
        (note,) = bench.notes
        assert (
            "was killed because of its job (timeout: ran longer than 0.3 s); another takes its place" in note
        )


def test_a_job_may_clean_up_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "TERM_GRACE_S", PATIENCE_S)
    path = tmp_path / "state"
    with Bench(1, time_limit_s=0.3) as bench:
        bench.until_up()
        job = bench.submit("tidy", str(path))
        bench.pool.turn(time.monotonic())
        # Nobody looks at its time before it is where it can clean up.
        until(path.exists)
        assert bench.outcome(job) == ("timeout", "ran longer than 0.3 s")
        assert path.read_text() == "cleaned up: timeout"


def test_the_jobs_own_limit_comes_first(tmp_path: Path) -> None:
    with Bench(1, time_limit_s=0.1) as bench:
        go = tmp_path / "go"
        job = bench.submit("wait_for", str(go), limit_s=30.0)
        bench.until(lambda: bench.is_running(job))
        began = time.monotonic()
        bench.until(lambda: time.monotonic() > began + 0.3)
        assert bench.is_running(job)
        go.touch()
        assert bench.outcome(job) == "found"


def test_what_a_killed_job_has_started_is_killed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with Bench(1) as bench:
        job = bench.submit("start_program", str(path), limit_s=60.0)
        bench.until(lambda: path.exists() and path.read_text())
        program = int(path.read_text())
        assert is_alive(program)
        bench.nursery.kill(next(iter(bench.pids)), signal.SIGKILL)
        assert bench.outcome(job)[0] == "crashed"
        bench.until(lambda: not is_alive(program))


# -- cancelling ---------------------------------------------------------------------------------


def test_a_running_job_is_interrupted_softly_and_its_process_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with Bench(1, cancel_grace_s=PATIENCE_S) as bench:
        bench.until_up()
        pids = bench.pids
        job = bench.submit("tidy", str(path))
        bench.until(path.exists)
        bench.cancel(job)
        assert bench.outcome(job)[0] == "cancelled"
        assert path.read_text() == "cleaned up: cancelled"
        assert bench.outcome(bench.submit("double", 1)) == 2
        assert bench.pids == pids


def test_a_coroutine_is_cancelled_as_coroutines_are(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with Bench(1, cancel_grace_s=PATIENCE_S) as bench:
        job = bench.submit("nap", str(path))
        bench.until(path.exists)
        bench.cancel(job)
        assert bench.outcome(job)[0] == "cancelled"
        assert path.read_text() == "cleaned up"
        again = bench.submit("nap", str(tmp_path / "again"))
        bench.until((tmp_path / "again").exists)
        bench.cancel(again)
        assert bench.outcome(again)[0] == "cancelled"


@pytest.mark.parametrize("name", ["stubborn", "spin"])
def test_one_that_does_not_listen_is_killed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    with Bench(1, cancel_grace_s=0.2) as bench:
        job = bench.submit(name, *([str(path)] if name == "stubborn" else []))
        bench.until(lambda: bench.is_running(job) and (name == "spin" or path.exists()))
        bench.cancel(job)
        code, detail = bench.outcome(job)
        assert code == "cancelled"
        assert "did not end within 0.2 s" in detail
        assert bench.outcome(bench.submit("double", 1)) == 2
        (note,) = bench.notes
        assert f"was killed because of its job (cancelled: {detail}); another takes its place" in note


def test_one_that_has_obeyed_is_not_killed_by_a_supervisor_that_stood_still(tmp_path: Path) -> None:
    path, go = tmp_path / "state", tmp_path / "go"
    with Bench(1, cancel_grace_s=0.1) as bench:
        bench.until_up()
        pids = bench.pids
        bench.pool.mean_s = 0.0
        unwanted, behind = bench.submit("tidy", str(path)), bench.submit("wait_for", str(go))
        bench.pool.turn(time.monotonic())
        until(path.exists)
        (seat,) = bench.pool.seats.values()
        bench.cancel(unwanted)
        # No turn of the pool: it hears of nothing until the time is over.
        until(lambda: bench.is_running(behind) and time.monotonic() > seat.kill_at)
        bench.until(lambda: unwanted in bench.failures)
        go.touch()
        assert bench.outcome(behind) == "found"
        assert bench.failures[unwanted][0] == "cancelled"
        assert bench.pids == pids
        # Whatever comes later is interrupted and killed as before.
        stubborn = bench.submit("spin")
        bench.until(lambda: bench.is_running(stubborn))
        bench.cancel(stubborn)
        assert "did not end within 0.1 s" in bench.outcome(stubborn)[1]


def test_what_has_not_begun_is_dropped_and_the_others_are_not(tmp_path: Path) -> None:
    go, path = tmp_path / "go", tmp_path / "notes"
    with Bench(1) as bench:
        for job in [bench.submit("double", n) for n in range(100)]:
            bench.outcome(job)
        slow = bench.submit("wait_for", str(go))
        behind = [bench.submit("note", str(path), str(n)) for n in range(5)]
        bench.until(lambda: bench.is_running(slow))
        bench.cancel(behind[2])
        assert bench.outcome(behind[2]) == ("cancelled", "it was cancelled before it began")
        go.touch()
        assert bench.outcome(slow) == "found"
        for n in (0, 1, 3, 4):
            bench.outcome(behind[n])
        assert lines(path) == ["0", "1", "3", "4"]


def test_cancelling_twice_or_too_late_does_nothing() -> None:
    with Bench(1) as bench:
        job = bench.submit("double", 1)
        assert bench.outcome(job) == 2
        bench.cancel(job)
        bench.cancel(job)
        assert bench.outcome(bench.submit("double", 2)) == 4


# -- taking back --------------------------------------------------------------------------------


def test_what_is_behind_a_slow_job_goes_to_another_process(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Bench(2) as bench:
        bench.until_up(2)
        for job in [bench.submit("double", n) for n in range(300)]:
            bench.outcome(job)
        slow = bench.submit("wait_for", str(go))
        others = [bench.submit("double", n) for n in range(50)]
        assert [bench.outcome(job) for job in others] == [2 * n for n in range(50)]
        assert bench.is_running(slow)
        go.touch()
        assert bench.outcome(slow) == "found"


def test_a_paused_pool_gives_up_what_it_has_not_begun(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Bench(1) as bench:
        for job in [bench.submit("double", n) for n in range(100)]:
            bench.outcome(job)
        slow = bench.submit("wait_for", str(go))
        for n in range(20):
            bench.submit("double", n)
        bench.until(lambda: bench.is_running(slow))
        bench.pool.pause(time.monotonic())
        bench.until(lambda: len(bench.pool.queue) == 20)
        assert [task.owner for task in bench.pool.take_waiting()] == list(range(101, 121))
        go.touch()
        assert bench.outcome(slow) == "found"
        assert bench.pool.load == 0


def test_a_storm_of_everything_at_once(tmp_path: Path) -> None:
    """Crashes, limits and cancelling at random: whatever ended well ran once, and only the unlucky failed."""
    rng = random.Random(7)
    path = tmp_path / "notes"
    with Bench(2, cancel_grace_s=0.1, prefetch=40, max_jobs=50) as bench:
        bench.until_up(2)
        notes: dict[int, str] = {}
        unlucky: list[int] = []
        cancelled: set[int] = set()
        for n in range(300):
            dice = rng.random()
            if dice < 0.9:
                notes[bench.submit("note", str(path), str(n))] = str(n)
            elif dice < 0.98:
                unlucky.append(bench.submit("leave", 3))
            else:
                unlucky.append(bench.submit("spin", limit_s=0.05))
            if rng.random() < 0.05 and notes:
                victim = rng.choice(list(notes))
                bench.cancel(victim)
                cancelled.add(victim)
            if rng.random() < 0.3:
                bench.turn()
        for job in (*notes, *unlucky):
            bench.outcome(job)
        ran = Counter(lines(path))
        assert set(ran.values()) == {1}
        assert {bench.failures[job][0] for job in unlucky} == {"crashed", "timeout"}
        assert {job for job in notes if job in bench.failures} <= cancelled
        assert all(ran[word] for job, word in notes.items() if job in bench.results)
        assert bench.pool.load == 0


# -- coming and going ---------------------------------------------------------------------------


def test_a_process_is_replaced_after_so_many_jobs() -> None:
    with Bench(1, max_jobs=10) as bench:
        pids = [bench.outcome(bench.submit("pid")) for _ in range(30)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [10, 10, 10]
        # Asking to end is no crash.
        assert bench.notes == []


def test_a_process_that_has_grown_is_replaced() -> None:
    with Bench(1, max_memory=200 << 20) as bench:
        first = bench.outcome(bench.submit("grow", 10))
        bench.outcome(bench.submit("grow", 400))
        bench.until(lambda: bench.notes)
        assert "and is replaced" in bench.notes[0]
        assert bench.outcome(bench.submit("pid")) != first


def test_all_are_replaced_one_by_one_while_jobs_go_on(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Bench(2) as bench:
        bench.until_up(2)
        before = bench.pids
        slow = bench.submit("wait_for", str(go))
        bench.until(lambda: bench.is_running(slow))
        bench.pool.replace_all(time.monotonic())
        bench.until(lambda: not bench.pool.old and len(bench.pids) == 2)
        assert not bench.pids & before
        assert bench.outcome(bench.submit("double", 1)) == 2
        go.touch()
        assert bench.outcome(slow) == "found"
        bench.until(lambda: len(bench.pool.seats) == 2)


def test_those_that_have_not_come_up_are_replaced_too() -> None:
    with Bench(2) as bench:
        # Not a turn of the bench, which would also hear that they have come up.
        bench.pool.turn(time.monotonic())
        before = set(bench.pool.seats)
        assert {seat.state for seat in bench.pool.seats.values()} == {SeatState.STARTING}
        bench.pool.replace_all(time.monotonic())
        bench.until(
            lambda: not bench.pool.old and len(bench.pids) == 2 and not before & bench.pool.seats.keys()
        )
        assert bench.outcome(bench.submit("double", 1)) == 2


def test_one_that_dies_while_it_is_replaced_is_not_replaced_twice() -> None:
    with Bench(1) as bench:
        bench.until_up()
        (pid,) = bench.pids
        bench.pool.replace_all(time.monotonic())
        os.kill(pid, signal.SIGKILL)
        bench.until(lambda: bench.ups == 3 or (bench.ups == 2 and pid not in bench.pids))
        bench.until(lambda: len(bench.pool.seats) == 1 and len(bench.pids) == 1)
        assert bench.pids != {pid}
        assert bench.outcome(bench.submit("double", 1)) == 2


def test_hooks_are_called_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hooks"
    monkeypatch.setenv("POOL_APP_FILE", str(path))
    with Bench(2) as bench:
        bench.until_up(2)
        assert lines(path) == ["start"] * 2
        bench.pool.retire_all(time.monotonic())
        bench.until(lambda: not bench.pool.seats)
        assert lines(path) == ["start"] * 2 + ["stop"] * 2


def test_an_application_that_cannot_be_loaded_says_why_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staffing, "RETRY_S", 0.02)
    with Bench(2, app="support.nowhere:bus") as bench:
        bench.until(lambda: len(bench.faults) >= 4)
        assert all("there is no module support.nowhere" in fault for fault in bench.faults)
        assert bench.retry_s > 0.02
        assert len(bench.pool.seats) <= 2


def test_a_system_that_allows_no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staffing, "RETRY_S", 0.02)
    with Bench(1) as bench:
        key = staffing.start(bench.pool, time.monotonic()).key
        bench.pool.born(key, 0, time.monotonic())
        assert "allows no more processes" in bench.faults[0]
        assert key not in bench.pool.seats
        bench.until_up()


def test_an_end_from_outside_is_made_good() -> None:
    with Bench(1) as bench:
        bench.until_up()
        (pid,) = bench.pids
        os.kill(pid, signal.SIGTERM)
        bench.until(lambda: bench.ups == 2)
        assert bench.outcome(bench.submit("pid")) != pid


def test_children_do_not_outlive_the_nursery() -> None:
    with Bench(2) as bench:
        bench.until_up(2)
        pids = bench.pids
        os.kill(bench.nursery.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)), "the end of all children")
