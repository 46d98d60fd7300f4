"""DBP: calls to services that are listed in the broker's catalog.

A call has no id, so a client asks one thing at a time, and a service answers in the order in which it was
called: an answer that is ready too early waits for those before it.  A service lists itself with a
REGISTRATION over its DEALER and keeps the lease with heartbeats (`<3` and its name); it is reached
through the broker, so that is the address it gives.

The approval says how often to beat, and the session follows it.  Heartbeats go in datagrams to the port that
the broker names in its approval, and come back so.  When one is missing, ours or the broker's, they go over
TCP until the next registration.  The session only makes and reads the datagrams (`packets`, `hear_packet`);
who has a socket for them says so with `beats_from`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import msgspec

from polybus.client.failures import REJECTED, split_failure
from polybus.client.sessions.port import (
    ClientEvent,
    Denied,
    Done,
    Failed,
    Message,
    Restart,
    Token,
    Work,
    WorkerEvent,
    WorkerSession,
    one_frame,
)
from polybus.client.sessions.queued import QueuedClient
from polybus.errors import RemoteProtocolError
from polybus.wire import dbp as wire
from polybus.wire.dbp_info import HEARTBEAT_IP, NodeInfo, read_error
from polybus.wire.dbp_time import TimeForm
from polybus.wire.dbp_udp import read_packet_as_node, write_beat_packet
from polybus.wire.frames import EMPTY, Frame, refuse

BEAT_S: Final = 2.5
LIVENESS: Final = 3
# After so many intervals of silence a beat of the broker is missing: half an interval is for the way.
LATE: Final = 1.5
# A question of the broker that comes sooner than this after our datagram, in intervals, has crossed it.
CROSSED: Final = 0.25
# No moment: what was said last was said over TCP.
NO_PACKET: Final = -1.0
# The approval may change the interval, within these bounds: while its handler runs, a worker looks after its
# socket four times a second, and a broker that is lost must be noticed some day.
SHORTEST_BEAT_S: Final = 0.5
LONGEST_BEAT_S: Final = 60.0


class DbpClient(QueuedClient):
    dialect = "dbp"

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._wall_clock = wall_clock

    def write(self, service: bytes, body: list[Frame]) -> Message:
        one_frame(body, "DBP")
        # A call without a body would be a question about the service: it always has a body frame.
        call = wire.Call(service, body or [EMPTY])
        return [EMPTY, *wire.write_from_node(call, self._wall_clock())]

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[ClientEvent]:
        message = wire.read_as_node(frames, at)
        if type(message) is not wire.Answer:
            return []
        request_id = self.answered(None, final=True)
        error = read_error(message.body)
        if error is None:
            return [Done(request_id, message.body)]
        return [Failed(request_id, *split_failure(error), message.body)]


class DbpWorker(WorkerSession):
    """One service, answered in order."""

    dialect = "dbp"
    beat_s = BEAT_S
    dead_after_s = BEAT_S * LIVENESS

    def __init__(
        self,
        service: bytes,
        credit: int = 1,
        host: str = "127.0.0.1",
        port: int = 5246,
        function: str = "",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._info = NodeInfo(
            service,
            ip=host,
            port=port,
            function=function or f"service {service.decode()}",
            heartbeat_s=self.beat_s,
            credit=credit,
        )
        self._wall_clock = wall_clock
        self._form = TimeForm.FLOAT
        self._numbers = count(1)
        # Calls in the order they came, each with its answer as soon as there is one.
        self._calls: dict[int, Message | None] = {}
        self._pending: list[Message] = []
        self._packets: list[bytes] = []
        # When the last thing that we said was said in a datagram.
        self._packet_at = NO_PACKET
        self._takes_packets = False
        # Where the broker takes datagrams, and where it broadcasts its own; 0: nowhere, or not known yet.
        self.packet_port = 0
        self.broadcast_port = 0

    def reached_at(self, host: str, port: int) -> None:
        """Where callers find the service: at the broker."""
        self._info = msgspec.structs.replace(self._info, ip=host, port=port)

    def beats_from(self, ip: str) -> None:
        """There is a socket for datagrams, at this address; empty: there is none."""
        self._takes_packets = bool(ip)
        extra = {HEARTBEAT_IP: ip} if ip and ip != self._info.ip else {}
        self._info = msgspec.structs.replace(self._info, extra=extra)

    def packets(self) -> list[bytes]:
        """The datagrams that are to be sent."""
        packets, self._packets = self._packets, []
        return packets

    def hear_packet(self, packet: bytes, now: float) -> list[WorkerEvent]:
        """What a datagram of the broker means."""
        try:
            message = read_packet_as_node(packet)
        except RemoteProtocolError:
            self.invalid += 1
            return []
        if type(message) is wire.Disconnect:
            return [Restart("the broker lost the conversation")]
        self.heard_at = now
        return []

    def _write(self, message: wire.BrokerReads) -> Message:
        return [EMPTY, *wire.write_from_node(message, self._wall_clock())]

    def greet(self, now: float) -> list[Message]:
        self._calls.clear()
        self._pending.clear()
        self._packets.clear()
        self.packet_port = self.broadcast_port = 0
        # What the last approval said counts for that conversation.
        self.beat_s, self.dead_after_s = type(self).beat_s, type(self).dead_after_s
        return [self._write(wire.Registration(self._info, form=self._form))]

    def pending(self) -> list[Message]:
        messages, self._pending = self._pending, []
        return messages

    def hear(self, frames: Sequence[Frame], at: int, now: float) -> list[WorkerEvent]:
        message = wire.read_as_node(frames, at)
        match message:
            case wire.Call(service, body):
                token = next(self._numbers)
                self._calls[token] = None
                return [Work(token, service, b"", body)]
            case wire.Denied(reasons):
                return [Denied(reasons)]
            case wire.Disconnect():
                return [Restart("the broker ended the conversation")]
            case wire.Approved(config):
                self._agree(config, now)
            case wire.Heartbeat() if self._is_asked(now):
                self.packet_port = 0
                self._pending.append(self._write(wire.Heartbeat(self._info.name, self._form)))
            case wire.Ping():
                self._pending.append(self._write(wire.Pong(self._info.name, self._form)))
            case wire.InfoRequest() | wire.Answer() | wire.Exit():
                # EXIT is never obeyed from the network.
                raise refuse("unexpected", "a service is called, it is not asked or told this")
        return []

    def _agree(self, config: dict[str, Any], now: float) -> None:
        heartbeat_s = _interval(config.get("heartbeat_s"))
        # What is no time, or repeats ours, changes nothing.
        if heartbeat_s and heartbeat_s != self._info.heartbeat_s:
            self.beat_s = min(max(heartbeat_s, SHORTEST_BEAT_S), LONGEST_BEAT_S)
            self.dead_after_s = self.beat_s * LIVENESS
            self.deadline = min(self.deadline, now + self.beat_s)
        if self._takes_packets:
            self.packet_port = _port(config.get("udp"))
            self.broadcast_port = _port(config.get("broadcast"))
        if self.packet_port:
            # The broker's own begin when it has seen where ours come from.
            self._beat_in_a_packet(now)

    def _is_asked(self, now: float) -> bool:
        """Whether the broker asks over TCP because it missed our last datagram."""
        by_packet = self.packet_port > 0 and self.spoke_at == self._packet_at
        return by_packet and now - self._packet_at > self.beat_s * CROSSED

    def beats(self, now: float) -> list[Message]:
        if now - self.spoke_at < self.beat_s:
            return []
        if now - self.heard_at > self.beat_s * LATE:
            self.packet_port = 0
        if self.packet_port:
            self._beat_in_a_packet(now)
            return []
        return [self._write(wire.Heartbeat(self._info.name, self._form))]

    def _beat_in_a_packet(self, now: float) -> None:
        self._packets.append(write_beat_packet(self._info.name, self._wall_clock()))
        self._packet_at = self.spoke_at = now

    def reply(self, token: Token, body: list[Frame]) -> list[Message]:
        if token not in self._calls:
            return []
        one_frame(body, "DBP")
        return self._answer(token, self._write(wire.Answer(body, self._form)))

    def fail(self, token: Token, reason: str, rejected: bool = False) -> list[Message]:
        if token not in self._calls:
            return []
        text = f"{REJECTED}: {reason}" if rejected else reason
        return self._answer(token, [EMPTY, *wire.write_error(text, self._wall_clock(), self._form)])

    def _answer(self, token: int, frames: Message) -> list[Message]:
        self._calls[token] = frames
        ready: list[Message] = []
        for call in list(self._calls):
            answer = self._calls[call]
            if answer is None:
                break
            ready.append(answer)
            del self._calls[call]
        if ready:
            self._spoke, self._packet_at = True, NO_PACKET
        return ready

    def goodbye(self) -> list[Message]:
        return [self._write(wire.Disconnect(self._info.name, self._form))]


def _interval(value: object) -> float:
    """A time in seconds that the broker names; 0 if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        return max(float(value), 0.0)
    except OverflowError:
        # JSON may have an integer of any size.
        return LONGEST_BEAT_S


def _port(value: object) -> int:
    """A port that the broker names; 0 if it is none."""
    return value if type(value) is int and 0 < value <= 65535 else 0
