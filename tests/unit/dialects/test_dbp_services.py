"""How DBP services are registered, updated and heard, and what each of them is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.core.actions import UNKNOWN_WORKER, Dismiss
from polybus.core.ledger import NodeEntry
from polybus.dialects.dbp import NOBODY, Dbp
from support.network import DBP, DOUBLE, FLOAT, OUT, TEXT, WALL_S, Network


@pytest.fixture
def net() -> Network:
    return Network()


def test_what_a_node_is_told_of_its_heartbeats(net: Network) -> None:
    info: dict[str, Any] = {"ip": "10.0.0.7", "port": 1, "function": "f"}
    command, _, config = net.register(b"a", name="Gondor", heartbeat=2.0, **info)
    assert (command, json.loads(config)) == (b"OwO", {"heartbeat_s": 2.0, "liveness": 4})
    # Who sends none is asked, and need not know how often.
    answer = net.register(b"b", name="Rohan", interfaces={"router": {"ip": "10.0.0.8", "port": 1}})
    assert answer[0] == b"OwO"
    assert all(frame in (b"", b"{}") for frame in answer[2:])


def test_a_node_without_a_heartbeat_has_the_default() -> None:
    net = Network(default_heartbeat_s=4.0)
    net.original(b"s", "Rohan")
    node = net.bus.nodes[b"Rohan"]
    assert (node.heartbeat_s, node.quiet) == (4.0, True)
    net.serve(b"t", "Gondor", heartbeat=1.5)
    node = net.bus.nodes[b"Gondor"]
    assert (node.heartbeat_s, node.quiet) == (1.5, False)
    worker = net.bus.workers[DBP, b"t"]
    assert (worker.heartbeat.beat_every_s, worker.heartbeat.dead_after_s) == (1.5, 6.0)


@pytest.mark.parametrize(("time", "form"), [(FLOAT, "float"), (DOUBLE, "double"), (TEXT, "text")])
@pytest.mark.parametrize("transport", ["dealer", "none", "req"])
def test_a_registration_outlives_the_broker(net: Network, time: bytes, form: str, transport: str) -> None:
    info = {"ip": "10.0.0.7", "port": 5247, "function": "f", "heartbeat": 1.0, "transport": transport}
    assert net.register(b"s", time, name="Gondor", **info)[0] == b"OwO"
    node = net.bus.nodes[b"Gondor"]
    assert node.how.startswith(f"document.{transport}.")
    other = Network()
    dialect = Dbp(other.bus, lambda: WALL_S, outbound_link=OUT)
    entry = NodeEntry(b"Gondor", json.dumps(node.info).encode(), 1.0, node.how, 0.0)
    again = dialect.revive(entry)
    assert again is not None
    assert (again.name, again.info, again.heartbeat_s, again.how) == (b"Gondor", node.info, 1.0, node.how)
    assert again.node == NOBODY
    assert (again.serves is None) == (transport == "none")
    assert again.reach is not None
    assert again.reach.endpoint == "tcp://10.0.0.7:5247"


@pytest.mark.parametrize(
    ("info", "how"),
    [
        (b"{}", "document.dealer.unheard-of"),
        (b"{}", "document.dealer"),
        (b"no JSON", "document.dealer.float"),
        (b'{"port": "many"}', "document.dealer.float"),
    ],
)
def test_what_a_later_version_wrote_is_left_alone(info: bytes, how: str) -> None:
    net = Network()
    dialect = Dbp(net.bus, lambda: WALL_S, outbound_link=OUT)
    assert dialect.revive(NodeEntry(b"Gondor", info, 1.0, how, 0.0)) is None


def test_after_an_update_a_service_is_called_as_it_chose_last(net: Network) -> None:
    net.serve(b"s", "Gondor")
    assert net.bus.nodes[b"Gondor"].worker is net.bus.workers[DBP, b"s"]
    net.say(b"s", b"UoU", b'{"name": "Gondor", "transport": "req"}')
    assert list(net.dialled.values()) == ["tcp://10.0.0.7:5247"]
    assert net.bus.nodes[b"Gondor"].how.split(".")[1] == "req"
    net.say(b"s", b"UoU", b'{"name": "Gondor", "function": "still there"}')
    assert net.bus.nodes[b"Gondor"].how.split(".")[1] == "req"


def test_who_is_disconnected_for_what_it_sent_is_sent_nothing_more(net: Network) -> None:
    net.serve(b"s", "Gondor", transport="none")
    net.send(DBP, b"s", b"", b"<3", b"no time", b"Gondor")
    assert net.reply(b"s")[0] == b"</3"
    assert b"Gondor" not in net.bus.nodes
    net.send(DBP, b"s", b"", b"<3", b"no time", b"Gondor")
    assert net.replies(b"s") == []


def test_a_command_that_only_brokers_send_ends_the_conversation(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"OwO", b"{}")
    assert net.reply(b"s")[0] == b"</3"
    assert (DBP, b"s") not in net.bus.workers
    late = net.bus.counters.late
    net.say(b"s", b"OwO", b"{}")
    assert (net.replies(b"s"), net.bus.counters.late) == ([], late + 1)


def test_whatever_comes_over_a_workers_connection_shows_that_it_is_there(net: Network) -> None:
    net.serve(b"s", "Gondor")
    worker = net.bus.workers[DBP, b"s"]
    net.now += 0.7
    net.say(b"s", b"ping", b"")
    assert worker.seen_at == net.now


def test_a_worker_that_was_acknowledged_needs_no_heartbeat_of_ours(net: Network) -> None:
    net.serve(b"s", "Gondor")
    worker = net.bus.workers[DBP, b"s"]
    net.now += 0.7
    for name in (b"Gondor", b""):
        net.now += 0.1
        net.say(b"s", b"<3", name)
        assert worker.spoken_at == net.now
        assert net.reply(b"s")[0] == b"u.u"


def test_a_sign_of_life_counts_for_all_nodes_of_a_connection(net: Network) -> None:
    for name in ("Gondor", "Rohan"):
        net.serve(b"s", name, transport="none")
    net.now += 0.7
    net.say(b"s", b"u.u", b"")
    assert {node.seen_at for node in net.bus.nodes.values()} == {net.now}
    # Of somebody unknown it is a reason to say that it must register.
    net.say(b"stranger", b"u.u", b"")
    assert net.reply(b"stranger")[0] == b"</3"


def test_a_refused_exit_is_counted(net: Network) -> None:
    net.say(b"c", b"<\\3", b"")
    assert net.reply(b"c")[0] == b"OmO"
    assert net.bus.counters.rejected == 1


def test_a_heartbeat_without_a_name_from_a_node_whose_lease_ended_is_told_to_register(net: Network) -> None:
    """It has a call still, whose answer counts, but it is no node any more."""
    net.serve(b"s", "Gondor", heartbeat=1.0)
    net.say(b"client", b"u_U", b"Gondor", b"work")
    assert net.reply(b"s")[0] == b"u_U"
    net.wait(6.0)
    assert not net.bus.nodes
    assert (DBP, b"s") in net.bus.silent
    net.ears[DBP].receive(DBP, [b"s", b"", b"<3", FLOAT], net.now)
    (dismissed,) = net.bus.take()
    assert isinstance(dismissed, Dismiss)
    assert (dismissed.peer, dismissed.reason) == ((DBP, b"s"), UNKNOWN_WORKER)
