"""The envelope of a job: one line of JSON, and the body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.core import envelope
from polybus.core.envelope import BadEnvelope, JobSpec, Listed, Submission
from polybus.core.model import JobOptions
from polybus.wire import frames

YEARS_S = 10 * 365 * 24 * 3600


def head(**facts: Any) -> bytes:
    return json.dumps({"service": "s", **facts}).encode()


def test_the_body_of_a_job_is_what_follows_the_first_line() -> None:
    plain = Submission(service="s")
    assert envelope.read_submission([head()]) == (plain, [b""])
    assert envelope.read_submission([head() + b"\nab\nc"]) == (plain, [b"ab\nc"])
    assert envelope.read_submission([head() + b"\na", b"b", memoryview(b"c")]) == (plain, [b"a", b"b", b"c"])


def test_every_field_of_a_submission() -> None:
    spec = {
        "service": "next",
        "body": "x",
        "guarantee": False,
        "retries": 1,
        "timeout_s": 2.0,
        "backoff_s": 3.0,
    }
    facts: dict[str, Any] = {
        "id": "j",
        "guarantee": False,
        "retries": 4,
        "timeout_s": 5.0,
        "backoff_s": 6.0,
        "delay_s": 7.0,
        "ttl_s": 8.0,
        "reply": "result",
    }
    read, _ = envelope.read_submission([head(**facts, then=[spec])])
    follows = JobSpec("next", "x", False, 1, 2.0, 3.0)
    assert read == Submission("s", (), "j", False, 4, 5.0, 6.0, 7.0, 8.0, "result", (follows,))
    assert envelope.read_spec(envelope.write_spec(follows)) == follows


@pytest.mark.parametrize(
    ("field", "most", "too_much"),
    [
        ("service", "x" * 255, "x" * 256),
        ("id", "x" * 200, "x" * 201),
        ("retries", 1_000_000, 1_000_001),
        ("timeout_s", YEARS_S, YEARS_S + 1),
        ("backoff_s", YEARS_S, YEARS_S + 1),
        ("delay_s", YEARS_S, YEARS_S + 1),
        ("ttl_s", YEARS_S, YEARS_S + 1),
        ("service", "x", ""),
        ("id", "x", ""),
        ("retries", 0, -1),
        ("timeout_s", 0, -0.5),
        ("delay_s", 0, -0.5),
        ("ttl_s", 0, -0.5),
        ("reply", "receipt", "nothing"),
    ],
)
def test_the_least_and_the_most_of_each_field(field: str, most: Any, too_much: Any) -> None:
    read, _ = envelope.read_submission([head(**{field: most})])
    assert getattr(read, field) == most
    with pytest.raises(BadEnvelope):
        envelope.read_submission([head(**{field: too_much})])


@pytest.mark.parametrize(
    "body",
    [
        [],
        [b""],
        [b"{"],
        [b"\xff"],
        [b"[" * 100_000],
        [b"{}"],
        [head(unknown=1)],
        [b'{"group": []}'],
        # A job or a group, and a group has no body of its own.
        [head(group=[{"service": "t"}])],
        [b'{"group": [{"service": "t"}]}\nx'],
        [b'{"group": [{"service": "t"}]}', b""],
    ],
)
def test_what_is_no_job(body: list[bytes]) -> None:
    with pytest.raises(BadEnvelope):
        envelope.read_submission(body)


def test_a_group() -> None:
    read, frames = envelope.read_submission(
        [b'{"group": [{"service": "t"}, {"service": "u", "body": "x"}]}\n']
    )
    assert (read.service, read.group, frames) == (None, (JobSpec("t"), JobSpec("u", "x")), [b""])


@pytest.mark.parametrize("read", [envelope.read_submission, envelope.read_list])
def test_the_first_line_has_a_largest_size(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line = head() if read is envelope.read_submission else b"[" + head() + b"]"
    monkeypatch.setattr(envelope, "MAX_HEAD_BYTES", len(line))
    read([line + b"\n"])
    with pytest.raises(BadEnvelope, match="allowed are"):
        read([line + b" \n"])


def many(*heads: dict[str, Any], bodies: bytes = b"") -> list[bytes]:
    return [json.dumps(heads).encode() + b"\n" + bodies]


def test_many_jobs_in_one_message() -> None:
    body = many({"service": "a", "size": 2}, {"service": "b"}, {"service": "c", "size": 3}, bodies=b"aaccc")
    assert envelope.is_list(body)
    assert envelope.read_list(body) == [
        (Listed(service="a", size=2), [b"aa"]),
        (Listed(service="b", size=0), [b""]),
        (Listed(service="c", size=3), [b"ccc"]),
    ]
    assert not envelope.is_list([head()])
    assert not envelope.is_list([b"[", b""])
    assert not envelope.is_list([])
    assert not envelope.is_list([b""])


@pytest.mark.parametrize(
    "body",
    [
        many(),
        many({"service": "a", "size": 3}, bodies=b"aa"),
        many({"service": "a", "size": 1}, bodies=b"aa"),
        many({"service": "a", "size": 1}, {"service": "b", "size": 2}, bodies=b"aa"),
        many({"service": "a", "size": -1}),
        many({"service": "a", "sise": 1}),
        [b"["],
        [b"[\xff]"],
    ],
)
def test_what_is_no_list_of_jobs(body: list[bytes]) -> None:
    with pytest.raises(BadEnvelope):
        envelope.read_list(body)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"guarantee": False},
        {"retries": 3},
        {"timeout_s": 4.0},
        {"backoff_s": 5.0},
        {"backoff_s": 0.0},
        {"guarantee": False, "retries": 3, "timeout_s": 4.0, "backoff_s": 5.0},
    ],
)
def test_the_options_of_a_job_are_what_was_asked_for(asked: dict[str, Any]) -> None:
    read, _ = envelope.read_submission([head(**asked)])
    for spec in (read, JobSpec("s", **asked)):
        expected = JobOptions(**{"guarantee": True, **asked})
        # Also when it comes again, and when something follows or waits for it.
        assert envelope.options_of(spec, ()) == envelope.options_of(spec, ()) == expected
        assert envelope.options_of(spec, (b"then",), b"g") == JobOptions(
            **{"guarantee": True, **asked, "then": (b"then",), "group": b"g"}
        )
        assert envelope.options_of(spec, (), b"g").group == b"g"
        assert envelope.options_of(spec, (b"then",)).then == (b"then",)


def test_options_that_were_asked_for_once_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "USUAL_OPTIONS", 2)
    for _ in range(2):
        for retries in range(5):
            assert envelope.options_of(JobSpec("s", retries=retries), ()).retries == retries
    assert envelope.encoded("a") == b"a"
    assert envelope.encoded("ä") == envelope.encoded("ä") == "ä".encode()
    assert envelope.encoded("a") == b"a"


def test_options_are_known_at_sight_if_they_come_again_and_not_kept_for_ever() -> None:
    """What is done with the options of a job is done once for all jobs that have the very same options."""

    def asked(number: int) -> JobOptions:
        return envelope.options_of(JobSpec("s", timeout_s=1000.0 + number), ())

    usual = envelope.read_submission([head()])[0]
    assert envelope.options_of(usual, ()) is envelope.options_of(usual, ())
    first = asked(0)
    again = []
    for number in range(1, 4):
        asked(number)
        again.append(asked(0) is first)
    # It may have been time to forget all of them in between.
    assert sum(again) >= 2
    assert [asked(number).timeout_s for number in range(4, 3000)] == [1000.0 + n for n in range(4, 3000)]
    assert asked(0) is not first
    assert asked(0) == first


@pytest.mark.parametrize(
    ("body", "result", "expected"),
    [
        ("", [b"7"], b"7"),
        ("", [b"a", b"b"], b"ab"),
        ("", [], b""),
        ('["run", {"args": [1]}]', [], b'["run",{"args":[null,1]}]'),
        ('["run", {"args": [1]}]', [b"7"], b'["run",{"args":[7,1]}]'),
        ('["run", {}]', [b'{"x": 1}'], b'["run",{"args":[{"x":1}]}]'),
        ('["run", {"args": [1]}]', [b""], b'["run",{"args":[null,1]}]'),
        ('["run", {"args": [1]}]', [b"[1", b",2]"], b'["run",{"args":[[1,2],1]}]'),
        # No job message, or a result that is no JSON: the body says all there is to say.
        ('["run", {"args": [1]}]', [b"no JSON"], b'["run", {"args": [1]}]'),
        ('["run", {"args": 1}]', [b"7"], b'["run", {"args": 1}]'),
        ('["run"]', [b"7"], b'["run"]'),
        ('["run", 1]', [b"7"], b'["run", 1]'),
        ("text", [b"7"], b"text"),
        ('{"a": 1}', [b"7"], b'{"a": 1}'),
    ],
)
def test_the_result_of_a_job_goes_to_the_one_that_follows(
    body: str, result: list[bytes], expected: bytes
) -> None:
    assert envelope.with_result(body, result) == [expected]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("", False),
        ("a", True),
        ("Straße 7", True),
        ("a" * 255, True),
        ("a" * 256, False),
        ("é" * 127 + "a", True),
        ("é" * 128, False),
        ("a\nb", False),
        ("a\0", False),
    ],
)
def test_names_are_what_dialects_take_for_one(name: str, is_one: bool) -> None:
    assert envelope.is_name(name) == frames.is_name(name.encode()) == is_one
