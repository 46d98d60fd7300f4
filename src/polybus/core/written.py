"""What happens when the ledger's lines are on disk, or cannot be put there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybus.core import events
from polybus.core.dispatching import release
from polybus.core.lifecycle import FAIL, TERMINAL, RequestState
from polybus.core.model import Reason
from polybus.core.requests import end

if TYPE_CHECKING:
    from polybus.core.tables import Tables


def on_written(bus: Tables, event: events.Written, now: float) -> None:
    bus.written = event.number
    held = bus.held
    while held and held[0][0] <= event.number:
        _, request, action = held.popleft()
        if request is not None and request.state in TERMINAL:
            continue
        if action is not None:
            bus.actions.append(action)
        if request is not None and request.state is RequestState.ACCEPTED:
            release(bus, request, now)


def on_unwritten(bus: Tables, event: events.Unwritten, now: float) -> None:
    """What could not be written was not accepted."""
    for token in event.tokens:
        request = bus.patient.get(token)
        if request is not None:
            request.durable = False
            bus.counters.failed += 1
            detail = f"it could not be written down: {event.reason}"
            end(bus, request, FAIL, Reason.STORE_UNAVAILABLE, detail, [], now)


def on_store_health(bus: Tables, event: events.StoreHealth, now: float) -> None:
    bus.store_trouble = event.trouble
    bus.observe("store_sick" if event.trouble else "store_well", now, reason=event.trouble)
