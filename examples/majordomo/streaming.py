"""An answer in pieces: a service that counts, and clients of three dialects that listen.

    python examples/majordomo/streaming.py

MDR and MDP/0.2 have partial replies.  EBUS has not: its client gets the end of the answer and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Generator

from polybus import Client, Request, Worker


def count(request: Request) -> Generator[bytes, None, bytes]:
    """What is yielded goes out at once; what is returned is the end of the answer."""
    for number in range(int(request.body)):
        yield b"%d" % number
    return b"that was all"


def main() -> None:
    worker = Worker({"count": count}, dialect="mdr")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for dialect in ("mdr", "mdp2", "ebus"):
            with Client(dialect=dialect, timeout_s=10) as client:
                pieces = [piece.decode() for piece in client.stream("count", b"3")]
                print(f"{dialect}: {', '.join(pieces)}")
    finally:
        worker.stop()
        thread.join()


if __name__ == "__main__":
    main()
