"""Where the broker is: what a flag says, else its data directory, else the settings.

Before anything is sent, the place is knocked at: ZeroMQ itself would wait for a broker that is not there
for as long as it takes, and a person at a terminal wants to know.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from polybus.client.places import ENDPOINTS_FILE, KNOCK_S, written_endpoints
from polybus.client.places import PORT_OF as PORT_OF
from polybus.client.places import from_here as from_here
from polybus.client.places import refusal as refusal
from polybus.errors import ConfigError, ConnectionLost

CONFIG_VARIABLE: Final = "POLYBUS_CONFIG"
DEFAULT_ADMIN_PORT: Final = 5240


def config_path(path: Path | None = None) -> Path | None:
    """The file of the settings, if one was named."""
    named = os.environ.get(CONFIG_VARIABLE)
    return path or (Path(named) if named else None)


def endpoints_in(data_dir: Path) -> dict[str, str]:
    """The endpoints of the broker that runs with this data directory."""
    path = data_dir / ENDPOINTS_FILE
    try:
        return written_endpoints(data_dir)
    except FileNotFoundError:
        raise ConnectionLost(
            f"no broker runs with the data directory {data_dir} (there is no {path.name} in it); "
            f"start one with 'polybus serve --data-dir {data_dir}'"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check --data-dir") from None
    except ValueError:
        raise ConfigError(f"{path} is damaged; restart the broker, which writes it") from None


def peer_endpoint(dialect: str, role: str, address: str | None, data_dir: Path | None) -> str:
    """Where a peer of this dialect and role connects; somebody listens there."""
    from polybus.client.discovery import Finder

    if address is None and data_dir is not None:
        name = PORT_OF[dialect, role]
        endpoints = endpoints_in(data_dir)
        if name not in endpoints:
            raise ConfigError(f"the broker of {data_dir} does not listen for this: {name} is turned off")
        endpoint = endpoints[name]
    else:
        endpoint = Finder().endpoint(dialect, role, address)  # type: ignore[arg-type]
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
