"""When archiving waits, and who does it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from polybus.journal import pace as pace_module
from polybus.journal.pace import LITTLE_BYTES, LOOK_S, MUCH_BYTES, PATIENCE_S, Idleness, Pace

SOME = LITTLE_BYTES * 2
BUSY, CALM = 0.1, 1.0


class Machine:
    def __init__(self) -> None:
        self.idle = BUSY
        self.now = 100.0
        self.pace = Pace(lambda: self.idle, lambda: self.now)
        # The first look is too old to tell.
        self.pace.may_wait(0)

    def later(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_busy_machine_is_left_alone_for_a_while(machine: Machine) -> None:
    waited = 0.0
    while machine.pace.may_wait(SOME):
        machine.later(LOOK_S)
        waited += LOOK_S
        assert waited <= PATIENCE_S
    assert waited >= PATIENCE_S - LOOK_S
    # Once it was done, patience begins anew.
    machine.pace.work(lambda: None, SOME)
    assert machine.pace.may_wait(SOME)


@pytest.mark.parametrize("waiting", [0, LITTLE_BYTES, MUCH_BYTES])
def test_little_and_much_do_not_wait(machine: Machine, waiting: int) -> None:
    machine.later(LOOK_S)
    assert not machine.pace.may_wait(waiting)


def test_what_a_machine_did_long_ago_does_not_count(machine: Machine) -> None:
    machine.idle = CALM
    machine.later(60.0)
    assert machine.pace.may_wait(SOME)
    machine.later(LOOK_S)
    assert not machine.pace.may_wait(SOME)


@pytest.mark.parametrize(("looks", "is_known"), [(1.0, True), (1.9, True), (2.1, False), (4.0, False)])
def test_what_a_machine_did_counts_for_two_looks(machine: Machine, looks: float, is_known: bool) -> None:
    """It is looked at a little later than it should be, when it is busy."""
    machine.idle = CALM
    machine.later(looks * LOOK_S)
    assert machine.pace.may_wait(SOME) != is_known


def test_who_was_not_patient_before_begins_now(machine: Machine) -> None:
    machine.later(LOOK_S)
    machine.idle = CALM
    assert not machine.pace.may_wait(SOME)
    machine.later(LOOK_S)
    machine.idle = BUSY
    for _ in range(int(PATIENCE_S / LOOK_S)):
        assert machine.pace.may_wait(SOME)
        machine.later(LOOK_S)
    assert not machine.pace.may_wait(SOME)


def test_bulk_is_done_by_a_thread_that_takes_nothing_from_others(machine: Machine) -> None:
    def who() -> tuple[int, int]:
        return threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    here = who()
    assert machine.pace.work(who, LITTLE_BYTES) == here
    assert machine.pace.work(who, MUCH_BYTES) == here
    other, niceness = machine.pace.work(who, SOME)
    assert other != here[0]
    assert niceness == pace_module.NICENESS
    assert machine.pace.in_gaps(lambda: os.sched_getscheduler(0)) == os.SCHED_IDLE
    assert who() == here


def test_an_error_in_the_gaps_reaches_whoever_asked(machine: Machine) -> None:
    def fail() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        machine.pace.in_gaps(fail)


def test_idle_processors_are_counted_between_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    times = tmp_path / "stat"
    times.write_text("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1 2 3\n")
    idleness = Idleness(times)
    times.write_text("cpu  140 0 110 1050 0 0 0 0 0 0\n")
    assert idleness.processors() == pytest.approx(2.0)
    # The time of guests is in that of users already.
    times.write_text("cpu  100 0 100 1000 0 0 0 0 0 0\n")
    guests = Idleness(times)
    times.write_text("cpu  140 0 110 1050 0 0 0 0 40 0\n")
    assert guests.processors() == pytest.approx(idleness.processors())
    # Too soon to tell anything else.
    times.write_text("cpu  141 0 110 1050 0 0 0 0 0 0\n")
    assert idleness.processors() == pytest.approx(2.0)


def test_a_system_that_does_not_tell_counts_as_idle(tmp_path: Path) -> None:
    assert Idleness(tmp_path / "nothing").processors() == float(os.cpu_count() or 1)


def test_a_system_that_does_not_tell_how_many_processors_it_has_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert Idleness(tmp_path / "nothing").processors() == 1.0
