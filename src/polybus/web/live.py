"""The live state of the broker: asked for once, told to everybody.

While somebody watches, the broker is asked for `top` about every second; otherwise for its `status` every few
seconds, which costs it less: `top` makes it count how long requests take.  Every other question goes through
`Live.ask`, where the same question within a moment gets the same answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from polybus.errors import PolybusError
from polybus.web.asking import TIMEOUT_S, Desk

# While somebody watches.
EVERY_S: Final = 1.0
# While nobody does: often enough to know whether the broker is there.
IDLE_S: Final = 5.0
# A broker that does not answer a look for this long is shown as away.
PATIENCE_S: Final = 2.0
# Services, workers and nodes in one look, each; those that come first in the order of rates.
LISTED: Final = 200
# So long after a look for Prometheus the broker goes on counting how long requests take: it may come once a
# minute. Viewers look every second and need no such thing.
TIMED_S: Final = 75.0
# For so long the answer to a question is the answer to the same question by others.
SHARED_S: Final = 0.9
# Different questions whose answers are kept for that moment.
MAX_SHARED: Final = 256
# A comment for proxies that close what is silent, and to notice viewers that are gone.
COMMENT_S: Final = 15.0
COMMENT: Final = b": still here\n\n"

NEXT: Final = "start it with 'polybus serve', or say where it is: 'polybus web --admin ADDRESS'"


class Health(msgspec.Struct, frozen=True):
    """Whether the broker answers, and since when (seconds since 1970)."""

    broker: str
    since: float
    error: str | None = None
    next: str | None = None


class Live:
    """What is known of the broker now. Belongs to one event loop."""

    def __init__(self, desk: Desk) -> None:
        self.desk: Final = desk
        self.health = Health("down", time.time(), "it was not asked yet", NEXT)
        self._answered_at = float("-inf")
        self._answers: dict[str, bytes] = {}
        self._asked: dict[bytes, tuple[float, asyncio.Task[bytes]]] = {}
        self._event = b""
        self._looks = 0
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self.viewers = 0

    # -- what is known --------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.health.broker == "up"

    @property
    def silent_s(self) -> float:
        """For how long the broker has not answered a look."""
        return time.monotonic() - self._answered_at

    def top(self) -> dict[str, Any] | None:
        """The newest answer to `top`; None if there is none, or the broker is away."""
        return self._decoded("top")

    def status(self) -> dict[str, Any] | None:
        return self._decoded("status")

    def _decoded(self, do: str) -> dict[str, Any] | None:
        raw = self._answers.get(do)
        return None if raw is None or not self.is_up else msgspec.json.decode(raw, type=dict[str, Any])

    # -- questions ------------------------------------------------------------------------------

    async def ask(self, do: str, **question: Any) -> bytes:
        """What the broker says, or said a moment ago."""
        now = time.monotonic()
        key = msgspec.json.encode({"do": do, **question})
        found = self._asked.get(key)
        if found is not None and found[0] + SHARED_S > now and not _failed(found[1]):
            return await asyncio.shield(found[1])
        if len(self._asked) >= MAX_SHARED:
            self._asked = {k: v for k, v in self._asked.items() if v[0] + SHARED_S > now}
        task = asyncio.get_running_loop().create_task(self.desk.ask(do, **question))
        task.add_done_callback(_looked_at)
        if len(self._asked) < MAX_SHARED:
            self._asked[key] = now, task
        return await asyncio.shield(task)

    async def order(self, do: str, timeout_s: float = TIMEOUT_S, **question: Any) -> bytes:
        """Have the broker do something; what was known before is asked anew."""
        try:
            return await self.desk.ask(do, timeout_s, **question)
        finally:
            self._asked.clear()

    async def refresh(self, *questions: str) -> None:
        """Look at the broker now, so that `top()`, `status()` and `health` are of this moment."""
        for do in questions:
            await self._look(do, TIMED_S)

    # -- the poller -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            begun = time.monotonic()
            if self.viewers:
                await self._look("top")
                self._tell()
            else:
                await self._look("status")
            every_s = EVERY_S if self.viewers else IDLE_S
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.05, begun + every_s - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self, do: str, timed_s: float | None = None) -> None:
        question: dict[str, Any] = {"limit": LISTED} if do == "top" else {}
        if do == "top" and timed_s is not None:
            question["timed_s"] = timed_s
        try:
            async with asyncio.timeout(PATIENCE_S):
                self._answers[do] = await self.ask(do, **question)
        except TimeoutError:
            self._is("down", f"the broker at {self.desk.endpoint} did not answer within {PATIENCE_S:g} s")
        except PolybusError as error:
            self._is("down", str(error))
        else:
            self._answered_at = time.monotonic()
            self._is("up")

    def _is(self, state: str, error: str | None = None) -> None:
        since = self.health.since if self.health.broker == state else time.time()
        self.health = Health(state, since, error, NEXT if error else None)

    def _tell(self) -> None:
        """Make the event once, for all viewers."""
        health = msgspec.json.encode(self.health)
        if self.is_up:
            # Never an empty object: the health becomes its last field, and the rest stays as it came.
            data = self._answers["top"][:-1] + b',"health":' + health + b"}"
            self._event = event("top", data)
        else:
            self._event = event("down", b'{"health":' + health + b"}")
        self._looks += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Events for one viewer, as they come. One that reads slowly misses some, and gets the newest."""
        self.viewers += 1
        seen = self._looks
        try:
            if self.viewers == 1:
                # The last event is of when somebody last watched.
                self._wake.set()
            elif self._event:
                yield self._event
            while True:
                try:
                    if self._looks == seen:
                        async with asyncio.timeout(COMMENT_S):
                            await self._changed.wait()
                except TimeoutError:
                    yield COMMENT
                else:
                    seen = self._looks
                    yield self._event
        finally:
            self.viewers -= 1


def event(name: str, data: bytes, cursor: str = "") -> bytes:
    """A server-sent event. JSON has no line ends of its own."""
    number = f"id: {cursor}\n".encode() if cursor else b""
    return b"event: " + name.encode() + b"\n" + number + b"data: " + data + b"\n\n"


def _failed(task: asyncio.Task[bytes]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _looked_at(task: asyncio.Task[bytes]) -> None:
    """Whoever asked may be gone; an error that nobody waits for is no news."""
    if not task.cancelled():
        task.exception()
