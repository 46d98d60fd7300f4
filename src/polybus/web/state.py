"""What the routes share, for as long as the process runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from starlette.requests import Request

from polybus.web.answers import Refused
from polybus.web.history import History
from polybus.web.live import Live


class Seat(Struct, frozen=True):
    """The place of one open stream among those of its kind."""

    closing: asyncio.Event
    leave: Callable[[], None]


class State:
    def __init__(self, live: Live, history: History) -> None:
        self.live: Final = live
        self.history: Final = history
        #: Set when the process is to end: every open stream ends then.
        self.closing: Final = asyncio.Event()
        #: Open streams by kind.
        self.open: Final[Counter[str]] = Counter()

    def stream(self, kind: str, most: int) -> Seat:
        """A seat for one more; raises `Refused` if there is none."""
        if self.open[kind] >= most:
            raise Refused(429, f"{most} {kind} are open, and no more at one time", "close one of them first")
        self.open[kind] += 1

        def leave() -> None:
            self.open[kind] -= 1

        return Seat(self.closing, leave)


def state_of(request: Request) -> State:
    state = request.app.state.polybus
    assert isinstance(state, State)
    return state
