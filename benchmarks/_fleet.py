"""Thousands of idle MDR workers in one process: each has its own socket, identity and heartbeats.

    _fleet.py ENDPOINT FIRST COUNT SERVICES PING_S

Worker number n offers the service `idle.<n modulo SERVICES>` and answers with its name.  One thread serves
all of them: it sleeps on the file descriptors that libzmq gives its sockets, and every few milliseconds sends
the PINGs that are due, which are spread evenly.  Told to stop, it prints what it saw as a line of JSON.

A descriptor tells of news only once, and a send may take the news in; so a socket is read until it is empty
after every send.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

import zmq

from polybus.errors import RemoteProtocolError
from polybus.wire import mdr

TICK_S = 0.01


class Fleet:
    def __init__(self, endpoint: str, first: int, count: int, services: int, ping_s: float) -> None:
        self._ping_s = ping_s
        self._sockets: list[zmq.Socket[bytes]] = []
        self._names = [b"idle-%05d" % number for number in range(first, first + count)]
        self._news = select.epoll()
        self._by_fd: dict[int, int] = {}
        self._heard_at = [0.0] * count
        self.counts = {"pings": 0, "pongs": 0, "answered": 0, "dismissed": 0, "strange": 0}
        self.latest_ping_s = 0.0
        self.stopping = False
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, count + 10)
        for index, name in enumerate(self._names):
            socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
            socket.linger = 0
            socket.identity = name
            # Spread over some seconds, in case thousands of first attempts meet a full backlog.
            socket.reconnect_ivl = 200 + index % 1000
            socket.connect(endpoint)
            self._sockets.append(socket)
            self._send(index, mdr.Ready(b"idle.%d" % ((first + index) % services)))
            fd = int(socket.get(zmq.FD))
            self._by_fd[fd] = index
            self._news.register(fd, select.EPOLLIN)

    def run(self) -> None:
        count = len(self._sockets)
        start = time.monotonic()
        self._heard_at = [start] * count
        sent = 0
        while not self.stopping:
            for fd, _ in self._news.poll(TICK_S, 256):
                self._read(self._by_fd[fd])
            # PING number k is due at start + k/count of the interval.
            elapsed = time.monotonic() - start
            due = int(elapsed / self._ping_s * count)
            self.latest_ping_s = max(self.latest_ping_s, elapsed - sent * self._ping_s / count)
            while sent < due:
                index = sent % count
                self._send(index, mdr.Ping())
                self._read(index)
                sent += 1
        self.counts["pings"] = sent

    def report(self) -> dict[str, Any]:
        now = time.monotonic()
        silence = max(now - at for at in self._heard_at)
        return {
            **self.counts,
            "latest_ping_s": round(self.latest_ping_s, 3),
            "longest_silence_s": round(silence, 3),
        }

    def _send(self, index: int, message: mdr.WorkerMessage) -> None:
        frames: list[Any] = list(mdr.write_from_worker(message))
        self._sockets[index].send_multipart(frames)

    def _read(self, index: int) -> None:
        socket = self._sockets[index]
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_at[index] = time.monotonic()
            try:
                message = mdr.read_as_worker(list(frames))
            except RemoteProtocolError:
                self.counts["strange"] += 1
                continue
            match message:
                case mdr.Pong():
                    self.counts["pongs"] += 1
                case mdr.Order(address, request_id, _):
                    self._send(index, mdr.WorkerFinal(address, request_id, [self._names[index]]))
                    self.counts["answered"] += 1
                case mdr.Disconnect():
                    self.counts["dismissed"] += 1


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    endpoint, first, count, services, ping_s = sys.argv[1:]
    fleet = Fleet(endpoint, int(first), int(count), int(services), float(ping_s))

    def stop(*_: object) -> None:
        fleet.stopping = True

    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    fleet.run()
    print(json.dumps(fleet.report()), flush=True)
    # Closing thousands of sockets one by one takes long, and the system does it as well.
    os._exit(0)


if __name__ == "__main__":
    main()
