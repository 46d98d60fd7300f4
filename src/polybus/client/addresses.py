"""Where the broker is: an argument, else the environment, else the dialect's own port on this machine (or
wherever `discovery` finds one).

An address is an endpoint (`tcp://host:port`, `ipc://path`, `inproc://name`), `host:port`, or a host,
which takes the dialect's default port.  The environment knows, per dialect and role,
`POLYBUS_MDR_CLIENT`, `POLYBUS_EBUS_PUBLISH` and so on; `EMQ_BROKER_ADDR` for eMQP clients;
`EBUS_FRONTEND`, `EBUS_BACKEND`, `EBUS_PUB` and `EBUS_SUB` for EBUS.

The request-id draft of Majordomo leaves frame 0 of its commands open.  `tag_for` says what a peer puts there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, Literal

from polybus.errors import ConfigError
from polybus.wire import mdp1, mdp2, mdr
from polybus.wire.frames import MAX_NAME_BYTES

Role = Literal["client", "worker", "publish", "subscribe"]

PORTS: Final[Mapping[str, Mapping[str, int]]] = {
    "mdr": {"client": 5555, "worker": 5556},
    "mdp1": {"client": 5555, "worker": 5556},
    "mdp2": {"client": 5555, "worker": 5556},
    "ebus": {"client": 5000, "worker": 5001, "publish": 5002, "subscribe": 5003},
    "emqp": {"client": 47291, "worker": 47290, "publish": 47298, "subscribe": 47299},
    "dbp": {"client": 5246, "worker": 5246},
}
DIALECTS: Final = tuple(PORTS)

# Names that peers of these dialects use already.
_LEGACY: Final = {
    ("emqp", "client"): "EMQ_BROKER_ADDR",
    ("ebus", "client"): "EBUS_FRONTEND",
    ("ebus", "worker"): "EBUS_BACKEND",
    ("ebus", "publish"): "EBUS_PUB",
    ("ebus", "subscribe"): "EBUS_SUB",
}
# Frame 0 of the request-id draft: the variable of the broker's own setting, and what stands there by default.
_TAGS: Final = {
    "client": ("POLYBUS_MAJORDOMO_CLIENT_TAG", mdr.CLIENT_TAG),
    "worker": ("POLYBUS_MAJORDOMO_WORKER_TAG", mdr.WORKER_TAG),
}
# On the same sockets these begin messages of other dialects.
_TAGS_OF_OTHERS: Final = frozenset({mdp1.CLIENT_TAG, mdp1.WORKER_TAG, mdp2.CLIENT_TAG, mdp2.WORKER_TAG})
_ENDPOINT: Final = re.compile(r"(ipc|inproc)://\S+|tcp://(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def check_dialect(dialect: str) -> str:
    if dialect in PORTS:
        return dialect
    raise ConfigError(f"{dialect!r} is no dialect; known are {', '.join(DIALECTS)}")


def endpoint_for(
    dialect: str, role: Role, address: str | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """The endpoint that a peer of this dialect and role connects to, without looking for it."""
    found = given_endpoint(dialect, role, address, environ)
    return found or f"tcp://127.0.0.1:{PORTS[dialect][role]}"


def given_endpoint(
    dialect: str, role: Role, address: str | None = None, environ: Mapping[str, str] | None = None
) -> str | None:
    """What the argument or the environment says; None if neither says anything."""
    port = PORTS[check_dialect(dialect)].get(role)
    if port is None:
        raise ConfigError(f"{dialect} has no {role} endpoint; ebus and emqp have")
    if address is not None:
        return read_address(address, port, "address")
    env = os.environ if environ is None else environ
    for name in variables(dialect, role):
        if env.get(name):
            return read_address(env[name], port, name)
    return None


def variables(dialect: str, role: Role) -> list[str]:
    """The environment variables that say where the broker is; the first one wins."""
    names = (f"POLYBUS_{dialect.upper()}_{role.upper()}", _LEGACY.get((dialect, role)))
    return [name for name in names if name]


def tag_for(
    dialect: str, role: Role, tag: str | None = None, environ: Mapping[str, str] | None = None
) -> bytes:
    """Frame 0 of everything that a peer of the request-id draft sends: the argument, else the environment,
    else the default; empty for the other dialects, whose documents say what stands there."""
    if dialect != "mdr":
        if tag is not None:
            raise ConfigError(f"tag is {tag!r} and the dialect {dialect}: only mdr has a tag that can be set")
        return b""
    variable, default = _TAGS[role]
    env = os.environ if environ is None else environ
    what = variable if tag is None else "tag"
    text = env.get(variable) if tag is None else tag
    if text is None:
        return default
    chosen = text.encode()
    if not 1 <= len(chosen) <= MAX_NAME_BYTES:
        raise ConfigError(f"{what} has {len(chosen)} bytes; allowed are 1 to {MAX_NAME_BYTES}")
    if chosen in _TAGS_OF_OTHERS:
        raise ConfigError(f"{what} is {text!r}, which is the tag of another dialect on the same sockets")
    return chosen


def is_endpoint(text: str) -> bool:
    return _ENDPOINT.fullmatch(text) is not None


def read_address(text: str, port: int, what: str) -> str:
    """An endpoint from an endpoint, `host:port` or a host; `what` names the setting in the error."""
    text = text.strip()
    if _ENDPOINT.fullmatch(text):
        if text.startswith("tcp://"):
            _check_port(text.rpartition(":")[2], text, what)
        return text
    if text.isascii() and text.isdigit():
        # A port alone: what the broker's own setting of the same name may say.
        _check_port(text[:6], text, what)
        return f"tcp://127.0.0.1:{int(text)}"
    found = _HOST.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{what} is {text!r}; it takes an endpoint (tcp://host:port, ipc://path), host:port, or a host"
        )
    if found[2] is None:
        return f"tcp://{found[1]}:{port}"
    _check_port(found[2][1:], text, what)
    return f"tcp://{found[1]}{found[2]}"


def _check_port(digits: str, text: str, what: str) -> None:
    if not 1 <= int(digits) <= 65535:
        raise ConfigError(f"{what} is {text!r}; a port is a number from 1 to 65535")
