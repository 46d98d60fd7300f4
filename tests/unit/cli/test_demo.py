"""The demo's checks can fail: what is not as it should be is found, shown, and decides the exit status."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from polybus.cli import demo, demo_app, demo_calls, demo_jobs
from polybus.cli.demo_calls import calls_table, service_of
from polybus.cli.demo_jobs import attempts_table
from polybus.cli.demo_stage import CALLS_OF_A_SERVICE, KilledJob, Outcome, Stage, wait_until
from polybus.cli.demo_tables import differences, expected_traces, metrics_table
from polybus.cli.demo_web import disagreement
from polybus.cli.processes import Processes
from polybus.client.addresses import DIALECTS
from polybus.client.current import CurrentJob, set_current
from polybus.errors import ConnectionLost, PolybusError
from support.patience import patient

WIDTH = 80


def new_stage() -> tuple[Stage, io.StringIO]:
    text = io.StringIO()
    return Stage(Console(file=text, width=WIDTH, highlight=False), Processes(), Path("nowhere")), text


def test_a_check_that_fails_fails_the_demo_and_is_in_the_summary() -> None:
    stage, text = new_stage()

    def play(stage: Stage) -> None:
        stage.check("one thing is so")
        stage.check("another is so", "it is not")

    stage.tell("A chapter", "One sentence.", play)
    assert not stage.is_good
    demo.summarise(stage)
    assert text.getvalue().count("✗ another is so: it is not") == 2
    assert "1 of 2 checks passed" in text.getvalue()
    values = demo.as_values(stage)
    assert not values["ok"]
    assert [check["ok"] for check in values["chapters"][0]["checks"]] == [True, False]


def test_a_chapter_that_breaks_off_is_a_failure_and_the_story_goes_on() -> None:
    stage, text = new_stage()

    def play(stage: Stage) -> None:
        raise ConnectionLost("the broker went away")

    stage.tell("First", "One sentence.", play)
    stage.tell("Second", "One sentence.", lambda stage: None)
    assert not stage.is_good
    assert "the broker went away" in text.getvalue()
    assert "2. Second" in text.getvalue()


def test_what_is_left_out_is_no_failure() -> None:
    stage, text = new_stage()
    stage.tell("The tables", "One sentence.", lambda stage: stage.note("left out: there is no Spark"))
    assert stage.is_good
    assert "there is no Spark" in text.getvalue()


def test_no_line_is_wider_than_the_terminal_and_the_rest_stands_below() -> None:
    stage, text = new_stage()

    def play(stage: Stage) -> None:
        stage.note("word " * 60)
        stage.say("word " * 60)

    stage.tell("A chapter", "One sentence.", play)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum(line.startswith("    word") for line in lines) >= 3


def test_a_condition_that_never_holds_says_what_was_waited_for() -> None:
    with pytest.raises(ConnectionLost, match="nothing came within 0 s"):
        wait_until(lambda: False, 0.0, "nothing came")


# -- jobs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "pages"), [(1, [1, *[2] * demo_app.WAITS, 3]), (2, [1, 2, 3])])
def test_the_first_attempt_waits_to_be_killed_and_no_other(
    monkeypatch: pytest.MonkeyPatch, attempt: int, pages: list[int]
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    words: list[dict[str, Any]] = []
    set_current(CurrentJob(attempt=attempt, tell=words.append))
    try:
        demo_app.report(3)
    finally:
        set_current(None)
    assert [word["page"] for word in words] == pages
    assert {word["attempt"] for word in words} == {attempt}


@pytest.mark.parametrize(("what", "is_good"), [("ran", True), ("late", True), ("skipped", False)])
def test_a_late_run_is_a_run(monkeypatch: pytest.MonkeyPatch, what: str, is_good: bool) -> None:
    answers = {
        "schedule_runs": [{"what": each, "at": 0.0} for each in ("ran", what, "ran")],
        "services": [{"service": demo_app.TIDYING, "answered": 3}],
    }
    stage, _ = new_stage()
    stage.endpoints = {"majordomo.clients": "nowhere"}
    monkeypatch.setattr(stage, "_admin", mock.Mock(ask=lambda do, **_: answers[do]))
    monkeypatch.setattr(demo_jobs, "Bus", mock.MagicMock())
    stage.tell("A schedule", "One sentence.", demo_jobs.schedule_runs)
    assert stage.is_good == is_good


# -- the dashboard and the tables --------------------------------------------------------------------


def test_the_dashboard_must_know_every_call() -> None:
    rows = [{"service": service_of(dialect), "answered": CALLS_OF_A_SERVICE} for dialect in DIALECTS]
    assert disagreement(rows) == ""
    rows[0]["answered"] = 35
    assert "was answered 35 times, not 36" in disagreement(rows)
    assert "answered 0 times" in disagreement(rows[1:])


def test_the_tables_must_have_every_request_once() -> None:
    expected = {"greet-mdr": 2, "reports": 1}
    rows = [{"service": name, "outcome": "replied"} for name in ("greet-mdr", "greet-mdr", "reports")]
    assert differences(rows, expected) == ""
    assert differences(rows[1:], expected) == "1 of 2 requests of greet-mdr"
    assert differences([*rows[:2], {"service": "reports", "outcome": "failed"}], expected) != ""
    with pytest.raises(PolybusError, match="asked 1 times, and the table has 2 rows"):
        differences([*rows, rows[-1]], expected)


def test_what_is_expected_is_what_was_done() -> None:
    stage, _ = new_stage()
    assert sum(expected_traces(stage).values()) == CALLS_OF_A_SERVICE * len(DIALECTS)
    stage.job, stage.runs = KilledJob("1", "worker one", "worker two"), 3
    assert sum(expected_traces(stage).values()) == CALLS_OF_A_SERVICE * len(DIALECTS) + 4


# -- what is shown --------------------------------------------------------------------------------------


def shown(what: object) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(what)
    return text.getvalue().splitlines()


def test_a_call_that_failed_is_seen_in_the_table() -> None:
    calls = {(a, b): Outcome(1234.5) for a in DIALECTS for b in DIALECTS}
    calls["mdr", "dbp"] = Outcome(error="expired")
    lines = shown(calls_table(calls))
    assert sum(line.count("✗") for line in lines) == 1
    assert sum(line.count("✓") for line in lines) == 35
    assert max(map(len, lines)) <= WIDTH


def test_attempts_show_who_died_and_who_was_done() -> None:
    words = [
        {"attempt": 1, "page": 1, "worker": "worker one"},
        {"attempt": 1, "page": 2, "worker": "worker one"},
        *({"attempt": 2, "page": page, "worker": "worker two"} for page in range(1, 6)),
    ]
    lines = shown(attempts_table(words, "worker one"))
    assert any("worker one" in line and "2 of 5" in line and "SIGKILL" in line for line in lines)
    assert any("worker two" in line and "5 of 5" in line and "done" in line for line in lines)


def test_metrics_without_a_value_are_dashes() -> None:
    row = {"service": "a", "requests": 1, "failed": 0, "wait_p95_us": 1500, "service_p50_us": None}
    lines = shown(metrics_table([{**row, "service_p99_us": 10}]))
    assert any(line.split() == ["a", "1", "0", "1.5", "–", "0.0"] for line in lines)


def test_what_is_slower_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.server.pump.pump_report", lambda: ("pyzmq", "why"))
    monkeypatch.setattr("polybus.journal.recorder.records_are_compiled", lambda: False)
    (text,) = demo_calls.slower()
    assert "C compiler" in text
    assert "a fifth of the throughput" in text
    monkeypatch.setattr("polybus.server.pump.pump_report", lambda: ("compiled", "why"))
    monkeypatch.setattr("polybus.journal.recorder.records_are_compiled", lambda: True)
    assert demo_calls.slower() == []


# -- processes ------------------------------------------------------------------------------------------


def test_a_process_that_ends_is_an_error_with_its_last_words() -> None:
    with Processes() as processes:
        child = processes.command("the worker", "worker", "no-such-module:bus")
        child.wait(patient(30))
        with pytest.raises(
            ConnectionLost, match=r"the worker ended with status 1: polybus: .*no-such-module"
        ):
            processes.check()
        processes.expect_end(child)
        processes.check()


def test_a_line_that_never_comes_is_an_error_that_names_the_process() -> None:
    with Processes() as processes:
        child = processes.command("the help", "--help")
        assert "Usage" in processes.line_of(child, " Usage", 30)
        with pytest.raises(ConnectionLost, match="the help"):
            processes.line_of(child, "ready", 30)
