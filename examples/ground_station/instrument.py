"""An instrument of the ground station: a DBP node that registers, beats, and publishes telemetry.

The registration is a lease in the broker's catalog.  DBP itself has no topics; telemetry goes out on the
port for EBUS publications, to which any PUB socket connects, under telemetry.NAME.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from urllib.parse import urlsplit

import zmq

CATALOG = os.environ.get("POLYBUS_DBP_WORKER", "tcp://127.0.0.1:5246")
PUBLISH = os.environ.get("POLYBUS_EBUS_PUBLISH", "tcp://127.0.0.1:5002")
BEAT_S = 0.25


def now() -> bytes:
    return b"%.3f" % time.time()


class Instrument(threading.Thread):
    """Lives until `leave`, which gives its lease back, or `die`, after which it only falls silent."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str, function: str) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.approved = False
        self._end = ""
        self._catalog = context.socket(zmq.DEALER)
        self._catalog.linger = 1000
        self._catalog.connect(CATALOG)
        entry = {
            "name": name,
            "ip": "127.0.0.1",
            "port": 5246,
            "function": function,
            "heartbeat": BEAT_S,
            # Listed and watched, but not called.
            "transport": "none",
        }
        self._catalog.send_multipart([b"", b"UwU", now(), json.dumps(entry).encode()])
        if not self._catalog.poll(10_000):
            raise SystemExit(f"no answer from {CATALOG} within 10 s; is the broker there?")
        _, command, _, *details = self._catalog.recv_multipart()
        self.approved = command == b"OwO"
        self._udp = json.loads(details[0])["udp"] if self.approved else 0
        # An XPUB is a PUB that hears when it is wanted; what a PUB sends before that is dropped.
        self._publisher = context.socket(zmq.XPUB)
        self._publisher.linger = 1000
        self._publisher.connect(PUBLISH)
        if not self._publisher.poll(10_000):
            raise SystemExit(f"nobody at {PUBLISH} within 10 s")

    def publish(self, **values: float) -> None:
        body = json.dumps({"at": time.time(), **values}).encode()
        self._publisher.send_multipart([f"telemetry.{self.name}".encode(), body])

    def run(self) -> None:
        place = (urlsplit(CATALOG).hostname or "127.0.0.1", self._udp)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beats:
            while not self._end:
                beats.sendto(b"<3 %s %s" % (now(), self.name.encode()), place)
                # Whoever misses a datagram is asked over TCP, and answers there.
                if self._catalog.poll(int(BEAT_S * 1000)) and not self._end:
                    self._catalog.recv_multipart()
                    self._catalog.send_multipart([b"", b"<3", now(), self.name.encode()])
        if self._end == "leave":
            self._catalog.send_multipart([b"", b"</3", now(), self.name.encode()])
        self._catalog.close()
        self._publisher.close()

    def leave(self) -> None:
        self._stop_with("leave")

    def die(self) -> None:
        self._stop_with("die")

    def _stop_with(self, how: str) -> None:
        self._end = how
        self.join()
