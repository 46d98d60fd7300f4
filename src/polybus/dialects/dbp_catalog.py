"""What DBP's clients are told about services, and what a registration comes to.

The list has the services of every dialect: a node of the catalog with the entry that it registered,
any other service with its dialect and load.  Only what is active is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any, Final

import msgspec

from polybus.core.bus import Bus
from polybus.core.lifecycle import ABSENT, NodeState
from polybus.core.model import Node, Service
from polybus.wire.dbp import BROKER
from polybus.wire.dbp_info import (
    HEARTBEAT_IP,
    MAX_CATALOG_BYTES,
    NodeInfo,
    catalog_entry,
    changed,
    read_info,
)
from polybus.wire.dbp_time import TimeForm

# The key of an answer that tells of a mistake. A service of this name would make every list look like one.
ERROR: Final = "Error"
# The two ways to be called, as a registration may name them in its field "transport".
OWN_ADDRESS: Final = "req"
THIS_SOCKET: Final = "dealer"
# And not to be called at all, only listed: a node that publishes, or that its clients call themselves.
NOWHERE: Final = "none"
LOOPBACK: Final = "127.0.0.1"
# What only the connection that registered a node may change: the rest of an entry only describes the node.
MOVING: Final = ("ip", "port", "interfaces", "transport", "credit", "heartbeat_s", HEARTBEAT_IP)


# -- what is registered -----------------------------------------------------------------------


def transport_of(info: NodeInfo) -> str:
    """How a service wants to be called (the rule is in the opening text of `dbp`)."""
    default = OWN_ADDRESS if info.interfaces else THIS_SOCKET
    return str(info.extra.get("transport", default))


def endpoint_of(info: NodeInfo) -> str:
    """Where a service is called at its own address; empty if it did not say."""
    if info.ip is None or info.port is None:
        return ""
    ip = LOOPBACK if info.ip == "localhost" else info.ip
    host = f"[{ip}]" if ":" in ip else ip
    return f"tcp://{host}:{info.port}"


def is_address(ip: str) -> bool:
    """Whether it can be dialled without looking a name up, which would hold up every socket meanwhile."""
    try:
        ip_address(LOOPBACK if ip == "localhost" else ip)
    except ValueError:
        return False
    return True


def source_of(info: NodeInfo) -> str:
    """The ip that its datagrams come from, as the system writes it; empty if it gave a host name or none.
    A node that is reached elsewhere, as those that are reached through the broker, says it in a field."""
    ip = info.extra.get(HEARTBEAT_IP, info.ip)
    if type(ip) is not str or not is_address(ip):
        return ""
    return str(ip_address(LOOPBACK if ip == "localhost" else ip))


def lacks(info: NodeInfo, strict: bool = False) -> tuple[str, ...]:
    """Why a registration cannot be taken, all reasons at once."""
    reasons = []
    if strict or not info.interfaces:
        # The original says neither function nor heartbeat, and its address in `interfaces`: that is complete
        # as it is, unless the document is to be followed to the letter.
        reasons += [f"{field} is missing" for field in info.missing]
    if info.name == ERROR.encode():
        reasons.append(f"the name {ERROR!r} stands for mistakes; choose another")
    if transport_of(info) not in (OWN_ADDRESS, THIS_SOCKET, NOWHERE):
        reasons.append(f"transport must be {OWN_ADDRESS!r}, {THIS_SOCKET!r} or {NOWHERE!r}")
    if transport_of(info) == OWN_ADDRESS and info.ip is not None and not is_address(info.ip):
        reasons.append("ip must be an address, not a host name: the broker calls the service there")
    return tuple(reasons)


def entry_of(info: NodeInfo) -> dict[str, Any]:
    """The entry that is kept, as plain values."""
    entry: dict[str, Any] = msgspec.to_builtins(catalog_entry(info))
    return entry


def updated(node: Node, changes: dict[str, Any], form: TimeForm) -> NodeInfo:
    """What is registered after an UPDATE."""
    kept = {**node.info, "name": node.name.decode()}
    return changed(read_info(msgspec.json.encode(kept), form), changes)


def moves(node: Node, info: NodeInfo) -> bool:
    """Whether an UPDATE changes where a node is reached, how it is called or how often it beats."""
    entry = entry_of(info)
    return any(node.info.get(field) != entry.get(field) for field in MOVING)


# -- what is told -----------------------------------------------------------------------------


def introduce(about: dict[str, Any]) -> bytes:
    """The JSON that answers an info request about the broker itself, which is in no list."""
    return msgspec.json.encode({BROKER.decode(): about})


def describe(bus: Bus, name: bytes) -> bytes:
    """The JSON that answers an info request; an empty name asks for everything."""
    if not name:
        return _describe_all(bus)
    entry = _entry(bus, name)
    return msgspec.json.encode(_inactive(name) if entry is None else {name.decode(): entry})


def describe_several(bus: Bus, names: Sequence[bytes]) -> bytes:
    """The JSON that answers an info request for several services, with a warning in place of each that is
    not active."""
    entries = {name: _entry(bus, name) for name in names}
    if all(entry is None for entry in entries.values()):
        return msgspec.json.encode({ERROR: f"No Registered Service With the Names {_joined(entries)}"})
    return _write(
        (name, _inactive(name) if entry is None else entry) for name, entry in sorted(entries.items())
    )


def is_known(bus: Bus, name: bytes) -> bool:
    return name in bus.nodes or name in bus.services


def _inactive(name: bytes) -> dict[str, Any]:
    return {ERROR: f"No Registered Service With the Name {name.decode()}"}


def _joined(names: Iterable[bytes]) -> str:
    return ", ".join(name.decode() for name in names)


def _describe_all(bus: Bus) -> bytes:
    found = ((name, _entry(bus, name)) for name in sorted(bus.nodes.keys() | bus.services.keys()))
    return _write((name, entry) for name, entry in found if entry is not None)


def _write(entries: Iterable[tuple[bytes, dict[str, Any]]]) -> bytes:
    pieces: dict[str, msgspec.Raw] = {}
    size = 0
    for name, entry in entries:
        text = name.decode(errors="replace")
        pieces[text] = msgspec.Raw(msgspec.json.encode(entry))
        size += len(name) + len(pieces[text])
        if size > MAX_CATALOG_BYTES:
            reason = f"the list is longer than {MAX_CATALOG_BYTES} bytes; ask for a service by its name"
            return msgspec.json.encode({ERROR: reason})
    return msgspec.json.encode(pieces)


def _entry(bus: Bus, name: bytes) -> dict[str, Any] | None:
    if name == ERROR.encode():
        return None
    node = bus.nodes.get(name)
    if node is not None:
        return _node_entry(node)
    service = bus.services.get(name)
    if service is not None and service.roster.members:
        entry = _service_entry(service)
        via = bus.bridging.via(name) if bus.bridging is not None else []
        return {**entry, "via": via} if via else entry
    return None


def _node_entry(node: Node) -> dict[str, Any]:
    if node.serves is not None and (node.worker is None or node.worker.state in ABSENT):
        return {**node.info, "state": "unreachable"}
    if node.state is NodeState.LATE:
        return {**node.info, "state": "late"}
    return node.info


def _service_entry(service: Service) -> dict[str, Any]:
    workers = service.roster.members
    return {
        "dialect": ",".join(sorted({worker.voice.dialect for worker in workers})),
        "function": "",
        "workers": len(workers),
        "queued": service.queue.length,
    }
