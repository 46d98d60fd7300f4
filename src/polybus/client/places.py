"""Places where a broker may be: what serves which role, what it wrote down, and whether somebody answers.

Before anything is sent, a place can be knocked at: ZeroMQ itself would wait for a broker that is not there
for as long as it takes.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from pathlib import Path
from typing import Final

KNOCK_S: Final = 3.0
# The first byte that either side of a ZeroMQ connection sends, at once.
ZMTP: Final = b"\xff"
ENDPOINTS_FILE: Final = "endpoints.json"
TCP: Final = "tcp://"

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


def written_endpoints(data_dir: Path) -> dict[str, str]:
    """What a broker wrote down in its data directory; raises OSError, or ValueError if it is damaged."""
    text = (data_dir / ENDPOINTS_FILE).read_text()
    try:
        found = json.loads(text)["endpoints"]
        return {str(name): from_here(str(endpoint)) for name, endpoint in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("it is damaged") from None


def from_here(endpoint: str) -> str:
    """An endpoint that was bound on every interface, as one to connect to."""
    found = _EVERYWHERE.match(endpoint)
    if found is None:
        return endpoint
    return f"tcp://{'[::1]' if found[1] == '[::]' else '127.0.0.1'}:{endpoint[found.end() :]}"


def from_there(endpoint: str, host: str) -> str:
    """How an endpoint of the broker at `host` is reached from this machine; empty if it is not."""
    found = _EVERYWHERE.match(endpoint)
    if found is not None:
        return f"tcp://{host}:{endpoint[found.end() :]}"
    bound = endpoint.removeprefix(TCP).rpartition(":")[0].strip("[]")
    if endpoint.startswith(TCP) and not is_loopback(bound):
        return endpoint
    # Loopback and files are those of the broker's machine.
    return endpoint if is_here(host) else ""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_here(host: str) -> bool:
    """Whether an IPv4 address is one of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attempt:
        try:
            attempt.bind((host, 0))
        except OSError:
            return False
    return True


def refusal(endpoint: str, timeout_s: float = KNOCK_S, connect_s: float | None = None) -> str:
    """Why nobody who speaks ZeroMQ answers there; empty if somebody does.

    `connect_s` is how long the connection may take, if not as long as the answer.
    """
    limit_s = timeout_s if connect_s is None else connect_s
    try:
        with _connect(endpoint, limit_s) as connection:
            limit_s = timeout_s
            connection.settimeout(limit_s)
            greeting = connection.recv(1)
    except TimeoutError:
        return f"silent for {limit_s:g} s"
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
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)
