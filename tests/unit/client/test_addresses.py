"""Where the broker is: argument, environment, default."""

from __future__ import annotations

import pytest

from polybus.client.addresses import DIALECTS, Role, endpoint_for, tag_for
from polybus.errors import ConfigError


@pytest.mark.parametrize(
    ("dialect", "role", "endpoint"),
    [
        ("mdr", "client", "tcp://127.0.0.1:5555"),
        ("mdp1", "worker", "tcp://127.0.0.1:5556"),
        ("mdp2", "client", "tcp://127.0.0.1:5555"),
        ("ebus", "client", "tcp://127.0.0.1:5000"),
        ("ebus", "worker", "tcp://127.0.0.1:5001"),
        ("ebus", "publish", "tcp://127.0.0.1:5002"),
        ("ebus", "subscribe", "tcp://127.0.0.1:5003"),
        ("emqp", "client", "tcp://127.0.0.1:47291"),
        ("emqp", "worker", "tcp://127.0.0.1:47290"),
        ("emqp", "publish", "tcp://127.0.0.1:47298"),
        ("emqp", "subscribe", "tcp://127.0.0.1:47299"),
        ("dbp", "client", "tcp://127.0.0.1:5246"),
        ("dbp", "worker", "tcp://127.0.0.1:5246"),
    ],
)
def test_defaults(dialect: str, role: Role, endpoint: str) -> None:
    assert endpoint_for(dialect, role, environ={}) == endpoint


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("tcp://bus.example:7000", "tcp://bus.example:7000"),
        ("ipc:///tmp/bus.sock", "ipc:///tmp/bus.sock"),
        ("inproc://bus", "inproc://bus"),
        ("bus.example:7000", "tcp://bus.example:7000"),
        ("bus.example", "tcp://bus.example:5555"),
        (" 10.0.0.7 ", "tcp://10.0.0.7:5555"),
        ("[::1]", "tcp://[::1]:5555"),
        ("tcp://[::1]:7000", "tcp://[::1]:7000"),
        ("7000", "tcp://127.0.0.1:7000"),
    ],
)
def test_addresses(address: str, endpoint: str) -> None:
    assert endpoint_for("mdr", "client", address) == endpoint


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp://",
        "tcp://host",
        "http://host:80",
        "host:",
        "host:0",
        "host:70000",
        "99999",
        "a b",
        "::1",
        "tcp://h:x",
    ],
)
def test_bad_addresses_are_named(address: str) -> None:
    with pytest.raises(ConfigError, match="address is"):
        endpoint_for("mdr", "client", address)


@pytest.mark.parametrize(
    ("dialect", "role", "variable"),
    [
        *((d, r, f"POLYBUS_{d.upper()}_{r.upper()}") for d in DIALECTS for r in ("client", "worker")),
        ("ebus", "publish", "POLYBUS_EBUS_PUBLISH"),
        ("emqp", "subscribe", "POLYBUS_EMQP_SUBSCRIBE"),
        ("emqp", "client", "EMQ_BROKER_ADDR"),
        ("ebus", "client", "EBUS_FRONTEND"),
        ("ebus", "worker", "EBUS_BACKEND"),
        ("ebus", "publish", "EBUS_PUB"),
        ("ebus", "subscribe", "EBUS_SUB"),
    ],
)
def test_environment(dialect: str, role: Role, variable: str) -> None:
    assert endpoint_for(dialect, role, environ={variable: "tcp://env:1"}) == "tcp://env:1"
    assert endpoint_for(dialect, role, "arg:2", environ={variable: "tcp://env:1"}) == "tcp://arg:2"
    with pytest.raises(ConfigError, match=variable):
        endpoint_for(dialect, role, environ={variable: "tcp://nowhere"})


def test_our_own_variable_comes_first() -> None:
    environ = {"POLYBUS_EBUS_CLIENT": "ours", "EBUS_FRONTEND": "theirs"}
    assert endpoint_for("ebus", "client", environ=environ) == "tcp://ours:5000"


def test_what_there_is_not() -> None:
    with pytest.raises(ConfigError, match="known are mdr"):
        endpoint_for("amqp", "client")
    with pytest.raises(ConfigError, match="no publish endpoint"):
        endpoint_for("mdr", "publish")


# -- frame 0 of the request-id draft --------------------------------------------------------------


def test_the_tag_is_an_argument_else_the_environment_else_the_default() -> None:
    environ = {"POLYBUS_MAJORDOMO_CLIENT_TAG": "C8", "POLYBUS_MAJORDOMO_WORKER_TAG": "W8"}
    assert tag_for("mdr", "client", environ={}) == b"MDRC01"
    assert tag_for("mdr", "worker", environ={}) == b"MDRW01"
    assert tag_for("mdr", "client", environ=environ) == b"C8"
    assert tag_for("mdr", "worker", environ=environ) == b"W8"
    assert tag_for("mdr", "client", "C9", environ) == b"C9"
    assert tag_for("mdr", "worker", "Würfel", environ) == "Würfel".encode()
    for dialect in set(DIALECTS) - {"mdr"}:
        assert tag_for(dialect, "client", environ=environ) == b""


@pytest.mark.parametrize("tag", ["", "x" * 256, "ü" * 128, "MDPC01", "MDPW01", "MDPC02", "MDPW02"])
def test_tags_that_cannot_be(tag: str) -> None:
    with pytest.raises(ConfigError, match="tag"):
        tag_for("mdr", "client", tag, {})
    with pytest.raises(ConfigError, match="POLYBUS_MAJORDOMO_WORKER_TAG"):
        tag_for("mdr", "worker", None, {"POLYBUS_MAJORDOMO_WORKER_TAG": tag})


@pytest.mark.parametrize("dialect", sorted(set(DIALECTS) - {"mdr"}))
def test_other_dialects_have_no_tag_to_set(dialect: str) -> None:
    with pytest.raises(ConfigError, match="only mdr"):
        tag_for(dialect, "client", "MINE", {})
