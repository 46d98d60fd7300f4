"""One process of the demo: a worker of one dialect, in the plainest form there is."""

from __future__ import annotations

import signal
import sys

from polybus.cli.part import watch_parent
from polybus.client.handlers import Request
from polybus.client.worker import Worker


def greeting(dialect: str, name: bytes) -> bytes:
    return b"hello " + name + b", from a worker that speaks " + dialect.encode()


def serve_worker(dialect: str, address: str, service: str) -> int:
    def greet(request: Request) -> bytes:
        return greeting(dialect, request.body)

    worker = Worker({service: greet}, address, dialect)
    signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
    worker.run()
    return 0


if __name__ == "__main__":
    watch_parent()
    sys.exit(serve_worker(*sys.argv[1:]))
