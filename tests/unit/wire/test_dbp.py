"""DBP, frame by frame. The empty first frame is the socket owner's, `at` is behind it."""

from __future__ import annotations

import json
import struct

import pytest

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import dbp
from polybus.wire.dbp_info import Interface, NodeInfo, RegistrationRefused
from polybus.wire.dbp_time import TimeForm, read_time_form, write_time
from polybus.wire.frames import MAX_BODY_FRAMES
from support.wire_frames import Opaque, refused

NOW_S = 1_700_000_000.5
FLOAT = struct.pack("<f", NOW_S)
DOUBLE = struct.pack("<d", NOW_S)
TEXT = b"1700000000.500000"
F = TimeForm.FLOAT
FORMS = [(FLOAT, TimeForm.FLOAT), (DOUBLE, TimeForm.DOUBLE), (TEXT, TimeForm.TEXT)]

# What a service of the original implementation sends (Hermes 1.0.2).
UPSTREAM = json.dumps(
    {
        "name": "Gondor",
        "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}},
        "reg_time": "Tue Nov 14 22:13:20 2023",
        "topics": None,
    }
).encode()
# What the document asks for.
DOCUMENT = json.dumps(
    {"name": "Gondor", "ip": "10.0.0.7", "port": 5247, "function": "lights beacons", "heartbeat": 2.5}
).encode()


@pytest.mark.parametrize(("time", "form"), FORMS)
def test_the_form_of_the_time_is_remembered_and_echoed(time: bytes, form: TimeForm) -> None:
    assert read_time_form(time) is form
    assert write_time(NOW_S, form) == time
    message = dbp.read_from_node([b"u_U", time, b"Gondor"])
    assert dbp.write_answer([b"{}"], NOW_S, message.form) == [b"o_O", time, b"{}"]


def test_the_forms_have_names_that_a_store_keeps() -> None:
    assert [form.value for form in TimeForm] == ["float", "double", "text"]


@pytest.mark.parametrize("time", [b"1700000000", b"0", b"1700", b"0.000000", b"1" * 32])
def test_the_time_may_be_any_decimal_text(time: bytes) -> None:
    assert read_time_form(time) is TimeForm.TEXT


@pytest.mark.parametrize(
    "time",
    [b"", b"now", b"-1700000000", b"1.7e9", b"1700000000.", b"1" * 33, b"1700000000\n", Opaque(FLOAT)],
)
def test_any_other_time_is_refused(time: bytes) -> None:
    assert refused(lambda: dbp.read_from_node([b"<3", time, b"Gondor"])) == "bad_time"


@pytest.mark.conforms("DBP-3")
def test_info_request() -> None:
    one = dbp.InfoRequest(b"Gondor", F)
    assert dbp.read_from_node([b"peer", b"", b"u_U", FLOAT, b"Gondor"], 2) == one
    assert dbp.write_from_node(one, NOW_S) == [b"u_U", FLOAT, b"Gondor"]
    everything = dbp.InfoRequest(b"", F)
    assert dbp.read_from_node([b"u_U", FLOAT, b""]) == everything
    assert dbp.write_from_node(everything, NOW_S) == [b"u_U", FLOAT, b""]


@pytest.mark.conforms("DBP-4")
def test_info_reply() -> None:
    frames = dbp.write_catalog({"Gondor": {"port": 5247}}, NOW_S, F)
    assert frames == [b"o_O", FLOAT, b'{"Gondor":{"port":5247}}']
    assert dbp.read_as_node(frames) == dbp.Answer([b'{"Gondor":{"port":5247}}'], F)


@pytest.mark.conforms("DBP-6")
def test_what_is_not_there_is_answered_with_an_error_object() -> None:
    assert dbp.write_error("Gondor is inactive", NOW_S, F) == [
        b"o_O",
        FLOAT,
        b'{"Error":"Gondor is inactive"}',
    ]


def test_a_request_with_a_body_is_a_call() -> None:
    call = dbp.Call(b"Gondor", [b"one", b"two"], F)
    given = [b"u_U", FLOAT, b"Gondor", b"one", b"two"]
    assert dbp.read_from_node(given) == call
    assert dbp.read_as_node(given) == call
    assert dbp.write_from_node(call, NOW_S) == given
    assert dbp.write_call(b"Gondor", [], NOW_S, F) == [b"u_U", FLOAT, b"Gondor", b""]


def test_the_answer_to_a_call() -> None:
    answer = dbp.Answer([b"one", b"two"], F)
    given = [b"o_O", FLOAT, b"one", b"two"]
    assert dbp.read_from_node(given) == answer
    assert dbp.read_as_node(given) == answer
    assert dbp.write_from_node(answer, NOW_S) == given


@pytest.mark.conforms("DBP-7")
@pytest.mark.conforms("DBP-8")
def test_registration_as_the_document_writes_it() -> None:
    info = NodeInfo(b"Gondor", "10.0.0.7", 5247, "lights beacons", 2.5)
    message = dbp.read_from_node([b"UwU", DOUBLE, DOCUMENT])
    assert message == dbp.Registration(info, (), TimeForm.DOUBLE)
    assert not info.is_upstream_form
    frames = dbp.write_from_node(message, NOW_S)
    assert frames[:2] == [b"UwU", DOUBLE]
    assert dbp.read_from_node(frames) == message


@pytest.mark.conforms("DBP-7")
def test_registration_as_the_original_writes_it() -> None:
    message = dbp.read_from_node([b"UwU", FLOAT, UPSTREAM])
    assert isinstance(message, dbp.Registration)
    assert message.missing == ("function", "heartbeat")
    assert message.info.is_upstream_form
    assert message.info == NodeInfo(
        b"Gondor",
        "127.0.0.1",
        5247,
        interfaces={"router": Interface("127.0.0.1", 5247)},
        extra={"reg_time": "Tue Nov 14 22:13:20 2023", "topics": None},
    )


@pytest.mark.conforms("DBP-9")
def test_update() -> None:
    message = dbp.Update(b"Gondor", {"port": 5250, "extra": {"topics": ["war"]}}, F)
    assert dbp.read_from_node([b"UoU", FLOAT, b'{"name":"Gondor","port":5250,"topics":["war"]}']) == message
    assert dbp.read_from_node(dbp.write_from_node(message, NOW_S)) == message


@pytest.mark.conforms("DBP-10")
def test_approved() -> None:
    assert dbp.write_approved({}, NOW_S, F) == [b"OwO", FLOAT, b""]
    assert dbp.read_as_node([b"OwO", FLOAT, b""]) == dbp.Approved({}, F)
    assert dbp.read_as_node([b"OwO", FLOAT]) == dbp.Approved({}, F)
    frames = dbp.write_approved({"heartbeat_s": 2.5}, NOW_S, F)
    assert frames == [b"OwO", FLOAT, b'{"heartbeat_s":2.5}']
    assert dbp.read_as_node(frames) == dbp.Approved({"heartbeat_s": 2.5}, F)
    # "6 or more frames", if a broker takes the document at its word.
    more = [b'{"heartbeat_s":2.5}', b"", b'{"heartbeat_s":3,"liveness":4}']
    assert dbp.read_as_node([b"OwO", FLOAT, *more]) == dbp.Approved({"heartbeat_s": 3, "liveness": 4}, F)
    assert refused(lambda: dbp.read_as_node([b"OwO", FLOAT, *[b"{}"] * 33])) == "too_long"


@pytest.mark.conforms("DBP-11")
def test_denied() -> None:
    reasons = ("name is missing", "größe")
    denied = dbp.Denied(reasons, F)
    assert dbp.write_denied(reasons, NOW_S, F) == [b"OmO", FLOAT, b"name is missing", "größe".encode()]
    for command in (dbp.DENIED, dbp.DENIED_STRICT):
        assert dbp.read_as_node(dbp.write_denied(reasons, NOW_S, F, command)) == denied
    assert dbp.write_denied(reasons, NOW_S, F, dbp.DENIED_STRICT)[0] == b"(O_O)"
    assert dbp.read_as_node([b"(O_O)", FLOAT]) == dbp.Denied((), F)
    assert dbp.read_as_node(dbp.write_denied([], NOW_S, F)) == dbp.Denied((), F)
    assert dbp.read_as_node([b"OmO", FLOAT, b"one", b"", b"two"]) == dbp.Denied(("one", "two"), F)
    assert dbp.read_as_node([b"OmO", FLOAT, b"\xff"]) == dbp.Denied(("\ufffd",), F)


def test_reasons_have_limits_on_both_sides() -> None:
    frames = dbp.write_denied(["x" * 2000] * 100, NOW_S, F)
    assert len(frames) == 2 + dbp.MAX_REASONS
    assert len(frames[2]) == dbp.MAX_REASON_BYTES
    assert dbp.read_as_node(frames) == dbp.Denied(("x" * 1024,) * 32, F)
    assert refused(lambda: dbp.read_as_node([*frames, b"one more"])) == "too_long"
    assert refused(lambda: dbp.read_as_node([b"OmO", FLOAT, Opaque(b"x" * 1025)])) == "too_long"
    # A lone surrogate cannot be sent, and is no reason to say nothing.
    assert dbp.write_denied(["a\ud800"], NOW_S, F) == [b"OmO", FLOAT, b"a?"]


@pytest.mark.conforms("DBP-12")
def test_heartbeat() -> None:
    given = [b"<3", FLOAT, b"Gondor"]
    beat = dbp.Heartbeat(b"Gondor", F)
    assert dbp.read_from_node(given) == beat
    assert dbp.read_as_node(given) == beat
    assert dbp.write_from_node(beat, NOW_S) == given
    assert dbp.write_heartbeat(b"Gondor", NOW_S, F) == given
    assert dbp.read_from_node([b"<3", FLOAT]) == dbp.Heartbeat(b"", F)


@pytest.mark.conforms("DBP-13")
def test_disconnect() -> None:
    assert dbp.read_from_node([b"</3", FLOAT]) == dbp.Disconnect(b"", F)
    assert dbp.read_from_node([b"</3", FLOAT, b"Gondor"]) == dbp.Disconnect(b"Gondor", F)
    assert dbp.read_as_node(dbp.write_disconnect(NOW_S, F)) == dbp.Disconnect(b"", F)
    assert dbp.write_from_node(dbp.Disconnect(b"Gondor", F), NOW_S) == [b"</3", FLOAT, b"Gondor"]


@pytest.mark.conforms("DBP-14")
def test_acknowledge() -> None:
    assert dbp.read_from_node([b"u.u", FLOAT]) == dbp.Acknowledge(F)
    assert dbp.read_as_node([b"u.u", FLOAT, b""]) == dbp.Acknowledge(F)
    assert dbp.write_acknowledge(NOW_S, F) == [b"u.u", FLOAT, b""]
    assert dbp.write_from_node(dbp.Acknowledge(F), NOW_S) == [b"u.u", FLOAT, b""]


def test_ping_and_pong_at_a_services_own_address() -> None:
    assert dbp.read_as_node([b"ping", FLOAT, b"Hello!"]) == dbp.Ping([b"Hello!"], F)
    assert dbp.write_from_node(dbp.Ping([], F), NOW_S) == [b"ping", FLOAT, b""]
    assert dbp.read_from_node([b"pong", FLOAT, b"Gondor"]) == dbp.Pong(b"Gondor", F)
    assert dbp.write_from_node(dbp.Pong(b"Gondor", F), NOW_S) == [b"pong", FLOAT, b"Gondor"]


def test_exit_is_read_and_never_sent() -> None:
    assert dbp.read_from_node([b"<\\3", FLOAT]) == dbp.Exit(F)
    assert dbp.read_from_node([b"<\\3", FLOAT, b"", Opaque(b"x")]) == dbp.Exit(F)
    with pytest.raises(LocalProtocolError, match="never sent"):
        dbp.write_from_node(dbp.Exit(F), NOW_S)


@pytest.mark.conforms("DBP-18")
def test_every_command_starts_with_its_word() -> None:
    words = {
        dbp.write_from_node(message, NOW_S)[0]
        for message in (
            dbp.InfoRequest(b""),
            dbp.Answer([]),
            dbp.Registration(NodeInfo(b"Gondor")),
            dbp.Update(b"Gondor", {}),
            dbp.Heartbeat(),
            dbp.Disconnect(),
            dbp.Acknowledge(),
            dbp.Ping(),
            dbp.Pong(),
        )
    }
    assert words | {dbp.EXIT} == set(dbp.BROKER_COMMANDS)
    assert set(dbp.NODE_COMMANDS) - set(dbp.BROKER_COMMANDS) == {b"OwO", b"OmO", b"(O_O)"}


def test_peers_of_the_original_always_get_three_frames() -> None:
    for frames in (
        dbp.write_answer([], NOW_S, F),
        dbp.write_call(b"Gondor", [], NOW_S, F),
        dbp.write_catalog({}, NOW_S, F),
        dbp.write_error("", NOW_S, F),
        dbp.write_approved({}, NOW_S, F),
        dbp.write_denied([], NOW_S, F),
        dbp.write_heartbeat(b"", NOW_S, F),
        dbp.write_disconnect(NOW_S, F),
        dbp.write_acknowledge(NOW_S, F),
    ):
        assert len(frames) >= 3


def test_body_frames_are_not_touched() -> None:
    large = Opaque(b"x" * 1000)
    assert dbp.read_from_node([b"u_U", FLOAT, b"Gondor", large]).body[0] is large
    assert dbp.read_from_node([b"o_O", FLOAT, large]).body[0] is large
    assert dbp.write_answer([large], NOW_S, F)[-1] is large
    assert large.copies == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "short"),
        ([b"<3"], "short"),
        ([b"^o^", FLOAT, b""], "unknown_command"),
        ([b"", FLOAT, b""], "unknown_command"),
        ([b"OwO", FLOAT, b""], "unknown_command"),
        ([b"OmO", FLOAT, b""], "unknown_command"),
        ([Opaque(b"<3"), FLOAT, b"Gondor"], "unknown_command"),
        ([b"u_U", FLOAT], "short"),
        ([b"u_U", FLOAT, b"a\n"], "bad_name"),
        ([b"u_U", FLOAT, b"x" * 256], "bad_name"),
        ([b"u_U", FLOAT, Opaque(b"Gondor")], "bad_name"),
        ([b"u_U", FLOAT, b"", b"body"], "bad_name"),
        ([b"u_U", FLOAT, b"Gondor"] + [b""] * (MAX_BODY_FRAMES + 1), "too_many_frames"),
        ([b"o_O", FLOAT], "short"),
        ([b"o_O", FLOAT] + [b""] * (MAX_BODY_FRAMES + 1), "too_many_frames"),
        ([b"<3", FLOAT, b"Gondor", b""], "length"),
        ([b"<3", FLOAT, b"\x00"], "bad_name"),
        ([b"</3", FLOAT, b"Gondor", b""], "length"),
        ([b"u.u", FLOAT, b"", b""], "length"),
        ([b"pong", FLOAT, b"", b""], "length"),
        ([b"ping", FLOAT] + [b""] * (MAX_BODY_FRAMES + 1), "too_many_frames"),
        ([b"UwU", FLOAT], "bad_info"),
        ([b"UwU", FLOAT, DOCUMENT, b""], "bad_info"),
        ([b"UoU", FLOAT], "bad_info"),
    ],
)
def test_malformed_from_a_node(given: list[bytes], reason: str) -> None:
    assert refused(lambda: dbp.read_from_node(given)) == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([b"UwU", FLOAT, DOCUMENT], "unknown_command"),
        ([b"OwO", FLOAT, b"[]"], "bad_json"),
        ([b"OwO", FLOAT, b"{"], "bad_json"),
        ([b"OwO", FLOAT, b"{}", b"[]"], "bad_json"),
    ],
)
def test_malformed_to_a_node(given: list[bytes], reason: str) -> None:
    assert refused(lambda: dbp.read_as_node(given)) == reason


@pytest.mark.parametrize("command", [b"UwU", b"UoU"])
@pytest.mark.parametrize(("time", "form"), FORMS)
def test_a_refused_registration_knows_how_to_deny_it(command: bytes, time: bytes, form: TimeForm) -> None:
    with pytest.raises(RegistrationRefused) as caught:
        dbp.read_from_node([command, time, b'{"port":0}'])
    assert caught.value.reasons == ("name is missing", "port must be a number from 1 to 65535")
    assert str(caught.value).endswith("name is missing; port must be a number from 1 to 65535")
    assert caught.value.form is form


@pytest.mark.parametrize(("command", "word"), [(b"UwU", "REGISTRATION"), (b"UoU", "UPDATE")])
def test_a_service_that_says_nothing_is_told_what_was_missing(command: bytes, word: str) -> None:
    with pytest.raises(RegistrationRefused) as caught:
        dbp.read_from_node([b"peer", command, FLOAT], 1)
    assert caught.value.reasons == (f"{word} has 2 frames; it takes 3 or more",)


@pytest.mark.parametrize(
    "message",
    [
        dbp.Call(b"", []),
        dbp.InfoRequest(b"\n"),
        dbp.Heartbeat(b"x" * 256),
        dbp.Disconnect(b"\x00"),
        dbp.Pong(b"\x00"),
        dbp.Registration(NodeInfo(b"")),
        dbp.Update(b"\xff", {}),
    ],
)
def test_a_node_does_not_send_what_would_be_refused(message: dbp.BrokerReads) -> None:
    with pytest.raises(LocalProtocolError):
        dbp.write_from_node(message, NOW_S)


# -- several of something ---------------------------------------------------------------------


@pytest.mark.conforms("DBP-44")
def test_service_information_in_several_frames_is_read_as_one() -> None:
    frames = [b"UwU", b"1", b'{"name": "Gondor", "port": 1}', b'{"port": 2, "ip": "10.0.0.7"}', b"{}"]
    message = dbp.read_from_node(frames)
    assert isinstance(message, dbp.Registration)
    assert (message.info.name, message.info.ip, message.info.port) == (b"Gondor", "10.0.0.7", 2)
    assert message.missing == ("function", "heartbeat")
    update = dbp.read_from_node([b"UoU", b"1", b'{"function": "f"}', b'{"name": "Gondor"}'])
    assert isinstance(update, dbp.Update)
    assert (update.name, update.changes) == (b"Gondor", {"function": "f"})


@pytest.mark.parametrize("command", [b"UwU", b"UoU"])
@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b'{"name": "Gondor"}', b"[]"],
        [b'{"name": "Gondor"}', b""],
        [b'{"name": "Gondor"}'] * 33,
        [b'{"name": "Gondor"}', b'{"x": "%s"}' % (b"x" * 40_000), b'{"y": "%s"}' % (b"x" * 40_000)],
    ],
)
def test_too_many_frames_or_no_objects_are_refused(command: bytes, frames: list[bytes]) -> None:
    with pytest.raises(RegistrationRefused):
        dbp.read_from_node([command, b"1", *frames])


@pytest.mark.conforms("DBP-45")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"Gondor", ()),
        (b"", ()),
        (b"Gondor,Rohan", (b"Gondor", b"Rohan")),
        (b" Gondor , Rohan,", (b"Gondor", b"Rohan")),
        (b"X,XX , YX", (b"X", b"XX", b"YX")),
        (b",".join([b"x" * 200] * 3), (b"x" * 200,) * 3),
    ],
)
def test_an_info_request_names_one_several_or_all(text: bytes, names: tuple[bytes, ...]) -> None:
    message = dbp.InfoRequest(text)
    assert dbp.read_from_node(dbp.write_from_node(message, 1.7e9)) == message
    assert message.several == names


@pytest.mark.parametrize("text", [b"Gondor,\n", b"x" * 256 + b",y", b"\xff,y", b"a," * 40_000])
def test_a_list_of_what_are_no_names_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        dbp.read_from_node([b"u_U", b"1", text])
    with pytest.raises(LocalProtocolError):
        dbp.write_from_node(dbp.InfoRequest(text), 1.7e9)
