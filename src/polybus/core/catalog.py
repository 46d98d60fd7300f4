"""The catalog: nodes register under a name and keep their registration by heartbeats.

A registration is a lease, not a connection: a node may register over a socket that it closes
at once.  One name belongs to one node.  Who registers a name that is taken gets it if it is the
same node come back (the same connection, or the same address in its entry) or if the holder's lease
is overdue; otherwise it is refused with that reason.

A node that can be called is also a worker, and the two go together: the lease brings the worker up
and takes it down, and whatever is heard from the one counts for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polybus.core import requests, workers
from polybus.core.actions import UNKNOWN_WORKER, Acknowledge, Approve, Deny, Dismiss, Forget
from polybus.core.intake import BUILT_IN
from polybus.core.lifecycle import BEAT, LAPSE, MISS, NodeState, WorkerState
from polybus.core.model import Node, Worker

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
    if event.serves is not None and event.name.startswith(BUILT_IN):
        reasons.append(f"{event.name.decode(errors='replace')} is a service of the broker itself")
    if not reasons and event.serves is not None and bus.service(event.name) is None:
        reasons.append(f"{bus.limits.services} services are known; allowed are no more")
    if reasons:
        bus.counters.rejected += 1
        bus.actions.append(Deny(event.node, event.voice, event.name, tuple(reasons)))
        bus.observe("denied", now, service=event.name, client=event.node, reason="; ".join(reasons))
        return
    if held is not None:
        bus.leases.clear(held)
        _retire(bus, held, "it registered anew", now)
    node = Node(
        event.name, event.info, event.node, event.voice, event.heartbeat_s, now, now, serves=event.serves
    )
    bus.nodes[event.name] = node
    _lease(bus, node, now)
    bus.actions.append(Approve(event.node, event.voice, node))
    _serve(bus, node, now)
    bus.observe("registered", now, service=event.name, client=event.node)


def on_update(bus: Bus, event: events.UpdateNode, now: float) -> None:
    node = bus.nodes.get(event.name)
    if node is None:
        reason = f"no node is registered as {event.name.decode(errors='replace')!r}; register first"
        bus.actions.append(Deny(event.node, event.voice, event.name, (reason,)))
        return
    node.info = {**node.info, **event.changes}
    if event.heartbeat_s is not None:
        bus.leases.clear(node)
        node.heartbeat_s = event.heartbeat_s
        _lease(bus, node, now)
    if event.serves is not None:
        _serve_otherwise(bus, node, event.serves, now)
    _beat(bus, node, now)
    bus.actions.append(Acknowledge(event.node, event.voice, event.name))
    bus.observe("updated", now, service=event.name, client=event.node)


def on_beat(bus: Bus, event: events.NodeBeat, now: float) -> None:
    node = bus.nodes.get(event.name)
    if node is None:
        bus.actions.append(Dismiss(event.node, event.voice, "unknown_node"))
        return
    if node.serves is not None and _worker(node) is None:
        if not node.serves.endpoint:
            # It is there but its conversation was lost, and only it can begin a new one.
            _forget(bus, node, "its connection was lost", now)
            bus.actions.append(Dismiss(event.node, event.voice, UNKNOWN_WORKER))
            return
        _serve(bus, node, now)
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
        silent_s = now - _seen_at(node)
        if silent_s >= node.heartbeat_s * MISSED_BEATS:
            _forget(bus, node, f"no heartbeat for {silent_s:.1f} s", now)
            continue
        if silent_s >= node.heartbeat_s * 1.5:
            node.state = MISS[node.state]
            node.missed += 1
            bus.observe("node_late", now, service=node.name, client=node.address)
        elif node.state is NodeState.LATE:
            node.state = BEAT[node.state]
        _lease(bus, node, now)


def _beat(bus: Bus, node: Node, now: float) -> None:
    node.seen_at = now
    node.state = BEAT[node.state]
    worker = _worker(node)
    if worker is not None:
        requests.heard(bus, worker, now)


def _seen_at(node: Node) -> float:
    return node.seen_at if node.worker is None else max(node.seen_at, node.worker.seen_at)


def _lease(bus: Bus, node: Node, now: float) -> None:
    if node.heartbeat_s > 0:
        ends_at = _seen_at(node) + node.heartbeat_s * MISSED_BEATS
        bus.leases.set(node, min(now + node.heartbeat_s, ends_at))


def _worker(node: Node) -> Worker | None:
    """The worker that the node is, unless it is gone."""
    worker = node.worker
    return None if worker is None or worker.state is WorkerState.GONE else worker


def _serve(bus: Bus, node: Node, now: float) -> None:
    if node.serves is not None:
        node.worker = workers.bring_up(bus, node.serves, now)


def _serve_otherwise(bus: Bus, node: Node, serves: events.WorkerUp, now: float) -> None:
    node.serves = serves
    worker = _worker(node)
    if worker is None or worker.endpoint != serves.endpoint:
        _retire(bus, node, "it is called in another way now", now)
        _serve(bus, node, now)
    else:
        worker.heartbeat = serves.heartbeat


def _retire(bus: Bus, node: Node, why: str, now: float) -> None:
    worker = _worker(node)
    if worker is not None:
        workers.remove(bus, worker, why, now)


def _forget(bus: Bus, node: Node, why: str, now: float) -> None:
    node.state = LAPSE[node.state]
    bus.leases.clear(node)
    del bus.nodes[node.name]
    bus.actions.append(Forget(node, why))
    _retire(bus, node, why, now)
    bus.observe("node_down", now, service=node.name, client=node.address, reason=why)


def _same_node(held: Node, event: events.Register) -> bool:
    if held.address == event.node:
        return True
    here, there = held.info, event.info
    return bool(here.get("ip")) and (here.get("ip"), here.get("port")) == (there.get("ip"), there.get("port"))
