"""Every kind of row of a trace has its words, with the peers, the sizes and the times that the row has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from polybus.journal.telling import explained, outcome, since
from polybus.journal.trace import Life, Trace, Traced

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLAIN: dict[str, Any] = {
    "at": NOON + timedelta(seconds=3),
    "accepted_at": NOON,
    "dispatched_at": None,
    "attempt": 0,
    "size": 7,
    "body_size": 5,
    "client": "ada",
    "client_dialect": "mdr",
    "client_link": "front",
    "worker": None,
    "worker_dialect": None,
    "worker_link": None,
    "reason": None,
    "detail": None,
    "token": "life-1",
    "request_id": "1",
    "broker": "tested",
    "journal": "j",
    "life": "life",
}
BOB = {"worker": "bob", "worker_dialect": "ebus", "worker_link": "back"}
SENT = {**BOB, "dispatched_at": NOON + timedelta(seconds=1)}


def row(what: str, **facts: Any) -> dict[str, Any]:
    return {**PLAIN, "what": what, **facts}


@pytest.mark.parametrize(
    ("what", "facts", "text"),
    [
        ("accepted", {}, "from ada (mdr, front), 7 bytes"),
        ("accepted", {"reason": "guaranteed"}, "from ada (mdr, front), 7 bytes; guaranteed: on disk"),
        ("accepted", {"reason": "revived"}, "from ada (mdr, front), 7 bytes; an operator queued"),
        ("accepted", {"client": "jobs", "client_link": None}, "from jobs that were submitted by id, 7"),
        ("accepted", {"client": "jobs"}, "from jobs (mdr, front), 7"),
        ("accepted", {"client": "far", "client_dialect": "bridge"}, "from the broker far (bridge), 7"),
        ("accepted", {"client": None}, "from nobody (mdr, front), 7"),
        ("accepted", {"client_dialect": None, "client_link": None}, "from ada, 7"),
        ("dispatched", BOB, "to bob (ebus, back)"),
        ("dispatched", {**BOB, "attempt": 2}, "to bob (ebus, back), attempt 2"),
        ("replied", SENT, "by bob (ebus, back), 5 bytes, 2.00 s after it was given to it"),
        ("failed", {**SENT, "reason": "rejected"}, "by bob (ebus, back), 2.00 s after it was given to it"),
        ("expired", SENT, "while it was at bob (ebus, back), 2.00 s after it was given to it"),
        ("cancelled", SENT, "while it was at bob (ebus, back), 2.00 s after it was given to it"),
        ("cancelled", {}, "no worker had it"),
        ("partial", BOB, "a piece of the answer, from bob (ebus, back)"),
        ("rejected", {"reason": "full"}, "from ada (mdr, front): refused at the door, it was never accepted"),
        ("retried", {**BOB, "attempt": 3}, "attempt 3 failed at bob (ebus, back)"),
        ("requeued", BOB, "back to the front of its queue"),
        ("claimed", BOB, "bob (ebus, back) came back and still has it"),
        ("late", BOB, "an answer of bob (ebus, back) was dropped"),
        ("answer_lost", {}, "the answer did not reach ada (mdr, front)"),
        ("dead", BOB, "given up; the request itself is kept"),
        ("something_new", BOB, "at bob (ebus, back)"),
        ("something_new", {"reason": "why", "detail": "because"}, "why: because"),
        ("something_new", {**BOB, "detail": "because"}, "at bob (ebus, back); because"),
    ],
)
def test_the_words_of_a_step(what: str, facts: dict[str, Any], text: str) -> None:
    assert explained(row(what, **facts)).startswith(text)


def test_the_reason_of_an_accepted_request_is_not_told_twice() -> None:
    assert explained(row("accepted", reason="guaranteed")).count("guaranteed") == 1
    assert explained(row("accepted", reason="other")) == "from ada (mdr, front), 7 bytes"


@pytest.mark.parametrize(("seconds", "text"), [(0.9994, "999.4 ms"), (-1.0, "-1.00 s"), (-7200.0, "-2.0 h")])
def test_negative_times_have_the_same_units(seconds: float, text: str) -> None:
    assert since(NOON, NOON + timedelta(seconds=seconds)) == text


def told(*rows: dict[str, Any], lives: tuple[Life, ...] = ()) -> str:
    request = Traced("life-1", "tested", "j", list(rows))
    return outcome(Trace("life-1", [request], list(lives)), request)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (row("replied", **SENT), "replied after 3.00 s"),
        (row("failed", reason="rejected", **SENT), "failed after 3.00 s: rejected"),
        (row("rejected", reason="queue_full", accepted_at=None), "rejected: queue_full"),
        # Without the time of acceptance, the first row that is known begins it.
        (row("cancelled", accepted_at=None), "cancelled after 3.00 s"),
    ],
)
def test_how_it_ended(end: dict[str, Any], text: str) -> None:
    rows = [] if end["what"] == "rejected" else [row("accepted", at=NOON)]
    assert told(*rows, end) == text


def test_what_has_not_ended_is_lost_only_if_its_own_life_did() -> None:
    last = row("dispatched", **SENT)
    own = Life("j", "life", NOON, None)
    later = Life("j", "next", NOON + timedelta(seconds=4), None)
    same_moment = Life("j", "next", last["at"], None)
    elsewhere = Life("k", "other", NOON + timedelta(seconds=4), None)
    stopped = Life("j", "life", NOON, NOON + timedelta(seconds=4))
    kept = {**last, "reason": "guaranteed"}
    assert told(last, lives=(own,)) == "not ended: dispatched"
    assert told(last, lives=(own, elsewhere)) == "not ended: dispatched"
    assert told(last, lives=(own, same_moment)) == "not ended: dispatched"
    assert told(last, lives=(own, later)) == "lost: dispatched when the broker was killed"
    assert told(last, lives=(stopped,)) == "lost: dispatched when the broker stopped"
    for reason in ("guaranteed", "revived"):
        assert told({**kept, "reason": reason}, lives=(own, later)).endswith(
            "the broker was killed since then, but it is guaranteed and goes on"
        )


def test_a_call_that_is_never_tried_again_has_no_attempts() -> None:
    assert explained(row("dispatched", **BOB)) == "to bob (ebus, back)"
