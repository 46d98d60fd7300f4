"""A short `make crash`: processes are killed while jobs run, and none of the jobs gets lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import patient

RUN = Path(__file__).parents[1] / "crash" / "run.py"
# The run itself takes half a minute; a busy machine is given the time.
PATIENCE_S = 240


def crash(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(PATIENCE_S))


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 10)
def test_no_guaranteed_job_is_lost_and_none_is_answered_twice() -> None:
    done = crash("--kills", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(
        r"crash: kills=(\d+) acked=(\d+) lost=0 double_finals=0 executions_per_job=(\d\.\d\d)", last
    )
    assert found, last
    assert int(found[1]) >= 20
    assert int(found[2]) > 500
    assert 1.0 <= float(found[3]) < 1.5
