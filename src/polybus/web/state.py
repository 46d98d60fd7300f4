"""What the routes share, for as long as the process runs."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from polybus.web.live import Live


class State:
    def __init__(self, live: Live) -> None:
        self.live = live
        #: Set when the process is to end: every open stream ends then.
        self.closing = asyncio.Event()
        #: Open streams.
        self.streams = 0


def state_of(request: Request) -> State:
    state = request.app.state.polybus
    assert isinstance(state, State)
    return state
