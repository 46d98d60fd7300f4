"""MDP/0.2 (RFC 18), frame by frame."""

from __future__ import annotations

import pytest

from polybus.errors import LocalProtocolError
from polybus.wire import mdp2
from polybus.wire.frames import MAX_BODY_FRAMES
from support.wire_frames import Opaque, refused

C, W = b"MDPC02", b"MDPW02"


@pytest.mark.conforms("MDP2-4")
def test_client_request() -> None:
    given = [C, b"\x01", b"echo", b"one", b"two"]
    message = mdp2.Request(b"echo", [b"one", b"two"])
    assert mdp2.read_from_client([b"peer", *given], 1) == message
    assert mdp2.write_from_client(message) == given


@pytest.mark.conforms("MDP2-5")
def test_client_partial() -> None:
    given = [C, b"\x02", b"echo", b"one", b"two"]
    assert mdp2.write_partial(b"echo", [b"one", b"two"]) == given
    assert mdp2.read_as_client(given) == mdp2.Partial(b"echo", [b"one", b"two"])


@pytest.mark.conforms("MDP2-6")
def test_client_final() -> None:
    given = [C, b"\x03", b"echo", b"one", b"two"]
    assert mdp2.write_final(b"echo", [b"one", b"two"]) == given
    assert mdp2.read_as_client(given) == mdp2.FinalReply(b"echo", [b"one", b"two"])


@pytest.mark.conforms("MDP2-11")
def test_ready() -> None:
    given = [W, b"\x01", b"echo"]
    assert mdp2.read_from_worker([b"peer", *given], 1) == mdp2.Ready(b"echo", 1)
    assert mdp2.write_from_worker(mdp2.Ready(b"echo")) == given


def test_ready_with_a_credit() -> None:
    assert mdp2.read_from_worker([W, b"\x01", b"echo", b"16"]) == mdp2.Ready(b"echo", 16)
    assert mdp2.write_from_worker(mdp2.Ready(b"echo", 16)) == [W, b"\x01", b"echo", b"16"]


@pytest.mark.conforms("MDP2-12")
def test_worker_request() -> None:
    given = [W, b"\x02", b"client", b"", b"one", b"two"]
    assert mdp2.write_order(b"client", [b"one", b"two"]) == given
    assert mdp2.read_as_worker(given) == mdp2.Order(b"client", [b"one", b"two"])


@pytest.mark.conforms("MDP2-13")
def test_worker_partial() -> None:
    given = [W, b"\x03", b"client", b"", b"one", b"two"]
    message = mdp2.WorkerPartial(b"client", [b"one", b"two"])
    assert mdp2.read_from_worker(given) == message
    assert mdp2.write_from_worker(message) == given


@pytest.mark.conforms("MDP2-14")
def test_worker_final() -> None:
    given = [W, b"\x04", b"client", b"", b"one", b"two"]
    message = mdp2.WorkerFinal(b"client", [b"one", b"two"])
    assert mdp2.read_from_worker(given) == message
    assert mdp2.write_from_worker(message) == given


@pytest.mark.conforms("MDP2-15")
def test_heartbeat() -> None:
    given = [W, b"\x05"]
    assert mdp2.read_from_worker(given) == mdp2.Heartbeat()
    assert mdp2.read_as_worker(given) == mdp2.Heartbeat()
    assert mdp2.write_from_worker(mdp2.Heartbeat()) == given
    assert mdp2.write_heartbeat() == given


@pytest.mark.conforms("MDP2-16")
def test_disconnect() -> None:
    given = [W, b"\x06"]
    assert mdp2.read_from_worker(given) == mdp2.Disconnect()
    assert mdp2.read_as_worker(given) == mdp2.Disconnect()
    assert mdp2.write_from_worker(mdp2.Disconnect()) == given
    assert mdp2.write_disconnect() == given


@pytest.mark.conforms("MDP2-18")
def test_every_command_carries_the_header() -> None:
    assert mdp2.write_from_client(mdp2.Request(b"echo", []))[0] == C
    assert mdp2.write_partial(b"echo", [])[0] == C
    assert mdp2.write_final(b"echo", [])[0] == C
    messages = (
        mdp2.Ready(b"echo"),
        mdp2.WorkerPartial(b"client", []),
        mdp2.WorkerFinal(b"client", []),
        mdp2.Heartbeat(),
        mdp2.Disconnect(),
    )
    for frames in (
        *(mdp2.write_from_worker(message) for message in messages),
        mdp2.write_order(b"client", []),
        mdp2.write_heartbeat(),
        mdp2.write_disconnect(),
    ):
        assert frames[0] == W


@pytest.mark.conforms("MDP2-28")
@pytest.mark.parametrize("command", [b"\x03", b"\x04"])
def test_one_address_frame_then_an_empty_one(command: bytes) -> None:
    def read(*rest: bytes) -> str:
        return refused(lambda: mdp2.read_from_worker([W, command, *rest]))

    assert read(b"client", b"other", b"", b"body") == "envelope"
    assert read(b"", b"", b"body") == "bad_id"
    assert read(b"client") == "short"
    assert refused(lambda: mdp2.read_as_worker([W, b"\x02", b"client", b"other", b"", b"x"])) == "envelope"


def test_every_body_has_a_frame() -> None:
    assert mdp2.write_from_client(mdp2.Request(b"echo", []))[3:] == [b""]
    assert mdp2.write_partial(b"echo", [])[3:] == [b""]
    assert mdp2.write_final(b"echo", [])[3:] == [b""]
    assert mdp2.write_order(b"client", [])[4:] == [b""]
    assert mdp2.write_from_worker(mdp2.WorkerPartial(b"client", []))[4:] == [b""]


def test_body_frames_are_not_touched() -> None:
    large = Opaque(b"x" * 1000)
    assert mdp2.read_from_client([C, b"\x01", b"echo", large]).body[0] is large
    assert mdp2.read_from_worker([W, b"\x04", b"client", b"", large]).body[0] is large
    assert mdp2.write_final(b"echo", [large])[-1] is large
    assert large.copies == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "short"),
        ([C], "short"),
        ([C, b"\x01"], "short"),
        ([C, b"\x01", b"echo"], "short"),
        ([C, b"\x02", b"echo", b"body"], "unknown_command"),
        ([C, b"echo", b"body"], "unknown_command"),
        ([C, b"\x01", b"", b"body"], "bad_name"),
        ([C, b"\x01", b"x" * 256, b"body"], "bad_name"),
        ([C, b"\x01", Opaque(b"echo"), b"body"], "bad_name"),
        ([C, b"\x01", b"echo"] + [b""] * (MAX_BODY_FRAMES + 1), "too_many_frames"),
    ],
)
def test_malformed_from_a_client(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp2.read_from_client(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([W], "short"),
        ([W, b"\x00"], "unknown_command"),
        ([W, b"\x02", b"client", b"x", b"id"], "envelope"),
        ([W, Opaque(b"\x05")], "unknown_command"),
        ([W, b"\x01"], "length"),
        ([W, b"\x01", b"echo", b"1", b""], "length"),
        ([W, b"\x01", b"\x7f"], "bad_name"),
        ([W, b"\x01", b"echo", b"0"], "bad_credit"),
        ([W, b"\x03", b"x" * 256, b"", b"body"], "bad_id"),
        ([W, b"\x04", Opaque(b"client"), b"", b"body"], "bad_id"),
        ([W, b"\x05", b""], "length"),
        ([W, b"\x06", b""], "length"),
    ],
)
def test_malformed_from_a_worker(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp2.read_from_worker(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([C, b"\x01", b"echo", b"body"], "unknown_command"),
        ([C, b"\x02", b"echo"], "short"),
        ([C, b"\x03", b"", b"body"], "bad_name"),
    ],
)
def test_malformed_to_a_client(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp2.read_as_client(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([W, b"\x01", b"echo"], "unknown_command"),
        ([W, b"\x04", b"client", b"", b"body"], "unknown_command"),
        ([W, b"\x02", b"client"], "short"),
        ([W, b"\x05", b""], "length"),
    ],
)
def test_malformed_to_a_worker(given: list[bytes], reason: str) -> None:
    assert refused(lambda: mdp2.read_as_worker(given)) == reason


@pytest.mark.parametrize(
    "message",
    [mdp2.Ready(b""), mdp2.Ready(b"echo", 0), mdp2.WorkerFinal(b"", []), mdp2.WorkerPartial(b"x" * 256, [])],
)
def test_a_worker_does_not_send_what_would_be_refused(message: mdp2.WorkerMessage) -> None:
    with pytest.raises(LocalProtocolError):
        mdp2.write_from_worker(message)


def test_a_client_does_not_send_what_would_be_refused() -> None:
    with pytest.raises(LocalProtocolError):
        mdp2.write_from_client(mdp2.Request(b"", []))


def test_answers_of_workers_may_have_no_body_frame() -> None:
    envelope = [b"client", b""]
    assert mdp2.read_from_worker([W, b"\x03", *envelope]) == mdp2.WorkerPartial(b"client", [])
    assert mdp2.read_from_worker([W, b"\x04", *envelope]) == mdp2.WorkerFinal(b"client", [])
    assert mdp2.read_as_worker([W, b"\x02", *envelope]) == mdp2.Order(b"client", [])


def test_a_request_is_valid_from_a_worker_too() -> None:
    assert mdp2.read_from_worker([W, b"\x02", b"client", b"", b"one"]) == mdp2.Order(b"client", [b"one"])
