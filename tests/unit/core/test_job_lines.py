"""Jobs that have not ended, as the command line and the dashboard show them: every field."""

from __future__ import annotations

import base64
from math import inf

import msgspec
import pytest

from polybus.core.job_views import attempt_view, ended_whole, job_line, job_whole, preview
from polybus.core.model import JobOptions
from support.stage import LedgerStage


@pytest.fixture
def stage() -> LedgerStage:
    stage = LedgerStage()
    stage.bus.wall_offset = 1_000_000.0
    return stage


def test_a_job_that_nobody_has_yet(stage: LedgerStage) -> None:
    stage.submit("c", "1", body=[b"head", b"body"], options=JobOptions(retries=2, timeout_s=7.0))
    request = stage.request("c", "1")
    stage.now += 1.5
    line = {
        "token": request.token.decode(),
        "job": "1",
        "service": "echo",
        "state": "queued",
        "attempt": 0,
        "retries": 2,
        "guarantee": False,
        "worker": None,
        "age_s": 1.5,
        "due_in_s": None,
        "reason": "",
        "detail": "",
        "client": "c",
        "dialect": "some",
        "bytes": 8,
    }
    assert job_line(stage.bus, request, stage.now, lambda _: "some") == line
    whole = job_whole(stage.bus, request, stage.now, lambda _: "some")
    assert whole == {
        **line,
        "timeout_s": 7.0,
        "backoff_s": None,
        "then": [],
        "group": "",
        "dead": False,
        "accepted_at": stage.bus.wall_at(1000.0),
        "due_at": None,
        "expires_at": None if request.expires_at == inf else stage.bus.wall_at(request.expires_at),
        "ended_at": None,
        "body_base64": [base64.b64encode(part).decode() for part in (b"head", b"body")],
        "result_base64": None,
        "history": [],
    }


def test_when_it_expires_if_it_does(stage: LedgerStage) -> None:
    stage.submit("c", "1", options=JobOptions(retries=1))
    request = stage.request("c", "1")
    for expires_at, shown in ((1300.0, stage.bus.wall_at(1300.0)), (inf, None)):
        request.expires_at = expires_at
        assert job_whole(stage.bus, request, stage.now, str)["expires_at"] == shown


def test_a_job_that_runs_and_one_that_waits_for_its_next_attempt(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=2, backoff_s=10.0, timeout_s=99.0))
    request = stage.request("c", "1")
    running = job_line(stage.bus, request, stage.now, str)
    # The alarm of one that runs is its time limit, not when it goes on.
    assert (running["state"], running["worker"], running["due_in_s"]) == ("running", "w", None)
    assert (running["attempt"], running["reason"]) == (1, "")
    stage.fail("w", request.token)
    waiting = job_line(stage.bus, request, stage.now, str)
    assert (waiting["worker"], waiting["attempt"]) == (None, 1)
    assert (waiting["reason"], waiting["detail"]) == ("failed", "it broke")
    assert 8.9 <= waiting["due_in_s"] <= 11.1
    whole = job_whole(stage.bus, request, stage.now, str)
    assert whole["due_at"] == pytest.approx(stage.bus.wall_at(stage.now + waiting["due_in_s"]), abs=0.01)
    assert (whole["backoff_s"], whole["timeout_s"]) == (10.0, 99.0)
    assert whole["history"] == [attempt_view(request.history[0])]
    assert attempt_view(request.history[0]) == msgspec.structs.asdict(request.history[0])
    # A job that is due is not due in the past.
    assert job_line(stage.bus, request, stage.now + 60.0, str)["due_in_s"] == 0.0


def test_a_job_of_the_built_in_services_has_no_client(stage: LedgerStage) -> None:
    stage.job("one", service="echo")
    line = job_line(stage.bus, stage.job_request("one"), stage.now, str)
    assert (line["client"], line["job"]) == ("", "one")


def test_a_job_whose_outcome_alone_is_kept(stage: LedgerStage) -> None:
    stage.worker("w")
    stage.job("one", service="echo", guarantee=True)
    stage.write()
    token = stage.job_request("one").token
    stage.result("w", token, [b"done"])
    stage.write()
    (outcome,) = stage.contents().outcomes
    view = ended_whole(token, outcome, None)
    assert (view["token"], view["job"], view["service"]) == (token.decode(), "one", "echo")
    assert (view["state"], view["dead"], view["guarantee"]) == ("done", False, True)
    assert (view["attempt"], view["retries"], view["bytes"], view["worker"]) == (None, None, None, None)
    assert (view["accepted_at"], view["expires_at"], view["body_base64"]) == (None, None, None)
    assert (view["reason"], view["detail"], view["history"]) == ("", "", [])
    assert view["result_base64"] == [base64.b64encode(b"done").decode()]


def test_previews_show_the_beginning_of_the_first_frames() -> None:
    shown = preview([b"x" * 1025] * 17)
    assert len(shown) == 16
    assert {len(base64.b64decode(part)) for part in shown} == {1024}
    assert preview([]) == []
