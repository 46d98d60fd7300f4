"""DBP on the bus: clients, services on their own socket, and the catalog."""

from __future__ import annotations

import json

import pytest

from polybus.core import events
from polybus.core.actions import Answer, Dismiss
from polybus.core.model import Limits
from support.network import DBP, DOUBLE, FLOAT, MDP, TEXT, Network

TIMES = [FLOAT, DOUBLE, TEXT]
BYE = [b"</3", FLOAT, b""]
ACK = [b"u.u", FLOAT, b""]


@pytest.fixture
def net() -> Network:
    return Network()


# -- what clients are told --------------------------------------------------------------------


@pytest.mark.conforms("DBP-3")
@pytest.mark.conforms("DBP-4")
def test_one_service_or_all_of_every_dialect(net: Network) -> None:
    assert net.info() == {}
    net.serve(b"s", "Gondor", kind="beacon")
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    gondor = {
        "ip": "10.0.0.7",
        "port": 5247,
        "function": "echoes",
        "heartbeat_s": 1.0,
        "kind": "beacon",
        "interfaces": {"router": {"ip": "10.0.0.7", "port": 5247}},
    }
    echo = {"dialect": "mdp2", "function": "", "workers": 1, "queued": 0}
    assert net.info(b"Gondor") == {"Gondor": gondor}
    assert net.info(b"echo") == {"echo": echo}
    assert net.info() == {"Gondor": gondor, "echo": echo}


def test_who_found_the_broker_by_its_beacon_asks_it_about_itself(net: Network) -> None:
    assert net.info(b"polybus.broker") == {"polybus.broker": {"name": "Amon Din"}}
    assert net.info() == {}


@pytest.mark.conforms("DBP-3")
def test_the_originals_client_finds_the_address_where_it_looks_for_it(net: Network) -> None:
    net.original(b"r", "Rohan", 5250)
    entry = net.info(b"Rohan")["Rohan"]
    assert entry["interfaces"]["router"] == {"ip": "127.0.0.1", "port": 5250}
    assert entry["reg_time"] == "Tue Nov 14"
    assert entry["topics"] is None


@pytest.mark.conforms("DBP-6")
def test_what_is_not_there_is_answered_with_a_warning(net: Network) -> None:
    warning = {"Error": "No Registered Service With the Name Mordor"}
    assert net.info(b"Mordor") == warning
    # Asked for by a client but offered by nobody is not there either.
    net.say(b"c", b"u_U", b"Mordor", b"hello?")
    assert net.info(b"Mordor") == warning
    assert net.info() == {}


@pytest.mark.conforms("DBP-6")
def test_a_service_that_is_overdue_or_lost_is_listed_as_such(net: Network) -> None:
    net.register(b"s", name="Gondor", ip="10.0.0.7", port=1, function="f", heartbeat=1.0, transport="req")
    net.wait(2.2)
    assert net.info(b"Gondor")["Gondor"]["state"] == "late"
    net.say(b"s", b"<3", b"Gondor")
    assert "state" not in net.info(b"Gondor")["Gondor"]
    (worker,) = net.bus.workers
    net.handle(events.WorkerGone(worker, "it cannot be reached"))
    assert net.info(b"Gondor")["Gondor"]["state"] == "unreachable"
    net.wait(5)
    assert "Error" in net.info(b"Gondor")


def test_a_service_cannot_make_the_list_look_like_an_error(net: Network) -> None:
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"Error")
    assert net.info() == {}
    answer = net.register(b"s", name="Error", ip="h", port=1, function="f", heartbeat=1)
    assert answer[0] == b"(O_O)"
    assert b"choose another" in answer[2]


def test_a_list_that_is_too_long_is_not_sent(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.dialects.dbp_catalog.MAX_CATALOG_BYTES", 200)
    net.serve(b"s1", "Gondor")
    assert list(net.info()) == ["Gondor"]
    net.serve(b"s2", "Rohan", port=5248)
    assert "ask for a service by its name" in net.info()["Error"]


# -- calls ------------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-1")
@pytest.mark.conforms("DBP-5")
@pytest.mark.conforms("DBP-16")
@pytest.mark.parametrize("time", TIMES, ids=["float", "double", "text"])
def test_a_call_on_the_services_own_socket(net: Network, time: bytes) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"c", b"u_U", b"Gondor", b"aid?", time=time)
    # Each peer gets its own form of the time.
    assert net.reply(b"s") == [b"u_U", FLOAT, b"Gondor", b"aid?"]
    net.say(b"s", b"o_O", b"aid!")
    assert net.reply(b"c") == [b"o_O", time, b"aid!"]


@pytest.mark.conforms("DBP-16")
def test_a_peer_without_the_empty_first_frame_gets_none(net: Network) -> None:
    net.send(DBP, b"s", b"UwU", TEXT, b'{"name":"a","ip":"h","port":1,"function":"f","heartbeat":1}')
    assert net.one(DBP, b"s")[0] == b"OwO"
    net.send(DBP, b"c", b"u_U", TEXT, b"a", b"x")
    assert net.one(DBP, b"s") == [b"u_U", TEXT, b"a", b"x"]
    net.send(DBP, b"s", b"o_O", TEXT, b"y")
    assert net.one(DBP, b"c") == [b"o_O", TEXT, b"y"]


def test_answers_belong_to_calls_in_their_order(net: Network) -> None:
    net.serve(b"s", "Gondor", credit=2)
    for client in (b"c1", b"c2", b"c3"):
        net.say(client, b"u_U", b"Gondor", client)
    assert [call[3] for call in net.replies(b"s")] == [b"c1", b"c2"]
    net.say(b"s", b"o_O", b"1")
    assert net.reply(b"s")[3] == b"c3"
    net.say(b"s", b"o_O", b"2")
    net.say(b"s", b"o_O", b"3")
    assert [net.reply(client)[2] for client in (b"c1", b"c2", b"c3")] == [b"1", b"2", b"3"]


def test_an_error_object_is_a_failure(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"c", b"u_U", b"Gondor", b"aid?")
    net.say(b"s", b"o_O", b'{"Error": "besieged"}')
    assert json.loads(net.reply(b"c")[2]) == {"Error": "besieged"}
    assert net.bus.counters.failed == 1


def test_a_call_that_expires_says_so() -> None:
    net = Network(Limits(request_ttl_s=3))
    net.say(b"c", b"u_U", b"Gondor", b"aid?")
    net.wait(3.2)
    command, _, body = net.reply(b"c")
    assert command == b"o_O"
    assert json.loads(body)["Error"] == "expired"


def test_calls_cross_to_other_dialects_and_back(net: Network) -> None:
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    net.say(b"c", b"u_U", b"echo", b"x")
    order = net.one(MDP, b"w")
    net.send(MDP, b"w", b"MDPW02", b"\x03", order[2], b"", b"part")
    net.send(MDP, b"w", b"MDPW02", b"\x04", order[2], b"", b"X")
    assert net.reply(b"c") == [b"o_O", FLOAT, b"X"]
    net.serve(b"s", "Gondor")
    net.send(MDP, b"m", b"MDPC02", b"\x01", b"Gondor", b"x")
    net.say(b"s", b"o_O", b"X")
    assert net.one(MDP, b"m") == [b"MDPC02", b"\x03", b"Gondor", b"X"]


def test_bodies_of_several_frames_do_not_cross(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.send(MDP, b"m", b"MDPC02", b"\x01", b"Gondor", b"x", b"y")
    error = json.loads(net.one(MDP, b"m")[-1])
    assert error["error"] == "undeliverable"
    assert "DBP carries one" in error["detail"]
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    net.say(b"c", b"u_U", b"echo", b"x")
    order = net.one(MDP, b"w")
    net.send(MDP, b"w", b"MDPW02", b"\x04", order[2], b"", b"X", b"Y")
    assert json.loads(net.reply(b"c")[2])["Error"] == "undeliverable"


# -- registration -----------------------------------------------------------------------------


@pytest.mark.conforms("DBP-7")
@pytest.mark.conforms("DBP-10")
@pytest.mark.parametrize("time", TIMES, ids=["float", "double", "text"])
def test_a_registration_is_approved_with_the_agreed_timing(net: Network, time: bytes) -> None:
    info = {"name": "Gondor", "ip": "10.0.0.7", "port": 5247, "function": "f", "heartbeat": 2.5}
    command, when, config = net.register(b"s", time, **info)
    assert (command, when) == (b"OwO", time)
    assert json.loads(config) == {"heartbeat_s": 2.5, "liveness": 4}
    # What is agreed with the original is nothing, and it wants a third frame.
    net.original(b"r", "Rohan")
    net.say(b"r", b"UwU", b'{"name":"Rohan","interfaces":{"router":{"ip":"127.0.0.1","port":5247}}}')
    assert net.reply(b"r") == [b"OwO", FLOAT, b""]


@pytest.mark.conforms("DBP-8")
@pytest.mark.conforms("DBP-11")
@pytest.mark.parametrize("lacking", ["ip", "port", "function", "heartbeat"])
def test_less_than_the_minimum_is_denied(net: Network, lacking: str) -> None:
    info = {"name": "Gondor", "ip": "h", "port": 5247, "function": "f", "heartbeat": 2.5}
    del info[lacking]
    assert net.register(b"s", **info) == [b"(O_O)", FLOAT, f"{lacking} is missing".encode()]
    assert net.info() == {}
    assert not net.bus.workers


@pytest.mark.conforms("DBP-11")
def test_all_reasons_are_told_at_once(net: Network) -> None:
    answer = net.register(b"s", name="Gondor", ip="h")
    assert answer[2:] == [b"port is missing", b"function is missing", b"heartbeat is missing"]
    answer = net.register(b"s", name="Gondor", ip="no such/host", port=0)
    assert len(answer) == 4
    answer = net.register(b"s", name="a", transport="owl", ip="h", port=1, function="", heartbeat=1)
    assert answer[2:] == [b"transport must be 'req', 'dealer' or 'none'"]


@pytest.mark.conforms("DBP-11")
@pytest.mark.parametrize(
    ("strict", "time", "info", "word"),
    [
        # As the original registers, and the name is taken.
        (False, FLOAT, {"name": "G", "interfaces": {"router": {"ip": "10.0.0.7", "port": 9}}}, b"OmO"),
        (False, DOUBLE, {"name": "G", "interfaces": {"router": {"ip": "10.0.0.7", "port": 9}}}, b"OmO"),
        (True, FLOAT, {"name": "G", "interfaces": {"router": {"ip": "10.0.0.7", "port": 9}}}, b"(O_O)"),
        # As the document has it.
        (False, FLOAT, {"name": "G", "ip": "h"}, b"(O_O)"),
        (True, FLOAT, {"name": "G", "ip": "h"}, b"(O_O)"),
        # Unreadable: the original always packs a float.
        (False, FLOAT, {}, b"OmO"),
        (False, TEXT, {}, b"(O_O)"),
        (True, FLOAT, {}, b"(O_O)"),
    ],
)
def test_a_denial_is_said_in_the_peers_word(
    strict: bool, time: bytes, info: dict[str, object], word: bytes
) -> None:
    net = Network(strict=strict)
    net.serve(b"first", "G")
    answer = net.register(b"s", time, **info)
    assert answer[:2] == [word, time]
    assert answer[2]


@pytest.mark.conforms("DBP-11")
def test_a_name_that_is_taken_by_a_living_node_is_denied(net: Network) -> None:
    net.serve(b"s1", "Gondor")
    info = {"ip": "elsewhere", "port": 1, "function": "f", "heartbeat": 1.0}
    (command, _, reason) = net.register(b"s2", name="Gondor", **info)
    assert command == b"(O_O)"
    assert b"is taken" in reason
    net.say(b"c", b"u_U", b"Gondor", b"x")
    assert net.reply(b"s1")[0] == b"u_U"


def test_a_restarted_service_gets_its_name_back_and_its_calls_anew(net: Network) -> None:
    net.serve(b"s1", "Gondor")
    net.say(b"c", b"u_U", b"Gondor", b"x")
    info = {"ip": "10.0.0.7", "port": 5247, "function": "the same place", "heartbeat": 1}
    net.gone.add((DBP, b"s1"))
    net.say(b"s2", b"UwU", json.dumps({"name": "Gondor", **info}).encode())
    assert [message[3:] for message in net.replies(b"s2")] == [[], [b"x"]]
    assert net.bus.nodes[b"Gondor"].worker is net.bus.workers[DBP, b"s2"]
    assert (DBP, b"s1") not in net.bus.workers


def test_approval_comes_before_the_calls_that_wait(net: Network) -> None:
    net.say(b"c", b"u_U", b"Gondor", b"x")
    net.say(b"s", b"UwU", b'{"name":"Gondor","ip":"h","port":1,"function":"f","heartbeat":1}')
    assert [message[0] for message in net.replies(b"s")] == [b"OwO", b"u_U"]


def test_a_full_bus_denies() -> None:
    net = Network(Limits(services=1))
    net.serve(b"s1", "Gondor")
    info = {"ip": "h", "port": 1, "function": "f", "heartbeat": 1.0}
    answer = net.register(b"s2", name="Rohan", **info)
    assert answer == [b"(O_O)", FLOAT, b"1 services are known; allowed are no more"]
    assert b"Rohan" not in net.bus.nodes


# -- updates ----------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-9")
@pytest.mark.conforms("DBP-14")
def test_an_update_changes_the_entry(net: Network) -> None:
    net.serve(b"s", "Gondor", kind="beacon")
    net.say(b"s", b"UoU", b'{"name": "Gondor", "function": "lights", "topics": ["war"]}')
    assert net.reply(b"s") == ACK
    entry = net.info(b"Gondor")["Gondor"]
    assert (entry["function"], entry["topics"], entry["kind"]) == ("lights", ["war"], "beacon")
    # It is called as before.
    net.say(b"c", b"u_U", b"Gondor", b"x")
    assert net.reply(b"s")[0] == b"u_U"


@pytest.mark.conforms("DBP-9")
@pytest.mark.conforms("DBP-11")
def test_an_update_of_an_unknown_name_is_denied(net: Network) -> None:
    net.say(b"s", b"UoU", b'{"name": "Mordor", "port": 1}')
    command, _, reason = net.reply(b"s")
    assert command == b"OmO"
    assert b"register first" in reason
    net.say(b"s", b"UoU", b'{"name": "Mordor", "port": "many"}', time=TEXT)
    assert net.reply(b"s")[0] == b"(O_O)"


@pytest.mark.conforms("DBP-9")
@pytest.mark.conforms("DBP-28")
def test_an_update_may_change_the_timing(net: Network) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0)
    net.say(b"s", b"UoU", b'{"name": "Gondor", "heartbeat": 10}')
    net.wait(30)
    assert net.bus.nodes[b"Gondor"].worker is net.bus.workers[DBP, b"s"]
    net.wait(15)
    assert not net.bus.nodes
    assert not net.bus.workers


@pytest.mark.conforms("DBP-9")
@pytest.mark.parametrize("quiet", [False, True])
def test_an_update_does_not_change_whether_a_service_beats_by_itself(net: Network, quiet: bool) -> None:
    """One that named no interval is asked before it is late; one that did is expected to beat."""
    if quiet:
        net.original(b"s", "Gondor")
    else:
        net.serve(b"s", "Gondor")
    assert net.bus.nodes[b"Gondor"].quiet == quiet
    net.say(b"s", b"UoU", b'{"name": "Gondor", "function": "lights"}')
    assert net.reply(b"s") == ACK
    assert net.bus.nodes[b"Gondor"].quiet == quiet
    net.say(b"s", b"UoU", b'{"name": "Gondor", "heartbeat": 2}')
    assert not net.bus.nodes[b"Gondor"].quiet


@pytest.mark.conforms("DBP-9")
def test_an_update_that_is_too_large_or_wrong_changes_nothing(net: Network) -> None:
    net.serve(b"s", "Gondor", note="x" * 60_000)
    before = net.info(b"Gondor")
    net.replies(b"s")
    net.say(b"s", b"UoU", json.dumps({"name": "Gondor", "transport": "owl"}).encode())
    assert net.reply(b"s")[0] == b"OmO"
    assert net.info(b"Gondor") == before


# -- opening and closing ----------------------------------------------------------------------


@pytest.mark.conforms("DBP-19")
@pytest.mark.conforms("DBP-21")
@pytest.mark.conforms("DBP-22")
def test_a_second_registration_on_the_same_socket_ends_the_conversation(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"c", b"u_U", b"Gondor", b"x")
    net.replies(b"s")
    info = {"ip": "10.0.0.7", "port": 5247, "function": "f", "heartbeat": 1}
    assert net.register(b"s", name="Gondor", **info) == BYE
    assert net.info() == {}
    assert net.forgotten == [b"Gondor"]
    net.wait(10)
    assert net.replies(b"s") == []
    # It registers anew and gets what nobody answered.
    net.say(b"s2", b"UwU", json.dumps({"name": "Gondor", **info}).encode())
    assert [message[0] for message in net.replies(b"s2")] == [b"OwO", b"u_U"]


@pytest.mark.conforms("DBP-19", "DBP-22")
@pytest.mark.parametrize("name", [b"Gondor", b"Mordor"])
def test_a_second_registration_ends_it_before_the_first_is_on_disk(net: Network, name: bytes) -> None:
    for each in (b"Gondor", name):
        info = {"name": each.decode(), "ip": "10.0.0.7", "port": 5247, "function": "f", "heartbeat": 1}
        net.ears[DBP].receive(DBP, [b"s", b"", b"UwU", FLOAT, json.dumps(info).encode()], net.now)
    net.settle()
    assert net.reply(b"s") == BYE
    assert net.info() == {}
    net.wait(10)
    assert net.replies(b"s") == []


@pytest.mark.conforms("DBP-19", "DBP-48")
def test_a_second_registration_that_cannot_be_read_is_one(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"UwU", b"{")
    assert net.reply(b"s") == BYE
    assert net.info() == {}


@pytest.mark.conforms("DBP-20", "DBP-47")
def test_an_update_that_cannot_be_taken_is_not_answered_after_disconnect(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"</3")
    net.say(b"s", b"UoU", b'{"name": "Gondor", "port": -1}')
    assert net.replies(b"s") == []
    # A registration begins anew, also one that is denied.
    net.say(b"s", b"UwU", b'{"name": "Gondor", "port": -1}')
    assert net.reply(b"s")[0] in (b"OmO", b"(O_O)")
    net.say(b"s", b"<3", b"Gondor")
    assert net.reply(b"s") == BYE


@pytest.mark.conforms("DBP-26")
@pytest.mark.parametrize(
    "said", [[b"u_U", b""], [b"u_U", b"Mordor"], [b"u_U", b"Mordor", b"a call"], [b"ping", b""]]
)
@pytest.mark.parametrize("transport", ["none", "req", "dealer"])
def test_whatever_a_node_asks_on_its_connection_keeps_it_alive(
    net: Network, transport: str, said: list[bytes]
) -> None:
    net.serve(b"s", "Gondor", transport=transport)
    for _ in range(20):
        net.wait(0.5)
        net.say(b"s", said[0], *said[1:])
    assert b"Gondor" in net.bus.nodes
    # It says nothing more.
    net.wait(10)
    assert b"Gondor" not in net.bus.nodes


def silent_with_a_call(net: Network) -> None:
    """The broker stood still for so long that it takes a busy service for silent, and looks first."""
    net.serve(b"s", "Gondor", heartbeat=1.0)
    net.say(b"c", b"u_U", b"Gondor", b"call")
    net.say(b"c2", b"u_U", b"Gondor", b"call2")
    net.wait(1.0)
    net.say(b"s", b"<3", b"Gondor")
    net.now += 10.0
    net.handle(events.Tick())
    assert (DBP, b"s") in net.bus.silent
    assert b"Gondor" in net.bus.nodes
    net.replies(b"s")


@pytest.mark.parametrize("said", [[b"u.u", b""], [b"pong", b""], [b"<3", b""], [b"<3", b"Gondor"]])
def test_a_silent_service_is_back_with_any_sign_of_life(net: Network, said: list[bytes]) -> None:
    silent_with_a_call(net)
    net.say(b"s", *said)
    assert BYE not in net.replies(b"s")
    assert (DBP, b"s") in net.bus.workers
    net.say(b"s", b"o_O", b"answer")
    assert net.replies(b"c")[-1][-1] == b"answer"
    assert net.replies(b"s")[-1][-1] == b"call2"


@pytest.mark.parametrize("said", [[b"u_U", b""], [b"u_U", b"Mordor", b"a call"], [b"ping", b""]])
def test_a_silent_service_that_asks_is_kept(net: Network, said: list[bytes]) -> None:
    silent_with_a_call(net)
    for _ in range(20):
        net.say(b"s", *said)
        net.wait(0.5)
    net.replies(b"s")
    net.say(b"s", b"o_O", b"answer")
    assert net.replies(b"c")[-1][-1] == b"answer"
    assert b"Gondor" in net.bus.nodes
    assert net.replies(b"s")[-1][-1] == b"call2"


@pytest.mark.parametrize(
    ("said", "is_told"),
    [
        ([b"u_U", b""], False),
        ([b"u_U", b"Mordor", b"a call"], False),
        ([b"ping", b""], False),
        ([b"<3", b"Gondor"], True),
        ([b"<3", b""], True),
        ([b"u.u", b""], True),
        ([b"pong", b""], True),
    ],
)
def test_a_node_whose_conversation_is_lost_is_not_kept_by_what_it_says(
    net: Network, said: list[bytes], is_told: bool
) -> None:
    net.serve(b"s", "Gondor")
    net.handle(events.WorkerGone((DBP, b"s"), "cannot be reached", is_unreachable=True))
    net.say(b"s", *said)
    assert (BYE in net.replies(b"s")) is is_told, "it has to register again"
    for _ in range(60):
        net.wait(0.5)
        net.say(b"s", *said)
    assert b"Gondor" not in net.bus.nodes


@pytest.mark.conforms("DBP-22")
@pytest.mark.parametrize("command", [b"o_O", b"u.u", b"pong", b"<3"])
def test_a_valid_command_of_somebody_who_did_not_register_is_unexpected(net: Network, command: bytes) -> None:
    net.say(b"s", command, b"")
    assert net.reply(b"s") == BYE
    net.wait(10)
    assert net.replies(b"s") == []


@pytest.mark.conforms("DBP-22")
def test_an_answer_that_nobody_waits_for_ends_the_conversation(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"o_O", b"to what?")
    assert net.reply(b"s") == BYE
    assert net.info() == {}
    assert net.bus.counters.late == 1


def test_an_answer_after_the_call_expired_is_late_and_no_fault() -> None:
    net = Network(Limits(request_ttl_s=2))
    net.serve(b"s", "Gondor", heartbeat=60)
    net.say(b"c", b"u_U", b"Gondor", b"slow")
    net.wait(2.2)
    assert json.loads(net.reply(b"c")[2])["Error"] == "expired"
    net.say(b"c", b"u_U", b"Gondor", b"next")
    net.say(b"s", b"o_O", b"late")
    assert [call[3] for call in net.replies(b"s")] == [b"slow", b"next"]
    net.say(b"s", b"o_O", b"in time")
    assert net.reply(b"c")[2] == b"in time"


@pytest.mark.conforms("DBP-13")
@pytest.mark.conforms("DBP-20")
@pytest.mark.parametrize("tail", [[], [b""], [b"Gondor"]])
def test_after_disconnect_a_service_is_sent_nothing(net: Network, tail: list[bytes]) -> None:
    net.say(b"s", b"</3")
    assert net.replies(b"s") == []
    net.serve(b"s", "Gondor")
    net.say(b"s", b"u_U", b"Mordor", b"its own call")
    net.say(b"s", b"</3", *tail)
    net.say(b"c", b"u_U", b"Gondor", b"x")
    net.wait(400)
    assert net.replies(b"s") == []
    assert net.info() == {}
    assert net.forgotten == [b"Gondor"]


@pytest.mark.conforms("DBP-20")
def test_after_disconnect_a_node_that_is_called_nowhere_is_not_heard_either(net: Network) -> None:
    net.serve(b"s", "Gondor", transport="none")
    assert (DBP, b"s") not in net.bus.workers
    net.say(b"s", b"</3", b"Gondor")
    assert net.bus.nodes == {}
    net.replies(b"s")
    for word in (b"u_U", b"<3"):
        net.say(b"s", word, b"Gondor")
        assert net.replies(b"s") == []
    # It spoke for somebody else, so it is heard as before.
    net.serve(b"t", "Rohan", transport="none")
    net.say(b"foe", b"</3", b"Rohan")
    net.say(b"foe", b"u_U", b"")
    assert net.reply(b"foe")[0] == b"o_O"


@pytest.mark.conforms("DBP-39")
def test_nobody_else_disconnects_a_service_that_has_a_socket(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"foe", b"</3", b"Gondor")
    command, _, reason = net.reply(b"foe")
    assert command == b"OmO"
    assert b"registered by another connection" in reason
    assert "Gondor" in net.info()
    net.say(b"c", b"u_U", b"Gondor", b"x")
    assert net.reply(b"s")[0] == b"u_U"


@pytest.mark.conforms("DBP-23")
@pytest.mark.parametrize(
    "frames",
    [
        [b"o_O"],
        [b"o_O", b"no time", b"x"],
        [b"<3", FLOAT, b"\xff"],
        [b"<3", FLOAT, b"a", b"b"],
        [b"u_U", FLOAT],
    ],
)
def test_an_invalid_message_is_dropped_and_its_sender_is_invalid(net: Network, frames: list[bytes]) -> None:
    net.send(DBP, b"stranger", b"", *frames)
    assert net.replies(b"stranger") == []
    net.serve(b"s", "Gondor")
    net.send(DBP, b"s", b"", *frames)
    assert net.reply(b"s") == BYE
    assert net.info() == {}
    assert net.bus.counters.invalid == 2


@pytest.mark.conforms("DBP-18")
def test_what_has_no_known_header_is_dropped(net: Network) -> None:
    net.send(DBP, b"s", b"", b"^o^", FLOAT, b"x")
    net.send(DBP, b"s", b"MDPW02", b"\x01", b"echo")
    assert net.replies(b"s") == []
    assert net.bus.counters.invalid == 2


def test_exit_from_the_network_is_refused(net: Network) -> None:
    net.say(b"foe", b"<\\3", b"")
    command, _, reason = net.reply(b"foe")
    assert command == b"OmO"
    assert b"nobody on the network" in reason
    assert net.info() == {}


def test_ping_is_answered_with_the_brokers_name(net: Network) -> None:
    net.say(b"c", b"ping", b"Hello!", time=DOUBLE)
    assert net.reply(b"c") == [b"pong", DOUBLE, b"Amon Din"]


# -- heartbeats -------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-12")
@pytest.mark.conforms("DBP-14")
@pytest.mark.conforms("DBP-25")
@pytest.mark.parametrize("name", [b"Gondor", b""])
def test_a_heartbeat_is_acknowledged_and_keeps_the_lease(net: Network, name: bytes) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0)
    for _ in range(10):
        net.wait(1.0)
        net.replies(b"s")
        net.say(b"s", b"<3", name)
        assert net.reply(b"s") == ACK
    assert "Gondor" in net.info()


@pytest.mark.conforms("DBP-12")
@pytest.mark.conforms("DBP-28")
def test_the_broker_beats_at_the_agreed_interval_with_its_name(net: Network) -> None:
    net.serve(b"s", "Gondor", heartbeat=2.0)
    beats = []
    for _ in range(12):
        net.wait(1.0)
        net.say(b"s", b"u.u")
        beats += net.replies(b"s")
    assert set(map(tuple, beats)) == {(b"<3", FLOAT, b"Amon Din")}
    assert 5 <= len(beats) <= 6


@pytest.mark.conforms("DBP-42")
@pytest.mark.parametrize(
    ("given", "source", "counts"),
    [
        ({}, "10.0.0.7", True),
        ({"heartbeat_ip": "10.0.0.8"}, "10.0.0.8", True),
        ({"heartbeat_ip": "10.0.0.8"}, "10.0.0.7", False),
        ({"heartbeat_ip": "nowhere"}, "10.0.0.7", False),
        ({"heartbeat_ip": 7}, "10.0.0.7", False),
    ],
)
def test_datagrams_come_from_the_ip_that_the_registration_names(
    net: Network, given: dict[str, object], source: str, counts: bool
) -> None:
    net.serve(b"s", "Gondor", **given)
    net.handle(events.Pulse(b"Gondor", (source, 4000)))
    assert (net.bus.catalog.pulses, net.bus.catalog.strays) == ((1, 0) if counts else (0, 1))


@pytest.mark.conforms("DBP-27")
def test_no_heartbeat_while_other_commands_are_sent(net: Network) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0)
    for _ in range(10):
        net.wait(0.5)
        net.say(b"c", b"u_U", b"Gondor", b"x")
        assert net.reply(b"s")[0] == b"u_U"
        net.say(b"s", b"o_O", b"X")


@pytest.mark.conforms("DBP-26")
@pytest.mark.parametrize(
    "frames",
    [[b"o_O", b"X"], [b"u.u"], [b"pong", b"Gondor"], [b"u_U", b""], [b"u_U", b"Mordor", b"x"], [b"ping"]],
)
def test_whatever_a_service_sends_is_a_heartbeat(net: Network, frames: list[bytes]) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0)
    for _ in range(6):
        net.wait(2.0)
        net.say(b"c", b"u_U", b"Gondor", b"x")
        net.say(b"s", frames[0], *frames[1:])
    assert net.bus.nodes[b"Gondor"].worker is net.bus.workers[DBP, b"s"]


@pytest.mark.conforms("DBP-29")
@pytest.mark.conforms("DBP-31")
def test_a_silent_service_is_lost(net: Network) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0)
    net.say(b"c", b"u_U", b"Gondor", b"x")
    net.wait(2.9)
    assert (DBP, b"s") in net.bus.workers
    net.wait(2.2)
    net.replies(b"s")
    assert net.info() == {}
    assert not net.bus.workers
    net.say(b"c", b"u_U", b"Gondor", b"y")
    net.wait(10)
    assert net.replies(b"s") == []
    # Its call waits for the next one that registers.
    net.say(b"s2", b"UwU", b'{"name":"Gondor","ip":"h","port":1,"function":"f","heartbeat":1}')
    assert [message[3:] for message in net.replies(b"s2")] == [[], [b"x"]]


@pytest.mark.conforms("DBP-24")
@pytest.mark.conforms("DBP-30")
def test_a_heartbeat_that_the_broker_does_not_expect_tells_the_service_to_register(net: Network) -> None:
    net.say(b"s", b"<3", b"Gondor")
    assert net.reply(b"s") == BYE
    # So does the heartbeat of a service whose connection broke under it and came back as another.
    net.serve(b"s1", "Gondor")
    net.handle(events.WorkerGone((DBP, b"s1"), "it cannot be reached"))
    net.say(b"s2", b"<3", b"Gondor")
    assert net.reply(b"s2") == BYE
    net.serve(b"s3", "Gondor")


@pytest.mark.conforms("DBP-38")
@pytest.mark.parametrize("transport", ["dealer", "req", "none"])
def test_a_heartbeat_over_another_connection_does_not_count(net: Network, transport: str) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0, transport=transport)
    for number in range(6):
        net.wait(0.9)
        foe = b"foe-%d" % number
        net.say(foe, b"<3", b"Gondor")
        assert net.reply(foe) == BYE
    assert net.forgotten == [b"Gondor"]
    assert net.info() == {}


# -- why a conversation ends ------------------------------------------------------------------


@pytest.mark.conforms("DBP-13")
@pytest.mark.parametrize(("strict", "rest"), [(False, [b""]), (True, [])])
def test_why_a_stranger_is_disconnected_is_told_to_the_log_and_not_to_him(
    strict: bool, rest: list[bytes]
) -> None:
    told: list[str] = []
    net = Network(strict=strict, tell=told.append)
    net.serve(b"s", "Gondor")
    net.say(b"foe", b"<3", b"Gondor")
    # The document's DISCONNECT has no frame for a reason.
    assert net.replies(b"foe") == [[b"</3", FLOAT, *rest]]
    net.say(b"who", b"<3", b"Mordor")
    net.say(b"pale", b"u.u")
    assert len(told) == 3
    assert told[0].startswith(
        "DISCONNECT to the DBP peer foe: a heartbeat, but the name 'Gondor' was registered by another "
    )
    assert told[1] == (
        "DISCONNECT to the DBP peer who: a heartbeat for 'Mordor', but no node is registered so; "
        "it must register first"
    )
    assert told[2] == (
        "DISCONNECT to the DBP peer pale: a sign of life without a registration on this connection; "
        "it must register first"
    )
    # Whoever goes on is told nothing more, and neither is the log.
    net.say(b"foe", b"<3", b"Gondor")
    assert net.replies(b"foe") == []
    assert len(told) == 3


def test_a_goodbye_of_the_broker_is_not_explained() -> None:
    told: list[str] = []
    net = Network(tell=told.append)
    net.serve(b"s", "Gondor")
    (worker,) = net.bus.workers.values()
    net.bus.actions.append(Dismiss(worker.address, worker.voice, "shutdown"))
    net.info()
    assert net.replies(b"s") == [BYE]
    assert told == []


def test_an_update_for_a_service_whose_socket_is_closed_says_what_to_do(net: Network) -> None:
    net.serve(b"s", "Gondor")
    (worker,) = net.bus.workers
    net.handle(events.Unasked(worker))
    net.say(b"anew", b"UoU", json.dumps({"name": "Gondor", "function": "f"}).encode())
    command, _, reason = net.reply(b"anew")
    assert command == b"OmO"
    assert b"the node was called on that connection, which is closed; its lease ends in 4.0 s" in reason
    assert b"register again with 10.0.0.7:5247 as ip and port, which gets the name" in reason
    # So it is.
    net.serve(b"anew", "Gondor")


@pytest.mark.parametrize("name", [b"", b"Gondor", b"Mordor", b"polybus.broker"])
def test_an_answer_about_services_has_no_request_id(net: Network, name: bytes) -> None:
    """An answer that cannot be delivered is noted with its id, and a client of DBP has none."""
    net.serve(b"s", "Gondor")
    net.ears[DBP].receive(DBP, [b"curious", b"", b"u_U", FLOAT, name], net.now)
    (answer,) = net.bus.take()
    assert isinstance(answer, Answer)
    assert (answer.client, answer.service, answer.request_id) == ((DBP, b"curious"), name, b"")


def test_a_registration_is_told_all_that_is_wrong_with_it_at_once(net: Network) -> None:
    assert net.register(b"s", name="polybus.x", ip="10.0.0.7", port=1)[2:] == [
        b"function is missing",
        b"heartbeat is missing",
        b"polybus.x is a service of the broker itself",
    ]
