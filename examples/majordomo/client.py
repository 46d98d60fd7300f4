"""A Majordomo client of 2011 (MDP/0.1, ZeroMQ RFC 7), with pyzmq and nothing else.

    python examples/majordomo/client.py [SERVICE [BODY]]

It knows nothing of polybus, and calls a service of any dialect: `examples/hello/service.py --dialect emqp`.
Where the broker is: POLYBUS_MDP1_CLIENT, else port 5555 on this machine.
"""

from __future__ import annotations

import os
import sys

import zmq

BROKER = os.environ.get("POLYBUS_MDP1_CLIENT", "tcp://127.0.0.1:5555")


def call(socket: zmq.Socket[bytes], service: bytes, body: bytes) -> bytes:
    socket.send_multipart([b"MDPC01", service, body])
    if not socket.poll(10_000):
        raise SystemExit(f"no answer from {BROKER} within 10 s")
    tag, answered, answer = socket.recv_multipart()
    assert (tag, answered) == (b"MDPC01", service)
    return answer


def main() -> None:
    service = (sys.argv[1] if len(sys.argv) > 1 else "hello").encode()
    body = (sys.argv[2] if len(sys.argv) > 2 else "from 2011").encode()
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(BROKER)
        # The management interface (RFC 8): is there such a service?
        code = call(socket, b"mmi.service", service)
        print("mmi.service:", code.decode())
        if code == b"200":
            print(call(socket, service, body).decode())
        else:
            print("nobody serves it; start examples/hello/service.py")


if __name__ == "__main__":
    main()
