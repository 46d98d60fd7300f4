"""`polybus serve`: one broker in the foreground, until SIGTERM has drained it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable

from polybus.config import Settings
from polybus.server.broker import Broker


def serve(load: Callable[[], Settings], announce: Callable[[Broker], None]) -> None:
    """Open a broker, announce it, and run it. SIGTERM and SIGINT drain, a second one stops, SIGHUP reloads."""
    broker = Broker(load())
    broker.open()
    asked = 0

    def on_stop(number: int, frame: object) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            broker.ask_to_drain()
        else:
            broker.stop()

    signal.signal(signal.SIGTERM, on_stop)
    signal.signal(signal.SIGINT, on_stop)
    signal.signal(signal.SIGHUP, lambda number, frame: broker.ask_to_reload(load))
    announce(broker)
    # A reader that closed our output early is no reason to stop.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    broker.run()
