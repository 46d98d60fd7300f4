"""`polybus jobs` against answers as the broker gives them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

from polybus.cli.main import run
from support.canned import Canned, stand_in

AT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def listed(**facts: Any) -> dict[str, Any]:
    return {
        "token": "n-1",
        "job": "mail-1",
        "service": "email",
        "state": "waiting",
        "attempt": 2,
        "retries": 3,
        "guarantee": True,
        "worker": None,
        "age_s": 12.0,
        "due_in_s": 4.0,
        "reason": "failed",
        **facts,
    }


def whole(**facts: Any) -> dict[str, Any]:
    return {
        **listed(),
        "detail": "smtp is down",
        "dead": False,
        "timeout_s": 60.0,
        "client": "c-1",
        "dialect": "emqp",
        "accepted_at": AT,
        "due_at": AT + 5,
        "expires_at": None,
        "ended_at": None,
        "bytes": 9,
        "body_base64": [b64("to: ada")],
        "result_base64": None,
        "then": [],
        "history": [
            {"number": 1, "at": AT + 1, "worker": "w-1", "reason": "failed", "detail": "smtp\x1b is down"}
        ],
        **facts,
    }


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Canned:
    return stand_in(monkeypatch, "jobs")


def test_ls(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["jobs"] = [
        listed(),
        listed(token="n-2", job="", guarantee=False, due_in_s=None, reason=""),
    ]
    assert run(["jobs", "ls", "--state", "waiting", "--queue", "email", "--limit", "5"]) == 0
    assert broker.questions == [("jobs", {"state": "waiting", "service": "email", "limit": 5})]
    out = capsys.readouterr().out
    for words in ("n-1", "mail-1", "2 of 4", "12.0 s", "4.0 s", "on disk", "in memory"):
        assert words in out


def test_ls_json_and_nothing(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["jobs"] = []
    assert run(["jobs", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(["jobs", "ls", "--state", "running", "--queue", "email"]) == 0
    assert capsys.readouterr().err == "No running jobs in email.\n"


def test_show_tells_every_attempt(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["job"] = whole()
    assert run(["jobs", "show", "mail-1"]) == 0
    assert broker.questions == [("job", {"job": "mail-1"})]
    out = capsys.readouterr().out
    for words in (
        "n-1",
        "to: ada",
        "2023-11-14 22:13:20",
        "2023-11-14 22:13:21",
        "w-1",
        "60.0 s",
        "c-1 (emqp)",
    ):
        assert words in out
    assert r"smtp\x1b is down" in out
    assert "expires" not in out
    assert "result" not in out


def test_show_a_dead_letter_says_how_to_run_it_again(
    broker: Canned, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.answers["job"] = whole(state="failed", dead=True, due_at=None, ended_at=AT + 9, then=["archive"])
    assert run(["jobs", "show", "n-1"]) == 0
    out = capsys.readouterr().out
    assert "polybus jobs retry n-1" in out
    assert "2023-11-14 22:13:29" in out
    assert "archive" in out


def test_show_a_result(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    ended = whole(state="done", attempt=None, retries=None, result_base64=[b64("42")], body_base64=None)
    broker.answers["job"] = {**ended, "history": []}
    assert run(["jobs", "show", "n-1"]) == 0
    out = capsys.readouterr().out
    assert "42" in out
    assert "attempt" not in out
    assert run(["jobs", "show", "n-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == broker.answers["job"]


def test_retry(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["job_retry"] = {"retried": 1, "refused": {}}
    assert run(["jobs", "retry", "n-1", "n-1"]) == 0
    assert run(["jobs", "retry", "--all", "--queue", "email"]) == 0
    assert run(["jobs", "retry", "--all"]) == 0
    assert [question for _, question in broker.questions] == [
        {"jobs": ["n-1"]},
        {"all": "email"},
        {"all": ""},
    ]
    assert capsys.readouterr().out == "1 job queued again\n" * 3


def test_a_retry_that_was_refused_fails(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["job_retry"] = {"retried": 2, "refused": {"n-3": "queue_full"}}
    assert run(["jobs", "retry", "n-1", "n-2", "n-3"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "2 jobs queued again\n"
    assert captured.err == "n-3 stays a dead letter: queue_full\n"
    assert run(["jobs", "retry", "n-3", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == broker.answers["job_retry"]


def test_cancel(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["job_cancel"] = {"cancelled": "n-1"}
    assert run(["jobs", "cancel", "mail-1"]) == 0
    assert capsys.readouterr().out == "cancelled n-1\n"
    assert broker.questions == [("job_cancel", {"job": "mail-1"})]


def test_dead(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    letter = {
        "token": "n-1",
        "job": "mail-1",
        "service": "email",
        "at": AT,
        "attempts": 4,
        "reason": "failed",
        "detail": "smtp is down",
    }
    broker.answers["dead"] = [letter]
    assert run(["jobs", "dead", "--queue", "email"]) == 0
    out = capsys.readouterr().out
    for words in ("2023-11-14 22:13:20", "n-1", "email", "4", "smtp is down"):
        assert words in out
    broker.answers["dead"] = []
    assert run(["jobs", "dead"]) == 0
    assert capsys.readouterr().err == "No dead letters.\n"


@pytest.mark.parametrize(("typed", "status"), [("y\n", 0), ("n\n", 1), ("", 2)])
def test_dropping_asks_first(
    typed: str,
    status: int,
    broker: Canned,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    broker.answers["dead_drop"] = {"dropped": 2, "unknown": []}
    assert run(["jobs", "dead", "--drop", "n-1", "n-2"]) == status
    captured = capsys.readouterr()
    assert "Throw 2 dead letters away" in captured.err
    assert captured.out == ("2 dead letters dropped\n" if typed.startswith("y") else "")
    assert len(broker.questions) == typed.startswith("y")
    assert typed or "--yes" in captured.err


def test_dropping_without_asking(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["dead_drop"] = {"dropped": 1, "unknown": []}
    assert run(["jobs", "dead", "--drop", "--all", "--queue", "email", "--yes"]) == 0
    assert run(["jobs", "dead", "--drop", "n-1", "--yes", "--json"]) == 0
    assert broker.questions == [("dead_drop", {"all": "email"}), ("dead_drop", {"jobs": ["n-1"]})]
    assert capsys.readouterr().out == '1 dead letter dropped\n{"dropped": 1, "unknown": []}\n'


def test_dropping_what_is_not_there_fails(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["dead_drop"] = {"dropped": 0, "unknown": ["n-9"]}
    assert run(["jobs", "dead", "--drop", "n-9", "--yes"]) == 1
    assert "no dead letter is called n-9" in capsys.readouterr().err
