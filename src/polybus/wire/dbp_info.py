"""What a DBP service says about itself: the JSON object of REGISTRATION and UPDATE.

Two shapes are in use.  The document asks for name, ip, port, function and heartbeat timing; the
original implementation sends a name and `interfaces` and knows neither function nor heartbeat.
Both are read into one `NodeInfo`.  What is absent is only listed: whether that is enough is the
broker's decision.  What is present must be usable, and if it is not, *all* the reasons come back
at once, because DENIED carries them to whoever has to correct the configuration.

The information may come in several frames ("Frame 3+"), each a JSON object.  They are read as one object; of
two values for one key the later one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from polybus.errors import LocalProtocolError, RemoteProtocolError
from polybus.wire.dbp_time import TimeForm
from polybus.wire.frames import MAX_TEXT_BYTES, Frame, Frames, read_name, read_text, refuse
from polybus.wire.mdr import MAX_CREDIT

# A host or IP address becomes part of a ZeroMQ endpoint, where "/" and ";" have a meaning.
_HOST: Final = re.compile(r"[A-Za-z0-9.:_-]{1,253}", re.ASCII)
# One sentence about what a service does, not its manual.
MAX_FUNCTION_CHARS: Final = 1024
# Frames of one REGISTRATION; together they have no more bytes than one may have.
MAX_INFO_FRAMES: Final = 32
# A service has a handful of sockets.
MAX_INTERFACES: Final = 32
# Shorter is a flood, longer is no heartbeat.
MIN_HEARTBEAT_S: Final = 0.01
MAX_HEARTBEAT_S: Final = 86_400.0
# Entries are encoded again, deeper, in the catalog; far from the recursion limit of either side.
MAX_DEPTH: Final = 16
# Where the datagrams of a node come from, if that is not its `ip`: a field of ours.
HEARTBEAT_IP: Final = "heartbeat_ip"
# A list of every service of a large bus; 64 KiB each would be too strict for all of them together.
MAX_CATALOG_BYTES: Final = 16 * 1024 * 1024


class RegistrationRefused(RemoteProtocolError):
    """A REGISTRATION or UPDATE that cannot be used; `reasons` are what DENIED says, in `form`."""

    def __init__(self, reasons: tuple[str, ...], form: TimeForm) -> None:
        super().__init__("bad_info", "; ".join(reasons))
        self.reasons: Final = reasons
        self.form: Final = form


class Interface(Struct, frozen=True):
    """Where one socket of a service listens."""

    ip: str
    port: int


class NodeInfo(Struct, frozen=True):
    """A catalog entry; `None` is what the service did not say."""

    name: bytes
    ip: str | None = None
    port: int | None = None
    function: str | None = None
    heartbeat_s: float | None = None
    credit: int = 1
    interfaces: dict[str, Interface] = {}
    extra: dict[str, Any] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        """What the document's minimum asks for and the service did not say."""
        wanted = {
            "ip": self.ip,
            "port": self.port,
            "function": self.function,
            "heartbeat": self.heartbeat_s,
        }
        return tuple(field for field, value in wanted.items() if value is None)

    @property
    def is_upstream_form(self) -> bool:
        """Was it written the way the original implementation writes it?"""
        return bool(self.interfaces) and self.function is None and self.heartbeat_s is None


# -- reading ----------------------------------------------------------------------------------


def read_json_object(frame: Frame, what: str) -> dict[str, Any]:
    """A JSON object of at most 64 KiB and sixteen levels."""
    return _decode(read_text(frame, what), what)


def read_info(frame: Frame, form: TimeForm, more: Frames = ()) -> NodeInfo:
    """The JSON object of a REGISTRATION; `more` are further ones that belong to it."""
    return NodeInfo(**_read_fields((frame, *more), form))


def read_changes(frame: Frame, form: TimeForm, more: Frames = ()) -> tuple[bytes, dict[str, Any]]:
    """The JSON object of an UPDATE: the name, and the fields of `NodeInfo` that change."""
    fields = _read_fields((frame, *more), form)
    return fields.pop("name"), fields


def changed(info: NodeInfo, changes: Mapping[str, Any]) -> NodeInfo:
    """The entry after an UPDATE. What the update does not say stays."""
    fields = dict(changes)
    interfaces = info.interfaces | fields.get("interfaces", {})
    if "router" in info.interfaces and "router" not in fields.get("interfaces", {}):
        # The service moved and said so at the top only: both places name the same socket.
        router = interfaces["router"]
        interfaces["router"] = Interface(fields.get("ip", router.ip), fields.get("port", router.port))
    fields["interfaces"] = interfaces
    fields["extra"] = info.extra | fields.get("extra", {})
    return msgspec.structs.replace(info, **fields)


def read_catalog(frame: Frame) -> dict[str, Any]:
    """The answer to an info request: entries by service name."""
    if len(frame) > MAX_CATALOG_BYTES:
        raise refuse("too_long", f"catalog is {len(frame)} bytes; allowed are {MAX_CATALOG_BYTES}")
    return _decode(bytes(frame), "catalog", MAX_DEPTH + 2)


def read_error(body: Sequence[Frame]) -> str | None:
    """What an answer's body says went wrong, if it is the broker's `{"Error": text}`."""
    if len(body) != 1 or len(body[0]) > MAX_TEXT_BYTES or not bytes(body[0]).startswith(b'{"Error"'):
        return None
    try:
        text = _decode(bytes(body[0]), "error").get("Error")
    except RemoteProtocolError:
        return None  # a service's own bytes that only begin like one
    return text if type(text) is str else None


def _decode(text: bytes, what: str, levels: int = MAX_DEPTH) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        # msgspec's own errors are ValueErrors; so is the UnicodeDecodeError that it lets through.
        raise refuse("bad_json", f"{what} is not JSON: {error}") from None
    if type(value) is not dict:
        raise refuse("bad_json", f"{what} is a JSON {type(value).__name__}; it must be an object")
    if not _is_shallow(value, levels):
        raise refuse("bad_json", f"{what} is nested deeper than {levels} levels")
    return value


def _is_shallow(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_is_shallow(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)
    return True


def read_json_objects(frames: Frames, what: str) -> dict[str, Any]:
    """Several JSON objects as one; of two values for one key the later one counts."""
    size = sum(len(frame) for frame in frames)
    if len(frames) > MAX_INFO_FRAMES or size > MAX_TEXT_BYTES:
        raise refuse(
            "too_long",
            f"{what} has {len(frames)} frames of {size} bytes; allowed are {MAX_INFO_FRAMES} and "
            f"{MAX_TEXT_BYTES}",
        )
    given: dict[str, Any] = {}
    for frame in frames:
        given |= read_json_object(frame, what)
    return given


def _read_fields(frames: Frames, form: TimeForm) -> dict[str, Any]:
    try:
        given = read_json_objects(frames, "service information")
    except RemoteProtocolError as error:
        raise RegistrationRefused((str(error),), form) from None
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    reasons: list[str] = []
    if "name" not in given:
        reasons.append("name is missing")
    for key, value in given.items():
        reader = _FIELDS.get(key)
        if reader is None:
            extra[key] = value
        elif value is not None or key == "name":
            field, read = reader
            try:
                fields[field] = read(value, key)
            except RemoteProtocolError as error:
                reasons.append(str(error))
    if reasons:
        raise RegistrationRefused(tuple(reasons), form)
    if extra:
        fields["extra"] = extra
    _use_router(fields)
    return fields


def _use_router(fields: dict[str, Any]) -> None:
    # The original says ip and port only in its interface "router", the socket that takes requests.
    router = fields.get("interfaces", {}).get("router")
    if router is not None:
        fields.setdefault("ip", router.ip)
        fields.setdefault("port", router.port)


def _name(value: object, what: str) -> bytes:
    if type(value) is not str:
        raise refuse("bad_info", f"{what} must be text")
    return read_name(value.encode(), what)


def _ip(value: object, what: str) -> str:
    if type(value) is str and _HOST.fullmatch(value):
        return value
    raise refuse("bad_info", f"{what} must be an IP address or host name")


def _port(value: object, what: str) -> int:
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 5:
        value = int(value)
    if type(value) is int and 1 <= value <= 65535:
        return value
    raise refuse("bad_info", f"{what} must be a number from 1 to 65535")


def _function(value: object, what: str) -> str:
    if type(value) is str and len(value) <= MAX_FUNCTION_CHARS:
        return value
    raise refuse("bad_info", f"{what} must be text of at most {MAX_FUNCTION_CHARS} characters")


def _seconds(value: object, what: str) -> float:
    if (type(value) is int or type(value) is float) and MIN_HEARTBEAT_S <= value <= MAX_HEARTBEAT_S:
        return float(value)
    raise refuse(
        "bad_info", f"{what} must be a number of seconds from {MIN_HEARTBEAT_S} to {MAX_HEARTBEAT_S:.0f}"
    )


def _milliseconds(value: object, what: str) -> float:
    low_ms, high_ms = 1000 * MIN_HEARTBEAT_S, 1000 * MAX_HEARTBEAT_S
    if (type(value) is int or type(value) is float) and low_ms <= value <= high_ms:
        return value / 1000
    raise refuse("bad_info", f"{what} must be a number of milliseconds from {low_ms:.0f} to {high_ms:.0f}")


def _credit(value: object, what: str) -> int:
    if type(value) is int and 1 <= value <= MAX_CREDIT:
        return value
    raise refuse("bad_info", f"{what} must be a number from 1 to {MAX_CREDIT}")


def _interfaces(value: object, what: str) -> dict[str, Interface]:
    if type(value) is not dict or len(value) > MAX_INTERFACES:
        raise refuse("bad_info", f"{what} must be an object of at most {MAX_INTERFACES} interfaces")
    interfaces: dict[str, Interface] = {}
    reasons: list[str] = []
    for name, entry in value.items():
        try:
            interfaces[name] = _interface(entry, f"{what}[{name[:40]!r}]")
        except RemoteProtocolError as error:
            reasons.append(str(error))
    if reasons:
        raise refuse("bad_info", "; ".join(reasons))
    return interfaces


def _interface(value: object, what: str) -> Interface:
    if type(value) is not dict:
        raise refuse("bad_info", f"{what} must be an object with ip and port")
    return Interface(_ip(value.get("ip"), f"{what}.ip"), _port(value.get("port"), f"{what}.port"))


# JSON key -> field of NodeInfo, and how its value is read.  Of several keys for one field the last wins.
_FIELDS: Final[Mapping[str, tuple[str, Callable[[object, str], Any]]]] = {
    "name": ("name", _name),
    "ip": ("ip", _ip),
    "port": ("port", _port),
    "function": ("function", _function),
    "heartbeat": ("heartbeat_s", _seconds),
    "heartbeat_s": ("heartbeat_s", _seconds),
    "liveliness": ("heartbeat_s", _milliseconds),  # the original's word, in milliseconds
    "credit": ("credit", _credit),
    "interfaces": ("interfaces", _interfaces),
}


# -- writing ----------------------------------------------------------------------------------


def write_info(info: NodeInfo) -> bytes:
    """The JSON object of a REGISTRATION; `read_info` reads it back."""
    return _checked({**_entry(info), "name": info.name})


def write_changes(name: bytes, changes: Mapping[str, Any]) -> bytes:
    """The JSON object of an UPDATE; `changes` are fields of `NodeInfo`."""
    fields = dict(changes)
    extra = fields.pop("extra", {})
    return _checked({**extra, **fields, "name": name})


def catalog_entry(info: NodeInfo) -> dict[str, Any]:
    """What clients are told about a service.

    The original's clients look for the address in `interfaces.router`, so it is there in any case.
    """
    entry = _entry(info)
    if info.ip is not None and info.port is not None:
        entry["interfaces"] = {"router": Interface(info.ip, info.port), **info.interfaces}
    return entry


def _entry(info: NodeInfo) -> dict[str, Any]:
    entry = dict(info.extra)
    for field in ("ip", "port", "function", "heartbeat_s"):
        value = getattr(info, field)
        if value is not None:
            entry[field] = value
    if info.credit != 1:
        entry["credit"] = info.credit
    if info.interfaces:
        entry["interfaces"] = dict(info.interfaces)
    return entry


def _checked(entry: dict[str, Any]) -> bytes:
    # Services write this once in their life: reading it back finds every mistake the broker would find.
    try:
        text = msgspec.json.encode({**entry, "name": entry["name"].decode()})
        _read_fields((text,), TimeForm.FLOAT)
    except (RemoteProtocolError, TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"service information cannot be sent: {error}") from None
    return text
