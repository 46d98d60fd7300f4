"""Where a broker is looked for, and what is said if it is not there."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from polybus.cli import find
from polybus.errors import ConfigError, ConnectionLost
from support.patience import patient


@pytest.fixture(autouse=True)
def _no_settings_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("POLYBUS_CONFIG", "POLYBUS_ADMIN_PORT", "POLYBUS_BROKER_HOST", "POLYBUS_MDR_CLIENT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def listening() -> Iterator[str]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        yield f"tcp://127.0.0.1:{port}"


def write(data_dir: Path, endpoints: object) -> None:
    (data_dir / "endpoints.json").write_text(json.dumps({"pid": 1, "endpoints": endpoints}))


@pytest.mark.parametrize(
    ("bound", "reached"),
    [
        ("tcp://0.0.0.0:5", "tcp://127.0.0.1:5"),
        ("tcp://*:5", "tcp://127.0.0.1:5"),
        ("tcp://[::]:5", "tcp://[::1]:5"),
        ("tcp://192.0.2.1:5", "tcp://192.0.2.1:5"),
        ("ipc://0.0.0.0", "ipc://0.0.0.0"),
    ],
)
def test_what_is_bound_everywhere_is_reached_here(bound: str, reached: str) -> None:
    assert find.from_here(bound) == reached


def test_the_admin_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find.admin_place(None, None) == "tcp://127.0.0.1:5240"
    assert find.admin_place("host", None) == "tcp://host:5240"
    write(tmp_path, {"admin.port": "tcp://0.0.0.0:7"})
    assert find.admin_place(None, tmp_path) == "tcp://127.0.0.1:7"
    assert find.admin_place("9", tmp_path) == "tcp://127.0.0.1:9"
    (tmp_path / "polybus.toml").write_text("[admin]\nport = 10\n")
    assert find.admin_place(None, None) == "tcp://127.0.0.1:10"
    monkeypatch.setenv("POLYBUS_ADMIN_PORT", "11")
    assert find.admin_place(None, None) == "tcp://127.0.0.1:11"
    for port in ("0", "-1"):
        monkeypatch.setenv("POLYBUS_ADMIN_PORT", port)
        with pytest.raises(ConfigError, match="--data-dir"):
            find.admin_place(None, None)


def test_a_named_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.toml").write_text("[admin]\nport = 12\n")
    monkeypatch.setenv("POLYBUS_CONFIG", "other.toml")
    assert find.admin_place(None, None) == "tcp://127.0.0.1:12"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"endpoints": 1}', "\x00"])
def test_a_damaged_file_of_endpoints(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoints.json").write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        find.endpoints_in(tmp_path)


def test_what_is_turned_off(tmp_path: Path) -> None:
    write(tmp_path, {})
    with pytest.raises(ConfigError, match=r"admin\.port is turned off"):
        find.admin_place(None, tmp_path)
    with pytest.raises(ConfigError, match=r"ebus\.publish is turned off"):
        find.peer_endpoint("ebus", "publish", None, tmp_path)


def test_peers_find_their_port(tmp_path: Path, listening: str) -> None:
    write(tmp_path, {"majordomo.clients": listening})
    assert find.peer_endpoint("mdp2", "client", None, tmp_path) == listening
    assert find.peer_endpoint("dbp", "client", listening.removeprefix("tcp://"), tmp_path) == listening


def test_somebody_is_there(listening: str) -> None:
    assert find.refusal(listening) == ""


def test_somebody_is_there_by_a_path(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/s"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(endpoint)
        assert find.refusal(endpoint) == ""
    assert find.refusal(f"ipc://{tmp_path}/none") == "no such file or directory"


def test_nobody_is_there() -> None:
    with socket.socket() as silent:
        # It keeps its port from others and does not listen.
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert find.refusal(f"tcp://127.0.0.1:{port}") == "connection refused"
        with pytest.raises(ConnectionLost, match=f"{port}.*polybus serve.*--admin"):
            find.knock(f"tcp://127.0.0.1:{port}", "--admin")


def test_somebody_is_there_who_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"SSH-2.0\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        reason = find.refusal(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        thread.join(patient(10))
    assert "something else" in reason


def test_somebody_is_there_who_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert "silent" in find.refusal(endpoint, 0.05)
        # It has accepted the connection; only its answer is missing.
        assert find.refusal(endpoint, 0.05, patient(10)) == "silent for 0.05 s"
