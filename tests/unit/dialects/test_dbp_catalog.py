"""What a DBP registration comes to, and what clients are told about services: function by function."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from polybus.core import events
from polybus.core.actions import HEARTBEAT_MISSED
from polybus.core.lifecycle import NodeState
from polybus.core.model import Node
from polybus.dialects import dbp_catalog as catalog
from polybus.dialects.dbp import How
from polybus.dialects.dbp_outbound import MAX_ERROR_BYTES, OutboundEar, _error_text
from polybus.dialects.dbp_voices import ExplainedEnds
from polybus.wire.dbp_info import Interface, NodeInfo
from polybus.wire.dbp_time import TimeForm
from support.network import DBP, FLOAT, MDP, OUT, Network

ROUTER = {"router": Interface("10.0.0.9", 9)}


def info(**facts: Any) -> NodeInfo:
    whole = {"ip": "10.0.0.9", "port": 9, "function": "echoes", "heartbeat_s": 1.0}
    return NodeInfo(b"Gondor", **{**whole, **facts})


@pytest.fixture
def net() -> Network:
    return Network()


@pytest.mark.parametrize(
    ("node", "transport"),
    [
        (info(), "dealer"),
        (info(interfaces=ROUTER), "req"),
        (info(extra={"transport": "none"}), "none"),
        (info(interfaces=ROUTER, extra={"transport": "dealer"}), "dealer"),
    ],
)
def test_how_a_service_is_called(node: NodeInfo, transport: str) -> None:
    assert catalog.transport_of(node) == transport


@pytest.mark.parametrize(
    ("ip", "port", "endpoint"),
    [
        ("10.0.0.9", 9, "tcp://10.0.0.9:9"),
        ("localhost", 9, "tcp://127.0.0.1:9"),
        ("::1", 9, "tcp://[::1]:9"),
        (None, 9, ""),
        ("10.0.0.9", None, ""),
    ],
)
def test_where_a_service_is_called(ip: str | None, port: int | None, endpoint: str) -> None:
    assert catalog.endpoint_of(info(ip=ip, port=port)) == endpoint


@pytest.mark.parametrize(
    ("ip", "extra", "source"),
    [
        ("10.0.0.9", {}, "10.0.0.9"),
        ("localhost", {}, "127.0.0.1"),
        ("0:0::1", {}, "::1"),
        ("gondor", {}, ""),
        (None, {}, ""),
        ("10.0.0.9", {"heartbeat_ip": "10.0.0.8"}, "10.0.0.8"),
        (None, {"heartbeat_ip": "localhost"}, "127.0.0.1"),
        ("10.0.0.9", {"heartbeat_ip": "gondor"}, ""),
        ("10.0.0.9", {"heartbeat_ip": 8}, ""),
    ],
)
def test_where_datagrams_come_from(ip: str | None, extra: dict[str, Any], source: str) -> None:
    assert catalog.source_of(info(ip=ip, extra=extra)) == source


@pytest.mark.parametrize(
    ("node", "strict", "reasons"),
    [
        (info(), False, []),
        (info(), True, []),
        (info(function=None), False, ["function is missing"]),
        (info(function=None, heartbeat_s=None), False, ["function is missing", "heartbeat is missing"]),
        # The original says neither, and that is complete unless the document is followed to the letter.
        (info(function=None, heartbeat_s=None, interfaces=ROUTER), False, []),
        (
            info(function=None, heartbeat_s=None, interfaces=ROUTER),
            True,
            ["function is missing", "heartbeat is missing"],
        ),
        (info(extra={"transport": "mail"}), False, ["transport must be 'req', 'dealer' or 'none'"]),
        (info(extra={"transport": "none"}, ip="gondor"), False, []),
        (info(ip="gondor"), False, []),
        (info(ip="localhost", extra={"transport": "req"}), False, []),
        (info(ip=None, interfaces=ROUTER), False, []),
    ],
)
def test_what_a_registration_lacks(node: NodeInfo, strict: bool, reasons: list[str]) -> None:
    assert list(catalog.lacks(node, strict)) == reasons


def test_a_host_name_and_a_name_that_stands_for_mistakes_are_refused() -> None:
    (reason,) = catalog.lacks(info(ip="gondor", extra={"transport": "req"}))
    assert reason.startswith("ip must be an address")
    (reason,) = catalog.lacks(msgspec.structs.replace(info(), name=b"Error"))
    assert "'Error'" in reason


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({}, False),
        ({"function": "sings"}, False),
        ({"extra": {"kind": "beacon"}}, False),
        ({"ip": "10.0.0.8"}, True),
        ({"port": 10}, True),
        # Both places name the same socket; one that names two is moved all the same.
        ({"ip": "10.0.0.8", "interfaces": ROUTER}, True),
        ({"port": 10, "interfaces": ROUTER}, True),
        ({"heartbeat_s": 2.0}, True),
        ({"credit": 5}, True),
        ({"interfaces": {"publisher": Interface("10.0.0.9", 10)}}, True),
        ({"extra": {"transport": "none"}}, True),
        ({"extra": {"heartbeat_ip": "10.0.0.8"}}, True),
    ],
)
def test_only_what_moves_a_node_is_for_the_connection_that_registered_it(
    changes: dict[str, Any], moves: bool
) -> None:
    node = Node(b"Gondor", catalog.entry_of(info()), (1, b"s"), None, 1.0, 0.0, 0.0)
    after = catalog.updated(node, changes, TimeForm.FLOAT)
    assert catalog.moves(node, after) is moves
    assert after.name == b"Gondor"


@pytest.mark.parametrize(
    "how",
    [How(original, way, form) for original in (True, False) for way in ("req", "none") for form in TimeForm],
)
def test_how_a_node_registered_can_be_read_again(how: How) -> None:
    assert How.read(how.text) == how


# -- what is told -----------------------------------------------------------------------------


def test_several_services_are_told_with_a_warning_for_those_that_are_not_there(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    told = net.info(b"Mordor,echo,Gondor")
    assert list(told) == ["Gondor", "Mordor", "echo"]
    assert told["Mordor"] == {"Error": "No Registered Service With the Name Mordor"}
    assert told["echo"]["workers"] == 1
    assert told["Gondor"]["port"] == 5247
    assert net.info(b"Mordor,Moria") == {"Error": "No Registered Service With the Names Mordor, Moria"}


def test_a_service_with_a_comma_in_its_name_is_one_service(net: Network) -> None:
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"here,there")
    assert list(net.info(b"here,there")) == ["here,there"]


def test_the_load_of_a_service_of_another_dialect(net: Network) -> None:
    for worker in (b"v", b"w"):
        net.send(MDP, worker, b"MDPW02", b"\x01", b"echo")
    for number in range(5):
        net.say(b"c", b"u_U", b"echo", b"%d" % number)
    assert net.info(b"echo") == {"echo": {"dialect": "mdp2", "function": "", "workers": 2, "queued": 3}}


def test_a_node_that_is_called_nowhere_is_listed_without_a_state(net: Network) -> None:
    net.serve(b"s", "Gondor", transport="none")
    assert "state" not in net.info(b"Gondor")["Gondor"]
    node = net.bus.nodes[b"Gondor"]
    node.state = NodeState.LATE
    assert net.info(b"Gondor")["Gondor"]["state"] == "late"


def test_a_service_that_other_brokers_have_is_told_with_the_way(net: Network) -> None:
    class Bridging:
        def via(self, name: bytes) -> list[str]:
            return ["osgiliath"] if name == b"far" else []

    net.send(MDP, b"v", b"MDPW02", b"\x01", b"far")
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"near")
    net.bus.bridging = Bridging()  # type: ignore[assignment]
    assert json.loads(catalog.describe(net.bus, b"far"))["far"]["via"] == ["osgiliath"]
    assert "via" not in json.loads(catalog.describe(net.bus, b"near"))["near"]


def test_a_list_may_have_exactly_as_many_bytes_as_are_allowed(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    net.send(MDP, b"v", b"MDPW02", b"\x01", b"echo")
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"sing")
    entries = json.loads(catalog.describe(net.bus, b""))
    size = sum(len(name) + len(msgspec.json.encode(entry)) for name, entry in entries.items())
    monkeypatch.setattr(catalog, "MAX_CATALOG_BYTES", size)
    assert list(json.loads(catalog.describe(net.bus, b""))) == ["echo", "sing"]
    monkeypatch.setattr(catalog, "MAX_CATALOG_BYTES", size - 1)
    assert list(json.loads(catalog.describe(net.bus, b""))) == ["Error"]


@pytest.mark.parametrize(("name", "known"), [(b"Gondor", True), (b"echo", True), (b"Mordor", False)])
def test_what_is_known(net: Network, name: bytes, known: bool) -> None:
    net.serve(b"s", "Gondor", transport="none")
    net.send(MDP, b"w", b"MDPW02", b"\x01", b"echo")
    assert catalog.is_known(net.bus, name) is known


def test_asking_about_a_service_of_the_broker_is_asking_it(net: Network) -> None:
    net.say(b"c", b"u_U", b"polybus.nothing")
    command, time, text = net.reply(b"c")
    assert (command, time) == (b"o_O", FLOAT)
    # In the words of the broker's own services, and not of the catalog.
    assert "polybus.submit" in json.loads(text)["detail"]


# -- what is heard from services that the broker called -------------------------------------------


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b"id", b"Error: no", FLOAT, b""], "Error: no"),
        ([b"id", b"Error"], "Error"),
        ([b"id", b"", FLOAT, b"Error: bad envelope"], "Error: bad envelope"),
        ([b"id", b"", FLOAT, b"fine"], ""),
        # With another number of frames the text is no error but a body.
        ([b"id", b"", FLOAT, b"Error", b"more"], ""),
        ([b"id", b"", b"Error"], ""),
        ([b"id", b"o_O", FLOAT, b"Error"], ""),
        ([b"id", b"an Error"], ""),
        ([b"id"], ""),
        ([b"id", b"Error" + b"x" * MAX_ERROR_BYTES], "Error" + "x" * (MAX_ERROR_BYTES - 5)),
        ([b"id", b"Error \xff"], "Error \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_how_the_original_says_that_it_cannot(frames: list[Any], text: str) -> None:
    assert _error_text(frames, 1) == text


@pytest.mark.parametrize("lead", [[], [b""]])
def test_an_answer_comes_with_or_without_the_empty_frame(net: Network, lead: list[bytes]) -> None:
    identity = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"ride!")
    net.send(OUT, identity, *lead, b"o_O", FLOAT, b"riding")
    assert net.reply(b"c") == [b"o_O", FLOAT, b"riding"]


def test_what_cannot_be_read_is_counted_and_no_failure_of_a_service_without_a_call(net: Network) -> None:
    identity = net.original(b"s", "Rohan")
    net.send(OUT, identity, b"", b"o_O", b"no time", b"x")
    assert net.bus.counters.failed == 0
    assert net.bus.counters.invalid == 1
    assert (OUT, identity) in net.bus.workers


def test_a_failure_of_a_dialled_service_is_told_in_its_words(net: Network) -> None:
    identity = net.original(b"s", "Rohan")
    net.say(b"c", b"u_U", b"Rohan", b"ride!")
    net.send(OUT, identity, b"", b"o_O", FLOAT, b'{"Error": "no horses"}')
    assert json.loads(net.reply(b"c")[2]) == {"Error": "no horses"}


def test_why_a_conversation_ended_is_told_once_and_in_plain_words() -> None:
    told: list[str] = []
    ends = ExplainedEnds(told.append)
    ends.explain((1, b"peer"), "shutdown")
    assert told == []
    ends.explain((1, b"peer"), "a reason of its own")
    ends.explain((1, b"peer"), HEARTBEAT_MISSED)
    assert told == [
        "DISCONNECT to the DBP peer peer: a reason of its own",
        "DISCONNECT to the DBP peer peer: its heartbeats are missing and it does not answer",
    ]
    ExplainedEnds().explain((1, b"peer"), "nobody listens")


def test_after_a_disconnect_only_a_registration_begins_a_new_conversation(net: Network) -> None:
    net.serve(b"s", "Gondor")
    net.say(b"s", b"</3", b"")
    net.replies(b"s")
    late = net.bus.counters.late
    net.say(b"s", b"<3", b"Gondor")
    assert (net.replies(b"s"), net.bus.counters.late) == ([], late + 1)
    # It did not register by that, and so is still not heard.
    net.say(b"s", b"u_U", b"")
    assert (net.replies(b"s"), net.bus.counters.late) == ([], late + 2)
    net.serve(b"s", "Gondor")
    net.say(b"s", b"<3", b"Gondor")
    assert net.reply(b"s")[0] == b"u.u"
    assert (DBP, b"s") in net.bus.workers


class Asked:
    """A bus that asks somebody over a connection of its own, and notes what it is told."""

    def __init__(self, *lines: tuple[int, bytes]) -> None:
        self.catalog = SimpleNamespace(lines=set(lines))
        self.workers: dict[tuple[int, bytes], Any] = {}
        self.told: list[Any] = []

    def handle(self, event: Any, now: float) -> None:
        self.told.append(event)


@pytest.mark.parametrize(
    ("frames", "is_there"),
    [
        ([b"", b"pong", FLOAT, b"Gondor"], True),
        ([b"anything"], True),
        ([b"", b"noise"], True),
        # Whoever is there now says that it is not the one we look for.
        ([b"", b"</3", FLOAT], False),
        ([b"</3", FLOAT], False),
        # Behind the command it is no word of goodbye.
        ([b"", b"o_O", b"</3"], True),
    ],
)
def test_whatever_answers_a_question_is_there_unless_it_says_that_it_is_not(
    frames: list[bytes], is_there: bool
) -> None:
    bus: Any = Asked((OUT, b"line"))
    ear = OutboundEar(bus, lambda address, why, now: None)
    ear.receive(OUT, [b"line", *frames], 5.0)
    assert bus.told == ([events.Answered((OUT, b"line"))] if is_there else [])


def test_a_dialled_service_that_disconnects_leaves() -> None:
    bus: Any = Asked()
    left: list[Any] = []
    ear = OutboundEar(bus, lambda address, why, now: left.append((address, now)))
    ear.receive(OUT, [b"node", b"", b"</3", FLOAT, b""], 5.0)
    assert (bus.told, left) == ([], [((OUT, b"node"), 5.0)])
