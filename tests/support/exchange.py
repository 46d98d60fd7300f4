"""A broker without sockets: real ears, the real bus, real voices, and a clock that only moves when told.

ex = Exchange()
ex.listen(1, RouterEar(ex.bus, "ebus", Ebus(ex.bus).tags))
ex.send(1, b"worker", b"EBW01", b"READY", b"", b"echo")
ex.got(1, b"worker")        # all messages sent to it since the last look, without the identity
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from polybus.core import actions as act
from polybus.core import events
from polybus.core.bus import Bus
from polybus.core.model import Address, Limits
from polybus.dialects.port import Ear
from polybus.errors import LocalProtocolError

Sent = list[Any]


class Exchange:
    def __init__(self, limits: Limits | None = None, watched: bool = False) -> None:
        self.bus = Bus(b"n", limits, watched)
        self.now = 1000.0
        self.ears: dict[int, Ear] = {}
        self.sent: dict[tuple[int, bytes], list[Sent]] = defaultdict(list)
        self.publications: list[tuple[bytes, list[Any]]] = []
        self.observed: list[act.Observed] = []
        # A disk that never fails and takes no time.
        self.bus.store_trouble = ""
        self.lines: list[Any] = []
        self.drained = False
        # Peers whose connection is closed, as far as questions go; and datagrams that were sent.
        self.gone: set[Address] = set()
        self.datagrams: list[tuple[tuple[Any, ...], bool]] = []

    def listen(self, link: int, ear: Ear) -> None:
        self.ears[link] = ear

    def send(self, link: int, identity: bytes, *frames: Any) -> None:
        """A peer sends a message to a socket of the broker."""
        self.ears[link].receive(link, [identity, *frames], self.now)
        self.settle()

    def publish(self, link: int, *frames: Any) -> None:
        """A message on a socket that does not name its peers."""
        self.ears[link].receive(link, list(frames), self.now)
        self.settle()

    def handle(self, event: Any) -> None:
        self.bus.handle(event, self.now)
        self.settle()

    def wait(self, seconds: float) -> None:
        """Let time pass, one tick after the other."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.05, end)
            self.handle(events.Tick())

    def got(self, link: int, identity: bytes) -> list[Sent]:
        return self.sent.pop((link, identity), [])

    def one(self, link: int, identity: bytes) -> Sent:
        """The only message that a peer got since the last look."""
        messages = self.got(link, identity)
        assert len(messages) == 1, messages
        return messages[0]

    def settle(self) -> None:
        while self.bus.actions or self.bus.lines:
            for action in self.bus.take():
                self._carry_out(action)
            if self.bus.lines:
                number, lines = self.bus.take_lines()
                self.lines += lines
                self.bus.handle(events.Written(number), self.now)

    def _carry_out(self, action: Any) -> None:
        match action:
            case act.Deliver(worker, request):
                try:
                    self._post(worker.address[0], worker.voice.deliver(worker, request))
                except LocalProtocolError as error:
                    self.bus.handle(events.Undeliverable(worker.address, request.token, str(error)), self.now)
            case act.Say(peer, frames):
                self._post(peer[0], frames)
            case act.Fanout(topic, body):
                self.publications.append((topic, body))
            case act.Observed():
                self.observed.append(action)
            case act.Drained():
                self.drained = True
            case act.Beat(worker) | act.Stop(worker, _) | act.Reschedule(worker, _):
                self._post(worker.address[0], self._speak(worker.voice, action))
            case act.Dismiss(peer, voice, _):
                self._post(peer[0], self._speak(voice, action))
            case act.Ask(peer, voice, _) if peer in self.gone:
                self.bus.handle(events.Unasked(peer), self.now)
            case act.Ask(peer, voice, _):
                self._post(peer[0], self._speak(voice, action))
            case act.Beckon(to, ended):
                self.datagrams.append((to, ended))
            case act.Approve() | act.Deny() | act.Acknowledge():
                self._post(action.node[0], self._speak(action.voice, action))
            case _:
                self._post(action.client[0], self._speak(action.voice, action))

    def _speak(self, voice: Any, action: Any) -> Sent | None:
        method: Callable[[Any], Sent | None] = getattr(voice, type(action).__name__.lower())
        return method(action)

    def _post(self, link: int, frames: Sent | None) -> None:
        if frames is not None:
            self.sent[link, frames[0]].append(frames[1:])
