"""Public EBUS peers as they are on the wire: a worker and a client with the habits of the Node library.

What a peer does is driven by messages and by timers of 500 ms, in one thread, as in Node: `Loop.until` lets
time pass for all peers at once and returns when a condition holds.  Habits that a broker has to live with:

- a number travels as decimal text, no value as the text `null` (older library) or an empty frame (newer one)
- any message is a sign of life; after 500 ms without one a peer pings, after five pings it begins anew, with
  new sockets and a new identity
- a client asks everything unanswered again whenever it comes online
- a worker gives up what is cancelled or stale, and can then no longer answer it
- a worker knows a request that it had before, and answers it again instead of running it again
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import zmq

from support.ebus_bodies import pack, unpack
from support.patience import patient

CLIENT: Final = b"EBC01"
WORKER: Final = b"EBW01"
BEAT_S: Final = 0.5
LIVENESS: Final = 5
STALE_MS: Final = 3000
# What a client of these tests gives its requests, because other work may share the machine.
PATIENT_MS: Final = int(patient(15.0) * 1000)
RESEND_MS: Final = 1000
POLL_MS: Final = 10
WAIT_S: Final = patient(20.0)

Frame = bytes | str | int | float | None


class Loop:
    """The peers of one test."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.peers: list[PublicPeer] = []

    def until(self, condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
        """Let all peers live until the condition holds; its value."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s; {self.seen()}"
            self.step()
        return value

    def step(self) -> None:
        poller = zmq.Poller()
        for peer in self.peers:
            for socket in peer.inputs():
                poller.register(socket, zmq.POLLIN)
        poller.poll(POLL_MS)
        for peer in list(self.peers):
            peer.step(time.monotonic())

    def seen(self) -> str:
        return "; ".join(f"{type(peer).__name__}: {peer.events[-8:]}" for peer in self.peers)

    def close(self) -> None:
        for peer in list(self.peers):
            peer.die()
        self.context.destroy(linger=0)


class PublicPeer:
    """Sockets, timers, publishing; `events` is what a program would be told, the kind first."""

    tag: bytes = b""

    def __init__(self, loop: Loop, endpoints: Mapping[str, str], address: str, null: bytes) -> None:
        self._loop = loop
        self._endpoints = endpoints
        self._address = endpoints[address]
        self._null = null
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._channels = [b"ebus"]
        self.events: list[tuple[Any, ...]] = []
        self.is_online = False
        self.starts = 0
        loop.peers.append(self)

    def told(self, kind: str) -> list[tuple[Any, ...]]:
        return [event for event in self.events if event[0] == kind]

    def inputs(self) -> list[zmq.Socket[bytes]]:
        return [socket for name, socket in self._sockets.items() if name != "pub"]

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self.close()
        self.starts += 1
        kinds = {"dealer": zmq.DEALER, "pub": zmq.PUB, "sub": zmq.SUB}
        for name, kind in kinds.items():
            self._sockets[name] = self._loop.context.socket(kind)
            self._sockets[name].setsockopt(zmq.LINGER, 1)
        self.identity = self.new_identity()
        self._sockets["dealer"].setsockopt(zmq.IDENTITY, self.identity)
        for channel in self._channels:
            self._sockets["sub"].setsockopt(zmq.SUBSCRIBE, channel)
        self._sockets["dealer"].connect(self._address)
        self._sockets["pub"].connect(self._endpoints["ebus.publish"])
        self._sockets["sub"].connect(self._endpoints["ebus.subscribe"])
        self._liveness = LIVENESS
        self._ping_at = self._beat_at = time.monotonic() + BEAT_S

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()

    def stop(self) -> None:
        """Leave in good order."""
        self.goodbye()
        # The library waits a millisecond for what is on its way; a busy machine may need longer.
        self._sockets["dealer"].setsockopt(zmq.LINGER, 1000)
        self.die()

    def die(self) -> None:
        """As if the process were killed: no word to anybody, connections closed."""
        self.close()
        self._loop.peers.remove(self)

    def freeze(self) -> None:
        """As if the process hung: connections stay, nothing is said or read."""
        self._loop.peers.remove(self)

    def step(self, now: float) -> None:
        for name in ("dealer", "sub"):
            # Reading a message may replace the sockets, so the one to read from is looked up each time.
            while name in self._sockets and self._sockets[name].poll(0):
                frames = self._sockets[name].recv_multipart()
                if name == "sub":
                    self._notified(*frames)
                else:
                    self.on_message(frames)
        if self._sockets and now >= self._ping_at:
            self._ping_at = now + BEAT_S
            self._liveness -= 1
            if self._liveness >= 0:
                self.say("PING")
            else:
                self._offline()
                self.on_lost()
        if self._sockets and now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self.on_beat(now)

    def heard(self) -> None:
        self._liveness = LIVENESS
        self._ping_at = time.monotonic() + BEAT_S
        if not self.is_online:
            self.is_online = True
            self.events.append(("online",))
            self.on_online()

    def _offline(self) -> None:
        if self.is_online:
            self.is_online = False
            self.events.append(("offline",))

    def send(self, *frames: Frame) -> None:
        if self._sockets:
            self._sockets["dealer"].send_multipart([self._encode(frame) for frame in frames])

    def _encode(self, frame: Frame) -> bytes:
        if frame is None:
            return self._null
        return frame if isinstance(frame, bytes) else str(frame).encode()

    # -- channels ---------------------------------------------------------------------------------

    def subscribe(self, channel: str) -> None:
        self._channels.append(channel.encode())
        self._sockets["sub"].setsockopt(zmq.SUBSCRIBE, channel.encode())

    def publish(self, channel: str, text: str) -> None:
        self._sockets["pub"].send_multipart([channel.encode(), pack(text)])

    def _notified(self, channel: bytes, data: bytes | None = None) -> None:
        if channel == b"ebus/shutdown":
            self._offline()
        self.events.append(("message", channel.decode(), unpack(data)))

    # -- what client and worker do differently ------------------------------------------------------

    def new_identity(self) -> bytes:
        raise NotImplementedError

    def say(self, word: str, *frames: Frame) -> None:
        raise NotImplementedError

    def goodbye(self) -> None:
        raise NotImplementedError

    def on_message(self, frames: list[bytes]) -> None:
        raise NotImplementedError

    def on_lost(self) -> None:
        raise NotImplementedError

    def on_online(self) -> None:
        """Nothing, for a worker."""

    def on_beat(self, now: float) -> None:
        raise NotImplementedError


@dataclass
class Held:
    """A request that a worker has, or has answered."""

    stale_at: float
    answer: tuple[str, str, Frame] | None = None


class PublicWorker(PublicPeer):
    """Calls `handle(worker, rid, text)` for each request; that answers, now or later, or does not."""

    def __init__(
        self,
        loop: Loop,
        endpoints: Mapping[str, str],
        service: str,
        handle: Callable[[PublicWorker, str, Any], None],
        null: bytes = b"null",
    ) -> None:
        super().__init__(loop, endpoints, "ebus.backend", null)
        self._service = service
        self._handle = handle
        self.requests: dict[str, Held] = {}
        self.start()

    def new_identity(self) -> bytes:
        return f"W/{self._service}/{uuid.uuid1()}".encode()

    def say(self, word: str, *frames: Frame) -> None:
        self.send(WORKER, word, *frames)

    def start(self) -> None:
        super().start()
        self.say("READY", None, self._service)

    def goodbye(self) -> None:
        # Why is not said.
        self.say("DISCONNECT", self._service, "undefined")

    def respond(self, rid: str, text: str | None) -> None:
        self._answer(rid, "REPLY", text)

    def reject(self, rid: str, text: str | None) -> None:
        self._answer(rid, "REJECT", text)

    def _answer(self, rid: str, word: str, text: str | None) -> None:
        held = self.requests.get(rid)
        if held is None:
            self.events.append(("error", f"request {rid} does not exist"))
            return
        held.answer = (word, rid, None if text is None else pack(text))
        self.say(*held.answer)

    def on_message(self, frames: list[bytes]) -> None:
        tag, word, rid, data, stale = (*frames, *[b""] * 5)[:5]
        if word == b"DISCONNECT":
            self.events.append(("disconnect",))
            self.start()
            return
        self.heard()
        if word == b"PING":
            self.say("HEARTBEAT")
        elif word == b"HEARTBEAT":
            pass
        elif tag != CLIENT:
            self.events.append(("error", f"not from a client: {frames}"))
        elif word == b"CANCEL":
            if self.requests.pop(rid.decode(), None) is not None:
                self.events.append(("cancel", rid.decode()))
        elif word == b"REQ":
            self._order(rid.decode(), data, int(stale or STALE_MS))
        else:
            self.events.append(("error", f"not processed: {frames}"))

    def _order(self, rid: str, data: bytes, stale_ms: int) -> None:
        known = self.requests.get(rid)
        if known is not None:
            if known.answer is not None:
                self.say(*known.answer)
            return
        self.requests[rid] = Held(time.monotonic() + stale_ms / 1000)
        self.events.append(("request", rid, unpack(data), stale_ms))
        self._handle(self, rid, unpack(data))

    def on_lost(self) -> None:
        self.say("DISCONNECT", self._service, "missed heartbeats")
        self.start()

    def on_beat(self, now: float) -> None:
        self.say("HEARTBEAT")
        self.requests = {rid: held for rid, held in self.requests.items() if held.stale_at >= now}


@dataclass
class Asked:
    """A request of a client that is not answered yet."""

    service: str
    text: str | None
    stale_ms: float
    expires_at: float
    resend_at: float = 0.0


class PublicClient(PublicPeer):
    def __init__(self, loop: Loop, endpoints: Mapping[str, str], null: bytes = b"null") -> None:
        super().__init__(loop, endpoints, "ebus.frontend", null)
        self.requests: dict[str, Asked] = {}
        self.start()

    def new_identity(self) -> bytes:
        return f"C{uuid.uuid1()}".encode()

    def say(self, word: str, *frames: Frame) -> None:
        self.send("", CLIENT, word, *frames)

    def start(self) -> None:
        self.goodbye()
        super().start()

    def goodbye(self) -> None:
        self.say("DISCONNECT")

    def request(self, service: str, text: str | None, stale_ms: float = PATIENT_MS) -> str:
        rid = str(uuid.uuid1())
        self.requests[rid] = Asked(service, text, stale_ms, time.monotonic() + stale_ms / 1000)
        self._ask(rid)
        return rid

    def cancel(self, rid: str) -> None:
        self.say("CANCEL", self.requests[rid].service, rid)

    def _ask(self, rid: str) -> None:
        asked = self.requests[rid]
        resend_ms = max(RESEND_MS, asked.stale_ms * 3)
        asked.resend_at = min(time.monotonic() + resend_ms / 1000, asked.expires_at)
        body = None if asked.text is None else pack(asked.text)
        self.say("REQ", asked.service, rid, body, asked.stale_ms)

    def _ask_again(self) -> None:
        now = time.monotonic()
        for rid, asked in self.requests.items():
            if now <= asked.expires_at:
                self._ask(rid)

    def on_message(self, frames: list[bytes]) -> None:
        _, tag, word, rid, *data = (*frames, *[b""] * (4 - len(frames)))
        text = unpack(data[0] if data else None)
        self.heard()
        if tag != WORKER:
            self.events.append(("error", f"not from a worker: {frames}"))
        elif word == b"PING":
            self.say("HEARTBEAT")
        elif word == b"HEARTBEAT":
            pass
        elif word == b"DISCONNECT":
            self.events.append(("disconnect",))
            self.start()
        elif word in (b"SERVICES", b"WORKERS"):
            self.events.append((word.decode().lower(), text))
        elif word == b"REPLY" and rid.decode() not in self.requests:
            self.say("REJECT", rid, b"no request with " + rid)
        elif word in (b"REPLY", b"REJECT"):
            if self.requests.pop(rid.decode(), None) is not None:
                self.events.append((word.decode().lower(), rid.decode(), text))
        else:
            self.events.append(("error", f"not processed: {frames}"))

    def on_lost(self) -> None:
        self.start()
        self._ask_again()

    def on_online(self) -> None:
        self._ask_again()

    def on_beat(self, now: float) -> None:
        for rid, asked in list(self.requests.items()):
            if asked.expires_at < now:
                del self.requests[rid]
                self.events.append(("expired", rid))
            elif asked.resend_at < now:
                self._ask(rid)
