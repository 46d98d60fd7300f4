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

from polybus.config import mistakes
from polybus.config.mistakes import Sources
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
    origins: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force. `overrides` are `section.name` → value, from flags; `origins` are
    `section.name` → the flag, for errors.

    Without a path `./polybus.toml` is read if it is there.
    """
    tree = _read_file(path)
    sources = Sources(tree, str(path or FILE_NAME))
    for name, text in _from_environment(os.environ if environ is None else environ):
        _put(tree, name, text, sources)
        sources.put(name, f"the environment variable {variable(name)}")
    for name, value in (overrides or {}).items():
        if value is not None:
            _put(tree, name, value, sources)
            sources.put(name, (origins or {}).get(name, "the program that started this"))
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise mistakes.refusal(list(_mistakes(tree, sources)) or [str(error)]) from None
    found = [*_wrong_ports(settings, sources), *_wrong_tags(settings.majordomo, sources)]
    found += [*_wrong_jobs(settings.jobs, sources), *_wrong_places(settings, sources)]
    if found:
        raise mistakes.refusal(found)
    return settings


def _mistakes(tree: Mapping[str, Any], sources: Sources) -> Iterator[str]:
    """Everything that cannot be a setting, or not with this value."""
    for name, part in tree.items():
        if name == QUEUES and isinstance(part, dict):
            for pattern, queue in part.items():
                yield from _wrong_queue(pattern, queue, sources)
        elif name == QUEUES:
            yield mistakes.no_table(QUEUES, part, sources)
        elif name not in SECTIONS:
            yield mistakes.no_section(name, sources, (*SECTIONS, QUEUES))
        else:
            section = mistakes.Section(name, name, type(SECTIONS[name]()))
            yield from mistakes.in_section(section, part, sources, PORTS)


def _wrong_queue(pattern: str, queue: object, sources: Sources) -> Iterator[str]:
    title = f'{QUEUES}."{pattern}"'
    try:
        msgspec.convert(pattern, QueuePattern)
    except msgspec.ValidationError:
        yield (
            f"[{title}], from {sources.file}, is not allowed: the name of a queue takes 1 to 255 characters."
        )
        return
    section = mistakes.Section(title, f"{QUEUES}.{pattern}", QueueSettings)
    yield from mistakes.in_section(section, queue, sources, ())


def _wrong_ports(settings: Settings, sources: Sources) -> Iterator[str]:
    for name in PORTS:
        section, option = name.split(".")
        try:
            endpoint(settings, name)
        except ConfigError:
            if name == "dbp.udp" and settings.dbp.udp == "":
                # It is that of `dbp.port`, which has been named.
                continue
            value = getattr(getattr(settings, section), option)
            yield mistakes.wrong(name, value, sources.of(name), mistakes.PORT_WORDS)


def _wrong_tags(majordomo: MajordomoSettings, sources: Sources) -> Iterator[str]:
    values = {"majordomo.client_tag": majordomo.client_tag, "majordomo.worker_tag": majordomo.worker_tag}
    others = ", ".join(sorted(MAJORDOMO_TAGS))
    for name, tag in values.items():
        if tag in MAJORDOMO_TAGS:
            takes = f"any text but {others}, which are other dialects on the same sockets"
            yield mistakes.wrong(name, tag, sources.of(name), takes)
    if len(set(values.values())) < 2:
        client, worker = (f"{name} (from {sources.of(name)})" for name in values)
        yield (
            f"{client} and {worker} are both {mistakes.shown(majordomo.client_tag)}: "
            f"they must differ from each other and from {others}."
        )


def _wrong_places(settings: Settings, sources: Sources) -> Iterator[str]:
    """Lists of places in which one cannot be a place."""
    name = "beacon.addresses"
    for address in settings.beacon.addresses:
        try:
            IPv4Address(address)
        except ValueError:
            takes = "IPv4 addresses such as 10.0.0.255; beacon.interfaces takes names"
            yield mistakes.wrong(name, address, sources.of(name), takes)
    name = "bridge.peers"
    for place in settings.bridge.peers:
        if settings.bridge.enabled and "://" not in place:
            takes = "endpoints such as tcp://192.0.2.7:5241: the bridge port of another broker"
            yield mistakes.wrong(name, place, sources.of(name), takes)


def _wrong_jobs(jobs: JobsSettings, sources: Sources) -> Iterator[str]:
    if jobs.backoff_max_s < jobs.backoff_s:
        first, most = sources.of("jobs.backoff_s"), sources.of("jobs.backoff_max_s")
        yield (
            f"jobs.backoff_max_s = {jobs.backoff_max_s:g}, from {most}, is less than "
            f"jobs.backoff_s = {jobs.backoff_s:g}, from {first}: "
            "the largest pause cannot be smaller than the first one."
        )
    if not is_timezone(jobs.timezone):
        takes = "an IANA name that this machine knows, such as UTC or Europe/Berlin"
        yield mistakes.wrong("jobs.timezone", jobs.timezone, sources.of("jobs.timezone"), takes)


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
        raise ConfigError(f"{name} = {mistakes.shown(port)} is not allowed: it takes {mistakes.PORT_WORDS}.")
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
        raise ConfigError(
            f"{path} is no text in UTF-8, so no settings can be read from it; save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} is no valid TOML: {error}. Correct that line; text needs quotation marks."
        ) from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for section, make in SECTIONS.items():
        for option in msgspec.structs.fields(make):
            text = environ.get(variable(f"{section}.{option.name}"))
            if text is not None:
                yield f"{section}.{option.name}", text


def variable(name: str) -> str:
    """The environment variable of the setting `section.name`."""
    return ENV_PREFIX + name.replace(".", "_").upper()


def _put(tree: dict[str, Any], name: str, value: Any, sources: Sources) -> None:
    section, _, option = name.partition(".")
    part = tree.setdefault(section, {})
    if section == QUEUES and isinstance(part, dict):
        # A queue's name may have dots, its options have none.
        pattern, _, option = option.rpartition(".")
        part = part.setdefault(pattern, {})
        section = f'{QUEUES}."{pattern}"'
    if not isinstance(part, dict):
        raise ConfigError(mistakes.no_table(section, part, sources))
    make = SECTIONS.get(section)
    if isinstance(value, str) and make is not None and isinstance(getattr(make(), option, None), tuple):
        words = value.strip()[1:-1] if value.strip()[:2] in ('["', "['") else value
        value = [word.strip("\"'") for word in words.replace(",", " ").split()]
    part[option] = value
