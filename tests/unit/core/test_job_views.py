"""Jobs that have ended, as the command line and the dashboard show them."""

from __future__ import annotations

import base64
from math import inf

import pytest
from msgspec.structs import replace

from polybus.core import envelope, events
from polybus.core.job_views import (
    dead_line,
    ended_whole,
    group_whole,
    job_line,
    job_whole,
    jobs,
    preview,
    run_view,
)
from polybus.core.ledger import Outcome, ScheduleRun
from polybus.core.model import PLAIN_CALL, JobOptions, Reason
from support.ledgers import job, letter
from support.stage import LedgerStage


def test_a_dead_letter_tells_everything_about_its_job() -> None:
    stage = LedgerStage()
    stage.worker("w")
    options = JobOptions(retries=1, backoff_s=1.0, guarantee=True)
    stage.submit("c", "1", body=[b"head", b"body"], options=options)
    stage.write()
    for _ in range(2):
        stage.fail("w", stage.token("c", "1"))
        stage.wait(3.0)
        stage.write()
    (letter,) = stage.dead()
    history = [attempt["reason"] for attempt in dead_line(letter).pop("history")]
    assert history == ["failed", "failed"]
    assert {name: value for name, value in dead_line(letter).items() if name != "history"} == {
        "token": letter.job.token.decode(),
        "job": "1",
        "service": "echo",
        "at": letter.at,
        "attempts": 2,
        "reason": "failed",
        "detail": "it broke",
        "accepted_at": letter.job.accepted_at,
        "bytes": 8,
    }
    view = ended_whole(letter.job.token, None, letter)
    assert view["token"] == letter.job.token.decode()
    assert (view["job"], view["service"], view["client"]) == ("1", "echo", "c")
    # The name of the client's link begins with its dialect.
    assert view["dialect"] == "clients"
    assert (view["state"], view["dead"], view["guarantee"]) == ("failed", True, True)
    assert (view["attempt"], view["retries"], view["bytes"]) == (2, 1, 8)
    assert (view["reason"], view["detail"]) == (letter.reason, letter.detail)
    assert (view["worker"], view["due_at"], view["due_in_s"], view["age_s"]) == (None, None, None, None)
    assert (view["accepted_at"], view["expires_at"]) == (letter.job.accepted_at, letter.job.expires_at)
    assert view["ended_at"] == letter.at
    assert view["result_base64"] is None
    assert base64.b64encode(b"head") in str(view["body_base64"]).encode()
    assert [attempt["reason"] for attempt in view["history"]] == ["failed", "failed"]


def test_a_group_that_waits_for_its_members_looks_like_a_job() -> None:
    stage = LedgerStage()
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.group("all", {"service": "echo"}, {"service": "echo"})
    stage.write()
    view = group_whole(stage.bus, b"all")
    nothing = ("attempt", "retries", "worker", "age_s", "due_in_s", "bytes", "backoff_s", "accepted_at")
    nothing += ("due_at", "expires_at", "ended_at", "body_base64", "result_base64")
    assert view == {
        **dict.fromkeys(nothing),
        **dict.fromkeys(("service", "reason", "client", "dialect", "group"), ""),
        "token": "all",
        "job": "all",
        "state": "running",
        "guarantee": True,
        "detail": "a group of 2 jobs, all/0 to all/1; 2 have not ended",
        "timeout_s": 0.0,
        "then": [],
        "dead": False,
        "history": [],
    }
    # Whoever shows jobs finds the same fields in all of them.
    stage.worker("w", credit=9)
    stage.fail("w", stage.token("c", "1"))
    stage.wait(1.0)
    stage.write()
    (letter,) = stage.dead()
    assert view.keys() == ended_whole(letter.job.token, None, letter).keys()


def test_a_job_that_has_not_ended_tells_everything() -> None:
    stage = LedgerStage()
    stage.worker("w")
    then = (envelope.write_spec(envelope.JobSpec("next")), envelope.write_spec(envelope.JobSpec("last")))
    options = JobOptions(
        retries=3,
        backoff_s=2.0,
        timeout_s=9.0,
        guarantee=True,
        then=then,
        group=b"all",
        reply_requested=False,
    )
    stage.submit("c", "1", body=[b"head", b"x" * 1025], options=options)
    stage.write()
    (request,) = stage.bus.requests.values()
    bus = stage.bus
    line = job_line(bus, request, request.accepted_at + 1.23456, str)
    assert line == {
        "token": request.token.decode(),
        "job": "1",
        "service": "echo",
        "state": "running",
        "attempt": 1,
        "retries": 3,
        "guarantee": True,
        "worker": "w",
        "age_s": 1.235,
        "due_in_s": None,
        "reason": "",
        "detail": "",
        "client": "c",
        "dialect": str(request.voice),
        "bytes": 1029,
    }
    view = job_whole(bus, request, request.accepted_at, str)
    assert {name: value for name, value in view.items() if name not in line} == {
        "timeout_s": 9.0,
        "backoff_s": 2.0,
        "then": ["next", "last"],
        "group": "all",
        "dead": False,
        "accepted_at": bus.wall_at(request.accepted_at),
        "due_at": None,
        "expires_at": None if request.expires_at == inf else bus.wall_at(request.expires_at),
        "ended_at": None,
        "body_base64": [base64.b64encode(b"head").decode(), base64.b64encode(b"x" * 1024).decode()],
        "result_base64": None,
        "history": [],
    }
    # It failed, and waits for its next attempt.
    stage.fail("w", stage.token("c", "1"))
    line = job_line(bus, request, stage.now, str)
    assert (line["state"], line["worker"], line["reason"]) == ("waiting", None, "failed")
    assert (line["detail"], line["attempt"]) == ("it broke", 1)
    assert line["due_in_s"] == pytest.approx(2.0, abs=0.3)
    assert job_line(bus, request, stage.now + 100, str)["due_in_s"] == 0.0
    view = job_whole(bus, request, stage.now, str)
    assert view["due_at"] == pytest.approx(bus.wall_at(stage.now) + 2.0, abs=0.3)
    assert [(one["number"], one["reason"], one["detail"]) for one in view["history"]] == [
        (1, "failed", "it broke")
    ]


def test_jobs_are_listed_by_state_and_service_up_to_a_limit() -> None:
    stage = LedgerStage()
    stage.worker("w", "echo", credit=1)
    job = JobOptions(guarantee=True)
    for number in range(3):
        stage.submit("c", str(number), "echo", options=job)
    stage.submit("c", "other", "other", options=job)
    stage.write()
    # A call without options is no job, nor is one whose options say nothing.
    stage.submit("c", "call", "echo")
    stage.submit("c", "options", "echo", options=replace(PLAIN_CALL))

    def listed(state: str = "", service: str = "", limit: int = 10) -> list[str]:
        return [line["job"] for line in jobs(stage.bus, stage.now, str, state, service, limit)]

    assert listed() == ["0", "1", "2", "other"]
    assert listed(limit=2) == ["0", "1"]
    assert listed(limit=0) == []
    assert listed("running") == ["0"]
    assert listed("queued") == ["1", "2", "other"]
    assert listed("queued", "echo", 1) == ["1"]
    assert listed(service="other") == ["other"]
    assert listed(service="nobody") == []


def test_a_body_is_shown_in_part() -> None:
    assert preview([b"a"] * 17) == ["YQ=="] * 16
    assert preview([b"x" * 1024, b"y" * 1025]) == [
        base64.b64encode(b"x" * 1024).decode(),
        base64.b64encode(b"y" * 1024).decode(),
    ]
    assert preview([]) == []


def test_a_group_tells_which_services_get_its_results() -> None:
    stage = LedgerStage()
    stage.group("all", {"service": "echo"}, then=[{"service": "sum"}, {"service": "store"}])
    stage.write()
    assert group_whole(stage.bus, b"all")["then"] == ["sum", "store"]


def test_names_that_are_no_text_are_shown_all_the_same() -> None:
    stage = LedgerStage()
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    (request,) = stage.bus.requests.values()
    request.service.name = b"e\xff"
    assert job_line(stage.bus, request, stage.now, str)["service"] == "e\ufffd"
    outcome = Outcome(b"t\xff", "", b"", b"\xff", b"e\xff", 7.0)
    view = ended_whole(b"t\xff", outcome, None)
    assert (view["token"], view["job"], view["service"]) == ("t\ufffd", "ff", "e\ufffd")
    # Nobody waits for it at any link.
    assert (view["client"], view["dialect"]) == ("", "")
    dead = dead_line(replace(letter(1), job=job(1, service=b"e\xff")))
    assert dead["service"] == "e\ufffd"
    assert run_view(ScheduleRun("k", 1.0, 2.0, "ran", 3, b"t\xff"))["token"] == "t\ufffd"


def test_a_dead_letter_tells_the_options_of_its_job() -> None:
    options = JobOptions(guarantee=False, retries=2, timeout_s=9.0, backoff_s=3.0, group=b"all")
    found = replace(letter(1), job=job(1, options=options, expires_at=1.7e9))
    view = ended_whole(b"t", None, found)
    assert (view["guarantee"], view["retries"], view["expires_at"]) == (False, 2, 1.7e9)
    assert (view["timeout_s"], view["backoff_s"], view["group"]) == (9.0, 3.0, "all")
    # It was submitted by its id, so no peer is its client.
    found = replace(letter(1), job=job(1, link="", identity=b"jobs"))
    assert (ended_whole(b"t", None, found)["client"], ended_whole(b"t", None, found)["dialect"]) == ("", "")


def test_a_job_tells_how_its_last_attempt_ended_and_when_the_next_is_due() -> None:
    stage = LedgerStage()
    stage.worker("w")
    stage.submit("c", "1", options=JobOptions(retries=3, backoff_s=2.0, guarantee=True))
    stage.write()
    (request,) = stage.bus.requests.values()
    for reason in (Reason.FAILED, Reason.TIMEOUT):
        stage.fail("w", stage.token("c", "1"), reason)
        due_at = job_whole(stage.bus, request, stage.now, str)["due_at"] - stage.bus.wall_offset
        line = job_line(stage.bus, request, due_at - 1.23456, str)
        assert (line["reason"], line["due_in_s"]) == (reason, 1.235)
        stage.wait(9.0)
    assert request.attempt == 3


def test_a_job_that_is_left_to_the_next_broker_is_due_at_no_time() -> None:
    stage = LedgerStage()
    stage.submit("c", "1", options=JobOptions(guarantee=True))
    stage.write()
    stage.do(events.Drain())
    (request,) = stage.bus.requests.values()
    line = job_line(stage.bus, request, stage.now, str)
    assert (line["state"], line["due_in_s"]) == ("waiting", None)
    assert job_whole(stage.bus, request, stage.now, str)["due_at"] is None


@pytest.mark.parametrize(
    ("reason", "state"),
    [("", "done"), ("failed", "failed"), ("timeout", "failed"), ("expired", "expired"), ("cancelled",) * 2],
)
def test_how_a_job_ended(reason: str, state: str) -> None:
    outcome = Outcome(b"t", "emqp.frontend", b"c", b"1", b"echo", 7.0, reason=reason, detail="why")
    view = ended_whole(b"t", outcome, None)
    assert (view["state"], view["reason"], view["detail"]) == (state, reason, "why")


def test_an_outcome_alone_and_a_run_tell_what_is_known_of_them() -> None:
    outcome = Outcome(b"t", "emqp.frontend", b"c", b"1", b"echo", 7.0, body=[b"done"])
    view = ended_whole(b"t", outcome, None)
    unknown = ("attempt", "retries", "worker", "age_s", "due_in_s", "bytes", "accepted_at", "due_at")
    assert {view[name] for name in (*unknown, "expires_at", "body_base64")} == {None}
    assert (view["state"], view["reason"], view["detail"], view["dead"]) == ("done", "", "", False)
    assert (view["guarantee"], view["client"], view["dialect"]) == (True, "c", "emqp")
    assert (view["ended_at"], view["result_base64"], view["history"]) == (7.0, ["ZG9uZQ=="], [])
    assert (view["then"], view["group"], view["timeout_s"], view["backoff_s"]) == ([], "", 0.0, None)
    run = ScheduleRun("k", 1.0, 2.0, "ran", 3, b"t")
    assert run_view(run) == {"key": "k", "due_at": 1.0, "at": 2.0, "what": "ran", "missed": 3, "token": "t"}
