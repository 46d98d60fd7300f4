"""A trace in words: `polybus journal trace` and the dashboard print these."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polybus.journal.record import Row
from polybus.journal.telling import as_json, explained, json_row, outcome, since
from polybus.journal.trace import trace
from support.journals import NOON_US, SECOND_US, Logs, life_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "a")


def steps(logs: Logs, *names: str, **facts: Any) -> list[str]:
    """What is told of a request's steps."""
    rows = [msgspec.structs.replace(row, **facts) for row in life_of("life-1", NOON_US, *names)]
    logs.write(rows)
    (request,) = trace([logs.journal], "life-1").requests
    return [explained(row) for row in request.rows]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (-0.5, "-500.0 ms"),
        (1.0, "1.00 s"),
        (119.0, "119.00 s"),
        (120.0, "2.0 min"),
        (7199.0, "120.0 min"),
        (7200.0, "2.0 h"),
    ],
)
def test_times_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert since(NOON, NOON + timedelta(seconds=seconds)) == text


def test_every_step_says_who_had_it_and_for_how_long(logs: Logs) -> None:
    accepted, dispatched, replied = steps(logs, "dispatched", "replied")
    assert accepted.startswith("from ada (mdr")
    assert accepted.endswith("4 bytes")
    assert dispatched.startswith("to ")
    assert dispatched.endswith(", attempt 1")
    assert replied.startswith("by ")
    assert "4 bytes" in replied
    assert replied.endswith("1.0 ms after it was given to it")


def test_what_nobody_had_was_given_to_nobody(logs: Logs) -> None:
    assert steps(logs, "expired")[-1] == "no worker had it; expired_reason"


def test_attempts_have_numbers(logs: Logs) -> None:
    assert steps(logs, "dispatched", "replied", attempt=2)[1].endswith(", attempt 2")


def test_a_call_that_is_never_tried_again_has_none(logs: Logs) -> None:
    assert "attempt" not in steps(logs, "dispatched", "replied", attempt=0)[1]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("guaranteed", "on disk before its client is told"),
        ("revived", "an operator queued the dead letter again"),
    ],
)
def test_why_it_is_there(logs: Logs, reason: str, words: str) -> None:
    assert steps(logs, "dispatched", reason=reason)[0].endswith(words)


def test_what_has_not_ended_depends_on_its_own_broker(logs: Logs) -> None:
    logs.write([Row("started", NOON_US), *life_of("life-1", NOON_US + 1, "dispatched")])
    logs.write([Row("stopped", NOON_US + SECOND_US)])
    later = NOON_US + 2 * SECOND_US
    logs.write([Row("started", later), *life_of("next-1", later + 1, "dispatched")], life="next")

    def told(token: str) -> str:
        found = trace([logs.journal], token)
        return outcome(found, found.requests[0])

    assert told("life-1") == "lost: dispatched when the broker stopped"
    assert told("next-1") == "not ended: dispatched"
    # One that was killed says nothing; the next one that starts shows it.
    logs.write([Row("started", later + SECOND_US)], life="last")
    assert told("next-1") == "lost: dispatched when the broker was killed"


def test_for_programs(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, "dispatched", "replied"))
    told = as_json(trace([logs.journal], "life-1"), bodies=True)
    assert (told["name"], told["complete"]) == ("life-1", True)
    (request,) = told["requests"]
    assert (request["token"], request["request_id"], request["service"]) == ("life-1", "id-life-1", "echo")
    assert (request["outcome"], request["reason"]) == ("replied", None)
    assert request["told"] == "replied after 2.0 ms"
    assert [step["what"] for step in request["steps"]] == ["accepted", "dispatched", "replied"]
    assert request["steps"][0]["body_base64"] == ["cGluZw=="]
    assert all(step["told"] for step in request["steps"])


def test_a_row_without_what_it_does_not_have() -> None:
    row = {"at": NOON, "what": "replied", "reason": None, "body": [b"x"], "size": 0}
    assert json_row(row, bodies=False) == {"at": NOON.isoformat(), "what": "replied", "size": 0}
    assert json_row(row, bodies=True)["body_base64"] == ["eA=="]


@pytest.mark.parametrize(
    ("request_id", "words"),
    [
        (b"r1", "; it is kept for a while, should the client ask again with this id"),
        (b"", "; the client gave the request no id, so it cannot"),
    ],
)
def test_whether_a_lost_answer_can_be_asked_for_again(logs: Logs, request_id: bytes, words: str) -> None:
    """It is found by the token of its request: clients of some dialects give no ids."""
    lost = Row("answer_lost", NOON_US + SECOND_US, token=b"lost-1", request_id=request_id, client=b"ada")
    logs.write([*life_of("lost-1", NOON_US, "dispatched", "replied"), lost])
    (request,) = trace([logs.journal], "lost-1").requests
    assert words in explained(request.rows[-1])


def test_for_programs_a_failure_has_its_reason_and_what_goes_on_has_no_outcome(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, "dispatched", "failed"))
    logs.write([msgspec.structs.replace(row, request_id=b"") for row in life_of("life-2", NOON_US)])
    for name, outcome_of, reason, request_id in (
        ("life-1", "failed", "failed_reason", "id-life-1"),
        ("life-2", None, None, None),
    ):
        (request,) = as_json(trace([logs.journal], name), bodies=False)["requests"]
        assert (request["outcome"], request["reason"]) == (outcome_of, reason)
        assert (request["request_id"], request["broker"]) == (request_id, "tested")
        assert request["journal"] == str(logs.journal)
        assert not any("body_base64" in step for step in request["steps"])


def test_for_programs_it_is_said_that_something_was_left_out(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, "replied"))
    found = trace([logs.journal], "life-1")
    assert as_json(found, bodies=False)["complete"] is True
    found.is_cut = True
    assert as_json(found, bodies=False)["complete"] is False
