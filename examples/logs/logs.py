"""Logs on the bus: a program that only uses Python's logging, and one that reads what it said.

    python examples/logs/logs.py

The handler sends each record as a publication of log/LEVEL/NODE; the broker keeps them, warnings longer than
the rest.  Anybody reads them by calling the service polybus.logs, in any dialect, or with `polybus logs`.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from polybus import Client, LogHandler

PATIENCE = 200


def measure() -> None:
    """What a program does: it knows nothing of the bus."""
    log = logging.getLogger("lab.probe")
    log.info("measuring")
    log.warning("%d degrees", 90, extra={"sensor": "t1"})
    try:
        open("/nowhere/results").close()
    except OSError:
        log.exception("cannot save")


def read(client: Client, level: str, count: int) -> list[dict[str, Any]]:
    """The records of our node, as soon as there are so many; another thread sends them."""
    question = json.dumps({"node": "example", "level": level}).encode()
    records: list[dict[str, Any]] = []
    for _ in range(PATIENCE):
        records = json.loads(client.call("polybus.logs", question))["records"]
        if len(records) >= count:
            break
        time.sleep(0.05)
    return records[-count:]


def main() -> None:
    handler = LogHandler(node="example")
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    measure()
    handler.close()
    with Client() as client:
        for record in read(client, "info", 3):
            first, *more = record["message"].splitlines()
            print(f"{record['level']}: {record['logger']}: {first}", record["extra"] or "")
            if more:
                print(f"  {more[-1]}")
        print("warnings and worse:", len(read(client, "warning", 2)))


if __name__ == "__main__":
    main()
