"""DBP conversations: what ends them, what goes on after them, and how a node is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.core import events
from polybus.core.actions import Answer, Ask, Deny, Dismiss, Observed, Refuse
from polybus.core.leases import Claim
from polybus.core.model import Heartbeat
from polybus.dialects.dbp_catalog import describe
from polybus.dialects.port import Voice
from support.network import DBP, FLOAT, MDP, OUT, TEXT, Network

BYE = [b"</3", FLOAT, b""]
S = (DBP, b"s")


@pytest.fixture
def net() -> Network:
    return Network()


def without_node(net: Network) -> None:
    """A worker at a DBP address that the catalog knows nothing of."""
    net.serve(b"t", "Rohan")
    voice = net.bus.nodes[b"Rohan"].voice
    net.handle(events.WorkerUp(S, voice, ((b"Gondor", 0),), Heartbeat(0.0), 1))
    assert S in net.bus.workers


# -- ends ---------------------------------------------------------------------------------------


def test_a_worker_goes_with_its_conversation_also_without_a_node(net: Network) -> None:
    without_node(net)
    net.say(b"s", b"</3")
    assert S not in net.bus.workers
    assert net.replies(b"s") == []
    assert list(net.bus.nodes) == [b"Rohan"]


def test_an_invalid_message_ends_a_worker_also_without_a_node(net: Network) -> None:
    without_node(net)
    net.send(DBP, b"s", b"", b"<3", b"no time", b"Gondor")
    assert net.reply(b"s") == BYE
    assert S not in net.bus.workers


def test_the_end_is_told_in_the_form_in_which_a_service_is_called(net: Network) -> None:
    """What else was registered on the same connection may have been in another form."""
    info = {"ip": "10.0.0.7", "port": 5247, "function": "f", "heartbeat": 1.0}
    assert net.register(b"s", TEXT, name="Arnor", transport="none", **info)[0] == b"OwO"
    net.serve(b"s", "Gondor")
    net.send(DBP, b"s", b"", b"<3", b"no time", b"Gondor")
    assert net.reply(b"s") == BYE
    assert not net.bus.nodes


def test_a_service_that_disconnects_speaks_for_itself_whatever_name_it_says(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.serve(b"t", "Rohan")
    net.say(b"s", b"</3", b"Rohan")
    assert net.replies(b"s") == []
    assert list(net.bus.nodes) == [b"Rohan"]


def test_calls_of_a_peer_that_disconnected_are_done_all_the_same(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"u_U", b"Rohan", b"aid?")
    net.say(b"s", b"</3")
    info = {"ip": "10.0.0.8", "port": 1, "function": "f", "heartbeat": 1}
    net.say(b"t", b"UwU", json.dumps({"name": "Rohan", **info}).encode())
    assert [message[0] for message in net.replies(b"t")] == [b"OwO", b"u_U"]


def test_an_answer_after_the_lease_ended_counts_and_ends_the_conversation(net: Network) -> None:
    net.serve(b"s", "Gondor", heartbeat=1.0)
    net.say(b"c", b"u_U", b"Gondor", b"aid?")
    net.wait(6.0)
    net.replies(b"s")
    assert not net.bus.nodes
    net.say(b"s", b"o_O", b"aid!")
    assert net.reply(b"c")[-1] == b"aid!"
    assert net.reply(b"s") == BYE


def test_an_answer_after_one_of_two_leases_ended_does_not_end_the_other(net: Network) -> None:
    net.serve(b"s", "Rohan", heartbeat=600.0, transport="none")
    net.serve(b"s", "Gondor", heartbeat=1.0)
    net.say(b"c", b"u_U", b"Gondor", b"aid?")
    net.wait(6.0)
    net.replies(b"s")
    assert list(net.bus.nodes) == [b"Rohan"]
    net.say(b"s", b"o_O", b"aid!")
    assert net.reply(b"c")[-1] == b"aid!"
    assert net.replies(b"s") == []
    assert list(net.bus.nodes) == [b"Rohan"]


@pytest.mark.parametrize("word", [b"u.u", b"pong"])
def test_a_sign_of_life_of_a_node_that_is_called_nowhere_is_no_mistake(net: Network, word: bytes) -> None:
    net.serve(b"s", "Gondor", transport="none")
    net.say(b"s", word, b"")
    assert net.replies(b"s") == []
    assert list(net.bus.nodes) == [b"Gondor"]


# -- what is said to whom -----------------------------------------------------------------------


def test_a_question_about_a_service_of_the_broker_has_no_request_id(net: Network) -> None:
    net.ears[DBP].receive(DBP, [b"curious", b"", b"u_U", FLOAT, b"polybus.monitor"], net.now)
    told = [action for action in net.bus.take() if isinstance(action, Answer | Refuse)]
    assert [(one.service, one.request_id) for one in told] == [(b"polybus.monitor", b"")]


def test_a_refused_exit_names_nobody(net: Network) -> None:
    net.ears[DBP].receive(DBP, [b"foe", b"", b"<\\3", FLOAT, b""], net.now)
    (denied,) = net.bus.take()
    assert isinstance(denied, Deny)
    assert (denied.node, denied.name) == ((DBP, b"foe"), b"")
    assert denied.reasons == ("nobody on the network may stop this broker",)


def test_why_a_body_does_not_cross_is_told_to_either_side(net: Network) -> None:
    why = "the body has 2 frames and DBP carries one; join them before sending"
    net.serve(b"s", "Gondor")
    net.send(MDP, b"m", b"MDPC02", b"\x01", b"Gondor", b"x", b"y")
    assert json.loads(net.one(MDP, b"m")[-1])["detail"] == why
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    net.say(b"c", b"u_U", b"echo", b"x")
    order = net.one(MDP, b"w")
    net.send(MDP, b"w", b"MDPW02", b"\x04", order[2], b"", b"X", b"Y")
    assert json.loads(net.reply(b"c")[2])["detail"] == why


@pytest.mark.parametrize(
    ("info", "config"),
    [
        (
            {"ip": "10.0.0.7", "port": 1, "function": "f", "heartbeat": 2.0},
            {"heartbeat_s": 2.0, "liveness": 4},
        ),
        # It is asked instead, as often as the broker likes.
        ({"interfaces": {"router": {"ip": "10.0.0.8", "port": 1}}}, None),
    ],
)
def test_only_who_sends_heartbeats_is_told_of_their_timing(
    info: dict[str, Any], config: dict[str, Any] | None
) -> None:
    net = Network(default_heartbeat_s=4.0)
    command, _, *told = net.register(b"s", name="Gondor", **info)
    assert command == b"OwO"
    if config is None:
        assert all(frame in (b"", b"{}") for frame in told)
    else:
        assert json.loads(told[0]) == config


def test_names_that_are_no_text_are_shown_as_far_as_they_are(net: Network) -> None:
    net.handle(events.WorkerUp((MDP, b"w"), Voice(), ((b"caf\xe9", 0),), Heartbeat(0.0), 1))
    assert list(json.loads(describe(net.bus, b""))) == ["caf\ufffd"]


# -- where a node is called and asked -----------------------------------------------------------


@pytest.mark.parametrize("transport", ["dealer", "req"])
def test_a_service_has_no_weight(net: Network, transport: str) -> None:
    net.serve(b"s", "Gondor", transport=transport)
    (worker,) = net.bus.workers.values()
    assert list(worker.offers.values()) == [0]


@pytest.mark.parametrize("transport", ["dealer", "none"])
def test_a_host_name_is_never_dialled_to_ask_a_node(net: Network, transport: str) -> None:
    """Looking it up would hold up every socket."""
    net.serve(b"s", "Gondor", ip="edoras", transport=transport)
    assert net.bus.nodes[b"Gondor"].reach is None
    net.serve(b"t", "Rohan", ip="10.0.0.8", transport=transport)
    reach = net.bus.nodes[b"Rohan"].reach
    assert reach is not None
    assert reach.endpoint == "tcp://10.0.0.8:5247"


def test_a_node_that_is_only_listed_is_not_called_after_an_update_either(net: Network) -> None:
    net.serve(b"s", "Gondor", transport="none")
    net.say(b"s", b"UoU", b'{"name": "Gondor", "function": "lights"}')
    assert net.reply(b"s")[0] == b"u.u"
    assert net.dialled == {}
    assert not net.bus.workers
    assert net.bus.nodes[b"Gondor"].serves is None


@pytest.mark.parametrize(
    ("strict", "is_original", "word"),
    [(False, False, b"<3"), (False, True, b"ping"), (True, False, b"<3"), (True, True, b"<3")],
)
def test_a_node_is_asked_at_its_address_in_the_word_that_it_knows(
    strict: bool, is_original: bool, word: bytes
) -> None:
    net = Network(strict=strict)
    info: dict[str, Any] = {"ip": "10.0.0.7", "port": 5247, "function": "f", "heartbeat": 1.0}
    if is_original:
        info["interfaces"] = {"router": {"ip": "10.0.0.7", "port": 5247}}
        if not strict:
            info = {"interfaces": info["interfaces"]}
    else:
        info["transport"] = "req"
    assert net.register(b"s", name="Gondor", **info)[0] == b"OwO"
    reach = net.bus.nodes[b"Gondor"].reach
    assert reach is not None
    frames = reach.voice.ask(Ask(reach.place, reach.voice, b"Gondor"))
    assert frames[:3] == [reach.place[1], b"", word]


# -- what comes back from there -----------------------------------------------------------------


def test_what_cannot_be_read_from_a_connection_without_a_call_is_only_counted() -> None:
    net = Network()
    identity = net.original(b"s", "Rohan")
    for peer in (identity, b"node:Mordor#1"):
        net.send(OUT, peer, b"", b"o_O", b"no time", b"x")
    counters = net.bus.counters
    assert (counters.invalid, counters.late, counters.failed) == (2, 0, 0)


def test_what_cannot_be_read_is_noted_with_its_dialect(net: Network) -> None:
    identity = net.original(b"s", "Rohan")
    net.bus.listen(True, None)
    net.send(OUT, identity, b"", b"Bye!", FLOAT, b"")
    (noted,) = [one for one in net.observed if isinstance(one, Observed) and one.what == "invalid"]
    assert (noted.client, noted.reason) == ((OUT, identity), "unknown_command")
    assert noted.detail.startswith("dbp: ")


def test_an_empty_answer_has_one_frame(net: Network) -> None:
    identity = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"ride!")
    net.send(OUT, identity, b"")
    error = json.loads(net.reply(b"c")[2])
    assert "1 frames; a command takes 2 or more" in error["detail"]


def test_the_end_is_told_once(net: Network) -> None:
    net.serve(b"s", "Gondor")
    voice = net.bus.nodes[b"Gondor"].voice
    end = Dismiss(S, voice, "it is over")
    assert voice.dismiss(end) == [b"s", b"", *BYE]
    assert voice.dismiss(end) is None


def test_a_service_of_several_dialects_is_listed_with_all_of_them(net: Network) -> None:
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    net.handle(events.WorkerUp((MDP, b"v"), Voice(), ((b"echo", 0),), Heartbeat(0.0), 1))
    assert net.info(b"echo")["echo"] == {"dialect": "mdp2,none", "function": "", "workers": 2, "queued": 0}


def test_without_a_port_there_is_nowhere_to_ask_a_node(net: Network) -> None:
    info: dict[str, Any] = {"ip": "10.0.0.9", "interfaces": {"publisher": {"ip": "10.0.0.9", "port": 9}}}
    assert net.register(b"s", name="Rohan", **info)[0] == b"OwO"
    assert net.bus.nodes[b"Rohan"].reach is None
    assert net.dialled == {}


@pytest.mark.parametrize("word", [b"u.u", b"pong"])
def test_a_sign_of_life_of_a_service_counts_for_what_else_is_registered_on_its_connection(
    net: Network, word: bytes
) -> None:
    net.serve(b"s", "Rohan", heartbeat=1.0, transport="none")
    net.serve(b"s", "Gondor", heartbeat=1.0)
    for _ in range(20):
        net.wait(0.5)
        net.say(b"s", word)
    assert sorted(net.bus.nodes) == [b"Gondor", b"Rohan"]
    assert net.bus.nodes[b"Gondor"].worker is net.bus.workers[S]


@pytest.mark.parametrize(("mover", "counts"), [(b"s", False), (b"other", True), (None, True)])
def test_who_wants_to_move_a_node_cannot_show_meanwhile_that_it_is_there(
    net: Network, mover: bytes | None, counts: bool
) -> None:
    net.serve(b"s", "Gondor", transport="none")
    node = net.bus.nodes[b"Gondor"]
    if mover is not None:
        event = events.UpdateNode((DBP, mover), node.voice, b"Gondor", {})
        net.bus.catalog.claims[b"Gondor"] = Claim(event, net.now, net.now + 1.0)
    before = node.seen_at
    net.now += 0.7
    net.say(b"s", b"u.u")
    assert node.seen_at == (net.now if counts else before)
    assert net.replies(b"s") == []
