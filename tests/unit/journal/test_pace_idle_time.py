"""Which columns of the system's processor times count as idle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polybus.journal.pace import Idleness

# The columns of /proc/stat; the time of guests is in that of users already, and is not added again.
COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


@pytest.mark.parametrize("column", COLUMNS)
def test_time_without_work_is_idle_and_all_other_time_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    times = tmp_path / "stat"
    before = dict.fromkeys(COLUMNS, 1000)
    times.write_text(f"cpu  {' '.join(map(str, before.values()))}\ncpu0 1\n")
    idleness = Idleness(times)
    after = {**before, "idle": 1100, "user": 1100}
    after[column] += 200
    times.write_text(f"cpu  {' '.join(map(str, after.values()))}\ncpu0 1\n")
    expected = {"idle": 3.0, "iowait": 3.0, "guest": 2.0, "guest_nice": 2.0}.get(column, 1.0)
    assert idleness.processors() == pytest.approx(expected)


def test_a_file_that_makes_no_sense_counts_as_idle(tmp_path: Path) -> None:
    times = tmp_path / "stat"
    times.write_text("cpu one two\n")
    assert Idleness(times).processors() == float(os.cpu_count() or 1)
