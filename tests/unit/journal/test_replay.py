"""Which requests are sent again, and how their replies compare."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pytest

from polybus.core.ledger import REVIVED
from polybus.journal.replay import DIFFERENT, FAILED, INCOMPARABLE, SAME, Recorded, Selection, choose, compare
from support.journals import HOUR_US, NOON_US, Logs, life_of

AT = datetime.fromtimestamp(NOON_US / 1e6, UTC)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    logs = Logs(tmp_path)
    for number in range(3):
        at = NOON_US + number * HOUR_US
        logs.write(
            [
                *life_of(f"life-{number}a", at, "dispatched", "replied", body=b"%d" % number),
                *life_of(f"life-{number}b", at + 10, "dispatched", "failed", service=b"other"),
                *life_of(f"life-{number}c", at + 20, "dispatched"),
            ]
        )
        if number < 2:
            logs.archive()
    return tmp_path


def chosen(journal: Path, **wanted: object) -> list[str]:
    return [request.token for request in choose(journal, Selection(**wanted)).requests]  # type: ignore[arg-type]


def test_which(journal: Path) -> None:
    assert chosen(journal)[:4] == ["life-0a", "life-0b", "life-0c", "life-1a"]
    assert chosen(journal, service=pc.field("service") == "other") == ["life-0b", "life-1b", "life-2b"]
    assert chosen(journal, outcome="replied", limit=2) == ["life-0a", "life-1a"]
    hour = datetime.fromtimestamp((NOON_US + HOUR_US) / 1e6, UTC)
    assert chosen(journal, until=hour) == ["life-0a", "life-0b", "life-0c"]
    # By the time at which it was accepted, however late it ended.
    assert chosen(journal, since=hour, outcome="failed") == ["life-1b", "life-2b"]
    assert chosen(journal, until=hour, outcome="failed") == ["life-0b"]
    assert chosen(journal, tokens=["life-2a", "life-9"]) == ["life-2a"]
    found = choose(journal, Selection(limit=4))
    assert (len(found.requests), found.total) == (4, 9)
    first, second, third = found.requests[:3]
    assert (first.body, first.outcome, first.reply) == ([b"0"], "replied", [b"pong"])
    assert (second.outcome, second.reason) == ("failed", "failed_reason")
    assert third.outcome is None


def test_a_job_that_was_queued_again_is_one(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    once = life_of("life-1", NOON_US, "dispatched", "failed")
    again = life_of("life-1", NOON_US + HOUR_US, "dispatched", "replied", reason=REVIVED)
    again[0] = msgspec.structs.replace(again[0], body=None)
    logs.write([*once, *again])
    (request,) = choose(tmp_path, Selection()).requests
    assert (request.body, request.outcome) == ([b"ping"], "replied")


def test_a_job_that_ended_in_another_life_is_one_although_the_clock_was_set_back(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    began, ended = life_of("life-1", NOON_US, "replied")
    logs.write([began], life="one")
    logs.write([msgspec.structs.replace(ended, at=NOON_US - 5_000_000)], life="two")
    logs.archive()
    (request,) = choose(tmp_path, Selection()).requests
    assert (request.body, request.outcome, request.reply) == ([b"ping"], "replied", [b"pong"])


@pytest.mark.parametrize(("later_us", "skipped"), [(HOUR_US, 0), (0, 9)])
def test_the_last_end_of_a_job_counts_in_whatever_order_its_rows_are_read(
    tmp_path: Path, later_us: int, skipped: int
) -> None:
    """The last one is the youngest; of the same moment it is the one with the highest number."""
    logs = Logs(tmp_path)
    again = life_of("life-1", NOON_US + later_us, "dispatched", "replied", body=b"again", reason=REVIVED)
    logs.skip(skipped, life="two")
    logs.write(again, life="two")
    logs.write(life_of("life-1", NOON_US, "dispatched", "failed", body=b"first"), life="one")
    (request,) = choose(tmp_path, Selection()).requests
    assert (request.body, request.outcome, request.reason) == ([b"first"], "replied", None)
    assert (request.reply, request.reply_size, request.size) == ([b"pong"], 4, 5)


def test_a_step_of_a_chain_is_one_whose_name_went_on_before_its_end(tmp_path: Path) -> None:
    named, nameless = b"id", b""
    logs = Logs(tmp_path)
    for number, (begins, ends) in enumerate([(named, named), (named, nameless), (nameless, nameless)]):
        began, ended = life_of(f"life-{number}", NOON_US + number, "replied")
        logs.write(
            [
                msgspec.structs.replace(began, request_id=begins),
                msgspec.structs.replace(ended, request_id=ends),
            ]
        )
    assert [request.is_step for request in choose(tmp_path, Selection()).requests] == [False, True, False]


def test_every_fact_about_a_request(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write(life_of("life-1", NOON_US, "dispatched", "replied", body=b"hello"))
    logs.write(life_of("life-2", NOON_US + 1, service=b"", body=b""))
    logs.write(life_of("life-3", NOON_US + 2, "dispatched", "failed"))
    first, second, third = choose(tmp_path, Selection()).requests
    assert first == Recorded("life-1", "echo", AT, 5, [b"hello"], "replied", None, [b"pong"], 4)
    assert (second.service, second.size, second.outcome, second.reply) == ("", 0, None, None)
    assert (third.outcome, third.reason) == ("failed", "failed_reason")
    assert (third.reply, third.reply_size) == (None, 0)


def test_a_request_whose_acceptance_is_gone_cannot_be_sent_again(tmp_path: Path) -> None:
    Logs(tmp_path).write(life_of("life-1", NOON_US, "dispatched", "replied")[1:])
    found = choose(tmp_path, Selection(outcome="replied"))
    assert (found.requests, found.total) == ([], 1)


def recorded(**facts: object) -> Recorded:
    values = {"outcome": "replied", "reply": [b"pong"], "reply_size": 4, **facts}
    return Recorded("t", "echo", AT, 4, [b"ping"], **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("was", "reply", "reason", "result"),
    [
        (recorded(), [b"pong"], "", SAME),
        (recorded(), [b"pang"], "", DIFFERENT),
        (recorded(), [b"pong", b""], "", DIFFERENT),
        (recorded(), None, "timeout", FAILED),
        (recorded(reply=None), [b"pang"], "", INCOMPARABLE),
        (recorded(reply=None), [b"longer"], "", DIFFERENT),
        (recorded(is_step=True), [b""], "", INCOMPARABLE),
        (recorded(outcome="failed", reason="failed"), None, "failed", SAME),
        (recorded(outcome="failed", reason="failed"), None, "timeout", DIFFERENT),
        (recorded(outcome="failed", reason="failed"), [b""], "", DIFFERENT),
        (recorded(outcome="expired", reason="expired"), [b""], "", INCOMPARABLE),
        (recorded(outcome="expired", reason="expired"), None, "expired", FAILED),
        (recorded(outcome=None), [b""], "", INCOMPARABLE),
    ],
)
def test_comparing(was: Recorded, reply: list[bytes] | None, reason: str, result: str) -> None:
    found = compare(was, reply, reason)
    assert found.result == result
    assert found.why or result == SAME


def test_fields_that_may_differ() -> None:
    was = recorded(reply=[b'{"price": 3, "at": 1, "more": [{"at": 2}]}'])
    now = [b'{"at": 9, "more": [{"at": 7}], "price": 3}']
    assert compare(was, now, "").result == DIFFERENT
    assert compare(was, now, "", ["at"]).result == SAME
    assert compare(was, [b'{"price": 4}'], "", ["at", "more"]).result == DIFFERENT
    assert compare(was, [b"no json"], "", ["at"]).result == DIFFERENT
    # What is no JSON is compared as it is.
    mixed = recorded(reply=[b"no json", b'{"at": 1}'])
    assert compare(mixed, [b"no json", b'{"at": 2}'], "", ["at"]).result == SAME
    assert compare(mixed, [b"other", b'{"at": 2}'], "", ["at"]).result == DIFFERENT
    assert compare(mixed, [b'{"at": 2}'], "", ["at"]).result == DIFFERENT


def test_where_they_differ() -> None:
    assert "byte 1 of 4, now 4" in compare(recorded(), [b"pang"], "").why
    assert "byte 4 of 4, now 6" in compare(recorded(), [b"pongpo"], "").why
    assert "frame 2, byte 0" in compare(recorded(reply=[b"a", b"b"]), [b"a", b"c"], "").why


def test_a_journal_without_requests_has_nothing_to_send(tmp_path: Path) -> None:
    found = choose(tmp_path, Selection())
    assert (found.requests, found.total) == ([], 0)


def test_only_what_has_its_body_can_be_sent() -> None:
    assert Recorded("t", "echo", AT, 0, []).can_be_sent is True
    assert Recorded("t", "echo", AT, 4, None).can_be_sent is False
