"""DBP against a broker process: frames as the document has them, with the time as decimal text.

Our answers carry the time in the asker's form, so it is looked at once and cut out everywhere else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time

import pytest
import zmq

from conformance.dbp_node import BEAT_S, FEWEST, MOST, NOW, Node, info, is_listed
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient


@pytest.mark.conforms("DBP-3", "DBP-4", "DBP-6", "DBP-7", "DBP-10")
def test_registration_and_information(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node, Node(broker) as client:
        client.say(b"u_U", service)
        command, body = client.hear()
        assert command == b"o_O"
        assert "Error" in json.loads(body)
        node.say(b"UwU", info(service))
        command, configuration = node.hear()
        assert command == b"OwO"
        agreed = json.loads(configuration)
        assert (agreed["heartbeat_s"], agreed["liveness"]) == (60.0, 4)
        assert broker["dbp.udp"].endswith(f":{agreed['udp']}")
        client.say(b"u_U", service)
        command, body = client.hear()
        entry = json.loads(body)[service.decode()]
        assert (entry["ip"], entry["port"], entry["function"]) == ("127.0.0.1", 7777, "test")
        client.say(b"u_U", b"")
        _, everything = client.hear()
        assert json.loads(everything)[service.decode()] == entry


@pytest.mark.conforms("DBP-5", "DBP-16")
def test_req_and_dealer_clients(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node, Peer(broker["dbp.port"], kind=zmq.REQ) as req, Node(broker) as dealer:
        node.register(service)
        req.send(b"u_U", struct.pack("<f", 1.7e9), service)
        command, when, body = req.recv()
        assert command == b"o_O"
        assert len(when) == 4
        assert service.decode() in json.loads(body)
        # The same socket takes clients and services, the empty frame is mirrored to both.
        dealer.say(b"u_U", service, b"hello")
        assert node.hear() == [b"u_U", service, b"hello"]
        node.say(b"o_O", b"world")
        assert dealer.hear() == [b"o_O", b"world"]


@pytest.mark.conforms("DBP-8", "DBP-11")
@pytest.mark.parametrize("field", ["name", "ip", "port", "function", "heartbeat"])
def test_what_a_registration_needs(broker: LiveBroker, service: bytes, field: str) -> None:
    entry = json.loads(info(service))
    del entry[field]
    with Node(broker) as node:
        node.say(b"UwU", json.dumps(entry).encode())
        command, *reasons = node.hear()
        assert command == b"(O_O)"
        assert any(field.encode() in reason for reason in reasons)
    assert not is_listed(broker, service)


@pytest.mark.conforms("DBP-44")
def test_several_frames_of_service_information(broker: LiveBroker, service: bytes) -> None:
    first = {"name": service.decode(), "ip": "127.0.0.1", "port": 1, "function": "first"}
    second = {"port": 7777, "heartbeat": 60.0, "unit": "K"}
    with Node(broker) as node:
        node.say(b"UwU", json.dumps(first).encode(), json.dumps(second).encode())
        assert node.hear()[0] == b"OwO"
        updates = ({"name": service.decode(), "function": "second"}, {"function": "third"}, {"unit": "C"})
        node.say(b"UoU", *(json.dumps(update).encode() for update in updates))
        assert node.hear()[0] == b"u.u"
        node.say(b"u_U", service)
        entry = json.loads(node.hear()[1])[service.decode()]
        told = (entry["ip"], entry["port"], entry["function"], entry["heartbeat_s"], entry["unit"])
        assert told == ("127.0.0.1", 7777, "third", 60.0, "C")
    with Node(broker) as node:
        # One of them is no object: nothing of it is taken.
        node.say(b"UwU", info(service + b"-other"), b"[]")
        assert node.hear()[0] == b"(O_O)"
        assert not is_listed(broker, service + b"-other")


@pytest.mark.conforms("DBP-45", "DBP-6")
def test_an_info_request_for_several_services(broker: LiveBroker, service: bytes) -> None:
    one, two, odd = service + b"-1", service + b"-2", service + b"-3,4"
    with Node(broker) as node, Node(broker) as other, Node(broker) as third, Node(broker) as client:
        node.register(one)
        other.register(two)
        client.say(b"u_U", one + b"," + two + b", nobody")
        command, body = client.hear()
        found = json.loads(body)
        assert command == b"o_O"
        assert sorted(found) == sorted([one.decode(), two.decode(), "nobody"])
        assert found[one.decode()]["function"] == found[two.decode()]["function"] == "test"
        assert "Error" in found["nobody"]
        client.say(b"u_U", b"nobody,no one")
        assert list(json.loads(client.hear()[1])) == ["Error"]
        # A name that has a comma is a name.
        third.register(odd)
        client.say(b"u_U", odd)
        assert list(json.loads(client.hear()[1])) == [odd.decode()]


@pytest.mark.conforms("DBP-46")
def test_nobody_is_listed_or_called_without_a_registration(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node, Node(broker) as client:
        client.say(b"u_U", service, b"hello")
        node.say(b"o_O", b"I serve, too")
        assert node.hear()[0] == b"</3"
        assert not is_listed(broker, service)
        assert node.get(BEAT_S) is None


@pytest.mark.conforms("DBP-9", "DBP-11", "DBP-14")
def test_update(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node:
        node.say(b"UoU", json.dumps({"name": service.decode(), "function": "new"}).encode())
        assert node.hear()[0] == b"(O_O)"
        node.register(service)
        node.say(b"UoU", json.dumps({"name": service.decode(), "function": "new"}).encode())
        assert node.hear() == [b"u.u", b""]
        node.say(b"u_U", service)
        assert json.loads(node.hear()[1])[service.decode()]["function"] == "new"


@pytest.mark.conforms("DBP-12", "DBP-14", "DBP-25", "DBP-28")
def test_heartbeats_both_ways(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node:
        node.register(service, BEAT_S)
        for _ in range(2):
            empty, command, _, name = node.recv(BEAT_S * FEWEST)
            assert (empty, command) == (b"", b"<3")
            assert name
            node.say(b"<3", service)
            assert node.hear() == [b"u.u", b""]


@pytest.mark.conforms("DBP-15", "DBP-28")
def test_heartbeats_in_datagrams_and_after_a_missed_one_over_tcp(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beats:
        node.say(b"UwU", info(service, BEAT_S))
        command, configuration = node.hear()
        assert command == b"OwO"
        beats.bind(("127.0.0.1", 0))
        beats.settimeout(BEAT_S)
        came = asked = 0
        while came < 2 * MOST:
            beats.sendto(b"<3 1700000000.0 " + service, ("127.0.0.1", json.loads(configuration)["udp"]))
            with contextlib.suppress(TimeoutError):
                word, when, name = beats.recv(1000).split(b" ", 2)
                assert (word, name) == (b"<3", b"polybus")
                assert abs(float(when) - time.time()) < 60
                came += 1
            while (frames := node.get(0)) is not None:
                assert frames[1] == b"<3", frames
                asked += 1
        # On a busy machine a beat may be late; while they come, nobody asks over TCP.
        assert asked < came / 2
        # No more of them: the question comes over TCP, and as long as it is answered, the service stays.
        for _ in range(MOST + 1):
            empty, command, _, _ = node.recv(BEAT_S * FEWEST + 1.0)
            assert (empty, command) == (b"", b"<3")
            node.say(b"<3", service)
            assert node.hear() == [b"u.u", b""]
        assert is_listed(broker, service)
        wait_for(lambda: not is_listed(broker, service))


@pytest.mark.conforms("DBP-26", "DBP-27")
def test_every_command_is_a_heartbeat(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node, Node(broker) as client:
        node.register(service, BEAT_S)
        until = time.monotonic() + BEAT_S * MOST * 2
        while time.monotonic() < until:
            client.say(b"u_U", service, b"x")
            call = node.recv()
            # We speak all the time, so there is nothing to beat for.
            assert call[1] == b"u_U", call
            node.say(b"o_O", b"y")
            assert client.hear() == [b"o_O", b"y"]
            node.get(BEAT_S / 4)
        assert is_listed(broker, service)


@pytest.mark.conforms("DBP-29", "DBP-31")
def test_a_silent_service_is_lost(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node:
        began = time.monotonic()
        node.register(service, BEAT_S)
        wait_for(lambda: not is_listed(broker, service))
        # The bus looks every twentieth of a second, and this machine may be busy.
        assert FEWEST * BEAT_S - 0.05 <= time.monotonic() - began <= MOST * BEAT_S + patient(1.0)
        while node.get(0) is not None:
            continue
        with Node(broker) as client:
            client.say(b"u_U", service, b"anybody?")
            assert node.get(BEAT_S * MOST) is None


@pytest.mark.conforms("DBP-19", "DBP-22")
def test_a_second_registration_ends_the_conversation(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node:
        node.register(service)
        node.say(b"UwU", info(service))
        assert node.hear() == [b"</3", b""]
        assert not is_listed(broker, service)
        with Node(broker) as client:
            client.say(b"u_U", service, b"anybody?")
            assert node.get(BEAT_S) is None


UNEXPECTED = [
    (b"<3", b"nobody"),
    (b"o_O", b"an answer to nothing"),
    (b"u.u",),
    (b"OwO",),
    (b"OwO", b'{"heartbeat_s": 1}'),
    (b"(O_O)", b"no"),
    (b"OmO", b"no"),
]


@pytest.mark.conforms("DBP-13", "DBP-21", "DBP-22")
@pytest.mark.parametrize("command", UNEXPECTED)
def test_unexpected_commands_end_the_conversation(broker: LiveBroker, command: tuple[bytes, ...]) -> None:
    with Node(broker) as node, Node(broker) as client:
        node.say(*command)
        assert node.hear() == [b"</3", b""]
        node.say(*command)
        client.say(b"u_U", b"")
        assert client.hear()[0] == b"o_O"
        assert node.get(BEAT_S) is None


@pytest.mark.conforms("DBP-22", "DBP-47", "DBP-49")
@pytest.mark.parametrize("transport", ["dealer", "none"])
@pytest.mark.parametrize("command", [(b"<3", b"nobody"), (b"<3", b"OTHER"), *UNEXPECTED[3:]])
def test_a_service_that_is_disconnected_is_not_registered_and_not_called(
    broker: LiveBroker, service: bytes, command: tuple[bytes, ...], transport: str
) -> None:
    other = service + b"-other"
    with Node(broker) as node, Node(broker) as neighbour, Node(broker) as client:
        neighbour.register(other, port=7778)
        node.register(service, BEAT_S * 2, transport=transport)
        node.say(*(other if frame == b"OTHER" else frame for frame in command))
        assert node.hear() == [b"</3", b""]
        assert not is_listed(broker, service)
        assert is_listed(broker, other)
        # A call waits for somebody else; neither it nor a heartbeat goes to the node that was disconnected.
        client.say(b"u_U", service, b"hello")
        node.say(b"<3", service)
        assert node.get(BEAT_S * 4) is None
        node.register(service, transport="dealer")
        assert node.hear() == [b"u_U", service, b"hello"]
        node.say(b"o_O", b"world")
        assert client.hear() == [b"o_O", b"world"]


@pytest.mark.conforms("DBP-47", "DBP-49")
def test_what_a_disconnected_service_was_working_on_goes_to_another(
    broker: LiveBroker, service: bytes
) -> None:
    with Node(broker) as node, Node(broker) as heir, Node(broker) as client:
        node.register(service)
        client.say(b"u_U", service, b"hello")
        assert node.hear() == [b"u_U", service, b"hello"]
        # What it asked itself is not answered either.
        node.say(b"u_U", service + b"-later", b"a call of its own")
        node.say(b"<3", b"nobody")
        assert node.hear()[0] == b"</3"
        heir.register(service)
        assert heir.hear() == [b"u_U", service, b"hello"]
        heir.say(b"o_O", b"world")
        assert client.hear() == [b"o_O", b"world"]
        with Node(broker) as later:
            later.register(service + b"-later")
            assert later.hear()[0] == b"u_U"
            later.say(b"o_O", b"too late")
            assert node.get(BEAT_S) is None


@pytest.mark.conforms("DBP-14", "DBP-26")
@pytest.mark.parametrize("command", [(b"u.u",), (b"pong", b""), (b"<3",)])
def test_a_node_that_is_not_called_is_kept_by_any_sign_of_life(
    broker: LiveBroker, service: bytes, command: tuple[bytes, ...]
) -> None:
    with Node(broker) as node:
        node.register(service, BEAT_S, transport="none")
        until = time.monotonic() + BEAT_S * MOST * 2
        while time.monotonic() < until:
            node.say(*command)
            assert node.get(BEAT_S / 4) is None
        assert is_listed(broker, service)


@pytest.mark.conforms("DBP-22", "DBP-47")
@pytest.mark.parametrize("command", [(b"<3", b"nobody"), (b"o_O", b"an answer to nothing"), (b"u.u",)])
def test_after_a_disconnect_nothing_more_is_sent(
    broker: LiveBroker, service: bytes, command: tuple[bytes, ...]
) -> None:
    with Node(broker) as node, Node(broker) as client:
        node.say(*command)
        node.say(*command)
        assert node.hear()[0] == b"</3"
        for further in (command, (b"u_U", b""), (b"UoU", info(service)), (b"ping", b""), (b"<\\3", b"")):
            node.say(*further)
        # What it said has arrived: this is answered after it.
        client.say(b"u_U", b"")
        assert client.hear()[0] == b"o_O"
        assert node.get(BEAT_S) is None
        # A registration begins anew.
        node.register(service)
        client.say(b"u_U", service, b"hello")
        assert node.hear()[:2] == [b"u_U", service]


@pytest.mark.conforms("DBP-20", "DBP-47")
def test_after_its_own_disconnect_a_service_that_goes_on_is_sent_nothing(
    broker: LiveBroker, service: bytes
) -> None:
    with Node(broker) as node:
        node.register(service)
        node.say(b"</3")
        for further in ((b"<3", service), (b"u_U", b""), (b"o_O", b"x")):
            node.say(*further)
        wait_for(lambda: not is_listed(broker, service))
        assert node.get(BEAT_S) is None


@pytest.mark.conforms("DBP-48")
@pytest.mark.parametrize(
    "frames",
    [
        (b"", b"what?", NOW, b"no such command"),
        (b"", b"o_O", b"yesterday", b"no such time"),
        (b"", b"<3", NOW, b"one", b"too many"),
        (b"", b""),
        (b"MDPW02", b"\x04"),
    ],
)
def test_a_service_that_sends_what_makes_no_sense_is_invalid(
    broker: LiveBroker, service: bytes, frames: tuple[bytes, ...]
) -> None:
    with Node(broker) as node, Node(broker) as client:
        node.register(service)
        node.send(*frames)
        assert node.hear()[0] == b"</3"
        assert not is_listed(broker, service)
        node.say(b"u_U", b"")
        client.say(b"u_U", service, b"anybody?")
        assert node.get(BEAT_S) is None


@pytest.mark.conforms("DBP-13", "DBP-20")
def test_after_its_disconnect_a_service_is_sent_nothing(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as early:
        early.say(b"</3")
        assert early.get(BEAT_S) is None
    with Node(broker) as node, Node(broker) as client:
        node.register(service, BEAT_S)
        node.say(b"</3")
        wait_for(lambda: not is_listed(broker, service))
        while node.get(0) is not None:
            continue
        client.say(b"u_U", service, b"anybody?")
        assert node.get(BEAT_S * MOST) is None


@pytest.mark.conforms("DBP-18", "DBP-23")
def test_invalid_messages_are_dropped(broker: LiveBroker, service: bytes) -> None:
    with Node(broker) as node, Node(broker) as client:
        node.register(service)
        client.send(b"", b"what?", NOW, service, b"no such command")
        client.send(b"", b"u_U", b"yesterday", service, b"no such time")
        client.say(b"u_U", service, b"good")
        assert node.hear() == [b"u_U", service, b"good"]
        # A service whose message makes no sense is treated as invalid.
        node.send(b"", b"o_O", b"yesterday", b"answer")
        wait_for(lambda: not is_listed(broker, service))


@pytest.mark.conforms("DBP-11")
def test_nobody_stops_the_broker(broker: LiveBroker) -> None:
    with Node(broker) as node:
        node.say(b"<\\3")
        assert node.hear()[0] == b"(O_O)"
    assert broker.is_alive
