"""Test jobs without a broker, without workers and without waiting.

    from polybus import testing

    def test_mail() -> None:
        with testing.bus(shop.bus) as memory:
            handle = shop.send.delay("a@b", "hi")
            assert handle.get() == "sent"

The jobs run in this process, one at a time, on the broker's real core: its queues, retries, pauses, time
limits, chains, groups and schedules are the ones that you get in production.  Only the network, the disk
and the clock are not: time passes when nothing else is left to do, or with `memory.clock.advance(60)`.
"""

from __future__ import annotations

from polybus.testing.clock import Clock as Clock
from polybus.testing.memory import MemoryBus as MemoryBus
from polybus.testing.running import Run as Run

__all__ = ["Clock", "MemoryBus", "Run", "bus"]

bus = MemoryBus
