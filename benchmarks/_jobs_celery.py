"""Celery's side of `jobs.py`: the application of its workers, and the producer (`python _jobs_celery.py`).

Runs in the environment of the peers.  Settings are those that Celery's own guide recommends for many short
jobs, and late acknowledgement, without which a killed worker takes its jobs with it.
"""

from __future__ import annotations

import os
from typing import Any

import celery
import redis
from _jobs_producer import produce
from _jobs_tally import mark

SOCKET = os.environ["BENCH_JOBS_REDIS"]
DATABASE = 0
# Celery asks Redis for the next job, and counts those it holds, per process: many, so that none waits.
PREFETCH = 4

app = celery.Celery("bench", broker=f"redis+socket://{SOCKET}?virtual_host={DATABASE}")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=PREFETCH,
    worker_disable_rate_limits=True,
    worker_send_task_events=False,
    task_send_sent_event=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    task_serializer="json",
    accept_content=["json"],
)


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    mark()


def main() -> None:
    client = redis.Redis(unix_socket_path=SOCKET, db=DATABASE)

    def send(count: int) -> None:
        # One connection for all; without this each call takes one from the pool and gives it back.
        with app.producer_or_acquire() as producer:
            for _ in range(count):
                noop.apply_async(producer=producer)

    def left() -> int:
        """Jobs in the queue, and with workers but not acknowledged."""
        pipe: Any = client.pipeline(transaction=False)
        return sum(pipe.llen("celery").hlen("unacked").execute())

    produce(send, left)


if __name__ == "__main__":
    main()
