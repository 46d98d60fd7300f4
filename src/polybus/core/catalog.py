"""The catalog: nodes register under a name and keep their registration by heartbeats.

A registration is a lease, not a connection: a node may register over a socket that it closes
at once.  One name belongs to one node.  Who registers a name that is taken gets it if it is the
same node come back (the same connection, or the same address in its entry) or if the holder's lease
is overdue; otherwise it is refused with that reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polybus.core.actions import Acknowledge, Approve, Deny, Dismiss, Forget
from polybus.core.lifecycle import BEAT, LAPSE, MISS, NodeState
from polybus.core.model import Node

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.bus import Bus

# A lease ends after this many missed heartbeats (the document says 3 to 5).
MISSED_BEATS: Final = 4


def on_register(bus: Bus, event: events.Register, now: float) -> None:
    reasons = list(event.missing)
    held = bus.nodes.get(event.name)
    if held is not None and not _same_node(held, event) and held.state is NodeState.ALIVE:
        reasons.append(f"the name {event.name.decode(errors='replace')!r} is taken by a node that is alive")
    if held is None and len(bus.nodes) >= bus.limits.nodes:
        reasons.append(f"the catalog is full: {bus.limits.nodes} nodes are registered")
    if reasons:
        bus.counters.rejected += 1
        bus.actions.append(Deny(event.node, event.voice, event.name, tuple(reasons)))
        bus.observe("denied", now, service=event.name, client=event.node, reason="; ".join(reasons))
        return
    if held is not None:
        bus.leases.clear(held)
        if held.worker is not None and held.worker != event.worker:
            bus.actions.append(Forget(held, "it registered anew"))
    node = Node(
        event.name, event.info, event.node, event.voice, event.heartbeat_s, now, now, worker=event.worker
    )
    bus.nodes[event.name] = node
    _lease(bus, node, now)
    bus.actions.append(Approve(event.node, event.voice, node))
    bus.observe("registered", now, service=event.name, client=event.node)


def on_update(bus: Bus, event: events.UpdateNode, now: float) -> None:
    node = bus.nodes.get(event.name)
    if node is None:
        reason = f"no node is registered as {event.name.decode(errors='replace')!r}; register first"
        bus.actions.append(Deny(event.node, event.voice, event.name, (reason,)))
        return
    node.info = {**node.info, **event.changes}
    _beat(bus, node, now)
    bus.actions.append(Acknowledge(event.node, event.voice, event.name))
    bus.observe("updated", now, service=event.name, client=event.node)


def on_beat(bus: Bus, event: events.NodeBeat, now: float) -> None:
    node = bus.nodes.get(event.name)
    if node is None:
        bus.actions.append(Dismiss(event.node, event.voice, "unknown_node"))
        return
    _beat(bus, node, now)
    bus.actions.append(Acknowledge(event.node, event.voice, event.name))


def on_left(bus: Bus, event: events.NodeLeft, now: float) -> None:
    names = [event.name] if event.name else [n.name for n in bus.nodes.values() if n.address == event.node]
    for name in names:
        node = bus.nodes.get(name)
        if node is not None:
            _forget(bus, node, "it left", now)


def lapse_due(bus: Bus, now: float) -> None:
    for node in bus.leases.due(now):
        silent_s = now - node.seen_at
        if silent_s >= node.heartbeat_s * MISSED_BEATS:
            _forget(bus, node, f"no heartbeat for {silent_s:.1f} s", now)
            continue
        if silent_s >= node.heartbeat_s * 1.5:
            node.state = MISS[node.state]
            node.missed += 1
            bus.observe("node_late", now, service=node.name, client=node.address)
        _lease(bus, node, now)


def _beat(bus: Bus, node: Node, now: float) -> None:
    node.seen_at = now
    node.state = BEAT[node.state]


def _lease(bus: Bus, node: Node, now: float) -> None:
    if node.heartbeat_s > 0:
        bus.leases.set(node, now + node.heartbeat_s)


def _forget(bus: Bus, node: Node, why: str, now: float) -> None:
    node.state = LAPSE[node.state]
    bus.leases.clear(node)
    del bus.nodes[node.name]
    bus.actions.append(Forget(node, why))
    bus.observe("node_down", now, service=node.name, client=node.address, reason=why)


def _same_node(held: Node, event: events.Register) -> bool:
    if held.address == event.node:
        return True
    here, there = held.info, event.info
    return bool(here.get("ip")) and (here.get("ip"), here.get("port")) == (there.get("ip"), there.get("port"))
