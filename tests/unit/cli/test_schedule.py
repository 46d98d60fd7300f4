"""`polybus schedule` against answers as the broker gives them."""

from __future__ import annotations

import io
import json

import pytest

from polybus.cli.main import run
from polybus.cli.options import WrongUse
from polybus.cli.schedule import seconds
from support.canned import Canned, stand_in

AT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Canned:
    canned = stand_in(monkeypatch, "schedule")
    canned.answers["schedule_add"] = {"key": "morning", "next_at": AT}
    return canned


@pytest.mark.parametrize(
    ("text", "value"),
    [("60", 60), ("60s", 60), ("1.5m", 90), (".5h", 1800), ("500ms", 0.5), ("1d", 86400), (" 2 H ", 7200)],
)
def test_spans(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "s", "5 parsecs", "-1s", "1s2", "0", "0ms", "1e3"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(WrongUse):
        seconds(text)


def test_add_asks_for_what_was_said_and_no_more(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "add", "cleanup", "", "--every", "10m"]) == 0
    assert broker.questions == [("schedule_add", {"queue": "cleanup", "message": "", "every_s": 600.0})]
    assert capsys.readouterr().out == "morning runs next at 2023-11-14 22:13:20\n"


def test_add_with_everything(
    broker: Canned, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'["run", {}]')))
    options = "--tz Europe/Berlin --key morning --runs 3 --missed skip --guarantee --retries 5 --time-limit 9"
    cron = ["--cron", "0 6 * * mon-fri"]
    assert run(["schedule", "add", "reports", "-", *cron, *options.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"key": "morning", "next_at": AT}
    assert broker.questions[0][1] == {
        "queue": "reports",
        "message": '["run", {}]',
        "cron": "0 6 * * mon-fri",
        "timezone": "Europe/Berlin",
        "key": "morning",
        "runs": 3,
        "missed": "skip",
        "guarantee": True,
        "retries": 5,
        "timeout_s": 9.0,
    }


def test_no_guarantee_is_something_else_than_saying_nothing(broker: Canned) -> None:
    assert run(["schedule", "add", "q", "m", "--every", "1s", "--no-guarantee", "--now"]) == 0
    question = broker.questions[0][1]
    assert (question["guarantee"], question["haste"]) == (False, True)


def test_a_message_that_is_no_text_is_refused(broker: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert run(["schedule", "add", "q", "-", "--every", "1s"]) == 2
    assert not broker.questions


def test_ls(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    by_time = {
        "key": "a",
        "queue": "q",
        "message": "hello",
        "every_s": 600.0,
        "cron": "",
        "timezone": "UTC",
        "runs_left": None,
        "next_at": AT,
        "missed": "late",
        "retries": 7,
    }
    by_cron = {
        **by_time,
        "key": "b",
        "every_s": None,
        "cron": "0 6 * * *",
        "runs_left": 3,
    }
    broker.answers["schedules"] = [by_time, by_cron]
    assert run(["schedule", "ls"]) == 0
    out = capsys.readouterr().out
    for words in (
        "every 10 min",
        "0 6 * * * (UTC)",
        "2023-11-14 22:13:20",
        "∞",
        "7",
        "hello",
    ):
        assert words in out
    broker.answers["schedules"] = []
    assert run(["schedule", "ls"]) == 0
    assert "polybus schedule add --help" in capsys.readouterr().err


def test_rm_and_runs(broker: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    broker.answers["schedule_rm"] = {"removed": True}
    assert run(["schedule", "rm", "morning"]) == 0
    assert capsys.readouterr().out == "removed morning\n"
    broker.answers["schedule_rm"] = {"removed": False}
    assert run(["schedule", "rm", "morning"]) == 1
    assert "polybus schedule ls" in capsys.readouterr().err
    run_ = {"due_at": AT, "at": AT + 1, "what": "late", "missed": 4, "token": "n-1"}
    broker.answers["schedule_runs"] = [run_, {**run_, "what": "skipped", "missed": 0, "token": ""}]
    assert run(["schedule", "runs", "morning", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    for words in ("2023-11-14 22:13:20", "2023-11-14 22:13:21", "late", "skipped", "n-1", "4", "–"):
        assert words in out
    assert broker.questions[-1] == ("schedule_runs", {"key": "morning", "limit": 2})
    broker.answers["schedule_runs"] = []
    assert run(["schedule", "runs", "morning"]) == 0
    assert capsys.readouterr().err == "morning has not run yet.\n"
