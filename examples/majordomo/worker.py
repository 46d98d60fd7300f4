"""A Majordomo worker of 2011 (MDP/0.1, ZeroMQ RFC 7), with pyzmq alone, called from three dialects.

    python examples/majordomo/worker.py

Where the broker is: POLYBUS_MDP1_WORKER, else port 5556 on this machine.
"""

from __future__ import annotations

import os
import threading

import zmq

from polybus import Client

BROKER = os.environ.get("POLYBUS_MDP1_WORKER", "tcp://127.0.0.1:5556")
WORKER = b"MDPW01"
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = (bytes([number]) for number in range(1, 6))
BEAT_MS = 2500


def serve(context: zmq.Context[zmq.Socket[bytes]], requests: int) -> None:
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 1000
        socket.connect(BROKER)
        socket.send_multipart([b"", WORKER, READY, b"echo"])
        while requests:
            if not socket.poll(BEAT_MS):
                socket.send_multipart([b"", WORKER, HEARTBEAT])
                continue
            _, _, command, *rest = socket.recv_multipart()
            if command == REQUEST:
                client, _, *body = rest
                socket.send_multipart([b"", WORKER, REPLY, client, b"", *body])
                requests -= 1
        socket.send_multipart([b"", WORKER, DISCONNECT])


def main() -> None:
    dialects = ("mdp1", "ebus", "dbp")
    with zmq.Context() as context:
        thread = threading.Thread(target=serve, args=(context, len(dialects)))
        thread.start()
        for dialect in dialects:
            with Client(dialect=dialect, timeout_s=10) as client:
                print(client.call("echo", f"asked in {dialect}".encode()).decode())
        thread.join()


if __name__ == "__main__":
    main()
