"""Viewers of the dashboard, for the benchmark: as many browsers as wanted, without their screens.

    python benchmarks/_viewers.py http://127.0.0.1:5280/ 10

Each holds /api/stream open and asks for what a page shows every few seconds. Prints `ready` when every viewer
has seen a look and has had every answer once; on SIGTERM a line of JSON with what they got.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Final
from urllib.parse import urlsplit

EVERY_S: Final = 3.0
# What the overview and the pages of services, workers and jobs ask for.
PAGES: Final = (
    *("/api/status", "/api/services", "/api/workers", "/api/queues", "/api/requests"),
    *("/api/jobs?limit=200", "/api/dead?limit=1000", "/api/pipeline"),
)


class Viewer:
    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self.looks = 0
        self.answers = 0
        self.bytes = 0
        self.has_begun = asyncio.Event()

    async def watch(self) -> None:
        reader, writer = await asyncio.open_connection(*self._place)
        writer.write(self._request("/api/stream"))
        while line := await reader.readline():
            self.bytes += len(line)
            if line.startswith(b"event: down"):
                raise RuntimeError("the dashboard says that the broker is down")
            self.looks += line.startswith(b"event: top")
        raise RuntimeError("the stream has ended")

    async def browse(self, wait_s: float) -> None:
        while True:
            for path in PAGES:
                await self._get(path)
            self.has_begun.set()
            await asyncio.sleep(wait_s)
            wait_s = EVERY_S

    async def _get(self, path: str) -> None:
        reader, writer = await asyncio.open_connection(*self._place)
        writer.write(self._request(path, "close"))
        answer = await reader.read(-1)
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {answer[:80]!r}")
        self.answers += 1
        self.bytes += len(answer)

    def _request(self, path: str, connection: str = "keep-alive") -> bytes:
        host, port = self._place
        return f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: {connection}\r\n\r\n".encode()


async def main(address: str, count: int) -> None:
    place = urlsplit(address)
    viewers = [Viewer(place.hostname or "127.0.0.1", place.port or 80) for _ in range(count)]
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    # Not all of them at the same moment.
    work = [viewer.watch() for viewer in viewers]
    work += [viewer.browse(EVERY_S * (number + 1) / count) for number, viewer in enumerate(viewers)]
    tasks = [asyncio.create_task(one) for one in work]
    ending = asyncio.create_task(over.wait())
    begun = asyncio.create_task(ready(viewers))
    done, _ = await asyncio.wait({*tasks, ending}, return_when=asyncio.FIRST_COMPLETED)
    for task in done - {ending}:
        await task
    for task in (*tasks, begun):
        task.cancel()
    await asyncio.gather(*tasks, begun, return_exceptions=True)
    found = [{"looks": one.looks, "answers": one.answers, "bytes": one.bytes} for one in viewers]
    print(json.dumps(found), flush=True)


async def ready(viewers: list[Viewer]) -> None:
    for viewer in viewers:
        await viewer.has_begun.wait()
        while not viewer.looks:
            await asyncio.sleep(0.01)
    print("ready", flush=True)


if __name__ == "__main__":
    # They stand for other machines: they run when nothing else wants to.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
