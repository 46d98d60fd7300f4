"""The producer's half of `jobs.py`, the same for all contestants: it is told how many, sends them, and waits.

Orders are lines on standard input, a number of jobs each; answers are lines of JSON.  The clock runs from
before the first job is sent until every one has run and the queue knows it: nothing is left waiting or
unacknowledged.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _jobs_tally import FOLDER_VARIABLE, total

# Looking costs the measured system something; twice in ten milliseconds is nothing.
LOOK_EVERY_S = 0.005
# Longer than any turn; whoever gave the order is more patient than this.
GIVE_UP_S = float(os.environ.get("BENCH_JOBS_GIVE_UP_S", "60"))


def produce(send: Callable[[int], object], left: Callable[[], int]) -> None:
    """Take orders until there are no more. `left` tells how many jobs the queue has not done with."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        before = total(folder)
        began, cpu = time.perf_counter(), time.process_time()
        send(count)
        sent = time.perf_counter()
        cpu = time.process_time() - cpu
        give_up = sent + GIVE_UP_S
        while True:
            ran = total(folder) - before
            rest = count - ran if ran < count else left()
            if rest <= 0 or time.perf_counter() > give_up:
                break
            time.sleep(LOOK_EVERY_S)
        ended = time.perf_counter()
        figures = {
            "sent_s": sent - began,
            "seconds": ended - began,
            "cpu_s": cpu,
            "jobs": count,
            "ran": ran,
            "left": rest,
        }
        print(json.dumps(figures), flush=True)
