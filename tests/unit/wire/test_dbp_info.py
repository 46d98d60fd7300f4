"""What a DBP service says about itself: both shapes, each limit, all the reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire import dbp_info
from polybus.wire.dbp_info import Interface, NodeInfo, RegistrationRefused
from polybus.wire.dbp_time import TimeForm
from polybus.wire.frames import MAX_TEXT_BYTES
from support.wire_frames import Opaque, refused

FULL = NodeInfo(b"Gondor", "10.0.0.7", 5247, "lights beacons", 2.5, 4, extra={"topics": ["war"]})


def read(**fields: Any) -> NodeInfo:
    return dbp_info.read_info(json.dumps({"name": "Gondor", **fields}).encode(), TimeForm.FLOAT)


def reasons(text: bytes | Opaque) -> tuple[str, ...]:
    with pytest.raises(RegistrationRefused) as caught:
        dbp_info.read_info(text, TimeForm.TEXT)
    assert caught.value.reason == "bad_info"
    assert caught.value.form is TimeForm.TEXT
    return caught.value.reasons


@pytest.mark.conforms("DBP-8")
def test_the_minimum_is_listed_when_it_is_missing() -> None:
    assert read().missing == ("ip", "port", "function", "heartbeat")
    assert FULL.missing == ()


@pytest.mark.parametrize(
    ("fields", "heartbeat_s"),
    [
        ({"heartbeat": 3}, 3.0),
        ({"heartbeat_s": 0.5}, 0.5),
        ({"liveliness": 1000}, 1.0),
        ({"heartbeat": None}, None),
        ({"heartbeat": 0.01}, 0.01),
        ({"heartbeat": 86400}, 86400.0),
    ],
)
def test_the_heartbeat_has_three_names(fields: dict[str, Any], heartbeat_s: float | None) -> None:
    assert read(**fields).heartbeat_s == heartbeat_s


def test_a_port_may_be_text() -> None:
    assert read(port="5246").port == 5246


def test_the_address_at_the_top_wins_over_the_interface() -> None:
    info = read(ip="10.0.0.7", interfaces={"router": {"ip": "127.0.0.1", "port": 1, "hwm": 5}})
    assert (info.ip, info.port) == ("10.0.0.7", 1)
    assert info.interfaces == {"router": Interface("127.0.0.1", 1)}


@pytest.mark.parametrize("name", ["", "a\n", "x" * 256, None, 5, ["Gondor"]])
def test_a_name_must_be_usable(name: Any) -> None:
    assert len(reasons(json.dumps({"name": name}).encode())) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ip", ""),
        ("ip", 5),
        ("ip", "a/b"),
        ("ip", "10.0.0.1;10.0.0.2"),
        ("ip", "x" * 254),
        ("ip", "10.0.0.1\n"),
        ("port", 0),
        ("port", 65536),
        ("port", True),
        ("port", 1.5),
        ("port", ""),
        ("port", "²"),
        ("port", "000001"),
        ("function", 1),
        ("function", "x" * (dbp_info.MAX_FUNCTION_CHARS + 1)),
        ("heartbeat", 0),
        ("heartbeat", 0.00999),
        ("heartbeat", -1),
        ("heartbeat", True),
        ("heartbeat", "2"),
        ("heartbeat_s", 86_400.5),
        ("heartbeat_s", 86_401),
        ("liveliness", 9),
        ("liveliness", 9.995),
        ("liveliness", False),
        ("liveliness", 86_400_000.5),
        ("liveliness", 86_400_001),
        ("credit", 0),
        ("credit", 1_000_001),
        ("credit", True),
        ("credit", "1"),
        ("interfaces", []),
        ("interfaces", {"router": None}),
        ("interfaces", {"router": {"ip": "10.0.0.7"}}),
        ("interfaces", {str(n): {"ip": "a", "port": 1} for n in range(dbp_info.MAX_INTERFACES + 1)}),
    ],
)
def test_each_field_has_a_type_and_a_limit(key: str, value: Any) -> None:
    (reason,) = reasons(json.dumps({"name": "Gondor", key: value}).encode())
    assert reason.startswith(key)


def test_all_reasons_come_at_once() -> None:
    wrong = {"ip": 1, "port": 0, "interfaces": {"a": 1, "b\n": {"ip": "x", "port": 0}}}
    assert reasons(json.dumps(wrong).encode()) == (
        "name is missing",
        "ip must be an IP address or host name",
        "port must be a number from 1 to 65535",
        "interfaces['a'] must be an object with ip and port; "
        "interfaces['b\\n'].port must be a number from 1 to 65535",
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b'"Gondor"',
        b"{",
        b"{'name': 1}",
        b'{"name":"\xff"}',
        b'{"name":"\\ud800"}',
        b'{"name":"Gondor","x":1e999}',
        b'{"name":"Gondor","x":' + b"9" * 5000 + b"}",
        b'{"name":"Gondor","x":' + b"[" * 17 + b"]" * 17 + b"}",
        b'{"name":"Gondor","x":' + b'{"y":' * 500 + b"1" + b"}" * 501,
        b"[" * 60_000,
        Opaque(b" " * (MAX_TEXT_BYTES + 1)),
    ],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    assert len(reasons(text)) == 1


def test_large_frames_are_read_too() -> None:
    assert dbp_info.read_info(Opaque(b'{"name":"Gondor"}'), TimeForm.FLOAT) == NodeInfo(b"Gondor")


def test_an_update_changes_what_it_says() -> None:
    name, changes = dbp_info.read_changes(
        b'{"name":"Gondor","port":5250,"liveliness":500,"credit":null,"since":"today"}', TimeForm.FLOAT
    )
    assert name == b"Gondor"
    assert dbp_info.changed(FULL, changes) == NodeInfo(
        b"Gondor", "10.0.0.7", 5250, "lights beacons", 0.5, 4, extra={"topics": ["war"], "since": "today"}
    )
    assert FULL.extra == {"topics": ["war"]}


def test_an_update_moves_both_places_that_name_the_socket() -> None:
    info = read(interfaces={"router": {"ip": "10.0.0.7", "port": 1}, "pub": {"ip": "10.0.0.7", "port": 2}})
    moved = dbp_info.changed(info, {"port": 9})
    assert moved.port == 9
    assert moved.interfaces == {"router": Interface("10.0.0.7", 9), "pub": Interface("10.0.0.7", 2)}
    moved = dbp_info.changed(info, {"ip": "10.0.0.9"})
    assert (moved.ip, moved.port) == ("10.0.0.9", 1)
    assert moved.interfaces == {"router": Interface("10.0.0.9", 1), "pub": Interface("10.0.0.7", 2)}
    _, changes = dbp_info.read_changes(
        b'{"name":"Gondor","interfaces":{"router":{"ip":"::1","port":3}}}', TimeForm.FLOAT
    )
    moved = dbp_info.changed(info, changes)
    assert (moved.ip, moved.port) == ("::1", 3)
    assert moved.interfaces == {"router": Interface("::1", 3), "pub": Interface("10.0.0.7", 2)}
    # Who names both is taken at its word.
    moved = dbp_info.changed(info, {"ip": "10.0.0.8", "interfaces": {"router": Interface("10.0.0.9", 4)}})
    assert (moved.ip, moved.interfaces["router"]) == ("10.0.0.8", Interface("10.0.0.9", 4))


def test_the_catalog_has_the_address_where_the_originals_clients_look() -> None:
    entry = dbp_info.catalog_entry(FULL)
    assert entry["interfaces"]["router"] == Interface("10.0.0.7", 5247)
    assert entry["topics"] == ["war"]
    assert "name" not in entry
    assert "interfaces" not in dbp_info.catalog_entry(NodeInfo(b"Gondor"))


def test_own_fields_win_over_extra_ones() -> None:
    text = dbp_info.write_info(NodeInfo(b"Gondor", port=1, extra={"name": "Mordor", "port": 2}))
    assert dbp_info.read_info(text, TimeForm.FLOAT) == NodeInfo(b"Gondor", port=1)


@pytest.mark.parametrize(
    "info",
    [
        NodeInfo(b"\xff"),
        NodeInfo(b"Gondor", port=0),
        NodeInfo(b"Gondor", heartbeat_s=0.0),
        NodeInfo(b"Gondor", extra={"x": object()}),
        NodeInfo(b"Gondor", extra={"x": "y" * MAX_TEXT_BYTES}),
        NodeInfo(b"Gondor", extra={"x": "\ud800"}),
    ],
)
def test_what_would_be_refused_is_not_written(info: NodeInfo) -> None:
    with pytest.raises(LocalProtocolError):
        dbp_info.write_info(info)


def test_a_catalog_is_an_object_with_a_limit() -> None:
    assert dbp_info.read_catalog(b'{"Gondor":{"port":1}}') == {"Gondor": {"port": 1}}
    assert refused(lambda: dbp_info.read_catalog(b"[]")) == "bad_json"
    with pytest.raises(RemoteProtocolError, match=r"\bcatalog is a JSON list"):
        dbp_info.read_catalog(b"[]")

    class Huge(Opaque):
        def __len__(self) -> int:
            return dbp_info.MAX_CATALOG_BYTES + 1

    assert refused(lambda: dbp_info.read_catalog(Huge(b"{}"))) == "too_long"

    class Largest(Opaque):
        def __len__(self) -> int:
            return dbp_info.MAX_CATALOG_BYTES

    assert dbp_info.read_catalog(Largest(b"{}")) == {}


@pytest.mark.parametrize(
    ("info", "is_it"),
    [
        (NodeInfo(b"Gondor"), False),
        (NodeInfo(b"Gondor", interfaces={"pub": Interface("10.0.0.7", 1)}), True),
        (NodeInfo(b"Gondor", function="f", interfaces={"pub": Interface("10.0.0.7", 1)}), False),
        (NodeInfo(b"Gondor", heartbeat_s=1.0, interfaces={"pub": Interface("10.0.0.7", 1)}), False),
        (NodeInfo(b"Gondor", function="f"), False),
        (NodeInfo(b"Gondor", heartbeat_s=1.0), False),
    ],
)
def test_the_original_says_interfaces_and_neither_function_nor_heartbeat(info: NodeInfo, is_it: bool) -> None:
    assert info.is_upstream_form == is_it


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([b'{"Error":"expired"}'], "expired"),
        ([b'{"Error": "No Registered Service"}'], "No Registered Service"),
        ([b'{"Error":{"port":1}}'], None),
        ([b'{"Error"'], None),
        ([b"plain"], None),
        ([b'{"Error":"expired"}', b""], None),
        ([], None),
    ],
)
def test_an_error_is_told_from_an_answer(body: list[bytes], text: str | None) -> None:
    assert dbp_info.read_error(body) == text


def test_a_large_answer_is_no_error_and_is_not_copied() -> None:
    large = Opaque(b'{"Error":"x"}' + b" " * MAX_TEXT_BYTES)
    assert dbp_info.read_error([large]) is None
    assert large.copies == 0


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("name", "x" * 255, "name", b"x" * 255),
        ("ip", "x" * 253, "ip", "x" * 253),
        ("port", 1, "port", 1),
        ("port", 65_535, "port", 65_535),
        ("port", "00001", "port", 1),
        ("port", "65535", "port", 65_535),
        ("function", "", "function", ""),
        ("function", "x" * 1024, "function", "x" * 1024),
        ("heartbeat", 0.01, "heartbeat_s", 0.01),
        ("heartbeat_s", 86_400, "heartbeat_s", 86_400.0),
        ("liveliness", 10, "heartbeat_s", 0.01),
        ("liveliness", 86_400_000, "heartbeat_s", 86_400.0),
        ("liveliness", 2500.0, "heartbeat_s", 2.5),
        ("credit", 1, "credit", 1),
        ("credit", 1_000_000, "credit", 1_000_000),
        ("x", [[[[[[[[[[[[[[[1]]]]]]]]]]]]]]], "extra", {"x": [[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]}),
    ],
)
def test_the_least_and_the_most_of_each_field(key: str, value: Any, field: str, expected: Any) -> None:
    info = dbp_info.read_info(json.dumps({"name": "Gondor", key: value}).encode(), TimeForm.FLOAT)
    assert getattr(info, field) == expected
    # A service may say what it would be allowed to say.
    assert getattr(dbp_info.read_info(dbp_info.write_info(info), TimeForm.FLOAT), field) == expected


@pytest.mark.parametrize(("opened", "inner", "closed"), [(b"[", b"", b"]"), (b'{"y":', b"1", b"}")])
def test_an_entry_has_sixteen_levels_of_lists_or_objects(opened: bytes, inner: bytes, closed: bytes) -> None:
    def entry(levels: int) -> bytes:
        return b'{"name":"Gondor","x":' + opened * (levels - 1) + inner + closed * (levels - 1) + b"}"

    assert dbp_info.read_info(entry(16), TimeForm.FLOAT).name == b"Gondor"
    assert "16 levels" in reasons(entry(17))[0]


def test_as_many_interfaces_and_frames_as_are_allowed() -> None:
    many = {str(number): {"ip": "a", "port": 1} for number in range(32)}
    assert len(read(interfaces=many).interfaces) == 32
    frames = [b'{"name":"Gondor"}', *(b'{"x%d":1}' % number for number in range(31))]
    info = dbp_info.read_info(frames[0], TimeForm.FLOAT, frames[1:])
    assert (info.name, len(info.extra)) == (b"Gondor", 31)
    with pytest.raises(RegistrationRefused, match="33 frames"):
        dbp_info.read_info(frames[0], TimeForm.FLOAT, [*frames[1:], b"{}"])
    # Together they have no more bytes than one may have.
    one = b'{"name":"Gondor"}'
    rest = b"{}" + b" " * (64 * 1024 - len(one) - 2)
    assert dbp_info.read_info(one, TimeForm.FLOAT, [rest]).name == b"Gondor"
    with pytest.raises(RegistrationRefused, match="65537 bytes"):
        dbp_info.read_info(one, TimeForm.FLOAT, [rest + b" "])
    # Of two values for one key the later one counts.
    assert dbp_info.read_info(one, TimeForm.FLOAT, [b'{"name":"Rohan","port":7}']).name == b"Rohan"


@pytest.mark.parametrize(("levels", "is_read"), [(17, True), (18, False)])
def test_a_catalog_may_be_two_levels_deeper_than_an_entry(levels: int, is_read: bool) -> None:
    text = b'{"Gondor":' + b"[" * levels + b"]" * levels + b"}"
    if is_read:
        assert list(dbp_info.read_catalog(text)) == ["Gondor"]
    else:
        assert refused(lambda: dbp_info.read_catalog(text)) == "bad_json"


def test_an_entry_of_the_catalog_says_what_is_known_and_nothing_else() -> None:
    assert dbp_info.catalog_entry(NodeInfo(b"Gondor")) == {}
    router = Interface("10.0.0.7", 5247)
    assert dbp_info.catalog_entry(FULL) == {
        "ip": "10.0.0.7",
        "port": 5247,
        "function": "lights beacons",
        "heartbeat_s": 2.5,
        "credit": 4,
        "topics": ["war"],
        "interfaces": {"router": router},
    }
    # Half an address is none.
    assert "interfaces" not in dbp_info.catalog_entry(NodeInfo(b"Gondor", ip="10.0.0.7"))
    assert "interfaces" not in dbp_info.catalog_entry(NodeInfo(b"Gondor", port=5247))
    other = {"pub": Interface("10.0.0.8", 1)}
    assert dbp_info.catalog_entry(NodeInfo(b"Gondor", interfaces=other)) == {"interfaces": other}


def test_an_error_as_long_as_a_text_may_be_is_read() -> None:
    error = b'{"Error":"' + b"x" * (64 * 1024 - 12) + b'"}'
    assert len(error) == 64 * 1024
    assert dbp_info.read_error([error]) == "x" * (64 * 1024 - 12)
    assert dbp_info.read_error([error + b" "]) is None
