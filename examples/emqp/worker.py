"""An eMQP worker in frames, with pyzmq and nothing else, and a client of another dialect that calls it.

    python examples/emqp/worker.py

INFORM says which queues it serves and how much it prefers each, every READY is one free slot.  The client
speaks MDR: to it the queue is a service.  Where the broker is: POLYBUS_EMQP_WORKER, else port 47290 here.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid

import zmq

from polybus import Client

BROKER = os.environ.get("POLYBUS_EMQP_WORKER", "tcp://127.0.0.1:47290")
TAG = b"eMQP/1.0"
BEAT_S = 3.0


class Reverser:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.done = threading.Event()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(BROKER)
        self._say(b"INFORM", json.dumps([[10, "reverse"], [1, "default"]]).encode(), b"worker")
        self._say(b"READY")

    def _say(self, command: bytes, *frames: bytes) -> None:
        self._socket.send_multipart([b"", TAG, command, uuid.uuid4().hex.encode(), *frames])

    def run(self) -> None:
        beat_at = 0.0
        while not self.done.is_set():
            if time.monotonic() >= beat_at:
                self._say(b"HEARTBEAT", b"%d" % time.time())
                beat_at = time.monotonic() + BEAT_S
            if not self._socket.poll(100):
                continue
            _, _, command, token, *rest = self._socket.recv_multipart()
            if command == b"REQUEST":
                queue, headers, body = rest
                print(f"job on {queue.decode()}, headers {headers.decode() or 'none'}")
                # The id of the request tells the broker which one this is the answer to.
                self._say(b"REPLY", body[::-1], token)
                self._say(b"READY")
        self._say(b"KBYE")
        self._socket.close(linger=1000)


def main() -> None:
    with zmq.Context() as context:
        worker = Reverser(context)
        thread = threading.Thread(target=worker.run)
        thread.start()
        with Client(dialect="mdr", timeout_s=10) as client:
            print("answer:", client.call("reverse", b"desserts").decode())
        worker.done.set()
        thread.join()


if __name__ == "__main__":
    main()
