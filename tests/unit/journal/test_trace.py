"""What belongs to a request, found in rows that were written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from polybus.errors import JournalMissing
from polybus.journal import trace as trace_module
from polybus.journal.reader import read_rows, segment_files
from polybus.journal.record import NO_LINK, Row
from polybus.journal.trace import Ambiguous, JournalMoved, Trace, Traced, trace
from support.journals import NOON_US, SECOND_US, Logs, damage_page, life_of


def of(rows: list[Row], **facts: Any) -> list[Row]:
    return [msgspec.structs.replace(row, **facts) for row in rows]


def tokens(found: Trace) -> list[str]:
    return [request.token for request in found.requests]


def desks(rows: list[Row], job: bytes) -> list[Row]:
    """As jobs are that were submitted by an id."""
    return of(rows, client=b"jobs", client_link=NO_LINK, client_dialect="", request_id=job)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "a")


def test_by_token_by_id_and_by_beginnings(logs: Logs) -> None:
    for number in (1, 17, 170):
        logs.write(life_of(f"life-{number}", NOON_US + number, "dispatched", "replied"))
    for name in ("life-17", "id-life-17"):
        assert tokens(trace([logs.journal], name)) == ["life-17"]
    assert tokens(trace([logs.journal], "life-170")) == ["life-170"]
    with pytest.raises(Ambiguous) as caught:
        trace([logs.journal], "life-")
    assert [row["token"] for row in caught.value.found] == ["life-170", "life-17", "life-1"]
    assert tokens(trace([logs.journal], "id-life-170")) == ["life-170"]
    for name in ("nobody", ""):
        with pytest.raises(JournalMissing):
            trace([logs.journal], name)


def test_an_id_that_several_have(logs: Logs) -> None:
    logs.write(of(life_of("life-1", NOON_US, "dispatched", "replied"), request_id=b"1"))
    logs.write(of(life_of("life-2", NOON_US + 9, "cancelled"), request_id=b"1", client=b"bob"))
    with pytest.raises(Ambiguous) as caught:
        trace([logs.journal], "1")
    assert [row["client"] for row in caught.value.found] == ["bob", "ada"]


def test_a_chain_is_one_job(logs: Logs) -> None:
    first = desks(life_of("life-1", NOON_US, "dispatched", "replied"), b"job")
    # Its id goes on with the next step.
    first[-1] = msgspec.structs.replace(first[-1], request_id=b"")
    logs.write([*first, *desks(life_of("life-2", NOON_US + 99, "dispatched", "replied"), b"job")])
    for name in ("job", "life-1", "life-2"):
        assert tokens(trace([logs.journal], name)) == ["life-1", "life-2"]


def test_a_group_has_members(logs: Logs) -> None:
    for number in range(3):
        logs.write(desks(life_of(f"life-{number}", NOON_US, "dispatched", "replied"), b"all/%d" % number))
    assert tokens(trace([logs.journal], "all")) == ["life-0", "life-1", "life-2"]
    assert tokens(trace([logs.journal], "all/1")) == ["life-1"]


def test_a_journal_that_moves_all_the_time_is_given_up(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.write(life_of("life-1", NOON_US, "dispatched", "replied"))
    tries: list[str] = []

    def moves(search: object, name: str) -> Trace:
        tries.append(name)
        raise JournalMoved("it was compacted")

    run = trace_module._Search.run
    monkeypatch.setattr(trace_module._Search, "run", moves)
    with pytest.raises(JournalMoved):
        trace([logs.journal], "life-1")
    assert len(tries) == trace_module.TRIES

    # Once is no reason to give up.
    def moves_once(search: Any, name: str) -> Trace:
        monkeypatch.setattr(trace_module._Search, "run", run)
        raise JournalMoved("it was compacted")

    monkeypatch.setattr(trace_module._Search, "run", moves_once)
    assert tokens(trace([logs.journal], "life-1")) == ["life-1"]


def test_more_than_anybody_reads(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST", 5)
    for number in range(9):
        logs.write(desks(life_of(f"life-{number}", NOON_US, "replied"), b"all/%d" % number))
    found = trace([logs.journal], "all")
    assert (len(found.requests), found.is_cut) == (5, True)


def test_reading_ends_when_there_is_more_than_anybody_reads(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MOST", 5)
    for number in range(30):
        logs.write(desks(life_of(f"life-{number}", NOON_US, "replied"), b"all/%d" % number))
    read: list[int] = []

    def counted(*args: Any, **more: Any) -> Any:
        read.append(0)
        for table in read_rows(*args, **more):
            read[-1] += 1
            yield table

    monkeypatch.setattr(trace_module, "read_rows", counted)
    assert trace([logs.journal], "all").is_cut
    # Each log is a table: twice as many requests as are shown, and one to know that there are more.
    assert read[0] == 11


def test_of_as_many_as_anybody_reads_nothing_is_left_out(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a token, as of the broker's start, take the place of no request."""
    monkeypatch.setattr(trace_module, "MOST", 3)
    logs.write([Row("started", NOON_US)])
    jobs = [desks(life_of(f"life-{n}", NOON_US, "replied"), b"all/%d" % n) for n in range(3)]
    logs.write([rows[0] for rows in jobs])
    logs.write([rows[1] for rows in jobs])
    found = trace([logs.journal], "all")
    assert not found.is_cut
    assert [[row["what"] for row in request.rows] for request in found.requests] == [
        ["accepted", "replied"]
    ] * 3


def test_three_brokers_in_a_row(tmp_path: Path) -> None:
    places = [Logs(tmp_path / name, "polybus") for name in "abc"]
    over: dict[str, Any] = {"worker_dialect": "bridge", "worker": b"next"}
    came: dict[str, Any] = {"client_dialect": "bridge", "client": b"before"}
    first = life_of("one-1", NOON_US, "dispatched", "replied")
    places[0].write([first[0], *of(first[1:], **over)], life="one")
    second = of(life_of("two-1", NOON_US + 10, "dispatched", "replied"), request_id=b"one-1/0", **came)
    places[1].write([second[0], *of(second[1:], **over)], life="two")
    # The one in the middle tried it again.
    third = of(life_of("three-1", NOON_US + 20, "dispatched", "replied"), request_id=b"one-1/0~1", **came)
    places[2].write(third, life="three")
    journals = [each.journal for each in places]
    for name in ("one-1", "two-1", "three-1", "id-one-1"):
        assert tokens(trace(journals, name)) == ["one-1", "two-1", "three-1"]
    for name in ("two-1", "three-1"):
        assert tokens(trace(journals[1:], name)) == ["two-1", "three-1"]
    assert tokens(trace(journals[:1], "one-1")) == ["one-1"]


def test_over_restarts_and_with_lost_answers(logs: Logs) -> None:
    logs.write([Row("started", NOON_US), *life_of("life-1", NOON_US, "dispatched")])
    rest = life_of("life-1", NOON_US + SECOND_US, "requeued", "dispatched", "replied")[1:]
    lost = Row("answer_lost", NOON_US + 2 * SECOND_US, request_id=b"id-life-1", client=b"ada", reason="gone")
    # The clock went back while it was down.
    logs.write([Row("started", NOON_US + 500), *rest, lost, Row("stopped", NOON_US)], life="next")
    found = trace([logs.journal], "life-1")
    (request,) = found.requests
    whats = [row["what"] for row in request.rows]
    assert whats == ["accepted", "dispatched", "requeued", "dispatched", "replied", "answer_lost"]
    assert [(life.name, life.stopped_at is None) for life in found.lives] == [("life", True), ("next", False)]
    assert request.end is not None
    assert request.end["what"] == "replied"


def test_over_a_bridge_the_way_counts_and_not_the_clocks(tmp_path: Path) -> None:
    """The clocks of three brokers go the other way round than their request."""
    places = [Logs(tmp_path / name, "polybus") for name in "abc"]
    over: dict[str, Any] = {"worker_dialect": "bridge", "worker": b"next"}
    came: dict[str, Any] = {"client_dialect": "bridge", "client": b"before", "request_id": b"one-1/0"}
    first = life_of("one-1", NOON_US + 2 * SECOND_US, "dispatched", "replied")
    places[0].write([first[0], *of(first[1:], **over)], life="one")
    second = of(life_of("two-1", NOON_US + SECOND_US, "dispatched", "replied"), **came)
    places[1].write([second[0], *of(second[1:], **over)], life="two")
    places[2].write(of(life_of("three-1", NOON_US, "dispatched", "replied"), **came), life="three")
    journals = [each.journal for each in places]
    for order in (journals, journals[::-1]):
        assert tokens(trace(order, "one-1")) == ["one-1", "two-1", "three-1"]


def test_how_a_request_ended_the_last_time(logs: Logs) -> None:
    logs.write(life_of("life-1", NOON_US, "dispatched", "failed", "dead"))
    (request,) = trace([logs.journal], "life-1").requests
    assert (request.end or {})["what"] == "failed"
    assert (request.first["what"], request.request_id, request.broker) == ("accepted", "id-life-1", "tested")
    # An operator queued it again.
    logs.write(life_of("life-1", NOON_US + SECOND_US))
    assert trace([logs.journal], "life-1").requests[0].end is None
    logs.write(life_of("life-1", NOON_US + SECOND_US, "dispatched")[1:])
    assert trace([logs.journal], "life-1").requests[0].end is None
    logs.write(life_of("life-1", NOON_US + 2 * SECOND_US, "replied")[1:])
    assert (trace([logs.journal], "life-1").requests[0].end or {})["what"] == "replied"


def test_exactly_as_many_as_anybody_reads(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST", 5)
    for number in range(5):
        logs.write(desks(life_of(f"life-{number}", NOON_US, "replied"), b"all/%d" % number))
    found = trace([logs.journal], "all")
    assert (len(found.requests), found.is_cut) == (5, False)


def test_damage_is_told_once(logs: Logs) -> None:
    logs.write(desks(life_of("life-1", NOON_US, "replied"), b"job"))
    damaged = logs.write(life_of("life-2", NOON_US, "replied"))
    damaged.write_bytes(damaged.read_bytes()[:-3])
    told: list[str] = []
    assert tokens(trace([logs.journal], "job", told.append)) == ["life-1"]
    assert len(told) == 1
    assert str(damaged) in told[0]


def test_damage_among_other_requests_is_not_looked_for(logs: Logs) -> None:
    """Which segments have the request is found out first, by its names alone."""
    logs.write([row for name in ("life-1", "life-3") for row in life_of(name, NOON_US, "replied")])
    logs.archive()
    logs.write(life_of("life-2", NOON_US, "replied"))
    logs.archive()
    others, _ = segment_files(logs.journal)
    damage_page(others, 0, "service")
    told: list[str] = []
    assert tokens(trace([logs.journal], "life-2", told.append)) == ["life-2"]
    assert told == []
    with pytest.raises(JournalMissing):
        trace([logs.journal], "life-1", told.append)
    assert len(told) == 1


def test_a_request_of_another_client_with_the_same_id_does_not_belong_to_a_job(logs: Logs) -> None:
    logs.write(desks(life_of("life-1", NOON_US, "replied"), b"job"))
    logs.write(of(life_of("life-2", NOON_US + 9, "replied"), request_id=b"job"))
    assert tokens(trace([logs.journal], "life-2")) == ["life-2"]
    # A client of a dialect may be called jobs, too.
    logs.write(of(life_of("life-3", NOON_US + 10, "replied"), request_id=b"job", client=b"jobs"))
    assert tokens(trace([logs.journal], "life-3")) == ["life-3"]


def test_the_beginning_of_an_id_that_several_steps_have_is_one_job(logs: Logs) -> None:
    for number in (1, 2):
        logs.write(desks(life_of(f"life-{number}", NOON_US + number, "replied"), b"job-of-today"))
    assert tokens(trace([logs.journal], "job-of")) == ["life-1", "life-2"]


def test_rows_of_several_lives_are_in_the_order_of_the_lives(logs: Logs) -> None:
    """Names of lives say nothing about their order, and numbers begin anew in each."""
    logs.write([Row("started", NOON_US), *life_of("z-1", NOON_US, "dispatched")], life="z")
    logs.write(life_of("z-1", NOON_US + SECOND_US, "requeued", "dispatched", "replied")[1:], life="a")
    (request,) = trace([logs.journal], "z-1").requests
    whats = [row["what"] for row in request.rows]
    assert whats == ["accepted", "dispatched", "requeued", "dispatched", "replied"]


def test_what_is_archived_is_found_as_well(logs: Logs) -> None:
    for number in range(3):
        logs.write(desks(life_of(f"life-{number}", NOON_US + number, "replied"), b"job-%d" % number))
        logs.archive()
    for name in ("life-1", "job-1"):
        assert tokens(trace([logs.journal], name)) == ["life-1"]
    with pytest.raises(JournalMissing):
        trace([logs.journal], "nobody")


def test_a_request_that_was_refused_once_and_then_accepted(logs: Logs) -> None:
    refused = Row("rejected", NOON_US - 9, "mdr", request_id=b"id-life-1", client=b"ada", reason="queue_full")
    logs.write([refused, *life_of("life-1", NOON_US, "replied")])
    assert tokens(trace([logs.journal], "id-life-1")) == ["id-life-1", "life-1"]
    # By its token it is only the one that was accepted.
    assert tokens(trace([logs.journal], "life-1")) == ["life-1"]


def test_requests_of_other_brokers_whose_id_names_no_token(tmp_path: Path) -> None:
    """Nobody knows where they began; those with the same id belong together."""
    places = [Logs(tmp_path / name, "polybus") for name in "ab"]
    for number, (place, request_id) in enumerate(zip(places, (b"plain", b"plain~1"), strict=True)):
        came = life_of(f"life-{number}", NOON_US + number, "dispatched", "replied")
        place.write(of(came, request_id=request_id, client_dialect="bridge", client=b"before"))
    for name in ("life-0", "life-1"):
        assert tokens(trace([place.journal for place in places], name)) == ["life-0", "life-1"]


@pytest.mark.parametrize("request_id", [b"1", b""])
def test_several_tokens_that_begin_alike_are_several_requests_whatever_their_ids(
    logs: Logs, request_id: bytes
) -> None:
    for number in (1, 2):
        logs.write(of(life_of(f"life-{number}", NOON_US + number, "replied"), request_id=request_id))
    with pytest.raises(Ambiguous) as caught:
        trace([logs.journal], "life")
    assert [row["token"] for row in caught.value.found] == ["life-2", "life-1"]
    assert tokens(trace([logs.journal], "life-2")) == ["life-2"]


def test_rows_of_a_life_have_the_order_of_their_numbers_although_the_clock_was_set_back(logs: Logs) -> None:
    accepted, replied = life_of("life-1", NOON_US, "replied")
    logs.write([accepted, msgspec.structs.replace(replied, at=NOON_US - 3599 * SECOND_US)])
    logs.archive()
    assert len(segment_files(logs.journal)) == 2
    (request,) = trace([logs.journal], "life-1").requests
    assert [row["what"] for row in request.rows] == ["accepted", "replied"]


def test_what_is_given_to_a_worker_again_has_not_ended(logs: Logs) -> None:
    """Its end was not on disk when the broker was killed."""
    logs.write(life_of("life-1", NOON_US, "dispatched", "replied"))
    logs.write(life_of("life-1", NOON_US + SECOND_US, "requeued")[1:], life="next")
    assert trace([logs.journal], "life-1").requests[0].end is not None
    logs.write(life_of("life-1", NOON_US + 2 * SECOND_US, "dispatched")[1:], life="next")
    assert trace([logs.journal], "life-1").requests[0].end is None


def test_the_id_of_a_request_is_that_of_any_row_that_has_one() -> None:
    def named(*names: str | None) -> str:
        return Traced("t", "b", "j", [{"request_id": name} for name in names]).request_id

    assert named("a", None) == named(None, "a") == named("", "a") == "a"
    assert named(None, "") == named() == ""


def test_a_token_is_the_name_of_one_request_even_if_others_have_it_as_their_id(logs: Logs) -> None:
    for number in (1, 2, 3):
        logs.write(of(life_of(f"life-{number}", NOON_US + number, "replied"), request_id=b"life-1"))
    assert "life-1" in tokens(trace([logs.journal], "life-1"))


def test_what_is_cut_anyway_is_not_followed_any_further(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that went from broker to broker, each time by two ways."""
    monkeypatch.setattr(trace_module, "MOST", 3)
    over: dict[str, Any] = {"worker_dialect": "bridge", "worker": b"next"}
    came: dict[str, Any] = {"client_dialect": "bridge", "client": b"before"}
    # A refusal has no token, and takes the place of no request.
    logs.write([Row("rejected", NOON_US, request_id=b"one-1", client=b"ada", reason="queue_full")])
    logs.write(of(life_of("one-1", NOON_US, "dispatched"), **over))
    for before, after in (("one", "two"), ("two", "three"), ("three", "four"), ("four", "five")):
        for number in (1, 2):
            rows = of(life_of(f"{after}-{number}", NOON_US, "dispatched"), **over, **came)
            logs.write(of(rows, request_id=f"{before}-1/{number}".encode()))
    reads: list[Any] = []

    def counted(*args: Any, **more: Any) -> Any:
        reads.append(args)
        return read_rows(*args, **more)

    monkeypatch.setattr(trace_module, "read_rows", counted)
    assert trace([logs.journal], "one-1").is_cut
    # The first two brokers by its name, the third, the fourth, and the rows of what is shown.
    assert len(reads) == 4


def test_a_request_whose_id_begins_with_its_own_token(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients make up their ids themselves: such a request is not looked for again and again."""
    over: dict[str, Any] = {"worker_dialect": "bridge", "worker": b"next"}
    logs.write(of(life_of("one-1", NOON_US, "dispatched", "replied"), request_id=b"one-1/0", **over))
    reads: list[Any] = []

    def counted(*args: Any, **more: Any) -> Any:
        reads.append(args)
        assert len(reads) < 10
        return read_rows(*args, **more)

    monkeypatch.setattr(trace_module, "read_rows", counted)
    assert tokens(trace([logs.journal], "one-1")) == ["one-1"]
