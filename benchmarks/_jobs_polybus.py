"""polybus's sides of `jobs.py`: the application of its workers, and the producer (`python _jobs_polybus.py`).

Jobs have a guarantee unless one says otherwise, so nothing is said here: this is what a first program does.
There are two producers: `BENCH_JOBS_SEND` is `batch` (`send_many`) or `single` (`delay`, job by job).  Each
has a queue and workers of its own, so that neither runs the other's jobs.
"""

from __future__ import annotations

import json
import os

import zmq
from _jobs_producer import produce
from _jobs_tally import mark

from polybus import Bus

ENDPOINTS = json.loads(os.environ["BENCH_JOBS_ENDPOINTS"])

SEND = os.environ["BENCH_JOBS_SEND"]

bus = Bus(ENDPOINTS["majordomo.clients"])


@bus.job(queue=f"bench-{SEND}", name="_jobs_polybus.noop")
def noop() -> None:
    mark()


def main() -> None:
    admin: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REQ)
    admin.linger = 0
    admin.connect(ENDPOINTS["admin.port"])

    def send_batch(count: int) -> None:
        # Returns when all of them are on disk.
        bus.send_many(noop.s() for _ in range(count))

    def send_single(count: int) -> None:
        for _ in range(count):
            # Returns when this one is on disk.
            noop.delay()

    def left() -> int:
        """Jobs that have not ended."""
        admin.send_multipart([b"PBADM1", b"1", b'{"do": "jobs", "limit": 1}'])
        return len(json.loads(admin.recv_multipart()[2])["ok"])

    produce({"batch": send_batch, "single": send_single}[SEND], left)


if __name__ == "__main__":
    main()
