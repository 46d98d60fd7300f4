"""The settings of a bridge, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from polybus import config
from polybus.core.bus import Bus
from polybus.errors import ConfigError
from polybus.server.bridge import Bridges, _is_private


def bridges(**settings: Any) -> Bridges:
    overrides = {f"bridge.{option}": value for option, value in {"name": "A", **settings}.items()}
    return Bridges(Bus(b"n-"), config.load(None, overrides, {}))


def test_without_a_name_nothing_is_there() -> None:
    bus = Bus(b"n-")
    off = Bridges(bus, config.load(None, {}, {}))
    assert (off.is_on, off.facts(), off.views({}, 0.0), bus.bridging) == (False, {}, [], None)
    off.tick(0.0)
    assert config.endpoint(config.load(None, {}, {}), "bridge.port") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "x" * 65}, "is no name for a broker"),
        ({"name": "a\nb"}, "is no name for a broker"),
        ({"allow": ["B", ""]}, "is no name for a broker"),
        ({"peers": ["10.0.0.1:5241"]}, "it takes endpoints"),
        ({"peers": ["tcp://a:1", "tcp://a:1"]}, "twice"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bridges(**settings)


@pytest.mark.parametrize(("option", "value"), [("max_hops", 0), ("max_hops", 33), ("credit", 0)])
def test_limits_of_settings(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"bridge.{option}"):
        bridges(**{option: value})


def test_lists_in_the_environment() -> None:
    environ = {"POLYBUS_BRIDGE_NAME": "A", "POLYBUS_BRIDGE_PEERS": "tcp://a:1, tcp://b:1"}
    assert config.load(None, {}, environ).bridge.peers == ("tcp://a:1", "tcp://b:1")


@pytest.mark.parametrize(
    ("place", "private"),
    [
        (None, True),
        ("tcp://127.0.0.1:5241", True),
        ("tcp://127.9.9.9:*", True),
        ("tcp://[::1]:5241", True),
        ("tcp://localhost:5241", True),
        ("ipc:///run/polybus", True),
        ("tcp://*:5241", False),
        ("tcp://0.0.0.0:5241", False),
        ("tcp://192.0.2.7:5241", False),
        ("tcp://broker.example:5241", False),
    ],
)
def test_who_can_reach_it(place: str | None, private: bool) -> None:
    assert _is_private(place) is private
