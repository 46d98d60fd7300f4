"""How asyncio waits for libzmq.

libzmq offers a file descriptor per socket, and it is edge-triggered: it says that something has changed since
we last looked, and sending looks, too.  So whenever a descriptor fires, and after everything that was sent,
the pump is drained until nothing is left.  Many small sends of one turn of the event loop go out together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from polybus.client.pubsub import Publisher, Subscription
from polybus.client.sessions.port import NEVER, Message

# Room in a socket is not always announced: it is looked for again after this long.
ROOM_S: Final = 0.005


class Watch:
    """Calls `step` when one of some descriptors fires, when its time has come, and when asked to.

    `step` drains everything and returns the time of its next deadline.
    """

    def __init__(self, fds: Callable[[], list[int]], step: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._find_fds = fds
        self._step = step
        self._fds: list[int] = []
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self.stale = True

    def ask(self) -> None:
        """Take a step in this turn of the event loop, however often it is asked for."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._soon = None
        deadline = self._step()
        if self.stale:
            self._rewatch()
        if deadline != self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            wait_s = max(0.0, deadline - time.monotonic())
            self._timer = None if deadline == NEVER else self._loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self._run()

    def _rewatch(self) -> None:
        self.unwatch()
        self.stale = False
        self._fds = self._find_fds()
        for fd in self._fds:
            self._loop.add_reader(fd, self.ask)
        # What came in between is not announced again.
        self.ask()

    def unwatch(self) -> None:
        """Comes before a socket is closed: the number of its descriptor is soon somebody else's."""
        for fd in self._fds:
            self._loop.remove_reader(fd)
        self._fds = []
        self.stale = True

    def close(self) -> None:
        self.unwatch()
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None


async def publications(subscription: Subscription) -> AsyncIterator[tuple[str, bytes]]:
    loop = asyncio.get_running_loop()
    fired = asyncio.Event()
    subscription.wake = fired.set
    fd = subscription.fd
    loop.add_reader(fd, fired.set)
    try:
        while True:
            fired.clear()
            if subscription.is_retired:
                loop.remove_reader(fd)
                subscription.renew()
                fd = subscription.fd
                loop.add_reader(fd, fired.set)
            while (publication := subscription.take()) is not None:
                yield publication
            await fired.wait()
    finally:
        loop.remove_reader(fd)


async def joined(publisher: Publisher, timeout_s: float) -> None:
    """Until the broker takes publications."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    fired = asyncio.Event()
    loop.add_reader(publisher.fd, fired.set)
    try:
        while not publisher.has_joined():
            fired.clear()
            try:
                await asyncio.wait_for(fired.wait(), until - loop.time())
            except TimeoutError:
                raise publisher.nobody() from None
    finally:
        loop.remove_reader(publisher.fd)


async def sent(publisher: Publisher, message: Message, timeout_s: float) -> None:
    """Send a publication as soon as there is room."""
    give_up = 0.0
    while not publisher.try_send(message):
        now = time.monotonic()
        give_up = give_up or now + timeout_s
        if now >= give_up:
            raise publisher.no_room(timeout_s)
        await asyncio.sleep(ROOM_S)
