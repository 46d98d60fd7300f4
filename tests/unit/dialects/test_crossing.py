"""Failures where a dialect has no word for them, and bodies where it has one frame."""

from __future__ import annotations

import json

import pytest

from polybus.core.actions import Refuse
from polybus.core.model import Reason
from polybus.dialects.crossing import (
    MAX_ERROR_BYTES,
    error_body,
    error_text,
    read_error,
    reason_of,
    single_frame,
)
from polybus.errors import LocalProtocolError
from support.wire_frames import Opaque


def refusal(reason: Reason = Reason.EXPIRED, detail: str = "", *body: bytes) -> Refuse:
    return Refuse((1, b"c"), None, b"echo", b"r1", reason, detail, list(body))


def test_a_reason_becomes_an_error_object() -> None:
    assert json.loads(bytes(error_body(refusal()))) == {"error": "expired"}
    made = error_body(refusal(Reason.QUEUE_FULL, "try later"))
    assert json.loads(bytes(made)) == {"error": "queue_full", "detail": "try later"}
    assert error_text(refusal()) == b"expired"
    assert error_text(refusal(Reason.QUEUE_FULL, "try later")) == b"queue_full: try later"


def test_the_workers_own_error_object_stays_as_it_is() -> None:
    own = b'{"error": "no tea", "hint": 1}'
    assert error_body(refusal(Reason.FAILED, "no tea", own)) == own
    assert json.loads(bytes(error_body(refusal(Reason.FAILED, "no tea", own), "Error"))) == {
        "Error": "no tea"
    }
    own = b'{"error": "failed", "detail": "no tea"}'
    assert json.loads(bytes(error_body(refusal(Reason.FAILED, "failed", own), "Error"))) == {
        "Error": "failed: no tea"
    }


def test_an_error_object_has_at_most_64_kib() -> None:
    frame = b'{"error": "' + b"x" * (64 * 1024 - 13) + b'"}'
    assert len(frame) == 64 * 1024
    assert read_error([frame]) == "x" * (64 * 1024 - 13)
    assert read_error([frame.replace(b"x", b"xx", 1)]) is None


def test_the_workers_own_words_become_the_error() -> None:
    made = error_body(refusal(Reason.REJECTED, "why", b"not today"))
    assert json.loads(bytes(made)) == {"error": "not today", "detail": "why"}
    assert error_text(refusal(Reason.REJECTED, "why", b"not today")) == b"not today"
    assert json.loads(bytes(error_body(refusal(Reason.FAILED, "", b"\xff\xfe"))))["error"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([b'{"error": "no tea"}'], "no tea"),
        ([b'{"error":7}'], "7"),
        ([b'{"error": "failed", "detail": "no tea"}'], "no tea"),
        ([b'{"error": "rejected", "detail": "no tea"}'], "rejected: no tea"),
        ([b'{ "error": "spaced"}'], "spaced"),
        ([], None),
        ([b'{"error": "a"}', b"more"], None),
        ([b'{"error": ""}'], None),
        ([b'{"error": null}'], None),
        ([b'{"error": "cut'], None),
        ([b'{"error": "\xff"}'], None),
        ([b'["error"]'], None),
        ([b'{"fine": 1}'], None),
        ([b'{"error": "' + b"x" * MAX_ERROR_BYTES + b'"}'], None),
        ([Opaque(b'{"error": "large frames are not looked into"}')], None),
    ],
)
def test_only_a_short_error_object_is_a_failure(body: list[bytes], text: str | None) -> None:
    assert read_error(body) == text


def test_more_than_one_frame_cannot_be_carried_by_everyone() -> None:
    assert single_frame([], "DBP") == b""
    assert single_frame([b"one"], "DBP") == b"one"
    with pytest.raises(LocalProtocolError, match="2 frames and DBP carries one"):
        single_frame([b"one", b"two"], "DBP")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("timeout", Reason.TIMEOUT),
        ("timeout: it took 5 s", Reason.TIMEOUT),
        ("rejected: no tea", Reason.REJECTED),
        ("failed: no tea", Reason.FAILED),
        ("no tea: rejected", Reason.FAILED),
        ("timeouts", Reason.FAILED),
        # What only a broker can say.
        ("expired: by the worker", Reason.FAILED),
    ],
)
def test_the_word_before_the_colon_is_the_reason_if_a_worker_may_say_it(error: str, reason: Reason) -> None:
    assert reason_of(error) is reason
