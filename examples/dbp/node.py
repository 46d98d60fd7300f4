"""A node of the catalog in frames (DBP), with pyzmq and nothing else: it registers, is found, and is called.

    python examples/dbp/node.py

The node keeps its DEALER and gets its calls on it.  The client is a REQ socket that looks the node up in the
catalog and then calls it through the broker.  Where the broker is: POLYBUS_DBP_WORKER and POLYBUS_DBP_CLIENT,
else port 5246 on this machine.
"""

from __future__ import annotations

import json
import os
import threading
import time

import zmq

DEFAULT = "tcp://127.0.0.1:5246"
NAME = b"thermometer"
HEARTBEAT_S = 1.0


def now() -> bytes:
    """The time frame; a peer gets its own form back."""
    return b"%.3f" % time.time()


def receive(socket: zmq.Socket[bytes], timeout_s: float = 10.0) -> list[bytes]:
    if not socket.poll(int(timeout_s * 1000)):
        raise SystemExit(f"no answer from the broker within {timeout_s:g} s")
    return socket.recv_multipart()


class Node:
    """Registered once, and alive as long as it beats."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(os.environ.get("POLYBUS_DBP_WORKER", DEFAULT))
        entry = {
            "name": NAME.decode(),
            "ip": "127.0.0.1",
            "port": 5246,
            "function": "tells the temperature",
            "heartbeat": HEARTBEAT_S,
        }
        self._socket.send_multipart([b"", b"UwU", now(), json.dumps(entry).encode()])
        _, command, _, *details = receive(self._socket)
        print("registration:", "approved" if command == b"OwO" else f"denied {details}")

    def serve_one(self) -> None:
        """Answer one call, with heartbeats meanwhile, and leave."""
        while True:
            if not self._socket.poll(int(HEARTBEAT_S * 1000)):
                self._socket.send_multipart([b"", b"<3", now(), NAME])
                continue
            _, command, _, *rest = self._socket.recv_multipart()
            if command == b"u_U":
                _, body = rest
                self._socket.send_multipart([b"", b"o_O", now(), b"21.5 degrees in " + body])
                self._socket.send_multipart([b"", b"</3", now(), NAME])
                self._socket.close(linger=1000)
                return


def main() -> None:
    with zmq.Context() as context:
        node = Node(context)
        thread = threading.Thread(target=node.serve_one)
        thread.start()
        with context.socket(zmq.REQ) as client:
            client.linger = 0
            client.connect(os.environ.get("POLYBUS_DBP_CLIENT", DEFAULT))
            # Without a body after the name it is a question about the service.
            client.send_multipart([b"u_U", now(), NAME])
            _, _, answer = receive(client)
            print("catalog:", json.loads(answer)[NAME.decode()]["function"])
            # With a body it is a call.
            client.send_multipart([b"u_U", now(), NAME, b"Rome"])
            _, _, answer = receive(client)
            print("answer:", answer.decode())
        thread.join()


if __name__ == "__main__":
    main()
