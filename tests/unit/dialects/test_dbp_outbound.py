"""DBP services that are called at their own address: registered over a socket that they closed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.core import events
from polybus.core.model import Limits
from support.network import DBP, DOUBLE, FLOAT, OUT, Network


@pytest.fixture
def net() -> Network:
    return Network()


def calls(net: Network, identity: bytes) -> list[bytes]:
    """The bodies of what was sent to a dialled service."""
    messages = net.got(OUT, identity)
    assert all(message[:2] == [b"", b"u_U"] for message in messages)
    return [message[-1] for message in messages]


@pytest.mark.conforms("DBP-7")
@pytest.mark.conforms("DBP-8")
def test_the_originals_registration_is_complete_and_it_is_called_at_its_address(net: Network) -> None:
    identity = net.original(b"closed", "Rohan", 5250)
    assert net.dialled == {identity: "tcp://127.0.0.1:5250"}
    net.say(b"c", b"u_U", b"Rohan", b"ride!", time=DOUBLE)
    assert net.one(OUT, identity) == [b"", b"u_U", FLOAT, b"Rohan", b"ride!"]
    net.send(OUT, identity, b"", b"o_O", FLOAT, b"riding")
    assert net.reply(b"c") == [b"o_O", DOUBLE, b"riding"]
    # Nothing is ever sent over the socket that it registered on.
    net.wait(100)
    assert net.replies(b"closed") == []
    assert net.info(b"Rohan")["Rohan"]["port"] == 5250


@pytest.mark.parametrize(
    ("info", "endpoint"),
    [
        ({"interfaces": {"router": {"ip": "10.0.0.9", "port": 9}}}, "tcp://10.0.0.9:9"),
        ({"interfaces": {"router": {"ip": "::1", "port": 9}}}, "tcp://[::1]:9"),
        (
            {"ip": "localhost", "port": 9, "function": "", "heartbeat": 1, "transport": "req"},
            "tcp://127.0.0.1:9",
        ),
        ({"interfaces": {"publisher": {"ip": "10.0.0.9", "port": 9}}}, None),
        ({"interfaces": {"router": {"ip": "h", "port": 9}}, "transport": "dealer"}, None),
    ],
)
def test_where_a_service_is_called(net: Network, info: dict[str, Any], endpoint: str | None) -> None:
    assert net.register(b"s", name="Rohan", **info)[0] == b"OwO"
    assert list(net.dialled.values()) == ([endpoint] if endpoint else [])
    assert "Rohan" in net.info()
    served_here = (DBP, b"s") in net.bus.workers
    assert served_here == (info.get("transport") == "dealer")


def test_names_are_not_looked_up(net: Network) -> None:
    answer = net.register(b"s", name="Rohan", interfaces={"router": {"ip": "edoras", "port": 9}})
    assert answer[0] == b"OmO"
    assert b"not a host name" in answer[2]
    assert net.dialled == {}


def test_without_an_outbound_link_such_services_are_only_listed() -> None:
    net = Network(outbound_link=None)
    answer = net.register(b"s", name="Rohan", interfaces={"router": {"ip": "10.0.0.9", "port": 9}})
    assert answer[0] == b"OwO"
    assert net.dialled == {}
    assert "state" not in net.info(b"Rohan")["Rohan"]


def test_one_call_at_a_time(net: Network) -> None:
    identity = net.original(b"s", "Rohan", credit=10)
    net.say(b"c", b"u_U", b"Rohan", b"1")
    net.say(b"c", b"u_U", b"Rohan", b"2")
    assert calls(net, identity) == [b"1"]
    net.send(OUT, identity, b"", b"o_O", FLOAT, b"one")
    assert calls(net, identity) == [b"2"]


@pytest.mark.parametrize(
    "frames",
    [
        # A command without a handler, and an envelope that the original could not take.
        [b"Error: Invalid command type. Please register command callback with the server.", FLOAT, b""],
        [b"", FLOAT, b"Error: Invalid Message Envelope."],
        [b"o_O", FLOAT, b'{"Error": "no horses"}'],
        [b"Bye!", FLOAT, b""],
        [b"o_O", b"no time", b"x"],
        [b"o_O"],
    ],
)
def test_what_is_no_answer_fails_the_call(net: Network, frames: list[bytes]) -> None:
    identity = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"ride!")
    net.send(OUT, identity, b"", *frames)
    answer = json.loads(net.reply(b"c")[2])
    assert "Error" in answer
    assert net.bus.counters.failed == 1
    calls(net, identity)
    net.say(b"c", b"u_U", b"Rohan", b"again")
    assert calls(net, identity) == [b"again"]


@pytest.mark.parametrize(
    "frames", [[b"pong", FLOAT, b"Rohan"], [b"<3", FLOAT, b"Rohan"], [b"u.u", FLOAT, b""]]
)
def test_a_sign_of_life_keeps_the_lease_and_answers_nothing(net: Network, frames: list[bytes]) -> None:
    identity = net.original(b"s", "Rohan", heartbeat=1.0)
    net.say(b"c", b"u_U", b"Rohan", b"x")
    for _ in range(5):
        net.wait(2.0)
        net.send(OUT, identity, b"", *frames)
    assert net.bus.nodes[b"Rohan"].worker is net.bus.workers[OUT, identity]
    assert net.replies(b"c") == []


@pytest.mark.parametrize("command", [b"u_U", b"ping", b"OwO"])
def test_anything_else_from_there_is_counted(net: Network, command: bytes) -> None:
    identity = net.original(b"s", "Rohan")
    net.send(OUT, identity, b"", command, FLOAT, b"")
    assert net.bus.counters.invalid == 1
    assert net.got(OUT, identity) == []


def test_what_comes_from_a_connection_that_was_hung_up_is_late(net: Network) -> None:
    net.send(OUT, b"node:Rohan#1", b"", b"o_O", FLOAT, b"x")
    net.send(OUT, b"node:Rohan#1", b"", b"pong", FLOAT, b"Rohan")
    assert net.bus.counters.late == 1
    assert net.got(OUT, b"node:Rohan#1") == []


# -- the lease --------------------------------------------------------------------------------


@pytest.mark.conforms("DBP-29")
def test_a_lease_that_lapses_takes_the_worker_along(net: Network) -> None:
    identity = net.original(b"s", "Rohan", heartbeat=1.0)
    net.say(b"c", b"u_U", b"Rohan", b"x")
    net.wait(3.9)
    assert (OUT, identity) in net.bus.workers
    net.wait(1.2)
    assert net.forgotten == [b"Rohan"]
    assert not net.bus.workers
    assert net.bus.services[b"Rohan"].queue.length == 1
    # It may only be busy: the connection stays until nobody waits for its answer any more.
    assert net.hung_up == []
    net.send(OUT, identity, b"", b"o_O", FLOAT, b"slow")
    assert net.reply(b"c")[-1] == b"slow"
    net.wait(0.1)
    assert net.hung_up == ["tcp://127.0.0.1:5247"]
    assert not net.bus.silent


def test_a_lease_without_heartbeats_has_no_end(net: Network) -> None:
    identity = net.original(b"s", "Rohan")
    net.wait(600)
    assert (OUT, identity) in net.bus.workers
    assert Network(default_heartbeat_s=1.0).original(b"s", "Rohan")


def test_a_default_heartbeat_gives_every_lease_an_end() -> None:
    net = Network(default_heartbeat_s=1.0)
    net.original(b"s", "Rohan")
    net.wait(6)
    assert net.forgotten == [b"Rohan"]


@pytest.mark.conforms("DBP-13")
@pytest.mark.parametrize("tail", [[], [b"Rohan"]])
def test_disconnect_from_where_it_registered(net: Network, tail: list[bytes]) -> None:
    net.original(b"s", "Rohan")
    net.say(b"s", b"</3", *tail)
    assert net.replies(b"s") == []
    assert net.forgotten == [b"Rohan"]
    assert net.dialled == {}


@pytest.mark.conforms("DBP-39")
def test_disconnect_by_name_is_denied_while_the_registering_connection_is_open(net: Network) -> None:
    net.original(b"s", "Rohan")
    net.say(b"foe", b"</3", b"Rohan")
    assert net.replies(b"foe") == []
    net.wait(1.0)
    command, _, reason = net.reply(b"foe")
    assert command == b"OmO"
    assert b"registered by another connection" in reason
    assert net.forgotten == []


@pytest.mark.conforms("DBP-39")
@pytest.mark.parametrize("heartbeat_s", [0.0, 60.0])
def test_disconnect_by_name_ends_a_service_that_does_not_answer(heartbeat_s: float) -> None:
    net = Network(default_heartbeat_s=heartbeat_s)
    net.original(b"s", "Rohan")
    net.gone.add((DBP, b"s"))
    net.say(b"another", b"</3", b"Rohan")
    assert net.forgotten == []
    net.wait(3.0)
    assert net.replies(b"another") == []
    assert net.forgotten == [b"Rohan"]
    assert net.dialled == {}


@pytest.mark.conforms("DBP-39")
@pytest.mark.parametrize("heartbeat_s", [0.0, 60.0])
def test_disconnect_by_name_does_not_end_a_service_that_answers(heartbeat_s: float) -> None:
    net = Network(default_heartbeat_s=heartbeat_s)
    identity = net.original(b"s", "Rohan")
    net.gone.add((DBP, b"s"))
    net.got(OUT, identity)
    net.say(b"another", b"</3", b"Rohan")
    assert [message[1] for message in net.got(OUT, identity)] == [b"ping"]
    net.wait(0.1)
    net.send(OUT, identity, b"", b"pong", FLOAT, b"Rohan")
    net.wait(5.0)
    assert net.forgotten == []
    # And while it works it is not expected to answer.
    net.say(b"c", b"u_U", b"Rohan", b"x")
    net.say(b"another", b"</3", b"Rohan")
    net.wait(5.0)
    assert net.forgotten == []


def test_disconnect_over_the_dialled_connection(net: Network) -> None:
    identity = net.original(b"s", "Rohan")
    net.send(OUT, identity, b"", b"</3", FLOAT, b"")
    assert net.forgotten == [b"Rohan"]
    assert net.dialled == {}


@pytest.mark.conforms("DBP-19")
@pytest.mark.parametrize("answers_late", [False, True])
def test_over_a_new_conversation_a_registration_is_renewed(net: Network, answers_late: bool) -> None:
    first = net.original(b"s1", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"x")
    assert calls(net, first) == [b"x"]
    # The process was started again: a new connection, and its call comes again.
    net.gone.add((DBP, b"s1"))
    second = net.original(b"s2", "Rohan")
    assert second != first
    assert calls(net, second) == [b"x"]
    if answers_late:
        # Nobody knows that it was started again: what it had is answered on the old connection.
        net.send(OUT, first, b"", b"o_O", FLOAT, b"first")
    net.send(OUT, second, b"", b"o_O", FLOAT, b"second")
    assert net.reply(b"c")[2] == (b"first" if answers_late else b"second")
    # Both connections are to one endpoint, so the old one is closed together with the new one.
    net.wait(1.0)
    net.send(OUT, second, b"", b"</3", FLOAT, b"")
    assert net.dialled == {}


@pytest.mark.conforms("DBP-9")
def test_a_service_that_moves_is_called_at_its_new_address(net: Network) -> None:
    first = net.original(b"s", "Rohan", 5250)
    net.say(b"c", b"u_U", b"Rohan", b"x")
    net.say(b"s", b"UoU", b'{"name": "Rohan", "topics": ["horses"]}')
    assert list(net.dialled) == [first]
    net.say(b"s", b"UoU", b'{"name": "Rohan", "port": 5251}')
    _, second = net.dialled
    assert net.dialled[second] == "tcp://127.0.0.1:5251"
    assert calls(net, second) == [b"x"]
    # What it was given before may still be answered; then nobody is needed at the old address.
    assert net.hung_up == []
    net.send(OUT, first, b"", b"o_O", FLOAT, b"y")
    assert net.reply(b"c")[2] == b"y"
    net.wait(1.0)
    assert net.hung_up == ["tcp://127.0.0.1:5250"]


def test_a_service_on_a_socket_may_choose_its_address(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"UoU", b'{"name": "Gondor", "transport": "req"}')
    assert list(net.dialled.values()) == ["tcp://10.0.0.7:5247"]
    assert (DBP, b"s") not in net.bus.workers


def test_a_heartbeat_brings_a_lost_connection_back(net: Network) -> None:
    identity = net.original(b"s", "Rohan", heartbeat=1.0)
    net.handle(events.WorkerGone((OUT, identity), "it cannot be reached"))
    assert net.dialled == {}
    net.say(b"s", b"<3", b"Rohan")
    assert net.reply(b"s")[0] == b"u.u"
    (again,) = net.dialled
    net.say(b"c", b"u_U", b"Rohan", b"x")
    assert calls(net, again) == [b"x"]


@pytest.mark.conforms("DBP-37", "DBP-40")
@pytest.mark.parametrize(
    "changes",
    [
        {"port": 5251},
        {"ip": "127.0.0.2"},
        {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5251}}},
        {"transport": "dealer"},
        {"heartbeat": 3600},
        {"liveliness": 3600_000},
        {"credit": 7},
    ],
)
def test_only_the_registering_connection_changes_where_calls_go(
    net: Network, changes: dict[str, object]
) -> None:
    net.original(b"s", "Rohan")
    before, endpoints = net.info(), list(net.dialled.values())
    net.gone.add((DBP, b"s"))
    net.say(b"foe", b"UoU", json.dumps({"name": "Rohan", **changes}).encode())
    command, _, reason = net.reply(b"foe")
    assert command == b"OmO"
    assert b"register again" in reason
    assert (net.info(), list(net.dialled.values())) == (before, endpoints)


@pytest.mark.conforms("DBP-40")
def test_a_service_that_closed_its_connection_changes_its_description(net: Network) -> None:
    net.original(b"s", "Rohan", heartbeat=1.0)
    net.gone.add((DBP, b"s"))
    net.wait(1.2)
    net.say(b"s2", b"UoU", b'{"name": "Rohan", "topics": ["horses"]}')
    assert net.reply(b"s2")[0] == b"u.u"
    assert net.info()["Rohan"]["topics"] == ["horses"]
    # Once more: the broker knows that the connection is closed. It is no sign of life.
    net.wait(1.2)
    net.say(b"s3", b"UoU", b'{"name": "Rohan", "topics": ["riders"]}')
    assert net.reply(b"s3")[0] == b"u.u"
    net.wait(2.0)
    assert net.forgotten == [b"Rohan"]


@pytest.mark.conforms("DBP-37")
def test_while_the_registering_connection_is_open_nobody_else_updates(net: Network) -> None:
    net.original(b"s", "Rohan")
    net.say(b"foe", b"UoU", b'{"name": "Rohan", "topics": ["horses"]}')
    net.say(b"foe-2", b"UoU", b'{"name": "Rohan", "topics": ["horses"]}')
    assert b"try again in a second" in net.reply(b"foe-2")[2]
    assert net.replies(b"foe") == []
    net.wait(1.0)
    command, _, reason = net.reply(b"foe")
    assert command == b"OmO"
    assert b"registered by another connection" in reason
    assert net.info()["Rohan"]["topics"] is None
    assert not net.bus.catalog.unproven
    # One that closes a moment after the first question is noticed by the second.
    net.say(b"s2", b"UoU", b'{"name": "Rohan", "topics": ["horses"]}')
    net.gone.add((DBP, b"s"))
    net.wait(1.0)
    assert net.reply(b"s2")[0] == b"u.u"


def test_an_unproven_update_of_a_name_that_is_given_back_meanwhile_is_denied(net: Network) -> None:
    net.original(b"s", "Rohan")
    net.say(b"foe", b"UoU", b'{"name": "Rohan", "topics": ["horses"]}')
    net.say(b"s", b"</3")
    net.wait(1.0)
    assert b"register first" in net.reply(b"foe")[2]


# -- answers that never come ------------------------------------------------------------------


def test_a_call_that_is_never_answered_does_not_block_the_service() -> None:
    net = Network(Limits(request_ttl_s=5))
    first = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"its handler fails")
    net.wait(3)
    net.say(b"c", b"u_U", b"Rohan", b"next")
    net.wait(2.2)
    assert json.loads(net.reply(b"c")[2])["Error"] == "expired"
    # The next one goes out on a new connection, so that the late answer of the first cannot be taken for its.
    (second,) = net.dialled
    assert second != first
    assert calls(net, first) == [b"its handler fails"]
    assert calls(net, second) == [b"next"]
    net.send(OUT, first, b"", b"o_O", FLOAT, b"wrong")
    net.send(OUT, second, b"", b"o_O", FLOAT, b"right")
    assert net.reply(b"c")[2] == b"right"
    assert net.bus.nodes[b"Rohan"].worker is net.bus.workers[OUT, second]


def test_an_answer_that_comes_just_after_the_expiry_keeps_the_connection() -> None:
    net = Network(Limits(request_ttl_s=5))
    identity = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"slow")
    while not net.bus.counters.expired:
        net.wait(0.05)
    net.send(OUT, identity, b"", b"o_O", FLOAT, b"late")
    net.wait(1)
    assert list(net.dialled) == [identity]
    assert net.bus.counters.late == 1


def test_two_names_at_one_address_do_not_cut_each_others_connection(net: Network) -> None:
    net.original(b"s", "Rohan", 5250)
    net.original(b"s", "Edoras", 5250)
    net.say(b"c", b"u_U", b"Edoras", b"x")
    net.say(b"s", b"</3", b"Rohan")
    (identity,) = net.dialled
    assert identity.startswith(b"node:Edoras")
    assert calls(net, identity) == [b"x"]
    net.send(OUT, identity, b"", b"o_O", FLOAT, b"X")
    assert net.reply(b"c")[2] == b"X"


def test_a_long_name_still_has_an_identity(net: Network) -> None:
    identity = net.original(b"s", "R" * 255)
    assert len(identity) <= 255
    net.say(b"c", b"u_U", b"R" * 255, b"x")
    assert calls(net, identity) == [b"x"]


THIEF = {"ip": "127.0.0.1", "port": 5250, "function": "f", "heartbeat": 1.0, "transport": "dealer"}


@pytest.mark.conforms("DBP-37")
def test_naming_its_address_does_not_take_the_calls_of_a_node_that_is_there(net: Network) -> None:
    identity = net.original(b"closed", "Rohan", 5250)
    net.gone.add((DBP, b"closed"))
    net.say(b"thief", b"UwU", json.dumps({"name": "Rohan", **THIEF}).encode())
    assert net.replies(b"thief") == [], "the node is asked first"
    (question,) = net.got(OUT, identity)
    assert question[1] == b"ping"
    net.wait(0.1)
    net.send(OUT, identity, b"", b"pong", FLOAT, b"Rohan")
    net.wait(1)
    (answer,) = net.replies(b"thief")
    assert answer[0] == b"(O_O)"
    assert b"is taken by a node that is alive" in answer[2]
    net.say(b"c", b"u_U", b"Rohan", b"ride!")
    assert calls(net, identity)[-1:] == [b"ride!"]
    assert net.replies(b"thief") == []


def test_a_node_that_does_not_answer_at_its_address_may_serve_on_a_connection(net: Network) -> None:
    net.original(b"closed", "Rohan", 5250)
    net.gone.add((DBP, b"closed"))
    net.say(b"s", b"UwU", json.dumps({"name": "Rohan", **THIEF}).encode())
    net.wait(1)
    assert net.replies(b"s") == [], "it has two seconds for an answer"
    net.wait(1.5)
    assert net.replies(b"s")[0][0] == b"OwO"
    assert (DBP, b"s") in net.bus.workers


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([b"Error: no command", FLOAT, b""], "Error: no command"),
        # Only in a message of three frames without a command is the last one the error.
        ([b"", FLOAT, b"Error: bad envelope"], "Error: bad envelope"),
        ([b"Error: " + b"x" * 2000], "Error: " + "x" * 1017),
        ([b"Error \xff"], "Error \ufffd"),
        ([b"", FLOAT, b"Error: one frame too many", b""], "cannot be read"),
        ([b"", b"Error: too short"], "cannot be read"),
        ([b"An Error"], "cannot be read"),
        ([b"o_O", FLOAT, b'{"Error": "no horses"}'], "no horses"),
    ],
)
@pytest.mark.parametrize("lead", [[b""], []])
def test_the_words_of_an_error_reach_the_client(
    net: Network, lead: list[bytes], frames: list[bytes], words: str
) -> None:
    if not lead and not frames[0]:
        # Without the empty frame that it got, this begins with another one.
        lead = [b""]
    identity = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"ride!")
    net.send(OUT, identity, *lead, *frames)
    answer = json.dumps(json.loads(net.reply(b"c")[2]), ensure_ascii=False)
    assert words in answer
    # What is longer than a sentence is cut.
    assert words + "x" not in answer
