"""What polybus workers and brokers say to each other in eMQP, frame by frame."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import emqp
from polybus.wire.emqp_inform import MAX_EXTENSION_BYTES, MAX_HOLDING, write_extension
from support.wire_frames import refused

T = b"eMQP/1.0"


def test_inform_of_a_polybus_worker() -> None:
    given = [T, b"INFORM", b"m1", b'[[10,"email"]]', b"worker", b'{"polybus":1,"holding":["t1","t2"]}']
    message = emqp.Inform(b"m1", "worker", (emqp.Queue(10, b"email"),), (b"t1", b"t2"))
    assert emqp.write_from_worker(message) == given
    assert emqp.read_from_worker(given) == emqp.read_from_client(given) == message


def test_one_that_holds_nothing_is_still_told_from_others() -> None:
    given = [T, b"INFORM", b"m1", b"", b"worker", b'{"polybus":1}']
    message = emqp.Inform(b"m1", "worker", (), ())
    assert emqp.write_from_worker(message) == given
    assert emqp.read_from_worker(given) == message
    assert emqp.read_from_worker(given[:-1]) == emqp.Inform(b"m1", "worker")


def test_newer_versions_may_say_more() -> None:
    given = [T, b"INFORM", b"m1", b"", b"worker", b'{"polybus": 2, "holding": [], "more": {"x": 1}}']
    assert emqp.read_from_worker(given) == emqp.Inform(b"m1", "worker", (), ())


def test_a_scheduler_has_no_extension() -> None:
    assert emqp.read_from_worker([T, b"INFORM", b"m1", b"", b"scheduler", b"?"]).holding is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "bad_extension"),
        (b"[]", "bad_extension"),
        (b"{}", "bad_extension"),
        (b'{"polybus": 0}', "bad_extension"),
        (b'{"polybus": "1"}', "bad_extension"),
        (b'{"polybus": 1, "holding": "t1"}', "bad_extension"),
        (b'{"polybus": 1, "holding": [1]}', "bad_extension"),
        (b'{"polybus": 1, "holding": [""]}', "bad_id"),
        (b'{"polybus": 1, "holding": ["' + b"x" * 256 + b'"]}', "bad_id"),
        (b"\xff\xfe", "bad_extension"),
        (b"[" * 100_000, "bad_extension"),
        (b" " * (MAX_EXTENSION_BYTES + 1), "too_long"),
        (b'{"polybus": 1, "holding": [' + b'"t",' * MAX_HOLDING + b'"t"]}', "bad_extension"),
    ],
)
def test_bad_extensions(frame: bytes, reason: str) -> None:
    assert refused(lambda: emqp.read_from_worker([T, b"INFORM", b"m1", b"", b"worker", frame])) == reason


def test_the_acknowledgement_of_a_polybus_broker() -> None:
    given = [T, b"ACK", b"b1", b"m1", b'{"polybus":1}']
    assert emqp.write_ack(b"b1", b"m1", extended=True) == given
    assert emqp.read_as_worker(given) == emqp.Ack(b"b1", b"m1", True)
    assert refused(lambda: emqp.read_as_worker([*given[:-1], b"?"])) == "bad_extension"
    assert refused(lambda: emqp.read_as_worker([*given, b"?"])) == "length"


def test_cancel() -> None:
    given = [T, b"CANCEL", b"b1", b"t1"]
    assert emqp.write_cancel(b"b1", b"t1") == given
    assert emqp.read_as_worker(given) == emqp.Cancel(b"b1", b"t1")
    # It is the broker's word alone.
    assert refused(lambda: emqp.read_from_worker(given)) == "unknown_command"
    assert refused(lambda: emqp.read_as_client(given)) == "unknown_command"


def test_progress() -> None:
    given = [T, b"PROGRESS", b"w1", b"t1", b"50"]
    message = emqp.Progress(b"w1", b"t1", [b"50"])
    assert emqp.write_from_worker(message) == given
    assert emqp.read_from_worker(given) == message
    assert refused(lambda: emqp.read_from_client(given)) == "unknown_command"


def test_leave_and_return() -> None:
    assert emqp.write_from_worker(emqp.Leave(b"w1")) == [T, b"LEAVE", b"w1"]
    assert emqp.read_from_worker([T, b"LEAVE", b"w1"]) == emqp.Leave(b"w1")
    given = [T, b"RETURN", b"w1", b"t1"]
    assert emqp.write_from_worker(emqp.Return(b"w1", b"t1")) == given
    assert emqp.read_from_worker(given) == emqp.Return(b"w1", b"t1")


@pytest.mark.parametrize(
    "frames",
    [
        [T, b"PROGRESS", b"w1", b"t1"],
        [T, b"PROGRESS", b"w1", b"t1", b"a", b"b"],
        [T, b"RETURN", b"w1"],
        [T, b"RETURN", b"w1", b"t1", b"x"],
        [T, b"LEAVE", b"w1", b"x"],
        [T, b"INFORM", b"m1", b"", b"worker", b'{"polybus":1}', b"x"],
    ],
)
def test_wrong_lengths(frames: list[bytes]) -> None:
    assert refused(lambda: emqp.read_from_worker(frames)) == "length"


def test_the_attempt_is_a_header() -> None:
    headers = emqp.Headers(reply_requested=True, attempt=3)
    assert emqp.write_headers(headers) == b"reply-requested,attempt:3"
    assert emqp.read_headers(b"reply-requested,attempt:3") == headers


@pytest.mark.parametrize("token", [b"", b"x" * 256, b"\xff"])
def test_what_json_cannot_carry_is_not_sent(token: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        write_extension([token])
