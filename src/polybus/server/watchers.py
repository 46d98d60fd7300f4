"""All that looks on: taps, the monitor's topics, and questions about how things are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polybus.core.actions import Observed
from polybus.core.bus import Bus
from polybus.core.monitor import Monitor
from polybus.server.admin import AdminEar
from polybus.server.effects import Outbox
from polybus.server.looking import Looking
from polybus.server.taps import dialect_of

# What of the server's own facts belongs into every summary.
TOLD: Final = (
    "broker",
    "up_s",
    "subscribers",
    "subscribers_behind",
    "publications_dropped",
    "internal_errors",
)


class Watchers:
    def __init__(
        self, bus: Bus, outbox: Outbox, admin: AdminEar, facts: Callable[[], dict[str, Any]]
    ) -> None:
        self._facts = facts
        self._monitor = Monitor(bus, self._told, dialect_of)
        self._looking = Looking(bus, admin.taps, admin.rates, self._told)
        admin.add(self._looking.commands)
        listeners: list[Callable[[Observed], None]] = [admin.taps.observed, self._monitor.observed]

        def observed(record: Observed) -> None:
            for listen in listeners:
                listen(record)

        outbox.handlers[Observed] = observed

    def tick(self, now: float) -> None:
        """Called about every second."""
        self._monitor.tick(now)
        self._looking.tick(now)

    def _told(self) -> dict[str, Any]:
        facts = self._facts()
        return {name: facts[name] for name in TOLD if name in facts}
