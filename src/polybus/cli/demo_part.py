"""One process of the demo: the broker, or a worker of one dialect. It ends when its parent does.

The parent holds the other end of standard input.  However the parent dies, that pipe is closed, and this
process asks itself to stop; so nothing is ever left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from polybus.client.handlers import Request
from polybus.client.worker import Worker

# How long a process whose parent is gone may take to end properly.
GRACE_S: Final = 5.0


def greeting(dialect: str, name: bytes) -> bytes:
    return b"hello " + name + b", from a worker that speaks " + dialect.encode()


def watch_parent() -> None:
    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Timer(GRACE_S, os._exit, (1,)).start()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def serve_broker(data_dir: str) -> int:
    from polybus.cli.main import run

    return run(["serve", "--any-port", "--name", "demo", "--data-dir", data_dir])


def serve_worker(dialect: str, address: str, service: str) -> int:
    def greet(request: Request) -> bytes:
        return greeting(dialect, request.body)

    worker = Worker({service: greet}, address, dialect)
    signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
    worker.run()
    return 0


def main(arguments: list[str]) -> int:
    watch_parent()
    part, *rest = arguments
    return serve_broker(*rest) if part == "broker" else serve_worker(*rest)


if __name__ == "__main__":
    # The parent alone decides what Ctrl-C means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
