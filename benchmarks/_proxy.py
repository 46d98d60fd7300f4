"""libzmq's own `zmq_proxy` between a ROUTER and a DEALER: forwarding without any logic, in C.

It is what brokers are compared with. Says `ready frontend=… backend=…` and runs until it is killed.
"""

from __future__ import annotations

import zmq


def main() -> None:
    context = zmq.Context()
    endpoints = []
    sockets = []
    for kind in (zmq.ROUTER, zmq.DEALER):
        socket = context.socket(kind)
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        sockets.append(socket)
        endpoints.append(f"tcp://127.0.0.1:{port}")
    print(f"ready frontend={endpoints[0]} backend={endpoints[1]}", flush=True)
    zmq.proxy(*sockets)


if __name__ == "__main__":
    main()
