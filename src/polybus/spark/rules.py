"""What deserves attention: the thresholds of alerts."""

from __future__ import annotations

from msgspec import Struct


class Rules(Struct, frozen=True):
    # Fewer requests in a window say nothing about a service.
    least_requests: int = 10
    # The share of requests that fail or expire.
    error_rate: float = 0.1
    # The time of service that one request in twenty exceeds.
    slow_us: int = 1_000_000
    # Workers of one service that go within a minute.
    flaps: int = 3
