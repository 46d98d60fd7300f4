"""asyncio on both ends: a worker whose handlers are coroutines, and a client that waits for many answers.

python examples/majordomo/asynchronous.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from polybus import AsyncClient, AsyncWorker, Request

PAUSE_S = 0.2
CALLS = 100


async def slow(request: Request) -> bytes:
    await asyncio.sleep(PAUSE_S)
    return request.body.upper()


async def letters(request: Request) -> AsyncIterator[bytes]:
    """An async generator streams; the last thing it yields is the end of the answer."""
    for letter in request.body.decode():
        yield letter.encode()


async def main() -> None:
    worker = AsyncWorker({"slow": slow, "letters": letters})
    serving = asyncio.create_task(worker.run())
    async with AsyncClient(timeout_s=10) as client:
        began = time.perf_counter()
        answers = await asyncio.gather(*(client.call("slow", b"call %d" % n) for n in range(CALLS)))
        took_s = time.perf_counter() - began
        print(f"{len(answers)} answers, the last one {answers[-1].decode()}")
        print("at the same time" if took_s < PAUSE_S * CALLS / 2 else f"one after the other, {took_s:.1f} s")
        print("-".join([piece.decode() async for piece in client.stream("letters", b"abc")]))
        try:
            async with asyncio.timeout(0.05):
                await client.call("slow", b"never mind")
        except TimeoutError:
            print("given up")
    worker.stop()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
