"""Jobs that have ended, as the command line and the dashboard show them."""

from __future__ import annotations

import base64

from polybus.core.job_views import dead_line, ended_whole, group_whole
from polybus.core.model import JobOptions
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
    assert (view["token"], view["job"], view["state"]) == ("all", "all", "running")
    assert "all/0 to all/1; 2 have not ended" in view["detail"]
    assert (view["guarantee"], view["dead"], view["history"]) == (True, False, [])
    # Whoever shows jobs finds the same fields in all of them.
    stage.worker("w", credit=9)
    stage.fail("w", stage.token("c", "1"))
    stage.wait(1.0)
    stage.write()
    (letter,) = stage.dead()
    assert view.keys() == ended_whole(letter.job.token, None, letter).keys()
