"""What listeners are told of a request: every field of every step of a plain life."""

from __future__ import annotations

from typing import Any

import pytest

from polybus.core.model import JobOptions, Reason
from support.stage import LedgerStage, Stage, client, worker


def facts(seen: Any) -> dict[str, Any]:
    return {name: getattr(seen, name) for name in seen.__struct_fields__}


def test_every_field_of_an_answered_call() -> None:
    stage = Stage()
    stage.worker("w")
    stage.observed.clear()
    stage.submit("c", "1", body=[b"four", b"six"])
    request = stage.request("c", "1")
    token, voice = request.token, request.voice
    stage.now += 1.0
    stage.result("w", token, [b"yes"])
    common = {
        "token": token,
        "request_id": b"1",
        "service": b"echo",
        "client": client("c"),
        "client_voice": voice,
        "size": 7,
        "accepted_at": 1000.0,
        "reason": "",
        "detail": "",
    }
    nobody = {"worker": None, "worker_voice": None, "attempt": 0, "dispatched_at": 0.0}
    somebody = {"worker": worker("w"), "worker_voice": "w", "attempt": 1, "dispatched_at": 1000.0}
    accepted, dispatched, replied = stage.observed
    body = [b"four", b"six"]
    assert facts(accepted) == {**common, **nobody, "what": "accepted", "at": 1000.0, "body": body}
    assert facts(dispatched) == {**common, **somebody, "what": "dispatched", "at": 1000.0, "body": None}
    assert facts(replied) == {**common, **somebody, "what": "replied", "at": 1001.0, "body": [b"yes"]}


@pytest.mark.parametrize("options", [JobOptions(), JobOptions(retries=1), JobOptions(timeout_s=9.0)])
def test_a_job_with_options_is_told_alike(options: JobOptions) -> None:
    stage = Stage()
    stage.worker("w")
    stage.observed.clear()
    stage.submit("c", "1", options=options)
    stage.result("w", stage.token("c", "1"))
    told = [(seen.what, seen.reason, seen.detail, seen.attempt, seen.size) for seen in stage.observed]
    assert told == [("accepted", "", "", 0, 3), ("dispatched", "", "", 1, 3), ("replied", "", "", 1, 3)]


def test_a_guaranteed_job_says_so_when_it_is_accepted() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.observed.clear()
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.write()
    stage.result("w", stage.token("c", "1"))
    stage.write()
    assert [(seen.what, seen.reason, seen.detail) for seen in stage.observed] == [
        ("accepted", "guaranteed", ""),
        ("dispatched", "", ""),
        ("replied", "", ""),
    ]


def test_a_failure_has_its_reason_and_the_words_of_the_worker() -> None:
    stage = Stage()
    stage.worker("w")
    stage.observed.clear()
    stage.submit("c", "1")
    stage.fail("w", stage.token("c", "1"), Reason.REJECTED)
    failed = stage.observed[-1]
    assert (failed.what, failed.reason, failed.detail) == ("failed", "rejected", "it broke")
    assert (failed.worker, failed.attempt) == (worker("w"), 1)


def test_what_happens_is_counted_once_for_the_broker_and_for_the_service() -> None:
    stage = Stage()
    stage.worker("w", credit=10)
    for number in range(3):
        stage.submit("c", str(number))
    stage.submit("c", "0")
    stage.result("w", stage.token("c", "0"))
    stage.fail("w", stage.token("c", "1"))
    stage.submit("c", "0")
    counters, service = stage.bus.counters, stage.bus.services[b"echo"]
    assert (counters.accepted, counters.dispatched, counters.replied, counters.failed) == (3, 3, 1, 1)
    assert (counters.duplicates, counters.replayed) == (2, 1)
    assert (counters.rejected, counters.expired, counters.cancelled, counters.late) == (0, 0, 0, 0)
    assert (service.running, service.waiting, service.failed) == (1, 0, 1)
