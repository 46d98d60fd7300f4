"""The catalog: nodes register under a name and keep their registration by heartbeats.

A registration is a lease, not a connection: a node may register over a socket that it closes at once, and
it is still registered after a restart of the broker.  How a lease is kept and how it ends is in `leases`.

One name belongs to one node.  Who registers a name that is taken

- gets it if it is the same node come back: the same connection, or the same ip and port in its entry.
  Anybody can name the address of another, so there are three limits.  A node that is called elsewhere than
  on its registering connection keeps its name while that connection is open.  If calls would go elsewhere
  than before, the holder is asked first: if it speaks up before its next beat is overdue, it keeps its name.
  If they would not, the newcomer gets the name, but has only inherited it (see below);
- gets it if the holder is late or gone;
- is refused otherwise, with the reason and the holder's address.  A node that lives keeps its name.

Only the connection that registered a name speaks for it.  Another one

- cannot keep the node alive: its heartbeat is answered with the end of its conversation, which ends what it
  registered itself as well;
- cannot change or end a registration while the registering connection is open;
- can change the description of a node whose registering connection is closed, because the original
  implementation registers on a socket that it closes.  It cannot change where calls go.  If it says goodbye
  for such a node, the node is asked at its registered address, and leaves if it does not answer.

Who inherited a name keeps the node alive and describes it.  The node may still be there and be another one,
so it is asked, and what it registered counts, before the heir moves it or says goodbye for it; and the next
one that comes with the same address inherits the name from the heir.

A node that can be called is also a worker, and the two go together: the lease brings the worker up
and takes it down, and whatever is heard from the one counts for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from polybus.core import events, leases, requests, workers
from polybus.core.actions import UNKNOWN_WORKER, Acknowledge, Approve, Ask, Deny, Dismiss
from polybus.core.intake import BUILT_IN
from polybus.core.leases import MISSED_BEATS as MISSED_BEATS
from polybus.core.leases import Claim, Unproven, is_mute, worker_of
from polybus.core.ledger import NodeEntry, Registered
from polybus.core.model import Address, Node
from polybus.core.tables import NO_STORE

if TYPE_CHECKING:
    from polybus.core.bus import Bus

# The heartbeat timing in the entry of a node.
TIMING: Final = "heartbeat_s"
# What tells in it where the node is, also to those who go there themselves.
PLACE: Final = ("ip", "port", "interfaces")
# What a registration of an earlier life of the broker comes to; None if nobody speaks its dialect any more.
Revive = Callable[[NodeEntry], events.Register | None]


def on_register(bus: Bus, event: events.Register, now: float) -> None:
    held = bus.nodes.get(event.name)
    reasons = _why_not(bus, event, held, now)
    if reasons:
        _deny(bus, event, reasons, now)
    elif held is None or not leases.is_alive(held, now) or _owns(held, event.node):
        _register(bus, event, held, now)
    elif not leases.is_called_elsewhere(held):
        if is_mute(held):
            # Its conversation is lost, and only the node can begin a new one.
            _register(bus, event, held, now)
        else:
            _claim(bus, held, event, now)
    elif held.unplugged or held.inherited:
        _come_back(bus, held, event, now)
    else:
        _find_out(bus, held, event, now)


def _come_back(bus: Bus, held: Node, event: events.Register, now: float) -> None:
    """Somebody registers a living node that is not called on a connection, with its ip and port."""
    if _moves(held, event):
        _claim(bus, held, event, now)
    else:
        _register(bus, _as_slow(held, event), held, now, inherited=True)


def _moves(held: Node, event: events.Register) -> bool:
    """Whether the node would be called, asked or heard elsewhere than now, or in another way."""
    here, there = held.serves, event.serves
    return (
        (here is None) != (there is None)
        or (here is not None and there is not None and here.endpoint != there.endpoint)
        or any(held.info.get(field) != event.info.get(field) for field in PLACE)
        or (held.ip, held.how) != (event.ip, event.how)
    )


def _as_slow(held: Node, event: events.Register) -> events.Register:
    """The registration with the heartbeat timing of the holder, if that one is slower: with a faster one the
    node would count as late, if it is still there and is another one."""
    if event.heartbeat_s > 0 and (held.heartbeat_s <= 0 or held.heartbeat_s > event.heartbeat_s):
        info = {**event.info, TIMING: held.info.get(TIMING)}
        return structs.replace(event, heartbeat_s=held.heartbeat_s, info=info, quiet=held.quiet)
    return event


def _claim(bus: Bus, held: Node, event: events.Register | events.UpdateNode, now: float) -> None:
    """Ask the holder before somebody else gets its name or moves it."""
    bus.catalog.claims[event.name] = Claim(event, now, now + leases.NOTICE_S)
    bus.catalog.claims_at = min(bus.catalog.claims_at, now + leases.NOTICE_S)
    leases.ask_now(bus, held, now)


def _why_not(bus: Bus, event: events.Register, held: Node | None, now: float) -> list[str]:
    """Why a registration cannot be taken, all reasons at once."""
    reasons = list(event.missing)
    name = event.name.decode(errors="replace")
    claim = bus.catalog.claims.get(event.name)
    if claim is not None and isinstance(claim.event, events.Register):
        reasons.append(f"somebody else asks for the name {name!r} at this moment; try again later")
    elif held is not None and not _same_node(held, event) and leases.is_alive(held, now):
        reasons.append(_taken(bus, held, now))
    if held is None and len(bus.nodes) >= bus.limits.nodes:
        reasons.append(f"the catalog is full: {bus.limits.nodes} nodes are registered")
    if event.serves is not None and event.name.startswith(BUILT_IN):
        reasons.append(f"{name} is a service of the broker itself")
    if not reasons and event.serves is not None and bus.service(event.name) is None:
        reasons.append(f"{bus.limits.services} services are known; allowed are no more")
    return reasons


def _taken(bus: Bus, held: Node, now: float) -> str:
    name = held.name.decode(errors="replace")
    place = _place(held)
    return (
        f"the name {name!r} is taken by a node that is alive{', at ' + place if place else ''}; "
        f"{_lease(bus, held, now)}; choose another name, or register when that node is gone"
    )


def _place(node: Node) -> str:
    """Where the node said that it is; empty if it did not."""
    return f"{node.info['ip']}:{node.info.get('port')}" if node.info.get("ip") else ""


def _lease(bus: Bus, node: Node, now: float) -> str:
    left_s = leases.left_s(bus, node, now)
    if left_s == inf:
        return "its lease does not end by itself"
    if left_s <= 0:
        return "its lease is about to end"
    return f"its lease ends in {left_s:.1f} s unless the node is heard of"


def _same_node(held: Node, event: events.Register) -> bool:
    if held.address == event.node:
        return True
    here, there = held.info, event.info
    return bool(here.get("ip")) and (here.get("ip"), here.get("port")) == (there.get("ip"), there.get("port"))


def _deny(bus: Bus, event: events.Register, reasons: list[str], now: float) -> None:
    bus.counters.rejected += 1
    bus.actions.append(Deny(event.node, event.voice, event.name, tuple(reasons)))
    bus.observe("denied", now, service=event.name, client=event.node, reason="; ".join(reasons))


def settle_claims(bus: Bus, now: float) -> None:
    """Decide who gets a name whose holder was asked, and what becomes of unproven messages."""
    catalog = bus.catalog
    if now < catalog.claims_at:
        return
    _settle_unproven(bus, now)
    for name, claim in list(catalog.claims.items()):
        held = bus.nodes.get(name)
        if held is not None and not is_mute(held):
            if leases.seen_at(held) > claim.since:
                del catalog.claims[name]
                _refuse_claim(bus, claim.event, held, now)
                continue
            if now < _granted_at(bus, held, claim):
                if now >= claim.again_at:
                    # Less and less often: who is there and silent is not to be bothered.
                    claim.again_at = now + 2 * (now - claim.since)
                    leases.ask_now(bus, held, now)
                continue
        _grant(bus, claim, held, now)
    catalog.claims_at = now + leases.NOTICE_S if catalog.claims or catalog.unproven else inf


def _granted_at(bus: Bus, held: Node, claim: Claim) -> float:
    """Until when a holder that was asked may speak up."""
    least_s = leases.NOTICE_S
    if leases.is_called_elsewhere(held):
        # It is asked at its own address, which has to be connected to first.
        least_s = leases.answer_s(bus, held) if held.heartbeat_s > 0 else leases.ANSWER_S
    return max(claim.since + least_s, leases.seen_at(held) + leases.overdue_s(held))


def _refuse_claim(bus: Bus, event: events.Register | events.UpdateNode, held: Node, now: float) -> None:
    if isinstance(event, events.Register):
        _deny(bus, event, [_taken(bus, held, now)], now)
        return
    reason = (
        f"{_inherited(held)}; it was heard of again after this message came, so it stays where it is. "
        "Send this again when the node at the old place is gone"
    )
    _refuse(bus, event, (reason,), now)


def _grant(bus: Bus, claim: Claim, held: Node | None, now: float) -> None:
    event = claim.event
    del bus.catalog.claims[event.name]
    if isinstance(event, events.Register):
        _register(bus, event, held, now)
        return
    if held is not None and held.address == event.node:
        # Nobody else is there.
        held.inherited = False
    on_update(bus, event, now)


# -- a lease begins -----------------------------------------------------------------------------------


def _register(
    bus: Bus, event: events.Register, held: Node | None, now: float, inherited: bool = False
) -> None:
    if held is not None:
        # What the holder was given it may still answer, unless this is its own connection, where the old
        # conversation ends.
        worker = held.worker
        lapsed = worker is not None and worker.address != event.node and workers.is_busy(worker)
        leases.retire(bus, held, "it registered anew", now, lapsed)
    node = _node(event, now)
    node.admitted = False
    node.inherited = inherited
    bus.nodes[event.name] = node
    bus.catalog.enter(node)
    leases.watch(bus, node, now)
    approval = Approve(event.node, event.voice, node)
    if bus.store_trouble != NO_STORE:
        _note(bus, node, now)
    if bus.store_trouble:
        _admit(bus, node, approval, now)
    else:
        bus.catalog.unwritten.append((bus.batch, node, approval))


def _node(event: events.Register, now: float) -> Node:
    return Node(
        event.name,
        event.info,
        event.node,
        event.voice,
        event.heartbeat_s,
        now,
        now,
        serves=event.serves,
        how=event.how,
        ip=event.ip,
        reach=event.reach,
        quiet=event.quiet,
    )


def _note(bus: Bus, node: Node, now: float) -> None:
    info = msgspec.json.encode(node.info)
    since = bus.wall_at(node.registered_at)
    bus.lines.append(Registered(NodeEntry(node.name, info, node.heartbeat_s, node.how, since)))


def admit_written(bus: Bus, number: int, now: float) -> None:
    """Everything up to this batch is on disk."""
    unwritten = bus.catalog.unwritten
    while unwritten and unwritten[0][0] <= number:
        _, node, approval = unwritten.popleft()
        if bus.nodes.get(node.name) is node:
            _admit(bus, node, approval, now)


def _admit(bus: Bus, node: Node, approval: Approve, now: float) -> None:
    node.admitted = True
    bus.actions.append(approval)
    _serve(bus, node, now)
    bus.observe("node_up", now, service=node.name, client=node.address, reason="it registered")


def restore(bus: Bus, entries: Iterable[NodeEntry], revive: Revive, now: float) -> None:
    """Let the leases of an earlier life go on: every node has the usual time to show itself."""
    for entry in entries:
        event = revive(entry)
        if event is None or entry.name in bus.nodes:
            continue
        node = _node(event, now)
        node.registered_at = entry.registered_at - bus.wall_offset
        node.unplugged = True
        bus.nodes[entry.name] = node
        leases.watch(bus, node, now)
        if node.serves is not None and node.serves.endpoint:
            _serve(bus, node, now)


# -- a lease goes on ----------------------------------------------------------------------------------


def on_update(bus: Bus, event: events.UpdateNode, now: float) -> None:
    node = bus.nodes.get(event.name)
    if node is None:
        reason = f"no node is registered as {event.name.decode(errors='replace')!r}; register first"
        bus.actions.append(Deny(event.node, event.voice, event.name, (reason,)))
    elif not _speaks_for(node, event.node):
        _doubt(bus, node, event, now)
    elif event.missing:
        _refuse(bus, event, event.missing, now)
    elif event.moves and not _owns(node, event.node):
        if event.name in bus.catalog.claims:
            reason = f"{_inherited(node)}; the node is being asked whether it is there: try again later"
            _refuse(bus, event, (reason,), now)
        else:
            _claim(bus, node, event, now)
    else:
        _update(bus, node, event, now)


def _update(bus: Bus, node: Node, event: events.UpdateNode, now: float) -> None:
    node.unplugged = False
    node.info = {**node.info, **event.changes}
    if event.how is not None:
        node.how = event.how
    if event.ip is not None and (event.ip, event.reach) != (node.ip, node.reach):
        # What it showed was at its old place.
        leases.drop_line(bus, node, now)
        node.ip, node.reach, node.pulse_from = event.ip, event.reach, None
    if event.heartbeat_s is not None:
        node.heartbeat_s, node.quiet = event.heartbeat_s, event.quiet
    if event.serves is not None:
        _serve_otherwise(bus, node, event.serves, now)
    leases.beat(bus, node, now)
    bus.leases.clear(node)
    leases.watch(bus, node, now)
    _acknowledge_update(bus, node, event, now)


def _acknowledge_update(bus: Bus, node: Node, event: events.UpdateNode, now: float) -> None:
    if bus.store_trouble != NO_STORE:
        _note(bus, node, now)
    bus.actions.append(Acknowledge(event.node, event.voice, event.name))
    bus.observe("updated", now, service=event.name, client=event.node)


def on_beat(bus: Bus, event: events.NodeBeat, now: float) -> None:
    node = bus.nodes.get(event.name)
    if node is None:
        name = event.name.decode(errors="replace")
        reason = f"a heartbeat for {name!r}, but no node is registered so; it must register first"
        _disconnect(bus, event, reason, now)
        return
    claim = bus.catalog.claims.get(event.name)
    if claim is not None and claim.event.node == event.node:
        # It does not have the name yet.
        return
    if is_mute(node):
        # It is there but its conversation was lost, and only it can begin a new one. The lease waits for it.
        _disconnect(bus, event, UNKNOWN_WORKER, now, waiting=node)
        return
    if not _speaks_for(node, event.node):
        # It does not keep the node alive, but the node may be there again at its own address.
        if node.serves is not None and worker_of(node) is None:
            _serve(bus, node, now)
        # A node whose connection broke and came back as another one registers again when it hears this.
        reason = f"a heartbeat, but {_not_yours(bus, node, now)}"
        _disconnect(bus, event, reason, now)
        return
    node.unplugged = False
    if node.serves is not None and node.admitted and worker_of(node) is None:
        _serve(bus, node, now)
    leases.beat(bus, node, now)
    bus.actions.append(Acknowledge(event.node, event.voice, event.name))


def _disconnect(
    bus: Bus, event: events.NodeBeat, reason: str, now: float, waiting: Node | None = None
) -> None:
    """End the conversation with a peer: what it registered ends, what it asked for is not answered.  The
    lease of the node `waiting` goes on, because nothing is sent to that node on this connection anyway."""
    requests.on_client_gone(bus, events.ClientGone(event.node, withdraw=False), now)
    for node in leases.nodes_on(bus, event.node):
        if node is not waiting:
            _end(bus, node, "it was disconnected", now)
    bus.actions.append(Dismiss(event.node, event.voice, reason))


def on_unasked(bus: Bus, event: events.Unasked, now: float) -> None:
    """A question could not be sent: the conversation is over, or the connection for it was closed."""
    node = bus.catalog.lines.get(event.peer)
    if node is not None:
        # It is made anew with the next question.
        leases.drop_line(bus, node, now, is_closed=True)
        return
    for name, unproven in list(bus.catalog.unproven.items()):
        node = bus.nodes.get(name)
        if node is not None and node.address == event.peer:
            del bus.catalog.unproven[name]
            node.unplugged = True
            _take_unproven(bus, node, unproven.event, now)
    worker = bus.workers.get(event.peer)
    if worker is None:
        return
    names = [service.name for service in worker.offers]
    workers.remove(bus, worker, "it cannot be reached", now)
    for name in names:
        node = bus.nodes.get(name)
        if node is None or node.worker is not worker:
            continue
        claim = bus.catalog.claims.get(name)
        if claim is not None:
            _grant(bus, claim, node, now)
        elif is_mute(node):
            # It may be there all the same, at its own address.
            leases.ask_now(bus, node, now)


def on_left(bus: Bus, event: events.NodeLeft, now: float) -> None:
    for claim in [claim for claim in bus.catalog.claims.values() if claim.event.node == event.node]:
        del bus.catalog.claims[claim.event.name]
    if not event.name:
        for node in leases.nodes_on(bus, event.node):
            _end(bus, node, "it left", now)
        return
    named = bus.nodes.get(event.name)
    if named is not None and _owns(named, event.node):
        leases.forget(bus, named, "it left", now)
    elif named is not None and named.address == event.node:
        _end(bus, named, "it left", now)
    elif named is not None:
        _doubt(bus, named, event, now)


# -- messages about a node from another connection ----------------------------------------------------


def _speaks_for(node: Node, peer: Address) -> bool:
    """Whether the node registered on this connection, or is called on it."""
    worker = worker_of(node)
    return peer == node.address or (worker is not None and peer == worker.address)


def _owns(node: Node, peer: Address) -> bool:
    """Whether this connection may also move and end the registration."""
    return _speaks_for(node, peer) and not (node.inherited and peer == node.address)


def _end(bus: Bus, node: Node, why: str, now: float) -> None:
    """The connection that the node was registered on is no longer spoken to. If it only inherited the name,
    the node may still be there, and is asked."""
    if not node.inherited:
        leases.forget(bus, node, why, now)
        return
    bus.catalog.leave(node)
    node.unplugged = True
    leases.say_goodbye(bus, node, now)


def _doubt(bus: Bus, node: Node, event: events.UpdateNode | events.NodeLeft, now: float) -> None:
    """A message that only the registering connection should send came over another one."""
    if not leases.is_called_elsewhere(node):
        # It is called on that connection. If it lost it, it has to register again anyway.
        _refuse(bus, event, (_not_yours(bus, node, now),), now)
    elif node.unplugged:
        _take_unproven(bus, node, event, now)
    else:
        _find_out(bus, node, event, now)


def _find_out(
    bus: Bus, node: Node, event: events.Register | events.UpdateNode | events.NodeLeft, now: float
) -> None:
    """Find out whether the connection that the node registered on is open."""
    catalog = bus.catalog
    if node.name in catalog.unproven:
        reason = (
            f"{_not_yours(bus, node, now)}; the broker is finding out whether that one is open, because of "
            "another message like this: try again in a second"
        )
        _refuse(bus, event, (reason,), now)
    else:
        catalog.unproven[node.name] = Unproven(event, now + 2 * leases.NOTICE_S)
        catalog.claims_at = min(catalog.claims_at, now + leases.NOTICE_S)
        bus.actions.append(Ask(node.address, node.voice, node.name))


def _settle_unproven(bus: Bus, now: float) -> None:
    """What the registering connection took in is refused to others. It is tried twice, because a connection
    that has just been closed may take the first question."""
    catalog = bus.catalog
    for name, unproven in list(catalog.unproven.items()):
        node = bus.nodes.get(name)
        if node is not None and now < unproven.until:
            bus.actions.append(Ask(node.address, node.voice, node.name))
            continue
        del catalog.unproven[name]
        if node is not None:
            reason = f"{_not_yours(bus, node, now)}; that one is open"
            _refuse(bus, unproven.event, (reason,), now)
        elif isinstance(unproven.event, events.UpdateNode):
            on_update(bus, unproven.event, now)
        elif isinstance(unproven.event, events.Register):
            on_register(bus, unproven.event, now)


def _take_unproven(
    bus: Bus, node: Node, event: events.Register | events.UpdateNode | events.NodeLeft, now: float
) -> None:
    """The registering connection is closed: take what can do no harm."""
    if isinstance(event, events.Register):
        on_register(bus, event, now)
    elif isinstance(event, events.NodeLeft):
        leases.say_goodbye(bus, node, now)
    elif event.missing:
        _refuse(bus, event, event.missing, now)
    elif event.moves:
        reason = (
            f"{_not_yours(bus, node, now)}; that one is closed, so others may change the description of the "
            "node, but not where it is reached, how it is called or how often it beats"
        )
        _refuse(bus, event, (reason,), now)
    else:
        node.info = {**node.info, **event.changes}
        _acknowledge_update(bus, node, event, now)


def _not_yours(bus: Bus, node: Node, now: float) -> str:
    """Who holds a name, how and for how long, and what whoever wants to speak for it can do."""
    name = node.name.decode(errors="replace")
    place, serves = _place(node), node.serves
    if serves is None:
        called = "is not called"
    elif serves.endpoint:
        called = f"is called at {serves.endpoint}"
    elif is_mute(node):
        called = "was called on that connection, which is closed"
    else:
        called = "is called on that connection"
    again = "or register again when the lease has ended"
    if place:
        again = f"or register again with {place} as ip and port, which gets the name if that one is closed"
    return (
        f"the name {name!r} was registered by another connection, {now - node.registered_at:.1f} s ago"
        f"{' for ' + place if place else ''}; the node {called}; {_lease(bus, node, now)}. "
        f"Only that connection speaks for the node: send this there, {again}"
    )


def _inherited(node: Node) -> str:
    """Why the connection that registered a node does not move it at once."""
    name, place = node.name.decode(errors="replace"), _place(node)
    return (
        f"the name {name!r} was registered by another connection before{', for ' + place if place else ''}, "
        "and the node was alive when this one registered it for the same place"
    )


def _refuse(
    bus: Bus,
    event: events.Register | events.UpdateNode | events.NodeLeft,
    reasons: tuple[str, ...],
    now: float,
) -> None:
    bus.counters.rejected += 1
    if event.voice is not None:
        bus.actions.append(Deny(event.node, event.voice, event.name, reasons))
    bus.observe("denied", now, service=event.name, client=event.node, reason="; ".join(reasons))


# -- being called -------------------------------------------------------------------------------------


def _serve(bus: Bus, node: Node, now: float) -> None:
    if node.serves is not None:
        node.worker = workers.bring_up(bus, node.serves, now)


def _serve_otherwise(bus: Bus, node: Node, serves: events.WorkerUp, now: float) -> None:
    node.serves = serves
    worker = worker_of(node)
    if worker is None or worker.endpoint != serves.endpoint:
        if worker is not None:
            leases.part_with(bus, worker, "it is called in another way now", now, workers.is_busy(worker))
        if node.admitted:
            _serve(bus, node, now)
    else:
        worker.heartbeat = serves.heartbeat
