"""SCHEDULE and UNSCHEDULE of eMQP, and what makes two schedules the same."""

from __future__ import annotations

import hashlib
import json
from hashlib import sha1
from typing import Any

import msgspec
import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import emqp, emqp_schedule
from polybus.wire.emqp_schedule import MAX_CRON_BYTES, MAX_INTERVAL_S, MAX_MESSAGE_BYTES, identify
from support.wire_frames import Opaque, refused

T = b"eMQP/1.0"
JOB = {"callable": "walk", "path": "os.path", "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}}
RUN = json.dumps(["run", JOB]).encode()


@pytest.mark.conforms("EMQP-13")
def test_schedule_as_the_document_shows_it() -> None:
    given = [T, b"SCHEDULE", b"m1", b"default", b"nohaste", b"a message"]
    message = emqp.Schedule(b"m1", b"default", b"a message", emqp.Headers(nohaste=True), raw=(*given,))
    assert emqp.read_from_client(given) == emqp.read_as_scheduler(given) == message
    assert emqp.write_from_client(message) == given
    assert emqp.write_from_client(message, document=True) == given


@pytest.mark.conforms("EMQP-13")
@pytest.mark.parametrize(
    ("job", "interval_s", "cron"),
    [
        ({"interval_secs": 5}, 5, b""),
        ({"cron": "* * * * *"}, None, b"* * * * *"),
        ({"interval_secs": -1, "cron": "@daily"}, None, b"@daily"),
        ({"interval_secs": 5, "cron": "@daily"}, 5, b""),
        ({"interval_secs": None, "cron": None}, None, b""),
    ],
)
def test_times_in_the_message(job: dict[str, object], interval_s: int | None, cron: bytes) -> None:
    for value in (job, ["run", job]):
        frames = [T, b"SCHEDULE", b"m1", b"default", b"", json.dumps(value).encode()]
        message = emqp.read_from_client(frames)
        assert isinstance(message, emqp.Schedule)
        assert (message.interval_s, message.cron) == (interval_s, cron)


@pytest.mark.conforms("EMQP-13")
def test_schedule_of_public_clients() -> None:
    given = [T, b"SCHEDULE", b"m1", b"default", b"guarantee", b"10", RUN, b""]
    message = emqp.Schedule(b"m1", b"default", RUN, emqp.Headers(guarantee=True), 10, raw=(*given,))
    assert emqp.read_from_client([b"peer", b"", *given], 2) == emqp.read_as_scheduler(given) == message
    assert emqp.write_from_client(message) == given
    assert emqp.write_from_client(message, document=True) == [*given[:5], RUN]
    by_cron = [T, b"SCHEDULE", b"m1", b"default", b"run_count:3", b"-1", RUN, b"*/5 * * * *"]
    message = emqp.Schedule(
        b"m1", b"default", RUN, emqp.Headers(run_count=3), cron=b"*/5 * * * *", raw=(*by_cron,)
    )
    assert emqp.read_from_client(by_cron) == message
    assert emqp.write_from_client(message) == by_cron


def test_the_form_of_public_peers_is_written_unless_the_documents_is_asked_for() -> None:
    scheduled = emqp.Schedule(b"m1", b"default", RUN, interval_s=10)
    long = [T, b"SCHEDULE", b"m1", b"default", b"", b"10", RUN, b""]
    assert emqp_schedule.write_schedule(scheduled, T) == long
    removed = emqp.Unschedule(b"m1", b"default", RUN)
    assert emqp_schedule.write_unschedule(removed, T)[5:] == [b"-1", RUN, b""]


def test_frames_are_kept_for_an_external_scheduler() -> None:
    given = [T, b"SCHEDULE", b"m1", b"default", b" nohaste , x", b"0010", RUN, b"@daily"]
    message = emqp.read_from_client([b"peer", b"", *given], 2)
    assert isinstance(message, emqp.Schedule)
    assert list(message.raw) == given
    assert (message.interval_s, message.cron) == (10, b"")


@pytest.mark.conforms("EMQP-14")
def test_unschedule() -> None:
    document = [T, b"UNSCHEDULE", b"m1", b"", b"", b"a message"]
    message = emqp.Unschedule(b"m1", b"", b"a message", raw=(*document,))
    assert emqp.read_from_client(document) == emqp.read_as_scheduler(document) == message
    assert emqp.write_from_client(message, document=True) == document
    public = [T, b"UNSCHEDULE", b"m1", b"default", b"", b"-1", RUN, b""]
    message = emqp.Unschedule(b"m1", b"default", RUN, raw=(*public,))
    assert emqp.read_from_client(public) == message
    assert emqp.write_from_client(message) == public
    # Goes by what is scheduled: the times are not looked at.
    assert isinstance(emqp.read_from_client([*public[:5], b"soon", RUN, b""]), emqp.Unschedule)


@pytest.mark.conforms("EMQP-39")
@pytest.mark.parametrize("queue", [b"\xff", b"a\nb", b"x" * 256, Opaque(b"queue")])
@pytest.mark.parametrize("form", [[RUN], [b"-1", RUN, b""]], ids=["document", "upstream"])
def test_the_queue_of_unschedule_is_ignored_whatever_it_is(queue: bytes, form: list[bytes]) -> None:
    head = [T, b"UNSCHEDULE", b"m1"]
    message = emqp.read_from_client([*head, queue, b"", *form])
    # Public schedulers decode every frame, so they get none that is no text.
    assert message == emqp.Unschedule(b"m1", b"", RUN, raw=(*head, b"", b"", *form))


def test_the_longest_queue_of_unschedule_is_passed_on() -> None:
    given = [T, b"UNSCHEDULE", b"m1", b"q" * 255, b"", RUN]
    assert emqp.read_from_client(given) == emqp.Unschedule(b"m1", b"q" * 255, RUN, raw=(*given,))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"q", b""], "length"),
        ([b"q", b"", b"10", RUN], "length"),
        ([b"q", b"", b"10", RUN, b"", b""], "length"),
        ([b"", b"", RUN], "bad_name"),
        ([b"q", b"timeout:x", RUN], "bad_header"),
        ([b"q", b"", b"-1", RUN, b""], "no_schedule"),
        ([b"q", b"", b"-2", RUN, b""], "bad_interval"),
        ([b"q", b"", b"0", RUN, b""], "bad_interval"),
        ([b"q", b"", b"", RUN, b"@daily"], "bad_interval"),
        ([b"q", b"", b"1.5", RUN, b""], "bad_interval"),
        ([b"q", b"", b"%d" % (MAX_INTERVAL_S + 1), RUN, b""], "bad_interval"),
        ([b"q", b"", Opaque(b"10"), RUN, b""], "bad_interval"),
        ([b"q", b"", b"-1", RUN, b"*" * (MAX_CRON_BYTES + 1)], "bad_cron"),
        ([b"q", b"", b"-1", RUN, b"*\n*"], "bad_cron"),
        ([b"q", b"", b"-1", RUN, b"\xff"], "bad_cron"),
        ([b"q", b"", b"-1", RUN, Opaque(b"@daily")], "bad_cron"),
        ([b"q", b"", b'{"interval_secs": 0}'], "bad_interval"),
        ([b"q", b"", b'{"interval_secs": "5"}'], "bad_interval"),
        ([b"q", b"", b'{"interval_secs": true}'], "bad_interval"),
        ([b"q", b"", b'{"cron": 5}'], "bad_cron"),
        ([b"q", b"", b'{"cron": "\\ud800"}'], "bad_cron"),
        ([b"q", b"", Opaque(b"x" * (MAX_MESSAGE_BYTES + 1))], "too_long"),
    ],
)
def test_malformed(frames: list[bytes], reason: str) -> None:
    assert refused(lambda: emqp.read_from_client([T, b"SCHEDULE", b"m1", *frames])) == reason


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # What EventMQ 0.3.13 computes for these.
        (
            '["run", {"callable": "walk", "path": "os.path", "args": [1, 2.5, "\\u00e9"],'
            ' "kwargs": {"b": null, "a": [true]}, "class_args": [], "class_kwargs": {}}]',
            "9192314d67baea7b083b5243ab12c726e0d8cde3",
        ),
        (json.dumps(["run", JOB]), "2a569b51ae1e21d0af2ac3f2e3100bb79965aacf"),
        (json.dumps(["run", {**JOB, "interval_secs": 5}]), "2a569b51ae1e21d0af2ac3f2e3100bb79965aacf"),
    ],
)
def test_hash_of_public_clients(message: str, expected: str) -> None:
    assert emqp.schedule_hash(emqp.Schedule(b"m1", b"default", message.encode(), interval_s=5)) == expected
    # Neither the queue nor the time is part of it.
    assert emqp.jobs_to_remove(emqp.Unschedule(b"m2", b"", message.encode())) == (expected,)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"plain text",
        b"\xff",
        b"[]",
        b'["run"]',
        b'"run"',
        b'["run", {"path": "os"}]',
        json.dumps(JOB).encode(),
        b"[" * 100_000,
        b"[" + b"9" * 5000 + b"]",
        b'["run", ' + b'{"a":' * 100_000,
    ],
)
def test_hash_of_any_other_message(message: bytes) -> None:
    scheduled = emqp.Schedule(b"m1", b"default", message)
    expected = hashlib.sha1(b"default\0" + message).hexdigest()
    assert emqp.schedule_hash(scheduled) == expected
    assert emqp.schedule_hash(emqp.Schedule(b"m1", b"other", message)) != expected
    # To remove it, its queue does not matter.
    identity = emqp.identify_kept(expected, b"default", message, 5, "")
    assert identity is not None
    assert emqp.jobs_to_remove(emqp.Unschedule(b"m2", b"other", message)) == (identity[0],)


@pytest.mark.parametrize(
    "message",
    [
        emqp.Schedule(b"", b"q", RUN),
        emqp.Schedule(b"m1", b"", RUN),
        emqp.Schedule(b"m1", b"q", RUN, interval_s=0),
        emqp.Schedule(b"m1", b"q", RUN, interval_s=MAX_INTERVAL_S + 1),
        emqp.Schedule(b"m1", b"q", RUN, interval_s=1, cron=b"@daily"),
        emqp.Schedule(b"m1", b"q", RUN, cron="é".encode()),
        emqp.Schedule(b"m1", b"q", b"x" * (MAX_MESSAGE_BYTES + 1)),
        emqp.Unschedule(b"m1", b"\n", RUN),
    ],
)
def test_what_we_must_not_send(message: emqp.Schedule | emqp.Unschedule) -> None:
    with pytest.raises(LocalProtocolError):
        emqp.write_from_client(message)


def identity(
    message: bytes, interval_s: float | None = 5, cron: str = "", queue: bytes = b"q"
) -> tuple[str, bytes]:
    scheduled = emqp.Schedule(b"m1", queue, message, interval_s=interval_s, cron=cron.encode())  # type: ignore[arg-type]
    found = emqp.identify_kept(emqp.schedule_hash(scheduled), queue, message, interval_s, cron)
    assert found is not None
    return found


@pytest.mark.conforms("EMQP-40")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((b'{"do": "x", "interval_secs": 5}', 5, ""), (b'{"interval_secs": 7, "do": "x"}', 7, "")),
        ((b'{"do":"x","interval_secs":5}', 5, ""), (b'{"do": "x", "cron": "@daily"}', None, "@daily")),
        ((b'["a", {"b": 1, "interval_secs": 5}]', 5, ""), (b'["a", {"b": 1}]', 9, "")),
        ((b'{"a": 1, "b": 2}', 5, ""), (b'{"b":2,"a":1}', None, "@daily")),
        ((b"text", 5, ""), (b"text", 7, "")),
    ],
)
def test_the_same_job_with_other_times(
    first: tuple[bytes, float | None, str], second: tuple[bytes, float | None, str]
) -> None:
    assert identity(*first) == identity(*second)
    # In another queue it is another schedule of the same job.
    elsewhere = identity(*first, queue=b"other")
    assert elsewhere != identity(*first)
    assert elsewhere[0] == identity(*first)[0]


@pytest.mark.conforms("EMQP-40")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((b'{"do": "x"}', 5, ""), (b'{"do": "y"}', 5, "")),
        # What looks like times belongs to the job if the schedule has others.
        ((b'["poll", {"interval_secs": 1}]', 60, ""), (b'["poll", {"interval_secs": 2}]', 60, "")),
        ((b'["poll", {"interval_secs": 1}]', 60, ""), (b'["poll", {}]', 60, "")),
        ((b'["poll", {"cron": "x"}]', 60, ""), (b'["poll", {}]', 60, "")),
        ((b"1", 5, ""), (b"1.0", 5, "")),
        ((b"1", 5, ""), (b" 1", 5, "")),
        ((b"text", 5, ""), (b"another text", 5, "")),
        ((b'"text"', 5, ""), (b'"another text"', 5, "")),
        ((b"[1]", 5, ""), (b"[true]", 5, "")),
    ],
)
def test_another_job(first: tuple[bytes, float | None, str], second: tuple[bytes, float | None, str]) -> None:
    assert identity(*first)[0] != identity(*second)[0]


@pytest.mark.conforms("EMQP-39")
def test_an_unschedule_means_the_message_as_it_is_first_and_without_its_times_then() -> None:
    message = b'["poll", {"interval_secs": 1}]'
    jobs = emqp.jobs_to_remove(emqp.Unschedule(b"m1", b"", message))
    assert jobs == (identity(message, 60)[0], identity(message, 1)[0])


def test_what_an_earlier_version_kept_is_known_and_what_was_named_is_not() -> None:
    message = b'{"do": "x", "interval_secs": 5}'
    earlier = hashlib.sha1(b"q\0" + message).hexdigest()
    assert emqp.schedule_hash(emqp.Schedule(b"m1", b"q", message, interval_s=5)) != earlier
    assert emqp.identify_kept(earlier, b"q", message, 5, "") == identity(message)
    assert emqp.identify_kept("nightly", b"q", message, 5, "") is None


@pytest.mark.conforms("EMQP-43")
@pytest.mark.parametrize(
    ("message", "interval_s", "cron", "expected"),
    [
        (b'{"a": 1}', 5, b"", {"a": 1, "interval_secs": 5}),
        (b'["run", {"a": 1, "cron": "x"}, 2]', 5, b"", ["run", {"a": 1, "interval_secs": 5}, 2]),
        (b'["run", {"interval_secs": 9}]', None, b"@daily", ["run", {"cron": "@daily"}]),
    ],
)
def test_times_are_put_into_a_message(
    message: bytes, interval_s: int | None, cron: bytes, expected: object
) -> None:
    carried = emqp.with_times(emqp.Schedule(b"m1", b"q", message, interval_s=interval_s, cron=cron))
    assert carried is not None
    assert json.loads(carried) == expected
    assert emqp.with_times(emqp.Schedule(b"m1", b"q", carried, interval_s=interval_s, cron=cron)) == carried


@pytest.mark.parametrize("message", [b"", b"text", b"7", b'["run"]', b'["run", 1]', b"[" * 100_000])
def test_a_message_that_cannot_carry_times(message: bytes) -> None:
    assert emqp.with_times(emqp.Schedule(b"m1", b"q", message, interval_s=5)) is None


@pytest.mark.parametrize("interval_s", [1, 9, 2_147_483_647])
def test_the_shortest_and_the_longest_interval(interval_s: int) -> None:
    text = b"%d" % interval_s
    given = [T, b"SCHEDULE", b"m1", b"q", b"", text, RUN, b""]
    message = emqp.Schedule(b"m1", b"q", RUN, interval_s=interval_s, raw=(*given,))
    assert emqp.read_from_client(given) == message
    assert emqp.write_from_client(message) == given
    inside = emqp.read_from_client([*given[:5], b'{"interval_secs": %d}' % interval_s])
    assert isinstance(inside, emqp.Schedule)
    assert inside.interval_s == interval_s


@pytest.mark.parametrize("text", [b"2147483648", b"0000000000", b"00000000001", b"+5", b" 5", "٥".encode()])
def test_what_is_no_interval(text: bytes) -> None:
    given = [T, b"SCHEDULE", b"m1", b"q", b"", text, RUN, b"@daily"]
    assert refused(lambda: emqp.read_from_client(given)) == "bad_interval"
    assert refused(
        lambda: emqp.read_from_client([*given[:5], b'{"interval_secs": 2147483648, "cron": "@daily"}'])
    ) == ("bad_interval")


def test_the_longest_cron_text_and_the_longest_message() -> None:
    cron, message = b"*" * 255, b"x" * 1024 * 1024
    given = [T, b"SCHEDULE", b"m1", b"q", b"", b"-1", message, cron]
    read = emqp.Schedule(b"m1", b"q", message, cron=cron, raw=(*given,))
    assert emqp.read_from_client(given) == read
    assert emqp.write_from_client(read) == given
    with pytest.raises(LocalProtocolError):
        emqp.write_from_client(emqp.Schedule(b"m1", b"q", RUN, cron=b"*" * 256))
    removed = [T, b"UNSCHEDULE", b"m1", b"q", b"", b"-1", message, b""]
    assert emqp.write_from_client(emqp.Unschedule(b"m1", b"q", message)) == removed
    with pytest.raises(LocalProtocolError):
        emqp.write_from_client(emqp.Unschedule(b"m1", b"q", message + b"x"))
    assert refused(lambda: emqp.read_from_client([*removed[:6], message + b"x", b""])) == "too_long"


@pytest.mark.parametrize("count", [5, 7, 9])
@pytest.mark.parametrize("word", [b"SCHEDULE", b"UNSCHEDULE"])
def test_there_are_two_forms_and_no_other(word: bytes, count: int) -> None:
    frames = [T, word, b"m1", b"q", b"", b"1", RUN, b"", b""][:count]
    assert refused(lambda: emqp.read_from_client(frames)) == "length"


@pytest.mark.parametrize("part", list(JOB))
def test_a_job_without_one_of_its_six_parts_is_no_public_clients(part: str) -> None:
    partly = {name: value for name, value in JOB.items() if name != part}
    message = json.dumps(["run", partly]).encode()
    assert (
        emqp.schedule_hash(emqp.Schedule(b"m1", b"q", message)) == hashlib.sha1(b"q\0" + message).hexdigest()
    )
    # And each part makes it another job.
    changed = json.dumps(["run", {**JOB, part: "another"}]).encode()
    assert emqp.schedule_hash(emqp.Schedule(b"m1", b"q", changed)) != (
        emqp.schedule_hash(emqp.Schedule(b"m1", b"q", RUN))
    )


def test_schedules_have_their_keys_where_sha1_is_allowed_for_nothing_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in Pythons that are built for FIPS."""

    def strict_sha1(text: bytes, *, usedforsecurity: bool = True) -> Any:
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return sha1(text, usedforsecurity=False)

    monkeypatch.setattr(emqp_schedule, "sha1", strict_sha1)
    key = emqp.schedule_hash(emqp.Schedule(b"m1", b"q", b"text"))
    assert key == hashlib.sha1(b"q\0text").hexdigest()


def test_a_job_that_is_too_deep_to_be_written_is_no_public_clients() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert emqp_schedule._canonical(deep) is None
    assert emqp_schedule._public_hash(["run", {**JOB, "args": deep}]) == ""
    assert emqp_schedule._public_hash(["run", JOB]) != ""


@pytest.mark.parametrize(
    "message", [b"\xff", b"[" * 100_000, b"5", b'"text"', b"[]", b'["run"]', b'["run", 5]']
)
def test_a_message_of_any_kind_can_be_scheduled_and_removed(message: bytes) -> None:
    schedule = emqp.Schedule(b"m", b"default", message, interval_s=60)
    assert emqp.with_times(schedule) is None
    found = identify(b"default", message, 60, b"")
    assert (found.queue, found.key) == (b"default", sha1(b"default\0" + message).hexdigest())
    assert emqp.jobs_to_remove(emqp.Unschedule(b"m", b"", message))[0] == found.job


@pytest.mark.parametrize(
    ("message", "interval_s", "cron", "is_timeless"),
    [
        # Times in a message are those of its schedule only if they are the same.
        ({"do": 1, "interval_secs": 60}, 60, b"", True),
        ({"do": 1, "interval_secs": 60}, 61, b"", False),
        ({"do": 1, "interval_secs": 60, "cron": "x"}, 60, b"", True),
        ({"do": 1, "interval_secs": 60, "cron": "@daily"}, None, b"@daily", True),
        ({"do": 1, "cron": "* * * * *"}, None, b"* * * * *", True),
        ({"do": 1, "cron": "* * * * *"}, None, b"1 * * * *", False),
        ({"do": 1, "cron": "* * * * *"}, 60, b"", False),
        ({"do": 1, "cron": ""}, None, b"", False),
        (["run", {"do": 1, "interval_secs": 60}, "more"], 60, b"", True),
        ({"do": 1}, 60, b"", False),
    ],
)
def test_which_times_in_a_message_are_those_of_its_schedule(
    message: Any, interval_s: int | None, cron: bytes, is_timeless: bool
) -> None:
    text = json.dumps(message).encode()
    found = identify(b"q", text, interval_s, cron)
    if isinstance(message, list):
        timeless: Any = [message[0], {"do": 1}, *message[2:]]
    else:
        timeless = {"do": 1} if is_timeless else message
    assert found.job == sha1(json.dumps(timeless, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize(
    ("message", "interval_s", "cron", "expected"),
    [
        ({"do": 1}, 60, b"", {"do": 1, "interval_secs": 60}),
        ({"do": 1}, None, b"* * * * *", {"do": 1, "cron": "* * * * *"}),
        # Others that are there already give way.
        ({"interval_secs": 5, "do": 1}, None, b"* * * * *", {"do": 1, "cron": "* * * * *"}),
        ({"cron": "x", "do": 1}, 60, b"", {"do": 1, "interval_secs": 60}),
        (["run", {"do": 1}, 7], 60, b"", ["run", {"do": 1, "interval_secs": 60}, 7]),
    ],
)
def test_the_times_of_a_schedule_go_into_its_message(
    message: Any, interval_s: int | None, cron: bytes, expected: Any
) -> None:
    text = json.dumps(message).encode()
    schedule = emqp.Schedule(b"m", b"q", text, interval_s=interval_s, cron=cron)
    found = emqp.with_times(schedule)
    assert found is not None
    assert json.loads(found) == expected
    # What has its times is left as it is, byte by byte.
    again = msgspec.structs.replace(schedule, message=b" " + found)
    assert emqp.with_times(again) == b" " + found
