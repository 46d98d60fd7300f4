"""Workers that go in good order: they take nothing more, give back what they have not begun, finish the rest.

That way a restart of a worker costs no job an attempt, and none runs twice because its worker was replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polybus.core import events
from polybus.core.attempts import requeue_one
from polybus.core.dispatching import flow, refile
from polybus.core.requests import heard

if TYPE_CHECKING:
    from polybus.core.bus import Bus


def on_leaving(bus: Bus, event: events.Leaving, now: float) -> None:
    """Its free slots are void. It grants no new ones, so it is given nothing more."""
    worker = bus.workers.get(event.worker)
    if worker is None or not worker.grants_slots:
        return
    heard(bus, worker, now)
    worker.free = 0
    refile(worker)


def on_returned(bus: Bus, event: events.Returned, now: float) -> None:
    """It never ran there: to the front of its queue, at the price of no attempt."""
    worker = bus.workers.get(event.worker)
    if worker is None:
        return
    worker.seen_at = now
    request = worker.inflight.get(event.token)
    if request is None:
        return
    requeue_one(bus, worker, event.token, "its worker gave it back", now)
    flow(bus, request.service, now)
