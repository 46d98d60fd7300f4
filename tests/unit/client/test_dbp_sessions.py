"""DBP clients and services, frame by frame, on a clock of our own."""

from __future__ import annotations

import json
import struct

import pytest

from polybus.client.sessions.dbp import LIVENESS, DbpClient, DbpWorker
from polybus.client.sessions.port import Denied, Done, Failed, Restart, Work, WorkerSession
from polybus.errors import LocalProtocolError

TIME = struct.pack("<f", 1000.0)
BEAT_S = 2.5


def dbp(command: bytes, *frames: bytes) -> list[bytes]:
    return [b"", command, TIME, *frames]


def service(credit: int = 4) -> DbpWorker:
    session = DbpWorker(b"echo", credit, wall_clock=lambda: 1000.0)
    session.hello(0.0)
    return session


def call(session: WorkerSession, body: bytes = b"in", now: float = 0.0) -> Work:
    (work,) = session.receive(dbp(b"u_U", b"echo", body), now)
    assert isinstance(work, Work)
    return work


# -- clients ----------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-5", "DBP-16")
def test_a_dealer_client_makes_the_empty_frame() -> None:
    session = DbpClient(lambda: 1000.0)
    assert session.request(b"r1", b"echo", [b"in"]) == [dbp(b"u_U", b"echo", b"in")]
    # Without a body frame it would be a question about the service.
    other = DbpClient(lambda: 1000.0)
    assert other.request(b"r2", b"echo", []) == [dbp(b"u_U", b"echo", b"")]


@pytest.mark.conforms("DBP-5")
def test_one_at_a_time_in_order() -> None:
    session = DbpClient(lambda: 1000.0)
    session.request(b"r1", b"echo", [b"1"])
    assert session.request(b"r2", b"echo", [b"2"]) == []
    assert session.receive(dbp(b"o_O", b"x")) == [Done(b"r1", [b"x"])]
    assert session.release() == [dbp(b"u_U", b"echo", b"2")]


def test_errors() -> None:
    session = DbpClient()
    session.request(b"r1", b"echo", [b"1"])
    (event,) = session.receive(dbp(b"o_O", b'{"Error":"expired: no answer within 3 s"}'))
    assert isinstance(event, Failed)
    assert (event.code, event.detail) == ("expired", "no answer within 3 s")
    with pytest.raises(LocalProtocolError, match="one body frame"):
        session.request(b"r2", b"echo", [b"1", b"2"])


def test_a_client_drops_and_counts_what_it_cannot_read() -> None:
    session = DbpClient()
    for frames in (
        [],
        [b""],
        [b"", b"???", TIME],
        dbp(b"o_O", b"answer to nothing"),
        [b"o_O", b"when?", b"x"],
    ):
        assert session.receive(frames) == []
    assert session.invalid == 5
    assert session.receive(dbp(b"<3", b"")) == []
    assert session.invalid == 5


# -- services -----------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-7", "DBP-8", "DBP-16", "DBP-17", "DBP-18")
def test_registration_in_the_documents_form() -> None:
    session = DbpWorker(b"echo", 4, wall_clock=lambda: 1000.0)
    session.reached_at("10.0.0.1", 5246)
    (frames,) = session.hello(0.0)
    assert frames[:3] == dbp(b"UwU")
    info = json.loads(bytes(frames[3]))
    assert info["name"] == "echo"
    assert (info["ip"], info["port"]) == ("10.0.0.1", 5246)
    assert info["function"]
    assert info["heartbeat_s"] == BEAT_S
    assert info["credit"] == 4


@pytest.mark.conforms("DBP-19")
def test_one_registration_a_conversation() -> None:
    session = service()
    said = []
    for i in range(1, 40):
        session.receive(dbp(b"<3", b""), i * 0.5)
        said += session.tick(i * 0.5)
    assert said
    assert all(frames[1] != b"UwU" for frames in said)


@pytest.mark.conforms("DBP-10", "DBP-11")
def test_approved_and_denied() -> None:
    session = service()
    assert session.receive(dbp(b"OwO"), 0.0) == []
    for word in (b"OmO", b"(O_O)"):
        assert session.receive(dbp(word, b"port is missing"), 0.0) == [Denied(("port is missing",))]


def test_answers_go_out_in_the_order_of_the_calls() -> None:
    session = service()
    first, second, third = call(session, b"1"), call(session, b"2"), call(session, b"3")
    assert session.reply(second.token, [b"two"]) == []
    assert session.fail(third.token, "boom") == []
    assert session.reply(first.token, [b"one"]) == [
        dbp(b"o_O", b"one"),
        dbp(b"o_O", b"two"),
        dbp(b"o_O", b'{"Error":"boom"}'),
    ]
    assert session.reply(first.token, [b"again"]) == []


def test_failures() -> None:
    session = service()
    assert session.fail(call(session).token, "no", rejected=True) == [
        dbp(b"o_O", b'{"Error":"rejected: no"}')
    ]
    with pytest.raises(LocalProtocolError, match="one body frame"):
        session.reply(call(session).token, [b"a", b"b"])


@pytest.mark.conforms("DBP-12", "DBP-25", "DBP-28")
def test_a_heartbeat_with_the_name_every_interval() -> None:
    session = service()
    session.receive(dbp(b"u.u", b""), 2.0)
    assert session.tick(2.4) == []
    assert session.tick(2.5) == [dbp(b"<3", b"echo")]
    assert session.tick(4.9) == []
    assert session.tick(5.0) == [dbp(b"<3", b"echo")]


def approved(**agreed: object) -> DbpWorker:
    session = service()
    session.beats_from("127.0.0.1")
    assert session.receive(dbp(b"OwO", json.dumps(agreed).encode()), 0.0) == []
    return session


PACKET = b"<3 1000.000000 echo"


@pytest.mark.conforms("DBP-15", "DBP-42")
def test_heartbeats_go_in_datagrams_as_long_as_the_broker_beats() -> None:
    session = approved(udp=5246, broadcast=5247)
    assert (session.packet_port, session.broadcast_port) == (5246, 5247)
    # The first one at once: it shows the broker where we are.
    assert session.packets() == [PACKET]
    for number in range(1, 6):
        now = number * BEAT_S
        assert session.hear_packet(b"<3 1 polybus", now) == []
        assert session.tick(now) == []
        assert session.packets() == [PACKET]
    assert session.invalid == 0
    # The broker falls silent: after a missed beat they go over TCP, and stay there.
    assert session.tick(6 * BEAT_S) == []
    assert session.packets() == [PACKET]
    assert session.tick(7 * BEAT_S) == [dbp(b"<3", b"echo")]
    session.receive(dbp(b"u.u"), 7 * BEAT_S)
    session.hear_packet(b"<3 1 polybus", 7 * BEAT_S)
    assert session.tick(8 * BEAT_S) == [dbp(b"<3", b"echo")]
    assert session.packets() == []
    # With the next registration it begins anew.
    session.hello(100.0)
    session.receive(dbp(b"OwO", b'{"udp": 5246}'), 100.0)
    assert session.packets() == [PACKET]


@pytest.mark.conforms("DBP-15", "DBP-42")
def test_when_the_broker_misses_our_datagram_it_asks_and_is_answered_over_tcp() -> None:
    session = approved(udp=5246)
    session.packets()
    # One that crossed our datagram is no question.
    session.receive(dbp(b"<3", b"polybus"), BEAT_S / 10)
    assert (session.pending(), session.packet_port) == ([], 5246)
    session.receive(dbp(b"<3", b"polybus"), BEAT_S / 2)
    assert session.pending() == [dbp(b"<3", b"echo")]
    assert session.tick(2 * BEAT_S) == [dbp(b"<3", b"echo")]
    assert session.packets() == []


def test_a_beat_over_tcp_is_no_question_while_we_say_other_things() -> None:
    session = approved(udp=5246)
    session.packets()
    work = call(session, now=1.0)
    session.tick(1.0)
    session.reply(work.token, [b"out"])
    session.tick(BEAT_S)
    session.receive(dbp(b"<3", b"polybus"), BEAT_S + 1.0)
    assert (session.pending(), session.packet_port) == ([], 5246)


@pytest.mark.parametrize("udp", [None, 0, -1, 65536, "5246", True, 1.5])
def test_without_a_port_for_datagrams_heartbeats_go_over_tcp(udp: object) -> None:
    session = approved(udp=udp)
    assert session.packets() == []
    assert session.tick(BEAT_S) == [dbp(b"<3", b"echo")]


def test_without_a_socket_for_datagrams_heartbeats_go_over_tcp() -> None:
    session = service()
    session.receive(dbp(b"OwO", b'{"udp": 5246}'), 0.0)
    assert session.packets() == []
    assert session.tick(BEAT_S) == [dbp(b"<3", b"echo")]


def test_a_datagram_may_end_the_conversation_and_others_mean_nothing() -> None:
    session = approved(udp=5246)
    (event,) = session.hear_packet(b"</3 1", 1.0)
    assert isinstance(event, Restart)
    for packet in (b"", b"SHALOM 5246", b"<3", b"<3 x y", b"</3"):
        assert session.hear_packet(packet, 1.0) == []
    assert session.invalid == 5
    assert session.heard_at == 0.0


def test_a_service_says_where_its_datagrams_come_from_if_it_is_reached_elsewhere() -> None:
    session = DbpWorker(b"echo", wall_clock=lambda: 1000.0)
    session.reached_at("10.0.0.1", 5246)
    session.beats_from("10.0.0.7")
    assert json.loads(session.hello(0.0)[0][3])["heartbeat_ip"] == "10.0.0.7"
    session.beats_from("10.0.0.1")
    assert "heartbeat_ip" not in json.loads(session.hello(0.0)[0][3])


@pytest.mark.conforms("DBP-27")
def test_no_heartbeat_while_we_say_other_things() -> None:
    session = service()
    for i in range(1, 30):
        session.reply(call(session, now=float(i)).token, [b"out"])
        assert session.tick(float(i)) == []


@pytest.mark.conforms("DBP-26", "DBP-29", "DBP-30")
def test_a_silent_broker_is_lost_after_three_intervals() -> None:
    session = service()
    call(session, now=5.0)
    assert not session.is_lost(12.4)
    assert session.is_lost(12.5)
    assert session.hello(13.0)[0][1] == b"UwU"
    assert not session.is_lost(13.0)


@pytest.mark.conforms("DBP-13", "DBP-21", "DBP-24")
def test_disconnect_asks_for_a_new_socket_and_registration() -> None:
    session = service()
    work = call(session)
    (event,) = session.receive(dbp(b"</3"), 1.0)
    assert isinstance(event, Restart)
    assert session.hello(1.0)[0][1] == b"UwU"
    assert session.reply(work.token, [b"late"]) == []


@pytest.mark.conforms("DBP-13", "DBP-20")
def test_goodbye() -> None:
    assert service().goodbye() == [dbp(b"</3", b"echo")]


def test_ping_is_answered() -> None:
    session = service()
    session.receive(dbp(b"ping", b""), 0.0)
    assert session.pending() == [dbp(b"pong", b"echo")]


@pytest.mark.conforms("DBP-23")
def test_a_service_drops_and_counts_what_it_cannot_read_and_never_obeys_exit() -> None:
    session = service()
    for frames in ([], [b""], dbp(b"???"), dbp(b"<\\3"), dbp(b"u_U", b"echo"), dbp(b"o_O", b"x")):
        assert session.receive(frames, 5.0) == []
    assert session.invalid == 6
    assert session.heard_at == 0.0


@pytest.mark.conforms("DBP-52")
@pytest.mark.parametrize(
    ("told", "followed"),
    [
        (1.0, 1.0),
        (10, 10.0),
        (0.001, 0.5),
        (1e9, 60.0),
        (0, BEAT_S),
        (-1, BEAT_S),
        ("1", BEAT_S),
        (True, BEAT_S),
    ],
)
def test_the_approval_changes_the_interval_within_bounds(told: object, followed: float) -> None:
    session = service()
    session.receive(dbp(b"OwO", json.dumps({"heartbeat_s": told}).encode()), 0.0)
    assert session.beat_s == followed
    assert session.dead_after_s == followed * LIVENESS
    assert session.tick(followed - 0.01) == []
    assert session.tick(followed) == [dbp(b"<3", b"echo")]
    # A new conversation begins with our own interval.
    session.hello(1000.0)
    assert (session.beat_s, session.dead_after_s) == (BEAT_S, BEAT_S * LIVENESS)
