"""The bus: all its tables, and one way in.

    bus.handle(event, now)      # changes the tables, notes what is to be done
    actions = bus.take()        # what is to be done, in order

`now` is any clock that does not go back; the bus has none of its own.  What each event does
is in `requests`, `workers`, `topics` and `catalog`; the table `HANDLERS` joins them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polybus.core import (
    attempts,
    catalog,
    desk,
    dispatching,
    durable,
    events,
    flows,
    holders,
    intake,
    last_values,
    leases,
    leaving,
    logs,
    lvc,
    replies,
    requests,
    scheduling,
    topics,
    workers,
    written,
)
from polybus.core.model import Address, Body, Limits, Worker
from polybus.core.tables import Tables


class Bus(Tables):
    """One routing core. Not thread-safe: one thread owns it."""

    def __init__(self, nonce: bytes, limits: Limits | None = None, watched: bool = False) -> None:
        super().__init__(nonce, limits, watched)
        self.follow = flows.follow
        self.serve = serve
        self.member_ended = flows.member_ended
        self.book = scheduling.Book()
        self.last = last_values.LastValues()
        self.catalog = leases.Catalog()
        # Workers that were dialled, by endpoint.
        self.dialled_at: dict[str, dict[Worker, None]] = {}
        self.logs = logs.Logs()
        # Services `polybus.*` that the server answers, by the end of their name (`desk`).
        self.own_services: dict[bytes, Callable[[Bus, desk.Call, Body, float], None]] = {}
        # Publications of others on topics of the broker itself.
        self.publications_refused = 0

    def handle(self, event: Any, now: float) -> None:
        """Let one event happen."""
        HANDLERS[type(event)](self, event, now)

    def next_at(self, now: float) -> float:
        catalog = self.catalog
        at = min(Tables.next_at(self, now), self.book.due_at, catalog.claims_at, catalog.broadcast_at)
        return at if self.bridging is None else min(at, self.bridging.next_at)


def serve(bus: Bus, client: Address, voice: Any, request_id: bytes, service: bytes, *call: Any) -> None:
    """A request for a service of the broker itself."""
    receive = lvc.receive if service == intake.LAST_VALUES else desk.receive
    receive(bus, client, voice, request_id, service, *call)


def on_tick(bus: Bus, event: events.Tick, now: float) -> None:
    requests.expire_due(bus, now)
    dispatching.note_starts_due(bus, now)
    attempts.alarms_due(bus, now)
    scheduling.run_due(bus, now)
    workers.watch_due(bus, now)
    leases.look_due(bus, now)
    catalog.settle_claims(bus, now)
    leases.broadcast_due(bus, now)
    requests.look_whether_dry(bus)
    last_values.note_due(bus, now)
    if bus.bridging is not None:
        bus.bridging.tick(now)
    if now - bus.swept_at >= 1.0:
        bus.swept_at = now
        replies.forget_old(bus, now)
        durable.forget_outcomes(bus, now)
        forget_idle_services(bus, now)
        bus.logs.forget_old(now)
        if bus.let_go:
            holders.forget_told(bus, now)


def forget_idle_services(bus: Bus, now: float) -> None:
    """Names come from the wire: a service that nobody offers or asks for is let go."""
    idle = []
    for service in bus.services.values():
        if (
            service.roster.members
            or service.queue.length
            or service.running
            or service.waiting
            or not service.idle_since
        ):
            service.idle_since = now
        elif now - service.idle_since > bus.limits.idle_service_s:
            idle.append(service)
    if idle:
        # Work that is not on disk yet is on its way there, however long that takes.
        awaited = {request.service for _, request, _ in bus.held if request is not None}
        for service in idle:
            if service not in awaited:
                del bus.services[service.name]


def on_answer_lost(bus: Bus, event: events.AnswerLost, now: float) -> None:
    requests.on_answer_lost(bus, event, now)
    if bus.bridging is not None:
        bus.bridging.answer_lost(event.client, now)


def on_invalid(bus: Bus, event: events.Invalid, now: float) -> None:
    bus.counters.invalid += 1
    bus.observe(
        "invalid", now, client=event.peer, reason=event.reason, detail=f"{event.dialect}: {event.detail}"
    )


def on_written(bus: Bus, event: events.Written, now: float) -> None:
    written.on_written(bus, event, now)
    catalog.admit_written(bus, event.number, now)


def on_store_health(bus: Bus, event: events.StoreHealth, now: float) -> None:
    written.on_store_health(bus, event, now)
    if event.trouble:
        # A lease is kept by beats, not by the disk: nobody waits for it until the disk is well again.
        catalog.admit_written(bus, bus.batch, now)


HANDLERS: dict[type, Callable[[Bus, Any, float], None]] = {
    events.Submit: intake.on_submit,
    events.Result: requests.on_result,
    events.Part: requests.on_part,
    events.Failure: attempts.on_failure,
    events.Cancel: requests.on_cancel,
    events.CancelToken: requests.on_cancel_token,
    events.ClientGone: requests.on_client_gone,
    events.Undeliverable: attempts.on_undeliverable,
    events.AnswerLost: on_answer_lost,
    events.Heard: workers.on_heard,
    events.Slot: workers.on_slot,
    events.WorkerUp: workers.on_worker_up,
    events.Offer: workers.on_offer,
    events.SchedulerUp: workers.on_scheduler_up,
    events.WorkerGone: workers.on_worker_gone,
    events.WorkerFull: workers.on_worker_full,
    events.Leaving: leaving.on_leaving,
    events.Returned: leaving.on_returned,
    events.Schedule: scheduling.on_schedule,
    events.Publish: topics.on_publish,
    events.Subscribe: topics.on_subscribe,
    events.Register: catalog.on_register,
    events.UpdateNode: catalog.on_update,
    events.NodeBeat: catalog.on_beat,
    events.Pulse: leases.on_pulse,
    events.Answered: leases.on_answered,
    events.Unasked: catalog.on_unasked,
    events.NodeLeft: catalog.on_left,
    events.Written: on_written,
    events.Unwritten: scheduling.on_unwritten,
    events.StoreHealth: on_store_health,
    events.Drain: requests.on_drain,
    events.EndUnanswered: requests.on_end_unanswered,
    events.Invalid: on_invalid,
    events.Tick: on_tick,
}
