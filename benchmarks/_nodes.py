"""Thousands of registered DBP nodes in one process, which beat in datagrams from a few sockets.

    _nodes.py ENDPOINT COUNT HEARTBEAT_S FALTERING

All register over one connection, with an address at which they can be asked.  Their beats are spread evenly
over the interval, and what the broker sends back is counted.  On SIGUSR1 the first FALTERING nodes stop
beating but answer when they are asked, and the next FALTERING ones stop altogether.  Told to stop, it prints
what it saw as a line of JSON.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import sys
import time
from statistics import fmean
from typing import Any

import zmq

from polybus.wire.dbp_time import TimeForm, write_time

TICK_S = 0.005
SOURCES = 8
# Registrations on their way at a time.
WINDOW = 200
# Datagrams read from one socket at a time.
AT_ONCE = 1000
ANSWER_S = 60.0


class Nodes:
    def __init__(self, endpoint: str, count: int, heartbeat_s: float, faltering: int) -> None:
        self._count = count
        self._heartbeat_s = heartbeat_s
        self._faltering = faltering
        self._context = zmq.Context()
        self.stopping = self.falters = False
        self._answering, self._mute = self._asked_at(), self._asked_at()
        self._answering_port, self._mute_port = map(_port_of, (self._answering, self._mute))
        self._sources = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOURCES)]
        for source in self._sources:
            source.setblocking(False)
            source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
            source.bind(("127.0.0.1", 0))
        self._beat_at = [0.0] * count
        # When the nodes of either group were asked first, by the connection that was made for each.
        self._first: tuple[dict[bytes, float], dict[bytes, float]] = ({}, {})
        self.counts = {"beats": 0, "beats_got": 0, "ended": 0, "unsent": 0, "asked": 0, "answered": 0}
        self.latest_beat_s = 0.0
        self._to = ("127.0.0.1", self._register(endpoint))

    def _asked_at(self) -> zmq.Socket[bytes]:
        asked: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        asked.linger = 0
        asked.bind("tcp://127.0.0.1:*")
        return asked

    def _register(self, endpoint: str) -> int:
        """Register them all; where their beats go."""
        dealer: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(endpoint)
        sent = approved = port = 0
        while approved < self._count:
            while sent < self._count and sent - approved < WINDOW:
                mute = self._faltering <= sent < 2 * self._faltering
                info = {
                    "name": _name(sent).decode(),
                    "ip": "127.0.0.1",
                    "port": self._mute_port if mute else self._answering_port,
                    "function": "idles",
                    "heartbeat": self._heartbeat_s,
                    "transport": "none",
                }
                dealer.send_multipart([b"", b"UwU", b"1.0", json.dumps(info).encode()])
                sent += 1
                if sent % 50 == 0:
                    self._beat_early(sent - 50, sent, port)
            if not dealer.poll(int(ANSWER_S * 1000)):
                raise SystemExit(f"{approved} of {self._count} were registered, then nothing came")
            _, command, _, *rest = dealer.recv_multipart()
            if command != b"OwO":
                raise SystemExit(f"denied: {rest}")
            port = json.loads(rest[0])["udp"]
            approved += 1
        dealer.close()
        return int(port)

    def _beat_early(self, first: int, last: int, port: int) -> None:
        """Those that are registered already must not be late while the others come."""
        now = time.monotonic()
        for number in range(last):
            if port and (number >= first or now - self._beat_at[number] > self._heartbeat_s * 0.8):
                self._beat(number, now, ("127.0.0.1", port))

    def _beat(self, number: int, now: float, to: tuple[str, int]) -> None:
        packet = b"<3 %b %b" % (write_time(time.time(), TimeForm.TEXT), _name(number))
        try:
            self._sources[number % SOURCES].sendto(packet, to)
            self.counts["beats"] += 1
        except OSError:
            self.counts["unsent"] += 1
        self._beat_at[number] = now

    def run(self) -> None:
        poller = select.poll()
        for asked in (self._answering, self._mute):
            poller.register(asked.get(zmq.FD), select.POLLIN)
        start, done = time.monotonic(), 0
        silent = 2 * self._faltering
        while not self.stopping:
            now = time.monotonic()
            due = int((now - start) / self._heartbeat_s * self._count)
            for turn in range(done, due):
                number = turn % self._count
                late_s = now - start - turn * self._heartbeat_s / self._count
                self.latest_beat_s = max(self.latest_beat_s, late_s)
                if number >= silent or not self.falters:
                    self._beat(number, now, self._to)
            done = due
            self._listen()
            self._hear(now)
            poller.poll(TICK_S * 1000)

    def _listen(self) -> None:
        counts = self.counts
        for source in self._sources:
            try:
                for _ in range(AT_ONCE):
                    counts["beats_got" if source.recv(400).startswith(b"<3 ") else "ended"] += 1
            except OSError:
                continue

    def _hear(self, now: float) -> None:
        for asked, first in zip((self._answering, self._mute), self._first, strict=True):
            while asked.poll(0):
                identity, empty, command, _, *_ = asked.recv_multipart()
                assert command == b"<3", command
                self.counts["asked"] += 1
                if self.falters:
                    first.setdefault(identity, now)
                if asked is self._answering:
                    asked.send_multipart([identity, empty, b"u.u", b"1.0", b""])
                    self.counts["answered"] += 1

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = {**self.counts, "latest_beat_s": self.latest_beat_s}
        for number, group in enumerate(("answering", "silent")):
            of_group = range(number * self._faltering, (number + 1) * self._faltering)
            first = list(self._first[number].values())
            report[f"{group}_asked"] = len(first)
            if first:
                report[f"{group}_asked_s"] = fmean(first) - fmean(self._beat_at[n] for n in of_group)
        return report


def _name(number: int) -> bytes:
    return b"node-%05d" % number


def _port_of(bound: zmq.Socket[bytes]) -> int:
    return int(bound.get(zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])


def main() -> None:
    endpoint, count, heartbeat_s, faltering = sys.argv[1:]
    nodes = Nodes(endpoint, int(count), float(heartbeat_s), int(faltering))

    def stop(*_: object) -> None:
        nodes.stopping = True

    def falter(*_: object) -> None:
        nodes.falters = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, falter)
    print("ready", flush=True)
    nodes.run()
    print(json.dumps(nodes.report()), flush=True)


if __name__ == "__main__":
    main()
