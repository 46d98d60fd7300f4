"""How long a node stays in the catalog: its heartbeats, our questions, and the end of its lease.

A node shows itself by datagrams, by heartbeats over TCP, or by anything else that it says.  When one beat is
missing it is late, and we ask it over TCP: in its own conversation, or at the address that it registered.  An
answer makes it live.  Asked again and again without an answer it is gone, after as many missed beats as the
setting says, and never before it had the time to answer.  (So a stalled broker, or a network that drops
datagrams, costs nobody the lease.)

Our own datagrams go only to a node that has shown itself by one, from the ip that it registered: back to
where it came from, at the agreed timing, and only as long as datagrams come from there.  So nobody can make
us send anything to third parties, and what we send is never more than what came in, but for a few beats at
the end.

Beside that we broadcast a heartbeat, if the settings allow it, as long as nodes are registered, at the
shortest timing that any of them agreed to.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from polybus.core import requests, workers
from polybus.core.actions import Approve, Ask, Beckon, BroadcastBeat, Forget
from polybus.core.ledger import Deregistered
from polybus.core.lifecycle import ABSENT, BEAT, LAPSE, MISS, NodeState
from polybus.core.model import Address, Heartbeat, Node, Reach, Worker
from polybus.core.tables import NO_STORE
from polybus.core.timers import SLOTS_PER_S

if TYPE_CHECKING:
    from polybus.core import events
    from polybus.core.bus import Bus

# A lease ends after this many missed heartbeats (the document says 3 to 5).
MISSED_BEATS: Final = 4
# After so many intervals of silence a beat is missing: half an interval is for the way.
LATE: Final = 1.5
# How soon an answer is noticed, and the time that a node has for it at least and at most. Asked in time it
# has what is left of its lease; but when thousands are asked at once, some of them are asked late.
NOTICE_S: Final = 0.25
ANSWER_S: Final = 2.0
# Who asks for more datagrams than this gets fewer: what we send stays bounded, whatever is registered.
FASTEST_BEAT_S: Final = 0.1
# Connections that are made to ask nodes, each of them two files: further nodes are asked as soon as one is
# free, and not dropped before that. Beyond the half of it they are not kept for the next question.
LINES: Final = 1024


class Claim(Struct):
    """Somebody wants a name, or wants to move a node that may not be its own: whoever is registered has been
    asked whether it is there."""

    event: events.Register | events.UpdateNode
    since: float
    # When the holder is asked again: a connection that broke just before the first question took it along.
    again_at: float


class Unproven(Struct):
    """A message about a node that came over another connection than the one that the node registered on.

    The broker decides about it when it knows whether that connection is still open.
    """

    event: events.Register | events.UpdateNode | events.NodeLeft
    until: float


class Catalog:
    """What the catalog has beside its nodes (`bus.nodes`) and their timers (`bus.leases`)."""

    def __init__(self) -> None:
        self.missed_beats = MISSED_BEATS
        # Nodes by the connection that was made to ask them, and how many such connections an endpoint has.
        self.lines: dict[Address, Node] = {}
        self.lines_at: Counter[str] = Counter()
        # Those that are not needed now, but cannot be closed without closing others to the same endpoint.
        self.spare: dict[str, list[Address]] = {}
        # The names that each connection registered.
        self.registered_on: dict[Address, set[bytes]] = {}
        self.claims: dict[bytes, Claim] = {}
        # At most one for each name.
        self.unproven: dict[bytes, Unproven] = {}
        # When the next claim or unproven message must be decided.
        self.claims_at = inf
        # Whether heartbeats are broadcast; when the last one was, and when the next one is due.
        self.broadcasts = False
        self.broadcast_last = -inf
        self.broadcast_at = inf
        # Registrations that are being written down: number of the batch, and what is said then.
        self.unwritten: deque[tuple[int, Node, Approve]] = deque()
        # Datagrams that kept a lease, and others; beats that we sent; questions over TCP; leases that ended.
        self.pulses = 0
        self.strays = 0
        self.beckons = 0
        self.asked = 0
        self.lapsed = 0

    def enter(self, node: Node) -> None:
        self.registered_on.setdefault(node.address, set()).add(node.name)

    def leave(self, node: Node) -> None:
        names = self.registered_on.get(node.address)
        if names is not None:
            names.discard(node.name)
            if not names:
                del self.registered_on[node.address]

    def facts(self) -> dict[str, Any]:
        return {
            "node_datagrams": self.pulses,
            "node_datagrams_refused": self.strays,
            "node_datagrams_sent": self.beckons,
            "nodes_asked": self.asked,
            "nodes_lapsed": self.lapsed,
        }


# -- signs of life ------------------------------------------------------------------------------------


def on_pulse(bus: Bus, event: events.Pulse, now: float) -> None:
    node = bus.nodes.get(event.name)
    source = event.source
    if node is None or source[0] != node.ip:
        # Nothing is answered: the sender may be anybody.
        bus.catalog.strays += 1
        return
    bus.catalog.pulses += 1
    node.pulse_at = now
    if node.pulse_from != source:
        node.pulse_from = source
        if node.heartbeat_s > 0 and now - node.pulsed_at >= _beckon_every_s(node):
            # It has just shown where it is: our first beat need not wait.
            bus.leases.clear(node)
            bus.leases.set(node, now)
    beat(bus, node, now)


def on_answered(bus: Bus, event: events.Answered, now: float) -> None:
    node = bus.catalog.lines.get(event.peer)
    if node is None:
        return
    beat(bus, node, now)
    serves, reach = node.serves, node.reach
    if is_mute(node) and serves is not None and reach is not None:
        # It registered on a socket that it closed, but is there at its own address: it is called there.
        node.serves = structs.replace(
            serves,
            worker=reach.place,
            voice=reach.voice,
            heartbeat=Heartbeat(dead_after_s=0.0),
            credit=1,
            endpoint=reach.endpoint,
        )
        node.asked_since = 0.0
        drop_line(bus, node, now)
        node.worker = workers.bring_up(bus, node.serves, now)
    elif len(bus.catalog.lines) > LINES // 2:
        drop_line(bus, node, now)


def beat(bus: Bus, node: Node, now: float) -> None:
    """It is there."""
    node.seen_at = now
    if node.state is not NodeState.ALIVE or node.asked_since:
        _revive(bus, node, now)
    worker = worker_of(node)
    if worker is not None:
        requests.heard(bus, worker, now)


def _revive(bus: Bus, node: Node, now: float) -> None:
    if node.asked_since and not is_mute(node):
        node.asked_since = 0.0
    if node.state is NodeState.LATE:
        node.state = BEAT[node.state]
        bus.observe("node_up", now, service=node.name, client=node.address, reason="it is heard again")


def seen_at(node: Node) -> float:
    worker = node.worker
    # A worker that was only made has not been heard.
    if worker is None or worker.seen_at <= worker.since:
        return node.seen_at
    return max(node.seen_at, worker.seen_at)


def is_alive(node: Node, now: float) -> bool:
    """Whether no beat of it is missing."""
    return node.state is NodeState.ALIVE or now - seen_at(node) < overdue_s(node)


def overdue_s(node: Node) -> float:
    """After how long a silence others may have its name: later while it works for a queue whose settings
    allow that."""
    worker = worker_of(node)
    late_s = node.heartbeat_s * LATE
    return late_s if worker is None else max(late_s, workers.granted_silence_s(worker))


def is_called_elsewhere(node: Node) -> bool:
    """Whether it is called at its own address or not at all, so that the connection that it registered on is
    not needed for its calls."""
    return node.serves is None or bool(node.serves.endpoint)


def nodes_on(bus: Bus, peer: Address) -> list[Node]:
    """The nodes that were registered on a connection."""
    return [bus.nodes[name] for name in sorted(bus.catalog.registered_on.get(peer, ()))]


def worker_of(node: Node) -> Worker | None:
    """The worker that the node is, unless it is gone."""
    worker = node.worker
    return None if worker is None or worker.state in ABSENT else worker


def is_mute(node: Node) -> bool:
    """Whether it is to be called in a conversation that is lost: only the node can begin a new one."""
    serves = node.serves
    return serves is not None and not serves.endpoint and node.admitted and worker_of(node) is None


# -- watching -----------------------------------------------------------------------------------------


def watch(bus: Bus, node: Node, now: float) -> None:
    """Begin to look at it."""
    if node.heartbeat_s > 0:
        look_at = now + node.heartbeat_s * (1.0 if node.quiet else LATE)
        if node.pulse_from is not None:
            # Our datagrams go on at their timing.
            look_at = min(look_at, max(now, node.pulsed_at + _beckon_every_s(node)))
        bus.leases.set(node, look_at)
        catalog = bus.catalog
        if catalog.broadcasts:
            due_at = max(now, catalog.broadcast_last + _beckon_every_s(node))
            catalog.broadcast_at = min(catalog.broadcast_at, due_at)


def look_due(bus: Bus, now: float) -> None:
    for node in bus.leases.due(now):
        _look(bus, node, now)


def _look(bus: Bus, node: Node, now: float) -> None:
    every_s = node.heartbeat_s
    heard_at = seen_at(node)
    silent_s = now - heard_at
    look_at = heard_at + every_s * LATE
    if node.goodbye_at and _has_left(bus, node, heard_at, now):
        forget(bus, node, "it left", now)
        return
    if every_s <= 0:
        # Its lease has no end of its own; it is only looked at after a goodbye.
        if node.goodbye_at:
            bus.leases.set(node, now + NOTICE_S)
        return
    if silent_s < every_s * LATE:
        _revive(bus, node, now)
        if node.line is not None and not is_mute(node) and node.pulse_at >= node.asked_at:
            drop_line(bus, node, now)
        if node.quiet:
            look_at = _ask_the_quiet(bus, node, heard_at, now)
        elif is_mute(node):
            look_at = min(look_at, _seek(bus, node, now))
    else:
        if node.asked_since <= heard_at:
            # That was answered.
            node.asked_since = 0.0
        ends_at = heard_at + _lapses_after_s(bus, node)
        if now >= ends_at and (not node.asked_since or now - node.asked_since >= answer_s(bus, node)):
            asked = node.asked_since > 0
            if asked or not _ask(bus, node, now):
                words = " and no answer" if asked else ""
                bus.catalog.lapsed += 1
                forget(bus, node, f"no heartbeat for {silent_s:.1f} s{words}", now, lapsed=True)
                return
        if node.state is NodeState.ALIVE:
            node.state = MISS[node.state]
            node.missed += 1
            bus.observe(
                "node_late",
                now,
                service=node.name,
                client=node.address,
                reason=f"no heartbeat for {silent_s:.1f} s",
            )
        again_at = _ask_again(bus, node, now)
        times = (again_at, ends_at, node.asked_at + NOTICE_S, node.asked_since + answer_s(bus, node))
        look_at = min(at for at in times if at > now)
    if node.goodbye_at:
        look_at = min(look_at, now + NOTICE_S)
    if node.pulse_from is not None:
        look_at = min(look_at, _beckon(bus, node, now))
    bus.leases.set(node, max(look_at, now))


def _lapses_after_s(bus: Bus, node: Node) -> float:
    """How long a node may be silent: longer than its heartbeats say while it works for a queue whose settings
    allow that."""
    worker = worker_of(node)
    lease_s = node.heartbeat_s * bus.catalog.missed_beats
    return lease_s if worker is None else max(lease_s, workers.silence_s(worker))


def left_s(bus: Bus, node: Node, now: float) -> float:
    """How long a lease lasts if nothing is heard of the node; a lease without heartbeats has no end."""
    if node.heartbeat_s <= 0:
        return inf
    return seen_at(node) + _lapses_after_s(bus, node) - now


def say_goodbye(bus: Bus, node: Node, now: float) -> None:
    """Another connection said that the node leaves: the node is asked, and stays if it answers. Who says so
    again before that changes nothing, else it could put off the end for as long as it likes."""
    if node.goodbye_at and seen_at(node) <= node.goodbye_at:
        return
    node.goodbye_at = now
    _ask(bus, node, now)
    _look_soon(bus, node, now)


def _has_left(bus: Bus, node: Node, heard_at: float, now: float) -> bool:
    if heard_at > node.goodbye_at:
        node.goodbye_at = 0.0
        return False
    if node.asked_at < node.goodbye_at:
        # No connection was free for the question. Without a way to ask, the lease runs out by itself.
        node.goodbye_at = now if _ask(bus, node, now) else 0.0
        return False
    worker = worker_of(node)
    is_busy = worker is not None and bool(worker.inflight)
    return not is_busy and now - node.goodbye_at >= answer_s(bus, node)


def _ask_the_quiet(bus: Bus, node: Node, heard_at: float, now: float) -> float:
    """A node that sends no beats is asked before it is late. When to look again."""
    worker = worker_of(node)
    if now - heard_at < node.heartbeat_s:
        return heard_at + node.heartbeat_s
    if worker is None or not worker.inflight:
        # While it works it is left alone.
        _ask_again(bus, node, now)
    return heard_at + node.heartbeat_s * LATE


def _seek(bus: Bus, node: Node, now: float) -> float:
    """A node whose conversation is lost may be at its own address: it is asked once. When to look again."""
    if not node.asked_since:
        _ask(bus, node, now)
        return now + answer_s(bus, node)
    if now - node.asked_since >= answer_s(bus, node):
        drop_line(bus, node, now)
    return now + node.heartbeat_s


def answer_s(bus: Bus, node: Node) -> float:
    """How long a node has to answer a question before its lease may end."""
    return max(NOTICE_S, min(ANSWER_S, node.heartbeat_s * (bus.catalog.missed_beats - LATE) - NOTICE_S / 5))


def _ask_again(bus: Bus, node: Node, now: float) -> float:
    """Ask, unless that was done within the interval. When to ask again."""
    if now - node.asked_at >= node.heartbeat_s:
        _ask(bus, node, now)
    return max(node.asked_at, now - node.heartbeat_s) + node.heartbeat_s


def _ask(bus: Bus, node: Node, now: float) -> bool:
    """Ask a node over TCP whether it is there, as soon as that is possible. False if there is no way."""
    node.asked_at = now
    worker = worker_of(node)
    if worker is not None:
        peer, voice = worker.address, worker.voice
    elif node.reach is not None:
        if node.line is None and not _take_line(bus, node, node.reach):
            # The next try is soon.
            node.asked_at = now - node.heartbeat_s + NOTICE_S
            return True
        assert node.line is not None
        peer, voice = node.line, node.reach.voice
    else:
        return False
    if not node.asked_since:
        node.asked_since = now
    bus.catalog.asked += 1
    bus.actions.append(Ask(peer, voice, node.name))
    bus.observe("node_asked", now, service=node.name, client=peer)
    return True


def ask_now(bus: Bus, node: Node, now: float) -> None:
    """Ask, because somebody wants to know."""
    _ask(bus, node, now)
    if node.heartbeat_s > 0:
        _look_soon(bus, node, now)


def _look_soon(bus: Bus, node: Node, now: float) -> None:
    """Look at it when an answer may be there. A look that is due before that is not put off."""
    soon_at = now + NOTICE_S
    if not node.slot or node.slot > soon_at * SLOTS_PER_S:
        bus.leases.clear(node)
        bus.leases.set(node, soon_at)


def _take_line(bus: Bus, node: Node, reach: Reach) -> bool:
    """Make a connection to ask it. False if there are too many."""
    catalog = bus.catalog
    if len(catalog.lines) >= LINES:
        return False
    spare = catalog.spare.get(reach.endpoint)
    node.line = spare.pop() if spare else workers.dial(bus, reach.place, reach.endpoint)
    catalog.lines[node.line] = node
    catalog.lines_at[reach.endpoint] += 1
    return True


def drop_line(bus: Bus, node: Node, now: float, is_closed: bool = False) -> None:
    """Close the connection that was made to ask it."""
    line, node.line = node.line, None
    if line is None or node.reach is None:
        return
    endpoint, lines_at = node.reach.endpoint, bus.catalog.lines_at
    del bus.catalog.lines[line]
    lines_at[endpoint] -= 1
    if not lines_at[endpoint]:
        del lines_at[endpoint]
        if endpoint not in bus.dialled_at:
            # Hanging up closes all connections to an endpoint, so the last one does it.
            workers.hang_up(bus, line[1], endpoint, now)
            return
    if not is_closed:
        bus.catalog.spare.setdefault(endpoint, []).append(line)


# -- our own datagrams --------------------------------------------------------------------------------


def _beckon_every_s(node: Node) -> float:
    return max(node.heartbeat_s, FASTEST_BEAT_S)


def _beckon(bus: Bus, node: Node, now: float) -> float:
    """Send a datagram if one is due. When the next one is."""
    every_s = _beckon_every_s(node)
    if now - node.pulse_at >= every_s * bus.catalog.missed_beats:
        # None came from there for long.
        node.pulse_from = None
        return inf
    if now - node.pulsed_at < every_s:
        return node.pulsed_at + every_s
    # One that leaves a little late does not put off those after it.
    node.pulsed_at = node.pulsed_at + every_s if now - node.pulsed_at < 2 * every_s else now
    ended = is_mute(node) and (
        node.reach is None or (node.asked_since > 0 and now - node.asked_since >= answer_s(bus, node))
    )
    bus.catalog.beckons += 1
    bus.actions.append(Beckon(node.pulse_from or (), ended))
    worker = worker_of(node)
    if worker is not None:
        # It need not be told over TCP as well, unless datagrams cease: half an interval is for the way.
        worker.spoken_at = now + every_s / 2
    return node.pulsed_at + every_s


def broadcast_due(bus: Bus, now: float) -> None:
    """Broadcast a heartbeat if one is due."""
    catalog = bus.catalog
    if now < catalog.broadcast_at:
        return
    every_s = min((_beckon_every_s(node) for node in bus.nodes.values() if node.heartbeat_s > 0), default=inf)
    if every_s < inf:
        catalog.broadcast_last = now
        bus.actions.append(BroadcastBeat())
    catalog.broadcast_at = now + every_s


# -- the end ------------------------------------------------------------------------------------------


def retire(bus: Bus, node: Node, why: str, now: float, lapsed: bool = False) -> None:
    """End what the broker has with a node: the worker that it is, and the connection to ask it. A node that
    was only silent may still answer what it has, and must register again after that."""
    bus.catalog.leave(node)
    bus.leases.clear(node)
    drop_line(bus, node, now)
    if node.worker is not None:
        part_with(bus, node.worker, why, now, lapsed)


def part_with(bus: Bus, worker: Worker, why: str, now: float, lapsed: bool) -> None:
    """Give a node's worker no more requests. One that was only silent may still answer what it has."""
    if worker.state not in ABSENT:
        if lapsed:
            workers.lose(bus, worker, why, now)
        else:
            workers.remove(bus, worker, why, now)
    if bus.silent.get(worker.address) is not worker:
        return
    if lapsed:
        worker.offers = {}
    else:
        workers.forget_silent(bus, worker, why, now)


def forget(bus: Bus, node: Node, why: str, now: float, lapsed: bool = False) -> None:
    node.state = LAPSE[node.state]
    del bus.nodes[node.name]
    if bus.store_trouble != NO_STORE:
        bus.lines.append(Deregistered(node.name))
    bus.actions.append(Forget(node, why))
    retire(bus, node, why, now, lapsed)
    bus.observe("node_down", now, service=node.name, client=node.address, reason=why)
