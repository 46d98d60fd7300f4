"""MDP/0.1 (RFC 7), frame by frame. The empty first frame is the socket owner's, `at` is behind it."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import mdp1, mdp2
from polybus.wire.frames import MAX_BODY_FRAMES
from support.wire_frames import Opaque, refused

C, W = b"MDPC01", b"MDPW01"


@pytest.mark.conforms("MDP1-4")
def test_client_request() -> None:
    message = mdp1.Request(b"echo", [b"one", b"two"])
    assert mdp1.read_from_client([b"peer", b"", C, b"echo", b"one", b"two"], 2) == message
    assert mdp1.write_from_client(message) == [C, b"echo", b"one", b"two"]


@pytest.mark.conforms("MDP1-5")
def test_client_reply() -> None:
    given = [C, b"echo", b"one", b"two"]
    assert mdp1.write_final(b"echo", [b"one", b"two"]) == given
    assert mdp1.read_as_client([b"", *given], 1) == mdp1.FinalReply(b"echo", [b"one", b"two"])


@pytest.mark.conforms("MDP1-10")
def test_ready() -> None:
    assert mdp1.read_from_worker([b"peer", b"", W, b"\x01", b"echo"], 2) == mdp1.Ready(b"echo", 1)
    assert mdp1.write_from_worker(mdp1.Ready(b"echo")) == [W, b"\x01", b"echo"]


def test_ready_with_a_credit() -> None:
    assert mdp1.read_from_worker([W, b"\x01", b"echo", b"16"]) == mdp1.Ready(b"echo", 16)
    assert mdp1.write_from_worker(mdp1.Ready(b"echo", 16)) == [W, b"\x01", b"echo", b"16"]


@pytest.mark.conforms("MDP1-11")
def test_worker_request() -> None:
    given = [W, b"\x02", b"client", b"", b"one", b"two"]
    assert mdp1.write_order(b"client", [b"one", b"two"]) == given
    assert mdp1.read_as_worker([b"", *given], 1) == mdp1.Order(b"client", [b"one", b"two"])


@pytest.mark.conforms("MDP1-12")
def test_worker_reply() -> None:
    given = [W, b"\x03", b"client", b"", b"one", b"two"]
    message = mdp1.WorkerFinal(b"client", [b"one", b"two"])
    assert mdp1.read_from_worker([b"peer", b"", *given], 2) == message
    assert mdp1.write_from_worker(message) == given


@pytest.mark.conforms("MDP1-13")
def test_heartbeat() -> None:
    given = [W, b"\x04"]
    assert mdp1.read_from_worker(given) == mdp1.Heartbeat()
    assert mdp1.read_as_worker(given) == mdp1.Heartbeat()
    assert mdp1.write_from_worker(mdp1.Heartbeat()) == given
    assert mdp1.write_heartbeat() == given


@pytest.mark.conforms("MDP1-14")
def test_disconnect() -> None:
    given = [W, b"\x05"]
    assert mdp1.read_from_worker(given) == mdp1.Disconnect()
    assert mdp1.read_as_worker(given) == mdp1.Disconnect()
    assert mdp1.write_from_worker(mdp1.Disconnect()) == given
    assert mdp1.write_disconnect() == given


@pytest.mark.conforms("MDP1-17")
def test_every_command_carries_the_header() -> None:
    assert mdp1.write_from_client(mdp1.Request(b"echo", []))[0] == C
    assert mdp1.write_final(b"echo", [])[0] == C
    messages = (mdp1.Ready(b"echo"), mdp1.WorkerFinal(b"client", []), mdp1.Heartbeat(), mdp1.Disconnect())
    for frames in (
        *(mdp1.write_from_worker(message) for message in messages),
        mdp1.write_order(b"client", []),
        mdp1.write_heartbeat(),
        mdp1.write_disconnect(),
    ):
        assert frames[0] == W


@pytest.mark.conforms("MDP1-26")
def test_one_address_frame_then_an_empty_one() -> None:
    def read(*rest: bytes) -> str:
        return refused(lambda: mdp1.read_from_worker([W, b"\x03", *rest]))

    assert read(b"client", b"other", b"", b"body") == "envelope"
    assert read(b"", b"", b"body") == "bad_id"
    assert read(b"client") == "short"
    assert refused(lambda: mdp1.read_as_worker([W, b"\x02", b"client", b"other", b"", b"x"])) == "envelope"


def test_there_are_no_partial_replies() -> None:
    with pytest.raises(LocalProtocolError, match="WorkerPartial"):
        mdp1.write_from_worker(mdp2.WorkerPartial(b"client", [b"piece"]))  # type: ignore[arg-type]


def test_every_body_has_a_frame() -> None:
    assert mdp1.write_from_client(mdp1.Request(b"echo", []))[2:] == [b""]
    assert mdp1.write_final(b"echo", [])[2:] == [b""]
    assert mdp1.write_order(b"client", [])[4:] == [b""]
    assert mdp1.write_from_worker(mdp1.WorkerFinal(b"client", []))[4:] == [b""]


def test_body_frames_are_not_touched() -> None:
    large = Opaque(b"x" * 1000)
    assert mdp1.read_from_client([C, b"echo", large]).body[0] is large
    assert mdp1.read_from_worker([W, b"\x03", b"client", b"", large]).body[0] is large
    assert mdp1.write_final(b"echo", [large])[-1] is large
    assert large.copies == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "short"),
        ([C], "short"),
        ([C, b"echo"], "short"),
        ([C, b"", b"body"], "bad_name"),
        ([C, b"\x01", b"echo", b"body"], "bad_name"),
        ([C, b"x" * 256, b"body"], "bad_name"),
        ([C, Opaque(b"echo"), b"body"], "bad_name"),
        ([C, b"echo"] + [b""] * (MAX_BODY_FRAMES + 1), "too_many_frames"),
    ],
)
def test_malformed_from_a_client_or_to_one(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp1.read_from_client(given)) == reason
    assert refused(lambda: mdp1.read_as_client(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([W], "short"),
        ([W, b"\x00"], "unknown_command"),
        ([W, b"\x06"], "unknown_command"),
        ([W, b"\x02", b"client", b"x", b"id"], "envelope"),
        ([W, Opaque(b"\x04")], "unknown_command"),
        ([W, b"\x01"], "length"),
        ([W, b"\x01", b"echo", b"1", b""], "length"),
        ([W, b"\x01", b"\x7f"], "bad_name"),
        ([W, b"\x01", b"echo", b"many"], "bad_credit"),
        ([W, b"\x03", b"x" * 256, b"", b"body"], "bad_id"),
        ([W, b"\x03", Opaque(b"client"), b"", b"body"], "bad_id"),
        ([W, b"\x04", b""], "length"),
        ([W, b"\x05", b""], "length"),
    ],
)
def test_malformed_from_a_worker(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp1.read_from_worker(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([W, b"\x01", b"echo"], "unknown_command"),
        ([W, b"\x03", b"client", b"", b"body"], "unknown_command"),
        ([W, b"\x02", b"client"], "short"),
        ([W, b"\x04", b""], "length"),
    ],
)
def test_malformed_to_a_worker(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp1.read_as_worker(given)) == reason


@pytest.mark.parametrize(
    "message", [mdp1.Ready(b""), mdp1.Ready(b"echo", 0), mdp1.WorkerFinal(b"", []), mdp1.Ready(b"\n", 2)]
)
def test_a_worker_does_not_send_what_would_be_refused(message: mdp1.WorkerMessage) -> None:
    with pytest.raises(LocalProtocolError):
        mdp1.write_from_worker(message)


def test_a_client_does_not_send_what_would_be_refused() -> None:
    with pytest.raises(LocalProtocolError):
        mdp1.write_from_client(mdp1.Request(b"", []))


def test_answers_of_workers_may_have_no_body_frame() -> None:
    given = [W, b"\x03", b"client", b""]
    assert mdp1.read_from_worker(given) == mdp1.WorkerFinal(b"client", [])
    assert mdp1.read_as_worker([W, b"\x02", b"client", b""]) == mdp1.Order(b"client", [])


def test_a_request_is_valid_from_a_worker_too() -> None:
    assert mdp1.read_from_worker([W, b"\x02", b"client", b"", b"one"]) == mdp1.Order(b"client", [b"one"])
