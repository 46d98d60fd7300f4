"""What polybus workers and brokers say to each other in eMQP, frame by frame."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import emqp
from polybus.wire.emqp_inform import MAX_EXTENSION_BYTES, MAX_HOLDING, write_extension
from support.wire_frames import Opaque, refused

T = b"eMQP/1.0"


def test_inform_of_a_polybus_worker() -> None:
    given = [T, b"INFORM", b"m1", b'[[10,"email"]]', b"worker", b'{"polybus":2,"holding":["t1","t2"]}']
    message = emqp.Inform(b"m1", "worker", (emqp.Queue(10, b"email"),), (b"t1", b"t2"), 2)
    assert emqp.write_from_worker(message) == given
    assert emqp.read_from_worker(given) == emqp.read_from_client(given) == message


def test_one_that_holds_nothing_is_still_told_from_others() -> None:
    given = [T, b"INFORM", b"m1", b"", b"worker", b'{"polybus":1}']
    message = emqp.Inform(b"m1", "worker", (), (), 1)
    assert emqp.write_from_worker(message) == given
    assert emqp.read_from_worker(given) == message
    assert emqp.read_from_worker(given[:-1]) == emqp.Inform(b"m1", "worker")


def test_newer_versions_may_say_more() -> None:
    given = [T, b"INFORM", b"m1", b"", b"worker", b'{"polybus": 9, "holding": [], "more": {"x": 1}}']
    assert emqp.read_from_worker(given) == emqp.Inform(b"m1", "worker", (), (), 9)


def test_there_is_no_version_zero() -> None:
    with pytest.raises(LocalProtocolError, match="no version 0"):
        emqp.write_from_worker(emqp.Inform(b"m1", "worker", (), ()))


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


@pytest.mark.parametrize("version", [1, 2])
def test_the_acknowledgement_of_a_polybus_broker(version: int) -> None:
    given = [T, b"ACK", b"b1", b"m1", b'{"polybus":%d}' % version]
    assert emqp.write_ack(b"b1", b"m1", version) == given
    assert emqp.read_as_worker(given) == emqp.Ack(b"b1", b"m1", version)
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


# -- many in one message ------------------------------------------------------------------------

ORDERS = [T, b"ORDERS", b"b1", b"t1", b"email", b"attempt:1", b"one", b"t2", b"sms", b"", b""]


def test_orders() -> None:
    first = emqp.Request(b"t1", b"email", emqp.Headers(attempt=1), [b"one"])
    second = emqp.Request(b"t2", b"sms", emqp.NO_HEADERS, [b""])
    assert emqp.read_as_worker(ORDERS) == emqp.Orders(b"b1", [first, second])
    assert emqp.write_orders(b"b1", [first, second]) == ORDERS
    # It is the broker's word alone.
    assert refused(lambda: emqp.read_from_worker(ORDERS)) == "unknown_command"
    assert refused(lambda: emqp.read_as_client(ORDERS)) == "unknown_command"


def test_done() -> None:
    given = [T, b"DONE", b"w1", b"t1", b"one", b"t2", b""]
    message = emqp.Done(b"w1", [(b"t1", b"one"), (b"t2", b"")])
    assert emqp.read_from_worker(given) == message
    assert emqp.write_from_worker(message) == given
    assert refused(lambda: emqp.read_from_client(given)) == "unknown_command"


def test_slots() -> None:
    given = [T, b"SLOTS", b"w1", b"500"]
    assert emqp.read_from_worker(given) == emqp.Slots(b"w1", 500)
    assert emqp.write_from_worker(emqp.Slots(b"w1", 500)) == given


@pytest.mark.parametrize("number", [b"", b"0", b"-1", b"+1", b"1.0", b" 1", b"100001", b"9" * 400, b"\xb2"])
def test_bad_numbers_of_slots(number: bytes) -> None:
    assert refused(lambda: emqp.read_from_worker([T, b"SLOTS", b"w1", number])) == "bad_number"


@pytest.mark.parametrize(
    ("at", "frame", "reason"),
    [
        (2, b"", "bad_id"),
        (3, b"", "bad_id"),
        (3, b"x" * 256, "bad_id"),
        (7, b"", "bad_id"),
        (8, b"", "bad_name"),
        (8, b"\xff", "bad_name"),
        (5, b"attempt:x", "bad_header"),
        (9, b"x" * 70_000, "too_long"),
    ],
)
def test_bad_orders(at: int, frame: bytes, reason: str) -> None:
    given = [*ORDERS]
    given[at] = frame
    assert refused(lambda: emqp.read_as_worker(given)) == reason


@pytest.mark.parametrize("at", [2, 3, 5])
@pytest.mark.parametrize("frame", [b"", b"x" * 256, Opaque(b"t1")])
def test_bad_answers(at: int, frame: bytes) -> None:
    given = [T, b"DONE", b"w1", b"t1", b"one", b"t2", b"two"]
    given[at] = frame
    assert refused(lambda: emqp.read_from_worker(given)) == "bad_id"


@pytest.mark.parametrize("count", [0, 65])
def test_how_many_are_in_one_message(count: int) -> None:
    job = emqp.Request(b"t", b"email", emqp.NO_HEADERS, [b"x"])
    assert refused(lambda: emqp.read_as_worker([*ORDERS[:3], *ORDERS[3:7] * count])) == "length"
    assert refused(lambda: emqp.read_from_worker([T, b"DONE", b"w1", *[b"t", b"x"] * count])) == "length"
    for write in (
        lambda: emqp.write_orders(b"b1", [job] * count),
        lambda: emqp.write_done(b"w1", [(b"t", b"x")] * count),
    ):
        with pytest.raises(LocalProtocolError, match=f"{count} jobs"):
            write()


@pytest.mark.parametrize("count", [1, 64])
def test_the_fewest_and_the_most_in_one_message(count: int) -> None:
    jobs = [emqp.Request(b"t%d" % number, b"email", emqp.NO_HEADERS, [b"x"]) for number in range(count)]
    assert emqp.read_as_worker(emqp.write_orders(b"b1", jobs)) == emqp.Orders(b"b1", jobs)
    answers = [(b"t%d" % number, b"x") for number in range(count)]
    written = emqp.write_done(b"w1", answers)
    assert len(written) == 3 + 2 * count
    assert emqp.read_from_worker(written) == emqp.Done(b"w1", answers)
    assert emqp.write_from_worker(emqp.Done(b"w1", answers)) == written


def test_headers_in_a_large_frame_are_read_and_compared_with_nothing() -> None:
    given = [*ORDERS[:9], Opaque(b"attempt:2"), b""]
    assert emqp.read_as_worker(given) == emqp.read_as_worker([*ORDERS[:9], b"attempt:2", b""])


def test_jobs_with_the_same_headers_and_with_others_follow_each_other() -> None:
    texts = [b"", b"", b"attempt:1", b"attempt:1", b"attempt:2", b"", b"attempt:2"]
    frames = [frame for text in texts for frame in (b"t", b"email", text, b"x")]
    read = emqp.read_as_worker([T, b"ORDERS", b"b1", *frames])
    assert isinstance(read, emqp.Orders)
    assert [job.headers.attempt for job in read.jobs] == [0, 0, 1, 1, 2, 0, 2]


def test_jobs_are_not_cut_in_two() -> None:
    for end in range(3, len(ORDERS)):
        if end != 7:
            assert refused(lambda end=end: emqp.read_as_worker(ORDERS[:end])) == "length"  # type: ignore[misc]
    assert refused(lambda: emqp.read_from_worker([T, b"DONE", b"w1", b"t1", b"one", b"t2"])) == "length"


@pytest.mark.parametrize("count", [0, -1, 100_001])
def test_bad_slots_are_not_written(count: int) -> None:
    with pytest.raises(LocalProtocolError, match="slots"):
        emqp.write_from_worker(emqp.Slots(b"w1", count))


def test_the_attempt_is_a_header() -> None:
    headers = emqp.Headers(reply_requested=True, attempt=3)
    assert emqp.write_headers(headers) == b"reply-requested,attempt:3"
    assert emqp.read_headers(b"reply-requested,attempt:3") == headers


@pytest.mark.parametrize("token", [b"", b"x" * 256, b"\xff"])
def test_what_json_cannot_carry_is_not_sent(token: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        write_extension(2, [token])


def test_the_number_of_slots_has_six_digits_at_most() -> None:
    assert emqp.read_from_worker([T, b"SLOTS", b"w1", b"000007"]) == emqp.Slots(b"w1", 7)
    assert refused(lambda: emqp.read_from_worker([T, b"SLOTS", b"w1", b"0000007"])) == "bad_number"
    assert refused(lambda: emqp.read_from_worker([T, b"SLOTS", b"w1", b"7", b""])) == "length"


@pytest.mark.parametrize("number", [1, 100_000])
def test_the_smallest_and_the_largest_number_of_slots(number: int) -> None:
    given = [T, b"SLOTS", b"w1", b"%d" % number]
    assert emqp.read_from_worker(given) == emqp.Slots(b"w1", number)
    assert emqp.write_from_worker(emqp.Slots(b"w1", number)) == given
