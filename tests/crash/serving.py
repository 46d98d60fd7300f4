"""Plain workers, made with the library: `serving.py FOLDER '[["mdr", "tcp://…", "crash.mdr"], …]'`.

Each is a `Worker` in a thread of its own.  A job writes its mark, takes as long as it was told to, writes
its second mark, and returns which execution this was: no two executions return the same.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from notes import Marker

from polybus import Request, Worker

# Few, so that a killed worker does not take the same jobs with it again and again.
CREDIT = 4


def serve(folder: Path, entries: list[tuple[str, str, str]]) -> None:
    marker = Marker(folder / "marks")
    # Two threads may mark at once, but the numbers of runs must differ.
    lock = threading.Lock()
    never = threading.Event()

    def handle(request: Request) -> bytes:
        order = json.loads(request.body)
        with lock:
            run = marker.begin(order["job"])
        if order["ms"]:
            never.wait(order["ms"] / 1000)
        marker.end(order["job"], run)
        return json.dumps({"job": order["job"], "run": run}).encode()

    threads = []
    for dialect, address, service in entries:
        worker = Worker({service: handle}, address, dialect, credit=CREDIT)
        threads.append(threading.Thread(target=worker.run, daemon=True))
        threads[-1].start()
    print("ready", flush=True)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(sys.argv[2]))
