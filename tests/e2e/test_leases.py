"""Leases over real sockets: datagrams, questions over TCP, registrations that outlive the broker."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from polybus import PolybusError, Request, Worker
from support.dbp_nodes import TIME, DbpNode
from support.interop_process import running
from support.live import LiveBroker, Peer, wait_for
from support.patience import patient

# A node must not lose its lease because a busy machine does not let it run for a second or two.
BEAT_S = 0.75
LIVENESS = 4
# What a busy machine may take on top.
SLACK_S = patient(3.0)


@pytest.fixture
def broker() -> Iterator[LiveBroker]:
    with LiveBroker({"dbp.heartbeat_s": BEAT_S}) as broker:
        yield broker
        assert not broker.crashes()


def view(broker: LiveBroker, name: str) -> dict[str, Any] | None:
    return next((node for node in broker.ask("nodes") if node["node"] == name), None)


def is_alive_by_datagrams(broker: LiveBroker, name: str) -> bool:
    """A beat that comes late makes a node late for a moment."""
    found = view(broker, name)
    assert found is not None
    return (found["state"], found["beats"]) == ("alive", "udp")


def call(broker: LiveBroker, name: bytes, body: bytes) -> bytes:
    with Peer(broker["dbp.port"]) as client:
        client.send(b"", b"u_U", TIME, name, body)
        return client.recv()[3]


@pytest.mark.parametrize("own_address", [False, True], ids=["dealer", "req"])
def test_datagrams_go_both_ways_and_tcp_is_silent(broker: LiveBroker, own_address: bool) -> None:
    with DbpNode(broker, "thermo", BEAT_S, own_address, "req" if own_address else None) as node:
        assert node.agreed == {"heartbeat_s": BEAT_S, "liveness": LIVENESS, "udp": node.agreed["udp"]}
        assert broker["dbp.udp"] == f"udp://127.0.0.1:{node.agreed['udp']}"
        wait_for(lambda: len(node.beats) >= 2 * LIVENESS)
        wait_for(lambda: is_alive_by_datagrams(broker, "thermo"))
        # On a busy machine a beat may be late, and then it is asked about: but not again and again.
        assert len(node.questions) < LIVENESS
        assert call(broker, b"thermo", b"abc") == b"cba"


@pytest.mark.parametrize("own_address", [False, True], ids=["dealer", "req"])
def test_who_stops_beating_is_asked_over_tcp_and_stays_if_it_answers(
    broker: LiveBroker, own_address: bool, record_property: Any
) -> None:
    with DbpNode(broker, "thermo", BEAT_S, own_address, "req" if own_address else None) as node:
        wait_for(lambda: node.beats)
        node.questions.clear()
        node.beating = False
        wait_for(lambda: len(node.questions) >= 2 * LIVENESS)
        # It has been silent for much longer than a lease lasts, but for its answers.
        asked_s = node.questions[0] - node.last_beat_at
        assert BEAT_S <= asked_s < BEAT_S * LIVENESS + SLACK_S
        assert node.questions[-1] - node.last_beat_at > BEAT_S * LIVENESS
        assert view(broker, "thermo") is not None
        assert call(broker, b"thermo", b"abc") == b"cba"
        # We stopped sending datagrams, too: none came for long.
        count = len(node.beats)
        asked = len(node.questions)
        wait_for(lambda: len(node.questions) >= asked + LIVENESS)
        assert len(node.beats) == count

        node.answering = False
        silent_at = time.monotonic()
        wait_for(lambda: view(broker, "thermo") is None)
        gone_s = time.monotonic() - silent_at
        assert BEAT_S * (LIVENESS - 2) < gone_s < BEAT_S * (LIVENESS + 1) + SLACK_S
        for name, value in (("asked_s", asked_s), ("gone_s", gone_s)):
            record_property(name, round(value, 3))
            print(f"{name}: {value:.3f} s, with a heartbeat of {BEAT_S} s")


def test_a_node_that_beats_again_is_left_alone(broker: LiveBroker) -> None:
    with DbpNode(broker, "thermo", BEAT_S, own_address=True, transport="none") as node:
        wait_for(lambda: node.beats)
        node.beating = False
        wait_for(lambda: node.questions)
        node.beating = True
        count = len(node.beats)
        wait_for(lambda: len(node.beats) >= count + LIVENESS)
        wait_for(lambda: is_alive_by_datagrams(broker, "thermo"))


def test_a_dialled_service_that_dies_is_noticed_without_a_call(broker: LiveBroker) -> None:
    """As the original registers: no heartbeat is named, none is sent."""
    node = DbpNode(broker, "thermo", BEAT_S, own_address=True, is_original=True)
    try:
        wait_for(lambda: (view(broker, "thermo") or {}).get("beats") == "asked")
        node.questions.clear()
        wait_for(lambda: len(node.questions) >= 2 * LIVENESS)
        assert view(broker, "thermo") is not None
    finally:
        node.die()
    wait_for(lambda: view(broker, "thermo") is None)


def test_everything_is_an_event(broker: LiveBroker) -> None:
    with Peer(broker["ebus.subscribe"], kind=zmq.SUB) as monitor:
        monitor.socket.subscribe(b"polybus/monitor/node_")
        monitor.socket.unsubscribe(b"")
        wait_for(lambda: broker.ask("status")["subscriptions"])
        with DbpNode(broker, "thermo", BEAT_S, own_address=True, transport="none") as node:
            wait_for(lambda: node.beats)
            node.beating = node.answering = False
            seen: list[str] = []
            while "polybus/monitor/node_down" not in seen:
                topic, body = monitor.recv()[:2]
                if topic.startswith(b"polybus/monitor/node_"):
                    assert b"thermo" in body
                    seen.append(topic.decode())
    assert seen[0] == "polybus/monitor/node_up"
    assert "polybus/monitor/node_late" in seen


# -- what is not believed -----------------------------------------------------------------------------


def test_a_registration_that_names_a_foreign_ip_is_sent_nothing(broker: LiveBroker) -> None:
    """It may have been made to have us send something to whoever is there."""
    port = int(broker["dbp.udp"].rpartition(":")[2])
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as victim,
        DbpNode(broker, "thermo", BEAT_S, ip="127.0.0.2") as node,
    ):
        victim.bind(("127.0.0.2", node.port))
        victim.setblocking(False)
        # Its own datagrams come from 127.0.0.1: they are nobody's.
        wait_for(lambda: broker.ask("status")["node_datagrams_refused"] >= LIVENESS)
        assert not node.beats
        with pytest.raises(BlockingIOError):
            victim.recv(100)
        # As soon as it has shown itself from there, it is answered there.
        victim.sendto(b"<3 1 thermo", ("127.0.0.1", port))
        victim.setblocking(True)
        victim.settimeout(10)
        assert victim.recv(100).startswith(b"<3 ")
        assert not node.beats


def test_datagrams_that_are_no_heartbeats_are_counted_and_nothing_more(broker: LiveBroker) -> None:
    port = int(broker["dbp.udp"].rpartition(":")[2])
    packets = [
        b"",
        b"\xff" * 2000,
        b"<3",
        b"<3 1 nobody",
        b"<3 x thermo",
        b"SHALOM 5246",
        b"</3 1 thermo",
        b"<3 1 ",
    ]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
        DbpNode(broker, "thermo", BEAT_S) as node,
    ):
        for packet in packets:
            stranger.sendto(packet, ("127.0.0.1", port))
        wait_for(lambda: broker.ask("status")["datagrams_invalid"] >= len(packets) - 2)
        wait_for(lambda: broker.ask("status")["node_datagrams_refused"] >= 2)
        count = len(node.beats)
        wait_for(lambda: len(node.beats) > count)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(100)


# -- one name, one node -------------------------------------------------------------------------------


def test_a_second_node_is_denied_with_the_address_of_the_first(broker: LiveBroker) -> None:
    # Who is late loses its name; with so long an interval no busy machine makes it late.
    with DbpNode(broker, "thermo", 30.0) as node, Peer(broker["dbp.port"]) as second:
        for port in (node.port + 1, node.port):
            info = {**node.info, "port": port}
            second.send(b"", b"UwU", TIME, json.dumps(info).encode())
            _, command, _, reason = second.recv()
            assert command == b"(O_O)"
            assert f"alive, at 127.0.0.1:{node.port}" in reason.decode()
        assert call(broker, b"thermo", b"abc") == b"cba"


def test_a_node_that_was_killed_and_started_again_has_its_name_at_once(broker: LiveBroker) -> None:
    first = DbpNode(broker, "thermo", 30.0)
    first.die()
    with Peer(broker["dbp.port"]) as again:
        again.send(b"", b"UwU", TIME, json.dumps(first.info).encode())
        assert again.recv(patient(10.0))[1] == b"OwO"


# -- restarts -----------------------------------------------------------------------------------------


def test_registrations_outlive_the_broker(broker: LiveBroker) -> None:
    with (
        DbpNode(broker, "called", 1.0, own_address=True, transport="req") as called,
        DbpNode(broker, "silent", 1.0, own_address=True, transport="none") as silent,
        DbpNode(broker, "talking", 1.0) as talking,
    ):
        silent.beating = silent.answering = False
        broker.restart()
        names = {node["node"] for node in broker.ask("nodes")}
        assert names == {"called", "silent", "talking"}
        # It is dialled again and can be called, before it has said anything.
        assert call(broker, b"called", b"abc") == b"cba"
        # The ports are others now: beats go there.
        called._to = talking._to = ("127.0.0.1", int(broker["dbp.udp"].rpartition(":")[2]))
        wait_for(lambda: called.beats and (view(broker, "called") or {}).get("beats") == "udp")
        # Whose conversation is lost is told to register again.
        wait_for(lambda: talking.endings, patient(20.0))
        wait_for(lambda: view(broker, "silent") is None, patient(20.0))
        # It had the whole time that any node has, which begins when the broker does, not when we hear of it.
        assert broker.ask("status")["up_s"] > LIVENESS - 0.5
        assert view(broker, "called") is not None
        assert view(broker, "talking") is not None


def test_who_left_is_not_there_after_a_restart(broker: LiveBroker) -> None:
    thermo = DbpNode(broker, "thermo", 1.0, own_address=True, transport="none")
    with thermo, Peer(broker["dbp.port"]) as peer:
        # It says goodbye over another connection, and neither beats nor answers any more.
        thermo.beating = thermo.answering = False
        peer.send(b"", b"</3", TIME, b"thermo")
        wait_for(lambda: view(broker, "thermo") is None)
    with Peer(broker["dbp.port"]) as peer:
        info = {"name": "other", "ip": "127.0.0.1", "port": 1, "function": "", "heartbeat": 60}
        peer.send(b"", b"UwU", TIME, json.dumps(info).encode())
        assert peer.recv()[1] == b"OwO"
    broker.restart()
    assert [node["node"] for node in broker.ask("nodes")] == ["other"]


# -- the library's own workers ------------------------------------------------------------------------


def test_two_workers_of_one_name_do_not_take_it_from_each_other(broker: LiveBroker) -> None:
    def first(request: Request) -> bytes:
        return b"first"

    with running(Worker({"echo": first}, broker["dbp.port"], "dbp")):
        wait_for(lambda: broker.has_workers("echo"))
        with pytest.raises(PolybusError, match="is taken by a node that is alive"):
            Worker({"echo": lambda request: b"second"}, broker["dbp.port"], "dbp").run()
        assert call(broker, b"echo", b"x") == b"first"
