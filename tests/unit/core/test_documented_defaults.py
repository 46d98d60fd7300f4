"""The defaults of the core and the journal are those of docs/reference/settings.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from polybus.core import last_values, latency, logs
from polybus.core.bus import Bus
from polybus.core.model import Limits, QueuePolicy, Retrying
from polybus.journal.archive import Keep

SETTINGS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "settings.md"
ROW = re.compile(r"^\| `([a-z_]+\.[a-z_]+)` \| [^|]* \| ([^|]*) \|", re.MULTILINE)


def documented() -> dict[str, str]:
    return dict(ROW.findall(SETTINGS.read_text()))


def number(name: str) -> float:
    return float(documented()[name].replace(",", ""))


@pytest.mark.parametrize("field", Limits.__struct_fields__)
def test_limits(field: str) -> None:
    assert getattr(Limits(), field) == number(f"limits.{field}")


@pytest.mark.parametrize(
    ("value", "setting"),
    [
        (Keep().days, "journal.keep_days"),
        (Keep().bytes, "journal.keep_bytes"),
        (Keep().compact_after_s, "journal.compact_after_s"),
        (Retrying().backoff_s, "jobs.backoff_s"),
        (Retrying().backoff_max_s, "jobs.backoff_max_s"),
        (last_values.COUNT, "last_values.count"),
        (last_values.BYTES, "last_values.bytes"),
        (logs.COUNT, "logs.count"),
        (logs.BYTES, "logs.bytes"),
        (logs.AGE_S, "logs.age_s"),
        (logs.WARNINGS_AGE_S, "logs.warnings_age_s"),
    ],
)
def test_other_settings(value: Any, setting: str) -> None:
    assert value == number(setting)


def test_outcomes_are_kept_as_long_as_the_settings_say() -> None:
    assert Bus(b"n-").outcomes_age_s == number("jobs.results_age_s")


def test_a_queue_without_rules_has_no_limits() -> None:
    policy = QueuePolicy()
    assert (policy.guarantee, policy.concurrency, policy.rate_per_s) == (False, 0, 0.0)
    assert (policy.retries, policy.timeout_s, policy.silence_s, policy.weight) == (None, None, None, None)


def test_one_answer_in_sixteen_is_timed_after_the_first_thousand_and_stands_for_the_others() -> None:
    times = latency.Times()
    passed_over = [times.note(b"echo", 0.001) for _ in range(1000)]
    assert passed_over == [0] * 999 + [15]
    assert sum(times.counts[b"echo"].values()) == 1000
    assert times.note(b"echo", 0.001) == 15
    assert sum(times.counts[b"echo"].values()) == 1016
    times.looked_at()
    assert times.note(b"echo", 0.001) == 0
    assert sum(times.counts[b"echo"].values()) == 1017
