"""Dramatiq's side of `jobs.py`: the actors of its workers, and the producer (`python _jobs_dramatiq.py`).

Runs in the environment of the peers.  Its usual middleware stays, retries among it: Dramatiq acknowledges
after the job has run, and gives the jobs of a lost worker to another one.
"""

from __future__ import annotations

import os

import dramatiq
import redis
from _jobs_producer import produce
from _jobs_tally import mark
from dramatiq.brokers.redis import RedisBroker

SOCKET = os.environ["BENCH_JOBS_REDIS"]
DATABASE = 1

broker = RedisBroker(url=f"unix://{SOCKET}?db={DATABASE}")
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")
def noop() -> None:
    mark()


def main() -> None:
    client = redis.Redis(unix_socket_path=SOCKET, db=DATABASE)

    def send(count: int) -> None:
        for _ in range(count):
            noop.send()

    def left() -> int:
        """Messages that are not acknowledged: they leave this table with their acknowledgement."""
        return int(client.hlen("dramatiq:bench.msgs"))

    produce(send, left)


if __name__ == "__main__":
    main()
