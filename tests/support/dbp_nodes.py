"""A DBP node in a thread: it registers, beats in datagrams, is asked over TCP, and notes when what happened.

with DbpNode(broker, "thermo", 0.2) as node:            # on a DEALER that it keeps
    node.beating = False                                # its datagrams stop
    wait_for(lambda: node.questions)                    # … and it is asked
    node.answering = False                              # now it says nothing any more

`own_address=True` is a node that registers over a REQ socket, closes it, and listens at its own address; one
with `transport="req"` alone keeps the DEALER that it registered on, and listens at its own address.
`is_original=True` registers as the original implementation does.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, Self

import zmq

from support.live import WAIT_S, LiveBroker

TIME = b"1700000000.0"
# How soon it notices that it was told to stop.
LOOK_S = 0.02


class DbpNode:
    def __init__(
        self,
        broker: LiveBroker,
        name: str,
        heartbeat_s: float,
        own_address: bool = False,
        transport: str | None = None,
        ip: str = "127.0.0.1",
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        is_original: bool = False,
    ) -> None:
        self.name = name
        self.heartbeat_s = heartbeat_s
        # The original implementation sends no heartbeats.
        self.beating = not is_original
        self.answering = True
        # When what came (monotonic): beats of the broker in datagrams, its word that we must register again,
        # questions over TCP, calls.
        self.beats: list[float] = []
        self.endings: list[float] = []
        self.questions: list[float] = []
        self.calls: list[bytes] = []
        self.last_beat_at = 0.0
        self._context = context or zmq.Context.instance()
        self._own_address = own_address
        # Who serves on a DEALER has nothing to say elsewhere.
        self._listens = own_address or transport == "req"
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._udp.setblocking(False)
        self._router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self.port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._dealer: zmq.Socket[bytes] | None = None
        self.info: dict[str, Any] = {
            "name": name,
            "ip": ip,
            "port": self.port,
            "function": "test",
            "heartbeat": heartbeat_s,
        }
        if is_original:
            self.info = {"name": name, "interfaces": {"router": {"ip": ip, "port": self.port}}}
        if transport is not None:
            self.info["transport"] = transport
        self._done = threading.Event()
        try:
            self.register(broker)
        except BaseException:
            self._close()
            raise
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def register(self, broker: LiveBroker) -> None:
        kind = zmq.REQ if self._own_address else zmq.DEALER
        asking = self._context.socket(kind)
        asking.linger = 0
        asking.connect(broker["dbp.port"])
        lead = [] if self._own_address else [b""]
        asking.send_multipart([*lead, b"UwU", TIME, json.dumps(self.info).encode()])
        assert asking.poll(int(WAIT_S * 1000)), "no answer to the registration"
        command, _, *rest = asking.recv_multipart()[len(lead) :]
        assert command == b"OwO", (command, rest)
        self.agreed: dict[str, Any] = json.loads(rest[0] or b"{}")
        self._to = ("127.0.0.1", self.agreed.get("udp", 0))
        if self._own_address:
            asking.close(0)
        else:
            self._dealer = asking

    def _live(self) -> None:
        beat_at = 0.0
        poller = zmq.Poller()
        poller.register(self._udp.fileno(), zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        if self._dealer is not None:
            poller.register(self._dealer, zmq.POLLIN)
        while not self._done.is_set():
            now = time.monotonic()
            if self.beating and now >= beat_at:
                beat_at = now + self.heartbeat_s
                self.last_beat_at = now
                self._udp.sendto(b"<3 %b %b" % (TIME, self.name.encode()), self._to)
            shown = dict(poller.poll(max(1, int(min(LOOK_S, self.heartbeat_s / 4) * 1000))))
            if self._udp.fileno() in shown:
                packet = self._udp.recv(1000)
                (self.beats if packet.startswith(b"<3 ") else self.endings).append(time.monotonic())
            for asked in (self._router, self._dealer):
                if asked is not None and asked in shown:
                    frames = asked.recv_multipart()
                    if asked is self._dealer or self._listens:
                        self._hear(asked, frames)

    def _hear(self, asked: zmq.Socket[bytes], frames: list[bytes]) -> None:
        at = frames.index(b"")
        lead, (command, _, *rest) = frames[: at + 1], frames[at + 1 :]
        if command in (b"<3", b"ping"):
            self.questions.append(time.monotonic())
            if self.answering:
                asked.send_multipart([*lead, b"<3", TIME, self.name.encode()])
        elif command == b"u_U":
            self.calls.append(rest[1])
            asked.send_multipart([*lead, b"o_O", TIME, rest[1][::-1]])

    def _close(self) -> None:
        self._udp.close()
        self._router.close(0)
        if self._dealer is not None:
            self._dealer.close(0)

    def die(self) -> None:
        """End without a word."""
        self._done.set()
        self._thread.join(WAIT_S)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._done.is_set():
            self.die()
