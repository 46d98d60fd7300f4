"""All settings as one frozen tree, and where they come from: flag > environment > file > default.

A setting `section.name` of `polybus.toml` is `POLYBUS_SECTION_NAME` in the environment.  A port setting
takes a port number (bound on `broker.host`), a whole endpoint (`tcp://127.0.0.1:5000`, `ipc://…`), 0 for
any free port, or -1 for none.  A list is written with commas in the environment and in flags, or as in the
file.  Queues are named by whoever uses them, so `[queues."name"]` has no variables; `queues.name.option` is
what a flag calls one of its settings.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from polybus.config.sections import (
    AdminSettings as AdminSettings,
)
from polybus.config.sections import (
    BeaconSettings as BeaconSettings,
)
from polybus.config.sections import (
    BridgeSettings as BridgeSettings,
)
from polybus.config.sections import (
    BrokerSettings as BrokerSettings,
)
from polybus.config.sections import (
    DbpSettings as DbpSettings,
)
from polybus.config.sections import (
    EbusSettings as EbusSettings,
)
from polybus.config.sections import (
    EmqpSettings as EmqpSettings,
)
from polybus.config.sections import (
    JobsSettings as JobsSettings,
)
from polybus.config.sections import (
    JournalSettings as JournalSettings,
)
from polybus.config.sections import (
    LastValuesSettings as LastValuesSettings,
)
from polybus.config.sections import (
    LogsSettings as LogsSettings,
)
from polybus.config.sections import (
    MajordomoSettings as MajordomoSettings,
)
from polybus.config.sections import (
    MonitorSettings as MonitorSettings,
)
from polybus.config.sections import (
    Port as Port,
)
from polybus.config.sections import (
    QueuePattern as QueuePattern,
)
from polybus.config.sections import (
    QueueSettings as QueueSettings,
)
from polybus.config.sections import (
    Settings as Settings,
)
from polybus.config.sections import (
    TelemetrySettings as TelemetrySettings,
)
from polybus.errors import ConfigError

OFF: Final = -1
FILE_NAME: Final = "polybus.toml"
ENV_PREFIX: Final = "POLYBUS_"

QUEUES: Final = "queues"
SECTIONS: Final = {f.name: f.default_factory for f in msgspec.structs.fields(Settings) if f.name != QUEUES}
QUEUE_OPTIONS: Final = QueueSettings.__struct_fields__
# The tags of MDP/0.1 and MDP/0.2, which share their sockets with the request-id draft.
MAJORDOMO_TAGS: Final = frozenset({"MDPC01", "MDPW01", "MDPC02", "MDPW02"})
# Settings that name a place to listen on.
PORTS: Final = (
    "ebus.frontend",
    "ebus.backend",
    "ebus.publish",
    "ebus.subscribe",
    "emqp.clients",
    "emqp.workers",
    "emqp.admin",
    "emqp.publish",
    "emqp.subscribe",
    "majordomo.clients",
    "majordomo.workers",
    "dbp.port",
    "bridge.port",
    "dbp.udp",
    "admin.port",
)


def load(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force. `overrides` are `section.name` → value, from flags.

    Without a path `./polybus.toml` is read if it is there.
    """
    tree = _read_file(path)
    for name, text in _from_environment(os.environ if environ is None else environ):
        _put(tree, name, text)
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(tree, name, value)
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`") or "the file"
        if name.startswith(f"{QUEUES}["):
            # The library does not say which; whoever reads this wants to know.
            name = _wrong_queue(tree) + name.partition("]")[2]
        raise ConfigError(
            f"{name} is wrong: {what}. It comes from a flag, the environment or {path or FILE_NAME}; "
            "'polybus settings' lists all settings."
        ) from None
    for name in PORTS:
        endpoint(settings, name)
    tags = {settings.majordomo.client_tag, settings.majordomo.worker_tag}
    if len(tags) < 2 or tags & MAJORDOMO_TAGS:
        raise ConfigError(
            "majordomo.client_tag and majordomo.worker_tag must differ from each other and from "
            f"{', '.join(sorted(MAJORDOMO_TAGS))}, which are other dialects on the same sockets."
        )
    _check_jobs(settings.jobs)
    _check_beacon(settings.beacon)
    return settings


def _check_beacon(beacon: BeaconSettings) -> None:
    for address in beacon.addresses:
        try:
            IPv4Address(address)
        except ValueError:
            what = "it takes IPv4 addresses such as 10.0.0.255; beacon.interfaces takes names"
            raise ConfigError(f"beacon.addresses has {address!r}; {what}") from None


def _check_jobs(jobs: JobsSettings) -> None:
    if jobs.backoff_max_s < jobs.backoff_s:
        raise ConfigError(
            f"jobs.backoff_max_s = {jobs.backoff_max_s:g} is less than jobs.backoff_s = {jobs.backoff_s:g}: "
            "the largest pause cannot be smaller than the first one."
        )
    if not is_timezone(jobs.timezone):
        raise ConfigError(
            f"jobs.timezone = {jobs.timezone!r} is no time zone that this machine knows. "
            "Give an IANA name such as UTC or Europe/Berlin."
        )


def is_timezone(name: str) -> bool:
    """Whether this machine knows the zone. UTC needs no files."""
    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        # No such file, a directory, a path out of the folder, or no zone at all.
        return False
    return True


def _wrong_queue(tree: dict[str, Any]) -> str:
    """The first queue whose settings are wrong, as it stands in the file."""
    for pattern, part in tree[QUEUES].items():
        try:
            msgspec.convert({pattern: part}, dict[QueuePattern, QueueSettings], strict=False)
        except msgspec.ValidationError:
            return f'{QUEUES}."{pattern}"'
    return QUEUES


def endpoint(settings: Settings, name: str) -> str | None:
    """Where the port setting `section.name` is bound; None if it is turned off."""
    section, option = name.split(".")
    part = getattr(settings, section)
    port: Port = part.port if name == "dbp.udp" and part.udp == "" else getattr(part, option)
    if not getattr(part, "enabled", True) or port == OFF or port == str(OFF):
        return None
    if isinstance(port, str) and "://" in port:
        return port
    try:
        number = int(port)
    except ValueError:
        number = OFF - 1
    if not 0 <= number <= 65535:
        raise ConfigError(
            f"{name} = {port!r} is no port. Give a number from 0 to 65535 (0: any free one), "
            "-1 to turn it off, or an endpoint such as tcp://127.0.0.1:5000."
        )
    return f"{'udp' if name == 'dbp.udp' else 'tcp'}://{settings.broker.host}:{number or '*'}"


def any_free_ports() -> dict[str, Any]:
    """Overrides that bind every port setting to a free port: for tests and second brokers, which do not
    announce themselves either."""
    return {**dict.fromkeys(PORTS, 0), "beacon.enabled": False}


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        path = Path(FILE_NAME)
        if not path.exists():
            return {}
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Check --config.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text: save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for section, make in SECTIONS.items():
        for option in msgspec.structs.fields(make):
            text = environ.get(variable(f"{section}.{option.name}"))
            if text is not None:
                yield f"{section}.{option.name}", text


def variable(name: str) -> str:
    """The environment variable of the setting `section.name`."""
    return ENV_PREFIX + name.replace(".", "_").upper()


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    section, _, option = name.partition(".")
    part = tree.setdefault(section, {})
    if section == QUEUES and isinstance(part, dict):
        # A queue's name may have dots, its options have none.
        pattern, _, option = option.rpartition(".")
        part = part.setdefault(pattern, {})
        section = f'{QUEUES}."{pattern}"'
    if not isinstance(part, dict):
        raise ConfigError(f"[{section}] must be a table of settings")
    make = SECTIONS.get(section)
    if isinstance(value, str) and make is not None and isinstance(getattr(make(), option, None), tuple):
        words = value.strip()[1:-1] if value.strip()[:2] in ('["', "['") else value
        value = [word.strip("\"'") for word in words.replace(",", " ").split()]
    part[option] = value
