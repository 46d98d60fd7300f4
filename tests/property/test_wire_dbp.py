"""DBP: what is written reads back the same, and nothing read ever crashes."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from polybus.errors import RemoteProtocolError
from polybus.wire import dbp, dbp_info, dbp_udp
from polybus.wire.dbp_info import Interface, NodeInfo
from polybus.wire.dbp_time import TimeForm, read_time_form, write_time
from support.wire_frames import bodies, broken, names, never_crashes

times_s = st.just(0.0) | st.floats(0.001, 2**33)
forms = st.sampled_from(TimeForm)
optional_names = st.one_of(st.just(b""), names)
ports = st.integers(1, 65535)
hosts = st.from_regex(r"[A-Za-z0-9.:_-]{1,60}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts)
json_values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3))
)
extras = st.dictionaries(texts.map(lambda key: f"x-{key}"), json_values, max_size=3)
interfaces = st.dictionaries(
    texts.map(lambda key: f"i-{key}"), st.builds(Interface, hosts, ports), max_size=3
)
heartbeats_s = st.floats(dbp_info.MIN_HEARTBEAT_S, dbp_info.MAX_HEARTBEAT_S)
infos = st.builds(
    NodeInfo,
    name=names,
    ip=st.none() | hosts,
    port=st.none() | ports,
    function=st.none() | texts,
    heartbeat_s=st.none() | heartbeats_s,
    credit=st.integers(1, 1_000_000),
    interfaces=interfaces,
    extra=extras,
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "ip": hosts,
        "port": ports,
        "function": texts,
        "heartbeat_s": heartbeats_s,
        "credit": st.integers(1, 1_000_000),
        "interfaces": interfaces,
        "extra": extras.filter(bool),
    },
)

from_node = st.one_of(
    st.builds(dbp.InfoRequest, optional_names, forms),
    st.builds(dbp.Call, names, bodies, forms),
    st.builds(dbp.Answer, bodies, forms),
    st.builds(lambda info, form: dbp.Registration(info, info.missing, form), infos, forms),
    st.builds(dbp.Update, names, changes, forms),
    st.builds(dbp.Heartbeat, optional_names, forms),
    st.builds(dbp.Disconnect, optional_names, forms),
    st.builds(dbp.Acknowledge, forms),
    st.builds(dbp.Ping, bodies, forms),
    st.builds(dbp.Pong, optional_names, forms),
)


@given(times_s, forms)
def test_a_time_keeps_its_form(now_s: float, form: TimeForm) -> None:
    assert read_time_form(write_time(now_s, form)) is form


@given(from_node, times_s)
def test_from_a_node(message: dbp.BrokerReads, now_s: float) -> None:
    assert dbp.read_from_node(dbp.write_from_node(message, now_s)) == message


@given(st.dictionaries(texts, json_values, max_size=3), times_s, forms)
def test_objects_to_a_node(config: dict[str, Any], now_s: float, form: TimeForm) -> None:
    assert dbp.read_as_node(dbp.write_approved(config, now_s, form)) == dbp.Approved(config, form)
    answer = dbp.read_as_node(dbp.write_catalog(config, now_s, form))
    assert isinstance(answer, dbp.Answer)
    assert dbp_info.read_catalog(answer.body[0]) == config


@given(st.lists(texts.filter(bool), max_size=5), st.sampled_from([dbp.DENIED, dbp.DENIED_STRICT]), forms)
def test_reasons_to_a_node(reasons: list[str], command: bytes, form: TimeForm) -> None:
    assert dbp.read_as_node(dbp.write_denied(reasons, 1.0, form, command)) == dbp.Denied(tuple(reasons), form)


@given(names, bodies, texts, forms)
def test_the_rest_to_a_node(name: bytes, body: list[Any], text: str, form: TimeForm) -> None:
    assert dbp.read_as_node(dbp.write_call(name, body, 1.0, form)) == dbp.Call(name, body, form)
    assert dbp.read_as_node(dbp.write_answer(body, 1.0, form)) == dbp.Answer(body, form)
    assert dbp.read_as_node(dbp.write_heartbeat(name, 1.0, form)) == dbp.Heartbeat(name, form)
    assert dbp.read_as_node(dbp.write_disconnect(1.0, form, name)) == dbp.Disconnect(name, form)
    assert dbp.read_as_node(dbp.write_acknowledge(1.0, form)) == dbp.Acknowledge(form)
    answer = dbp.read_as_node(dbp.write_error(text, 1.0, form))
    assert isinstance(answer, dbp.Answer)
    assert dbp_info.read_error(answer.body) == text


@given(infos, changes)
def test_an_updated_entry_can_be_listed(info: NodeInfo, change: dict[str, Any]) -> None:
    updated = dbp_info.changed(info, change)
    for field in ("ip", "port", "function", "heartbeat_s", "credit"):
        assert getattr(updated, field) == change.get(field, getattr(info, field))
    frames = dbp.write_catalog({"service": dbp_info.catalog_entry(updated)}, 1.0, TimeForm.FLOAT)
    assert dbp_info.read_catalog(frames[2])["service"].get("ip") == updated.ip


fields = st.sampled_from(
    [
        "name",
        "ip",
        "port",
        "function",
        "heartbeat",
        "heartbeat_s",
        "liveliness",
        "credit",
        "interfaces",
        "more",
    ]
)
likely = st.one_of(
    json_values,
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(),
    st.sampled_from(["Gondor", "127.0.0.1", 5246, {"router": {"ip": "::1", "port": 1}}, {"router": {}}]),
)


@given(st.one_of(st.binary(), st.dictionaries(fields, likely).map(msgspec.json.encode)))
def test_any_information_is_listed_or_refused(text: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        info = dbp_info.read_info(text, TimeForm.FLOAT)
        catalog = dbp.write_catalog({info.name.decode(): dbp_info.catalog_entry(info)}, 1.0, TimeForm.FLOAT)
        assert dbp_info.read_catalog(catalog[2])
        assert dbp_info.read_info(dbp_info.write_info(info), TimeForm.FLOAT) == info
        name, change = dbp_info.read_changes(text, TimeForm.FLOAT)
        assert dbp_info.changed(NodeInfo(name), change) == info


COMMANDS = [b"^o^", *{*dbp.BROKER_COMMANDS, *dbp.NODE_COMMANDS}]
TIMES = [struct.pack("<f", 1.7e9), struct.pack("<d", 1.7e9), b"1700000000.5"]
CONTENTS = [
    b"",
    b"Gondor",
    b'{"name":"Gondor","ip":"127.0.0.1","port":5247,"function":"f","heartbeat":1}',
    b'{"name":"Gondor","interfaces":{"router":{"ip":"127.0.0.1","port":5247}},"topics":null}',
    b'{"name":',
]
PIECES: list[Any] = [*sorted(map(bytes, COMMANDS)), *TIMES, *CONTENTS]


@given(broken(PIECES), st.integers(0, 2))
def test_arbitrary_frames_are_read_or_refused(frames: list[Any], at: int) -> None:
    never_crashes(dbp.read_from_node, frames, at)
    never_crashes(dbp.read_as_node, frames, at)


@given(st.sampled_from(PIECES[: len(COMMANDS)]), st.sampled_from(TIMES), broken(PIECES, 3))
def test_any_content_of_a_command_is_read_or_refused(command: bytes, time: bytes, rest: list[Any]) -> None:
    never_crashes(dbp.read_from_node, [command, time, *rest], 0)
    never_crashes(dbp.read_as_node, [command, time, *rest], 0)


@given(names, times_s, ports)
def test_datagrams(name: bytes, now_s: float, port: int) -> None:
    assert dbp_udp.read_beat_packet(dbp_udp.write_beat_packet(name, now_s)) == dbp.Heartbeat(
        name, TimeForm.TEXT
    )
    assert dbp_udp.read_beacon(dbp_udp.write_beacon(port)) == port


@given(
    st.one_of(
        st.binary(max_size=400),
        st.builds(
            lambda head, rest: head + rest, st.sampled_from([b"<3 ", b"<3 1 ", b"SHALOM "]), st.binary()
        ),
    )
)
def test_arbitrary_datagrams_are_read_or_refused(packet: bytes) -> None:
    for read in (dbp_udp.read_beat_packet, dbp_udp.read_beacon):
        with contextlib.suppress(RemoteProtocolError):
            read(packet)
