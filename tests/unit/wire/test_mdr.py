"""The request-id draft, frame by frame."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import mdr
from polybus.wire.frames import MAX_BODY_FRAMES
from support.wire_frames import Opaque, refused

C, W = b"MDRC01", b"MDRW01"


@pytest.mark.conforms("MDR-5")
def test_client_request() -> None:
    given = [C, b"\x01", b"echo", b"id-1", b"one", b"two"]
    message = mdr.Request(b"echo", b"id-1", [b"one", b"two"])
    assert mdr.read_from_client(given) == message
    assert mdr.read_from_client([b"peer", b"", *given], 2) == message
    assert mdr.write_from_client(message) == given


@pytest.mark.conforms("MDR-6")
def test_client_partial() -> None:
    given = [C, b"\x02", b"echo", b"id-1", b"one"]
    assert mdr.write_partial(b"echo", b"id-1", [b"one"]) == given
    assert mdr.read_as_client(given) == mdr.Partial(b"echo", b"id-1", [b"one"])


@pytest.mark.conforms("MDR-7")
def test_client_final() -> None:
    given = [C, b"\x03", b"echo", b"id-1", b"one"]
    assert mdr.write_final(b"echo", b"id-1", [b"one"]) == given
    assert mdr.read_as_client(given) == mdr.FinalReply(b"echo", b"id-1", [b"one"])


def test_the_short_way_reads_a_good_request_and_nothing_else() -> None:
    good = [b"peer", C, b"\x01", b"echo", b"id-1", b"one", b"two"]
    assert mdr.split_request(good, 1, {}) == (b"echo", b"id-1", [b"one", b"two"])
    assert mdr.split_request(good, 1, {b"echo": None}) == (b"echo", b"id-1", [b"one", b"two"])
    for place, frame in ((2, b"\x02"), (3, b""), (3, b"x" * 256), (4, b""), (4, b"x" * 256)):
        assert mdr.split_request([*good[:place], frame, *good[place + 1 :]], 1, {}) is None, (place, frame)
    assert mdr.split_request(good[:6], 1, {}) == (b"echo", b"id-1", [b"one"])
    assert mdr.split_request(good[:5], 1, {}) is None
    assert mdr.split_request([*good, *[b""] * MAX_BODY_FRAMES], 1, {}) is None


def test_the_short_way_reads_a_good_final_and_nothing_else() -> None:
    good = [b"peer", W, b"\x04", b"client", b"", b"id-1", b"one", b"two"]
    assert mdr.split_final(good, 1) == (b"client", b"id-1", [b"one", b"two"])
    for place, frame in (
        (2, b"\x03"),
        (3, b""),
        (3, b"x" * 256),
        (4, b"not empty"),
        (5, b""),
        (5, b"x" * 256),
    ):
        assert mdr.split_final([*good[:place], frame, *good[place + 1 :]], 1) is None, (place, frame)
    assert mdr.split_final(good[:5], 1) is None
    assert mdr.split_final([*good, *[b""] * MAX_BODY_FRAMES], 1) is None


@pytest.mark.parametrize("length", [1, 255])
def test_the_short_ways_take_the_shortest_and_the_longest_id(length: int) -> None:
    long = b"x" * length
    assert mdr.split_request([C, b"\x01", long, b"id-1", b"one"], 0, {}) == (long, b"id-1", [b"one"])
    assert mdr.split_request([C, b"\x01", b"echo", long, b"one"], 0, {}) == (b"echo", long, [b"one"])
    assert mdr.split_final([W, b"\x04", long, b"", b"id-1", b"one"], 0) == (long, b"id-1", [b"one"])
    assert mdr.split_final([W, b"\x04", b"client", b"", long, b"one"], 0) == (b"client", long, [b"one"])


@pytest.mark.conforms("MDR-12")
def test_ready() -> None:
    given = [W, b"\x01", b"echo"]
    assert mdr.read_from_worker(given) == mdr.Ready(b"echo", 1)
    assert mdr.write_from_worker(mdr.Ready(b"echo")) == given


def test_ready_with_a_credit() -> None:
    given = [W, b"\x01", b"echo", b"16"]
    assert mdr.read_from_worker(given) == mdr.Ready(b"echo", 16)
    assert mdr.write_from_worker(mdr.Ready(b"echo", 16)) == given
    assert mdr.read_credit(b"1000000") == mdr.MAX_CREDIT


@pytest.mark.conforms("MDR-13")
def test_worker_request() -> None:
    given = [W, b"\x02", b"client", b"", b"id-1", b"one", b"two"]
    assert mdr.write_order(b"client", b"id-1", [b"one", b"two"]) == given
    assert mdr.read_as_worker(given) == mdr.Order(b"client", b"id-1", [b"one", b"two"])


@pytest.mark.conforms("MDR-14")
def test_worker_partial() -> None:
    given = [W, b"\x03", b"client", b"", b"id-1", b"one"]
    message = mdr.WorkerPartial(b"client", b"id-1", [b"one"])
    assert mdr.read_from_worker(given) == message
    assert mdr.write_from_worker(message) == given


@pytest.mark.conforms("MDR-15")
def test_worker_final() -> None:
    given = [W, b"\x04", b"client", b"", b"id-1", b"one"]
    message = mdr.WorkerFinal(b"client", b"id-1", [b"one"])
    assert mdr.read_from_worker(given) == message
    assert mdr.write_from_worker(message) == given


@pytest.mark.conforms("MDR-16")
def test_ping() -> None:
    assert mdr.read_from_worker([W, b"PING"]) == mdr.Ping()
    assert mdr.write_from_worker(mdr.Ping()) == [W, b"PING"]


@pytest.mark.conforms("MDR-17")
def test_pong() -> None:
    assert mdr.read_as_worker([W, b"PONG"]) == mdr.Pong()
    assert mdr.write_pong() == [W, b"PONG"]


@pytest.mark.conforms("MDR-18")
def test_disconnect() -> None:
    for tag in (W, b"MDPW02"):
        assert mdr.read_from_worker([tag, b"\x06"]) == mdr.Disconnect()
        assert mdr.read_as_worker([tag, b"\x06"]) == mdr.Disconnect()
    assert mdr.write_disconnect() == [b"MDPW02", b"\x06"]
    assert mdr.write_from_worker(mdr.Disconnect()) == [W, b"\x06"]


@pytest.mark.conforms("MDR-20")
def test_every_command_carries_the_header_and_the_header_is_settable() -> None:
    tag = b"MINE"
    assert mdr.write_from_client(mdr.Request(b"echo", b"id", [b""]), tag)[0] == tag
    assert mdr.write_from_worker(mdr.Ready(b"echo"), tag)[0] == tag
    for frames in (
        mdr.write_partial(b"echo", b"id", [], tag),
        mdr.write_final(b"echo", b"id", [], tag),
        mdr.write_order(b"client", b"id", [], tag),
        mdr.write_pong(tag),
        mdr.write_disconnect(tag),
    ):
        assert frames[0] == tag


@pytest.mark.conforms("MDR-31")
@pytest.mark.parametrize("command", [b"\x03", b"\x04"])
def test_one_address_frame_then_an_empty_one(command: bytes) -> None:
    def read(*rest: bytes) -> str:
        return refused(lambda: mdr.read_from_worker([W, command, *rest]))

    assert read(b"client", b"other", b"", b"id-1", b"body") == "envelope"
    assert read(b"", b"", b"id-1", b"body") == "bad_id"
    assert read(b"x" * 256, b"", b"id-1", b"body") == "bad_id"


@pytest.mark.conforms("MDR-32")
@pytest.mark.parametrize("command", [b"\x03", b"\x04"])
def test_one_id_frame_after_the_empty_one(command: bytes) -> None:
    def read(*rest: bytes) -> str:
        return refused(lambda: mdr.read_from_worker([W, command, b"client", b"", *rest]))

    assert read(b"", b"body") == "bad_id"
    assert read(b"x" * 256, b"body") == "bad_id"
    assert read() == "short"


@pytest.mark.conforms("MDR-44")
def test_commands_of_workers_may_have_no_body_frame() -> None:
    envelope = [b"client", b"", b"id-1"]
    assert mdr.read_from_worker([W, b"\x03", *envelope]) == mdr.WorkerPartial(b"client", b"id-1", [])
    assert mdr.read_from_worker([W, b"\x04", *envelope]) == mdr.WorkerFinal(b"client", b"id-1", [])
    assert mdr.read_as_worker([W, b"\x02", *envelope]) == mdr.Order(b"client", b"id-1", [])
    assert mdr.split_final([b"peer", W, b"\x04", *envelope], 1) == (b"client", b"id-1", [])


def test_the_fast_path_of_final_reads_what_the_reader_reads() -> None:
    for body in ([], [b"one"], [b"one", b"two"], [b""] * MAX_BODY_FRAMES):
        given = [W, b"\x04", b"client", b"", b"id-1", *body]
        read = mdr.read_from_worker(given)
        split = mdr.split_final(given, 0)
        assert read == mdr.WorkerFinal(b"client", b"id-1", body)
        # The fast path may leave a message to the reader, but must not read another one out of it.
        assert split in (None, (b"client", b"id-1", body))
        assert split is not None or len(body) == MAX_BODY_FRAMES


@pytest.mark.conforms("MDR-31", "MDR-32")
@pytest.mark.parametrize(
    "given",
    [
        [W, b"\x04", b"client", b"x", b"id", b"body"],
        [W, b"\x04", b"client", b"x", b"id"],
        [W, b"\x04", b"client", b"other", b"", b"id", b"body"],
        [W, b"\x04", b"", b"", b"id", b"body"],
        [W, b"\x04", b"x" * 256, b"", b"id", b"body"],
        [W, b"\x04", b"client", b"", b"", b"body"],
        [W, b"\x04", b"client", b"", b"x" * 256, b"body"],
        [W, b"\x04", b"client", b""],
        [W, b"\x04", Opaque(b"client"), b"", b"id", b"body"],
        [W, b"\x04", b"client", b"", Opaque(b"id"), b"body"],
        [W, b"\x03", b"client", b"", b"id", b"body"],
        [W, b"PING"],
        [W],
    ],
)
def test_the_fast_path_of_final_takes_nothing_else(given: list[bytes]) -> None:
    assert mdr.split_final(given, 0) is None
    assert mdr.split_final([b"peer", *given], 1) is None


def test_every_body_has_a_frame() -> None:
    assert mdr.write_from_client(mdr.Request(b"echo", b"id", []))[4:] == [b""]
    assert mdr.write_from_worker(mdr.WorkerFinal(b"client", b"id", []))[5:] == [b""]
    assert mdr.write_partial(b"echo", b"id", [])[4:] == [b""]
    assert mdr.write_final(b"echo", b"id", [])[4:] == [b""]
    assert mdr.write_order(b"client", b"id", [])[5:] == [b""]


def test_body_frames_are_not_touched() -> None:
    large = Opaque(b"x" * 1000)
    assert mdr.read_from_client([C, b"\x01", b"echo", b"id", large]).body[0] is large
    assert mdr.read_from_worker([W, b"\x04", b"client", b"", b"id", large]).body[0] is large
    assert mdr.write_final(b"echo", b"id", [large])[-1] is large
    assert large.copies == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "short"),
        ([C], "short"),
        ([C, b"\x01"], "short"),
        ([C, b"\x01", b"echo", b"id"], "short"),
        ([C, b"\x02", b"echo", b"id", b"body"], "unknown_command"),
        ([C, b"", b"echo", b"id", b"body"], "unknown_command"),
        ([C, b"\x01", b"", b"id", b"body"], "bad_name"),
        ([C, b"\x01", b"a\n", b"id", b"body"], "bad_name"),
        ([C, b"\x01", b"x" * 256, b"id", b"body"], "bad_name"),
        ([C, b"\x01", b"echo", b"", b"body"], "bad_id"),
        ([C, b"\x01", b"echo", b"x" * 256, b"body"], "bad_id"),
        ([C, b"\x01", Opaque(b"echo"), b"id", b"body"], "bad_name"),
        ([C, b"\x01", b"echo", Opaque(b"id"), b"body"], "bad_id"),
        ([C, b"\x01", b"echo", b"id"] + [b""] * (MAX_BODY_FRAMES + 1), "too_many_frames"),
    ],
)
def test_malformed_from_a_client(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdr.read_from_client(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([W, b"\x01"], "length"),
        ([W, b"\x01", b"echo", b"1", b"2"], "length"),
        ([W, b"\x01", b""], "bad_name"),
        ([W, b"\x01", b"echo", b""], "bad_credit"),
        ([W, b"\x01", b"echo", b"0"], "bad_credit"),
        ([W, b"\x01", b"echo", b"-1"], "bad_credit"),
        ([W, b"\x01", b"echo", b"1000001"], "bad_credit"),
        ([W, b"\x01", b"echo", b"00000001"], "bad_credit"),
        ([W, b"\x01", b"echo", "²".encode()], "bad_credit"),
        ([W, b"\x01", b"echo", Opaque(b"5")], "bad_credit"),
        ([W, b"\x02", b"client", b"x", b"id"], "envelope"),
        ([W, b"\x03", b"client", b""], "short"),
        ([W, b"\x04", b"client", b""], "short"),
        ([W, b"\x04", b"client", b"x", b"id", b"body"], "envelope"),
        ([W, b"\x04", Opaque(b"client"), b"", b"id", b"body"], "bad_id"),
        ([W, b"PING", b""], "length"),
        ([W, b"PONG", b""], "length"),
        ([W, b"\x06", b"why"], "length"),
    ],
)
def test_malformed_from_a_worker(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdr.read_from_worker(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([C, b"\x01", b"echo", b"id", b"body"], "unknown_command"),
        ([C, b"\x02", b"echo", b"id"], "short"),
        ([C, b"\x03", b"echo"], "short"),
        ([C, b"\x03", b"echo", b"id"], "short"),
        ([C, b"\x03", b"", b"id", b"body"], "bad_name"),
    ],
)
def test_malformed_to_a_client(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdr.read_as_client(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([W, b"\x01", b"echo"], "unknown_command"),
        ([W, b"\x02", b"client", b""], "short"),
        ([W, b"\x02", b"client", b"x", b"id", b"body"], "envelope"),
        ([W, b"PONG", b""], "length"),
        ([W, b"PING"], "unknown_command"),
    ],
)
def test_malformed_to_a_worker(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdr.read_as_worker(given)) == reason


@pytest.mark.parametrize(
    "message",
    [
        mdr.Ready(b""),
        mdr.Ready(b"a\n"),
        mdr.Ready(b"echo", 0),
        mdr.Ready(b"echo", mdr.MAX_CREDIT + 1),
        mdr.WorkerFinal(b"", b"id", []),
        mdr.WorkerFinal(b"client", b"", []),
        mdr.WorkerPartial(b"x" * 256, b"id", []),
    ],
)
def test_a_worker_does_not_send_what_would_be_refused(message: mdr.WorkerMessage) -> None:
    with pytest.raises(LocalProtocolError):
        mdr.write_from_worker(message)


@pytest.mark.parametrize("message", [mdr.Request(b"", b"id", []), mdr.Request(b"echo", b"", [])])
def test_a_client_does_not_send_what_would_be_refused(message: mdr.Request) -> None:
    with pytest.raises(LocalProtocolError):
        mdr.write_from_client(message)


def test_a_request_and_a_pong_are_valid_from_a_worker_too() -> None:
    given = [W, b"\x02", b"client", b"", b"id-1", b"one"]
    assert mdr.read_from_worker(given) == mdr.Order(b"client", b"id-1", [b"one"])
    assert mdr.read_from_worker([W, b"PONG"]) == mdr.Pong()
