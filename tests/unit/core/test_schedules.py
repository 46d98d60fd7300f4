"""The engine of schedules: what is due, what was missed, what a changed clock does."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polybus.core.cron import BadSchedule
from polybus.core.ledger import ScheduleEntry, ScheduleRun
from polybus.core.schedules import (
    LATE,
    MAX_INTERVAL_S,
    MAX_KEY,
    MAX_MESSAGE_BYTES,
    MIN_INTERVAL_S,
    MOVED,
    PUNCTUAL_S,
    RAN,
    SKIPPED,
    STALE_TIMES,
    Run,
    Schedules,
    TooManySchedules,
)

WALL = datetime(2026, 6, 1, 12, 0, tzinfo=UTC).timestamp()
MINUTE = ScheduleEntry("minute", b"mail", b"run", interval_s=60.0)
NOON = ScheduleEntry("noon", b"mail", b"run", cron="0 12 * * *")


def told(runs: list[Run]) -> list[tuple[str, float, int]]:
    return [(run.what, run.due_at - WALL, run.missed) for run in runs]


def engine(*entries: ScheduleEntry, haste: bool = False) -> Schedules:
    made = Schedules()
    for entry in entries:
        made.add(entry, WALL, haste)
    return made


# -- on time ----------------------------------------------------------------------------------


def test_an_interval_counts_from_the_time_it_was_set() -> None:
    made = engine(MINUTE)
    assert made.next_at() == WALL + 60
    assert made.due(WALL + 59.99) == []
    assert told(made.due(WALL + 60)) == [(RAN, 60, 0)]
    # A run that was handed out late does not move the next one.
    assert told(made.due(WALL + 122)) == [(RAN, 120, 0)]
    assert made.next_at() == WALL + 180


def test_haste_is_a_first_run_at_once() -> None:
    made = engine(MINUTE, NOON, haste=True)
    assert told(made.due(WALL)) == [(RAN, 0, 0), (RAN, 0, 0)]
    assert made.get("minute").next_at == WALL + 60
    assert made.get("noon").next_at == WALL + 86_400


def test_cron_is_read_in_its_zone() -> None:
    made = engine(NOON, replace(NOON, key="berlin", timezone="Europe/Berlin"))
    assert made.get("noon").next_at == WALL + 86_400
    assert made.get("berlin").next_at == WALL + 22 * 3600


@given(every_s=st.floats(0.1, 1e6), seconds=st.floats(0, 1e8))
def test_an_interval_does_not_drift(every_s: float, seconds: float) -> None:
    made = engine(replace(MINUTE, interval_s=every_s))
    wall = WALL + seconds
    made.due(wall)
    number = round((made.next_at() - WALL) / every_s)
    assert made.next_at() == pytest.approx(WALL + number * every_s, abs=1e-6)
    assert wall < made.next_at() <= wall + every_s + 1e-6


def test_what_is_due_comes_in_the_order_of_its_time() -> None:
    entries = [replace(MINUTE, key=str(s), interval_s=float(s)) for s in (30, 10, 20)]
    assert [run.entry.key for run in engine(*entries).due(WALL + 30)] == ["10", "20", "30"]


def test_no_more_than_asked_for_at_once() -> None:
    made = engine(*(replace(MINUTE, key=str(number)) for number in range(5)))
    assert len(made.due(WALL + 60, most=2)) == 2
    assert made.next_at() == WALL + 60
    assert len(made.due(WALL + 60, most=2)) == 2
    assert len(made.due(WALL + 60, most=2)) == 1
    assert made.next_at() == WALL + 120


def test_the_last_run_ends_the_schedule() -> None:
    made = engine(replace(MINUTE, runs_left=2))
    (first,) = made.due(WALL + 60)
    assert first.next is not None
    assert first.next.runs_left == 1
    (last,) = made.due(WALL + 120)
    assert last.what == RAN
    assert last.next is None
    assert len(made) == 0
    assert made.next_at() == inf


def test_set_again_it_begins_anew() -> None:
    made = engine(MINUTE)
    made.add(replace(MINUTE, interval_s=None, cron="0 13 * * *"), WALL + 10)
    assert made.due(WALL + 60) == []
    assert told(made.due(WALL + 3600)) == [(RAN, 3600, 0)]
    made.add(replace(MINUTE, interval_s=5.0), WALL + 3600)
    assert told(made.due(WALL + 3605)) == [(RAN, 3605, 0)]
    assert told(made.due(WALL + 3610)) == [(RAN, 3610, 0)]


def test_removed_it_is_not_due() -> None:
    made = engine(MINUTE, NOON)
    assert made.remove("minute")
    assert not made.remove("minute")
    assert made.due(WALL + 60) == []
    assert [entry.key for entry in made] == ["noon"]


def test_removed_it_leaves_nothing_behind() -> None:
    made = Schedules(identify=lambda entry: (entry.message.decode(), entry.queue))
    for number in range(3):
        made.add(replace(MINUTE, key=str(number), message=b"job %d" % (number // 2)), WALL)
    for number in range(3):
        made.remove(str(number))
    assert made._keys == made._identities == {}
    # The key may be used again, with a cron text instead of an interval.
    made.add(replace(NOON, key="0"), WALL)
    (run,) = made.due(WALL + 86_400)
    assert told([run]) == [(RAN, 86_400, 0)]
    made.postpone(run, WALL + 86_401)
    made.remove("0")
    assert made._crons == made._postponed == {}
    made.add(replace(MINUTE, key="0"), WALL)
    assert told(made.due(WALL + 60)) == [(RAN, 60, 0)]


def test_old_times_are_not_kept_for_ever() -> None:
    made = engine()
    for number in range(10_000):
        made.add(replace(MINUTE, interval_s=1000.0 + number), WALL)
    assert len(made._order) < 2000


def test_times_of_schedules_that_were_removed_are_not_kept_for_ever() -> None:
    made = engine(*(replace(MINUTE, key=f"{n:04}", interval_s=MAX_INTERVAL_S) for n in range(3000)))
    for number in range(3000):
        assert made.remove(f"{number:04}")
    for _ in range(3000):
        made.add(replace(MINUTE, interval_s=MAX_INTERVAL_S), WALL)
    assert len(made._order) <= 1 + STALE_TIMES
    assert made.next_at() == WALL + MAX_INTERVAL_S


def test_what_is_due_first_comes_first_also_among_old_times() -> None:
    made = engine(replace(MINUTE, key="slow", interval_s=5000.0), MINUTE)
    for number in range(3000):
        made.add(replace(MINUTE, key="other", interval_s=10_000.0 + number), WALL)
    assert made.next_at() == WALL + 60
    assert told(made.due(WALL + 60)) == [(RAN, 60, 0)]


def test_a_run_that_was_put_off_is_not_lost_among_old_times() -> None:
    made = engine(MINUTE, replace(MINUTE, key="other"))
    runs = made.due(WALL + 60)
    for run in runs:
        made.postpone(run, WALL + 100)
    for number in range(3000):
        made.add(replace(MINUTE, key="other", interval_s=1000.0 + number), WALL)
    assert made.due(WALL + 99) == []
    assert told(made.due(WALL + 100)) == [(LATE, 60, 0)]
    assert made.due(WALL + 119) == []


# -- missed -----------------------------------------------------------------------------------


def test_a_run_does_not_put_all_schedules_in_order_again() -> None:
    """With 10,000 schedules that would hold up the bus for as long as many are due."""
    made = engine(*(replace(MINUTE, key=f"{n:04}") for n in range(100)))
    order = made._order
    assert len(made.due(WALL + 60)) == 100
    assert made._order is order


def test_what_was_missed_is_one_late_run() -> None:
    made = engine(MINUTE, NOON)
    runs = {run.entry.key: run for run in made.due(WALL + 3 * 86_400 + 630)}
    assert told([runs["minute"]]) == [(LATE, 3 * 86_400 + 600, 3 * 1440 + 9)]
    assert told([runs["noon"]]) == [(LATE, 3 * 86_400, 2)]
    assert made.get("minute").next_at == WALL + 3 * 86_400 + 660
    assert made.get("noon").next_at == WALL + 4 * 86_400


def test_or_none() -> None:
    made = engine(replace(MINUTE, missed="skip", runs_left=3), replace(NOON, missed="skip"))
    runs = {run.entry.key: run for run in made.due(WALL + 86_400 + 630)}
    assert told([runs["minute"]]) == [(SKIPPED, 86_400 + 600, 1440 + 9)]
    assert told([runs["noon"]]) == [(SKIPPED, 86_400, 0)]
    assert not any(run.starts_job for run in runs.values())
    # What was not run is not used up.
    assert made.get("minute").runs_left == 3


def test_skipping_ends_with_what_is_on_time() -> None:
    made = engine(replace(MINUTE, missed="skip"), replace(NOON, missed="skip"))
    runs = made.due(WALL + 2 * 86_400 + 2)
    by_key = {key: [run for run in runs if run.entry.key == key] for key in ("minute", "noon")}
    assert told(by_key["minute"]) == [(SKIPPED, 2 * 86_400 - 60, 2 * 1440 - 2), (RAN, 2 * 86_400, 0)]
    assert told(by_key["noon"]) == [(SKIPPED, 86_400, 0), (RAN, 2 * 86_400, 0)]


@pytest.mark.parametrize("missed", ["late", "skip"])
def test_a_busy_moment_is_not_late(missed: str) -> None:
    made = engine(replace(MINUTE, missed=missed))
    assert told(made.due(WALL + 60 + PUNCTUAL_S)) == [(RAN, 60, 0)]


def test_every_due_time_is_told_exactly_once() -> None:
    made = engine(replace(MINUTE, interval_s=7.0, missed="skip"))
    total = 0
    for wall in (3, 7, 8, 40, 41, 42, 1000, 1001, 1002, 5000):
        runs = made.due(WALL + wall)
        total += sum(1 + run.missed for run in runs)
        assert total == wall // 7


# -- changed clocks ---------------------------------------------------------------------------


def test_a_clock_set_back_runs_nothing_again() -> None:
    made = engine(replace(MINUTE, interval_s=7200.0), NOON)
    made.due(WALL + 86_400 + 3599)
    for wall in range(86_400, 86_400 + 7200, 60):
        assert made.due(WALL + wall) == []
    assert told(made.due(WALL + 86_400 + 7200)) == [(RAN, 86_400 + 7200, 0)]


def test_an_interval_is_not_silent_for_the_whole_jump() -> None:
    made = engine(MINUTE)
    assert told(made.due(WALL + 60)) == [(RAN, 60, 0)]
    (moved,) = made.due(WALL - 3600)
    assert (moved.what, moved.due_at, moved.starts_job) == (MOVED, WALL + 120, False)
    assert told(made.due(WALL - 3540)) == [(RAN, -3540, 0)]
    # And it is not moved again.
    assert told(made.due(WALL - 3480)) == [(RAN, -3480, 0)]


def test_every_interval_is_laid_anew() -> None:
    made = engine(MINUTE, replace(MINUTE, key="other"), NOON)
    made.due(WALL + 60)
    runs = made.due(WALL - 3600)
    assert told(runs) == [(MOVED, 120, 0)] * 2
    assert [run.entry.key for run in runs] == ["minute", "other"]
    assert [entry.next_at - WALL for entry in made] == [-3540, -3540, 86_400]


def test_a_clock_is_set_back_from_the_latest_time_that_it_showed() -> None:
    made = engine(MINUTE)
    made.due(WALL)
    made.due(WALL + 7200)
    assert told(made.due(WALL + 3600)) == [(MOVED, 7260, 0)]
    assert told(made.due(WALL + 3660)) == [(RAN, 3660, 0)]


def test_a_clock_that_is_put_right_by_a_moment_is_not_set_back() -> None:
    made = engine(replace(MINUTE, interval_s=1.0))
    made.due(WALL + 100)
    assert made.due(WALL + 100 - PUNCTUAL_S) == []
    assert told(made.due(WALL + 99.9 - PUNCTUAL_S)) == [(MOVED, 101, 0)]


def test_an_interval_that_has_to_wait_a_moment_longer_is_not_moved() -> None:
    made = engine(MINUTE)
    made.due(WALL + 119)
    assert made.due(WALL + 60 - PUNCTUAL_S) == []
    made.due(WALL + 119)
    assert told(made.due(WALL + 59.9 - PUNCTUAL_S)) == [(MOVED, 120, 0)]


def test_small_steps_back_add_up() -> None:
    made = engine(MINUTE)
    made.due(WALL + 60)
    for step in range(1, 100):
        wall = WALL + 60 - step * 4
        assert all(run.what == MOVED for run in made.due(wall))
        # Never silent for longer than an interval and a little.
        assert made.next_at() - wall <= 60 + 2 * PUNCTUAL_S


def test_after_a_restart_with_a_clock_set_back() -> None:
    old = engine(MINUTE, NOON)
    made = Schedules()
    made.load(old)
    assert [run.what for run in made.due(WALL - 86_400)] == [MOVED]
    assert made.get("noon").next_at == WALL + 86_400


def test_a_clock_that_leaps_ahead_is_like_a_restart() -> None:
    made = engine(MINUTE)
    assert told(made.due(WALL + 86_400)) == [(LATE, 86_400, 1439)]


def test_the_same_due_time_after_a_jump_has_another_job_id() -> None:
    made = engine(MINUTE)
    ids = [run.job_id for run in made.due(WALL + 60)]
    made.due(WALL - 60)
    ids += [run.job_id for wall in (0, 60, 120) for run in made.due(WALL + wall)]
    assert len(set(ids)) == len(ids) == 4
    assert ids[0].startswith(b"minute@")


def test_replayed_it_has_the_same_job_id() -> None:
    old = engine(MINUTE, haste=True)
    first, second = Schedules(), Schedules()
    first.load(old)
    second.load(old)
    assert [run.job_id for run in first.due(WALL + 1)] == [run.job_id for run in second.due(WALL + 2)]


# -- taken back -------------------------------------------------------------------------------


def test_a_run_that_could_not_begin_is_due_once_more() -> None:
    made = engine(replace(MINUTE, runs_left=1), NOON)
    (run,) = made.due(WALL + 60)
    assert made.postpone(run, WALL + 70)
    assert made.get("minute") == run.entry
    assert made.due(WALL + 69) == []
    (again,) = made.due(WALL + 70)
    assert (again.what, again.due_at, again.missed, again.job_id) == (LATE, WALL + 60, 0, run.job_id)
    assert again.next is None
    # A later due time takes the earlier one along.
    (run,) = made.due(WALL + 86_400)
    assert made.postpone(run, WALL + 2 * 86_400)
    assert told(made.due(WALL + 2 * 86_400)) == [(LATE, 2 * 86_400, 1)]


def test_a_run_that_is_tried_again_before_its_due_time_is_still_that_run() -> None:
    """The clock may be put right by a moment in between."""
    made = engine(MINUTE)
    (run,) = made.due(WALL + 60)
    assert made.postpone(run, WALL + 57)
    (again,) = made.due(WALL + 57)
    assert (again.what, again.due_at, again.missed, again.job_id) == (RAN, WALL + 60, 0, run.job_id)
    assert made.get("minute").next_at == WALL + 120


def test_the_last_run_of_a_cron_text_that_could_not_begin_is_due_once_more() -> None:
    made = engine(replace(NOON, runs_left=1))
    (run,) = made.due(WALL + 86_400)
    assert len(made) == 0
    assert made.postpone(run, WALL + 86_410)
    (again,) = made.due(WALL + 86_410)
    assert (again.what, again.due_at, again.next) == (LATE, WALL + 86_400, None)
    assert again.job_id == run.job_id


def test_but_not_if_the_schedule_went_on() -> None:
    made = engine(MINUTE, NOON)
    (run,) = made.due(WALL + 60)
    made.due(WALL + 120)
    assert not made.postpone(run, WALL + 120)
    (run,) = made.due(WALL + 180)
    made.add(MINUTE, WALL + 181)
    assert not made.postpone(run, WALL + 181)
    (run,) = made.due(WALL + 241)
    made.remove("minute")
    assert not made.postpone(run, WALL + 242)
    assert made.due(WALL + 300) == []


# -- refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (replace(MINUTE, key=""), "key"),
        (replace(MINUTE, key="k" * 201), "key"),
        (replace(MINUTE, key="a\nb"), "key"),
        (replace(MINUTE, queue=b""), "queue"),
        (replace(MINUTE, cron="* * * * *"), "either"),
        (replace(MINUTE, interval_s=None), "either"),
        (replace(MINUTE, interval_s=0.0), "interval"),
        (replace(MINUTE, interval_s=-1.0), "interval"),
        (replace(MINUTE, interval_s=float("nan")), "interval"),
        (replace(MINUTE, interval_s=1e12), "interval"),
        (replace(MINUTE, runs_left=0), "runs"),
        (replace(MINUTE, missed="often"), "late or skip"),
        (replace(MINUTE, message=b"x" * (1024 * 1024 + 1)), "bytes"),
        (replace(NOON, cron="61 * * * *"), "minute"),
        (replace(NOON, timezone="Europe/Atlantis"), "time zone"),
    ],
)
def test_what_makes_no_sense_changes_nothing(entry: ScheduleEntry, word: str) -> None:
    made = engine(MINUTE, NOON)
    with pytest.raises(BadSchedule, match=word):
        made.add(entry, WALL)
    assert [kept.key for kept in made] == ["minute", "noon"]
    assert made.get("minute").next_at == WALL + 60


def test_there_is_room_for_so_many() -> None:
    made = engine(MINUTE, NOON)
    made.most = 2
    with pytest.raises(TooManySchedules, match="remove some"):
        made.add(replace(MINUTE, key="third"), WALL)
    made.add(MINUTE, WALL + 5)


def test_what_cannot_be_understood_any_more_is_kept_but_not_run() -> None:
    made = Schedules()
    odd = replace(NOON, key="odd", timezone="Europe/Atlantis", next_at=WALL)
    ((entry, why),) = made.load([odd, replace(MINUTE, next_at=WALL)])
    assert (entry, "Atlantis" in why) == (odd, True)
    assert [run.entry.key for run in made.due(WALL)] == ["minute"]
    for number in range(2000):
        made.add(replace(MINUTE, interval_s=1000.0 + number), WALL)
    assert {run.entry.key for run in made.due(WALL + 86_400)} == {"minute"}
    assert made.get("odd") == odd


# -- what they are known by -------------------------------------------------------------------


def test_schedules_are_found_by_their_job() -> None:
    asked = []

    def identify(entry: ScheduleEntry) -> tuple[str, bytes] | None:
        asked.append(entry.key)
        return None if entry.key == "named" else (entry.message.decode(), entry.queue)

    made = Schedules(identify=identify)
    for key, queue, message in (
        ("a", b"q", b"x"),
        ("b", b"q", b"x"),
        ("c", b"r", b"x"),
        ("named", b"q", b"x"),
    ):
        made.add(replace(MINUTE, key=key, queue=queue, message=message), WALL)
    assert made.of_job("x") == ["a", "b", "c"]
    assert made.replaced_by(replace(MINUTE, key="new", queue=b"q", message=b"x")) == ["a", "b"]
    assert made.replaced_by(replace(MINUTE, key="a", queue=b"q", message=b"x")) == ["b"]
    assert made.replaced_by(replace(MINUTE, key="named", queue=b"q", message=b"x")) == []
    asked.clear()
    # Runs do not read the message again; what is set anew with another message is another job.
    assert len(made.due(WALL + 60)) == 4
    assert asked == []
    made.add(replace(MINUTE, key="b", queue=b"q", message=b"y"), WALL)
    made.remove("c")
    assert (made.of_job("x"), made.of_job("y"), made.of_job("z")) == (["a"], ["b"], [])


def test_what_is_set_anew_for_another_queue_or_time_is_looked_at_again() -> None:
    made = Schedules(identify=lambda entry: (f"{entry.interval_s} {entry.cron}", entry.queue))
    made.add(MINUTE, WALL)
    made.add(replace(MINUTE, queue=b"other"), WALL)
    assert made.replaced_by(replace(MINUTE, key="new")) == []
    assert made.replaced_by(replace(MINUTE, key="new", queue=b"other")) == ["minute"]
    made.add(replace(MINUTE, interval_s=30.0), WALL)
    assert (made.of_job("60.0 "), made.of_job("30.0 ")) == ([], ["minute"])
    made.add(replace(NOON, key="minute", message=MINUTE.message), WALL)
    assert (made.of_job("30.0 "), made.of_job("None 0 12 * * *")) == ([], ["minute"])
    made.add(replace(NOON, key="minute", message=MINUTE.message, cron="0 13 * * *"), WALL)
    assert (made.of_job("None 0 12 * * *"), made.of_job("None 0 13 * * *")) == ([], ["minute"])


def test_schedules_that_a_store_has_kept_are_found_by_their_job() -> None:
    """Also one that cannot be understood any more: whoever wants to be rid of it names its job."""
    made = Schedules(identify=lambda entry: (entry.message.decode(), entry.queue))
    odd = replace(NOON, key="odd", timezone="Europe/Atlantis", next_at=WALL)
    made.load([odd, replace(MINUTE, next_at=WALL)])
    assert made.of_job("run") == ["odd", "minute"]
    assert made.replaced_by(replace(MINUTE, key="new")) == ["odd", "minute"]
    made.remove("odd")
    assert made.of_job("run") == ["minute"]


def test_schedules_that_are_there_already_are_found_as_well() -> None:
    made = engine(MINUTE, NOON)
    assert made.of_job("run") == []
    made.identify_by(lambda entry: (entry.message.decode(), b""))
    assert made.of_job("run") == ["minute", "noon"]


@pytest.mark.parametrize(
    ("created_at", "every_s", "next_at", "until", "last"),
    [
        (0.24, 1.3, 2.84, 14.54, 13.24),
        (1.46, 1.1, 6.96, 15.76, 14.66),
        (0.18, 1.3, 4.08, 15.78, 14.48),
        (0.0, 1.1, 5.5, 7.7, 6.6),
        (0.0, 2.2, 11.0, 15.4, 13.2),
    ],
)
def test_a_due_time_that_rounding_puts_after_the_clock_has_not_passed(
    created_at: float, every_s: float, next_at: float, until: float, last: float
) -> None:
    made = Schedules()
    entry = ScheduleEntry("often", b"mail", b"run", interval_s=every_s)
    made.load([replace(entry, created_at=created_at, next_at=next_at)])
    (run,) = made.due(until)
    assert run.due_at == pytest.approx(last)
    assert run.missed == round((last - next_at) / every_s)
    assert made.next_at() > until


def test_every_run_has_an_id_of_its_own_and_the_same_one_each_time() -> None:
    made = engine(replace(MINUTE, interval_s=0.1))
    runs = [run for tenth in range(1, 40) for run in made.due(WALL + tenth / 10 + 0.01)]
    assert len(runs) == 39
    assert len({run.job_id for run in runs}) == 39
    again = engine(replace(MINUTE, interval_s=0.1)).due(WALL + 0.11)
    assert again[0].job_id == runs[0].job_id


def test_the_id_of_a_run_has_its_key_and_both_times_in_milliseconds() -> None:
    made = Schedules()
    made.add(replace(MINUTE, interval_s=0.25), WALL + 0.125)
    (run,) = made.due(WALL + 0.5)
    assert run.job_id == b"minute@%d.%d" % (WALL * 1000 + 375, WALL * 1000 + 125)


def test_the_record_of_a_run_names_its_job_if_it_started_one() -> None:
    (ran,) = engine(MINUTE).due(WALL + 61)
    assert ran.record(WALL + 61) == ScheduleRun("minute", WALL + 60, WALL + 61, RAN, 0, ran.job_id)
    (late,) = engine(MINUTE).due(WALL + 150)
    assert late.record(WALL + 150) == ScheduleRun("minute", WALL + 120, WALL + 150, LATE, 1, late.job_id)
    (skipped,) = engine(replace(MINUTE, missed="skip")).due(WALL + 150)
    assert skipped.record(WALL + 150) == ScheduleRun("minute", WALL + 120, WALL + 150, SKIPPED, 1, b"")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interval_s": MIN_INTERVAL_S}, ""),
        ({"interval_s": MIN_INTERVAL_S * 0.99}, "the interval is 0.099 s; it takes 0.1 to"),
        ({"interval_s": MAX_INTERVAL_S}, ""),
        ({"interval_s": MAX_INTERVAL_S + 1}, "the interval is"),
        ({"interval_s": None}, "a schedule has either an interval or a cron text"),
        ({"cron": "* * * * *"}, "a schedule has either an interval or a cron text"),
        ({"key": "k" * MAX_KEY}, ""),
        ({"key": "k" * (MAX_KEY + 1)}, "the key of a schedule has 1 to"),
        ({"key": "ü" * (MAX_KEY // 2 + 1)}, "the key of a schedule has 1 to"),
        ({"key": ""}, "the key of a schedule has 1 to"),
        ({"key": "a\nb"}, "the key of a schedule has 1 to"),
        ({"queue": b""}, "a schedule needs a queue"),
        ({"runs_left": 1}, ""),
        ({"runs_left": 0}, "0 runs: nothing would ever run"),
        ({"missed": "skip"}, ""),
        ({"missed": "never"}, "missed is 'never'; it takes late or skip"),
        ({"message": b"x" * MAX_MESSAGE_BYTES}, ""),
        ({"message": b"x" * (MAX_MESSAGE_BYTES + 1)}, f"allowed are {MAX_MESSAGE_BYTES}"),
    ],
)
def test_a_schedule_is_taken_or_refused_with_what_is_wrong(changes: dict[str, Any], words: str) -> None:
    made = Schedules()
    entry = replace(MINUTE, **changes)
    if not words:
        assert made.add(entry, WALL).key == entry.key
        return
    with pytest.raises(BadSchedule) as error:
        made.add(entry, WALL)
    assert words in str(error.value)
    assert made.next_at() == inf
