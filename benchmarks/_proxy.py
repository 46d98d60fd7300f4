"""libzmq's own `zmq_proxy`: forwarding without any logic, in C.

It is what brokers are compared with: between a ROUTER and a DEALER (`requests`), or between an XSUB and an
XPUB (`topics`).  Says `ready frontend=… backend=…` and runs until it is killed.
"""

from __future__ import annotations

import sys

import zmq

KINDS = {"requests": (zmq.ROUTER, zmq.DEALER), "topics": (zmq.XSUB, zmq.XPUB)}
# As many publications as the generator may be ahead; a message that was dropped would end the run.
TOPICS_QUEUED = 100_000


def main(kind: str) -> None:
    context = zmq.Context()
    endpoints = []
    sockets = []
    for socket_type in KINDS[kind]:
        socket = context.socket(socket_type)
        socket.linger = 0
        if kind == "topics":
            socket.set_hwm(TOPICS_QUEUED)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        sockets.append(socket)
        endpoints.append(f"tcp://127.0.0.1:{port}")
    print(f"ready frontend={endpoints[0]} backend={endpoints[1]}", flush=True)
    zmq.proxy(*sockets)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "requests")
