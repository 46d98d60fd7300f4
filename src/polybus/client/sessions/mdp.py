"""What the workers of MDP/0.1 and MDP/0.2 have in common: all but the frames.

Both sides send HEARTBEAT whenever they said nothing for an interval, and give the other up after three.
The client address is echoed; that is all an answer has to name its request by.  So two requests of the same
address at once are only told apart by brokers that make the address up, as ours does: a credit above 1 is
for those.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from polybus.client.failures import write_failure
from polybus.client.sessions.port import Message, Restart, Token, Work, WorkerEvent, WorkerSession
from polybus.wire import mdp2 as wire
from polybus.wire.frames import Frame, refuse

BEAT_S: Final = 2.5
LIVENESS: Final = 3


class MdpWorker(WorkerSession):
    """One service, up to `credit` requests at a time."""

    beat_s = BEAT_S
    dead_after_s = BEAT_S * LIVENESS
    tag = b""

    def __init__(self, service: bytes, credit: int = 1) -> None:
        super().__init__()
        self._service = service
        self._credit = credit
        self._held: dict[bytes, int] = {}

    @abstractmethod
    def write(self, message: wire.WorkerMessage) -> Message: ...

    @abstractmethod
    def read(self, frames: Sequence[Frame], at: int) -> wire.Command: ...

    def greet(self, now: float) -> list[Message]:
        self._held.clear()
        return [self.write(wire.Ready(self._service, self._credit))]

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        if len(frames) <= at or frames[at] != self.tag:
            raise refuse("wrong_protocol", f"the message does not begin with {self.tag.decode()}")
        message = self.read(frames, at)
        if type(message) is wire.Order:
            self._held[message.address] = self._held.get(message.address, 0) + 1
            return [Work(message.address, self._service, b"", message.body)]
        if type(message) is wire.Disconnect:
            return [Restart("the broker ended the conversation")]
        return []

    def beats(self, now: float) -> list[Message]:
        if now - self.spoke_at >= self.beat_s:
            return [self.write(wire.Heartbeat())]
        return []

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._held:
            return []
        frames = self.write(wire.WorkerFinal(token, body))
        self._held[token] -= 1
        if not self._held[token]:
            del self._held[token]
        self._spoke = True
        return [frames]

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        return self.reply(token, [write_failure(reason, rejected)])

    def goodbye(self) -> list[Message]:
        return [self.write(wire.Disconnect())]
