"""Which rows a trace takes beside those with its token, and the lives of the brokers that wrote them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from polybus.journal.record import Row
from polybus.journal.trace import trace
from support.journals import NOON_US, SECOND_US, Logs, life_of


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "a")


def refusal(request_id: bytes, client: bytes, at_us: int) -> Row:
    return Row("rejected", at_us, "mdr", request_id=request_id, client=client, reason="queue_full")


def lost(request_id: bytes, client: bytes, at_us: int) -> Row:
    return Row("answer_lost", at_us, request_id=request_id, client=client, reason="gone")


def whats(logs: Logs, name: str) -> list[list[tuple[str, Any]]]:
    found = trace([logs.journal], name)
    return [[(row["what"], row["client"]) for row in request.rows] for request in found.requests]


def test_a_request_that_was_refused_has_only_its_own_refusal(logs: Logs) -> None:
    logs.write([refusal(b"r-1", b"ada", NOON_US), refusal(b"r-2", b"ada", NOON_US + 1)])
    logs.write([refusal(b"r-1", b"ada", NOON_US + 2)])
    # A row of the same client and id that is neither a refusal nor about an accepted request.
    logs.write([lost(b"r-1", b"ada", NOON_US + 3)])
    assert whats(logs, "r-1") == [[("rejected", "ada"), ("rejected", "ada")]]


def test_a_lost_answer_belongs_to_the_request_of_the_same_client_and_id(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, "dispatched", "replied"))
    logs.write(
        [
            lost(b"id-life-1", b"ada", NOON_US + SECOND_US),
            lost(b"id-life-1", b"bob", NOON_US + SECOND_US),
            lost(b"id-life-2", b"ada", NOON_US + SECOND_US),
            # Another kind of row about the same client and id has no place in it without a token.
            Row("late", NOON_US + SECOND_US, request_id=b"id-life-1", client=b"ada"),
        ]
    )
    (rows,) = whats(logs, "life-1")
    assert rows == [("accepted", "ada"), ("dispatched", "ada"), ("replied", "ada"), ("answer_lost", "ada")]
    (request,) = trace([logs.journal], "life-1").requests
    assert {row["token"] for row in request.rows} == {"life-1"}


def moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / SECOND_US, UTC)


def test_a_life_begins_when_its_broker_started_even_if_another_row_is_older(logs: Logs) -> None:
    start, stop = NOON_US + 2 * SECOND_US, NOON_US + 9 * SECOND_US
    # The clock was set forward after the first row was written.
    logs.write([*life_of("life-1", NOON_US, "dispatched"), Row("started", start), Row("stopped", stop)])
    (life,) = trace([logs.journal], "life-1").lives
    assert (life.name, life.at, life.stopped_at) == ("life", moment(start), moment(stop))


def test_a_life_whose_start_is_gone_begins_with_its_first_row(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, "dispatched"))
    (life,) = trace([logs.journal], "life-1").lives
    assert (life.at, life.stopped_at) == (moment(NOON_US), None)


def test_lives_follow_one_another_in_time_and_those_of_other_journals_are_left_out(tmp_path: Path) -> None:
    here, there = Logs(tmp_path / "a"), Logs(tmp_path / "b", "other")
    here.write([Row("started", NOON_US + 5 * SECOND_US)], life="second")
    here.write([Row("started", NOON_US), *life_of("life-1", NOON_US, "dispatched")], life="first")
    there.write([Row("started", NOON_US), *life_of("other-1", NOON_US, "dispatched")], life="elsewhere")
    found = trace([here.journal, there.journal], "life-1")
    assert [life.name for life in found.lives] == ["first", "second"]
