"""Where the broker is: what a flag says, else its data directory, else the settings.

Before anything is sent, the place is knocked at: ZeroMQ itself would wait for a broker that is not there
for as long as it takes, and a person at a terminal wants to know.
"""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Final

from polybus.errors import ConfigError, ConnectionLost

KNOCK_S: Final = 3.0
# The first byte that either side of a ZeroMQ connection sends, at once.
ZMTP: Final = b"\xff"
CONFIG_VARIABLE: Final = "POLYBUS_CONFIG"
DEFAULT_ADMIN_PORT: Final = 5240

# The port setting of the broker that serves a dialect's role.
PORT_OF: Final = {
    ("mdr", "client"): "majordomo.clients",
    ("mdp1", "client"): "majordomo.clients",
    ("mdp2", "client"): "majordomo.clients",
    ("mdr", "worker"): "majordomo.workers",
    ("mdp1", "worker"): "majordomo.workers",
    ("mdp2", "worker"): "majordomo.workers",
    ("ebus", "client"): "ebus.frontend",
    ("ebus", "worker"): "ebus.backend",
    ("ebus", "publish"): "ebus.publish",
    ("ebus", "subscribe"): "ebus.subscribe",
    ("emqp", "client"): "emqp.clients",
    ("emqp", "worker"): "emqp.workers",
    ("emqp", "publish"): "emqp.publish",
    ("emqp", "subscribe"): "emqp.subscribe",
    ("dbp", "client"): "dbp.port",
    ("dbp", "worker"): "dbp.port",
}
_EVERYWHERE: Final = re.compile(r"tcp://(0\.0\.0\.0|\*|\[::\]):")


def config_path(path: Path | None = None) -> Path | None:
    """The file of the settings, if one was named."""
    named = os.environ.get(CONFIG_VARIABLE)
    return path or (Path(named) if named else None)


def endpoints_in(data_dir: Path) -> dict[str, str]:
    """The endpoints of the broker that runs with this data directory."""
    path = data_dir / "endpoints.json"
    try:
        found = json.loads(path.read_text())["endpoints"]
        return {str(name): from_here(str(endpoint)) for name, endpoint in found.items()}
    except FileNotFoundError:
        raise ConnectionLost(
            f"no broker runs with the data directory {data_dir} (there is no {path.name} in it); "
            f"start one with 'polybus serve --data-dir {data_dir}'"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check --data-dir") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is damaged; restart the broker, which writes it") from None


def from_here(endpoint: str) -> str:
    """An endpoint that was bound on every interface, as one to connect to."""
    found = _EVERYWHERE.match(endpoint)
    if found is None:
        return endpoint
    return f"tcp://{'[::1]' if found[1] == '[::]' else '127.0.0.1'}:{endpoint[found.end() :]}"


def peer_endpoint(dialect: str, role: str, address: str | None, data_dir: Path | None) -> str:
    """Where a peer of this dialect and role connects; somebody listens there."""
    from polybus.client.addresses import endpoint_for

    if address is None and data_dir is not None:
        name = PORT_OF[dialect, role]
        endpoints = endpoints_in(data_dir)
        if name not in endpoints:
            raise ConfigError(f"the broker of {data_dir} does not listen for this: {name} is turned off")
        endpoint = endpoints[name]
    else:
        endpoint = endpoint_for(dialect, role, address)  # type: ignore[arg-type]
    knock(endpoint, "--address or --data-dir")
    return endpoint


def admin_endpoint(admin: str | None, data_dir: Path | None) -> str:
    """Where the admin socket is; somebody listens there."""
    endpoint = admin_place(admin, data_dir)
    knock(endpoint, "--admin or --data-dir")
    return endpoint


def admin_place(admin: str | None, data_dir: Path | None) -> str:
    from polybus import config
    from polybus.client.addresses import read_address

    if admin is not None:
        return read_address(admin, DEFAULT_ADMIN_PORT, "--admin")
    if data_dir is not None:
        endpoints = endpoints_in(data_dir)
        if "admin.port" not in endpoints:
            raise ConfigError(f"the broker of {data_dir} has no admin socket: admin.port is turned off")
        return endpoints["admin.port"]
    endpoint = config.endpoint(config.load(config_path()), "admin.port")
    if endpoint is None:
        raise ConfigError("admin.port is turned off in the settings; give --admin or --data-dir")
    if endpoint.endswith(":*"):
        raise ConfigError(
            "admin.port is 0 in the settings, any free port; give --data-dir, where it is written down"
        )
    return from_here(endpoint)


def knock(endpoint: str, flags: str, timeout_s: float = KNOCK_S) -> None:
    """Make sure that somebody who speaks ZeroMQ listens there."""
    reason = refusal(endpoint, timeout_s)
    if reason:
        raise ConnectionLost(
            f"no broker answers at {endpoint} ({reason}); start one with 'polybus serve', "
            f"or say where it is with {flags}"
        )


def refusal(endpoint: str, timeout_s: float = KNOCK_S) -> str:
    """Why nobody who speaks ZeroMQ answers there; empty if somebody does."""
    try:
        with _connect(endpoint, timeout_s) as connection:
            connection.settimeout(timeout_s)
            greeting = connection.recv(1)
    except TimeoutError:
        return f"silent for {timeout_s:g} s"
    except socket.gaierror:
        return "the host is unknown"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "" if greeting == ZMTP else "something else than ZeroMQ listens there"


def _connect(endpoint: str, timeout_s: float) -> socket.socket:
    if endpoint.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        try:
            connection.connect(endpoint.removeprefix("ipc://"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)
