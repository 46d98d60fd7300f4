"""An EventMQ client in frames (eMQP/1.0), with pyzmq and nothing else.

    python examples/emqp/client.py [QUEUE [BODY]]

It sends a job and hears of it twice: a receipt as soon as the broker has the job, and, because it asks for it
with `reply-requested`, the result.  Where the broker is: POLYBUS_EMQP_CLIENT, else port 47291 here.
"""

from __future__ import annotations

import os
import sys
import uuid

import zmq

BROKER = os.environ.get("POLYBUS_EMQP_CLIENT", "tcp://127.0.0.1:47291")
TAG = b"eMQP/1.0"


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    if not socket.poll(10_000):
        raise SystemExit(f"nothing from {BROKER} within 10 s")
    empty, tag, *message = socket.recv_multipart()
    assert (empty, tag) == (b"", TAG)
    return message


def main() -> None:
    queue = (sys.argv[1] if len(sys.argv) > 1 else "hello").encode()
    body = (sys.argv[2] if len(sys.argv) > 2 else "job").encode()
    job = str(uuid.uuid4()).encode()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(BROKER)
        socket.send_multipart([b"", TAG, b"REQUEST", job, queue, b"reply-requested", body])
        # [REPLY, its own id, the id of the job]
        command, _, receipt = receive(socket)
        print("receipt:", command.decode(), "for my job" if receipt == job else "for another job")
        # [REPLY, its own id, the result, the id of the job]
        command, _, result, original = receive(socket)
        print("result:", result.decode(), "for my job" if original == job else "for another job")


if __name__ == "__main__":
    main()
