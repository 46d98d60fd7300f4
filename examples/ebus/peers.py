"""An EBUS worker and an EBUS client in frames, with pyzmq and nothing else.

    python examples/ebus/peers.py

The worker says READY the way public EBUS workers do, and answers pings; the client asks the same thing twice
under one id, as one does that lost its connection: it runs once.  Where the broker is:
POLYBUS_EBUS_WORKER and POLYBUS_EBUS_CLIENT, else ports 5001 and 5000 on this machine.
"""

from __future__ import annotations

import os
import threading

import zmq

BACKEND = os.environ.get("POLYBUS_EBUS_WORKER", "tcp://127.0.0.1:5001")
FRONTEND = os.environ.get("POLYBUS_EBUS_CLIENT", "tcp://127.0.0.1:5000")
BEAT_MS = 500
STALE_MS = b"10000"


class Upper:
    """A worker: whatever it is sent comes back in capitals."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.runs = 0
        self.done = threading.Event()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(BACKEND)
        # The third frame is empty here; nobody looks at it.
        self._socket.send_multipart([b"EBW01", b"READY", b"", b"upper"])

    def run(self) -> None:
        while not self.done.is_set():
            if not self._socket.poll(BEAT_MS):
                self._socket.send_multipart([b"EBW01", b"PING"])
                continue
            sender, command, *rest = self._socket.recv_multipart()
            if command == b"PING":
                self._socket.send_multipart([b"EBW01", b"HEARTBEAT"])
            elif command == b"REQ":
                # The broker passes on who a request is from: a client.
                assert sender == b"EBC01"
                token, data, *_ = rest
                self.runs += 1
                self._socket.send_multipart([b"EBW01", b"REPLY", token, data.upper()])
        self._socket.send_multipart([b"EBW01", b"DISCONNECT"])
        self._socket.close(linger=1000)


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The next message that is no sign of life."""
    while socket.poll(10_000):
        sender, command, *rest = socket.recv_multipart()
        assert sender == b"EBW01"
        if command == b"PING":
            socket.send_multipart([b"EBC01", b"HEARTBEAT"])
        elif command != b"HEARTBEAT":
            return [command, *rest]
    raise SystemExit(f"nothing from {FRONTEND} within 10 s")


def main() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        worker = Upper(context)
        thread = threading.Thread(target=worker.run)
        thread.start()
        client.linger = 0
        client.connect(FRONTEND)
        for attempt in ("asked", "asked again"):
            client.send_multipart([b"EBC01", b"REQ", b"upper", b"id-1", b"hello", STALE_MS])
            command, request_id, answer = receive(client)
            print(f"{attempt}: {command.decode()} {request_id.decode()} {answer.decode()}")
        client.send_multipart([b"EBC01", b"DISCONNECT"])
        worker.done.set()
        thread.join()
        print("runs:", worker.runs)


if __name__ == "__main__":
    main()
