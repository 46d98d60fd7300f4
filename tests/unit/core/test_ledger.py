"""The histories of jobs: what counts as a failure, and what is left out of a long one."""

from __future__ import annotations

import pytest

from polybus.core.ledger import HISTORY, LEFT_OUT, REVIVED, Attempt, failures_in, losses_in, shortened
from polybus.core.model import Reason

FAILED, LOST, TIMEOUT = str(Reason.FAILED), str(Reason.WORKER_LOST), str(Reason.TIMEOUT)


def history(*reasons: str) -> tuple[Attempt, ...]:
    return tuple(Attempt(number, 100.0 + number, "w", reason) for number, reason in enumerate(reasons, 1))


@pytest.mark.parametrize(
    ("reasons", "failures", "losses"),
    [
        ((), 0, 0),
        ((FAILED, TIMEOUT), 2, 0),
        # A lost worker is no failure of the job, and a failure is no loss.
        ((FAILED, LOST, LOST, TIMEOUT), 2, 2),
        # An operator queued it again: it has all its attempts once more.
        ((FAILED, LOST, REVIVED), 0, 0),
        ((FAILED, LOST, REVIVED, LOST, FAILED, FAILED), 2, 1),
        ((LOST, REVIVED, REVIVED, LOST, LOST), 0, 2),
    ],
)
def test_what_counts_since_a_job_was_last_revived(
    reasons: tuple[str, ...], failures: int, losses: int
) -> None:
    assert (failures_in(history(*reasons)), losses_in(history(*reasons))) == (failures, losses)


def test_a_long_history_tells_how_it_began_and_how_it_went_lately() -> None:
    whole = history(*[FAILED] * (HISTORY + 3))
    left_out = Attempt(4, 102.0, "", LEFT_OUT, "so many failed attempts are left out here")
    assert shortened(whole) == (whole[0], left_out, *whole[5:])
    assert len(shortened(whole)) == HISTORY
    assert failures_in(shortened(whole)) == failures_in(whole)
    assert shortened(whole[:HISTORY]) == whole[:HISTORY]


def test_of_a_long_history_lost_workers_and_revivals_are_kept() -> None:
    whole = history(FAILED, LOST, REVIVED, *[FAILED] * (HISTORY - 2), LOST)
    kept = shortened(whole)
    left_out = Attempt(3, 104.0, "", LEFT_OUT, "so many failed attempts are left out here")
    assert kept == (*whole[:3], left_out, *whole[6:])
    assert (failures_in(kept), losses_in(kept)) == (failures_in(whole), losses_in(whole))
