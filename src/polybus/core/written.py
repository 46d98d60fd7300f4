"""What happens when the ledger's lines are on disk, or cannot be put there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybus.core import events
from polybus.core.actions import Answer, Refuse
from polybus.core.dispatching import release
from polybus.core.lifecycle import FAIL, RequestState
from polybus.core.model import Reason
from polybus.core.requests import end

if TYPE_CHECKING:
    from polybus.core.tables import Tables


def on_written(bus: Tables, event: events.Written, now: float) -> None:
    bus.written = event.number
    held = bus.held
    while held and held[0][0] <= event.number:
        _, request, action = held.popleft()
        if action is not None:
            bus.actions.append(action)
        if request is not None and request.state is RequestState.ACCEPTED:
            release(bus, request, now)


def on_unwritten(bus: Tables, event: events.Unwritten, now: float) -> None:
    """What could not be written was not accepted: whoever waits for the word that it was is told that now."""
    detail = f"it could not be written down: {event.reason}"
    refused = set(event.tokens)
    held = list(bus.held)
    bus.held.clear()
    for entry in held:
        _, request, action = entry
        if request is None or request.token not in refused:
            bus.held.append(entry)
        elif isinstance(action, Answer):
            bus.actions.append(
                Refuse(
                    action.client,
                    action.voice,
                    action.service,
                    action.request_id,
                    Reason.STORE_UNAVAILABLE,
                    detail,
                    [],
                )
            )
    for token in event.tokens:
        request = bus.patient.get(token)
        if request is not None:
            # One that was dead before is dead again, which is written down as soon as that is possible.
            request.durable = bool(request.history)
            bus.counters.failed += 1
            end(bus, request, FAIL, Reason.STORE_UNAVAILABLE, detail, [], now)
            if request.client is bus.desk:
                # It never was: the same id may be sent again.
                bus.desk.known.pop(request.request_id, None)


def on_store_health(bus: Tables, event: events.StoreHealth, now: float) -> None:
    bus.store_trouble = event.trouble
    bus.observe("store_sick" if event.trouble else "store_well", now, reason=event.trouble)
