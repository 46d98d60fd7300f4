"""A journal that grows as a busy broker's does: `_pipeline_feed.py JOURNAL EVENTS_PER_S OUT`.

Records go through the broker's own writer, and the archiver runs at our side as it does at a broker's.  A
line on standard input, or its end, stops it; then the times at which requests ended are in OUT, in order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from polybus.journal.record import Row, write_row
from polybus.journal.writer import JournalWriter

EVERY_S: Final = 0.02
SERVICES: Final = [b"service-%02d" % n for n in range(20)]
CLIENTS: Final = [b"client-%03d" % n for n in range(100)]
WORKERS: Final = [b"worker-%03d" % n for n in range(80)]
BODY: Final = (b"x" * 48,)
# Of each ten events nine belong to requests.
REQUESTS: Final = 0.3
LINKS: Final = {1: "majordomo.clients", 2: "majordomo.workers"}


def request(number: int, at: int) -> tuple[Row, Row, Row]:
    service = min(number % 61, number % 20)
    accepted = Row(
        "accepted",
        at - 900,
        client_dialect="mdr",
        accepted_at=at - 900,
        size=48,
        client_link=1,
        token=b"feed-%d" % number,
        request_id=b"req-%d" % number,
        service=SERVICES[service],
        client=CLIENTS[number % len(CLIENTS)],
        body=BODY,
    )
    worker = WORKERS[service * 4 + number % 4]
    given = msgspec.structs.replace(
        accepted,
        what="dispatched",
        at=at - 600,
        dispatched_at=at - 600,
        worker=worker,
        worker_dialect="mdr",
        worker_link=2,
        attempt=1,
        body=None,
    )
    outcome = "failed" if number % 50 == 7 else "replied"
    return accepted, given, msgspec.structs.replace(given, what=outcome, at=at, body=BODY, body_size=48)


def feed(journal: Path, rate: int, out: Path) -> None:
    stopping = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        stopping.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    archiver = subprocess.Popen(
        [sys.executable, "-m", "polybus.journal.archive", str(journal)], stdin=subprocess.PIPE
    )
    assert archiver.stdin is not None
    wake = archiver.stdin.fileno()
    writer = JournalWriter(
        journal / "open", "feed", f"{time.time_ns():x}", LINKS, on_finished=lambda: _tell(wake)
    )
    writer.start()
    ends: list[int] = []
    made = 0
    began = time.monotonic()
    print("ready", flush=True)
    while not stopping.is_set():
        due = int((time.monotonic() - began) * rate) - made
        at = time.time_ns() // 1000
        records = []
        for _ in range(int(due * REQUESTS)):
            ends.append(at)
            records += [write_row(row) for row in request(len(ends), at)]
        for n in range(due - len(records)):
            topic = b"price/%d" % (n % 50)
            records.append(write_row(Row("published", at, body_size=48, service=topic, body=BODY)))
        if records:
            writer.append(len(records), b"".join(records))
        made += due
        stopping.wait(EVERY_S)
    lost = writer.stop()
    archiver.stdin.close()
    archiver.wait(60)
    rate_made = made / (time.monotonic() - began)
    out.write_text(json.dumps({"ends": ends, "rate": rate_made, "lost": lost}))


def _tell(wake: int) -> None:
    try:
        os.write(wake, b".")
    except OSError:
        # It has ended; whoever measures finds out.
        return


if __name__ == "__main__":
    feed(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
