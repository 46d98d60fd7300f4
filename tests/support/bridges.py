"""Brokers with bridges between them, without sockets: real dialects, the real core, and a clock and wires
that only move when told.

world = World()
a, b = world.broker("A", peers=["B"]), world.broker("B")
world.wait(1.0)                         # they dial, greet, and tell each other what they have
b.worker("w", "echo")
world.wait(0.1)
a.ask("c", "1", "echo", b"hello")
world.run()
b.orders("w")                           # tokens of the requests that the worker has got
b.answer("w", token, b"hi")
a.finals("c")                           # {"1": [b"hi"]}

Clients and workers speak MDR.  `world.cut(a, b)` takes a cable out, and nobody is told; `world.heal` puts it
in again, and what was under way goes on, as with TCP, unless either side has given the connection up.
`world.kill(b)` ends a broker: its connections are closed.
"""

from __future__ import annotations

import errno
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, cast

import zmq

from polybus.config import load
from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.topics import receive
from polybus.dialects.mdr import Mdr
from polybus.dialects.port import Ear, RouterEar
from polybus.server.bridge import Bridges
from polybus.server.effects import Outbox
from polybus.server.links import Link
from polybus.server.pump import Pump

MAJORDOMO, ROUTER = 0, 1
REQUEST, PARTIAL, FINAL, READY = b"\x01", b"\x03", b"\x04", b"\x01"
STEP_S = 0.01


class Wire:
    """A connection of two brokers, by the dialling one's socket."""

    def __init__(self, name: bytes, dialler: Island, link: int, listener: Island) -> None:
        self.name = name
        self.dialler = dialler
        self.link = link
        self.listener = listener
        # What is under way: to the listener, and to the dialler.
        self.there: deque[list[Any]] = deque()
        self.back: deque[list[Any]] = deque()


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.islands: dict[str, Island] = {}
        self.wires: dict[bytes, Wire] = {}
        # The request id of what workers were given, by token: an answer repeats both.
        self.request_ids: dict[bytes, bytes] = {}
        self._cut: set[frozenset[str]] = set()
        self._count = 0

    def broker(self, name: str, peers: Sequence[str] = (), **settings: Any) -> Island:
        """A broker at the address `tcp://NAME:1`; a second one there takes the place of the first."""
        island = self.islands[name] = Island(self, name, peers, settings)
        return island

    # -- wires ----------------------------------------------------------------------------------------

    def dial(self, dialler: Island, link: int, endpoint: str) -> None:
        listener = self.islands.get(endpoint.removeprefix("tcp://").removesuffix(":1"))
        if listener is not None and not self.is_cut(dialler, listener):
            self._count += 1
            wire = Wire(b"\0%d" % self._count, dialler, link, listener)
            self.wires[wire.name] = wire
            dialler.dialled[link] = wire

    def hang_up(self, wire: Wire) -> None:
        self.wires.pop(wire.name, None)
        if wire.dialler.dialled.get(wire.link) is wire:
            del wire.dialler.dialled[wire.link]

    def is_cut(self, one: Island, other: Island) -> bool:
        return frozenset((one.name, other.name)) in self._cut

    def cut(self, one: Island, other: Island) -> None:
        self._cut.add(frozenset((one.name, other.name)))

    def heal(self, one: Island, other: Island) -> None:
        self._cut.discard(frozenset((one.name, other.name)))

    def kill(self, island: Island) -> None:
        del self.islands[island.name]
        for wire in list(self.wires.values()):
            if island in (wire.dialler, wire.listener):
                self.hang_up(wire)

    # -- time -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Let everything arrive that is under way."""
        for _ in range(10_000):
            for island in list(self.islands.values()):
                island.settle()
            if not self._step():
                return
        raise AssertionError("they never stop talking")

    def _step(self) -> bool:
        moved = False
        for wire in list(self.wires.values()):
            if self.is_cut(wire.dialler, wire.listener):
                continue
            for line, island in ((wire.there, wire.listener), (wire.back, wire.dialler)):
                for _ in range(len(line)):
                    frames = line.popleft()
                    if wire.name in self.wires:
                        moved = True
                        link = ROUTER if line is wire.there else wire.link
                        head = [wire.name] if line is wire.there else []
                        island.hear(link, [*head, *frames])
        return moved

    def wait(self, seconds: float, step_s: float = STEP_S) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step_s)
            for island in list(self.islands.values()):
                island.tick()
            self.run()


class FakeSocket:
    def __init__(self, island: Island, link: int) -> None:
        self._island = island
        self._link = link
        self.linger = 0

    def set(self, option: int, value: Any) -> None:
        return

    def connect(self, endpoint: str) -> None:
        self._island.dials.append(self._island.world.now)
        self._island.world.dial(self._island, self._link, endpoint)

    def disconnect(self, endpoint: str) -> None:
        wire = self._island.dialled.get(self._link)
        if wire is None:
            raise zmq.ZMQError(errno.ENOENT)
        self._island.world.hang_up(wire)


class FakeContext:
    def __init__(self, island: Island) -> None:
        self._island = island

    def socket(self, kind: int) -> FakeSocket:
        return FakeSocket(self._island, len(self._island.links))


class Island:
    """One broker, and the peers of its own network."""

    lives = 0

    def __init__(self, world: World, name: str, peers: Sequence[str], settings: dict[str, Any]) -> None:
        Island.lives += 1
        self.world = world
        self.name = name
        self.settings = load(
            overrides={
                "bridge.name": settings.pop("called", name),
                "bridge.port": f"tcp://{settings.pop('host', '127.0.0.1')}:1",
                "bridge.peers": [f"tcp://{peer}:1" for peer in peers],
                **{f"bridge.{option}": value for option, value in settings.items()},
            },
            environ={},
        )
        self.bus = Bus(b"%s%d-" % (name.encode(), Island.lives))
        self.sent: dict[bytes, list[list[Any]]] = defaultdict(list)
        self.publications: list[tuple[bytes, bytes]] = []
        self.observed: list[act.Observed] = []
        self.dialled: dict[int, Wire] = {}
        self.dials: list[float] = []
        # Links whose pipes take nothing.
        self.full: set[int] = set()
        mdr = Mdr(self.bus, heartbeat_s=1e6)
        self.bridges = Bridges(self.bus, self.settings, instance=f"life{Island.lives}")
        deaf = cast(Any, None)
        self.links = [
            Link(MAJORDOMO, "majordomo", deaf, RouterEar(self.bus, "majordomo", mdr.tags)),
            Link(ROUTER, "bridge.port", deaf, self.bridges.ear),
        ]
        self.bridges.open(cast(Any, FakeContext(self)), self.settings, self.links, -1)
        self.outbox = Outbox(self.bus, cast(Pump, self))
        handlers = self.outbox.handlers
        handlers[act.Fanout] = lambda action: self.publications.append(
            (action.topic, b"".join(bytes(frame) for frame in action.body))
        )
        handlers[act.Observed] = self.observed.append
        handlers[act.Drained] = lambda action: None
        self.bridges.attach(self.outbox, cast(Pump, self))

    # -- the pump's part ------------------------------------------------------------------------------

    def suspect(self, index: int) -> None:
        return

    def send_many(self, messages: Sequence[tuple[int, Sequence[Any]]]) -> list[tuple[int, int]]:
        refused = []
        for position, (link, frames) in enumerate(messages):
            if link in self.full:
                refused.append((position, errno.EAGAIN))
            elif link == MAJORDOMO:
                self.sent[frames[0]].append(list(frames[1:]))
            elif link == ROUTER:
                wire = self.world.wires.get(frames[0])
                if wire is None:
                    refused.append((position, errno.EHOSTUNREACH))
                else:
                    wire.back.append(list(frames[1:]))
            elif link in self.dialled:
                self.dialled[link].there.append(list(frames))
            else:
                refused.append((position, errno.EAGAIN))
        return refused

    # -- the loop's part ------------------------------------------------------------------------------

    def hear(self, link: int, frames: list[Any]) -> None:
        ear: Ear = self.links[link].ear
        ear.receive(link, frames, self.world.now)
        self.settle()

    def tick(self) -> None:
        now = self.world.now
        self.bus.handle(events.Tick(), now)
        if now >= self.bridges.next_at:
            self.bridges.tick(now)
        self.settle()

    def settle(self) -> None:
        self.outbox.settle(self.world.now)

    # -- clients and workers ----------------------------------------------------------------------------

    def worker(self, name: str, service: str, credit: int = 10) -> None:
        self._say(name, b"MDRW01", READY, service.encode(), b"%d" % credit)

    def leave(self, name: str) -> None:
        self._say(name, b"MDRW01", b"\x06")

    def orders(self, name: str) -> list[bytes]:
        """Tokens of what a worker has been given since the last look."""
        frames, self.sent[name.encode()] = self.sent[name.encode()], []
        orders = [one for one in frames if one[:2] == [b"MDRW01", b"\x02"]]
        self.world.request_ids |= {bytes(one[2]): bytes(one[4]) for one in orders}
        return [bytes(one[2]) for one in orders]

    def order(self, name: str) -> bytes:
        (token,) = self.orders(name)
        return token

    def answer(self, name: str, token: bytes, body: bytes, command: bytes = FINAL) -> None:
        self._say(name, b"MDRW01", command, token, b"", self.world.request_ids[token], body)

    def ask(self, name: str, request_id: str, service: str, body: bytes = b"") -> None:
        self._say(name, b"MDRC01", REQUEST, service.encode(), request_id.encode(), body)

    def finals(self, name: str) -> dict[str, list[bytes]]:
        """All final answers of a client by id."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for frames in self.sent[name.encode()]:
            if frames[1] == b"\x03":
                found[frames[3].decode()].append(bytes(frames[4]))
        return dict(found)

    def _say(self, name: str, *frames: bytes) -> None:
        self.hear(MAJORDOMO, [name.encode(), *frames])

    def publish(self, topic: str, body: bytes, settle: bool = True) -> None:
        """Without `settle` it is under way when the next thing happens, as in a busy turn of the loop."""
        receive(self.bus, topic.encode(), [body], self.world.now)
        if settle:
            self.settle()

    @property
    def neighbours(self) -> list[str]:
        return sorted(peer.name for peer in self.bridges.dialect.neighbours())

    def via(self, service: str) -> list[str]:
        assert self.bus.bridging is not None
        return self.bus.bridging.via(service.encode())

    def troubles(self) -> list[str]:
        return [peer.trouble for peer in self.bridges.dialect.peers.values()]
